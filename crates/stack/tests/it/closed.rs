//! What becomes of the AF_XDP sockets of endpoints that are dropped. Needs root.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use plimsoll_core::demux::Protocol;
use plimsoll_stack::device::xdp::XdpInterface;
use plimsoll_stack::device::{Device, Endpoint};

use crate::lan::{Lan, alone, owned, xdp};

const SOCKETS: u16 = 200;

/// Sockets that this process has: it has one test.
fn sockets() -> usize {
    let all = fs::read_dir("/proc/self/fd").unwrap();
    let links = all.filter_map(|one| fs::read_link(one.unwrap().path()).ok());
    let is_socket = |link: &PathBuf| link.to_string_lossy().starts_with("socket:");
    links.filter(is_socket).count()
}

fn open(device: &XdpInterface, number: u16) -> Arc<dyn Device> {
    let endpoint = Endpoint {
        protocol: Protocol::Udp,
        local: ([10, 0, 0, 2], 1000 + number).into(),
    };
    device.open_endpoint(endpoint).unwrap()
}

/// Two of the kernel's grace periods went by for each, one after the other: a thousand sockets took 25 s.
#[test]
fn sockets_that_are_dropped_one_after_the_other_are_closed_together() {
    const NAME: &str = "closed::sockets_that_are_dropped_one_after_the_other_are_closed_together";
    alone(NAME, || Lan::create(drop_one_after_the_other));
}

fn drop_one_after_the_other() {
    let before = sockets();
    let device = xdp(&owned());
    let mains = sockets();
    let all: Vec<_> = (0..SOCKETS).map(|number| open(&device, number)).collect();
    assert_eq!(sockets(), mains + usize::from(SOCKETS));
    let (mut left, mut together) = (usize::from(SOCKETS), 0);
    for one in all {
        drop(one);
        left -= 1;
        together = together.max(sockets() - mains - left);
    }
    assert!(
        (2..=64).contains(&together),
        "{together} are closed at a time"
    );
    // Their places are free at once.
    let again: Vec<_> = (0..SOCKETS).map(|number| open(&device, number)).collect();
    drop(again);
    // Nothing is left behind, and nobody has the interface.
    drop(device);
    assert_eq!(sockets(), before);
    drop(xdp(&owned()));
}
