//! An adapter: receive rings, a transmitter with its ring, and both directions of
//! a wire. What its interrupts lead to is the receive path's business.

use super::wire::Wire;
use super::{Host, LEVEL_DEVICE, LineId, LineKind};
use crate::engine::agenda::NEVER;
use crate::outcome::Place;
use crate::packet::{Fifo, Kind, Packet};
use crate::trace::What;

/// An ICMP error of 36 bytes in an IP packet, in the shortest frame.
const ICMP_ERROR_BYTES: u16 = 64;

/// The part of a tag that tells flows of one source apart.
pub(crate) const FLOW_MASK: u32 = 0xFFF;

/// One receive queue.
#[derive(Clone, Debug)]
pub(crate) struct Ring {
    /// Packets the host has not taken.
    pub(crate) packets: Fifo,
    /// Buffers of packets that were taken and are not yet given back.
    pub(crate) lent: usize,
    pub(crate) line: LineId,
    /// Its interrupt is enabled.
    pub(crate) enabled: bool,
    pub(crate) cpu: usize,
}

/// An adapter.
#[derive(Clone, Debug)]
pub(crate) struct Adapter {
    pub(crate) rings: Vec<Ring>,
    /// An interrupt takes no more packets than this.
    pub(crate) receive_batch: u32,
    pub(crate) inbound: Wire,
    pub(crate) outbound: Wire,
    /// Software queue in front of the transmitter.
    pub(crate) output: Fifo,
    /// Packets the transmitter has; the first is being sent.
    transmit: Fifo,
    descriptors: usize,
    /// Those kept for packets that a handler has in hand.
    claimed: usize,
    /// Transmitted packets whose descriptors have not been released.
    pub(crate) completed: usize,
    /// 4.2BSD: nothing new before the transmit interrupt (MR-66).
    pub(crate) active: bool,
    /// Whether that rule holds.
    pub(crate) wait_while_active: bool,
    pub(crate) transmit_line: LineId,
    pub(crate) transmit_enabled: bool,
    /// So many transmitted packets raise an interrupt.
    transmit_batch: usize,
    /// And the last one that it had raises one.
    announces_idle: bool,
}

/// How large an adapter is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AdapterSizes {
    pub(crate) receive_ring: u32,
    pub(crate) receive_batch: u32,
    pub(crate) transmit_ring: u32,
    pub(crate) output_queue: u32,
    pub(crate) queues: usize,
    pub(crate) transmit_batch: u32,
    pub(crate) announces_idle: bool,
}

impl Adapter {
    pub(crate) fn held(&self) -> usize {
        let received: usize = self.rings.iter().map(|ring| ring.packets.len()).sum();
        let wires = self.inbound.held() + self.outbound.held();
        received + wires + self.output.len() + self.transmit.len()
    }

    fn has_descriptor(&self) -> bool {
        self.transmit.len() + self.claimed + self.completed < self.descriptors
    }
}

impl Host {
    /// Adds an adapter with its interrupt lines, enabled.
    pub(crate) fn add_adapter(&mut self, sizes: AdapterSizes, inbound: Wire, outbound: Wire) {
        let adapter = self.adapters.len();
        let rings = (0..sizes.queues).map(|queue| {
            let cpu = queue % self.cpus.len();
            let kind = LineKind::Receive { adapter, queue };
            Ring {
                packets: Fifo::new(sizes.receive_ring as usize),
                lent: 0,
                line: self.add_line(kind, cpu, LEVEL_DEVICE),
                enabled: true,
                cpu,
            }
        });
        let rings = rings.collect();
        let transmit_line = self.add_line(LineKind::Transmit { adapter }, 0, LEVEL_DEVICE);
        self.adapters.push(Adapter {
            rings,
            receive_batch: sizes.receive_batch,
            inbound,
            outbound,
            output: Fifo::new(sizes.output_queue as usize),
            transmit: Fifo::new(sizes.transmit_ring as usize),
            descriptors: sizes.transmit_ring as usize,
            claimed: 0,
            completed: 0,
            active: false,
            wait_while_active: false,
            transmit_line,
            transmit_enabled: true,
            transmit_batch: sizes.transmit_batch as usize,
            announces_idle: sizes.announces_idle,
        });
    }

    /// A source's packet sets out for `adapter`.
    pub(crate) fn inject(&mut self, adapter: usize, packet: Packet) {
        self.ledger.counts.created += 1;
        self.ledger.sources[usize::from(packet.source)].sent += 1;
        match self.adapters[adapter].inbound.send(packet, self.now) {
            Some(first) => self.set_slot(|bases| bases.inbound, adapter, first),
            None => self.lose(packet, Place::Link),
        }
    }

    /// The next packet on the wire reaches `adapter`.
    pub(crate) fn poll_inbound(&mut self, adapter: usize) -> Option<Packet> {
        let (packet, next) = self.adapters[adapter].inbound.arrive();
        self.set_slot(|bases| bases.inbound, adapter, next.unwrap_or(NEVER));
        packet
    }

    /// The next packet on the wire reaches its destination outside.
    pub(crate) fn poll_outbound(&mut self, adapter: usize) -> Option<Packet> {
        let (packet, next) = self.adapters[adapter].outbound.arrive();
        self.set_slot(|bases| bases.outbound, adapter, next.unwrap_or(NEVER));
        packet
    }

    /// Puts an arrived packet on a receive ring. `Some` is the queue, if there
    /// was room.
    #[inline]
    pub(crate) fn ring_packet(&mut self, adapter: usize, mut packet: Packet) -> Option<usize> {
        packet.arrived = self.now;
        self.ledger.counts.offered += 1;
        let rings = &mut self.adapters[adapter].rings;
        let queue = if rings.len() == 1 {
            0
        } else {
            flow_hash(&packet) as usize % rings.len()
        };
        let ring = &mut rings[queue];
        let room = ring.packets.len() + ring.lent < ring.packets.limit();
        if room && ring.packets.push(packet) {
            self.record(What::Arrived, packet.tag, packet.source);
            return Some(queue);
        }
        self.lose(packet, Place::Interface);
        None
    }

    /// Takes the next packet from a receive ring.
    #[inline]
    pub(crate) fn take(&mut self, adapter: usize, queue: usize) -> Option<Packet> {
        let packet = self.adapters[adapter].rings[queue].packets.pop()?;
        self.ledger.counts.taken += 1;
        self.ledger.counts.ring_wait_ns += self.now - packet.arrived;
        Some(packet)
    }

    /// Switches all interrupts of all adapters off.
    pub(crate) fn disable_interrupts(&mut self) {
        for adapter in &mut self.adapters {
            adapter.transmit_enabled = false;
            for ring in &mut adapter.rings {
                ring.enabled = false;
            }
        }
    }

    /// Raises the receive interrupt of a queue, if it is enabled.
    #[inline]
    pub(crate) fn interrupt_receive(&mut self, adapter: usize, queue: usize) {
        let ring = &self.adapters[adapter].rings[queue];
        if ring.enabled {
            self.raise(ring.line);
        }
    }

    /// Enables a receive interrupt; what is waiting raises it at once.
    pub(crate) fn enable_receive(&mut self, adapter: usize, queue: usize) {
        let ring = &mut self.adapters[adapter].rings[queue];
        ring.enabled = true;
        if !ring.packets.is_empty() {
            self.raise(self.adapters[adapter].rings[queue].line);
        }
    }

    /// Raises the transmit interrupt, if it is enabled and enough is completed, or, of an
    /// adapter that announces it, the transmitter has nothing more.
    pub(crate) fn interrupt_transmit(&mut self, adapter: usize) {
        let device = &self.adapters[adapter];
        let idle = device.announces_idle && device.completed > 0 && device.transmit.is_empty();
        if device.transmit_enabled && (idle || device.completed >= device.transmit_batch) {
            self.raise(self.adapters[adapter].transmit_line);
        }
    }

    /// Enables the transmit interrupt; what is completed raises it at once.
    pub(crate) fn enable_transmit(&mut self, adapter: usize) {
        self.adapters[adapter].transmit_enabled = true;
        self.interrupt_transmit(adapter);
    }

    /// A packet sent now goes to the transmitter at once.
    pub(crate) fn starts_at_once(&self, adapter: usize) -> bool {
        let device = &self.adapters[adapter];
        let blocked = device.wait_while_active && device.active;
        !blocked && device.output.is_empty() && device.has_descriptor()
    }

    /// Hands a packet to the transmitter, or to the queue in front of it.
    pub(crate) fn send(&mut self, adapter: usize, packet: Packet) {
        if self.starts_at_once(adapter) {
            self.start_transmit(adapter, packet);
            return;
        }
        if self.adapters[adapter].output.push(packet) {
            return;
        }
        match packet.kind {
            // Nobody waits for it.
            Kind::IcmpError => self.ledger.end(),
            _ => self.lose(packet, Place::OutputQueue),
        }
        if self.source_quench > 0 && packet.is_forwarded() {
            self.quench(&packet);
        }
    }

    /// Sends a packet that the host made, to whom it answers.
    pub(crate) fn send_reply(&mut self, packet: Packet) {
        self.ledger.counts.created += 1;
        self.send(self.source_adapters[usize::from(packet.source)], packet);
    }

    /// 4.3BSD's `ip_forward` and those of its descendants: where `ip_output` finds the output
    /// queue full, an ICMP source quench goes to the packet's source, by the adapter that the
    /// packet came by. UDP ignores it there.
    fn quench(&mut self, packet: &Packet) {
        self.owed += self.source_quench + self.reply_cost(packet);
        self.send_icmp_error(packet);
    }

    /// Tells the source of `packet` of an error with it.
    pub(crate) fn send_icmp_error(&mut self, packet: &Packet) {
        self.send_reply(Packet {
            kind: Kind::IcmpError,
            work: 0,
            bytes: ICMP_ERROR_BYTES,
            ..*packet
        });
    }

    /// Takes a packet from the output queue, if the transmitter has room for it, and keeps a
    /// descriptor for it until [`start_output`](Self::start_output).
    /// `refilling`: an active transmitter gets more, as one start fills the ring.
    pub(crate) fn next_output(&mut self, adapter: usize, refilling: bool) -> Option<Packet> {
        let device = &mut self.adapters[adapter];
        let waits = device.wait_while_active && device.active && !refilling;
        if waits || !device.has_descriptor() {
            return None;
        }
        let packet = device.output.pop()?;
        device.claimed += 1;
        Some(packet)
    }

    /// Gives a packet from the output queue to the transmitter.
    pub(crate) fn start_output(&mut self, adapter: usize, packet: Packet) {
        self.adapters[adapter].claimed -= 1;
        self.start_transmit(adapter, packet);
    }

    /// Gives a packet to the transmitter, which has room.
    fn start_transmit(&mut self, adapter: usize, packet: Packet) {
        self.record(What::Transmit, packet.tag, packet.source);
        if packet.is_forwarded() {
            self.hand_over(&packet);
        }
        let device = &mut self.adapters[adapter];
        device.active = true;
        let idle = device.transmit.is_empty();
        let kept = device.transmit.push(packet);
        assert!(kept, "a descriptor was free");
        if idle {
            self.begin_transmission(adapter);
        }
    }

    /// Releases a completed packet's descriptor; false if there is none. After
    /// the last one the transmitter counts as inactive.
    pub(crate) fn release_descriptor(&mut self, adapter: usize) -> bool {
        let device = &mut self.adapters[adapter];
        if device.completed == 0 {
            return false;
        }
        device.completed -= 1;
        if device.completed == 0 && device.transmit.is_empty() {
            device.active = false;
        }
        true
    }

    fn begin_transmission(&mut self, adapter: usize) {
        let device = &self.adapters[adapter];
        let first = device.transmit.front();
        let at = first.map_or(NEVER, |packet| {
            self.now + device.outbound.transmission_ns(packet.bytes)
        });
        self.set_slot(|bases| bases.transmitted, adapter, at);
    }

    /// The transmitter has sent its first packet.
    pub(crate) fn transmission_done(&mut self, adapter: usize) {
        let device = &mut self.adapters[adapter];
        let Some(packet) = device.transmit.pop() else {
            return;
        };
        device.completed += 1;
        // A router's output is what it was given to forward.
        self.ledger.counts.transmitted += u64::from(packet.kind != Kind::IcmpError);
        self.begin_transmission(adapter);
        if packet.is_forwarded() {
            // Forwarded: it has reached whom it was for.
            self.record(What::Left, packet.tag, packet.source);
            self.deliver(&packet);
            return;
        }
        let first = self.adapters[adapter].outbound.fly(packet, self.now);
        self.set_slot(|bases| bases.outbound, adapter, first.unwrap_or(NEVER));
    }
}

/// What receive-side scaling spreads flows by.
fn flow_hash(packet: &Packet) -> u32 {
    let mixed = (u64::from(packet.source) << 32 | u64::from(packet.tag & FLOW_MASK))
        .wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (mixed >> 40) as u32
}
