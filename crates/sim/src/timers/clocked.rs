//! Rate-based clocking: a packet sent at each event of a timer.
//!
//! A soft event sends in every trigger state. A hardware timer interrupts at its own times
//! and posts a software interrupt, which sends. Where the workload runs at a raised level,
//! the software interrupt waits for the end of that interval, and what the timer posts
//! meanwhile is the same software interrupt: a packet less is sent. All of it takes time
//! from the workload, whose next trigger state comes later by as much.
//!
//! The sending handler has a [`Footprint`]: the sooner it comes again, the more of it is
//! still in the caches.
//!
//! **Limits.** Which intervals are at a raised level is drawn for each on its own. The
//! timer's own interrupt is never lost.

use fastrand::Rng;

use super::figures::Times;
use super::{States, Timer};
use crate::Error;
use crate::footprint::Footprint;
use crate::profile::{Profile, Workload};

/// What an event costs.
struct Costs {
    /// The timer's own interrupt, with an empty handler, in ns.
    interrupt: u64,
    send: Footprint,
}

impl Costs {
    fn load(profile: &Profile, timer: Timer) -> Result<Self, Error> {
        let cost = |name| profile.cost(name, "rate-based clocking");
        let (interrupt, pollution) = match timer {
            Timer::Soft => (cost("timer_event")?, 0),
            Timer::OffChip => (cost("timer_off_chip")?, cost("handler_pollution")?),
            Timer::OnChip => (cost("timer_on_chip")?, cost("handler_pollution")?),
        };
        let send = cost("pacing_send")? + pollution;
        let send = Footprint::new(send, cost("cache_turnover")?);
        Ok(Self { interrupt, send })
    }
}

/// Runs the workload with a timer; `overhead_pct` is what it loses of the CPU, and
/// `xmit_mean_us` and `xmit_stddev_us` are of the times between packets.
pub(super) fn clocked(
    profile: &Profile,
    states: States,
    workload: &Workload,
    timer: Timer,
    interval_ns: u64,
) -> Result<Vec<(String, f64)>, Error> {
    let mut run = Run {
        costs: Costs::load(profile, timer)?,
        sent: Times::new(),
        last: None,
        busy: 0,
    };
    let end = states.end as f64;
    match timer {
        Timer::Soft => run.in_trigger_states(states),
        Timer::OffChip | Timer::OnChip => {
            run.by_interrupt(states, interval_ns, workload.raised_pct / 100.0);
        }
    }
    let mut figures = run.sent.figures("xmit");
    figures.push(("overhead_pct".to_owned(), 100.0 * run.busy as f64 / end));
    Ok(figures)
}

/// What a run has come to.
struct Run {
    costs: Costs,
    sent: Times,
    last: Option<u64>,
    /// Time taken from the workload, in ns.
    busy: u64,
}

impl Run {
    /// Sends a packet at `now`; the time it takes, in ns.
    fn send(&mut self, now: u64) -> u64 {
        let away = self.last.map_or(u64::MAX, |last| now - last);
        self.sent.record_since(self.last, now);
        self.last = Some(now);
        let spent = self.costs.send.refill(away);
        self.busy += spent;
        spent
    }

    fn in_trigger_states(&mut self, mut states: States) {
        while let Some((now, own)) = states.step() {
            if own {
                self.busy += self.costs.interrupt;
                states.owed += self.costs.interrupt + self.send(now);
            }
        }
    }

    fn by_interrupt(&mut self, mut states: States, interval_ns: u64, raised: f64) {
        let mut rng: Rng = states.rng.fork();
        let mut tick = interval_ns;
        let mut begun = 0;
        while begun < states.end {
            // The workload's next interval; the backup plays no part here.
            let interval = (states.intervals.draw(&mut states.rng) * 1e3) as u64;
            let mut until = begun + interval.max(1);
            let waits = rng.f64() < raised;
            let mut posted = false;
            while tick <= until {
                self.busy += self.costs.interrupt;
                until += self.costs.interrupt;
                if waits {
                    posted = true;
                } else {
                    until += self.send(tick + self.costs.interrupt);
                }
                tick += interval_ns;
            }
            if posted {
                until += self.send(until);
            }
            begun = until;
        }
    }
}
