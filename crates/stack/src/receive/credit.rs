//! How many frames the device may have to receive into: less while sockets' queues overflow.
//!
//! Every frame that is taken from the device and dropped at a full queue was work for nothing.
//! Frames that the device does not have it cannot fill: it drops what comes, at its own cost
//! ([`BufferCredit`]; Macpherson & Heiser, section 6.3).
//!
//! **No harm.** It is off unless asked for. One socket that nobody reads costs the others
//! nothing within the tolerated loss. After an idle moment the device has everything again, so
//! that a burst after a pause finds room.

use std::sync::atomic::Ordering;
use std::time::Duration;

use plimsoll_core::holdoff::{BufferCredit, CreditConfig, TurnDrops};
use plimsoll_core::time::Instant;

use crate::error::Error;
use crate::host::Host;
use crate::outcome::Tally;

/// What is dropped is looked at so often.
const EVERY: Duration = Duration::from_millis(1);
/// A receiver that had nothing to do for so long was idle.
const IDLE: Duration = Duration::from_millis(50);

/// The credit of a stack's device.
#[derive(Debug)]
pub(super) struct Credit {
    config: CreditConfig,
    control: BufferCredit,
    looked_at: Instant,
    /// Both so far.
    packets: u64,
    dropped: u64,
}

impl Credit {
    /// The device gets all of it.
    pub(super) fn new(config: &CreditConfig, host: &Host) -> Result<Self, Error> {
        let credit = Self {
            config: *config,
            control: BufferCredit::new(config)?,
            looked_at: Instant::ZERO,
            packets: 0,
            dropped: 0,
        };
        if !host.device.set_credit(config.max) {
            return Err(Error::Unsupported {
                what: "this device".to_owned(),
                feature: "a receive-buffer credit",
                remedy: "take AF_XDP, or leave `credit` out",
            });
        }
        host.credit.store(config.max, Ordering::Relaxed);
        Ok(credit)
    }

    /// A turn of the receiving thread is over.
    pub(super) fn on_turn(&mut self, host: &Host, tally: &Tally, now: Instant) {
        let since = now.saturating_since(self.looked_at);
        if since < EVERY {
            return;
        }
        let (packets, dropped) = (tally.received_so_far(), host.table.lock().discarded());
        let drops = TurnDrops {
            packets: packets - self.packets,
            dropped: dropped.saturating_sub(self.dropped),
            cpu_was_idle: false,
        };
        (self.packets, self.dropped, self.looked_at) = (packets, dropped, now);
        // The config was valid before.
        let anew = (since >= IDLE).then(|| BufferCredit::new(&self.config).ok());
        if let Some(control) = anew.flatten() {
            self.control = control;
        }
        let credit = self.control.on_turn(drops);
        if host.credit.swap(credit, Ordering::Relaxed) != credit {
            host.device.set_credit(credit);
        }
    }
}
