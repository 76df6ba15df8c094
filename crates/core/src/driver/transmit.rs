//! Transmit slots with one held in reserve for urgent small messages.
//!
//! Intuition: a message of a few dozen bytes that somebody waits for should not
//! queue behind bulk data. It bypasses the high-level queue and goes straight
//! into a low-level buffer, of which some are kept free for it: two priorities
//! at the level of frames. Its length is agreed beforehand, so nothing is
//! computed on the way (Tracey & Banerji, section 3.4).
//!
//! With no slot in reserve (the other configuration of the paper) an urgent
//! message still bypasses the queue, but may have to wait for a slot.
//!
//! When it loses: slots in reserve are taken from bulk throughput. Urgent
//! messages that are not rare starve everybody else: that is what priority is.

use crate::config::{ConfigError, Field};

/// How the slots are divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TransmitConfig {
    /// Low-level transmit buffers, at least 1.
    pub slots: u32,
    /// Of those, how many are only for urgent messages; fewer than all.
    pub reserved: u32,
    /// Bytes that a buffer holds, at least 1.
    pub buffer_bytes: u32,
    /// Length of every urgent message, from 1 to `buffer_bytes`.
    pub urgent_bytes: u32,
}

impl TransmitConfig {
    /// Whether the slots can be divided so.
    ///
    /// # Errors
    /// Names the first field that is out of its range.
    pub fn validate(&self) -> Result<(), ConfigError> {
        Field("slots", self.slots).must_be_in(1.., "at least 1")?;
        Field("reserved", self.reserved).must_be_in(..self.slots, "fewer than the slots")?;
        Field("buffer_bytes", self.buffer_bytes).must_be_in(1.., "at least 1")?;
        Field("urgent_bytes", self.urgent_bytes)
            .must_be_in(1..=self.buffer_bytes, "from 1 to buffer_bytes")
    }
}

/// The slots of one adapter.
#[derive(Debug)]
pub struct TransmitSlots {
    free: u32,
    slots: u32,
    reserved: u32,
    urgent_bytes: u32,
}

impl TransmitSlots {
    /// All slots free.
    ///
    /// # Errors
    /// If the config does not [validate](TransmitConfig::validate).
    pub fn new(config: &TransmitConfig) -> Result<Self, ConfigError> {
        config.validate()?;
        Ok(Self {
            free: config.slots,
            slots: config.slots,
            reserved: config.reserved,
            urgent_bytes: config.urgent_bytes,
        })
    }

    /// A slot for the frame at the head of the high-level queue, if one is free
    /// beyond the reserve. If not, it waits for
    /// [`on_completion`](Self::on_completion).
    #[must_use]
    pub fn claim_queued(&mut self) -> bool {
        self.claim(self.reserved)
    }

    /// A slot for an urgent message, ahead of everything queued: the length to
    /// send, known to fit. `None` if all slots are in use; wait or try again.
    #[must_use]
    pub fn claim_urgent(&mut self) -> Option<u32> {
        self.claim(0).then_some(self.urgent_bytes)
    }

    /// The adapter has finished with `frames` frames; more than are in use counts
    /// as all of them. How many queued frames may go now.
    pub fn on_completion(&mut self, frames: u32) -> u32 {
        self.free = self.free.saturating_add(frames).min(self.slots);
        self.free.saturating_sub(self.reserved)
    }

    fn claim(&mut self, keep: u32) -> bool {
        let free = self.free > keep;
        self.free -= u32::from(free);
        free
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const CONFIG: TransmitConfig = TransmitConfig {
        slots: 4,
        reserved: 1,
        buffer_bytes: 1514,
        urgent_bytes: 60,
    };

    #[test]
    fn bulk_data_never_takes_the_last_slot() {
        let mut slots = TransmitSlots::new(&CONFIG).unwrap();
        let sent = (0..10).filter(|_| slots.claim_queued()).count();
        assert_eq!(sent, 3);
        assert_eq!(slots.claim_urgent(), Some(60), "without waiting");
        assert_eq!(slots.claim_urgent(), None);
        assert_eq!(slots.on_completion(1), 0, "the reserve is refilled first");
        assert!(!slots.claim_queued());
        assert_eq!(slots.on_completion(1), 1);
        assert!(slots.claim_queued());
    }

    #[test]
    fn without_a_reserve_urgent_messages_wait_like_others() {
        let mut slots = TransmitSlots::new(&TransmitConfig {
            reserved: 0,
            ..CONFIG
        })
        .unwrap();
        assert_eq!((0..10).filter(|_| slots.claim_queued()).count(), 4);
        assert_eq!(slots.claim_urgent(), None);
        assert_eq!(slots.on_completion(99), 4, "as many as there are");
    }

    #[test]
    fn configs_say_what_is_wrong() {
        let field = |config| TransmitSlots::new(&config).unwrap_err().field;
        assert_eq!(field(TransmitConfig { slots: 0, ..CONFIG }), "slots");
        assert_eq!(
            field(TransmitConfig {
                reserved: 4,
                ..CONFIG
            }),
            "reserved"
        );
        assert_eq!(
            field(TransmitConfig {
                buffer_bytes: 0,
                ..CONFIG
            }),
            "buffer_bytes"
        );
        assert_eq!(
            field(TransmitConfig {
                urgent_bytes: 1515,
                ..CONFIG
            }),
            "urgent_bytes"
        );
    }

    proptest! {
        #[test]
        fn slots_are_conserved(ops in prop::collection::vec(0_u8..3, 1..300), reserved in 0_u32..8) {
            let mut slots = TransmitSlots::new(&TransmitConfig { slots: 8, reserved, ..CONFIG }).unwrap();
            let mut in_use = 0_u32;
            for op in ops {
                match op {
                    0 => {
                        let granted = slots.claim_queued();
                        prop_assert_eq!(granted, 8 - in_use > reserved);
                        in_use += u32::from(granted);
                    }
                    1 => {
                        let granted = slots.claim_urgent().is_some();
                        prop_assert_eq!(granted, in_use < 8);
                        in_use += u32::from(granted);
                    }
                    _ => {
                        in_use = in_use.saturating_sub(2);
                        prop_assert_eq!(slots.on_completion(2), (8 - in_use).saturating_sub(reserved));
                    }
                }
            }
        }
    }
}
