//! What `scripts/commit-msg` says of commit messages.

use std::fs;
use std::path::Path;
use std::process::Command;

/// Faults of this message, in the script's words.
fn faults(message: &str) -> String {
    let id = std::process::id();
    let file = std::env::temp_dir().join(format!("plimsoll-commit-message-{id}"));
    fs::write(&file, message).unwrap();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/commit-msg");
    let output = Command::new(script).arg(&file).output().unwrap();
    fs::remove_file(&file).unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.success(), said.is_empty(), "{said}");
    said
}

#[test]
fn a_message_has_an_area_a_short_summary_and_a_body() {
    let longest = format!("guard: {}\n\nWhy.\n", "ü".repeat(65));
    let too_long = longest.replace("\n\n", "x\n\n");
    let verbose = "guard: act\n\n# ------------------------ >8 ------------------------\n+code\n";
    for (message, fault) in [
        ("guard: act\n\nWhy.\n", ""),
        ("\n# Of git.\nguard, no-std: act\n\nWhy.\n", ""),
        ("Merge branch 'main'\n", ""),
        ("fixup! guard: act\n", ""),
        (longest.as_str(), ""),
        (too_long.as_str(), "73 columns"),
        ("Act\n\nWhy.\n", "`area: summary`"),
        ("guard: \n\nWhy.\n", "`area: summary`"),
        ("guard: act\n", "no body"),
        ("guard: act\n\n# Of git.\n", "no body"),
        (verbose, "no body"),
        ("guard: act\nWhy.\n", "no blank line"),
        ("", "no body"),
    ] {
        let said = faults(message);
        assert_eq!(said.is_empty(), fault.is_empty(), "{message}: {said}");
        assert!(said.contains(fault), "{message}: {said}");
    }
}
