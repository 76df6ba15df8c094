//! Thousands of sockets, as many as the settings allow. Alone in its process, whose descriptors are many.

use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use plimsoll_core::channel::ChannelConfig;
use plimsoll_core::demux::Protocol;
use plimsoll_stack::device::simulated::{SimulatedConfig, SimulatedDevice};
use plimsoll_stack::device::{Device, Endpoint};
use plimsoll_stack::{Stack, StackConfig, UdpSocket};

use crate::lan::{Lan, owned, xdp};

/// More than the demultiplexer has room for by default. Each has a descriptor.
const SOCKETS: u16 = 5000;

fn stack(channels_max: u32) -> (SimulatedDevice, Stack) {
    let (cable, device) = SimulatedDevice::pair(&SimulatedConfig::default()).unwrap();
    let config = StackConfig {
        channels_max,
        channel: ChannelConfig::drop_tail(2),
        ..StackConfig::at("10.0.0.2/24".parse().unwrap())
    };
    (cable, Stack::start(device, &config).unwrap())
}

/// At 4096 sockets, 1024 connected ones and 256 groups they were refused, with a remedy that no program has.
#[test]
fn there_are_as_many_sockets_as_the_settings_say() {
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, most, most).unwrap();
    let (_cable, stack) = stack(SOCKETS.into());
    let bind = |port| UdpSocket::bind(&stack, (Ipv4Addr::new(10, 0, 0, 2), port));
    let sockets: Vec<_> = (1..=SOCKETS).map(|port| bind(port).unwrap()).collect();
    for (socket, port) in sockets.iter().zip(1..) {
        socket.connect((Ipv4Addr::new(10, 0, 0, 1), port)).unwrap();
    }
    for number in 0..SOCKETS / 10 {
        let group = Ipv4Addr::from_bits(Ipv4Addr::new(239, 0, 0, 1).to_bits() + u32::from(number));
        sockets[0].join_multicast(group.into()).unwrap();
    }
    // Channels that the stack itself does not use may be sockets', too.
    let more: Vec<_> = (SOCKETS + 1..SOCKETS + 10).map(bind).collect();
    let refused = more.into_iter().find_map(Result::err);
    let refused = refused.expect("there is a limit");
    assert_eq!(refused.kind(), ErrorKind::OutOfMemory);
    assert!(refused.to_string().contains("`channels_max`"), "{refused}");
}

#[test]
fn who_is_in_too_many_groups_learns_what_to_do() {
    let (_cable, stack) = stack(2);
    let socket = UdpSocket::bind(&stack, "10.0.0.2:7").unwrap();
    let mut groups = (1..=u16::MAX).map(|n| IpAddr::from([239, 0, (n >> 8) as u8, n as u8]));
    let refused = groups.find_map(|group| socket.join_multicast(group).err());
    let refused = refused.expect("there is a limit");
    assert_eq!(refused.kind(), ErrorKind::OutOfMemory);
    assert!(refused.to_string().contains("`channels_max`"), "{refused}");
}

/// "Argument list too long" was all that it said.
#[test]
fn af_xdp_says_how_many_sockets_it_knows_at_single_addresses() {
    Lan::create(|| {
        let device = xdp(&owned());
        let mut ends = (1..=u16::MAX).map(|port| SocketAddr::from(([10, 0, 0, 2], port)));
        let protocol = Protocol::Udp;
        let refused = ends.find_map(|local| device.claim(Endpoint { protocol, local }).err());
        let refused = refused.expect("there is a limit");
        assert_eq!(refused.kind(), ErrorKind::OutOfMemory, "{refused}");
        assert!(refused.to_string().contains("wildcard"), "{refused}");
        let local = SocketAddr::from(([0, 0, 0, 0], 9999));
        device.claim(Endpoint { protocol, local }).unwrap();
    });
}
