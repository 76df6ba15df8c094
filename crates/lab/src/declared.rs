//! What an experiment file declares about its results: claims, what was chosen by
//! a published result, and what was changed afterwards.
//!
//! A claim's [`Kind`] says how much its holding is worth. What was put in or
//! calibrated says little about the model, so the score counts tests alone.

use serde::{Deserialize, Serialize};
use toml::Table;

use crate::error::Error;

/// What a claim can show.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// A published statement that nothing of the model was chosen by.
    Test,
    /// A published number that is arithmetic of others, measured by the same arithmetic
    /// of what other claims of the experiment measure.
    Derived,
    /// About a published result that a cost or setting was chosen by.
    Calibrated,
    /// About what was put in: a published number that the model is given, or a rule
    /// it is built from.
    Input,
    /// A claim of this project, which no paper makes.
    Ours,
}

impl Kind {
    /// All, in the order of reports.
    pub const ALL: [Self; 5] = [
        Self::Test,
        Self::Derived,
        Self::Calibrated,
        Self::Input,
        Self::Ours,
    ];

    /// As in experiment files.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Test => "test",
            Self::Derived => "derived",
            Self::Calibrated => "calibrated",
            Self::Input => "input",
            Self::Ours => "ours",
        }
    }
}

/// A setting of the experiment itself that was chosen by a published result.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Choice {
    /// The setting.
    pub key: String,
    /// The published numbers or statements it was chosen by.
    pub entry: String,
    /// `calibrated` or `input`.
    #[serde(rename = "use")]
    pub kind: Kind,
    /// The curves it is about; all without any.
    #[serde(default)]
    pub curves: Vec<String>,
    /// How it was chosen.
    pub why: String,
}

/// A change of a bound, a condition or a setting.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Revised {
    /// The claims it is about.
    pub claim: String,
    /// When, as `2026-11-21`.
    pub date: String,
    /// What stood there before.
    pub from: String,
    /// What stands there since.
    pub to: String,
    /// The reason.
    pub why: String,
}

impl Revised {
    /// A change without a reason or a date is refused.
    pub(crate) fn check(&self, file: &str) -> Result<(), Error> {
        let digits = |part: Option<&str>, count: usize| {
            part.is_some_and(|part| {
                part.len() == count && part.bytes().all(|byte| byte.is_ascii_digit())
            })
        };
        let mut parts = self.date.split('-');
        let dated = [4, 2, 2].iter().all(|count| digits(parts.next(), *count));
        let told = [&self.from, &self.to, &self.why];
        if dated && parts.next().is_none() && !told.iter().any(|text| text.trim().is_empty()) {
            return Ok(());
        }
        let key = format!("revised.{}", self.claim);
        let remedy = "give a date as 2026-11-21, and from, to and why";
        Err(Error::file(file, key, "is no history", remedy))
    }
}

/// Why claims do not hold, or are undecided: traced in the model, not guessed.
///
/// It says what the model would need, not that the paper's machine had it: its settings
/// may break other claims.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Cause {
    /// The cause in a few words, the same wherever it is found.
    pub name: String,
    /// The claims it is about.
    pub claims: Vec<String>,
    /// One sentence: what was found.
    pub traced: String,
    /// Settings without the cause: the claims hold with them. Nothing where no setting
    /// removes it; then `traced` says what was counted.
    #[serde(default, skip_serializing_if = "Table::is_empty")]
    pub set: Table,
    /// The curves they are laid over; all without any.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub curves: Vec<String>,
}

impl Cause {
    /// A cause of no claim, of unknown claims or without a sentence is refused.
    pub(crate) fn check(&self, file: &str, claims: &[Claim]) -> Result<(), Error> {
        let known = |id: &String| claims.iter().any(|claim| claim.id == *id);
        let (problem, remedy) = if self.claims.is_empty() || !self.claims.iter().all(known) {
            let problem = "is about no claim, or about one that does not exist";
            (problem, "list ids of the file's claims")
        } else if self.name.trim().is_empty() || !self.traced.ends_with('.') {
            let problem = "has no name or no sentence";
            (
                problem,
                "give a name of a few words, and a sentence in traced",
            )
        } else {
            return Ok(());
        };
        let key = format!("cause.{}", self.name);
        Err(Error::file(file, key, problem, remedy))
    }
}

/// Of a claim whose paper gives all of it.
const NOTHING: &str = "nothing";

/// Something that must come out: a measured expression and its bound.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Claim {
    /// Unique in its experiment.
    pub id: String,
    /// What it can show.
    pub kind: Kind,
    /// The claim in words.
    pub text: String,
    /// All of it that its paper does not give: a bound that stands for a word, a tolerance,
    /// a load. `nothing` if the paper gives all of it.
    #[serde(default)]
    pub ours: Option<String>,
    /// The published numbers or statements behind it, as `MR-E08.peak_forwarding_rate`
    /// or `MR-E08`, separated by commas; nothing for a claim of ours.
    #[serde(default)]
    pub from: Option<String>,
    /// Expression over the curves that gives the measured number.
    pub measure: String,
    /// Unit of the measured number.
    #[serde(default)]
    pub unit: String,
    /// Least value that is good enough.
    #[serde(default)]
    pub at_least: Option<Number>,
    /// Greatest value that is still good.
    #[serde(default)]
    pub at_most: Option<Number>,
    /// The value to meet, with `within_percent`.
    #[serde(default)]
    pub near: Option<Number>,
    /// How far from `near` is still good, in percent of it.
    #[serde(default)]
    pub within_percent: Option<f64>,
}

impl Claim {
    /// Its text, and what of it is not its paper's.
    #[must_use]
    pub fn told(&self) -> String {
        match self.ours.as_deref() {
            None | Some(NOTHING) => self.text.clone(),
            Some(ours) => format!("{} (ours: {ours})", self.text),
        }
    }

    /// Whether its measure or its bounds name this curve.
    pub(crate) fn names(&self, curve: &str) -> bool {
        let bounds = [&self.at_least, &self.at_most, &self.near];
        let bounds = bounds.into_iter().filter_map(|bound| match bound {
            Some(Number::Expression(text)) => Some(text),
            Some(Number::Value(_)) | None => None,
        });
        let is_part = |one: char| one.is_alphanumeric() || one == '_';
        let names = |text: &String| text.split(|one| !is_part(one)).any(|word| word == curve);
        bounds.chain([&self.measure]).any(names)
    }
}

/// A number, or an expression that gives one.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(untagged)]
pub enum Number {
    /// As it stands.
    Value(f64),
    /// To be evaluated like a claim's `measure`.
    Expression(String),
}
