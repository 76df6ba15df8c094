//! What the modelled guard tells the core's [`Governor`], and when it asks it.
//!
//! As the guard's meter does, the CPUs' own accounts are read: receiving is
//! interrupts, software interrupts, timers of the holdoff and the polling thread.
//! The adapters count what their rings lose. Asking costs the host nothing here.

use std::time::Duration;

use plimsoll_core::config::Fraction;
use plimsoll_core::governor::{
    Company, CpuObservation, Governor, GovernorConfig, Losses, Mode, Strategy,
};
use plimsoll_core::holdoff::HoldoffRange;

use super::early_discard::part;
use crate::Error;
use crate::host::Host;
use crate::outcome::Place;
use crate::scenario::{GovernedGuardConfig, GuardStrategy};

/// What one CPU's polling did since the governor was last asked.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Polled {
    pub(super) frames: u64,
    pub(super) runs: u64,
    pub(super) run_frames_max: u32,
}

/// A CPU's books when the governor was last asked, in ns.
#[derive(Clone, Copy, Debug, Default)]
struct Books {
    network: u64,
    idle: u64,
}

/// The governor with its view of the host.
#[derive(Debug)]
pub(super) struct Governing {
    governor: Governor,
    strategy: Strategy,
    /// By CPU.
    books: Vec<Books>,
    asked: u64,
    discarded: u64,
    ring_lost: u64,
    /// Input was inhibited for some of the time since.
    pub(super) inhibited: bool,
    seen: Vec<CpuObservation>,
    tally: Tally,
}

/// For the figures: all since the warm-up.
#[derive(Clone, Copy, Debug, Default)]
struct Tally {
    from: u64,
    /// Changes of mode before.
    switches: u64,
    overload_ns: u64,
    overload_since: Option<u64>,
    /// Receiving of all CPUs, and the time they were observed.
    network: Duration,
    elapsed: Duration,
}

impl Governing {
    /// A governor for rings as long as the shortest of `host`'s.
    pub(super) fn new(host: &Host, settings: &GovernedGuardConfig) -> Result<Self, Error> {
        let rings = host.adapters.iter().flat_map(|device| &device.rings);
        let ring = rings.map(|ring| ring.packets.limit()).min().unwrap_or(0);
        let default = GovernorConfig::default();
        let share = part(settings.share_pct);
        let busy_interval = Duration::from_nanos((settings.interval_ms * 1e6) as u64);
        let holdoff = HoldoffRange {
            max: Duration::from_nanos((settings.holdoff_max_us * 1e3) as u64),
            ..default.holdoff
        };
        let strategy = match settings.strategy {
            GuardStrategy::Holdoff => Strategy::Holdoff,
            GuardStrategy::Thread => Strategy::Thread,
            GuardStrategy::Off => Strategy::Off,
        };
        let config = GovernorConfig {
            strategy,
            holdoff,
            ring_frames: ring as u32,
            cpu_limit: (share != Fraction::WHOLE).then_some(share),
            polling_limit: share,
            cpus: host.cpus.len(),
            busy_interval,
            rest_interval: default.rest_interval.max(busy_interval),
            enter_dwell: default.enter_dwell.max(busy_interval),
            leave_dwell: default.leave_dwell.max(busy_interval),
            ..default
        };
        Ok(Self {
            governor: Governor::new(config).map_err(Error::core("the governor"))?,
            strategy,
            books: vec![Books::default(); host.cpus.len()],
            asked: 0,
            discarded: 0,
            ring_lost: 0,
            inhibited: false,
            seen: Vec::with_capacity(host.cpus.len()),
            tally: Tally::default(),
        })
    }

    pub(super) fn is_overload(&self) -> bool {
        self.governor.setting().mode == Mode::Overload
    }

    /// Threads poll now.
    pub(super) fn polls_in_threads(&self) -> bool {
        self.strategy == Strategy::Thread && self.is_overload()
    }

    /// The holdoff in overload, in ns.
    pub(super) fn holdoff(&self) -> u64 {
        self.governor.setting().holdoff.as_nanos() as u64
    }

    /// Time until it is to be asked again.
    pub(super) fn interval(&self) -> Duration {
        self.governor.interval()
    }

    /// Asks; what was seen is returned, by CPU. `polled` yields what each CPU polled
    /// since, and its polling thread; `company`: whose packets these were.
    pub(super) fn ask(
        &mut self,
        host: &mut Host,
        polled: impl Iterator<Item = (Polled, usize)>,
        company: Option<Company>,
    ) -> &[CpuObservation] {
        let span = Duration::from_nanos(host.now - self.asked);
        self.asked = host.now;
        self.seen.clear();
        for (cpu, (polled, thread)) in polled.enumerate() {
            let books = books(host, cpu, thread);
            let before = std::mem::replace(&mut self.books[cpu], books);
            self.seen.push(CpuObservation {
                cpu: cpu as u32,
                elapsed: span,
                network: Duration::from_nanos(books.network - before.network),
                // Whether anybody waits is not modelled: somebody always does.
                contended: true,
                idle: Duration::from_nanos(books.idle - before.idle),
                frames: polled.frames,
                runs: polled.runs,
                run_frames_max: polled.run_frames_max,
            });
        }
        let losses = self.losses(host);
        let was = self.is_overload();
        if let Some(company) = company {
            self.governor.on_company(company);
        }
        self.governor
            .on_interval(&self.seen, losses, host.instant());
        let modes = (was, self.is_overload());
        self.tally.add(&self.seen, modes, host.now);
        &self.seen
    }

    fn losses(&mut self, host: &Host) -> Losses {
        let lost = &host.ledger.counts.lost;
        let discarded = lost[Place::EarlyDiscard as usize];
        let ring = lost[Place::Interface as usize];
        Losses {
            discarded: discarded - std::mem::replace(&mut self.discarded, discarded),
            ring: ring - std::mem::replace(&mut self.ring_lost, ring),
            // As of veth, by which the model is calibrated: a long run is a sign as well.
            is_ring_counted: false,
            inhibited: std::mem::take(&mut self.inhibited),
        }
    }

    /// See [`Path::on_measure`](super::Path::on_measure).
    pub(super) fn on_measure(&mut self, now: u64) {
        self.tally = Tally {
            from: now,
            switches: self.governor.switches(),
            overload_since: self.is_overload().then_some(now),
            ..Tally::default()
        };
    }

    /// See [`Path::figures`](super::Path::figures).
    pub(super) fn figures(&self, now: u64, list: &mut Vec<(String, f64)>) {
        let tally = self.tally;
        let changes = self.governor.switches() - tally.switches;
        let overload = tally.overload_ns + tally.overload_since.map_or(0, |since| now - since);
        let percent = |part: f64, whole: f64| part * 100.0 / whole.max(1e-9);
        let network = percent(tally.network.as_secs_f64(), tally.elapsed.as_secs_f64());
        list.push(("mode_changes".into(), changes as f64));
        list.push(("holdoff_us".into(), self.holdoff() as f64 / 1e3));
        let overload = percent(overload as f64, (now - tally.from) as f64);
        list.push(("overload_pct".into(), overload));
        list.push(("network_pct".into(), network));
        let lazy = f64::from(u8::from(self.governor.setting().is_lazy));
        list.push(("lazy".into(), lazy));
    }
}

impl Tally {
    fn add(&mut self, seen: &[CpuObservation], (was, is): (bool, bool), now: u64) {
        self.network += seen.iter().map(|cpu| cpu.network).sum();
        self.elapsed += seen.iter().map(|cpu| cpu.elapsed).sum();
        if is && !was {
            self.overload_since = Some(now);
        } else if let Some(since) = self.overload_since
            && !is
        {
            self.overload_ns += now - since;
            self.overload_since = None;
        }
    }
}

/// What receiving has used of `cpu`, whose polling thread is `thread`, and what
/// nobody has.
fn books(host: &mut Host, cpu: usize, thread: usize) -> Books {
    host.account(cpu);
    let accounts = &host.cpus[cpu].accounts;
    Books {
        network: accounts.interrupt + accounts.soft + accounts.timer + host.threads[thread].used_ns,
        idle: accounts.idle,
    }
}
