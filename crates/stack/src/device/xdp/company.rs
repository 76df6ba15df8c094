//! Which endpoint is flooded, and who comes beside it.
//!
//! The XDP program counts company itself ([`company_place`]): all frames but those of the
//! endpoint that it is told is flooded. Of two counters that are read one after the other, at
//! millions of frames a second, the difference would never be none. An endpoint with a socket of
//! its own is flooded whose ring has no room for what comes (`room`), one whose frames come by the
//! main socket if more come than are taken (`claims`).

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use libbpf_rs::MapCore;
use plimsoll_core::governor::{Company, Place};
use plimsoll_kernel::error::CallError;
use plimsoll_kernel::mapped::Mapped;

use super::claims::Claims;
use super::program::types::company_place;
use super::room::Rooms;
use super::{MAIN_SOCKET, SOCKETS_MAX, steer_limit};

const OTHERS: usize = company_place::COMPANY_OTHERS.0 as usize;
const FLOODED: usize = company_place::COMPANY_FLOODED.0 as usize;

/// By the number of each socket, or endpoint without one, the entry of the endpoint in the
/// program's maps and one more; 0 without one. Sockets that share an endpoint have its group's entry.
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

    fn since(self, before: Self) -> Self {
        Self {
            given: self.given - before.given,
            refused: self.refused - before.refused,
            // A socket that is closed begins anew.
            taken: self.taken.saturating_sub(before.taken),
        }
    }

    fn add(&mut self, other: Self) {
        self.given += other.given;
        self.refused += other.refused;
        self.taken += other.taken;
    }
}

/// What came for an endpoint without a socket of its own.
#[derive(Clone, Copy, Default)]
struct Claimed {
    number: usize,
    entry: u32,
    came: u64,
}

/// What was taken of an endpoint's frames when last looked at.
#[derive(Clone, Copy)]
struct Read {
    number: usize,
    taken: u64,
}

/// What came since the last look.
#[derive(Default)]
struct Seen {
    /// For the endpoint that is known to be flooded.
    flood: Frames,
    /// Of the endpoints without a socket the one for which most came.
    busiest: Claimed,
    /// The endpoint with a socket of which most was refused, and how much.
    worst: u32,
    most: u64,
}

impl Seen {
    fn add(&mut self, (number, entry): (usize, u32), since: Frames, flooded: u32) {
        if is_claimed(entry) {
            let came = since.given;
            if entry == flooded {
                (self.flood.given, self.flood.taken) = (came, came);
            }
            if came > self.busiest.came {
                self.busiest = Claimed {
                    number,
                    entry,
                    came,
                };
            }
            return;
        }
        if entry == flooded {
            self.flood.add(since);
        }
        if since.refused > self.most {
            (self.worst, self.most) = (entry, since.refused);
        }
    }
}

/// Looks at what the program counts.
pub(super) struct Watched {
    counts: Mapped<u64>,
    rooms: Arc<Rooms>,
    entries: Arc<Entries>,
    claims: Arc<Claims>,
    /// Of each socket, and how many others came, when last looked at.
    before: Vec<Frames>,
    read: Option<Read>,
    others: u64,
    /// What the program is told, as [`Entries`] has it.
    flooded: u32,
}

impl Watched {
    pub(super) fn of(
        counts: &impl MapCore,
        rooms: &Arc<Rooms>,
        entries: &Arc<Entries>,
        claims: Arc<Claims>,
    ) -> Result<Self, CallError> {
        Ok(Self {
            counts: Mapped::of(counts)?,
            rooms: Arc::clone(rooms),
            entries: Arc::clone(entries),
            claims,
            before: vec![Frames::default(); SOCKETS_MAX as usize],
            read: None,
            others: 0,
            flooded: 0,
        })
    }

    /// Whose frames came since the last call, during which the kernel polled at `place`.
    /// Nothing if no endpoint is flooded, or was only just found to be.
    pub(super) fn look(&mut self, place: Place) -> Option<Company> {
        let mut seen = Seen::default();
        for number in MAIN_SOCKET as usize + 1..self.before.len() {
            let entry = self.entries.of(number);
            if entry == 0 {
                continue;
            }
            let now = Frames::of(&self.rooms, number);
            let before = std::mem::replace(&mut self.before[number], now);
            seen.add((number, entry), now.since(before), self.flooded);
        }
        let Seen {
            mut flood,
            busiest,
            mut worst,
            most,
        } = seen;
        let claimed = self.read(busiest);
        // A flood for which less comes than for another endpoint is none any more.
        let mut is_over = is_claimed(self.flooded) && busiest.entry != 0;
        if busiest.entry == self.flooded {
            (flood, is_over) = (claimed, false);
        }
        if claimed.refused > most {
            worst = busiest.entry;
        }
        // Beneath, what is too much overflows the adapter's ring, and little is refused.
        let is_other = worst != 0 || is_over;
        let goes_on = flood.refused > 0 || place == Place::Beneath || !is_other;
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

    /// What became of the frames of an endpoint without a socket; of one that was not read before
    /// nothing is known.
    fn read(&mut self, claimed: Claimed) -> Frames {
        let Claimed { number, came, .. } = claimed;
        let before = self.read.take().filter(|read| read.number == number);
        if claimed.entry == 0 {
            return Frames::default();
        }
        let taken = self.claims.taken(number as u32);
        self.read = taken.map(|taken| Read { number, taken });
        let taken = before
            .zip(taken)
            .map_or(came, |(before, now)| now.saturating_sub(before.taken));
        let refused = came.saturating_sub(taken);
        Frames {
            given: came - refused,
            refused,
            taken,
        }
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

/// Whether the endpoint of an entry has no socket of its own.
fn is_claimed(entry: u32) -> bool {
    entry != 0 && (entry - 1) & steer_limit::ON_MAIN.0 != 0
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;
    use std::sync::atomic::AtomicU64;

    use libbpf_rs::MapFlags;
    use plimsoll_core::demux::Protocol;
    use plimsoll_packets::frame::{self, Packet};

    use super::*;
    use crate::device::xdp::numbers::Numbers;
    use crate::device::xdp::program::SteerSkel;
    use crate::device::xdp::trial::{CLIENT, HOST, to, verdict, with_program};
    use crate::device::{Endpoint, Readers};

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

    /// What was taken, whoever it was for.
    #[derive(Debug, Default)]
    struct Reader(AtomicU64);

    impl Readers for Reader {
        fn taken(&self, _endpoint: Endpoint) -> Option<u64> {
            Some(self.0.load(Ordering::Relaxed))
        }
    }

    /// Has the program know ports 10 and 11 as endpoints without a socket.
    fn watched(program: &SteerSkel<'_>, reader: &Arc<Reader>) -> Watched {
        let (entries, claims) = (Entries::new(), Arc::new(Claims::default()));
        claims.know_readers(Arc::clone(reader) as Arc<dyn Readers>);
        let numbers = Numbers::new(3, SOCKETS_MAX);
        for port in [10_u32, 11] {
            let number = numbers.take().unwrap();
            let entry = number.get() | steer_limit::ON_MAIN.0;
            let value = ((entry + 1) | steer_limit::IPV4_ALONE.0).to_ne_bytes();
            let everywhere = &program.maps.everywhere;
            let added = everywhere.update(&port.to_ne_bytes(), &value, MapFlags::ANY);
            added.unwrap();
            entries.add(number.get(), entry);
            let local = (HOST, port as u16).into();
            let protocol = Protocol::Udp;
            claims.add(Endpoint { protocol, local }, number);
        }
        let maps = &program.maps;
        let rooms = Rooms::of(&maps.given, &maps.given_up_to).unwrap();
        Watched::of(&maps.company, &rooms, &entries, claims).unwrap()
    }

    fn arrive(program: &SteerSkel<'_>, port: u16, frames: usize) {
        for _ in 0..frames {
            verdict(program, &to(port));
        }
    }

    #[test]
    fn an_endpoint_without_a_socket_is_flooded_if_more_comes_than_is_taken() {
        with_program(true, |program| {
            let reader = Arc::new(Reader::default());
            let mut watched = watched(program, &reader);
            let mut look = |frames, taken, others, place| {
                arrive(program, 10, frames);
                arrive(program, 11, others);
                reader.0.fetch_add(taken, Ordering::Relaxed);
                watched.look(place)
            };
            let above = Place::Above;
            assert_eq!(look(9, 2, 0, above), None, "nothing is known before");
            assert_eq!(look(9, 9, 0, above), None, "all is taken");
            assert_eq!(look(9, 2, 0, above), None, "it was only just found");
            let company = |others, flood, admitted| {
                Some(Company {
                    others,
                    flood,
                    admitted,
                    queued: 0,
                })
            };
            assert_eq!(look(9, 2, 0, above), company(0, 9, 2));
            assert_eq!(
                look(9, 2, 5, above),
                company(5, 9, 2),
                "others' are company"
            );
            assert_eq!(look(3, 3, 0, Place::Beneath), company(0, 3, 3));
            assert_eq!(
                look(4, 4, 0, above),
                company(0, 4, 4),
                "nobody else is flooded"
            );
            assert_eq!(look(4, 4, 30, above), None, "most comes for somebody else");
            assert_eq!(look(4, 8, 30, above), None, "who is found to be flooded");
            assert_eq!(look(1, 8, 30, above), company(1, 30, 8));
        });
    }
}
