//! Which blocked consumer to wake: the one most packets wait for (section 11.4,
//! MR-93). A wake-up costs the same for one packet as for many, so the largest
//! batch makes the best use of it; the same order serves a scheduler that prefers
//! processes with long queues (MR-91).
//!
//! **When it loses.** A consumer that gets few packets waits as long as others
//! keep getting more. Where that matters, wake by [`Shares`](super::Shares).

use alloc::vec::Vec;

use super::ConsumerId;
use super::tournament::Tournament;

/// Packets waiting for each consumer, and the order in which to wake them.
#[derive(Clone, Debug)]
pub struct Waiting {
    packets: Vec<u32>,
    /// Consumers that sleep although packets wait.
    sleepers: Tournament,
    asleep: Vec<bool>,
}

impl Waiting {
    /// Consumers 0 to `consumers_max` − 1, awake, without packets.
    #[must_use]
    pub fn new(consumers_max: usize) -> Self {
        Self {
            packets: alloc::vec![0; consumers_max],
            sleepers: Tournament::new(consumers_max),
            asleep: alloc::vec![false; consumers_max],
        }
    }

    /// A packet for `consumer` was queued.
    pub fn on_enqueue(&mut self, consumer: ConsumerId) {
        let packets = &mut self.packets[consumer.index()];
        *packets = packets.saturating_add(1);
        self.place(consumer);
    }

    /// `consumer` took a packet from its queue, or one was discarded there.
    pub fn on_dequeue(&mut self, consumer: ConsumerId) {
        let packets = &mut self.packets[consumer.index()];
        *packets = packets.saturating_sub(1);
        self.place(consumer);
    }

    /// `consumer` blocks until it is woken.
    pub fn on_block(&mut self, consumer: ConsumerId) {
        self.asleep[consumer.index()] = true;
        self.place(consumer);
    }

    /// `consumer` runs again.
    pub fn on_wake(&mut self, consumer: ConsumerId) {
        self.asleep[consumer.index()] = false;
        self.place(consumer);
    }

    /// The blocked consumer with most packets waiting, the lowest number among
    /// equals. It stays the answer until [`on_wake`](Self::on_wake).
    #[must_use]
    pub fn most(&self) -> Option<ConsumerId> {
        self.sleepers.winner().map(ConsumerId)
    }

    /// Packets that wait for `consumer`.
    #[must_use]
    pub fn packets(&self, consumer: ConsumerId) -> u32 {
        self.packets[consumer.index()]
    }

    fn place(&mut self, consumer: ConsumerId) {
        let packets = self.packets[consumer.index()];
        if self.asleep[consumer.index()] && packets > 0 {
            self.sleepers.set(consumer.0, (u32::MAX - packets).into());
        } else {
            self.sleepers.remove(consumer.0);
        }
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use std::vec;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_largest_batch_is_woken_first() {
        let mut waiting = Waiting::new(3);
        let [a, b, c] = [0, 1, 2].map(ConsumerId);
        for (consumer, packets) in [(a, 2), (b, 5), (c, 9)] {
            (0..packets).for_each(|_| waiting.on_enqueue(consumer));
        }
        assert_eq!(waiting.most(), None, "all are awake");
        waiting.on_block(a);
        waiting.on_block(b);
        assert_eq!(waiting.most(), Some(b));
        waiting.on_wake(b);
        assert_eq!(waiting.most(), Some(a));
        waiting.on_dequeue(a);
        waiting.on_dequeue(a);
        assert_eq!((waiting.most(), waiting.packets(a)), (None, 0));
        waiting.on_dequeue(a);
        assert_eq!(waiting.packets(a), 0);
    }

    proptest! {
        #[test]
        fn it_is_the_one_a_search_would_find(
            ops in prop::collection::vec((0..4u8, 0..6u32), 0..300)
        ) {
            let mut waiting = Waiting::new(6);
            let (mut packets, mut asleep) = (vec![0u32; 6], vec![false; 6]);
            for (op, consumer) in ops {
                let (id, at) = (ConsumerId(consumer), consumer as usize);
                match op {
                    0 => { waiting.on_enqueue(id); packets[at] += 1; }
                    1 => { waiting.on_dequeue(id); packets[at] = packets[at].saturating_sub(1); }
                    2 => { waiting.on_block(id); asleep[at] = true; }
                    _ => { waiting.on_wake(id); asleep[at] = false; }
                }
                let sleepers = (0..6).rev().filter(|&at| asleep[at] && packets[at] > 0);
                let most = sleepers.max_by_key(|&at| packets[at]);
                prop_assert_eq!(waiting.most(), most.map(|at| ConsumerId(at as u32)));
            }
        }
    }
}
