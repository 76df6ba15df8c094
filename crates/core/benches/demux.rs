//! What it costs to say which channel a frame goes on, among 10,000 endpoints.
//!
//! Goals: `goals.toml`. Each iteration takes another endpoint in random order,
//! so neither the table's slots nor the branch predictor can be warm for it.
//! The peers look the same endpoint up in a plain map by a key that is ready:
//! they parse nothing and know no wildcards, so they show the part that is the
//! look-up's, not an alternative.

mod common;
mod random;

use std::collections::HashMap;
use std::hash::BuildHasher;
use std::hint::black_box;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use plimsoll_core::demux::{ChannelId, Channels, Demux, DemuxConfig, Kind, Protocol, Seed};
use plimsoll_core::time::Instant;
use plimsoll_packets::frame::{self, Packet, TcpFlags};
use random::Random;

const ENDPOINTS: u32 = 10_000;
/// Frames are taken from as many buffers as a receive ring may have, so that
/// they come from the second-level cache, as after a copy by the adapter.
const FRAMES: usize = 4096;
const V4: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
const V6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1);

/// The other end of connection `number`: hosts and ports in no order.
fn remote(number: u32, v4: bool) -> SocketAddr {
    let mixed = Random(u64::from(number) + 1).next();
    let port = 1024 + (mixed >> 48) as u16 % 60_000;
    let address = if v4 {
        IpAddr::V4(Ipv4Addr::from_bits(0x0a00_0000 + (mixed as u32 >> 10)))
    } else {
        let bits = 0x2001_0db8_0001_0000_0000_0000_0000_0000 + u128::from(mixed);
        IpAddr::V6(Ipv6Addr::from_bits(bits))
    };
    SocketAddr::new(address, port)
}

fn bound(address: impl Into<IpAddr>, number: u32) -> SocketAddr {
    SocketAddr::new(address.into(), 20_000 + number as u16)
}

fn demux() -> Demux {
    let proxy = ChannelId(u32::MAX);
    let config = DemuxConfig {
        sockets_max: ENDPOINTS as usize + 1,
        tcp_connections_max: ENDPOINTS as usize,
        ..DemuxConfig::new(Channels {
            fragment: proxy,
            multicast: proxy,
            time_wait: proxy,
            icmp: proxy,
            neighbour: proxy,
            forward: proxy,
            closed_port: proxy,
            other: proxy,
            malformed: proxy,
        })
    };
    let mut demux = Demux::new(&config, Seed([0x1234, 0x5678])).expect("a valid config");
    for address in [V4.into(), V6.into()] {
        demux.add_local_address(address).expect("room");
    }
    demux
}

/// Frames to random ones of the endpoints, and which.
fn frames(mut frame: impl FnMut(u32) -> Vec<u8>) -> Vec<(Vec<u8>, u32)> {
    let mut random = Random::new();
    let number = || (random.next() >> 32) as u32 % ENDPOINTS;
    let numbers = std::iter::repeat_with(number).take(FRAMES);
    numbers.map(|number| (frame(number), number)).collect()
}

/// Measures `demux` on `frames`, after checking that each finds its channel.
fn measure(c: &mut Criterion, name: &str, mut demux: Demux, frames: &[(Vec<u8>, u32)], kind: Kind) {
    for (frame, number) in frames {
        let classified = demux.classify(frame, Instant::ZERO);
        assert_eq!(
            (classified.kind, classified.channel),
            (kind, ChannelId(*number))
        );
    }
    let mut group = c.benchmark_group("demux");
    group.bench_function(name, |b| {
        let mut turn = 0;
        b.iter(|| {
            turn = (turn + 1) % FRAMES;
            demux.classify(black_box(&frames[turn].0), Instant::ZERO)
        });
    });
    group.finish();
}

fn tcp_connections(c: &mut Criterion, name: &str, local: SocketAddr) {
    let v4 = local.is_ipv4();
    let mut demux = demux();
    for number in 0..ENDPOINTS {
        let remote = remote(number, v4);
        let connected = demux.connect(Protocol::Tcp, local, remote, ChannelId(number));
        connected.expect("each once");
    }
    let frames = frames(|number| frame::tcp(remote(number, v4), local, TcpFlags::ACK, b"x"));
    measure(c, name, demux, &frames, Kind::TcpConnection);
}

fn connections(c: &mut Criterion) {
    tcp_connections(c, "tcp_connection_ipv4", SocketAddr::new(V4.into(), 80));
    tcp_connections(c, "tcp_connection_ipv6", SocketAddr::new(V6.into(), 80));
}

/// UDP sockets at 10,000 ports: at the destination's own address, at its
/// wildcard, at the other family's. Connected sockets are looked through
/// before, and for the wildcards also a socket at a specific address.
fn sockets(c: &mut Criterion) {
    let cases = [
        ("udp_bound", IpAddr::from(V4), false),
        ("udp_wildcard", Ipv4Addr::UNSPECIFIED.into(), false),
        ("udp_dual_stack", Ipv6Addr::UNSPECIFIED.into(), true),
    ];
    for (name, address, dual_stack) in cases {
        let mut demux = demux();
        for number in 0..ENDPOINTS {
            let at = bound(address, number);
            let bound = demux.bind(Protocol::Udp, at, dual_stack, ChannelId(number));
            bound.expect("each once");
        }
        let local = SocketAddr::new(V4.into(), 53);
        let other = ChannelId(u32::MAX);
        for number in 0..1000 {
            let connected = demux.connect(Protocol::Udp, local, remote(number, true), other);
            connected.expect("each once");
        }
        let beside = demux.bind(Protocol::Udp, local, false, other);
        beside.expect("there is room");
        let frames = frames(|number| frame::udp(remote(number, true), bound(V4, number), b"x"));
        measure(c, name, demux, &frames, Kind::UdpSocket);
    }
}

/// A SYN for a listener among 10,000 connections: the most look-ups there are.
fn listener(c: &mut Criterion) {
    let mut demux = demux();
    let local = SocketAddr::new(V4.into(), 80);
    for number in 0..ENDPOINTS {
        let connected = demux.connect(
            Protocol::Tcp,
            local,
            remote(number, true),
            ChannelId(number),
        );
        connected.expect("each once");
    }
    let elsewhere = SocketAddr::new(V4.into(), 22);
    demux
        .bind(Protocol::Tcp, elsewhere, false, ChannelId(1))
        .expect("it is free");
    let wildcard = SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), 81);
    demux
        .bind(Protocol::Tcp, wildcard, true, ChannelId(7))
        .expect("it is free");
    let to = SocketAddr::new(V4.into(), 81);
    let mut frames = frames(|number| frame::tcp(remote(number, true), to, TcpFlags::SYN, b""));
    frames.iter_mut().for_each(|frame| frame.1 = 7);
    measure(
        c,
        "tcp_listener_dual_stack",
        demux,
        &frames,
        Kind::TcpListener,
    );
}

/// What a plain map takes for the look-up of an IPv4 connection alone.
fn plain_maps(c: &mut Criterion) {
    plain_map(
        c,
        "std HashMap look-up alone",
        std::hash::RandomState::new(),
    );
    plain_map(
        c,
        "foldhash HashMap look-up alone",
        foldhash::fast::RandomState::default(),
    );
}

fn plain_map(c: &mut Criterion, peer: &str, state: impl BuildHasher) {
    let mut map = HashMap::with_hasher(state);
    let local = SocketAddr::new(V4.into(), 80);
    let key = |number| {
        let remote = remote(number, true);
        let IpAddr::V4(address) = remote.ip() else {
            unreachable!("asked for IPv4")
        };
        (V4, address, local.port(), remote.port())
    };
    for number in 0..ENDPOINTS {
        map.insert(key(number), ChannelId(number));
    }
    let mut random = Random::new();
    let number = || (random.next() >> 32) as u32 % ENDPOINTS;
    let keys: Vec<_> = std::iter::repeat_with(number)
        .take(FRAMES)
        .map(key)
        .collect();
    let mut group = c.benchmark_group("demux");
    group.bench_function(BenchmarkId::new("tcp_connection_ipv4", peer), |b| {
        let mut turn = 0;
        b.iter(|| {
            turn = (turn + 1) % FRAMES;
            map.get(black_box(&keys[turn])).copied()
        });
    });
    group.finish();
}

/// Frames that end at a proxy: no endpoint is looked for.
fn proxies(c: &mut Criterion) {
    let peer = IpAddr::from(Ipv4Addr::new(192, 0, 2, 2));
    let forward = Packet::new(peer, Ipv4Addr::new(198, 51, 100, 1).into()).udp(9, 9, b"x");
    let frames = vec![(forward, u32::MAX); FRAMES];
    measure(c, "forward", demux(), &frames, Kind::Forward);
}

criterion_group! {
    name = benches;
    config = common::criterion();
    targets = connections, sockets, listener, plain_maps, proxies
}
criterion_main!(benches);
