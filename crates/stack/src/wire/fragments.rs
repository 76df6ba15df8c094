//! Datagrams that do not fit one packet: their payload is laid out in frames so that each
//! becomes a fragment where it lies (Tracey & Banerji, section 3.5: TB-47).
//!
//! A datagram of several frames is made in two steps. Its payload comes into frames of the
//! lengths that [`layout`] says: copied once, from wherever its parts lie ([`copy`]), or
//! written there by the program itself. Then [`Headers::write`] puts headers in front of each. The
//! pieces but the last are as long as a fragment may be, which is a multiple of 8 bytes.

use std::io::IoSlice;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use smoltcp::wire::{IpProtocol, UdpPacket};

use super::emit::{FRAGMENT_HEADER_BYTES, Piece, network_bytes, write_network};
use super::{ETHERNET_BYTES, UDP_BYTES};
use crate::device::{Frame, HEADROOM_BYTES, Mac, Pool};

/// Bytes of UDP header and payload that a fragment carries at most.
fn fragment_bytes(destination: IpAddr, mtu: usize) -> usize {
    (mtu - network_bytes(destination) - extension_bytes(destination)) / 8 * 8
}

/// Between network header and UDP's, in a fragment.
fn extension_bytes(destination: IpAddr) -> usize {
    usize::from(destination.is_ipv6()) * FRAGMENT_HEADER_BYTES
}

/// Whether a payload of so many bytes goes in one packet.
#[inline]
pub(crate) fn fits_one(destination: IpAddr, mtu: usize, bytes: usize) -> bool {
    network_bytes(destination) + UDP_BYTES + bytes <= mtu
}

/// The lengths of the pieces in which a payload of so many bytes is sent. One, if it goes in one
/// packet.
pub(crate) fn layout(
    destination: IpAddr,
    mtu: usize,
    bytes: usize,
) -> impl Iterator<Item = usize> + use<> {
    let step = fragment_bytes(destination, mtu);
    let first = match fits_one(destination, mtu, bytes) {
        true => bytes,
        false => step - UDP_BYTES,
    };
    let others = bytes - first;
    let full = (0..others / step).map(move |_| step);
    let rest = others % step;
    std::iter::once(first)
        .chain(full)
        .chain((rest > 0).then_some(rest))
}

/// Whether frames that were laid out for some MTU may still be sent with this one.
pub(crate) fn are_fragments(frames: &[Frame], destination: IpAddr, mtu: usize) -> bool {
    let step = fragment_bytes(destination, mtu);
    let mut frames = frames.iter().map(|frame| frame.len());
    frames
        .next()
        .is_none_or(|first| first + UDP_BYTES <= step && frames.all(|bytes| bytes <= step))
}

/// Bytes in all parts.
pub(crate) fn bytes_of(parts: &[IoSlice<'_>]) -> usize {
    parts.iter().map(|part| part.len()).sum()
}

/// Parts of a payload, read from the front.
struct Parts<'a> {
    parts: std::slice::Iter<'a, IoSlice<'a>>,
    part: &'a [u8],
}

impl<'a> Parts<'a> {
    fn new(parts: &'a [IoSlice<'a>]) -> Self {
        Self {
            parts: parts.iter(),
            part: &[],
        }
    }

    /// A frame of the next so many bytes, behind room for headers. Nothing: there is no free
    /// buffer, or they do not fit.
    fn next_frame(&mut self, pool: &Arc<Pool>, bytes: usize) -> Option<Frame> {
        let mut frame = pool.take()?;
        if HEADROOM_BYTES + bytes > pool.chunk_bytes() {
            return None;
        }
        frame.set_range(HEADROOM_BYTES..HEADROOM_BYTES + bytes);
        let mut place = &mut frame[..];
        while !place.is_empty() {
            if self.part.is_empty() {
                self.part = self.parts.next()?;
            }
            let count = place.len().min(self.part.len());
            let (here, behind) = place.split_at_mut(count);
            let (next, later) = self.part.split_at(count);
            here.copy_from_slice(next);
            (place, self.part) = (behind, later);
        }
        Some(frame)
    }
}

/// One frame with a copy of a payload. Nothing: there is no free buffer, or it does not fit.
#[inline]
pub(crate) fn copy_one(pool: &Arc<Pool>, payload: &[IoSlice<'_>]) -> Option<Frame> {
    Parts::new(payload).next_frame(pool, bytes_of(payload))
}

/// All frames with a copy of a payload, or none: there are too few buffers.
pub(crate) fn copy(
    pool: &Arc<Pool>,
    destination: IpAddr,
    mtu: usize,
    payload: &[IoSlice<'_>],
) -> Option<Vec<Frame>> {
    let mut parts = Parts::new(payload);
    layout(destination, mtu, bytes_of(payload))
        .map(|bytes| parts.next_frame(pool, bytes))
        .collect()
}

/// What the headers of all fragments of a UDP datagram say.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Headers {
    pub(crate) mac: Mac,
    pub(crate) source: SocketAddr,
    pub(crate) destination: SocketAddr,
    pub(crate) id: u32,
}

impl Headers {
    /// Puts headers in front of the pieces of a payload, which are the frames' ranges; afterwards
    /// these are all of the frames.
    pub(crate) fn write(&self, frames: &mut [Frame]) {
        let payload: usize = frames.iter().map(|frame| frame.len()).sum();
        let (whole, checksum) = (UDP_BYTES + payload, self.checksum(frames));
        let to = self.destination.ip();
        let network = network_bytes(to) + extension_bytes(to);
        let mut offset = 0;
        for frame in frames {
            let udp = if offset == 0 { UDP_BYTES } else { 0 };
            let piece = frame.range();
            frame.set_range(piece.start - udp..piece.end);
            if offset == 0 {
                self.write_udp(frame, whole, checksum);
            }
            let bytes = frame.len();
            frame.set_range(frame.range().start - network - ETHERNET_BYTES..piece.end);
            let of_whole = Piece {
                id: self.id,
                offset,
                more: offset + bytes < whole,
            };
            let ends = (self.source.ip(), to);
            let protocol = IpProtocol::Udp;
            write_network(frame, self.mac, ends, protocol, None, Some(of_whole));
            offset += bytes;
        }
    }

    fn write_udp(&self, bytes: &mut [u8], whole: usize, checksum: u16) {
        let mut udp = UdpPacket::new_unchecked(bytes);
        udp.set_src_port(self.source.port());
        udp.set_dst_port(self.destination.port());
        udp.set_len(whole as u16);
        udp.set_checksum(checksum);
    }

    /// Over header and payload. All pieces but the last have an even length, so that the sum of
    /// their sums is that of the whole.
    fn checksum(&self, pieces: &[Frame]) -> u16 {
        use smoltcp::wire::checksum::{combine, data, pseudo_header};
        let payload: usize = pieces.iter().map(|piece| piece.len()).sum();
        let whole = UDP_BYTES + payload;
        let mut header = [0; UDP_BYTES];
        self.write_udp(&mut header, whole, 0);
        let (from, to) = (self.source.ip().into(), self.destination.ip().into());
        let pseudo = pseudo_header(&from, &to, IpProtocol::Udp, whole as u32);
        let mut sum = combine(&[pseudo, data(&header)]);
        for piece in pieces {
            sum = combine(&[sum, data(piece)]);
        }
        // 0 would mean "none" (RFC 768).
        match !sum {
            0 => 0xffff,
            checksum => checksum,
        }
    }
}

#[cfg(test)]
mod tests {
    use plimsoll_core::time::Instant;
    use proptest::prelude::any;
    use proptest::{prop_assert, prop_assert_eq, proptest};

    use super::super::datagram::{Input, in_reassembler, input};
    use super::super::reassembly::{Reassembler, ReassemblyConfig};
    use super::*;

    fn headers(is_ipv6: bool) -> Headers {
        let [source, destination] = match is_ipv6 {
            false => ["10.0.0.1:1000", "10.0.0.2:2000"],
            true => ["[2001:db8::1]:1000", "[2001:db8::2]:2000"],
        };
        Headers {
            mac: [2, 0, 0, 0, 0, 9],
            source: source.parse().unwrap(),
            destination: destination.parse().unwrap(),
            id: 77,
        }
    }

    /// What the other end makes of fragments.
    fn join(frames: Vec<Frame>) -> Vec<u8> {
        let mut reassembler = Reassembler::new(ReassemblyConfig::default());
        let mut whole = None;
        for frame in frames {
            let join = in_reassembler(&mut reassembler);
            match input(frame, false, join, Instant::ZERO) {
                Input::Datagram(datagram) => whole = Some(datagram),
                Input::Kept => assert!(whole.is_none()),
                Input::Ended(outcome) => panic!("{outcome:?}"),
            }
        }
        whole.expect("it is complete").payload().to_vec()
    }

    fn content(bytes: usize) -> Vec<u8> {
        (0..bytes).map(|k| (k / 7) as u8).collect()
    }

    #[test]
    fn fragments_join_to_what_was_sent() {
        let pool = Pool::new(256, 2048).unwrap();
        for is_ipv6 in [false, true] {
            let headers = headers(is_ipv6);
            let to = headers.destination.ip();
            for length in [1473, 1480, 2953, 65_507] {
                let payload = content(length);
                let mut frames = copy(&pool, to, 1500, &[IoSlice::new(&payload)]).unwrap();
                assert!(frames.len() > 1);
                headers.write(&mut frames);
                assert!(frames.iter().all(|frame| frame.len() <= 1514));
                assert!(join(frames) == payload, "{length} bytes to {to}");
            }
        }
    }

    #[test]
    fn without_enough_buffers_none_is_kept() {
        let pool = Pool::new(3, 2048).unwrap();
        let to = headers(false).destination.ip();
        assert!(copy(&pool, to, 1500, &[IoSlice::new(&[0; 5000])]).is_none());
        assert_eq!(pool.available(), 3);
        assert!(copy_one(&pool, &[IoSlice::new(&[0; 2000])]).is_none());
    }

    proptest! {
        /// TB-47: wherever the parts of a payload begin and end, they are the same packets as if
        /// they stood in a row, each as long as it may be.
        #[test]
        fn parts_are_one_payload(
            cuts in proptest::collection::vec(0..6000usize, 0..12),
            bytes in 0..6000usize, mtu in 576..2000usize, is_ipv6 in any::<bool>(),
        ) {
            let mtu = if is_ipv6 { mtu.max(1280) } else { mtu };
            let (pool, headers) = (Pool::new(64, 4096).unwrap(), headers(is_ipv6));
            let (to, payload) = (headers.destination.ip(), content(bytes));
            let mut cuts: Vec<_> = cuts.into_iter().map(|cut| cut.min(bytes)).collect();
            cuts.extend([0, bytes]);
            cuts.sort_unstable();
            let parts = cuts.windows(2).map(|cut| IoSlice::new(&payload[cut[0]..cut[1]]));
            let parts: Vec<_> = parts.collect();
            let mut frames = copy(&pool, to, mtu, &parts).unwrap();
            let lengths: Vec<_> = frames.iter().map(|frame| frame.len()).collect();
            prop_assert!(lengths.iter().copied().eq(layout(to, mtu, bytes)));
            let whole: Vec<_> = frames.iter().flat_map(|frame| frame.to_vec()).collect();
            prop_assert!(whole == payload);
            if fits_one(to, mtu, bytes) {
                prop_assert_eq!(frames.len(), 1);
                let one = copy_one(&pool, &parts).unwrap();
                prop_assert!(one[..] == payload);
                return Ok(());
            }
            prop_assert!(are_fragments(&frames, to, mtu));
            prop_assert!(!are_fragments(&frames, to, mtu - 8));
            headers.write(&mut frames);
            let longest = frames.iter().map(|frame| frame.len() - ETHERNET_BYTES).max();
            prop_assert!((mtu - 7..=mtu).contains(&longest.unwrap()));
            let rows = frames.iter().skip(1).rev().skip(1);
            prop_assert!(rows.map(|frame| frame.len()).all(|row| row == longest.unwrap() + ETHERNET_BYTES));
            prop_assert!(join(frames) == payload);
        }
    }
}
