//! A file has 500 lines of code at most and a function of C fits a screen of 60: who looks for
//! something reads little. Functions of Rust are clippy's (`too-many-lines-threshold`).

use crate::sources::{has_ending, is_code, read, sources};

const FILE_LINES_MAX: usize = 500;
const FUNCTION_LINES_MAX: usize = 60;

/// The first lines of C's functions that are too long, and how long.
fn long_functions(source: &str) -> Vec<(&str, usize)> {
    let (mut first, mut length) = ("", 0);
    let mut long = Vec::new();
    for line in source.lines() {
        let is_outside = !line.starts_with([' ', '\t', '{', '}', '/', '#']) && !line.is_empty();
        if is_outside {
            (first, length) = (line, 0);
        }
        length += usize::from(is_code(line));
        if line == "}" && length > FUNCTION_LINES_MAX {
            long.push((first, length));
        }
    }
    long
}

#[test]
fn files_and_functions_of_c_are_short() {
    let mut faults = Vec::new();
    for path in sources() {
        let source = read(&path);
        let lines = source.lines().filter(|line| is_code(line)).count();
        if lines > FILE_LINES_MAX {
            faults.push(format!("{}: {lines} lines of code", path.display()));
        }
        if !has_ending(&path, "rs") {
            let long = long_functions(&source).into_iter();
            faults.extend(
                long.map(|(first, lines)| format!("{}: {lines} lines: {first}", path.display())),
            );
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn what_is_too_long_is_seen() {
    let body = "\tcall();\n\t/* said */\n".repeat(59);
    let long = format!("/* What\n * it does. */\nstatic int act(void)\n{{\n{body}}}\n");
    assert_eq!(long_functions(&long), [("static int act(void)", 62)]);
    assert_eq!(
        long_functions("static int act(void)\n{\n\tcall();\n}\n"),
        []
    );
}
