//! Which NAPI instance is which when the kernel has numbered them anew.
//!
//! An id is an instance's for as long as it is enabled. Some drivers (vmxnet3) disable
//! and enable all of them when XDP is attached or detached: they have new ids then, and
//! their old settings, but for what `kept` puts back. What lasts is the queue, the
//! interrupt, and the order in which the driver enables them.
//!
//! Limits: of a driver that tells neither queue nor interrupt, instances that were
//! renewed one by one, in another order than the driver's, are taken for each other.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::napi::Napi;

/// An instance as it was seen last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Known {
    id: u32,
    queue: Option<u32>,
    irq: Option<u32>,
}

/// New ids by old ones.
pub(super) type Renumbered = BTreeMap<u32, u32>;

/// All instances of an interface that were seen, in the driver's order.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub(super) struct Instances(Vec<Known>);

impl Instances {
    /// Finds those that are `present` among those known, and learns the others.
    pub(super) fn follow(&mut self, present: &[Napi]) -> Renumbered {
        let mut new: Vec<&Napi> = present
            .iter()
            .filter(|napi| self.0.iter().all(|known| known.id != napi.id))
            .collect();
        new.sort_by_key(|napi| napi.id);
        let is_lost = |known: &Known| present.iter().all(|napi| napi.id != known.id);
        let mut lost: Vec<&mut Known> = self.0.iter_mut().filter(|known| is_lost(known)).collect();
        let mut renumbered = Renumbered::new();
        let mut pair = |same: &dyn Fn(&Known, &Napi) -> bool| {
            lost.retain_mut(|known| {
                let Some(at) = new.iter().position(|napi| same(known, napi)) else {
                    return true;
                };
                let napi = new.remove(at);
                renumbered.insert(known.id, napi.id);
                known.id = napi.id;
                false
            });
        };
        pair(&|known, napi| known.queue.is_some() && known.queue == napi.queue);
        pair(&|known, napi| known.irq.is_some() && known.irq == napi.irq);
        // Channels are taken away and added at the end.
        pair(&|known, napi| known.queue.is_none() || napi.queue.is_none());
        self.0.extend(new.iter().map(|napi| Known {
            id: napi.id,
            queue: napi.queue,
            irq: napi.irq,
        }));
        renumbered
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn napi(id: u32, queue: Option<u32>, irq: Option<u32>) -> Napi {
        Napi {
            id,
            queue,
            irq,
            thread: None,
            defer_hard_irqs: None,
            gro_flush_timeout: None,
            irq_suspend_timeout: None,
            threaded: None,
        }
    }

    fn untold(ids: &[u32]) -> Vec<Napi> {
        ids.iter().map(|id| napi(*id, None, None)).collect()
    }

    fn pairs(renumbered: &Renumbered) -> Vec<(u32, u32)> {
        renumbered.iter().map(|(old, new)| (*old, *new)).collect()
    }

    #[test]
    fn instances_keep_their_place_among_all() {
        let mut instances = Instances::default();
        assert_eq!(pairs(&instances.follow(&untold(&[11, 12, 13]))), []);
        let all_new = instances.follow(&untold(&[23, 22, 21]));
        assert_eq!(pairs(&all_new), [(11, 21), (12, 22), (13, 23)]);
        let some_new = instances.follow(&untold(&[22, 31, 32]));
        assert_eq!(pairs(&some_new), [(21, 31), (23, 32)]);
        let fewer = instances.follow(&untold(&[41, 42]));
        assert_eq!(pairs(&fewer), [(22, 42), (31, 41)]);
    }

    #[test]
    fn a_queue_or_an_interrupt_tells_more_than_a_place() {
        let mut instances = Instances::default();
        let by_queue = |id, queue| napi(id, Some(queue), None);
        let by_irq = |id, irq| napi(id, None, Some(irq));
        instances.follow(&[
            by_queue(11, 0),
            by_queue(12, 1),
            by_irq(13, 55),
            by_irq(14, 56),
        ]);
        let renewed = [
            by_queue(22, 0),
            by_queue(21, 1),
            by_irq(24, 55),
            by_irq(23, 56),
        ];
        assert_eq!(
            pairs(&instances.follow(&renewed)),
            [(11, 22), (12, 21), (13, 24), (14, 23)]
        );
    }

    #[test]
    fn none_at_all_forgets_none() {
        let mut instances = Instances::default();
        instances.follow(&untold(&[11, 12]));
        assert_eq!(pairs(&instances.follow(&[])), []);
        assert_eq!(
            pairs(&instances.follow(&untold(&[21, 22]))),
            [(11, 21), (12, 22)]
        );
    }
}
