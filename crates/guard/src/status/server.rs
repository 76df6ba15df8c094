//! Answers over a Unix socket: one question, one answer, both JSON, per
//! connection.

use std::fmt;
use std::fs::{self, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::sleep;
use std::time::{Duration, Instant};

use super::document::{Request, Status};
use super::reader::{Latest, Reader, Snapshot};
use crate::error::Error;
use crate::ledger::LedgerReader;
use plimsoll_kernel::error::os;
use plimsoll_kernel::privileges::{answer_soon, start_thread};

/// One client is served at a time; one that dawdles holds up others so long.
const CLIENT_PATIENCE: Duration = Duration::from_secs(1);
/// Before another client is taken, where one could not be.
const PAUSE: Duration = Duration::from_millis(100);
/// Longest question, bytes.
const QUESTION_MAX: u64 = 4096;
/// Another snapshot is taken for a question this long after the last one.
const FRESH: Duration = Duration::from_millis(100);

type ReadSnapshot = Box<dyn Fn() -> Option<Snapshot> + Send>;

struct Shared {
    reader: Reader,
    ledger: LedgerReader,
    read: ReadSnapshot,
    latest: Option<Arc<Latest>>,
}

impl Shared {
    fn read(&mut self) -> Option<Latest> {
        let begun = self.ledger.start();
        let at = Instant::now();
        let mut snapshot = (self.read)()?;
        let ledger = self
            .ledger
            .ledger(begun, &snapshot.counters, &snapshot.observed);
        if let Some(sources) = snapshot.sources.take() {
            sources.tell(&mut snapshot.counters);
        }
        Some(Latest {
            at,
            snapshot,
            ledger,
        })
    }
}

/// Answers to whoever asks, from one place.
#[derive(Clone)]
pub struct Answers {
    shared: Arc<Mutex<Shared>>,
}

impl fmt::Debug for Answers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Answers").finish_non_exhaustive()
    }
}

impl Answers {
    /// Answers about the guard of `interface` that started at `started`, with
    /// its `ledger`, and counters from `read`, which returns `None` when the
    /// guard ends.
    pub fn new(
        interface: &str,
        started: Instant,
        ledger: LedgerReader,
        read: impl Fn() -> Option<Snapshot> + Send + 'static,
    ) -> Self {
        let shared = Shared {
            reader: Reader::new(interface, started),
            ledger,
            read: Box::new(read),
            latest: None,
        };
        Self {
            shared: Arc::new(Mutex::new(shared)),
        }
    }

    /// Answers one question; `None` when the guard ends.
    pub(crate) fn status(&self, request: Request) -> Option<Status> {
        self.with_latest(|reader, latest| reader.status(latest, request))
    }

    /// Calls `f` with what was read now or a moment ago.
    pub(crate) fn with_latest<T>(
        &self,
        f: impl FnOnce(&mut Reader, &Arc<Latest>) -> T,
    ) -> Option<T> {
        // A panic of another thread leaves nothing half done here.
        let mut shared = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
        let shared = &mut *shared;
        let fresh = |latest: &Arc<Latest>| latest.at.elapsed() < FRESH;
        if !shared.latest.as_ref().is_some_and(fresh) {
            shared.latest = Some(Arc::new(shared.read()?));
        }
        Some(f(&mut shared.reader, shared.latest.as_ref()?))
    }
}

/// The socket of a running guard; dropping it removes the socket.
#[derive(Debug)]
pub struct StatusServer {
    path: PathBuf,
}

impl StatusServer {
    /// Listens for questions about `interface`, readable by root only. Whoever
    /// holds its [`plimsoll_kernel::Knobs`] may call this: a socket that is there is a
    /// dead one's.
    ///
    /// # Errors
    ///
    /// The socket cannot be made.
    pub fn start(interface: &str, answers: Answers) -> Result<Self, Error> {
        // From here on whatever fails removes it.
        let server = Self {
            path: super::socket_path(interface)?,
        };
        let path = &server.path;
        let listen = || -> io::Result<UnixListener> {
            match fs::remove_file(path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
            let listener = UnixListener::bind(path)?;
            fs::set_permissions(path, Permissions::from_mode(0o600))?;
            Ok(listener)
        };
        let listener = listen().map_err(os("listen for questions about the guard's status"))?;
        start_thread(move || {
            answer_soon();
            loop {
                match listener.accept() {
                    // A client that goes away is nobody's error.
                    Ok((stream, _)) => drop(answer(stream, &answers)),
                    // Too many open files, for instance: others may close theirs.
                    Err(_) => sleep(PAUSE),
                }
            }
        })?;
        Ok(server)
    }
}

impl Drop for StatusServer {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

fn answer(mut stream: UnixStream, answers: &Answers) -> io::Result<()> {
    stream.set_read_timeout(Some(CLIENT_PATIENCE))?;
    stream.set_write_timeout(Some(CLIENT_PATIENCE))?;
    let mut question = Vec::new();
    (&stream).take(QUESTION_MAX).read_to_end(&mut question)?;
    let request: Request = serde_json::from_slice(&question)?;
    if let Some(status) = answers.status(request) {
        stream.write_all(&serde_json::to_vec(&status)?)?;
    }
    Ok(())
}
