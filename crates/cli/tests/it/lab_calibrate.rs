//! `plimsoll lab calibrate`. Needs root: namespaces and floods are real. Its numbers mean
//! nothing here: windows are as short as they may be, and the machine is busy with tests.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Output};

use nix::unistd::geteuid;
use serde_json::Value;

use crate::shell::run;

fn plimsoll(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_plimsoll"));
    command.arg("lab").args(arguments).output().unwrap()
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// The values of a trial, sorted.
fn values(document: &Value, id: &str) -> Vec<f64> {
    let trials = document["trials"].as_array().unwrap();
    let trial = trials.iter().find(|trial| trial["id"] == id);
    let values = trial.unwrap_or_else(|| panic!("no trial {id}"))["values"].as_array();
    let mut values: Vec<f64> = values.unwrap().iter().filter_map(Value::as_f64).collect();
    values.sort_by(f64::total_cmp);
    values
}

/// Every number says how it was measured, or that it was not.
fn check_sources(text: &str) {
    let profile: toml::Table = text.parse().unwrap();
    assert_eq!(profile["name"].as_str(), Some("today"));
    for list in ["costs", "queues"] {
        for (name, given) in profile[list].as_table().unwrap() {
            let source = given["source"].as_str().unwrap();
            let measured = source.starts_with("measured: ") && source.contains("trial ");
            let assumed = source.starts_with("assumed: no trial measures it");
            assert!(measured || assumed, "{name}: {source}");
        }
    }
    let input = profile["costs"]["protocol_input"]["source"].as_str();
    assert!(input.unwrap().contains("over 5 repeats"), "{input:?}");
}

/// With windows as short as others leave it the CPU for: a thread that waits 10 ms for its turn
/// sees in one of 20 what came in two.
fn calibrated(out: &str) -> Output {
    let mut refused = Vec::new();
    for window_ms in ["20", "100", "400"] {
        let arguments = [
            "calibrate",
            "--out",
            out,
            "--window-ms",
            window_ms,
            "--json",
            "-",
        ];
        let output = plimsoll(&arguments);
        if output.status.success() {
            return output;
        }
        let why = said(&output);
        assert!(why.contains("is the machine busy?"), "{why}");
        refused.push(why);
    }
    panic!("{refused:?}");
}

#[test]
fn a_complete_profile_is_written_and_experiments_run_on_it() {
    assert!(geteuid().is_root(), "network namespaces need root");
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("today.toml");
    let out = file.to_str().unwrap();
    let output = calibrated(out);
    let document: Value = serde_json::from_slice(&output.stdout).unwrap();
    for id in [
        "timer", "queue", "full", "drop", "guard", "syn", "read", "send", "tick", "room",
    ] {
        let values = values(&document, id);
        // One window of 20 ms may have met somebody else's packets.
        assert!(values.len() == 5 && values[2] > 0.0, "{id}: {values:?}");
    }
    // The kernel's constant, and at most one packet that left the ring meanwhile; less where
    // something else was in it. (The first bound of the median was 256; 255 was seen.)
    let ring = values(&document, "ring");
    assert!((240.0..=257.0).contains(&ring[2]), "{ring:?}");
    check_sources(&fs::read_to_string(&file).unwrap());
    let output = plimsoll(&[
        "run",
        "demo-udp",
        "--quick",
        "--profile",
        out,
        "--json",
        "-",
    ]);
    assert!(output.status.success(), "{output:?}");
    let document: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(document["experiments"][0]["profile"], "today");
    assert_real_floods_beside_the_model(out);
}

#[test]
fn a_file_that_cannot_be_written_is_said_before_anything_is_measured() {
    for out in ["/nowhere/today.toml", "/"] {
        let output = plimsoll(&["calibrate", "--out", out]);
        assert!(!output.status.success(), "{output:?}");
        assert!(
            said(&output).contains("--out") || said(&output).contains("cannot write"),
            "{output:?}"
        );
    }
    // The same in one command with the experiments.
    let calibrate = ["--calibrate", "/nowhere/today.toml"];
    let both = [
        &["run", "floods", "--quick", "--experiments", EXPERIMENTS],
        &calibrate[..],
    ];
    let output = plimsoll(&both.concat());
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(said(&output).contains("cannot write"), "{output:?}");
    let few = plimsoll(&["calibrate", "--out", "today.toml", "--repeats", "4"]);
    assert_eq!(few.status.code(), Some(2), "{few:?}");
    let none = plimsoll(&[
        "run",
        "demo-udp",
        "--quick",
        "--profile",
        "/nowhere/today.toml",
    ]);
    assert_eq!(none.status.code(), Some(1), "{none:?}");
}

#[test]
fn without_root_it_says_so_and_leaves_no_file() {
    assert!(geteuid().is_root(), "this becomes an ordinary user");
    let directory = tempfile::tempdir().unwrap();
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o777)).unwrap();
    // Where an ordinary user may read it.
    let program = directory.path().join("plimsoll");
    // Not by this process: while a child that another test forks has the file open to write,
    // too, it cannot be started.
    run(&format!(
        "cp {} {}",
        env!("CARGO_BIN_EXE_plimsoll"),
        program.display()
    ));
    let file = directory.path().join("today.toml");
    let output = Command::new(&program)
        .args(["lab", "calibrate", "--out"])
        .arg(&file)
        .uid(65_534)
        .gid(65_534)
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    assert!(said(&output).contains("root"), "{output:?}");
    assert!(!Path::new(&file).exists());
}

/// Real packets, and the model with the costs in `file` beside them.
fn assert_real_floods_beside_the_model(file: &str) {
    // What the generator could not offer is not measured. Others may have the CPU that long.
    let mut runs = (0..5).map(|_| real_floods(file));
    let measured = runs.find(|run| run["curves"][0]["points"][0]["values"]["goodput"].is_f64());
    let document = measured.expect("a flood that the generator could offer");
    let distances = document["distances"].as_array().unwrap();
    for curve in ["softirq", "threaded"] {
        let of = |one: &&Value| one["curve"] == curve && one["measure"] == "goodput";
        let found = distances.iter().find(of).unwrap();
        let point = &found["points"][0];
        let (model, real) = (point["model"].as_f64(), point["real"].as_f64());
        assert!(model > Some(0.0) && real > Some(0.0), "{found}");
    }
}

fn real_floods(file: &str) -> Value {
    let output = plimsoll(&[
        "run",
        "floods",
        "--quick",
        "--experiments",
        EXPERIMENTS,
        "--profile",
        file,
        "--json",
        "-",
    ]);
    assert!(output.status.success(), "{output:?}");
    let mut document: Value = serde_json::from_slice(&output.stdout).unwrap();
    document["experiments"][0].take()
}

const EXPERIMENTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/experiments");
