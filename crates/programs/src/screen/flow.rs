//! What a remembered verdict may depend on: addresses, protocol and ports of a plain TCP
//! or UDP packet, and nothing else of it.
//!
//! A packet with IP options or extension headers, a fragment, a tagged frame and every
//! other protocol is of no flow. `read_flow` of `screen.bpf.c` reads frames as this does.

use std::ops::Range;

use super::memory::types;

const ETHERNET_BYTES: usize = 14;
const ETHERNET_TYPE: Range<usize> = 12..14;
const IPV4: [u8; 2] = [0x08, 0x00];
const IPV6: [u8; 2] = [0x86, 0xdd];
const PLAIN_IPV4: u8 = types::plain_ipv4::PLAIN_IPV4.0 as u8;
const FRAGMENT: u16 = types::plain_ipv4::FRAGMENT.0 as u16;
const TCP: u8 = 6;
const UDP: u8 = 17;

pub(super) const KEY_BYTES: usize = size_of::<types::flow>();

/// Bytes of a frame that are the same in all packets of its flow.
const OF_FLOW_V4: [Range<usize>; 4] = [12..15, 20..22, 23..24, 26..38];
const OF_FLOW_V6: [Range<usize>; 3] = [12..14, 20..21, 22..58];

/// The flow of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Flow {
    /// `struct flow` of screen.h.
    pub(super) key: [u8; KEY_BYTES],
    bytes: &'static [Range<usize>],
}

impl Flow {
    /// Of a plain TCP or UDP packet.
    pub(super) fn of(frame: &[u8]) -> Option<Self> {
        let kind = frame.get(ETHERNET_TYPE)?;
        let ip = &frame[ETHERNET_BYTES..];
        let mut key = [0; KEY_BYTES];
        key[38..40].copy_from_slice(kind);
        let (header_bytes, bytes): (usize, &[_]) = if *kind == IPV4 {
            read_v4(ip, &mut key)?;
            (20, &OF_FLOW_V4)
        } else if *kind == IPV6 {
            read_v6(ip, &mut key)?;
            (40, &OF_FLOW_V6)
        } else {
            return None;
        };
        key[32..36].copy_from_slice(ip.get(header_bytes..header_bytes + 4)?);
        matches!(key[40], TCP | UDP).then_some(Self { key, bytes })
    }

    /// Whether these bytes are the same in all its packets.
    pub(super) fn has(&self, read: &Range<usize>) -> bool {
        let inside = |own: &Range<usize>| own.start <= read.start && read.end <= own.end;
        self.bytes.iter().any(inside)
    }
}

fn read_v4(ip: &[u8], key: &mut [u8; KEY_BYTES]) -> Option<()> {
    let header = ip.get(..20)?;
    let fragment = [header[6], header[7]];
    if header[0] != PLAIN_IPV4 || u16::from_be_bytes(fragment) & FRAGMENT != 0 {
        return None;
    }
    key[..4].copy_from_slice(&header[12..16]);
    key[16..20].copy_from_slice(&header[16..20]);
    key[36..38].copy_from_slice(&fragment);
    key[40] = header[9];
    Some(())
}

fn read_v6(ip: &[u8], key: &mut [u8; KEY_BYTES]) -> Option<()> {
    let header = ip.get(..40)?;
    if header[0] >> 4 != 6 {
        return None;
    }
    key[..32].copy_from_slice(&header[8..40]);
    key[40] = header[6];
    Some(())
}

#[cfg(test)]
mod tests {
    use plimsoll_packets::corpus;
    use plimsoll_packets::frame;
    use plimsoll_packets::host::Host;

    use super::*;

    /// Two packets of one flow differ in what is not the flow's, and two flows in what is.
    #[test]
    fn bytes_of_the_flow_are_those_that_its_key_has() {
        let mut flows = 0;
        for frame in corpus::frames(&corpus::hand_built(&Host::default())) {
            let Some(flow) = Flow::of(&frame) else {
                continue;
            };
            flows += 1;
            for place in 0..frame.len() {
                let mut other = frame.clone();
                other[place] ^= 0x40;
                let is_same = Flow::of(&other).is_some_and(|other| other.key == flow.key);
                // Traffic class and flow label share bytes with the version.
                let is_version = frame[12] == 0x86 && place == 14;
                if !is_version {
                    assert_eq!(is_same, !flow.has(&(place..place + 1)), "byte {place}");
                }
            }
        }
        assert!(flows > 20, "{flows} flows");
    }

    #[test]
    fn what_is_no_plain_packet_is_of_no_flow() {
        let (from, to) = ("10.0.0.1:1000", "10.0.0.2:53");
        let frame = frame::udp(from.parse().unwrap(), to.parse().unwrap(), b"");
        assert!(Flow::of(&frame).is_some());
        for bytes in 0..38 {
            assert_eq!(Flow::of(&frame[..bytes]), None, "{bytes} bytes");
        }
        let changed = |place: usize, value| {
            let mut other = frame.clone();
            other[place] = value;
            Flow::of(&other)
        };
        assert_eq!(changed(14, 0x46), None, "options");
        assert_eq!(changed(20, 0x20), None, "a first fragment");
        assert_eq!(changed(21, 1), None, "a later fragment");
        assert_eq!(changed(23, 1), None, "ICMP");
        assert_eq!(changed(12, 0x81), None, "a tag");
    }
}
