//! SIGINT and SIGTERM as a process-wide flag that every wait of this crate
//! honours, so that callers unwind and `Drop` takes the testbed down.
//!
//! The flag is never cleared: a process that was told to end, ends.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use signal_hook::consts::{SIGINT, SIGTERM};

use crate::Error;

static FLAG: OnceLock<Arc<AtomicBool>> = OnceLock::new();

/// How often a wait looks at the flag.
const LOOK: Duration = Duration::from_millis(10);

/// Catches SIGINT and SIGTERM from now on. [`crate::Testbed::create`] does so
/// too; any number of calls is fine.
///
/// # Errors
///
/// [`Error::Io`] if the handlers cannot be installed.
pub fn install() -> Result<(), Error> {
    if FLAG.get().is_some() {
        return Ok(());
    }
    let flag = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&flag))
            .map_err(Error::io("catch SIGINT and SIGTERM"))?;
    }
    // Lost to another thread: both flags' handlers are installed, one is read.
    let _ = FLAG.set(flag);
    Ok(())
}

/// Whether SIGINT or SIGTERM has arrived since [`install`].
#[must_use]
pub fn requested() -> bool {
    FLAG.get().is_some_and(|flag| flag.load(Ordering::Relaxed))
}

/// Ends all that looks at the flag, as SIGINT does.
pub(crate) fn request() {
    if let Some(flag) = FLAG.get() {
        flag.store(true, Ordering::Relaxed);
    }
}

/// Fails once SIGINT or SIGTERM has arrived. For loops that do not sleep.
///
/// # Errors
///
/// [`Error::Interrupted`].
pub fn check() -> Result<(), Error> {
    if requested() {
        Err(Error::Interrupted)
    } else {
        Ok(())
    }
}

/// Sleeps for `span`, or until SIGINT or SIGTERM arrives.
///
/// # Errors
///
/// [`Error::Interrupted`], within 10 ms of the signal.
pub fn sleep(span: Duration) -> Result<(), Error> {
    let end = Instant::now() + span;
    loop {
        check()?;
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(());
        }
        std::thread::sleep(left.min(LOOK));
    }
}

/// Asks `done` every few milliseconds until it has an answer.
///
/// # Errors
///
/// [`Error::Timeout`] naming `what` after `limit`, [`Error::Interrupted`], or
/// whatever `done` fails with.
pub fn wait_for<T>(
    what: &str,
    limit: Duration,
    mut done: impl FnMut() -> Result<Option<T>, Error>,
) -> Result<T, Error> {
    let end = Instant::now() + limit;
    loop {
        if let Some(answer) = done()? {
            return Ok(answer);
        }
        if Instant::now() >= end {
            return Err(Error::Timeout {
                what: what.to_owned(),
                after: limit,
            });
        }
        sleep(LOOK / 5)?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiting_ends_with_the_answer_or_names_what_did_not_happen() {
        let mut asked = 0;
        let answer = wait_for("three", Duration::from_secs(5), || {
            asked += 1;
            Ok((asked == 3).then_some(asked))
        });
        assert_eq!(answer.unwrap(), 3);
        let error = wait_for("rain", Duration::from_millis(5), || Ok(None::<()>)).unwrap_err();
        assert!(
            error
                .to_string()
                .starts_with("rain did not happen within 5ms")
        );
    }
}
