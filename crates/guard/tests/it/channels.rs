//! Channels for everything: each kind of traffic is counted under its own name,
//! fragments follow their first in whatever order they come, and what is known of
//! a socket is not believed for long. Needs root.

use std::net::{Ipv4Addr, Ipv6Addr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsRawFd, OwnedFd};

use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockType, SockaddrIn, bind, listen, setsockopt, socket,
    sockopt,
};
use plimsoll_guard::{Config, Counters, Guard, Kind, Outcome, Storage};
use plimsoll_packets::frame::{self, Fragment, Packet, TcpFlags};

use crate::common::steering::steer;
use crate::common::{
    BROADCAST_V4, HOST_V4, HOST_V6, PEER_V4, PEER_V6, admits, fill, in_namespace, let_a_tick_pass,
    to_host, udp_socket,
};

const PORT: u16 = 5000;
const FULL_PORT: u16 = 5001;
const CLOSED_PORT: u16 = 9;
const PEER_PORT: u16 = 4000;

fn with_guard(test: impl FnOnce(&mut Guard<'_>) + Send) {
    in_namespace(|| {
        let mut storage = Storage::default();
        test(&mut Guard::load(&mut storage, &Config::default()).unwrap());
    });
}

/// Frames of every kind but those of sockets.
fn frames_without_a_socket() -> Vec<(Kind, Vec<u8>)> {
    let (v4, v6) = (to_host(HOST_V4), to_host(HOST_V6));
    let group = |address| Packet::new(PEER_V4.into(), Ipv4Addr::from(address).into());
    let group_v6 = Packet::new(
        PEER_V6.into(),
        "ff02::fb".parse::<Ipv6Addr>().unwrap().into(),
    );
    let stranger = Packet::new(PEER_V4.into(), Ipv4Addr::new(203, 0, 113, 1).into());
    let stranger_v6 = Packet::new(
        PEER_V6.into(),
        "2001:db8::1".parse::<Ipv6Addr>().unwrap().into(),
    );
    let later = Fragment {
        id: 99,
        offset: 64,
        more: false,
    };
    vec![
        (Kind::Multicast, group([239, 1, 1, 1]).udp(1, 5353, &[])),
        (Kind::Multicast, group([239, 1, 1, 2]).udp(1, 5354, &[])),
        (
            Kind::Multicast,
            group(BROADCAST_V4.octets()).udp(1, 67, &[]),
        ),
        (Kind::Multicast, group_v6.udp(1, 5353, &[])),
        (Kind::Fragment, v4.clone().fragment(later).udp(1, 2, &[])),
        (Kind::Fragment, v6.clone().fragment(later).udp(1, 2, &[])),
        (Kind::Icmp, v4.icmp(8, &[0; 8])),
        (Kind::Icmp, v6.icmp(128, &[0; 8])),
        (Kind::Neighbour, frame::arp(PEER_V4, HOST_V4, 0)),
        (Kind::Neighbour, v6.icmp(133, &[0; 20])),
        (Kind::Neighbour, v6.icmp(135, &[0; 20])),
        (Kind::Neighbour, v6.icmp(136, &[0; 20])),
        (Kind::Forward, stranger.udp(1, PORT, &[])),
        (Kind::Forward, stranger_v6.tcp(1, 80, TcpFlags::SYN, &[])),
        (Kind::ClosedPort, v4.udp(1, CLOSED_PORT, &[])),
        (Kind::ClosedPort, v6.tcp(1, CLOSED_PORT, TcpFlags::SYN, &[])),
        (Kind::Other, v4.protocol(132, &[0; 12])),
        (Kind::Other, frame::ethertype(&[], 0x88b5, &[0; 46])),
        (Kind::Malformed, v4.protocol(17, &[0; 7])),
        (Kind::Malformed, v6.protocol(6, &[0; 19])),
    ]
}

#[test]
fn every_kind_is_counted_under_its_own_name_and_all_add_up() {
    with_guard(|guard| {
        let _server = udp_socket((HOST_V4, PORT), 64 << 10);
        let _listener = TcpListener::bind((HOST_V4, 80)).unwrap();
        let client = TcpStream::connect((HOST_V4, 80)).unwrap();
        let established = Packet::new(HOST_V4.into(), HOST_V4.into());
        let client_port = client.local_addr().unwrap().port();
        let host = to_host(HOST_V4);
        let mut frames = frames_without_a_socket();
        frames.extend([
            (Kind::UdpSocket, host.udp(1, PORT, &[])),
            (Kind::TcpListener, host.tcp(1, 80, TcpFlags::SYN, &[])),
            (
                Kind::TcpConnection,
                established.tcp(client_port, 80, TcpFlags::ACK, &[]),
            ),
        ]);
        let mut expected = [0; Kind::ALL.len()];
        for (times, (kind, frame)) in (1..).zip(&frames) {
            guard.test_run(frame, times).unwrap();
            expected[*kind as usize] += u64::from(times);
        }
        assert!(expected.iter().all(|packets| *packets > 0), "every kind");
        let counters = guard.counters().unwrap();
        let offered = Kind::ALL.map(|kind| counters.of(kind).offered());
        assert_eq!(offered, expected);
        assert_eq!(
            counters.all().count(Outcome::Admitted),
            expected.iter().sum::<u64>()
        );
        let of_sockets = counters
            .channels
            .iter()
            .map(|channel| channel.packets.offered());
        let sockets = expected[Kind::UdpSocket as usize] + expected[Kind::TcpListener as usize];
        assert_eq!(of_sockets.sum::<u64>(), sockets);
    });
}

/// All orders of four things.
fn orders() -> Vec<[usize; 4]> {
    let all = (0..256).map(|n| [n & 3, n >> 2 & 3, n >> 4 & 3, n >> 6]);
    let has_each = |order: &[usize; 4]| (0..4).all(|i| order.contains(&i));
    all.filter(has_each).collect()
}

/// What a datagram's fragments must be counted as, one after another.
#[derive(Default)]
struct Expected {
    unknown: u64,
    admitted: u64,
    discarded: u64,
}

impl Expected {
    fn assert(&self, counters: &Counters) {
        let udp = counters.of(Kind::UdpSocket);
        let counted = (
            counters.of(Kind::Fragment).count(Outcome::Admitted),
            udp.count(Outcome::Admitted),
            // By a full queue, or by the source's share of it.
            udp.discarded(),
        );
        assert_eq!(counted, (self.unknown, self.admitted, self.discarded));
        let sum = self.unknown + self.admitted + self.discarded;
        assert_eq!(counters.all().offered(), sum);
    }
}

#[test]
fn fragments_follow_the_first_in_whatever_order_they_come() {
    with_guard(|guard| {
        let _v4 = udp_socket((HOST_V4, PORT), 64 << 10);
        let _v6 = udp_socket((HOST_V6, PORT), 64 << 10);
        let _full_v4 = udp_socket((HOST_V4, FULL_PORT), 64 << 10);
        let _full_v6 = udp_socket((HOST_V6, FULL_PORT), 64 << 10);
        fill(
            &UdpSocket::bind((HOST_V4, 0)).unwrap(),
            (HOST_V4, FULL_PORT),
        );
        fill(
            &UdpSocket::bind((HOST_V6, 0)).unwrap(),
            (HOST_V6, FULL_PORT),
        );

        // The first, the second, one that overlaps it, and the last.
        let pieces = [(0, true), (32, true), (40, true), (72, false)];
        let orders = orders();
        assert_eq!(orders.len(), 24);
        let mut expected = Expected::default();
        let mut id = 0;
        for host in [to_host(HOST_V4), to_host(HOST_V6)] {
            for (port, is_full) in [(PORT, false), (FULL_PORT, true)] {
                for order in &orders {
                    id += 1;
                    let mut knows_first = false;
                    // And once more: duplicates.
                    for index in order.iter().chain(order) {
                        let (offset, more) = pieces[*index];
                        let fragment = Fragment { id, offset, more };
                        let piece = host.clone().fragment(fragment);
                        let admitted = admits(guard, &piece.udp(PEER_PORT, port, &[0; 24]));
                        knows_first |= offset == 0;
                        assert_eq!(admitted, !(knows_first && is_full), "{order:?}");
                        match (knows_first, is_full) {
                            (false, _) => expected.unknown += 1,
                            (true, false) => expected.admitted += 1,
                            (true, true) => expected.discarded += 1,
                        }
                    }
                }
            }
        }
        expected.assert(&guard.counters().unwrap());
    });
}

#[test]
fn a_fragment_of_another_datagram_does_not_follow() {
    with_guard(|guard| {
        let _full = udp_socket((HOST_V4, FULL_PORT), 64 << 10);
        fill(
            &UdpSocket::bind((HOST_V4, 0)).unwrap(),
            (HOST_V4, FULL_PORT),
        );
        let piece = |source: Ipv4Addr, id, offset| {
            let fragment = Fragment {
                id,
                offset,
                more: offset == 0,
            };
            Packet::new(source.into(), HOST_V4.into()).fragment(fragment)
        };
        let udp = |packet: Packet| packet.udp(PEER_PORT, FULL_PORT, &[0; 24]);
        assert!(!admits(guard, &udp(piece(PEER_V4, 7, 0))));
        let stranger = Ipv4Addr::new(198, 18, 0, 78);
        assert!(admits(guard, &udp(piece(stranger, 7, 32))), "its source");
        assert!(admits(guard, &udp(piece(PEER_V4, 8, 32))), "its id");
        let icmp = piece(PEER_V4, 7, 32).icmp(8, &[0; 24]);
        assert!(admits(guard, &icmp), "its protocol");
        assert!(!admits(guard, &udp(piece(PEER_V4, 7, 32))));
        let counters = guard.counters().unwrap();
        assert_eq!(counters.of(Kind::Fragment).offered(), 3);
        assert_eq!(counters.of(Kind::UdpSocket).discarded(), 2);
    });
}

/// A socket that the destination alone told no longer takes strangers' packets
/// once it is connected, as if it had closed.
#[test]
fn a_socket_that_is_no_longer_the_one_is_believed_in_for_at_most_32_packets() {
    with_guard(|guard| {
        for is_full in [true, false] {
            let server = udp_socket((HOST_V4, PORT), 64 << 10);
            if is_full {
                fill(&UdpSocket::bind((HOST_V4, 0)).unwrap(), (HOST_V4, PORT));
            }
            let frame = to_host(HOST_V4).udp(PEER_PORT, PORT, &[]);
            assert_eq!(admits(guard, &frame), !is_full);
            let before = guard.counters().unwrap();
            server.connect((Ipv4Addr::new(198, 18, 0, 77), 53)).unwrap();
            guard.test_run(&frame, 100).unwrap();
            let after = guard.counters().unwrap();
            let new = |kind| after.of(kind).offered() - before.of(kind).offered();
            assert!(new(Kind::UdpSocket) <= 32, "{}", new(Kind::UdpSocket));
            assert_eq!(new(Kind::UdpSocket) + new(Kind::ClosedPort), 100);
            drop(server);
            let_a_tick_pass();
        }
    });
}

/// A member of a reuseport group.
fn member(kind: SockType, port: u16) -> OwnedFd {
    let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
    let socket = socket(AddressFamily::Inet, kind, flags, None).unwrap();
    setsockopt(&socket, sockopt::ReusePort, &true).unwrap();
    let address = SockaddrIn::from(std::net::SocketAddrV4::new(HOST_V4, port));
    bind(socket.as_raw_fd(), &address).unwrap();
    socket
}

/// Has a program choose this member of the group for every packet.
#[allow(unsafe_code, reason = "nix does not know this socket option")]
fn select(socket: &OwnedFd, member: u32) {
    const BPF_RET_K: u16 = 0x06;
    let mut filter = libc::sock_filter {
        code: BPF_RET_K,
        jt: 0,
        jf: 0,
        k: member,
    };
    let program = libc::sock_fprog {
        len: 1,
        filter: &raw mut filter,
    };
    // SAFETY: the descriptor is open; program and filter outlive the call, which
    // copies them.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_ATTACH_REUSEPORT_CBPF,
            (&raw const program).cast(),
            libc::socklen_t::try_from(size_of_val(&program)).unwrap(),
        )
    };
    assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
}

/// The look-up from XDP goes by the hash, so it may find the full member where the
/// program chooses the empty one.
#[test]
fn a_group_whose_members_a_program_selects_is_left_alone() {
    with_guard(|guard| {
        let members = [(); 2].map(|()| member(SockType::Datagram, PORT));
        select(&members[0], 0);
        fill(&UdpSocket::bind((HOST_V4, 0)).unwrap(), (HOST_V4, PORT));
        select(&members[0], 1);
        for source_port in 0..64 {
            let frame = to_host(HOST_V4).udp(PEER_PORT + source_port, PORT, &[]);
            assert!(admits(guard, &frame), "{source_port}");
        }
        let counters = guard.counters().unwrap();
        assert_eq!(counters.channels.len(), 1);
        assert_eq!(counters.channels[0].packets.count(Outcome::Admitted), 64);
        assert_eq!(counters.of(Kind::UdpSocket), &counters.channels[0].packets);
    });
}

/// Up to 32 packets in a tick were judged by the socket that the packet before was for.
#[test]
fn a_socket_that_a_program_chooses_by_the_source_gets_its_packets() {
    with_guard(|guard| {
        let _full = udp_socket((HOST_V4, PORT), 64 << 10);
        fill(&UdpSocket::bind((HOST_V4, 0)).unwrap(), (HOST_V4, PORT));
        let chosen = udp_socket((HOST_V4, FULL_PORT), 64 << 10);
        let [stranger, client] = [0, 1].map(|n| to_host(HOST_V4).udp(PEER_PORT + n, PORT, &[]));
        // This source has had its share.
        guard.test_run(&stranger, 10_000).unwrap();
        let _steering = steer(PEER_PORT + 1, &chosen);
        for packet in 0..100 {
            assert!(!admits(guard, &stranger), "{packet}");
            assert!(admits(guard, &client), "{packet}");
        }
    });
}

#[test]
fn listeners_of_a_group_with_a_program_are_left_alone() {
    with_guard(|guard| {
        let members = [(); 2].map(|()| member(SockType::Stream, 80));
        for member in &members {
            listen(member, Backlog::new(1).unwrap()).unwrap();
        }
        select(&members[0], 0);
        let _clients = [(); 2].map(|()| TcpStream::connect((HOST_V4, 80)).unwrap());
        select(&members[0], 1);
        for source_port in 0..64 {
            let syn = to_host(HOST_V4).tcp(PEER_PORT + source_port, 80, TcpFlags::SYN, &[]);
            assert!(admits(guard, &syn), "{source_port}");
        }
        let counters = guard.counters().unwrap();
        assert_eq!(counters.of(Kind::TcpListener).count(Outcome::Admitted), 64);
    });
}

/// All members full: no packet needs a look-up. As soon as one has room, those for
/// it are admitted again.
#[test]
fn a_full_group_is_discarded_and_a_member_with_room_gets_its_packets() {
    with_guard(|guard| {
        let members = [(); 2].map(|()| UdpSocket::from(member(SockType::Datagram, PORT)));
        let frames: Vec<_> = (0..64)
            .map(|source| to_host(HOST_V4).udp(PEER_PORT + source, PORT, &[]))
            .collect();
        for source in 0..16 {
            let source = UdpSocket::bind((HOST_V4, 20_000 + source)).unwrap();
            fill(&source, (HOST_V4, PORT));
        }
        let admitted = |guard: &mut Guard<'_>| {
            let_a_tick_pass();
            frames.iter().filter(|frame| admits(guard, frame)).count()
        };
        assert_eq!(admitted(guard), 0);
        while members[0].recv(&mut [0; 64]).is_ok() {}
        let of_one = admitted(guard);
        assert!((10..54).contains(&of_one), "about half: {of_one}");
        while members[1].recv(&mut [0; 64]).is_ok() {}
        assert_eq!(admitted(guard), 64);
    });
}

/// A socket that may share its port is remembered while it is alone there. A
/// connected one that joins it gets its own packets at once.
#[test]
fn a_connected_socket_beside_a_full_one_gets_its_packets() {
    with_guard(|guard| {
        let server = UdpSocket::from(member(SockType::Datagram, PORT));
        fill(&UdpSocket::bind((HOST_V4, 0)).unwrap(), (HOST_V4, PORT));
        let stranger = to_host(HOST_V4).udp(PEER_PORT, PORT, &[]);
        let client = to_host(HOST_V4).udp(PEER_PORT + 1, PORT, &[]);
        assert!(!admits(guard, &stranger));
        assert!(!admits(guard, &client));
        let connected = UdpSocket::from(member(SockType::Datagram, PORT));
        connected.connect((PEER_V4, PEER_PORT + 1)).unwrap();
        let_a_tick_pass();
        for _ in 0..100 {
            assert!(!admits(guard, &stranger));
            assert!(admits(guard, &client));
        }
        drop(server);
    });
}
