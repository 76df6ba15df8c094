//! The stack on a packet socket, where frames may be longer than the interface takes: answers, and
//! several segments that came in one. Needs root.

use std::net::{TcpStream, UdpSocket as KernelSocket};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use plimsoll_stack::device::packet::PacketDevice;
use plimsoll_stack::device::{Batch, Device};
use plimsoll_stack::{Stack, TcpListener, UdpSocket};

use crate::lan::{self, Lan, SOON, config, content, run, transfer};

/// A datagram to the stack and back.
fn echo(server: &UdpSocket) {
    let client = KernelSocket::bind("10.0.0.1:0").unwrap();
    client.set_read_timeout(Some(SOON)).unwrap();
    client.send_to(b"still there", "10.0.0.2:7").unwrap();
    let mut buffer = [0; 100];
    let (length, from) = server.recv_from(&mut buffer).unwrap();
    server.send_to(&buffer[..length], from).unwrap();
    assert_eq!(client.recv(&mut buffer).unwrap(), b"still there".len());
}

fn wait_for_unsent(stack: &Stack, frames: u64) {
    let end = Instant::now() + SOON;
    while stack.unsent() != frames {
        assert!(Instant::now() < end, "{} of {frames}", stack.unsent());
        thread::sleep(Duration::from_millis(1));
    }
}

/// The kernel refuses a frame that is longer than the interface takes. The stack took that for the
/// end of its device, and all its sockets closed: one long ping was enough.
#[test]
fn an_answer_that_is_too_long_for_the_link_ends_nothing() {
    Lan::create(|| {
        let device = PacketDevice::open("stack0").unwrap();
        let stack = Stack::start(device, &config("soft-lrp")).unwrap();
        let server = UdpSocket::bind(&stack, "10.0.0.2:7").unwrap();
        server.set_read_timeout(Some(SOON)).unwrap();
        echo(&server);
        assert_eq!(stack.unsent(), 0);
        run("ip link set kernel0 mtu 1504");
        let mut ping = Command::new("ping");
        ping.args(["-c", "1", "-W", "1", "-s", "1476", "10.0.0.2"]);
        ping.stdout(Stdio::null()).status().unwrap();
        wait_for_unsent(&stack, 1);
        echo(&server);
        assert!(stack.failure().is_none(), "{:?}", stack.failure());
        // An operator lowers what the link takes.
        run("ip link set stack0 mtu 1400");
        server.send_to(&[0; 1472], "10.0.0.1:9").unwrap();
        echo(&server);
        wait_for_unsent(&stack, 2);
    });
}

#[test]
fn frames_that_no_interface_takes_are_counted_and_the_next_ones_leave() {
    Lan::create(|| {
        let device = PacketDevice::open("stack0").unwrap();
        let frame = |bytes: usize| {
            let mut frame = device.pool().take().unwrap();
            assert!(frame.copy_from(&vec![0xff; bytes]));
            frame
        };
        let mut batch: Batch = [1515, 13, 60].map(frame).into();
        assert_eq!(device.transmit(&mut batch).unwrap(), 3);
        assert_eq!(device.unsent(), 2);
    });
}

/// A block of the ring counts as used with one frame as well, and is handed over after a millisecond:
/// whoever was sixteen milliseconds late lost frames of a trickle.
#[test]
fn frames_that_come_slowly_wait_for_who_is_late() {
    const FRAMES: usize = 100;
    /// For local experiments (IEEE 802).
    const KIND: [u8; 2] = [0x88, 0xb5];
    Lan::create(|| {
        let device = PacketDevice::open("stack0").unwrap();
        let sender = PacketDevice::open("kernel0").unwrap();
        for _ in 0..FRAMES {
            let mut frame = sender.pool().take().unwrap();
            assert!(frame.copy_from(&[[0xff; 12].as_slice(), &KIND, &[0; 46]].concat()));
            sender.transmit(&mut Batch::from([frame])).unwrap();
            thread::sleep(Duration::from_millis(1));
        }
        let (mut batch, mut came) = (Batch::new(), 0);
        let end = Instant::now() + SOON;
        while came < FRAMES && device.drops().ring_full == 0 {
            assert!(Instant::now() < end, "{came} of {FRAMES}");
            device.receive(&mut batch, FRAMES).unwrap();
            came += batch
                .drain(..)
                .filter(|frame| frame[12..14] == KIND)
                .count();
        }
        assert_eq!(device.drops().ring_full, 0, "{came} came");
    });
}

/// Several segments in one frame did not fit a buffer, and were lost together. Each of them had
/// to be sent again alone.
#[test]
fn segments_that_came_in_one_frame_arrive() {
    for offload in [
        // The kernel merges what was received.
        "ethtool -K stack0 gro on",
        // The other end leaves it to its adapter to cut segments, and to write checksums.
        "ethtool -K kernel0 tx on tso on gso on",
    ] {
        Lan::create(|| {
            run(offload);
            let device = PacketDevice::open("stack0").unwrap();
            let stack = Stack::start(device, &config("polled")).unwrap();
            let sent = content(400_000);
            for address in ["10.0.0.2:80", "[fd00::2]:80"] {
                let listener = TcpListener::bind(&stack, address).unwrap();
                let mut kernels = TcpStream::connect(address).unwrap();
                let mut accepted = listener.accept().unwrap().0;
                transfer(&mut kernels, &mut accepted, &sent);
                transfer(&mut accepted, &mut kernels, &sent);
            }
            assert_eq!(stack.device_drops().invalid, 0, "{offload}");
            lan::assert_sums(&stack);
        });
    }
}
