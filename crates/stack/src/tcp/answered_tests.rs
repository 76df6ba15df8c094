//! The XDP program answers a SYN as the stack would. Needs root.

use std::net::SocketAddr;

use smoltcp::wire::{TcpControl, TcpRepr, TcpSeqNumber, TcpTimestampRepr};

use super::cookie::Cookies;
use super::handshake;
use super::reset::{framed, parse, plain};
use crate::clock;
use crate::config::TcpConfig;
use crate::device::xdp::answering::trial::{ALL_HOSTS, answers_of};
use crate::device::{CookieAnswers, Mac, Pool};
use crate::wire::emit;

const HERE: Mac = [2, 0, 0, 0, 0, 2];
const THERE: Mac = [2, 0, 0, 0, 0, 1];
const VLAN: u16 = 5;

/// Clients', and the stack's.
fn ends() -> [(SocketAddr, SocketAddr); 2] {
    [
        ("10.0.0.9:5000", "10.0.0.2:80"),
        ("[fd00::9]:5000", "[fd00::2]:80"),
    ]
    .map(|(from, to)| (from.parse().unwrap(), to.parse().unwrap()))
}

fn answers(cookies: &Cookies) -> CookieAnswers {
    let config = TcpConfig {
        buffer_bytes: 40_000,
        ..TcpConfig::default()
    };
    handshake::answers(cookies, &config, 1500)
}

fn frame_of(segment: &TcpRepr<'_>, ends: (SocketAddr, SocketAddr), macs: [Mac; 2]) -> Vec<u8> {
    let pool = Pool::new(1, 2048).unwrap();
    let mut frame = framed(segment, (ends.0.ip(), ends.1.ip()), macs[0], &pool).unwrap();
    emit::set_link_destination(&mut frame, macs[1]);
    frame.to_vec()
}

/// SYNs with all kinds of options.
fn syns() -> Vec<(Vec<u8>, (SocketAddr, SocketAddr))> {
    let mut syns = Vec::new();
    for (from, to) in ends() {
        for segment in [
            None,
            Some(0),
            Some(535),
            Some(1220),
            Some(1459),
            Some(2000),
            Some(9000),
        ] {
            for others in [false, true] {
                for sequence in [0, -1, 0x1234_5678] {
                    let syn = TcpRepr {
                        control: TcpControl::Syn,
                        seq_number: TcpSeqNumber(sequence),
                        window_len: 64_240,
                        max_seg_size: segment,
                        window_scale: others.then_some(7),
                        sack_permitted: others,
                        timestamp: others.then(|| TcpTimestampRepr::new(77, 0)),
                        ..plain(from.port(), to.port())
                    };
                    syns.push((frame_of(&syn, (from, to), [THERE, HERE]), (from, to)));
                }
            }
        }
    }
    syns
}

/// What the stack answers.
fn expected(cookies: &Cookies, frame: &[u8], (from, to): (SocketAddr, SocketAddr)) -> Vec<u8> {
    let pool = Pool::new(2, 2048).unwrap();
    let mut bytes = pool.take().unwrap();
    assert!(bytes.copy_from(frame));
    let packet = parse(&bytes, false).unwrap().0;
    let syn = handshake::requested(&bytes, &packet, (to, from)).unwrap();
    let cookie = cookies.cookie(&syn, clock::now());
    let mut answer = handshake::answer(&syn, cookie, &answers(cookies), HERE, &pool).unwrap();
    emit::set_link_destination(&mut answer, THERE);
    answer.to_vec()
}

/// In a VLAN, with a priority.
fn tagged(frame: &[u8]) -> Vec<u8> {
    let [high, low] = (0xa000 | VLAN).to_be_bytes();
    [&frame[..12], &[0x81, 0, high, low], &frame[12..]].concat()
}

fn addresses() -> [std::net::IpAddr; 2] {
    ends().map(|(_, to)| to.ip())
}

#[test]
fn the_program_s_answer_is_the_stack_s_byte_for_byte() {
    let cookies = Cookies::new().unwrap();
    for vlan in [0, VLAN] {
        let framed = |frame: &[u8]| match vlan {
            0 => frame.to_vec(),
            _ => tagged(frame),
        };
        let syns = syns();
        let expect = || -> Vec<_> {
            let all = syns.iter();
            all.map(|(frame, ends)| framed(&expected(&cookies, frame, *ends)))
                .collect()
        };
        let before = expect();
        let frames: Vec<_> = syns.iter().map(|(frame, _)| framed(frame)).collect();
        let given = answers_of(&answers(&cookies), HERE, (addresses(), vlan), &frames);
        // Cookies of the next time are others.
        let after = expect();
        for (((given, before), after), frame) in given.iter().zip(before).zip(after).zip(frames) {
            let given = given.as_ref().expect("an answer");
            let is_right = *given == before || *given == after;
            assert!(
                is_right,
                "{given:02x?}\n{before:02x?} is right for\n{frame:02x?}"
            );
        }
    }
}

/// Options of IPv4 stand between the headers, and the answer has none.
#[test]
fn options_of_ipv4_are_passed_over() {
    let cookies = Cookies::new().unwrap();
    let (frame, ends) = syns().swap_remove(3);
    let mut with_options = frame.clone();
    with_options.splice(34..34, [1; 8]);
    with_options[14] = 0x47;
    with_options[17] += 8;
    let before = expected(&cookies, &frame, ends);
    let frames = [with_options];
    let given = answers_of(&answers(&cookies), HERE, (addresses(), 0), &frames);
    let after = expected(&cookies, &frame, ends);
    let given = given[0].as_ref().expect("an answer");
    assert!(*given == before || *given == after, "{given:02x?}");
}

/// Bytes at these places are others.
fn changed(frame: &[u8], changes: &[(usize, &[u8])]) -> Vec<u8> {
    let mut changed = frame.to_vec();
    for (at, bytes) in changes {
        changed[*at..*at + bytes.len()].copy_from_slice(bytes);
    }
    changed
}

#[test]
fn what_nobody_could_answer_is_discarded() {
    let cookies = Cookies::new().unwrap();
    let all = syns();
    let (v4, v6) = (&all[0].0, &all[all.len() / 2].0);
    // Where the segment, its source port, the source address and the length are.
    let frames: Vec<_> = [(v4, 34, 26, 4, 16), (v6, 54, 22, 16, 18)]
        .into_iter()
        .flat_map(|(frame, tcp, source, bytes, length)| {
            let with_flags = |flags| changed(frame, &[(tcp + 13, &[flags])]);
            let mut sources = vec![vec![0; bytes], vec![0xff; bytes]];
            match bytes {
                4 => sources.extend([
                    vec![127, 0, 0, 1],
                    vec![224, 0, 0, 1],
                    ALL_HOSTS.octets().to_vec(),
                ]),
                _ => sources.push([&[0; 15][..], &[1]].concat()),
            }
            // The stack's own, which is the destination behind it.
            sources.push(frame[source + bytes..source + 2 * bytes].to_vec());
            let sources = sources
                .into_iter()
                .map(move |from| changed(frame, &[(source, &from)]));
            let others = [
                with_flags(6),
                with_flags(3),
                changed(frame, &[(tcp, &[0, 0])]),
                changed(frame, &[(0, &[2, 0, 0, 0, 0, 3])]),
                changed(frame, &[(0, &[0xff; 6])]),
                changed(frame, &[(length, &[0, 19])]),
                // A header that is longer than the segment, and one that is too short.
                changed(frame, &[(tcp + 12, &[0xf0])]),
                changed(frame, &[(tcp + 12, &[0x40])]),
            ];
            others.into_iter().chain(sources)
        })
        .collect();
    let given = answers_of(&answers(&cookies), HERE, (addresses(), 0), &frames);
    for (given, frame) in given.iter().zip(&frames) {
        assert_eq!(*given, None, "of {frame:02x?}");
    }
}
