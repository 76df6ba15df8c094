//! Which ids a text cites: `MR-14`, or `MR-33 to MR-35` for all three.
//!
//! Only whole ids count. Lists whose second number has no letters are refused, since
//! that number would be overlooked.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// The letters of the papers.
const PAPERS: [&str; 5] = ["MR", "ST", "TB", "LRP", "MH"];

/// A paper's letters and a number.
type Id<'a> = (&'a str, u32);

/// The ids in `text`, as `docs/mechanisms.md` writes them. Comment marks at the
/// beginning of lines do not separate.
pub(crate) fn ids(text: &str) -> BTreeSet<String> {
    let words = words(text);
    let mut found = BTreeSet::new();
    for (at, word) in words.iter().enumerate() {
        for part in word.split(|c: char| !(c.is_ascii_alphanumeric() || c == '-')) {
            let Some((paper, first)) = id(part) else {
                continue;
            };
            found.insert(name(paper, first));
        }
        let next = (words.get(at + 1) == Some(&"to")).then(|| words.get(at + 2));
        let (Some((paper, first)), Some(Some(last))) = (id(bare(word)), next) else {
            continue;
        };
        if let Some((_, last)) = id(bare(last)).filter(|(same, _)| *same == paper) {
            found.extend((first..=last).map(|number| name(paper, number)));
        }
    }
    found
}

/// Where `text` leaves the letters of an id out after another: `MR-73 and 74`.
pub(crate) fn shortened(text: &str) -> Vec<String> {
    let mut words = words(text);
    words.push("");
    let is_number = |word: &str| {
        let digits = bare(word);
        (2..=3).contains(&digits.len()) && digits.bytes().all(|b| b.is_ascii_digit())
    };
    let short = words.windows(3).filter(|three| {
        let listed = three[0].ends_with(',') && is_number(three[1]);
        let joined = matches!(three[1], "to" | "and") && is_number(three[2]);
        id(bare(three[0])).is_some() && (listed || joined)
    });
    short.map(|three| three.join(" ")).collect()
}

fn words(text: &str) -> Vec<&str> {
    let lines = text.lines();
    let words = lines.flat_map(|line| {
        line.trim_start()
            .trim_start_matches(['/', '!', '#', '*'])
            .split_whitespace()
    });
    words.collect()
}

/// A word without brackets and stops around it.
fn bare(word: &str) -> &str {
    word.trim_matches(|c: char| !c.is_ascii_alphanumeric())
}

fn id(part: &str) -> Option<Id<'_>> {
    let (letters, digits) = part.split_once('-')?;
    let paper = PAPERS.into_iter().find(|paper| *paper == letters)?;
    let number = (2..=3).contains(&digits.len()) && digits.bytes().all(|b| b.is_ascii_digit());
    Some((paper, digits.parse().ok().filter(|_| number)?))
}

fn name(paper: &str, number: u32) -> String {
    format!("{paper}-{number:02}")
}

/// The text of a home's files: of a module of core, a crate's sources, or the
/// experiments. None, if there is no such home yet.
pub(crate) fn text_of(crates: &Path, home: &str) -> Option<String> {
    let places = match home.strip_prefix("core::") {
        Some(module) => {
            let source = crates.join("core/src");
            vec![source.join(format!("{module}.rs")), source.join(module)]
        }
        None if home == "experiment" => vec![crates.join("../experiments")],
        None => vec![crates.join(home).join("src")],
    };
    let mut files = Vec::new();
    for place in places {
        collect(&place, &mut files);
    }
    if files.is_empty() {
        return None;
    }
    let texts = files.iter().map(fs::read_to_string);
    Some(texts.filter_map(Result::ok).collect())
}

/// The sources at and below `place`.
fn collect(place: &Path, files: &mut Vec<PathBuf>) {
    if place.is_file() {
        let source = |kind| matches!(kind, "rs" | "c" | "h" | "toml");
        if place
            .extension()
            .and_then(|kind| kind.to_str())
            .is_some_and(source)
        {
            files.push(place.to_owned());
        }
        return;
    }
    for entry in fs::read_dir(place).into_iter().flatten().flatten() {
        collect(&entry.path(), files);
    }
}

#[test]
fn lists_and_ranges_are_read_across_lines_and_marks() {
    let text = "//! (MR-73, LRP-01) ST-26; TB-07 to\n//! TB-09, MR-98 to MR-100.";
    let expected = [
        "LRP-01", "MR-100", "MR-73", "MR-98", "MR-99", "ST-26", "TB-07", "TB-08", "TB-09",
    ];
    assert_eq!(ids(text), expected.map(str::to_owned).into());
}

#[test]
fn other_numbers_are_no_ids() {
    for text in [
        "MR-E14", "MR-1", "XMR-14", "BL-14", "MR-14x", "12 to 14", "MR 14",
    ] {
        assert!(ids(text).is_empty(), "{text}: {:?}", ids(text));
    }
}

#[test]
fn numbers_without_letters_are_found() {
    for text in ["(MR-73 and 74)", "LRP-13 to\n//! 17, x", "BL-1, TB-01, 02."] {
        assert_eq!(shortened(text).len(), 1, "{text}");
    }
    assert!(shortened("MR-73 and MR-74, section 11.2, of 12").is_empty());
}
