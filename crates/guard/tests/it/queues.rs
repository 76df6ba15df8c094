//! Real UDP sockets, really filled and drained: discard begins at the high
//! watermark, ends at the low one, and hits only the socket that is full.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::time::Duration;

use nix::sys::socket::{getsockopt, setsockopt, sockopt};
use nix::time::ClockId;
use plimsoll_guard::{Config, Guard, Kind, Outcome, Storage};
use plimsoll_packets::frame::Packet;

use crate::common::{
    self, HOST_V4, HOST_V6, admits, channel, fill, in_namespace, let_a_tick_pass, to_host,
    udp_occupancy, udp_socket,
};

const PORT: u16 = 5000;
const PEER_PORT: u16 = 4000;

/// Without fairness, under which a source that has sent little finds room up to the
/// buffer's end.
fn watermarks_alone() -> Config {
    Config {
        fairness: false,
        ..Config::default()
    }
}

/// Sends a datagram to the server; whether its socket took it.
fn takes(client: &UdpSocket) -> bool {
    let before = udp_occupancy(PORT);
    client.send_to(&[0; 64], (HOST_V4, PORT)).unwrap();
    udp_occupancy(PORT) > before
}

/// Fills the server's queue until the socket takes no more. Returns how many it took, each
/// of which the program had admitted.
fn fill_up(guard: &mut Guard<'_>, client: &UdpSocket, frame: &[u8]) -> u64 {
    let mut taken = 0;
    loop {
        let is_admitted = admits(guard, frame);
        if !takes(client) {
            return taken;
        }
        taken += 1;
        assert!(is_admitted, "datagram {taken}, which the socket took");
    }
}

/// Since the program last discarded. It forgets that a queue was full 128 ticks of 4.2 ms later,
/// which passed now and then between two packets of a trial, beside other tests.
struct TookTooLong(Duration);

const FORGETS_AFTER: Duration = Duration::from_millis(500);

/// The program's clock. Where a CPU stood still, it leaps behind others.
fn coarse_now() -> Duration {
    let now = ClockId::CLOCK_MONOTONIC_COARSE.now();
    now.expect("every kernel has it").into()
}

/// That the program discarded, or should have if the last discard is not long ago.
fn is_discarded(guard: &mut Guard<'_>, frame: &[u8], last: Duration) -> Result<bool, TookTooLong> {
    let is_discarded = !admits(guard, frame);
    let since = coarse_now() - last;
    if !is_discarded && since > FORGETS_AFTER {
        return Err(TookTooLong(since));
    }
    Ok(is_discarded)
}

/// Takes datagrams out of a full queue until it holds fewer bytes than this, and sees that the
/// program admits none meanwhile. Returns when it last discarded.
fn drain(
    guard: &mut Guard<'_>,
    (server, frame): (&UdpSocket, &[u8]),
    bytes: u64,
    when: &str,
) -> Result<Duration, TookTooLong> {
    let mut last = coarse_now();
    while udp_occupancy(PORT) >= bytes {
        let now = coarse_now();
        let is_discarded = is_discarded(guard, frame, last)?;
        assert!(
            is_discarded,
            "{when}: {:?}",
            channel(&guard.counters().unwrap(), Kind::UdpSocket, PORT)
        );
        last = now;
        server.recv(&mut [0; 64]).unwrap();
    }
    Ok(last)
}

/// Another trial if one took too long.
fn repeated(trial: impl Fn() -> Result<(), TookTooLong>) {
    let is_judged = |number: u32| match trial() {
        Ok(()) => true,
        Err(TookTooLong(since)) => {
            eprintln!("trial {number}: {since:?} after the last discard");
            false
        }
    };
    assert!((1..=5).any(is_judged), "the machine stood still in each");
}

/// A guard, a server that nobody reads, a client of it, and a frame for it.
fn with_server<T: Send>(
    config: &Config,
    test: impl FnOnce(&mut Guard<'_>, &UdpSocket, &UdpSocket, &[u8]) -> T + Send,
) -> T {
    in_namespace(|| {
        let mut storage = Storage::default();
        let mut guard = Guard::load(&mut storage, config).unwrap();
        let server = udp_socket((HOST_V4, PORT), 256 << 10);
        let client = UdpSocket::bind((HOST_V4, 0)).unwrap();
        let frame = to_host(HOST_V4).udp(PEER_PORT, PORT, &[0; 64]);
        test(&mut guard, &server, &client, &frame)
    })
}

/// Shows LRP-18.
#[test]
fn a_queue_that_was_not_full_takes_all_that_fits() {
    for fairness in [false, true] {
        let config = Config {
            fairness,
            ..Config::default()
        };
        with_server(&config, |guard, _server, client, frame| {
            let taken = fill_up(guard, client, frame);
            assert!(taken > 50, "the buffer holds many datagrams");
            assert!(!admits(guard, frame), "it has dropped one");
        });
    }
}

/// What the consumer has taken counts against the stack's limit, up to a quarter of the
/// buffer, until much of it is given back. The stack drops then, although the queue seems to
/// have room.
#[test]
fn a_queue_is_full_when_the_socket_drops_however_much_is_in_it() {
    with_server(&watermarks_alone(), |guard, server, client, frame| {
        let capacity = getsockopt(server, sockopt::RcvBuf).unwrap() as u64;
        while udp_occupancy(PORT) < capacity * 85 / 100 {
            client.send_to(&[0; 64], (HOST_V4, PORT)).unwrap();
        }
        let mut buffer = [0; 64];
        for _ in 0..10 {
            server.recv(&mut buffer).unwrap();
        }
        fill_up(guard, client, frame);
        assert!(!admits(guard, frame), "it has dropped one");
    });
}

/// Shows LRP-18.
#[test]
fn under_overload_discard_begins_at_the_high_watermark_and_ends_at_the_low_one() {
    repeated(|| with_server(&watermarks_alone(), discards_between_watermarks));
}

fn discards_between_watermarks(
    guard: &mut Guard<'_>,
    server: &UdpSocket,
    client: &UdpSocket,
    frame: &[u8],
) -> Result<(), TookTooLong> {
    let capacity = getsockopt(server, sockopt::RcvBuf).unwrap() as u64;
    let mut sent = fill_up(guard, client, frame);

    let low = capacity * 50 / 100;
    let when = "not yet below the low watermark";
    let last = drain(guard, (server, frame), low, when)?;
    let_a_tick_pass();
    while udp_occupancy(PORT) < capacity * 70 / 100 {
        assert!(
            admits(guard, frame),
            "below the high watermark, after {sent} datagrams"
        );
        client.send_to(&[0; 64], (HOST_V4, PORT)).unwrap();
        sent += 1;
    }
    assert!(is_discarded(guard, frame, last)?, "at the high watermark");

    let counters = guard.counters().unwrap();
    let seen = channel(&counters, Kind::UdpSocket, PORT);
    assert_eq!(u64::from(seen.capacity), capacity);
    assert!(seen.packets.count(Outcome::Admitted) >= sent);
    assert!(seen.packets.count(Outcome::SocketQueue) > 10);
    assert_eq!(
        counters.of(Kind::UdpSocket),
        &seen.packets,
        "the total is the channel's"
    );
    assert_eq!(counters.all(), seen.packets, "and nothing else was counted");
    Ok(())
}

#[test]
fn a_large_queue_is_filled_again_before_its_low_watermark() {
    repeated(|| in_namespace(fills_a_large_queue_again));
}

fn fills_a_large_queue_again() -> Result<(), TookTooLong> {
    let mut storage = Storage::default();
    let mut guard = Guard::load(&mut storage, &watermarks_alone()).unwrap();
    let server = udp_socket((HOST_V4, PORT), 0);
    setsockopt(&server, sockopt::RcvBufForce, &(2 << 20)).unwrap();
    let client = UdpSocket::bind((HOST_V4, 0)).unwrap();
    let high = getsockopt(&server, sockopt::RcvBuf).unwrap() as u64 * 70 / 100;
    let frame = to_host(HOST_V4).udp(PEER_PORT, PORT, &[0; 64]);
    fill_up(&mut guard, &client, &frame);
    let drained = (&server, &frame[..]);
    drain(&mut guard, drained, high, "at the high watermark")?;
    // The program's watermarks are in 1/1024: 4 KiB of this buffer.
    let little = high - (58 << 10);
    drain(&mut guard, drained, little, "drained by less than 64 KiB")?;
    while udp_occupancy(PORT) >= high - (70 << 10) {
        server.recv(&mut [0; 64]).unwrap();
    }
    let_a_tick_pass();
    assert!(
        admits(&mut guard, &frame),
        "drained by 64 KiB of more than a MiB"
    );
    Ok(())
}

/// Shows MR-80, LRP-08, LRP-56.
#[test]
fn a_full_socket_does_not_harm_its_neighbours() {
    in_namespace(|| {
        let mut storage = Storage::default();
        let mut guard = Guard::load(&mut storage, &Config::default()).unwrap();
        let _full = udp_socket((HOST_V4, PORT), 64 << 10);
        let _empty = udp_socket((HOST_V4, PORT + 1), 64 << 10);
        fill(&UdpSocket::bind((HOST_V4, 0)).unwrap(), (HOST_V4, PORT));

        assert!(!admits(
            &mut guard,
            &to_host(HOST_V4).udp(PEER_PORT, PORT, &[])
        ));
        assert!(admits(
            &mut guard,
            &to_host(HOST_V4).udp(PEER_PORT, PORT + 1, &[])
        ));
        assert!(
            admits(&mut guard, &to_host(HOST_V4).udp(PEER_PORT, PORT + 2, &[])),
            "a closed port"
        );
    });
}

#[test]
fn an_ipv6_socket_is_judged_like_an_ipv4_one() {
    in_namespace(|| {
        let mut storage = Storage::default();
        let mut guard = Guard::load(&mut storage, &Config::default()).unwrap();
        let _dual_stack = udp_socket("[::]:5000".parse::<SocketAddr>().unwrap(), 64 << 10);
        assert!(admits(
            &mut guard,
            &to_host(HOST_V6).udp(PEER_PORT, PORT, &[])
        ));
        assert!(admits(
            &mut guard,
            &to_host(HOST_V4).udp(PEER_PORT, PORT, &[])
        ));

        fill(&UdpSocket::bind((HOST_V6, 0)).unwrap(), (HOST_V6, PORT));
        assert!(!admits(
            &mut guard,
            &to_host(HOST_V6).udp(PEER_PORT, PORT, &[])
        ));
        assert!(
            !admits(&mut guard, &to_host(HOST_V4).udp(PEER_PORT, PORT, &[])),
            "the same socket"
        );

        let counters = guard.counters().unwrap();
        let seen = channel(&counters, Kind::UdpSocket, PORT);
        assert_eq!(seen.address, "::".parse::<IpAddr>().unwrap());
        assert_eq!(
            (
                seen.packets.count(Outcome::Admitted),
                seen.packets.discarded()
            ),
            (2, 2)
        );
    });
}

/// Shows LRP-11.
#[test]
fn a_connected_socket_comes_before_the_wildcard() {
    in_namespace(|| {
        let mut storage = Storage::default();
        let mut guard = Guard::load(&mut storage, &Config::default()).unwrap();
        let bind = |address: SocketAddr| {
            let socket = reuseport_socket();
            nix::sys::socket::bind(
                std::os::fd::AsRawFd::as_raw_fd(&socket),
                &nix::sys::socket::SockaddrStorage::from(address),
            )
            .unwrap();
            UdpSocket::from(socket)
        };
        let _wildcard = bind((Ipv4Addr::UNSPECIFIED, PORT).into());
        let client = UdpSocket::bind((HOST_V4, PEER_PORT)).unwrap();
        let connected = bind((HOST_V4, PORT).into());
        connected.connect((HOST_V4, PEER_PORT)).unwrap();
        fill(&client, (HOST_V4, PORT));

        let from = |port| Packet::new(HOST_V4.into(), HOST_V4.into()).udp(port, PORT, &[]);
        assert!(
            !admits(&mut guard, &from(PEER_PORT)),
            "for the connected socket, which is full"
        );
        drop(connected);
        // A process that another test starts at this moment holds a copy of
        // the socket until it becomes its program.
        let admitted = (0..100).any(|_| {
            let_a_tick_pass();
            admits(&mut guard, &from(PEER_PORT))
        });
        assert!(admitted, "now for the wildcard, which is empty");
    });
}

fn reuseport_socket() -> std::os::fd::OwnedFd {
    use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};
    let socket = socket(
        AddressFamily::Inet,
        SockType::Datagram,
        SockFlag::SOCK_NONBLOCK,
        None,
    )
    .unwrap();
    setsockopt(&socket, sockopt::ReusePort, &true).unwrap();
    setsockopt(&socket, sockopt::RcvBuf, &(32 << 10)).unwrap();
    socket
}

#[test]
fn the_members_of_a_reuseport_group_fill_one_by_one_and_count_as_one_channel() {
    in_namespace(|| {
        let mut storage = Storage::default();
        let mut guard = Guard::load(&mut storage, &watermarks_alone()).unwrap();
        let members: Vec<UdpSocket> = (0..2)
            .map(|_| {
                let socket = reuseport_socket();
                let address = nix::sys::socket::SockaddrIn::new(198, 18, 0, 2, PORT);
                nix::sys::socket::bind(std::os::fd::AsRawFd::as_raw_fd(&socket), &address).unwrap();
                UdpSocket::from(socket)
            })
            .collect();
        // The kernel chooses the member by a hash of the four-tuple: learn it.
        let member_of = |client: &UdpSocket| {
            client.send_to(&[0; 8], (HOST_V4, PORT)).unwrap();
            let mut buffer = [0; 8];
            members
                .iter()
                .position(|member| member.recv(&mut buffer).is_ok())
                .expect("one received it")
        };
        let clients: Vec<(UdpSocket, usize)> = (0..32)
            .map(|_| UdpSocket::bind((HOST_V4, 0)).unwrap())
            .map(|client| {
                let member = member_of(&client);
                (client, member)
            })
            .collect();
        let (filler, full) = &clients[0];
        fill(filler, (HOST_V4, PORT));

        assert!(
            clients.iter().any(|(_, member)| member != full),
            "both members are used"
        );
        for (client, member) in &clients {
            let port = client.local_addr().unwrap().port();
            let frame = Packet::new(HOST_V4.into(), HOST_V4.into()).udp(port, PORT, &[]);
            assert_eq!(
                admits(&mut guard, &frame),
                member != full,
                "source port {port}, member {member}"
            );
        }
        let counters = guard.counters().unwrap();
        let seen = channel(&counters, Kind::UdpSocket, PORT);
        assert_eq!(seen.packets.offered(), 32);
        let to_full = clients.iter().filter(|(_, member)| member == full).count() as u64;
        assert_eq!(seen.packets.count(Outcome::SocketQueue), to_full);
    });
}

/// Shows LRP-27.
#[test]
fn a_later_fragment_follows_the_first() {
    use plimsoll_packets::frame::Fragment;
    in_namespace(|| {
        let mut storage = Storage::default();
        let mut guard = Guard::load(&mut storage, &Config::default()).unwrap();
        let _server = udp_socket((HOST_V4, PORT), 64 << 10);
        let piece = |id, offset, more| to_host(HOST_V4).fragment(Fragment { id, offset, more });
        let first = |id| piece(id, 0, true).udp(PEER_PORT, PORT, &[0; 24]);
        let later = |id| piece(id, 32, false).udp(PEER_PORT, PORT, &[0; 24]);

        assert!(
            admits(&mut guard, &later(1)),
            "unknown: to the fragment channel"
        );
        assert!(admits(&mut guard, &first(2)));
        fill(&UdpSocket::bind((HOST_V4, 0)).unwrap(), (HOST_V4, PORT));
        assert!(!admits(&mut guard, &first(3)));
        assert!(
            !admits(&mut guard, &later(3)),
            "its datagram is lost already"
        );
        assert!(
            admits(&mut guard, &later(2)),
            "its datagram was admitted before the queue was full"
        );

        let counters = guard.counters().unwrap();
        assert_eq!(counters.of(Kind::Fragment).offered(), 1);
        let seen = channel(&counters, Kind::UdpSocket, PORT);
        assert_eq!(
            (
                seen.packets.count(Outcome::Admitted),
                seen.packets.discarded()
            ),
            (2, 2)
        );
    });
}

#[test]
fn what_is_known_of_a_socket_is_stale_for_at_most_32_packets() {
    in_namespace(|| {
        let mut storage = Storage::default();
        let mut guard = Guard::load(&mut storage, &Config::default()).unwrap();
        let server = udp_socket((HOST_V4, PORT), 64 << 10);
        let frame = to_host(HOST_V4).udp(PEER_PORT, PORT, &[]);
        fill(&UdpSocket::bind((HOST_V4, 0)).unwrap(), (HOST_V4, PORT));
        assert!(!admits(&mut guard, &frame));
        while server.recv(&mut [0; 64]).is_ok() {}
        let stale = (0..100).take_while(|_| !admits(&mut guard, &frame)).count();
        assert!(
            stale <= 32,
            "{stale} packets were discarded for an empty socket"
        );
    });
}

#[test]
fn a_connected_socket_is_not_known_by_its_port_alone() {
    in_namespace(|| {
        let mut storage = Storage::default();
        let mut guard = Guard::load(&mut storage, &Config::default()).unwrap();
        let resolver = udp_socket((HOST_V4, PORT), 64 << 10);
        resolver.connect((common::PEER_V4, 53)).unwrap();
        for source_port in [53, 54, 53, 55] {
            guard
                .test_run(&to_host(HOST_V4).udp(source_port, PORT, &[]), 1)
                .unwrap();
        }
        let counters = guard.counters().unwrap();
        assert_eq!(counters.of(Kind::UdpSocket).offered(), 2, "from the peer");
        assert_eq!(counters.of(Kind::ClosedPort).offered(), 2, "from strangers");
    });
}
