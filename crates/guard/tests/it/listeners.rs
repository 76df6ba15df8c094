//! A listener's places are divided among its clients: real connections through the real
//! program. Needs root.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc::Sender;
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockType, SockaddrIn, bind, connect, listen, socket,
};
use plimsoll_guard::{Config, Guard, Kind, Outcome, Protection, Storage, SynCookies};
use plimsoll_packets::frame::{Packet, TcpFlags};
use plimsoll_tries::repeated;

use crate::common::peer::{Job, OtherEnd, run, with_peer};
use crate::common::syn_queue::{of_nobody, syn_ack};
use crate::common::{HOST_MAC, HOST_V4, PEER_MAC, PEER_V4, Wire, in_namespace, ip};

const PORT: u16 = 80;
const BACKLOG: u16 = 64;
/// The peer has this address, too.
const LOUD: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 66);
/// The server takes so long for each connection.
const WORK: Duration = Duration::from_millis(2);
const CLIENTS: u32 = 20;
/// Less than a second: then a lost SYN is sent again.
const PATIENCE: Duration = Duration::from_millis(900);

fn listener() -> TcpListener {
    let listener = TcpListener::bind((HOST_V4, PORT)).unwrap();
    listen(&listener, Backlog::new(i32::from(BACKLOG)).unwrap()).unwrap();
    listener
}

/// Greets one client after the other until it is told to stop; how many there were.
fn serve(listener: &TcpListener, stop: &AtomicBool) -> u32 {
    let mut served = 0;
    listener.set_nonblocking(true).unwrap();
    while !stop.load(Ordering::Relaxed) {
        thread::sleep(WORK);
        match listener.accept() {
            Ok((mut client, _)) => {
                served += 1;
                // A client that has gone needs no greeting.
                let _ = client.write_all(b"!");
            }
            Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
        }
    }
    served
}

/// Begins connections without end, and leaves each soon; counts them. The server's queue
/// never has room for long between two bursts.
fn connect_without_end(stop: &AtomicBool, begun: &AtomicU32) {
    const BURST: u32 = 10;
    const KEPT: usize = 100;
    let host = SockaddrIn::from(SocketAddrV4::new(HOST_V4, PORT));
    let own = SockaddrIn::from(SocketAddrV4::new(LOUD, 0));
    let mut kept = VecDeque::new();
    while !stop.load(Ordering::Relaxed) {
        for _ in 0..BURST {
            let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
            let socket = socket(AddressFamily::Inet, SockType::Stream, flags, None).unwrap();
            bind(socket.as_raw_fd(), &own).unwrap();
            // It is under way, or has no place.
            let _ = connect(socket.as_raw_fd(), &host);
            kept.push_back(socket);
        }
        begun.fetch_add(BURST, Ordering::Relaxed);
        kept.drain(..kept.len().saturating_sub(KEPT));
        thread::sleep(Duration::from_millis(1));
    }
}

/// Whether the server greets before a lost packet would be sent again.
fn is_greeted() -> bool {
    let host = SocketAddr::from((HOST_V4, PORT));
    let Ok(mut stream) = TcpStream::connect_timeout(&host, PATIENCE) else {
        return false;
    };
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.read_exact(&mut [0]).is_ok()
}

/// Clients that come one after the other; how many are greeted.
fn greeted() -> u32 {
    let clients: Vec<_> = (0..CLIENTS)
        .map(|_| {
            thread::sleep(Duration::from_millis(30));
            thread::spawn(is_greeted)
        })
        .collect();
    let greeted = clients.into_iter().map(|client| client.join().unwrap());
    greeted.map(u32::from).sum()
}

/// Clients that are greeted beside somebody who connects without end; all connections that
/// he began and that the server took; and what the guard says.
fn beside_a_loud_one(fairness: bool) -> (u32, u32, u32, u64) {
    let mut outcome = (0, 0, 0, 0);
    with_peer(OtherEnd::Takes, |peer| {
        ip(&format!(
            "neighbour replace {LOUD} lladdr 02:00:00:00:00:01 dev v0"
        ));
        run(peer, || ip(&format!("address add {LOUD}/24 dev v1")));
        let config = Config {
            fairness,
            ..Config::default()
        };
        let mut storage = Storage::default();
        let mut guard = Guard::attach(&mut storage, &config, "v0").unwrap();
        let listener = listener();
        let stop = Arc::new(AtomicBool::new(false));
        let begun = Arc::new(AtomicU32::new(0));
        thread::scope(|scope| {
            let server = scope.spawn(|| serve(&listener, &stop));
            let (stopped, counted) = (Arc::clone(&stop), Arc::clone(&begun));
            let loud = run(peer, move || {
                thread::spawn(move || connect_without_end(&stopped, &counted))
            });
            let greeted = run(peer, || {
                thread::sleep(Duration::from_millis(500));
                greeted()
            });
            stop.store(true, Ordering::Relaxed);
            loud.join().unwrap();
            let served = server.join().unwrap();
            let counters = guard.counters().unwrap();
            let share = counters.of(Kind::TcpListener).count(Outcome::SourceShare);
            outcome = (greeted, begun.load(Ordering::Relaxed), served, share);
        });
    });
    outcome
}

#[test]
fn a_client_connects_beside_one_that_connects_without_end() {
    let (fair, begun, served, share) = in_namespace(|| beside_a_loud_one(true));
    let said = format!("{fair} of {CLIENTS}; {begun} begun, {served} served, {share} lost");
    assert!(begun > 3 * served, "a flood: {said}");
    assert!(
        u64::from(begun - served) / 2 < share,
        "the loud one's: {said}"
    );
    // 18 to 20 on a busy machine, and without fairness 3 to 8.
    assert!(fair >= CLIENTS * 3 / 4, "{said}");
    let (unfair, .., share) = in_namespace(|| beside_a_loud_one(false));
    assert_eq!(share, 0);
    assert!(
        unfair + 3 < fair,
        "fairness is what helps: {unfair}; {said}"
    );
}

/// SYNs from addresses that nobody has, as fast as the ring takes them.
fn forge(peer: &Sender<Job>, packets: u32) {
    run(peer, move || {
        let wire = Wire::open();
        let mut random = fastrand::Rng::with_seed(4);
        for _ in 0..packets {
            let anybody = Ipv4Addr::from_bits(random.u32(0x0b00_0000..0x7e00_0000));
            let packet = Packet::new(anybody.into(), HOST_V4.into()).macs(PEER_MAC, HOST_MAC);
            wire.send(&packet.tcp(random.u16(1024..), PORT, TcpFlags::SYN, &[]));
        }
    });
}

/// Where cookies are switched off, forged SYNs leave places to known clients alone.
#[test]
fn without_cookies_a_known_client_finds_a_place_among_forged_syns() {
    in_namespace(|| {
        with_peer(OtherEnd::Takes, |peer| {
            std::fs::write("/proc/sys/net/ipv4/tcp_syncookies", "0").unwrap();
            // Else the stack itself keeps a quarter for who was there before.
            std::fs::write("/proc/sys/net/ipv4/tcp_max_syn_backlog", "1024").unwrap();
            ip("route add default via 198.18.0.1");
            let mut storage = Storage::default();
            let mut guard = Guard::attach(&mut storage, &Config::default(), "v0").unwrap();
            let protection = |known: Vec<_>| Protection {
                known,
                ..Protection::default()
            };
            let listener = listener();
            let stop = AtomicBool::new(false);
            thread::scope(|scope| {
                scope.spawn(|| serve(&listener, &stop));
                forge(peer, 3000);
                let stranger = run(peer, is_greeted);
                let known = format!("{PEER_V4}/32").parse().unwrap();
                guard.protect(&protection(vec![known])).unwrap();
                forge(peer, 3000);
                let client = run(peer, is_greeted);
                stop.store(true, Ordering::Relaxed);
                assert!(client, "{:?}", guard.counters().unwrap());
                assert!(!stranger, "nothing tells it from forged ones");
            });
        });
    });
}

/// Connections that one client begins at once, of which the server takes none for a while:
/// as many as its queue holds. How many are established before a lost SYN is sent again.
fn established_at_once(fairness: bool) -> usize {
    let mut established = 0;
    with_peer(OtherEnd::Takes, |peer| {
        let config = Config {
            fairness,
            ..Config::default()
        };
        let mut storage = Storage::default();
        let _guard = Guard::attach(&mut storage, &config, "v0").unwrap();
        let _listener = listener();
        established = run(peer, || {
            let host = SocketAddr::from((HOST_V4, PORT));
            let begun = (0..=BACKLOG)
                .map(|_| thread::spawn(move || TcpStream::connect_timeout(&host, PATIENCE)));
            let begun: Vec<_> = begun.collect();
            let ended = begun.into_iter().map(|client| client.join().unwrap());
            let streams: Vec<_> = ended.filter_map(Result::ok).collect();
            streams.len()
        });
    });
    established
}

/// A connection pool that starts, a proxy, a browser: the queue is there for them.
#[test]
fn a_burst_of_one_client_that_the_queue_holds_loses_no_connection() {
    let without = in_namespace(|| established_at_once(false));
    assert_eq!(without, usize::from(BACKLOG) + 1);
    assert_eq!(in_namespace(|| established_at_once(true)), without);
}

/// SYNs of one client: they fill the queue, and go on until the server has been behind for
/// longer than a burst.
fn flood_from_nobody(peer: &Sender<Job>) {
    run(peer, || {
        let wire = Wire::open();
        for port in 10_000..10_000 + 4 * BACKLOG {
            wire.send(&of_nobody(HOST_V4.into()).tcp(port, PORT, TcpFlags::SYN, &[]));
            if port > 10_000 + BACKLOG {
                thread::sleep(Duration::from_millis(3));
            }
        }
    });
}

/// Who answers SYNs after the program has refused the ends of most of these handshakes; `None`:
/// it did not, since the machine was held up: the SYN queue was not full, or the server not
/// behind for long.
fn answerer_after_refused_ends() -> Option<SynCookies> {
    const ENDS: u16 = 40;
    let mut answerer = None;
    with_peer(OtherEnd::Takes, |peer| {
        let mut storage = Storage::default();
        let mut guard = Guard::attach(&mut storage, &Config::default(), "v0").unwrap();
        let _listener = listener();
        // They take all places of the accept queue but a few.
        let _waiting: Vec<TcpStream> = run(peer, || {
            let connect = |_| TcpStream::connect((HOST_V4, PORT)).unwrap();
            (0..BACKLOG - 4).map(connect).collect()
        });
        flood_from_nobody(peer);
        guard.regulate().unwrap();
        let segment = |port, sequence, ack, flags| {
            let packet = of_nobody(HOST_V4.into()).numbers(sequence, ack);
            packet.tcp(port, PORT, flags, &[])
        };
        let end_of = |port| {
            let answer = guard.answer_to(&segment(port, 7, 0, TcpFlags::SYN));
            let cookie = syn_ack(&answer.unwrap()?).sequence_number;
            Some(segment(port, 8, cookie.wrapping_add(1), TcpFlags::ACK))
        };
        let ends: Option<Vec<_>> = (20_000..20_000 + ENDS).map(end_of).collect();
        let Some(ends) = ends else {
            return;
        };
        guard.refresh().unwrap();
        let before = *guard.counters().unwrap().of(Kind::TcpListener);
        run(peer, move || {
            let wire = Wire::open();
            ends.iter().for_each(|end| wire.send(end));
        });
        let patience = Instant::now() + Duration::from_secs(20);
        let mut packets = before;
        while packets.offered() - before.offered() < ENDS.into() {
            assert!(Instant::now() < patience, "they arrive: {packets:?}");
            packets = *guard.counters().unwrap().of(Kind::TcpListener);
        }
        let refused = packets.count(Outcome::SourceShare) - before.count(Outcome::SourceShare);
        guard.refresh().unwrap();
        answerer = guard
            .syn_cookies()
            .filter(|_| refused > u64::from(ENDS) * 3 / 4);
    });
    answerer
}

/// They passed for ones that a packet filter had refused, and the program answered no more:
/// whoever had one real address could see to that.
#[test]
fn ends_of_handshakes_that_the_program_refuses_are_no_sign_of_a_packet_filter() {
    let mut answerer = None;
    repeated(5, || {
        answerer = in_namespace(answerer_after_refused_ends);
        answerer.is_some()
    });
    assert_eq!(answerer.map(|told| told.by).as_deref(), Some("driver"));
}
