//! The host that the shared corpus and the fuzz target expect, with real
//! addresses and sockets.

use std::net::SocketAddr;
use std::os::fd::{AsRawFd, OwnedFd};

use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockType, SockaddrStorage, bind, connect, listen, setsockopt,
    socket, sockopt,
};
use plimsoll_guard::{Counters, Kind};
use plimsoll_kernel::link;
use plimsoll_packets::host::{Endpoint, Host, Transport};

use super::ip;

/// `shared`: others will be bound to the same port.
fn open(transport: Transport, at: SocketAddr, dual_stack: bool, shared: bool) -> OwnedFd {
    let family = if at.is_ipv4() {
        AddressFamily::Inet
    } else {
        AddressFamily::Inet6
    };
    let kind = match transport {
        Transport::Udp => SockType::Datagram,
        Transport::Tcp => SockType::Stream,
    };
    let fd = socket(family, kind, SockFlag::SOCK_CLOEXEC, None).unwrap();
    setsockopt(&fd, sockopt::ReuseAddr, &shared).unwrap();
    if at.is_ipv6() {
        setsockopt(&fd, sockopt::Ipv6V6Only, &!dual_stack).unwrap();
    }
    bind(fd.as_raw_fd(), &SockaddrStorage::from(at))
        .unwrap_or_else(|error| panic!("bind {at}: {error}"));
    fd
}

/// Opens what the corpus expects to be open. Sockets stay open while the
/// result lives.
pub(crate) fn open_endpoints(host: &Host) -> Vec<OwnedFd> {
    let mut sockets = Vec::new();
    let mut listener_of = |endpoint| {
        if let Endpoint::Bound {
            transport,
            at,
            dual_stack,
        } = endpoint
        {
            let fd = open(transport, at, dual_stack, at.port() == host.connected);
            if transport == Transport::Tcp {
                listen(&fd, Backlog::new(64).unwrap()).unwrap();
            }
            sockets.push(fd);
        }
    };
    host.endpoints().into_iter().for_each(&mut listener_of);
    for endpoint in host.endpoints() {
        let Endpoint::Connected {
            transport,
            local,
            remote,
        } = endpoint
        else {
            continue;
        };
        match transport {
            Transport::Udp => {
                let fd = open(transport, local, false, true);
                connect(fd.as_raw_fd(), &SockaddrStorage::from(remote)).unwrap();
                sockets.push(fd);
            }
            Transport::Tcp => {
                // The peer's end is here too; the listener behind it accepts.
                let client = open(transport, remote, false, true);
                connect(client.as_raw_fd(), &SockaddrStorage::from(local)).unwrap();
                sockets.push(client);
            }
        }
    }
    sockets
}

pub(crate) fn set_up_addresses(host: &Host) {
    ip(&format!(
        "address add {}/24 broadcast {} dev v0",
        host.v4, host.v4_broadcast
    ));
    ip(&format!("address add {}/64 dev v0 nodad", host.v6));
    // Local too, so that TCP can connect from them; never a destination.
    ip(&format!("address add {}/32 dev lo", host.v4_peer));
    ip(&format!("address add {}/128 dev lo nodad", host.v6_peer));
    for address in [host.v6, host.v6_peer] {
        link::wait_until_local(address).expect("it was just added");
    }
}

/// The one kind that counted a packet between two readings.
pub(crate) fn counted(before: &Counters, after: &Counters) -> Kind {
    let mut kinds = Kind::ALL
        .into_iter()
        .filter(|kind| after.of(*kind).offered() != before.of(*kind).offered());
    let kind = kinds.next().expect("some kind counted the frame");
    assert_eq!(kinds.next(), None, "only one kind counted it");
    assert_eq!(
        after.all().offered(),
        before.all().offered() + 1,
        "and only once"
    );
    kind
}
