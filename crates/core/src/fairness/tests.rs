//! Sources at a modelled consumer.

extern crate std;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::vec::Vec;

use proptest::prelude::*;

use super::numbers::{BACKLOG_KEPT_PARTS, STRANGERS_MIN};
use super::*;
use crate::time::TICK;

mod crowd;
mod exact;
mod listener;
mod rotation;
mod shed;
mod spread;
mod strangers;
mod turns;
mod wrapped;

const KEYS: Keys = Keys([
    0x9e37_79b9_7f4a_7c15,
    0xbf58_476d_1ce4_e5b9,
    0x94d0_49bb_1331_11eb,
    0xd6e8_feb8_6659_fd93,
    0xa076_1d64_78bd_642f,
    0xe703_7ed1_a0b4_28db,
    0x8ebc_6af0_9c88_c6e3,
]);

/// Packets that the modelled queue has room for, as a default socket buffer.
const CAPACITY: u32 = 280;

fn queue(occupancy: u32) -> Queue {
    Queue {
        occupancy,
        low: CAPACITY * 50 / 100,
        high: CAPACITY * 70 / 100,
        full: CAPACITY * 85 / 100,
        has_room: occupancy < CAPACITY,
    }
}

/// `SplitMix64` (Steele, Lea & Flood 2014).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^ (bits >> 31)
    }

    fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(bound)) >> 64) as u64
    }
}

/// Somebody who sends at random times.
#[derive(Clone, Copy, Debug)]
struct Sender {
    address: IpAddr,
    /// Packets a second.
    rate: u32,
    known: bool,
    /// Sends from another address of the same network each time.
    hides: Hides,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Hides {
    No,
    /// Behind any address of its /16, or of its /64.
    InItsNetwork,
    /// Behind any address at all.
    Anywhere,
}

impl Sender {
    fn new(address: impl Into<IpAddr>, rate: u32) -> Self {
        Self {
            address: address.into(),
            rate,
            known: false,
            hides: Hides::No,
        }
    }

    fn source(&self, random: &mut Random) -> Source {
        let bits = random.next();
        match (self.hides, self.address) {
            (Hides::No, address) => address.into(),
            (Hides::InItsNetwork, IpAddr::V4(v4)) => {
                let bits = u32::from(v4) & 0xffff_0000 | bits as u32 & 0xffff;
                IpAddr::from(Ipv4Addr::from(bits)).into()
            }
            (Hides::InItsNetwork, IpAddr::V6(v6)) => {
                let bits = u128::from(v6) >> 64 << 64 | u128::from(bits);
                IpAddr::from(Ipv6Addr::from(bits)).into()
            }
            (Hides::Anywhere, _) => IpAddr::from(Ipv4Addr::from(bits as u32)).into(),
        }
    }
}

/// What each sender got, in packets a second.
struct Outcome {
    admitted: Vec<f64>,
    offered: Vec<f64>,
}

impl Outcome {
    fn part(&self, sender: usize) -> f64 {
        self.admitted[sender] / self.offered[sender]
    }

    fn goodput(&self) -> f64 {
        self.admitted.iter().sum()
    }
}

/// Packets that one poll brings: their verdicts see the queue as it was before.
const BATCH: usize = 32;

/// A consumer that takes `rate` packets a second, and all that is sent to it.
struct Host {
    fairness: Fairness,
    share: Share,
    random: Random,
    rate: u32,
    now_ns: u64,
    queued: f64,
    /// The queue has lost packets since it rose above its high watermark.
    has_lost: bool,
    /// While input is shed, this takes the place of the queue.
    budget: Option<Budget>,
    /// Its packets come in parts of a tick.
    in_parts: bool,
}

impl Host {
    fn new(rate: u32) -> Self {
        Self::with(&FairnessConfig::DEFAULT, rate)
    }

    fn with(config: &FairnessConfig, rate: u32) -> Self {
        Self {
            fairness: Fairness::new(config, KEYS).unwrap(),
            share: Share::default(),
            random: Random(42),
            rate,
            now_ns: 7_000_000_000,
            queued: 0.0,
            has_lost: false,
            budget: None,
            in_parts: false,
        }
    }

    fn judge(&mut self, request: &Request) -> Verdict {
        let now = Instant::from_nanos(self.now_ns);
        let Self {
            fairness, share, ..
        } = self;
        if let Some(budget) = &mut self.budget {
            let packets = u64::from(self.rate) * TICK.as_nanos() as u64 / 1_000_000_000;
            match self.in_parts {
                true => budget.allow_in_parts(packets as u32, now),
                false => budget.allow(packets as u32, now),
            }
            fairness.judge_shed(share, budget, request, now)
        } else {
            let mut queue = queue(self.queued as u32);
            self.has_lost &= queue.occupancy >= queue.high;
            // As the BPF program sees it (`udp_queue.h`).
            queue.has_room &= !self.has_lost;
            fairness.judge(share, request, &queue, now)
        }
    }

    /// Lives for so many milliseconds; returns what the senders got.
    fn run(&mut self, senders: &[Sender], millis: u32) -> Outcome {
        let mut admitted = std::vec![0_u64; senders.len()];
        let mut offered = admitted.clone();
        let all: u64 = senders.iter().map(|sender| u64::from(sender.rate)).sum();
        let ends: Vec<u64> = senders
            .iter()
            .scan(0, |sum, sender| {
                *sum += u64::from(sender.rate);
                Some(*sum)
            })
            .collect();
        let packets = all * u64::from(millis) / 1000;
        let gap_ns = 1_000_000_000 / all;
        let mut landed = 0.0;
        for number in 0..packets {
            if number % BATCH as u64 == 0 {
                self.queued += landed;
                landed = 0.0;
            }
            let drained = f64::from(self.rate) * gap_ns as f64 / 1e9;
            self.queued = (self.queued - drained).max(0.0);
            self.now_ns += gap_ns;
            let drawn = self.random.below(all);
            let place = ends.partition_point(|end| *end <= drawn);
            let sender = &senders[place];
            let request = Request {
                channel: 3,
                source: sender.source(&mut self.random),
                known: sender.known,
            };
            let verdict = self.judge(&request);
            offered[place] += 1;
            let has_room = self.budget.is_some() || self.queued + landed < f64::from(CAPACITY);
            if verdict == Verdict::Admitted && has_room {
                admitted[place] += 1;
                landed += 1.0;
            }
            self.has_lost |= verdict == Verdict::Admitted && !has_room;
        }
        self.queued += landed;
        let per_second = |counts: Vec<u64>| {
            let count = |count: u64| count as f64 * 1000.0 / f64::from(millis);
            counts.into_iter().map(count).collect()
        };
        Outcome {
            admitted: per_second(admitted),
            offered: per_second(offered),
        }
    }
}

/// What each sender gets once the shares have settled.
fn settled(rate: u32, senders: &[Sender]) -> Outcome {
    let mut host = Host::new(rate);
    host.run(senders, 1000);
    host.run(senders, 2000)
}

fn v4(network: u8, subnet: u8, host: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, network, subnet, host)
}

/// A host of a /64 in a /48.
fn v6(network: u8, subnet: u8, host: u8) -> Ipv6Addr {
    let (network, subnet, host) = (network.into(), subnet.into(), host.into());
    Ipv6Addr::new(0x2001, 0xdb8, network, subnet, 0, 0, 0, host)
}

#[test]
fn a_calm_channel_admits_everything() {
    let got = settled(10_000, &[Sender::new(v4(1, 1, 1), 9000)]);
    assert!(got.part(0) > 0.9999, "{}", got.part(0));
}

/// A silent source beside one that sends so many times what the consumer takes.
fn silent_beside_loud(settled: fn(u32, &[Sender]) -> Outcome, times: [u32; 2]) {
    for loud in [v4(2, 1, 1), v4(1, 2, 1), v4(1, 1, 2)] {
        for offered in times {
            let senders = [
                Sender::new(v4(1, 1, 1), 500),
                Sender::new(loud, 20_000 * offered),
            ];
            let got = settled(20_000, &senders);
            assert!(got.part(0) > 0.995, "{loud} {offered}: {}", got.part(0));
            assert!(got.goodput() > 19_400.0, "{}", got.goodput());
        }
    }
}

#[test]
fn one_loud_source_does_not_harm_a_silent_one() {
    silent_beside_loud(settled, [5, 25]);
}

#[test]
fn a_thousand_loud_sources_do_not_harm_a_silent_one() {
    let mut senders: Vec<Sender> = (0..1000_u32)
        .map(|number| {
            let host = v4(
                100 + (number % 16) as u8,
                (number / 256) as u8,
                number as u8,
            );
            Sender::new(host, 500)
        })
        .collect();
    senders.push(Sender::new(v4(1, 1, 1), 500));
    let got = settled(100_000, &senders);
    assert!(got.part(1000) > 0.99, "{}", got.part(1000));
    assert!(got.goodput() > 97_000.0, "{}", got.goodput());
}

#[test]
fn slow_ones_among_very_many_are_served() {
    let senders: Vec<Sender> = (0..20_000_u32)
        .map(|number| {
            let address = Ipv4Addr::from(0x0a00_0000 + number * 7);
            Sender::new(address, if number % 10 == 0 { 2 } else { 20 })
        })
        .collect();
    let mut host = Host::new(80_000);
    host.run(&senders, 5000);
    let got = host.run(&senders, 3000);
    let slow = (0..senders.len()).step_by(10);
    let (admitted, offered) = slow.fold((0.0, 0.0), |(admitted, offered), sender| {
        (
            admitted + got.admitted[sender],
            offered + got.offered[sender],
        )
    });
    assert!(admitted / offered > 0.95, "{}", admitted / offered);
    assert!(got.goodput() > 77_000.0, "{}", got.goodput());
}

#[test]
fn a_network_counts_once_however_many_hosts_it_has() {
    let mut crowd = Sender::new(v4(9, 0, 0), 400_000);
    crowd.hides = Hides::InItsNetwork;
    let senders = [
        crowd,
        Sender::new(v4(1, 1, 1), 4000),
        Sender::new(v4(2, 1, 1), 40_000),
    ];
    let got = settled(20_000, &senders);
    assert!(got.part(1) > 0.99, "{}", got.part(1));
    // The other two have half of the rest each. A host alone in its network uses 7/8
    // of what its subnet has, and that 7/8 of what the network has.
    assert!(got.admitted[2] > 0.55 * 8000.0, "{}", got.admitted[2]);
}

#[test]
fn random_interface_ids_are_one_subnet() {
    let prefix: Ipv6Addr = "2001:db8:1:2::".parse().unwrap();
    let mut crowd = Sender::new(prefix, 400_000);
    crowd.hides = Hides::InItsNetwork;
    let same_site: Ipv6Addr = "2001:db8:1:3::1".parse().unwrap();
    let senders = [crowd, Sender::new(same_site, 4000)];
    let got = settled(20_000, &senders);
    assert!(got.part(1) > 0.99, "{}", got.part(1));
}

#[test]
fn a_known_source_survives_forged_addresses_at_random() {
    let mut crowd = Sender::new(v4(9, 0, 0), 500_000);
    crowd.hides = Hides::Anywhere;
    let mut known = Sender::new(v4(1, 1, 1), 4000);
    known.known = true;
    let senders = [crowd, known, Sender::new(v4(2, 1, 1), 500)];
    let mut host = Host::new(20_000);
    host.run(&senders, 4000);
    // Long enough for some packets of the unknown one.
    let got = host.run(&senders, 10_000);
    assert!(got.part(1) > 0.98, "{}", got.part(1));
    // Fairness has next to nothing for an unknown one: its part of what 65,536 networks
    // get. It has no less.
    assert!(
        got.admitted[2] >= 16_000.0 / 65_536.0,
        "{}",
        got.admitted[2]
    );
    assert!(got.goodput() > 19_400.0, "{}", got.goodput());
}

/// The first one's address is forged. A flood of somebody unknown takes all that is left.
#[test]
fn whoever_forges_a_known_source_gets_its_share_and_no_more() {
    let known = |host, rate| Sender {
        known: true,
        ..Sender::new(v4(1, 1, host), rate)
    };
    let senders = [
        known(1, 500_000),
        known(2, 4000),
        Sender::new(v4(2, 1, 1), 500),
        Sender::new(v4(3, 1, 1), 500_000),
    ];
    let got = settled(20_000, &senders);
    assert!(got.part(1) > 0.98, "{}", got.part(1));
    assert!(got.part(2) > 0.99, "{}", got.part(2));
    // All known ones together have half, and the other one takes 4000 of it. The
    // sixteenth that is admitted out of profile goes to whoever comes first.
    let most = 6000.0 + 20_000.0 / 16.0;
    assert!(got.admitted[0] < 1.1 * most, "{}", got.admitted[0]);
}

#[test]
fn a_slow_consumer_is_shared_too() {
    let senders = [Sender::new(v4(1, 1, 1), 10), Sender::new(v4(2, 1, 1), 5000)];
    let mut host = Host::new(100);
    host.run(&senders, 5000);
    let got = host.run(&senders, 20_000);
    assert!(got.part(0) > 0.95, "{}", got.part(0));
}

/// A queue that was not full lately takes all that fits, whoever sends it. One that was is
/// held at its watermark until it was empty for eight ticks, 34 ms.
#[test]
fn a_burst_that_the_queue_holds_is_no_overload() {
    let mut host = Host::new(1000);
    let request = Request {
        channel: 1,
        source: IpAddr::from(v4(1, 1, 1)).into(),
        known: false,
    };
    let burst = |host: &mut Host, at_ms: u64| {
        let mut taken = 0;
        let now = Instant::from_nanos(at_ms * 1_000_000);
        while host
            .fairness
            .judge(&mut host.share, &request, &queue(taken), now)
            == Verdict::Admitted
        {
            taken += 1;
        }
        taken
    };
    assert_eq!(burst(&mut host, 1000), CAPACITY, "all that fits");
    assert!(
        burst(&mut host, 1030) < CAPACITY,
        "it was full a moment ago"
    );
    assert_eq!(burst(&mut host, 1070), CAPACITY, "its consumer is idle");
}

/// What is never empty has been overloaded all the time, however little comes.
#[test]
fn a_queue_that_does_not_become_empty_stays_pressed_for_half_a_second() {
    let mut host = Host::new(1000);
    let request = Request {
        channel: 1,
        source: IpAddr::from(v4(1, 1, 1)).into(),
        known: false,
    };
    let mut judge = |taken, at_ms: u64| {
        let now = Instant::from_nanos(at_ms * 1_000_000);
        host.fairness
            .judge(&mut host.share, &request, &queue(taken), now);
        host.share.is_pressed()
    };
    assert!(judge(CAPACITY, 1000));
    assert!(judge(1, 1500));
    assert!(!judge(1, 1540));
}

#[test]
fn what_a_flood_has_taught_is_forgotten() {
    let mut host = Host::new(20_000);
    let flood = [Sender::new(v4(1, 1, 1), 200_000)];
    host.run(&flood, 1000);
    assert!(host.share.is_pressed());
    let calm = [Sender::new(v4(1, 1, 1), 10_000)];
    host.run(&calm, 1000);
    assert!(!host.share.is_pressed());
    let got = host.run(&calm, 1000);
    assert!(got.part(0) > 0.9999, "{}", got.part(0));
}

/// A flood has paused, and all that comes is in profile.
#[test]
fn without_a_discard_the_share_does_not_fall() {
    let mut share = Share::default();
    share.on_discarded(1000);
    let mut levels = Vec::new();
    for tick in 1000..1100 {
        share.on_tick(tick);
        assert!(
            share.on_room(true, tick),
            "a pause of less than half a second"
        );
        levels.push(share.level());
        (0..100).for_each(|_| {
            share.on_used();
            share.on_admitted();
        });
    }
    // An epoch that began before the discard may have moved it.
    assert_eq!(levels[20..], [levels[20]; 80]);
}

/// Without the secret nobody can aim: of many addresses chosen to collide under one
/// key, no more than chance has it collide under another.
#[test]
fn collisions_under_one_key_are_none_under_another() {
    let other = Keys(KEYS.0.map(|key| key.rotate_left(17) ^ 0x5555));
    let host = |keys: &Keys, address: u32| {
        let request = Request {
            channel: 3,
            source: IpAddr::from(Ipv4Addr::from(address)).into(),
            known: false,
        };
        Paths::of(keys, &request).host & 0x7fff
    };
    let victim = host(&KEYS, 0x0a01_0101);
    let aimed: Vec<u32> = (0..1_000_000_u32)
        .map(|number| 0xc000_0000 + number)
        .filter(|address| host(&KEYS, *address) == victim)
        .collect();
    assert!(aimed.len() > 10, "some do under the known key");
    let hit = host(&other, 0x0a01_0101);
    let hits = aimed
        .iter()
        .filter(|address| host(&other, **address) == hit);
    assert!(hits.count() <= 2);
}
