//! Datagrams of several packets: written into chunks that become fragments where they lie, or in one
//! row that is cut by copying.

use std::hint::black_box;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use criterion::{Criterion, Throughput};
use nix::sys::eventfd::EventFd;
use plimsoll_stack::device::{Batch, Capabilities, Device, Drops, Pool};
use plimsoll_stack::{Stack, StackConfig, UdpSocket};

/// What is sent is gone at once, and nothing arrives.
#[derive(Debug)]
struct Sink {
    pool: Arc<Pool>,
    never: EventFd,
}

impl Device for Sink {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            mac: [2, 0, 0, 0, 0, 1],
            mtu: 1500,
            checksums_verified: false,
            steers: false,
            // So that nobody is asked for an address.
            peer: Some([2, 0, 0, 0, 0, 2]),
            zero_copy: false,
        }
    }

    fn pool(&self) -> &Arc<Pool> {
        &self.pool
    }

    fn receive(&self, _: &mut Batch, _: usize) -> io::Result<usize> {
        Ok(0)
    }

    fn transmit(&self, batch: &mut Batch) -> io::Result<usize> {
        let sent = batch.len();
        batch.clear();
        Ok(sent)
    }

    fn readiness(&self) -> BorrowedFd<'_> {
        self.never.as_fd()
    }

    fn drops(&self) -> Drops {
        Drops::default()
    }
}

fn stack() -> Stack {
    let sink = Sink {
        pool: Pool::new(1024, 2048).expect("memory"),
        never: EventFd::new().expect("a descriptor"),
    };
    let config = StackConfig::at("10.0.0.1/24".parse().expect("a network"));
    Stack::start(sink, &config).expect("a stack")
}

/// One datagram is written and sent: one packet's worth, and messages of 3 and of 42 packets.
pub(crate) fn messages(c: &mut Criterion) {
    let stack = stack();
    let socket = UdpSocket::bind(&stack, "10.0.0.1:7").expect("a free port");
    let to: SocketAddr = "10.0.0.2:7".parse().expect("an address");
    for bytes in [1400, 4000, 62_000] {
        let mut group = c.benchmark_group(format!("message/{bytes}_bytes"));
        group.throughput(Throughput::Bytes(bytes as u64));
        group.bench_function("with", |b| {
            let mut allocator = stack.allocator(64);
            let mut batch = Vec::with_capacity(1);
            b.iter(|| {
                let message = socket.message(&mut allocator, to, bytes);
                let mut message = message.expect("memory");
                message
                    .chunks_mut()
                    .for_each(|chunk| chunk.fill(black_box(7)));
                batch.push(message);
                assert_eq!(socket.send_messages(&mut batch).expect("room"), 1);
            });
        });
        group.bench_function("one row, copied", |b| {
            let mut row = vec![0; bytes];
            b.iter(|| {
                row.fill(black_box(7));
                assert_eq!(socket.send_to(&row, to).expect("room"), bytes);
            });
        });
        group.finish();
    }
}
