//! Frames that the kernel could not send at first leave later. Needs root.

use std::thread;
use std::time::{Duration, Instant};

use plimsoll_stack::device::xdp::{BareQueue, XdpConfig, XdpInterface};
use plimsoll_stack::device::{Batch, Device, HEADROOM_BYTES};

use crate::lan::{self, Lan};

const SOON: Duration = Duration::from_secs(10);

/// More than the ring holds.
fn frames(device: &impl Device) -> Batch {
    let count = XdpConfig::default().ring_frames + 50;
    let frame = |_| {
        let mut frame = device.pool().take().unwrap();
        frame.set_range(HEADROOM_BYTES..HEADROOM_BYTES + 60);
        frame.fill(0xff); // a broadcast of no protocol
        frame
    };
    (0..count).map(frame).collect()
}

/// The kernel sends inside of a call. A ring that was full when a call failed was never
/// looked at again: nobody put anything new into it.
#[test]
fn a_ring_that_filled_while_the_link_was_down_is_sent_when_it_is_up() {
    Lan::create(|| {
        let device = XdpInterface::open("stack0", &XdpConfig::default()).unwrap();
        let mut batch = frames(&device);
        let all = device.pool().available() + batch.len();
        lan::run("ip link set stack0 down");
        let taken = device.transmit(&mut batch).unwrap();
        assert_eq!(taken, XdpConfig::default().ring_frames as usize);
        assert_eq!(device.transmit(&mut batch).unwrap(), 0, "the ring is full");
        lan::run("ip link set stack0 up");
        let end = Instant::now() + SOON;
        while !batch.is_empty() {
            assert!(Instant::now() < end, "{} frames wait", batch.len());
            let _ = device.transmit(&mut batch);
            thread::sleep(Duration::from_millis(1));
        }
        // An empty batch is enough to get all frames back.
        while device.pool().available() < all {
            assert!(Instant::now() < end, "some frames are not given back");
            let _ = device.transmit(&mut batch);
            thread::sleep(Duration::from_millis(1));
        }
    });
}

/// Whoever waited for the rest to leave waited for a link that was down, or for good.
#[test]
fn nothing_is_about_to_leave_by_a_link_that_is_down_or_gone() {
    Lan::create(|| {
        let device = BareQueue::open("stack0", &XdpConfig::default(), None).unwrap();
        let all = device.pool().available();
        lan::run("ip link set stack0 down");
        device.transmit(&mut frames(&device)).unwrap();
        assert!(!device.is_sending(), "the link is down");
        lan::run("ip link set stack0 up");
        let end = Instant::now() + SOON;
        while device.is_sending() || device.pool().available() < all {
            assert!(Instant::now() < end, "it leaves when the link is up");
            let _ = device.transmit(&mut Batch::new());
            thread::sleep(Duration::from_millis(1));
        }
        lan::run("ip link set stack0 down");
        device.transmit(&mut frames(&device)).unwrap();
        lan::run("ip link del stack0");
        assert!(!device.is_sending(), "there is no link any more");
    });
}
