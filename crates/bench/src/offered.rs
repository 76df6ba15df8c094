//! Whether the flood was there that a goal is about.
//!
//! A generator may be held up by others on the machine, or be too slow. A goal that is met beside
//! a smaller flood than it says proves nothing, and one that is missed there is missed all the more
//! beside the whole one. Where the host is to collapse it is the other way round. So a verdict that
//! says nothing is taken back. What was measured stays.

use plimsoll_report::Goal;

use crate::figures::grouped;

/// A generator below this part of the rate it was asked for was held up.
pub(crate) const HELD_UP: f64 = 0.9;
/// A generator that leaves its CPU to a client offers somewhat less.
pub(crate) const BENEATH_A_CLIENT: f64 = 0.8;

/// What a smaller flood than was asked for does to a goal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Smaller {
    /// It is met too easily.
    Easier,
    /// It is missed too easily.
    Harder,
}

/// A flood in all runs that a goal is about.
#[derive(Clone, Debug)]
pub(crate) struct Offered {
    pub(crate) asked_pps: f64,
    /// By run.
    pub(crate) runs_pps: Vec<f64>,
    /// The part of what was asked for that a flood must have.
    pub(crate) least: f64,
}

impl Offered {
    /// Takes a verdict back that a flood like this one does not prove.
    pub(crate) fn judge(&self, goal: Goal, smaller: Smaller) -> Goal {
        let least_pps = self.runs_pps.iter().copied().fold(f64::INFINITY, f64::min);
        if goal.measured.is_none() || least_pps >= self.asked_pps * self.least {
            return goal;
        }
        let met = goal.met.filter(|met| *met == (smaller == Smaller::Harder));
        let offered = format!(
            "the generator offered {} of {} packets/s",
            grouped(least_pps),
            grouped(self.asked_pps)
        );
        let why = match &goal.why {
            Some(why) => format!("{why}; {offered}"),
            None => offered,
        };
        Goal { met, ..goal }.because(why)
    }

    /// The same of several.
    pub(crate) fn judge_all<const N: usize>(
        &self,
        goals: [Goal; N],
        smaller: Smaller,
    ) -> [Goal; N] {
        goals.map(|goal| self.judge(goal, smaller))
    }
}

#[cfg(test)]
mod tests {
    use plimsoll_report::Side;

    use super::*;

    fn judged(value: f64, runs_pps: &[f64], smaller: Smaller) -> Goal {
        let offered = Offered {
            asked_pps: 1e6,
            runs_pps: runs_pps.to_vec(),
            least: HELD_UP,
        };
        let goal = Goal::new("id", "what", Side::AtLeast, 60.0, "%", vec![value]);
        offered.judge(goal, smaller)
    }

    #[test]
    fn a_flood_that_was_there_changes_nothing() {
        for (value, met) in [(70.0, true), (50.0, false)] {
            let goal = judged(value, &[1e6, 9e5], Smaller::Easier);
            assert_eq!((goal.met, goal.why), (Some(met), None));
        }
    }

    #[test]
    fn what_a_smaller_flood_does_not_prove_is_not_judged() {
        let smaller = [1e6, 5e5, 1e6];
        let met = |value, how| judged(value, &smaller, how).met;
        assert_eq!(met(70.0, Smaller::Easier), None);
        assert_eq!(met(50.0, Smaller::Easier), Some(false), "still missed");
        assert_eq!(met(70.0, Smaller::Harder), Some(true), "met all the same");
        assert_eq!(met(50.0, Smaller::Harder), None);
        let goal = judged(70.0, &smaller, Smaller::Easier);
        assert_eq!(goal.measured, Some(70.0));
        let why = "the generator offered 500,000 of 1,000,000 packets/s";
        assert_eq!(goal.why.as_deref(), Some(why));
    }

    #[test]
    fn a_goal_without_a_measurement_keeps_its_reason() {
        let goal = judged(f64::NAN, &[5e5], Smaller::Easier);
        assert!(goal.why.unwrap().contains("NaN"));
    }
}
