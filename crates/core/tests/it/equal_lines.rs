//! No ten lines outside tests say the same thing twice: who changes one place forgets the other.
//! Blank lines, comments, lone brackets and imports do not count.

use std::collections::HashMap;
use std::path::Path;

use crate::sources::{has_ending, is_code, read, sources};

/// Of the lines that count. Among ten lines there nearly always is one that does not.
const EQUAL_LINES: usize = 9;

/// What counts of a source: each line, and its number.
fn counted(source: &str, is_rust: bool) -> Vec<(usize, &str)> {
    let mut is_import = false;
    let mut lines = Vec::new();
    for (at, line) in source.lines().enumerate() {
        if is_rust && line == "mod tests {" {
            break;
        }
        let line = line.trim();
        is_import |= is_rust && (line.starts_with("use ") || line.starts_with("pub use "));
        let says = is_code(line) && line.contains(|letter: char| letter.is_alphanumeric());
        if says && !is_import {
            lines.push((at + 1, line));
        }
        is_import &= !line.ends_with(';');
    }
    lines
}

/// Where lines begin that equal earlier ones, as "name:line = name:line".
fn equal_runs(sources: &[(&str, Vec<(usize, &str)>)]) -> Vec<String> {
    let mut numbers = HashMap::new();
    let mut first_places = HashMap::new();
    let mut runs = Vec::new();
    for (file, (name, lines)) in sources.iter().enumerate() {
        let mut number = |line| {
            let next = numbers.len();
            *numbers.entry(line).or_insert(next)
        };
        let texts: Vec<usize> = lines.iter().map(|(_, line)| number(*line)).collect();
        let mut before = None;
        for (at, window) in texts.windows(EQUAL_LINES).enumerate() {
            let key: [usize; EQUAL_LINES] = window.try_into().expect("as long as it");
            let (other, place) = *first_places.entry(key).or_insert((file, at));
            if other == file && at < place + EQUAL_LINES {
                continue;
            }
            if before.replace((other, place + 1)) != Some((other, place)) {
                let (other, other_lines) = &sources[other];
                let (here, there) = (lines[at].0, other_lines[place].0);
                runs.push(format!("{name}:{here} = {other}:{there}"));
            }
        }
    }
    runs
}

/// A crate's own, and neither a file nor a folder of tests.
fn is_outside_tests(path: &Path) -> bool {
    let mut names = path.iter().filter_map(|name| name.to_str());
    let is_test = |name: &str| {
        let name = name.trim_end_matches(".rs");
        name == "tests" || name.ends_with("_tests")
    };
    names.clone().any(|name| name == "src") && !names.any(is_test)
}

#[test]
fn no_ten_lines_say_the_same_twice() {
    let top = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut paths = sources();
    paths.sort();
    let named = paths.iter().filter_map(|path| {
        let name = path.strip_prefix(&top).ok()?;
        is_outside_tests(name).then(|| (name.display().to_string(), path))
    });
    let read: Vec<_> = named
        .map(|(name, path)| (name, read(path), has_ending(path, "rs")))
        .collect();
    let counted: Vec<_> = read
        .iter()
        .map(|(name, source, is_rust)| (name.as_str(), counted(source, *is_rust)))
        .collect();
    assert!(counted.len() > 400, "{} files: not all", counted.len());
    let runs = equal_runs(&counted);
    assert!(runs.is_empty(), "{}", runs.join("\n"));
}

#[test]
fn equal_lines_are_found_once() {
    let body: Vec<String> = (0..12).map(|line| format!("    call({line});")).collect();
    let spread = body.join("\n\n    // Why.\n    {\n    }\n");
    let body = body.join("\n");
    let of = |first: &str, second: &str| {
        equal_runs(&[("a", counted(first, true)), ("b", counted(second, true))])
    };
    let here = format!("fn a() {{\n{body}\n}}\n");
    assert_eq!(
        of(&here, &format!("fn b() {{\n{spread}\n}}\n")),
        ["b:2 = a:2"]
    );
    assert_eq!(of(&format!("{here}{here}"), ""), ["a:15 = a:1"]);
    assert_eq!(of(&here, &here.replace("call(5)", "other()")), [""; 0]);
    let imports = format!("use a::{{\n{}\n}};\n", body.replace(';', ","));
    assert_eq!(of(&imports, &imports), [""; 0]);
    assert_eq!(
        of(&here, &format!("#[cfg(test)]\nmod tests {{\n{here}}}\n")),
        [""; 0]
    );
    let same = "    again();\n".repeat(17);
    assert_eq!(of(&same, ""), [""; 0]);
}
