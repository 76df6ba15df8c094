//! Keeps the tables like the kernel's: a thread of its own that takes in what rtnetlink
//! tells.

use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use parking_lot::Mutex;
use plimsoll_kernel::routing::{Change, Counters, Mirror};

use super::error::Error;
use super::router::Attached;
use super::tables::Tables;

/// How often the mirror is compared with the kernel.
const COMPARISON: Duration = Duration::from_secs(30);
/// How soon the end of the router, and what is due, are noticed.
const LOOK_MS: u16 = 50;
/// How soon IPsec policies are noticed, and what drivers take.
const SECOND_LOOK: Duration = Duration::from_secs(1);
/// Between two attempts when the kernel does not answer.
const PAUSE: Duration = Duration::from_secs(1);

/// The following thread; dropping it ends it.
#[derive(Debug)]
pub(super) struct Follower {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Shared {
    stop: AtomicBool,
    counters: Mutex<Counters>,
}

impl Follower {
    /// Keeps `tables` and what `attached` knows of the kernel's state like `mirror`.
    pub(super) fn start(
        mirror: Mirror,
        mut tables: Tables,
        attached: Arc<Attached>,
    ) -> Result<Self, Error> {
        let shared = Arc::new(Shared::default());
        *shared.counters.lock() = mirror.counters();
        let seen = Arc::clone(&shared);
        let thread = thread::Builder::new()
            .name("follow".to_owned())
            .spawn(move || follow(mirror, &mut tables, &attached, &seen))
            .map_err(Error::os(
                "start the thread that follows the kernel's routes",
            ))?;
        Ok(Self {
            shared,
            thread: Some(thread),
        })
    }

    /// How the mirror fares.
    pub(super) fn counters(&self) -> Counters {
        *self.shared.counters.lock()
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // A panic there has been printed.
            let _ = thread.join();
        }
    }
}

fn follow(mut mirror: Mirror, tables: &mut Tables, attached: &Attached, shared: &Shared) {
    let mut compare_at = Instant::now() + COMPARISON;
    let (mut has_missed, mut look_at) = (false, Instant::now() + SECOND_LOOK);
    while !shared.stop.load(Ordering::Relaxed) {
        let mut wanted = [PollFd::new(mirror.as_fd(), PollFlags::POLLIN)];
        // An interrupted wait is a short one.
        let _ = poll(&mut wanted, PollTimeout::from(LOOK_MS));
        if Instant::now() >= look_at {
            look_at = Instant::now() + SECOND_LOOK;
            attached.check_ipsec();
            // An interface that has gone meanwhile.
            let _ = attached.offer_devices();
        }
        let changes = if Instant::now() >= compare_at {
            compare_at = Instant::now() + COMPARISON;
            mirror.compare()
        } else {
            mirror.poll()
        };
        take_or_miss(changes, &mut has_missed, |changes| {
            take(changes, &mirror, tables, attached)
        });
        *shared.counters.lock() = mirror.counters();
        if has_missed {
            compare_at = Instant::now();
            thread::sleep(PAUSE);
        }
    }
}

/// After an error all is taken in anew: comparing finds neither switches, which the mirror does not
/// hold, nor what the mirror has and the others lack.
fn take_or_miss(
    changes: io::Result<Vec<Change>>,
    has_missed: &mut bool,
    take: impl FnOnce(&[Change]) -> io::Result<()>,
) {
    let taken = changes.and_then(|changes| match *has_missed {
        true => take(&[Change::Everything]),
        false => take(&changes),
    });
    *has_missed = taken.is_err();
}

fn take(
    changes: &[Change],
    mirror: &Mirror,
    tables: &mut Tables,
    attached: &Attached,
) -> io::Result<()> {
    if changes.is_empty() {
        return Ok(());
    }
    let is_everything = changes.contains(&Change::Everything);
    if is_everything {
        attached.check_way_to_kernel();
    }
    let switches = is_everything.then(|| attached.switches());
    let was_told = has_told(changes, tables);
    tables.change(|table| {
        for change in changes {
            table.apply(*change, mirror.state());
        }
        table.set_switches(switches.as_deref().unwrap_or_default());
    });
    if is_everything || was_told || has_told(changes, tables) {
        attached.take(tables.newest()).map_err(io::Error::other)?;
    }
    Ok(())
}

/// Whether something that the driver's program is told of is among what changes.
fn has_told(changes: &[Change], tables: &Tables) -> bool {
    let table = tables.newest();
    let mut prefixes = changes.iter().filter_map(|change| match change {
        Change::Routes(prefix) => Some(*prefix),
        Change::Neighbour(_) | Change::Everything => None,
    });
    prefixes.any(|prefix| table.is_told(prefix))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A switch that was turned before an error was forgotten, and packets were forwarded on.
    #[test]
    fn what_an_error_kept_from_being_taken_is_taken_with_the_next_changes() {
        let mut has_missed = false;
        let mut taken = |changes, error: Option<io::Error>| {
            let mut taken = None;
            take_or_miss(changes, &mut has_missed, |changes| {
                taken = Some(changes.to_vec());
                error.map_or(Ok(()), Err)
            });
            taken
        };
        let error = || io::Error::from(io::ErrorKind::OutOfMemory);
        let everything = Some(vec![Change::Everything]);
        assert_eq!(taken(Ok(Vec::new()), None), Some(Vec::new()));
        // The mirror cannot read.
        assert_eq!(taken(Err(error()), None), None);
        assert_eq!(taken(Err(error()), None), None);
        assert_eq!(taken(Ok(Vec::new()), None), everything);
        assert_eq!(taken(Ok(Vec::new()), None), Some(Vec::new()), "once");
        // The programs cannot be told.
        assert_eq!(
            taken(Ok(vec![Change::Everything]), Some(error())),
            everything
        );
        assert_eq!(taken(Ok(Vec::new()), Some(error())), everything);
        assert_eq!(taken(Ok(Vec::new()), None), everything);
        assert_eq!(taken(Ok(Vec::new()), None), Some(Vec::new()), "once");
    }
}
