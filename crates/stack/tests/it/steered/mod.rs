//! What stacks on the corpus' host have told the XDP program.

#![allow(dead_code, reason = "the fuzz target uses a part")]

use std::mem::MaybeUninit;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use plimsoll_core::demux::Protocol;
use plimsoll_packets::host::Host;
use plimsoll_stack::driven::{Bound, Steering, Told};

/// Which of the programs has a stack in a VLAN, and which: that of the corpus.
pub(crate) const OF_VLAN: usize = 2;
pub(crate) const VLAN: u16 = 5;

/// Endpoints of each kind, at one address and at any, and a connection of each family. Ports with
/// a socket are free for the other protocol or address, as in the plain host.
fn endpoints(host: &Host) -> Vec<(Protocol, SocketAddr, Bound)> {
    let at = |ip: IpAddr, port| SocketAddr::new(ip, port);
    let [v4, v6] = [IpAddr::from(host.v4), host.v6.into()];
    let any_v4 = IpAddr::from(Ipv4Addr::UNSPECIFIED);
    let any_v6 = IpAddr::from(Ipv6Addr::UNSPECIFIED);
    let listener = |is_full| Bound::Listener { is_full };
    let (udp, tcp) = (Protocol::Udp, Protocol::Tcp);
    vec![
        (udp, at(v4, host.bound), Bound::Socket(1)),
        (udp, at(v6, host.bound), Bound::Group(vec![2, 3])),
        (udp, at(any_v4, host.v4_wildcard), Bound::Socket(4)),
        (udp, at(any_v6, host.v6_wildcard), Bound::Socket(5)),
        (
            udp,
            at(any_v6, host.dual_stack),
            Bound::Group(vec![6, 7, 8]),
        ),
        (udp, at(any_v4, host.connected), Bound::Socket(0)),
        (udp, at(host.v4_group.into(), host.group), Bound::Socket(0)),
        (udp, at(host.v6_group.into(), host.group), Bound::Socket(0)),
        (tcp, at(v4, host.bound), listener(false)),
        (tcp, at(v6, host.bound), listener(true)),
        (tcp, at(any_v4, host.v4_wildcard), listener(true)),
        (tcp, at(any_v6, host.dual_stack), listener(false)),
        (tcp, at(any_v6, host.connected), Bound::Socket(0)),
    ]
}

/// Each address owned by one and shared by another; one in the builder's VLAN; one that nobody told anything.
fn told() -> Vec<Told> {
    let host = Host::default();
    let [v4, v6] = [IpAddr::from(host.v4), host.v6.into()];
    let remote = |ip: IpAddr| SocketAddr::new(ip, host.remote);
    let of = |addresses: &[(IpAddr, bool)], all_channels| Told {
        addresses: addresses.to_vec(),
        endpoints: endpoints(&host),
        connections: vec![
            (
                SocketAddr::new(v4, host.connected),
                remote(host.v4_peer.into()),
            ),
            (
                SocketAddr::new(v6, host.connected),
                remote(host.v6_peer.into()),
            ),
        ],
        all_channels,
        vlan: 0,
    };
    vec![
        of(&[(v4, true), (v6, false)], true),
        of(&[(v4, false), (v6, true)], false),
        Told {
            vlan: VLAN,
            ..of(&[(v4, true), (v6, true)], true)
        },
        of(&[], false),
        Told::default(),
    ]
}

/// A program for each. They last as long as the process.
pub(crate) fn programs() -> Vec<Steering<'static>> {
    let load = |told| Steering::load(Box::leak(Box::new(MaybeUninit::uninit())), told);
    told().into_iter().map(load).collect()
}
