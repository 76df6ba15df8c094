//! The XDP program is told how much room receive rings have, and drops the rest before the
//! kernel copies it. Needs root.

use std::net::UdpSocket as KernelSocket;
use std::process::Command;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use plimsoll_core::demux::Protocol;
use plimsoll_stack::device::xdp::{XdpConfig, XdpInterface};
use plimsoll_stack::device::{Batch, Device, Endpoint};

use crate::lan::{Lan, SOON, owned, run, xdp};

const RING: u64 = 64;
/// `TRY_EVERY` of the program.
const TRY_EVERY: u64 = 32;

/// The device and a sender that knows where it is.
fn open(config: &XdpConfig) -> (XdpInterface, KernelSocket) {
    let device = xdp(config);
    let mac = device.mac().map(|byte| format!("{byte:02x}")).join(":");
    run(&format!("ip neigh add 10.0.0.2 lladdr {mac} dev kernel0"));
    (device, KernelSocket::bind("10.0.0.1:0").unwrap())
}

fn endpoint(device: &XdpInterface, port: u16) -> Arc<dyn Device> {
    let local = format!("10.0.0.2:{port}").parse().unwrap();
    let protocol = Protocol::Udp;
    device.open_endpoint(Endpoint { protocol, local }).unwrap()
}

/// With pauses, since the link's own queue is short.
fn send(client: &KernelSocket, port: u16, count: u64) {
    for sent in 0..count {
        if sent % 32 == 31 {
            thread::sleep(Duration::from_millis(2));
        }
        client.send_to(b"x", ("10.0.0.2", port)).unwrap();
    }
}

/// Receives until `done` says so of what was received.
fn receive_until(device: &dyn Device, done: impl Fn(u64) -> bool) -> u64 {
    let (end, mut batch, mut received) = (Instant::now() + SOON, Batch::new(), 0);
    while !done(received) {
        received += device.receive(&mut batch, 64).unwrap() as u64;
        batch.clear();
        assert!(Instant::now() < end, "{received} frames came");
    }
    received
}

/// Waits until `sent` frames ended in the ring or were dropped.
fn wait_for_drops(device: &dyn Device, dropped: u64) {
    let end = Instant::now() + SOON;
    loop {
        let drops = device.drops();
        if drops.early + drops.ring_full + drops.no_buffer >= dropped {
            return;
        }
        assert!(Instant::now() < end, "{drops:?}, {}", links());
    }
}

/// What each link counts.
fn links() -> String {
    let shown = Command::new("ip").args(["-s", "-s", "link"]).output();
    String::from_utf8_lossy(&shown.unwrap().stdout).into_owned()
}

#[test]
fn frames_without_room_are_dropped_before_they_are_copied() {
    Lan::create(|| {
        let config = XdpConfig {
            ring_frames: RING as u32,
            ..owned()
        };
        let (device, client) = open(&config);
        let (flooded, calm) = (endpoint(&device, 7), endpoint(&device, 8));
        let beyond = 10 * TRY_EVERY;
        send(&client, 7, RING + beyond);
        wait_for_drops(&*flooded, beyond);
        let drops = flooded.drops();
        assert_eq!(drops.early + drops.ring_full, beyond, "{drops:?}");
        // The first of them, too, and whichever came after a pause.
        let tried = beyond / TRY_EVERY + 1..=beyond / TRY_EVERY + 10;
        assert!(tried.contains(&drops.ring_full), "tried: {drops:?}");
        // Another endpoint's room is its own.
        send(&client, 8, RING);
        receive_until(&*calm, |received| received == RING);
        assert_eq!(calm.drops().early, 0);
        // What is taken makes room again.
        receive_until(&*flooded, |received| received == RING);
        send(&client, 7, RING);
        receive_until(&*flooded, |received| received == RING);
        assert_eq!(flooded.drops(), drops);
        // A new socket of the same number begins anew.
        drop(flooded);
        let anew = endpoint(&device, 7);
        assert_eq!(anew.drops().early, 0);
        send(&client, 7, RING);
        receive_until(&*anew, |received| received == RING);
    });
}

#[test]
fn a_socket_whose_frames_found_no_buffer_gets_some_again() {
    Lan::create(|| {
        let config = XdpConfig {
            chunks: 64,
            send_frames: 0,
            ring_frames: RING as u32,
            ..owned()
        };
        let (device, client) = open(&config);
        let (greedy, calm) = (endpoint(&device, 7), endpoint(&device, 8));
        // One has all buffers, so the other's frames are given to it and lost.
        send(&client, 7, 64);
        send(&client, 8, 2 * RING);
        wait_for_drops(&*calm, 2 * RING);
        assert!(calm.drops().early > 0, "{:?}", calm.drops());
        receive_until(&*greedy, |received| received == 64);
        // Only the next call gives the buffers back.
        greedy.receive(&mut Batch::new(), 1).unwrap();
        // Nobody asked the other socket meanwhile, as it sleeps. It must be woken.
        send(&client, 8, TRY_EVERY);
        let woken = receive_until(&*calm, |received| received > 0);
        assert_eq!(woken, 1);
        send(&client, 8, RING / 2);
        receive_until(&*calm, |received| received == RING / 2);
    });
}
