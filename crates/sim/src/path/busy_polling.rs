//! Busy polling (BL-12): a loop that does nothing but look at the adapters.
//!
//! **Rules.** No interrupts. A kernel thread per CPU that has receive queues
//! never sleeps, takes each packet as far as it goes, and occupies its CPU
//! whether packets come or not.
//!
//! **Where excess is dropped.** On the rings, at no cost. On a host with one CPU
//! no process ever runs: this is for dedicated routers, or for more CPUs than
//! receive queues.

use super::stages::{Costs, TransmitService, receive_queues};
use super::{Parts, Path};
use crate::Error;
use crate::host::{Body, Cx, Host, LineKind, Step, Thread};

/// The path.
#[derive(Debug)]
pub(super) struct BusyPolling {
    costs: Costs,
    poll_pass: u64,
    queues: Vec<(usize, usize)>,
    /// By CPU: where its loop is.
    places: Vec<Place>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Place {
    /// Of the list of receive queues.
    queue: usize,
    transmitting: Option<TransmitService>,
}

impl BusyPolling {
    pub(super) fn new(parts: &Parts<'_>) -> Result<Self, Error> {
        Ok(Self {
            costs: parts.costs,
            poll_pass: parts.cost("poll_pass")?,
            queues: Vec::new(),
            places: Vec::new(),
        })
    }
}

impl Path for BusyPolling {
    fn start(&mut self, host: &mut Host) {
        host.disable_interrupts();
        self.queues = receive_queues(host);
        self.places = vec![Place::default(); host.cpus.len()];
        for cpu in 0..host.cpus.len() {
            let mut rings = host.adapters.iter().flat_map(|device| &device.rings);
            if rings.any(|ring| ring.cpu == cpu) {
                let mut thread = Thread::new(format!("polling-{cpu}"), Body::Path(cpu));
                thread.kernel = true;
                thread.cpu = Some(cpu);
                let thread = host.add_thread(thread);
                host.wake(thread);
            }
        }
    }

    fn on_arrival(&mut self, _host: &mut Host, _adapter: usize, _queue: usize) {}

    fn line(&mut self, _host: &mut Host, _cx: Cx, _kind: LineKind) -> Step {
        Step::Done
    }

    fn thread(&mut self, host: &mut Host, cpu: usize, thread: usize) -> Step {
        let place = &mut self.places[cpu];
        let (adapter, queue) = self.queues[place.queue];
        if let Some(service) = &mut place.transmitting {
            let mut hand = host.threads[thread].hand.take();
            let step = service.step(host, adapter, &mut hand, u32::MAX);
            host.threads[thread].hand = hand;
            if step != Step::Done {
                return step;
            }
            place.transmitting = None;
            place.queue = (place.queue + 1) % self.queues.len();
            return Step::Kernel(self.poll_pass);
        }
        if let Some(packet) = host.threads[thread].hand.take() {
            host.protocol_done(packet);
        }
        if host.adapters[adapter].rings[queue].cpu == cpu
            && let Some(packet) = host.take(adapter, queue)
        {
            let cost = self.costs.receive + host.protocol_cost(&packet);
            host.threads[thread].hand = Some(packet);
            // The next packet is the next queue's, if that has one.
            return Step::Kernel(cost);
        }
        host.ledger.counts.polls += 1;
        place.transmitting = Some(TransmitService::default());
        // Never for nothing, or time would stand still.
        Step::Kernel(self.poll_pass.max(1))
    }
}
