//! The sockets of the current network namespace, as `sock_diag(7)` lists them.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use netlink_bindings::inet_diag::{IterableReplyAttrs, Msg, ReqV2, Request, TcpState};
use netlink_bindings::traits::NetlinkRequest;
use plimsoll_kernel::netlink;

#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize,
)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Protocol {
    Udp,
    Tcp,
}

impl Protocol {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Udp => "udp",
            Self::Tcp => "tcp",
        }
    }
}

/// A bound UDP socket or a TCP listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Socket {
    pub(crate) protocol: Protocol,
    pub(crate) address: IpAddr,
    pub(crate) port: u16,
    /// The interface that it is bound to; 0: none.
    pub(crate) interface: u32,
    pub(crate) inode: u32,
    pub(crate) cookie: u64,
    pub(crate) user: u32,
    pub(crate) control_group: Option<u64>,
}

/// Where a socket is bound.
pub(crate) type Place = (Protocol, IpAddr, u16);

impl Socket {
    pub(crate) fn place(&self) -> Place {
        (self.protocol, self.address, self.port)
    }
}

/// At most `limit` of the sockets that are meant, and whether there were more.
pub(crate) fn sockets(
    limit: usize,
    is_meant: impl Fn(&Socket) -> bool,
) -> io::Result<(Vec<Socket>, bool)> {
    let mut found = Vec::new();
    let has_all = each(|socket| {
        if !is_meant(&socket) {
            return true;
        }
        let has_room = found.len() < limit;
        found.extend(has_room.then_some(socket));
        has_room
    })?;
    Ok((found, !has_all))
}

/// Hands on one after the other, until `take` wants no more. Whether it got all.
pub(crate) fn each(mut take: impl FnMut(Socket) -> bool) -> io::Result<bool> {
    for family in [libc::AF_INET, libc::AF_INET6] {
        for protocol in [Protocol::Tcp, Protocol::Udp] {
            if !dump(family, protocol, &mut take)? {
                return Ok(false);
            }
        }
    }
    Ok(true)
}

/// The same of one kind of sockets.
fn dump(
    family: i32,
    protocol: Protocol,
    take: &mut impl FnMut(Socket) -> bool,
) -> io::Result<bool> {
    let mut header = ReqV2 {
        family: u8::try_from(family).expect("a small number"),
        ..ReqV2::default()
    };
    match protocol {
        Protocol::Udp => {
            header.protocol = u8::try_from(libc::IPPROTO_UDP).expect("a small number");
            header.states = u32::MAX;
            collect(&Request::new().op_udp_diag_dump(&header), protocol, take)
        }
        Protocol::Tcp => {
            header.protocol = u8::try_from(libc::IPPROTO_TCP).expect("a small number");
            header.states = 1 << TcpState::Listen as u32;
            collect(&Request::new().op_tcp_diag_dump(&header), protocol, take)
        }
    }
}

/// Names the modules that a kernel lacks which cannot tell of sockets.
fn by_module(refusal: io::Error) -> io::Error {
    match refusal.raw_os_error() {
        Some(libc::ENOENT) => {
            let why = "it cannot list sockets: `modprobe -a tcp_diag udp_diag`";
            io::Error::new(io::ErrorKind::NotFound, why)
        }
        _ => refusal,
    }
}

fn collect<R>(
    request: &R,
    protocol: Protocol,
    take: &mut impl FnMut(Socket) -> bool,
) -> io::Result<bool>
where
    R: for<'a> NetlinkRequest<ReplyType<'a> = (Msg, IterableReplyAttrs<'a>)>,
{
    let mut netlink = netlink::Socket::new();
    let mut replies = netlink.request(request)?;
    while let Some(reply) = replies.recv() {
        let (message, attributes) = reply.map_err(|refusal| by_module(refusal.into()))?;
        let Some(address) = address(&message) else {
            continue;
        };
        let socket = Socket {
            protocol,
            address,
            port: message.sockid.sport(),
            interface: message.sockid.r#if,
            inode: message.inode,
            cookie: u64::from_ne_bytes(message.sockid.cookie),
            user: message.uid,
            control_group: attributes.get_cgroup_id().ok(),
        };
        if !take(socket) {
            return Ok(false);
        }
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

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;

    use super::*;

    /// It was told as a file that is missing.
    #[test]
    fn a_kernel_that_cannot_list_sockets_is_told_with_its_modules() {
        let told = |errno| by_module(io::Error::from_raw_os_error(errno)).to_string();
        assert!(told(libc::ENOENT).contains("modprobe -a tcp_diag udp_diag"));
        assert!(!told(libc::EPERM).contains("modprobe"));
    }

    /// Whoever opened 20,000 sockets took protection from those that came after them.
    #[test]
    fn sockets_that_nobody_asked_for_leave_room_for_the_others() {
        let bind = || UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let sockets = [bind(), bind(), bind()];
        let last = sockets.iter().map(|socket| socket.local_addr().unwrap());
        for meant in last {
            let place = (Protocol::Udp, meant.ip(), meant.port());
            let (found, more) = super::sockets(1, |other| other.place() == place).unwrap();
            assert_eq!(found.len(), 1);
            assert_eq!(found[0].port, meant.port());
            assert!(!more);
        }
    }
}
