//! Each server flooded by each kind of sources, at 5 and 25 times what it can take: what
//! the honest client still gets.

use plimsoll_report::{Goal, Side, median};
use serde::Serialize;

use super::{Sides, wanted};
use crate::Error;
use crate::cases::{Case, Cases};
use crate::figures::percents_of;
use crate::guard::{Bench, Part};
use crate::nftables::{Limit, tune};
use crate::offered::{BENEATH_A_CLIENT, Offered, Smaller};
use crate::own_port::floods::{SourcesFlood, unknown_share};
use crate::own_port::servers::{Running, Served, SourcesServer};
use crate::protection::{Protection, Stage};

/// Multiples of what the server can take.
pub(super) const MULTIPLES: [u32; 2] = [5, 25];
/// Limits of each source that are tried for the packet filter, in packets/s: the lowest
/// is what the honest client asks for.
const FILTER_PPS: [u64; 3] = [1_000, 200, 20];

/// One flood of one server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Load {
    pub(super) server: SourcesServer,
    pub(super) flood: SourcesFlood,
    pub(super) multiple: u32,
}

impl Load {
    /// As in the ids of its goals.
    pub(super) fn path(self) -> String {
        let Self {
            server,
            flood,
            multiple,
        } = self;
        format!("{}/{}/{multiple}", server.name(), flood.name())
    }

    pub(super) fn all() -> impl Iterator<Item = Self> {
        let of = |server: SourcesServer| {
            server.floods().flat_map(move |flood| {
                MULTIPLES.map(|multiple| Self {
                    server,
                    flood,
                    multiple,
                })
            })
        };
        SourcesServer::ALL.into_iter().flat_map(of)
    }
}

/// One flood of one server with one protection: medians over the runs; counts are
/// their sums.
#[derive(Clone, Debug, Serialize)]
pub struct SourcesCase {
    /// What stood in between.
    pub protection: Protection,
    /// Who was flooded.
    pub server: SourcesServer,
    /// Who flooded.
    pub flood: SourcesFlood,
    /// Times what the server can take.
    pub multiple: u32,
    /// The packet filter's limit of each source, packets/s, as tuned.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub filter_pps: Option<u64>,
    /// Flood, packets/s.
    pub offered_pps: f64,
    /// Queries or connections of the honest.
    pub asked: u64,
    /// Those answered in time.
    pub answered: u64,
    /// The same in percent, by run.
    pub answered_percents: Vec<f64>,
    /// All answers of the server, to anybody, per second.
    pub answers_per_s: Option<f64>,
    /// Sources that the guard knew when a flood began for which the client was to be known: in
    /// the run with the fewest.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub known_sources: Option<u64>,
}

/// What a server can take.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct SourcesCapacity {
    /// Which.
    pub server: SourcesServer,
    /// The most answers, or new connections, per second that were seen on stock.
    pub answers_max_per_s: f64,
}

/// Everything measured here.
#[derive(Debug, Default)]
pub(super) struct Flooded {
    pub(super) capacities: Vec<SourcesCapacity>,
    /// The packet filter's.
    limits: Vec<(SourcesServer, SourcesFlood, Limit)>,
    pub(super) cases: Cases<Load, Served>,
}

pub(super) fn run(bench: &mut Bench<'_>, sides: &Sides) -> Result<Flooded, Error> {
    let mut measured = Flooded::default();
    for server in SourcesServer::ALL {
        let loads: Vec<Load> = Load::all()
            .filter(|load| load.server == server && wanted(bench.plan, &load.path()))
            .collect();
        if !loads.is_empty() {
            measured.add(bench, sides, server, &loads)?;
        }
    }
    Ok(measured)
}

impl Flooded {
    fn add(
        &mut self,
        bench: &mut Bench<'_>,
        sides: &Sides,
        server: SourcesServer,
        loads: &[Load],
    ) -> Result<(), Error> {
        let (stage, plan) = (bench.stage, bench.plan);
        let running = Running::start(server, &stage)?;
        // Or veth would not hand on the guard's cookies. Alike for all sides.
        let answered = (server == SourcesServer::Nginx).then(|| stage.testbed.load().pass_all());
        let _answered = answered.transpose()?;
        bench.say(
            Part::Sources,
            1,
            &format!("what {} can take", server.name()),
        );
        let answers_max_per_s = running.capacity(&stage, plan.window)?;
        self.capacities.push(SourcesCapacity {
            server,
            answers_max_per_s,
        });
        let rate_pps = |multiple: u32| (answers_max_per_s * f64::from(multiple)).max(1.0) as u64;
        for load in loads
            .iter()
            .filter(|load| sides.is_filtered() && load.multiple == loads[0].multiple)
        {
            bench.say(Part::Sources, 1, "tuning the packet filter");
            let limit = best_limit(&stage, &running, *load, rate_pps(load.multiple))?;
            self.limits.push((server, load.flood, limit));
        }
        let mut cases = Cases::new(&sides.flooded(), loads);
        for round in 1..=plan.runs {
            for case in cases.in_round(round) {
                let what = format!("{}, {}", case.load.path(), case.protection.name());
                bench.say(Part::Sources, round, &what);
                let limit = self.limit(case.load);
                let protector = stage.protect(case.protection, limit)?;
                let rate_pps = rate_pps(case.load.multiple);
                let flood = case.load.flood;
                let served = running.serve(&stage, protector, flood, rate_pps, plan.seconds)?;
                case.runs.push(served);
            }
        }
        self.cases.0.append(&mut cases.0);
        Ok(())
    }

    fn limit(&self, load: Load) -> Option<&Limit> {
        let is_its = |(server, flood, _): &&_| (server, flood) == (&load.server, &load.flood);
        let found = self.limits.iter().find(is_its);
        found.map(|(_, _, limit)| limit)
    }

    fn capacity(&self, server: SourcesServer) -> f64 {
        let found = self.capacities.iter().find(|one| one.server == server);
        found.map_or(f64::NAN, |one| one.answers_max_per_s)
    }

    pub(super) fn summaries(&self) -> Vec<SourcesCase> {
        self.cases.0.iter().map(|case| self.summary(case)).collect()
    }

    fn summary(&self, case: &Case<Load, Served>) -> SourcesCase {
        let limit = self.limit(case.load);
        let answers: Vec<f64> = case
            .runs
            .iter()
            .filter_map(|run| run.answers_per_s)
            .collect();
        SourcesCase {
            protection: case.protection,
            server: case.load.server,
            flood: case.load.flood,
            multiple: case.load.multiple,
            filter_pps: limit
                .filter(|_| case.protection == Protection::Nftables)
                .map(|limit| limit.rate_pps),
            offered_pps: case.middle(|run| run.offered_pps),
            asked: case.total(|run| run.asked),
            answered: case.total(|run| run.answered),
            answered_percents: case.runs.iter().map(Served::percent).collect(),
            answers_per_s: median(&answers),
            known_sources: case.runs.iter().filter_map(|run| run.known_sources).min(),
        }
    }

    /// A promise for every flood, and the server's goodput under it.
    pub(super) fn goals(&self) -> Vec<Goal> {
        let promised = Load::all().map(|load| self.judge(load, self.promise(load)));
        let goodput = Load::all()
            .filter(|load| load.server != SourcesServer::Nginx)
            .map(|load| self.judge(load, self.goodput(load)));
        promised.chain(goodput).collect()
    }

    /// By the flood that there was.
    fn judge(&self, load: Load, goal: Goal) -> Goal {
        let offered = Offered {
            asked_pps: self.capacity(load.server) * f64::from(load.multiple),
            runs_pps: self
                .cases
                .values(Protection::Guard, load, |run| run.offered_pps),
            least: BENEATH_A_CLIENT,
        };
        offered.judge(goal, Smaller::Easier)
    }

    fn promise(&self, load: Load) -> Goal {
        let Load {
            server,
            flood,
            multiple,
        } = load;
        let id = format!("sources/{}", load.path());
        let asked = server.asked();
        let what = |of: &str| {
            let name = server.name();
            format!(
                "{asked} that guarded {name} answers at {multiple} × its capacity, {flood}{of}",
                flood = flood.words()
            )
        };
        let guarded =
            |value: &dyn Fn(&Served) -> f64| self.cases.values(Protection::Guard, load, value);
        match flood.promised_percent() {
            Some(percent) => {
                let values = guarded(&Served::percent);
                Goal::new(id, what(""), Side::AtLeast, percent, "%", values)
            }
            None => {
                let share = unknown_share(self.capacity(server));
                let what = what(", of its max-min share (capacity / 8193 networks)");
                let values = guarded(&|run| run.answered_per_s() / share);
                Goal::new(id, what, Side::AtLeast, 1.0, "×", values)
            }
        }
    }

    fn goodput(&self, load: Load) -> Goal {
        let answers = |protection| {
            self.cases.values(protection, load, |run| {
                run.answers_per_s.unwrap_or(f64::NAN)
            })
        };
        Goal::new(
            format!("sources/goodput/{}", load.path()),
            format!(
                "all answers of guarded {} at {} × its capacity, {}, of those without fairness",
                load.server.name(),
                load.multiple,
                load.flood.words()
            ),
            Side::AtLeast,
            95.0,
            "%",
            percents_of(&answers(Protection::Guard), &answers(Protection::Unfair)),
        )
    }
}

/// The limit an operator would end up with who tried some under this flood: first of
/// all the honest client counts, then the server's answers.
fn best_limit(
    stage: &Stage<'_>,
    running: &Running,
    load: Load,
    rate_pps: u64,
) -> Result<Limit, Error> {
    let candidates = FILTER_PPS.map(|rate_pps| load.server.limit(rate_pps));
    tune(candidates, |limit| {
        let protector = stage.protect(Protection::Nftables, Some(limit))?;
        let served = running.serve(stage, protector, load.flood, rate_pps, 1)?;
        Ok(served.percent() + served.answers_per_s.unwrap_or(0.0) / 1e6)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_promise_of_every_server_and_flood_has_a_goal_of_its_own() {
        let goals = Flooded::default().goals();
        let mut ids: Vec<&str> = goals.iter().map(|goal| goal.id.as_str()).collect();
        // Two servers of five floods and one of four, at two multiples; goodput of two.
        assert_eq!(ids.len(), (5 + 5 + 4) * 2 + (5 + 5) * 2);
        assert!(ids.contains(&"sources/nsd/one/5") && ids.contains(&"sources/nginx/known/25"));
        assert!(ids.contains(&"sources/goodput/echo/many/25"));
        assert!(
            goals
                .iter()
                .all(|goal| goal.met.is_none() && goal.why.is_some())
        );
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), goals.len());
    }

    /// NSD, which can take 100,000, flooded by one source at five times that: of it so much was
    /// offered.
    fn flooded(offered_pps: f64) -> Flooded {
        let load = Load::all().next().unwrap();
        let mut cases = Cases::new(
            &[Protection::Stock, Protection::Unfair, Protection::Guard],
            &[load],
        );
        for (case, answered) in cases.0.iter_mut().zip([10, 50, 999]) {
            case.runs = vec![Served {
                offered_pps,
                asked: 1_000,
                answered,
                seconds: 1.0,
                answers_per_s: Some(answered as f64),
                ..Served::default()
            }];
        }
        Flooded {
            capacities: vec![SourcesCapacity {
                server: SourcesServer::Nsd,
                answers_max_per_s: 1e5,
            }],
            cases,
            ..Flooded::default()
        }
    }

    fn goal(flooded: &Flooded, id: &str) -> Goal {
        let mut goals = flooded.goals().into_iter();
        goals.find(|goal| goal.id == id).unwrap()
    }

    #[test]
    fn a_promise_is_judged_by_the_guarded_runs_of_its_own_load() {
        let flooded = flooded(4.5e5);
        let goal = |id: &str| goal(&flooded, id);
        let promise = goal("sources/nsd/one/5");
        assert_eq!(
            (promise.goal, promise.measured, promise.met),
            (99.5, Some(99.9), Some(true))
        );
        let goodput = goal("sources/goodput/nsd/one/5");
        assert_eq!(goodput.measured.map(f64::round), Some(1998.0));
        assert_eq!(goal("sources/nsd/one/25").met, None);
    }

    #[test]
    fn a_flood_that_was_not_there_meets_no_promise() {
        let promise = goal(&flooded(3e5), "sources/nsd/one/5");
        assert_eq!((promise.measured, promise.met), (Some(99.9), None));
        assert!(promise.why.unwrap().contains("300,000 of 500,000"));
    }
}
