//! `plimsoll forward` on a router between two hosts, as its operator sees it. Needs root.

use std::io::{BufRead, BufReader, Read};
use std::process::Stdio;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use plimsoll_kernel::knobs::{Napi, Netdev};
use plimsoll_testbed::routed::{Routed, Sink};
use plimsoll_testbed::{Config, Host, INNER_DEVICE};

use crate::common::{LIMIT, PROGRAM, get};
use crate::promlint;

/// How often a program is killed on its way up, and how often when it works.
const KILLS: (u32, u32) = (5, 1);

const ADDRESS: (&str, u16) = ("127.0.0.1", 9465);
/// Of the host behind the router ([`Sink::Answers`]).
const ANSWERING: &str = "10.77.0.2";

/// The metrics, as soon as somebody serves them.
fn metrics(router: &Host) -> String {
    let end = Instant::now() + LIMIT;
    let serves = || {
        router
            .run(|| std::net::TcpStream::connect(ADDRESS))
            .unwrap()
    };
    while serves().is_err() {
        assert!(Instant::now() < end, "nobody serves metrics");
        std::thread::sleep(Duration::from_millis(20));
    }
    let (head, body) = get(router, ADDRESS, "/metrics", "*/*");
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    body
}

#[test]
fn a_router_tells_prometheus_what_it_forwarded() {
    let hosts = Routed::create(Config::default(), Sink::Answers).unwrap();
    let router = hosts.router();
    let mut command = router.command(PROGRAM);
    let metrics_at = format!("{}:{}", ADDRESS.0, ADDRESS.1);
    command.args([
        "forward",
        router.device(),
        INNER_DEVICE,
        "--metrics",
        &metrics_at,
    ]);
    let mut forward = command.spawn().unwrap();
    metrics(router);
    let mut ping = hosts.load().command("ping");
    ping.args(["-n", "-c", "5", "-i", "0.01", ANSWERING]);
    ping.output(LIMIT).unwrap();

    let body = metrics(router);
    assert_eq!(promlint::problems(&body), [""; 0]);
    let forwarded = |interface: &str| {
        let series = format!(
            "plimsoll_forward_packets_total{{interface=\"{interface}\",place=\"xdp\",outcome=\"forwarded\"}} "
        );
        let mut values = body.lines().filter_map(|line| line.strip_prefix(&series));
        values
            .next()
            .unwrap_or_else(|| panic!("{series} in\n{body}"))
            .parse::<u64>()
            .unwrap()
    };
    assert!(forwarded(router.device()) >= 4, "{body}");
    assert!(forwarded(INNER_DEVICE) >= 4, "{body}");
    forward.signal(Signal::SIGTERM).unwrap();
    assert!(forward.wait(LIMIT).unwrap().success());
}

/// Only the guide said that netfilter's rules have no effect, and nothing that a shaper has none.
#[test]
fn what_the_kernel_would_ask_or_do_is_told() {
    let hosts = Routed::create(Config::default(), Sink::Answers).unwrap();
    let router = hosts.router();
    let told = || {
        let mut command = router.command(PROGRAM);
        let interfaces = [router.device(), INNER_DEVICE];
        let ended = command
            .arg("forward")
            .args(interfaces)
            .args(["--seconds", "0"]);
        let output = ended.output(LIMIT).unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    let said = told();
    assert!(!said.contains("netfilter"), "{said}");
    let chain = "add chain inet wall out { type filter hook forward priority 0; policy drop; }";
    for words in ["add table inet wall", chain] {
        router.configure("nft", words.split(' ')).unwrap();
    }
    let said = told();
    assert!(
        said.contains("netfilter") && said.contains("`inet wall out`"),
        "{said}"
    );
    assert!(!said.contains("`tc qdisc`"), "{said}");
    let shaper = format!("qdisc add dev {INNER_DEVICE} root tbf rate 1mbit burst 10k latency 50ms");
    router.configure("tc", shaper.split(' ')).unwrap();
    let said = told();
    let words =
        format!("{INNER_DEVICE}: packets that are forwarded here pass by its queueing discipline");
    assert!(said.contains(&words) && said.contains("`tbf`"), "{said}");
}

/// It went on without a word, and what was made anew under the same name was the kernel's.
#[test]
fn an_interface_that_goes_is_told() {
    for path in ["xdp", "user"] {
        let hosts = Routed::create(Config::default(), Sink::Answers).unwrap();
        let router = hosts.router();
        let mut command = router.command(PROGRAM);
        command.args(["forward", "--path", path, router.device(), INNER_DEVICE]);
        let mut forward = command.stderr(Stdio::piped()).spawn().unwrap();
        let says = BufReader::new(forward.take_stderr().unwrap());
        let (teller, told) = channel();
        let lines = says.lines().map_while(Result::ok);
        let reading = std::thread::spawn(move || lines.for_each(|line| drop(teller.send(line))));
        let next = |wanted: &str| {
            let mut all = Vec::new();
            while !all
                .last()
                .is_some_and(|line: &String| line.contains(wanted))
            {
                let line = told.recv_timeout(LIMIT);
                all.push(line.unwrap_or_else(|_| panic!("{path}: {wanted} after {all:?}")));
            }
        };
        next("until Ctrl-C");
        router.ip(&format!("link del {INNER_DEVICE}")).unwrap();
        next(&format!("{INNER_DEVICE} is gone"));
        forward.signal(Signal::SIGTERM).unwrap();
        assert!(forward.wait(LIMIT).unwrap().success());
        reading.join().unwrap();
        let again = told.try_iter().filter(|line| line.contains("is gone"));
        assert_eq!(again.count(), 0, "told once");
    }
}

#[test]
fn an_address_that_others_reach_needs_a_word_more() {
    let arguments = ["forward", "a0", "b0", "--metrics", "0.0.0.0:9465"];
    let output = std::process::Command::new(PROGRAM)
        .args(arguments)
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("--metrics-public"), "{said}");
}

/// What a program may turn or leave: programs, settings, interfaces, rules of the kernel.
fn state(router: &Host) -> String {
    let settings = "threaded gro_flush_timeout napi_defer_hard_irqs";
    let script = format!(
        "ip -details -o link show | grep -o 'xdp[^ ]*\\|^[0-9]*: [^:]*' ; \
         for one in {} {INNER_DEVICE}; do for name in {settings}; do \
         echo $one $name $(cat /sys/class/net/$one/$name); done; done; ip rule; ip -6 rule",
        router.device()
    );
    let output = router.command("sh").args(["-c", &script]).output(LIMIT);
    let links = [router.device(), INNER_DEVICE];
    let polled = router.run(|| links.map(polled));
    let said = String::from_utf8_lossy(&output.unwrap().stdout).into_owned();
    said + &polled.unwrap().concat()
}

/// How the kernel polls a link: each instance's own settings, whatever it is called now.
fn polled(link: &str) -> String {
    let index = plimsoll_kernel::link::index(link).unwrap();
    let instances = Netdev::new().instances(index).unwrap();
    let of = |napi: &Napi| {
        let thread = napi.thread.is_some();
        format!(
            "{link} {:?} {:?} {thread}\n",
            napi.defer_hard_irqs, napi.gro_flush_timeout
        )
    };
    instances.iter().map(of).collect()
}

/// What is to be left closed until somebody says otherwise.
const CLOSED: &str = "--on-failure=closed";

/// Starts a program, kills it after a while, and waits until all is as before.
fn killed(router: &Host, arguments: &[&str], after: Option<Duration>, before: &str) -> Duration {
    let mut command = router.command(PROGRAM);
    command.args(arguments).stderr(Stdio::piped());
    let begun = Instant::now();
    let mut process = command.spawn().unwrap();
    let mut says = process.take_stderr().unwrap();
    match after {
        Some(time) => std::thread::sleep(time),
        // Its first words: it works.
        None => says.read_exact(&mut [0; 8]).unwrap(),
    }
    let took = begun.elapsed();
    process.signal(Signal::SIGKILL).unwrap();
    process.wait(LIMIT).unwrap();
    let end = Instant::now() + LIMIT;
    while state(router) != before {
        if arguments.contains(&CLOSED) {
            // Refused while the keeper is at it.
            let restore = ["guard", "restore"];
            let _ = router.command(PROGRAM).args(restore).output(LIMIT);
        }
        let left = state(router);
        assert!(
            Instant::now() < end,
            "{arguments:?}, killed after {after:?}: {left}"
        );
        std::thread::sleep(Duration::from_millis(20));
    }
    took
}

/// A driver makes its instances anew when its link goes down and up.
#[test]
fn a_link_that_comes_back_is_polled_by_a_thread_again() {
    let hosts = Routed::create(Config::default(), Sink::Answers).unwrap();
    let router = hosts.router();
    let links = [router.device(), INNER_DEVICE];
    let threads = |count: usize| {
        let end = Instant::now() + LIMIT;
        let present = || router.run(|| links.map(polled)).unwrap().concat();
        while present().matches("true").count() != count {
            assert!(Instant::now() < end, "{count} threads: {}", present());
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    let set = |to: &str| {
        let mut command = router.command("ip");
        command.args(["link", "set", INNER_DEVICE, to]);
        assert!(command.output(LIMIT).unwrap().status.success());
    };
    // It is down at first.
    set("down");
    let mut command = router.command(PROGRAM);
    command.args(["forward", "--path", "user"]).args(links);
    let process = command.stderr(Stdio::null()).spawn().unwrap();
    threads(1);
    for _ in 0..2 {
        set("up");
        threads(2);
        set("down");
        threads(1);
    }
    process.signal(Signal::SIGTERM).unwrap();
    threads(0);
    drop(process);
}

/// SIGKILL at every step of the start, and at work. A screen that fails closed leaves them so
/// when `guard restore` says so; until 2026-11-24 it did at once.
#[test]
fn a_killed_router_or_screen_leaves_interfaces_as_they_were() {
    let hosts = Routed::create(Config::default(), Sink::Answers).unwrap();
    let router = hosts.router();
    let directory = tempfile::tempdir().unwrap();
    let rules = directory.path().join("rules.toml");
    std::fs::write(&rules, "default = 'accept'").unwrap();
    let rules = rules.to_str().unwrap();
    let links = [router.device(), INNER_DEVICE];
    let before = state(router);
    assert!(!before.contains("xdp"), "{before}");
    let further: [&[&str]; 4] = [
        &["forward", "--cpu-limit", "50"],
        &["forward", "--path", "user"],
        &["screen", "--on-failure=open", "--rules", rules],
        &["screen", CLOSED, "--remember", "64", "--rules", rules],
    ];
    for further in further {
        let arguments = [further, &links].concat();
        let mut whole = Duration::ZERO;
        for _ in 0..KILLS.1 {
            whole = killed(router, &arguments, None, &before);
        }
        for step in 0..KILLS.0 {
            killed(router, &arguments, Some(whole * step / KILLS.0), &before);
        }
    }
}
