//! Which endpoint is flooded, and who comes beside it.
//!
//! The XDP program counts company itself ([`company_place`]): all frames but those of the
//! endpoint that it is told is flooded. Of two counters that are read one after the other, at
//! millions of frames a second, the difference would never be none. An endpoint is flooded
//! whose ring has no room for what comes (`room`).

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use libbpf_rs::MapCore;
use plimsoll_core::governor::{Company, Place};
use plimsoll_kernel::error::CallError;
use plimsoll_kernel::mapped::Mapped;

use super::program::types::company_place;
use super::room::Rooms;
use super::{MAIN_SOCKET, SOCKETS_MAX};

const OTHERS: usize = company_place::COMPANY_OTHERS.0 as usize;
const FLOODED: usize = company_place::COMPANY_FLOODED.0 as usize;

/// By the number of each socket, the entry of its endpoint in the program's maps and one more;
/// 0 without one. Sockets that share an endpoint have its group's entry.
#[derive(Debug)]
pub(super) struct Entries(Box<[AtomicU32]>);

impl Entries {
    pub(super) fn new() -> Arc<Self> {
        let all = (0..SOCKETS_MAX).map(|_| AtomicU32::new(0));
        Arc::new(Self(all.collect()))
    }

    pub(super) fn add(&self, number: u32, entry: u32) {
        self.0[number as usize].store(entry + 1, Ordering::Relaxed);
    }

    pub(super) fn remove(&self, number: u32) {
        self.0[number as usize].store(0, Ordering::Relaxed);
    }

    fn of(&self, number: usize) -> u32 {
        self.0[number].load(Ordering::Relaxed)
    }
}

/// What became of one socket's frames.
#[derive(Clone, Copy, Default)]
struct Frames {
    given: u64,
    refused: u64,
    /// By whoever reads the ring.
    taken: u64,
}

impl Frames {
    fn of(rooms: &Rooms, number: usize) -> Self {
        let given = rooms.given(number);
        Self {
            given: given.frames,
            refused: given.refused,
            taken: rooms.taken(number),
        }
    }

    fn add_since(&mut self, before: Self, now: Self) {
        self.given += now.given - before.given;
        self.refused += now.refused - before.refused;
        // A socket that is closed begins anew.
        self.taken += now.taken.saturating_sub(before.taken);
    }
}

/// Looks at what the program counts.
pub(super) struct Watched {
    counts: Mapped<u64>,
    rooms: Arc<Rooms>,
    entries: Arc<Entries>,
    /// Of each socket, and how many others came, when last looked at.
    before: Vec<Frames>,
    others: u64,
    /// What the program is told, as [`Entries`] has it.
    flooded: u32,
}

impl Watched {
    pub(super) fn of(
        counts: &impl MapCore,
        rooms: &Arc<Rooms>,
        entries: &Arc<Entries>,
    ) -> Result<Self, CallError> {
        Ok(Self {
            counts: Mapped::of(counts)?,
            rooms: Arc::clone(rooms),
            entries: Arc::clone(entries),
            before: vec![Frames::default(); SOCKETS_MAX as usize],
            others: 0,
            flooded: 0,
        })
    }

    /// Whose frames came since the last call, during which the kernel polled at `place`.
    /// Nothing if no endpoint is flooded, or was only just found to be.
    pub(super) fn look(&mut self, place: Place) -> Option<Company> {
        let mut flood = Frames::default();
        let (mut worst, mut most) = (0, 0);
        for number in MAIN_SOCKET as usize + 1..self.before.len() {
            let entry = self.entries.of(number);
            if entry == 0 {
                continue;
            }
            let now = Frames::of(&self.rooms, number);
            let before = std::mem::replace(&mut self.before[number], now);
            if entry == self.flooded {
                flood.add_since(before, now);
            }
            if now.refused - before.refused > most {
                (worst, most) = (entry, now.refused - before.refused);
            }
        }
        // Beneath, what is too much overflows the adapter's ring, and little is refused.
        let goes_on = flood.refused > 0 || place == Place::Beneath || worst == 0;
        if self.flooded == 0 || !goes_on {
            self.tell(worst);
            return None;
        }
        let others = self.counts.get(OTHERS);
        let before = std::mem::replace(&mut self.others, others);
        Some(Company {
            others: others - before,
            flood: flood.given + flood.refused,
            // What fills the ring now is refused when it is full.
            admitted: flood.taken,
            queued: 0,
        })
    }

    /// Others than those of this endpoint are counted from now on.
    fn tell(&mut self, flooded: u32) {
        if flooded != self.flooded {
            self.counts.store(FLOODED, flooded.into());
        }
        self.flooded = flooded;
        self.others = self.counts.get(OTHERS);
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use plimsoll_packets::frame::{self, Packet};

    use super::*;
    use crate::device::xdp::program::{SteerSkel, steer_limit};
    use crate::device::xdp::trial::{CLIENT, HOST, to, verdict, with_program};

    /// How many of these frames are company while this entry's endpoint is flooded.
    fn company(program: &SteerSkel<'_>, flooded: u32, frames: &[Vec<u8>]) -> u64 {
        let counts = Mapped::<u64>::of(&program.maps.company).unwrap();
        counts.store(FLOODED, (flooded + 1).into());
        let before = counts.get(OTHERS);
        for frame in frames {
            verdict(program, frame);
        }
        counts.get(OTHERS) - before
    }

    #[test]
    fn whatever_is_not_the_flooded_endpoint_s_is_company() {
        with_program(true, |program| {
            let flood = [to(7), to(7), to(7)];
            assert_eq!(company(program, 1, &flood), 0);
            assert_eq!(company(program, 2, &flood), 3, "another is flooded");
            let group = [to(9), to(9)];
            assert_eq!(company(program, steer_limit::GROUP.0, &group), 0);
            assert_eq!(company(program, 1, &group), 2, "of members as well");
            // What is the kernel's, or the main socket's.
            let packet = Packet::new(IpAddr::V4(CLIENT), IpAddr::V4(HOST));
            let others = [
                to(22),
                to(8),
                frame::arp(CLIENT, HOST, 0),
                packet.icmp(8, &[0; 8]),
                packet.tcp(1000, 7, frame::TcpFlags::default(), &[]),
                frame::ethertype(&[], 0x88cc, &[0; 46]),
                frame::ethertype(&[5], 0x0800, &[0; 46]),
            ];
            for one in &others {
                assert_eq!(
                    company(program, 1, std::slice::from_ref(one)),
                    1,
                    "{one:x?}"
                );
            }
        });
    }

    #[test]
    fn nobody_counts_unless_somebody_asks() {
        with_program(false, |program| {
            assert_eq!(company(program, 1, &[to(7), to(8), to(22)]), 0);
        });
    }
}
