//! What asked for a share of the packets that may pass, read from the program while input is shed.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use plimsoll_core::charge::shedding::Demand;

use crate::program::{Program, SLOT_PROTECTED};

/// What a CPU's demands were longer ago than this says nothing about them now.
const COUNTS_AGE_MAX: Duration = Duration::from_secs(1);

/// The program's counts of packets that asked for a share, while input is shed.
#[derive(Debug, Default)]
pub(super) struct Counts {
    /// By CPU.
    pub(super) read: HashMap<u32, Asked>,
    /// Sockets whose slots share a group's share.
    pub(super) groups: HashMap<u32, u64>,
}

/// What asked for a share on one CPU.
#[derive(Debug)]
pub(super) struct Asked {
    /// When the counts were read.
    at: Instant,
    /// By slot.
    counts: HashMap<u32, u64>,
    /// In the interval that ended then.
    demands: Vec<Demand>,
    /// False at the first reading, and after a long time without one.
    is_known: bool,
}

impl Counts {
    /// Shedding begins: demands are those from now on.
    pub(super) fn begin(
        &mut self,
        program: &mut Program<'_>,
        cpus: impl IntoIterator<Item = u32>,
        now: Instant,
    ) {
        let counts = program.demands(cpus).into_iter();
        self.read = counts
            .map(|(cpu, counts)| (cpu, Asked::new(counts, now)))
            .collect();
    }

    /// What asked for a share on each CPU in the `interval` that ends `now`. `received`:
    /// each CPU, and whether it has judged any packet in the interval.
    pub(super) fn read_all(
        &mut self,
        program: &mut Program<'_>,
        received: impl IntoIterator<Item = (u32, bool)>,
        now: Instant,
        interval: Duration,
    ) {
        let mut changed = Vec::new();
        for (cpu, has_received) in received {
            match self.read.get_mut(&cpu) {
                // Nothing can have changed since: it costs no reading.
                Some(asked) if !has_received && now - asked.at <= interval => asked.rest(now),
                _ => changed.push(cpu),
            }
        }
        for (cpu, counts) in program.demands(changed) {
            match self.read.get_mut(&cpu) {
                Some(asked) => asked.follow(counts, now, interval, &self.groups),
                None => drop(self.read.insert(cpu, Asked::new(counts, now))),
            }
        }
    }

    pub(super) fn of(&self, cpu: u32) -> Option<&[Demand]> {
        let asked = self.read.get(&cpu)?;
        asked.is_known.then_some(&asked.demands)
    }
}

impl Asked {
    fn new(counts: HashMap<u32, u64>, at: Instant) -> Self {
        Self {
            at,
            counts,
            demands: Vec::new(),
            is_known: false,
        }
    }

    /// Nothing has come since.
    fn rest(&mut self, now: Instant) {
        self.at = now;
        self.demands.retain(|demand| demand.protected);
        let protected = self.demands.iter_mut();
        protected.for_each(|demand| demand.packets = 0);
        self.is_known = true;
    }

    fn follow(
        &mut self,
        counts: HashMap<u32, u64>,
        now: Instant,
        interval: Duration,
        groups: &HashMap<u32, u64>,
    ) {
        let passed = now - self.at;
        let in_interval = |packets: u64| {
            let part = u128::from(packets) * interval.as_nanos() / passed.as_nanos().max(1);
            u64::try_from(part).unwrap_or(u64::MAX)
        };
        let before = &self.counts;
        let demands = counts.iter().map(|(slot, packets)| Demand {
            slot: *slot,
            packets: in_interval(packets.saturating_sub(before.get(slot).copied().unwrap_or(0))),
            group: groups.get(slot).copied(),
            protected: *slot == SLOT_PROTECTED,
        });
        self.demands.clear();
        self.demands
            .extend(demands.filter(|demand| demand.packets > 0 || demand.protected));
        self.is_known = passed <= COUNTS_AGE_MAX;
        (self.at, self.counts) = (now, counts);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::net::UdpSocket;

    use plimsoll_kernel::namespace;

    use super::*;
    use crate::program::test_host::{HOST, from, with_guard};

    const INTERVAL: Duration = Duration::from_millis(20);

    /// With 256 CPUs the channels were read, and gone through, 256 times in each interval.
    #[test]
    fn what_is_asked_of_all_cpus_takes_one_reading() {
        with_guard(|guard| {
            let _server = UdpSocket::bind((HOST, 5000)).unwrap();
            guard.program.set_shares(Some((1000, &BTreeMap::new())));
            guard.program.beat();
            let cpus = 0..u32::try_from(libbpf_rs::num_possible_cpus().unwrap()).unwrap();
            let mut counts = Counts::default();
            let began = Instant::now();
            let mut expected = guard.program.reading();
            counts.begin(&mut guard.program, cpus.clone(), began);
            for interval in 1..4 {
                expected += 1;
                assert_eq!(guard.program.reading(), expected);
                let now = began + INTERVAL * interval;
                let received = cpus.clone().map(|cpu| (cpu, true));
                counts.read_all(&mut guard.program, received, now, INTERVAL);
            }
            // Where nothing came nothing is read.
            expected += 1;
            let received = cpus.map(|cpu| (cpu, false));
            counts.read_all(&mut guard.program, received, began + INTERVAL * 4, INTERVAL);
            assert_eq!(guard.program.reading(), expected);
        });
    }

    /// A flood that changes its queue changes its CPU. That CPU's first interval had no
    /// demands, since only those of the deciding CPU were kept.
    #[test]
    fn what_is_asked_of_a_cpu_that_takes_over_is_known_at_once() {
        with_guard(|guard| {
            let _server = UdpSocket::bind((HOST, 5000)).unwrap();
            let frame = from(HOST).udp(4000, 5000, b"query");
            guard.program.set_shares(Some((1000, &BTreeMap::new())));
            guard.program.beat();
            let mut counts = Counts::default();
            let began = Instant::now();
            counts.begin(&mut guard.program, [0, 1], began);
            for (interval, (cpu, packets)) in (1..).zip([(0, 7), (0, 5), (1, 3), (1, 9), (0, 2)]) {
                namespace::pin(cpu).unwrap();
                guard.test_run(&frame, packets).unwrap();
                let now = began + INTERVAL * interval;
                let received = [0, 1].map(|other| (other, other == cpu as u32));
                counts.read_all(&mut guard.program, received, now, INTERVAL);
                let asked = [0, 1].map(|cpu| {
                    let demands = counts.of(cpu).expect("known");
                    demands.iter().map(|demand| demand.packets).sum::<u64>()
                });
                let mut expected = [0, 0];
                expected[cpu] = u64::from(packets);
                assert_eq!(asked, expected);
            }
        });
    }
}
