//! The lab is the pure model: it builds without clang, libbpf and root.

use std::process::Command;

#[test]
fn the_lab_needs_neither_testbed_nor_libbpf() {
    let output = Command::new(env!("CARGO"))
        .args(["tree", "--offline", "--locked", "--prefix", "none"])
        .args(["--edges", "normal,build", "--package", "plimsoll-lab"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let tree = String::from_utf8(output.stdout).unwrap();
    assert!(tree.contains("plimsoll-sim "), "{tree}");
    for other in [
        "libbpf",
        "plimsoll-bench",
        "plimsoll-testbed",
        "plimsoll-guard",
        "plimsoll-kernel",
    ] {
        assert!(!tree.contains(other), "the lab needs {other}:\n{tree}");
    }
}
