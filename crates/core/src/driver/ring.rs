//! The circular descriptor list that driver and adapter share.
//!
//! Intuition: the adapter keeps a list of descriptors in its own memory, and the
//! driver keeps arrays beside it that say what each descriptor must be: where it
//! lies, and its buffer's address as the bus and as the host see it (Tracey &
//! Banerji, section 2). The mapping of addresses is set up once. So nothing that
//! the adapter writes has to be believed: it can only say *done*, and how many
//! bytes. Everything else is compared with what the driver knows.
//!
//! A buffer is the device's from [`give`](DescriptorRing::give) to
//! [`complete`](DescriptorRing::complete), the host's until
//! [`release`](DescriptorRing::release), and free then. What `complete` returns
//! is the only way to a range of bytes, and it is within the buffer.
//!
//! Limits: the adapter completes descriptors in the order of the list. Rings that
//! do not (`AF_XDP` completions) have their own checks.
//!
//! When it loses: three comparisons per packet against an adapter that is
//! always right.

use alloc::vec::Vec;
use core::fmt;
use core::ops::Range;

use crate::config::{ConfigError, Field};

/// The shape of a list and its buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingConfig {
    /// Descriptors in the list, at least 1, one buffer each.
    pub descriptors: u32,
    /// Bytes of a buffer, at least 1.
    pub buffer_bytes: u32,
    /// Where the first buffer lies in the bus's address space; the others follow
    /// without gaps.
    pub bus_address: u64,
    /// Where the first descriptor lies in the adapter's memory.
    pub card_offset: u32,
    /// Bytes of a descriptor there, at least 1; the others follow without gaps.
    pub descriptor_bytes: u32,
}

impl RingConfig {
    /// Whether such a list can exist.
    ///
    /// # Errors
    /// Names the first field that is out of its range.
    pub fn validate(&self) -> Result<(), ConfigError> {
        Field("descriptors", self.descriptors).must_be_in(1.., "at least 1")?;
        Field("buffer_bytes", self.buffer_bytes).must_be_in(1.., "at least 1")?;
        let buffers = u64::from(self.descriptors) * u64::from(self.buffer_bytes);
        Field("buffer_bytes", self.buffer_bytes).must_be(
            usize::try_from(buffers).is_ok(),
            "such that all buffers fit into memory",
        )?;
        Field("bus_address", self.bus_address)
            .must_be_in(..=u64::MAX - buffers, "such that all buffers fit behind it")?;
        Field("descriptor_bytes", self.descriptor_bytes).must_be_in(1.., "at least 1")?;
        let list = u64::from(self.descriptors) * u64::from(self.descriptor_bytes);
        Field("card_offset", self.card_offset).must_be(
            u64::from(self.card_offset) + list <= u32::MAX.into(),
            "such that all descriptors fit behind it",
        )
    }
}

/// A descriptor as it stands in the adapter's memory. Whoever reads one must not
/// believe it; see [`DescriptorRing::complete`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceDescriptor {
    /// Where the next descriptor of the list lies.
    pub next: u32,
    /// [`Self::DEVICE_OWNS`] and [`Self::FAILED`].
    pub status: u32,
    /// Bytes in the buffer.
    pub byte_count: u32,
    /// The buffer's address on the bus.
    pub buffer: u64,
}

impl DeviceDescriptor {
    /// Status: the device has not finished with it.
    pub const DEVICE_OWNS: u32 = 1 << 31;
    /// Status: the transfer failed.
    pub const FAILED: u32 = 1 << 30;
}

/// What the driver knows of a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostDescriptor {
    /// Where it lies in the adapter's memory.
    pub card_offset: u32,
    /// Its buffer on the bus.
    pub bus_address: u64,
    /// Its buffer in the memory area of all buffers.
    pub system_offset: usize,
}

/// What an adapter claimed that cannot be. It is broken or lost its memory: reset
/// it. The ring is as it was before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DescriptorError {
    /// Completed a descriptor it was not given.
    NotGiven,
    /// Points to another buffer.
    WrongBuffer {
        /// What it must be.
        expected: u64,
        /// What it claims.
        claimed: u64,
    },
    /// Points to another next descriptor.
    WrongLink {
        /// What it must be.
        expected: u32,
        /// What it claims.
        claimed: u32,
    },
    /// More bytes than the buffer holds.
    TooLong {
        /// What the buffer holds.
        buffer_bytes: u32,
        /// What it claims.
        claimed: u32,
    },
}

impl fmt::Display for DescriptorError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the adapter is to be reset: it ")?;
        match self {
            Self::NotGiven => f.write_str("completed a descriptor it was not given"),
            Self::WrongBuffer { expected, claimed } => {
                write!(
                    f,
                    "used the buffer at {claimed:#x} instead of {expected:#x}"
                )
            }
            Self::WrongLink { expected, claimed } => {
                write!(f, "linked to {claimed:#x} instead of {expected:#x}")
            }
            Self::TooLong {
                buffer_bytes,
                claimed,
            } => write!(f, "put {claimed} bytes into {buffer_bytes}"),
        }
    }
}

impl core::error::Error for DescriptorError {}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Owner {
    Free,
    Device,
    Host,
}

/// A finished transfer: a buffer that is the host's, and the bytes in it.
///
/// Made only by [`DescriptorRing::complete`], so the range is known to be good.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "the buffer is lost to the device until it is released"]
pub struct Completion {
    index: usize,
    start: usize,
    length: u32,
    failed: bool,
}

impl Completion {
    /// The bytes, in the memory area of all buffers.
    #[must_use]
    pub fn bytes(&self) -> Range<usize> {
        self.start..self.start + self.length as usize
    }

    /// Whether the device says that the transfer failed.
    #[must_use]
    pub fn failed(&self) -> bool {
        self.failed
    }
}

/// The driver's side of a descriptor list, for one direction.
#[derive(Debug)]
pub struct DescriptorRing {
    buffer_bytes: u32,
    descriptors: Vec<HostDescriptor>,
    owners: Vec<Owner>,
    /// The next to give, and the oldest that the device has.
    give: usize,
    complete: usize,
}

impl DescriptorRing {
    /// A list with all buffers free.
    ///
    /// # Errors
    /// If the config does not [validate](RingConfig::validate).
    pub fn new(config: &RingConfig) -> Result<Self, ConfigError> {
        config.validate()?;
        let descriptor = |k: u32| {
            let offset = u64::from(k) * u64::from(config.buffer_bytes);
            HostDescriptor {
                card_offset: config.card_offset + k * config.descriptor_bytes,
                bus_address: config.bus_address + offset,
                system_offset: k as usize * config.buffer_bytes as usize,
            }
        };
        Ok(Self {
            buffer_bytes: config.buffer_bytes,
            descriptors: (0..config.descriptors).map(descriptor).collect(),
            owners: alloc::vec![Owner::Free; config.descriptors as usize],
            give: 0,
            complete: 0,
        })
    }

    /// The next free buffer becomes the device's: where the descriptor lies and
    /// what to write there. For transmission `byte_count` is the frame's length,
    /// for reception the room, both at most the buffer. `None` if no buffer is
    /// free or the count is too large.
    pub fn give(&mut self, byte_count: u32) -> Option<(HostDescriptor, DeviceDescriptor)> {
        if self.owners[self.give] != Owner::Free || byte_count > self.buffer_bytes {
            return None;
        }
        let descriptor = self.descriptors[self.give];
        self.owners[self.give] = Owner::Device;
        self.give = self.after(self.give);
        let written = DeviceDescriptor {
            next: self.descriptors[self.give].card_offset,
            status: DeviceDescriptor::DEVICE_OWNS,
            byte_count,
            buffer: descriptor.bus_address,
        };
        Some((descriptor, written))
    }

    /// The descriptor that the device will finish next, to be read from its
    /// `card_offset`. `None` if it has none.
    #[must_use]
    pub fn oldest_given(&self) -> Option<HostDescriptor> {
        let given = self.owners[self.complete] == Owner::Device;
        given.then(|| self.descriptors[self.complete])
    }

    /// What the device wrote to the [oldest](Self::oldest_given) descriptor:
    /// `None` if it has not finished. The buffer becomes the host's.
    ///
    /// # Errors
    /// If the device claims what cannot be.
    pub fn complete(
        &mut self,
        read: DeviceDescriptor,
    ) -> Result<Option<Completion>, DescriptorError> {
        let expected = self.oldest_given().ok_or(DescriptorError::NotGiven)?;
        if read.status & DeviceDescriptor::DEVICE_OWNS != 0 {
            return Ok(None);
        }
        if read.buffer != expected.bus_address {
            return Err(DescriptorError::WrongBuffer {
                expected: expected.bus_address,
                claimed: read.buffer,
            });
        }
        let index = self.complete;
        let next = self.after(index);
        let link = self.descriptors[next].card_offset;
        if read.next != link {
            return Err(DescriptorError::WrongLink {
                expected: link,
                claimed: read.next,
            });
        }
        if read.byte_count > self.buffer_bytes {
            return Err(DescriptorError::TooLong {
                buffer_bytes: self.buffer_bytes,
                claimed: read.byte_count,
            });
        }
        self.owners[index] = Owner::Host;
        self.complete = next;
        Ok(Some(Completion {
            index,
            start: expected.system_offset,
            length: read.byte_count,
            failed: read.status & DeviceDescriptor::FAILED != 0,
        }))
    }

    /// The host has finished with the buffer; it can be given again.
    ///
    /// # Panics
    /// If the completion is another ring's.
    #[allow(clippy::needless_pass_by_value)] // Taken, so that it cannot be used again.
    pub fn release(&mut self, completion: Completion) {
        let owner = self.owners.get_mut(completion.index);
        let owner = owner.filter(|owner| **owner == Owner::Host);
        *owner.expect("the completion is of this ring") = Owner::Free;
    }

    fn after(&self, index: usize) -> usize {
        if index + 1 == self.descriptors.len() {
            0
        } else {
            index + 1
        }
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use std::collections::VecDeque;
    use std::string::ToString;

    use proptest::prelude::*;

    use super::*;

    const CONFIG: RingConfig = RingConfig {
        descriptors: 3,
        buffer_bytes: 1514,
        bus_address: 0x1000_0000,
        card_offset: 0x100,
        descriptor_bytes: 16,
    };

    fn done(written: DeviceDescriptor, byte_count: u32) -> DeviceDescriptor {
        DeviceDescriptor {
            status: 0,
            byte_count,
            ..written
        }
    }

    #[test]
    fn a_buffer_goes_round() {
        let mut ring = DescriptorRing::new(&CONFIG).unwrap();
        let (host, written) = ring.give(1514).unwrap();
        assert_eq!((host.card_offset, host.bus_address), (0x100, 0x1000_0000));
        assert_eq!((written.next, written.buffer), (0x110, 0x1000_0000));
        assert_eq!(ring.complete(written), Ok(None), "not finished");
        let completion = ring.complete(done(written, 60)).unwrap().unwrap();
        assert_eq!(completion.bytes(), 0..60);
        assert!(!completion.failed());
        // The two others, and then the first is still in the host's hands.
        let (_, second) = ring.give(1514).unwrap();
        let (third, last) = ring.give(1514).unwrap();
        assert_eq!((third.system_offset, last.next), (3028, 0x100));
        assert_eq!(ring.give(1514), None);
        ring.release(completion);
        assert!(ring.give(1514).is_some());
        let failed = DeviceDescriptor {
            status: DeviceDescriptor::FAILED,
            ..second
        };
        assert!(ring.complete(failed).unwrap().unwrap().failed());
    }

    #[test]
    fn nothing_the_adapter_claims_is_believed() {
        let mut ring = DescriptorRing::new(&CONFIG).unwrap();
        assert_eq!(ring.give(1515), None, "does not fit");
        let lie = DeviceDescriptor {
            next: 0x110,
            status: 0,
            byte_count: 60,
            buffer: 0x1000_0000,
        };
        let said = |ring: &mut DescriptorRing, lie| ring.complete(lie).unwrap_err().to_string();
        assert_eq!(ring.complete(lie), Err(DescriptorError::NotGiven));
        ring.give(1514).unwrap();
        let buffer = 0xdead_beef;
        assert_eq!(
            said(&mut ring, DeviceDescriptor { buffer, ..lie }),
            "the adapter is to be reset: it used the buffer at 0xdeadbeef instead of 0x10000000"
        );
        assert_eq!(
            said(&mut ring, DeviceDescriptor { next: 0, ..lie }),
            "the adapter is to be reset: it linked to 0x0 instead of 0x110"
        );
        let byte_count = 1515;
        assert_eq!(
            said(&mut ring, DeviceDescriptor { byte_count, ..lie }),
            "the adapter is to be reset: it put 1515 bytes into 1514"
        );
        assert!(
            ring.complete(lie).unwrap().is_some(),
            "and the truth still is"
        );
    }

    #[test]
    #[should_panic(expected = "of this ring")]
    fn a_completion_of_another_ring_is_our_bug() {
        let mut ring = DescriptorRing::new(&CONFIG).unwrap();
        let (_, written) = ring.give(60).unwrap();
        let completion = ring.complete(done(written, 60)).unwrap().unwrap();
        DescriptorRing::new(&CONFIG).unwrap().release(completion);
    }

    #[test]
    fn configs_say_what_is_wrong() {
        let field = |config| DescriptorRing::new(&config).unwrap_err().field;
        assert_eq!(
            field(RingConfig {
                descriptors: 0,
                ..CONFIG
            }),
            "descriptors"
        );
        assert_eq!(
            field(RingConfig {
                buffer_bytes: 0,
                ..CONFIG
            }),
            "buffer_bytes"
        );
        let bus_address = u64::MAX - 4541;
        assert_eq!(
            field(RingConfig {
                bus_address,
                ..CONFIG
            }),
            "bus_address"
        );
        let descriptor_bytes = 0;
        assert_eq!(
            field(RingConfig {
                descriptor_bytes,
                ..CONFIG
            }),
            "descriptor_bytes"
        );
        let card_offset = u32::MAX - 47;
        assert_eq!(
            field(RingConfig {
                card_offset,
                ..CONFIG
            }),
            "card_offset"
        );
    }

    proptest! {
        /// Against three queues: every buffer has one owner, and every range that
        /// comes out lies in the buffer that went in.
        #[test]
        fn every_buffer_has_one_owner(ops in prop::collection::vec((0_u8..4, 0_u32..2000), 1..300)) {
            let mut ring = DescriptorRing::new(&CONFIG).unwrap();
            let mut device: VecDeque<(HostDescriptor, DeviceDescriptor)> = VecDeque::new();
            let mut host: VecDeque<Completion> = VecDeque::new();
            for (op, bytes) in ops {
                match op {
                    0 | 1 => {
                        let given = ring.give(bytes);
                        if bytes > 1514 || device.len() + host.len() == 3 {
                            prop_assert_eq!(given, None);
                        } else if let Some(given) = given {
                            device.push_back(given);
                        } else {
                            // Released out of order: the next in line is not free.
                            prop_assert!(!host.is_empty());
                        }
                    }
                    2 => if let Some((expected, written)) = device.front().copied() {
                        match ring.complete(done(written, bytes)) {
                            Ok(completion) => {
                                let completion = completion.unwrap();
                                prop_assert_eq!(completion.bytes().start, expected.system_offset);
                                prop_assert_eq!(completion.bytes().len(), bytes as usize);
                                prop_assert!(bytes <= 1514);
                                host.push_back(completion);
                                device.pop_front();
                            }
                            Err(_) => prop_assert!(bytes > 1514),
                        }
                    },
                    _ => {
                        let any = host.len().checked_sub(1 + bytes as usize % 2);
                        if let Some(completion) = any.and_then(|k| host.remove(k)) {
                            ring.release(completion);
                        }
                    }
                }
                prop_assert_eq!(ring.oldest_given(), device.front().map(|(host, _)| *host));
            }
        }
    }
}
