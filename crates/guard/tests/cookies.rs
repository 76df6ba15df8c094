//! SYN cookies from XDP: a listener whose SYN queue is full still takes real
//! clients, whose handshakes the stack itself validates; whoever brings no
//! cookie is turned away before it costs anything.

mod common;

use std::fs::File;
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::sync::mpsc::{Sender, channel};
use std::thread;
use std::time::Duration;

use common::{HOST_MAC, HOST_V4, HOST_V6, PEER_MAC, PEER_V4, PEER_V6, Wire, in_namespace, ip};
use nix::sched::{CloneFlags, unshare};
use nix::sys::socket::{Backlog, listen};
use plimsoll_guard::{Config, Guard, Kind, Outcome, Storage};
use plimsoll_packets::frame::{Packet, TcpFlags};

const PORT: u16 = 80;
const BACKLOG: u16 = 8;
const CLIENTS: usize = 20;
const NOBODY_V4: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 77);
const NOBODY_V6: Ipv6Addr = Ipv6Addr::new(0x2001, 2, 0, 1, 0, 0, 0, 0x77);

/// What the peer, a host of its own at the other end of the wire, is told to do.
type Job = Box<dyn FnOnce() + Send>;

/// Runs `test` on the host; jobs sent to it run on the peer, one by one.
fn with_peer(test: impl FnOnce(&Sender<Job>)) {
    let (sender, jobs) = channel::<Job>();
    let (ready, is_ready) = channel();
    thread::scope(|scope| {
        let peer = scope.spawn(move || {
            unshare(CloneFlags::CLONE_NEWNET).unwrap();
            let namespace = File::open("/proc/thread-self/ns/net").unwrap();
            ready.send(namespace).unwrap();
            let mut jobs = jobs.iter();
            // The wire's end is here now: set it up.
            jobs.next().expect("a first job")();
            // veth hands on what XDP sends back only where a program runs.
            let observe = Config {
                observe: true,
                ..Config::default()
            };
            let mut storage = Storage::default();
            let _program = Guard::attach(&mut storage, &observe, "v1").unwrap();
            for job in jobs {
                job();
            }
        });
        let namespace = is_ready.recv().unwrap();
        let path = format!("/proc/{}/fd/{}", std::process::id(), namespace.as_raw_fd());
        ip(&format!("link set v1 netns {path}"));
        run(&sender, set_up_peer);
        let nobody = "02:00:00:00:00:99";
        for (address, mac) in [
            (IpAddr::V4(PEER_V4), "02:00:00:00:00:01"),
            (IpAddr::V6(PEER_V6), "02:00:00:00:00:01"),
            (IpAddr::V4(NOBODY_V4), nobody),
            (IpAddr::V6(NOBODY_V6), nobody),
        ] {
            ip(&format!("neighbour replace {address} lladdr {mac} dev v0"));
        }
        test(&sender);
        drop(sender);
        peer.join().unwrap();
    });
}

fn set_up_peer() {
    ip("link set lo up");
    ip(&format!("address add {PEER_V4}/24 dev v1"));
    ip(&format!("address add {PEER_V6}/64 dev v1 nodad"));
    ip("link set v1 up");
    for host in [HOST_V4.to_string(), HOST_V6.to_string()] {
        ip(&format!(
            "neighbour replace {host} lladdr 02:00:00:00:00:02 dev v1"
        ));
    }
}

/// Has the peer do something and waits for it.
fn run<T: Send + 'static>(peer: &Sender<Job>, job: impl FnOnce() -> T + Send + 'static) -> T {
    let (done, result) = channel();
    let job = move || done.send(job()).expect("the test waits");
    peer.send(Box::new(job)).unwrap();
    result.recv().expect("the peer did its job")
}

fn listener(address: IpAddr) -> TcpListener {
    let listener = TcpListener::bind((address, PORT)).unwrap();
    listen(&listener, Backlog::new(i32::from(BACKLOG)).unwrap()).unwrap();
    listener
}

/// A SYN or another segment from an address that nobody has.
fn from_nobody(host: IpAddr, port: u16, flags: TcpFlags) -> Vec<u8> {
    let nobody = if host.is_ipv4() {
        NOBODY_V4.into()
    } else {
        NOBODY_V6.into()
    };
    Packet::new(nobody, host)
        .macs(PEER_MAC, HOST_MAC)
        .tcp(port, PORT, flags, &[])
}

/// Fills the SYN queue with requests that nobody will complete.
fn fill_syn_queue(peer: &Sender<Job>, host: IpAddr) {
    run(peer, move || {
        let wire = Wire::open();
        // Some releases queue one more than the backlog.
        for port in 0..=BACKLOG {
            wire.send(&from_nobody(host, 10_000 + port, TcpFlags::SYN));
        }
    });
    thread::sleep(Duration::from_millis(50));
}

/// A client's whole conversation; what went wrong.
fn converse(host: IpAddr) -> Result<(), String> {
    let address = SocketAddr::new(host, PORT);
    let mut stream = TcpStream::connect_timeout(&address, Duration::from_secs(2))
        .map_err(|error| format!("connect: {error}"))?;
    stream
        .set_read_timeout(Some(Duration::from_secs(2)))
        .map_err(|error| error.to_string())?;
    let mut answer = [0; 5];
    stream
        .write_all(b"hello")
        .and_then(|()| stream.read_exact(&mut answer))
        .map_err(|error| format!("converse: {error}"))?;
    if &answer == b"HELLO" {
        Ok(())
    } else {
        Err(format!("{answer:?}"))
    }
}

/// Answers clients until one says "leave".
fn serve(listener: &TcpListener) {
    for stream in listener.incoming() {
        let mut stream = stream.unwrap();
        let mut request = [0; 5];
        if stream.read_exact(&mut request).is_err() {
            continue;
        }
        stream.write_all(&request.to_ascii_uppercase()).unwrap();
        if &request == b"leave" {
            return;
        }
    }
}

fn real_clients_connect(host: IpAddr) {
    with_peer(|peer| {
        let mut storage = Storage::default();
        let mut guard = Guard::attach(&mut storage, &Config::default(), "v0").unwrap();
        let server = listener(host);
        fill_syn_queue(peer, host);
        let before = *guard.counters().unwrap().of(Kind::TcpListener);

        let answers = thread::scope(|scope| {
            scope.spawn(|| serve(&server));
            let answers = run(peer, move || {
                (0..CLIENTS).map(|_| converse(host)).collect::<Vec<_>>()
            });
            // Not through the guarded interface.
            let mut leave = TcpStream::connect((host, PORT)).unwrap();
            leave.write_all(b"leave").unwrap();
            answers
        });
        let seen = guard.counters().unwrap();
        assert!(answers.iter().all(Result::is_ok), "{answers:?} {seen:?}");
        let after = *guard.counters().unwrap().of(Kind::TcpListener);
        assert!(
            after.count(Outcome::SynCookie) - before.count(Outcome::SynCookie) > 0,
            "{after:?}"
        );
        assert_eq!(after.discarded(), 0, "{after:?}");
    });
}

#[test]
fn real_clients_connect_past_a_full_syn_queue() {
    in_namespace(|| real_clients_connect(HOST_V4.into()));
}

#[test]
fn real_clients_connect_past_a_full_syn_queue_over_ipv6() {
    in_namespace(|| real_clients_connect(HOST_V6.into()));
}

#[test]
fn an_ack_without_a_cookie_is_discarded_only_while_the_syn_queue_is_full() {
    in_namespace(|| {
        with_peer(|peer| {
            let mut storage = Storage::default();
            let mut guard = Guard::load(&mut storage, &Config::default()).unwrap();
            let _server = listener(HOST_V4.into());
            let host = IpAddr::V4(HOST_V4);
            let ack = from_nobody(host, 20_000, TcpFlags::ACK);
            assert!(guard.test_run(&ack, 1).unwrap().0, "the stack refuses it");
            fill_syn_queue(peer, host);
            let syn = from_nobody(host, 20_000, TcpFlags::SYN);
            assert!(!guard.test_run(&syn, 1).unwrap().0, "answered from XDP");
            assert!(!guard.test_run(&ack, 1).unwrap().0);
            let counters = guard.counters().unwrap();
            let packets = counters.of(Kind::TcpListener);
            assert_eq!(packets.count(Outcome::SynCookie), 1, "{counters:?}");
            assert_eq!(packets.count(Outcome::NoCookie), 1);
            assert_eq!(packets.count(Outcome::Admitted), 1);
            assert_eq!(packets.discarded(), 1, "an answer is no discard");
        });
    });
}

#[test]
fn cookies_that_are_switched_off_leave_early_discard() {
    in_namespace(|| {
        with_peer(|peer| {
            let config = Config {
                syn_cookies: false,
                ..Config::default()
            };
            let mut storage = Storage::default();
            let mut guard = Guard::load(&mut storage, &config).unwrap();
            let _server = listener(HOST_V4.into());
            fill_syn_queue(peer, HOST_V4.into());
            let syn = from_nobody(HOST_V4.into(), 20_000, TcpFlags::SYN);
            assert!(!guard.test_run(&syn, 1).unwrap().0);
            std::fs::write("/proc/sys/net/ipv4/tcp_syncookies", "0").unwrap();
            guard.configure(&Config::default()).unwrap();
            assert!(!guard.test_run(&syn, 1).unwrap().0, "the host forbids them");
            let counters = guard.counters().unwrap();
            let packets = counters.of(Kind::TcpListener);
            assert_eq!(packets.count(Outcome::SynQueue), 2);
        });
    });
}

#[test]
fn observing_counts_the_cookie_and_lets_the_syn_pass() {
    in_namespace(|| {
        with_peer(|peer| {
            let config = Config {
                observe: true,
                ..Config::default()
            };
            let mut storage = Storage::default();
            let mut guard = Guard::load(&mut storage, &config).unwrap();
            let _server = listener(HOST_V4.into());
            fill_syn_queue(peer, HOST_V4.into());
            let syn = from_nobody(HOST_V4.into(), 20_000, TcpFlags::SYN);
            assert!(guard.test_run(&syn, 1).unwrap().0);
            let counters = guard.counters().unwrap();
            let packets = counters.of(Kind::TcpListener);
            assert_eq!(packets.count(Outcome::SynCookie), 1, "{counters:?}");
        });
    });
}
