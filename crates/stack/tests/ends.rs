//! How connections end against the kernel's own stack, and what becomes of packets for
//! nobody. Needs root.

mod lan;

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream, UdpSocket as KernelSocket};
use std::time::Duration;

use lan::{Lan, SOON, config, content, owned, transfer, xdp};
use plimsoll_stack::{Stack, TcpListener as StackListener, TcpStream as StackStream, UdpSocket};

/// A connection that the kernel began, and its end at the stack.
fn accepted(listener: &StackListener) -> (TcpStream, StackStream) {
    let kernels = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let ours = listener.accept().unwrap().0;
    kernels.set_read_timeout(Some(SOON)).unwrap();
    ours.set_read_timeout(Some(SOON)).unwrap();
    (kernels, ours)
}

#[test]
fn ends_and_closed_windows_are_understood_both_ways() {
    Lan::create(|| {
        let stack = Stack::start(xdp(&owned()), &config("soft-lrp")).unwrap();
        let listener = StackListener::bind(&stack, "10.0.0.2:80").unwrap();

        // Half-closed by the kernel, then by the stack: the other direction goes on.
        let (mut kernels, mut ours) = accepted(&listener);
        kernels.shutdown(Shutdown::Write).unwrap();
        assert_eq!(ours.read(&mut [0; 9]).unwrap(), 0);
        transfer(&mut ours, &mut kernels, &content(100_000));
        let (mut kernels, mut ours) = accepted(&listener);
        ours.shutdown(Shutdown::Write).unwrap();
        assert_eq!(kernels.read(&mut [0; 9]).unwrap(), 0);
        transfer(&mut kernels, &mut ours, &content(100_000));

        // A reset by the kernel: it closes with data unread.
        let (kernels, mut ours) = accepted(&listener);
        ours.write_all(b"unread").unwrap();
        kernels.peek(&mut [0; 6]).unwrap();
        drop(kernels);
        let reset = ours.read(&mut [0; 9]).unwrap_err();
        assert_eq!(reset.kind(), ErrorKind::ConnectionReset);

        // Nobody reads at the stack until its window is closed; nothing is lost.
        let (mut kernels, mut ours) = accepted(&listener);
        kernels
            .set_write_timeout(Some(Duration::from_millis(300)))
            .unwrap();
        let sent = content(16 << 20);
        let mut written = 0;
        while let Ok(length) = kernels.write(&sent[written..]) {
            written += length;
        }
        assert!(written > 64 << 10, "{written}");
        let mut received = vec![0; written];
        ours.read_exact(&mut received).unwrap();
        assert!(
            received == sent[..written],
            "damaged behind a closed window"
        );
    });
}

#[test]
fn storms_of_the_kernels_connections_leave_nothing_behind() {
    Lan::create(|| {
        // Fewer places than connections, so that each must be given back.
        let mut few = config("soft-lrp");
        few.tcp.connections_max = 32;
        let stack = Stack::start(xdp(&owned()), &few).unwrap();
        let listener = StackListener::bind(&stack, "10.0.0.2:80").unwrap();
        for round in 0..200 {
            let (mut kernels, mut ours) = accepted(&listener);
            kernels.write_all(&[round as u8]).unwrap();
            let mut byte = [0];
            ours.read_exact(&mut byte).unwrap();
            assert_eq!(byte[0], round as u8);
            // By turns either side ends first.
            match round % 2 {
                0 => (drop(kernels), drop(ours)),
                _ => (drop(ours), drop(kernels)),
            };
        }
        lan::assert_sums(&stack);
    });
}

/// LRP-20, for ports without a channel: what nobody will answer costs the stack nothing.
#[test]
fn a_flood_for_ports_that_nobody_bound_ends_in_the_xdp_program() {
    Lan::create(|| {
        let stack = Stack::start(xdp(&owned()), &config("soft-lrp")).unwrap();
        let server = UdpSocket::bind(&stack, "10.0.0.2:7").unwrap();
        server.set_read_timeout(Some(SOON)).unwrap();
        let client = KernelSocket::bind("10.0.0.1:0").unwrap();
        client.send_to(b"first", "10.0.0.2:7").unwrap();
        server.recv_from(&mut [0; 100]).unwrap();
        let end = std::time::Instant::now() + SOON;
        while stack.device_drops().stray == 0 {
            assert!(std::time::Instant::now() < end, "{:?}", stack.counts());
            for _ in 0..500 {
                client.send_to(b"for nobody", "10.0.0.2:9").unwrap();
            }
        }
        client.send_to(b"bound", "10.0.0.2:7").unwrap();
        assert_eq!(server.recv_from(&mut [0; 100]).unwrap().0, 5);
        lan::assert_sums(&stack);
    });
}
