//! Which flood of another socket overloads stock, and whether it did; or at which rate stock
//! begins to lose of what crosses itself.
//!
//! "No worse than stock in overload" says something only where stock loses. So before the runs
//! the flood is doubled from the plan's rate on, with stock alone, until stock loses a noticeable
//! part of what crosses; all sides then get that one rate. The runs themselves say what stock
//! lost. If that was next to nothing there was no overload, and nobody met a goal.
//!
//! Of datagrams and their like a part of what was sent is lost. Of throughput it is a part of
//! what stock moves beside next to no flood: the generator takes its share of the sender's CPU
//! at any rate, and that is not the host's overload.
//!
//! The rate of a download is searched in the same way, from lower on and more closely: what it
//! should find is where stock begins to lose.
//!
//! Limits: at the plan's own rate stock may lose more than it should; no lower one is tried. A
//! machine whose one generator cannot overload stock learns just that.

use std::ops::RangeInclusive;
use std::time::Duration;

use plimsoll_report::{Goal, median};
use serde::Serialize;

use super::Plan;
use super::one_run::{Run, once};
use super::setup::{Load, Setup};
use crate::Error;
use crate::cases::Cases;
use crate::protection::Protection;
use crate::traffic::UNLIMITED_PPS;

/// Less than this part is no overload.
const NOTICEABLE: f64 = 0.05;
/// What is searched: well above, since runs differ, and not more than half.
const SEARCHED: RangeInclusive<f64> = 0.1..=0.5;
/// Of what crosses itself it is searched where stock begins to lose.
const BEGINNING: RangeInclusive<f64> = 0.1..=0.2;
/// That may be below the plan's rate: from this part of it on.
const BEGINNING_PARTS: u64 = 8;
/// From here on the generator sends what it can.
const HIGHEST_PPS: u64 = UNLIMITED_PPS as u64;
/// Nothing crosses, or a connection breaks off: no side can be compared with that.
const ALL: f64 = 1.0;
/// A generator that offers a smaller part of what was asked is at its end.
const FOLLOWS: f64 = 0.9;
/// A pause of the machine loses packets at any rate; not in every try.
const TRIES: usize = 2;
/// Rates tried between one at which stock loses too little and one at which it loses too much.
const NARROWINGS: usize = 3;
/// How long a rate is tried.
const TRIAL: Duration = Duration::from_millis(500);
/// A flood by which no host is overloaded.
const NEXT_TO_NOTHING_PPS: u64 = 10;
/// Throughput beside next to no flood is the median of so many runs.
const UNHURT_RUNS: usize = 3;

/// A flood of another socket or of what crosses itself, and what stock lost at it in the runs.
#[derive(Clone, Debug, Serialize)]
pub struct Flood {
    /// The set-up.
    pub setup: &'static str,
    /// Packets per second that all sides' generator was asked for; from 6,000,000 on all it can.
    pub asked_pps: u64,
    /// What it offered in stock's median run.
    pub offered_pps: f64,
    /// Part of what crosses that stock lost, from 0 to 1: the median of its runs.
    pub stock_lost: f64,
    /// Whether that is enough for an overload: at least a twentieth.
    pub is_overload: bool,
}

impl Flood {
    pub(super) const fn new(
        setup: &'static str,
        asked_pps: u64,
        offered_pps: f64,
        stock_lost: f64,
    ) -> Self {
        Self {
            setup,
            asked_pps,
            offered_pps,
            stock_lost,
            is_overload: stock_lost >= NOTICEABLE,
        }
    }

    /// What is met beside a flood that overloads nobody is not met in overload. What is missed
    /// stays missed.
    pub(super) fn judge(&self, goal: Goal) -> Goal {
        if self.is_overload || goal.measured.is_none() {
            return goal;
        }
        let why = goal.why.clone().unwrap_or_else(|| self.to_string());
        let met = goal.met.filter(|met| !met);
        Goal { met, ..goal }.because(why)
    }
}

impl std::fmt::Display for Flood {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (lost, offered) = (100.0 * self.stock_lost, self.offered_pps / 1e6);
        let verdict = if self.is_overload {
            ""
        } else {
            "no overload: "
        };
        write!(
            f,
            "{verdict}stock lost {lost:.2} % at {offered:.2} M packets/s"
        )
    }
}

/// Whether a goal was measured beside a flood that overloaded nobody, and so says nothing.
#[must_use]
pub fn is_without_overload(goal: &Goal) -> bool {
    goal.measured.is_some() && goal.met.is_none()
}

/// The flood that was found for a set-up.
#[derive(Clone, Copy, Debug)]
pub(super) struct Found {
    pub(super) rate_pps: u64,
    /// What stock moves per second beside next to no flood, where throughput counts.
    unhurt: Option<f64>,
}

impl Found {
    /// What stock lost beside it.
    pub(super) fn flood(
        &self,
        plan: &Plan,
        setup: &Setup,
        measured: &Cases<(), Run>,
    ) -> Option<Flood> {
        let of_stock =
            |value: &dyn Fn(&Run) -> f64| median(&measured.values(Protection::Stock, (), value));
        let stock_lost = of_stock(&|run| lost(run, plan.window, self.unhurt))?;
        let offered_pps = of_stock(&|run| run.flood_pps.unwrap_or(0.0))?;
        Some(Flood::new(
            setup.name,
            self.rate_pps,
            offered_pps,
            stock_lost,
        ))
    }
}

/// Searches the flood that overloads stock in a set-up.
pub(super) fn find(
    plan: &Plan,
    setup: &Setup,
    progress: &mut impl FnMut(&str),
) -> Result<Found, Error> {
    let plan = Plan {
        window: plan.window.min(TRIAL),
        ..plan.clone()
    };
    let stock = |rate_pps| once(&plan, setup, Protection::Stock, Some(rate_pps));
    progress(&format!("{}: which flood overloads stock?", setup.name));
    let unhurt = if setup.load.is_throughput() {
        let runs: Result<Vec<Run>, Error> = (0..UNHURT_RUNS)
            .map(|_| stock(NEXT_TO_NOTHING_PPS))
            .collect();
        let per_s = |run: &Run| per_second(run, plan.window);
        median(&runs?.iter().map(per_s).collect::<Vec<_>>())
    } else {
        None
    };
    let (from_pps, sought) = sought(&plan, setup);
    let found = search(from_pps, &sought, |rate_pps| match stock(rate_pps) {
        Ok(run) => Ok(Tried {
            rate_pps,
            offered_pps: run.flood_pps.unwrap_or(0.0),
            lost: lost(&run, plan.window, unhurt),
        }),
        // Nothing crosses any more.
        Err(Error::Traffic { .. }) => Ok(Tried {
            rate_pps,
            offered_pps: rate_pps as f64,
            lost: ALL,
        }),
        Err(error) => Err(error),
    })?;
    progress(&format!(
        "{}: stock loses {:.1} % at {:.2} M packets/s",
        setup.name,
        100.0 * found.lost,
        found.offered_pps / 1e6
    ));
    Ok(Found {
        rate_pps: found.rate_pps,
        unhurt,
    })
}

/// From which rate on it is searched, and what part stock should lose.
fn sought(plan: &Plan, setup: &Setup) -> (u64, RangeInclusive<f64>) {
    match setup.load {
        Load::Download => ((plan.flood_pps / BEGINNING_PARTS).max(1), BEGINNING),
        _ => (plan.flood_pps, SEARCHED),
    }
}

fn per_second(run: &Run, window: Duration) -> f64 {
    run.counted.received as f64 / window.as_secs_f64()
}

/// The part lost of what crosses.
fn lost(run: &Run, window: Duration, unhurt: Option<f64>) -> f64 {
    let arrived = match unhurt {
        Some(unhurt) => per_second(run, window) / unhurt.max(1.0),
        None => run.counted.received as f64 / run.counted.sent.max(1) as f64,
    };
    (1.0 - arrived).max(0.0)
}

/// What stock lost beside a flood of this rate.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Tried {
    rate_pps: u64,
    offered_pps: f64,
    lost: f64,
}

impl Tried {
    /// What to ask for if stock loses too little at this.
    fn next_pps(&self) -> u64 {
        if self.offered_pps < FOLLOWS * self.rate_pps as f64 {
            return HIGHEST_PPS;
        }
        (2 * self.rate_pps).min(HIGHEST_PPS)
    }
}

/// The rate at which stock loses a part that is `sought`, or the nearest one above that leaves
/// something to compare; the highest if stock loses less at each.
fn search(
    from_pps: u64,
    sought: &RangeInclusive<f64>,
    mut stock: impl FnMut(u64) -> Result<Tried, Error>,
) -> Result<Tried, Error> {
    let noticeable = *sought.start();
    let mut below = at_best(from_pps.min(HIGHEST_PPS), noticeable, &mut stock)?;
    let mut above = loop {
        if below.lost >= noticeable || below.rate_pps >= HIGHEST_PPS {
            return Ok(below);
        }
        let tried = at_best(below.next_pps(), noticeable, &mut stock)?;
        if tried.lost > *sought.end() {
            break tried;
        }
        below = tried;
    };
    for _ in 0..NARROWINGS {
        let middle = (below.rate_pps as f64 * above.rate_pps as f64).sqrt();
        let tried = at_best(middle as u64, noticeable, &mut stock)?;
        match tried.lost {
            lost if sought.contains(&lost) => return Ok(tried),
            lost if lost > *sought.end() => above = tried,
            _ => below = tried,
        }
    }
    Ok(if above.lost < ALL { above } else { below })
}

/// The try in which stock lost least, of several where that is `noticeable`.
fn at_best(
    rate_pps: u64,
    noticeable: f64,
    stock: &mut impl FnMut(u64) -> Result<Tried, Error>,
) -> Result<Tried, Error> {
    let mut best = stock(rate_pps)?;
    for _ in 1..TRIES {
        if best.lost < noticeable {
            break;
        }
        let again = stock(rate_pps)?;
        if again.lost < best.lost {
            best = again;
        }
    }
    Ok(best)
}

#[cfg(test)]
mod tests {
    use plimsoll_report::Side;

    use super::super::setup;
    use super::super::traffic::Counted;
    use super::*;

    /// A stock host that takes `capacity_pps`, and a generator that offers `most_pps`.
    fn host(capacity_pps: f64, most_pps: f64) -> impl FnMut(u64) -> Result<Tried, Error> {
        move |rate_pps| {
            let offered_pps = most_pps.min(rate_pps as f64);
            let lost = (1.0 - capacity_pps / offered_pps).max(0.0);
            Ok(Tried {
                rate_pps,
                offered_pps,
                lost,
            })
        }
    }

    #[test]
    fn stock_loses_a_noticeable_part_at_the_rate_that_is_found() {
        for capacity_pps in [0.6e6, 0.9e6, 1e6, 1.2e6, 1.9e6, 2.5e6, 3.5e6] {
            let found = search(1_000_000, &SEARCHED, host(capacity_pps, 4e6)).unwrap();
            assert!(SEARCHED.contains(&found.lost), "{capacity_pps}: {found:?}");
        }
        // From any rate on: it is the host's that is found.
        for from_pps in [1, 7_000, 300_000] {
            let found = search(from_pps, &SEARCHED, host(1e6, 4e6)).unwrap();
            assert!(SEARCHED.contains(&found.lost), "{from_pps}: {found:?}");
        }
    }

    #[test]
    fn of_a_download_the_rate_is_found_at_which_stock_begins_to_lose() {
        let download = setup::ALL.iter().find(|one| one.name == "masquerade-full");
        let plan = Plan::new(std::path::PathBuf::new());
        let (from_pps, sought) = sought(&plan, download.unwrap());
        for capacity_pps in [0.15e6, 0.3e6, 0.45e6, 0.6e6, 0.75e6, 0.9e6, 1.1e6, 2e6, 3e6] {
            let found = search(from_pps, &sought, host(capacity_pps, 4e6)).unwrap();
            assert!(
                (0.1..=0.2).contains(&found.lost),
                "{capacity_pps}: {found:?}"
            );
        }
    }

    #[test]
    fn the_plan_s_rate_is_the_lowest() {
        let found = search(1_000_000, &SEARCHED, host(0.1e6, 4e6)).unwrap();
        assert_eq!(found.rate_pps, 1_000_000);
        assert!(found.lost > *SEARCHED.end(), "{found:?}");
    }

    /// A connection stands a flood and then breaks down at once.
    #[test]
    fn where_no_rate_loses_part_of_it_nearly_the_highest_that_it_stands_is_taken() {
        let mut tries = 0;
        let found = search(1_000_000, &SEARCHED, |rate_pps| {
            tries += 1;
            Ok(Tried {
                rate_pps,
                offered_pps: rate_pps as f64,
                lost: if rate_pps < 2_500_000 { 0.0 } else { 1.0 },
            })
        });
        let found = found.unwrap();
        assert_eq!(found.lost, 0.0, "with nothing there is no comparison");
        assert!(
            (2_300_000..2_500_000).contains(&found.rate_pps),
            "{found:?}"
        );
        assert!(tries <= 12, "{tries}");
    }

    /// One that loses nearly all at once can be compared.
    #[test]
    fn what_loses_nearly_all_is_taken() {
        let found = search(1_000_000, &SEARCHED, |rate_pps| {
            Ok(Tried {
                rate_pps,
                offered_pps: rate_pps as f64,
                lost: if rate_pps < 2_500_000 { 0.0 } else { 0.98 },
            })
        });
        let found = found.unwrap();
        assert!(
            (2_500_000..2_800_000).contains(&found.rate_pps),
            "{found:?}"
        );
    }

    /// A pause of the machine in every third try had been taken for overload.
    #[test]
    fn pauses_are_no_overload() {
        for paused in 0..3 {
            let (mut tries, mut stock) = (0, host(1.5e6, 4e6));
            let found = search(500_000, &SEARCHED, |rate_pps| {
                tries += 1;
                let tried = stock(rate_pps)?;
                let lost = if tries % 3 == paused { 0.9 } else { tried.lost };
                Ok(Tried { lost, ..tried })
            });
            let found = found.unwrap();
            assert!(found.offered_pps > 1.5e6 * 1.1, "{paused}: {found:?}");
        }
    }

    #[test]
    fn a_host_that_takes_all_is_tried_with_all_that_the_generator_can() {
        for (most_pps, tried) in [
            (1.5e6, &[1_000_000, 2_000_000][..]),
            (9e6, &[1_000_000, 2_000_000, 4_000_000]),
        ] {
            let mut asked = Vec::new();
            let mut stock = host(f64::INFINITY, most_pps);
            let found = search(1_000_000, &SEARCHED, |rate_pps| {
                asked.push(rate_pps);
                stock(rate_pps)
            });
            assert_eq!(found.unwrap().lost, 0.0);
            assert_eq!(asked, [tried, &[HIGHEST_PPS]].concat(), "{most_pps}");
        }
    }

    fn flood(stock_lost: f64) -> Flood {
        Flood::new("socket", HIGHEST_PPS, 3_900_000.0, stock_lost)
    }

    /// Ten set-ups had met their goal beside a flood by which stock lost nothing.
    #[test]
    fn without_overload_no_goal_is_met() {
        let goal = |runs| Goal::new("socket/flooded", "", Side::AtLeast, 0.0, "points", runs);
        let none = flood(0.0004).judge(goal(vec![0.01]));
        assert_eq!((none.met, none.measured), (None, Some(0.01)));
        assert!(is_without_overload(&none));
        let why = "no overload: stock lost 0.04 % at 3.90 M packets/s";
        assert_eq!(none.why.as_deref(), Some(why));
        let met = flood(0.3).judge(goal(vec![0.01]));
        assert_eq!((met.met, met.why.as_ref()), (Some(true), None));
        assert!(!is_without_overload(&met));
    }

    #[test]
    fn without_overload_harm_is_harm_and_what_is_not_known_is_not_known() {
        let goal = |runs| Goal::new("socket/flooded", "", Side::AtLeast, 0.0, "points", runs);
        let missed = flood(0.0).judge(goal(vec![-40.0]));
        assert_eq!(missed.met, Some(false));
        assert!(missed.why.unwrap().starts_with("no overload: "));
        let broken = flood(0.0).judge(goal(vec![-40.0]).because("a run broke off"));
        assert_eq!(broken.why.as_deref(), Some("a run broke off"));
        let unknown = flood(0.0).judge(goal(Vec::new()));
        assert_eq!(unknown.why.as_deref(), Some("no run gave a value"));
        assert!(!is_without_overload(&unknown));
    }

    #[test]
    fn throughput_is_lost_of_what_stock_moves_beside_no_flood() {
        let run = Run {
            counted: Counted {
                sent: 1000,
                received: 600,
            },
            broke_off: None,
            flood_pps: None,
        };
        let window = Duration::from_millis(500);
        assert!((lost(&run, window, None) - 0.4).abs() < 1e-9);
        assert!((lost(&run, window, Some(1500.0)) - 0.2).abs() < 1e-9);
        assert_eq!(lost(&run, window, Some(1000.0)), 0.0);
    }
}
