//! Reads what the ledger is made of.

use std::cell::Cell;

use plimsoll_core::demux::Kind;

use super::Ledger;
use super::between::{Reading, between};
use super::causes::UDP_DELIVERED;
use crate::counters::{Counters, Packets};
use crate::error::Error;
use plimsoll_kernel::counters::interfaces::Interfaces;
use plimsoll_kernel::counters::sockets::UdpSockets;
use plimsoll_kernel::counters::stack::{self, Stack};
use plimsoll_kernel::{link, netlink};

/// The ledger of one guard since it was begun.
#[derive(Debug)]
pub struct LedgerReader {
    ifindex: u32,
    sockets: Option<UdpSockets>,
    /// Another interface has run an XDP program since the ledger was begun.
    others_ran_xdp: Cell<bool>,
    first: Reading,
}

/// A reading that has begun: what the interfaces counted before all else.
#[derive(Clone, Copy, Debug)]
pub struct Begun(Interfaces);

impl LedgerReader {
    /// Begins the ledger of `interface` of the current network namespace, with
    /// what its guard has counted so far as `counters` reads it. What is left
    /// to do later takes `CAP_NET_ADMIN`, and less without.
    ///
    /// # Errors
    ///
    /// No such interface, or `counters` fails.
    pub fn begin<E: From<Error>>(
        interface: &str,
        counters: impl FnOnce() -> Result<Counters, E>,
    ) -> Result<Self, E> {
        let ifindex = link::index(interface).map_err(Error::from)?;
        let mut ledger = Self {
            ifindex,
            sockets: UdpSockets::load().ok(),
            others_ran_xdp: Cell::new(false),
            first: Reading::default(),
        };
        let begun = ledger.start();
        let counters = counters()?;
        ledger.first = ledger.finish(begun, &counters, &Packets::default());
        Ok(ledger)
    }

    /// To be called before the guard's counters are read.
    #[must_use]
    pub fn start(&self) -> Begun {
        Begun(self.interfaces())
    }

    /// Where all packets went up to now. Of `counters`, `observed` passed
    /// whatever their outcome.
    #[must_use]
    pub fn ledger(&self, begun: Begun, counters: &Counters, observed: &Packets) -> Ledger {
        between(&self.first, &self.finish(begun, counters, observed))
    }

    fn finish(&self, begun: Begun, counters: &Counters, observed: &Packets) -> Reading {
        let delivered_before = delivered(&stack::read());
        let waiting = self.sockets.as_ref().and_then(UdpSockets::waiting);
        let stack = stack::read();
        let name = link::name(self.ifindex);
        let neighbour_messages = name.as_deref().map_or(0, stack::neighbour_messages);
        let backlog_dropped = stack::backlog_dropped();
        // Last what comes first, so that nothing seems to come from nowhere.
        let interfaces = self.interfaces();
        let run_xdp = begun.0.others_run_xdp || interfaces.others_run_xdp;
        self.others_ran_xdp
            .set(self.others_ran_xdp.get() || run_xdp);
        let received = |at: &Interfaces| at.own.received.saturating_add(at.others.received);
        Reading {
            moved: received(&interfaces).saturating_sub(received(&begun.0))
                + delivered(&stack).saturating_sub(delivered_before),
            adapter: interfaces.own,
            is_veth: interfaces.is_veth(),
            peer_dropped: interfaces.peer_not_sent(&mut netlink::Socket::new()),
            outcomes: counters.all(),
            observed: *observed,
            unseen: counters.unseen,
            neighbour: counters.of(Kind::Neighbour).offered(),
            neighbour_messages,
            others: interfaces.others,
            others_ran_xdp: self.others_ran_xdp.get(),
            backlog_dropped,
            stack,
            waiting,
        }
    }

    /// All zeros if the kernel does not tell.
    fn interfaces(&self) -> Interfaces {
        Interfaces::read(self.ifindex).unwrap_or_default()
    }
}

fn delivered(stack: &Stack) -> u64 {
    UDP_DELIVERED
        .iter()
        .filter_map(|name| stack.get(*name))
        .sum()
}
