//! How much room a socket's receive ring has, told to the XDP program.
//!
//! In copy mode the kernel copies a frame into our memory first, and finds the ring full after
//! that. So the program is told: it counts the frames that it gave to each socket, and here is
//! written up to which count it may give. Beyond that it drops at its own price (early
//! discard; Druschel & Banga 1996, section 3).
//!
//! The kernel may have refused what the program counted as given: it has no buffer. Therefore
//! the limit goes by what is in the ring, and not by what was taken. Should all of the room
//! have been lost so, with nothing in the ring that would wake its reader, the program still
//! gives one frame in `TRY_EVERY`, and the first after a pause (`TRY_AFTER_TICKS`).

#![allow(unsafe_code, reason = "what BPF map values are made of")]

use std::sync::Arc;

use libbpf_rs::MapCore;
use plimsoll_kernel::error::CallError;
use plimsoll_kernel::mapped::{Mapped, Plain};

use super::program::types::given;

// SAFETY: repr(C), four integers of eight bytes.
unsafe impl Plain for given {}

/// What the program and we tell each other of all sockets.
#[derive(Debug)]
pub(super) struct Rooms {
    /// Written by the program.
    given: Mapped<given>,
    /// Written here: the count up to which the program may give, 0 for no limit.
    limits: Mapped<u64>,
}

impl Rooms {
    pub(super) fn of(given: &impl MapCore, limits: &impl MapCore) -> Result<Arc<Self>, CallError> {
        let (given, limits) = (Mapped::of(given)?, Mapped::of(limits)?);
        Ok(Arc::new(Self { given, limits }))
    }

    /// What the program did with the frames for socket `number`.
    pub(super) fn given(&self, number: usize) -> given {
        self.given.get(number)
    }

    /// How many frames were taken from the ring of socket `number`, and its length besides: that
    /// many it may be given. 0 where nobody tells.
    pub(super) fn taken(&self, number: usize) -> u64 {
        self.limits.get(number)
    }

    /// For socket `number`, whose ring is still empty.
    pub(super) fn open(self: &Arc<Self>, number: u32) -> Room {
        Room {
            rooms: Arc::clone(self),
            number: number as usize,
            before: self.given.get(number as usize),
        }
    }
}

/// One socket's. Dropping it takes the limit away.
#[derive(Debug)]
pub(super) struct Room {
    rooms: Arc<Rooms>,
    number: usize,
    /// Of whoever had the number before.
    before: given,
}

impl Room {
    /// The ring can take so many more frames.
    #[inline]
    pub(super) fn tell(&self, free: impl FnOnce() -> u32) {
        // The count before the ring: a frame on its way is in neither at worst, and then the
        // kernel looks for a place itself.
        let given = self.rooms.given.get(self.number).frames;
        self.limit(given + u64::from(free()));
    }

    /// The program may give up to this count.
    pub(super) fn limit(&self, count: u64) {
        self.rooms.limits.store(self.number, count.max(1));
    }

    /// Frames that were given while there was room.
    pub(super) fn given(&self) -> u64 {
        let (now, before) = (self.rooms.given.get(self.number), self.before);
        let tried = |given: &given| given.without_room - given.refused;
        (now.frames - before.frames) - (tried(&now) - tried(&before))
    }

    /// Frames that the program dropped since there was no room.
    pub(super) fn refused(&self) -> u64 {
        self.rooms.given.get(self.number).refused - self.before.refused
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        self.rooms.limits.store(self.number, 0);
    }
}
