//! docs/guard.md taken at its word: its commands run in the order in which they
//! stand there, around a real nginx. Needs root.

use std::io::BufRead;

use nix::sys::signal::Signal;
use plimsoll_testbed::http::{HttpLoad, Nginx, run_wrk};
use plimsoll_testbed::{Config, Testbed};

use crate::common::overload::{await_report, busy_server, flood, flooded, receive_on_test_cpu};
use crate::common::{self, output, start_with};

const GUIDE: &str = include_str!("../../../../docs/guard.md");
const SINK: u16 = 5000;
const FLOOD_PPS: u64 = 300_000;

/// The lines of the guide's shell blocks.
fn commands() -> Vec<&'static str> {
    let mut inside = false;
    let lines = GUIDE.lines().filter(|line| {
        if line.starts_with("```") {
            inside = *line == "```sh";
            return false;
        }
        inside
    });
    lines.collect()
}

#[test]
fn the_guide_asks_for_nothing_that_is_not_tried() {
    let others = commands();
    let others: Vec<&str> = others
        .into_iter()
        .filter(|line| !line.starts_with("sudo plimsoll "))
        .collect();
    // Building and packaging; what package and service do is tested in package/.
    assert_eq!(
        others,
        [
            "cargo build --release",
            "sudo install target/release/plimsoll /usr/bin/",
            "make deb",
            "sudo apt install ./target/debian/plimsoll_*.deb",
            "sudoedit /etc/plimsoll/guard.toml",
            "sudo systemctl enable --now plimsoll-guard@eth0",
        ]
    );
}

#[test]
fn followed_literally_it_protects_a_real_server() {
    let testbed = Testbed::create(Config::default()).unwrap();
    let host = testbed.test();
    let nginx = Nginx::start(host, 80).unwrap();
    let _sink = busy_server(host, SINK);
    receive_on_test_cpu(&testbed);
    let mut followed = Vec::new();
    for line in commands() {
        let Some(words) = line.strip_prefix("sudo plimsoll guard ") else {
            continue;
        };
        let words: Vec<&str> = words
            .split(' ')
            .map(|word| if word == "eth0" { host.device() } else { word })
            .collect();
        followed.push(words[0]);
        match words.as_slice() {
            // A terminal session of its own: guard_top.rs.
            ["top", _] => {}
            ["check", _] => assert!(output(host, &words).contains("xdp")),
            [device, options @ ..] if *device == host.device() => {
                let (mut guard, mut reports) = start_with(host, options);
                let observes = options.contains(&"--observe");
                serve_flooded(&testbed, &nginx, &mut reports, observes);
                guard.signal(Signal::SIGTERM).unwrap();
                assert!(guard.wait(common::LIMIT).unwrap().success());
            }
            other => panic!("the guide has a command that this test does not know: {other:?}"),
        }
    }
    assert_eq!(followed, ["check", host.device(), "top", host.device()]);
}

/// nginx answers while another server is flooded, and the guard tells who suffers.
fn serve_flooded(testbed: &Testbed, nginx: &Nginx, reports: &mut impl BufRead, observes: bool) {
    let load = HttpLoad {
        connections: 4,
        seconds: 1,
        keep_alive: true,
        patience: common::LIMIT,
    };
    let spec = flood(testbed, SINK..=SINK, FLOOD_PPS);
    let (served, _) = flooded(testbed, &spec, || {
        run_wrk(testbed.load(), nginx.address(), load)
    });
    let report = await_report(reports, "full sockets", |report| {
        report["totals"]["udp_socket"]["source_share"].as_u64() > Some(0)
    });
    assert_eq!(report["observe"].as_bool(), Some(observes), "{report}");
    if !observes {
        assert!(served.unwrap().requests_per_second > 0.0);
    }
}
