//! `plimsoll guard`: early discard beside unmodified servers.

use std::io::Write;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;
use plimsoll_core::config::Fraction;
use plimsoll_guard::status::{Answers, MetricsServer, StatusServer};
use plimsoll_guard::{
    Channel, Config, Counters, Guard, Kind, Knobs, Need, Outcome, Packets, Priority, Storage,
    drop_capabilities, poll_in_threads,
};
use serde::Serialize;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

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
    /// Switch the interface to threaded polling at this nice level (-20 to 19), or `rt` for
    /// real-time; back on exit
    #[arg(long, value_name = "NICE|rt", allow_negative_numbers = true, value_parser = parse_priority)]
    threaded: Option<Priority>,
    /// The only CPU the polling thread may run on
    #[arg(long, value_name = "CPU", requires = "threaded")]
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
        }
    }

    const fn interval(&self) -> Duration {
        Duration::from_millis(self.interval_ms)
    }

    /// True if changing to `new` takes a new start.
    fn is_fixed_against(&self, new: &Self) -> bool {
        let changed = Self {
            high_watermark: new.high_watermark,
            low_watermark: new.low_watermark,
            syn_cookies: new.syn_cookies,
            observe: new.observe,
            interval_ms: new.interval_ms,
            ..self.clone()
        };
        changed != *new
    }
}

/// Guards until asked to stop. `reload` reads the settings again.
pub(crate) fn run(args: &Args, reload: impl Fn() -> anyhow::Result<Args>) -> anyhow::Result<()> {
    // Caught from here on; the thread that waits for them comes later, without
    // the capabilities that are dropped before.
    let signals = Signals::new([SIGINT, SIGTERM, SIGHUP]).context("cannot handle signals")?;
    let mut report = match &args.json {
        Some(target) => Report::Json(output::json_writer(target)?),
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

    drop_capabilities(&[Need::Settings, Need::Scheduling])?;
    let (sender, events) = channel();
    forward(signals, sender.clone());
    let started = Instant::now();
    let answers = Answers::new(&args.interface, started, counters_from(sender));
    let _status = StatusServer::start(&args.interface, answers.clone())?;
    if let Some(metrics) = metrics {
        metrics.start(&args.interface, args.metrics_channels, started, answers)?;
    }
    guard_until_stopped(args, &mut guard, &events, started, &mut report, reload)
}

/// What the guard's thread is asked to do.
enum Event {
    Stop,
    /// Read the settings again.
    Reload,
    /// Read the counters.
    Read(Sender<Counters>),
}

fn guard_until_stopped(
    args: &Args,
    guard: &mut Guard<'_>,
    events: &Receiver<Event>,
    started: Instant,
    report: &mut Report,
    reload: impl Fn() -> anyhow::Result<Args>,
) -> anyhow::Result<()> {
    let mut args = args.clone();
    let end = args.duration.map(|s| started + Duration::from_secs(s));
    let mut before = guard.counters()?;
    report.show(&args.interface, started.elapsed(), &before, &before)?;
    let mut due = Instant::now() + args.interval();
    loop {
        let tick = Instant::now() + REFRESH;
        let next = end.unwrap_or(due).min(due).min(tick);
        let event = events.recv_timeout(next.saturating_duration_since(Instant::now()));
        match event {
            Ok(Event::Read(reply)) => {
                // Whoever asked may have given up.
                let _ = reply.send(guard.counters()?);
                continue;
            }
            Ok(Event::Reload) => {
                adopt(&mut args, guard, reload());
                continue;
            }
            Ok(Event::Stop) | Err(_) => guard.refresh()?,
        }
        let now = Instant::now();
        let stopped = !matches!(event, Err(RecvTimeoutError::Timeout));
        let over = stopped || end.is_some_and(|end| end <= now);
        if over || due <= now {
            let counters = guard.counters()?;
            report.show(&args.interface, started.elapsed(), &before, &counters)?;
            before = counters;
            due = now + args.interval();
        }
        if over {
            return Ok(());
        }
    }
}

/// Takes over the settings that can change while the guard runs. A mistake
/// leaves all as they are.
fn adopt(args: &mut Args, guard: &mut Guard<'_>, new: anyhow::Result<Args>) {
    let adopted = new.and_then(|new| {
        guard.configure(&new.config())?;
        Ok(new)
    });
    match adopted {
        Ok(new) => {
            eprintln!("plimsoll: settings read again");
            if args.is_fixed_against(&new) {
                eprintln!(
                    "plimsoll: other settings than watermarks and interval changed: they take a new start"
                );
            }
            args.high_watermark = new.high_watermark;
            args.low_watermark = new.low_watermark;
            args.interval_ms = new.interval_ms;
        }
        Err(error) => eprintln!("plimsoll: the settings stay as they were: {error:#}"),
    }
}

/// Reads the counters through the guard's own thread.
fn counters_from(guard: Sender<Event>) -> impl Fn() -> Option<Counters> + Send + 'static {
    move || {
        let (reply, counters) = channel();
        guard.send(Event::Read(reply)).ok()?;
        counters.recv_timeout(PATIENCE).ok()
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
fn forward(mut signals: Signals, guard: Sender<Event>) {
    thread::spawn(move || {
        for signal in &mut signals {
            let event = if signal == SIGHUP {
                Event::Reload
            } else {
                Event::Stop
            };
            // Nobody listens any more: the process is ending already.
            let _ = guard.send(event);
        }
    });
}

enum Report {
    Json(Box<dyn Write>),
    Table,
}

/// One line of `--json`.
#[derive(Serialize)]
struct Line<'a> {
    schema: u32,
    interface: &'a str,
    uptime_s: f64,
    #[serde(flatten)]
    counters: &'a Counters,
}

impl Report {
    fn show(
        &mut self,
        interface: &str,
        uptime: Duration,
        before: &Counters,
        now: &Counters,
    ) -> anyhow::Result<()> {
        match self {
            Self::Json(writer) => {
                let line = Line {
                    schema: 1,
                    interface,
                    uptime_s: uptime.as_secs_f64(),
                    counters: now,
                };
                serde_json::to_writer(&mut *writer, &line)?;
                writer.write_all(b"\n")?;
                writer.flush()?;
            }
            Self::Table => {
                output::clear_screen();
                print!("{}", table(interface, uptime, before, now));
            }
        }
        Ok(())
    }
}

fn table(interface: &str, uptime: Duration, before: &Counters, now: &Counters) -> String {
    let all = now.all();
    let mut text = format!(
        "plimsoll guard {interface}  up {} s  offered {}  discarded early {}\n\n{:<16}{}{:>12}\n",
        uptime.as_secs(),
        all.offered(),
        all.discarded(),
        "kind",
        Outcome::ALL
            .map(|outcome| format!("{:>13}", outcome.name()))
            .concat(),
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
