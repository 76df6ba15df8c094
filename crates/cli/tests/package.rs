//! What a package ships beside the program: generated pages are there, and the
//! systemd unit's sandbox is wide enough for the guard. Needs root.

mod common;

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use common::overload::settings;
use common::{LIMIT, PROGRAM};
use plimsoll_testbed::{Config, Testbed};

const UNIT: &str = include_str!("../../../packaging/plimsoll-guard@.service");

/// The values of a key of the unit, by words.
fn unit_words(key: &str) -> Vec<&'static str> {
    let lines = UNIT.lines().filter_map(|line| line.split_once('='));
    let values = lines.filter(|(name, _)| *name == key);
    values.flat_map(|(_, value)| value.split(' ')).collect()
}

#[test]
fn pages_completions_and_settings_are_generated() {
    let directory = tempfile::tempdir().unwrap();
    let status = Command::new(PROGRAM)
        .arg("generate")
        .arg(directory.path())
        .status()
        .unwrap();
    assert!(status.success());
    for (name, mentions) in [
        ("man/plimsoll.1", "plimsoll"),
        ("man/plimsoll-guard.1", "high"),
        ("man/plimsoll-guard-check.1", "Exits with 3"),
        ("man/plimsoll-guard-restore.1", "killed"),
        ("man/plimsoll-guard-status.1", "sort"),
        ("man/plimsoll-guard-top.1", "space pauses"),
        ("completions/plimsoll.bash", "--high-watermark"),
        ("completions/_plimsoll", "high-watermark"),
        ("completions/plimsoll.fish", "high-watermark"),
        ("config/guard.toml", "#high-watermark = 70"),
    ] {
        let text = fs::read_to_string(directory.path().join(name)).unwrap();
        assert!(text.contains(mentions), "{name}:\n{text}");
    }
    let hidden = directory.path().join("man/plimsoll-generate.1");
    assert!(!hidden.exists());
}

#[test]
fn the_guard_starts_and_restores_with_the_capabilities_of_its_unit() {
    let testbed = Testbed::create(Config::default()).unwrap();
    let host = testbed.test();
    let mut bounding = "-all".to_owned();
    for capability in unit_words("CapabilityBoundingSet") {
        bounding += &format!(",+{}", capability.trim_start_matches("CAP_").to_lowercase());
    }
    let file = tempfile::NamedTempFile::new().unwrap();
    let start: Vec<_> = unit_words("ExecStart")
        .into_iter()
        .skip(1)
        .map(|word| match word {
            "%I" => host.device(),
            "/etc/plimsoll/guard.toml" => file.path().to_str().unwrap(),
            "--quiet" => "--json=-",
            word => word,
        })
        .collect();
    // With GRO, veth has an instance before and after XDP.
    host.command("ethtool")
        .args(["-K", host.device(), "gro", "on"])
        .output(LIMIT)
        .unwrap();
    let before = settings(host);
    let mut guard = host
        .command("setpriv")
        .args(["--bounding-set", &bounding, "--no-new-privs", PROGRAM])
        .args(start)
        .args(["--threaded", "3"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    let mut output = BufReader::new(guard.take_stdout().unwrap());
    output.read_line(&mut line).unwrap();
    assert!(line.contains("\"interface\""), "it does not start");
    assert_ne!(settings(host), before, "it polls in a thread");
    assert!(guard.stop(LIMIT).unwrap().success());
    assert_eq!(settings(host), before);
}

#[test]
fn the_unit_names_commands_that_exist() {
    for key in ["ExecStart", "ExecStopPost"] {
        let words = unit_words(key);
        assert_eq!(words[0], "/usr/bin/plimsoll");
        let words = words[1..].iter().map(|word| match *word {
            "%I" => "lo",
            "--config" => "--help",
            word => word,
        });
        let words: Vec<_> = words.filter(|word| !word.ends_with(".toml")).collect();
        let help = Command::new(PROGRAM).args(words).arg("--help").output();
        assert!(help.unwrap().status.success(), "{key}");
    }
}
