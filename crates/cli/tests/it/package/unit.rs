//! What a package ships beside the program: generated pages are there, and the
//! systemd unit's sandbox is wide enough for the guard, without a systemd.

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use plimsoll_testbed::{Config, Testbed};

use crate::common::overload::settings;
use crate::common::{self, LIMIT, PROGRAM};

const UNIT: &str = include_str!("../../../../../packaging/plimsoll-guard@.service");

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

/// The unit as it would be installed, for another program's place.
fn unit_for(program: &str, directory: &std::path::Path) -> std::path::PathBuf {
    let path = directory.join("plimsoll-guard@eth0.service");
    fs::write(&path, UNIT.replace("/usr/bin/plimsoll", program)).unwrap();
    path
}

#[test]
fn systemd_accepts_the_unit_and_finds_it_hardened() {
    let directory = tempfile::tempdir().unwrap();
    let unit = unit_for(PROGRAM, directory.path());
    let verify = Command::new("systemd-analyze")
        .args(["verify", "--man=no"])
        .arg(&unit)
        .output()
        .expect("systemd-analyze is installed: scripts/setup");
    let said = String::from_utf8_lossy(&verify.stderr);
    assert!(verify.status.success(), "{said}");
    assert!(!said.contains("plimsoll-guard@"), "{said}");
    // What is left open is what a guard needs: its network and capabilities.
    let security = Command::new("systemd-analyze")
        .args(["security", "--offline=yes", "--no-pager", "--threshold=35"])
        .arg(&unit)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&security.stdout);
    assert!(security.status.success(), "{said}");
}

/// The names of system calls in a group of systemd's, its subgroups' included.
fn system_calls(group: &str) -> BTreeSet<String> {
    let output = Command::new("systemd-analyze")
        .args(["syscall-filter", group])
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let mut names = BTreeSet::new();
    for line in text.lines().skip(1).map(str::trim) {
        if line.starts_with('@') {
            names.extend(system_calls(line));
        } else if !line.is_empty() && !line.starts_with('#') {
            names.insert(line.to_owned());
        }
    }
    names
}

/// Calls that the sandbox refuses, and the guard does without: a mount of the
/// namespace's own sysfs, where `/sys` is the right one, and the question whose
/// answer sweeps the files of dead namespaces.
const DONE_WITHOUT: [&str; 4] = ["fsconfig", "fsmount", "fsopen", "open_by_handle_at"];

#[test]
fn the_guard_makes_no_system_call_that_its_unit_refuses() {
    let testbed = Testbed::create(Config::default()).unwrap();
    let host = testbed.test();
    let directory = tempfile::tempdir().unwrap();
    let trace = directory.path().join("trace");
    let settings = directory.path().join("guard.toml");
    fs::write(&settings, "").unwrap();
    let mut tracer = host
        .command("strace")
        .args(["-f", "-o"])
        .arg(&trace)
        .args([PROGRAM, "guard", host.device(), "--json=-", "--threaded=3"])
        .args(["--metrics=127.0.0.1:9464", "--duration=2", "--config"])
        .arg(&settings)
        .stdout(Stdio::piped())
        .spawn()
        .expect("strace is installed: scripts/setup");
    let mut line = String::new();
    let mut output = BufReader::new(tracer.take_stdout().unwrap());
    output.read_line(&mut line).unwrap();
    assert!(line.contains("\"interface\""), "it does not start");
    common::output(host, &["status", host.device()]);
    assert!(tracer.wait(LIMIT).unwrap().success());

    let mut allowed = system_calls("@default");
    for word in unit_words("SystemCallFilter") {
        if word.starts_with('@') {
            allowed.extend(system_calls(word));
        } else {
            allowed.insert(word.to_owned());
        }
    }
    let trace = fs::read_to_string(trace).unwrap();
    let calls = trace.lines().filter_map(|line| {
        let (_, call) = line.split_once(' ')?;
        let (name, _) = call.trim_start().split_once('(')?;
        let is_name = name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
        is_name.then(|| name.to_owned())
    });
    let calls: BTreeSet<String> = calls.collect();
    assert!(calls.contains("bpf") && calls.len() > 30, "{calls:?}");
    let refused: Vec<_> = calls
        .difference(&allowed)
        .filter(|call| !DONE_WITHOUT.contains(&call.as_str()))
        .collect();
    assert_eq!(refused, [""; 0]);
}
