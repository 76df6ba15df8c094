//! TCP through a bottleneck: what its sender loses by itself. Judged by counts.

use std::io::{Read, Write};
use std::thread;
use std::time::Duration;

use plimsoll_stack::device::simulated::{SimulatedConfig, SimulatedDevice};
use plimsoll_stack::{Stack, StackConfig, TcpConfig, TcpListener, TcpStream};

use crate::line::{Beyond, Line, Shape};

/// No test waits longer for what must come.
const SOON: Duration = Duration::from_secs(20);
const BYTES: usize = 2 << 20;
const SEGMENTS: u64 = (BYTES / 1460) as u64;

/// Sends [`BYTES`] through the bottleneck. Returns how many frames it lost, and how many the
/// sender's stack could not send.
fn send_through(shape: Shape) -> (u64, u64) {
    let cable = SimulatedConfig {
        ring_frames: 4096,
        ..SimulatedConfig::default()
    };
    let (one, other) = SimulatedDevice::pair(&cable).unwrap();
    let tcp = TcpConfig {
        buffer_bytes: 1 << 20,
        channel_segments: 1024,
        ..TcpConfig::default()
    };
    let config = |last: u8| StackConfig {
        tcp,
        ..StackConfig::at(format!("10.0.0.{last}/24").parse().unwrap())
    };
    let client = Stack::start(one, &config(1)).unwrap();
    let line = Line::new(other, shape);
    let losses = line.losses();
    let server = Stack::start(line, &config(2)).unwrap();
    let listener = TcpListener::bind(&server, "10.0.0.2:80").unwrap();
    let mut here = TcpStream::connect(&client, "10.0.0.2:80").unwrap();
    let mut there = listener.accept().unwrap().0;
    here.set_read_timeout(Some(SOON)).unwrap();
    there.set_write_timeout(Some(SOON)).unwrap();
    thread::scope(|scope| {
        scope.spawn(|| there.write_all(&vec![7; BYTES]).unwrap());
        let mut received = vec![0; BYTES];
        here.read_exact(&mut received).unwrap();
        assert!(received.iter().all(|byte| *byte == 7));
    });
    (losses(), server.unsent())
}

/// Slow start went on until the path's queue overflowed. Half a window was lost then, of
/// which a sender without selective acknowledgements mends a segment per round trip: 10,000
/// packets over 100 ms took 30 s.
#[test]
fn slow_start_ends_before_the_path_overflows() {
    let (lost, _) = send_through(Shape {
        frame_time: Duration::from_micros(200),
        delay: Duration::from_millis(20),
        queue_frames: 100,
        beyond: Beyond::Lost,
    });
    assert!(lost <= SEGMENTS / 50, "{lost} of {SEGMENTS} were lost");
}

/// What found no place in a device's ring was dropped, and TCP took it for loss on the path.
#[test]
fn a_full_ring_holds_the_sender_up_and_loses_nothing() {
    let (lost, unsent) = send_through(Shape {
        frame_time: Duration::from_micros(50),
        delay: Duration::ZERO,
        queue_frames: 16,
        beyond: Beyond::Kept,
    });
    assert_eq!((lost, unsent), (0, 0));
}
