//! Idle CPUs process what waits for receiving calls (LRP-34).

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use caps::{CapSet, Capability};
use plimsoll_packets::frame;
use plimsoll_stack::device::simulated::{SimulatedConfig, SimulatedDevice};
use plimsoll_stack::{Counts, Error, Outcome, Stack, StackConfig, UdpSocket};

/// No test waits longer for what must come.
const SOON: Duration = Duration::from_secs(20);

fn config(path: &str) -> StackConfig {
    StackConfig {
        path: path.parse().unwrap(),
        work_ahead: true,
        ..StackConfig::at("10.0.0.2/24".parse().unwrap())
    }
}

fn start(path: &str) -> (SimulatedDevice, Stack, UdpSocket) {
    let (cable, device) = SimulatedDevice::pair(&SimulatedConfig::default()).unwrap();
    let stack = Stack::start(device, &config(path)).unwrap();
    let socket = UdpSocket::bind(&stack, "10.0.0.2:7").unwrap();
    socket.set_read_timeout(Some(SOON)).unwrap();
    (cable, stack, socket)
}

/// A datagram that says which it is.
fn datagram(number: u32) -> Vec<u8> {
    let (from, to) = ("10.0.0.1:5".parse(), "10.0.0.2:7".parse());
    let mut frame = frame::udp(from.unwrap(), to.unwrap(), &number.to_be_bytes());
    frame[..6].fill(0xff);
    frame
}

fn eventually(stack: &Stack, what: &str, holds: impl Fn(&Counts) -> bool) {
    let end = Instant::now() + SOON;
    loop {
        let counts = stack.counts();
        if holds(&counts) {
            return;
        }
        assert!(Instant::now() < end, "{what}: {counts:?}");
        thread::sleep(Duration::from_millis(1));
    }
}

fn received(socket: &UdpSocket) -> u32 {
    let mut number = [0; 4];
    assert_eq!(socket.recv(&mut number).unwrap(), 4);
    u32::from_be_bytes(number)
}

/// Nobody asks, and damaged datagrams are found nevertheless. What is whole arrives in its
/// order, and is counted as queued until then.
#[test]
fn what_waits_is_processed_before_anybody_asks() {
    for path in ["soft-lrp", "soft-timer-polling"] {
        let (cable, stack, socket) = start(path);
        let mut damaged = datagram(0);
        *damaged.last_mut().unwrap() ^= 1;
        for number in 1..=30 {
            cable.send(&datagram(number));
            cable.send(&damaged);
        }
        eventually(&stack, path, |counts| counts[Outcome::Checksum] == 30);
        let counts = stack.counts();
        assert_eq!(
            (counts.received, counts.queued),
            (60, 30),
            "{path}: {counts:?}"
        );
        for number in 1..=30 {
            assert_eq!(received(&socket), number, "{path}");
        }
        let counts = stack.counts();
        assert_eq!(
            (counts[Outcome::Delivered], counts.queued),
            (30, 0),
            "{counts:?}"
        );
    }
}

/// The channel's bound holds beside 64 that are processed: 256 + 64, and the rest is lost.
#[test]
fn no_more_than_64_are_processed_ahead() {
    let (cable, stack, socket) = start("soft-lrp");
    let (mut sent, mut full) = (0_u32, 0);
    let end = Instant::now() + SOON;
    // The channel takes more as long as the idle thread takes from it.
    while full < 20 {
        for _ in 0..100 {
            cable.send(&datagram(sent));
            sent += 1;
        }
        eventually(&stack, "taken from the cable", |counts| {
            counts.received == u64::from(sent) && counts.ended() + counts.queued == counts.received
        });
        let counts = stack.counts();
        assert!(counts.queued <= 256 + 64, "{counts:?}");
        full += u32::from(counts.queued == 256 + 64);
        assert!(Instant::now() < end, "not full: {counts:?}");
    }
    drop(socket);
    let counts = stack.counts();
    assert_eq!(counts[Outcome::Closed], 256 + 64, "{counts:?}");
    assert_eq!(counts.received, counts.ended(), "{counts:?}");
}

/// Every CPU has other work: receivers get their datagrams, and the stack ends.
#[test]
fn with_busy_cpus_nobody_waits_for_the_idle_thread() {
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..2 * thread::available_parallelism().unwrap().get() {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
        }
        let (cable, stack, socket) = start("soft-lrp");
        for number in 0..500 {
            cable.send(&datagram(number));
            assert_eq!(received(&socket), number);
        }
        drop((socket, stack));
        over.store(true, Ordering::Relaxed);
    });
}

#[test]
fn it_is_refused_where_it_cannot_work() {
    let (_cable, device) = SimulatedDevice::pair(&SimulatedConfig::default()).unwrap();
    let refused = Stack::start(device, &config("eager")).unwrap_err();
    assert!(
        matches!(
            refused,
            Error::Config {
                field: "work_ahead",
                ..
            }
        ),
        "{refused}"
    );
    thread::spawn(|| {
        caps::drop(None, CapSet::Effective, Capability::CAP_SYS_NICE).unwrap();
        let (_cable, device) = SimulatedDevice::pair(&SimulatedConfig::default()).unwrap();
        let refused = Stack::start(device, &config("soft-lrp")).unwrap_err();
        assert!(refused.to_string().contains("CAP_SYS_NICE"), "{refused}");
    })
    .join()
    .unwrap();
}
