//! Settings of `plimsoll guard`: options of the command line, and by the same
//! names settings of the file (`config_file`).
//!
//! Each is defined, checked and documented here and nowhere else. The first
//! paragraph about a setting is its effect, the one that begins with `Cost:` its price; all are
//! in `--help`, the man page and the file of the package.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use ipnet::IpNet;
use plimsoll_core::config::Fraction;
use plimsoll_core::governor::GovernorConfig;
use plimsoll_guard::session::{self, Metrics, Settings};
use plimsoll_guard::{Config, ProtectedPort, Protection, governor, parse_port};
use plimsoll_kernel::scheduling::Priority;

use crate::metrics::MetricsArgs;
use crate::polling::{DriverArgs, parse_cpu};
use crate::prefix::parse_prefix;

/// Discard early what a full socket could not take; servers need no change.
///
/// Attaches to IFACE until Ctrl-C and shows its counters once a second; on a veth it
/// attaches only while the host loses packets (`--standby`). The attachment ends with the
/// process, also if that is killed. Only a restart by systemd hands it to the next guard.
#[derive(clap::Args, Clone, Debug, PartialEq, Eq)]
// clap_derive leaves a struct's group empty where another struct is flattened into it, and
// then takes the whole for absent (`Option<Args>` in `guard`).
#[group(args = ["interface"])]
#[command(
    args_override_self = true,
    after_help = "Needs root, Linux 6.2 or newer with BTF, and a driver with native XDP.\n\
                        Example: sudo plimsoll guard eth0"
)]
pub(crate) struct Args {
    /// Interface to guard, in this network namespace
    #[arg(value_name = "IFACE")]
    pub(super) interface: String,
    /// Discard for a UDP socket whose receive buffer is this full, in percent
    ///
    /// Only if it was full a moment ago: else it takes all that fits. With `fairness` by sources,
    /// those that have not had their share find room halfway on to its end.
    ///
    /// Cost: lower wastes buffer and loses bursts; above 90, packets on their way may still be
    /// lost at the socket.
    #[arg(long, value_name = "PERCENT", default_value_t = percent(Config::default().high_watermark), value_parser = clap::value_parser!(u32).range(2..=100))]
    pub(super) high_watermark: u32,
    /// From there on discard until it is less full than this, in percent, or has drained by 64 KiB;
    /// below `high-watermark`
    ///
    /// Cost: closer to it, discarding begins and ends more often; too low, the server may run dry.
    #[arg(long, value_name = "PERCENT", default_value_t = percent(Config::default().low_watermark), value_parser = clap::value_parser!(u32).range(1..=99))]
    pub(super) low_watermark: u32,
    /// Only count what would be discarded or answered: everything passes
    ///
    /// Cost: nothing is protected; each packet is still looked at. A flooded queue is judged as if
    /// what would be discarded were not in it.
    #[arg(long)]
    pub(super) observe: bool,
    /// Answer SYNs past a listener's SYN queue with SYN cookies, where they arrive; else the stack does
    ///
    /// Unless given: where the packet filter's rules are known to take such connections. With `true`, also
    /// where these cannot be read (legacy iptables, more than 20,000 rules): if they refuse, eight
    /// connections or more are lost before that is noticed.
    ///
    /// Cost: connections made by such a cookie lack most TCP options; the stack's own cost it far more time.
    #[arg(long, value_name = "BOOL", action = clap::ArgAction::Set)]
    pub(super) syn_cookies: Option<bool>,
    /// Programs and actions of tc at this interface, and what is above it, take no packets from sockets of this host
    ///
    /// Unless given, no UDP queue and no listener is guarded while there are some that could: a BPF
    /// program of tcx or clsact, a redirection (not to an `ifb`), a translation; an XDP program or Open
    /// vSwitch above.
    ///
    /// Cost: if one does take packets for a port whose socket here is full, they are discarded.
    #[arg(long)]
    pub(super) trust_tc: bool,
    /// Whose packets are discarded when a channel is overloaded
    ///
    /// Cost: by sources, some 10 to 180 ns for each packet of such a channel, and up to 6 MiB of memory per CPU.
    /// Off, `guard status` and `guard top` do not show who sends most.
    #[arg(long, value_name = "BY", value_enum, default_value_t = option_of(Config::default().fairness))]
    pub(super) fairness: Fairness,
    /// Part of each CPU's time that receiving may take, in percent; beyond it input is shed by
    /// shares, unless more than three quarters of it are established TCP connections, or packets for
    /// other hosts and tunnels in the kernel on a CPU that nobody else wants
    ///
    /// Unless given: 85.
    ///
    /// Cost: lower leaves more to processes and discards packets that would have fitted. 100 sheds nothing.
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u32).range(1..=100))]
    pub(super) cpu_limit: Option<u32>,
    /// Part of each CPU's time that polling is held to while overload lasts, in percent; not below
    /// `cpu-limit` (by holdoffs only on CPUs that others want)
    ///
    /// Unless given: `cpu-limit`, or 100 where that is not given either.
    ///
    /// Cost: beyond it the receive ring overflows, whosever packets these are; higher leaves less to
    /// processes. 100 never holds back. Threads (`strategy`) are held to 90 or to `cpu-limit` at most: they are
    /// real-time ones.
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u32).range(1..=100))]
    pub(super) polling_limit: Option<u32>,
    /// Part of what is admitted while input is shed that protected traffic gets first, in percent
    ///
    /// Cost: a flood of protected ports takes at least this part. The rest gets the part that protected
    /// traffic does not use.
    #[arg(long, value_name = "PERCENT", default_value_t = percent(Config::default().protected_share), value_parser = clap::value_parser!(u32).range(0..=99))]
    pub(super) protected_share: u32,
    /// Local ports to protect, as in 22/tcp,53/udp
    ///
    /// Cost: all share one guarantee, so many ports protect none. Given ports replace the default.
    #[arg(long, value_name = "PORT/PROTOCOL", value_delimiter = ',', default_values_t = default_ports(), value_parser = parse_port)]
    pub(super) protect_ports: Vec<ProtectedPort>,
    /// Sources to protect, as in `198.18.0.0/24,2001:db8::/32`; at most 1024
    ///
    /// Cost: one look-up more per packet while input is shed; sources can be forged.
    #[arg(long, value_name = "ADDRESS[/BITS]", value_delimiter = ',', value_parser = parse_prefix)]
    pub(super) protect_sources: Vec<IpNet>,
    /// Sources that are known clients from the start, as in `198.18.0.0/24,2001:db8::/32`; at most 1024
    ///
    /// Cost: one look-up more for packets of overloaded channels; known clients have half of what
    /// a server takes, so many prefixes prefer nobody; sources can be forged.
    #[arg(long, value_name = "ADDRESS[/BITS]", value_delimiter = ',', value_parser = parse_prefix)]
    pub(super) known_sources: Vec<IpNet>,
    /// Keep known clients in this file from one guard to the next, as in /var/lib/plimsoll/guard/eth0.json
    ///
    /// Cost: it is written when the guard ends, and holds no address. Its directory must be root's
    /// alone; a missing one is made. Takes a new start.
    #[arg(long, value_name = "FILE")]
    pub(super) known_sources_file: Option<PathBuf>,
    /// Executables whose processes' sockets to protect, as in /usr/sbin/nsd
    ///
    /// Cost: the guard keeps `CAP_SYS_PTRACE` and `CAP_DAC_READ_SEARCH`, and looks through
    /// /proc once a second for new sockets. Whoever may run the executable is protected.
    /// The first one takes a new start.
    #[arg(long, value_name = "PATH", value_delimiter = ',', value_parser = parse_executable)]
    pub(super) protect_processes: Vec<PathBuf>,
    /// Control groups whose sockets to protect, as in /system.slice/nsd.service
    ///
    /// Cost: sockets are looked up once a second. Groups below a named one are protected, too.
    #[arg(long, value_name = "PATH", value_delimiter = ',', value_parser = parse_control_group)]
    pub(super) protect_control_groups: Vec<String>,
    /// Protect established TCP connections
    ///
    /// Cost: a flood within connections shares the guarantee.
    #[arg(long, value_name = "BOOL", default_value_t = Protection::default().connections, action = clap::ArgAction::Set)]
    pub(super) protect_connections: bool,
    /// Who shares equally while input is shed
    ///
    /// Cost: by channel, who opens many sockets has many shares. By process or control group,
    /// sockets are looked up once a second; by process takes the rights of `protect-processes`, and
    /// a new start.
    #[arg(long, value_name = "WHO", value_enum, default_value_t = option_of(session::Shares::default()))]
    pub(super) shares: Shares,
    /// A UDP socket gets no more packets while its last one would wait longer than this for its
    /// consumer, in milliseconds; 0: only the watermarks count
    ///
    /// Cost: short queues discard bursts that would have fitted; queues are read every 100 ms.
    #[arg(long, value_name = "MS", default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=60_000))]
    pub(super) delay_target_ms: u32,
    /// What is done about overload beside discarding: an adaptive interrupt holdoff, polling
    /// threads before every process, or nothing; back at light load and on exit
    ///
    /// Cost: under overload only, a holdoff delays packets by up to 0.2 ms; by up to 2 ms while
    /// one flood is alone (`lazy`), and 10 ms to keep `polling-limit`; threads cost two context
    /// switches per poll, and a driver that may hang (`any-driver`). Threads take Linux 6.8.
    #[arg(long, value_enum, default_value_t = option_of(governor::Config::default().strategy))]
    pub(super) strategy: Strategy,
    /// Whether the receive ring may overflow while one UDP socket is flooded and nobody else sends
    ///
    /// Cost: a client that begins then loses packets before it is noticed, mostly none or one and
    /// once ten of its first hundred; one that comes less often than every five minutes may lose half
    /// of its packets. Needs fairness, and a ring of known size.
    #[arg(long, value_name = "BOOL", default_value_t = governor::Config::default().lazy, action = clap::ArgAction::Set)]
    pub(super) lazy: bool,
    /// Frames that a receive ring holds, where the driver does not tell
    ///
    /// Cost: more than it really holds, and it overflows during holdoffs.
    #[arg(long, value_name = "FRAMES", value_parser = clap::value_parser!(u32).range(16..=1_048_576))]
    pub(super) ring_frames: Option<u32>,
    /// Instead of a strategy: poll in threads at this nice level (-20 to 19), or `rt` for
    /// real-time, from start to exit
    ///
    /// Cost: two context switches per poll also at light load; nothing adapts. Threads take
    /// Linux 6.8. Takes a new start.
    #[arg(long, value_name = "NICE|rt", conflicts_with = "strategy", allow_negative_numbers = true, value_parser = parse_priority)]
    pub(super) threaded: Option<Priority>,
    /// The only CPU that polling threads may run on; with `threaded`, or `strategy` thread
    ///
    /// Cost: receiving cannot use the others. With `threaded`, a change takes a new start.
    #[arg(long, value_name = "CPU", value_parser = parse_cpu)]
    pub(super) poll_cpu: Option<usize>,
    /// The directory of a control group, such as a slice with servers: its share of the CPU pays
    /// for polling; with `threaded` at a nice level
    ///
    /// Cost: a flood takes that share, and nobody else's. Takes a new start.
    #[arg(long, value_name = "DIRECTORY", value_parser = parse_group_directory)]
    pub(super) poll_control_group: Option<PathBuf>,
    #[command(flatten)]
    pub(super) driver: DriverArgs,
    /// Whether to attach the program only while the host loses packets or receives more than it can
    /// take; `--standby` alone says yes
    ///
    /// Unless given: on a veth, where any XDP program makes calm transfers slower, but not with `threaded`.
    /// Losses that count are the kernel's own: of the receive ring, of backlogs, of UDP sockets and of
    /// listeners' queues.
    ///
    /// Cost: a flood is as without a guard until the program is attached, a tenth of a second
    /// mostly, and clients that were served before are not known to it then. Drivers that reset
    /// their rings for XDP lose packets at each attachment (`guard check` names them).
    /// Takes a new start.
    #[arg(long, value_name = "BOOL", action = clap::ArgAction::Set, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub(super) standby: Option<bool>,
    /// Seconds without any sign of overload after which a program that stands by is detached;
    /// where it alternates, up to 64 times as long
    ///
    /// Cost: shorter, the program is attached more often; longer, a calm host pays for it longer.
    #[arg(long, value_name = "SECONDS", default_value_t = quiet_s_default(), value_parser = clap::value_parser!(u32).range(1..=86_400))]
    pub(super) standby_quiet_s: u32,
    #[command(flatten)]
    pub(super) metrics: MetricsArgs,
    /// Channels that get metrics of their own
    ///
    /// Cost: nine series each, 18 for a UDP socket, at every scrape and in Prometheus. Takes a new start.
    #[arg(long, value_name = "CHANNELS", default_value_t = channels_max_default(), requires = "metrics", value_parser = clap::value_parser!(u32).range(0..=16_384))]
    pub(super) metrics_channels: u32,
    /// Milliseconds between two reports
    ///
    /// Cost: each report reads all channels.
    #[arg(long, value_name = "MS", default_value_t = interval_ms_default(), value_parser = clap::value_parser!(u32).range(100..=60_000))]
    pub(super) interval_ms: u32,
    /// Read settings from this TOML file; SIGHUP reads it again. A setting is an option of this
    /// command without its dashes, as in `high-watermark = 80`; the command line outweighs the file
    #[arg(long, value_name = "FILE")]
    pub(super) config: Option<PathBuf>,
    /// Show no table; `plimsoll guard status` tells instead. For services
    ///
    /// Cost: none; it spares the table's. Takes a new start.
    #[arg(long, conflicts_with = "json")]
    pub(super) quiet: bool,
    /// Stop after this many seconds
    ///
    /// Cost: nothing is protected from then on. Takes a new start.
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(0..=1_000_000_000))]
    pub(super) duration: Option<u32>,
    /// Write one JSON document per report and line to FILE (`-`: standard output) instead of the table
    ///
    /// Cost: the file grows with every report, which has all channels. While the disk is full, reports are left out. Takes a new start.
    #[arg(long, value_name = "FILE")]
    pub(super) json: Option<PathBuf>,
}

/// Whose packets an overloaded channel loses.
#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fairness {
    /// Those of sources that have had their fair share
    Sources,
    /// All that come while its queue is full
    Off,
}

/// Who has a share of its own while input is shed.
#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shares {
    /// Each socket
    Channel,
    /// Each process, with all its sockets
    Process,
    /// Each control group, with all its sockets
    ControlGroup,
}

/// What is done about overload.
#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Strategy {
    /// The host's settings are never touched
    Off,
    /// Polling threads before every process
    Thread,
    /// An adaptive interrupt holdoff
    Holdoff,
}

impl Args {
    /// What the session is told.
    pub(crate) fn settings(&self) -> Settings {
        Settings {
            interface: self.interface.clone(),
            guard: self.config(),
            protection: Protection {
                ports: self.protect_ports.clone(),
                sources: self.protect_sources.clone(),
                known: self.known_sources.clone(),
                connections: self.protect_connections,
            },
            known_sources_file: self.known_sources_file.clone(),
            protect_processes: self.protect_processes.clone(),
            protect_control_groups: self.protect_control_groups.clone(),
            shares: self.shares.into(),
            strategy: self.strategy.into(),
            polling_limit: self.polling_limit(),
            lazy: self.lazy,
            ring_frames: self.ring_frames,
            threaded: self.threaded,
            poll_cpu: self.poll_cpu,
            poll_control_group: self.poll_control_group.clone(),
            any_driver: self.driver.any_driver,
            standby: self.standby,
            standby_quiet: Duration::from_secs(self.standby_quiet_s.into()),
            metrics: self.metrics.metrics.map(|address| Metrics {
                address,
                channels_max: self.metrics_channels as usize,
                public: self.metrics.metrics_public,
            }),
            interval: Duration::from_millis(self.interval_ms.into()),
            duration: self
                .duration
                .map(|seconds| Duration::from_secs(seconds.into())),
            callers: BTreeMap::from([
                ("quiet", self.quiet.to_string()),
                ("json", format!("{:?}", self.json)),
            ]),
        }
    }

    /// Whoever says what receiving may take wants it kept to that by all means.
    fn polling_limit(&self) -> Fraction {
        let given = self.polling_limit.or(self.cpu_limit);
        given.map_or(GovernorConfig::POLLING_LIMIT, Fraction::from_percent)
    }

    fn config(&self) -> Config {
        Config {
            high_watermark: Fraction::from_percent(self.high_watermark),
            low_watermark: Fraction::from_percent(self.low_watermark),
            syn_cookies: self.syn_cookies,
            observe: self.observe,
            cpu_limit: self
                .cpu_limit
                .map_or(Config::DEFAULT.cpu_limit, Fraction::from_percent),
            protected_share: Fraction::from_percent(self.protected_share),
            delay_target: (self.delay_target_ms > 0)
                .then(|| Duration::from_millis(self.delay_target_ms.into())),
            fairness: self.fairness.into(),
            trust_tc: self.trust_tc,
        }
    }
}

impl From<Fairness> for bool {
    fn from(fairness: Fairness) -> Self {
        fairness == Fairness::Sources
    }
}

impl From<Shares> for session::Shares {
    fn from(shares: Shares) -> Self {
        match shares {
            Shares::Channel => Self::Channel,
            Shares::Process => Self::Process,
            Shares::ControlGroup => Self::ControlGroup,
        }
    }
}

impl From<Strategy> for governor::Strategy {
    fn from(strategy: Strategy) -> Self {
        match strategy {
            Strategy::Off => Self::Off,
            Strategy::Thread => Self::Thread,
            Strategy::Holdoff => Self::Holdoff,
        }
    }
}

/// The option that means `setting`.
fn option_of<O, S>(setting: S) -> O
where
    O: clap::ValueEnum + Copy + Into<S>,
    S: Copy + PartialEq,
{
    let mut options = O::value_variants().iter().copied();
    let option = options.find(|option| (*option).into() == setting);
    option.expect("every setting has an option")
}

fn percent(fraction: Fraction) -> u32 {
    fraction.as_ppm() / 10_000
}

fn default_ports() -> Vec<ProtectedPort> {
    Protection::default().ports
}

fn channels_max_default() -> u32 {
    u32::try_from(Metrics::CHANNELS_MAX_DEFAULT).unwrap_or(u32::MAX)
}

fn quiet_s_default() -> u32 {
    u32::try_from(Settings::QUIET_DEFAULT.as_secs()).unwrap_or(u32::MAX)
}

fn interval_ms_default() -> u32 {
    u32::try_from(Settings::INTERVAL_DEFAULT.as_millis()).unwrap_or(u32::MAX)
}

/// Names were taken here once. A name protects whoever takes it, so it is refused.
fn parse_executable(text: &str) -> Result<PathBuf, String> {
    if text.starts_with('/') {
        return Ok(PathBuf::from(text));
    }
    Err(
        "any process can take a name, so give the path of the executable (`readlink /proc/PID/exe` shows it), or protect-control-groups"
            .to_owned(),
    )
}

fn parse_control_group(text: &str) -> Result<String, String> {
    if text.len() > 1 && text.starts_with('/') {
        return Ok(text.to_owned());
    }
    Err(
        "must be a path such as /system.slice/nsd.service: `cat /proc/PID/cgroup` shows it after 0::"
            .to_owned(),
    )
}

fn parse_priority(text: &str) -> Result<Priority, String> {
    if text == "rt" {
        return Ok(Priority::RealTime);
    }
    match text.parse() {
        Ok(nice @ -20..=19) => Ok(Priority::Nice(nice)),
        _ => Err("must be a nice level from -20 to 19, or rt".to_owned()),
    }
}

fn parse_group_directory(text: &str) -> Result<PathBuf, String> {
    let directory = PathBuf::from(text);
    if directory.is_absolute() {
        return Ok(directory);
    }
    Err("must be the directory of a control group, such as /sys/fs/cgroup/servers.slice".to_owned())
}
