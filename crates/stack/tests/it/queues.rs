//! Interfaces with several receive queues. Needs root.

use std::io::{Read, Write};
use std::net::{TcpStream as KernelStream, UdpSocket as KernelSocket};
use std::thread;
use std::time::{Duration, Instant};

use plimsoll_kernel::link;
use plimsoll_stack::Error;
use plimsoll_stack::device::xdp::{Threaded, XdpConfig, XdpInterface};
use plimsoll_stack::{ReceivePath, Stack, TcpListener, UdpSocket};

use crate::lan::{self, SOON, config, in_namespace, owned, run, set_up_kernel_side, xdp};

/// Enough that each of two queues gets some: all in one has a chance of 2^-23.
const FLOWS: usize = 24;

/// A link whose flows are spread over so many queues.
fn with_queues(queues: u32, test: impl FnOnce() + Send) {
    in_namespace(|| {
        let queues = format!("numtxqueues {queues} numrxqueues {queues}");
        run(&format!(
            "ip link add kernel0 {queues} type veth peer name stack0 {queues}"
        ));
        set_up_kernel_side("kernel0");
        lan::set_up_stack_side();
        link::wait_until_sending("kernel0").unwrap();
        test();
    });
}

fn echo_over_udp(server: &UdpSocket, to: &str) {
    for _ in 0..FLOWS {
        let client = KernelSocket::bind("10.0.0.1:0").unwrap();
        client.set_read_timeout(Some(SOON)).unwrap();
        client.send_to(b"whichever queue", to).unwrap();
        let mut buffer = [0; 32];
        let (length, from) = server.recv_from(&mut buffer).unwrap();
        server.send_to(&buffer[..length], from).unwrap();
        assert_eq!(client.recv(&mut buffer).unwrap(), length);
    }
}

fn serve_over_tcp(listener: &TcpListener) {
    for _ in 0..FLOWS {
        let mut client = KernelStream::connect_timeout(&"10.0.0.2:80".parse().unwrap(), SOON);
        let client = client.as_mut().unwrap();
        let (mut accepted, _) = listener.accept_timeout(SOON).unwrap();
        accepted.set_read_timeout(Some(SOON)).unwrap();
        client.write_all(b"whichever").unwrap();
        accepted.read_exact(&mut [0; 9]).unwrap();
    }
}

#[test]
fn frames_reach_their_endpoint_by_whichever_queue_they_come() {
    for path in ReceivePath::NAMES {
        for at in ["10.0.0.2:7", "0.0.0.0:7"] {
            with_queues(2, || {
                let stack = Stack::start(xdp(&owned()), &config(path)).unwrap();
                let server = UdpSocket::bind(&stack, at).unwrap();
                server.set_read_timeout(Some(SOON)).unwrap();
                echo_over_udp(&server, "10.0.0.2:7");
                serve_over_tcp(&TcpListener::bind(&stack, "10.0.0.2:80").unwrap());
                lan::assert_sums(&stack);
            });
        }
    }
}

/// Two queues that one server takes from come and go with it, and lose no memory.
#[test]
fn endpoints_of_two_queues_come_and_go() {
    with_queues(2, || {
        let small = XdpConfig {
            chunks: 512,
            send_frames: 128,
            ..owned()
        };
        let stack = Stack::start(xdp(&small), &config("ni-lrp")).unwrap();
        for _ in 0..20 {
            let server = UdpSocket::bind(&stack, "10.0.0.2:7").unwrap();
            for _ in 0..FLOWS {
                let client = KernelSocket::bind("10.0.0.1:0").unwrap();
                client.send_to(b"never read", "10.0.0.2:7").unwrap();
            }
            drop(server);
        }
        let server = UdpSocket::bind(&stack, "10.0.0.2:7").unwrap();
        server.set_read_timeout(Some(SOON)).unwrap();
        for _ in 0..20 {
            echo_over_udp(&server, "10.0.0.2:7");
        }
    });
}

#[test]
fn one_queue_alone_is_served_if_that_is_asked_for() {
    with_queues(2, || {
        let one = XdpConfig {
            queue: 1,
            all_queues: false,
            ..owned()
        };
        let device = xdp(&one);
        let mac = device.mac().map(|byte| format!("{byte:02x}")).join(":");
        let stack = Stack::start(device, &config("soft-lrp")).unwrap();
        let server = UdpSocket::bind(&stack, "10.0.0.2:7").unwrap();
        server.set_nonblocking(true).unwrap();
        run(&format!("ip neigh add 10.0.0.2 lladdr {mac} dev kernel0"));
        for _ in 0..FLOWS {
            let client = KernelSocket::bind("10.0.0.1:0").unwrap();
            client.send_to(b"by one of two", "10.0.0.2:7").unwrap();
        }
        let (mut received, end) = (0, Instant::now() + SOON);
        while received == 0 {
            // Late ones only make the test stricter.
            thread::sleep(Duration::from_millis(100));
            while server.recv(&mut [0; 16]).is_ok() {
                received += 1;
            }
            assert!(Instant::now() < end, "nothing came by queue 1");
        }
        assert!((1..FLOWS).contains(&received), "{received} of {FLOWS}");
    });
}

#[test]
fn what_several_queues_cannot_do_is_told_with_its_remedy() {
    with_queues(2, || {
        let auto = XdpConfig {
            threaded: Threaded::Auto,
            ..owned()
        };
        let device = xdp(&auto);
        let why = device.unthreaded().unwrap();
        assert!(why.contains("ethtool -L stack0 combined 1"), "{why}");
    });
    with_queues(17, || {
        let refused = XdpInterface::open("stack0", &owned()).unwrap_err();
        assert!(matches!(refused, Error::Unsupported { .. }), "{refused}");
        assert!(refused.to_string().contains("17 receive"), "{refused}");
        let one = XdpConfig {
            all_queues: false,
            ..owned()
        };
        XdpInterface::open("stack0", &one).unwrap();
    });
}
