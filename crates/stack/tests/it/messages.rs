//! Messages of several chunks, payloads of several parts, and the allocators that threads have
//! of their own (TB-44, TB-47).

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::error::Error;
use std::io::{self, IoSlice};
use std::net::{SocketAddr, UdpSocket as KernelSocket};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use plimsoll_stack::device::simulated::{SimulatedConfig, SimulatedDevice};
use plimsoll_stack::device::{Device, Pool};
use plimsoll_stack::{Message, Stack, StackConfig, TooLong, UdpSocket};
use proptest::prelude::any;
use proptest::test_runner::{Config, TestRunner};

use crate::lan::{self, Lan, SOON, content, owned, xdp};
use crate::watched::{Sent, Watched, end_of};

/// What a packet takes of a datagram, over IPv4 and IPv6.
const ONE_PACKET: [usize; 2] = [1472, 1452];
/// What the first fragment takes.
const FIRST_CHUNK: [usize; 2] = [1472, 1440];

fn at(last: u8) -> StackConfig {
    let addresses = [format!("10.0.0.{last}/24"), format!("fd00::{last}/64")];
    StackConfig {
        addresses: addresses.map(|net| net.parse().unwrap()).to_vec(),
        ..StackConfig::default()
    }
}

/// A sender and a receiver for each family, who know each other.
struct Net {
    here: Stack,
    there: Stack,
    pool: Arc<Pool>,
    ends: [(UdpSocket, UdpSocket, SocketAddr); 2],
    sent: Sent,
}

impl Net {
    fn new(chunks: usize) -> Self {
        let link = SimulatedConfig {
            chunks,
            ..SimulatedConfig::default()
        };
        let (one, other) = SimulatedDevice::pair(&link).unwrap();
        let (sent, pool) = (Sent::default(), Arc::clone(one.pool()));
        let watched = Watched(Arc::new(one), Arc::clone(&sent));
        let here = Stack::start(watched, &at(1)).unwrap();
        let there = Stack::start(other, &at(2)).unwrap();
        let ends = [("10.0.0.1:5", "10.0.0.2:7"), ("[fd00::1]:5", "[fd00::2]:7")];
        let ends = ends.map(|(from, to)| {
            let sender = UdpSocket::bind(&here, from).unwrap();
            let receiver = UdpSocket::bind(&there, to).unwrap();
            receiver.set_read_timeout(Some(SOON)).unwrap();
            // More than a few frames would not wait for an unknown neighbour.
            sender.send_to(b"first", to).unwrap();
            receiver.recv(&mut [0; 8]).unwrap();
            (sender, receiver, to.parse().unwrap())
        });
        Self {
            here,
            there,
            pool,
            ends,
            sent,
        }
    }
}

fn received(socket: &UdpSocket) -> Vec<u8> {
    let mut payload = vec![0; 70_000];
    let bytes = socket.recv(&mut payload).unwrap();
    payload.truncate(bytes);
    payload
}

fn filled(mut message: Message, with: &[u8]) -> Message {
    message.write_at(0, with);
    message
}

/// TB-47: whatever is written wherever, it is what a plain row of bytes would be, and arrives.
#[test]
fn a_message_is_one_row_of_bytes() {
    let net = Net::new(4096);
    let allocator = RefCell::new(net.here.allocator(64));
    let mut runner = TestRunner::new(Config::with_cases(64));
    let writes = proptest::collection::vec((any::<usize>(), 0..3000usize, any::<u8>()), 0..8);
    let case = (any::<bool>(), 0..9000usize, writes, 0..9000usize);
    let checked = runner.run(&case, |(is_ipv6, bytes, writes, left)| {
        let (sender, receiver, to) = &net.ends[usize::from(is_ipv6)];
        let mut model = content(bytes);
        let message = sender.message(&mut allocator.borrow_mut(), *to, bytes);
        let mut message = filled(message.unwrap(), &model);
        for (place, length, with) in writes {
            let place = place % (bytes + 1);
            let end = bytes.min(place + length);
            message.write_at(place, &vec![with; end - place]);
            model[place..end].fill(with);
        }
        message.truncate(left);
        model.truncate(left);
        assert_eq!(message.len(), model.len());
        assert_eq!(message.is_empty(), model.is_empty());
        assert!(message.chunks().flatten().eq(&model));
        assert_eq!(sender.send_messages(&mut vec![message]).unwrap(), 1);
        assert!(received(receiver) == model, "{bytes} bytes, {left} left");
        Ok(())
    });
    checked.unwrap();
}

/// TB-47.
#[test]
fn chunks_leave_in_one_call_from_the_memory_they_were_written_in() {
    let net = Net::new(4096);
    let mut allocator = net.here.allocator(64);
    for (family, (sender, receiver, to)) in net.ends.iter().enumerate() {
        let (one, first) = (ONE_PACKET[family], FIRST_CHUNK[family]);
        for (bytes, chunks) in [(0, 1), (one, 1), (one + 1, 2), (65_507, 45)] {
            let sent = content(bytes);
            let message = sender.message(&mut allocator, *to, bytes).unwrap();
            let message = filled(message, &sent);
            assert_eq!(message.destination(), *to);
            assert_eq!(
                message.chunks().count(),
                chunks + usize::from(bytes == 65_507) * family
            );
            if chunks > 1 {
                assert_eq!(message.chunks().next().unwrap().len(), first);
            }
            let written: Vec<_> = message.chunks().map(end_of).collect();
            assert_eq!(sender.send_messages(&mut vec![message]).unwrap(), 1);
            assert_eq!(net.sent.lock().unwrap().last(), Some(&written));
            assert!(received(receiver) == sent, "{bytes} bytes to {to}");
        }
        // Cut to what goes in one packet, it is none in pieces.
        let mut message = sender.message(&mut allocator, *to, 5000).unwrap();
        message.write_at(0, &content(one));
        message.truncate(one);
        sender.set_dont_fragment(true);
        sender.send_messages(&mut vec![message]).unwrap();
        assert!(received(receiver) == content(one));
        assert_eq!(net.sent.lock().unwrap().last().unwrap().len(), 1);
    }
}

#[test]
fn what_cannot_be_sent_says_why_and_keeps_nothing() {
    const CHUNKS: usize = 64;
    let net = Net::new(CHUNKS);
    let (sender, _, to) = &net.ends[0];
    let mut allocator = net.here.allocator(8);
    let too_long = sender.message(&mut allocator, *to, 65_508).unwrap_err();
    assert_eq!(too_long.raw_os_error(), Some(libc::EMSGSIZE));
    let mut messages: Vec<Message> = Vec::new();
    let refused = loop {
        match sender.message(&mut allocator, *to, 9000) {
            Ok(message) => messages.push(message),
            Err(error) => break error,
        }
    };
    assert_eq!(refused.raw_os_error(), Some(libc::ENOBUFS));
    drop(messages);
    sender.set_dont_fragment(true);
    let message = sender.message(&mut allocator, *to, 4000).unwrap();
    let refused = sender.send_messages(&mut vec![message]).unwrap_err();
    assert!(
        refused
            .get_ref()
            .is_some_and(<dyn Error + Send + Sync>::is::<TooLong>)
    );
    drop(allocator);
    // What the stack itself has sent may be on its way still.
    let patience = Instant::now() + SOON;
    while net.pool.available() < CHUNKS {
        assert!(Instant::now() < patience, "{} free", net.pool.available());
        thread::sleep(Duration::from_millis(1));
    }
}

/// Its memory is not what the other device reads: it is copied.
#[test]
fn another_stack_s_message_is_sent_and_its_allocator_is_refused() {
    let (net, elsewhere) = (Net::new(4096), Net::new(4096));
    let (sender, receiver, to) = &net.ends[0];
    let mut foreign = elsewhere.here.allocator(64);
    let refused = sender.message(&mut foreign, *to, 9).unwrap_err();
    assert_eq!(refused.kind(), io::ErrorKind::InvalidInput);
    let refused = sender.send_buffer_from(&mut foreign, *to, 9).unwrap_err();
    assert_eq!(refused.kind(), io::ErrorKind::InvalidInput);
    let message = elsewhere.ends[0].0.message(&mut foreign, *to, 4000);
    let message = filled(message.unwrap(), &content(4000));
    sender.send_messages(&mut vec![message]).unwrap();
    assert!(received(receiver) == content(4000));
}

#[test]
fn parts_arrive_as_one_payload_connected_or_not() {
    let net = Net::new(4096);
    for (sender, receiver, to) in &net.ends {
        let nowhere = sender.send_vectored(&[]).unwrap_err();
        assert_eq!(nowhere.raw_os_error(), Some(libc::EDESTADDRREQ));
        for bytes in [0, 1000, 9000] {
            let (sent, cuts) = (content(bytes), [0, bytes / 9, bytes / 9, bytes]);
            let parts = cuts
                .windows(2)
                .map(|cut| IoSlice::new(&sent[cut[0]..cut[1]]));
            let parts: Vec<_> = parts.collect();
            assert_eq!(sender.send_vectored_to(&parts, to).unwrap(), bytes);
            assert!(received(receiver) == sent);
        }
        sender.set_dont_fragment(true);
        let long = [IoSlice::new(&[7; 2000]); 2];
        let refused = sender.send_vectored_to(&long, to).unwrap_err();
        assert!(
            refused
                .get_ref()
                .is_some_and(<dyn Error + Send + Sync>::is::<TooLong>)
        );
        sender.connect(to).unwrap();
        let sent = [&b"header"[..], b"body"].map(IoSlice::new);
        assert_eq!(sender.send_vectored(&sent).unwrap(), 10);
        assert_eq!(received(receiver), b"headerbody");
    }
}

/// TB-44: a thread sends in the memory that it received in, without asking anybody for it.
#[test]
fn worked_off_datagrams_are_the_next_answers_memory() {
    let net = Net::new(4096);
    let (client, server, to) = &net.ends[0];
    let mut allocator = net.there.allocator(64);
    let (mut datagrams, mut buffers) = (Vec::with_capacity(32), Vec::with_capacity(32));
    let from = client.local_addr().unwrap();
    for _ in 0..3 {
        for _ in 0..32 {
            client.send_to(&[1; 64], to).unwrap();
        }
        while datagrams.len() < 32 {
            server.recv_batch(&mut datagrams, 32).unwrap();
        }
        let chunk = |bytes: &[u8]| end_of(bytes) / 2048;
        let came: BTreeSet<_> = datagrams.iter().map(|one| chunk(one.payload())).collect();
        let before = allocator.kept();
        let allocated = allocation_counter::measure(|| {
            allocator.recycle(&mut datagrams);
            assert_eq!(allocator.kept(), before + 32);
            for _ in 0..32 {
                let buffer = server.send_buffer_from(&mut allocator, from, 64);
                buffers.push(buffer.unwrap());
            }
        });
        assert_eq!(allocated.count_total, 0);
        let leave: BTreeSet<_> = buffers.iter().map(|one| chunk(one)).collect();
        assert_eq!(leave, came);
        assert_eq!(server.send_buffers(&mut buffers).unwrap(), 32);
    }
}

/// TB-47: over AF_XDP the kernel finds each fragment, and the checksum over all, right.
#[test]
fn the_kernel_joins_a_message_to_what_was_written() {
    Lan::create(|| {
        let stack = Stack::start(xdp(&owned()), &lan::config("ni-lrp")).unwrap();
        let mut allocator = stack.allocator(64);
        for (at, to) in [("10.0.0.2:5", "10.0.0.1:7"), ("[fd00::2]:5", "[fd00::1]:7")] {
            let kernels = KernelSocket::bind(to).unwrap();
            kernels.set_read_timeout(Some(SOON)).unwrap();
            let socket = UdpSocket::bind(&stack, at).unwrap();
            let to = to.parse().unwrap();
            socket.send_to(b"first", to).unwrap();
            kernels.recv(&mut [0; 8]).unwrap();
            for bytes in [0, 1, 1472, 1473, 20_000, 65_507] {
                let sent = content(bytes);
                let message = socket.message(&mut allocator, to, bytes).unwrap();
                let mut batch = vec![filled(message, &sent)];
                assert_eq!(socket.send_messages(&mut batch).unwrap(), 1);
                let mut received = vec![0; 70_000];
                let found = kernels.recv(&mut received).unwrap();
                assert!(received[..found] == sent, "{bytes} bytes to {to}");
                socket.send_vectored_to(&[IoSlice::new(&sent)], to).unwrap();
                let found = kernels.recv(&mut received).unwrap();
                assert!(received[..found] == sent, "{bytes} bytes to {to}");
            }
        }
        lan::assert_sums(&stack);
    });
}
