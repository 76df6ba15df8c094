//! The computation: two readings of all counters become a ledger.

use std::collections::BTreeSet;

use plimsoll_kernel::counters::interfaces::Adapter;
use plimsoll_kernel::counters::stack::Stack;

use super::causes::{self, Causes};
use super::{Fate, Ledger, Place, Stage};
use crate::counters::{Outcome, Packets, Unseen};

/// All counters at one time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Reading {
    pub(super) adapter: Adapter,
    /// The adapter is one end of a veth pair.
    pub(super) is_veth: bool,
    /// What the other end of a veth pair could not send.
    pub(super) peer_dropped: Option<u64>,
    /// The guard's outcomes over all kinds.
    pub(super) outcomes: Packets,
    /// Of these, what passed whatever the outcome, because it was observed only.
    pub(super) observed: Packets,
    /// Frames that came while the guard stood by, without a program.
    pub(super) unseen: Unseen,
    /// Packets of ARP and neighbour discovery that the guard saw.
    pub(super) neighbour: u64,
    /// Messages of neighbour discovery among them.
    pub(super) neighbour_messages: u64,
    /// The sums over all other interfaces.
    pub(super) others: Adapter,
    /// One of these has run an XDP program since the ledger was begun.
    pub(super) others_ran_xdp: bool,
    pub(super) backlog_dropped: Vec<u32>,
    pub(super) stack: Stack,
    /// Datagrams in the receive queues of all UDP sockets.
    pub(super) waiting: Option<u64>,
    /// Packets that moved while all this was read.
    pub(super) moved: u64,
}

/// Where the packets between two readings went.
pub(super) fn between(then: &Reading, now: &Reading) -> Ledger {
    Computation {
        then,
        now,
        moved: then.moved.saturating_add(now.moved),
        absent: BTreeSet::new(),
        anew: BTreeSet::new(),
    }
    .ledger()
}

struct Computation<'a> {
    then: &'a Reading,
    now: &'a Reading,
    moved: u64,
    absent: BTreeSet<String>,
    anew: BTreeSet<String>,
}

impl Computation<'_> {
    fn ledger(mut self) -> Ledger {
        let seen = self.seen();
        // What of it has found no place.
        let mut dropped = self.adapter("rx_dropped", |adapter| adapter.dropped);
        let received = self.received(seen);
        // Only what was not simply on its way while counters were read.
        let missing = received.saturating_sub(seen).saturating_sub(self.moved);
        let before_guard = dropped.min(missing);
        dropped -= before_guard;
        let guard = self.guard(seen);
        let host = self.host(guard.went_on, &mut dropped);
        let adapter = self.adapter_stage(received, seen, before_guard, dropped);
        let ip = self.ip(host.went_on);
        let protocols = self.protocols(ip.went_on);
        let stages = vec![adapter, guard, host, ip, protocols];
        self.say_what_veth_hides();
        Ledger {
            unaccounted: stages.iter().map(|stage| stage.unaccounted).sum(),
            stages,
            not_visible: self.absent.into_iter().collect(),
            began_anew: self.anew.into_iter().collect(),
        }
    }

    /// What the guard saw, and what passed it while it stood by: as much as fits between both
    /// bounds.
    fn seen(&mut self) -> u64 {
        let judged = self.outcomes(Packets::offered);
        let (then, now) = (self.then.unseen, self.now.unseen);
        let least = now.least.saturating_sub(then.least);
        let most = now.most.saturating_sub(then.most).max(least);
        let received = self.adapter("rx_packets", |adapter| adapter.received);
        judged.saturating_add(received.saturating_sub(judged).clamp(least, most))
    }

    /// Frames that the adapter received. Some drivers leave out what an XDP
    /// program did not pass: whichever reading fits what the guard saw.
    fn received(&mut self, seen: u64) -> u64 {
        let received = self.adapter("rx_packets", |adapter| adapter.received);
        let with_consumed = received.saturating_add(self.consumed());
        if with_consumed.abs_diff(seen) < received.abs_diff(seen) {
            with_consumed
        } else {
            received
        }
    }

    /// What the guard's program did not pass on.
    fn consumed(&self) -> u64 {
        let others = |packets: &Packets| packets.offered() - packets.count(Outcome::Admitted);
        self.outcomes(others).saturating_sub(self.observed(others))
    }

    fn outcomes(&self, count: impl Fn(&Packets) -> u64) -> u64 {
        count(&self.now.outcomes).saturating_sub(count(&self.then.outcomes))
    }

    fn observed(&self, count: impl Fn(&Packets) -> u64) -> u64 {
        count(&self.now.observed).saturating_sub(count(&self.then.observed))
    }

    fn adapter_stage(
        &mut self,
        received: u64,
        seen: u64,
        before_guard: u64,
        dropped: u64,
    ) -> Stage {
        let missed = self.adapter("rx_missed_errors", |adapter| adapter.missed);
        let fifo = self.adapter("rx_fifo_errors", |adapter| adapter.fifo_errors);
        let over = self.adapter("rx_over_errors", |adapter| adapter.over_errors);
        let full = missed.max(fifo).max(over);
        // What an XDP redirect could not put into veth's ring is in `dropped`, too.
        let (ring, dropped, from) = match self.peer_dropped() {
            Some(peer) => (peer.max(dropped), 0, "tx_dropped of the veth's other end"),
            None => (
                full,
                dropped,
                "rx_missed_errors, rx_fifo_errors, rx_over_errors",
            ),
        };
        let places = vec![
            place("receive_ring", Fate::Lost, ring, from),
            place(
                "bad_frame",
                Fate::Lost,
                self.adapter("rx_errors", |a| a.errors),
                "rx_errors",
            ),
            place("not_received", Fate::Lost, dropped, "rx_dropped"),
            place("before_guard", Fate::Lost, before_guard, "rx_dropped"),
        ];
        let lost: u64 = places.iter().map(|place| place.packets).sum();
        let entered = lost.saturating_add(received) - before_guard;
        self.close("adapter", (entered, 0), places, seen)
    }

    fn guard(&mut self, seen: u64) -> Stage {
        let mut places = Vec::new();
        for outcome in Outcome::ALL {
            let fate = match outcome {
                Outcome::Admitted => continue,
                discard if discard.is_discard() => Fate::Discarded,
                _ => Fate::Answered,
            };
            let all = self.outcomes(|packets| packets.count(outcome));
            let passed = self.observed(|packets| packets.count(outcome));
            places.push(place(
                outcome.name(),
                fate,
                all.saturating_sub(passed),
                "the guard's own",
            ));
        }
        let ended: u64 = places.iter().map(|place| place.packets).sum();
        self.close("guard", (seen, 0), places, seen.saturating_sub(ended))
    }

    fn host(&mut self, admitted: u64, dropped: &mut u64) -> Stage {
        let joined = self.others(|adapter| adapter.received);
        let received = self.stack(&causes::IP_RECEIVED);
        let other_host = self.adapter("rx_otherhost_dropped", |adapter| adapter.other_host)
            + self.others(|adapter| adapter.other_host);
        let no_handler = self.adapter("rx_nohandler", |adapter| adapter.no_handler)
            + self.others(|adapter| adapter.no_handler);
        let known = other_host + no_handler + self.arp() + received;
        let gap = admitted.saturating_add(joined).saturating_sub(known);
        let segments = self.stack(&causes::IP_SEGMENTS);
        let merged = gap.min(segments.saturating_sub(received));
        let lost = (gap - merged).min(*dropped);
        *dropped -= lost;
        let undivided = (gap - merged - lost).min(self.lost_by_others());
        let backlog = lost.min(self.backlog_dropped());
        let places = vec![
            place(
                "other_host",
                Fate::Passed,
                other_host,
                "rx_otherhost_dropped",
            ),
            place("no_handler", Fate::Lost, no_handler, "rx_nohandler"),
            place(
                "arp",
                Fate::Delivered,
                self.arp(),
                "the guard's own, without Icmp6InType133 to 137",
            ),
            place(
                "merged",
                Fate::Merged,
                merged,
                "at most In*ECT*Pkts, InCEPkts beyond InReceives",
            ),
            place("backlog", Fate::Lost, backlog, "rx_dropped, softnet_stat"),
            place("no_protocol", Fate::Lost, lost - backlog, "rx_dropped"),
            place(
                "other_interfaces",
                Fate::Undivided,
                undivided,
                "rx_dropped and XDP programs of other interfaces",
            ),
        ];
        self.close("host", (admitted, joined), places, received)
    }

    /// What others may have lost or taken of what they counted as received. What their programs
    /// took is not known from here.
    fn lost_by_others(&self) -> u64 {
        match self.then.others_ran_xdp || self.now.others_ran_xdp {
            true => u64::MAX,
            false => self.others(|adapter| adapter.dropped),
        }
    }

    /// ARP has no counter but the guard's, which holds neighbour discovery, too.
    fn arp(&self) -> u64 {
        let all = self.now.neighbour.saturating_sub(self.then.neighbour);
        let messages = self.now.neighbour_messages;
        all.saturating_sub(messages.saturating_sub(self.then.neighbour_messages))
    }

    fn ip(&mut self, received: u64) -> Stage {
        let mut places = self.losses(&causes::IP_LOSSES);
        let fragments = self.stack(&causes::FRAGMENTS);
        let fragments = fragments.saturating_sub(self.stack(&causes::REASSEMBLED));
        let forwarded = self.stack(&causes::IP_FORWARDED);
        places.push(place(
            "fragments",
            Fate::Merged,
            fragments,
            "ReasmReqds without ReasmOKs",
        ));
        places.push(place("forwarded", Fate::Passed, forwarded, "ForwDatagrams"));
        let delivered = self.stack(&causes::IP_DELIVERED);
        let ended: u64 = places.iter().map(|place| place.packets).sum();
        let gap = received.saturating_sub(ended.saturating_add(delivered));
        let multicast = gap.min(self.stack(&causes::MULTICAST_V6));
        let from = "at most Ip6InMcastPkts";
        places.push(place("not_joined", Fate::Passed, multicast, from));
        self.close("ip", (received, 0), places, delivered)
    }

    fn protocols(&mut self, delivered: u64) -> Stage {
        let mut places = self.losses(&causes::TCP_LOSSES);
        let lost: u64 = places.iter().map(|place| place.packets).sum();
        let segments = self.stack(&causes::TCP_SEGMENTS).saturating_sub(lost);
        places.push(place(
            "tcp",
            Fate::Delivered,
            segments,
            "Tcp.InSegs without these",
        ));
        places.extend(self.udp());
        let (messages, bad) = (
            self.stack(&causes::ICMP_MESSAGES),
            self.stack(&causes::ICMP_ERRORS),
        );
        places.push(place("icmp_bad", Fate::Lost, bad, "Icmp InErrors"));
        places.push(place(
            "icmp",
            Fate::Delivered,
            messages.saturating_sub(bad),
            "Icmp InMsgs",
        ));
        let waited = self.then.waiting.unwrap_or_default();
        self.close("protocols", (delivered, waited), places, 0)
    }

    fn udp(&mut self) -> Vec<Place> {
        let mut places = self.losses(&causes::UDP_LOSSES);
        let named = places[causes::UDP_NOT_ERRORS..].iter();
        let named: u64 = named.map(|place| place.packets).sum();
        let errors = self.stack(&causes::UDP_ERRORS).saturating_sub(named);
        places.push(place(
            "udp_refused",
            Fate::Lost,
            errors,
            "Udp InErrors without these",
        ));
        if self.now.waiting.is_none() || self.then.waiting.is_none() {
            self.absent
                .insert("datagrams waiting in UDP sockets: no iterator over them here".to_owned());
        }
        let waiting = self.now.waiting.unwrap_or_default();
        places.push(place(
            "udp_waiting",
            Fate::Waiting,
            waiting,
            "the sockets' receive queues",
        ));
        let delivered = self.stack(&causes::UDP_DELIVERED);
        places.push(place("udp", Fate::Delivered, delivered, "Udp InDatagrams"));
        places.extend(self.losses(&causes::UDP_LITE_LOSSES));
        let delivered = self.stack(&causes::UDP_LITE_DELIVERED);
        let from = "UdpLite InDatagrams";
        places.push(place("udp_lite", Fate::Delivered, delivered, from));
        places
    }

    fn losses(&mut self, causes: &[Causes]) -> Vec<Place> {
        let losses = causes.iter().map(|(name, counters)| {
            place(name, Fate::Lost, self.stack(counters), &counters.join(", "))
        });
        losses.collect()
    }

    /// Balances a stage: what is left over was in motion as far as so much
    /// moved, and is unaccounted beyond.
    fn close(
        &self,
        name: &str,
        (entered, joined): (u64, u64),
        places: Vec<Place>,
        went_on: u64,
    ) -> Stage {
        let ended: u64 = places.iter().map(|place| place.packets).sum();
        let came = i128::from(entered) + i128::from(joined);
        let gap = came - i128::from(ended) - i128::from(went_on);
        let gap = i64::try_from(gap).unwrap_or(if gap < 0 { i64::MIN } else { i64::MAX });
        let moved = i64::try_from(self.moved).unwrap_or(i64::MAX);
        let in_motion = gap.clamp(-moved, moved);
        Stage {
            name: name.to_owned(),
            entered,
            joined,
            places,
            in_motion,
            unaccounted: gap - in_motion,
            went_on,
        }
    }

    fn peer_dropped(&mut self) -> Option<u64> {
        let (then, now) = (self.then.peer_dropped?, self.now.peer_dropped?);
        Some(self.passed("tx_dropped of the veth's other end", then, now))
    }

    fn say_what_veth_hides(&mut self) {
        if self.now.is_veth && (self.now.peer_dropped.is_none() || self.then.peer_dropped.is_none())
        {
            self.absent.insert(
                "a full receive ring: veth counts it at its other end (tx_dropped), which cannot be asked from here"
                    .to_owned(),
            );
        }
    }

    fn adapter(&mut self, name: &str, counter: fn(&Adapter) -> u64) -> u64 {
        self.passed(
            name,
            counter(&self.then.adapter),
            counter(&self.now.adapter),
        )
    }

    /// Interfaces come and go, so that the sum may fall.
    fn others(&self, counter: fn(&Adapter) -> u64) -> u64 {
        counter(&self.now.others).saturating_sub(counter(&self.then.others))
    }

    /// The queues' counters are 32 bits wide and wrap.
    fn backlog_dropped(&self) -> u64 {
        let pairs = self
            .now
            .backlog_dropped
            .iter()
            .zip(&self.then.backlog_dropped);
        pairs
            .map(|(now, then)| u64::from(now.wrapping_sub(*then)))
            .sum()
    }

    /// The sum of some of the stack's counters.
    fn stack(&mut self, names: &[&str]) -> u64 {
        let mut sum = 0;
        for name in names {
            let counter = |reading: &Reading| reading.stack.get(*name).copied();
            match (counter(self.then), counter(self.now)) {
                (Some(then), Some(now)) => sum += self.passed(name, then, now),
                // A kernel without UDP-Lite has no such packets.
                _ if name.starts_with("UdpLite") => {}
                _ => {
                    let name = self.absent_name(name);
                    self.absent.insert(name);
                }
            }
        }
        sum
    }

    /// A host without IPv6 lacks all of its counters: said once.
    fn absent_name(&self, name: &str) -> String {
        let is_v6 = ["Ip6", "Udp6", "Icmp6"]
            .iter()
            .any(|v6| name.starts_with(v6));
        if is_v6 && !self.now.stack.contains_key("Ip6InReceives") {
            "IPv6: no /proc/net/snmp6".to_owned()
        } else {
            name.to_owned()
        }
    }

    /// What a counter counted. One that is lower than before began anew.
    fn passed(&mut self, name: &str, then: u64, now: u64) -> u64 {
        now.checked_sub(then).unwrap_or_else(|| {
            self.anew.insert(name.to_owned());
            now
        })
    }
}

fn place(name: &str, fate: Fate, packets: u64, from: &str) -> Place {
    Place {
        name: name.to_owned(),
        fate,
        packets,
        from: from.to_owned(),
    }
}

#[cfg(test)]
mod tests;
