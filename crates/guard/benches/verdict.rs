//! What the verdict costs per packet, by the kernel's test-run facility: the
//! program alone, on one hot frame, without driver and memory. Needs root.
//!
//! Prints the median of several runs and their spread in nanoseconds. An argument
//! chooses frames by name; `--json FILE` writes all runs as one document, for
//! `plimsoll bench guard`.

#[path = "../tests/common/mod.rs"]
mod common;

use std::net::{TcpListener, TcpStream, UdpSocket};

use common::{HOST_V4, HOST_V6, fill, in_namespace, to_host, udp_socket};
use nix::sys::socket::{setsockopt, sockopt};
use plimsoll_guard::{Config, Guard, Storage};
use plimsoll_packets::frame::{Packet, TcpFlags};
use plimsoll_report::{Machine, SCHEMA};

const REPEAT: u32 = 1_000_000;
const RUNS: usize = 15;

fn main() {
    // Before this thread is bound to one CPU.
    let machine = Machine::read(None);
    in_namespace(|| {
        let mut storage = Storage::default();
        let mut guard = Guard::load(&mut storage, &Config::default()).expect("the guard loads");
        let _empty = udp_socket((HOST_V4, 5000), 256 << 10);
        let _full = full_socket(5001, false);
        let _full_shared = full_socket(5002, true);
        let _six = udp_socket((HOST_V6, 5000), 256 << 10);
        let _listener = TcpListener::bind((HOST_V4, 80)).expect("a port");
        let connection = TcpStream::connect((HOST_V4, 80)).expect("loopback");
        let port = connection.local_addr().expect("connected").port();

        println!(
            "{:<44}{:>8}{:>8}{:>8}  ns per packet, {RUNS} runs of {REPEAT}",
            "", "median", "min", "max"
        );
        let Arguments { wanted, json } = Arguments::parse();
        let mut results = Vec::new();
        for (name, frame) in frames(port)
            .into_iter()
            .filter(|(name, _)| name.contains(&wanted))
        {
            let mut runs: Vec<u128> = (0..RUNS)
                .map(|_| {
                    guard
                        .test_run(&frame, REPEAT)
                        .expect("test-run")
                        .1
                        .as_nanos()
                })
                .collect();
            runs.sort_unstable();
            println!(
                "{name:<44}{:>8}{:>8}{:>8}",
                runs[RUNS / 2],
                runs[0],
                runs[RUNS - 1]
            );
            results.push(serde_json::json!({ "frame": name, "ns": runs }));
        }
        if let Some(file) = json {
            let document = serde_json::json!({
                "schema": SCHEMA, "machine": machine,
                "results": { "frames": results }, "goals": [],
            });
            std::fs::write(&file, format!("{document:#}\n")).expect("the file can be written");
        }
    });
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

/// A socket that takes no more; `shared`: with `SO_REUSEADDR`, so that its
/// destination alone does not tell it.
fn full_socket(port: u16, shared: bool) -> UdpSocket {
    let server = udp_socket((HOST_V4, port), 64 << 10);
    setsockopt(&server, sockopt::ReuseAddr, &shared).expect("a socket");
    fill(
        &UdpSocket::bind((HOST_V4, 0)).expect("a port"),
        (HOST_V4, port),
    );
    server
}

fn frames(connected_port: u16) -> Vec<(&'static str, Vec<u8>)> {
    let own = Packet::new(HOST_V4.into(), HOST_V4.into());
    let forwarded = Packet::new(HOST_V4.into(), [203, 0, 113, 1].into());
    vec![
        ("not IP (what the facility itself costs)", vec![0; 64]),
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
            own.tcp(connected_port, 80, TcpFlags::ACK, &[]),
        ),
    ]
}
