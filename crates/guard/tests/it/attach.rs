//! Attached to a real interface: real frames are counted and discarded, the
//! interface is as before when the guard is gone, and what cannot work is
//! refused with its reason.

use std::net::UdpSocket;
use std::time::Duration;

use plimsoll_core::config::Fraction;
use plimsoll_guard::{Config, Error, Guard, Kind, Outcome, Storage};
use plimsoll_kernel::Error as KernelError;
use plimsoll_kernel::error::AttachError;

use crate::common::{HOST_V4, Wire, in_namespace, ip, to_host, udp_socket};

const PORT: u16 = 5000;
const FRAMES: u64 = 500;

/// Everything that arrives within a while.
fn drain(socket: &UdpSocket) -> u64 {
    socket.set_nonblocking(false).unwrap();
    socket
        .set_read_timeout(Some(Duration::from_millis(300)))
        .unwrap();
    let mut received = 0;
    while socket.recv(&mut [0; 64]).is_ok() {
        received += 1;
    }
    received
}

/// Shows LRP-12.
#[test]
fn every_frame_on_the_wire_is_delivered_or_discarded_early() {
    in_namespace(|| {
        let mut storage = Storage::default();
        let mut guard = Guard::attach(&mut storage, &Config::default(), "v0").unwrap();
        let server = udp_socket((HOST_V4, PORT), 64 << 10);
        let wire = Wire::open();
        let frame = to_host(HOST_V4).udp(4000, PORT, &[0; 18]);
        for _ in 0..FRAMES {
            wire.send(&frame);
        }
        let delivered = drain(&server);
        let packets = *guard.counters().unwrap().of(Kind::UdpSocket);
        assert_eq!(packets.offered(), FRAMES);
        assert_eq!(
            packets.count(Outcome::Admitted),
            delivered,
            "no packet is lost after admission"
        );
        assert!(packets.discarded() > 0, "the buffer is too small for all");

        for _ in 0..10 {
            wire.send(&frame);
        }
        assert_eq!(
            drain(&server),
            10,
            "a drained socket gets its packets again"
        );
    });
}

#[test]
fn an_interface_has_one_guard_and_none_after_it_is_dropped() {
    in_namespace(|| {
        let mut storage = Storage::default();
        let mut other = Storage::default();
        let guard = Guard::attach(&mut storage, &Config::default(), "v0").unwrap();
        let refused = Guard::attach(&mut other, &Config::default(), "v0").unwrap_err();
        assert!(
            matches!(
                refused,
                Error::Kernel(KernelError::Attach(AttachError::Busy { .. }))
            ),
            "{refused}"
        );
        drop(guard);
        // A process that another test starts at this moment holds a copy of
        // the link until it becomes its program.
        let free = (0..100).any(|_| {
            std::thread::sleep(Duration::from_millis(20));
            let mut again = Storage::default();
            Guard::attach(&mut again, &Config::default(), "v0").is_ok()
        });
        assert!(free, "nothing is attached any more");
    });
}

#[test]
fn what_cannot_be_guarded_is_refused_with_the_reason() {
    in_namespace(|| {
        let mut storage = Storage::default();
        let error = Guard::attach(&mut storage, &Config::default(), "v9").unwrap_err();
        assert!(
            matches!(error, Error::Kernel(KernelError::Interface(_))),
            "{error}"
        );
        let mut storage = Storage::default();
        let error = Guard::attach(&mut storage, &Config::default(), "lo").unwrap_err();
        assert!(
            matches!(
                error,
                Error::Kernel(KernelError::Attach(AttachError::NoNativeXdp { .. }))
            ),
            "{error}"
        );
        assert!(error.is_missing());
        for (low_watermark, answer) in [
            (
                Fraction::WHOLE,
                "low_watermark = 1000000: must be below high_watermark",
            ),
            (
                Fraction::NONE,
                "low_watermark = 0: must be more than nothing",
            ),
        ] {
            let mut storage = Storage::default();
            let config = Config {
                low_watermark,
                ..Config::default()
            };
            let error = Guard::attach(&mut storage, &config, "v0").unwrap_err();
            assert_eq!(error.to_string(), answer);
        }
    });
}

#[test]
fn an_address_added_later_is_protected_after_a_refresh() {
    in_namespace(|| {
        let mut storage = Storage::default();
        let mut guard = Guard::load(&mut storage, &Config::default()).unwrap();
        let frame = to_host([198, 18, 0, 9]).udp(4000, PORT, &[]);
        guard.test_run(&frame, 1).unwrap();
        assert_eq!(guard.counters().unwrap().of(Kind::Forward).offered(), 1);

        ip("address add 198.18.0.9/24 dev v0");
        guard.refresh().unwrap();
        guard.test_run(&frame, 1).unwrap();
        assert_eq!(guard.counters().unwrap().of(Kind::ClosedPort).offered(), 1);

        ip("address del 198.18.0.9/24 dev v0");
        guard.refresh().unwrap();
        guard.test_run(&frame, 1).unwrap();
        assert_eq!(guard.counters().unwrap().of(Kind::Forward).offered(), 2);
    });
}

/// Shows LRP-58.
#[test]
fn sockets_that_are_gone_keep_their_count_in_the_total() {
    const SOCKETS: u16 = 400;
    in_namespace(|| {
        let mut storage = Storage::default();
        let mut guard = Guard::load(&mut storage, &Config::default()).unwrap();
        // A socket per round leaves its channel behind, as resolvers do.
        for port in 0..SOCKETS {
            let _socket = udp_socket((HOST_V4, 10_000 + port), 4 << 10);
            guard
                .test_run(&to_host(HOST_V4).udp(53, 10_000 + port, &[]), 1)
                .unwrap();
        }
        let counters = guard.counters().unwrap();
        let live: u64 = counters
            .channels
            .iter()
            .map(|channel| channel.packets.offered())
            .sum();
        assert_eq!(counters.of(Kind::UdpSocket).offered(), u64::from(SOCKETS));
        assert_eq!(
            counters.retired(Kind::UdpSocket).offered() + live,
            u64::from(SOCKETS)
        );
    });
}
