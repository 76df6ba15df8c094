//! What `scripts/tests` makes of tests that fail: cargo and the tests' programs are small
//! scripts here that say what the real ones say. So is what measures others, but for one test.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

const PASSED: &str = "echo 'test result: ok. 1 passed; 0 failed'";
const FAILED: &str = "echo 'test result: FAILED. 0 passed; 1 failed'; exit 101";

/// A directory that ends with the test.
struct Place(PathBuf);

impl Place {
    fn new(name: &str) -> Self {
        let place = std::env::temp_dir().join(format!("plimsoll-{name}-{}", std::process::id()));
        fs::create_dir(&place).unwrap();
        Self(place)
    }

    fn script(&self, name: &str, text: &str) -> PathBuf {
        let path = self.0.join(name);
        fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o755)).unwrap();
        path
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// What cargo says of a program of which these tests failed.
fn failures(package: &str, program: &Path, names: &[&str]) -> String {
    let names: String = names.iter().map(|name| format!("    {name}\n")).collect();
    format!(
        "     Running tests/it.rs ({})\n\nrunning 9 tests\ntest one ... FAILED\n\nfailures:\n\n\
         ---- one stdout ----\n    no_name_of_a_test\n\n\nfailures:\n{names}\n\
         test result: FAILED. 1 passed; 1 failed\n\n\
         error: test failed, to rerun pass `-p {package} --test it`\n",
        program.display()
    )
}

/// What measures others, and says this of each program and of all the time.
fn measured(place: &Place, says: &str) -> PathBuf {
    let programs = ["it", "other"].map(|name| place.0.join(name));
    let [it, other] = programs.each_ref().map(|path| path.display());
    let all = format!("cat; printf '%s {says}\\n' {it} {other} all >$2");
    place.script("measures", &all)
}

/// The script's exit code and last line, if cargo does this and ends with 101.
fn run(place: &Place, measures: &Path, cargo_does: &str) -> (Option<i32>, String) {
    let cargo = format!("[ $1 = test ] || exit 0\n{cargo_does}\nexit 101");
    let cargo = place.script("cargo", &cargo);
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/tests");
    let output = Command::new(script)
        .arg("core")
        .env("CARGO", cargo)
        .env("TRIES", measures)
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let last = text.lines().last().unwrap_or_default().to_owned();
    (output.status.code(), last)
}

/// Has cargo say this.
fn says(place: &Place, text: &str) -> String {
    let said = place.0.join("said");
    fs::write(&said, text).unwrap();
    format!("cat {}", said.display())
}

/// The same, where others had much of the machine.
fn run_beside_others(place: &Place, cargo_says: &str) -> (Option<i32>, String) {
    let measures = measured(place, "much 31.2");
    run(place, &measures, &says(place, cargo_says))
}

#[test]
fn what_passes_alone_is_named_and_fails_no_run() {
    let place = Place::new("passes-alone");
    let program = place.script("it", &format!("[ \"$*\" = '--exact one' ] && {PASSED}"));
    let said = failures("plimsoll-cli", &program, &["one"]) + "error: 1 target failed:\n";
    let named = "failed, passed alone: plimsoll-cli, one: \
        others had up to 31.2 % of the machine, then up to 31.2 %";
    assert_eq!(
        run_beside_others(&place, &said),
        (Some(0), named.to_owned())
    );
}

#[test]
fn what_fails_alone_too_fails_the_run() {
    let place = Place::new("fails-alone");
    let text = format!("case $2 in one) {PASSED};; *) {FAILED};; esac");
    let program = place.script("it", &text);
    let said = failures("plimsoll-cli", &program, &["one", "two"]);
    let (code, last) = run_beside_others(&place, &said);
    assert_eq!(code, Some(101));
    let named = "failed, and alone as well: plimsoll-cli, two: others had";
    assert!(last.starts_with(named), "{last}");
    // As a program does that does not know the test.
    let program = place.script("other", "echo 'test result: ok. 0 passed; 0 failed'");
    let said = failures("plimsoll-cli", &program, &["one"]);
    assert_eq!(run_beside_others(&place, &said).0, Some(101));
}

/// A test of `programs` failed so on a quiet machine on 2026-11-26, and passed alone.
#[test]
fn what_failed_on_a_machine_of_its_own_is_told_so() {
    let place = Place::new("own-machine");
    let program = place.script("it", PASSED);
    let said = says(&place, &failures("plimsoll-cli", &program, &["one"]));
    let measures = measured(&place, "little 0.4");
    let (code, last) = run(&place, &measures, &said);
    assert_eq!(code, Some(0), "{last}");
    let named = "failed, passed alone: plimsoll-cli, one: others had up to 0.4 % of the machine";
    assert!(last.starts_with(named), "{last}");
    let measures = place.script("measures", "cat; : >$2");
    let (code, last) = run(&place, &measures, &said);
    assert_eq!(code, Some(0), "{last}");
    let named = "failed, passed alone: plimsoll-cli, one: nothing was measured";
    assert!(last.starts_with(named), "{last}");
}

/// A process that computes in another session while a test fails.
#[test]
fn who_computes_beside_a_program_is_measured() {
    let place = Place::new("measured");
    let program = place.script("it", PASSED);
    let running = format!("echo '     Running tests/it.rs ({})'", program.display());
    let compute = "(setsid timeout 3 sh -c 'while :; do :; done' >/dev/null 2>&1 &)";
    let said = says(&place, &failures("plimsoll-cli", &program, &["one"]));
    let said = said + " | grep -v Running";
    let cargo_does = format!("{running}\n{compute}\nsleep 2\n{said}");
    let measures = Path::new(env!("CARGO_BIN_EXE_plimsoll-tries"));
    let (code, last) = run(&place, measures, &cargo_does);
    assert_eq!(code, Some(0), "{last}");
    let named = "failed, passed alone: plimsoll-cli, one: others had up to ";
    assert!(last.starts_with(named), "{last}");
}

/// Each of these runs fails, though the test would pass alone.
#[test]
fn faults_that_need_no_machine_s_time_get_no_second_try() {
    let place = Place::new("no-second-try");
    let program = place.script("it", PASSED);
    let one = failures("plimsoll-cli", &program, &["one"]);
    let many = ["one", "two", "three", "four", "five", "six", "seven"];
    for (what, said) in [
        (
            "a quiet crate",
            failures("plimsoll-core", &program, &["one"]),
        ),
        ("too many", failures("plimsoll-cli", &program, &many)),
        (
            "a program that died",
            failures("plimsoll-cli", &program, &[]),
        ),
        (
            "another program that died",
            one.clone() + &failures("plimsoll-cli", &program, &[]),
        ),
        (
            "no compiling",
            one.clone() + "error[E0308]: mismatched types\n",
        ),
        (
            "an example",
            one + "error: doctest failed, to rerun pass `-p plimsoll-cli --doc`\n",
        ),
        ("nothing", String::new()),
    ] {
        assert_eq!(run_beside_others(&place, &said).0, Some(101), "{what}");
    }
}
