//! Threaded polling: the interface's receive work as a thread the scheduler
//! sees, with a nice level (Mogul & Ramakrishnan's polling thread at level 0,
//! section 5.3, option B), or with real-time priority.
//!
//! Softirq work outranks every process. As a thread it competes with them, so
//! a flood leaves CPU to the server it is meant for. The nice level is the
//! share: at 19 the flooded server keeps most of its goodput but bystanders
//! starve; at 0 bystanders are safe and goodput is lower.
//!
//! Limits: before Linux 6.17 the switch is the whole interface's
//! (`/sys/class/net/*/threaded`). Instances that the driver makes anew are not
//! polled by threads until this is done again, which the governor does.

use std::io;
use std::thread::sleep;
use std::time::Duration;

use crate::error::{TurnError, os};
use crate::knobs::{Knobs, PollingThread};
use crate::scheduling::Priority;

/// A driver may start its threads a moment after the switch.
const THREAD_WAIT: Duration = Duration::from_millis(10);
const THREAD_TRIES: u32 = 50;

/// Switches the interface to threaded polling and sets its threads' priority
/// and, if given, the only CPU they may run on.
///
/// # Errors
///
/// The interface has no such switch, its driver starts no thread, or the
/// kernel refuses a change. What was changed by then is restored with `knobs`.
pub fn poll_in_threads(
    knobs: &mut Knobs,
    priority: Priority,
    cpu: Option<usize>,
) -> Result<(), TurnError> {
    knobs.set_threaded(true)?;
    for thread in wait_for_threads(knobs)? {
        knobs.set_thread_priority(thread.tid, priority)?;
        if let Some(cpu) = cpu {
            knobs.set_thread_cpus(thread.tid, &[cpu])?;
        }
    }
    Ok(())
}

fn wait_for_threads(knobs: &mut Knobs) -> Result<Vec<PollingThread>, TurnError> {
    for _ in 0..THREAD_TRIES {
        let threads = knobs.polling_threads()?;
        if !threads.is_empty() {
            return Ok(threads);
        }
        sleep(THREAD_WAIT);
    }
    let source = io::Error::new(
        io::ErrorKind::NotFound,
        "none is reported: the interface must be up, and Linux 6.8 or newer",
    );
    Err(os("find the interface's polling threads")(source).into())
}
