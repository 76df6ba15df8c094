//! The program and `plimsoll_core::fairness` judge the same packets alike: of many
//! sources, at every fill of a queue, over seconds. Needs root.

use std::collections::BTreeMap;
use std::mem::offset_of;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};
use std::time::Duration;

use ipnet::IpNet;
use libbpf_rs::{MapCore, MapFlags};
use nix::sys::socket::{setsockopt, sockopt};
use plimsoll_core::fairness::numbers::BUDGET_PARTS_SHIFT;
use plimsoll_core::fairness::{
    Budget, Fairness, FairnessConfig, Keys, Queue, Request, Share, Source, Verdict,
};
use plimsoll_core::feedback::SocketWatermarks;
use plimsoll_core::time::{Instant, TICK_SHIFT};
use plimsoll_kernel::clock::monotonic_ns;
use plimsoll_packets::frame::Packet;

use super::test_host::{
    HOST, KERNEL_TICK, UDP_PORT as PORT, judged_at, slot_of, unread_server, with_guard_for,
};
use super::{SLOT_SOCKETS, types};
use crate::{Guard, Kind, Outcome, Protection};

/// Where nobody listens.
const CLOSED: u16 = 9;

/// Both decisions, told the same.
struct Pair<'a, 'obj> {
    guard: &'a mut Guard<'obj>,
    core: Fairness,
    share: Share,
    cpu: u32,
    /// Packets so far that core takes for no flood's.
    company: u64,
    /// Whose hosts are known from the start.
    known: Vec<IpNet>,
}

impl<'a, 'obj> Pair<'a, 'obj> {
    /// For a program that was loaded for so many CPUs.
    fn new(guard: &'a mut Guard<'obj>, cpus: usize) -> Self {
        let keys = guard.program.settings().fair_keys;
        plimsoll_kernel::namespace::pin(0).unwrap();
        Self {
            guard,
            core: Fairness::new(&FairnessConfig::for_cpus(cpus), Keys(keys)).unwrap(),
            share: Share::default(),
            cpu: 0,
            company: 0,
            known: Vec::new(),
        }
    }

    /// From now on the hosts of these prefixes are known.
    fn know(&mut self, known: &[&str]) {
        self.known = known.iter().map(|prefix| prefix.parse().unwrap()).collect();
        let protection = Protection {
            known: self.known.clone(),
            ..Protection::default()
        };
        self.guard.protect(&protection).unwrap();
    }

    fn request(&self, channel: u32, source: IpAddr) -> Request {
        Request {
            channel,
            source: Source::from(source),
            known: self.known.iter().any(|prefix| prefix.contains(&source)),
        }
    }

    /// Shows both a packet for a queue without room: from then on it was full a moment ago.
    fn overflow(&mut self, server: &UdpSocket) {
        self.fill(server, 100);
        let _ = self.judge(Ipv4Addr::new(10, 1, 1, 1).into());
    }

    /// The queue as the program last saw it.
    fn queue(&mut self) -> Queue {
        let part = self.guard.program.books.part(SLOT_SOCKETS, self.cpu);
        let settings = self.guard.program.settings();
        let mark =
            |whole: u32, watermark: u32| ((u64::from(whole) * u64::from(watermark)) >> 10) as u32;
        let high = mark(part.capacity, settings.high_watermark);
        let low = mark(part.capacity, settings.low_watermark);
        let drained = SocketWatermarks::DEFAULT.drained_bytes_max;
        let room = u64::from(part.capacity.saturating_sub(part.occupancy));
        Queue {
            occupancy: part.occupancy,
            low: low.max(high.saturating_sub(drained)),
            high,
            full: mark(high, settings.full_watermark),
            // The server's socket drops nothing.
            has_room: room > 0 && room * u64::from(part.queued) >= u64::from(part.occupancy),
        }
    }

    /// Has the queue filled to so many percent of the server's buffer.
    fn fill(&mut self, server: &UdpSocket, percent: usize) {
        self.resize(server, percent);
        std::thread::sleep(KERNEL_TICK);
    }

    /// The same while it is full enough either way for no look-up.
    fn resize(&mut self, server: &UdpSocket, percent: usize) {
        let occupancy = self.queue().occupancy.max(100_000);
        // The kernel doubles it.
        let buffer = occupancy as usize * 50 / percent;
        setsockopt(server, sockopt::RcvBufForce, &buffer).unwrap();
    }

    /// Shows both one packet for the queue; what both say.
    fn judge(&mut self, source: IpAddr) -> Verdict {
        let program = self.judge_by_program(source, PORT);
        let part = self.guard.program.books.part(SLOT_SOCKETS, self.cpu);
        let now = instant(judged_at(&part).into());
        let queue = self.queue();
        let request = self.request(SLOT_SOCKETS, source);
        let silent = self.share.silent();
        let core = self.core.judge(&mut self.share, &request, &queue, now);
        let asks_for_much = self.share.is_pressed() && self.share.silent() == silent;
        let is_flood = asks_for_much && !request.known;
        self.company += u64::from(!is_flood);
        let company = self.guard.program.company().unwrap().company;
        assert_eq!(company, self.company, "{source} is the flood's: {is_flood}");
        assert_eq!(program, core, "(program, core) of {source} at {queue:?}");
        core
    }

    /// Shows both one packet for a closed port while input is shed; what both say.
    fn judge_shed(&mut self, source: IpAddr, budget: &mut Budget, packets: u32) -> Verdict {
        let slot = slot_of(Kind::ClosedPort);
        self.guard.program.beat();
        self.guard
            .program
            .set_shares(Some((packets, &BTreeMap::new())));
        let program = self.judge_by_program(source, CLOSED);
        let part = self.guard.program.books.part(slot, self.cpu);
        let part_ns = 1 << (TICK_SHIFT - BUDGET_PARTS_SHIFT);
        budget.allow_in_parts(
            packets,
            Instant::from_nanos(u64::from(part.share_time) * part_ns),
        );
        let now = instant(judged_at(&part).into());
        let request = self.request(slot, source);
        let core = self.core.judge_shed(&mut self.share, budget, &request, now);
        assert_eq!(program, core, "(program, core) of {source} at {budget:?}");
        core
    }

    fn judge_by_program(&mut self, source: IpAddr, port: u16) -> Verdict {
        let destination = match source {
            IpAddr::V4(_) => HOST.into(),
            IpAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
        };
        let frame = Packet::new(source, destination).udp(4000, port, b"query");
        let before = self.guard.program.totals().unwrap();
        let _ = self.guard.test_run(&frame, 1).unwrap();
        let after = self.guard.program.totals().unwrap();
        let is = |outcome| {
            let count = |totals: &[crate::counters::Packets]| -> u64 {
                totals.iter().map(|packets| packets.count(outcome)).sum()
            };
            count(&after) > count(&before)
        };
        if is(Outcome::Admitted) {
            Verdict::Admitted
        } else if is(Outcome::SourceShare) {
            Verdict::SourceShare
        } else {
            let is_full = is(Outcome::SocketQueue) || is(Outcome::Share);
            assert!(is_full, "one of four outcomes");
            Verdict::QueueFull
        }
    }
}

fn instant(tick: u64) -> Instant {
    Instant::from_nanos(tick << TICK_SHIFT)
}

/// Loud and silent hosts, in one network or in many, of both families.
fn source(random: &mut fastrand::Rng) -> IpAddr {
    match random.u32(..10) {
        0..=3 => Ipv4Addr::new(10, 1, 1, 1).into(),
        4 => Ipv4Addr::new(10, 1, 1, random.u8(..20)).into(),
        5 => Ipv4Addr::new(10, 1, random.u8(..4), random.u8(..)).into(),
        6 => Ipv4Addr::new(20, random.u8(..), 1, 1).into(),
        7 => Ipv4Addr::from_bits(random.u32(0x0b00_0000..0x7e00_0000)).into(),
        8 => Ipv6Addr::from_bits(0x2001_0db8_u128 << 96 | u128::from(random.u64(..))).into(),
        _ => Ipv6Addr::from_bits(0x2001_0db8_0001_u128 << 80 | 1).into(),
    }
}

#[test]
fn the_program_judges_sources_as_core_does() {
    let cpus = libbpf_rs::num_possible_cpus().unwrap();
    with_guard_for(u32::try_from(cpus).unwrap(), |guard| {
        let server = unread_server(200);
        let mut pair = Pair::new(guard, cpus);
        let mut random = fastrand::Rng::with_seed(5);
        let mut seen = [0_u32; 3];
        // The queue's fill in percent of its capacity: calm, overloaded, nearly full,
        // full, and back. It takes all that fits until it has been full.
        for percent in [30, 65, 72, 78, 84, 95, 60, 68, 90, 75, 58, 97, 72, 81, 40] {
            if percent == 78 {
                pair.overflow(&server);
            }
            pair.fill(&server, percent);
            for _ in 0..600 {
                if random.u32(..40) == 0 {
                    std::thread::sleep(Duration::from_millis(random.u64(1..15)));
                }
                seen[pair.judge(source(&mut random)) as usize] += 1;
            }
        }
        assert!(seen.iter().all(|count| *count > 100), "{seen:?}");
    });
}

#[test]
fn the_program_divides_a_share_as_core_does() {
    let cpus = libbpf_rs::num_possible_cpus().unwrap();
    with_guard_for(u32::try_from(cpus).unwrap(), |guard| {
        let mut pair = Pair::new(guard, cpus);
        let mut budget = Budget::default();
        let mut random = fastrand::Rng::with_seed(7);
        let mut seen = [0_u32; 3];
        let mut packets = 3;
        for _ in 0..6000 {
            if random.u32(..60) == 0 {
                std::thread::sleep(Duration::from_millis(random.u64(1..10)));
            }
            // Within a tick, too.
            if random.u32(..60) == 0 {
                packets = [1, 3, 5, 8, 12, 20][random.usize(..6)];
            }
            let verdict = pair.judge_shed(source(&mut random), &mut budget, packets);
            seen[verdict as usize] += 1;
        }
        assert!(seen.iter().all(|count| *count > 100), "{seen:?}");
    });
}

/// A loud known source and silent ones, of both families, or anybody.
fn known_or_not(random: &mut fastrand::Rng) -> IpAddr {
    match random.u32(..10) {
        0..=2 => Ipv4Addr::new(130, 1, 1, 1).into(),
        3 => Ipv4Addr::new(130, 1, random.u8(..4), random.u8(..8)).into(),
        // Any interface of a known /64.
        4 => Ipv6Addr::from_bits(0x2001_0db8_0003_u128 << 80 | u128::from(random.u64(..))).into(),
        _ => source(random),
    }
}

const KNOWN: [&str; 2] = ["130.0.0.0/8", "2001:db8:3::/48"];

#[test]
fn the_program_judges_known_sources_as_core_does() {
    let cpus = libbpf_rs::num_possible_cpus().unwrap();
    with_guard_for(u32::try_from(cpus).unwrap(), |guard| {
        let server = unread_server(200);
        let mut pair = Pair::new(guard, cpus);
        pair.know(&KNOWN);
        let mut random = fastrand::Rng::with_seed(11);
        // By whether the source is known.
        let mut seen = [[0_u32; 3]; 2];
        pair.overflow(&server);
        for percent in [65, 72, 78, 84, 95, 68, 75, 90, 72, 81] {
            pair.fill(&server, percent);
            for _ in 0..1600 {
                if random.u32(..40) == 0 {
                    std::thread::sleep(Duration::from_millis(random.u64(1..15)));
                }
                let source = known_or_not(&mut random);
                let is_known = pair.request(0, source).known;
                seen[usize::from(is_known)][pair.judge(source) as usize] += 1;
            }
        }
        let all = seen.iter().flatten();
        assert!(all.copied().all(|count| count > 50), "{seen:?}");
    });
}

/// As if the channel's consumer had taken so much credit per tick in the epoch before.
fn set_taken(guard: &Guard<'_>, taken: u32) {
    let shares = &guard.program.skeleton.maps.fair_shares;
    let slot = SLOT_SOCKETS.to_ne_bytes();
    let mut share = shares.lookup(&slot, MapFlags::ANY).unwrap().unwrap();
    let began = ((monotonic_ns() - KERNEL_TICK.as_nanos() as u64) >> TICK_SHIFT) as u32;
    for (at, value) in [
        (offset_of!(types::fair_share, taken), taken),
        (offset_of!(types::fair_share, began), began),
    ] {
        share[at..at + 4].copy_from_slice(&value.to_ne_bytes());
    }
    shares.update(&slot, &share, MapFlags::ANY).unwrap();
}

/// Their burst is more than 32 bits of credit from four million packets/s on. It was nothing then.
#[test]
fn known_sources_of_a_consumer_of_millions_have_their_part_of_it() {
    const BURST: u32 = 2000;
    let cpus = libbpf_rs::num_possible_cpus().unwrap();
    with_guard_for(u32::try_from(cpus).unwrap(), |guard| {
        let server = unread_server(200);
        let mut pair = Pair::new(guard, cpus);
        pair.know(&KNOWN);
        pair.overflow(&server);
        let known = Packet::new(Ipv4Addr::new(130, 1, 1, 1).into(), HOST.into());
        let known = known.udp(4000, PORT, b"query");
        let mut most = 0;
        // The epoch may end meanwhile, and then the consumer has taken nothing.
        for _ in 0..100 {
            pair.fill(&server, 78);
            set_taken(pair.guard, 1 << 30);
            let admitted = |guard: &Guard<'_>| {
                let totals = guard.program.totals().unwrap();
                totals[Kind::UdpSocket as usize].count(Outcome::Admitted)
            };
            let before = admitted(pair.guard);
            pair.guard.test_run(&known, BURST).unwrap();
            most = most.max(admitted(pair.guard) - before);
            if most == u64::from(BURST) {
                return;
            }
        }
        panic!("{most} of {BURST} at most");
    });
}

#[test]
fn the_program_keeps_places_of_a_share_for_known_sources_as_core_does() {
    let cpus = libbpf_rs::num_possible_cpus().unwrap();
    with_guard_for(u32::try_from(cpus).unwrap(), |guard| {
        let mut pair = Pair::new(guard, cpus);
        pair.know(&KNOWN);
        let mut budget = Budget::default();
        let mut random = fastrand::Rng::with_seed(12);
        let mut seen = [[0_u32; 3]; 2];
        for packets in [3, 20, 8, 1, 12, 5] {
            for _ in 0..1200 {
                if random.u32(..60) == 0 {
                    std::thread::sleep(Duration::from_millis(random.u64(1..10)));
                }
                let source = known_or_not(&mut random);
                let is_known = pair.request(0, source).known;
                let verdict = pair.judge_shed(source, &mut budget, packets);
                seen[usize::from(is_known)][verdict as usize] += 1;
            }
        }
        let all = seen.iter().flatten();
        assert!(all.copied().all(|count| count > 50), "{seen:?}");
    });
}

/// Addresses at random, more than the small tables of a host with many CPUs hold. A queue
/// that is often full first makes their shares small.
#[test]
fn the_program_passes_strangers_over_as_core_does() {
    const CPUS: usize = 64;
    with_guard_for(u32::try_from(CPUS).unwrap(), |guard| {
        let server = unread_server(200);
        let mut pair = Pair::new(guard, CPUS);
        let mut random = fastrand::Rng::with_seed(6);
        let mut passed_over = 0;
        pair.overflow(&server);
        for number in 0..60_000 {
            match number % 20 {
                0 => pair.resize(&server, 72),
                6 if number < 40_000 => pair.resize(&server, 90),
                _ => {}
            }
            let anybody = Ipv4Addr::from_bits(random.u32(0x0b00_0000..0x7e00_0000));
            let client = Ipv4Addr::new(10, 1, 1, random.u8(..3));
            let is_client = random.u32(..50) == 0;
            let _ = pair.judge(if is_client { client } else { anybody }.into());
            let part = pair.guard.program.books.part(SLOT_SOCKETS, pair.cpu);
            passed_over += u32::from(part.strangers_passed_over != 0);
        }
        assert!(passed_over > 1000, "{passed_over}");
    });
}
