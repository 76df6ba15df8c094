//! Floods of a server's own port: whether its honest clients keep being served.
//!
//! *Flooded.* NSD, an echo and nginx are flooded at 5 and 25 times what they can take,
//! by one source, by many, and by addresses that are nobody's ([`SourcesFlood`](crate::own_port::floods::SourcesFlood)), while
//! an honest client asks. *Clients.* Fifty honest clients ask at different rates, more
//! than the server can answer; the shares they get are compared with max-min fairness.
//! *Crowd.* Ten thousand honest clients ask once a second each. *Alone.* Nobody but the
//! flooded server's traffic comes, and then a bystander begins to ask another server.
//!
//! Compared are, unless fewer are asked for, the stock kernel, an nftables limit of each source that was tuned by
//! hand, the guard without fairness (early discard alone), and the guard. The limit is
//! tuned anew for each server and flood, which is more than an operator can do.
//!
//! Limits: as of the whole bench. The honest clients, and what floods, share one CPU;
//! addresses outside of the ranges for benchmarking stay within the testbed.

mod alone;
mod clients;
mod flooded;
mod shares;
mod table;

use plimsoll_report::Goal;
use serde::Serialize;

pub use alone::AloneCase;
pub use clients::{ClientsCase, CrowdCase};
pub use flooded::{SourcesCapacity, SourcesCase};

use super::{Bench, Measured, Plan};
use crate::Error;
use crate::own_port::floods;
use crate::protection::Protection;

/// Floods of servers' own ports.
#[derive(Clone, Debug, Serialize)]
pub struct Sources {
    /// Whether this guard is fair among sources and can be told not to be.
    pub fairness: bool,
    /// What the servers can take.
    pub capacities: Vec<SourcesCapacity>,
    /// By server, flood, multiple and protection.
    pub cases: Vec<SourcesCase>,
    /// Fifty honest clients, by protection.
    pub clients: Vec<ClientsCase>,
    /// A flash crowd, by protection.
    pub crowd: Vec<CrowdCase>,
    /// Nobody else, by multiple and protection.
    pub alone: Vec<AloneCase>,
}

/// What is compared.
#[derive(Clone, Debug, Default)]
pub(super) struct Sides {
    fairness: bool,
    /// Those that the plan asks for. The guard is always compared, with fairness and without.
    asked: Vec<Protection>,
}

impl Sides {
    /// A guard that knows no fairness is compared as it is.
    fn with(&self, others: &[Protection]) -> Vec<Protection> {
        let unfair = self.fairness.then_some(Protection::Unfair);
        let others = others.iter().copied();
        let asked = others.filter(|other| self.asked.contains(other));
        asked.chain(unfair).chain([Protection::Guard]).collect()
    }

    fn flooded(&self) -> Vec<Protection> {
        self.with(&[Protection::Stock, Protection::Nftables])
    }

    /// Whether limits of the packet filter have to be found.
    fn is_filtered(&self) -> bool {
        self.asked.contains(&Protection::Nftables)
    }

    fn crowd(&self) -> Vec<Protection> {
        self.with(&[Protection::Stock])
    }

    fn alone(&self) -> Vec<Protection> {
        self.with(&[Protection::Stock, Protection::Threaded])
    }
}

/// Everything this part measured.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    has_run: bool,
    sides: Sides,
    flooded: flooded::Flooded,
    clients: clients::Clients,
    crowd: clients::Crowd,
    alone: alone::Alone,
}

pub(super) fn run(bench: &mut Bench<'_>) -> Result<Outcome, Error> {
    floods::prepare(bench.stage.testbed)?;
    let sides = Sides {
        fairness: bench.stage.can_be_unfair()?,
        asked: bench.plan.protections.clone(),
    };
    Ok(Outcome {
        has_run: true,
        flooded: flooded::run(bench, &sides)?,
        clients: clients::run(bench, &sides)?,
        crowd: clients::run_crowd(bench, &sides)?,
        alone: alone::run(bench, &sides)?,
        sides,
    })
}

/// Whether the plan asks for the case of this path, such as `nsd/one/5`: by the path or
/// by its first words.
fn wanted(plan: &Plan, path: &str) -> bool {
    let begins = |with: &String| {
        let rest = path.strip_prefix(with.as_str());
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    };
    plan.sources.is_empty() || plan.sources.iter().any(begins)
}

/// The paths of all cases.
pub(super) fn paths() -> Vec<String> {
    let others = [clients::CLIENTS, clients::CROWD, alone::ALONE];
    let flooded = flooded::Load::all().map(flooded::Load::path);
    flooded.chain(others.map(str::to_owned)).collect()
}

impl Measured for Outcome {
    type Section = Sources;

    fn section(&self) -> Sources {
        Sources {
            fairness: self.sides.fairness,
            capacities: self.flooded.capacities.clone(),
            cases: self.flooded.summaries(),
            clients: self.clients.summaries(),
            crowd: self.crowd.summaries(),
            alone: self.alone.summaries(),
        }
    }

    fn goals(&self) -> Vec<Goal> {
        let mut goals = self.flooded.goals();
        goals.extend(self.clients.goals());
        goals.extend(self.crowd.goals());
        goals.extend(self.alone.goals());
        let explained = |goal: Goal| match self.why_not(&goal) {
            Some(why) => goal.because(why),
            None => goal,
        };
        goals.into_iter().map(explained).collect()
    }
}

impl Outcome {
    /// Why a goal has no measurement.
    fn why_not(&self, goal: &Goal) -> Option<&'static str> {
        if !self.has_run || goal.measured.is_some() {
            return None;
        }
        let compares = goal.id.starts_with("sources/goodput/");
        if compares && !self.sides.fairness {
            return Some("this guard knows no fairness among sources");
        }
        Some("not among the cases that were asked for")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cases_are_chosen_by_the_first_words_of_their_path() {
        let mut plan = Plan::new("plimsoll".into());
        assert!(wanted(&plan, "nsd/one/5"));
        plan.sources = vec!["nsd/one".to_owned(), "crowd".to_owned()];
        let chosen: Vec<String> = paths()
            .into_iter()
            .filter(|path| wanted(&plan, path))
            .collect();
        assert_eq!(chosen, ["nsd/one/5", "nsd/one/25", "crowd"]);
    }

    #[test]
    fn a_goal_that_was_not_asked_for_says_so() {
        let outcome = Outcome {
            has_run: true,
            ..Outcome::default()
        };
        let goals = outcome.goals();
        let why = |id: &str| {
            let goal = goals.iter().find(|goal| goal.id == id).unwrap();
            goal.why.clone().unwrap()
        };
        assert!(why("sources/nsd/one/5").contains("asked for"));
        assert!(why("sources/goodput/nsd/one/5").contains("no fairness"));
    }

    #[test]
    fn all_promises_of_the_part_are_there_before_anything_is_measured() {
        let goals = Outcome::default().goals();
        let others: Vec<&str> = goals
            .iter()
            .map(|goal| goal.id.as_str())
            .filter(|id| id.split('/').count() < 4)
            .collect();
        assert_eq!(
            others,
            [
                "sources/clients/jain",
                "sources/crowd/goodput",
                "sources/crowd/starved",
                "sources/alone/5",
                "sources/alone/25",
                "sources/alone/50",
            ]
        );
        let begins = goals
            .iter()
            .filter(|goal| goal.id.starts_with("sources/alone/"));
        assert_eq!(begins.count(), 9);
    }
}
