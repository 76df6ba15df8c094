//! Command lines that cannot be done as they stand: refused before anything is touched, with the
//! reason. Needs root.

use std::fs;
use std::os::unix::fs::symlink;
use std::process::Command;

use crate::common::PROGRAM;

/// Exit code and standard error.
fn said(words: &[&str]) -> (Option<i32>, String) {
    let output = Command::new(PROGRAM).args(words).output().unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    (output.status.code(), text)
}

/// It had been told at the end, and what was counted was lost.
#[test]
fn a_file_that_cannot_be_written_is_told_at_the_start() {
    let directory = tempfile::tempdir().unwrap();
    let rules = directory.path().join("rules.toml");
    fs::write(&rules, "default = 'accept'").unwrap();
    let screen = format!("screen no0 no1 --rules {}", rules.display());
    for command in [
        "blast --count 1",
        "bench forward",
        "bench guard",
        "bench wan",
        "capture lo -w /dev/null",
        "demo --only udp",
        "forward no0 no1",
        "guard lo",
        "lab run mr-fig2",
        "lab sweep mr-fig2 --parameter path.quota --values 1",
        "probe 127.0.0.1:9",
        &screen,
        "serve echo --port 7",
        "triggers",
    ] {
        assert_not_written(command.split(' ').chain(["--json", "/no/such/file"]));
    }
    // There it may stand alone.
    assert_not_written(["guard", "check", "lo", "--json=/no/such/file"]);
}

fn assert_not_written<'a>(words: impl IntoIterator<Item = &'a str>) {
    let words: Vec<_> = words.into_iter().collect();
    let (code, said) = said(&words);
    assert_eq!(code, Some(1), "{words:?}: {said}");
    assert!(
        said.contains("plimsoll: cannot write /no/such/file (name a "),
        "{words:?}: {said}"
    );
}

#[test]
fn what_contradicts_itself_is_refused() {
    for command in [
        "blast --rate 5 --unlimited",
        "capture lo -w /dev/null --mode take --no-outgoing",
        "guard lo --strategy off --threaded 0",
        "lab run mr-fig2 --json - --csv -",
        "serve dns --port 7 --zone /dev/null --root /",
        "serve echo --port 7 --root /",
        "serve http --port 7 --zone /dev/null",
        "serve sink --port 7 --gateway 10.0.0.1",
    ] {
        let (code, said) = said(&command.split(' ').collect::<Vec<_>>());
        assert_eq!(code, Some(2), "{command}: {said}");
    }
}

/// The cause stood in the text, and came again behind it.
#[test]
fn each_cause_is_told_once() {
    for command in [
        "blast --count 1 --cpu 99",
        "blast --arrivals /no/such/file",
        "guard lo --config /no/such/file",
        "screen no0 no1 --rules /no/such/file",
        "serve dns --port 7 --zone /no/such/file",
        "serve http --port 7 --root /no/such/file",
    ] {
        let (_, said) = said(&command.split(' ').collect::<Vec<_>>());
        assert_eq!(said.matches("os error").count(), 1, "{command}: {said}");
        let mut parts: Vec<&str> = said.trim_end().split(": ").collect();
        let all = parts.len();
        parts.sort_unstable();
        parts.dedup();
        assert_eq!(parts.len(), all, "{command}: {said}");
        assert!(!said.contains(":0:"), "{command}: {said}");
    }
}

/// What is in the file stays if nothing new comes.
#[test]
fn a_file_of_results_outlives_a_start_that_fails() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("results.json");
    let name = file.to_str().unwrap();
    for is_there in [true, false] {
        if is_there {
            fs::write(&file, "old").unwrap();
        }
        let (code, said) = said(&["forward", "no0", "no1", "--json", name]);
        assert_ne!(code, Some(0), "{said}");
        match is_there {
            true => assert_eq!(fs::read_to_string(&file).unwrap(), "old"),
            false => assert!(!file.exists()),
        }
        let _ = fs::remove_file(&file);
    }
}

/// The scenes before it had been measured, and then the demo ran on a modelled host instead.
#[test]
fn a_demo_that_lacks_a_program_says_so_at_once() {
    let programs = tempfile::tempdir().unwrap();
    let path = std::env::var_os("PATH").unwrap();
    for name in ["ethtool", "ip", "nginx", "sh", "wrk"] {
        let mut directories = std::env::split_paths(&path);
        let found = directories.find_map(|one| fs::canonicalize(one.join(name)).ok());
        let found = found.unwrap_or_else(|| panic!("{name} (scripts/setup installs it)"));
        symlink(found, programs.path().join(name)).unwrap();
    }
    let mut command = Command::new(PROGRAM);
    command.arg("demo").env("PATH", programs.path());
    let output = command.output().unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(3), "{text}");
    let expected = "plimsoll: nsd is not installed: install the package nsd\n";
    assert_eq!(text, expected);
    assert!(output.stdout.is_empty());
}
