//! Runs `plimsoll bench`, and looks at the goals of its document.

use std::process::Command;

use nix::unistd::geteuid;
use serde_json::Value;

pub(crate) fn measure(arguments: &[&str]) -> Value {
    assert!(
        geteuid().is_root(),
        "this test makes network namespaces and BPF programs: run it as root"
    );
    let output = Command::new(env!("CARGO_BIN_EXE_plimsoll"))
        .arg("bench")
        .args(arguments)
        .args(["--json", "-"])
        .output()
        .unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{stderr}");
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {stderr}"))
}

/// Every goal has its form: a verdict of what was measured, or a reason why there is none.
pub(crate) fn assert_goals<T: AsRef<str>>(document: &Value, ids: &[T]) {
    let goals = document["goals"].as_array().unwrap();
    let found: Vec<&str> = goals
        .iter()
        .map(|goal| goal["id"].as_str().unwrap())
        .collect();
    assert_eq!(found, ids.iter().map(T::as_ref).collect::<Vec<_>>());
    for goal in goals {
        assert!(
            goal["what"].is_string() && goal["unit"].is_string(),
            "{goal}"
        );
        let measured = goal["measured"].is_number();
        assert_eq!(
            measured,
            !goal["runs"].as_array().unwrap().is_empty(),
            "{goal}"
        );
        assert!(
            goal["why"].is_string() || (goal["met"].is_boolean() && measured),
            "{goal}"
        );
    }
}
