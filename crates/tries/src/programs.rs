//! Which test programs cargo built, and what part of the machine each needs.
//!
//! A program whose source is `tests/NAME/main.rs` joins many: each of its modules is one here, and
//! runs in a process of its own.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

/// What part of the machine a program needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Need {
    /// It only computes: what others leave is enough.
    Rest,
    /// It needs its time when it asks for it, and waits in between.
    Shared,
    /// It needs most of the time: nothing beside it but what takes the rest.
    Most,
    /// Nothing else of the run may have any.
    Alone,
}

/// What each program needs, by a list. A line of it: a crate, a pattern of programs
/// (`tests/NAME`, with `*` for the rest of a name; `*` alone is all), and `rest`, `shared`,
/// `most` or `alone`. The first line that fits counts; a program that none fits shares the machine.
pub(crate) struct Needs(Vec<(String, String, Need)>);

impl Needs {
    /// Of the list's text.
    pub(crate) fn read(text: &str) -> io::Result<Self> {
        let lines = text.lines().map(str::trim);
        let said = lines.filter(|line| !line.is_empty() && !line.starts_with('#'));
        let read = |line: &str| {
            let words: Vec<_> = line.split_whitespace().collect();
            let [name, pattern, need] = words[..] else {
                return Err(wrong(line));
            };
            let need = match need {
                "rest" => Need::Rest,
                "shared" => Need::Shared,
                "most" => Need::Most,
                "alone" => Need::Alone,
                _ => return Err(wrong(line)),
            };
            Ok((name.to_owned(), pattern.to_owned(), need))
        };
        said.map(read).collect::<io::Result<_>>().map(Self)
    }

    fn of(&self, of_crate: &str, program: &str) -> Need {
        let fits = |pattern: &str| match pattern.strip_suffix('*') {
            Some(begins) => program.starts_with(begins),
            None => program == pattern,
        };
        let mut lines = self.0.iter();
        let line = lines.find(|(name, pattern, _)| name == of_crate && fits(pattern));
        line.map_or(Need::Shared, |(_, _, need)| *need)
    }
}

fn wrong(line: &str) -> io::Error {
    io::Error::other(format!(
        "`{line}`: a line is a crate, a pattern of its test programs, and rest, shared, most or alone"
    ))
}

/// A test program, or a module of one that joins many.
pub(crate) struct Program {
    /// Its crate's directory, where it runs.
    pub(crate) directory: PathBuf,
    /// As `src/lib` or `tests/NAME`.
    pub(crate) name: String,
    pub(crate) path: PathBuf,
    /// The names of a module's tests. Of a whole program there are none here: it runs all.
    pub(crate) tests: Vec<String>,
    pub(crate) need: Need,
}

impl Program {
    /// All that cargo says it built for tests.
    pub(crate) fn all_built(messages: &str, needs: &Needs) -> io::Result<Vec<Self>> {
        let mut programs = Vec::new();
        for line in messages.lines() {
            let message: Value = serde_json::from_str(line).map_err(io::Error::other)?;
            let Some(program) = Self::of_message(&message, needs) else {
                continue;
            };
            match joins_many(&message["target"]) {
                true => programs.extend(program.modules(needs)?),
                false => programs.push(program),
            }
        }
        if programs.is_empty() {
            return Err(io::Error::other("cargo built no test program"));
        }
        Ok(programs)
    }

    fn of_message(message: &Value, needs: &Needs) -> Option<Self> {
        let path = message["executable"].as_str()?;
        // Programs that tests start are built, too.
        if message["reason"] != "compiler-artifact" || message["profile"]["test"] != true {
            return None;
        }
        let directory = Path::new(message["manifest_path"].as_str()?).parent()?;
        let target = &message["target"];
        let kind = match target["kind"][0].as_str()? {
            "test" => "tests",
            "bench" => "benches",
            "example" => "examples",
            _ => "src",
        };
        let name = match kind {
            "src" => Path::new(target["src_path"].as_str()?)
                .file_stem()?
                .to_str()?,
            _ => target["name"].as_str()?,
        };
        let name = format!("{kind}/{name}");
        Some(Self {
            need: needs.of(directory.file_name()?.to_str()?, &name),
            directory: directory.to_owned(),
            name,
            path: path.into(),
            tests: Vec::new(),
        })
    }

    /// Its modules that have tests.
    fn modules(&self, needs: &Needs) -> io::Result<Vec<Self>> {
        let failed = |why: String| io::Error::other(format!("{}: {why}", self.path.display()));
        let mut command = Command::new(&self.path);
        command.args(["--list", "--format", "terse"]);
        let listed = command.current_dir(&self.directory).output();
        let listed = listed.map_err(|error| failed(error.to_string()))?;
        let text = String::from_utf8_lossy(&listed.stdout);
        if !listed.status.success() {
            return Err(failed(format!(
                "does not list its tests: {}",
                listed.status
            )));
        }
        let mut modules = BTreeMap::<_, Vec<_>>::new();
        for test in text.lines().filter_map(|line| line.strip_suffix(": test")) {
            let Some((module, _)) = test.split_once("::") else {
                return Err(failed(format!("the test {test} is in no module")));
            };
            modules.entry(module).or_default().push(test.to_owned());
        }
        if modules.is_empty() {
            return Err(failed("lists no test".to_owned()));
        }
        let module = |(module, tests)| {
            let name = format!("tests/{module}");
            Self {
                need: needs.of(self.of_crate(), &name),
                directory: self.directory.clone(),
                name,
                path: self.path.clone(),
                tests,
            }
        };
        Ok(modules.into_iter().map(module).collect())
    }

    /// The crate's name without the project's.
    pub(crate) fn of_crate(&self) -> &str {
        let name = self.directory.file_name().and_then(|name| name.to_str());
        name.unwrap_or_default()
    }
}

/// Whether a target of cargo's is a program that joins many.
fn joins_many(target: &Value) -> bool {
    let source = target["src_path"].as_str().map(Path::new);
    target["kind"][0] == "test" && source.is_some_and(|path| path.ends_with("main.rs"))
}
