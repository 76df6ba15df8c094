//! The kernel polls beneath the program while a flood is alone, and above it as soon as anybody
//! else comes. Needs root.

use std::net::UdpSocket as KernelSocket;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use plimsoll_kernel::knobs::{Attribute, Device as Sysfs, Netdev};
use plimsoll_kernel::link;
use plimsoll_kernel::scheduling::Scheduling;
use plimsoll_stack::device::xdp::{Threaded, XdpConfig, XdpInterface};
use plimsoll_stack::{Stack, StackConfig, UdpSocket};
use plimsoll_tries::repeated_test;

use crate::lan::{self, Far, Lan, config, xdp};

const FLOODED: u16 = 7;
const OTHER: u16 = 8;
const KERNEL: u16 = 9;
/// No test waits longer; a flood ends by itself then. Quiet must last twice as long as company
/// was away before.
const LIMIT: Duration = Duration::from_secs(40);
/// The shortest time without company, less an interval.
const QUIET: Duration = Duration::from_millis(450);
/// A client that begins sends so many, 100 in a second.
const ASKED: u64 = 100;
/// It is noticed at the next look at the latest: after 250 ms, with some intervals to spare.
const LOST_MAX: u64 = 30;

/// How the threads that poll the interface are scheduled.
fn polling_threads() -> Vec<Scheduling> {
    let instances = Netdev::new().instances(link::index("stack0").unwrap());
    let instances = instances.unwrap().into_iter();
    let threads = instances.filter_map(|napi| napi.thread);
    threads.map(|tid| Scheduling::of(tid).unwrap()).collect()
}

/// The kernel's own questions are company, too: of neighbours that nobody confirms, and for
/// routers. They came at any time, and each was waited for twice as long as it had been away.
fn without_questions(far: &Far) {
    let link = link::link(link::index("stack0").unwrap()).unwrap();
    let mac = link.mac.unwrap().map(|byte| format!("{byte:02x}"));
    let mac = mac.join(":");
    far.run(|| {
        std::fs::write("/proc/sys/net/ipv6/conf/kernel0/disable_ipv6", "1").unwrap();
        lan::run(&format!(
            "ip neigh replace 10.0.0.2 lladdr {mac} dev kernel0 nud permanent"
        ));
    });
}

/// What the kernel says of the interface's one thread.
fn place() -> String {
    let threads = polling_threads();
    assert_eq!(threads.len(), 1, "{threads:?}");
    threads[0].to_string()
}

/// `SCHED_FIFO`, before every process.
fn is_above() -> bool {
    place().starts_with("policy 1,")
}

fn is_beneath() -> bool {
    let own = Scheduling::of(0).unwrap().nice();
    let nice = (own + i32::from(XdpConfig::BENEATH)).min(19);
    place().starts_with(&format!("policy 0, nice level {nice},"))
}

/// Waits for it; how long that took.
fn wait_until(what: &str, is_so: impl Fn() -> bool) -> Duration {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < LIMIT, "not {what}: {}", place());
        thread::sleep(Duration::from_millis(1));
    }
    begun.elapsed()
}

/// The kernel polls above all the time.
fn stays_above(span: Duration) {
    let end = Instant::now() + span;
    while Instant::now() < end {
        assert!(is_above(), "{}", place());
        thread::sleep(Duration::from_millis(2));
    }
}

fn open() -> XdpInterface {
    let config = XdpConfig {
        ring_frames: 64,
        threaded: Threaded::Auto,
        ..XdpConfig::default()
    };
    let device = xdp(&config);
    assert_eq!(device.unthreaded(), None);
    device
}

/// Has the kernel's address and shares it.
fn start(device: XdpInterface, path: &str) -> Stack {
    let shared = StackConfig {
        addresses: vec!["10.0.0.2/24".parse().unwrap()],
        ..config(path)
    };
    Stack::start(device, &shared).unwrap()
}

/// Many times what a server takes that takes one packet in a millisecond.
fn flood(ended: &AtomicBool) {
    let socket = KernelSocket::bind("10.0.0.1:0").unwrap();
    let end = Instant::now() + LIMIT * 3;
    while !ended.load(Ordering::Relaxed) && Instant::now() < end {
        for _ in 0..100 {
            socket.send_to(&[0; 18], ("10.0.0.2", FLOODED)).unwrap();
        }
        thread::sleep(Duration::from_micros(500));
    }
}

/// 100 packets/s for a second; above for all but the time in which it must be noticed.
fn company(far: &Far, port: u16) {
    thread::scope(|scope| {
        scope.spawn(|| {
            far.run(|| {
                let socket = KernelSocket::bind("10.0.0.1:0").unwrap();
                for _ in 0..ASKED {
                    socket.send_to(b"somebody", ("10.0.0.2", port)).unwrap();
                    thread::sleep(Duration::from_millis(10));
                }
            });
        });
        thread::sleep(Duration::from_millis(400));
        stays_above(Duration::from_millis(500));
    });
}

/// Takes what comes to a socket until `ended`.
fn take(receive: impl Fn() -> bool, taken: &AtomicU64, ended: &AtomicBool) {
    while !ended.load(Ordering::Relaxed) {
        if receive() {
            taken.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Runs `test` beside a flood of one socket, with what another and the kernel's got so far.
fn beside_flood(far: &Far, stack: &Stack, test: impl FnOnce(&dyn Fn(u16) -> u64)) {
    let bind = |port: u16| {
        let socket = UdpSocket::bind(stack, ("10.0.0.2", port)).unwrap();
        socket
            .set_read_timeout(Some(Duration::from_millis(20)))
            .unwrap();
        socket
    };
    let (flooded, other) = (bind(FLOODED), bind(OTHER));
    let kernel = KernelSocket::bind(("10.0.0.2", KERNEL)).unwrap();
    kernel
        .set_read_timeout(Some(Duration::from_millis(20)))
        .unwrap();
    let ended = AtomicBool::new(false);
    let taken = [const { AtomicU64::new(0) }; 3];
    // A test that fails must not wait for the flood's end.
    struct End<'a>(&'a AtomicBool);
    impl Drop for End<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    thread::scope(|scope| {
        let _end = End(&ended);
        scope.spawn(|| {
            let slowly = || {
                thread::sleep(Duration::from_millis(1));
                flooded.recv_from(&mut [0; 64]).is_ok()
            };
            take(slowly, &taken[0], &ended);
        });
        scope.spawn(|| take(|| other.recv_from(&mut [0; 64]).is_ok(), &taken[1], &ended));
        scope.spawn(|| take(|| kernel.recv(&mut [0; 64]).is_ok(), &taken[2], &ended));
        stays_above(Duration::from_millis(300));
        scope.spawn(|| far.run(|| flood(&ended)));
        test(&|port| taken[usize::from(port - FLOODED)].load(Ordering::Relaxed));
        ended.store(true, Ordering::Relaxed);
    });
}

/// Where others have the CPUs a packet of the company's comes late, and so does the look at it.
#[test]
fn it_is_beneath_while_a_flood_is_alone_and_above_in_company() {
    repeated_test(3, || beneath_alone_and_above_in_company("ni-lrp"));
}

/// Sockets have no rings of their own there: what comes is counted by the program, and what is
/// taken by the stack.
#[test]
fn so_it_is_where_all_frames_come_by_one_ring() {
    for path in ["soft-lrp", "polled", "early-demux"] {
        repeated_test(3, || beneath_alone_and_above_in_company(path));
    }
}

fn beneath_alone_and_above_in_company(path: &str) {
    Lan::create_apart(|far| {
        without_questions(far);
        let stack = start(open(), path);
        beside_flood(far, &stack, |taken| {
            let alone = wait_until("beneath", is_beneath);
            assert!(alone >= QUIET, "{alone:?}: it may have been a burst");
            for port in [OTHER, KERNEL] {
                let before = taken(port);
                company(far, port);
                let got = taken(port) - before;
                assert!(got >= ASKED - LOST_MAX, "port {port} got {got} of {ASKED}");
                let quiet = wait_until("beneath again", is_beneath);
                assert!(quiet >= QUIET, "port {port}: {quiet:?} after company");
            }
            assert!(taken(FLOODED) > 0);
        });
        wait_until("above", is_above);
        stays_above(Duration::from_millis(700));
        drop(stack);
        let _plain = xdp(&XdpConfig::default());
        assert_eq!(polling_threads(), [], "put back");
        let device = Sysfs::open("stack0", link::index("stack0").unwrap()).unwrap();
        assert_eq!(device.attribute(Attribute::Threaded).unwrap(), Some(0));
    });
}

#[test]
fn a_group_s_flood_is_alone_as_well() {
    Lan::create_apart(|far| {
        without_questions(far);
        let stack = start(open(), "ni-lrp");
        let members = [(); 2].map(|()| {
            let member = UdpSocket::bind_shared(&stack, "10.0.0.2:10").unwrap();
            member.set_nonblocking(true).unwrap();
            member
        });
        let ended = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                far.run(|| {
                    let flows = [(); 16].map(|()| KernelSocket::bind("10.0.0.1:0").unwrap());
                    let end = Instant::now() + LIMIT;
                    while !ended.load(Ordering::Relaxed) && Instant::now() < end {
                        for flow in flows.iter().cycle().take(100) {
                            flow.send_to(&[0; 18], "10.0.0.2:10").unwrap();
                        }
                        thread::sleep(Duration::from_micros(500));
                    }
                });
            });
            wait_until("beneath", is_beneath);
            ended.store(true, Ordering::Relaxed);
        });
        wait_until("above", is_above);
        drop(members);
    });
}

/// Its driver makes them anew when a link goes down and up.
#[test]
fn new_threads_are_found() {
    Lan::create_apart(|_far| {
        let device = open();
        assert!(is_above());
        lan::run("ip link set stack0 down");
        lan::run("ip link set stack0 up");
        let end = Instant::now() + LIMIT;
        while polling_threads().len() != 1 || !is_above() {
            assert!(Instant::now() < end, "{:?}", polling_threads());
            thread::sleep(Duration::from_millis(20));
        }
        drop(device);
        let _plain = xdp(&XdpConfig::default());
        assert_eq!(polling_threads(), [], "put back");
    });
}

#[test]
fn whoever_has_the_settings_keeps_them() {
    Lan::create_apart(|_far| {
        let other = plimsoll_kernel::knobs::Knobs::open("stack0").unwrap();
        let config = XdpConfig {
            threaded: Threaded::Auto,
            ..XdpConfig::default()
        };
        let device = xdp(&config);
        let why = device.unthreaded().unwrap();
        assert!(why.contains("guarded by process"), "{why}");
        assert_eq!(polling_threads(), []);
        drop((device, other));
        let refused = plimsoll_stack::device::xdp::open_whole("stack0", &config).unwrap_err();
        assert!(refused.is_usage(), "{refused}");
    });
}

#[test]
fn without_the_right_to_priorities_it_says_so_and_goes_on() {
    Lan::create_apart(|far| {
        let nice = caps::Capability::CAP_SYS_NICE;
        caps::drop(None, caps::CapSet::Effective, nice).unwrap();
        let config = XdpConfig {
            threaded: Threaded::Auto,
            holdoff: Some(Duration::from_micros(40)),
            ..XdpConfig::default()
        };
        let device = xdp(&config);
        let why = device.unthreaded().unwrap().to_owned();
        assert!(why.contains("priority"), "{why}");
        assert_eq!(polling_threads(), [], "{why}");
        let instances = || {
            let instances = Netdev::new().instances(link::index("stack0").unwrap());
            instances.unwrap()
        };
        let held_off = |napi: &plimsoll_kernel::knobs::Napi| napi.gro_flush_timeout == Some(40_000);
        assert!(
            instances().iter().all(held_off),
            "what was not refused stays"
        );
        let stack = start(device, "ni-lrp");
        let socket = UdpSocket::bind(&stack, ("10.0.0.2", OTHER)).unwrap();
        far.run(|| {
            let client = KernelSocket::bind("10.0.0.1:0").unwrap();
            client.send_to(b"x", ("10.0.0.2", OTHER)).unwrap();
        });
        socket.set_read_timeout(Some(LIMIT)).unwrap();
        socket.recv_from(&mut [0; 64]).unwrap();
        caps::raise(None, caps::CapSet::Effective, nice).unwrap();
    });
}
