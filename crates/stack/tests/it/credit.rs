//! The receive-buffer credit steers how many frames AF_XDP has to receive into. Needs root.

use std::net::UdpSocket as KernelSocket;
use std::thread;
use std::time::{Duration, Instant};

use plimsoll_core::holdoff::CreditConfig;
use plimsoll_stack::device::tap::TapDevice;
use plimsoll_stack::{Outcome, Stack, StackConfig, UdpSocket};

use crate::lan::{self, Lan, SOON, config, in_namespace, owned, xdp};

const MOST: u32 = 256;
const LEAST: u32 = 16;

fn limited(path: &str) -> StackConfig {
    StackConfig {
        credit: Some(CreditConfig {
            min: LEAST,
            max: MOST,
            ..CreditConfig::default()
        }),
        ..config(path)
    }
}

/// Waits until the credit is as `wanted`, calling `meanwhile`.
fn wait_for(stack: &Stack, wanted: impl Fn(u32) -> bool, mut meanwhile: impl FnMut()) {
    let end = Instant::now() + SOON;
    while !wanted(stack.receive_credit().unwrap()) {
        meanwhile();
        assert!(Instant::now() < end, "{:?}", stack.receive_credit());
    }
}

#[test]
fn buffers_go_while_packets_are_dropped_and_come_back_after() {
    for path in ["soft-lrp", "polled", "eager"] {
        Lan::create(|| {
            let stack = Stack::start(xdp(&owned()), &limited(path)).unwrap();
            assert_eq!(stack.receive_credit(), Some(MOST));
            let deaf = UdpSocket::bind(&stack, "10.0.0.2:7").unwrap();
            let server = UdpSocket::bind(&stack, "10.0.0.2:8").unwrap();
            server.set_read_timeout(Some(SOON)).unwrap();
            let client = KernelSocket::bind("10.0.0.1:0").unwrap();
            if path != "polled" {
                // Nobody reads the first socket; with `polled` its input stops instead.
                wait_for(
                    &stack,
                    |credit| credit == LEAST,
                    || {
                        let _ = client.send_to(&[0; 64], "10.0.0.2:7");
                    },
                );
                assert!(stack.counts()[Outcome::Full] > 0);
                // What nobody would take the device drops now.
                let dropped = || stack.device_drops().no_buffer;
                let (before, end) = (dropped(), Instant::now() + SOON);
                while dropped() == before {
                    let _ = client.send_to(&[0; 64], "10.0.0.2:7");
                    assert!(Instant::now() < end, "{:?}", stack.device_drops());
                }
            }
            // What still waits of the flood may have all buffers.
            let mut buffer = [0; 64];
            server.set_read_timeout(Some(SOON / 50)).unwrap();
            let end = Instant::now() + SOON;
            loop {
                client.send_to(b"taken", "10.0.0.2:8").unwrap();
                match server.recv(&mut buffer) {
                    Ok(_) => break,
                    Err(error) => assert!(Instant::now() < end, "{path}: {error}"),
                }
            }
            server.set_read_timeout(Some(SOON)).unwrap();
            // The least is enough for who takes what comes.
            for _ in 0..3 * LEAST {
                client.send_to(b"taken", "10.0.0.2:8").unwrap();
                assert_eq!(server.recv(&mut buffer).unwrap(), 5, "{path}");
            }
            // An idle moment gives all of it back.
            thread::sleep(Duration::from_millis(60));
            wait_for(
                &stack,
                |credit| credit == MOST,
                || {
                    client.send_to(b"taken", "10.0.0.2:8").unwrap();
                    assert_eq!(server.recv(&mut buffer).unwrap(), 5, "{path}");
                    thread::sleep(Duration::from_millis(60));
                },
            );
            drop(deaf);
            lan::assert_sums(&stack);
        });
    }
}

#[test]
fn it_is_refused_where_nothing_is_lent() {
    in_namespace(|| {
        let device = TapDevice::open("tap0").unwrap();
        let refused = Stack::start(device, &limited("soft-lrp")).unwrap_err();
        assert!(
            refused.is_missing() && refused.to_string().contains("AF_XDP"),
            "{refused}"
        );
    });
    Lan::create(|| {
        let refused = Stack::start(xdp(&owned()), &limited("ni-lrp")).unwrap_err();
        assert!(refused.is_usage(), "{refused}");
    });
}
