//! What happened to single packets and on the CPUs, in order.
//!
//! A trace is data; writing it as text or for a viewer is its reader's business.

use serde::Serialize;

use crate::outcome::Place;

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum What {
    /// A packet was put on a receive ring.
    Arrived,
    /// A packet was lost.
    Lost(Place),
    /// Protocol work on a packet is over.
    Protocol,
    /// A packet was handed to a transmitter.
    Transmit,
    /// A forwarded packet was transmitted.
    Left,
    /// A packet reached its consumer.
    Delivered,
    /// A CPU begins to run something.
    Begin {
        /// The CPU.
        cpu: u8,
        /// Who: see [`Trace::actors`].
        actor: u16,
    },
    /// A CPU stops running it, for now or for good.
    End {
        /// The CPU.
        cpu: u8,
        /// Who.
        actor: u16,
    },
}

/// Something that happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Event {
    /// When, in ns of virtual time.
    pub at_ns: u64,
    /// What.
    pub what: What,
    /// The packet's tag, for events of packets.
    pub tag: u32,
    /// The packet's source, as an index into the scenario's.
    pub source: u16,
}

/// A recorded part of a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Trace {
    /// In order of time.
    pub events: Vec<Event>,
    /// Names of what CPUs run: interrupts, software interrupts, threads.
    pub actors: Vec<String>,
    /// Events that did not fit.
    pub missed: u64,
}

/// Records events of a span of time, up to a number.
#[derive(Debug)]
pub(crate) struct Recorder {
    pub(crate) from: u64,
    pub(crate) to: u64,
    pub(crate) trace: Trace,
    pub(crate) events_max: usize,
}

impl Recorder {
    pub(crate) fn note(&mut self, now: u64, what: What, tag: u32, source: u16) {
        if now < self.from || now >= self.to {
            return;
        }
        if self.trace.events.len() >= self.events_max {
            self.trace.missed += 1;
            return;
        }
        self.trace.events.push(Event {
            at_ns: now,
            what,
            tag,
            source,
        });
    }
}
