//! Answers of the kernel's sockets leave from the address that was asked: a client takes none
//! from another.
//!
//! A socket of every address tells with each datagram where it came to, and takes the same
//! with the answer (ipv6(7), ip(7)).

use std::io::{self, IoSlice};
use std::net::{Ipv6Addr, UdpSocket};
use std::os::fd::AsRawFd;

use nix::cmsg_space;
use nix::libc::{in_addr, in_pktinfo, in6_pktinfo};
use nix::sys::socket::{
    ControlMessage, ControlMessageOwned, MsgFlags, MultiHeaders, RecvMsg, SockaddrStorage,
    sendmmsg, sendmsg, setsockopt, sockopt,
};

/// The address of this host that a datagram came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    V4(in_pktinfo),
    V6(in6_pktinfo),
}

impl Source {
    /// Has `socket` tell it.
    pub(super) fn ask(socket: &UdpSocket) -> io::Result<()> {
        match socket.local_addr()?.is_ipv6() {
            true => setsockopt(socket, sockopt::Ipv6RecvPacketInfo, &true)?,
            false => setsockopt(socket, sockopt::Ipv4PacketInfo, &true)?,
        }
        Ok(())
    }

    /// Room for what tells it, of either kind.
    pub(super) fn space() -> Vec<u8> {
        cmsg_space!(in6_pktinfo)
    }

    /// Where a message came to.
    pub(super) fn of(message: &RecvMsg<'_, '_, SockaddrStorage>) -> Option<Self> {
        message.cmsgs().ok()?.find_map(|told| match told {
            ControlMessageOwned::Ipv4PacketInfo(info) => Some(Self::v4(info.ipi_spec_dst)),
            ControlMessageOwned::Ipv6PacketInfo(info) => Some(Self::v6(info)),
            _ => None,
        })
    }

    /// The interface by which an answer leaves is left to routes.
    fn v4(ipi_spec_dst: in_addr) -> Self {
        Self::V4(in_pktinfo {
            ipi_ifindex: 0,
            ipi_spec_dst,
            ipi_addr: in_addr { s_addr: 0 },
        })
    }

    fn v6(mut info: in6_pktinfo) -> Self {
        let address = Ipv6Addr::from(info.ipi6_addr.s6_addr);
        // A socket of both tells of IPv4 like that. In IPv4's own form it is so short that the
        // kernel allocates nothing for it.
        if let Some(address) = address.to_ipv4_mapped() {
            let s_addr = u32::from_ne_bytes(address.octets());
            return Self::v4(in_addr { s_addr });
        }
        // Else it is an address of that interface only.
        if !address.is_unicast_link_local() {
            info.ipi6_ifindex = 0;
        }
        Self::V6(info)
    }

    /// Has a message leave from it.
    fn control(&self) -> ControlMessage<'_> {
        match self {
            Self::V4(info) => ControlMessage::Ipv4PacketInfo(info),
            Self::V6(info) => ControlMessage::Ipv6PacketInfo(info),
        }
    }
}

/// Whether `answer` was sent. Nothing leaves from a group or a broadcast address: then the
/// kernel chooses another.
pub(super) fn send_from(
    source: Option<&Source>,
    socket: &UdpSocket,
    answer: &[u8],
    to: Option<&SockaddrStorage>,
) -> bool {
    let (fd, answer, flags) = (
        socket.as_raw_fd(),
        [IoSlice::new(answer)],
        MsgFlags::empty(),
    );
    let send = |control: &[_]| sendmsg(fd, &answer, control, flags, to).is_ok();
    source.is_some_and(|source| send(&[source.control()])) || send(&[])
}

/// What the kernel reads of up to so many answers in a call, by the size of what tells it
/// their source.
pub(super) struct Headers {
    none: MultiHeaders<SockaddrStorage>,
    v4: MultiHeaders<SockaddrStorage>,
    v6: MultiHeaders<SockaddrStorage>,
}

impl Headers {
    pub(super) fn up_to(batch: usize) -> Self {
        Self {
            none: MultiHeaders::preallocate(batch, None),
            v4: MultiHeaders::preallocate(batch, Some(cmsg_space!(in_pktinfo))),
            v6: MultiHeaders::preallocate(batch, Some(cmsg_space!(in6_pktinfo))),
        }
    }
}

/// Answers to a batch: whom they go to, and where they leave from.
pub(super) struct Answers<'a> {
    slices: Vec<[IoSlice<'a>; 1]>,
    to: Vec<Option<SockaddrStorage>>,
    from: Vec<Option<Source>>,
}

impl<'a> Answers<'a> {
    pub(super) fn up_to(batch: usize) -> Self {
        Self {
            slices: Vec::with_capacity(batch),
            to: Vec::with_capacity(batch),
            from: Vec::with_capacity(batch),
        }
    }

    pub(super) fn push(
        &mut self,
        answer: &'a [u8],
        to: Option<SockaddrStorage>,
        from: Option<Source>,
    ) {
        self.slices.push([IoSlice::new(answer)]);
        self.to.push(to);
        self.from.push(from);
    }

    pub(super) fn len(&self) -> usize {
        self.slices.len()
    }

    /// Sends them; how many could be sent. One call sends all in a row that leave from one
    /// address, up to the first that cannot be sent.
    pub(super) fn send(&self, socket: &UdpSocket, headers: &mut Headers) -> usize {
        self.calls(socket, headers).0
    }

    /// As [`Self::send`], with the number of calls that it took.
    fn calls(&self, socket: &UdpSocket, headers: &mut Headers) -> (usize, usize) {
        let (fd, flags) = (socket.as_raw_fd(), MsgFlags::empty());
        let (mut sent, mut next, mut calls) = (0, 0, 0);
        while let Some(from) = self.from.get(next) {
            let others = self.from[next..].iter();
            let end = next + others.take_while(|other| *other == from).count();
            let (slices, to) = (&self.slices[next..end], &self.to[next..end]);
            let headers = match from {
                None => &mut headers.none,
                Some(Source::V4(_)) => &mut headers.v4,
                Some(Source::V6(_)) => &mut headers.v6,
            };
            let control = from.as_ref().map(Source::control);
            let taken = sendmmsg(fd, headers, slices, to, control.as_slice(), flags);
            let taken = taken.map_or(0, Iterator::count);
            (sent, next, calls) = (sent + taken, next + taken, calls + 1);
            if taken == 0 {
                calls += 1;
                sent += usize::from(send_from(None, socket, &slices[0][0], to[0].as_ref()));
                next += 1;
            }
        }
        (sent, calls)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// Answers of a socket of one address had left one by one.
    #[test]
    fn answers_without_a_source_leave_in_one_call_too() {
        let client = UdpSocket::bind("127.0.0.1:0").unwrap();
        client
            .set_read_timeout(Some(Duration::from_secs(10)))
            .unwrap();
        let server = UdpSocket::bind("127.0.0.1:0").unwrap();
        let to = SockaddrStorage::from(client.local_addr().unwrap());
        let mut answers = Answers::up_to(3);
        for answer in [&b"a"[..], b"b", b"c"] {
            answers.push(answer, Some(to), None);
        }
        let mut headers = Headers::up_to(3);
        assert_eq!(answers.calls(&server, &mut headers), (3, 1));
        for expected in [b"a", b"b", b"c"] {
            let mut answer = [0; 1];
            client.recv(&mut answer).unwrap();
            assert_eq!(&answer, expected);
        }
    }
}
