//! The sockets of the current network namespace, as `sock_diag(7)` lists them.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use netlink_bindings::inet_diag::{IterableReplyAttrs, Msg, ReqV2, Request, TcpState};
use netlink_bindings::traits::NetlinkRequest;
use plimsoll_kernel::netlink;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Protocol {
    Udp,
    Tcp,
}

/// A bound UDP socket or a TCP listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Socket {
    pub(crate) protocol: Protocol,
    pub(crate) address: IpAddr,
    pub(crate) port: u16,
    pub(crate) inode: u32,
    pub(crate) cookie: u64,
    pub(crate) user: u32,
    pub(crate) control_group: Option<u64>,
}

/// At most `limit` sockets, and whether there were more.
pub(crate) fn sockets(limit: usize) -> io::Result<(Vec<Socket>, bool)> {
    let mut sockets = Vec::new();
    for family in [libc::AF_INET, libc::AF_INET6] {
        for protocol in [Protocol::Tcp, Protocol::Udp] {
            if !dump(family, protocol, limit, &mut sockets)? {
                return Ok((sockets, true));
            }
        }
    }
    Ok((sockets, false))
}

/// Adds one kind of sockets; false if there is no room for all.
fn dump(
    family: i32,
    protocol: Protocol,
    limit: usize,
    sockets: &mut Vec<Socket>,
) -> io::Result<bool> {
    let mut header = ReqV2 {
        family: u8::try_from(family).expect("a small number"),
        ..ReqV2::default()
    };
    match protocol {
        Protocol::Udp => {
            header.protocol = u8::try_from(libc::IPPROTO_UDP).expect("a small number");
            header.states = u32::MAX;
            collect(
                &Request::new().op_udp_diag_dump(&header),
                protocol,
                limit,
                sockets,
            )
        }
        Protocol::Tcp => {
            header.protocol = u8::try_from(libc::IPPROTO_TCP).expect("a small number");
            header.states = 1 << TcpState::Listen as u32;
            collect(
                &Request::new().op_tcp_diag_dump(&header),
                protocol,
                limit,
                sockets,
            )
        }
    }
}

fn collect<R>(
    request: &R,
    protocol: Protocol,
    limit: usize,
    sockets: &mut Vec<Socket>,
) -> io::Result<bool>
where
    R: for<'a> NetlinkRequest<ReplyType<'a> = (Msg, IterableReplyAttrs<'a>)>,
{
    let mut netlink = netlink::Socket::new();
    let mut replies = netlink.request(request)?;
    while let Some(reply) = replies.recv() {
        let (message, attributes) = reply?;
        let Some(address) = address(&message) else {
            continue;
        };
        if sockets.len() == limit {
            return Ok(false);
        }
        sockets.push(Socket {
            protocol,
            address,
            port: message.sockid.sport(),
            inode: message.inode,
            cookie: u64::from_ne_bytes(message.sockid.cookie),
            user: message.uid,
            control_group: attributes.get_cgroup_id().ok(),
        });
    }
    Ok(true)
}

fn address(message: &Msg) -> Option<IpAddr> {
    let octets = message.sockid.src;
    match i32::from(message.family) {
        libc::AF_INET => {
            let [a, b, c, d, ..] = octets;
            Some(Ipv4Addr::new(a, b, c, d).into())
        }
        libc::AF_INET6 => {
            let address = Ipv6Addr::from(octets);
            Some(address.to_ipv4_mapped().map_or(address.into(), IpAddr::V4))
        }
        _ => None,
    }
}
