//! `plimsoll guard IFACE`: early discard beside unmodified servers.

mod args;
mod report;
#[cfg(test)]
mod settings_tests;

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use anyhow::Context;
use plimsoll_guard::governor::{self, Governor};
use plimsoll_guard::ledger::LedgerReader;
use plimsoll_guard::status::{Answers, MetricsServer, Snapshot, StatusServer};
use plimsoll_guard::{Counters, Events, Guard, Owners, Storage};
use plimsoll_kernel::host;
use plimsoll_kernel::knobs::{Keeper, Knobs};
use plimsoll_kernel::privileges::{drop_capabilities, outlive_overload, start_thread};
use plimsoll_kernel::threaded::poll_in_threads;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::output;
use args::Shares;
pub(crate) use args::{Args, SettingError};
use report::{Line, Report, Reporter};

/// How often the program learns the time and the host's addresses, at least.
const REFRESH: Duration = Duration::from_secs(1);
/// How long somebody who asks for counters waits for a busy guard.
const PATIENCE: Duration = Duration::from_secs(2);

/// Guards until asked to stop. `reload` reads the settings again.
pub(crate) fn run(args: &Args, reload: impl Fn() -> anyhow::Result<Args>) -> anyhow::Result<()> {
    args.validate()?;
    host::check()?;
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
    let reporter = Reporter::start(report)?;
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
        reporter,
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
    reporter: Reporter,
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
        let first = self.guard.counters()?;
        self.reporter.show(self.line(first))?;
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
                    self.reporter
                        .log(format!("interface={} {event}", self.args.interface));
                }
                let line = self.line(snapshot.counters);
                if over {
                    return self.finish(line);
                }
                self.reporter.show(line)?;
                show_at = now + self.args.interval();
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
            self.reporter.log(format!(
                "the governor gives up, early discard goes on: {error:#}"
            ));
            let off = governor::Config {
                strategy: governor::Strategy::Off,
                ..self.args.governor()
            };
            if let Ok(off) = Governor::new(&self.args.interface, off) {
                self.governor = off;
            }
            if let Err(error) = self.knobs.restore() {
                self.reporter.log(format!("{error:#}"));
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

    fn line(&self, counters: Counters) -> Line {
        Line {
            schema: 1,
            interface: self.args.interface.clone(),
            uptime_s: self.started.elapsed().as_secs_f64(),
            observe: self.args.observe,
            shedding: self.guard.is_shedding(),
            governor: self.governor.status(),
            counters,
        }
    }

    /// Puts everything back first: a reader may take its time.
    fn finish(self, line: Line) -> anyhow::Result<()> {
        let Self {
            knobs,
            guard,
            governor,
            reporter,
            ..
        } = self;
        // It must not demote a thread that is the host's own again.
        drop(governor);
        drop(knobs);
        drop(guard);
        reporter.finish(line)
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
                self.reporter.log("settings read again".to_owned());
                let waiting = adopted.differences(&new);
                if !waiting.is_empty() {
                    let names = waiting.join(", ");
                    self.reporter
                        .log(format!("{names}: a change takes a new start"));
                }
                self.args = adopted;
            }
            Err(error) => self
                .reporter
                .log(format!("the settings stay as they were: {error:#}")),
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
fn forward(mut signals: Signals, guard: Sender<Event>) -> Result<(), plimsoll_kernel::Error> {
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
