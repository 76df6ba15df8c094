//! What a blast sent, captured at the other end and read by smoltcp, which wrote none of it.

use std::net::IpAddr;
use std::os::fd::{AsRawFd, OwnedFd};

use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, recv, setsockopt, socket, sockopt,
};
use nix::sys::time::{TimeVal, TimeValLike};
use plimsoll_testbed::Testbed;
use smoltcp::wire::{EthernetFrame, IpAddress, Ipv4Packet, Ipv6Packet, TcpPacket, UdpPacket};

/// A packet socket in the test host, from before it is looked at.
pub(crate) struct Capture(OwnedFd);

impl Capture {
    pub(crate) fn start(testbed: &Testbed) -> Self {
        let open = || {
            socket(
                AddressFamily::Packet,
                SockType::Raw,
                SockFlag::SOCK_CLOEXEC,
                SockProtocol::EthAll,
            )
        };
        let socket = testbed.test().run(open).unwrap().unwrap();
        // A page or more per frame.
        setsockopt(&socket, sockopt::RcvBufForce, &(64 << 20)).unwrap();
        setsockopt(
            &socket,
            sockopt::ReceiveTimeout,
            &TimeVal::milliseconds(300),
        )
        .unwrap();
        Self(socket)
    }

    /// All frames of the blast so far.
    pub(crate) fn frames(&self, testbed: &Testbed) -> Vec<Vec<u8>> {
        let mut frames = Vec::new();
        let mut buffer = [0; 2048];
        loop {
            match recv(self.0.as_raw_fd(), &mut buffer, MsgFlags::empty()) {
                Ok(bytes) => frames.push(buffer[..bytes].to_vec()),
                Err(Errno::EAGAIN) => break,
                Err(errno) => panic!("{errno}"),
            }
        }
        // The test host's answers leave by the same device.
        frames.retain(|frame| frame[6..12] == testbed.load().mac());
        frames
    }
}

/// The drawn fields of a frame, after everything in it has been checked.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Drawn {
    pub(crate) source: IpAddr,
    pub(crate) ports: (u16, u16),
    pub(crate) sequence: Option<i32>,
}

/// Reads a frame of a blast; everything in it must be right. A UDP frame has this payload.
pub(crate) fn check(testbed: &Testbed, bytes: &[u8], wanted: &[u8]) -> Drawn {
    let frame = EthernetFrame::new_checked(bytes).unwrap();
    assert_eq!(frame.src_addr().0, testbed.load().mac());
    assert_eq!(frame.dst_addr().0, testbed.test().mac());
    let payload = frame.payload();
    let (source, destination, is_tcp, transport) = if payload[0] >> 4 == 4 {
        let ip = Ipv4Packet::new_checked(payload).unwrap();
        assert!(ip.verify_checksum());
        assert_eq!(ip.dst_addr(), testbed.test().ipv4());
        let is_tcp = u8::from(ip.next_header()) == 6;
        (
            IpAddress::from(ip.src_addr()),
            IpAddress::from(ip.dst_addr()),
            is_tcp,
            ip.payload(),
        )
    } else {
        let ip = Ipv6Packet::new_checked(payload).unwrap();
        assert_eq!(ip.dst_addr(), testbed.test().ipv6());
        let is_tcp = u8::from(ip.next_header()) == 6;
        (
            IpAddress::from(ip.src_addr()),
            IpAddress::from(ip.dst_addr()),
            is_tcp,
            ip.payload(),
        )
    };
    let (ports, sequence) = if is_tcp {
        let tcp = TcpPacket::new_checked(transport).unwrap();
        assert!(tcp.verify_checksum(&source, &destination));
        assert!(tcp.syn() && !tcp.ack() && !tcp.rst());
        ((tcp.src_port(), tcp.dst_port()), Some(tcp.seq_number().0))
    } else {
        let udp = UdpPacket::new_checked(transport).unwrap();
        assert!(udp.checksum() != 0 && udp.verify_checksum(&source, &destination));
        assert_eq!(udp.payload(), wanted);
        ((udp.src_port(), udp.dst_port()), None)
    };
    Drawn {
        source: source.into(),
        ports,
        sequence,
    }
}
