//! What the matrix found: a table for people, a document for programs.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use plimsoll_report::{Goal, Machine, SCHEMA, Side};
use serde::Serialize;

use crate::machine::Ending;
use crate::{Finding, Orders, Step};

/// One kernel with one driver.
#[derive(Clone, Debug, Serialize)]
pub struct Cell {
    /// As asked for.
    pub series: String,
    /// As the kernel calls itself; `None` if the mirror has none of the series.
    pub release: Option<String>,
    /// Of the guarded interface.
    pub driver: String,
    /// The guard must refuse here.
    pub refusal: bool,
    /// What was found, in the order of the steps.
    pub findings: Vec<Finding>,
    /// Why the machine did not get to the end.
    pub died: Option<String>,
}

impl Cell {
    /// What a machine found.
    #[must_use]
    pub fn new(
        series: &str,
        release: &str,
        orders: &Orders,
        findings: Vec<Finding>,
        ending: Ending,
    ) -> Self {
        Self {
            series: series.to_owned(),
            release: Some(release.to_owned()),
            driver: orders.driver.clone(),
            refusal: orders.refusal.is_some(),
            findings,
            died: match ending {
                Ending::Done => None,
                Ending::Died(why) => Some(why),
            },
        }
    }

    fn finding(&self, step: Step) -> Option<&Finding> {
        self.findings.iter().find(|finding| finding.step == step)
    }

    fn expects(&self, step: Step) -> bool {
        step.is_for(&self.driver) && (!self.refusal || step.is_for_refusal())
    }

    fn word(&self, step: Step) -> &'static str {
        match self.finding(step) {
            _ if !self.expects(step) => "-",
            Some(finding) if !finding.ok => "FAILED",
            Some(_) if self.refusal && step == Step::Start => "refused",
            Some(_) => "ok",
            None => "missing",
        }
    }

    fn goal(&self, step: Step) -> Goal {
        let finding = self.finding(step);
        let runs = finding.map(|finding| f64::from(u8::from(finding.ok)));
        let release = self.release.as_deref().unwrap_or(&self.series);
        let goal = Goal::new(
            format!("{}/{}/{}", self.series, self.driver, step.name()),
            format!("{} on {}, Linux {release}", step.name(), self.driver),
            Side::AtLeast,
            1.0,
            "passed",
            runs.into_iter().collect(),
        );
        match (finding, &self.died) {
            (Some(finding), _) if finding.ok => goal,
            (Some(finding), _) => goal.because(finding.found.clone()),
            (None, Some(why)) => goal.because(why.lines().next().unwrap_or_default()),
            (None, None) => goal,
        }
    }
}

/// Everything that was found.
#[derive(Clone, Debug, Serialize)]
pub struct Document {
    /// Version of this form.
    pub schema: u32,
    /// The host of the machines.
    pub machine: Machine,
    /// One for each kernel and driver.
    pub cells: Vec<Cell>,
    /// Series that the mirror has not.
    pub absent: Vec<String>,
    /// One for each step of each cell.
    pub goals: Vec<Goal>,
}

impl Document {
    /// Of these.
    #[must_use]
    pub fn new(cells: Vec<Cell>, absent: Vec<String>) -> Self {
        let steps = |cell: &Cell| {
            let steps = Step::ALL.into_iter().filter(|step| cell.expects(*step));
            steps.map(|step| cell.goal(step)).collect::<Vec<_>>()
        };
        Self {
            schema: SCHEMA,
            machine: Machine::read(None),
            goals: cells.iter().flat_map(steps).collect(),
            cells,
            absent,
        }
    }

    /// Every step of every cell went as it should.
    #[must_use]
    pub fn is_good(&self) -> bool {
        !self.goals.is_empty() && self.goals.iter().all(|goal| goal.met == Some(true))
    }

    /// Kernel × driver × step, and below what failed.
    #[must_use]
    pub fn table(&self) -> String {
        let mut text = format!("{:<26}{:<12}", "kernel", "driver");
        for step in Step::ALL {
            let _ = write!(text, "{:<11}", step.name());
        }
        text.push_str("seconds\n");
        for cell in &self.cells {
            let release = cell.release.as_deref().unwrap_or(&cell.series);
            let _ = write!(text, "{release:<26}{:<12}", cell.driver);
            for step in Step::ALL {
                let _ = write!(text, "{:<11}", cell.word(step));
            }
            let seconds: f64 = cell.findings.iter().map(|finding| finding.seconds).sum();
            let _ = writeln!(text, "{seconds:.0}");
        }
        for series in &self.absent {
            let _ = writeln!(text, "{series}: the mirror has no such kernel");
        }
        text + &self.failures()
    }

    fn failures(&self) -> String {
        let mut text = String::new();
        for cell in &self.cells {
            let place = format!("{} {}", cell.series, cell.driver);
            for finding in cell.findings.iter().filter(|finding| !finding.ok) {
                let _ = writeln!(text, "\n{place} {}: {}", finding.step.name(), finding.found);
            }
            if let Some(why) = &cell.died {
                let _ = writeln!(text, "\n{place}: the machine {why}");
            }
        }
        text
    }

    /// How many steps went how.
    #[must_use]
    pub fn counts(&self) -> BTreeMap<&'static str, usize> {
        let mut counts = BTreeMap::new();
        for goal in &self.goals {
            let word = match goal.met {
                Some(true) => "ok",
                Some(false) => "failed",
                None => "missing",
            };
            *counts.entry(word).or_default() += 1;
        }
        counts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cell(refusal: Option<&str>, findings: &[(Step, bool)]) -> Cell {
        let orders = Orders {
            driver: "igb".to_owned(),
            refusal: refusal.map(str::to_owned),
            kills: 1,
            seed: 1,
        };
        let finding = |(step, ok): &(Step, bool)| Finding {
            step: *step,
            ok: *ok,
            found: "seen".to_owned(),
            seconds: 1.0,
        };
        let findings = findings.iter().map(finding).collect();
        Cell::new("6.12", "6.12.1", &orders, findings, Ending::Done)
    }

    #[test]
    fn a_step_that_nobody_saw_is_not_good() {
        let all: Vec<_> = Step::ALL.map(|step| (step, true)).to_vec();
        assert!(Document::new(vec![cell(None, &all)], vec![]).is_good());
        assert!(!Document::new(vec![cell(None, &all[1..])], vec![]).is_good());
        let mut one_failed = all;
        one_failed[4].1 = false;
        let document = Document::new(vec![cell(None, &one_failed)], vec![]);
        assert!(!document.is_good());
        assert!(document.table().contains("6.12 igb syn-flood: seen"));
        assert!(!Document::new(vec![], vec!["6.9".to_owned()]).is_good());
    }

    #[test]
    fn of_a_refusal_few_steps_are_expected() {
        let steps = [Step::Boot, Step::Check, Step::Start, Step::End];
        let findings = steps.map(|step| (step, true));
        let document = Document::new(vec![cell(Some("kernel"), &findings)], vec![]);
        assert!(document.is_good());
        assert!(document.table().contains("refused"));
    }
}
