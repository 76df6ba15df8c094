//! What the papers published, number by number, and where it stands.
//!
//! The data are `experiments/papers/*.toml`, one file per paper. Every entry has an
//! id, and every number in it an [`Address`]: `MR-E08.peak_forwarding_rate`, or in a
//! table `LRP-E03[BSD].max_delivered_rate`, whose brackets hold the row's names.
//! `experiments/papers/uncovered.toml` lists what no claim is about, with reasons.

use std::fmt;

use include_dir::{Dir, include_dir};
use serde::Deserialize;

use crate::error::Error;

static PAPERS: Dir<'_> = include_dir!("$CARGO_MANIFEST_DIR/../../experiments/papers");
const UNCOVERED: &str = "uncovered.toml";

/// One paper's published figures, tables and statements.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Paper {
    /// Prefix of its entries.
    pub paper: String,
    /// Authors, title and place.
    pub title: String,
    /// In the paper's order.
    #[serde(rename = "entry")]
    pub entries: Vec<PaperEntry>,
}

/// One figure, table or statement.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PaperEntry {
    /// For example `MR-E08`.
    pub id: String,
    /// Section, figure or table.
    pub place: String,
    /// What was measured.
    pub what: String,
    /// Under which conditions.
    pub conditions: String,
    /// `stated`, `derived` from printed numbers, or `qualitative`: words only.
    pub basis: String,
    /// Of a table: names of its columns.
    #[serde(default)]
    columns: Vec<String>,
    /// Of a table: units of its columns.
    #[serde(default)]
    units: Vec<String>,
    /// Of a table: its rows; not-a-number is a cell that the paper leaves empty.
    #[serde(default)]
    rows: Vec<Vec<Cell>>,
    /// Single numbers.
    #[serde(default)]
    values: Vec<Value>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
enum Cell {
    Number(f64),
    Name(String),
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Value {
    name: String,
    value: f64,
    unit: String,
    #[serde(default)]
    qualifier: String,
}

/// A published number.
#[derive(Clone, Debug, PartialEq)]
pub struct PublishedNumber {
    /// Where it stands.
    pub address: Address,
    /// As printed.
    pub value: f64,
    /// Its unit.
    pub unit: String,
    /// `about`, `<` and the like.
    pub qualifier: String,
}

/// Published numbers that no claim is about.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Uncovered {
    /// Their addresses; `*` stands for any part of a row's names or of a name.
    pub of: Vec<String>,
    /// The reason.
    pub why: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct UncoveredFile {
    uncovered: Vec<Uncovered>,
}

/// All papers.
///
/// # Errors
///
/// A file is wrong: our own mistake, which the tests find.
pub fn papers() -> Result<Vec<Paper>, Error> {
    let files = PAPERS.files().filter(|file| {
        let name = file.path();
        name.extension().is_some_and(|kind| kind == "toml") && !name.ends_with(UNCOVERED)
    });
    files.map(|file| read(file)).collect()
}

/// What no claim is about.
///
/// # Errors
///
/// As [`papers`].
pub fn uncovered() -> Result<Vec<Uncovered>, Error> {
    let file = PAPERS.get_file(UNCOVERED);
    let list = file.map(read::<UncoveredFile>).transpose()?;
    Ok(list.map(|list| list.uncovered).unwrap_or_default())
}

fn read<T: for<'de> Deserialize<'de>>(file: &include_dir::File<'_>) -> Result<T, Error> {
    let text = file.contents_utf8().unwrap_or_default();
    toml::from_str(text).map_err(|error| {
        let name = file.path().display().to_string();
        Error::file(&name, "papers", error.to_string(), "correct the TOML")
    })
}

impl PaperEntry {
    /// Its numbers: single ones, then a table's cells row by row.
    #[must_use]
    pub fn numbers(&self) -> Vec<PublishedNumber> {
        let single = self.values.iter().map(|value| PublishedNumber {
            address: self.address("", &value.name),
            value: value.value,
            unit: value.unit.clone(),
            qualifier: value.qualifier.clone(),
        });
        single.chain(self.cells()).collect()
    }

    fn address(&self, row: &str, name: &str) -> Address {
        Address {
            entry: self.id.clone(),
            row: row.to_owned(),
            name: name.to_owned(),
        }
    }

    /// Columns of names, or else the first column, name the rows.
    fn cells(&self) -> Vec<PublishedNumber> {
        let named = |column: usize| {
            let mut rows = self.rows.iter();
            rows.any(|row| matches!(row.get(column), Some(Cell::Name(_))))
        };
        let mut keys: Vec<usize> = (0..self.columns.len()).filter(|one| named(*one)).collect();
        if keys.is_empty() {
            keys.push(0);
        }
        let mut numbers = Vec::new();
        for row in &self.rows {
            let names = keys.iter().filter_map(|key| row.get(*key));
            let names: Vec<String> = names.map(ToString::to_string).collect();
            let name = names.join("/");
            for (index, column) in self.columns.iter().enumerate() {
                let Some(Cell::Number(value)) = row.get(index) else {
                    continue;
                };
                if keys.contains(&index) || value.is_nan() {
                    continue;
                }
                numbers.push(PublishedNumber {
                    address: self.address(&name, column),
                    value: *value,
                    unit: self.units.get(index).cloned().unwrap_or_default(),
                    qualifier: String::new(),
                });
            }
        }
        numbers
    }
}

impl fmt::Display for Cell {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(number) => write!(formatter, "{number}"),
            Self::Name(name) => formatter.write_str(name),
        }
    }
}

/// Where a number stands, or a whole entry.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Address {
    /// The entry's id.
    pub entry: String,
    /// A table's row, `/` between its names; empty for a single number.
    pub row: String,
    /// The number's name; empty for the whole entry.
    pub name: String,
}

impl fmt::Display for Address {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.entry)?;
        if !self.row.is_empty() {
            write!(formatter, "[{}]", self.row)?;
        }
        if !self.name.is_empty() {
            write!(formatter, ".{}", self.name)?;
        }
        Ok(())
    }
}

impl Address {
    /// All addresses in a text, wherever they stand in it.
    #[must_use]
    pub fn all_in(text: &str) -> Vec<Self> {
        let mut found = Vec::new();
        let mut rest = text;
        while let Some(at) = rest.find("-E") {
            let before = &rest[..at];
            let letters = before.len()
                - before
                    .trim_end_matches(|c: char| c.is_ascii_uppercase())
                    .len();
            let (paper, after) = (&before[before.len() - letters..], &rest[at + 2..]);
            let digits = after.len() - after.trim_start_matches(|c: char| c.is_ascii_digit()).len();
            let whole_word = !before[..before.len() - letters].ends_with(char::is_alphanumeric);
            if !(2..=3).contains(&letters) || digits != 2 || !whole_word {
                rest = after;
                continue;
            }
            let entry = format!("{paper}-E{}", &after[..digits]);
            let (row, after) = row(&after[digits..]);
            let (name, after) = name(after);
            found.push(Self { entry, row, name });
            rest = after;
        }
        found
    }

    /// True for an entry as a whole.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.row.is_empty() && self.name.is_empty()
    }

    /// Whether this, with `*` for anything, and `other`, with `*` for anything, have a
    /// number in common. A whole entry has all its numbers.
    #[must_use]
    pub fn overlaps(&self, other: &Self) -> bool {
        let parts = |left: &str, right: &str| matches(left, right) || matches(right, left);
        self.entry == other.entry
            && (self.is_whole()
                || other.is_whole()
                || parts(&self.row, &other.row) && parts(&self.name, &other.name))
    }
}

fn row(text: &str) -> (String, &str) {
    let inside = text.strip_prefix('[').and_then(|rest| rest.split_once(']'));
    inside.map_or((String::new(), text), |(row, rest)| (row.to_owned(), rest))
}

fn name(text: &str) -> (String, &str) {
    let Some(rest) = text.strip_prefix('.') else {
        return (String::new(), text);
    };
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '*';
    let end = rest.find(|c| !is_part(c)).unwrap_or(rest.len());
    (rest[..end].to_owned(), &rest[end..])
}

/// Whether `pattern`, in which `*` stands for anything, is `text`.
fn matches(pattern: &str, text: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == text,
        Some((start, rest)) => text.strip_prefix(start).is_some_and(|text| {
            let mut ends = text.char_indices().map(|(at, _)| at).chain([text.len()]);
            ends.any(|at| matches(rest, &text[at..]))
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_found_in_prose() {
        let text = "as ST-E18[8253_20us/overhead_pct].apache: 28; MR-E08. LRP-E01[SunOS, FORE driver].tcp, xMR-E1";
        let found: Vec<String> = Address::all_in(text)
            .iter()
            .map(ToString::to_string)
            .collect();
        let wanted = [
            "ST-E18[8253_20us/overhead_pct].apache",
            "MR-E08",
            "LRP-E01[SunOS, FORE driver].tcp",
        ];
        assert_eq!(found, wanted);
    }

    #[test]
    fn an_entry_overlaps_its_numbers_and_a_star_any_row() {
        let one = |text: &str| Address::all_in(text).remove(0);
        assert!(one("MR-E08").overlaps(&one("MR-E08.peak")));
        assert!(one("ST-E11[*].mean").overlaps(&one("ST-E11[ST-nfs].mean")));
        assert!(!one("ST-E11[*].mean").overlaps(&one("ST-E11[ST-nfs].stddev")));
        assert!(!one("MR-E08").overlaps(&one("MR-E09.livelock")));
        assert!(one("ST-E18[*/icache].*").overlaps(&one("ST-E18[base/icache].flash")));
    }
}
