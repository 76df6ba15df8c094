//! The governor's hands: turns what [`plimsoll_core::governor`] decides into the
//! host's settings, and back.
//!
//! Light load: nothing is touched. Overload, by strategy: an adaptive holdoff in
//! interrupt context (`holdoff`), or polling threads before every process with the
//! same holdoff (`thread`). Every setting goes through [`Knobs`], so it is on
//! disk before it is turned. The instances that bring much are held off, each as long as the
//! core says of it. Polling threads poll all instances, with one holdoff.
//!
//! Limits: ring losses are known only of adapters that count them
//! (`rx_missed_errors` and its kin; veth does not). Of one that has counted none since it
//! was set up, nobody knows whether it would: the frames of a polling run tell how full its
//! ring got. A single polling thread is pinned to the
//! CPU that received most; several are left where the scheduler has them.

mod instances;

pub use plimsoll_core::governor::Strategy;

use std::borrow::Cow;
use std::time::{Duration, Instant};

use plimsoll_core::config::Fraction;
use plimsoll_core::governor::{
    Company, CpuObservation, Governor as Decision, GovernorConfig, Losses, Mode, Reason, Setting,
};
use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::guard::Regulated;
use instances::{HeldOff, Holdoffs};
use plimsoll_kernel::counters::interfaces::Interfaces;
use plimsoll_kernel::counters::losses::ring_statistics;
use plimsoll_kernel::knobs::{Knobs, PollingThread, Queues, Statistic};
use plimsoll_kernel::meter::{CpuReading, InstanceReading};
use plimsoll_kernel::polling_limit::{Limited, Observation, PollingLimit, REAL_TIME_MOST};
use plimsoll_kernel::scheduling::{Class, Priority};
use plimsoll_kernel::threaded::poll_in_threads;
use plimsoll_kernel::{ethtool, link};

/// A driver makes its instances anew now and then (link down and up, another ring
/// size), rarely enough to be looked for once in this time.
const LOOK_INTERVAL: Duration = Duration::from_millis(500);
/// A NAPI instance and its polling thread, by number.
type Instance = (u32, Option<i32>);

/// Settings of the governor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// What is done about overload. Default: an adaptive holdoff.
    pub strategy: Strategy,
    /// The part of each CPU's time that receiving may take, if any.
    pub cpu_limit: Option<Fraction>,
    /// The part that polling is held to where there is a CPU limit, and not below that; see
    /// [`GovernorConfig::polling_limit`].
    pub polling_limit: Fraction,
    /// Frames that the receive ring holds; asked of the driver if not given, and
    /// 256 where it does not tell.
    pub ring_frames: Option<u32>,
    /// The only CPU that polling threads may run on. Default: see the module.
    pub poll_cpu: Option<usize>,
    /// Lets the ring overflow while one socket's flood is alone, where the ring's size is
    /// known. Default: yes.
    pub lazy: bool,
}

impl Default for Config {
    fn default() -> Self {
        let core = GovernorConfig::default();
        Self {
            strategy: core.strategy,
            cpu_limit: core.cpu_limit,
            polling_limit: core.polling_limit,
            ring_frames: None,
            poll_cpu: None,
            lazy: true,
        }
    }
}

/// What the governor does now, for reports.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// `interrupts` or `overload`.
    pub mode: Cow<'static, str>,
    /// Why: `calm`, `discards`, `network_share` or `ring`; `alone` while the ring may
    /// overflow, since nobody but a flood is there.
    pub reason: Cow<'static, str>,
    /// The holdoff in overload, in microseconds, of the receive instance that brings most; 0:
    /// the host's own.
    pub holdoff_us: f64,
    /// Part of the busiest CPU's time that receiving took, from 0 to 1.
    pub network_share: f64,
    /// Changes of the mode since the start.
    pub switches: u64,
}

/// What was read before, and the frames that the ring had lost.
#[derive(Debug)]
struct Before {
    regulated: Regulated,
    lost: u64,
}

/// The governor of one interface.
#[derive(Debug)]
pub struct Governor {
    config: Config,
    decision: Decision,
    /// Changes of the mode before the present settings.
    switches_before: u64,
    ifindex: u32,
    /// Frames that the receive ring holds, as the driver tells.
    told_frames: Option<u32>,
    is_veth: bool,
    started: Instant,
    before: Option<Before>,
    /// What counts frames that the ring did not hold.
    statistics: Vec<Statistic>,
    applied: Option<Holdoffs>,
    /// What it was applied to, and when that was last looked at.
    instances: Vec<Instance>,
    looked_at: Instant,
    /// What instances have brought, if the caller knows.
    brought: Vec<InstanceReading>,
    held_off: HeldOff,
    limiter: Option<PollingLimit>,
    network_share: f64,
}

impl Governor {
    /// A governor that has touched nothing yet.
    ///
    /// # Errors
    ///
    /// No such interface, or a setting is out of range.
    pub fn new(interface: &str, config: Config) -> Result<Self, Error> {
        let ifindex = link::index(interface)?;
        let told = ethtool::receive_ring(ifindex).ok().flatten();
        let told_frames = told_frames(told);
        Ok(Self {
            config,
            decision: Decision::new(core_config(&config, told_frames))?,
            switches_before: 0,
            ifindex,
            told_frames,
            is_veth: Interfaces::read(ifindex).is_ok_and(|found| found.is_veth()),
            started: Instant::now(),
            before: None,
            statistics: ring_statistics(interface, ifindex),
            applied: None,
            instances: Vec::new(),
            looked_at: Instant::now(),
            brought: Vec::new(),
            held_off: HeldOff::default(),
            limiter: None,
            network_share: 0.0,
        })
    }

    /// Changes the settings. What was turned by the old ones is put back first.
    ///
    /// # Errors
    ///
    /// A setting is out of range, and the old ones stay.
    pub fn configure(&mut self, config: Config, knobs: &mut Knobs) -> Result<(), Error> {
        if config == self.config {
            return Ok(());
        }
        let decision = Decision::new(core_config(&config, self.told_frames))?;
        self.switches_before += self.decision.switches();
        self.decision = decision;
        self.config = config;
        // What the kernel refuses is tried again at the next interval, and told then.
        let _ = self.release(knobs);
        Ok(())
    }

    #[cfg(test)]
    pub(crate) const fn config(&self) -> &Config {
        &self.config
    }

    /// Begins anew, as if nothing had been seen. What is turned is for the caller to
    /// restore.
    ///
    /// # Errors
    ///
    /// None, as long as the settings are those that were validated.
    pub fn begin_again(&mut self) -> Result<(), Error> {
        let decision = Decision::new(core_config(&self.config, self.told_frames))?;
        self.switches_before += self.decision.switches();
        self.decision = decision;
        self.before = None;
        // Ends first: it must not demote a thread that is the host's own again.
        self.limiter = None;
        self.applied = None;
        Ok(())
    }

    /// Call once a second: asks the driver for the ring's size, which `ethtool -G` may have changed.
    /// What the driver does not tell for a moment stays as it was.
    pub fn look_at_ring(&mut self) {
        if let Ok(told) = ethtool::receive_ring(self.ifindex) {
            self.on_ring(told);
        }
    }

    /// The driver tells this of the ring.
    fn on_ring(&mut self, told: Option<(u32, u32)>) {
        let before = std::mem::replace(&mut self.told_frames, told_frames(told));
        if before != self.told_frames && self.config.ring_frames.is_none() {
            let ring_frames = core_config(&self.config, self.told_frames).ring_frames;
            // What could be refused is not told.
            let _ = self.decision.set_ring_frames(ring_frames);
        }
    }

    /// Time until [`Governor::on_interval`] is due again, where load has just risen or not.
    #[must_use]
    pub fn interval(&self, is_alarmed: bool) -> Duration {
        if is_alarmed {
            GovernorConfig::default().busy_interval
        } else {
            self.decision.interval()
        }
    }

    /// Whether overload is suspected, or lasts and may lose something.
    #[must_use]
    pub fn is_strained(&self) -> bool {
        self.decision.is_strained()
    }

    /// Whether it holds the host in overload.
    #[must_use]
    pub fn is_overload(&self) -> bool {
        self.decision.setting().mode == Mode::Overload
    }

    /// Whether it wants to hear whose packets came, before it is asked.
    #[must_use]
    pub fn asks_for_company(&self) -> bool {
        let is_known = self.is_veth || self.told_frames.or(self.config.ring_frames).is_some();
        self.config.lazy && is_known && self.decision.setting().mode == Mode::Overload
    }

    /// Whose packets came in the interval that ends now.
    pub fn on_company(&mut self, company: Company) {
        self.decision.on_company(company);
    }

    /// What each instance has brought since the start, before it is asked. Who never tells
    /// has a governor that holds all of them off.
    pub(crate) fn on_instances(&mut self, brought: Vec<InstanceReading>) {
        self.brought = brought;
    }

    /// What it does now.
    #[must_use]
    pub fn status(&self) -> Status {
        let setting = self.decision.setting();
        let overload = setting.mode == Mode::Overload;
        let mode = if overload { "overload" } else { "interrupts" };
        let reason = match setting.reason {
            _ if setting.is_lazy => "alone",
            Reason::Calm => "calm",
            Reason::Discards => "discards",
            Reason::NetworkShare => "network_share",
            Reason::Ring => "ring",
        };
        Status {
            mode: mode.into(),
            reason: reason.into(),
            holdoff_us: if overload {
                let are_own = self.applied.as_ref().is_some_and(Holdoffs::are_own);
                let busiest = self.held_off.busiest(&self.decision);
                let holdoff = busiest.filter(|_| are_own);
                holdoff.unwrap_or(setting.holdoff).as_secs_f64() * 1e6
            } else {
                0.0
            },
            network_share: self.network_share,
            switches: self.switches_before + self.decision.switches(),
        }
    }

    /// Takes what was regulated, decides, and turns the settings.
    ///
    /// # Errors
    ///
    /// The kernel refuses a setting; what was turned is restored with `knobs`.
    pub fn on_interval(&mut self, regulated: &Regulated, knobs: &mut Knobs) -> Result<(), Error> {
        let lost = self.ring_losses();
        let now = Before {
            regulated: regulated.clone(),
            lost,
        };
        let Some(before) = self.before.replace(now) else {
            return Ok(());
        };
        let cpus = observations(&before.regulated, regulated);
        if regulated.is_metered {
            self.network_share = cpus.iter().map(share).fold(0.0, f64::max);
        }
        if let Some(limiter) = &self.limiter {
            limiter.beat();
        }
        let losses = Losses {
            inhibited: self.limiter.as_mut().is_some_and(PollingLimit::inhibited),
            ..losses(
                (before.regulated.discarded, before.lost),
                (regulated.discarded, lost),
            )
        };
        let elapsed = regulated.at.saturating_duration_since(self.started);
        let nanos = u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX);
        let time = plimsoll_core::time::Instant::from_nanos(nanos);
        let setting = match regulated.is_metered {
            true => self.decision.on_interval(&cpus, losses, time),
            false => self.decision.on_unmetered(&cpus, losses, time),
        };
        let brought = std::mem::take(&mut self.brought);
        self.held_off
            .on_interval(setting.mode, &brought, losses.ring, regulated.at);
        self.apply(setting, &regulated.readings, knobs)?;
        if regulated.is_metered
            && let (Some(limiter), Some(cpu)) =
                (&self.limiter, cpus.iter().max_by_key(|c| c.network))
        {
            limiter.on_observation(&Observation {
                elapsed: cpu.elapsed,
                network: cpu.network,
                is_wanted: cpu.contended,
            });
        }
        Ok(())
    }

    fn apply(
        &mut self,
        setting: Setting,
        readings: &[CpuReading],
        knobs: &mut Knobs,
    ) -> Result<(), Error> {
        if setting.mode == Mode::Interrupts {
            return self.release(knobs);
        }
        if self.applied.is_some() && self.are_renewed(knobs)? {
            // Their threads are gone, and settings are the driver's again.
            self.limiter = None;
            self.applied = None;
        }
        let is_new = self.applied.is_none();
        let wanted = match self.config.strategy {
            Strategy::Thread => Holdoffs::of_all(setting.holdoff),
            Strategy::Holdoff | Strategy::Off => {
                self.held_off.holdoffs(setting.holdoff, &self.decision)
            }
        };
        let mut applied = self.applied.clone().unwrap_or_default();
        applied.turn(wanted, knobs)?;
        self.applied = Some(applied);
        if is_new && self.config.strategy == Strategy::Thread {
            self.poll_in_threads(readings, knobs)?;
        }
        if is_new {
            self.instances = instances(knobs)?;
            self.looked_at = Instant::now();
        }
        Ok(())
    }

    /// Whether there are other instances than those that were set. None at all is
    /// an interface that is down: it has others when it is up again.
    fn are_renewed(&mut self, knobs: &mut Knobs) -> Result<bool, Error> {
        if self.looked_at.elapsed() < LOOK_INTERVAL {
            return Ok(false);
        }
        self.looked_at = Instant::now();
        let now = instances(knobs)?;
        Ok(!now.is_empty() && now != self.instances)
    }

    /// Puts back what is turned.
    fn release(&mut self, knobs: &mut Knobs) -> Result<(), Error> {
        if self.applied.is_some() {
            // Ends first: it must not demote a thread that is the host's own again.
            self.limiter = None;
            knobs.restore()?;
            // Not before: what failed is tried again.
            self.applied = None;
        }
        Ok(())
    }

    fn poll_in_threads(&mut self, readings: &[CpuReading], knobs: &mut Knobs) -> Result<(), Error> {
        let receiving = readings.iter().max_by_key(|reading| reading.frames);
        let queues = knobs.instances()?.len();
        let cpu = self.config.poll_cpu.or_else(|| {
            receiving
                .filter(|_| queues <= 1)
                .map(|reading| reading.cpu as usize)
        });
        let cpus = cpu.as_ref().map(std::slice::from_ref);
        let threads = poll_in_threads(knobs, Queues::All, Priority::RealTime, cpus)?;
        if let Some(limit) = threads_limit(&self.config) {
            let limited = |thread: &PollingThread| Limited {
                tid: thread.tid,
                class: Class::Polling,
            };
            let groups = threads.iter().map(|thread| vec![limited(thread)]);
            let limiter = PollingLimit::start(limit, groups.collect())?;
            limiter.beat();
            self.limiter = Some(limiter);
        }
        Ok(())
    }

    fn ring_losses(&self) -> u64 {
        let counts = self.statistics.iter().map(Statistic::read);
        counts.filter_map(Result::ok).sum()
    }
}

fn instances(knobs: &mut Knobs) -> Result<Vec<Instance>, Error> {
    let instances = knobs.instances()?.into_iter();
    Ok(instances.map(|napi| (napi.id, napi.thread)).collect())
}

/// What polling threads are held to: they are real-time ones.
fn threads_limit(config: &Config) -> Option<Fraction> {
    let cpu_limit = config.cpu_limit.filter(|limit| *limit != Fraction::WHOLE)?;
    Some(config.polling_limit.min(REAL_TIME_MOST).max(cpu_limit))
}

/// Frames that a ring holds, as the driver tells (which also tells the most); `None` where they are
/// fewer than a ring of use has.
fn told_frames(told: Option<(u32, u32)>) -> Option<u32> {
    let frames = told.map(|(frames, _)| frames);
    frames.filter(|frames| *frames >= GovernorConfig::RING_FRAMES_MIN)
}

/// What is decided by: `told_frames` are the ring's, as the driver says.
fn core_config(config: &Config, told_frames: Option<u32>) -> GovernorConfig {
    let default = GovernorConfig::default();
    GovernorConfig {
        strategy: config.strategy,
        cpu_limit: config.cpu_limit.filter(|limit| *limit != Fraction::WHOLE),
        polling_limit: config.polling_limit,
        ring_frames: config
            .ring_frames
            .or(told_frames)
            .unwrap_or(default.ring_frames),
        cpus: libbpf_rs::num_possible_cpus().unwrap_or(default.cpus),
        ..default
    }
}

/// What was discarded and lost between two readings. A ring that has ever counted a lost
/// frame would have counted these: who made the driver says nothing about it.
fn losses((discarded_before, lost_before): (u64, u64), (discarded, lost): (u64, u64)) -> Losses {
    Losses {
        discarded: discarded.saturating_sub(discarded_before),
        ring: lost.saturating_sub(lost_before),
        is_ring_counted: lost > 0,
        inhibited: false,
    }
}

/// What the CPUs that receive did between two readings. A CPU that booked less than
/// passed had nothing to do in the rest: time that is not metered counts as idle.
fn observations(before: &Regulated, now: &Regulated) -> Vec<CpuObservation> {
    let elapsed = now.at - before.at;
    let observe = |later: &CpuReading| {
        let of_cpu = |earlier: &&CpuReading| earlier.cpu == later.cpu;
        let earlier = before.readings.iter().find(of_cpu)?;
        let time = later.since(earlier);
        let frames = later.frames.saturating_sub(earlier.frames);
        (frames > 0 || !time.network.is_zero()).then_some(CpuObservation {
            cpu: later.cpu,
            elapsed,
            network: time.network,
            contended: now.wanted.contains(&later.cpu),
            idle: elapsed.saturating_sub(time.app + time.network + time.other),
            frames,
            runs: later.runs.saturating_sub(earlier.runs),
            run_frames_max: later.run_frames_max,
        })
    };
    now.readings.iter().filter_map(observe).collect()
}

fn share(cpu: &CpuObservation) -> f64 {
    cpu.network.as_secs_f64() / cpu.elapsed.as_secs_f64().max(f64::MIN_POSITIVE)
}

#[cfg(test)]
mod tests;
