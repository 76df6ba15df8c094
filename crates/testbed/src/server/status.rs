//! What a server and the stack under it did so far, for programs: one JSON document, and
//! metrics with the guard's names where they mean the same.

use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use plimsoll_metrics::{
    Collector, DescriptorEncoder, Format, Labels, MetricType, Unit, counter, gauge,
};
use plimsoll_stack::{Charged, Outcome, Owner, Stack};
use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};

use super::Counts;
use super::counters::SharedCounters;

/// A view of a running server that any thread may have.
#[derive(Clone, Debug)]
pub struct Watch {
    pub(super) counters: Arc<SharedCounters>,
    pub(super) stack: Option<Stack>,
    pub(super) began: Instant,
}

impl Watch {
    /// Whether clients can reach it by now, or could.
    #[must_use]
    pub fn is_listening(&self) -> bool {
        self.counters.is_listening()
    }

    /// What was done so far.
    #[must_use]
    pub fn status(&self) -> Status {
        Status {
            schema: 1,
            uptime_s: self.began.elapsed().as_secs_f64(),
            served: self.counters.read(),
            stack: self.stack.as_ref().map(StackStatus::of),
        }
    }
}

/// What a server did.
#[derive(Clone, Debug, Serialize)]
pub struct Status {
    /// Of this document.
    pub schema: u32,
    /// Since it began.
    pub uptime_s: f64,
    /// What it counts itself.
    pub served: Counts,
    /// None on the kernel's sockets.
    pub stack: Option<StackStatus>,
}

/// What Plimsoll's own stack did.
#[derive(Clone, Debug, Serialize)]
pub struct StackStatus {
    /// Frames are not copied between the kernel's memory and the stack's.
    pub zero_copy: bool,
    /// Frames taken from the device. Each is in exactly one outcome of one channel, or queued,
    /// or waits for the rest of its datagram.
    pub received: u64,
    /// Frames that are in a channel now.
    pub queued: u64,
    /// Fragments that wait for the rest of their datagram now.
    pub incomplete: u64,
    /// Frames that the device dropped before.
    pub dropped: u64,
    /// Frames that could not be sent.
    pub unsent: u64,
    /// By who caused the work.
    pub channels: Vec<Channel>,
}

/// One owner's frames and CPU time.
#[derive(Clone, Debug, Serialize)]
pub struct Channel {
    /// What it is.
    pub kind: &'static str,
    /// Where it is bound, if it is.
    pub address: Option<String>,
    /// Of the address.
    pub port: Option<u16>,
    /// Protocol work charged to it.
    pub cpu_s: f64,
    /// Frames by outcome.
    pub packets: Packets,
}

/// Frames by outcome; written with the outcomes' names, those without frames left out.
#[derive(Clone, Copy, Debug)]
pub struct Packets(plimsoll_stack::Counts);

impl Serialize for Packets {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        for outcome in Outcome::ALL {
            if self.0[outcome] > 0 {
                map.serialize_entry(outcome.name(), &self.0[outcome])?;
            }
        }
        map.end()
    }
}

impl StackStatus {
    fn of(stack: &Stack) -> Self {
        let charged = stack.charged();
        let mut sum = plimsoll_stack::Counts::default();
        for one in charged.values() {
            sum += one.counts;
        }
        Self {
            zero_copy: stack.device_capabilities().zero_copy,
            received: sum.received,
            queued: sum.queued,
            incomplete: sum.incomplete,
            dropped: stack.device_drops().sum(),
            unsent: stack.unsent(),
            channels: charged.into_iter().map(Channel::of).collect(),
        }
    }
}

impl Channel {
    fn of((owner, charged): (Owner, Charged)) -> Self {
        let address = owner.address();
        Self {
            kind: owner.kind(),
            address: address.map(|at| at.ip().to_string()),
            port: address.map(|at| at.port()),
            cpu_s: charged.cpu.as_secs_f64(),
            packets: Packets(charged.counts),
        }
    }

    /// As the guard names a channel.
    fn labels(&self) -> Labels<'static> {
        let port = self.port.map(|port| port.to_string());
        vec![
            ("kind", self.kind.to_owned()),
            ("address", self.address.clone().unwrap_or_default()),
            ("port", port.unwrap_or_default()),
        ]
    }
}

impl Status {
    /// The status in a format of Prometheus.
    #[must_use]
    pub fn metrics(self, format: Format) -> String {
        format.encode("plimsoll_serve", Box::new(self))
    }

    fn encode_channels(stack: &StackStatus, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let kind = MetricType::Counter;
        let help = "Packets for the socket of a channel, by outcome";
        let mut family = encoder.encode_descriptor("channel_packets", help, None, kind)?;
        for channel in &stack.channels {
            for outcome in Outcome::ALL {
                let mut labels = channel.labels();
                labels.push(("outcome", outcome.name().to_owned()));
                counter(&mut family, &labels, &channel.packets.0[outcome])?;
            }
        }
        let help = "CPU time of receiving and sending, charged to the channel that caused it";
        let unit = Some(&Unit::Seconds);
        let mut family = encoder.encode_descriptor("charged_cpu", help, unit, kind)?;
        for channel in &stack.channels {
            counter(&mut family, &channel.labels(), &channel.cpu_s)?;
        }
        Ok(())
    }
}

impl Collector for Status {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let encoder = &mut encoder;
        let none = Labels::new();
        let served = &self.served;
        let mut counters = vec![
            (
                "requests",
                "Packets or requests that the server worked on",
                served.received,
            ),
            ("answers", "Answers that were sent", served.sent),
            (
                "send_errors",
                "Answers that could not be sent",
                served.send_errors,
            ),
        ];
        if let Some(stack) = &self.stack {
            Self::encode_channels(stack, encoder)?;
            counters.extend([
                (
                    "received_packets",
                    "Frames taken from the device",
                    stack.received,
                ),
                (
                    "lost_packets",
                    "Frames that the device dropped before",
                    stack.dropped,
                ),
                (
                    "unsent_packets",
                    "Frames that could not be sent",
                    stack.unsent,
                ),
            ]);
            let help = "Frames that are in a channel now";
            let mut family =
                encoder.encode_descriptor("queued_packets", help, None, MetricType::Gauge)?;
            gauge(&mut family, &none, stack.queued as f64)?;
        }
        for (name, help, value) in counters {
            let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
            counter(&mut family, &none, &value)?;
        }
        let (help, unit) = ("Time since the server began", Some(&Unit::Seconds));
        let mut family = encoder.encode_descriptor("uptime", help, unit, MetricType::Gauge)?;
        gauge(&mut family, &none, self.uptime_s)
    }
}
