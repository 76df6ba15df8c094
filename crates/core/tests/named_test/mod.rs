//! Finds a test by the name under which `cargo test` prints it, so that lists
//! that name tests cannot rot.
//!
//! It reads the sources as text, since a test of one crate cannot see those of
//! another. So it knows the layouts that this workspace has, and no others: a
//! module is a file of its own or a `mod name {` in its parent's file, and a
//! test is `#[test]` above `fn name(`, inside `proptest!` or not.

use std::fs;
use std::path::{Path, PathBuf};

/// Checks that there is a test `crate::module::name` (a unit test) or
/// `crate::file::name` (one of the crate's `tests` folder) in the workspace
/// whose crates are in the folder `crates`. The error says what is not there.
pub(crate) fn find(crates: &Path, test: &str) -> Result<(), String> {
    let mut names = test.split("::");
    let package = crates.join(names.next().unwrap_or_default());
    let mut modules: Vec<&str> = names.collect();
    let name = modules.pop().unwrap_or_default();
    if modules.is_empty() {
        return Err(format!("{test}: not of the form crate::module::name"));
    }

    let target = package.join("tests").join(format!("{}.rs", modules[0]));
    let (file, inner) = if modules.len() == 1 && target.is_file() {
        (target, None)
    } else {
        unit_test_file(&package.join("src"), &modules).map_err(|why| format!("{test}: {why}"))?
    };
    let source =
        fs::read_to_string(&file).map_err(|e| format!("{test}: {}: {e}", file.display()))?;
    if has_test(&source, inner, name) {
        Ok(())
    } else {
        Err(format!("{test}: no such test in {}", file.display()))
    }
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
fn has_test(source: &str, inner: Option<&str>, name: &str) -> bool {
    let mut lines = source.lines().map(str::trim);
    if let Some(module) = inner {
        let head = format!("mod {module} {{");
        lines.by_ref().find(|line| *line == head);
    }
    let signature = format!("fn {name}(");
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
