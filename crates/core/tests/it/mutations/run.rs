//! `make mutants`: breaks core, the guard's BPF program and the hands of its governor
//! on purpose, one kept mutation at a time, and requires that the named test fails each
//! time. A test that passes over broken code proves nothing.
//!
//! It works on a copy of the workspace under `target/mutants`, never on the
//! sources themselves. First every named test must pass there as it is. A
//! mutation that does not compile is a fault of the list, not a success; a test
//! that does not end in [`TIME_MAX`] has noticed. Random tests run with a fixed
//! seed, so that a result is the same next time.
//!
//! Arguments: names of modules, to run their mutations only. Tests of the BPF program
//! and of the hands need root. Exit code: 0 if all were caught, 1 otherwise.

mod list;
#[path = "../named_test/mod.rs"]
mod named_test;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};
use std::{env, fs, io, thread};

use list::Mutation;
use named_test::TestName;

/// None of the tests takes longer than a few seconds.
const TIME_MAX: Duration = Duration::from_secs(60);

/// The copy that is broken and mended again.
struct Workspace {
    /// The copied `crates`.
    crates: PathBuf,
    target: PathBuf,
}

/// How a test ended.
#[derive(Debug)]
enum Outcome {
    Passed,
    Failed,
    Hung,
}

fn main() -> ExitCode {
    let modules: Vec<String> = env::args().skip(1).collect();
    match run(&modules) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(why) => {
            eprintln!("error: {why}");
            ExitCode::FAILURE
        }
    }
}

/// Runs the mutations of these modules, or all; whether all were caught.
fn run(modules: &[String]) -> Result<bool, String> {
    let mut mutations = list::read();
    let known = |name: &String| mutations.iter().any(|mutation| mutation.module == *name);
    if let Some(stranger) = modules.iter().find(|name| !known(name)) {
        return Err(format!("no mutations of a module {stranger}"));
    }
    mutations.retain(|mutation| modules.is_empty() || modules.contains(&mutation.module));
    mutations.iter().try_for_each(Mutation::check)?;

    let copy = Workspace::copy().map_err(|why| format!("copying the workspace: {why}"))?;
    copy.all_pass(&mutations)?;
    println!("| result | module | what is broken | test |\n| --- | --- | --- | --- |");
    let mut caught = 0;
    for mutation in &mutations {
        let outcome = copy.outcome_with(mutation);
        let result = match &outcome {
            Ok(Outcome::Failed) => "caught",
            Ok(Outcome::Hung) => "caught (hung)",
            Ok(Outcome::Passed) => "SURVIVED",
            Err(_) => "WRONG ENTRY",
        };
        caught += usize::from(result.starts_with("caught"));
        let Mutation {
            module, why, test, ..
        } = mutation;
        println!("| {result} | {module} | {why} | `{test}` |");
        if let Err(error) = outcome {
            eprintln!("error: {error}");
        }
    }
    println!("\n{caught} of {} caught", mutations.len());
    Ok(caught == mutations.len())
}

impl Workspace {
    fn copy() -> io::Result<Self> {
        let root = list::crates().parent().expect("crates are in a workspace");
        let place = root.join("target/mutants");
        let workspace = place.join("workspace");
        if workspace.exists() {
            fs::remove_dir_all(&workspace)?;
        }
        fs::create_dir_all(&workspace)?;
        for file in ["Cargo.toml", "Cargo.lock"] {
            fs::copy(root.join(file), workspace.join(file))?;
        }
        let crates = workspace.join("crates");
        copy_folder(list::crates(), &crates)?;
        // The guard's unit tests are built with it.
        copy_folder(&root.join("dashboards"), &workspace.join("dashboards"))?;
        Ok(Self {
            crates,
            target: place.join("target"),
        })
    }

    /// That a test fails with a mutation says something only if it passes
    /// without, and if there is such a test at all.
    fn all_pass(&self, mutations: &[Mutation]) -> Result<(), String> {
        let mut programs = BTreeMap::new();
        for mutation in mutations {
            let name = self.name_of(mutation)?;
            let program = match programs.get(&(name.folder, name.program())) {
                Some(program) => program,
                None => &*programs
                    .entry((name.folder, name.program()))
                    .or_insert(self.build(name)?),
            };
            let run = self.test(program, name).output();
            let run = run.map_err(|why| format!("{}: {why}", program.display()))?;
            let said = String::from_utf8_lossy(&run.stdout);
            if !said.contains("test result: ok. 1 passed") {
                return Err(format!("{} fails as it is:\n{said}", mutation.test));
            }
        }
        Ok(())
    }

    /// Breaks the copy, runs the test, mends the copy.
    fn outcome_with(&self, mutation: &Mutation) -> Result<Outcome, String> {
        let name = self.name_of(mutation)?;
        let file = self.crates.join(&mutation.folder).join(&mutation.file);
        let failed = |why: io::Error| format!("{}: {why}", file.display());
        let source = fs::read_to_string(&file).map_err(failed)?;
        fs::write(&file, mutation.apply(&source)?).map_err(failed)?;
        let built = self.build(name);
        fs::write(&file, source).map_err(failed)?;
        let program = built.map_err(|why| format!("{}: {why}", mutation.why))?;
        let run = wait(self.test(&program, name));
        run.map_err(|why| format!("{}: {why}", program.display()))
    }

    fn name_of<'a>(&self, mutation: &'a Mutation) -> Result<TestName<'a>, String> {
        TestName::parse(&self.crates, &mutation.test)
    }

    /// Builds the program that holds the test.
    fn build(&self, name: TestName<'_>) -> Result<PathBuf, String> {
        let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let mut command = Command::new(cargo);
        command
            .args(["test", "--no-run", "--quiet", "--locked"])
            .args(["--message-format", "json-render-diagnostics"])
            .args(["-p", &format!("plimsoll-{}", name.folder), "--target-dir"])
            .arg(&self.target)
            .current_dir(&self.crates);
        match name.program() {
            Some(program) => command.args(["--test", program]),
            None => command.arg("--lib"),
        };
        let run = command.output().map_err(|why| format!("cargo: {why}"))?;
        if !run.status.success() {
            let said = String::from_utf8_lossy(&run.stderr);
            return Err(format!("does not compile:\n{said}"));
        }
        let said = String::from_utf8_lossy(&run.stdout);
        let mut messages = said
            .lines()
            .filter_map(|line| serde_json::from_str(line).ok());
        let program = messages.find_map(|message: serde_json::Value| {
            let of_tests = message["profile"]["test"] == true;
            of_tests.then(|| message["executable"].as_str().map(PathBuf::from))?
        });
        program.ok_or_else(|| "cargo built no tests".into())
    }

    fn test(&self, program: &Path, name: TestName<'_>) -> Command {
        let mut command = Command::new(program);
        command
            .args(["--exact", &name.printed()])
            .current_dir(self.crates.join(name.folder))
            .env("PROPTEST_RNG_SEED", "1996")
            .env("PROPTEST_FAILURE_PERSISTENCE", "off");
        command
    }
}

/// Runs the test to its end, or ends it.
fn wait(mut test: Command) -> io::Result<Outcome> {
    let mut child = test.stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
    let deadline = Instant::now() + TIME_MAX;
    while Instant::now() < deadline {
        if let Some(status) = child.try_wait()? {
            return Ok(match status.success() {
                true => Outcome::Passed,
                false => Outcome::Failed,
            });
        }
        thread::sleep(Duration::from_millis(20));
    }
    child.kill()?;
    child.wait()?;
    Ok(Outcome::Hung)
}

fn copy_folder(from: &Path, to: &Path) -> io::Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let copy = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy_folder(&entry.path(), &copy)?;
        } else {
            fs::copy(entry.path(), copy)?;
        }
    }
    Ok(())
}
