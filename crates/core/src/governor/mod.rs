//! When the host leaves its own interrupt settings for overload's, how long it
//! then holds off, and when it goes back.
//!
//! **Intuition.** Interrupts are best while there is little to do and worst when
//! there is too much: then receiving takes the CPU that the consumers need. So
//! the host's settings are left alone until a CPU has no time to spare *and*
//! receiving is seen to be the reason; then its input is polled after a holdoff
//! that grows as the load falls, since each polling run has a price of its own
//! and may find the ring nearly as full as it can safely be. When the load is
//! gone, the host gets its settings back.
//!
//! **Source.** Mogul & Ramakrishnan 1997, sections 5.2 and 6.4 (interrupts only
//! at light load, polling otherwise: MR-27 on the scale of a host); Macpherson &
//! Heiser 2004, sections 6.1 to 6.3 (holdoff from the load, buffers from drops:
//! MH-07, MH-14, MH-16 to MH-18). Uses [`BufferCredit`] and [`LoadTarget`](crate::holdoff::LoadTarget).
//!
//! **Holdoff.** A polling run that starts with `n` frames waiting lasts
//! `n·c / (1 − λ·c)` at rate `λ` and cost `c`. With `o` for what a run costs
//! beyond its frames, the consumers get `(1 − λ·c)·(1 − o/holdoff)` of the CPU:
//! long holdoffs are good, and the ring is their limit: it must also hold what
//! arrives while polling is delayed. Hence `holdoff = credit / λ`, where the credit, in frames,
//! starts at a part of the ring, falls when the ring overflows and recovers slowly.
//! At high rates that is so short that runs take more from the consumers than a
//! fuller ring costs others; there a holdoff that is worth its run may fill more
//! of the ring, up to a second bound that falls with the credit too.
//!
//! **Departure.** The paper's holdoff grows with the load (MH-08), since its ring
//! may overflow at no loss to others. Here bystanders share the ring, so within
//! overload the holdoff falls as the load grows; below overload there is none.
//!
//! **Never to and fro.** Overload must last ([`GovernorConfig::enter_dwell`])
//! before anything is turned. Calm must last [`GovernorConfig::leave_dwell`] if
//! the load is below half of what it was when overload began. At more than that,
//! polling may be what makes it look calm: leaving is then a probe, made after a
//! longer time that doubles with each probe that had to be taken back soon.
//!
//! **Settled.** Overload that loses nothing is looked at as rarely as calm is: see `settled`.
//!
//! **Lazy when alone.** While nobody but a flood is there, the ring may overflow: see
//! `alone`, whose holdoffs are longer than what fits.
//!
//! **Several CPUs.** The worst decides for all: overload on one is overload, calm
//! must be everywhere. Which instances are held off at all is [`Instances`]' to decide.
//!
//! **Each instance on its own terms** ([`Governor::holdoff_of`]). The ring that fills within
//! a holdoff is the instance's own, so its own rate decides. An instance that brings less
//! than the busiest is polled as rarely as its ring allows, and saves its CPU the runs. The
//! polling limit's longer holdoff is that CPU's alone (`limits`). Rings have one size: Linux sets
//! it for the whole interface. Who lost a frame is not known: every ring's credit falls. Where
//! instances have no setting of their own, all have [`Setting::holdoff`].
//!
//! **A ring that reports drops is believed.** A long run says that the ring was nearly full,
//! or that a driver answered with its whole budget for other work, such as transmissions to
//! clean up. So a run's length is a sign only of rings that have never counted a drop.
//!
//! **Another interface's load.** A CPU's network time is that of all interfaces, its
//! frames are this one's. As much as so many frames can have taken at most
//! (`FRAME_MOST`) is taken for this interface's. Else a calm interface would be held
//! off as long as its neighbour is flooded, and polling empty rings every 200 µs in
//! some threads could keep overload up by itself.
//!
//! **When it loses.** A load that changes within an interval is held off for its
//! mean; only overflows of the ring tell. A polling limit below what the load needs makes
//! the ring overflow on purpose, which is not taken for a holdoff that is too
//! long. Where a computing process leaves no CPU idle, load between the two
//! thresholds of network share keeps the mode it has.

use core::time::Duration;

use crate::charge::shedding::DISCARDED;
use crate::config::{ConfigError, Fraction};
use crate::holdoff::{BufferCredit, CreditConfig, HoldoffRange, TurnDrops};
use crate::time::{Instant, NANOS_PER_SECOND, span_nanos};

mod alone;
mod config;
mod dwell;
mod instances;
mod limits;
pub mod metering;
mod observation;
mod placement;
mod settled;
#[cfg(test)]
mod tests;

pub use alone::Company;
use alone::{Alone, Seen};
pub use config::{GovernorConfig, Strategy};
use dwell::Dwell;
pub use instances::{InstanceFrames, InstanceRate, Instances};
use limits::Limits;
pub(crate) use observation::FRAME_MOST;
pub use observation::{CpuObservation, Losses};
use observation::{load, own_network, part, rate};
pub use placement::{Place, Placement};
use settled::Settled;

/// A run that finds this part of the ring waiting has found it nearly full: the rest
/// is what a run of a holdoff that fills half of it, the most that is aimed at, may
/// be late by.
const NEARLY_FULL: Fraction = Fraction::from_percent(75);
/// Part of the highest recent rate that is kept in the next interval: a pause of an
/// interval or two must not make the holdoff so long that the ring overflows when
/// the load goes on.
const RATE_KEPT: Fraction = Fraction::from_percent(75);
/// Part of the credit that an interval with an overflow takes away, as in
/// [`CreditConfig::default`]: eleven in a row take it down to the least.
const CREDIT_DECREASE: Fraction = Fraction::from_ppm(125_000);
/// The credit falls to one part in so many of what it starts with, never lower: what
/// overflows at that holdoff overflows whatever the holdoff is.
const CREDIT_LEAST_PARTS: u32 = 4;
/// One part in so many is given back at a time: a recovery from the least takes 24
/// steps, so that a ring which overflows again loses few packets to finding out.
const CREDIT_STEP_PARTS: u32 = 32;
/// Intervals without an overflow between two such steps. A step each tenth interval
/// of 10 ms: the credit is back 2.4 s after the last overflow.
const CREDIT_BACKOFF: u32 = 9;
/// No ring makes a holdoff shorter, where the device has longer ones: it would be over before a run
/// ends.
const SHORTEST: Duration = Duration::from_micros(5);

/// How the host receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// By the host's own settings.
    Interrupts,
    /// By the strategy's.
    Overload,
}

/// Why the mode is as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// No overload, or none that lasted.
    Calm,
    /// Discarding packets early took time that a CPU did not have to spare.
    Discards,
    /// Receiving took a large part of a CPU without time to spare.
    NetworkShare,
    /// A receive ring overflowed, or was nearly full and would not tell.
    Ring,
}

/// What the host is to be set to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Setting {
    /// How to receive.
    pub mode: Mode,
    /// The holdoff in [`Mode::Overload`] where all instances have one: the busiest CPU's, or
    /// the longer one that a CPU's limit takes.
    pub holdoff: Duration,
    /// Why.
    pub reason: Reason,
    /// The ring may overflow, since nobody but the flood is there.
    pub is_lazy: bool,
}

/// The decision; see the module's documentation.
#[derive(Debug)]
pub struct Governor {
    config: GovernorConfig,
    setting: Setting,
    dwell: Dwell,
    credit: BufferCredit,
    alone: Alone,
    /// Whose packets were polled, if the caller knows.
    company: Option<Company>,
    /// Highest recent rate of a CPU, frames per second.
    rate_pps: u64,
    limits: Option<Limits>,
    /// The holdoff that lets the ring overflow, while it may.
    lazy: Option<Duration>,
    settled: Settled,
    switches: u64,
}

impl Governor {
    /// Starts with the host's own settings.
    ///
    /// # Errors
    ///
    /// The config is out of range.
    pub fn new(config: GovernorConfig) -> Result<Self, ConfigError> {
        config.validate()?;
        let credit = credit(&config)?;
        let limits = match (config.strategy, config.polling_held_to()) {
            (Strategy::Holdoff, Some(load)) => {
                Some(Limits::new(load, config.cpus, config.holdoff)?)
            }
            _ => None,
        };
        Ok(Self {
            config,
            setting: Setting {
                mode: Mode::Interrupts,
                holdoff: config.holdoff.min,
                reason: Reason::Calm,
                is_lazy: false,
            },
            dwell: Dwell::new(&config),
            credit,
            alone: Alone::new(config.ring_frames),
            company: None,
            rate_pps: 0,
            limits,
            lazy: None,
            settled: Settled::default(),
            switches: 0,
        })
    }

    /// Each ring holds so many frames from now on. What was learnt of how full it may get goes.
    ///
    /// # Errors
    ///
    /// They are too few, and it stays as it was.
    pub fn set_ring_frames(&mut self, ring_frames: u32) -> Result<(), ConfigError> {
        let config = GovernorConfig {
            ring_frames,
            ..self.config
        };
        config.validate()?;
        self.credit = credit(&config)?;
        self.alone = Alone::new(ring_frames);
        self.config = config;
        Ok(())
    }

    /// What the host is to be set to now.
    #[must_use]
    pub fn setting(&self) -> Setting {
        self.setting
    }

    /// The holdoff of one instance in [`Mode::Overload`]: as long as its ring has room, and
    /// longer for its CPU's limit, or while rings may overflow.
    #[must_use]
    pub fn holdoff_of(&self, instance: &InstanceRate) -> Duration {
        // When all the load has fallen, what one brought before does not come back to it.
        let fitting = self.fitting(instance.rate_pps.min(self.rate_pps));
        let limits = self.limits.as_ref();
        let limited = limits.and_then(|limits| limits.of(instance.cpu));
        let needed = limited.unwrap_or_default();
        fitting.max(needed).max(self.lazy.unwrap_or_default())
    }

    /// How often the mode has changed.
    #[must_use]
    pub fn switches(&self) -> u64 {
        self.switches
    }

    /// Time until the next observation.
    #[must_use]
    pub fn interval(&self) -> Duration {
        if self.is_strained() {
            self.config.busy_interval
        } else {
            self.config.rest_interval
        }
    }

    /// Whether overload is suspected, or lasts and is not settled: all CPU time matters then.
    #[must_use]
    pub fn is_strained(&self) -> bool {
        match self.setting.mode {
            Mode::Interrupts => self.dwell.is_pending(),
            Mode::Overload => !self.settled.is_settled(),
        }
    }

    /// Hears whose packets were polled in the interval that ends now, before it is
    /// observed. Who never tells has a governor that never lets the ring overflow.
    pub fn on_company(&mut self, company: Company) {
        self.company = Some(company);
    }

    /// Takes an observation of all CPUs that receive, and says what the host is
    /// to be set to.
    pub fn on_interval(
        &mut self,
        cpus: &[CpuObservation],
        losses: Losses,
        now: Instant,
    ) -> Setting {
        self.decide(cpus, losses, true, now)
    }

    /// The same for an interval whose CPU time nobody metered: all of it seems idle. Overload
    /// does not end by it.
    pub fn on_unmetered(
        &mut self,
        cpus: &[CpuObservation],
        losses: Losses,
        now: Instant,
    ) -> Setting {
        self.decide(cpus, losses, false, now)
    }

    fn decide(
        &mut self,
        cpus: &[CpuObservation],
        losses: Losses,
        is_metered: bool,
        now: Instant,
    ) -> Setting {
        if self.config.strategy == Strategy::Off {
            return self.setting;
        }
        let rate_pps = cpus.iter().map(|cpu| rate(cpu, losses.ring)).max();
        let polled_pps = rate_pps.unwrap_or(0);
        let rate_pps = self.alone.arriving(polled_pps);
        // Up at once, down slowly.
        self.rate_pps = rate_pps.max(RATE_KEPT.of(self.rate_pps));
        let reason = self.overload(cpus, losses);
        let before = self.setting.mode;
        self.setting.mode = match before {
            Mode::Interrupts if self.dwell.enters(reason != Reason::Calm, rate_pps, now) => {
                Mode::Overload
            }
            Mode::Overload
                if is_metered && self.dwell.leaves(self.is_calm(cpus, losses), rate_pps, now) =>
            {
                Mode::Interrupts
            }
            mode => mode,
        };
        if before != self.setting.mode {
            self.switches += 1;
            self.setting.reason = reason;
        } else if reason != Reason::Calm && before == Mode::Overload {
            self.setting.reason = reason;
        }
        let is_polled = self.setting.mode == Mode::Overload;
        match &mut self.limits {
            Some(limits) if is_polled && is_metered => limits.on_interval(cpus),
            Some(limits) => limits.pause(),
            None => {}
        }
        self.set_holdoff(losses, before);
        if is_metered {
            self.be_lazy(cpus, losses, polled_pps, now);
            let loads = cpus.iter().map(load);
            self.settled.on_loads(loads, self.config.cpu_limit);
        }
        let is_carried = self.carries(reason, cpus, losses);
        self.settled.on_interval(is_carried, now);
        self.setting
    }

    /// Overload lasts, and nothing of what came was lost or might have been.
    fn carries(&self, reason: Reason, cpus: &[CpuObservation], losses: Losses) -> bool {
        self.setting.mode == Mode::Overload
            && !self.setting.is_lazy
            && reason != Reason::Ring
            && !cpus.iter().any(|cpu| self.discards_cost(cpu, losses))
    }

    /// Lengthens the holdoff while the ring may overflow.
    fn be_lazy(&mut self, cpus: &[CpuObservation], losses: Losses, rate_pps: u64, now: Instant) {
        let company = self.company.take();
        if self.setting.mode == Mode::Interrupts {
            self.alone.end();
            self.setting.is_lazy = false;
            return;
        }
        let busiest = cpus.iter().max_by_key(|cpu| cpu.network);
        let seen = Seen {
            company,
            rate_pps,
            recent_pps: self.rate_pps,
            load: busiest.map_or(Fraction::NONE, load),
            elapsed: busiest.map_or(Duration::ZERO, |cpu| cpu.elapsed),
            discards_matter: self.discards_matter(cpus, losses),
        };
        self.lazy = self.alone.on_interval(&seen, now);
        self.setting.holdoff = self.setting.holdoff.max(self.lazy.unwrap_or_default());
        self.setting.is_lazy = self.alone.is_lazy();
    }

    /// The sign of overload, or [`Reason::Calm`].
    fn overload(&self, cpus: &[CpuObservation], losses: Losses) -> Reason {
        let ring = u64::from(self.config.ring_frames);
        let full = NEARLY_FULL.of(ring);
        let nearly_full =
            |cpu: &CpuObservation| !losses.is_ring_counted && u64::from(cpu.run_frames_max) >= full;
        if losses.ring > 0 || cpus.iter().any(nearly_full) {
            return Reason::Ring;
        }
        let mut busy = cpus.iter().filter(|cpu| self.is_busy(cpu));
        if busy.any(|cpu| own_network(cpu) > part(self.config.overload_share, cpu.elapsed)) {
            return Reason::NetworkShare;
        }
        if self.discards_matter(cpus, losses) {
            return Reason::Discards;
        }
        Reason::Calm
    }

    /// No ring overflows, and no CPU lacks time because of receiving or discarding.
    fn is_calm(&self, cpus: &[CpuObservation], losses: Losses) -> bool {
        let strained = |cpu: &CpuObservation| {
            self.is_busy(cpu) && own_network(cpu) > part(self.config.calm_share, cpu.elapsed)
        };
        losses.ring == 0 && !self.discards_matter(cpus, losses) && !cpus.iter().any(strained)
    }

    /// Discarding takes time that a CPU does not have to spare. Any of the discarded
    /// packets might have been on any CPU.
    fn discards_matter(&self, cpus: &[CpuObservation], losses: Losses) -> bool {
        let matters = |cpu: &CpuObservation| self.is_busy(cpu) && self.discards_cost(cpu, losses);
        cpus.iter().any(matters)
    }

    /// Discarding took time that would matter to a CPU without any to spare.
    fn discards_cost(&self, cpu: &CpuObservation, losses: Losses) -> bool {
        let spent_ns = losses.discarded.saturating_mul(span_nanos(DISCARDED));
        let share = part(self.config.discard_share, cpu.elapsed);
        spent_ns > span_nanos(share)
    }

    /// The CPU has no time to spare.
    fn is_busy(&self, cpu: &CpuObservation) -> bool {
        !cpu.elapsed.is_zero() && cpu.idle < part(self.config.idle_low, cpu.elapsed)
    }

    /// To the one that fits, or to the longer one that the polling limit takes.
    fn set_holdoff(&mut self, losses: Losses, before: Mode) {
        self.lazy = None;
        if self.setting.mode == Mode::Interrupts {
            return;
        }
        let is_meant = losses.inhibited || self.setting.is_lazy;
        // What the ring lost before was not this holdoff's doing.
        if before == Mode::Overload {
            self.credit.on_turn(TurnDrops {
                packets: 0,
                dropped: if is_meant { 0 } else { losses.ring },
                cpu_was_idle: false,
            });
        }
        let fitting = self.fitting(self.rate_pps);
        let limited = self.limits.as_ref().and_then(Limits::longest);
        self.setting.holdoff = fitting.max(limited.unwrap_or_default());
    }

    /// The holdoff that a ring has room for to which `rate_pps` come.
    fn fitting(&self, rate_pps: u64) -> Duration {
        let HoldoffRange { min, max, .. } = self.config.holdoff;
        let rate_pps = rate_pps.max(1);
        let holdoff = |frames| Duration::from_nanos(frames * NANOS_PER_SECOND / rate_pps);
        let most = u64::from(self.credit.credit());
        let (part, whole) = (self.config.fill.as_ppm(), self.config.fill_max.as_ppm());
        let easy = most * u64::from(part) / u64::from(whole);
        let wanted = holdoff(easy).max(min).min(holdoff(most));
        wanted.max(SHORTEST).min(max)
    }
}

/// How full a ring may get, as far as nothing was lost yet.
fn credit(config: &GovernorConfig) -> Result<BufferCredit, ConfigError> {
    let ring = u64::from(config.ring_frames);
    let fill = u32::try_from(config.fill_max.of(ring)).unwrap_or(u32::MAX);
    let fill = fill.max(1);
    BufferCredit::new(&CreditConfig {
        min: (fill / CREDIT_LEAST_PARTS).max(1),
        max: fill,
        decrease: CREDIT_DECREASE,
        increase: (fill / CREDIT_STEP_PARTS).max(1),
        backoff: CREDIT_BACKOFF,
        tolerated_loss: Fraction::NONE,
        tolerance_window: 1,
    })
}
