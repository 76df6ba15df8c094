//! UDP between two stacks on a simulated cable: every receive path, sizes up to
//! the largest, faults, and the sums of outcomes.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use plimsoll_core::config::Fraction;
use plimsoll_stack::device::faulty::{Faults, Faulty};
use plimsoll_stack::device::simulated::{SimulatedConfig, SimulatedDevice};
use plimsoll_stack::{
    Counts, Outcome, Owner, PolledConfig, ReceivePath, Stack, StackConfig, UdpSocket,
};

use crate::descriptors::assert_answers_one_at_a_time;

/// All paths but `ni-lrp`, for which the simulated device has no demultiplexer.
fn paths() -> impl Iterator<Item = &'static str> {
    let names = ReceivePath::NAMES.into_iter();
    names.filter_map(|name| match name {
        "ni-lrp" => None,
        // Few packets go through these tests.
        "soft-timer-polling" => Some("soft-timer-polling:2"),
        name => Some(name),
    })
}

/// No test waits longer for what must come.
const SOON: Duration = Duration::from_secs(10);

fn config(addresses: [&str; 2], path: &str) -> StackConfig {
    StackConfig {
        addresses: addresses.map(|net| net.parse().unwrap()).to_vec(),
        path: path.parse().unwrap(),
        ..StackConfig::default()
    }
}

fn first() -> StackConfig {
    config(["10.0.0.1/24", "fd00::1/64"], "soft-lrp")
}

fn second(path: &str) -> StackConfig {
    config(["10.0.0.2/24", "fd00::2/64"], path)
}

/// Two stacks, the second with `path`.
fn pair(path: &str) -> (Stack, Stack) {
    let (one, other) = SimulatedDevice::pair(&SimulatedConfig::default()).unwrap();
    (
        Stack::start(one, &first()).unwrap(),
        Stack::start(other, &second(path)).unwrap(),
    )
}

fn bind(stack: &Stack, at: &str) -> UdpSocket {
    let socket = UdpSocket::bind(stack, at).unwrap();
    socket.set_read_timeout(Some(SOON)).unwrap();
    socket
}

/// The stack's counts once nothing is under way.
fn settled(stack: &Stack) -> Counts {
    let end = Instant::now() + SOON;
    loop {
        let counts = stack.counts();
        let under_way = counts.queued + counts.incomplete;
        if counts.received == counts.ended() + under_way || Instant::now() > end {
            return counts;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn assert_sums(stack: &Stack) {
    let counts = settled(stack);
    let accounted = counts.ended() + counts.queued + counts.incomplete;
    assert_eq!(counts.received, accounted, "{counts:?}");
}

#[test]
fn datagrams_of_all_sizes_go_there_and_back_on_every_path() {
    for path in paths() {
        let (one, other) = pair(path);
        for (at, server) in [("10.0.0.1:0", "10.0.0.2:7"), ("[fd00::1]:0", "[fd00::2]:7")] {
            let server = bind(&other, server);
            let client = bind(&one, at);
            let to = server.local_addr().unwrap();
            let mut buffer = vec![0; 65_536];
            for length in [0, 1, 1452, 1453, 1472, 1473, 4000, 65_507] {
                let payload: Vec<u8> = (0..length).map(|k| (k % 251) as u8).collect();
                assert_eq!(client.send_to(&payload, to).unwrap(), length);
                let (received, from) = server.recv_from(&mut buffer).unwrap();
                assert_eq!(buffer[..received], payload, "{path}: {length} bytes");
                assert_eq!(from, client.local_addr().unwrap());
                server.send_to(&buffer[..received], from).unwrap();
                let (received, from) = client.recv_from(&mut buffer).unwrap();
                assert_eq!((&buffer[..received], from), (&payload[..], to));
            }
        }
        assert_sums(&one);
        assert_sums(&other);
    }
}

#[test]
fn a_datagram_beyond_the_largest_is_refused() {
    let (one, _other) = pair("soft-lrp");
    let client = bind(&one, "10.0.0.1:0");
    let error = client.send_to(&[0; 65_508], "10.0.0.2:7").unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EMSGSIZE));
}

#[test]
fn addresses_are_checked_as_the_standard_library_does() {
    let (one, _other) = pair("soft-lrp");
    let taken = bind(&one, "10.0.0.1:53");
    let kind = |at: &str| UdpSocket::bind(&one, at).unwrap_err().kind();
    assert_eq!(kind("10.0.0.1:53"), ErrorKind::AddrInUse);
    assert_eq!(kind("10.0.0.9:53"), ErrorKind::AddrNotAvailable);
    let wildcard = bind(&one, "0.0.0.0:53");
    drop((taken, wildcard));
    bind(&one, "10.0.0.1:53");
    let unconnected = bind(&one, "10.0.0.1:54");
    assert_eq!(
        unconnected.peer_addr().unwrap_err().kind(),
        ErrorKind::NotConnected
    );
    assert!(unconnected.send(b"whom to?").is_err());
    let beyond = unconnected
        .send_to(b"no gateway", "192.0.2.1:9")
        .unwrap_err();
    assert_eq!(beyond.raw_os_error(), Some(libc::ENETUNREACH));
}

/// Bound there it received, and could not answer: sending was refused.
#[test]
fn an_ipv4_address_that_is_written_as_ipv6_is_the_same_address() {
    let (one, other) = pair("soft-lrp");
    let client = bind(&other, "10.0.0.2:0");
    let server = bind(&one, "[::ffff:10.0.0.1]:7");
    let at = server.local_addr().unwrap();
    assert_eq!(at, "10.0.0.1:7".parse().unwrap());
    client.send_to(b"question", "[::ffff:10.0.0.1]:7").unwrap();
    let mut buffer = [0; 16];
    let (length, from) = server.recv_from(&mut buffer).unwrap();
    server.send_to(&buffer[..length], from).unwrap();
    assert_eq!(client.recv_from(&mut buffer).unwrap(), (length, at));
    let shared = ["10.0.0.1:8", "[::ffff:10.0.0.1]:8"];
    let _both = shared.map(|at| UdpSocket::bind_shared(&one, at).unwrap());
}

#[test]
fn a_connected_socket_hears_its_peer_alone() {
    let (one, other) = pair("soft-lrp");
    let server = bind(&other, "10.0.0.2:7");
    let peer = bind(&one, "10.0.0.1:1000");
    let stranger = bind(&one, "10.0.0.1:2000");
    server.connect("10.0.0.1:1000").unwrap();
    stranger.send_to(b"stranger", "10.0.0.2:7").unwrap();
    peer.send_to(b"peer", "10.0.0.2:7").unwrap();
    let mut buffer = [0; 100];
    let length = server.recv(&mut buffer).unwrap();
    assert_eq!(&buffer[..length], b"peer");
    server.send(b"answer").unwrap();
    assert_eq!(peer.recv_from(&mut buffer).unwrap().0, 6);
    // The proxy counts the stranger's when it gets to it.
    let end = Instant::now() + SOON;
    while other.counts()[Outcome::ClosedPort] != 1 {
        assert!(Instant::now() < end, "{:?}", other.counts());
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// On AF_XDP it was refused, elsewhere a second socket had the rest of the first one's datagrams.
#[test]
fn a_connected_socket_keeps_its_address_until_it_is_closed() {
    let (_one, other) = pair("soft-lrp");
    for at in ["10.0.0.2:7", "[fd00::2]:7", "[::]:7"] {
        let connected = bind(&other, at);
        let peer = if at.contains("fd00") {
            "[fd00::1]:1"
        } else {
            "10.0.0.1:1"
        };
        connected.connect(peer).unwrap();
        for again in [
            UdpSocket::bind(&other, at),
            UdpSocket::bind_shared(&other, at),
        ] {
            let again = again.map(|_| ()).map_err(|error| error.kind());
            assert_eq!(again, Err(ErrorKind::AddrInUse), "{at}");
        }
        drop(connected);
        bind(&other, at);
    }
}

#[test]
fn non_blocking_and_deadlines() {
    let (one, other) = pair("soft-lrp");
    let server = bind(&other, "10.0.0.2:7");
    let mut buffer = [0; 100];
    server
        .set_read_timeout(Some(Duration::from_millis(20)))
        .unwrap();
    let began = Instant::now();
    let error = server.recv_from(&mut buffer).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::WouldBlock);
    assert!(began.elapsed() >= Duration::from_millis(20));
    server.set_nonblocking(true).unwrap();
    let error = server.recv_from(&mut buffer).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::WouldBlock);
    assert!(server.set_read_timeout(Some(Duration::ZERO)).is_err());
    // The descriptor becomes readable, for an event loop of the caller's.
    bind(&one, "10.0.0.1:0")
        .send_to(b"now", "10.0.0.2:7")
        .unwrap();
    let mut polled = [PollFd::new(server.as_fd(), PollFlags::POLLIN)];
    let limit = PollTimeout::try_from(SOON).unwrap();
    assert_eq!(poll(&mut polled, limit).unwrap(), 1);
    assert_eq!(server.recv_from(&mut buffer).unwrap().0, 3);
}

/// What came while a call of another thread found nothing told nothing.
#[test]
fn who_takes_one_datagram_at_a_time_hears_of_the_next_on_every_path() {
    for path in paths() {
        println!("{path}");
        let (one, other) = pair(path);
        let (client, server) = (bind(&one, "10.0.0.1:0"), bind(&other, "10.0.0.2:7"));
        client.connect("10.0.0.2:7").unwrap();
        assert_answers_one_at_a_time(&server, || {
            let sent = (0..4).all(|_| client.send(b"hello").is_ok());
            sent && (0..4).all(|_| client.recv(&mut [0; 16]).is_ok())
        });
    }
}

#[test]
fn batches_are_received_and_answered_in_place() {
    let (one, other) = pair("soft-lrp");
    let server = bind(&other, "10.0.0.2:7");
    let client = bind(&one, "10.0.0.1:0");
    let to: SocketAddr = "10.0.0.2:7".parse().unwrap();
    // Let both learn each other, of whom only three frames may be waited for.
    client.send_to(b"warm", to).unwrap();
    server.recv_datagram().unwrap();
    let payloads: Vec<[u8; 4]> = (0..100_u32).map(u32::to_be_bytes).collect();
    let batch = payloads.iter().map(|payload| (&payload[..], to));
    assert_eq!(client.send_batch(batch).unwrap(), 100);
    let (mut received, mut answered) = (Vec::new(), 0);
    while answered < 100 {
        server.recv_batch(&mut received, 64).unwrap();
        for datagram in &mut received {
            datagram.payload_mut().reverse();
        }
        answered += server.reply_batch(&mut received).unwrap();
        assert!(received.is_empty());
    }
    for expected in 0..100_u32 {
        let answer = client.recv_datagram().unwrap();
        assert_eq!(answer.payload(), expected.to_le_bytes());
        assert_eq!(answer.source(), to);
    }
}

/// LRP-56: the principles hold in a user-level stack, too.
#[test]
fn a_full_socket_loses_its_own_packets_and_nobody_elses() {
    for path in ["early-demux", "soft-lrp"] {
        let (one, other) = pair(path);
        let hung = bind(&other, "10.0.0.2:1");
        let server = bind(&other, "10.0.0.2:2");
        let client = bind(&one, "10.0.0.1:0");
        let mut buffer = [0; 10];
        client.send_to(b"warm", "10.0.0.2:2").unwrap();
        server.recv_from(&mut buffer).unwrap();
        let flood: SocketAddr = "10.0.0.2:1".parse().unwrap();
        for _ in 0..40 {
            client.send_batch([(&b"flood"[..], flood); 32]).unwrap();
            client.send_to(b"bystander", "10.0.0.2:2").unwrap();
            server.recv_from(&mut buffer).unwrap();
        }
        let counts = settled(&other);
        assert_eq!(counts[Outcome::Full], 40 * 32 - 256, "{path}: {counts:?}");
        assert_eq!(counts[Outcome::Delivered], 41);
        drop(hung);
        assert_eq!(settled(&other)[Outcome::Closed], 256);
        assert_sums(&other);
    }
}

/// MR-32, MR-36: every packet is carried to its socket's queue at once, and what
/// that could not take stays in the device's ring. MR-80: the socket is found first,
/// polling has a quota, and a full socket inhibits input.
#[test]
fn polled_input_is_inhibited_by_a_full_socket_and_goes_on_when_it_has_room() {
    let (one, other) = SimulatedDevice::pair(&SimulatedConfig::default()).unwrap();
    let one = Stack::start(one, &first()).unwrap();
    // Only the reader makes input go on.
    let polled = PolledConfig {
        feedback_timeout: SOON,
        ..PolledConfig::default()
    };
    let polled = StackConfig {
        path: ReceivePath::Polled(polled),
        ..second("polled")
    };
    let other = Stack::start(other, &polled).unwrap();
    let server = bind(&other, "10.0.0.2:1");
    let client = bind(&one, "10.0.0.1:0");
    let to: SocketAddr = "10.0.0.2:1".parse().unwrap();
    client.send_to(b"warm", to).unwrap();
    server.recv_datagram().unwrap();
    let send = |count| {
        let packets = std::iter::repeat_n((&b"packet"[..], to), count);
        assert_eq!(client.send_batch(packets).unwrap(), count);
    };
    // The socket has room for 256 and inhibits at 192; the ring has room for 256.
    send(190);
    let end = Instant::now() + SOON;
    while other.counts().queued < 190 {
        assert!(Instant::now() < end, "{:?}", other.counts());
        std::thread::sleep(Duration::from_millis(1));
    }
    send(220);
    std::thread::sleep(Duration::from_millis(50));
    let counts = settled(&other);
    assert!((192..256).contains(&counts.queued), "{counts:?}");
    assert_eq!(counts[Outcome::Full], 0, "{counts:?}");
    let (mut received, mut batch) = (0, Vec::new());
    while received < 410 {
        received += server.recv_batch(&mut batch, 64).unwrap();
        batch.clear();
    }
    assert_eq!(received, 410);
    assert_sums(&other);
}

#[test]
fn under_faults_what_arrives_is_what_was_sent_and_everything_is_counted() {
    for path in paths() {
        let (one, other) = SimulatedDevice::pair(&SimulatedConfig::default()).unwrap();
        let faults = Faults::each(Fraction::from_percent(5));
        let other = Faulty::new(other, faults, 42);
        let one = Stack::start(one, &first()).unwrap();
        let other = Stack::start(other, &second(path)).unwrap();
        let server = bind(&other, "10.0.0.2:7");
        let client = bind(&one, "10.0.0.1:0");
        server
            .set_read_timeout(Some(Duration::from_millis(5)))
            .unwrap();
        // The question for the neighbour may be lost as well, and is asked again after a second.
        let end = Instant::now() + SOON;
        while server.recv_datagram().is_err() {
            assert!(Instant::now() < end, "{path}: {:?}", other.counts());
            client.send_to(&[0; 20], "10.0.0.2:7").unwrap();
        }
        while server.recv_datagram().is_ok() {}
        let mut arrived = 0;
        for k in 0..1000_usize {
            let payload = vec![k as u8; 20 + (k % 50) * 100];
            client.send_to(&payload, "10.0.0.2:7").unwrap();
            while k % 20 == 19
                && let Ok(datagram) = server.recv_datagram()
            {
                let bytes = datagram.payload();
                let first = bytes[0];
                assert!(bytes.iter().all(|&byte| byte == first), "{path}: damaged");
                assert_eq!(bytes.len(), 20 + bytes.len() / 100 * 100);
                arrived += 1;
            }
        }
        // Most have several fragments, of which each may be lost.
        assert!(arrived > 400, "{path}: {arrived} of 1000");
        let counts = settled(&other);
        assert!(counts[Outcome::Checksum] > 0, "{counts:?}");
        assert_sums(&other);
    }
}

#[test]
fn closing_under_load_loses_no_count() {
    let (one, other) = pair("soft-lrp");
    let client = bind(&one, "10.0.0.1:0");
    let to: SocketAddr = "10.0.0.2:1".parse().unwrap();
    for _ in 0..50 {
        let server = bind(&other, "10.0.0.2:1");
        client.send_batch([(&b"packet"[..], to); 20]).unwrap();
        server.set_nonblocking(true).unwrap();
        let _ = server.recv_datagram();
    }
    assert_sums(&other);
}

#[test]
fn ni_lrp_needs_a_device_that_steers() {
    let (one, _other) = SimulatedDevice::pair(&SimulatedConfig::default()).unwrap();
    let config = StackConfig {
        path: ReceivePath::NiLrp,
        ..first()
    };
    let error = Stack::start(one, &config).unwrap_err();
    assert!(error.is_missing(), "{error}");
    assert!(error.to_string().contains("soft-lrp"), "{error}");
}

/// Each frame and the time that it took are on its owner's account.
#[test]
fn what_a_flood_costs_is_charged_to_its_socket() {
    for path in ["soft-lrp", "early-demux"] {
        let (client, server) = pair(path);
        let flooded = bind(&server, "10.0.0.2:7");
        let calm = bind(&server, "10.0.0.2:8");
        let sender = bind(&client, "10.0.0.1:0");
        sender.send_to(b"x", "10.0.0.2:8").unwrap();
        calm.recv(&mut [0; 8]).unwrap();
        let mut batch = Vec::new();
        for _ in 0..400 {
            sender
                .send_batch([(&b"xyz"[..], "10.0.0.2:7".parse().unwrap()); 20])
                .unwrap();
            batch.clear();
            flooded.recv_batch(&mut batch, 20).unwrap();
        }
        let end = Instant::now() + SOON;
        let charged = loop {
            let charged = server.charged();
            let mut sum = Counts::default();
            charged.values().for_each(|one| sum += one.counts);
            if sum == server.counts() && sum.received == sum.ended() + sum.queued {
                break charged;
            }
            assert!(Instant::now() < end, "{charged:?}");
        };
        let of = |port| charged[&Owner::Udp(SocketAddr::from(([10, 0, 0, 2], port)))];
        assert_eq!(of(8).counts[Outcome::Delivered], 1, "{path}");
        let counts = of(7).counts;
        let arrived = counts.ended() + counts.queued;
        assert!(counts[Outcome::Delivered] >= 400, "{path}: {counts:?}");
        assert!(arrived <= 8000, "{path}: {counts:?}");
        assert!(of(7).cpu > of(8).cpu, "{path}: {charged:?}");
        drop(flooded);
        let owner = Owner::Udp(SocketAddr::from(([10, 0, 0, 2], 7)));
        let closed = server.charged()[&owner].counts;
        assert_eq!(closed.ended(), arrived, "{path}");
    }
}

/// It joined, and could not answer what it heard.
#[test]
fn a_socket_joins_groups_of_its_own_family() {
    let (stack, _other) = pair("soft-lrp");
    let [four, six] = ["239.1.1.1", "ff05::77"].map(|group| group.parse().unwrap());
    for (at, joins) in [
        ("0.0.0.0:7", [true, false]),
        ("10.0.0.1:8", [true, false]),
        ("[fd00::1]:9", [false, true]),
        ("[::]:10", [true, true]),
    ] {
        let socket = UdpSocket::bind(&stack, at).unwrap();
        let joined = [four, six].map(|group| socket.join_multicast(group));
        assert_eq!(joined.map(|joined| joined.is_ok()), joins, "{at}");
    }
}
