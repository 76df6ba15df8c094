//! What the verdict costs per packet, by the kernel's test-run facility: the
//! program alone, on one hot frame, without driver and memory. Needs root.
//!
//! Prints the median of several runs and their spread in nanoseconds, and beside it
//! what is left when an empty program's median is taken off, which runs by turns on
//! the same frames: the facility's own cost. An argument chooses frames by name; `--json
//! FILE` writes all runs as one document, for `plimsoll bench guard`.
//!
//! A second table has a server that is overloaded, with fairness among its sources and
//! without, by turns. The facility knows one frame only, so a second program writes the
//! source addresses; its time is in both columns.

#[path = "../../tests/it/common/mod.rs"]
mod common;
mod forged;

use std::net::{Ipv4Addr, SocketAddrV4, TcpListener, UdpSocket};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use common::connection::{Connection, GIB};
use common::{HOST_V4, HOST_V6, PEER_V4, fill, in_namespace, to_host, udp_occupancy, udp_socket};
use forged::Forger;
use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, SockaddrIn, bind, setsockopt, socket, sockopt,
};
use plimsoll_guard::{Config, Guard, Storage};
use plimsoll_kernel::pass_all;
use plimsoll_packets::frame::{Packet, TcpFlags};
use plimsoll_report::{Machine, SCHEMA};

const REPEAT: u32 = 1_000_000;
const RUNS: usize = 15;
/// After so long an overload, the sources' shares have settled.
const SETTLING: Duration = Duration::from_secs(4);
/// The overloaded server's port, and how many percent of its buffer are full: above the
/// high watermark, with some room for packets in profile.
const OVERLOADED: u16 = 5005;
const FILL: usize = 72;

fn main() {
    // Before this thread is bound to one CPU.
    let machine = Machine::read(None);
    in_namespace(|| {
        let mut storage = Storage::default();
        let mut guard = Guard::load(&mut storage, &Config::default()).expect("the guard loads");
        let _empty = udp_socket((HOST_V4, 5000), 256 << 10);
        let _full = full_socket(5001, false);
        let _full_shared = full_socket(5002, true);
        let _connected = connected_socket(5003);
        let _group = full_group(5004);
        let _six = udp_socket((HOST_V6, 5000), 256 << 10);
        let connection = Connection::open(None);
        let _listener = TcpListener::bind((HOST_V4, 80)).expect("a port");

        println!(
            "{:<44}{:>8}{:>8}{:>8}{:>8}  ns per packet, {RUNS} runs of {REPEAT}",
            "", "median", "min", "max", "net"
        );
        let Arguments { wanted, json } = Arguments::parse();
        let mut results = Vec::new();
        for (name, frame) in frames(&connection)
            .into_iter()
            .filter(|(name, _)| name.contains(&wanted))
        {
            let pairs = (0..RUNS).map(|_| {
                let (_, whole) = guard.test_run(&frame, REPEAT).expect("test-run");
                let empty = pass_all::test_run(&frame, REPEAT).expect("test-run");
                (whole.as_nanos(), empty.as_nanos())
            });
            let (mut runs, mut empty): (Vec<u128>, Vec<u128>) = pairs.unzip();
            runs.sort_unstable();
            empty.sort_unstable();
            println!(
                "{name:<44}{:>8}{:>8}{:>8}{:>8}",
                runs[RUNS / 2],
                runs[0],
                runs[RUNS - 1],
                runs[RUNS / 2].saturating_sub(empty[RUNS / 2])
            );
            results.push(serde_json::json!({ "frame": name, "ns": runs, "empty_ns": empty }));
        }
        if let Some(file) = json {
            let document = serde_json::json!({
                "schema": SCHEMA, "machine": machine,
                "results": { "frames": results }, "goals": [],
            });
            std::fs::write(&file, format!("{document:#}\n")).expect("the file can be written");
        }
        overloaded(&mut guard, &wanted);
    });
}

/// What fairness costs for an overloaded server's packets, by who sends them.
fn overloaded(guard: &mut Guard<'_>, wanted: &str) {
    let senders: Vec<_> = [
        ("UDP, overloaded, one source", 0),
        ("UDP, overloaded, 1,024 sources, 16 networks", 0x000f_030f),
        ("UDP, overloaded, any source of 4,096 networks", 0x0fff_ffff),
        ("UDP, overloaded, any source", 0x7fff_ffff),
    ]
    .into_iter()
    .filter(|(name, _)| name.contains(wanted))
    .collect();
    if senders.is_empty() {
        return;
    }
    let server = full_socket(OVERLOADED, false);
    println!(
        "{:<44}{:>8}{:>8}{:>8}{:>8}{:>8}  ns per packet; medians by turns, and of their difference",
        "", "fair", "min", "without", "min", "dearer"
    );
    let frame = to_host(HOST_V4).udp(4000, OVERLOADED, &[]);
    // It was full a moment ago, and is over its high watermark from now on.
    guard.test_run(&frame, 1).expect("test-run");
    overload(&server);
    for (name, others) in senders {
        let forger = Forger::before(guard.fd(), Ipv4Addr::new(0, 0, 0, 1), others);
        let begun = Instant::now();
        while begun.elapsed() < SETTLING {
            forger.test_run(&frame, REPEAT);
        }
        let mut run = |fairness| {
            let config = Config {
                fairness,
                ..Config::DEFAULT
            };
            guard.configure(&config).expect("the config is valid");
            forger.test_run(&frame, REPEAT).as_nanos().cast_signed()
        };
        let pairs: Vec<(i128, i128)> = (0..RUNS).map(|_| (run(true), run(false))).collect();
        let column = |of: fn(&(i128, i128)) -> i128| {
            let mut runs: Vec<i128> = pairs.iter().map(of).collect();
            runs.sort_unstable();
            (runs[RUNS / 2], runs[0])
        };
        let ((with, with_min), (without, without_min)) = (column(|run| run.0), column(|run| run.1));
        let (dearer, _) = column(|run| run.0 - run.1);
        println!("{name:<46}{with:>6}{with_min:>8}{without:>8}{without_min:>8}{dearer:>8}");
    }
}

struct Arguments {
    wanted: String,
    json: Option<String>,
}

impl Arguments {
    /// `cargo bench` passes `--bench` as well.
    fn parse() -> Self {
        let mut parsed = Self {
            wanted: String::new(),
            json: None,
        };
        let mut arguments = std::env::args().skip(1);
        while let Some(argument) = arguments.next() {
            match argument.as_str() {
                "--bench" => {}
                "--json" => parsed.json = arguments.next(),
                _ => parsed.wanted = argument,
            }
        }
        parsed
    }
}

/// A socket that takes no more; `shared`: with `SO_REUSEADDR`.
fn full_socket(port: u16, shared: bool) -> UdpSocket {
    let server = udp_socket((HOST_V4, port), 64 << 10);
    setsockopt(&server, sockopt::ReuseAddr, &shared).expect("a socket");
    fill(
        &UdpSocket::bind((HOST_V4, 0)).expect("a port"),
        (HOST_V4, port),
    );
    server
}

/// Leaves a full socket over its high watermark, with room for packets in profile.
fn overload(server: &UdpSocket) {
    let queued = usize::try_from(udp_occupancy(OVERLOADED)).expect("a small number");
    // The kernel doubles it.
    setsockopt(server, sockopt::RcvBufForce, &(queued * 50 / FILL)).expect("a receive buffer");
}

/// A server's socket for one client: it is looked up for each packet.
fn connected_socket(port: u16) -> UdpSocket {
    let socket = udp_socket((HOST_V4, port), 256 << 10);
    socket.connect((PEER_V4, 4000)).expect("a socket");
    socket
}

/// Four sockets among which a hash chooses, all of them full.
fn full_group(port: u16) -> [UdpSocket; 4] {
    let group = [(); 4].map(|()| group_member(port));
    for source in 0..32 {
        let source = UdpSocket::bind((HOST_V4, 20_000 + source)).expect("a port");
        fill(&source, (HOST_V4, port));
    }
    group
}

fn group_member(port: u16) -> UdpSocket {
    let kind = SockType::Datagram;
    let socket = socket(AddressFamily::Inet, kind, SockFlag::SOCK_CLOEXEC, None);
    let socket = socket.expect("a socket");
    setsockopt(&socket, sockopt::ReusePort, &true).expect("a socket");
    setsockopt(&socket, sockopt::RcvBuf, &(32 << 10)).expect("a receive buffer");
    let address = SockaddrIn::from(SocketAddrV4::new(HOST_V4, port));
    bind(socket.as_raw_fd(), &address).expect("a port");
    UdpSocket::from(socket)
}

fn frames(connection: &Connection) -> Vec<(&'static str, Vec<u8>)> {
    let forwarded = Packet::new(HOST_V4.into(), [203, 0, 113, 1].into());
    vec![
        ("not IP", vec![0; 64]),
        ("forwarded", forwarded.udp(1, 2, &[])),
        ("UDP, no socket", to_host(HOST_V4).udp(4000, 5999, &[])),
        (
            "UDP, socket with room",
            to_host(HOST_V4).udp(4000, 5000, &[]),
        ),
        (
            "UDP, full socket: discarded",
            to_host(HOST_V4).udp(4000, 5001, &[]),
        ),
        (
            "UDP, full socket that shares its port",
            to_host(HOST_V4).udp(4000, 5002, &[]),
        ),
        (
            "UDP, full group of four",
            to_host(HOST_V4).udp(4000, 5004, &[]),
        ),
        (
            "UDP, connected socket: looked up",
            to_host(HOST_V4).udp(4000, 5003, &[]),
        ),
        (
            "UDP over IPv6, no socket",
            to_host(HOST_V6).udp(4000, 5999, &[]),
        ),
        (
            "UDP over IPv6, socket with room",
            to_host(HOST_V6).udp(4000, 5000, &[]),
        ),
        (
            "TCP, no socket",
            to_host(HOST_V4).tcp(4000, 81, TcpFlags::SYN, &[]),
        ),
        (
            "TCP SYN, listener with room",
            to_host(HOST_V4).tcp(4000, 80, TcpFlags::SYN, &[]),
        ),
        (
            "TCP, established connection",
            connection.segment(0, TcpFlags::ACK, &[0; 1448]),
        ),
        (
            "TCP, end of a connection",
            connection.segment(0, TcpFlags::FIN_ACK, &[0; 1448]),
        ),
        (
            "TCP, outside of a connection's window",
            connection.segment(GIB, TcpFlags::ACK, &[0; 1448]),
        ),
    ]
}
