//! The steering program on frames of the kernel's test-run facility, for tests. Needs root.

use std::mem::MaybeUninit;
use std::net::{Ipv4Addr, SocketAddr};

use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use libbpf_rs::{MapCore, MapFlags, ProgramInput};
use plimsoll_packets::frame;

use super::program::{SteerSkel, SteerSkelBuilder, possession, steer_limit};

pub(super) const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
pub(super) const HOST: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);

const SHARED: u8 = possession::SHARED.0 as u8;

/// A datagram for this port.
pub(super) fn to(port: u16) -> Vec<u8> {
    let source = SocketAddr::from((CLIENT, 1000));
    frame::udp(source, SocketAddr::from((HOST, port)), b"x")
}

/// The program with socket 1 for port 7, socket 2 for port 8, and a group of both for 9, all at
/// any address of IPv4.
pub(super) fn with_program(counts_company: bool, test: impl FnOnce(&SteerSkel<'_>)) {
    let mut place = MaybeUninit::uninit();
    let builder = SteerSkelBuilder::default();
    let mut open = builder.open(&mut place).expect("run as root");
    let constants = open.maps.rodata_data.as_deref_mut().unwrap();
    constants.counts_company = counts_company.into();
    let program = open.load().unwrap();
    program
        .maps
        .addresses
        .update(&HOST.to_ipv6_mapped().octets(), &[SHARED], MapFlags::ANY)
        .unwrap();
    for (port, entry) in [(7_u32, 1), (8, 2), (9, steer_limit::GROUP.0)] {
        let value = ((entry + 1_u32) | steer_limit::IPV4_ALONE.0).to_ne_bytes();
        let everywhere = &program.maps.everywhere;
        everywhere
            .update(&port.to_ne_bytes(), &value, MapFlags::ANY)
            .unwrap();
    }
    test(&program);
}

/// The verdict on a frame of queue 0. Where it goes to a socket that is not there, it is the
/// kernel's.
pub(super) fn verdict(program: &SteerSkel<'_>, frame: &[u8]) -> u32 {
    let input = ProgramInput {
        data_in: Some(frame),
        repeat: 1,
        ..ProgramInput::default()
    };
    program.progs.steer.test_run(input).unwrap().return_value
}
