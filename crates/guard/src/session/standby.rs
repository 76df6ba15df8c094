//! Standing by: the program is loaded, and attached only while the host loses packets or
//! receives more than it can take. `core::standby` decides; here is what it is told.

use std::fmt;
use std::time::{Duration, Instant};

use plimsoll_core::config::{ConfigError, Fraction};
use plimsoll_core::standby::{Config, Evidence, Order, Sign, Standby, WANTED_SHARE};
use plimsoll_core::time;
use plimsoll_kernel::counters::losses::{LossReader, Losses};
use plimsoll_kernel::error::os;
use plimsoll_kernel::link;
use plimsoll_kernel::meter::CpuReading;

use super::settings::Settings;
use crate::error::Error;
use crate::guard::Regulated;

/// Time between two readings while it stands by. A flood is to be seen soon; some files of
/// `/proc` take a tenth of a millisecond.
pub(super) const WATCHING: Duration = Duration::from_millis(100);
/// The same while attached: there the readings tell only that it is over.
const ATTACHED: Duration = Duration::from_secs(1);

/// What was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    /// Attached, for what was seen.
    Attached(Sign),
    /// Detached.
    Detached,
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Attached(sign) => write!(f, "event=attached evidence={}", sign.name()),
            Self::Detached => write!(f, "event=detached"),
        }
    }
}

/// What the decision is told, and the decision.
#[derive(Debug)]
pub(super) struct Standing {
    decision: Standby,
    losses: LossReader,
    started: Instant,
    /// All that was counted up to the reading before.
    before: Option<Counted>,
    cpus: Option<(Instant, Vec<CpuReading>)>,
    /// What CPUs and governor showed since the reading before.
    share: Option<Fraction>,
    /// The last one that was metered.
    share_seen: Fraction,
    is_wanted: bool,
    is_busy: bool,
}

#[derive(Clone, Copy, Debug)]
struct Counted {
    losses: Losses,
    judged: u64,
}

impl Standing {
    /// Where the settings ask for it. `is_attached`: a guard before has handed its link on.
    pub(super) fn start(settings: &Settings, is_attached: bool) -> Result<Option<Self>, Error> {
        let Some(config) = config(settings) else {
            return Ok(None);
        };
        let interface = &settings.interface;
        let losses = LossReader::open(interface, link::index(interface)?);
        let mut standing = Self {
            decision: Standby::new(config)?,
            losses: losses.map_err(os("read what the kernel counts"))?,
            started: Instant::now(),
            before: None,
            cpus: None,
            share: None,
            share_seen: Fraction::NONE,
            is_wanted: false,
            is_busy: false,
        };
        if is_attached {
            standing.on_attached(0);
        }
        Ok(Some(standing))
    }

    /// Takes new settings.
    pub(super) fn configure(&mut self, settings: &Settings) -> Result<(), ConfigError> {
        match config(settings) {
            Some(config) => self.decision.configure(config),
            None => Ok(()),
        }
    }

    /// Time to the next reading.
    pub(super) const fn interval(&self) -> Duration {
        if self.decision.is_attached() {
            ATTACHED
        } else {
            WATCHING
        }
    }

    /// Whether CPU time should be metered, since something may begin.
    pub(super) const fn needs_meter(&self) -> bool {
        self.decision.needs_meter()
    }

    /// Hears what the CPUs did.
    pub(super) fn on_regulated(&mut self, seen: &Regulated) {
        let now = (seen.at, seen.readings.clone());
        let before = self.cpus.replace(now);
        if let Some((at, readings)) = before.filter(|_| seen.is_metered) {
            let shares = || shares(&readings, &seen.readings, seen.at - at);
            let busiest = shares().map(|(_, share)| share).max();
            let busiest = busiest.unwrap_or(Fraction::NONE);
            self.share = self.share.max(Some(busiest));
            self.share_seen = busiest;
            self.is_wanted |=
                shares().any(|(cpu, share)| share >= WANTED_SHARE && seen.wanted.contains(&cpu));
        }
    }

    /// Part of the busiest CPU's time that receiving took when it was metered last; 0 while it is not.
    pub(super) fn network_share(&self) -> f64 {
        f64::from(self.share_seen.as_ppm()) / 1e6
    }

    /// Hears whether the governor is in overload, or input is shed.
    pub(super) fn on_governed(&mut self, is_busy: bool) {
        self.is_busy |= is_busy;
    }

    /// Takes a reading; `judged`: what the program has discarded or answered since the start.
    pub(super) fn on_reading(&mut self, judged: u64) -> Result<Order, Error> {
        let losses = self.losses.read();
        let losses = losses.map_err(os("read what the kernel counts"))?;
        let now = Counted { losses, judged };
        let before = self.before.replace(now).unwrap_or(now);
        let new = losses.since(&before.losses);
        let evidence = Evidence {
            ring: new.ring,
            backlog: new.backlog.into(),
            sockets: new.sockets,
            listeners: new.listeners,
            cookies: new.cookies,
            received: new.received,
            segments: new.segments,
            resets: new.resets,
            forwarded: new.forwarded,
            share: self.share.take(),
            is_wanted: std::mem::take(&mut self.is_wanted),
            judged: judged.saturating_sub(before.judged),
            is_busy: std::mem::take(&mut self.is_busy),
        };
        let now = self.now();
        let order = self.decision.on_reading(&evidence, now);
        if !self.decision.needs_meter() {
            self.share_seen = Fraction::NONE;
        }
        Ok(order)
    }

    /// The program was attached, having discarded or answered so many packets before.
    pub(super) fn on_attached(&mut self, judged: u64) {
        let now = self.now();
        self.decision.on_attached(now);
        self.begin(judged);
    }

    /// The same, where it was detached.
    pub(super) fn on_detached(&mut self, judged: u64) {
        let now = self.now();
        self.decision.on_detached(now);
        self.begin(judged);
    }

    /// What is lost because the program comes or goes says nothing.
    fn begin(&mut self, judged: u64) {
        let losses = self.losses.read().ok();
        self.before = losses.map(|losses| Counted { losses, judged });
        self.cpus = None;
        self.share = None;
        self.is_wanted = false;
        self.is_busy = false;
    }

    fn now(&self) -> time::Instant {
        let elapsed = self.started.elapsed().as_nanos();
        time::Instant::from_nanos(u64::try_from(elapsed).unwrap_or(u64::MAX))
    }
}

fn config(settings: &Settings) -> Option<Config> {
    settings.stands_by().then_some(Config {
        quiet: settings.standby_quiet,
        cpu_limit: settings.guard.cpu_limit,
    })
}

/// The same settings, which say whether the program stands by. The interface may have another name
/// by now.
pub(super) fn decided(settings: Settings, name: &str) -> Settings {
    let unless_given = || settings.threaded.is_none() && is_slowed(name);
    Settings {
        standby: Some(settings.standby.unwrap_or_else(unless_given)),
        ..settings
    }
}

/// While a veth has an XDP program, its other end sends it no large packets of TCP. Not to know
/// the kind is no reason to stand by.
fn is_slowed(interface: &str) -> bool {
    let ifindex = link::index(interface).ok();
    let link = ifindex.and_then(|ifindex| link::link(ifindex).ok());
    link.is_some_and(|link| link.kind.as_deref() == Some("veth"))
}

/// The part of its time that receiving took of each CPU.
fn shares<'a>(
    before: &'a [CpuReading],
    now: &'a [CpuReading],
    elapsed: Duration,
) -> impl Iterator<Item = (u32, Fraction)> + 'a {
    now.iter().filter_map(move |later| {
        let earlier = before.iter().find(|earlier| earlier.cpu == later.cpu)?;
        let network = later.since(earlier).network;
        let ppm = network.as_nanos() * 1_000_000 / elapsed.as_nanos().max(1);
        let share = Fraction::from_ppm(u32::try_from(ppm).unwrap_or(u32::MAX).min(1_000_000));
        Some((later.cpu, share))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn standing(is_attached: bool) -> Standing {
        let settings = Settings {
            standby: Some(true),
            ..Settings::new("lo")
        };
        Standing::start(&settings, is_attached).unwrap().unwrap()
    }

    /// What two CPUs have received up to then; the first one is wanted.
    fn looked(received: [Duration; 2], at: Instant) -> Regulated {
        let reading = |cpu: u32| {
            let mut reading = CpuReading::default();
            reading.cpu = cpu;
            reading.network_ns = received[cpu as usize].as_nanos() as u64;
            reading
        };
        Regulated {
            at,
            readings: vec![reading(0), reading(1)],
            wanted: vec![0],
            is_metered: true,
            ..Regulated::nothing()
        }
    }

    /// Shares of the CPU that receiving took with the program are none of those without it.
    #[test]
    fn what_was_seen_says_nothing_once_the_program_comes_or_goes() {
        for change in [Standing::on_attached, Standing::on_detached] {
            let mut standing = standing(false);
            let at = Instant::now();
            standing.on_reading(3).unwrap();
            standing.on_regulated(&looked([Duration::ZERO; 2], at));
            standing.on_regulated(&looked([MS * 90; 2], at + MS * 100));
            standing.on_governed(true);
            assert!(standing.share.is_some() && standing.is_wanted && standing.is_busy);
            change(&mut standing, 10);
            assert_eq!(standing.share, None);
            assert!(!standing.is_wanted && !standing.is_busy && standing.cpus.is_none());
            assert_eq!(standing.before.unwrap().judged, 10);
        }
    }

    #[test]
    fn the_busiest_look_between_two_readings_counts_and_only_there() {
        let mut standing = standing(false);
        let at = Instant::now();
        standing.on_regulated(&looked([Duration::ZERO; 2], at));
        standing.on_regulated(&looked([MS * 60, MS * 20], at + MS * 100));
        standing.on_regulated(&looked([MS * 61, MS * 60], at + MS * 200));
        assert_eq!(standing.share, Some(Fraction::from_percent(60)));
        assert!(standing.is_wanted);
        assert!((standing.network_share() - 0.4).abs() < 1e-9, "the last");
        standing.on_governed(true);
        standing.on_governed(false);
        assert!(standing.is_busy);
        standing.on_reading(0).unwrap();
        assert_eq!(standing.share, None);
        assert!(!standing.is_wanted && !standing.is_busy);
    }

    /// Else it would be attached once more.
    #[test]
    fn a_program_that_was_handed_on_counts_as_attached() {
        assert_eq!(standing(true).interval(), ATTACHED);
        assert_eq!(standing(false).interval(), WATCHING);
    }

    /// Receiving that took microseconds was waited for all the time by what it interrupted, on a
    /// CPU beside a full router's. So the program was attached, and cost the router a tenth.
    #[test]
    fn who_waits_for_a_cpu_that_hardly_receives_wants_nothing() {
        for (receiving, is_wanted) in [([MS / 1000, MS * 99], false), ([MS * 60, MS * 99], true)] {
            let mut standing = standing(false);
            let at = Instant::now();
            standing.on_regulated(&looked([Duration::ZERO; 2], at));
            standing.on_regulated(&looked(receiving, at + MS * 100));
            assert_eq!(standing.is_wanted, is_wanted, "{receiving:?}");
            assert_eq!(standing.share, Some(Fraction::from_percent(99)));
        }
    }
}
