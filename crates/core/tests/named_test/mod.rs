//! Finds a test by the name under which `cargo test` prints it, so that lists
//! that name tests cannot rot.
//!
//! It reads the sources as text, since a test of one crate cannot see those of
//! another. So it knows the layouts that this workspace has, and no others: a
//! module is a file of its own or a `mod name {` in its parent's file, and a
//! test is `#[test]` above `fn name(`, inside `proptest!` or not.

use std::fs;
use std::path::{Path, PathBuf};

/// A test's name taken apart.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TestName<'a> {
    /// The folder of its crate.
    pub(crate) folder: &'a str,
    /// The file in the crate's `tests` that it is of; none for a unit test.
    pub(crate) file: Option<&'a str>,
    /// Its name within that file, or within the crate.
    pub(crate) path: &'a str,
}

impl<'a> TestName<'a> {
    /// Takes `crate::module::name` (a unit test) or `crate::file::name` (one of
    /// the crate's `tests`) apart. `crates` is the folder of all crates.
    pub(crate) fn parse(crates: &Path, test: &'a str) -> Result<Self, String> {
        let parts = test.split_once("::").and_then(|(folder, path)| {
            let (module, rest) = path.split_once("::")?;
            Some((folder, path, module, rest))
        });
        let Some((folder, path, module, rest)) = parts else {
            return Err(format!("{test}: not of the form crate::module::name"));
        };
        let own_file = !rest.contains("::") && integration_file(crates, folder, module).is_file();
        Ok(Self {
            folder,
            file: own_file.then_some(module),
            path: if own_file { rest } else { path },
        })
    }
}

/// Checks that there is such a test. The error says what is not there.
pub(crate) fn find(crates: &Path, test: &str) -> Result<(), String> {
    let name = TestName::parse(crates, test)?;
    let mut modules: Vec<&str> = name.path.split("::").collect();
    let function = modules.pop().unwrap_or_default();
    let (file, inner) = match name.file {
        Some(file) => (integration_file(crates, name.folder, file), None),
        None => unit_test_file(&crates.join(name.folder).join("src"), &modules)
            .map_err(|why| format!("{test}: {why}"))?,
    };
    let source = fs::read_to_string(&file);
    let source = source.map_err(|why| format!("{test}: {}: {why}", file.display()))?;
    if has_test(&source, inner, function) {
        Ok(())
    } else {
        Err(format!("{test}: no such test in {}", file.display()))
    }
}

fn integration_file(crates: &Path, folder: &str, file: &str) -> PathBuf {
    crates.join(folder).join("tests").join(format!("{file}.rs"))
}

/// The file of a module, and the module's name if it is a part of the file.
fn unit_test_file<'a>(
    source: &Path,
    modules: &[&'a str],
) -> Result<(PathBuf, Option<&'a str>), String> {
    let mut folder = source.to_path_buf();
    let mut file = source.join("lib.rs");
    for (depth, module) in modules.iter().enumerate() {
        let candidates = [
            folder.join(format!("{module}.rs")),
            folder.join(module).join("mod.rs"),
        ];
        if let Some(found) = candidates.into_iter().find(|path| path.is_file()) {
            file = found;
            folder.push(module);
        } else if depth + 1 == modules.len() {
            return Ok((file, Some(*module)));
        } else {
            return Err(format!("no module {module} in {}", folder.display()));
        }
    }
    Ok((file, None))
}

/// Whether the module `inner` of the file has this test, or the file itself has
/// it before the first module within.
fn has_test(source: &str, inner: Option<&str>, function: &str) -> bool {
    let mut lines = source.lines().map(str::trim);
    if let Some(module) = inner {
        let head = format!("mod {module} {{");
        lines.by_ref().find(|line| *line == head);
    }
    let signature = format!("fn {function}(");
    let mut is_test = false;
    for line in lines.take_while(|line| !(line.starts_with("mod ") && line.ends_with('{'))) {
        if line.starts_with(&signature) {
            return is_test;
        }
        // Attributes and comments may stand between `#[test]` and the function.
        is_test = line == "#[test]" || (is_test && line.starts_with(['#', '/']));
    }
    false
}
