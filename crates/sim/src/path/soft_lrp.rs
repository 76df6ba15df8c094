//! SOFT-LRP (BL-32): lazy receiver processing with any adapter. With eager threads, a
//! user-level network subsystem behind the kernel's packet filter (BL-34 to 36).
//!
//! **Rules.** The interrupt handler takes packets from the adapter as any
//! handler, looks up whose they are, and puts them on that consumer's channel or
//! discards them. It does nothing else; see [`lazy`](super::lazy) for the rest.
//!
//! **Where excess is dropped.** On the channel, after the driver's and the
//! demultiplexer's work. That work grows with the load: livelock is postponed to
//! where it alone fills the CPU (LRP-29).

use super::channels::Pushed;
use super::lazy::{DatagramWork, Lazy};
use super::stages::{ReceiveHandler, TransmitHandler};
use super::{Parts, Path, Received};
use crate::Error;
use crate::host::{Cx, Host, LineKind, Step};
use crate::outcome::Place;

/// The path.
#[derive(Debug)]
pub(super) struct SoftLrp {
    demux: u64,
    lazy: Lazy,
    handler: ReceiveHandler,
    transmit: TransmitHandler,
}

impl SoftLrp {
    pub(super) fn new(parts: &Parts<'_>, work: DatagramWork) -> Result<Self, Error> {
        Ok(Self {
            demux: parts.cost("demux")?,
            lazy: Lazy::new(parts.host, 0, work)?,
            handler: ReceiveHandler::new(parts.costs),
            transmit: TransmitHandler::new(parts.costs),
        })
    }

    fn receive(&mut self, host: &mut Host, cx: Cx, adapter: usize, queue: usize) -> Step {
        let (lazy, demux) = (&mut self.lazy, self.demux);
        let step = self.handler.step(
            host,
            cx,
            (adapter, queue),
            u32::MAX,
            |_, packet| (Some(packet), demux),
            |host, packet| match lazy.channels.push(host, packet) {
                Pushed::Queued(true) => lazy.wake(host, usize::from(packet.to)),
                Pushed::Queued(false) => lazy.queued(host, usize::from(packet.to)),
                Pushed::Discarded(packet) => host.lose(packet, Place::Channel),
            },
        );
        if step == Step::Done {
            host.enable_receive(adapter, queue);
        }
        step
    }
}

impl Path for SoftLrp {
    fn start(&mut self, host: &mut Host) {
        self.handler.start(host);
        self.transmit.start(host);
        self.lazy.start(host);
    }

    fn line(&mut self, host: &mut Host, cx: Cx, kind: LineKind) -> Step {
        match kind {
            LineKind::Receive { adapter, queue } => self.receive(host, cx, adapter, queue),
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
