//! The segments of a handshake for which a cookie stands ([`super::cookie`]).

use std::net::SocketAddr;
use std::sync::Arc;

use smoltcp::wire::{TcpControl, TcpOption, TcpPacket, TcpRepr, TcpSeqNumber};

use super::cookie::{Cookies, Syn};
use super::reset::{framed, plain};
use crate::config::TcpConfig;
use crate::device::{CookieAnswers, Frame, Mac, Pool};
use crate::wire::packet::Packet;

/// What a SYN without a word about it takes (RFC 9293, 3.7.1).
const SEGMENT_BYTES: [u16; 2] = [536, 1220];
/// Headers of IPv4 and IPv6, with TCP's.
const HEADERS_BYTES: [usize; 2] = [40, 60];

/// A SYN between these ends, ours first, as far as a cookie knows it.
pub(super) fn requested(
    frame: &Frame,
    packet: &Packet,
    (local, remote): (SocketAddr, SocketAddr),
) -> Option<Syn> {
    let segment = TcpPacket::new_checked(&frame[packet.payload.clone()]).ok()?;
    let least = SEGMENT_BYTES[usize::from(remote.is_ipv6())];
    Some(Syn {
        local,
        remote,
        sequence: segment.seq_number(),
        segment_bytes: largest_segment(segment.options()).unwrap_or(least),
    })
}

/// The SYN and the cookie that a segment brings back, if there were any: the first data may come
/// instead of a bare acknowledgement.
pub(super) fn returned(
    frame: &Frame,
    packet: &Packet,
    (local, remote): (SocketAddr, SocketAddr),
) -> Option<(Syn, TcpSeqNumber)> {
    let segment = TcpPacket::new_checked(&frame[packet.payload.clone()]).ok()?;
    if !segment.ack() || segment.syn() || segment.rst() {
        return None;
    }
    let syn = Syn {
        local,
        remote,
        sequence: before(segment.seq_number()),
        segment_bytes: 0,
    };
    Some((syn, before(segment.ack_number())))
}

/// How SYNs are answered over a link with this MTU.
pub(super) fn answers(cookies: &Cookies, config: &TcpConfig, mtu: usize) -> CookieAnswers {
    let segment = |headers| u16::try_from(mtu.saturating_sub(headers)).unwrap_or(u16::MAX);
    CookieAnswers {
        key: cookies.key(),
        are_given: config.syn_cookies_per_s > 0,
        window: u16::try_from(config.buffer_bytes).unwrap_or(u16::MAX),
        segments: HEADERS_BYTES.map(segment),
    }
}

/// The answer to a SYN, with a cookie.
pub(super) fn answer(
    syn: &Syn,
    cookie: TcpSeqNumber,
    answers: &CookieAnswers,
    mac: Mac,
    pool: &Arc<Pool>,
) -> Option<Frame> {
    let answer = TcpRepr {
        control: TcpControl::Syn,
        seq_number: cookie,
        ack_number: Some(syn.sequence + 1),
        window_len: answers.window,
        max_seg_size: Some(answers.segments[usize::from(syn.remote.is_ipv6())]),
        ..plain(syn.local.port(), syn.remote.port())
    };
    framed(&answer, (syn.local.ip(), syn.remote.ip()), mac, pool)
}

/// The SYN as it came once, from what the cookie and the segment that brought it say.
pub(super) fn again(syn: &Syn, frame: &Frame, packet: &Packet, pool: &Arc<Pool>) -> Option<Frame> {
    let segment = TcpPacket::new_checked(&frame[packet.payload.clone()]).ok()?;
    let again = TcpRepr {
        control: TcpControl::Syn,
        seq_number: syn.sequence,
        window_len: segment.window_len(),
        max_seg_size: Some(syn.segment_bytes),
        ..plain(syn.remote.port(), syn.local.port())
    };
    framed(&again, (syn.remote.ip(), syn.local.ip()), packet.via, pool)
}

/// Has a packet's segment begin later by `shift`, with the checksum that belongs to it (RFC 1624,
/// equation 3).
pub(super) fn shift(segment: &mut [u8], shift: i32) {
    let Ok(mut segment) = TcpPacket::new_checked(segment) else {
        return;
    };
    let old = segment.seq_number();
    let new = TcpSeqNumber(old.0.wrapping_add(shift));
    segment.set_seq_number(new);
    let words = |number: TcpSeqNumber| {
        let number = number.0.cast_unsigned();
        [number >> 16, number & 0xffff]
    };
    let mut sum = u32::from(!segment.checksum());
    for (old, new) in words(old).into_iter().zip(words(new)) {
        sum += (old ^ 0xffff) + new;
    }
    // Twice: the first time may carry once more.
    let sum = (sum & 0xffff) + (sum >> 16);
    let sum = (sum & 0xffff) + (sum >> 16);
    segment.set_checksum(!(sum as u16));
}

/// What a segment acknowledges, in our socket's numbers. Nobody looks at its checksum any more.
pub(super) fn shift_back(segment: &mut [u8], shift: i32) {
    if let Ok(mut segment) = TcpPacket::new_checked(segment)
        && segment.ack()
    {
        let number = segment.ack_number().0.wrapping_sub(shift);
        segment.set_ack_number(TcpSeqNumber(number));
    }
}

fn before(number: TcpSeqNumber) -> TcpSeqNumber {
    TcpSeqNumber(number.0.wrapping_sub(1))
}

fn largest_segment(mut options: &[u8]) -> Option<u16> {
    while !options.is_empty() {
        match TcpOption::parse(options) {
            Ok((_, TcpOption::MaxSegmentSize(bytes))) => return Some(bytes),
            Ok((_, TcpOption::EndOfList)) | Err(_) => break,
            Ok((rest, _)) => options = rest,
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use proptest::prelude::any;
    use proptest::{prop_assert, prop_assert_eq, proptest};
    use smoltcp::phy::ChecksumCapabilities;
    use smoltcp::wire::IpAddress;

    use super::*;
    use crate::tcp::reset::{is_syn, parse};

    proptest! {
        #[test]
        fn what_is_shifted_keeps_a_right_checksum(
            first in any::<i32>(), by in any::<i32>(), acknowledged in any::<i32>(),
            payload in proptest::collection::vec(any::<u8>(), 0..64),
        ) {
            let (from, to) = (IpAddress::v4(10, 0, 0, 1), IpAddress::v4(10, 0, 0, 2));
            let repr = TcpRepr {
                seq_number: TcpSeqNumber(first),
                ack_number: Some(TcpSeqNumber(acknowledged)),
                payload: &payload,
                ..plain(80, 5000)
            };
            let mut bytes = vec![0; repr.buffer_len()];
            let mut segment = TcpPacket::new_unchecked(&mut bytes[..]);
            repr.emit(&mut segment, &from, &to, &ChecksumCapabilities::default());
            shift(&mut bytes, by);
            let segment = TcpPacket::new_checked(&bytes[..]).unwrap();
            prop_assert!(segment.verify_checksum(&from, &to));
            prop_assert_eq!(segment.seq_number().0, first.wrapping_add(by));
            shift_back(&mut bytes, by);
            let segment = TcpPacket::new_checked(&bytes[..]).unwrap();
            prop_assert_eq!(segment.ack_number().0, acknowledged.wrapping_sub(by));
        }

        #[test]
        fn nonsense_is_left_as_it_is(mut bytes in proptest::collection::vec(any::<u8>(), 0..60)) {
            shift(&mut bytes, 1);
            shift_back(&mut bytes, 1);
            largest_segment(&bytes);
        }
    }

    /// What one end sends, the other takes for what it was.
    #[test]
    fn a_handshake_is_the_same_for_both_ends() {
        let pool = Pool::new(4, 2048).unwrap();
        let mac = [2, 0, 0, 0, 0, 1];
        let config = TcpConfig {
            buffer_bytes: 1 << 20,
            ..TcpConfig::default()
        };
        let answers = answers(&Cookies::new().unwrap(), &config, 1500);
        for (local, remote, segment_bytes) in [
            ("10.0.0.2:80", "10.0.0.1:5000", 1460),
            ("[fd00::2]:80", "[fd00::1]:5000", 1440),
        ] {
            let ends = (local.parse().unwrap(), remote.parse().unwrap());
            let syn = Syn {
                local: ends.0,
                remote: ends.1,
                sequence: TcpSeqNumber(-1),
                segment_bytes,
            };
            let cookie = TcpSeqNumber(77);
            let answer = answer(&syn, cookie, &answers, mac, &pool).unwrap();
            // From here on as the client sees it.
            let (packet, source, destination) = parse(&answer, false).unwrap();
            assert_eq!((source, destination), (80, 5000));
            let segment = TcpPacket::new_checked(&answer[packet.payload.clone()]).unwrap();
            assert!(segment.syn() && segment.ack() && !segment.rst());
            assert_eq!((segment.seq_number(), segment.ack_number().0), (cookie, 0));
            assert_eq!(segment.window_len(), u16::MAX);
            assert_eq!(largest_segment(segment.options()), Some(segment_bytes));
            let back = TcpRepr {
                seq_number: segment.ack_number(),
                ack_number: Some(cookie + 1),
                window_len: 512,
                ..plain(5000, 80)
            };
            let back = framed(&back, (ends.1.ip(), ends.0.ip()), mac, &pool).unwrap();
            let packet = parse(&back, false).unwrap().0;
            let (found, its) = returned(&back, &packet, ends).unwrap();
            assert_eq!((found.sequence, its), (syn.sequence, cookie));
            let once = again(&syn, &back, &packet, &pool).unwrap();
            let packet = parse(&once, false).unwrap().0;
            assert!(is_syn(&once, &packet) && packet.via == mac);
            assert_eq!(requested(&once, &packet, ends), Some(syn));
            assert_eq!(returned(&once, &packet, ends), None);
        }
    }
}
