//! SOFT-LRP (BL-32): lazy receiver processing with any adapter. With eager threads, a
//! user-level network subsystem behind the kernel's packet filter (BL-34 to 36).
//!
//! **Rules.** The interrupt handler takes packets from the adapter as any
//! handler, looks up whose they are, and puts them on that consumer's channel or
//! discards them. It wakes a consumer that sleeps, and does nothing else; see
//! [`lazy`](super::lazy) for the rest.
//!
//! **Where excess is dropped.** On the channel, after the driver's and the
//! demultiplexer's work. That work grows with the load: livelock is postponed to
//! where it alone fills the CPU (LRP-29).

use super::Parts;
use super::channels::Pushed;
use super::lazy::{DatagramWork, Demultiplexer, Lazy, LazyPath};
use super::stages::ReceiveHandler;
use crate::Error;
use crate::host::{Cx, Host, Step};
use crate::outcome::Place;

/// The handler's demultiplexing.
#[derive(Debug)]
pub(super) struct SoftLrp {
    demux: u64,
    handler: ReceiveHandler,
}

impl SoftLrp {
    pub(super) fn path(parts: &Parts<'_>, work: DatagramWork) -> Result<LazyPath<Self>, Error> {
        let demultiplexer = Self {
            demux: parts.cost("demux")?,
            handler: ReceiveHandler::new(parts.costs),
        };
        let lazy = Lazy::new(parts.host, 0, work)?;
        Ok(LazyPath::new(parts, demultiplexer, lazy))
    }
}

impl Demultiplexer for SoftLrp {
    fn start(&mut self, host: &mut Host) {
        self.handler.start(host);
    }

    fn interrupt(
        &mut self,
        lazy: &mut Lazy,
        host: &mut Host,
        cx: Cx,
        (adapter, queue): (usize, usize),
    ) -> Step {
        let demux = self.demux;
        let step = self.handler.step(
            host,
            cx,
            (adapter, queue),
            u32::MAX,
            |_, packet| (Some(packet), demux),
            |host, packet| match lazy.channels.push(host, packet) {
                Pushed::Queued(true) => {
                    host.owed += host.protocol.wakeup;
                    lazy.wake(host, usize::from(packet.to));
                }
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
