//! Frames of several lengths in one blast: the Internet mix that routers are measured with.
//!
//! All are cut from the longest, so that each departure still costs the generator about the
//! same. Lengths come in a fixed order: the mix holds over every twelve frames.

use super::frame::{Template, header_bytes};
use super::spec::{FRAME_MAX_BYTES, Flow, Spec, Transport};

/// The simple Internet mix, without frame check sequences: 64, 594 and 1518 bytes with them.
/// Seven, four and one of twelve.
pub const IMIX_BYTES: [usize; 3] = [60, 590, FRAME_MAX_BYTES];
/// Which of them each of twelve frames has: the same ones far apart. The last four are for
/// nobody: the program's array has a power of two.
pub(super) const ORDER: [u8; 16] = [0, 1, 0, 0, 1, 0, 2, 0, 1, 0, 1, 0, 0, 0, 0, 0];

/// What is different in frames of one length.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Length {
    /// Bytes to take off the longest frame.
    pub(super) cut: u32,
    /// As [`Template::ip_sum`].
    pub(super) ip_sum: u16,
    /// As [`Template::transport_sum`].
    pub(super) transport_sum: u16,
    /// IPv4's total length or IPv6's payload length.
    pub(super) ip_bytes: u16,
    pub(super) udp_bytes: u16,
}

/// The payload of the longest frame of a mix.
#[must_use]
pub fn imix_payload(flow: &Flow) -> Vec<u8> {
    vec![0; FRAME_MAX_BYTES - header_bytes(flow)]
}

/// Of a valid spec.
pub(super) fn lengths(spec: &Spec, longest: &Template) -> [Length; 3] {
    let headers = header_bytes(&spec.flow);
    let ip_header = if spec.flow.destination.is_ipv4() {
        0
    } else {
        40
    };
    IMIX_BYTES.map(|bytes| {
        // With IPv6 there is none of 60 bytes.
        let bytes = bytes.max(headers);
        let payload = spec.flow.payload()[..bytes - headers].to_vec();
        let flow = Flow {
            transport: Transport::Udp { payload },
            ..spec.flow.clone()
        };
        // Ethernet addresses are in no checksum.
        let template = Template::new(&flow, [0; 6], [0; 6]);
        Length {
            cut: (longest.bytes.len() - bytes) as u32,
            ip_sum: template.ip_sum,
            transport_sum: template.transport_sum,
            ip_bytes: (bytes - 14 - ip_header) as u16,
            udp_bytes: (bytes - headers + 8) as u16,
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seven_four_and_one_of_twelve() {
        let count = |kind| ORDER[..12].iter().filter(|one| **one == kind).count();
        assert_eq!([0, 1, 2].map(count), [7, 4, 1]);
    }

    #[test]
    fn lengths_are_those_of_the_headers() {
        for (source, to, cut, ip, udp) in [
            ("198.18.0.0/24", "198.18.0.2", 1454, 46, 26),
            ("2001:2::/64", "2001:2::2", 1452, 8, 8),
        ] {
            let mut flow = Flow {
                source: source.parse().unwrap(),
                source_ports: 1..=9,
                destination: to.parse().unwrap(),
                destination_ports: 1..=9,
                transport: Transport::Udp { payload: vec![] },
            };
            let payload = imix_payload(&flow);
            flow.transport = Transport::Udp { payload };
            let schedule = super::super::spec::Schedule::Unlimited;
            let spec = Spec::new("none", [1; 6], flow, schedule);
            let longest = Template::new(&spec.flow, [0; 6], [0; 6]);
            let [short, _, long] = lengths(&spec, &longest);
            assert_eq!((short.cut, short.ip_bytes, short.udp_bytes), (cut, ip, udp));
            assert_eq!((long.cut, long.ip_sum), (0, longest.ip_sum));
            assert_eq!(long.transport_sum, longest.transport_sum);
        }
    }
}
