//! The device that a connection's interface sees: one segment in, some out.

use std::sync::Arc;

use smoltcp::phy::{
    Checksum, ChecksumCapabilities, Device, DeviceCapabilities, Medium, RxToken, TxToken,
};
use smoltcp::time::Instant;
use smoltcp::wire::{IpVersion, Ipv4Packet, Ipv6Packet, TcpPacket, TcpSeqNumber};

use crate::device::{Batch, Capabilities, Frame, HEADROOM_BYTES, Mac, Pool};
use crate::wire::{ETHERNET_BYTES, emit};

/// A segment to be taken in, and frames to be sent, complete but for their link
/// destination.
#[derive(Debug)]
pub(super) struct Wire {
    pool: Arc<Pool>,
    mac: Mac,
    mtu: usize,
    verified: bool,
    /// Its range is the IP packet.
    pub(super) inbound: Option<Frame>,
    pub(super) outbound: Batch,
}

impl Wire {
    pub(super) fn new(pool: &Arc<Pool>, capabilities: &Capabilities) -> Self {
        Self {
            pool: Arc::clone(pool),
            mac: capabilities.mac,
            mtu: capabilities.mtu,
            verified: capabilities.checksums_verified,
            inbound: None,
            outbound: Batch::new(),
        }
    }
}

/// A received segment.
#[derive(Debug)]
pub(super) struct Inbound(Frame);

impl RxToken for Inbound {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, process: F) -> R {
        process(&self.0)
    }
}

/// Room for a segment to be sent.
#[derive(Debug)]
pub(super) struct Outbound<'a> {
    pool: &'a Arc<Pool>,
    mac: Mac,
    outbound: &'a mut Batch,
}

impl TxToken for Outbound<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, length: usize, build: F) -> R {
        let Some(mut frame) = self.pool.take() else {
            // Lost on the way, as it were: TCP sends it again.
            return build(&mut vec![0; length]);
        };
        frame.set_range(HEADROOM_BYTES..HEADROOM_BYTES + ETHERNET_BYTES + length);
        let built = build(&mut frame[ETHERNET_BYTES..]);
        emit::write_link(&mut frame, self.mac);
        self.outbound.push_back(frame);
        built
    }
}

/// Which bytes of the stream a segment carries: at least one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Payload {
    begin: TcpSeqNumber,
    length: usize,
}

impl Payload {
    #[cfg(test)]
    pub(super) fn new(begin: i32, length: usize) -> Self {
        let begin = TcpSeqNumber(begin);
        Self { begin, length }
    }

    /// That of a frame as [`Outbound`] built it; nothing without any.
    pub(super) fn of(frame: &Frame) -> Option<Self> {
        let packet = frame.get(ETHERNET_BYTES..)?;
        let segment = match IpVersion::of_packet(packet).ok()? {
            IpVersion::Ipv4 => Ipv4Packet::new_checked(packet).ok()?.payload(),
            IpVersion::Ipv6 => Ipv6Packet::new_checked(packet).ok()?.payload(),
        };
        let segment = TcpPacket::new_checked(segment).ok()?;
        let length = segment.payload().len();
        (length > 0).then(|| Self {
            begin: segment.seq_number(),
            length,
        })
    }

    /// All of it lies before the end of `other`. Not so a single byte: a probe of a closed
    /// window is sent again and again, and is no loss.
    pub(super) fn is_before(self, other: Self) -> bool {
        self.length > 1 && self.begin + self.length <= other.begin + other.length
    }
}

impl Device for Wire {
    type RxToken<'a> = Inbound;
    type TxToken<'a> = Outbound<'a>;

    fn receive(&mut self, at: Instant) -> Option<(Inbound, Outbound<'_>)> {
        let inbound = self.inbound.take()?;
        Some((Inbound(inbound), self.transmit(at)?))
    }

    fn transmit(&mut self, _: Instant) -> Option<Outbound<'_>> {
        Some(Outbound {
            pool: &self.pool,
            mac: self.mac,
            outbound: &mut self.outbound,
        })
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut checksum = ChecksumCapabilities::default();
        if self.verified {
            checksum.tcp = Checksum::Tx;
        }
        let mut capabilities = DeviceCapabilities::default();
        capabilities.medium = Medium::Ip;
        capabilities.max_transmission_unit = self.mtu;
        capabilities.checksum = checksum;
        capabilities
    }
}
