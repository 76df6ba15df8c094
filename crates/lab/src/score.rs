//! The score: how many test claims hold, by paper. Other claims are counted apart,
//! since they say nothing about the model.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use serde::Serialize;

use crate::claim::Verdict;
use crate::declared::{Cause, Kind};
use crate::experiment::{Curve, Experiment};
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
    pub causes: BTreeMap<String, CauseCount>,
    /// Claims of all kinds, by kind.
    pub by_kind: BTreeMap<Kind, Tally>,
}

/// How many claims have a cause.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct CauseCount {
    /// All of them.
    pub claims: usize,
    /// Those that hold with a value of a setting with which others of their experiment
    /// do not: another cause of it sets another value. No one value was found for all.
    pub differing: usize,
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
            causes: causes(runs),
            by_kind: Kind::ALL.map(of_kind).into(),
        }
    }

    /// How many of the model's test claims that do not hold or are undecided have a
    /// traced cause.
    #[must_use]
    pub fn traced(&self) -> usize {
        self.causes.values().map(|count| count.claims).sum()
    }

    /// Of these how many only with a value that differs from claim to claim.
    #[must_use]
    pub fn differing(&self) -> usize {
        self.causes.values().map(|count| count.differing).sum()
    }

    /// What has to be said of a cause that is traced by several values.
    pub(crate) fn but_differing(&self) -> String {
        match self.differing() {
            0 => String::new(),
            some => format!(", and for {some} more by values that differ within an experiment"),
        }
    }

    /// The most frequent cause first.
    #[must_use]
    pub fn causes_by_count(&self) -> Vec<(&str, CauseCount)> {
        let causes = self.causes.iter();
        let mut causes: Vec<_> = causes
            .map(|(name, count)| (name.as_str(), *count))
            .collect();
        causes.sort_by_key(|(_, count)| std::cmp::Reverse(count.claims));
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
            let _ = writeln!(
                text,
                "Cause traced for {} of the {missed} others{}:",
                traced - self.differing(),
                self.but_differing()
            );
        }
        for (name, count) in self.causes_by_count() {
            let differing = differing(count);
            let _ = writeln!(text, "  {:>4} {name}{differing}", count.claims);
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
                Kind::Derived => "Arithmetic of other claims",
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

fn causes(runs: &[Run]) -> BTreeMap<String, CauseCount> {
    let mut causes: BTreeMap<String, CauseCount> = BTreeMap::new();
    for run in runs {
        let tests = run.verdicts.iter().filter(|one| one.kind == Kind::Test);
        let modelled = tests.filter(|one| !one.is_real());
        for cause in modelled.filter_map(|one| one.cause.as_ref()) {
            let count = causes.entry(cause.name.clone()).or_default();
            count.claims += 1;
            count.differing += usize::from(differs(&run.experiment, cause));
        }
    }
    causes
}

/// Whether another cause sets a setting of `cause` to another value on the same machine.
fn differs(experiment: &Experiment, cause: &Cause) -> bool {
    let of = |one: &Cause, curve: &Curve| one.curves.is_empty() || one.curves.contains(&curve.id);
    let machines = |one: &Cause| -> BTreeSet<Option<String>> {
        let curves = experiment.curves.iter().filter(|curve| of(one, curve));
        curves.map(|curve| curve.profile.clone()).collect()
    };
    let own = machines(cause);
    let others = experiment.causes.iter();
    let mut others = others.filter(|one| !own.is_disjoint(&machines(one)));
    others.any(|one| {
        let mut settings = one.set.iter();
        settings.any(|(key, value)| cause.set.get(key).is_some_and(|own| own != value))
    })
}

/// Of a cause's claims, in brackets.
pub(crate) fn differing(count: CauseCount) -> String {
    match count.differing {
        0 => String::new(),
        some => format!(" ({some} by values that differ)"),
    }
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
        let are = if tally.undecided == 1 { "is" } else { "are" };
        let _ = write!(text, ", {} {are} undecided", tally.undecided);
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

    /// Table XII's claims hold with one of several values of `handler_pollution` each, and
    /// were counted as traced to one cause.
    #[test]
    fn a_cause_that_needs_a_value_of_its_own_for_each_claim_is_counted_apart() {
        let experiments = crate::Catalogue::built_in().unwrap();
        let differing = |id: &str| {
            let experiment = experiments.get(id).unwrap();
            let causes = experiment.causes.iter();
            let differing = causes.filter(|one| differs(experiment, one));
            differing.map(|one| one.claims.len()).sum::<usize>()
        };
        assert_eq!(differing("st-table12"), 12);
        // Two machines may differ, as with Flash; Apache's five do on one.
        assert_eq!(differing("st-table6"), 5);
        assert_eq!(differing("mr-fig1"), 0);
    }

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
