//! `plimsoll lab` on real packets beside the model. Needs root: namespaces and
//! floods are real.

use std::path::Path;
use std::process::Command;

use nix::unistd::geteuid;
use serde_json::Value;

/// The values of a measure of a curve, in order of the swept parameter.
fn values(document: &Value, curve: &str, measure: &str) -> Vec<f64> {
    let curves = document["experiments"][0]["curves"].as_array().unwrap();
    let found = curves.iter().find(|found| found["id"] == curve);
    let points = found.unwrap_or_else(|| panic!("no curve {curve}: {document}"))["points"]
        .as_array()
        .unwrap();
    let value = |point: &Value| point["values"][measure].as_f64();
    points.iter().filter_map(value).collect()
}

#[test]
fn the_same_file_runs_on_real_packets_and_on_the_model() {
    assert!(geteuid().is_root(), "network namespaces need root");
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/experiments");
    let output = Command::new(env!("CARGO_BIN_EXE_plimsoll"))
        .args([
            "lab",
            "run",
            "udp",
            "--quick",
            "--json",
            "-",
            "--experiments",
        ])
        .arg(directory)
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let document: Value = serde_json::from_slice(&output.stdout).unwrap();
    for path in ["stock", "threaded", "guard"] {
        let modelled = values(&document, path, "goodput");
        let real = values(&document, &format!("{path}_testbed"), "goodput");
        assert_eq!(modelled.len(), 2, "{document}");
        assert_eq!(real.len(), 2, "{document}");
        assert!(real[0] == 0.0 && real[1] > 0.0, "{path}: {real:?}");
        let answers = values(&document, &format!("{path}_testbed"), "answers");
        assert!(answers[0] > 0.0, "{path}: {answers:?}");
    }
    // The distance is stated for each path.
    let distances = document["experiments"][0]["distances"].as_array().unwrap();
    for path in ["stock", "threaded", "guard"] {
        let is_goodput = |one: &&Value| one["curve"] == path && one["measure"] == "goodput";
        let found = distances.iter().find(is_goodput).unwrap();
        let (last, real) = (
            &found["points"][1],
            values(&document, &format!("{path}_testbed"), "goodput"),
        );
        assert_eq!(last["real"].as_f64(), Some(real[1]), "{found}");
        let ratio = last["real"].as_f64().unwrap() / last["model"].as_f64().unwrap();
        assert_eq!(last["ratio"].as_f64(), Some(ratio), "{found}");
    }
    let claim = &document["experiments"][0]["claims"][0];
    assert_eq!(claim["holds"], true, "{claim}");
}
