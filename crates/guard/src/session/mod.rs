//! A guard from its start to its end: what happens in which order, what is done now
//! and then, what of it may fail, and how everything is put back.
//!
//! [`run`] is the whole daemon but for its surroundings: a [`Console`] reads the
//! settings, shows reports and lines, and hands requests in. So a session runs, and
//! is tested, without the command.
//!
//! **Start.** What a service manager passed is taken before settings are read. The keeper
//! is forked before anything is opened. What a killed guard
//! left is restored before anything is turned. Capabilities are given up before other threads
//! start. The program is attached last: some adapters set up their rings anew for a program, and a
//! service manager tries a start that fails again and again. With `standby` it is attached by the
//! loop (`standby`). **Run.** An error of a moment ends nothing (`retry`); that the
//! interface has gone ends it. What takes long or waits for others
//! is done by threads of ordinary priority (`owners`, `threads`). **End.** Settings
//! are put back before the program is detached, and both before the last words: a
//! reader may take its time. Under a service manager, the program stays attached for
//! the guard that follows (`handover`).

mod handover;
mod owners;
mod page;
mod protected_owners;
mod retry;
mod settings;
mod standby;
mod threads;
mod turns;
mod work;

use std::fmt;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

pub use handover::ServiceManager;
pub use settings::{Metrics, Settings, SettingsError, Shares};

use crate::check::stacking;
use crate::error::Error;
use plimsoll_kernel::error::FAILED;
use plimsoll_kernel::error::with_causes;
use plimsoll_kernel::host;
use plimsoll_kernel::knobs::{Keeper, Knobs, TurnError};
use plimsoll_kernel::link;
use plimsoll_kernel::pass_all::PassAll;
use plimsoll_kernel::privileges::{drop_capabilities, outlive_overload};

use crate::governor::Governor;
use crate::guard::{Guard, Storage};
use crate::known::{KnownFile, KnownSources};
use crate::ledger::LedgerReader;
use crate::status::{Answers, Snapshot, StatusServer};
use page::Page;
use plimsoll_metrics::MetricsError;
use standby::Standing;
use turns::{Ended, Turns};
use work::Guarded;

/// How long somebody who asks for counters waits for a busy guard.
const PATIENCE: Duration = Duration::from_secs(2);
/// Where nobody said so.
const STANDS_BY: &str = "stands by until the host loses packets: on a veth any XDP program makes calm transfers slower (--standby=false attaches it at once)";

/// What a session is run from. It is called on the session's own thread: what may
/// take long (a reader who does not read) belongs on threads of its own.
pub trait Console {
    /// Called once, when all is ready to be attached and capabilities are given up: from here on
    /// threads may be started, also those that hand requests in.
    ///
    /// # Errors
    ///
    /// There is no console; the session ends and puts everything back.
    fn start(&mut self, requests: Requests) -> io::Result<()>;

    /// Shows a report. The first one says that the guard protects.
    ///
    /// # Errors
    ///
    /// Nobody reads any more; the session ends and puts everything back.
    fn show(&mut self, report: &Report<'_>) -> io::Result<()>;

    /// Writes a line for the log.
    fn log(&mut self, line: String);

    /// Reads the settings again.
    ///
    /// # Errors
    ///
    /// What is wrong with them; the old ones stay.
    fn settings(&mut self) -> Result<Settings, Box<dyn std::error::Error>>;

    /// Shows the last report. Everything has been put back.
    ///
    /// # Errors
    ///
    /// The report could not be shown.
    fn finish(&mut self, report: &Report<'_>) -> io::Result<()>;
}

/// What a session is asked to do, from any thread.
#[derive(Clone)]
pub struct Requests(Sender<Request>);

impl fmt::Debug for Requests {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Requests").finish_non_exhaustive()
    }
}

impl Requests {
    /// Asks the session to end.
    pub fn stop(&self) {
        // If nobody listens any more, it has ended.
        let _ = self.0.send(Request::Stop);
    }

    /// Asks the session to read its settings again.
    pub fn reload(&self) {
        let _ = self.0.send(Request::Reload);
    }

    fn snapshot(&self) -> Option<Snapshot> {
        let (reply, snapshot) = channel();
        self.0.send(Request::Read(reply)).ok()?;
        snapshot.recv_timeout(PATIENCE).ok()
    }
}

/// What a session's thread is asked to do.
enum Request {
    Stop,
    Reload,
    /// Tell of itself.
    Read(Sender<Snapshot>),
}

/// What a session shows of itself.
#[derive(Clone, Copy, Debug)]
pub struct Report<'a> {
    /// The guarded interface.
    pub interface: &'a str,
    /// Time since the start.
    pub uptime: Duration,
    /// What it does and has counted.
    pub snapshot: &'a Snapshot,
}

/// Why a session could not start, or ended by itself.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SessionError {
    /// The settings are wrong.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// The host, the interface or the kernel refuses.
    #[error(transparent)]
    Guard(#[from] Error),
    /// Metrics cannot be served.
    #[error(transparent)]
    Metrics(#[from] MetricsError),
    /// Nobody could be shown anything.
    #[error(
        "cannot show what the guard does, so it has put everything back: give it an output that stays open (a terminal, a file, the journal)"
    )]
    Console(#[source] io::Error),
    /// There is nothing left to guard.
    #[error(
        "the interface `{interface}` has gone from this network namespace (it was deleted, or moved to another one), so the guard has ended: start it again when the interface is back, or where it is now"
    )]
    InterfaceGone {
        /// As given.
        interface: String,
    },
}

impl SessionError {
    /// The exit code of a command that ends by it: 1 failed, 2 used wrongly, 3 this
    /// host lacks something.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Settings(error) => error.exit_code(),
            Self::Guard(error) => error.exit_code(),
            Self::Metrics(_) | Self::Console(_) | Self::InterfaceGone { .. } => FAILED,
        }
    }
}

plimsoll_kernel::from_operations!(SessionError::Guard);

/// Guards until asked to stop, beside the `manager` that started this process.
///
/// Call it while this process has no other thread: the keeper is forked, and
/// capabilities are given up for good.
///
/// # Errors
///
/// The settings are wrong, the host lacks something, the interface has gone, or the console fails. What was
/// turned is put back, and the program is detached.
pub fn run(
    settings: Settings,
    mut manager: ServiceManager,
    console: &mut dyn Console,
) -> Result<(), SessionError> {
    settings.validate()?;
    host::check()?;
    host::check_real_time()?;
    let interface = settings.interface.clone();
    let is_given = settings.standby.is_some();
    let settings = standby::decided(settings, &interface);
    let before = manager.link();
    let keeper = Keeper::start(&interface, before.as_ref().map(AsFd::as_fd).as_slice())?;
    let mut tell = |line| console.log(format!("interface={interface} {line}"));
    let metrics = settings.metrics.clone();
    let metrics = metrics.map(|metrics| Page::take(metrics, &mut tell));
    let metrics = metrics.transpose()?;
    // Restores what a killed guard left, and refuses a second one.
    let knobs = Knobs::open(&interface)?;
    // Told before the driver may refuse: it says what to guard instead.
    if let Some(warning) = warning(&interface) {
        console.log(format!("interface={interface} warning: {warning}"));
    }
    for warning in protected_owners::warnings(&settings) {
        console.log(format!("interface={interface} warning: {warning}"));
    }
    let known = known_before(&settings, console);
    let mut storage = Storage::default();
    let mut guarded = load(&settings, knobs, before, known.as_ref(), &mut storage)?;
    if settings.threaded.is_none() {
        // Threads that were asked for stay, also if this process hangs.
        guarded.knobs.set_heartbeat(keeper.heartbeat());
    }
    if settings.stands_by() && !is_given {
        console.log(format!("interface={interface} {STANDS_BY}"));
    }
    let ledger = LedgerReader::begin(&interface, || guarded.guard.counters())?;
    drop_capabilities(&settings.needs())?;

    let (sender, requests) = channel();
    let sender = Requests(sender);
    console
        .start(sender.clone())
        .map_err(SessionError::Console)?;
    let started = Instant::now();
    let answers = Answers::new(&interface, started, ledger, move || sender.snapshot());
    guarded.status = Some(StatusServer::start(&interface, answers.clone())?);
    if let Some(page) = metrics {
        page.serve(&interface, started, answers)?;
    }
    // From here on it must get on whatever the network does.
    outlive_overload()?;
    guarded.begin()?;
    manager.ready();
    serve(settings, guarded, console, &requests, started, &manager)
}

/// That the interface is not where packets come in, or not alone. Not to know it is no
/// reason not to guard.
fn warning(interface: &str) -> Option<String> {
    let warning = stacking::warning(interface);
    warning.unwrap_or_else(|error| Some(with_causes(&error)))
}

/// Makes ready to attach the program, which knows who was `known` before. A link that a guard before
/// handed on gets it at once.
fn load<'obj>(
    settings: &Settings,
    mut knobs: Knobs,
    before: Option<OwnedFd>,
    known: Option<&KnownSources>,
    storage: &'obj mut Storage,
) -> Result<Guarded<'obj>, Error> {
    threads::check(settings)?;
    allow_driver(&mut knobs, settings)?;
    let governor = Governor::new(&settings.interface, settings.governor())?;
    if before.is_none() {
        // A service manager tries again for ever, and what follows is dear.
        let interface = &settings.interface;
        PassAll::require(interface, link::index(interface)?)?;
    }
    let mut guard = Guard::load(storage, &settings.guard)?;
    if let Some(known) = known {
        guard.program.remember(known);
    }
    guard.protect(&settings.protection)?;
    match settings.stands_by() {
        true => guard.stand_by(before, &settings.interface)?,
        false => guard.prepare(before, &settings.interface)?,
    }
    let standing = Standing::start(settings, guard.is_attached())?;
    let mut guarded = Guarded::new(settings.clone(), knobs, guard, governor);
    guarded.standing = standing;
    Ok(guarded)
}

/// Refuses now what would be refused in overload.
fn allow_driver(knobs: &mut Knobs, settings: &Settings) -> Result<(), TurnError> {
    knobs.allow_any_driver(settings.any_driver);
    match settings.polls_in_threads() {
        true => knobs.check_driver(),
        false => Ok(()),
    }
}

/// Who was known to the guard before. What goes wrong is told, and no reason not to guard.
fn known_before(settings: &Settings, console: &mut dyn Console) -> Option<KnownSources> {
    let file = KnownFile(settings.known_sources_file.clone()?);
    file.read().unwrap_or_else(|error| {
        let (interface, problem) = (&settings.interface, with_causes(&error));
        console.log(format!("interface={interface} {problem}"));
        None
    })
}

/// Keeps who is known for the next guard. What goes wrong is returned to be told.
fn keep_known(guarded: &mut Guarded<'_>, file: &KnownFile) -> Option<String> {
    let known = guarded.guard.program.known_sources();
    file.write(&known).err().map(|error| with_causes(&error))
}

/// The time from the start to the end.
fn serve(
    settings: Settings,
    guarded: Guarded<'_>,
    console: &mut dyn Console,
    requests: &Receiver<Request>,
    started: Instant,
    manager: &ServiceManager,
) -> Result<(), SessionError> {
    let interface = settings.interface.clone();
    let known = settings.known_sources_file.clone().map(KnownFile);
    let (ended, mut guarded, last) = {
        let mut turns = Turns::new(settings, guarded, console, started);
        let ended = turns.run(requests).map_err(SessionError::Console)?;
        let (guarded, last) = turns.into_parts();
        (ended, guarded, last)
    };
    if let Some(problem) = known.and_then(|file| keep_known(&mut guarded, &file)) {
        console.log(format!("interface={interface} {problem}"));
    }
    if let Err(error) = guarded.end(manager) {
        console.log(format!("interface={interface} {}", with_causes(&error)));
    }
    if let Some(snapshot) = last {
        let report = Report {
            interface: &interface,
            uptime: started.elapsed(),
            snapshot: &snapshot,
        };
        console.finish(&report).map_err(SessionError::Console)?;
    }
    match ended {
        Ended::AsAsked => Ok(()),
        Ended::InterfaceGone => Err(SessionError::InterfaceGone { interface }),
    }
}
