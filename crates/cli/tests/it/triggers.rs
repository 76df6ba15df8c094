//! `plimsoll triggers` on this machine. Needs root and gcc.

use std::process::Command;

use serde_json::Value;

/// ST-62: of a real program.
#[test]
fn triggers_of_a_build_come_from_its_system_calls_and_page_faults() {
    let output = Command::new(env!("CARGO_BIN_EXE_plimsoll"))
        .args(["triggers", "build", "--seconds", "1", "--json", "-"])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said} (it needs root and gcc)");
    let document: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(document["schema"], 1);
    assert!(document["probes"]["state_ns"].as_f64().unwrap() > 0.0);
    let build = &document["workloads"][0];
    assert_eq!(build["workload"], "build");
    assert!(build["work_per_s"].as_f64().unwrap() > 0.0);
    let analysis = &build["analysis"];
    assert!(analysis["all"]["count"].as_u64().unwrap() > 1000);
    let sources = analysis["sources"].as_array().unwrap();
    for wanted in ["system_call", "page_fault"] {
        assert!(
            sources.iter().any(|one| one["source"] == wanted),
            "{sources:?}"
        );
    }
    let shares = sources
        .iter()
        .map(|one| one["share_percent"].as_f64().unwrap());
    assert!((shares.sum::<f64>() - 100.0).abs() < 1e-6);
    // The CPUs' own figures are of the same states.
    let cpus = build["cpus"].as_array().unwrap();
    let count = |one: &Value| one["analysis"]["all"]["count"].as_u64();
    let counts: u64 = cpus.iter().filter_map(count).sum();
    assert_eq!(Some(counts), analysis["all"]["count"].as_u64());
}

#[test]
fn an_unknown_workload_is_a_mistake_in_use() {
    let output = Command::new(env!("CARGO_BIN_EXE_plimsoll"))
        .args(["triggers", "quake"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("nginx-compute"), "{said}");
}
