//! What is due although nothing arrives: chunks that became free are lent again, and an interface
//! that went down or was deleted is noticed. Needs root.

use std::fs;
use std::io::ErrorKind;
use std::net::UdpSocket as KernelSocket;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use plimsoll_core::channel::ChannelConfig;
use plimsoll_stack::device::packet::PacketDevice;
use plimsoll_stack::device::tap::TapDevice;
use plimsoll_stack::device::xdp::XdpConfig;
use plimsoll_stack::device::{Batch, Device, Frame};
use plimsoll_stack::{ReceivePath, Stack, StackConfig, UdpSocket};

use crate::lan::{Far, Lan, SOON, config, owned, run, threads, xdp};

/// More datagrams than the stack has chunks, with pauses, since the link's own queue is short.
fn send_more_than_it_holds(client: &KernelSocket) {
    for sent in 1..=300 {
        client.send_to(b"x", "10.0.0.2:7").unwrap();
        if sent % 30 == 0 {
            thread::sleep(Duration::from_millis(2));
        }
    }
}

/// Takes all that is there; how many datagrams.
fn read_all(socket: &UdpSocket) -> usize {
    socket.set_nonblocking(true).unwrap();
    let read = || socket.recv_from(&mut [0; 9]).map_err(|error| error.kind());
    let read = std::iter::repeat_with(read).take_while(|read| *read != Err(ErrorKind::WouldBlock));
    let count = read.map(Result::unwrap).count();
    socket.set_nonblocking(false).unwrap();
    count
}

/// Whoever receives was asked for nothing any more: the kernel had no chunk to receive into, and
/// so nothing woke him, also when all of them were free again.
#[test]
fn a_stack_hears_again_after_its_chunks_were_used_up() {
    for path in ReceivePath::NAMES {
        Lan::create(|| {
            let device = xdp(&XdpConfig {
                chunks: 256,
                send_frames: 64,
                ..owned()
            });
            let config = StackConfig {
                channel: ChannelConfig::drop_tail(512),
                ..config(path)
            };
            let stack = Stack::start(device, &config).unwrap();
            let socket = UdpSocket::bind(&stack, "10.0.0.2:7").unwrap();
            socket.set_read_timeout(Some(SOON)).unwrap();
            let client = KernelSocket::bind("10.0.0.1:0").unwrap();
            // So that the address is known.
            client.send_to(b"x", "10.0.0.2:7").unwrap();
            socket.recv_from(&mut [0; 9]).unwrap();
            send_more_than_it_holds(&client);
            thread::sleep(Duration::from_millis(100));
            let read = read_all(&socket);
            assert!((1..300).contains(&read), "{path}: {read} fit");
            thread::sleep(Duration::from_millis(100));
            client.send_to(b"one more", "10.0.0.2:7").unwrap();
            let heard = socket.recv_from(&mut [0; 9]);
            assert!(heard.is_ok(), "{path}: {heard:?} after {read}");
        });
    }
}

/// Runs `test` for all cases at once, each in a LAN of its own: it mostly waits.
fn each_in_a_lan<C: Send>(cases: impl IntoIterator<Item = C>, test: impl Fn(C) + Sync) {
    let test = &test;
    thread::scope(|scope| {
        for case in cases {
            scope.spawn(move || Lan::create(|| test(case)));
        }
    });
}

fn wait_until_it_is_told(socket: &UdpSocket, what: &str, end: &str) {
    socket.set_read_timeout(Some(SOON)).unwrap();
    let told = thread::scope(|scope| {
        let waiting = scope.spawn(|| socket.recv_from(&mut [0; 9]));
        thread::sleep(Duration::from_millis(100));
        run(end);
        waiting.join().unwrap()
    });
    let error = told.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::BrokenPipe, "{what}: {error}");
    assert!(
        error.to_string().contains("the interface is gone"),
        "{error}"
    );
}

#[test]
fn who_waits_learns_that_the_interface_was_deleted() {
    each_in_a_lan(ReceivePath::NAMES, |path| {
        let stack = Stack::start(xdp(&owned()), &config(path)).unwrap();
        let socket = UdpSocket::bind(&stack, "10.0.0.2:7").unwrap();
        wait_until_it_is_told(&socket, path, "ip link del stack0");
        assert!(stack.failure().is_some());
    });
    each_in_a_lan([false, true], |down| {
        let device = PacketDevice::open("stack0").unwrap();
        let stack = Stack::start(device, &config("soft-lrp")).unwrap();
        let socket = UdpSocket::bind(&stack, "10.0.0.2:7").unwrap();
        if down {
            run("ip link set stack0 down");
        }
        wait_until_it_is_told(&socket, "a packet socket", "ip link del stack0");
    });
    // "File descriptor in bad state" was told there.
    Lan::create(|| {
        let device = TapDevice::open("tap0").unwrap();
        let stack = Stack::start(device, &config("soft-lrp")).unwrap();
        let socket = UdpSocket::bind(&stack, "10.0.0.2:7").unwrap();
        wait_until_it_is_told(&socket, "TAP", "ip link del tap0");
    });
}

#[test]
fn who_waits_learns_that_the_interface_was_moved_away() {
    let elsewhere = Far::create();
    let end = format!("ip link set stack0 netns {}", elsewhere.name());
    Lan::create(|| {
        let stack = Stack::start(xdp(&owned()), &config("soft-lrp")).unwrap();
        let socket = UdpSocket::bind(&stack, "10.0.0.2:7").unwrap();
        wait_until_it_is_told(&socket, "AF_XDP", &end);
    });
    let elsewhere = Far::create();
    let end = format!("ip link set stack0 netns {}", elsewhere.name());
    Lan::create(|| {
        let device = PacketDevice::open("stack0").unwrap();
        let stack = Stack::start(device, &config("soft-lrp")).unwrap();
        let socket = UdpSocket::bind(&stack, "10.0.0.2:7").unwrap();
        wait_until_it_is_told(&socket, "a packet socket", &end);
    });
}

/// This namespace's receiving thread.
fn receiving_thread() -> PathBuf {
    let [thread] = threads("plimsoll-rx")[..] else {
        panic!("one stack has one");
    };
    Path::new("/proc/self/task").join(thread.to_string())
}

/// Its CPU time so far.
fn time_of(thread: &Path) -> Duration {
    let times = fs::read_to_string(thread.join("schedstat")).unwrap();
    let nanos = times.split(' ').next().expect("three numbers");
    Duration::from_nanos(nanos.parse().unwrap())
}

/// How often it has waited so far.
fn waits_of(thread: &Path) -> u32 {
    let status = fs::read_to_string(thread.join("status")).unwrap();
    let mut lines = status.lines();
    let waits = lines.find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
    waits.expect("the kernel tells").trim().parse().unwrap()
}

/// Also one that has only a few chunks to receive into: all of them are lent.
#[test]
fn an_idle_stack_wakes_once_a_second() {
    let few = XdpConfig {
        chunks: 64,
        send_frames: 32,
        ..owned()
    };
    each_in_a_lan([owned(), few], |config_of_device| {
        let _stack = Stack::start(xdp(&config_of_device), &config("soft-lrp")).unwrap();
        thread::sleep(Duration::from_millis(100));
        let thread = receiving_thread();
        let before = waits_of(&thread);
        thread::sleep(Duration::from_secs(3));
        let waits = waits_of(&thread) - before;
        assert!((2..60).contains(&waits), "{waits}");
    });
}

/// With sockets that have rings of their own the chunks may be free without the receiving
/// thread's doing, and those who could lend them wait themselves.
#[test]
fn what_a_pausing_reader_has_freed_is_lent_to_others() {
    Lan::create(|| {
        let device = xdp(&XdpConfig {
            chunks: 256,
            send_frames: 64,
            ..owned()
        });
        // Nobody asks who has the address: that would be a chunk that comes back.
        let mac = device.mac().map(|byte| format!("{byte:02x}")).join(":");
        run(&format!("ip neigh add 10.0.0.2 lladdr {mac} dev kernel0"));
        let stack = Stack::start(device, &config("ni-lrp")).unwrap();
        let [pausing, other] = ["10.0.0.2:7", "10.0.0.2:8"].map(|at| {
            let socket = UdpSocket::bind(&stack, at).unwrap();
            socket.set_read_timeout(Some(SOON)).unwrap();
            socket
        });
        let client = KernelSocket::bind("10.0.0.1:0").unwrap();
        send_more_than_it_holds(&client);
        // As many as are taken from a ring at once: then nobody asks for more.
        for _ in 0..64 {
            pausing.recv_from(&mut [0; 9]).unwrap();
        }
        client.send_to(b"lost", "10.0.0.2:8").unwrap();
        // The stack looks once a second, and later where others have the CPU. Who reads would
        // lend chunks himself.
        for _ in 0..10 {
            thread::sleep(Duration::from_millis(300));
            client.send_to(b"heard", "10.0.0.2:8").unwrap();
        }
        let mut buffer = [0; 9];
        let mut heard = || {
            let (length, _) = other.recv_from(&mut buffer).unwrap();
            buffer[..length] == *b"heard"
        };
        // There may have been room for the first one after all.
        assert!(heard() || heard());
    });
}

/// The error that the link left was never taken: poll(2) did not wait any more, and the first
/// frame after `up` got the error in its place.
#[test]
fn a_packet_socket_waits_while_the_link_is_down_and_sends_after() {
    Lan::create(|| {
        let device = PacketDevice::open("stack0").unwrap();
        let stack = Stack::start(device, &config("soft-lrp")).unwrap();
        let socket = UdpSocket::bind(&stack, "10.0.0.2:7").unwrap();
        let client = KernelSocket::bind("10.0.0.1:7").unwrap();
        client.set_read_timeout(Some(SOON)).unwrap();
        client.send_to(b"before", "10.0.0.2:7").unwrap();
        let (_, from) = socket.recv_from(&mut [0; 9]).unwrap();
        let thread = receiving_thread();
        let before = time_of(&thread);
        run("ip link set stack0 down");
        thread::sleep(Duration::from_secs(1));
        let taken = time_of(&thread) - before;
        assert!(taken < Duration::from_millis(200), "{taken:?}");
        run("ip link set stack0 up");
        socket.send_to(b"after", from).unwrap();
        assert_eq!(client.recv_from(&mut [0; 9]).unwrap().0, 5);
    });
}

/// A frame of nobody's protocol, from and to somebody unknown.
pub(crate) fn frame(device: &dyn Device, bytes: usize) -> Frame {
    let mut frame = device.pool().take().unwrap();
    let mut content = vec![2; bytes];
    content[6..12].fill(4);
    content[12..14].copy_from_slice(&[0x88, 0xb5]);
    assert!(frame.copy_from(&content));
    frame
}

/// How many of these frames come to `kernel0` soon, of so many.
pub(crate) fn arrived(at: &PacketDevice, frames: usize) -> usize {
    let (mut batch, mut seen) = (Batch::new(), 0);
    let end = Instant::now() + SOON;
    while seen < frames && Instant::now() < end {
        at.receive(&mut batch, 64).unwrap();
        let ours = |frame: &Frame| frame[12..14] == [0x88, 0xb5];
        seen += batch.drain(..).filter(ours).count();
        thread::sleep(Duration::from_millis(1));
    }
    seen
}

/// It was told what was left of the time before, and counted as sent.
#[test]
fn the_first_frame_after_the_link_was_down_is_sent() {
    Lan::create(|| {
        let [device, kernel] = ["stack0", "kernel0"].map(|name| PacketDevice::open(name).unwrap());
        run("ip link set stack0 down");
        run("ip link set stack0 up");
        let mut batch = Batch::from([frame(&device, 60)]);
        assert_eq!(device.transmit(&mut batch).unwrap(), 1);
        assert_eq!(arrived(&kernel, 1), 1);
    });
}

/// A frame that the link did not take counts as sent, and waited in the ring for the next one.
#[test]
fn what_is_left_in_the_transmit_ring_is_sent_soon() {
    Lan::create(|| {
        let kernel = PacketDevice::open("kernel0").unwrap();
        let device = xdp(&owned());
        run("ip link set stack0 down");
        let mut batch = Batch::from([frame(&device, 60)]);
        assert_eq!(device.transmit(&mut batch).unwrap(), 1);
        let again = device.tend().unwrap().unwrap();
        assert!(again <= Duration::from_millis(10), "{again:?}");
        run("ip link set stack0 up");
        let again = device.tend().unwrap().unwrap();
        assert!(again > Duration::from_millis(10), "{again:?}");
        assert_eq!(arrived(&kernel, 1), 1);
    });
}

/// Frames that a driver never gave back were missed by nobody.
#[test]
fn frames_that_the_link_keeps_are_counted() {
    Lan::create(|| {
        let device = xdp(&owned());
        run("ip link set stack0 down");
        let mut batch: Batch = (0..3).map(|_| frame(&device, 60)).collect();
        assert_eq!(device.transmit(&mut batch).unwrap(), 3);
        assert_eq!(device.unsent(), 0, "it has time");
        let end = Instant::now() + 4 * SOON;
        while device.unsent() == 0 {
            assert!(Instant::now() < end, "nobody noticed");
            thread::sleep(device.tend().unwrap().unwrap());
        }
        assert_eq!(device.unsent(), 3);
    });
}

/// What is on its way is charged to the socket: beyond some 92 full frames the rest waited in the
/// ring for the next one that was sent.
#[test]
fn a_ring_of_frames_is_sent_at_once() {
    Lan::create(|| {
        // They come out at the kernel's end and stay in the queue of another link.
        run("ip link add slow0 type veth peer name slow1");
        run("ip link set slow0 up");
        run("ip link set slow1 up");
        run("tc qdisc add dev slow0 root tbf rate 1mbit burst 2k limit 10m");
        run("ip link add bridge0 type bridge");
        run("ip link set kernel0 master bridge0");
        run("ip link set slow0 master bridge0");
        run("ip link set bridge0 up");
        let kernel = PacketDevice::open("kernel0").unwrap();
        let device = xdp(&owned());
        let mut batch: Batch = (0..256).map(|_| frame(&device, 1514)).collect();
        assert_eq!(device.transmit(&mut batch).unwrap(), 256);
        assert_eq!(arrived(&kernel, 256), 256);
    });
}
