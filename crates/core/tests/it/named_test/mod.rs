//! Finds a test by the name under which `cargo test` prints it, so that lists
//! that name tests cannot rot.
//!
//! It reads the sources as text, since a test of one crate cannot see those of
//! another. So it knows the layouts that this workspace has, and no others: a
//! module is a file of its own or a `mod name {` in its parent's file, and a
//! test is `#[test]` above `fn name(`, inside `proptest!` or not. Where a file runs its
//! tests itself, they are listed in its `TESTS`. A crate's `tests` are programs of their own,
//! or modules of a program that joins them.

use std::fs;
use std::path::{Path, PathBuf};

/// Programs that join files of a crate's `tests`, each in a folder of its name.
const JOINED: [&str; 2] = ["it", "alone"];

/// A test's name taken apart.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TestName<'a> {
    /// The folder of its crate.
    pub(crate) folder: &'a str,
    /// The file in the crate's `tests` that it is of; none for a unit test.
    file: Option<&'a str>,
    /// The program that joins that file with others.
    joined: Option<&'static str>,
    /// Its name within that file, or within the crate.
    path: &'a str,
}

impl<'a> TestName<'a> {
    /// Takes `crate::module::name` (a unit test) or `crate::file::name` (one of
    /// the crate's `tests`, `crate::folder::file::name` where these are in a folder)
    /// apart. `crates` is the folder of all crates.
    pub(crate) fn parse(crates: &Path, test: &'a str) -> Result<Self, String> {
        let parts = test.split_once("::").and_then(|(folder, path)| {
            let (module, rest) = path.split_once("::")?;
            Some((folder, path, module, rest))
        });
        let Some((folder, path, module, rest)) = parts else {
            return Err(format!("{test}: not of the form crate::module::name"));
        };
        let (file, name) = path.rsplit_once("::").unwrap_or((module, rest));
        let is_in = |joined: &Option<_>| integration_file(crates, folder, *joined, file).is_file();
        let mut programs = [None].into_iter().chain(JOINED.map(Some));
        let found = programs.find(is_in);
        Ok(Self {
            folder,
            file: found.map(|_| file),
            joined: found.flatten(),
            path: if found.is_some() { name } else { path },
        })
    }

    /// The program of its crate's `tests`; none for a unit test.
    pub(crate) fn program(&self) -> Option<&'a str> {
        let of_folder = |file: &'a str| file.split("::").next().unwrap_or(file);
        self.joined.or(self.file.map(of_folder))
    }

    /// As its program prints it.
    pub(crate) fn printed(&self) -> String {
        match (self.joined, self.file) {
            (Some(_), Some(file)) => format!("{file}::{}", self.path),
            _ => self.path.to_owned(),
        }
    }
}

/// Finds the test, and returns what is written about it: the comments of the modules
/// it is in, or those at the head of its file in `tests`, and its own. The error says
/// what is not there.
pub(crate) fn find(crates: &Path, test: &str) -> Result<String, String> {
    let name = TestName::parse(crates, test)?;
    let mut modules: Vec<&str> = name.path.split("::").collect();
    let function = modules.pop().unwrap_or_default();
    let (files, inner) = match name.file {
        Some(file) => {
            let file = integration_file(crates, name.folder, name.joined, file);
            (vec![file], None)
        }
        None => unit_test_files(&crates.join(name.folder).join("src"), &modules)
            .map_err(|why| format!("{test}: {why}"))?,
    };
    let marks = if name.file.is_some() { "//!" } else { "//" };
    let (mut said, mut own) = (String::new(), None);
    for file in &files {
        let source = fs::read_to_string(file);
        let source = source.map_err(|why| format!("{test}: {}: {why}", file.display()))?;
        let comments = source.lines().filter(|line| line.trim().starts_with(marks));
        said.extend(comments.flat_map(|line| [line, "\n"]));
        own = comments_of_test(&source, inner, function);
    }
    let own = own.ok_or_else(|| format!("{test}: no such test in {:?}", files.last()))?;
    Ok(said + &own)
}

fn integration_file(crates: &Path, folder: &str, joined: Option<&str>, file: &str) -> PathBuf {
    let file = file.replace("::", "/");
    let tests = crates.join(folder).join("tests");
    tests.join(joined.unwrap_or("")).join(format!("{file}.rs"))
}

/// The files of a module and of those around it, outermost first, without the crate's
/// own; and the module's name if it is a part of the last file.
fn unit_test_files<'a>(
    source: &Path,
    modules: &[&'a str],
) -> Result<(Vec<PathBuf>, Option<&'a str>), String> {
    let mut folder = source.to_path_buf();
    let mut files = Vec::new();
    for (depth, module) in modules.iter().enumerate() {
        let candidates = [
            folder.join(format!("{module}.rs")),
            folder.join(module).join("mod.rs"),
        ];
        if let Some(found) = candidates.into_iter().find(|path| path.is_file()) {
            files.push(found);
            folder.push(module);
        } else if depth + 1 == modules.len() && depth > 0 {
            return Ok((files, Some(*module)));
        } else {
            return Err(format!("no module {module} in {}", folder.display()));
        }
    }
    Ok((files, None))
}

/// The comments above this test, if the module `inner` of the file has it, or the file
/// itself before the first module within.
fn comments_of_test(source: &str, inner: Option<&str>, function: &str) -> Option<String> {
    let mut lines = source.lines().map(str::trim);
    if let Some(module) = inner {
        let head = format!("mod {module} {{");
        lines.by_ref().find(|line| *line == head);
    }
    let signature = format!("fn {function}(");
    let runs_itself = source.contains("const TESTS: [(&str, fn());");
    let is_listed = runs_itself && source.contains(&format!("\"{function}\""));
    let (mut is_test, mut comments) = (false, String::new());
    for line in lines.take_while(|line| !(line.starts_with("mod ") && line.ends_with('{'))) {
        if line.starts_with(&signature) {
            return (is_test || is_listed).then_some(comments);
        }
        // Attributes and comments may stand between `#[test]` and the function.
        let above = line.starts_with(['#', '/']);
        is_test = line == "#[test]" || (is_test && above);
        if !above {
            comments.clear();
        }
        comments.extend([line, "\n"]);
    }
    None
}
