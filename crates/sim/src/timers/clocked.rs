//! Rate-based clocking: a packet sent at each event of a timer, if one waits.
//!
//! A soft event sends in every trigger state. A hardware timer interrupts at its own times
//! and posts a software interrupt, which sends. Where the workload runs at a raised level,
//! the software interrupt waits for the end of that interval, and what the timer posts
//! meanwhile is the same software interrupt: a packet less is sent. All of it takes time
//! from the workload, whose next trigger state comes later by as much.
//!
//! What waits are the packets of the workload's answers: those of a request wait together
//! once its trigger states have passed ([`Waiting`]). So a faster server sends more of them
//! per second, and an event that finds none costs no more than itself.
//!
//! The sending handler has a [`Footprint`]: the sooner it comes again, the more of it is
//! still in the caches.
//!
//! **Limits.** Which intervals are at a raised level is drawn for each on its own. The
//! timer's own interrupt is never lost. No request waits until the packets of others are
//! sent, however many wait.

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
    /// To get to the software interrupt that sends, which a hardware timer posts.
    dispatch: u64,
    send: Footprint,
}

impl Costs {
    fn load(profile: &Profile, timer: Timer) -> Result<Self, Error> {
        let cost = |name| profile.cost(name, "rate-based clocking");
        let interrupt = match timer {
            Timer::Soft => cost("timer_event")?,
            Timer::OffChip => cost("timer_off_chip")?,
            Timer::OnChip => cost("timer_on_chip")?,
        };
        let (dispatch, pollution) = match timer {
            Timer::Soft => (0, 0),
            Timer::OffChip | Timer::OnChip => (cost("soft_dispatch")?, cost("handler_pollution")?),
        };
        let send = cost("pacing_send")? + pollution;
        let send = Footprint::new(send, cost("cache_turnover")?);
        Ok(Self {
            interrupt,
            dispatch,
            send,
        })
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
    waiting: Waiting,
) -> Result<Vec<(String, f64)>, Error> {
    let mut run = Run {
        costs: Costs::load(profile, timer)?,
        waiting,
        sent: Times::new(),
        last: None,
        behind: false,
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

/// The packets that wait to be sent.
pub(super) struct Waiting {
    /// Of each request, on average; none: a packet always waits.
    of_each: Option<f64>,
    /// Trigger states of a request, and how many of the current one's have passed.
    states: u32,
    passed: u32,
    packets: f64,
}

impl Waiting {
    pub(super) fn new(workload: &Workload, always: bool) -> Result<Self, Error> {
        let (each, states) = (workload.sent_per_request, workload.per_request);
        if !always && (states == 0 || !(1.0..1e6).contains(&each)) {
            let allowed = "true, since the workload's requests send nothing";
            return Err(Error::scenario("purpose.backlogged", always, allowed));
        }
        Ok(Self {
            of_each: (!always).then_some(each),
            states,
            passed: 0,
            packets: 0.0,
        })
    }

    /// The workload has passed a trigger state.
    fn on_state(&mut self) {
        if let Some(each) = self.of_each {
            self.passed += 1;
            if self.passed == self.states {
                self.passed = 0;
                self.packets += each;
            }
        }
    }

    fn any(&self) -> bool {
        self.of_each.is_none() || self.packets >= 1.0
    }

    /// Takes a packet, if one waits.
    fn take(&mut self) -> bool {
        let any = self.any();
        if any && self.of_each.is_some() {
            self.packets -= 1.0;
        }
        any
    }
}

/// What a run has come to.
struct Run {
    costs: Costs,
    waiting: Waiting,
    /// Times between packets of which the later one waited while the former left.
    sent: Times,
    last: Option<u64>,
    /// When the last one left, another one waited.
    behind: bool,
    /// Time taken from the workload, in ns.
    busy: u64,
}

impl Run {
    /// Sends a packet at `now`, if one waits; the time it takes, in ns.
    fn send(&mut self, now: u64) -> u64 {
        if !self.waiting.take() {
            return 0;
        }
        let away = self.last.map_or(u64::MAX, |last| now - last);
        if self.behind {
            self.sent.record_since(self.last, now);
        }
        self.behind = self.waiting.any();
        self.last = Some(now);
        let spent = self.costs.dispatch + self.costs.send.refill(away);
        self.busy += spent;
        spent
    }

    fn in_trigger_states(&mut self, mut states: States) {
        while let Some((now, own)) = states.step() {
            if own {
                self.waiting.on_state();
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
            while tick <= until && tick < states.end {
                self.busy += self.costs.interrupt;
                until += self.costs.interrupt;
                if waits {
                    posted = true;
                } else {
                    until += self.send(tick + self.costs.interrupt);
                }
                tick += interval_ns;
            }
            self.waiting.on_state();
            if posted {
                until += self.send(until);
            }
            begun = until;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::timers::{Purpose, Timers, run};

    /// Packets sent, and the part of the CPU that they take, in percent.
    fn soft(name: &str, sent_per_request: f64, backlogged: bool) -> (f64, f64) {
        let mut profile = Profile::named("pentium3-500").unwrap();
        for workload in &mut profile.workload {
            workload.sent_per_request = sent_per_request;
        }
        let timers = Timers {
            workload: name.to_owned(),
            seconds: 5.0,
            purpose: Purpose::Clocked {
                timer: Timer::Soft,
                interval_us: 20.0,
                backlogged,
            },
            backup_hz: 1000,
        };
        let figures = run(&profile, &timers, 1).unwrap();
        let of = |name: &str| figures.iter().find(|(known, _)| known == name).unwrap().1;
        (of("xmit_mean_us"), of("overhead_pct"))
    }

    /// The same packets per answer weigh the more, the less an answer takes otherwise. A packet
    /// was sent in every trigger state, which weighs the same on any server.
    #[test]
    fn a_faster_server_loses_more_to_the_packets_of_its_answers() {
        let (_, apache) = soft("ST-Apache", 11.5, false);
        let (_, flash) = soft("ST-Flash", 11.5, false);
        // An answer takes them 768 and 433 us; a packet costs both about the same.
        assert!((1.5..1.8).contains(&(flash / apache)), "{flash} {apache}");
        let (_, half) = soft("ST-Flash", 5.75, false);
        assert!((1.8..2.1).contains(&(flash / half)), "{flash} {half}");
    }

    /// What passes between the packets of two answers is no time between packets that wait.
    #[test]
    fn times_are_between_packets_that_wait_together() {
        let (some, _) = soft("ST-Apache", 5.0, false);
        let (all, _) = soft("ST-Apache", 0.0, true);
        assert!((some / all - 1.0).abs() < 0.1, "{some} {all}");
    }

    /// The part of the CPU that clocking takes, in percent, with the 8253 and dispatches of so
    /// many ns.
    fn off_chip(dispatch_ns: u64, interval_us: f64, backlogged: bool) -> f64 {
        let mut profile = Profile::named("pentium2-300").unwrap();
        profile.costs.get_mut("soft_dispatch").unwrap().ns = dispatch_ns;
        let timers = Timers {
            workload: "ST-Apache".to_owned(),
            seconds: 5.0,
            purpose: Purpose::Clocked {
                timer: Timer::OffChip,
                interval_us,
                backlogged,
            },
            backup_hz: 1000,
        };
        let figures = run(&profile, &timers, 1).unwrap();
        let overhead = figures.iter().find(|(name, _)| name == "overhead_pct");
        overhead.unwrap().1
    }

    /// A hardware timer's packets pay for getting to the software interrupt that sends them
    /// (section 5.5): once for each, of which a request has 11.5.
    #[test]
    fn a_packet_of_a_hardware_timer_pays_for_its_software_interrupt() {
        let busy = |dispatch_ns| 1.0 / (1.0 - off_chip(dispatch_ns, 40.0, false) / 100.0);
        // Time of a request without clocking, 41 intervals, and with 10 µs more for each packet;
        // what is longer has more interrupts of 4.45 µs in it.
        let more = (busy(10_000) - busy(0)) * 41.0 * 31.52 * (1.0 - 4.45 / 40.0);
        assert!((more / 115.0 - 1.0).abs() < 0.1, "{more}");
    }

    /// A flow without end whose packets take longer than the timer's interval leaves the
    /// workload nothing. It had the model run for ever.
    #[test]
    fn packets_that_take_longer_than_the_interval_end_with_the_run() {
        assert!(off_chip(20_000, 10.0, true) > 90.0);
    }

    #[test]
    fn a_workload_that_answers_nothing_is_refused() {
        let profile = Profile::named("pentium3-500").unwrap();
        let workload = Workload {
            sent_per_request: 0.0,
            ..profile.workload[0].clone()
        };
        let refusal = Waiting::new(&workload, false).err().unwrap().to_string();
        assert!(refusal.contains("backlogged"), "{refusal}");
        assert!(Waiting::new(&workload, true).is_ok());
    }
}
