//! The score: how many test claims hold, by paper. Other claims are counted apart,
//! since they say nothing about the model.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde::Serialize;

use crate::claim::Verdict;
use crate::declared::Kind;
use crate::published::Address;
use crate::runner::{Run, Tally};

/// Numbers of claims.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Score {
    /// Test claims of all papers.
    pub test: Tally,
    /// Test claims by paper: the prefix of its entries.
    pub by_paper: BTreeMap<String, Tally>,
    /// Claims of all kinds, by kind.
    pub by_kind: BTreeMap<Kind, Tally>,
}

impl Score {
    /// Of these runs.
    #[must_use]
    pub fn of(runs: &[Run]) -> Self {
        let all = || runs.iter().flat_map(|run| &run.verdicts);
        let of_kind = |kind| Tally::of(all().filter(|one| one.kind == kind));
        let mut by_paper: BTreeMap<String, Vec<&Verdict>> = BTreeMap::new();
        for verdict in all().filter(|one| one.kind == Kind::Test) {
            by_paper.entry(paper(verdict)).or_default().push(verdict);
        }
        let tallied = by_paper.into_iter();
        Self {
            test: of_kind(Kind::Test),
            by_paper: tallied.map(|(paper, of)| (paper, Tally::of(of))).collect(),
            by_kind: Kind::ALL.map(|kind| (kind, of_kind(kind))).into(),
        }
    }

    /// In a few lines, tests first.
    #[must_use]
    pub fn text(&self) -> String {
        let mut text = String::new();
        if self.test.total() > 0 {
            let _ = writeln!(text, "Test claims: {}", sentence(self.test));
        }
        for (paper, tally) in &self.by_paper {
            let _ = writeln!(text, "  {paper:<4} {}", sentence(*tally));
        }
        for (kind, tally) in &self.by_kind {
            let name = match kind {
                Kind::Test => continue,
                Kind::Calibrated => "About what was calibrated",
                Kind::Input => "About inputs and rules",
                Kind::Ours => "Our own claims",
            };
            if tally.total() > 0 {
                let _ = writeln!(text, "{name} (not in the score): {}", sentence(*tally));
            }
        }
        text
    }
}

/// `3 of 7 hold, 2 do not, 2 are undecided`.
#[must_use]
pub(crate) fn sentence(tally: Tally) -> String {
    let mut text = format!(
        "{} of {} hold, {} do not",
        tally.hold,
        tally.total(),
        tally.fail
    );
    if tally.undecided > 0 {
        let _ = write!(text, ", {} are undecided", tally.undecided);
    }
    if tally.unmeasured > 0 {
        let _ = write!(text, ", {} could not be measured", tally.unmeasured);
    }
    text
}

/// The prefix of the entries a claim is from.
#[must_use]
pub(crate) fn paper(verdict: &Verdict) -> String {
    let entries = Address::all_in(verdict.entry.as_deref().unwrap_or_default());
    let first = entries.first().and_then(|one| one.entry.split_once('-'));
    first.map(|(paper, _)| paper.to_owned()).unwrap_or_default()
}
