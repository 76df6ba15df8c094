//! Stages that several paths are made of: a driver's handler, the software
//! interrupt behind it, and the receive call that ends at a socket queue.

use super::Received;
use crate::Error;
use crate::host::{Body, Cx, Host, LineKind, Queued, Step, Thread};
use crate::outcome::Place;
use crate::packet::Packet;
use crate::profile::Profile;

/// Costs of the stages, in ns.
#[derive(Clone, Copy, Debug)]
pub(super) struct Costs {
    pub(super) enter: u64,
    pub(super) exit: u64,
    pub(super) receive: u64,
    pub(super) queue: u64,
    pub(super) soft_dispatch: u64,
}

impl Costs {
    pub(super) fn load(profile: &Profile, user: &str) -> Result<Self, Error> {
        Ok(Self {
            enter: profile.cost("interrupt_enter", user)?,
            exit: profile.cost("interrupt_exit", user)?,
            receive: profile.cost("driver_receive", user)?,
            queue: profile.cost("queue_packet", user)?,
            soft_dispatch: profile.cost("soft_dispatch", user)?,
        })
    }
}

/// The receive call of a kernel that has done the protocol work already.
pub(super) fn receive_from_socket(host: &mut Host, endpoint: usize, thread: usize) -> Received {
    match host.endpoints[endpoint].queue.pop() {
        Some(packet) => {
            host.threads[thread].hand = Some(packet);
            Received::Packet(host.protocol.receive_call + cold_penalty(host, &packet))
        }
        None => Received::Nothing,
    }
}

/// What is added if work on other packets came between the protocol's on
/// `packet` and its receiver's. A packet that is taken at once is still in the
/// caches.
fn cold_penalty(host: &Host, packet: &Packet) -> u64 {
    if host.warm == Some((packet.source, packet.tag)) {
        0
    } else {
        host.protocol.eager_penalty
    }
}

/// Appends a packet to the shared IP queue of `cpu` and posts its software
/// interrupt.
#[inline]
pub(super) fn to_ip_queue(host: &mut Host, cpu: usize, packet: Packet) {
    if host.ip_queues[cpu].push(packet) {
        host.raise_soft(cpu);
    } else {
        host.lose(packet, Place::IpQueue);
    }
}

/// All receive queues of all adapters.
pub(super) fn receive_queues(host: &Host) -> Vec<(usize, usize)> {
    let adapters = host.adapters.iter().enumerate();
    let all = adapters
        .flat_map(|(adapter, device)| (0..device.rings.len()).map(move |queue| (adapter, queue)));
    all.collect()
}

/// The software interrupt of 4.4BSD: takes packets from the IP queue and does all
/// protocol work on them.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SoftInterrupt {
    running: bool,
}

impl SoftInterrupt {
    /// Its next step, and the consumer that it has just queued a packet for.
    #[inline]
    pub(super) fn step(&mut self, host: &mut Host, cx: Cx, dispatch: u64) -> (Step, Queued) {
        if !self.running {
            self.running = true;
            host.ledger.counts.soft_interrupts += 1;
            return (Step::Kernel(dispatch), Queued::Nowhere);
        }
        let queued = match host.lines[cx.line].hand.take() {
            Some(packet) => {
                host.cpus[cx.cpu].displaced += host.soft_pollution;
                host.protocol_done(packet)
            }
            None => Queued::Nowhere,
        };
        match host.ip_queues[cx.cpu].pop() {
            Some(packet) => {
                let cost = host.protocol_cost(&packet);
                host.lines[cx.line].hand = Some(packet);
                (Step::Kernel(cost), queued)
            }
            None => {
                self.running = false;
                host.leave_input(cx.cpu);
                (Step::Done, queued)
            }
        }
    }
}

/// The transmit half of a driver: releases completed descriptors and then refills
/// the transmitter from the output queue, once each.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct TransmitService {
    releasing: bool,
    refilling: bool,
    /// Descriptors released in this turn.
    pub(super) released: u32,
}

impl TransmitService {
    /// Its next step, with at most `quota` releases; [`Step::Done`] when nothing
    /// is left for this turn. `hand` is where it keeps the packet it starts.
    pub(super) fn step(
        &mut self,
        host: &mut Host,
        adapter: usize,
        hand: &mut Option<Packet>,
        quota: u32,
    ) -> Step {
        if let Some(packet) = hand.take() {
            host.start_output(adapter, packet);
        }
        if std::mem::take(&mut self.releasing) {
            host.release_descriptor(adapter);
            self.released += 1;
        }
        let releases = !self.refilling && self.released < quota;
        if releases && host.adapters[adapter].completed > 0 {
            self.releasing = true;
            return Step::Kernel(host.protocol.transmit_complete);
        }
        let first = !std::mem::replace(&mut self.refilling, true);
        if let Some(packet) = host.next_output(adapter, !first) {
            *hand = Some(packet);
            return Step::Kernel(host.protocol.transmit);
        }
        Step::Done
    }

    /// Begins the next turn.
    pub(super) fn reset(&mut self) {
        *self = Self::default();
    }
}

/// The handler of receive interrupts, as far as all drivers share it.
#[derive(Clone, Debug)]
pub(super) struct ReceiveHandler {
    costs: Costs,
    /// By line.
    phases: Vec<ReceivePhase>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum ReceivePhase {
    #[default]
    Entry,
    /// So many packets were taken.
    Work(u32),
    Exit,
}

impl ReceiveHandler {
    pub(super) fn new(costs: Costs) -> Self {
        Self {
            costs,
            phases: Vec::new(),
        }
    }

    pub(super) fn start(&mut self, host: &Host) {
        self.phases = vec![ReceivePhase::default(); host.lines.len()];
    }

    /// The driver's own code of the handler runs: what the interrupt takes before is over, and
    /// what it takes after has not begun.
    pub(super) fn is_in_driver(&self, line: usize) -> bool {
        matches!(self.phases[line], ReceivePhase::Work(_))
    }

    /// Its next step as of a handler that puts packets on the shared IP queue; `taken`
    /// is told of each. See [`step`](Self::step).
    #[inline]
    pub(super) fn step_queueing(
        &mut self,
        host: &mut Host,
        cx: Cx,
        at: (usize, usize),
        batch: u32,
        taken: impl FnOnce(&mut Host),
    ) -> Step {
        let cost = self.costs.queue;
        let take = |host: &mut Host, packet| {
            taken(host);
            (Some(packet), cost)
        };
        let finish = |host: &mut Host, packet| to_ip_queue(host, cx.cpu, packet);
        self.step(host, cx, at, batch, take, finish)
    }

    /// Its next step. Takes at most `batch` packets of a queue of an adapter:
    /// `take` says what is kept in hand and what the work on a packet costs
    /// beyond the driver's, `finish` is what becomes of the packet in hand after
    /// that. It takes no more than the machine's own limit, either. The interrupt stays
    /// off until the caller, at [`Step::Done`], sees to it.
    #[inline]
    pub(super) fn step(
        &mut self,
        host: &mut Host,
        cx: Cx,
        (adapter, queue): (usize, usize),
        batch: u32,
        take: impl FnOnce(&mut Host, Packet) -> (Option<Packet>, u64),
        finish: impl FnOnce(&mut Host, Packet),
    ) -> Step {
        let phase = &mut self.phases[cx.line];
        match phase {
            ReceivePhase::Entry => {
                host.ledger.counts.interrupts += 1;
                host.ledger.counts.polls += 1;
                // What arrives from here on is found by looking, not announced.
                host.adapters[adapter].rings[queue].enabled = false;
                *phase = ReceivePhase::Work(0);
                Step::Kernel(self.costs.enter)
            }
            ReceivePhase::Work(taken) => {
                if let Some(packet) = host.lines[cx.line].hand.take() {
                    finish(host, packet);
                }
                let batch = batch.min(host.adapters[adapter].receive_batch);
                if *taken < batch
                    && let Some(packet) = host.take(adapter, queue)
                {
                    let refill = host.refill_input(cx.cpu, *taken);
                    *taken += 1;
                    let (kept, cost) = take(host, packet);
                    host.lines[cx.line].hand = kept;
                    return Step::Kernel(self.costs.receive + cost + refill);
                }
                *phase = ReceivePhase::Exit;
                host.leave_input(cx.cpu);
                Step::Kernel(self.costs.exit)
            }
            ReceivePhase::Exit => {
                *phase = ReceivePhase::Entry;
                Step::Done
            }
        }
    }
}

/// The handler of transmit interrupts.
#[derive(Clone, Debug)]
pub(super) struct TransmitHandler {
    costs: Costs,
    /// The receive interrupt serves this direction as well.
    shared: bool,
    /// By adapter.
    phases: Vec<TransmitPhase>,
}

#[derive(Clone, Copy, Debug, Default)]
enum TransmitPhase {
    #[default]
    Entry,
    Work(TransmitService),
    Exit,
}

impl TransmitHandler {
    pub(super) fn new(costs: Costs) -> Self {
        Self {
            costs,
            shared: false,
            phases: Vec::new(),
        }
    }

    pub(super) fn start(&mut self, host: &Host) {
        self.phases = vec![TransmitPhase::default(); host.adapters.len()];
    }

    /// Its next step.
    pub(super) fn step(&mut self, host: &mut Host, cx: Cx, adapter: usize) -> Step {
        let phase = &mut self.phases[adapter];
        match phase {
            TransmitPhase::Entry => {
                host.ledger.counts.interrupts += u64::from(!self.shared);
                host.adapters[adapter].transmit_enabled &= self.shared;
                *phase = TransmitPhase::Work(TransmitService::default());
                Step::Kernel(if self.shared { 0 } else { self.costs.enter })
            }
            TransmitPhase::Work(service) => {
                let mut hand = host.lines[cx.line].hand.take();
                let step = service.step(host, adapter, &mut hand, u32::MAX);
                host.lines[cx.line].hand = hand;
                if step != Step::Done {
                    return step;
                }
                *phase = TransmitPhase::Exit;
                Step::Kernel(if self.shared { 0 } else { self.costs.exit })
            }
            TransmitPhase::Exit => {
                *phase = TransmitPhase::Entry;
                if !self.shared {
                    host.enable_transmit(adapter);
                }
                Step::Done
            }
        }
    }
}

/// A kernel thread per CPU in the place of the software interrupt (Digital UNIX).
#[derive(Clone, Debug, Default)]
pub(super) struct ProtocolThread {
    /// By CPU: the thread, and whether it has been dispatched.
    threads: Vec<(usize, bool)>,
}

impl ProtocolThread {
    pub(super) fn start(&mut self, host: &mut Host) {
        for cpu in 0..host.cpus.len() {
            let mut thread = Thread::new(format!("protocol-{cpu}"), Body::Path(cpu));
            thread.kernel = true;
            thread.cpu = Some(cpu);
            self.threads.push((host.add_thread(thread), false));
        }
    }

    /// The thread of `cpu`, if there are such threads.
    pub(super) fn on(&self, cpu: usize) -> Option<usize> {
        self.threads.get(cpu).map(|(thread, _)| *thread)
    }

    /// Appends to the IP queue of `cpu` for its thread.
    pub(super) fn queue(host: &mut Host, cpu: usize, thread: usize, packet: Packet) {
        if host.ip_queues[cpu].push(packet) {
            host.wake(thread);
        } else {
            host.lose(packet, Place::IpQueue);
        }
    }

    /// The next step of the thread of CPU `cpu`.
    pub(super) fn step(
        &mut self,
        host: &mut Host,
        cpu: usize,
        thread: usize,
        dispatch: u64,
    ) -> Step {
        let running = &mut self.threads[cpu].1;
        if !std::mem::replace(running, true) {
            host.ledger.counts.soft_interrupts += 1;
            return Step::Kernel(dispatch);
        }
        if let Some(packet) = host.threads[thread].hand.take() {
            host.protocol_done(packet);
        }
        let Some(packet) = host.ip_queues[cpu].pop() else {
            *running = false;
            return Step::Done;
        };
        let cost = host.protocol_cost(&packet);
        host.threads[thread].hand = Some(packet);
        Step::Kernel(cost)
    }
}

/// What interrupt-driven hosts share behind the receive handler: software
/// interrupts and transmit interrupts.
#[derive(Clone, Debug)]
pub(super) struct Behind {
    pub(super) costs: Costs,
    transmit: TransmitHandler,
    soft: Vec<SoftInterrupt>,
}

impl Behind {
    pub(super) fn new(costs: Costs) -> Self {
        Self {
            costs,
            transmit: TransmitHandler::new(costs),
            soft: Vec::new(),
        }
    }

    pub(super) fn start(&mut self, host: &Host) {
        self.transmit.start(host);
        self.soft = vec![SoftInterrupt::default(); host.cpus.len()];
    }

    /// One interrupt serves both directions: that of transmission costs nothing
    /// of its own.
    pub(super) fn shared(mut self) -> Self {
        self.transmit.shared = true;
        self
    }

    /// The next step of a transmit or software interrupt's handler.
    pub(super) fn line(&mut self, host: &mut Host, cx: Cx, kind: LineKind) -> Step {
        match kind {
            LineKind::Transmit { adapter } => self.transmit.step(host, cx, adapter),
            LineKind::Soft => {
                let dispatch = self.costs.soft_dispatch;
                self.soft[cx.cpu].step(host, cx, dispatch).0
            }
            _ => Step::Done,
        }
    }
}
