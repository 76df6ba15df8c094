//! Interrupts of the queue wait a little under load: the kernel polls again by a timer.
//!
//! Each interrupt costs a busy host more than the frames it brings. After a poll that found
//! frames the kernel polls again when the holdoff is over, and only after some empty polls do
//! interrupts come back on (`Documentation/networking/napi.rst`). So frames that come while
//! nothing happens still interrupt at once.
//!
//! The old values are on disk before they are changed, as the guard does it, and are put back
//! when the interface is dropped. See [`XdpConfig::holdoff`](super::XdpConfig::holdoff) for
//! what happens if the program is killed.

use std::fmt;
use std::io;
use std::time::Duration;

use parking_lot::Mutex;
use plimsoll_kernel::knobs::{Device, Knobs, Queues, TurnError};

use crate::error::Error;

/// Empty polls until interrupts come back on.
const EMPTY_POLLS: u32 = 2;

/// A queue's holdoff in force. Dropping it puts the old one back.
pub(super) struct Holdoff {
    /// Nobody asks for it; with the lock it may be in a device that threads share.
    _knobs: Mutex<Knobs>,
}

impl fmt::Debug for Holdoff {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Holdoff").finish_non_exhaustive()
    }
}

impl Holdoff {
    /// Sets that of one queue. A driver that knows no queues apart has one for all, which is
    /// set only if there is one queue.
    pub(super) fn set(
        interface: &str,
        ifindex: u32,
        queue: u32,
        holdoff: Duration,
    ) -> Result<Self, Error> {
        let refused = |error: Box<dyn std::error::Error + Send + Sync>| {
            Error::io(format!("set the holdoff of {interface}"))(io::Error::other(error))
        };
        let device = Device::open(interface, ifindex).map_err(|error| refused(error.into()))?;
        let alone = device.receive_queues().is_ok_and(|queues| queues == 1);
        let mut knobs = Knobs::open(interface).map_err(|error| refused(error.into()))?;
        let set = match knobs.set_holdoff(Queues::Only(&[queue]), EMPTY_POLLS, holdoff) {
            Err(TurnError::NoSuchQueue { .. }) if alone => {
                knobs.set_holdoff(Queues::All, EMPTY_POLLS, holdoff)
            }
            set => set,
        };
        set.map_err(|error| refused(error.into()))?;
        Ok(Self {
            _knobs: Mutex::new(knobs),
        })
    }
}
