//! An event every so many microseconds in a saturated web server (Aron & Druschel's tables
//! I to III, and with deadlines table XIII).

use std::time::Duration;

use plimsoll_lab::Figures;
use plimsoll_testbed::periodic::{By, Work};

use super::settings::{EventsTrial, Means, Trial};
use super::{Offer, RealPackets, of_kind};
use crate::Error;
use crate::timers::{EventKind, Plan, measure_events};

/// Signals that come more often may leave the server no time at all.
const SIGNAL_LEAST_US: u64 = 50;

impl EventsTrial {
    fn is_measured(&self) -> bool {
        self.by != Means::Signal || self.every_us >= SIGNAL_LEAST_US
    }

    fn kind(&self) -> EventKind {
        let by = match self.by {
            Means::Soft => By::Soft,
            Means::SoftEach => By::SoftEach,
            Means::Deadline => By::SoftWithin {
                slack: Duration::from_micros(self.slack_us),
            },
            Means::TimerFd => By::TimerFd,
            Means::Signal => By::Signal,
        };
        let work = match self.lines {
            true => Work::Lines,
            false => Work::Empty,
        };
        EventKind::new("point", by, self.every_us, work)
    }

    /// What its slices are compared with.
    fn beside(&self) -> EventKind {
        let by = match self.by {
            Means::Deadline => By::Soft,
            _ => By::Nothing,
        };
        EventKind::new("beside", by, self.every_us, Work::Empty)
    }
}

/// All points of a curve take turns under one client.
pub(super) fn run(real: &RealPackets, trials: &[(Trial, Offer)]) -> Result<Vec<Figures>, Error> {
    let points = of_kind(trials, |trial| match trial {
        Trial::Events(trial) => Some(trial),
        _ => None,
    });
    let Some((first, offer)) = points.first() else {
        return Ok(Vec::new());
    };
    let plan = Plan {
        runs: 1,
        // The client counts in whole seconds.
        seconds: offer.window.as_secs().max(3) as u32,
        ..Plan::new(real.program.clone())
    };
    let run = points.iter().filter(|(trial, _)| trial.is_measured());
    let kinds: Vec<EventKind> = run.map(|(trial, _)| trial.kind()).collect();
    let measured = measure_events(&plan, &first.beside(), &kinds, |_| {})?;
    let mut cases = measured.cases.iter();
    let figures = points.iter().map(|(trial, offer)| {
        let case = trial.is_measured().then(|| cases.next()).flatten();
        let Some(case) = case else {
            return offer.figures(0.0, 0.0, []);
        };
        let one = |values: &[f64]| values.first().copied();
        let given = [
            ("lost_pct", one(&case.slowdown_percent)),
            ("events_hz", one(&case.events_per_s)),
            ("hardware_pct", one(&case.by_kernel_percent)),
            ("event_us", one(&case.event_ns).map(|ns| ns / 1000.0)),
            ("slept_part", one(&measured.slept)),
            ("http_hz", one(&measured.requests_per_s)),
        ];
        let given = given.map(|(name, value)| value.map(|value| (name, value)));
        offer.figures(0.0, 0.0, given.into_iter().flatten())
    });
    Ok(figures.collect())
}
