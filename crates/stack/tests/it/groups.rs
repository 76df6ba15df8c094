//! UDP sockets that share an address, on every receive path, against the kernel. Needs root.

use std::collections::HashMap;
use std::io::ErrorKind;
use std::net::{SocketAddr, UdpSocket as KernelSocket};
use std::thread;
use std::time::{Duration, Instant};

use plimsoll_stack::device::xdp::XdpConfig;
use plimsoll_stack::{Datagram, Outcome, ReceivePath, Stack, UdpSocket};

use crate::lan::{self, Lan, SOON, config, content, owned, xdp};

const MEMBERS: usize = 4;
const FLOWS: u16 = 48;
const ROUNDS: usize = 4;

fn group(stack: &Stack, at: &str, members: usize) -> Vec<UdpSocket> {
    let bind = |_| {
        let socket = UdpSocket::bind_shared(stack, at).unwrap();
        socket.set_nonblocking(true).unwrap();
        socket
    };
    (0..members).map(bind).collect()
}

/// Receives `count` datagrams; whose socket got which flow.
fn receive(sockets: &[UdpSocket], count: usize) -> HashMap<SocketAddr, Vec<usize>> {
    let (mut flows, mut batch) = (HashMap::<_, Vec<_>>::new(), Vec::<Datagram>::new());
    let (mut received, end) = (0, Instant::now() + SOON);
    while received < count {
        for (number, socket) in sockets.iter().enumerate() {
            if socket.recv_batch(&mut batch, 64).is_err() {
                continue;
            }
            for datagram in batch.drain(..) {
                flows.entry(datagram.source()).or_default().push(number);
                received += 1;
            }
        }
        assert!(Instant::now() < end, "{received} of {count}");
        thread::sleep(Duration::from_micros(100));
    }
    flows
}

/// Sends a datagram of each flow, `ROUNDS` times, and returns who got which.
fn share_out(
    sockets: &[UdpSocket],
    clients: &[KernelSocket],
    at: &str,
) -> Vec<(SocketAddr, usize)> {
    let mut owners = HashMap::<SocketAddr, Vec<usize>>::new();
    for _ in 0..ROUNDS {
        for client in clients {
            client.send_to(b"whose?", at).unwrap();
        }
        for (flow, numbers) in receive(sockets, clients.len()) {
            owners.entry(flow).or_default().extend(numbers);
        }
    }
    let one = |(flow, numbers): (SocketAddr, Vec<usize>)| {
        assert_eq!(numbers, [numbers[0]; ROUNDS], "{flow} has several sockets");
        (flow, numbers[0])
    };
    owners.into_iter().map(one).collect()
}

fn users(owners: &[(SocketAddr, usize)], members: usize) -> Vec<usize> {
    let count = |number| owners.iter().filter(|owner| owner.1 == number).count();
    (0..members).map(count).collect()
}

#[test]
fn flows_are_shared_out_on_every_path_and_nothing_is_lost() {
    for path in ReceivePath::NAMES {
        Lan::create(|| {
            let stack = Stack::start(xdp(&owned()), &config(path)).unwrap();
            for (at, from) in [
                ("10.0.0.2:7", "10.0.0.1:0"),
                ("[fd00::2]:7", "[fd00::1]:0"),
                ("0.0.0.0:8", "10.0.0.1:0"),
            ] {
                let to = at.replace("0.0.0.0", "10.0.0.2");
                let clients: Vec<_> = (0..FLOWS)
                    .map(|_| KernelSocket::bind(from).unwrap())
                    .collect();
                let mut sockets = group(&stack, at, MEMBERS);
                let owners = share_out(&sockets, &clients, &to);
                assert_eq!(owners.len(), usize::from(FLOWS));
                // The chance of a socket without any of 48 flows is 4 * (3/4)^48.
                let flows = users(&owners, MEMBERS);
                assert!(
                    flows.iter().all(|&flows| flows > 0),
                    "{path} {at}: {flows:?}"
                );
                // Fragments of a datagram come together.
                clients[0].send_to(&content(4000), &to[..]).unwrap();
                assert_eq!(receive(&sockets, 1).len(), 1);
                // A member that leaves loses its flows to the others.
                drop(sockets.pop());
                let owners = share_out(&sockets, &clients, &to);
                let flows = users(&owners, MEMBERS - 1);
                assert!(
                    flows.iter().all(|&flows| flows > 0),
                    "{path} {at}: {flows:?}"
                );
                // With the last the address is free.
                let alone = UdpSocket::bind(&stack, at).unwrap_err();
                assert_eq!(alone.kind(), ErrorKind::AddrInUse);
                drop(sockets);
                let alone = UdpSocket::bind(&stack, at).unwrap();
                let beside = UdpSocket::bind_shared(&stack, at).unwrap_err();
                assert_eq!(beside.kind(), ErrorKind::AddrInUse);
                clients[0].send_to(b"alone", &to[..]).unwrap();
                alone.set_read_timeout(Some(SOON)).unwrap();
                assert_eq!(alone.recv(&mut [0; 10]).unwrap(), 5);
            }
            lan::assert_sums(&stack);
            assert_eq!(stack.counts()[Outcome::Full], 0);
        });
    }
}

#[test]
fn a_full_member_loses_its_own_packets_and_nobody_elses() {
    for path in ["soft-lrp", "ni-lrp"] {
        Lan::create(|| {
            let small = XdpConfig {
                ring_frames: 64,
                ..owned()
            };
            let mut config = config(path);
            config.channel = plimsoll_core::channel::ChannelConfig::drop_tail(64);
            let stack = Stack::start(xdp(&small), &config).unwrap();
            let clients: Vec<_> = (0..FLOWS)
                .map(|_| KernelSocket::bind("10.0.0.1:0").unwrap())
                .collect();
            let sockets = group(&stack, "10.0.0.2:7", 2);
            let owners = share_out(&sockets, &clients, "10.0.0.2:7");
            let of = |number| {
                let owner = owners.iter().find(|owner| owner.1 == number).unwrap();
                let has = |client: &&KernelSocket| client.local_addr().unwrap() == owner.0;
                clients.iter().find(has).unwrap()
            };
            for _ in 0..500 {
                of(0).send_to(b"nobody takes these", "10.0.0.2:7").unwrap();
            }
            // All share the interface's ring, which may still be full.
            let (mut received, end) = (Ok(0), Instant::now() + SOON);
            while !matches!(received, Ok(11)) && Instant::now() < end {
                of(1).send_to(b"this one is", "10.0.0.2:7").unwrap();
                thread::sleep(Duration::from_millis(1));
                received = sockets[1].recv(&mut [0; 20]);
            }
            assert_eq!(received.unwrap(), 11, "{path}");
            let mut taken = 0;
            while sockets[0].recv(&mut [0; 20]).is_ok() {
                taken += 1;
            }
            assert!((1..500).contains(&taken), "{path}: {taken} of 500");
            lan::assert_sums(&stack);
        });
    }
}

#[test]
fn what_a_group_cannot_do_is_refused() {
    Lan::create(|| {
        let stack = Stack::start(xdp(&owned()), &config("soft-lrp")).unwrap();
        let sockets = group(&stack, "10.0.0.2:7", 2);
        let refused = sockets[0].connect("10.0.0.1:9").unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::InvalidInput);
        let no_port = UdpSocket::bind_shared(&stack, "10.0.0.2:0").unwrap_err();
        assert_eq!(no_port.kind(), ErrorKind::InvalidInput);
    });
}
