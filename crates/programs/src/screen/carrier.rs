//! Whether an interface can send, as the kernel says now and then.
//!
//! Without a carrier the kernel drops what is sent, and tells nobody. Frames for an interface that
//! is down stay in the socket's ring, and leave when it is up again, however old they are. So
//! nothing is sent while either is the case.
//!
//! Limit: what is sent until the next look has that fate still.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use plimsoll_core::time::Instant;
use plimsoll_kernel::clock::monotonic_ns;
use plimsoll_kernel::knobs::{Device, LinkState};
use plimsoll_kernel::link;

/// How often the kernel is asked. It answers in a few microseconds.
const LOOK: Duration = Duration::from_millis(1);

#[derive(Debug)]
pub(super) struct Carrier {
    /// `None` where the kernel does not tell.
    state: Option<LinkState>,
    known: Known,
}

impl Carrier {
    /// Of an interface of this network namespace.
    pub(super) fn of(interface: &str) -> Self {
        let device = link::index(interface).ok();
        let device = device.and_then(|index| Device::open(interface, index).ok());
        Self {
            state: device.and_then(|device| device.link_state().ok()),
            known: Known::default(),
        }
    }

    /// Whether nothing is to be sent now. An interface that is gone tells that to whoever sends.
    pub(super) fn is_down(&self) -> bool {
        let Some(state) = &self.state else {
            return false;
        };
        let now = Instant::from_nanos(monotonic_ns());
        self.known.is_down(now, || state.is_down())
    }
}

/// The last answer. Two threads may ask at once.
#[derive(Debug, Default)]
struct Known {
    is_down: AtomicBool,
    /// Nanoseconds.
    look_at: AtomicU64,
}

impl Known {
    fn is_down(&self, now: Instant, ask: impl FnOnce() -> io::Result<bool>) -> bool {
        if now.as_nanos() >= self.look_at.load(Ordering::Relaxed) {
            let next = (now + LOOK).as_nanos();
            self.look_at.store(next, Ordering::Relaxed);
            self.is_down
                .store(ask().unwrap_or(false), Ordering::Relaxed);
        }
        self.is_down.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_is_asked_once_in_a_while() {
        let known = Known::default();
        let at = |micros: u64| Instant::from_nanos(1_000_000_000 + micros * 1000);
        let never = || panic!("it was asked a moment ago");
        assert!(known.is_down(at(0), || Ok(true)));
        assert!(known.is_down(at(999), never));
        assert!(!known.is_down(at(1000), || Ok(false)));
        assert!(!known.is_down(at(1999), never));
        assert!(known.is_down(at(2000), || Ok(true)));
        let gone = || Err(io::ErrorKind::NotFound.into());
        assert!(!known.is_down(at(3000), gone), "who sends is told");
    }
}
