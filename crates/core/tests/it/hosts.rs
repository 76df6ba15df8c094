//! The guard's guide has a row for each kind of host, and docs/guard-hosts.md a section for each row:
//! what is said there is shown by tests that exist, and `plimsoll guard check` has the lines that both
//! name.

use std::collections::BTreeSet;
use std::fs;

use plimsoll_core::demux::Kind;

use crate::documents::{expect_none, headings, sections, text, top};
use crate::named_test;

const GUIDE: &str = "docs/guard.md";
const PAGE: &str = "guard-hosts.md";

/// What an operator in a hurry reads of a row.
const SENTENCES_MAX: usize = 3;
const WORDS_MAX: usize = 45;

/// A row of the tables of hosts.
struct Row {
    /// The host's name, which is the heading of its section.
    name: String,
    /// The anchor that it leads to.
    anchor: String,
    /// What the guard does there.
    says: String,
    /// Lines of `plimsoll guard check`.
    lines: Vec<String>,
}

/// The rows of all tables, in their order. Panics at one that has another form.
fn rows() -> Vec<Row> {
    let guide = text(GUIDE);
    let part = guide.split("\n## Your host, and the guard there\n").nth(1);
    let part = part.and_then(|part| part.split("\n## ").next());
    let table = part.expect("the guide has its tables").lines();
    let is_row =
        |line: &&str| line.starts_with('|') && !line.ends_with("| the guard there | `check` |");
    let rows = table
        .filter(is_row)
        .filter(|line| !line.starts_with("| ---"));
    rows.map(|line| row(line).unwrap_or_else(|| panic!("not a row of hosts: {line}")))
        .collect()
}

fn row(line: &str) -> Option<Row> {
    let cells: Vec<_> = line.trim_matches('|').split('|').map(str::trim).collect();
    let [host, says, lines] = cells.as_slice() else {
        return None;
    };
    let (name, rest) = host.strip_prefix('[')?.split_once("](")?;
    let (page, rest) = rest.split_once('#')?;
    let (anchor, _) = rest.split_once(')')?;
    (page == PAGE).then(|| Row {
        name: name.to_owned(),
        anchor: anchor.to_owned(),
        says: (*says).to_owned(),
        lines: lines
            .split('`')
            .skip(1)
            .step_by(2)
            .map(str::to_owned)
            .collect(),
    })
}

/// The sections of hosts, each with its heading.
fn hosts() -> Vec<(String, String)> {
    let page = text(&format!("docs/{PAGE}"));
    let hosts = sections(&page).into_iter().filter_map(|section| {
        let (heading, said) = section.strip_prefix("### ")?.split_once('\n')?;
        let words: Vec<_> = said.split_whitespace().collect();
        Some((heading.to_owned(), words.join(" ")))
    });
    hosts.collect()
}

#[test]
fn each_row_has_its_section_and_each_section_its_row() {
    let rows = rows();
    assert!(rows.len() > 60, "{} rows: not all are seen", rows.len());
    let named: Vec<_> = rows.iter().map(|row| row.name.clone()).collect();
    let described: Vec<_> = hosts().into_iter().map(|(name, _)| name).collect();
    assert_eq!(named, described);
    let faults = rows.iter().filter(|row| {
        let heading = format!("### {}", row.name);
        headings(&heading).next() != Some(row.anchor.clone())
    });
    let faults = faults.map(|row| format!("{} leads to {}", row.name, row.anchor));
    expect_none(&faults.collect::<Vec<_>>());
}

/// Rows had grown to ten sentences and more, which nobody reads while his host is flooded.
#[test]
fn a_row_is_read_in_a_moment() {
    let faults = rows().into_iter().filter_map(|row| {
        let sentences = row.says.matches(". ").count() + 1;
        let words = row.says.split_whitespace().count();
        let is_long = sentences > SENTENCES_MAX || words > WORDS_MAX || words == 0;
        is_long.then(|| format!("{}: {sentences} sentences, {words} words", row.name))
    });
    expect_none(&faults.collect::<Vec<_>>());
}

/// Tests that exist, or commands of `make`.
#[test]
fn every_host_has_its_tests() {
    let mut faults = Vec::new();
    for (name, said) in hosts() {
        let Some((_, shown)) = said.split_once("- **Shown by:** ") else {
            faults.push(format!("nothing shows: {name}"));
            continue;
        };
        let names = shown.split('`').skip(1).step_by(2);
        let (commands, others): (Vec<_>, Vec<_>) =
            names.partition(|name| name.starts_with("make "));
        let tests: Vec<_> = others
            .into_iter()
            .filter(|name| name.contains("::"))
            .collect();
        if commands.is_empty() && tests.is_empty() {
            faults.push(format!("nothing shows: {name}"));
        }
        let find = |test| named_test::find(&top().join("crates"), test).err();
        faults.extend(tests.into_iter().filter_map(find));
        faults.extend(faults_of_commands(shown));
    }
    expect_none(&faults);
}

/// Whoever reads a line of `check` finds it in the guide, and no row sends him to a line that
/// is not there.
#[test]
fn lines_of_check_are_those_of_the_guide() {
    let named = first_cells("| line | if it is not `ok` |\n");
    assert_eq!(named, lines_of_check());
    let unknown = rows().into_iter().flat_map(|row| row.lines);
    let unknown = unknown.filter(|line| !named.contains(line));
    expect_none(&unknown.collect::<Vec<_>>());
}

/// The names of findings in the sources of `check`: what stands first in quotation marks behind
/// each call, if it is one word.
fn lines_of_check() -> BTreeSet<String> {
    let source = top().join("crates/guard/src");
    let folder = fs::read_dir(source.join("check")).expect("check has modules");
    let modules = folder.flatten().map(|file| file.path());
    let mut lines = BTreeSet::new();
    for file in modules.chain([source.join("check.rs")]) {
        let text = fs::read_to_string(&file).expect("a module is text");
        let calls = text.split("finding(").skip(1);
        let first = calls.filter_map(|call| call.split('"').nth(1).map(str::to_owned));
        let is_name = |word: &String| word.chars().all(|c| c.is_ascii_lowercase() || c == '_');
        lines.extend(first.filter(is_name));
    }
    assert!(lines.len() > 20, "{lines:?}: not all");
    lines
}

/// Whoever reads a report of the guard finds each of its words in the guide: the kinds of packets,
/// and what became of them.
#[test]
fn kinds_and_outcomes_are_those_of_the_guide() {
    let header = fs::read_to_string(top().join("crates/guard/src/bpf/guard.h"));
    let header = header.expect("the program has its header");
    let outcomes = header.split("enum outcome {").nth(1);
    let outcomes = outcomes.and_then(|rest| rest.split('}').next());
    let outcomes = outcomes.expect("it has outcomes").lines();
    let outcomes =
        outcomes.filter_map(|line| line.trim().strip_prefix("OUTCOME_")?.split(',').next());
    let outcomes: BTreeSet<_> = outcomes
        .map(str::to_lowercase)
        .filter(|one| one != "count")
        .collect();
    assert!(outcomes.len() > 7, "{outcomes:?}: not all");
    let kinds = Kind::ALL.map(|kind| kind.name().to_owned());
    assert_eq!(first_cells("| kind | packets |\n"), BTreeSet::from(kinds));
    assert_eq!(
        first_cells("| outcome | meaning | what helps |\n"),
        outcomes
    );
}

/// What stands in back quotes in the first cells of the guide's table with this head.
fn first_cells(head: &str) -> BTreeSet<String> {
    let guide = text(GUIDE);
    let table = guide.split(head).nth(1).expect("the guide has the table");
    let rows = table
        .lines()
        .skip(1)
        .map_while(|line| line.strip_prefix("| "));
    let cells = rows.filter_map(|row| row.split(" | ").next());
    cells
        .flat_map(|cell| cell.split('`').skip(1).step_by(2))
        .map(str::to_owned)
        .collect()
}

/// A command of `make` shows many things: behind it stands in brackets which of its steps,
/// set-ups, drivers or kernels show this one. All that it says of these must exist.
fn faults_of_commands(shown: &str) -> Vec<String> {
    let names = |command: &str| match command {
        "vm-test" => {
            let steps = quoted(&text("crates/vm/src/lib.rs"), "=> \"");
            let drivers = quoted(&text("crates/vm/src/machine.rs"), "\"");
            let makefile = text("Makefile");
            let kernels = makefile.lines().find_map(|l| l.strip_prefix("KERNELS ?= "));
            let kernels = kernels.unwrap_or_default().split(' ').map(str::to_owned);
            steps.into_iter().chain(drivers).chain(kernels).collect()
        }
        "no-harm" => quoted(&text("crates/bench/src/no_harm/setup.rs"), "name: \""),
        _ => Vec::new(),
    };
    let commands = shown.split("`make ").skip(1);
    let fault = |rest: &str| {
        let (command, behind) = rest.split_once('`')?;
        let Some(said) = behind.strip_prefix(" (").and_then(|b| b.split_once(')')) else {
            return Some(format!("what of `make {command}` shows it? {shown}"));
        };
        let known = names(command);
        let said = said.0.split(", ").map(|name| name.trim_matches('`'));
        let unknown: Vec<_> = said.filter(|s| !known.iter().any(|k| k == s)).collect();
        (!unknown.is_empty()).then(|| format!("`make {command}` has no {unknown:?}"))
    };
    commands.filter_map(fault).collect()
}

/// What begins with this mark and ends with a quotation mark.
fn quoted(text: &str, mark: &str) -> Vec<String> {
    let rests = text.split(mark).skip(1);
    let all = rests.filter_map(|rest| rest.split('"').next());
    all.map(str::to_owned).collect()
}
