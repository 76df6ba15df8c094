//! The program's maps at their limits: what happens there is as documented, and
//! the sums stay exact. Needs root.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddrV4, UdpSocket};
use std::os::fd::AsRawFd;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use nix::sched::{CpuSet, sched_setaffinity};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, SockaddrIn, bind, getsockopt, setsockopt, socket, sockopt,
};
use nix::unistd::Pid;
use plimsoll_core::config::Fraction;
use plimsoll_packets::frame::Fragment;

use super::test_host::{
    HOST, KERNEL_TICK, demand, from, protect, slot_of, with_guard, with_guard_for,
};
use super::*;
use crate::guard::Owned;
use crate::{Config, Error, Guard, Outcome};

const FRAGMENTS_MAX: u32 = types::limit::FRAGMENTS_MAX.0;
const SOCKET_SLOTS: u32 = types::limit::CHANNELS_MAX.0 - SLOT_SOCKETS;
const FIRST_PORT: u16 = 10_000;
/// More than there are slots.
const SOCKETS: u16 = 16_500;
/// More than half of all slots: idle ones are given back. (Each takes as long to
/// bind as there are others at its address.)
const SHARING: u16 = 9_000;

/// Of a receive buffer, for 64 bytes of data.
const DATAGRAM_BYTES: usize = 768;

/// Two crowds at once are more descriptors than a process may have by default.
static CROWD: Mutex<()> = Mutex::new(());

fn allow_many_sockets() {
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, most, most).unwrap();
}

/// Sockets at consecutive ports, each of which got one packet.
fn crowd(guard: &mut Guard<'_>) -> Vec<UdpSocket> {
    allow_many_sockets();
    let ports = FIRST_PORT..FIRST_PORT + SOCKETS;
    ports
        .map(|port| {
            let socket = UdpSocket::bind((HOST, port)).unwrap();
            offer(guard, port);
            socket
        })
        .collect()
}

/// Whether a packet to this port is admitted.
fn offer(guard: &mut Guard<'_>, port: u16) -> bool {
    guard.test_run(&from(HOST).udp(53, port, &[]), 1).unwrap().0
}

fn live(counters: &crate::Counters) -> u64 {
    let channels = counters.channels.iter();
    channels.map(|channel| channel.packets.offered()).sum()
}

#[test]
fn sockets_beyond_the_limit_of_channels_are_counted_and_judged_all_the_same() {
    with_guard(|guard| {
        let _alone = CROWD.lock().unwrap_or_else(PoisonError::into_inner);
        let sockets = crowd(guard);
        let counters = guard.counters().unwrap();
        assert_eq!(counters.channels.len(), SOCKET_SLOTS as usize);
        assert_eq!(live(&counters), u64::from(SOCKET_SLOTS));
        let total = counters.of(Kind::UdpSocket);
        assert_eq!(total.offered(), u64::from(SOCKETS));
        assert_eq!(
            counters.retired(Kind::UdpSocket).offered(),
            u64::from(SOCKETS) - u64::from(SOCKET_SLOTS)
        );

        // One without a slot: discarded while full, admitted when there is room.
        let port = FIRST_PORT + SOCKETS - 1;
        let socket = sockets.last().unwrap();
        socket.set_nonblocking(true).unwrap();
        let source = UdpSocket::bind((HOST, 0)).unwrap();
        let fill = |datagrams| {
            for _ in 0..datagrams {
                source.send_to(&[0; 64], (HOST, port)).unwrap();
            }
        };
        let bytes = getsockopt(socket, sockopt::RcvBuf).unwrap();
        fill(bytes * 8 / 10 / DATAGRAM_BYTES);
        assert!(offer(guard, port), "a fifth of its buffer is left");
        fill(2000);
        assert!(!offer(guard, port));
        while socket.recv(&mut [0; 64]).is_ok() {}
        assert!(offer(guard, port));
        let counters = guard.counters().unwrap();
        assert_eq!(counters.of(Kind::UdpSocket).count(Outcome::SocketQueue), 1);
        assert_eq!(live(&counters), u64::from(SOCKET_SLOTS));

        // While input is shed, all of them have the share of their kind.
        guard.program.beat();
        guard.program.set_shares(Some((1, &BTreeMap::new())));
        for port in [port, port - 1, port - 2].repeat(20) {
            offer(guard, port);
        }
        let slot = slot_of(Kind::UdpSocket);
        assert_eq!(demand(guard, slot), 60);
        let shed = guard.counters().unwrap().all().count(Outcome::Share);
        assert!((1..60).contains(&shed), "{shed}");
    });
}

#[test]
fn idle_sockets_make_room_for_new_ones() {
    with_guard(|guard| {
        let _alone = CROWD.lock().unwrap_or_else(PoisonError::into_inner);
        drop(crowd(guard));
        let (_, idle) = guard.program.channels(u32::MAX);
        assert_eq!(idle.len(), SOCKET_SLOTS as usize);
        guard.program.forget(&idle).unwrap();
        assert_eq!(guard.counters().unwrap().channels, []);

        let _socket = UdpSocket::bind((HOST, 5000)).unwrap();
        assert!(offer(guard, 5000));
        let counters = guard.counters().unwrap();
        assert_eq!(counters.channels.len(), 1);
        assert_eq!(counters.channels[0].packets.offered(), 1);
        // What was forgotten stays in the total.
        let total = counters.of(Kind::UdpSocket).offered();
        assert_eq!(total, u64::from(SOCKETS) + 1);
    });
}

/// A server's socket for one client, at a port that all of them share.
fn connected(port: u16, client: u16) -> UdpSocket {
    let flags = SockFlag::SOCK_CLOEXEC;
    let socket = socket(AddressFamily::Inet, SockType::Datagram, flags, None).unwrap();
    setsockopt(&socket, sockopt::ReuseAddr, &true).unwrap();
    let local = SocketAddrV4::new(HOST, port);
    bind(socket.as_raw_fd(), &SockaddrIn::from(local)).unwrap();
    let socket = UdpSocket::from(socket);
    socket.connect((HOST, client)).unwrap();
    socket
}

/// As QUIC servers have them. All are one channel, and each has a slot.
#[test]
fn slots_come_back_however_many_sockets_share_one_address() {
    with_guard(|guard| {
        let _alone = CROWD.lock().unwrap_or_else(PoisonError::into_inner);
        allow_many_sockets();
        let serve = |guard: &mut Guard<'_>, client| {
            let socket = connected(443, client);
            let frame = from(HOST).udp(client, 443, &[]);
            assert!(guard.test_run(&frame, 1).unwrap().0);
            socket
        };
        let clients = FIRST_PORT..FIRST_PORT + SHARING;
        let sockets: Vec<_> = clients.map(|client| serve(guard, client)).collect();
        let channels = guard.channels(0).unwrap();
        assert_eq!(channels.len(), 1);
        assert_eq!(guard.program.used_slots(), usize::from(SHARING));
        drop(sockets);
        guard.channels(u32::MAX).unwrap();
        assert_eq!(guard.program.used_slots(), 0);
        let _socket = UdpSocket::bind((HOST, 5000)).unwrap();
        assert!(offer(guard, 5000));
        let channels = guard.channels(0).unwrap();
        assert_eq!(channels.len(), 1);
        assert_eq!(channels[0].port, 5000);
    });
}

fn run_on(cpu: usize) {
    let mut cpus = CpuSet::new();
    cpus.set(cpu).unwrap();
    sched_setaffinity(Pid::from_raw(0), &cpus).expect("this test takes two CPUs, 0 and 1");
}

/// The kernel reuses the memory of closed sockets. Another CPU, which has not seen
/// the new one, must not say whose the slot is, nor lend it what it was allowed.
#[test]
fn a_socket_is_never_taken_for_one_that_lived_at_its_address() {
    with_guard(|guard| {
        let reused = (0..200).any(|_| {
            let former = UdpSocket::bind((HOST, 5000)).unwrap();
            for cpu in [0, 1] {
                run_on(cpu);
                (0..3).for_each(|_| assert!(offer(guard, 5000)));
            }
            protect(guard, |port| port == 5000);
            let found = guard.program.sockets();
            let is_former = |socket: &&Seated| socket.port == 5000;
            let slot = found.iter().find(is_former).unwrap().slot;
            guard.program.set_limit(slot, 1);
            let shares = BTreeMap::from([(slot, 7)]);
            guard.program.set_shares(Some((1000, &shares)));
            drop(former);
            std::thread::sleep(Duration::from_millis(30));
            let new: Vec<_> = (6000..6064)
                .map(|port| UdpSocket::bind((HOST, port)).unwrap())
                .collect();
            for port in 6000..6064 {
                offer(guard, port);
            }
            let sockets = guard.program.sockets();
            let port = sockets.iter().find(|socket| socket.slot == slot);
            let port = port.unwrap().port;
            let is_new = port != 5000;
            if is_new {
                // Whose sockets were was found out before.
                let protected = Owned {
                    group: None,
                    is_protected: true,
                };
                guard.assign(found.into_iter().map(|socket| (socket, protected)));
                let allowance = guard.program.allowances.get(slot as usize);
                assert_eq!((allowance.protected, allowance.limit_bytes), (0, 0));
                assert_eq!(allowance.share_packets, 0);
                let channels = guard.channels(0).unwrap();
                let channel = channels.iter().find(|channel| channel.port == port);
                assert_eq!(channel.unwrap().packets.offered(), 1);
            }
            drop(new);
            guard.program.set_shares(None);
            let (_, idle) = guard.program.channels(u32::MAX);
            guard.program.forget(&idle).unwrap();
            is_new
        });
        assert!(reused, "the kernel uses memory of closed sockets again");
    });
}

#[test]
fn a_reading_costs_what_has_changed_however_many_cpus_there_may_be() {
    for cpus in [64, 256] {
        with_guard_for(cpus, |guard| {
            let ports = 6000..7000;
            let _sockets: Vec<_> = ports
                .clone()
                .map(|port| UdpSocket::bind((HOST, port)).unwrap())
                .collect();
            run_on(0);
            ports.for_each(|port| assert!(offer(guard, port)));
            assert_eq!(guard.program.read_channels(), 1000);
            // What was counted while it was read: once more.
            assert_eq!(guard.program.read_channels(), 1000);
            assert_eq!(guard.program.read_channels(), 0);
            for port in [6001, 6002, 6002] {
                offer(guard, port);
            }
            assert_eq!(guard.program.read_channels(), 2);
            let start = Instant::now();
            let read: usize = (0..100).map(|_| guard.program.read_channels()).sum();
            println!("{cpus} CPUs, nothing new: {:?}", start.elapsed() / 100);
            assert_eq!(read, 2, "once more");
            let channels = guard.channels(0).unwrap();
            let packets = channels.iter().map(|channel| channel.packets.offered());
            assert_eq!(packets.sum::<u64>(), 1003);
        });
    }
}

#[test]
fn beyond_the_limit_of_fragmented_datagrams_later_fragments_are_unknown_and_admitted() {
    with_guard(|guard| {
        let _server = UdpSocket::bind((HOST, 5000)).unwrap();
        let datagrams = 3 * FRAGMENTS_MAX;
        let piece = |id, offset| {
            let fragment = Fragment {
                id,
                offset,
                more: offset == 0,
            };
            from(HOST).fragment(fragment).udp(53, 5000, &[0; 24])
        };
        // Unknown ones take no place.
        for id in 0..datagrams {
            guard.test_run(&piece(id, 32), 1).unwrap();
        }
        let remembered = |guard: &Guard<'_>| {
            let keys = guard.program.skeleton.maps.fragments.keys();
            u32::try_from(keys.count()).unwrap()
        };
        assert_eq!(remembered(guard), 0);
        for id in 0..datagrams {
            guard.test_run(&piece(id, 0), 1).unwrap();
        }
        assert!((1..=FRAGMENTS_MAX).contains(&remembered(guard)));
        let before = guard.counters().unwrap();
        assert_eq!(before.of(Kind::Fragment).offered(), u64::from(datagrams));
        assert_eq!(before.of(Kind::UdpSocket).offered(), u64::from(datagrams));

        let known = u64::from(remembered(guard));
        for id in 0..datagrams {
            guard.test_run(&piece(id, 32), 1).unwrap();
        }
        let after = guard.counters().unwrap();
        let new = |kind| after.of(kind).offered() - before.of(kind).offered();
        assert_eq!(new(Kind::UdpSocket), known);
        assert_eq!(new(Kind::Fragment), u64::from(datagrams) - known);
        let all = after.all();
        assert_eq!(all.count(Outcome::Admitted), all.offered());
    });
}

#[test]
fn first_fragments_for_other_hosts_take_no_place() {
    with_guard(|guard| {
        let first = Fragment {
            id: 7,
            offset: 0,
            more: true,
        };
        let elsewhere = Ipv4Addr::new(203, 0, 113, 9).into();
        let packet = plimsoll_packets::frame::Packet::new(HOST.into(), elsewhere);
        let packet = packet.fragment(first);
        guard.test_run(&packet.udp(53, 5000, &[0; 24]), 1).unwrap();
        let counters = guard.counters().unwrap();
        assert_eq!(counters.of(Kind::Forward).offered(), 1);
        assert_eq!(guard.program.skeleton.maps.fragments.keys().count(), 0);
    });
}

/// A small buffer's low watermark may be no byte. An empty queue was never below it.
#[test]
fn an_empty_queue_is_below_any_low_watermark() {
    with_guard(|guard| {
        let server = UdpSocket::bind((HOST, 5000)).unwrap();
        setsockopt(&server, sockopt::RcvBufForce, &(16 << 10)).unwrap();
        let settings = Config {
            fairness: false,
            low_watermark: Fraction::from_ppm(1),
            ..Config::default()
        };
        guard.configure(&settings).unwrap();
        let source = UdpSocket::bind((HOST, 0)).unwrap();
        for _ in 0..1000 {
            source.send_to(&[0; 64], (HOST, 5000)).unwrap();
        }
        assert!(!offer(guard, 5000), "it is full");
        server.set_nonblocking(true).unwrap();
        while server.recv(&mut [0; 64]).is_ok() {}
        std::thread::sleep(KERNEL_TICK);
        assert!(offer(guard, 5000), "it is empty");
    });
}

#[test]
fn a_first_fragment_is_forgotten_when_the_stack_gives_its_datagram_up() {
    with_guard(|guard| {
        let _server = UdpSocket::bind((HOST, 5000)).unwrap();
        let piece = |offset, more| {
            let fragment = Fragment {
                id: 7,
                offset,
                more,
            };
            from(HOST).fragment(fragment).udp(53, 5000, &[0; 24])
        };
        guard.program.set_epoch(100);
        guard.test_run(&piece(0, true), 1).unwrap();
        for (epoch, known) in [(129, 2), (130, 2)] {
            guard.program.set_epoch(epoch);
            guard.test_run(&piece(32, false), 1).unwrap();
            let counters = guard.counters().unwrap();
            assert_eq!(counters.of(Kind::UdpSocket).offered(), known, "{epoch}");
        }
        assert_eq!(guard.counters().unwrap().of(Kind::Fragment).offered(), 1);
    });
}

#[test]
fn addresses_beyond_the_limit_are_admitted_as_forwarded() {
    with_guard(|guard| {
        let address = |number: u32| Ipv4Addr::from_bits(0x0a00_0000 + number);
        let many = |range: std::ops::Range<u32>| {
            let local = LocalAddress {
                class: Class::Local,
                of_interface: false,
                place: 0,
            };
            let addresses = range.map(|number| (address(number).into(), local));
            addresses.collect::<BTreeMap<IpAddr, LocalAddress>>()
        };
        let kind_of = |guard: &mut Guard<'_>, number| {
            let before = guard.counters().unwrap();
            let packet = plimsoll_packets::frame::Packet::new(HOST.into(), address(number).into());
            guard.test_run(&packet.udp(53, 9, &[]), 1).unwrap();
            let after = guard.counters().unwrap();
            assert_eq!(after.all().offered(), before.all().offered() + 1);
            let kinds = [Kind::ClosedPort, Kind::Forward];
            kinds
                .into_iter()
                .find(|kind| after.of(*kind) != before.of(*kind))
        };
        guard.program.set_local_addresses(&many(0..5000)).unwrap();
        assert_eq!(kind_of(guard, 4095), Some(Kind::ClosedPort));
        assert_eq!(kind_of(guard, 4096), Some(Kind::Forward));
        // Others than those before, without room for both.
        guard
            .program
            .set_local_addresses(&many(3000..6000))
            .unwrap();
        assert_eq!(kind_of(guard, 2999), Some(Kind::Forward));
        assert_eq!(kind_of(guard, 4096), Some(Kind::ClosedPort));
        assert_eq!(kind_of(guard, 5999), Some(Kind::ClosedPort));
    });
}

#[test]
fn more_protected_prefixes_than_fit_are_refused_and_the_old_ones_stay() {
    with_guard(|guard| {
        let prefix = |number: u32| {
            let address = Ipv6Addr::from_bits(0x2001_0db8 << 96 | u128::from(number) << 64);
            ipnet::IpNet::new(address.into(), 64).unwrap()
        };
        let protect = |count| Protection {
            sources: (0..count).map(prefix).collect(),
            ..Protection::default()
        };
        guard.protect(&protect(1024)).unwrap();
        let stored = |guard: &Guard<'_>| {
            let maps = &guard.program.skeleton.maps;
            maps.protected_prefixes.keys().count()
        };
        assert_eq!(stored(guard), 1024);
        let refused = guard.protect(&protect(1025)).unwrap_err();
        assert!(matches!(refused, Error::Config(_)), "{refused}");
        assert_eq!(
            refused.to_string(),
            "protect_sources = 1025: must be at most 1024"
        );
        assert_eq!(stored(guard), 1024);
    });
}
