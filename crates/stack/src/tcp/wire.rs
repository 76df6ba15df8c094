//! The device that a connection's interface sees: one segment in, some out.

use std::sync::Arc;

use smoltcp::phy::{
    Checksum, ChecksumCapabilities, Device, DeviceCapabilities, Medium, RxToken, TxToken,
};
use smoltcp::time::Instant;
use smoltcp::wire::{
    IpProtocol, IpVersion, Ipv4Packet, Ipv6Packet, TcpOption, TcpPacket, TcpSeqNumber,
};

use super::handshake;
use crate::device::{Batch, Capabilities, Frame, HEADROOM_BYTES, Mac, Pool};
use crate::wire::{ETHERNET_BYTES, emit};

/// A segment to be taken in, and frames to be sent, complete but for their link
/// destination.
#[derive(Debug)]
pub(super) struct Wire {
    pool: Arc<Pool>,
    mac: Mac,
    mtu: usize,
    /// By how much the numbers of what is sent are greater than the socket's: its own first one is
    /// not the cookie that the peer had.
    shift: i32,
    /// It takes nothing for a moment.
    pub(super) is_full: bool,
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
            shift: 0,
            is_full: false,
            inbound: None,
            outbound: Batch::new(),
        }
    }

    /// The peer had its answer before, with `cookie` in it: the one that the socket gave is taken
    /// back, and all that follows is numbered from the cookie. Returns by how much it differs.
    pub(super) fn begin_at(&mut self, cookie: TcpSeqNumber) -> Option<i32> {
        let answer = self.outbound.pop_back()?;
        let first = segment_of(&answer)?.seq_number();
        self.shift = cookie.0.wrapping_sub(first.0);
        Some(self.shift)
    }

    /// A segment of the peer's, as the socket would have it.
    pub(super) fn renumber(&self, segment: &mut [u8]) {
        if self.shift != 0 {
            handshake::shift_back(segment, self.shift);
        }
    }

    fn room(&mut self, frame: Option<Frame>) -> Outbound<'_> {
        Outbound {
            frame,
            pool: &self.pool,
            mac: self.mac,
            shift: self.shift,
            outbound: &mut self.outbound,
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

/// Frames of a connection that wait for room in the device before it makes no more.
pub(super) const WAITING_MAX: usize = 64;

/// Room for a segment to be sent.
#[derive(Debug)]
pub(super) struct Outbound<'a> {
    /// Taken beforehand where nothing is to be lost.
    frame: Option<Frame>,
    pool: &'a Arc<Pool>,
    mac: Mac,
    shift: i32,
    outbound: &'a mut Batch,
}

impl TxToken for Outbound<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, length: usize, build: F) -> R {
        // Answers to segments, beyond what the device takes: an answer that is lost is
        // given again, and a peer that sends on must not fill our memory with them.
        let take = || (self.outbound.len() < 2 * WAITING_MAX).then(|| self.pool.take());
        let Some(mut frame) = self.frame.or_else(|| take()?) else {
            return build(&mut vec![0; length]);
        };
        frame.set_range(HEADROOM_BYTES..HEADROOM_BYTES + ETHERNET_BYTES + length);
        let built = build(&mut frame[ETHERNET_BYTES..]);
        if self.shift != 0
            && let Some(start) = segment_start(&frame[ETHERNET_BYTES..])
        {
            handshake::shift(&mut frame[ETHERNET_BYTES + start..], self.shift);
        }
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
        let segment = segment_of(frame)?;
        let length = segment.payload().len();
        (length > 0).then(|| Self {
            begin: segment.seq_number(),
            length,
        })
    }

    pub(super) fn begin(self) -> TcpSeqNumber {
        self.begin
    }

    /// The byte behind it.
    pub(super) fn end(self) -> TcpSeqNumber {
        self.begin + self.length
    }

    pub(super) fn bytes(self) -> usize {
        self.length
    }

    /// All of it lies before the end of `other`. Not so a single byte: a probe of a closed
    /// window is sent again and again, and is no loss.
    pub(super) fn is_before(self, other: Self) -> bool {
        self.length > 1 && self.end() <= other.end()
    }
}

/// The segment of a frame as [`Outbound`] built it.
fn segment_of(frame: &Frame) -> Option<TcpPacket<&[u8]>> {
    let packet = frame.get(ETHERNET_BYTES..)?;
    let segment = match IpVersion::of_packet(packet).ok()? {
        IpVersion::Ipv4 => Ipv4Packet::new_checked(packet).ok()?.payload(),
        IpVersion::Ipv6 => Ipv6Packet::new_checked(packet).ok()?.payload(),
    };
    TcpPacket::new_checked(segment).ok()
}

/// Where the segment of such a packet begins.
fn segment_start(packet: &[u8]) -> Option<usize> {
    let (protocol, start) = match IpVersion::of_packet(packet).ok()? {
        IpVersion::Ipv4 => {
            let packet = Ipv4Packet::new_checked(packet).ok()?;
            (packet.next_header(), packet.header_len().into())
        }
        IpVersion::Ipv6 => {
            let packet = Ipv6Packet::new_checked(packet).ok()?;
            (packet.next_header(), packet.header_len())
        }
    };
    (protocol == IpProtocol::Tcp).then_some(start)
}

/// How far a connection has sent, and acknowledged.
#[derive(Debug, Default)]
pub(super) struct Sent {
    end: Option<TcpSeqNumber>,
    acknowledged: Option<TcpSeqNumber>,
    window: OwnWindow,
    repeated: bool,
    again: Option<(TcpSeqNumber, u32)>,
}

/// The window that the peer was told last.
#[derive(Debug, Default)]
struct OwnWindow {
    end: Option<TcpSeqNumber>,
    /// As it was written.
    length: u16,
    /// That was the handshake's, which is not scaled (RFC 7323, 2.2).
    of_handshake: bool,
    /// What our SYN says of the others.
    scale: Option<u8>,
    /// So does the peer's, without which none is scaled.
    peer_scales: bool,
}

impl OwnWindow {
    fn on_told(&mut self, segment: &TcpPacket<&[u8]>) {
        if segment.syn() {
            self.scale = scale_of(segment);
        }
        if segment.ack() && !segment.rst() {
            let scale = self.scale.filter(|_| self.peer_scales && !segment.syn());
            let window = usize::from(segment.window_len()) << scale.unwrap_or(0);
            self.end = Some(segment.ack_number() + window);
            self.length = segment.window_len();
            self.of_handshake &= segment.syn();
        }
    }
}

impl Sent {
    /// A frame was made to be sent.
    pub(super) fn on_frame(&mut self, frame: &Frame) {
        let Some(segment) = segment_of(frame) else {
            return;
        };
        self.window.on_told(&segment);
        if segment.ack() {
            self.acknowledged = Some(segment.ack_number());
        }
        let end = segment.seq_number() + segment.segment_len();
        if segment.segment_len() == 0 {
            return;
        }
        if self.end.is_none_or(|before| end > before) {
            self.end = Some(end);
        } else {
            self.repeated = true;
            self.note_again(&segment);
        }
    }

    fn note_again(&mut self, segment: &TcpPacket<&[u8]>) {
        // Not a probe or a question, which are sent again and again.
        if segment.payload().len() <= 1 {
            return;
        }
        let begin = segment.seq_number();
        let before = self.again.filter(|(other, _)| *other == begin);
        self.again = Some((begin, before.map_or(1, |(_, times)| times + 1)));
    }

    /// Where the segment begins that was sent again last, and how often it was.
    pub(super) fn again(&self) -> Option<(TcpSeqNumber, u32)> {
        self.again
    }

    /// That says nothing any more.
    pub(super) fn forget_again(&mut self) {
        self.again = None;
    }

    /// This may be the peer's SYN, which is answered out of a buffer of so many bytes.
    pub(super) fn on_first(&mut self, bytes: &[u8], capacity: usize) {
        if let Ok(segment) = TcpPacket::new_checked(bytes)
            && segment.syn()
        {
            let window = capacity.min(u16::MAX.into());
            self.window.end = Some(segment.seq_number() + 1 + window);
            self.window.of_handshake = true;
            self.window.peer_scales = scale_of(&segment).is_some();
        }
    }

    /// Whether a segment may go on to smoltcp, which is wrong about what is beyond the window. It takes
    /// the handshake's for a scaled one, up to twice its buffer, and panics where more comes. Later it
    /// cuts the payload, and takes an end behind it for the end of the rest: that is taken off here,
    /// and comes again with what was cut.
    pub(super) fn keep_to_window(&self, bytes: &mut [u8]) -> bool {
        let Ok(mut segment) = TcpPacket::new_checked(bytes) else {
            return true;
        };
        let bytes = segment.payload_mut().len();
        let end = segment.seq_number() + bytes;
        if self.window.end.is_none_or(|told| end <= told) {
            return true;
        }
        segment.set_fin(false);
        bytes == 0 || !self.window.of_handshake
    }

    /// All of it has greater numbers by so much.
    pub(super) fn shift(&mut self, by: i32) {
        self.end = self.end.map(|end| TcpSeqNumber(end.0.wrapping_add(by)));
    }

    /// Whether something was sent again since this was asked.
    pub(super) fn take_repeated(&mut self) -> bool {
        std::mem::take(&mut self.repeated)
    }

    /// The byte behind the last that was sent.
    pub(super) fn end(&self) -> Option<TcpSeqNumber> {
        self.end
    }

    /// The window as the peer was told last.
    pub(super) fn window_len(&self) -> u16 {
        self.window.length
    }

    /// The first byte that is expected, as was last said.
    pub(super) fn acknowledged(&self) -> Option<TcpSeqNumber> {
        self.acknowledged
    }

    /// Makes a segment an acknowledgement of what was never sent, which tells nothing but wants an
    /// answer.
    pub(super) fn make_questionable(&self, segment: &mut [u8]) {
        let Ok(mut segment) = TcpPacket::new_checked(segment) else {
            return;
        };
        segment.set_rst(false);
        segment.set_syn(false);
        segment.set_ack(true);
        segment.set_ack_number(self.end.unwrap_or_default() + NEVER_SENT);
    }

    /// Whether a segment acknowledges what may be on its way, while `queued` bytes are not
    /// acknowledged. Bytes that were not sent yet widen this by as much.
    pub(super) fn is_acknowledged_by(&self, bytes: &[u8], queued: usize) -> bool {
        let segment = TcpPacket::new_checked(bytes).ok().filter(TcpPacket::ack);
        let acknowledged = segment.map(|segment| segment.ack_number());
        let ends = self.end.zip(acknowledged);
        ends.is_some_and(|(end, to)| to <= end && to + queued.max(1) >= end)
    }

    /// Whether a segment brings no data, and begins one byte before what is expected: as if the
    /// byte that probed our window had not been taken.
    pub(super) fn is_behind_a_probe(&self, bytes: &[u8]) -> bool {
        TcpPacket::new_checked(bytes).is_ok_and(|segment| {
            let only_acknowledges = segment.ack() && !segment.rst() && segment.segment_len() == 0;
            only_acknowledges && self.acknowledged == Some(segment.seq_number() + 1)
        })
    }

    /// Whether a segment that begins at `sequence` may be on its way, while `queued` bytes
    /// are not acknowledged. Bytes that were not sent yet widen this by as much.
    pub(super) fn covers(&self, sequence: u32, queued: usize) -> bool {
        let begin = TcpSeqNumber(sequence.cast_signed());
        self.end
            .is_some_and(|end| begin < end && begin + queued.max(1) >= end)
    }
}

/// Farther than any window reaches (RFC 7323, 2.2).
const NEVER_SENT: usize = 1 << 30;

/// Where a segment begins, if it is a reset.
pub(super) fn reset_at(segment: &[u8]) -> Option<TcpSeqNumber> {
    let segment = TcpPacket::new_checked(segment).ok()?;
    segment.rst().then(|| segment.seq_number())
}

/// Whether it asks for a new connection.
pub(super) fn is_first_syn(segment: &[u8]) -> bool {
    TcpPacket::new_checked(segment)
        .is_ok_and(|segment| segment.syn() && !segment.ack() && !segment.rst())
}

/// How far the peer's window reaches, which smoltcp does not tell.
#[derive(Debug, Default)]
pub(super) struct PeerWindow {
    scale: u8,
    /// Up to where the peer has what was sent.
    acknowledged: Option<TcpSeqNumber>,
    end: Option<TcpSeqNumber>,
    opened: usize,
}

/// The greatest shift of a window (RFC 7323, 2.3).
const SCALE_MAX: u8 = 14;

impl PeerWindow {
    /// This may be the peer's SYN.
    pub(super) fn take_scale(&mut self, bytes: &[u8]) {
        if let Ok(segment) = TcpPacket::new_checked(bytes)
            && segment.syn()
        {
            self.scale = scale_of(&segment).unwrap_or(0);
        }
    }

    /// Up to where the peer has what was sent, as far as it said so.
    pub(super) fn acknowledged(&self) -> Option<TcpSeqNumber> {
        self.acknowledged
    }

    /// The peer sent this segment. Its resets open nothing.
    pub(super) fn on_segment(&mut self, bytes: &[u8]) {
        let Ok(segment) = TcpPacket::new_checked(bytes) else {
            return;
        };
        if segment.rst() || !segment.ack() {
            return;
        }
        let acknowledged = segment.ack_number();
        if self.acknowledged.is_none_or(|before| acknowledged > before) {
            self.acknowledged = Some(acknowledged);
        }
        let window = usize::from(segment.window_len());
        // That of a handshake is as it is (RFC 7323, 2.2).
        let scale = if segment.syn() { 0 } else { self.scale };
        let end = segment.ack_number() + (window << scale);
        match self.end {
            Some(before) if end > before => self.opened += end - before,
            // It is not shrunk by segments that come late.
            Some(_) => return,
            None => {}
        }
        self.end = Some(end);
    }

    /// A segment that others have overtaken acknowledges less than they. smoltcp throws its data away
    /// as well, although only the acknowledgement is old (RFC 9293, 3.10.7.4). So it says what they
    /// said, unless that is more than `bytes` (RFC 5961, 5.2). Its checksum stays.
    pub(super) fn renew(&self, segment: &mut [u8], bytes: usize) {
        let Ok(mut segment) = TcpPacket::new_checked(segment) else {
            return;
        };
        let (Some(acknowledged), Some(end)) = (self.acknowledged, self.end) else {
            return;
        };
        let old = segment.ack_number();
        let brings = segment.ack() && !segment.rst() && !segment.syn() && segment.segment_len() > 0;
        if brings && old < acknowledged && old + bytes >= acknowledged && acknowledged <= end {
            let window = (end - acknowledged) >> self.scale;
            segment.set_ack_number(acknowledged);
            segment.set_window_len(u16::try_from(window).unwrap_or(u16::MAX));
        }
    }

    /// Has a segment advertise at most `bytes`, if the peer's handshake is done. Its checksum, which
    /// nobody will look at any more, stays.
    pub(super) fn lower(&self, segment: &mut [u8], bytes: usize) {
        let Ok(mut segment) = TcpPacket::new_checked(segment) else {
            return;
        };
        let most = u16::try_from(bytes >> self.scale)
            .unwrap_or(u16::MAX)
            .max(1);
        if !segment.syn() && segment.window_len() > most {
            segment.set_window_len(most);
        }
    }

    /// Bytes by which its end has moved since this was asked.
    pub(super) fn take_opened(&mut self) -> usize {
        std::mem::take(&mut self.opened)
    }
}

/// Has a segment begin a byte later. Its checksum stays.
pub(super) fn begin_later(segment: &mut [u8]) {
    let Ok(mut segment) = TcpPacket::new_checked(segment) else {
        return;
    };
    segment.set_seq_number(segment.seq_number() + 1);
}

fn scale_of(syn: &TcpPacket<&[u8]>) -> Option<u8> {
    let mut options = syn.options();
    while !options.is_empty() {
        match TcpOption::parse(options) {
            Ok((_, TcpOption::WindowScale(scale))) => return Some(scale.min(SCALE_MAX)),
            Ok((_, TcpOption::EndOfList)) | Err(_) => break,
            Ok((rest, _)) => options = rest,
        }
    }
    None
}

impl Device for Wire {
    type RxToken<'a> = Inbound;
    type TxToken<'a> = Outbound<'a>;

    fn receive(&mut self, _: Instant) -> Option<(Inbound, Outbound<'_>)> {
        let inbound = self.inbound.take()?;
        Some((Inbound(inbound), self.room(None)))
    }

    /// Nothing without a free frame, or while others wait for the device: the socket then
    /// keeps its segment and knows that it was not sent.
    fn transmit(&mut self, _: Instant) -> Option<Outbound<'_>> {
        if self.is_full || self.outbound.len() >= WAITING_MAX {
            return None;
        }
        let frame = self.pool.take()?;
        Some(self.room(Some(frame)))
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut checksum = ChecksumCapabilities::default();
        // Damaged segments do not come so far.
        checksum.tcp = Checksum::Tx;
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
        let syn = segment(TcpControl::Syn, 1, 8000);
        window.take_scale(&syn);
        window.on_segment(&syn);
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
        // Whoever made a reset up may have written anything there.
        window.on_segment(&segment(TcpControl::Rst, 100_000, 8000));
        assert_eq!(window.take_opened(), 0);
        // Later SYNs change no scale.
        window.scale = 5;
        window.on_segment(&syn);
        assert_eq!(window.scale, 5);
    }

    #[test]
    fn only_what_is_on_its_way_is_acknowledged() {
        let mut sent = Sent::default();
        assert!(!sent.is_acknowledged_by(&segment(TcpControl::None, 1, 10), 0));
        sent.end = Some(TcpSeqNumber(1000));
        for (ack, fits) in [(1000, true), (800, true), (799, false), (1001, false)] {
            let acknowledges = segment(TcpControl::None, ack, 10);
            assert_eq!(sent.is_acknowledged_by(&acknowledges, 200), fits, "{ack}");
        }
        assert!(!sent.is_acknowledged_by(b"nonsense", 200));
    }

    #[test]
    fn a_window_is_lowered_in_the_units_of_its_handshake_and_never_raised() {
        let mut window = PeerWindow::default();
        window.take_scale(&segment(TcpControl::Syn, 1, 8000));
        for bytes in [1, 800, 12_345, 65_535 * 8] {
            let mut lowered = segment(TcpControl::None, 501, 7500);
            window.lower(&mut lowered, bytes);
            let advertised = TcpPacket::new_checked(&lowered[..]).unwrap().window_len();
            assert_eq!(usize::from(advertised), (bytes / 8).clamp(1, 7500));
        }
        window.lower(&mut [0; 3], 1);
    }
}
