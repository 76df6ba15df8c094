//! Sockets and packets that a queue of this host says nothing about. Needs root.

use std::net::Ipv6Addr;
use std::os::fd::AsRawFd;
use std::thread::sleep;

use nix::sys::socket::{setsockopt, sockopt};
use plimsoll_packets::frame::{Extension, Packet};

use super::test_host::{KERNEL_TICK, UDP_PORT, from, unread_server, with_guard};
use crate::{Guard, Kind};

/// From `linux/udp.h`.
const UDP_ENCAP: libc::c_int = 100;
const UDP_ENCAP_ESPINUDP: libc::c_int = 2;

fn carry_esp(socket: &impl AsRawFd) {
    let kind = UDP_ENCAP_ESPINUDP;
    // SAFETY: the kernel reads an int, of which this is the address and the size.
    let set = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_UDP,
            UDP_ENCAP,
            (&raw const kind).cast(),
            size_of_val(&kind) as libc::socklen_t,
        )
    };
    assert_eq!(set, 0, "{}", std::io::Error::last_os_error());
}

/// The queue holds what is for the tunnel's daemon, and the tunnel's packets do not go there.
/// While the daemon hung all of these were discarded.
#[test]
fn a_daemon_that_does_not_read_is_no_reason_to_discard_its_tunnel_s_packets() {
    with_guard(|guard| {
        let server = unread_server(200);
        setsockopt(&server, sockopt::RcvBufForce, &4096).unwrap();
        let esp = from([192, 0, 2, 1]).udp(4500, UDP_PORT, &[1; 64]);
        let mut admitted = || guard.test_run(&esp, 1).unwrap().0;
        let of_many = (0..100).filter(|_| admitted()).count();
        assert!(of_many < 50, "its queue is full: {of_many}");
        carry_esp(&server);
        sleep(KERNEL_TICK);
        assert!((0..100).all(|_| admitted()));
    });
}

fn offered(guard: &mut Guard<'_>, kind: Kind) -> u64 {
    guard.counters().unwrap().of(kind).offered()
}

/// It was judged by the socket that has the port at this segment.
#[test]
fn a_packet_that_goes_on_to_another_segment_is_for_no_socket_here() {
    with_guard(|guard| {
        let host = Ipv6Addr::LOCALHOST;
        let source: Ipv6Addr = "2001:db8::1".parse().unwrap();
        let routing = Extension::Options {
            number: 43,
            units: 2,
        };
        let packet = Packet::new(source.into(), host.into()).extension(routing);
        let mut frame = packet.udp(4000, UDP_PORT, &[]);
        let kinds = [Kind::ClosedPort, Kind::Other];
        for (segments_left, kind) in kinds.into_iter().enumerate() {
            // Ethernet's header, IPv6's, and three bytes.
            frame[14 + 40 + 3] = segments_left as u8;
            let before = offered(guard, kind);
            guard.test_run(&frame, 1).unwrap();
            let after = offered(guard, kind);
            assert_eq!(after - before, 1, "{kind:?}");
        }
    });
}
