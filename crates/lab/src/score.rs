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
    /// Test claims of all papers, on the model.
    pub test: Tally,
    /// Test claims by paper: the prefix of its entries.
    pub by_paper: BTreeMap<String, Tally>,
    /// Test claims of all papers, on real packets.
    pub real: Tally,
    /// The same by paper.
    pub real_by_paper: BTreeMap<String, Tally>,
    /// Of the model's test claims that do not hold or are undecided: how many have
    /// which traced cause.
    pub causes: BTreeMap<String, usize>,
    /// Claims of all kinds, by kind.
    pub by_kind: BTreeMap<Kind, Tally>,
}

impl Score {
    /// Of these runs.
    #[must_use]
    pub fn of(runs: &[Run]) -> Self {
        let all = || runs.iter().flat_map(|run| &run.verdicts);
        let tests = |real: bool| -> Vec<&Verdict> {
            let tests = all().filter(|one| one.kind == Kind::Test);
            tests.filter(|one| one.is_real() == real).collect()
        };
        let (modelled, real) = (tests(false), tests(true));
        let of_kind = |kind| {
            let tally = match kind {
                Kind::Test => Tally::of(modelled.iter().copied()),
                _ => Tally::of(all().filter(|one| one.kind == kind)),
            };
            (kind, tally)
        };
        Self {
            test: Tally::of(modelled.iter().copied()),
            by_paper: by_paper(&modelled),
            real: Tally::of(real.iter().copied()),
            real_by_paper: by_paper(&real),
            causes: causes(&modelled),
            by_kind: Kind::ALL.map(of_kind).into(),
        }
    }

    /// How many of the model's test claims that do not hold or are undecided have a
    /// traced cause.
    #[must_use]
    pub fn traced(&self) -> usize {
        self.causes.values().sum()
    }

    /// The most frequent cause first.
    #[must_use]
    pub fn causes_by_count(&self) -> Vec<(&str, usize)> {
        let causes = self.causes.iter();
        let mut causes: Vec<_> = causes
            .map(|(name, count)| (name.as_str(), *count))
            .collect();
        causes.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        causes
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
        if !self.causes.is_empty() {
            let (traced, missed) = (self.traced(), self.test.fail + self.test.undecided);
            let _ = writeln!(text, "Cause traced for {traced} of the {missed} others:");
        }
        for (name, count) in self.causes_by_count() {
            let _ = writeln!(text, "  {count:>4} {name}");
        }
        if self.real.total() > 0 {
            let _ = writeln!(text, "On real packets: {}", sentence(self.real));
        }
        for (paper, tally) in &self.real_by_paper {
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

fn causes(verdicts: &[&Verdict]) -> BTreeMap<String, usize> {
    let mut causes = BTreeMap::new();
    for cause in verdicts.iter().filter_map(|one| one.cause.as_ref()) {
        *causes.entry(cause.name.clone()).or_default() += 1;
    }
    causes
}

fn by_paper(verdicts: &[&Verdict]) -> BTreeMap<String, Tally> {
    let mut by_paper: BTreeMap<String, Vec<&Verdict>> = BTreeMap::new();
    for verdict in verdicts {
        by_paper.entry(paper(verdict)).or_default().push(verdict);
    }
    let tallied = by_paper.into_iter();
    tallied.map(|(paper, of)| (paper, Tally::of(of))).collect()
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

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(kind: Kind, host: &'static str, holds: bool) -> Verdict {
        Verdict {
            id: "c".to_owned(),
            kind,
            text: String::new(),
            entry: Some("LRP-E04".to_owned()),
            host,
            measured: Some(1.0),
            interval: None,
            unit: String::new(),
            bound: String::new(),
            holds: Some(holds),
            why: None,
            cause: None,
        }
    }

    #[test]
    fn real_packets_have_a_score_of_their_own() {
        let experiments = crate::Catalogue::built_in().unwrap();
        let run = Run {
            experiment: experiments.all()[0].clone(),
            seed: 1,
            seeds: 1,
            curves: Vec::new(),
            verdicts: vec![
                verdict(Kind::Test, "model", true),
                verdict(Kind::Test, "testbed", false),
                verdict(Kind::Test, "testbed", true),
                verdict(Kind::Ours, "testbed", true),
            ],
        };
        let score = Score::of(&[run]);
        assert_eq!((score.test.total(), score.real.total()), (1, 2));
        assert_eq!(score.by_kind[&Kind::Test].total(), 1);
        let text = score.text();
        assert!(text.contains("Test claims: 1 of 1 hold"), "{text}");
        assert!(
            text.contains("On real packets: 1 of 2 hold, 1 do not"),
            "{text}"
        );
        assert_eq!(score.real_by_paper["LRP"].hold, 1);
    }
}
