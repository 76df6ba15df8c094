//! Datagrams that are written in the device's memory and leave from there (TB-48).

use std::io;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use plimsoll_stack::device::simulated::{SimulatedConfig, SimulatedDevice};
use plimsoll_stack::device::{Batch, Capabilities, Device, Drops, Pool};
use plimsoll_stack::driven::Driven;
use plimsoll_stack::{Stack, StackConfig, UdpSocket};

use crate::watched::{Watched, end_of};

/// No test waits longer for what must come.
const SOON: Duration = Duration::from_secs(10);

fn at(last: u8) -> StackConfig {
    let addresses = [format!("10.0.0.{last}/24"), format!("fd00::{last}/64")];
    StackConfig {
        addresses: addresses.map(|net| net.parse().unwrap()).to_vec(),
        ..StackConfig::default()
    }
}

fn pair() -> (Stack, Stack) {
    let (one, other) = SimulatedDevice::pair(&SimulatedConfig::default()).unwrap();
    (
        Stack::start(one, &at(1)).unwrap(),
        Stack::start(other, &at(2)).unwrap(),
    )
}

#[test]
fn what_is_written_in_place_arrives_over_both_families() {
    let (here, there) = pair();
    for (from, to) in [("10.0.0.1:5", "10.0.0.2:7"), ("[fd00::1]:5", "[fd00::2]:7")] {
        let sender = UdpSocket::bind(&here, from).unwrap();
        let receiver = UdpSocket::bind(&there, to).unwrap();
        receiver.set_read_timeout(Some(SOON)).unwrap();
        let to: SocketAddr = to.parse().unwrap();
        let longest = sender.payload_max_to(to.ip());
        let lengths = [0, 1, 100, longest];
        // One at a time: more than a few would not wait for an unknown neighbour.
        for (k, length) in lengths.into_iter().enumerate() {
            let mut buffer = sender.send_buffer(to, longest).unwrap();
            assert_eq!((buffer.len(), buffer.destination()), (longest, to));
            buffer.fill(k as u8);
            buffer.truncate(length);
            buffer.truncate(longest);
            let mut batch = vec![buffer];
            assert_eq!(sender.send_buffers(&mut batch).unwrap(), 1);
            assert!(batch.is_empty());
            let mut received = vec![0xff; longest + 1];
            let (found, source) = receiver.recv_from(&mut received).unwrap();
            assert_eq!(source, from.parse().unwrap());
            assert_eq!(received[..found], vec![k as u8; length]);
        }
        let refused = sender.send_buffer(to, longest + 1).unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(libc::EMSGSIZE));
    }
}

#[test]
fn a_batch_leaves_in_one_call_from_the_memory_it_was_written_in() {
    let (one, other) = SimulatedDevice::pair(&SimulatedConfig::default()).unwrap();
    let sent = Arc::default();
    let here = Stack::start(Watched(Arc::new(one), Arc::clone(&sent)), &at(1)).unwrap();
    let there = Stack::start(other, &at(2)).unwrap();
    let sender = UdpSocket::bind(&here, "10.0.0.1:5").unwrap();
    let receiver = UdpSocket::bind(&there, "10.0.0.2:7").unwrap();
    receiver.set_read_timeout(Some(SOON)).unwrap();
    let to = receiver.local_addr().unwrap();
    // The neighbour is known from then on.
    sender.send_to(b"first", to).unwrap();
    receiver.recv(&mut [0; 8]).unwrap();
    let buffers = (0..20).map(|_| sender.send_buffer(to, 64).unwrap());
    let mut batch: Vec<_> = buffers.collect();
    let written: Vec<_> = batch.iter().map(|buffer| end_of(buffer)).collect();
    sender.send_buffers(&mut batch).unwrap();
    assert_eq!(sent.lock().unwrap().last(), Some(&written));
}

#[test]
fn a_batch_allocates_nothing() {
    let mut driven = Driven::new("soft-lrp");
    let to: SocketAddr = "10.0.0.1:9".parse().unwrap();
    let (mut batch, mut sent) = (Vec::with_capacity(32), Vec::with_capacity(32));
    let mut round = |driven: &mut Driven| {
        let socket = &driven.sockets[0];
        for k in 0..32 {
            let mut buffer = socket.send_buffer(to, 64).unwrap();
            buffer.fill(k);
            batch.push(buffer);
        }
        socket.send_buffers(&mut batch).unwrap();
        let mut frames = std::collections::VecDeque::with_capacity(64);
        while driven.cable.receive(&mut frames, 64).unwrap() > 0 {
            sent.extend(frames.drain(..).map(|frame| *frame.last().unwrap()));
        }
    };
    // The far end answers to no question: it says who it is.
    let mut hello =
        plimsoll_packets::frame::arp("10.0.0.1".parse().unwrap(), "10.0.0.2".parse().unwrap(), 0);
    hello[..6].fill(0xff);
    driven.cable.send(&hello);
    driven.receive();
    driven.settle();
    round(&mut driven);
    let allocated = allocation_counter::measure(|| round(&mut driven));
    assert_eq!(sent[sent.len() - 32..], (0..32).collect::<Vec<_>>());
    // The test's own queue.
    assert!(allocated.count_total <= 2, "{allocated:?}");
}

#[test]
fn without_memory_there_is_no_buffer_until_one_is_dropped() {
    let link = SimulatedConfig::default();
    let (one, _other) = SimulatedDevice::pair(&link).unwrap();
    let stack = Stack::start(one, &at(1)).unwrap();
    let socket = UdpSocket::bind(&stack, "10.0.0.1:5").unwrap();
    let to = "10.0.0.2:7".parse().unwrap();
    let mut held = Vec::new();
    let refused = loop {
        match socket.send_buffer(to, 10) {
            Ok(buffer) => held.push(buffer),
            Err(error) => break error,
        }
    };
    assert_eq!(refused.raw_os_error(), Some(libc::ENOBUFS));
    held.pop();
    socket.send_buffer(to, 10).unwrap();
}

/// Its memory is not what the other device reads: it is copied.
#[test]
fn another_stack_s_buffer_is_sent_as_well() {
    let (here, there) = pair();
    let (elsewhere, _) = pair();
    let foreign = UdpSocket::bind(&elsewhere, "10.0.0.1:5").unwrap();
    let sender = UdpSocket::bind(&here, "10.0.0.1:5").unwrap();
    let receiver = UdpSocket::bind(&there, "10.0.0.2:7").unwrap();
    receiver.set_read_timeout(Some(SOON)).unwrap();
    let mut buffer = foreign.send_buffer("10.0.0.2:7".parse().unwrap(), 3);
    buffer.as_mut().unwrap().copy_from_slice(b"abc");
    sender.send_buffers(&mut vec![buffer.unwrap()]).unwrap();
    let mut received = [0; 8];
    assert_eq!(receiver.recv(&mut received).unwrap(), 3);
    assert_eq!(&received[..3], b"abc");
}

/// What was built before the answer that fails stayed with the socket, and left with its next
/// call; those behind it were thrown away, so one client could keep others from theirs.
#[test]
fn answers_around_one_that_cannot_be_sent_leave_at_once() {
    let (here, there) = pair();
    let client = UdpSocket::bind(&here, "10.0.0.1:5").unwrap();
    let server = UdpSocket::bind(&there, "10.0.0.2:7").unwrap();
    client.set_read_timeout(Some(SOON)).unwrap();
    server.set_read_timeout(Some(SOON)).unwrap();
    server.set_dont_fragment(true);
    let (to, mut batch) = (server.local_addr().unwrap(), Vec::new());
    // The neighbour is known from then on.
    client.send_to(b"first", to).unwrap();
    server.recv(&mut [0; 8]).unwrap();
    for payload in [&b"one"[..], &b"two"[..], &[0; 4000], &b"behind"[..]] {
        client.send_to(payload, to).unwrap();
    }
    while batch.len() < 4 {
        server.recv_batch(&mut batch, 4).unwrap();
    }
    assert_eq!(server.reply_batch(&mut batch).unwrap(), 3);
    assert!(batch.is_empty());
    let mut received = [0; 8];
    for answer in [&b"one"[..], b"two", b"behind"] {
        let length = client.recv(&mut received).unwrap();
        assert_eq!(&received[..length], answer);
    }
    // Where it is the first, its error is told, and nothing is left of it.
    client.send_to(&[0; 4000], to).unwrap();
    server.recv_batch(&mut batch, 4).unwrap();
    server.reply_batch(&mut batch).unwrap_err();
    assert_eq!(
        server
            .send_to(b"alone", client.local_addr().unwrap())
            .unwrap(),
        5
    );
    assert_eq!(client.recv(&mut received).unwrap(), 5);
}

/// A call that wanted more buffers than there are sent a part, or failed, as if they did not come
/// back.
/// A device that takes so many frames and then no more.
#[derive(Debug)]
struct Short {
    inner: SimulatedDevice,
    room: Arc<AtomicUsize>,
}

impl Device for Short {
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn pool(&self) -> &Arc<Pool> {
        self.inner.pool()
    }

    fn receive(&self, batch: &mut Batch, max: usize) -> io::Result<usize> {
        self.inner.receive(batch, max)
    }

    fn transmit(&self, batch: &mut Batch) -> io::Result<usize> {
        let room = self.room.load(Ordering::Relaxed);
        let mut taken: Batch = batch.drain(..room.min(batch.len())).collect();
        let sent = self.inner.transmit(&mut taken)?;
        self.room.fetch_sub(sent, Ordering::Relaxed);
        Ok(sent)
    }

    fn readiness(&self) -> BorrowedFd<'_> {
        self.inner.readiness()
    }

    fn drops(&self) -> Drops {
        self.inner.drops()
    }
}

/// Frames were taken for datagrams, so that a call of which some were sent said `WouldBlock`.
#[test]
fn fragments_without_room_do_not_count_as_datagrams() {
    let (inner, _cable) = SimulatedDevice::pair(&SimulatedConfig::default()).unwrap();
    let room = Arc::new(AtomicUsize::new(0));
    let device = Short {
        inner,
        room: Arc::clone(&room),
    };
    let stack = Stack::start(device, &StackConfig::at("10.0.0.2/24".parse().unwrap())).unwrap();
    let socket = UdpSocket::bind(&stack, "10.0.0.2:7").unwrap();
    socket.set_nonblocking(true).unwrap();
    // A broadcast address has its Ethernet address.
    let datagram = (&[0; 2000][..], "10.0.0.255:9".parse().unwrap());
    // Two frames each, and half of one more.
    room.store(9, Ordering::Relaxed);
    assert_eq!(socket.send_batch([datagram; 10]).unwrap(), 4);
    let none = socket.send_batch([datagram; 10]).unwrap_err();
    assert_eq!(none.kind(), io::ErrorKind::WouldBlock);
}

#[test]
fn sending_waits_for_buffers_to_come_back() {
    const CHUNKS: usize = 64;
    let link = SimulatedConfig {
        chunks: CHUNKS,
        ring_frames: 4 * CHUNKS,
        ..SimulatedConfig::default()
    };
    let (cable, device) = SimulatedDevice::pair(&link).unwrap();
    let stack = Stack::start(device, &StackConfig::at("10.0.0.2/24".parse().unwrap())).unwrap();
    let socket = UdpSocket::bind(&stack, "10.0.0.2:7").unwrap();
    // A broadcast address has its Ethernet address.
    let to = "10.0.0.255:9".parse().unwrap();
    let sent = socket.send_batch([(&b"one of many"[..], to); 3 * CHUNKS]);
    assert_eq!(sent.unwrap(), 3 * CHUNKS);
    drop(cable);

    let held: Vec<_> = std::iter::from_fn(|| socket.send_buffer(to, 9).ok()).collect();
    assert_eq!(held.len(), CHUNKS);
    socket.set_nonblocking(true).unwrap();
    let full = socket.send_to(b"no", to).unwrap_err();
    assert_eq!(full.kind(), io::ErrorKind::WouldBlock);
    socket.set_nonblocking(false).unwrap();
    let full = socket.send_to(b"no", to).unwrap_err();
    assert_eq!(
        full.raw_os_error(),
        Some(libc::ENOBUFS),
        "nobody gives any back"
    );
    std::thread::scope(|scope| {
        let sending = scope.spawn(|| socket.send_to(b"yes", to));
        drop(held);
        assert_eq!(sending.join().unwrap().unwrap(), 3);
    });
}
