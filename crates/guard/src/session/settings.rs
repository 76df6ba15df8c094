//! What a session is told, and what of it may change while it runs.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use plimsoll_core::config::{ConfigError, Fraction};
use plimsoll_kernel::error::USED_WRONGLY;
use plimsoll_kernel::privileges::Need;
use plimsoll_kernel::scheduling::Priority;

use crate::governor::{self, Strategy};
use crate::guard::Config;
use crate::protection::Protection;

/// Who has a share of its own while input is shed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Shares {
    /// Each socket.
    #[default]
    Channel,
    /// Each process, with all its sockets.
    Process,
    /// Each control group, with all its sockets.
    ControlGroup,
}

/// Where Prometheus metrics are served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Metrics {
    /// The address to listen at.
    pub address: SocketAddr,
    /// Channels that get series of their own.
    pub channels_max: usize,
    /// The address may be one that other hosts reach.
    pub public: bool,
}

impl Metrics {
    /// Channels with series of their own, if nothing else is said.
    pub const CHANNELS_MAX_DEFAULT: usize = 100;
}

/// The settings of one session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The interface to guard, in this network namespace.
    pub interface: String,
    /// The program's settings.
    pub guard: Config,
    /// What is protected while input is shed.
    pub protection: Protection,
    /// Where known clients are kept from one guard to the next, if anywhere.
    pub known_sources_file: Option<PathBuf>,
    /// Executables whose processes' sockets are protected.
    pub protect_processes: Vec<PathBuf>,
    /// Control groups whose sockets are protected, with the groups below them: paths
    /// in the unified hierarchy.
    pub protect_control_groups: Vec<String>,
    /// Who shares equally while input is shed.
    pub shares: Shares,
    /// What is done about overload beside discarding. What is only observed is not
    /// governed, and threads asked for by `threaded` stay.
    pub strategy: Strategy,
    /// The part of each CPU's time that polling is held to in overload, and not below the guard's
    /// `cpu_limit`: then the ring overflows, whosever packets these are.
    pub polling_limit: Fraction,
    /// Lets the receive ring overflow while one socket's flood is alone.
    pub lazy: bool,
    /// Frames that a receive ring holds; `None`: the driver tells.
    pub ring_frames: Option<u32>,
    /// Poll in threads of this priority from start to exit, instead of a strategy.
    pub threaded: Option<Priority>,
    /// The only CPU that polling threads may run on.
    pub poll_cpu: Option<usize>,
    /// The directory of a control group whose share of the CPU pays for polling, with
    /// `threaded`.
    pub poll_control_group: Option<PathBuf>,
    /// Threads may poll with any driver, not only with those that were
    /// [tried](plimsoll_kernel::threaded::TRIED).
    pub any_driver: bool,
    /// Attach the program only while the host loses packets or receives more than it can take, or
    /// from start to exit. `None`: only then on a veth, where any XDP program makes calm transfers
    /// slower, unless threads are to poll from start to exit.
    pub standby: Option<bool>,
    /// After so long without any sign of that, a program that stands by is detached again.
    pub standby_quiet: Duration,
    /// Where metrics are served, if anywhere.
    pub metrics: Option<Metrics>,
    /// Time between two reports.
    pub interval: Duration,
    /// How long to guard; `None`: until asked to stop.
    pub duration: Option<Duration>,
    /// Settings of whoever runs the session, by name: a session only says that a
    /// change of theirs takes a new start.
    pub callers: BTreeMap<&'static str, String>,
}

impl Settings {
    /// The quiet after which a program that stands by is detached, if nothing else is said.
    pub const QUIET_DEFAULT: Duration = Duration::from_secs(60);
    /// Time between two reports, if nothing else is said.
    pub const INTERVAL_DEFAULT: Duration = Duration::from_secs(1);

    /// The default settings for `interface`.
    #[must_use]
    pub fn new(interface: &str) -> Self {
        let governor = governor::Config::default();
        Self {
            interface: interface.to_owned(),
            guard: Config::default(),
            protection: Protection::default(),
            known_sources_file: None,
            protect_processes: Vec::new(),
            protect_control_groups: Vec::new(),
            shares: Shares::default(),
            strategy: governor.strategy,
            polling_limit: governor.polling_limit,
            lazy: governor.lazy,
            ring_frames: governor.ring_frames,
            threaded: None,
            poll_cpu: governor.poll_cpu,
            poll_control_group: None,
            any_driver: false,
            standby: None,
            standby_quiet: Self::QUIET_DEFAULT,
            metrics: None,
            interval: Self::INTERVAL_DEFAULT,
            duration: None,
            callers: BTreeMap::new(),
        }
    }

    /// Checks that the settings fit together.
    ///
    /// # Errors
    ///
    /// Names the settings that contradict each other.
    pub fn validate(&self) -> Result<(), SettingsError> {
        let Config {
            high_watermark: high,
            low_watermark: low,
            ..
        } = self.guard;
        if low >= high {
            return Err(SettingsError::Watermarks {
                low_percent: percent(low),
                high_percent: percent(high),
            });
        }
        if self.polling_limit < self.guard.cpu_limit {
            return Err(SettingsError::PollingLimit {
                polling_percent: percent(self.polling_limit),
                cpu_percent: percent(self.guard.cpu_limit),
            });
        }
        let polls = self.threaded.is_some() || self.strategy == Strategy::Thread;
        if let (Some(cpu), false) = (self.poll_cpu, polls) {
            return Err(SettingsError::NoPollingThread { cpu });
        }
        let has_share = matches!(self.threaded, Some(Priority::Nice(_) | Priority::Short(_)));
        if let (Some(directory), false) = (&self.poll_control_group, has_share) {
            return Err(SettingsError::NoSharingThread {
                directory: directory.clone(),
            });
        }
        if self.stands_by() && self.threaded.is_some() {
            return Err(SettingsError::ThreadsStandBy);
        }
        if let Some(metrics) = &self.metrics
            && !metrics.public
            && plimsoll_metrics::is_public(metrics.address)
        {
            return Err(SettingsError::PublicMetrics {
                address: metrics.address,
            });
        }
        self.guard.validate()?;
        self.protection.validate()?;
        Ok(())
    }

    /// Whether the program stands by, once that is [decided](super::standby::decided).
    pub(super) fn stands_by(&self) -> bool {
        self.standby == Some(true)
    }

    /// Whether threads poll, or will in overload.
    pub(super) fn polls_in_threads(&self) -> bool {
        self.threaded.is_some() || self.governor().strategy == Strategy::Thread
    }

    /// What the governor is told.
    #[must_use]
    pub fn governor(&self) -> governor::Config {
        let is_fixed = self.guard.observe || self.threaded.is_some();
        governor::Config {
            strategy: if is_fixed {
                Strategy::Off
            } else {
                self.strategy
            },
            cpu_limit: Some(self.guard.cpu_limit),
            polling_limit: self.polling_limit,
            ring_frames: self.ring_frames,
            poll_cpu: self.poll_cpu,
            lazy: self.lazy,
        }
    }

    /// What the session goes on to do once it has started.
    #[must_use]
    pub fn needs(&self) -> Vec<Need> {
        let mut needs = vec![Need::Settings, Need::Scheduling, Need::LockedMemory];
        if self.looks_into_processes() {
            needs.push(Need::Owners);
        }
        needs
    }

    fn looks_into_processes(&self) -> bool {
        self.shares == Shares::Process || !self.protect_processes.is_empty()
    }

    /// Whether sockets' owners make a difference.
    pub(super) fn tells_owners_apart(&self) -> bool {
        let by_group = !self.protect_control_groups.is_empty();
        self.shares != Shares::Channel || !self.protect_processes.is_empty() || by_group
    }

    /// The settings of `new`, but for those that take a new start.
    #[must_use]
    pub fn with_changes_of(&self, new: &Self) -> Self {
        // The right to look into processes has been given up, if nobody needed it.
        let may_look = self.looks_into_processes();
        let keep_shares = new.shares == Shares::Process && !may_look;
        let processes = if may_look { new } else { self };
        let cpu = if self.threaded.is_some() { self } else { new };
        Self {
            interface: self.interface.clone(),
            shares: if keep_shares { self.shares } else { new.shares },
            protect_processes: processes.protect_processes.clone(),
            known_sources_file: self.known_sources_file.clone(),
            threaded: self.threaded,
            poll_cpu: cpu.poll_cpu,
            poll_control_group: self.poll_control_group.clone(),
            standby: self.standby,
            metrics: self.metrics.clone(),
            duration: self.duration,
            callers: self.callers.clone(),
            ..new.clone()
        }
    }

    /// Settings of `new` that are not these, by name, of those that take a new start.
    #[must_use]
    pub fn differences(&self, new: &Self) -> Vec<&'static str> {
        let channels = |settings: &Self| settings.metrics.as_ref().map(|m| m.channels_max);
        let address = |settings: &Self| settings.metrics.as_ref().map(|m| m.address);
        let public = |settings: &Self| settings.metrics.as_ref().map(|m| m.public);
        let both_serve = self.metrics.is_some() && new.metrics.is_some();
        let differ = [
            ("interface", self.interface != new.interface),
            ("shares", self.shares != new.shares),
            (
                "protect-processes",
                self.protect_processes != new.protect_processes,
            ),
            (
                "known-sources-file",
                self.known_sources_file != new.known_sources_file,
            ),
            ("threaded", self.threaded != new.threaded),
            ("poll-cpu", self.poll_cpu != new.poll_cpu),
            (
                "poll-control-group",
                self.poll_control_group != new.poll_control_group,
            ),
            ("standby", self.stands_by() != new.stands_by()),
            ("metrics", address(self) != address(new)),
            ("metrics-public", both_serve && public(self) != public(new)),
            (
                "metrics-channels",
                both_serve && channels(self) != channels(new),
            ),
            ("duration", self.duration != new.duration),
        ];
        let differ = differ.into_iter().filter(|(_, differs)| *differs);
        let names = self.callers.keys().chain(new.callers.keys());
        let mut callers: Vec<_> = names
            .copied()
            .filter(|name| self.callers.get(name) != new.callers.get(name))
            .collect();
        callers.sort_unstable();
        callers.dedup();
        differ.map(|(name, _)| name).chain(callers).collect()
    }
}

/// Settings that contradict each other or are out of range.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SettingsError {
    /// Discarding would never end, or end before it begins.
    #[error("low-watermark = {low_percent}: must be below high-watermark, which is {high_percent}")]
    Watermarks {
        /// Where discarding ends, in percent.
        low_percent: u32,
        /// Where it begins, in percent.
        high_percent: u32,
    },
    /// Polling would be held back before anything is shed.
    #[error(
        "polling-limit = {polling_percent}: must not be below cpu-limit, which is {cpu_percent}"
    )]
    PollingLimit {
        /// What polling would be held to, in percent.
        polling_percent: u32,
        /// Where shedding begins, in percent.
        cpu_percent: u32,
    },
    /// A CPU for polling threads that nothing starts.
    #[error("poll-cpu = {cpu}: no thread polls without threaded, or strategy = \"thread\"")]
    NoPollingThread {
        /// As given.
        cpu: usize,
    },
    /// A control group for threads that have no share of the CPU.
    #[error(
        "poll-control-group = {directory}: needs threaded at a nice level; a group's share of the CPU is not for real-time threads"
    )]
    NoSharingThread {
        /// As given.
        directory: PathBuf,
    },
    /// Polling threads from start to exit, of a program that comes and goes.
    #[error(
        "standby = true: not with threaded, which polls from start to exit; strategy = \"thread\" polls in threads while a flood lasts"
    )]
    ThreadsStandBy,
    /// Other hosts would reach the metrics, and nobody has said that they may.
    #[error(
        "metrics = {address}: other hosts may reach this address, and metrics name every port in use; take 127.0.0.1, or say metrics-public as well"
    )]
    PublicMetrics {
        /// As given.
        address: SocketAddr,
    },
    /// A setting by itself is out of range.
    #[error(transparent)]
    Range(#[from] ConfigError),
}

impl SettingsError {
    /// The exit code of a command that ends by it: it was used wrongly.
    #[must_use]
    pub const fn exit_code(&self) -> u8 {
        match self {
            Self::Watermarks { .. }
            | Self::PollingLimit { .. }
            | Self::NoPollingThread { .. }
            | Self::NoSharingThread { .. }
            | Self::ThreadsStandBy
            | Self::PublicMetrics { .. }
            | Self::Range(_) => USED_WRONGLY,
        }
    }

    /// The settings to look at, the one to blame first.
    #[must_use]
    pub fn settings(&self) -> Vec<&'static str> {
        match self {
            Self::Watermarks { .. } => vec!["low-watermark", "high-watermark"],
            Self::PollingLimit { .. } => vec!["polling-limit", "cpu-limit"],
            Self::NoPollingThread { .. } => vec!["poll-cpu", "strategy"],
            Self::NoSharingThread { .. } => vec!["poll-control-group", "threaded"],
            Self::ThreadsStandBy => vec!["standby", "threaded"],
            Self::PublicMetrics { .. } => vec!["metrics", "metrics-public"],
            Self::Range(error) => vec![error.field],
        }
    }
}

fn percent(fraction: Fraction) -> u32 {
    fraction.as_ppm() / 10_000
}
