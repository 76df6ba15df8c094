//! `plimsoll guard`: early discard beside unmodified servers.

mod args;
#[cfg(test)]
mod settings_tests;

use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::Write;
use std::net::SocketAddr;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use anyhow::Context;
use plimsoll_guard::governor::{self, Governor};
use plimsoll_guard::ledger::LedgerReader;
use plimsoll_guard::status::{Answers, MetricsServer, Snapshot, StatusServer};
use plimsoll_guard::{
    Channel, Counters, Error, Events, Guard, Keeper, Kind, Knobs, Outcome, Owners, Packets,
    Storage, check_host, drop_capabilities, outlive_overload, poll_in_threads, start_thread,
};
use serde::Serialize;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::guard_commands::doing;
use crate::output;
use args::Shares;
pub(crate) use args::{Args, SettingError};

/// How often the program learns the time and the host's addresses, at least.
const REFRESH: Duration = Duration::from_secs(1);
/// How long somebody who asks for counters waits for a busy guard.
const PATIENCE: Duration = Duration::from_secs(2);
/// Channels shown on a terminal: those with most discards first.
const CHANNELS_SHOWN: usize = 20;

/// Guards until asked to stop. `reload` reads the settings again.
pub(crate) fn run(args: &Args, reload: impl Fn() -> anyhow::Result<Args>) -> anyhow::Result<()> {
    args.validate()?;
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
        metrics.start(
            &args.interface,
            args.metrics_channels as usize,
            started,
            answers,
        )?;
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
            .map(|s| self.started + Duration::from_secs(s.into()));
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
            let adopted = self.args.with_changes_of(&new);
            let protection = adopted.protection()?;
            self.governor
                .configure(adopted.governor(), &mut self.knobs)?;
            self.guard.configure(&adopted.config())?;
            self.guard.protect(&protection)?;
            Ok((adopted, new))
        });
        match adopted {
            Ok((adopted, new)) => {
                eprintln!("plimsoll: settings read again");
                let waiting = adopted.differences(&new);
                if !waiting.is_empty() {
                    let names = waiting.join(", ");
                    eprintln!("plimsoll: {names}: a change takes a new start");
                }
                self.args = adopted;
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
