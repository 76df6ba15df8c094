//! Shares in the BPF program itself: what a tick admits, who is protected, and
//! that every packet is counted once. Needs root.

mod ends;
mod fragments;
mod tunnels;

use std::net::{Ipv4Addr, TcpListener, TcpStream, UdpSocket};
use std::time::Duration;

use nix::sys::socket::{AddressFamily, SockFlag, SockProtocol, SockType, socket};
use plimsoll_core::fairness::numbers::BUDGET_AHEAD;
use plimsoll_packets::frame::{self, Fragment, Packet, TcpFlags};

use super::test_host::{HOST, connect, demand, from, protect, slot_of, with_guard};
use super::*;
use crate::{Guard, Outcome, ProtectedPort};

const FRAMES: u32 = 100;
const NEIGHBOUR_PACKETS: u64 = types::limit::NEIGHBOUR_PACKETS.0 as u64;

/// What becomes of many such frames at once: admitted, and beyond their share.
fn outcome(guard: &mut Guard<'_>, frame: &[u8]) -> (u64, u64) {
    guard.program.beat();
    judge(guard, frame)
}

/// The same by a program whose loader may have been silent.
fn judge(guard: &mut Guard<'_>, frame: &[u8]) -> (u64, u64) {
    let before = guard.counters().unwrap().all();
    guard.test_run(frame, FRAMES).unwrap();
    let after = guard.counters().unwrap().all();
    assert_eq!(after.offered() - before.offered(), u64::from(FRAMES));
    let new = |outcome| after.count(outcome) - before.count(outcome);
    let shed = new(Outcome::Share) + new(Outcome::SourceShare);
    assert_eq!(new(Outcome::Admitted) + shed, u64::from(FRAMES));
    (new(Outcome::Admitted), shed)
}

/// Whether such frames get this share of a tick. A run that the machine holds up
/// lasts for more ticks than one and gets more, so it is repeated.
fn has_share(guard: &mut Guard<'_>, frame: &[u8], packets: u64) -> bool {
    (0..100).any(|_| {
        // Longer than a tick, so the next one is fresh.
        std::thread::sleep(Duration::from_millis(5));
        outcome(guard, frame).0 == packets
    })
}

#[test]
fn a_tick_admits_a_share_of_each_channel_and_all_again_afterwards() {
    with_guard(|guard| {
        let closed = from(HOST).udp(4000, 9, &[]);
        let icmp = from(HOST).icmp(8, &[0; 16]);
        guard.program.set_shares(Some((7, &BTreeMap::new())));
        assert!(has_share(guard, &closed, 7));
        assert!(
            outcome(guard, &icmp).0 >= 7,
            "another kind has its own share"
        );
        guard.program.set_shares(None);
        assert_eq!(outcome(guard, &icmp), (u64::from(FRAMES), 0));
    });
}

/// All of a tick's packets once passed at its beginning, faster than the host works on them:
/// the receive ring overflowed, and everybody's packets were lost there.
#[test]
fn what_no_queue_bounds_gets_its_share_in_parts_of_the_tick() {
    const SHARE: u32 = 800;
    with_guard(|guard| {
        let frame = from(HOST).udp(4000, 9, &[]);
        guard.program.set_shares(Some((SHARE, &BTreeMap::new())));
        // The facility takes longer than a tick, so each run is in a fresh one.
        let mut run = |frames| {
            let before = guard.counters().unwrap().all().count(Outcome::Admitted);
            guard.program.beat();
            guard.test_run(&frame, frames).unwrap();
            guard.counters().unwrap().all().count(Outcome::Admitted) - before
        };
        // Not refused lately, it has all at once; from the first refusal on it is a flood.
        assert!(run(8 * SHARE) >= u64::from(SHARE));
        // At the beginning of a tick an eighth is due, with some ahead and a quarter more for
        // those in profile; at its end all.
        let first = SHARE / 8 + BUDGET_AHEAD + SHARE / 4;
        let (mut least, mut most) = (u64::MAX, 0);
        for _ in 0..300 {
            let admitted = run(SHARE);
            (least, most) = (least.min(admitted), most.max(admitted));
            if least <= u64::from(first) && most >= u64::from(SHARE) {
                return;
            }
        }
        panic!("from {least} to {most} were admitted; due are {first} and {SHARE}");
    });
}

#[test]
fn ports_without_a_socket_here_get_everything_unless_the_stack_says_that_they_are_closed() {
    with_guard(|guard| {
        let udp = from(HOST).udp(4000, 9, &[]);
        let syn = from(HOST).tcp(4000, 9, TcpFlags::SYN, &[]);
        for frame in [udp, syn] {
            guard.program.set_shares(None);
            assert_eq!(outcome(guard, &frame), (u64::from(FRAMES), 0));
            guard.program.set_shares(Some((90, &BTreeMap::new())));
            assert!(has_share(guard, &frame, 90));
            guard.program.set_shares(Some((7, &BTreeMap::new())));
            assert!(has_share(guard, &frame, 7));
        }
    });
}

/// It has everything for closed ports while nothing is shed, and no more than that.
#[test]
fn shares_hold_beside_a_program_that_reads_packets() {
    with_guard(|guard| {
        let (kind, flags) = (SockType::Raw, SockFlag::SOCK_CLOEXEC);
        let _reader = socket(AddressFamily::Packet, kind, flags, SockProtocol::EthIp).unwrap();
        guard.refresh().unwrap();
        assert_eq!(guard.program.settings().readers, 1, "it is seen");
        guard.program.set_shares(Some((7, &BTreeMap::new())));
        assert!(has_share(guard, &from(HOST).udp(4000, 9, &[]), 7));
    });
}

/// More than `HEARTBEAT_TICKS`.
pub(super) const SILENCE: Duration = Duration::from_millis(2300);

#[test]
fn shares_and_limits_end_when_the_loader_is_silent_and_come_back_with_it() {
    with_guard(|guard| {
        let _server = UdpSocket::bind((HOST, 5000)).unwrap();
        let client = UdpSocket::bind((HOST, 0)).unwrap();
        for _ in 0..20 {
            client.send_to(&[0; 64], (HOST, 5000)).unwrap();
        }
        let limited = from(HOST).udp(4000, 5000, &[]);
        let shed = from(HOST).icmp(8, &[0; 16]);
        guard.test_run(&limited, 1).unwrap();
        let (slot, queue) = guard.program.queues().next().unwrap();
        guard.program.set_limit(slot, queue.occupancy / 2);
        guard.program.set_delay_targets(true);
        guard.program.set_shares(Some((7, &BTreeMap::new())));
        for _ in 0..2 {
            assert!(has_share(guard, &shed, 7));
            assert!(!guard.test_run(&limited, 1).unwrap().0);
            std::thread::sleep(SILENCE);
            let frames = u64::from(FRAMES);
            assert_eq!(judge(guard, &shed), (frames, 0));
            assert!(guard.test_run(&limited, 1).unwrap().0);
        }
    });
}

/// A frame of each kind that no socket bounds and nobody protects.
fn unbounded() -> Vec<(Kind, Vec<u8>)> {
    let host = from(HOST);
    let later = Fragment {
        id: 1,
        offset: 32,
        more: false,
    };
    let to = |address: [u8; 4]| Packet::new(HOST.into(), Ipv4Addr::from(address).into());
    vec![
        (Kind::Multicast, to([239, 1, 1, 1]).udp(4000, 5000, &[])),
        (
            Kind::Fragment,
            host.clone().fragment(later).udp(4000, 9, &[]),
        ),
        (Kind::Icmp, host.icmp(8, &[0; 16])),
        (Kind::Forward, to([203, 0, 113, 9]).udp(4000, 9, &[])),
        (Kind::ClosedPort, host.udp(4000, 9, &[])),
        (Kind::Other, host.protocol(132, &[0; 16])),
        (Kind::Malformed, host.protocol(6, &[0; 4])),
    ]
}

#[test]
fn each_kind_without_a_socket_has_one_share_of_its_own() {
    with_guard(|guard| {
        guard.program.set_shares(Some((6, &BTreeMap::new())));
        for (kind, frame) in unbounded() {
            assert!(has_share(guard, &frame, 6), "{kind}");
            let offered = guard.counters().unwrap().of(kind).offered();
            assert_eq!(demand(guard, slot_of(kind)), offered, "{kind}");
        }
        // All groups are one channel.
        let group = Packet::new(HOST.into(), Ipv4Addr::new(239, 1, 1, 2).into());
        outcome(guard, &group.udp(4000, 6000, &[]));
        let offered = guard.counters().unwrap().of(Kind::Multicast).offered();
        assert_eq!(demand(guard, slot_of(Kind::Multicast)), offered);
    });
}

/// Whatever looks like protected traffic, hosts still find each other.
#[test]
fn address_resolution_has_a_cap_of_its_own() {
    with_guard(|guard| {
        let slots = BTreeMap::from([(SLOT_PROTECTED, 1)]);
        guard.program.set_shares(Some((1, &slots)));
        let arp = frame::arp(HOST, HOST, 0);
        let ssh = from(HOST).tcp(4000, 22, TcpFlags::SYN, &[]);
        for _ in 0..10 {
            outcome(guard, &ssh);
            assert!(outcome(guard, &arp).0 >= NEIGHBOUR_PACKETS);
        }
        assert!(has_share(guard, &arp, NEIGHBOUR_PACKETS));
    });
}

/// A flood that looks like one kind of protected traffic leaves the others theirs.
#[test]
fn reasons_of_protection_do_not_starve_each_other() {
    with_guard(|guard| {
        let protection = Protection {
            sources: vec!["203.0.113.0/24".parse().unwrap()],
            ..Protection::default()
        };
        guard.protect(&protection).unwrap();
        let slots = BTreeMap::from([(SLOT_PROTECTED, 40)]);
        guard.program.set_shares(Some((1, &slots)));
        let ssh = from(HOST).tcp(4000, 22, TcpFlags::SYN, &[]);
        let friend = from(Ipv4Addr::new(203, 0, 113, 5)).udp(4000, 9, &[]);
        for _ in 0..20 {
            outcome(guard, &ssh);
            assert!(outcome(guard, &friend).0 >= 10, "a quarter of the share");
        }
        assert!(has_share(guard, &ssh, 40), "and all of it when alone");
    });
}

#[test]
fn one_connection_does_not_starve_the_others() {
    with_guard(|guard| {
        let _listener = TcpListener::bind((HOST, 80)).unwrap();
        let frames = [connect(80), connect(80)];
        let slots = BTreeMap::from([(SLOT_PROTECTED, 40)]);
        guard.program.set_shares(Some((1, &slots)));
        assert!(has_share(guard, &frames[0].1, 11), "a quarter and one");
        for _ in 0..20 {
            outcome(guard, &frames[0].1);
            // In a new tick, the first one's are spent anew.
            assert!(outcome(guard, &frames[1].1).0 >= 7);
        }
    });
}

/// Has the listener's connections stay requests until their client sends data.
pub(super) fn defer_accept(listener: &TcpListener) {
    use std::os::fd::AsRawFd;
    let seconds: libc::c_int = 60;
    // SAFETY: the value lives through the call, and its size is given.
    let answer = unsafe {
        libc::setsockopt(
            listener.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_DEFER_ACCEPT,
            (&raw const seconds).cast(),
            u32::try_from(size_of_val(&seconds)).unwrap(),
        )
    };
    assert_eq!(answer, 0);
}

/// One forged SYN makes a request, and a connection that ended leaves a socket behind:
/// neither is a peer that has shown who it is.
#[test]
fn what_is_not_established_is_not_protected_as_a_connection() {
    with_guard(|guard| {
        let listener = TcpListener::bind((HOST, 80)).unwrap();
        defer_accept(&listener);
        let client = TcpStream::connect((HOST, 80)).unwrap();
        let half_open = from(HOST).tcp(client.local_addr().unwrap().port(), 80, TcpFlags::ACK, &[]);
        let other = TcpListener::bind((HOST, 81)).unwrap();
        let peer = TcpStream::connect((HOST, 81)).unwrap();
        let port = peer.local_addr().unwrap().port();
        // Who closes first waits.
        drop(other.accept().unwrap());
        drop(peer);
        let waiting = from(HOST).tcp(port, 81, TcpFlags::ACK, &[]);
        let slots = BTreeMap::from([(SLOT_PROTECTED, 40)]);
        guard.program.set_shares(Some((1, &slots)));
        for frame in [half_open, waiting] {
            let before = guard.counters().unwrap().of(Kind::TcpConnection).offered();
            assert!(has_share(guard, &frame, 1));
            let after = guard.counters().unwrap().of(Kind::TcpConnection).offered();
            assert!(after > before, "the look-up finds it");
        }
        assert_eq!(of_established(guard), 0, "they may be a reason to shed");
    });
}

#[test]
fn a_slot_with_an_allowance_of_its_own_goes_by_it() {
    with_guard(|guard| {
        let _server = UdpSocket::bind((HOST, 5000)).unwrap();
        let frame = from(HOST).udp(4000, 5000, &[]);
        guard.test_run(&frame, 1).unwrap();
        let slot = guard.program.sockets()[0].slot;
        let slots = BTreeMap::from([(slot, 30)]);
        guard.program.set_shares(Some((2, &slots)));
        let before = guard.counters().unwrap().of(Kind::UdpSocket).offered();
        assert!(has_share(guard, &frame, 30));
        assert!(has_share(guard, &from(HOST).udp(4000, 9, &[]), 2));
        let after = guard.counters().unwrap().of(Kind::UdpSocket).offered();
        assert_eq!(demand(guard, slot), after - before);
    });
}

#[test]
fn protected_traffic_goes_by_the_protected_share() {
    with_guard(|guard| {
        let friend = Ipv4Addr::new(203, 0, 113, 5);
        let protection = Protection {
            sources: vec!["203.0.113.0/24".parse().unwrap()],
            ..Protection::default()
        };
        guard.protect(&protection).unwrap();
        let slots = BTreeMap::from([(SLOT_PROTECTED, 40)]);
        guard.program.set_shares(Some((1, &slots)));
        let ssh = from(HOST).tcp(4000, 22, TcpFlags::SYN, &[]);
        let http = from(HOST).tcp(4000, 80, TcpFlags::SYN, &[]);
        let udp_22 = from(HOST).udp(4000, 22, &[]);
        let from_friend = from(friend).udp(4000, 9, &[]);
        assert!(has_share(guard, &ssh, 40));
        assert!(has_share(guard, &http, 1));
        assert!(has_share(guard, &udp_22, 1), "TCP's port 22");
        assert!(has_share(guard, &from_friend, 40));

        guard
            .protect(&Protection {
                ports: vec![ProtectedPort::udp(22)],
                sources: vec!["::/0".parse().unwrap()],
                ..Protection::default()
            })
            .unwrap();
        assert!(has_share(guard, &ssh, 1), "no longer protected");
        assert!(has_share(guard, &from_friend, 1), "no host of IPv6");
        assert!(has_share(guard, &udp_22, 40));
    });
}

#[test]
fn established_connections_are_protected_if_wanted() {
    with_guard(|guard| {
        let _listener = TcpListener::bind((HOST, 80)).unwrap();
        let (_client, frame) = connect(80);
        let slots = BTreeMap::from([(SLOT_PROTECTED, 40)]);
        guard.program.set_shares(Some((1, &slots)));
        assert!(has_share(guard, &frame, 11), "one connection's part");
        let protection = Protection {
            connections: false,
            ..Protection::default()
        };
        guard.protect(&protection).unwrap();
        assert!(has_share(guard, &frame, 1));
        let offered = guard.counters().unwrap().of(Kind::TcpConnection).offered();
        assert_eq!(guard.counters().unwrap().all().offered(), offered);
        assert_eq!(of_established(guard), offered);
    });
}

/// Packets of established connections so far.
fn of_established(guard: &Guard) -> u64 {
    let by_cpu = guard.program.totals_by_cpu().unwrap();
    by_cpu.iter().map(|totals| totals.established).sum()
}

/// What the stack would throw away, and nobody sheds for, was taken off what is admitted. So
/// whoever knew a connection's ports could prevent shedding, or end it.
#[test]
fn segments_that_a_connection_does_not_take_are_no_reason_not_to_shed() {
    with_guard(|guard| {
        let _listener = TcpListener::bind((HOST, 80)).unwrap();
        let (client, _) = connect(80);
        let port = client.local_addr().unwrap().port();
        let far = from(HOST)
            .numbers(0, 0)
            .tcp(port, 80, TcpFlags::ACK, &[0; 16]);
        let opposite = from(HOST).numbers(1 << 31, 0);
        let opposite = opposite.tcp(port, 80, TcpFlags::ACK, &[0; 16]);
        // One of the two is far from the window, wherever that is.
        for frame in [far, opposite] {
            guard.test_run(&frame, FRAMES).unwrap();
        }
        let connections = *guard.counters().unwrap().of(Kind::TcpConnection);
        assert!(
            connections.count(Outcome::SocketQueue) > 0,
            "{connections:?}"
        );
        let admitted = connections.count(Outcome::Admitted);
        assert_eq!(
            of_established(guard),
            admitted,
            "of {}",
            connections.offered()
        );
    });
}

#[test]
fn a_protected_owner_s_socket_is_protected() {
    with_guard(|guard| {
        let _server = UdpSocket::bind((HOST, 5000)).unwrap();
        let frame = from(HOST).udp(4000, 5000, &[]);
        guard.test_run(&frame, 1).unwrap();
        protect(guard, |port| port == 5000);
        let slots = BTreeMap::from([(SLOT_PROTECTED, 40)]);
        guard.program.set_shares(Some((1, &slots)));
        assert!(has_share(guard, &frame, 40));
        protect(guard, |_| false);
        assert!(has_share(guard, &frame, 1));
    });
}

#[test]
fn a_delay_target_s_limit_discards_below_the_watermark() {
    with_guard(|guard| {
        let server = UdpSocket::bind((HOST, 5000)).unwrap();
        let frame = from(HOST).udp(4000, 5000, &[]);
        let client = UdpSocket::bind((HOST, 0)).unwrap();
        for _ in 0..20 {
            client.send_to(&[0; 64], (HOST, 5000)).unwrap();
        }
        assert!(guard.test_run(&frame, 1).unwrap().0, "far from full");
        let queues: Vec<_> = guard.program.queues().collect();
        assert_eq!(queues.len(), 1);
        let (slot, queue) = queues[0];
        assert_eq!(queue.queued, 20);
        guard.program.set_limit(slot, queue.occupancy / 2);
        guard.program.set_delay_targets(true);
        std::thread::sleep(Duration::from_millis(20));
        assert!(
            !guard.test_run(&frame, 1).unwrap().0,
            "its queue is too long"
        );
        for _ in 0..20 {
            server.recv(&mut [0; 64]).unwrap();
        }
        std::thread::sleep(Duration::from_millis(20));
        assert!(guard.test_run(&frame, 1).unwrap().0, "short again");
    });
}
