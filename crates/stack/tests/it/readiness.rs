//! What sockets say of being ready, and the rest of what the standard library's can do. Needs
//! root for AF_XDP.

use std::fs;
use std::io::{self, ErrorKind, Read, Write};
use std::net::UdpSocket as KernelSocket;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::unistd::gettid;
use plimsoll_packets::frame;
use plimsoll_stack::device::simulated::{SimulatedConfig, SimulatedDevice};
use plimsoll_stack::device::{Batch, Capabilities, Device, Drops, Pool};
use plimsoll_stack::{Readiness, Stack, StackConfig, TcpListener, TcpStream, UdpSocket};

use crate::lan::{self, Lan, SOON, config, owned, xdp};

/// Only looks.
const NOW: Option<Duration> = Some(Duration::ZERO);
const LATER: Option<Duration> = Some(SOON);
const A_WHILE: Option<Duration> = Some(Duration::from_millis(5));

fn start(device: impl Device + 'static, address: &str) -> Stack {
    Stack::start(device, &StackConfig::at(address.parse().unwrap())).unwrap()
}

fn pair() -> (Stack, Stack) {
    let (one, other) = SimulatedDevice::pair(&SimulatedConfig::default()).unwrap();
    (start(one, "10.0.0.1/24"), start(other, "10.0.0.2/24"))
}

fn bind(stack: &Stack, at: &str) -> UdpSocket {
    let socket = UdpSocket::bind(stack, at).unwrap();
    socket.set_nonblocking(true).unwrap();
    socket
}

/// A datagram is there until it is received, also for who only looks at it.
fn assert_arrival_is_seen(socket: &UdpSocket, send: impl FnOnce() + Send) {
    assert_eq!(
        socket.poll(Readiness::READABLE, NOW).unwrap(),
        Readiness::NONE
    );
    assert_eq!(
        socket.poll(Readiness::BOTH, NOW).unwrap(),
        Readiness::WRITABLE
    );
    thread::scope(|scope| {
        scope.spawn(send);
        let ready = socket.poll(Readiness::READABLE, None).unwrap();
        assert_eq!(ready, Readiness::READABLE);
    });
    for _ in 0..2 {
        assert_eq!(socket.poll(Readiness::BOTH, NOW).unwrap(), Readiness::BOTH);
        let mut buffer = [0; 4];
        assert_eq!(
            socket.peek_from(&mut buffer).unwrap().0,
            4,
            "as much as fits"
        );
        assert_eq!(&buffer, b"hell");
    }
    let mut buffer = [0; 16];
    assert_eq!(socket.recv_from(&mut buffer).unwrap().0, 5);
    assert_eq!(
        socket.poll(Readiness::READABLE, A_WHILE).unwrap(),
        Readiness::NONE
    );
    assert_eq!(
        socket.peek_from(&mut buffer).unwrap_err().kind(),
        ErrorKind::WouldBlock
    );
}

#[test]
fn a_datagram_makes_a_socket_readable_until_it_is_received() {
    let (one, other) = pair();
    let socket = bind(&one, "10.0.0.1:7");
    let client = UdpSocket::bind(&other, "10.0.0.2:0").unwrap();
    for _ in 0..2 {
        assert_arrival_is_seen(&socket, || {
            client.send_to(b"hello", "10.0.0.1:7").unwrap();
        });
    }
    lan::assert_sums(&one);
}

#[test]
fn so_it_does_on_af_xdp() {
    for path in ["soft-lrp", "ni-lrp"] {
        Lan::create(|| {
            let stack = Stack::start(xdp(&owned()), &config(path)).unwrap();
            let socket = bind(&stack, "10.0.0.2:7");
            let client = KernelSocket::bind("10.0.0.1:0").unwrap();
            assert_arrival_is_seen(&socket, || {
                client.send_to(b"hello", "10.0.0.2:7").unwrap();
            });
            // What was looked at and not received.
            client.send_to(b"hello", "10.0.0.2:7").unwrap();
            socket.set_nonblocking(false).unwrap();
            socket.peek_from(&mut [0; 16]).unwrap();
            drop(socket);
            lan::assert_sums(&stack);
        });
    }
}

/// A device that takes nothing until it is opened.
#[derive(Debug)]
struct Gate {
    inner: SimulatedDevice,
    open: Arc<AtomicBool>,
    /// It takes nothing and says that it has room, as a socket before a full qdisc.
    pretends: bool,
    broken: Arc<AtomicBool>,
    /// It is opened when it is next asked for room, after that has been answered.
    opens_when_asked: Arc<AtomicBool>,
}

/// A stack on such a device, one beyond it, and what rules the device.
struct Gated {
    stack: Stack,
    other: Stack,
    open: Arc<AtomicBool>,
    broken: Arc<AtomicBool>,
    opens_when_asked: Arc<AtomicBool>,
}

fn gated(pretends: bool) -> Gated {
    let (inner, other) = SimulatedDevice::pair(&SimulatedConfig::default()).unwrap();
    let open = Arc::new(AtomicBool::new(true));
    let [broken, opens_when_asked] = [(); 2].map(|()| Arc::new(AtomicBool::new(false)));
    let device = Gate {
        inner,
        open: Arc::clone(&open),
        pretends,
        broken: Arc::clone(&broken),
        opens_when_asked: Arc::clone(&opens_when_asked),
    };
    Gated {
        stack: start(device, "10.0.0.1/24"),
        other: start(other, "10.0.0.2/24"),
        open,
        broken,
        opens_when_asked,
    }
}

const PEER: &str = "10.0.0.2:7";

impl Gated {
    /// A socket that has just found no room, and whom it sends to.
    fn refused(&self) -> (UdpSocket, UdpSocket) {
        let socket = bind(&self.stack, "10.0.0.1:7");
        let peer = UdpSocket::bind(&self.other, PEER).unwrap();
        // The neighbour is known from here on.
        socket.send_to(b"hello", PEER).unwrap();
        peer.recv_from(&mut [0; 16]).unwrap();
        self.open.store(false, Ordering::Relaxed);
        let blocked = socket.send_to(b"hello", PEER).unwrap_err();
        assert_eq!(blocked.kind(), ErrorKind::WouldBlock);
        (socket, peer)
    }
}

impl Device for Gate {
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn pool(&self) -> &Arc<Pool> {
        self.inner.pool()
    }

    fn receive(&self, batch: &mut Batch, max: usize) -> io::Result<usize> {
        match self.broken.load(Ordering::Relaxed) {
            true => Err(ErrorKind::NotConnected.into()),
            false => self.inner.receive(batch, max),
        }
    }

    fn transmit(&self, batch: &mut Batch) -> io::Result<usize> {
        match self.open.load(Ordering::Relaxed) {
            true => self.inner.transmit(batch),
            false => Ok(0),
        }
    }

    fn has_room(&self) -> bool {
        let has_room = self.pretends || self.open.load(Ordering::Relaxed);
        if self.opens_when_asked.load(Ordering::Relaxed) {
            self.open.store(true, Ordering::Relaxed);
        }
        has_room
    }

    fn readiness(&self) -> BorrowedFd<'_> {
        self.inner.readiness()
    }

    fn drops(&self) -> Drops {
        self.inner.drops()
    }
}

#[test]
fn a_socket_that_found_no_room_is_writable_when_there_is() {
    let gated = gated(false);
    let (socket, _peer) = gated.refused();
    for wanted in [Readiness::WRITABLE, Readiness::BOTH] {
        for timeout in [NOW, A_WHILE] {
            assert_eq!(socket.poll(wanted, timeout).unwrap(), Readiness::NONE);
        }
    }
    thread::scope(|scope| {
        scope.spawn(|| gated.open.store(true, Ordering::Relaxed));
        let ready = socket.poll(Readiness::WRITABLE, LATER).unwrap();
        assert_eq!(ready, Readiness::WRITABLE);
    });
    socket.send_to(b"again", PEER).unwrap();
}

/// Sends this as often as it is told that there is room. There is none: such a loop took a whole CPU.
fn assert_tries_are_apart(socket: &UdpSocket, payload: &[u8]) {
    let (began, mut tries) = (Instant::now(), 0);
    while began.elapsed() < Duration::from_millis(100) {
        let ready = socket.poll(Readiness::WRITABLE, LATER).unwrap();
        assert_eq!(ready, Readiness::WRITABLE);
        let blocked = socket.send_to(payload, PEER).unwrap_err();
        assert_eq!(blocked.kind(), ErrorKind::WouldBlock);
        tries += 1;
    }
    assert!(tries <= 110, "{tries} in 100 ms");
}

/// The device has room, and yet takes nothing.
#[test]
fn a_loop_that_finds_no_room_again_and_again_sleeps_between() {
    let gated = gated(true);
    let (socket, _peer) = gated.refused();
    assert_tries_are_apart(&socket, b"hello");
}

/// Some buffers are free, but fewer than the datagram has fragments.
#[test]
fn so_does_one_that_finds_too_few_buffers() {
    let few = SimulatedConfig {
        chunks: 16,
        ..SimulatedConfig::default()
    };
    let (one, _other) = SimulatedDevice::pair(&few).unwrap();
    let stack = start(one, "10.0.0.1/24");
    assert_tries_are_apart(&bind(&stack, "10.0.0.1:7"), &[0; 60_000]);
}

/// Who polls for room alone was not told of an error, which ends a sending call as well.
#[test]
fn an_error_makes_writable_where_there_is_no_room() {
    let gated = gated(false);
    let _other = gated.refused();
    let socket = bind(&gated.stack, "10.0.0.1:8");
    socket.connect("10.0.0.2:9").unwrap();
    let blocked = socket.send(b"anybody?").unwrap_err();
    assert_eq!(blocked.kind(), ErrorKind::WouldBlock);
    gated.open.store(true, Ordering::Relaxed);
    socket.send(b"anybody?").unwrap();
    let ready = socket.poll(Readiness::READABLE, LATER).unwrap();
    assert_eq!(ready, Readiness::READABLE);
    gated.open.store(false, Ordering::Relaxed);
    let ready = || socket.poll(Readiness::WRITABLE, NOW).unwrap();
    assert_eq!(ready(), Readiness::WRITABLE);
    let refused = socket.take_error().unwrap().unwrap();
    assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
    assert_eq!(ready(), Readiness::NONE);
}

/// Room that came during the last wait was not seen.
#[test]
fn who_has_waited_looks_once_more() {
    let gated = gated(false);
    let (socket, _peer) = gated.refused();
    // Until the device is asked at once.
    thread::sleep(Duration::from_millis(2));
    gated.opens_when_asked.store(true, Ordering::Relaxed);
    let once = Some(Duration::from_millis(1));
    let ready = socket.poll(Readiness::WRITABLE, once).unwrap();
    assert_eq!(ready, Readiness::WRITABLE);
}

/// Its waker was waited for, and is not cleared by who wants nothing.
#[test]
fn who_waits_for_nothing_sleeps() {
    let (one, other) = pair();
    let socket = bind(&one, "10.0.0.1:7");
    let wakes = socket.as_fd();
    let client = UdpSocket::bind(&other, "10.0.0.2:0").unwrap();
    client.send_to(b"hello", "10.0.0.1:7").unwrap();
    let mut awaited = [PollFd::new(wakes, PollFlags::POLLIN)];
    poll(&mut awaited, PollTimeout::try_from(SOON).unwrap()).unwrap();
    let (tell, told) = mpsc::channel();
    // It ends with the process.
    thread::spawn(move || {
        tell.send(gettid()).unwrap();
        socket.poll(Readiness::NONE, None)
    });
    let task = told.recv().unwrap();
    let used = || {
        let spent = fs::read_to_string(format!("/proc/self/task/{task}/schedstat")).unwrap();
        let nanoseconds = spent.split_whitespace().next().unwrap().parse().unwrap();
        Duration::from_nanos(nanoseconds)
    };
    thread::sleep(Duration::from_millis(300));
    assert!(used() < Duration::from_millis(10), "{:?}", used());
}

/// On a shared address only who was heard can be sent to.
#[test]
fn who_was_looked_at_can_be_answered() {
    let shared = SimulatedConfig {
        owns_address: false,
        ..SimulatedConfig::default()
    };
    let (cable, device) = SimulatedDevice::pair(&shared).unwrap();
    let stack = start(device, "10.0.0.1/24");
    let socket = UdpSocket::bind(&stack, "10.0.0.1:7").unwrap();
    socket.set_read_timeout(LATER).unwrap();
    let from = PEER.parse().unwrap();
    let to = "10.0.0.1:7".parse().unwrap();
    assert!(cable.send(&frame::udp(from, to, b"hello")));
    let mut buffer = [0; 16];
    assert_eq!(socket.peek_from(&mut buffer).unwrap(), (5, from));
    socket.send_to(b"answer", from).unwrap();
}

#[test]
fn a_device_that_failed_is_told_to_who_waits_for_room() {
    let gated = gated(false);
    let (socket, peer) = gated.refused();
    gated.broken.store(true, Ordering::Relaxed);
    // Its thread looks when something comes.
    let listener = TcpListener::bind(&gated.stack, "10.0.0.1:80").unwrap();
    peer.send_to(b"hello", "10.0.0.1:7").unwrap();
    let failed = socket.poll(Readiness::WRITABLE, LATER).unwrap_err();
    assert_eq!(failed.kind(), ErrorKind::BrokenPipe);
    let failed = listener.poll(Readiness::READABLE, LATER).unwrap_err();
    assert_eq!(failed.kind(), ErrorKind::BrokenPipe);
}

#[test]
fn a_stream_says_what_it_is_ready_for() {
    let (one, other) = pair();
    let listener = TcpListener::bind(&one, "10.0.0.1:80").unwrap();
    let to = "10.0.0.1:80".parse().unwrap();
    let mut client = TcpStream::connect_nonblocking(&other, to).unwrap();
    assert_eq!(
        client.poll(Readiness::BOTH, LATER).unwrap(),
        Readiness::WRITABLE
    );
    client.finish_connect().unwrap();
    assert!(client.take_error().unwrap().is_none());
    let mut server = listener.incoming().next().unwrap().unwrap();
    assert_eq!(
        client.poll(Readiness::READABLE, A_WHILE).unwrap(),
        Readiness::NONE
    );
    server.write_all(b"hello").unwrap();
    assert_eq!(
        client.poll(Readiness::READABLE, LATER).unwrap(),
        Readiness::READABLE
    );
    let mut buffer = [0; 16];
    assert_eq!(client.peek(&mut buffer[..4]).unwrap(), 4);
    assert_eq!(
        client.read(&mut buffer).unwrap(),
        5,
        "also what was looked at"
    );
    let mut written = 0;
    let full = loop {
        match client.write(&[1; 4096]) {
            Ok(length) => written += length,
            // What is under way may make room.
            Err(error) if client.poll(Readiness::WRITABLE, A_WHILE).unwrap() == Readiness::NONE => {
                break error;
            }
            Err(_) => {}
        }
    };
    assert_eq!(full.kind(), ErrorKind::WouldBlock);
    server.read_exact(&mut vec![0; written]).unwrap();
    assert_eq!(
        client.poll(Readiness::BOTH, LATER).unwrap(),
        Readiness::WRITABLE
    );
    drop(server);
    assert_eq!(
        client.poll(Readiness::READABLE, LATER).unwrap(),
        Readiness::READABLE
    );
    assert_eq!(client.peek(&mut buffer).unwrap(), 0, "the end");
    assert_eq!(client.read(&mut buffer).unwrap(), 0);
    assert!(client.take_error().unwrap().is_none());
}

/// As a socket or a stream. Only a connection that waits makes it ready.
#[test]
fn a_listener_is_readable_until_all_have_been_accepted() {
    let (one, other) = pair();
    let listener = TcpListener::bind(&one, "10.0.0.1:80").unwrap();
    let ready = |wanted, timeout| listener.poll(wanted, timeout).unwrap();
    for timeout in [NOW, A_WHILE] {
        for wanted in [Readiness::READABLE, Readiness::BOTH, Readiness::WRITABLE] {
            assert_eq!(ready(wanted, timeout), Readiness::NONE);
        }
    }
    let connect = || TcpStream::connect(&other, "10.0.0.1:80").unwrap();
    let _streams = thread::scope(|scope| {
        let streams = scope.spawn(|| [connect(), connect()]);
        assert_eq!(ready(Readiness::READABLE, None), Readiness::READABLE);
        streams.join().unwrap()
    });
    for _ in 0..2 {
        assert_eq!(ready(Readiness::BOTH, LATER), Readiness::READABLE);
        assert_eq!(ready(Readiness::WRITABLE, A_WHILE), Readiness::NONE);
        listener.accept_timeout(SOON).unwrap();
    }
    assert_eq!(ready(Readiness::BOTH, A_WHILE), Readiness::NONE);
}

#[test]
fn an_error_makes_ready_and_is_taken_once() {
    let (one, other) = pair();
    let to = "10.0.0.1:81".parse().unwrap();
    let client = TcpStream::connect_nonblocking(&other, to).unwrap();
    assert_eq!(
        client.poll(Readiness::BOTH, LATER).unwrap(),
        Readiness::BOTH
    );
    let refused = client.take_error().unwrap().unwrap();
    assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
    assert!(client.take_error().unwrap().is_none());
    // One that was accepted and broken off: its listener goes without accepting the other.
    let listener = TcpListener::bind(&one, "10.0.0.1:80").unwrap();
    let broken = TcpStream::connect(&other, "10.0.0.1:80").unwrap();
    drop(listener);
    broken.poll(Readiness::READABLE, LATER).unwrap();
    let reset = broken.take_error().unwrap().unwrap();
    assert_eq!(reset.kind(), ErrorKind::ConnectionReset);

    let socket = bind(&other, "10.0.0.2:7");
    socket.connect("10.0.0.1:9").unwrap();
    socket.send(b"anybody?").unwrap();
    assert_eq!(
        socket.poll(Readiness::READABLE, LATER).unwrap(),
        Readiness::READABLE
    );
    let refused = socket.take_error().unwrap().unwrap();
    assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
    assert!(socket.take_error().unwrap().is_none());
    assert_eq!(
        socket.poll(Readiness::READABLE, NOW).unwrap(),
        Readiness::NONE
    );
    assert_eq!(
        socket.peek(&mut [0; 16]).unwrap_err().kind(),
        ErrorKind::WouldBlock
    );
}

#[test]
fn options_are_as_they_were_set() {
    let (one, other) = pair();
    let socket = bind(&one, "10.0.0.1:7");
    let listener = TcpListener::bind(&one, "10.0.0.1:80").unwrap();
    let stream = TcpStream::connect(&other, "10.0.0.1:80").unwrap();
    assert_eq!(socket.as_raw_fd(), socket.as_fd().as_raw_fd());
    assert_eq!(listener.as_raw_fd(), listener.as_fd().as_raw_fd());
    assert_eq!(stream.as_raw_fd(), stream.as_fd().as_raw_fd());
    assert_eq!(socket.read_timeout().unwrap(), None);
    for timeout in [LATER, None] {
        socket.set_read_timeout(timeout).unwrap();
        stream.set_write_timeout(timeout).unwrap();
        assert_eq!(socket.read_timeout().unwrap(), timeout);
        assert_eq!(socket.write_timeout().unwrap(), None);
        assert_eq!(stream.write_timeout().unwrap(), timeout);
        assert_eq!(stream.read_timeout().unwrap(), None);
    }
    for nodelay in [true, false] {
        stream.set_nodelay(nodelay).unwrap();
        assert_eq!(stream.nodelay().unwrap(), nodelay);
    }
}

/// More than one turn of the TCP thread has time for before it wakes the first.
#[test]
fn every_one_of_many_streams_becomes_readable() {
    let (here, there) = pair();
    let listener = TcpListener::bind(&there, "10.0.0.2:80").unwrap();
    let streams: Vec<_> = (0..150)
        .map(|_| {
            let stream = TcpStream::connect(&here, "10.0.0.2:80").unwrap();
            stream.set_nonblocking(true).unwrap();
            (stream, listener.accept().unwrap().0)
        })
        .collect();
    for round in 0..5 {
        for (mine, _) in &streams {
            let mut reader = mine;
            let empty = reader.read(&mut [0]).unwrap_err();
            assert_eq!(empty.kind(), ErrorKind::WouldBlock);
        }
        for (_, its) in &streams {
            let mut writer = its;
            writer.write_all(&[round]).unwrap();
        }
        for (mine, _) in &streams {
            let mut polled = [PollFd::new(mine.as_fd(), PollFlags::POLLIN)];
            let limit = PollTimeout::try_from(SOON).unwrap();
            assert_eq!(poll(&mut polled, limit).unwrap(), 1);
            let mut reader = mine;
            let mut got = [0];
            assert_eq!(reader.read(&mut got).unwrap(), 1);
            assert_eq!(got, [round]);
        }
    }
}
