//! Tunnels that end in the kernel: their packets are counted apart.

use std::net::{Ipv4Addr, UdpSocket};

use plimsoll_packets::frame::{Fragment, Packet};

use crate::Guard;
use crate::program::test_host::{HOST, from, ip, with_guard};

/// Packets that a tunnel of the kernel's takes so far.
fn of_tunnels(guard: &Guard) -> u64 {
    let by_cpu = guard.program.totals_by_cpu().unwrap();
    by_cpu.iter().map(|totals| totals.tunnelled).sum()
}

/// Protocols of tunnels that end here.
const TUNNELS: [u8; 5] = [4, 41, 47, 50, 51];

/// A flood of a tunnel's protocol had kept shedding from beginning where there is no tunnel.
fn tunnels_alone_are_counted(guard: &mut Guard<'_>, host: &Packet) {
    let run = |guard: &mut Guard<'_>, protocol: u8| {
        let frame = host.protocol(protocol, &[0; 40]);
        guard.test_run(&frame, 1).unwrap();
    };
    guard.program.set_tunnels(0);
    (0..=u8::MAX).for_each(|protocol| run(guard, protocol));
    assert_eq!(of_tunnels(guard), 0, "no tunnel ends here");
    let tunnels = TUNNELS.iter().map(|one| 1 << one).sum();
    guard.program.set_tunnels(tunnels);
    let others = (0..=u8::MAX).filter(|protocol| !TUNNELS.contains(protocol));
    others.for_each(|protocol| run(guard, protocol));
    assert_eq!(of_tunnels(guard), 0, "other protocols");
}

/// Traffic of tunnels was shed on a CPU that nobody else wanted, and what it carries collapsed.
#[test]
fn packets_for_tunnels_that_end_in_the_kernel_are_counted() {
    const VXLAN: u16 = 4789;
    with_guard(|guard| {
        ip("link add vx0 type vxlan id 7 remote 127.0.0.1 dstport 4789 dev lo");
        ip("link set vx0 up");
        let _server = UdpSocket::bind((HOST, 5000)).unwrap();
        let host = from(HOST);
        let piece = |offset| Fragment {
            id: 7,
            offset,
            more: offset == 0,
        };
        tunnels_alone_are_counted(guard, &host);
        let mut expected = 0;
        let mut see = |guard: &mut Guard<'_>, frame: &[u8], is_tunnel: bool, what: &str| {
            // More than one run at a time would take some 35 ms: the kernel writes code for them.
            guard.test_run(frame, 1).unwrap();
            expected += u64::from(is_tunnel);
            assert_eq!(of_tunnels(guard), expected, "{what}");
        };
        for protocol in TUNNELS {
            let frame = host.protocol(protocol, &[0; 40]);
            see(guard, &frame, true, &protocol.to_string());
        }
        for offset in [0, 32] {
            let packet = host.clone().fragment(piece(offset));
            see(
                guard,
                &packet.protocol(50, &[0; 40]),
                true,
                "fragments of ESP",
            );
            let payload = packet.udp(4000, VXLAN, &[0; 24]);
            see(guard, &payload, true, "fragments to a VXLAN");
        }
        see(guard, &host.udp(4000, VXLAN, &[0; 24]), true, "a VXLAN");
        see(guard, &host.udp(4000, 5000, &[0; 24]), false, "a server");
        let other = Packet::new(HOST.into(), Ipv4Addr::new(203, 0, 113, 9).into());
        see(
            guard,
            &other.protocol(47, &[0; 40]),
            false,
            "other hosts count as such",
        );
    });
}

/// Frames of `PPPoE`, MPLS and `MACsec` were shed on a router's CPU that nobody else wanted.
#[test]
fn frames_out_of_which_others_take_packets_are_counted_like_tunnels() {
    const PPPOE: u16 = 0x8864;
    const ARP: u16 = 0x0806;
    with_guard(|guard| {
        let mut frame = [[2; 12].as_slice(), &[0; 50]].concat();
        let mut counted = |guard: &mut Guard<'_>, ethertype: u16| {
            frame[12..14].copy_from_slice(&ethertype.to_be_bytes());
            let before = of_tunnels(guard);
            guard.test_run(&frame, 1).unwrap();
            of_tunnels(guard) - before
        };
        guard.program.set_tunnels(0);
        assert_eq!(counted(guard, PPPOE), 0, "nobody takes them");
        guard.program.set_tunnels(1);
        assert_eq!(counted(guard, PPPOE), 1);
        assert_eq!(counted(guard, ARP), 0, "neighbours");
    });
}
