//! Timer facilities beside a workload (Aron & Druschel, Soft Timers).
//!
//! A workload passes trigger states at times drawn from the published distribution
//! of the machine's profile; a periodic interrupt is one more. What fires when is
//! decided by the core's soft timers and pacer, as it would be on a real host.
//!
//! **Limits.** Only clocking slows the workload down; what deadlines cost is computed from
//! their number. A deadline that passes where the workload is at a raised level waits for the
//! end of that interval; which ones are is drawn for each on its own, as in `clocked`.
//! Caches, which the paper names as the other part of a timer's cost, are one footprint, of an
//! event's handler.

mod clocked;
mod figures;

use std::time::Duration;

use fastrand::Rng;
use plimsoll_core::pacing::{CatchUp, FlowRates, Pacer, PacerConfig, Rate};
use plimsoll_core::soft_timer::{SoftTimerConfig, SoftTimers};
use plimsoll_core::time::Instant;
use serde::{Deserialize, Serialize};

use clocked::{Waiting, clocked};
use figures::{Times, Windows};

use crate::Error;
use crate::intervals::Intervals;
use crate::profile::{Profile, Workload};

/// Length of a full-size packet.
const PACKET_BYTES: u32 = 1500;

/// A run of a workload with timers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Timers {
    /// Name of one of the profile's workloads.
    pub workload: String,
    /// Length of the run in virtual time.
    pub seconds: f64,
    /// What the timers are for.
    pub purpose: Purpose,
    /// Rate of the interrupt that backs soft timers up. Default 1000.
    #[serde(default = "backup_hz")]
    pub backup_hz: u32,
}

/// What the timers are for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Purpose {
    /// Nothing: only the trigger states are watched.
    Watch {
        /// Trigger states of this source do not count.
        #[serde(default)]
        without: Option<String>,
    },
    /// One soft event at a time, this long after the one before has fired.
    Events {
        /// The time asked for; whole µs, which are the ticks.
        delay_us: f64,
    },
    /// Rate-based clocking of one flow of full-size packets.
    Pacing {
        /// The interval to be kept on average.
        target_us: f64,
        /// The least interval while catching up.
        burst_us: f64,
    },
    /// A soft event in every trigger state, backed by an on-chip timer.
    Deadlines {
        /// Time past the scheduled one at which the hardware steps in.
        deadline_us: f64,
    },
    /// At each event of a timer a packet is sent, if one waits: rate-based clocking by a
    /// hardware timer, or with a soft event in every trigger state.
    Clocked {
        /// Which timer.
        timer: Timer,
        /// Interval of a hardware timer; not used by soft timers.
        #[serde(default = "interval_us")]
        interval_us: f64,
        /// A packet always waits, as in a flow without end. Default: those of the
        /// workload's answers do.
        #[serde(default)]
        backlogged: bool,
    },
}

/// A kind of timer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Timer {
    /// On another chip, such as the 8253.
    OffChip,
    /// On the processor, such as the APIC's.
    OnChip,
    /// Checked in trigger states.
    Soft,
}

fn backup_hz() -> u32 {
    1000
}

fn interval_us() -> f64 {
    20.0
}

/// Runs it and gives its figures by name. The last part of a name is its unit.
///
/// - always `interval_<mean|median|stddev|max>_us` between trigger states,
///   `above_100us_pct`, `above_150us_pct`, `trigger_states`, and of the medians
///   over windows of 1 and 10 ms `window_<1|10>ms_<p5|p95>_us` and
///   `window_1ms_above_40us_pct`;
/// - of events `delay_<mean|median|min|max>_us` past the time asked for, the least below 0 if
///   one came before it;
/// - of pacing `xmit_mean_us`, `xmit_stddev_us`;
/// - of deadlines and clocking `overhead_pct` of the CPU; of deadlines
///   `hardware_pct`, the events that needed the hardware.
///
/// # Errors
///
/// The profile lacks the workload or a cost, or a value makes no sense.
pub fn run(profile: &Profile, timers: &Timers, seed: u64) -> Result<Vec<(String, f64)>, Error> {
    timers.validate()?;
    let workload = timers.workload(profile)?;
    let states = States::new(timers, workload, seed)?;
    match &timers.purpose {
        Purpose::Watch { .. } => Ok(watch_windows(states)),
        Purpose::Events { delay_us } => events(timers, states, *delay_us),
        Purpose::Pacing {
            target_us,
            burst_us,
        } => pacing(timers, states, *target_us, *burst_us),
        Purpose::Deadlines { deadline_us } => {
            deadlines(profile, timers, states, workload, *deadline_us)
        }
        Purpose::Clocked {
            timer,
            interval_us,
            backlogged,
        } => {
            let interval_ns = (interval_us * 1e3) as u64;
            let waiting = Waiting::new(workload, *backlogged)?;
            clocked(profile, states, workload, *timer, interval_ns, waiting)
        }
    }
}

impl Timers {
    fn validate(&self) -> Result<(), Error> {
        let positive = |field: &str, given: f64, most: f64| {
            if given > 0.0 && given <= most {
                return Ok(());
            }
            Err(Error::scenario(
                field,
                given,
                format!("above 0, at most {most}"),
            ))
        };
        positive("seconds", self.seconds, 1e5)?;
        positive("backup_hz", f64::from(self.backup_hz), 1e6)?;
        match &self.purpose {
            Purpose::Watch { .. } => Ok(()),
            Purpose::Events { delay_us } => positive("purpose.delay_us", *delay_us, 1e6),
            Purpose::Deadlines { deadline_us } => {
                positive("purpose.deadline_us", *deadline_us, 1e6)
            }
            Purpose::Clocked { interval_us, .. } => {
                positive("purpose.interval_us", *interval_us, 1e6)
            }
            Purpose::Pacing {
                target_us,
                burst_us,
            } => {
                positive("purpose.target_us", *target_us, 1e6)?;
                positive("purpose.burst_us", *burst_us, *target_us)
            }
        }
    }

    fn workload<'a>(&self, profile: &'a Profile) -> Result<&'a Workload, Error> {
        let mut all = profile.workload.iter();
        all.find(|workload| workload.name == self.workload)
            .ok_or_else(|| {
                let names = profile
                    .workload
                    .iter()
                    .map(|workload| workload.name.as_str());
                let names = names.collect::<Vec<_>>().join(", ");
                Error::scenario("workload", &self.workload, format!("one of {names}"))
            })
    }

    fn ticks(&self) -> SoftTimerConfig {
        SoftTimerConfig {
            interrupt_clock_resolution_hz: self.backup_hz.into(),
            ..SoftTimerConfig::default()
        }
    }
}

/// The trigger states of a run, in order of time.
struct States {
    intervals: Intervals,
    rng: Rng,
    /// Which states count is drawn apart, so that leaving some out moves no other.
    kept_rng: Rng,
    now: u64,
    /// Of the workload's own next state.
    next: u64,
    backup_ns: u64,
    end: u64,
    /// The part of the states that counts.
    kept: f64,
    /// By what the workload's next interval is longer: others took the CPU.
    owed: u64,
}

impl States {
    fn new(timers: &Timers, workload: &Workload, seed: u64) -> Result<Self, Error> {
        let without = match &timers.purpose {
            Purpose::Watch { without } => without.as_ref(),
            _ => None,
        };
        let kept = match without {
            None => 1.0,
            Some(source) => {
                let part = workload.sources.get(source).ok_or_else(|| {
                    let known: Vec<&str> = workload.sources.keys().map(String::as_str).collect();
                    let allowed = format!("one of {}", known.join(", "));
                    Error::scenario("purpose.without", source, allowed)
                })?;
                1.0 - part / 100.0
            }
        };
        let mut rng = Rng::with_seed(seed);
        let kept_rng = rng.fork();
        Ok(Self {
            intervals: Intervals::new(workload)?,
            rng,
            kept_rng,
            now: 0,
            next: 0,
            backup_ns: 1_000_000_000 / u64::from(timers.backup_hz),
            end: (timers.seconds * 1e9) as u64,
            kept,
            owed: 0,
        })
    }

    /// The next moment at which soft timers are checked, and whether it is a
    /// trigger state of the workload rather than the backup; nothing at the end.
    fn step(&mut self) -> Option<(u64, bool)> {
        while self.next <= self.now {
            let interval = (self.intervals.draw(&mut self.rng) * 1e3) as u64;
            self.next += interval.max(1) + std::mem::take(&mut self.owed);
            while self.next < self.end && self.kept < 1.0 && self.kept_rng.f64() >= self.kept {
                let interval = (self.intervals.draw(&mut self.rng) * 1e3) as u64;
                self.next += interval.max(1);
            }
        }
        let backup = (self.now / self.backup_ns + 1) * self.backup_ns;
        self.now = self.next.min(backup);
        (self.now < self.end).then_some((self.now, self.now == self.next))
    }
}

/// Passes all states and returns what the intervals were, as a whole and in windows.
fn watch_windows(states: States) -> Vec<(String, f64)> {
    let mut windows = [Windows::new(1_000_000), Windows::new(10_000_000)];
    let mut figures = watch(states, |now, interval| {
        if let Some(interval) = interval {
            for window in &mut windows {
                window.record(now, interval);
            }
        }
    });
    for (window, name) in windows.iter().zip(["window_1ms", "window_10ms"]) {
        figures.push((format!("{name}_p5_us"), window.medians.percentile(5.0)));
        figures.push((format!("{name}_p95_us"), window.medians.percentile(95.0)));
        figures.push((
            format!("{name}_above_40us_pct"),
            window.medians.above(40_000),
        ));
    }
    figures
}

/// Passes all states, tells `each` the time and the interval since the last one of
/// the workload, and returns what the intervals were.
fn watch(mut states: States, mut each: impl FnMut(u64, Option<u64>)) -> Vec<(String, f64)> {
    let mut intervals = Times::new();
    let mut last = 0;
    while let Some((now, own)) = states.step() {
        each(now, own.then(|| now - last));
        if own {
            intervals.record(now - last);
            last = now;
        }
    }
    let mut figures = intervals.figures("interval");
    figures.push(("above_100us_pct".to_owned(), intervals.above(100_000)));
    figures.push(("above_150us_pct".to_owned(), intervals.above(150_000)));
    figures.push(("trigger_states".to_owned(), intervals.count() as f64));
    figures
}

fn events(timers: &Timers, states: States, delay_us: f64) -> Result<Vec<(String, f64)>, Error> {
    let mut soft = SoftTimers::new(timers.ticks()).map_err(Error::core("soft timers"))?;
    let ticks = delay_us as u64;
    let mut delays = Times::new();
    let mut asked: Option<Instant> = None;
    let mut figures = watch(states, |now, _| {
        let now = Instant::from_nanos(now);
        if soft.poll_event(now).is_some()
            && let Some(asked) = asked.take()
        {
            let due = asked + Duration::from_micros(ticks);
            let late = now.as_nanos().cast_signed() - due.as_nanos().cast_signed();
            delays.record_signed(late);
        }
        if soft.pending() == 0 && soft.schedule_soft_event(now, ticks, ()).is_ok() {
            asked = Some(now);
        }
    });
    figures.extend(delays.figures("delay"));
    Ok(figures)
}

fn pacing(
    timers: &Timers,
    states: States,
    target_us: f64,
    burst_us: f64,
) -> Result<Vec<(String, f64)>, Error> {
    let mut pacer = Pacer::new(PacerConfig {
        flows: 1,
        timers: timers.ticks(),
        // The paper's rule, since its tables are the test.
        catch_up: CatchUp::TwoIntervals,
        ..PacerConfig::default()
    })
    .map_err(Error::core("pacing"))?;
    let rate =
        |us: f64| Rate::from_interval(PACKET_BYTES.into(), Duration::from_secs_f64(us / 1e6));
    let rates = FlowRates {
        target: rate(target_us),
        burst: rate(burst_us),
    };
    let flow = pacer.add_flow(rates);
    let flow = flow.map_err(|error| Error::scenario("purpose", target_us, error.to_string()))?;
    let mut sent = Times::new();
    let mut last = None;
    let mut started = false;
    let mut figures = watch(states, |now, _| {
        let time = Instant::from_nanos(now);
        if !started {
            started = pacer.on_backlog(time, flow).is_ok();
        }
        while let Some(flow) = pacer.poll_departure(time) {
            sent.record_since(last.replace(now), now);
            // The flow exists as long as the pacer does.
            let _ = pacer.on_sent(time, flow, PACKET_BYTES, true);
        }
    });
    figures.extend(sent.figures("xmit"));
    Ok(figures)
}

fn deadlines(
    profile: &Profile,
    timers: &Timers,
    mut states: States,
    workload: &Workload,
    deadline_us: f64,
) -> Result<Vec<(String, f64)>, Error> {
    let user = "timers with deadlines";
    let arm_ns = profile.cost("timer_arm", user)? as f64;
    let interrupt_ns = profile.cost("timer_on_chip", user)? as f64;
    let end = states.end as f64;
    let mut soft = SoftTimers::new(timers.ticks()).map_err(Error::core("soft timers"))?;
    let slack = deadline_us as u32;
    let (mut fired, mut hardware, mut armed) = (0_u64, 0_u64, 0_u64);
    let mut level_rng = states.rng.fork();
    let raised = workload.raised_pct / 100.0;
    let mut waits = level_rng.f64() < raised;
    let mut figures = watch(states, |now, interval| {
        // Deadlines that passed before this trigger state came. At a raised level they wait
        // for it, and its check comes first.
        while !waits && let Some(deadline) = soft.next_deadline().filter(|at| at.as_nanos() < now) {
            soft.on_hardware_expiry();
            while soft.poll_event(deadline).is_some() {
                fired += 1;
                hardware += 1;
            }
            armed += u64::from(soft.schedule_with_deadline(deadline, 0, slack, ()).is_ok());
        }
        if interval.is_some() {
            waits = level_rng.f64() < raised;
        }
        let now = Instant::from_nanos(now);
        while soft.poll_event(now).is_some() {
            fired += 1;
        }
        if soft.pending() == 0 {
            armed += u64::from(soft.schedule_with_deadline(now, 0, slack, ()).is_ok());
        }
    });
    let busy_ns = armed as f64 * arm_ns + hardware as f64 * interrupt_ns;
    let part = 100.0 * hardware as f64 / fired.max(1) as f64;
    figures.push(("hardware_pct".to_owned(), part));
    figures.push(("overhead_pct".to_owned(), 100.0 * busy_ns / end));
    Ok(figures)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figures(purpose: Purpose) -> impl Fn(&str) -> f64 {
        let profile = Profile::named("pentium2-300").unwrap();
        let timers = Timers {
            workload: "ST-Apache".to_owned(),
            seconds: 20.0,
            purpose,
            backup_hz: 1000,
        };
        let figures = run(&profile, &timers, 1).unwrap();
        move |name| figures.iter().find(|(known, _)| known == name).unwrap().1
    }

    /// Shows ST-15 where trigger states come: with the backup alone the mean of a uniform
    /// distribution would be 500 µs.
    #[test]
    fn no_event_fires_before_its_time_or_after_the_backups_bound() {
        for delay_us in [1.0, 7.0, 500.0] {
            let of = figures(Purpose::Events { delay_us });
            assert!(of("delay_min_us") > 0.0);
            // X + 1 = 1001 ticks; the histogram rounds to three digits.
            assert!(of("delay_max_us") < 1002.0);
            let (median, mean) = (of("delay_median_us"), of("delay_mean_us"));
            assert!(median < mean && mean < 100.0, "{median} {mean}");
        }
    }

    #[test]
    fn pacing_keeps_its_target_while_trigger_states_are_dense_enough() {
        let of = figures(Purpose::Pacing {
            target_us: 200.0,
            burst_us: 12.0,
        });
        assert!((of("xmit_mean_us") / 200.0 - 1.0).abs() < 0.01);
    }

    /// A deadline that passes while the workload is at a raised level does not interrupt: the
    /// trigger state at the end of that interval runs the event. All deadlines interrupted.
    #[test]
    fn at_a_raised_level_a_deadline_waits_for_the_trigger_state() {
        let timers = Timers {
            workload: "ST-Flash".to_owned(),
            seconds: 2.0,
            purpose: Purpose::Deadlines { deadline_us: 10.0 },
            backup_hz: 1000,
        };
        let hardware = |raised_pct: f64| {
            let mut profile = Profile::named("pentium3-500").unwrap();
            for workload in &mut profile.workload {
                workload.raised_pct = raised_pct;
            }
            let figures = run(&profile, &timers, 1).unwrap();
            let of = |name: &str| figures.iter().find(|(known, _)| known == name).unwrap().1;
            // Beside each other event, for those that the timer fires come in addition.
            let part = of("hardware_pct");
            part / (100.0 - part)
        };
        let (never, half, always) = (hardware(0.0), hardware(50.0), hardware(100.0));
        assert!((half / never - 0.5).abs() < 0.02, "{half} of {never}");
        assert!(always == 0.0, "{always}");
    }

    #[test]
    fn with_fewer_sources_trigger_states_are_farther_apart() {
        let all = figures(Purpose::Watch { without: None })("interval_mean_us");
        let without = Some("syscalls".to_owned());
        let fewer = figures(Purpose::Watch { without })("interval_mean_us");
        // 47.7 percent of the states are system calls.
        assert!(
            (fewer / all - 1.0 / (1.0 - 0.477)).abs() < 0.05,
            "{all} {fewer}"
        );
    }

    /// Where all of them are left out, the next one was looked for without end.
    #[test]
    fn without_any_source_a_run_ends() {
        let mut profile = Profile::named("pentium2-300").unwrap();
        for workload in &mut profile.workload {
            workload.sources.insert("syscalls".to_owned(), 100.0);
        }
        let timers = Timers {
            workload: "ST-Apache".to_owned(),
            seconds: 1.0,
            purpose: Purpose::Watch {
                without: Some("syscalls".to_owned()),
            },
            backup_hz: 1000,
        };
        let figures = run(&profile, &timers, 1).unwrap();
        let states = figures.iter().find(|(name, _)| name == "trigger_states");
        assert_eq!(states.unwrap().1, 0.0);
    }

    #[test]
    fn nonsense_is_refused_by_name() {
        let profile = Profile::named("pentium2-300").unwrap();
        let mut timers = Timers {
            workload: "ST-None".to_owned(),
            seconds: 1.0,
            purpose: Purpose::Events { delay_us: 0.0 },
            backup_hz: 1000,
        };
        let refusal = |timers: &Timers| run(&profile, timers, 1).unwrap_err().to_string();
        assert!(refusal(&timers).contains("delay_us"));
        timers.purpose = Purpose::Watch { without: None };
        assert!(refusal(&timers).contains("ST-Apache"));
    }
}
