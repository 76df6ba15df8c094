//! `plimsoll guard`: early discard beside unmodified servers.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::Write;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use anyhow::Context;
use ipnet::IpNet;
use plimsoll_core::config::Fraction;
use plimsoll_guard::governor::{self, Governor};
use plimsoll_guard::ledger::LedgerReader;
use plimsoll_guard::status::{Answers, MetricsServer, Snapshot, StatusServer};
use plimsoll_guard::{
    Channel, Config, Counters, Error, Events, Guard, Keeper, Kind, Knobs, Need, Outcome, Owners,
    Packets, Priority, Protection, Storage, check_host, drop_capabilities, outlive_overload,
    parse_port, poll_in_threads, start_thread,
};
use serde::Serialize;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::guard_commands::doing;
use crate::output;

/// How often the program learns the time and the host's addresses, at least.
const REFRESH: Duration = Duration::from_secs(1);
/// How long somebody who asks for counters waits for a busy guard.
const PATIENCE: Duration = Duration::from_secs(2);
/// Channels shown on a terminal: those with most discards first.
const CHANNELS_SHOWN: usize = 20;

/// Discard early what a full socket could not take; servers need no change.
///
/// Attaches to IFACE until Ctrl-C and shows its counters once a second. The
/// attachment ends with the process, however it ends.
#[derive(clap::Args, Clone, Debug, PartialEq, Eq)]
#[command(
    args_override_self = true,
    after_help = "Needs root, Linux 6.2 or newer with BTF, and a driver with native XDP.\n\
                        Example: sudo plimsoll guard eth0"
)]
pub(crate) struct Args {
    /// Interface to guard, in this network namespace
    #[arg(value_name = "IFACE")]
    interface: String,
    /// Discard for a UDP socket whose receive buffer is this full, in percent
    #[arg(long, value_name = "PERCENT", default_value_t = 70, value_parser = clap::value_parser!(u32).range(1..=100))]
    high_watermark: u32,
    /// … until it is less full than this, in percent
    #[arg(long, value_name = "PERCENT", default_value_t = 50, value_parser = clap::value_parser!(u32).range(0..=99))]
    low_watermark: u32,
    /// Only count what would be discarded or answered: everything passes
    #[arg(long)]
    observe: bool,
    /// Answer SYNs past a listener's SYN queue with SYN cookies; without, they are discarded
    #[arg(long, value_name = "BOOL", default_value_t = true, action = clap::ArgAction::Set)]
    syn_cookies: bool,
    /// Part of each CPU's time that receiving may take, in percent; beyond it input is shed by
    /// shares, and polling is held to it while overload lasts
    #[arg(long, value_name = "PERCENT", default_value_t = 85, value_parser = clap::value_parser!(u32).range(1..=100))]
    cpu_limit: u32,
    /// Part of what is admitted while input is shed that protected traffic gets first, in percent
    #[arg(long, value_name = "PERCENT", default_value_t = 30, value_parser = clap::value_parser!(u32).range(0..=99))]
    protected_share: u32,
    /// Local ports to protect, as in 22/tcp,53/udp
    #[arg(long, value_name = "PORT/PROTOCOL", value_delimiter = ',', default_values_t = ["22/tcp".to_owned(), "179/tcp".to_owned()])]
    protect_ports: Vec<String>,
    /// Sources to protect, as in `198.18.0.0/24,2001:db8::/32`
    #[arg(long, value_name = "PREFIX", value_delimiter = ',')]
    protect_sources: Vec<IpNet>,
    /// Names of processes whose sockets to protect (`comm`, up to 15 bytes)
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    protect_processes: Vec<String>,
    /// Protect established TCP connections
    #[arg(long, value_name = "BOOL", default_value_t = true, action = clap::ArgAction::Set)]
    protect_connections: bool,
    /// Who shares equally while input is shed
    #[arg(long, value_name = "WHO", value_enum, default_value_t = Shares::Channel)]
    shares: Shares,
    /// A UDP socket gets no more packets while its last one would wait longer than this for its
    /// consumer, in milliseconds; 0: only the watermarks count
    #[arg(long, value_name = "MS", default_value_t = 0, value_parser = clap::value_parser!(u64).range(0..=60_000))]
    delay_target_ms: u64,
    /// What is done about overload beside discarding: an adaptive interrupt holdoff, polling
    /// threads before every process, or nothing; back at light load and on exit
    #[arg(long, value_enum, default_value_t = Strategy::Holdoff)]
    strategy: Strategy,
    /// Frames that a receive ring holds, where the driver does not tell
    #[arg(long, value_name = "FRAMES", value_parser = clap::value_parser!(u32).range(16..))]
    ring_frames: Option<u32>,
    /// Instead of a strategy: poll in threads at this nice level (-20 to 19), or `rt` for
    /// real-time, from start to exit
    #[arg(long, value_name = "NICE|rt", allow_negative_numbers = true, value_parser = parse_priority)]
    threaded: Option<Priority>,
    /// The only CPU that polling threads may run on
    #[arg(long, value_name = "CPU")]
    poll_cpu: Option<usize>,
    /// Serve Prometheus metrics at this address, as in 127.0.0.1:9464
    #[arg(long, value_name = "ADDRESS:PORT")]
    metrics: Option<SocketAddr>,
    /// Channels that get metrics of their own; each costs some ten series
    #[arg(
        long,
        value_name = "CHANNELS",
        default_value_t = 100,
        requires = "metrics"
    )]
    metrics_channels: usize,
    /// Milliseconds between two reports
    #[arg(long, value_name = "MS", default_value_t = 1000, value_parser = clap::value_parser!(u64).range(100..=60_000))]
    interval_ms: u64,
    /// Read settings from this TOML file; SIGHUP reads it again. A setting is an option of this
    /// command without its dashes, as in `high-watermark = 80`; the command line outweighs the file
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Show no table; `plimsoll guard status` tells instead. For services
    #[arg(long, conflicts_with = "json")]
    quiet: bool,
    /// Stop after this many seconds
    #[arg(long, value_name = "SECONDS")]
    duration: Option<u64>,
    /// Write one JSON document per second and line to FILE (`-`: standard output) instead of the table
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

impl Args {
    fn config(&self) -> Config {
        Config {
            high_watermark: Fraction::from_percent(self.high_watermark),
            low_watermark: Fraction::from_percent(self.low_watermark),
            syn_cookies: self.syn_cookies,
            observe: self.observe,
            cpu_limit: Fraction::from_percent(self.cpu_limit),
            protected_share: Fraction::from_percent(self.protected_share),
            delay_target: (self.delay_target_ms > 0)
                .then(|| Duration::from_millis(self.delay_target_ms)),
        }
    }

    fn protection(&self) -> anyhow::Result<Protection> {
        let ports = self.protect_ports.iter().map(|text| parse_port(text));
        let protection = Protection {
            ports: ports
                .collect::<Result<_, _>>()
                .map_err(anyhow::Error::msg)?,
            sources: self.protect_sources.clone(),
            connections: self.protect_connections,
        };
        protection.validate().map_err(Error::from)?;
        Ok(protection)
    }

    fn governor(&self) -> governor::Config {
        // What is only observed is not governed, and threads asked for stay.
        let is_fixed = self.observe || self.threaded.is_some();
        governor::Config {
            strategy: match self.strategy {
                _ if is_fixed => governor::Strategy::Off,
                Strategy::Off => governor::Strategy::Off,
                Strategy::Thread => governor::Strategy::Thread,
                Strategy::Holdoff => governor::Strategy::Holdoff,
            },
            cpu_limit: Some(Fraction::from_percent(self.cpu_limit)),
            ring_frames: self.ring_frames,
            poll_cpu: self.poll_cpu,
        }
    }

    fn needs(&self) -> Vec<Need> {
        let mut needs = vec![Need::Settings, Need::Scheduling, Need::LockedMemory];
        if self.shares == Shares::Process || !self.protect_processes.is_empty() {
            needs.push(Need::Owners);
        }
        needs
    }

    const fn interval(&self) -> Duration {
        Duration::from_millis(self.interval_ms)
    }

    /// These settings with all of `new` that can change while the guard runs.
    fn with_changes_of(&self, new: &Self) -> Self {
        Self {
            high_watermark: new.high_watermark,
            low_watermark: new.low_watermark,
            syn_cookies: new.syn_cookies,
            observe: new.observe,
            cpu_limit: new.cpu_limit,
            protected_share: new.protected_share,
            protect_ports: new.protect_ports.clone(),
            protect_sources: new.protect_sources.clone(),
            protect_processes: new.protect_processes.clone(),
            protect_connections: new.protect_connections,
            shares: new.shares,
            delay_target_ms: new.delay_target_ms,
            interval_ms: new.interval_ms,
            ..self.clone()
        }
    }
}

/// Who has a share of its own while input is shed.
#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
enum Shares {
    /// Each socket
    Channel,
    /// Each process, with all its sockets
    Process,
    /// Each control group, with all its sockets
    ControlGroup,
}

/// What is done about overload.
#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
enum Strategy {
    /// The host's settings are never touched
    Off,
    /// Polling threads before every process
    Thread,
    /// An adaptive interrupt holdoff
    Holdoff,
}

/// Guards until asked to stop. `reload` reads the settings again.
pub(crate) fn run(args: &Args, reload: impl Fn() -> anyhow::Result<Args>) -> anyhow::Result<()> {
    check_host()?;
    // Forked before anything is opened, and told last that all is well.
    let _keeper = Keeper::start(&args.interface)?;
    // Caught from here on; the thread that waits for them comes later, without
    // the capabilities that are dropped before.
    let signals = Signals::new([SIGINT, SIGTERM, SIGHUP]).context("cannot handle signals")?;
    let report = match &args.json {
        Some(target) => Report::Json(output::json_writer(target)?),
        None if args.quiet => Report::Nothing,
        None => Report::Table,
    };
    let metrics = args.metrics.map(MetricsServer::bind).transpose()?;
    // First of all: it restores what a killed guard left, and refuses a second one.
    let knobs = Knobs::open(&args.interface)?;
    let mut storage = Storage::default();
    let mut guard = Guard::attach(&mut storage, &args.config(), &args.interface)?;
    // Declared after the guard, so restored before it detaches.
    let mut knobs = knobs;
    if !knobs.is_untouched() {
        knobs.restore()?;
    }
    if let Some(priority) = args.threaded {
        poll_in_threads(&mut knobs, priority, args.poll_cpu)?;
    }

    guard.protect(&args.protection()?)?;
    let governor = Governor::new(&args.interface, args.governor())?;

    let ledger = LedgerReader::begin(&args.interface, || guard.counters())?;
    drop_capabilities(&args.needs())?;
    let (sender, events) = channel();
    forward(signals, sender.clone())?;
    let started = Instant::now();
    let answers = Answers::new(&args.interface, started, ledger, snapshots_from(sender));
    let _status = StatusServer::start(&args.interface, answers.clone())?;
    if let Some(metrics) = metrics {
        metrics.start(&args.interface, args.metrics_channels, started, answers)?;
    }
    // From here on it must get on whatever the network does.
    outlive_overload()?;
    let session = Session {
        args: args.clone(),
        guard,
        governor,
        knobs,
        owners: Owners::new(),
        events: Events::default(),
        started,
        report,
    };
    session.run(&events, reload)
}

/// What the guard's thread is asked to do.
enum Event {
    Stop,
    /// Read the settings again.
    Reload,
    /// Tell of itself.
    Read(Sender<Snapshot>),
}

/// A running guard with all that it does now and then.
struct Session<'obj> {
    args: Args,
    // Restored before the guard detaches: fields are dropped in order.
    knobs: Knobs,
    guard: Guard<'obj>,
    governor: Governor,
    owners: Owners,
    events: Events,
    started: Instant,
    report: Report,
}

impl Session<'_> {
    fn run(
        mut self,
        events: &Receiver<Event>,
        reload: impl Fn() -> anyhow::Result<Args>,
    ) -> anyhow::Result<()> {
        let end = self
            .args
            .duration
            .map(|s| self.started + Duration::from_secs(s));
        let mut before = self.guard.counters()?;
        self.show(&before, &before)?;
        let mut show_at = Instant::now() + self.args.interval();
        let mut refresh_at = Instant::now();
        let mut govern_at = Instant::now();
        loop {
            let next = end
                .unwrap_or(show_at)
                .min(show_at)
                .min(refresh_at)
                .min(govern_at);
            let event = events.recv_timeout(next.saturating_duration_since(Instant::now()));
            match &event {
                Ok(Event::Read(reply)) => {
                    // Whoever asked may have given up.
                    let _ = reply.send(self.snapshot()?);
                }
                Ok(Event::Reload) => self.adopt(reload()),
                Ok(Event::Stop) | Err(_) => {}
            }
            let now = Instant::now();
            if govern_at <= now {
                self.govern();
                govern_at = now + self.governor.interval();
            }
            let over = matches!(event, Ok(Event::Stop) | Err(RecvTimeoutError::Disconnected))
                || end.is_some_and(|end| end <= now);
            if over || refresh_at <= now {
                self.refresh()?;
                refresh_at = now + REFRESH;
            }
            if over || show_at <= now {
                let snapshot = self.snapshot()?;
                for event in self.events.on_reading(&snapshot, now) {
                    eprintln!("plimsoll: interface={} {event}", self.args.interface);
                }
                self.show(&before, &snapshot.counters)?;
                before = snapshot.counters;
                show_at = now + self.args.interval();
            }
            if over {
                return Ok(());
            }
        }
    }

    fn snapshot(&mut self) -> anyhow::Result<Snapshot> {
        let counters = self.guard.counters()?;
        Ok(Snapshot {
            observed: self.guard.observed(&counters.all()),
            counters,
            observe: self.args.observe,
            shedding: self.guard.is_shedding(),
            governor: self.governor.status(),
        })
    }

    /// Regulates and governs. A setting that the kernel refuses is no reason to
    /// stop discarding: the rest goes on without a governor.
    fn govern(&mut self) {
        let governed = self
            .guard
            .regulate()
            .and_then(|regulated| self.governor.on_interval(&regulated, &mut self.knobs));
        if let Err(error) = governed {
            eprintln!("plimsoll: the governor gives up, early discard goes on: {error:#}");
            let off = governor::Config {
                strategy: governor::Strategy::Off,
                ..self.args.governor()
            };
            if let Ok(off) = Governor::new(&self.args.interface, off) {
                self.governor = off;
            }
            if let Err(error) = self.knobs.restore() {
                eprintln!("plimsoll: {error:#}");
            }
        }
    }

    fn refresh(&mut self) -> anyhow::Result<()> {
        self.guard.refresh()?;
        let args = &self.args;
        if args.shares == Shares::Channel && args.protect_processes.is_empty() {
            return Ok(());
        }
        self.owners.refresh()?;
        let owners = &self.owners;
        self.guard.assign(|kind, address, port| {
            let owner = owners.of_channel(kind, address, port);
            let process = owner.as_ref().and_then(|owner| owner.process.as_ref());
            let group = match args.shares {
                Shares::Channel => None,
                Shares::Process => process.map(|process| u64::from(process.pid)),
                Shares::ControlGroup => owner
                    .as_ref()
                    .and_then(|owner| owner.control_group.as_ref())
                    .map(|path| fingerprint(path)),
            };
            let named = process.is_some_and(|p| args.protect_processes.contains(&p.name));
            (group, named)
        });
        Ok(())
    }

    fn show(&mut self, before: &Counters, now: &Counters) -> anyhow::Result<()> {
        let line = Line {
            schema: 1,
            interface: &self.args.interface,
            uptime_s: self.started.elapsed().as_secs_f64(),
            observe: self.args.observe,
            shedding: self.guard.is_shedding(),
            governor: self.governor.status(),
            counters: now,
        };
        self.report.show(&line, before)
    }

    /// Takes over the settings that can change while the guard runs. A mistake
    /// leaves all as they are.
    fn adopt(&mut self, new: anyhow::Result<Args>) {
        let adopted = new.and_then(|new| {
            let protection = new.protection()?;
            self.guard.configure(&new.config())?;
            self.guard.protect(&protection)?;
            Ok(new)
        });
        match adopted {
            Ok(new) => {
                eprintln!("plimsoll: settings read again");
                self.args = self.args.with_changes_of(&new);
                if self.args != new {
                    eprintln!(
                        "plimsoll: interface, strategy, polling, metrics or output changed: they take a new start"
                    );
                }
            }
            Err(error) => eprintln!("plimsoll: the settings stay as they were: {error:#}"),
        }
    }
}

/// Tells control groups apart by their paths.
fn fingerprint(path: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    path.hash(&mut hasher);
    hasher.finish()
}

/// Asks the guard's own thread.
fn snapshots_from(guard: Sender<Event>) -> impl Fn() -> Option<Snapshot> + Send + 'static {
    move || {
        let (reply, snapshot) = channel();
        guard.send(Event::Read(reply)).ok()?;
        snapshot.recv_timeout(PATIENCE).ok()
    }
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

/// Turns signals into events from now on.
fn forward(mut signals: Signals, guard: Sender<Event>) -> Result<(), Error> {
    start_thread(move || {
        for signal in &mut signals {
            let event = if signal == SIGHUP {
                Event::Reload
            } else {
                Event::Stop
            };
            // Nobody listens any more: the process is ending already.
            let _ = guard.send(event);
        }
    })
}

enum Report {
    Nothing,
    Json(Box<dyn Write>),
    Table,
}

/// One line of `--json`.
#[derive(Serialize)]
struct Line<'a> {
    schema: u32,
    interface: &'a str,
    uptime_s: f64,
    observe: bool,
    shedding: bool,
    governor: governor::Status,
    #[serde(flatten)]
    counters: &'a Counters,
}

impl Report {
    fn show(&mut self, line: &Line<'_>, before: &Counters) -> anyhow::Result<()> {
        match self {
            Self::Nothing => {}
            Self::Json(writer) => {
                serde_json::to_writer(&mut *writer, line)?;
                writer.write_all(b"\n")?;
                writer.flush()?;
            }
            Self::Table => {
                output::clear_screen();
                print!("{}", table(line, before));
            }
        }
        Ok(())
    }
}

fn table(line: &Line<'_>, before: &Counters) -> String {
    let now = line.counters;
    let all = now.all();
    let mut text = format!(
        "plimsoll guard {}  up {:.0} s  offered {}  {} {}\n{}\n\n{:<16}{}{:>12}\n",
        line.interface,
        line.uptime_s,
        all.offered(),
        if line.observe {
            "would discard"
        } else {
            "discarded early"
        },
        all.discarded(),
        doing(&(&line.governor).into(), line.observe, line.shedding),
        "kind",
        Outcome::ALL
            .iter()
            .map(|outcome| format!("{:>13}", outcome.name()))
            .collect::<String>(),
        "offered/s",
    );
    for kind in Kind::ALL {
        let packets = now.of(kind);
        if packets.offered() > 0 {
            text += &format!(
                "{:<16}{}{:>12}\n",
                kind.name(),
                columns(packets),
                packets.offered() - before.of(kind).offered()
            );
        }
    }
    text.push_str(&channel_table(&now.channels));
    text
}

fn columns(packets: &Packets) -> String {
    Outcome::ALL
        .iter()
        .map(|outcome| format!("{:>13}", packets.count(*outcome)))
        .collect()
}

fn channel_table(channels: &[Channel]) -> String {
    let mut shown: Vec<&Channel> = channels.iter().collect();
    shown.sort_by_key(|channel| {
        std::cmp::Reverse((channel.packets.discarded(), channel.packets.offered()))
    });
    let mut text = format!(
        "\n{:<40}{:>14}{:>14}{:>8}\n",
        "channel", "admitted", "discarded", "full"
    );
    for channel in shown.iter().take(CHANNELS_SHOWN) {
        let name = format!(
            "{} {}",
            channel.kind.name(),
            SocketAddr::new(channel.address, channel.port)
        );
        let percent = u64::from(channel.occupancy) * 100 / u64::from(channel.capacity.max(1));
        text += &format!(
            "{name:<40}{:>14}{:>14}{percent:>7}%{}\n",
            channel.packets.count(Outcome::Admitted),
            channel.packets.discarded(),
            if channel.discarding {
                "  discarding"
            } else {
                ""
            },
        );
    }
    if shown.len() > CHANNELS_SHOWN {
        text += &format!("… and {} more\n", shown.len() - CHANNELS_SHOWN);
    }
    text
}
