//! A round trip between two hosts and what one driver's variants change in it
//! (Tracey & Banerji, section 4).
//!
//! Each host writes a packet and reads one. On the write path everything the
//! driver does delays the packet. On the read path a process waits for data: what
//! the driver does before they arrive costs nothing, so that only the second of
//! the two level changes counts. Watchdog and protection are those of the core.
//!
//! **Limits.** Costs are constant: the least latency is modelled, not its
//! distribution, nor the second round trip's warmer path.

use std::time::Duration;

use plimsoll_core::driver::{
    Expiry, Interrupt, LazyWatchdog, Leave, ProtectedSection, TimerCommand, WatchdogConfig,
};
use plimsoll_core::time::Instant;
use serde::{Deserialize, Serialize};

use crate::Error;
use crate::profile::Profile;

/// A series of round trips with one variant of the driver.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RoundTrips {
    /// How many. Default 5120.
    #[serde(default = "trials")]
    pub trials: u32,
    /// Time from one to the next. Default 500 ms.
    #[serde(default = "pause_ms")]
    pub pause_ms: f64,
    /// What guards data shared with the interrupt handler on the write path.
    #[serde(default)]
    pub write: Guarding,
    /// The same on the read path.
    #[serde(default)]
    pub read: Guarding,
    /// How the transmit watchdog is handled.
    #[serde(default)]
    pub watchdog: Watchdog,
    /// A segment register is reserved for the adapter, instead of attaching its
    /// memory for each packet. Default false.
    #[serde(default)]
    pub reserved_segment: bool,
}

/// What guards data shared with the interrupt handler.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Guarding {
    /// The interrupt level is raised and lowered.
    #[default]
    Levels,
    /// A flag is set and tested.
    Flags,
}

/// How the transmit watchdog is handled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Watchdog {
    /// Its timer is started with each packet and stopped with its completion.
    #[default]
    Eager,
    /// It is checked whether that is needed.
    Lazy,
}

fn trials() -> u32 {
    5120
}

fn pause_ms() -> f64 {
    500.0
}

/// Runs them. The figures are `round_trip_us`, and of the watchdog timer of one
/// host `timer_commands` in all and `timer_gap_s` between two.
///
/// # Errors
///
/// The profile lacks a cost, or a value makes no sense.
pub fn run(profile: &Profile, trips: &RoundTrips) -> Result<Vec<(String, f64)>, Error> {
    if trips.trials == 0 || !(0.001..=1e6).contains(&trips.pause_ms) {
        let given = format!("{} trials, {} ms apart", trips.trials, trips.pause_ms);
        return Err(Error::scenario(
            "trials",
            given,
            "at least 1, pause_ms 0.001 to 1e6",
        ));
    }
    let costs = Costs::new(profile)?;
    let mut driver = Driver::new(trips)?;
    let (mut total_ns, mut now) = (0, Instant::ZERO);
    for _ in 0..trips.trials {
        // Both hosts do the same: one is run, and counts twice.
        total_ns += costs.rest + 2 * driver.pass(&costs, now);
        now += Duration::from_secs_f64(trips.pause_ms / 1e3);
    }
    let seconds = f64::from(trips.trials) * trips.pause_ms / 1e3;
    let commands = driver.commands as f64;
    Ok(vec![
        (
            "round_trip_us".to_owned(),
            total_ns as f64 / f64::from(trips.trials) / 1e3,
        ),
        ("timer_commands".to_owned(), commands),
        ("timer_gap_s".to_owned(), seconds / commands.max(1.0)),
    ])
}

struct Costs {
    rest: u64,
    level: u64,
    flag: u64,
    timer_set: u64,
    timer_check: u64,
    segment: u64,
}

impl Costs {
    fn new(profile: &Profile) -> Result<Self, Error> {
        let cost = |name| profile.cost(name, "a round trip");
        Ok(Self {
            rest: cost("round_trip_rest")?,
            level: cost("level_change")?,
            flag: cost("flag_change")?,
            timer_set: cost("watchdog_set")?,
            timer_check: cost("watchdog_check")?,
            segment: cost("segment_attach")?,
        })
    }
}

/// One host's driver.
struct Driver<'a> {
    trips: &'a RoundTrips,
    section: ProtectedSection,
    watchdog: LazyWatchdog,
    deadline: Option<Instant>,
    commands: u64,
}

impl<'a> Driver<'a> {
    fn new(trips: &'a RoundTrips) -> Result<Self, Error> {
        let watchdog = LazyWatchdog::new(&WatchdogConfig::default());
        Ok(Self {
            trips,
            section: ProtectedSection::new(),
            watchdog: watchdog.map_err(Error::core("watchdog"))?,
            deadline: None,
            commands: 0,
        })
    }

    /// One packet written and one read: the time this adds to a round trip, in ns.
    fn pass(&mut self, costs: &Costs, now: Instant) -> u64 {
        let write = self.guard(self.trips.write, costs);
        let read = self.guard(self.trips.read, costs) / 2;
        let segments = if self.trips.reserved_segment {
            0
        } else {
            2 * costs.segment
        };
        write + read + segments + self.watch(costs, now)
    }

    /// Entering and leaving the data shared with the interrupt handler, with the
    /// handler coming in between for the packet's completion.
    fn guard(&self, guarding: Guarding, costs: &Costs) -> u64 {
        if guarding == Guarding::Levels {
            return 2 * costs.level;
        }
        let mut changes = 1;
        if let Some(section) = self.section.try_enter() {
            let mut leave = section.leave();
            while let Leave::Replay(section) = leave {
                leave = section.leave();
                changes += 1;
            }
            changes += 1;
        }
        if let Interrupt::Entered(section) = self.section.on_interrupt() {
            // Off the packet's way: it costs the round trip nothing.
            drop(section);
        }
        changes * costs.flag
    }

    /// The watchdog's part: a packet is sent and its completion comes.
    fn watch(&mut self, costs: &Costs, now: Instant) -> u64 {
        if self.trips.watchdog == Watchdog::Eager {
            self.commands += 2;
            return 2 * costs.timer_set;
        }
        if self.deadline.is_some_and(|deadline| deadline <= now)
            && let Expiry::TooEarly(again) = self.watchdog.on_expiry(now)
        {
            self.deadline = Some(again);
        }
        let first = self.watchdog.on_transmit(now);
        let then = self
            .watchdog
            .on_completion(1, now + Duration::from_micros(500));
        let set = self.command(first) + self.command(then);
        2 * costs.timer_check + set * costs.timer_set
    }

    fn command(&mut self, command: TimerCommand) -> u64 {
        match command {
            TimerCommand::Leave => return 0,
            TimerCommand::Start(deadline) => self.deadline = Some(deadline),
            TimerCommand::Stop => self.deadline = None,
        }
        self.commands += 1;
        1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figures(trips: &RoundTrips) -> [f64; 3] {
        let profile = Profile::named("rs6000-530").unwrap();
        let figures = run(&profile, trips).unwrap();
        [figures[0].1, figures[1].1, figures[2].1]
    }

    fn original() -> RoundTrips {
        toml::from_str("").unwrap()
    }

    /// Shows TB-06 by what guards the data that the halves share: both hosts' processes pay
    /// for it, on the write path for both changes, on the read path for the second.
    #[test]
    fn each_removed_operation_makes_the_round_trip_shorter() {
        let original = original();
        let write = RoundTrips {
            write: Guarding::Flags,
            ..original
        };
        let both = RoundTrips {
            read: Guarding::Flags,
            ..write
        };
        let segment = RoundTrips {
            reserved_segment: true,
            ..both
        };
        let trips = [original, write, both, segment];
        let latencies = trips.map(|trips| figures(&trips)[0] * 1e3);
        let profile = Profile::named("rs6000-530").unwrap();
        let cost = |name: &str| profile.costs[name].ns as f64;
        let change = cost("level_change") - cost("flag_change");
        let gains = [4.0 * change, 2.0 * change, 4.0 * cost("segment_attach")];
        for (pair, gain) in latencies.windows(2).zip(gains) {
            assert!((pair[0] - pair[1] - gain).abs() < 1.0, "{latencies:?} ns");
        }
    }

    #[test]
    fn the_lazy_watchdog_sets_its_timer_once_in_seconds() {
        let lazy = RoundTrips {
            watchdog: Watchdog::Lazy,
            ..original()
        };
        assert_eq!(figures(&original())[1], 2.0 * 5120.0);
        assert!(figures(&lazy)[2] > 1.0, "{:?}", figures(&lazy));
    }

    #[test]
    fn nonsense_is_refused() {
        let none = RoundTrips {
            trials: 0,
            ..original()
        };
        assert!(run(&Profile::named("rs6000-530").unwrap(), &none).is_err());
    }
}
