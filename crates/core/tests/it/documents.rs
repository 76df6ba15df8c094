//! What the documents say of the repository itself is so: links lead somewhere, the
//! map names every crate, arrows are those of the manifests, commands of `make` exist,
//! and what may stand in one place alone does.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::sources::{has_ending, read, sources};

pub(crate) fn top() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The documents, by their paths from the top.
fn documents() -> Vec<(String, String)> {
    let docs = fs::read_dir(top().join("docs")).expect("docs exists");
    let docs = docs.flatten().map(|file| file.file_name());
    let docs = docs.map(|name| format!("docs/{}", name.to_string_lossy()));
    let others = [
        "README.md",
        "ARCHITECTURE.md",
        "CHANGELOG.md",
        "crates/sim/README.md",
        "crates/stack/README.md",
    ];
    let names = others.map(str::to_owned).into_iter().chain(docs);
    let names = names.filter(|name| name.ends_with(".md"));
    names.map(|name| (name.clone(), text(&name))).collect()
}

pub(crate) fn text(name: &str) -> String {
    fs::read_to_string(top().join(name)).unwrap_or_else(|why| panic!("{name}: {why}"))
}

/// Fails with all faults at once.
pub(crate) fn expect_none(faults: &[String]) {
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn links_lead_somewhere() {
    let mut faults = Vec::new();
    for (name, text) in documents() {
        let folder = top().join(&name);
        let folder = folder.parent().expect("a file is in a folder");
        let targets = text
            .split("](")
            .skip(1)
            .filter_map(|rest| rest.split(')').next());
        for target in targets.filter(|target| !target.contains("://")) {
            let (file, anchor) = target.split_once('#').unwrap_or((target, ""));
            let path = if file.is_empty() {
                top().join(&name)
            } else {
                folder.join(file)
            };
            let found = match fs::read_to_string(&path) {
                Ok(text) => anchor.is_empty() || headings(&text).any(|one| one == anchor),
                Err(_) => path.is_dir() && anchor.is_empty(),
            };
            if !found {
                faults.push(format!("{name} links to {target}"));
            }
        }
    }
    expect_none(&faults);
}

/// Files and folders of the repository that a document names in back quotes, as
/// `src/lib.rs`: from the top, from `crates`, or from where the document is.
#[test]
fn files_that_documents_name_are_there() {
    let mut faults = Vec::new();
    for (name, text) in documents() {
        let own = top().join(&name);
        let folders = [
            top(),
            top().join("crates"),
            own.parent().expect("a file is in a folder").to_owned(),
        ];
        let quoted = text.split('`').skip(1).step_by(2);
        for file in quoted.filter(|quoted| is_file_of_ours(quoted)) {
            if !folders.iter().any(|folder| folder.join(file).exists()) {
                faults.push(format!("{name} names {file}"));
            }
        }
    }
    expect_none(&faults);
}

fn is_file_of_ours(text: &str) -> bool {
    let is_path = |c: char| c.is_ascii_alphanumeric() || "/._-".contains(c);
    let endings = [".rs", ".c", ".h", ".toml", ".md", ".txt"];
    let known = text.starts_with("crates/") || endings.iter().any(|end| text.ends_with(end));
    // Paths that begin with a slash are of an operator's machine.
    text.contains('/') && !text.starts_with('/') && text.chars().all(is_path) && known
}

/// The anchors of a document's headings.
pub(crate) fn headings(text: &str) -> impl Iterator<Item = String> {
    let lines = text.lines().filter(|line| line.starts_with('#'));
    lines.map(|line| {
        let words = line.trim_start_matches('#').trim().to_lowercase();
        let kept = words
            .chars()
            .filter(|c| c.is_alphanumeric() || " -_".contains(*c));
        kept.collect::<String>().replace(' ', "-")
    })
}

/// Rules, reasons and links: it had grown to 19,136 words, since each reason brought its figures.
/// These belong to docs/measurements.md, and what was done when to the commits.
#[test]
fn architecture_stays_readable() {
    const WORDS_MAX: usize = 19_000;
    let words = text("ARCHITECTURE.md").split_whitespace().count();
    assert!(words <= WORDS_MAX, "{words} words: move figures elsewhere");
}

#[test]
fn the_map_names_every_crate_and_no_other() {
    let readme = text("README.md");
    let rows = readme
        .lines()
        .filter_map(|line| line.strip_prefix("| `crates/"));
    let mut named: Vec<&str> = rows.filter_map(|row| row.split('`').next()).collect();
    named.sort_unstable();
    let folders = fs::read_dir(top().join("crates")).expect("crates exists");
    let folders = folders
        .flatten()
        .filter(|entry| entry.path().join("Cargo.toml").is_file());
    let mut crates: Vec<String> = folders
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect();
    crates.sort_unstable();
    assert_eq!(named, crates);
}

/// Whom a crate uses, in the table of ARCHITECTURE.md: every line with two cells of
/// crates.
fn arrows() -> BTreeMap<String, BTreeSet<String>> {
    let text = text("ARCHITECTURE.md");
    let table = text.lines().skip_while(|line| *line != "| crate | uses |");
    let rows = table.skip(2).take_while(|line| line.starts_with('|'));
    let quoted = |cell: &str| -> Vec<String> {
        cell.split('`')
            .skip(1)
            .step_by(2)
            .map(str::to_owned)
            .collect()
    };
    rows.flat_map(|row| {
        let (users, used) = row[1..].split_once('|').expect("two cells");
        let used: BTreeSet<String> = quoted(used).into_iter().collect();
        quoted(users)
            .into_iter()
            .map(move |user| (user, used.clone()))
    })
    .collect()
}

#[test]
fn arrows_are_those_of_the_manifests() {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(top().join("crates"))
        .expect("crates exists")
        .flatten()
    {
        let name = entry.file_name().to_string_lossy().into_owned();
        let manifest = text(&format!("crates/{name}/Cargo.toml"));
        let own = manifest
            .lines()
            .skip_while(|line| *line != "[dependencies]")
            .skip(1);
        let own = own.take_while(|line| !line.starts_with('['));
        let used = own.filter_map(|line| line.strip_prefix("plimsoll-")?.split('.').next());
        let used = used
            .filter(|used| !EVERYBODYS.contains(used))
            .map(str::to_owned);
        if !EVERYBODYS.contains(&name.as_str()) {
            found.insert(name, used.collect());
        }
    }
    assert_eq!(arrows(), found);
}

/// Crates that any other may use.
const EVERYBODYS: [&str; 2] = ["report", "bpf-build"];

/// The README's picture is drawn from the table of measurements as it is.
#[test]
fn the_picture_shows_the_measurements() {
    let script = top().join("scripts/picture");
    let status = Command::new(script).arg("--check").status();
    assert!(status.expect("scripts/picture runs").success());
}

#[test]
fn commands_of_make_exist() {
    let makefile = text("Makefile");
    let targets: Vec<&str> = makefile
        .lines()
        .filter(|line| !line.starts_with(['\t', ' ', '#', '.']))
        .filter_map(|line| line.split_once(':'))
        .map(|(target, _)| target)
        .collect();
    let mut faults = Vec::new();
    for (name, text) in documents() {
        let quoted = text.split('`').skip(1).step_by(2);
        let quoted = quoted.filter_map(|code| code.strip_prefix("make "));
        let typed = text.lines().filter_map(|line| line.strip_prefix("make "));
        for command in quoted.chain(typed) {
            let target = command.split_whitespace().next().unwrap_or_default();
            if !targets.contains(&target) {
                faults.push(format!("{name} says `make {target}`"));
            }
        }
    }
    expect_none(&faults);
}

/// Each section of measurements that has a table says what docs/measurements.md promises:
/// command, date, and how much runs differ, or that it was not recorded.
#[test]
fn tables_of_measurements_say_command_date_and_spread() {
    let mut pages = documents();
    pages.retain(|(name, _)| name.starts_with("docs/measurements"));
    let sections = pages.iter().flat_map(|(_, text)| sections(text));
    // The first table repeats what the sections say.
    let sections = sections.filter(|section| !section.starts_with(TABLE));
    let sections = sections.filter(|section| section.contains("\n| --- |"));
    let (mut faults, mut count) = (Vec::new(), 0);
    for section in sections {
        let heading = section.lines().next().unwrap_or_default();
        let lacking = lacking(&section);
        if !lacking.is_empty() {
            faults.push(format!("{heading}: no {}", lacking.join(", no ")));
        }
        count += 1;
    }
    assert!(
        count > 80,
        "{count} sections have tables: they are not seen"
    );
    expect_none(&faults);
}

/// What the first table of measurements is headed by.
const TABLE: &str = "## The present figures";

/// The sections of a document, each from its heading on.
pub(crate) fn sections(text: &str) -> Vec<String> {
    let begins = format!("\n{text}");
    let parts = begins.split("\n#").skip(1);
    parts.map(|part| format!("#{part}")).collect()
}

/// Whoever looks for the present figures finds them in the first table: it leads to a section of
/// each topic of docs/measurements.md.
#[test]
fn the_first_table_leads_to_each_topic_of_measurements() {
    let text = text("docs/measurements.md");
    let (_, topics) = text.split_once(TABLE).expect("the page has its table");
    let mut topics = topics.split("\n## ");
    let table = topics.next().unwrap_or_default();
    let leads = |anchor: String| table.contains(&format!("](#{anchor})"));
    let faults: Vec<_> = topics
        .filter(|topic| !topic.starts_with("How to read"))
        .filter(|topic| !headings(&format!("## {topic}")).any(leads))
        .map(|topic| format!("no line leads to: {}", topic.lines().next().unwrap_or("")))
        .collect();
    expect_none(&faults);
}

/// What a section of measurements does not say, not even that it was not recorded.
fn lacking(section: &str) -> Vec<&'static str> {
    let has = |words: &[&str]| words.iter().any(|word| section.contains(word));
    let is_recorded = |what: &'static str, signs: &[&str]| {
        let is_said = has(signs) || has(&[what]) && has(&["not recorded", "not known"]);
        (!is_said).then_some(what)
    };
    let commands = [
        "`plimsoll ",
        "`bench ",
        "`make ",
        "`cargo ",
        "`bpftool ",
        "The same command",
    ];
    let said = [
        is_recorded("command", &commands),
        is_recorded("date", &["2026-", "same command and time"]),
        is_recorded("spread", &["run", "median", "rounds", "spread is known"]),
    ];
    said.into_iter().flatten().collect()
}

/// Whoever reads the guard's log finds each event in a guide: `shedding_began` was in none.
#[test]
fn events_of_the_log_are_in_a_guide() {
    let guides = text("docs/guard.md") + &text("docs/programs.md");
    let mut events = BTreeSet::new();
    for path in sources().iter().filter(|path| has_ending(path, "rs")) {
        let source = read(path);
        let named = source.split("event=").skip(1);
        let ends = |rest: &str| rest.find(|c: char| !c.is_ascii_lowercase() && c != '_');
        events.extend(named.filter_map(|rest| Some(rest[..ends(rest)?].to_owned())));
    }
    events.remove("");
    assert!(events.len() > 12, "{events:?}: not all");
    let words: BTreeSet<_> = guides
        .split(|c: char| !c.is_ascii_lowercase() && c != '_')
        .collect();
    let untold = events
        .iter()
        .filter(|event| !words.contains(event.as_str()));
    expect_none(&untold.cloned().collect::<Vec<_>>());
}

/// Rust in a document is Rust that compiles: each block stands, line for line, in an
/// example, which `cargo test` builds.
#[test]
fn rust_in_documents_is_an_example_s() {
    let examples: Vec<Vec<String>> = examples().iter().map(|code| trimmed(code)).collect();
    let (mut faults, mut blocks) = (Vec::new(), 0);
    for (name, text) in documents() {
        for block in text.split("```rust\n").skip(1) {
            let block = trimmed(block.split("```").next().unwrap_or_default());
            let stands = |example: &Vec<String>| {
                let mut places = example.windows(block.len().max(1));
                places.any(|lines| lines == block)
            };
            if !examples.iter().any(stands) {
                faults.push(format!("{name}: in no example: {block:#?}"));
            }
            blocks += 1;
        }
    }
    assert!(blocks > 0, "no block was found, so none was compared");
    expect_none(&faults);
}

/// The text of all crates' examples.
fn examples() -> Vec<String> {
    let crates = fs::read_dir(top().join("crates")).expect("crates exists");
    let folders = crates.flatten().map(|entry| entry.path().join("examples"));
    let files = folders.filter_map(|folder| fs::read_dir(folder).ok());
    let files = files.flat_map(Iterator::flatten);
    let files = files.filter(|file| file.path().extension().is_some_and(|ending| ending == "rs"));
    let read = |file: fs::DirEntry| fs::read_to_string(file.path()).expect("an example is text");
    files.map(read).collect()
}

/// The lines of a piece of code, however far they are indented.
fn trimmed(code: &str) -> Vec<String> {
    code.lines().map(|line| line.trim().to_owned()).collect()
}

/// Found in three files, of which one would have been forgotten.
#[test]
fn the_minimum_rust_version_stands_once() {
    let manifest = text("Cargo.toml");
    let version = manifest
        .lines()
        .find_map(|line| line.strip_prefix("rust-version = \"")?.strip_suffix('"'))
        .expect("Cargo.toml says it");
    let mut files = documents();
    for name in [
        "Makefile",
        ".ci/run",
        "scripts/setup",
        "fuzz/Cargo.toml",
        "clippy.toml",
    ] {
        files.push((name.to_owned(), text(name)));
    }
    for entry in fs::read_dir(top().join("crates"))
        .expect("crates exists")
        .flatten()
    {
        let name = format!("crates/{}/Cargo.toml", entry.file_name().to_string_lossy());
        files.push((name.clone(), text(&name)));
    }
    let mut faults = Vec::new();
    for (name, text) in files {
        let lines = text.lines().filter(|line| line.contains(version));
        let about = lines.filter(|line| line.contains("ust") || line.contains("cargo"));
        faults.extend(about.map(|line| format!("{name}: {line}")));
    }
    expect_none(&faults);
}
