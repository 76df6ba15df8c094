//! The receiver's half of lazy receiver processing, the same whoever
//! demultiplexes (LRP-13, LRP-15, LRP-17, LRP-34, LRP-36, LRP-38, LRP-40).
//!
//! **Datagrams.** The receive call takes the packet from its channel and does
//! the protocol work itself: at the receiver's priority, on its account, and not
//! at all for what nobody asks for.
//!
//! **Idle CPUs.** A kernel thread per CPU, of minimal priority, does the protocol
//! work on datagrams that wait while their receiver is busy on another CPU, and puts
//! them on the socket queue. With one CPU nobody is busy while it is idle.
//!
//! **TCP, forwarding, closed ports, packet filter.** What cannot wait for a receive call is
//! done by a thread per consumer with that consumer's priority; what is for no process, by a
//! daemon's, with the priority of any process. The prototype of
//! the paper has one process for all of TCP; the paper proposes the thread per
//! process that is modelled here.
//!
//! **Eager threads.** In user-level network subsystems a thread of the application
//! does that for datagrams too, whether or not anybody asks for them (BL-34); with
//! fixed priorities it is RT-Mach's thread and Scout's path (BL-35, 36).

use super::channels::Channels;
use super::stages::{TransmitHandler, receive_from_socket};
use super::{Parts, Path, Received};
use crate::Error;
use crate::host::{Body, Cx, EndpointRole, Host, LineKind, Step, Thread};
use crate::packet::Kind;

/// Who does the protocol work on datagrams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DatagramWork {
    /// Their receiver, in its call: lazily.
    Receiver,
    /// Threads, at once: eagerly.
    Thread,
}

/// What puts packets on the channels of a [`LazyPath`].
pub(super) trait Demultiplexer {
    /// See [`Path::start`].
    fn start(&mut self, host: &mut Host);

    /// See [`Path::on_arrival`].
    fn on_arrival(&mut self, host: &mut Host, adapter: usize, queue: usize) {
        host.interrupt_receive(adapter, queue);
    }

    /// See [`Path::on_demultiplexed`].
    fn on_demultiplexed(&mut self, _lazy: &mut Lazy, _host: &mut Host, _adapter: usize) {}

    /// What the receive interrupt's handler does next; `from`: adapter and queue.
    fn interrupt(&mut self, lazy: &mut Lazy, host: &mut Host, cx: Cx, from: (usize, usize))
    -> Step;
}

/// A path with lazy receivers: only its demultiplexer is its own.
#[derive(Debug)]
pub(super) struct LazyPath<D> {
    demultiplexer: D,
    transmit: TransmitHandler,
    lazy: Lazy,
}

impl<D> LazyPath<D> {
    pub(super) fn new(parts: &Parts<'_>, demultiplexer: D, lazy: Lazy) -> Self {
        Self {
            demultiplexer,
            transmit: TransmitHandler::new(parts.costs),
            lazy,
        }
    }
}

impl<D: Demultiplexer> Path for LazyPath<D> {
    fn start(&mut self, host: &mut Host) {
        self.demultiplexer.start(host);
        self.transmit.start(host);
        self.lazy.start(host);
    }

    fn on_arrival(&mut self, host: &mut Host, adapter: usize, queue: usize) {
        self.demultiplexer.on_arrival(host, adapter, queue);
    }

    fn on_demultiplexed(&mut self, host: &mut Host, adapter: usize) {
        let demultiplexer = &mut self.demultiplexer;
        demultiplexer.on_demultiplexed(&mut self.lazy, host, adapter);
    }

    fn line(&mut self, host: &mut Host, cx: Cx, kind: LineKind) -> Step {
        match kind {
            LineKind::Receive { adapter, queue } => {
                let demultiplexer = &mut self.demultiplexer;
                demultiplexer.interrupt(&mut self.lazy, host, cx, (adapter, queue))
            }
            LineKind::Transmit { adapter } => self.transmit.step(host, cx, adapter),
            _ => Step::Done,
        }
    }

    fn thread(&mut self, host: &mut Host, index: usize, thread: usize) -> Step {
        self.lazy.work(host, index, thread)
    }

    fn receive(&mut self, host: &mut Host, endpoint: usize, thread: usize) -> Received {
        self.lazy.receive(host, endpoint, thread)
    }

    fn idle(&mut self, host: &mut Host, cpu: usize) -> Step {
        self.lazy.on_idle(host, cpu);
        Step::Done
    }

    fn held(&self) -> usize {
        self.lazy.channels.held()
    }
}

/// The channels with those who take from them.
#[derive(Debug)]
pub(super) struct Lazy {
    pub(super) channels: Channels,
    /// By consumer: the thread that does its protocol work.
    workers: Vec<Option<usize>>,
    /// What the receive call pays in addition for each packet, in ns.
    take: u64,
    work: DatagramWork,
    /// By CPU: its thread of minimal priority.
    idle: Vec<usize>,
}

impl Lazy {
    pub(super) fn new(host: &Host, take: u64, work: DatagramWork) -> Result<Self, Error> {
        Ok(Self {
            channels: Channels::new(host)?,
            workers: vec![None; host.endpoints.len()],
            take,
            work,
            idle: Vec::new(),
        })
    }

    /// Creates the threads; path threads are numbered by consumer, and then by CPU.
    pub(super) fn start(&mut self, host: &mut Host) {
        self.start_workers(host);
        for cpu in 0..host.cpus.len() {
            let body = Body::Path(self.workers.len() + cpu);
            let mut thread = Thread::new(format!("idle-protocol-{cpu}"), body);
            thread.kernel = true;
            thread.idle = true;
            thread.cpu = Some(cpu);
            self.idle.push(host.add_thread(thread));
        }
    }

    fn start_workers(&mut self, host: &mut Host) {
        for to in 0..host.endpoints.len() {
            if host.endpoints[to].role == EndpointRole::Datagram
                && self.work == DatagramWork::Receiver
            {
                continue;
            }
            let process = host.endpoints[to].threads.first().copied();
            let name = process.map_or_else(
                || format!("proxy-{to}"),
                |process| format!("{}-protocol", host.threads[process].name),
            );
            let mut thread = Thread::new(name, Body::Path(to));
            if let Some(process) = process {
                thread.nice = host.threads[process].nice;
                thread.priority = host.threads[process].priority;
                thread.cpu = host.threads[process].cpu;
            }
            let thread = host.add_thread(thread);
            self.workers[to] = Some(thread);
            // It goes to sleep in good order, asking for an interrupt.
            host.wake(thread);
        }
    }

    /// A packet is on the channel of `to`, and its consumer wants to know.
    pub(super) fn wake(&self, host: &mut Host, to: usize) {
        match self.workers[to] {
            Some(worker) => host.wake(worker),
            None => host.wake_one(to),
        }
    }

    /// A packet is on the channel of `to`, whose consumer is busy.
    pub(super) fn queued(&self, host: &mut Host, to: usize) {
        let is_free = |cpu: &crate::host::Cpu| cpu.thread.is_none() && !cpu.reschedule;
        if self.has_idle_work(host, to)
            && let Some(cpu) = host.cpus.iter().position(is_free)
        {
            host.wake(self.idle[cpu]);
        }
    }

    /// See [`Path::idle`].
    pub(super) fn on_idle(&self, host: &mut Host, cpu: usize) {
        if self.idle_work(host).is_some() {
            host.wake(self.idle[cpu]);
        }
    }

    /// The first consumer that an idle CPU can do something for.
    fn idle_work(&self, host: &Host) -> Option<usize> {
        (0..self.workers.len()).find(|&to| self.has_idle_work(host, to))
    }

    fn has_idle_work(&self, host: &Host, to: usize) -> bool {
        self.workers[to].is_none()
            && self.channels.data_waits(to)
            && !host.endpoints[to].queue.is_full()
    }

    /// See [`Path::receive`].
    pub(super) fn receive(&mut self, host: &mut Host, to: usize, thread: usize) -> Received {
        if let Some(worker) = self.workers[to] {
            if self.channels.requests_wait(to) && !host.endpoints[to].is_beyond_backlog() {
                host.wake(worker);
            }
            let Some(packet) = host.endpoints[to].queue.pop() else {
                return Received::Nothing;
            };
            host.threads[thread].hand = Some(packet);
            return Received::Packet(host.protocol.receive_call);
        }
        if let Some(invalid) = host.threads[thread].hand.take() {
            host.protocol_done(invalid);
        }
        // What an idle CPU has done already.
        let done = receive_from_socket(host, to, thread);
        if done != Received::Nothing {
            return done;
        }
        let Some(packet) = self.channels.pop(host, to) else {
            self.channels.request_interrupt(to);
            return Received::Nothing;
        };
        host.threads[thread].hand = Some(packet);
        if packet.kind == Kind::Datagram {
            let costs = &host.protocol;
            return Received::Packet(costs.receive_call + costs.input + self.take);
        }
        Received::Work(host.protocol.control + self.take)
    }

    /// The next step of path thread `index`: of the thread that works for this
    /// consumer, or of an idle CPU's.
    pub(super) fn work(&mut self, host: &mut Host, index: usize, thread: usize) -> Step {
        if let Some(packet) = host.threads[thread].hand.take() {
            host.protocol_done(packet);
        }
        let is_idle = index >= self.workers.len();
        let from = if is_idle {
            self.idle_work(host)
        } else {
            Some(index)
        };
        if let Some(packet) = from.and_then(|to| self.channels.pop(host, to)) {
            let cost = host.protocol_cost(&packet) + self.take;
            host.threads[thread].hand = Some(packet);
            return Step::Kernel(cost);
        }
        if !is_idle {
            self.channels.request_interrupt(index);
        }
        Step::Done
    }
}
