//! What `plimsoll-tries` makes of programs that pass and fail: they are small scripts here that
//! say what real ones say. `scripts/tests` gives it what cargo says.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
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

    /// What cargo says of a test program that is this script. Its crate is a directory here.
    fn program(&self, of_crate: &str, name: &str, text: &str) -> String {
        self.built(of_crate, name, text, &format!("{name}.rs"))
    }

    /// The same of one that joins many, and lists these tests.
    fn joined(&self, of_crate: &str, tests: &[&str], text: &str) -> String {
        let list: String = tests.iter().map(|name| format!("{name}: test\n")).collect();
        let listed = "[ \"$*\" != '--list --format terse' ] ||";
        let text = format!("{listed} {{ cat <<'END'\n{list}END\nexit; }}\n{text}");
        self.built(of_crate, "it", &text, "it/main.rs")
    }

    fn built(&self, of_crate: &str, name: &str, text: &str, source: &str) -> String {
        let directory = self.0.join(of_crate);
        fs::create_dir_all(&directory).unwrap();
        let message = serde_json::json!({
            "reason": "compiler-artifact",
            "manifest_path": directory.join("Cargo.toml"),
            "target": {
                "kind": ["test"],
                "name": name,
                "src_path": directory.join("tests").join(source),
            },
            "profile": { "test": true },
            "executable": self.script(&format!("{of_crate}-{name}"), text),
        });
        format!("{message}\n")
    }

    /// The exit code and what is printed, where cargo built this and runs examples so, beside these
    /// lints. Programs of `lab` take the rest, and those of `guard` and `quiet` of `cli` are alone.
    fn run_with(&self, built: &str, examples: &str, lints: &str) -> (Option<i32>, String) {
        fs::write(self.0.join("messages"), built).unwrap();
        let needs = "lab * rest\nguard tests/* alone\ncli tests/quiet alone\n";
        fs::write(self.0.join("needs"), needs).unwrap();
        let output = Command::new(env!("CARGO_BIN_EXE_plimsoll-tries"))
            .args(["messages", "needs", lints, "core", "lab"])
            .current_dir(&self.0)
            .env("CARGO", self.script("cargo", examples))
            .output()
            .unwrap();
        let text = [output.stdout, output.stderr].concat();
        (output.status.code(), String::from_utf8(text).unwrap())
    }

    fn run(&self, built: &str) -> (Option<i32>, String) {
        self.run_with(built, "exit 0", "")
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A program of which these tests fail together, and each does this alone.
fn fails(names: &[&str], alone: &str) -> String {
    let names: String = names.iter().map(|name| format!("    {name}\n")).collect();
    format!(
        "[ $# = 0 ] || {{ {alone}; exit; }}\n\
         cat <<'END'\nrunning 9 tests\ntest one ... FAILED\n\nfailures:\n\n---- one stdout ----\n    \
         no_name_of_a_test\n\n\nfailures:\n{names}\ntest result: FAILED. 1 passed; 1 failed\nEND\n\
         exit 101"
    )
}

#[test]
fn what_passes_alone_is_named_and_fails_no_run() {
    let place = Place::new("passes-alone");
    let alone = format!("[ \"$*\" = '--exact one' ] && [ $(basename $PWD) = cli ] && {PASSED}");
    let built = place.program("cli", "it", &fails(&["one"], &alone));
    let (code, said) = place.run(&built);
    assert_eq!(code, Some(0), "{said}");
    let last = said.lines().last().unwrap();
    let named = "failed, passed alone: plimsoll-cli, one: others had up to ";
    assert!(last.starts_with(named), "{last}");
    assert!(last.contains(" % of the machine, then up to "), "{last}");
}

#[test]
fn what_fails_alone_too_fails_the_run() {
    let place = Place::new("fails-alone");
    let alone = format!("case $2 in one) {PASSED};; *) {FAILED};; esac");
    let built = place.program("cli", "it", &fails(&["one", "two"], &alone));
    let (code, said) = place.run(&built);
    assert_eq!(code, Some(101));
    let named = "failed, and alone as well: plimsoll-cli, two: others had";
    assert!(said.lines().last().unwrap().starts_with(named), "{said}");
    // As a program does that does not know the test.
    let unknown = "echo 'test result: ok. 0 passed; 0 failed'";
    let built = place.program("cli", "it", &fails(&["one"], unknown));
    assert_eq!(place.run(&built).0, Some(101));
}

/// A process that computes in another session while a test fails.
#[test]
fn who_computes_beside_a_program_is_measured() {
    let place = Place::new("measured");
    let compute = "(setsid timeout 3 sh -c 'while :; do :; done' >/dev/null 2>&1 &)\nsleep 2\n";
    let text = fails(&["one"], PASSED).replacen("\n", &format!("\n{compute}"), 1);
    let (code, said) = place.run(&place.program("cli", "it", &text));
    assert_eq!(code, Some(0), "{said}");
    let (_, part) = said.rsplit_once("others had up to ").unwrap();
    let part: f64 = part.split(' ').next().unwrap().parse().unwrap();
    assert!(part > 5.0, "{said}");
}

/// In a process of its own, as if each were a program.
#[test]
fn each_module_of_a_joined_program_runs_where_its_need_is() {
    let place = Place::new("modules");
    let text = format!("echo \"$(basename $PWD) $*\" >>../runs; {PASSED}");
    let tests = ["quiet::a", "quiet_too::b::c", "quiet_too::a", "wide::a"];
    let built = place.joined("cli", &tests, &text);
    let (code, said) = place.run(&built);
    assert_eq!(code, Some(0), "{said}");
    assert!(said.ends_with("3 tests passed in 3 programs\n"), "{said}");
    for module in ["quiet", "quiet_too", "wide"] {
        let running = format!("Running tests/{module} of cli (");
        assert!(said.contains(&running), "{said}");
    }
    let runs = fs::read_to_string(place.0.join("runs")).unwrap();
    let mut runs: Vec<_> = runs.lines().collect();
    assert_eq!(runs.pop(), Some("cli --exact quiet::a"));
    runs.sort_unstable();
    let shared = [
        "cli --exact quiet_too::b::c quiet_too::a",
        "cli --exact wide::a",
    ];
    assert_eq!(runs, shared);
}

#[test]
fn a_test_of_a_joined_program_is_tried_again_by_its_name() {
    let place = Place::new("modules-again");
    let text = format!(
        "case \"$*\" in\n'--exact one::a one::b') echo 'failures:'; echo '    one::b'; {FAILED} ;;\n\
         '--exact one::b' | '--exact two::a') {PASSED} ;;\n*) exit 1 ;;\nesac"
    );
    let built = place.joined("cli", &["one::a", "one::b", "two::a"], &text);
    let (code, said) = place.run(&built);
    assert_eq!(code, Some(0), "{said}");
    assert!(
        said.contains("failed: plimsoll-cli, tests/one: one::b\n"),
        "{said}"
    );
    let named = "failed, passed alone: plimsoll-cli, one::b: others had";
    assert!(said.lines().last().unwrap().starts_with(named), "{said}");
}

/// Its tests would be left out, and nobody would know.
#[test]
fn a_joined_program_whose_modules_are_not_known_fails_the_run() {
    let place = Place::new("modules-unknown");
    for (what, built) in [
        ("lists no test", place.joined("lists_none", &[], PASSED)),
        (
            "the test a is in no module",
            place.joined("has_one", &["one::a", "a"], PASSED),
        ),
        (
            "does not list its tests: exit status: 7",
            place.built("lists_not", "it", "exit 7", "it/main.rs"),
        ),
    ] {
        let (code, said) = place.run(&built);
        assert_eq!(code, Some(101), "{what}: {said}");
        assert!(said.contains(what), "{said}");
    }
}

/// Each of these runs fails, though the test would pass alone.
#[test]
fn faults_that_need_no_machine_s_time_get_no_second_try() {
    let place = Place::new("no-second-try");
    let one = fails(&["one"], PASSED);
    let many = ["one", "two", "three", "four", "five", "six", "seven"];
    let cli = place.program("cli", "one", &one);
    for (what, built) in [
        ("a quiet crate", place.program("core", "it", &one)),
        ("who has the rest", place.program("lab", "it", &one)),
        (
            "too many",
            place.program("cli", "many", &fails(&many, PASSED)),
        ),
        (
            "a program that died",
            place.program("cli", "it", "exit 101"),
        ),
        (
            "another program that died",
            cli.clone() + &place.program("cli", "it", "kill -9 $$"),
        ),
        ("no program", String::new()),
        ("what is no message", cli.clone() + "error: no\n"),
    ] {
        let (code, said) = place.run(&built);
        assert_eq!(code, Some(101), "{what}: {said}");
        assert!(!said.contains("passed alone"), "{what}: {said}");
    }
    for (what, examples, lints) in [
        ("an example failed", "echo an example failed; exit 101", ""),
        ("a lint failed", "exit 0", "echo a lint failed; exit 2"),
    ] {
        let (code, said) = place.run_with(&cli, examples, lints);
        assert_eq!(code, Some(101), "{said}");
        assert!(said.contains(what), "{said}");
        assert!(!said.contains("passed alone"), "{said}");
    }
}

/// Three that wait for each other: one that is alone waits in vain.
#[test]
fn two_share_beside_the_rest_and_what_is_alone_comes_last() {
    let place = Place::new("lanes");
    let met = |own: &str, others: &str| {
        format!(
            "touch ../{own}; n=0; until [ $(ls .. | grep -Fxc -e {others}) = 2 ]; do sleep 0.1; n=$((n + 1)); \
             [ $n -lt 100 ] || exit 1; done; [ ! -e ../alone ] || exit 1; sleep 0.5; {PASSED}"
        )
    };
    let lowest = "[ $(nice) = 19 ] || exit 1\n";
    let built = place.program("guard", "it", &format!("touch ../alone; {PASSED}"))
        + &place.program(
            "lab",
            "it",
            &(lowest.to_owned() + &met("rest", "one -e other")),
        )
        + &place.program("cli", "it", &met("one", "rest -e other"))
        + &place.program("cli", "as-it", &met("other", "rest -e one"));
    let lints = "[ -e examples ] && [ ! -e alone ] && touch lints";
    let (code, said) = place.run_with(&built, "touch examples", lints);
    assert_eq!(code, Some(0), "{said}");
    assert!(said.ends_with("4 tests passed in 4 programs\n"), "{said}");
    for ran in ["examples", "lints"] {
        assert!(place.0.join(ran).exists(), "{ran} were not run");
    }
}

/// It waits for that in vain otherwise, where others compute.
#[test]
fn the_rest_has_all_when_nobody_is_left() {
    let place = Place::new("rest");
    let waits = format!(
        "n=0; while grep -q 'nice 19' /proc/self/autogroup; do sleep 0.1; n=$((n + 1)); \
         [ $n -lt 100 ] || exit 1; done; {PASSED}"
    );
    let built = place.program("lab", "it", &waits)
        + &place.program("lab", "other", &waits)
        + &place.program("cli", "it", &format!("sleep 1; {PASSED}"));
    let (code, said) = place.run(&built);
    assert_eq!(code, Some(0), "{said}");
}

#[test]
fn a_list_that_cannot_be_read_says_which_line() {
    let place = Place::new("list");
    fs::write(place.0.join("messages"), "").unwrap();
    fs::write(place.0.join("needs"), "lab * much\n").unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_plimsoll-tries"))
        .args(["messages", "needs"])
        .current_dir(&place.0)
        .output()
        .unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(101));
    assert!(
        said.starts_with("error: `lab * much`: a line is a crate"),
        "{said}"
    );
}
