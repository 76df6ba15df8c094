//! The device that a connection's interface sees: one segment in, some out.

use std::sync::Arc;

use smoltcp::phy::{
    Checksum, ChecksumCapabilities, Device, DeviceCapabilities, Medium, RxToken, TxToken,
};
use smoltcp::time::Instant;
use smoltcp::wire::{IpVersion, Ipv4Packet, Ipv6Packet, TcpOption, TcpPacket, TcpSeqNumber};

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

/// How far the peer's window reaches, which smoltcp does not tell.
#[derive(Debug, Default)]
pub(super) struct PeerWindow {
    scale: u8,
    end: Option<TcpSeqNumber>,
    opened: usize,
}

/// The greatest shift of a window (RFC 7323, 2.3).
const SCALE_MAX: u8 = 14;

impl PeerWindow {
    /// The peer sent this segment.
    pub(super) fn on_segment(&mut self, bytes: &[u8]) {
        let Ok(segment) = TcpPacket::new_checked(bytes) else {
            return;
        };
        let window = usize::from(segment.window_len());
        let window = if segment.syn() {
            self.scale = scale_of(&segment);
            window
        } else {
            window << self.scale
        };
        if !segment.ack() {
            return;
        }
        let end = segment.ack_number() + window;
        match self.end {
            Some(before) if end > before => self.opened += end - before,
            // It is not shrunk by segments that come late.
            Some(_) => return,
            None => {}
        }
        self.end = Some(end);
    }

    /// Bytes by which its end has moved since this was asked.
    pub(super) fn take_opened(&mut self) -> usize {
        std::mem::take(&mut self.opened)
    }
}

fn scale_of(syn: &TcpPacket<&[u8]>) -> u8 {
    let mut options = syn.options();
    while !options.is_empty() {
        match TcpOption::parse(options) {
            Ok((_, TcpOption::WindowScale(scale))) => return scale.min(SCALE_MAX),
            Ok((_, TcpOption::EndOfList)) | Err(_) => break,
            Ok((rest, _)) => options = rest,
        }
    }
    0
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

#[cfg(test)]
mod tests {
    use smoltcp::wire::{IpAddress, TcpControl, TcpRepr};

    use super::*;

    fn segment(control: TcpControl, ack: i32, window: u16) -> Vec<u8> {
        let repr = TcpRepr {
            src_port: 1,
            dst_port: 2,
            control,
            seq_number: TcpSeqNumber(0),
            ack_number: Some(TcpSeqNumber(ack)),
            window_len: window,
            window_scale: (control == TcpControl::Syn).then_some(3),
            max_seg_size: None,
            sack_permitted: false,
            sack_ranges: [None; 3],
            timestamp: None,
            payload: &[],
        };
        let mut bytes = vec![0; repr.buffer_len()];
        let (one, other) = (IpAddress::v4(10, 0, 0, 1), IpAddress::v4(10, 0, 0, 2));
        let mut packet = TcpPacket::new_unchecked(&mut bytes[..]);
        repr.emit(&mut packet, &one, &other, &ChecksumCapabilities::default());
        bytes
    }

    #[test]
    fn a_window_opens_by_what_is_acknowledged_and_by_what_is_read() {
        let mut window = PeerWindow::default();
        // The window of a SYN is not scaled.
        window.on_segment(&segment(TcpControl::Syn, 1, 8000));
        assert_eq!(window.take_opened(), 0);
        // 500 bytes acknowledged, nothing read.
        window.on_segment(&segment(TcpControl::None, 501, 7500 / 8));
        assert_eq!(window.take_opened(), 0);
        // All read.
        window.on_segment(&segment(TcpControl::None, 501, 8000 / 8));
        assert_eq!(window.take_opened(), 500);
        assert_eq!(window.take_opened(), 0);
        // An older one comes late.
        window.on_segment(&segment(TcpControl::None, 1, 10));
        window.on_segment(&segment(TcpControl::None, 501, 8008 / 8));
        assert_eq!(window.take_opened(), 8);
        window.on_segment(b"nonsense");
    }
}
