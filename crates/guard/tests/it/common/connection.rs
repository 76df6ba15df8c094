//! A TCP connection whose peer is made by hand, so that it can do what no honest one does.

use std::io::{ErrorKind, Read};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsRawFd, OwnedFd};
use std::thread;
use std::time::{Duration, Instant};

use etherparse::{PacketHeaders, TcpHeader, TransportHeader};
use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, recv, setsockopt, socket, sockopt,
};
use plimsoll_packets::frame::TcpFlags;

use super::{HOST_V4, Wire, to_host};

/// Of the host's end.
pub(crate) const PORT: u16 = 80;
pub(crate) const PEER_PORT: u16 = 40_000;
/// The peer's first sequence number.
const FIRST: u32 = 1000;
/// As far from a window as sequence numbers go, or beyond.
pub(crate) const GIB: u32 = 1 << 30;

/// A listener of a connection before may be open for a moment still: in a child that another test
/// is about to start.
fn listen() -> TcpListener {
    let end = Instant::now() + Duration::from_secs(20);
    loop {
        match TcpListener::bind((HOST_V4, PORT)) {
            Err(error) if error.kind() == ErrorKind::AddrInUse && Instant::now() < end => {
                thread::sleep(Duration::from_millis(1));
            }
            bound => return bound.unwrap(),
        }
    }
}

/// A connection whose peer is this test; the host's end is `stream`.
pub(crate) struct Connection {
    pub(crate) wire: Wire,
    sniffer: OwnedFd,
    pub(crate) stream: TcpStream,
    port: u16,
    /// Sequence numbers of the next byte that the host and the peer expect.
    next: u32,
    answered: u32,
}

impl Connection {
    /// With the host's receive buffer, if it is not to be the usual one.
    pub(crate) fn open(buffer: Option<usize>) -> Self {
        Self::from(PEER_PORT, buffer)
    }

    pub(crate) fn from(port: u16, buffer: Option<usize>) -> Self {
        let listener = listen();
        if let Some(bytes) = buffer {
            setsockopt(&listener, sockopt::RcvBufForce, &bytes).unwrap();
        }
        let (kind, flags) = (SockType::Raw, SockFlag::SOCK_NONBLOCK);
        let sniffer = socket(AddressFamily::Packet, kind, flags, SockProtocol::EthIp).unwrap();
        let wire = Wire::open();
        let segment = |sequence, ack, flags| {
            let packet = to_host(HOST_V4).numbers(sequence, ack);
            packet.tcp(port, PORT, flags, &[])
        };
        wire.send(&segment(FIRST, 0, TcpFlags::SYN));
        let answer = answer(&sniffer, port, |tcp| tcp.syn && tcp.ack);
        let answered = answer.sequence_number + 1;
        wire.send(&segment(FIRST + 1, answered, TcpFlags::ACK));
        let (stream, _) = listener.accept().unwrap();
        Self {
            wire,
            sniffer,
            stream,
            port,
            next: FIRST + 1,
            answered,
        }
    }

    /// A segment that begins so far from what the host expects next.
    pub(crate) fn segment(&self, from_next: u32, flags: TcpFlags, payload: &[u8]) -> Vec<u8> {
        let sequence = self.next.wrapping_add(from_next);
        let packet = to_host(HOST_V4).numbers(sequence, self.answered);
        packet.tcp(self.port, PORT, flags, payload)
    }

    /// What the host expects next, and what it was told that the peer does.
    pub(crate) fn numbers(&self) -> (u32, u32) {
        (self.next, self.answered)
    }

    /// The host ends it at once, and forgets it. The peer's sockets are to be dropped when time
    /// does not matter: the kernel takes some of its ticks to close one.
    #[must_use]
    pub(crate) fn reset(self) -> (Wire, OwnedFd) {
        // Not by closing it: a child that another test is about to start may hold it for a while.
        rustix::net::connect_unspec(&self.stream).unwrap();
        (self.wire, self.sniffer)
    }

    /// How far from what was expected first the host's window ends, as it answers now.
    pub(crate) fn window_end(&self) -> u32 {
        thread::sleep(Duration::from_millis(20));
        while recv(self.sniffer.as_raw_fd(), &mut [0; 1], MsgFlags::empty()).is_ok() {}
        self.wire.send(&self.segment(GIB, TcpFlags::ACK, &[0]));
        let tcp = answer(&self.sniffer, self.port, |tcp| tcp.ack);
        let end = tcp.acknowledgment_number + u32::from(tcp.window_size);
        end.wrapping_sub(self.next)
    }

    /// Sends what comes next, and has the host read it.
    pub(crate) fn deliver(&mut self, payload: &[u8]) {
        self.wire.send(&self.segment(0, TcpFlags::ACK, payload));
        self.next += u32::try_from(payload.len()).unwrap();
        let mut read = vec![0; payload.len()];
        let patience = Some(Duration::from_secs(20));
        self.stream.set_read_timeout(patience).unwrap();
        self.stream.read_exact(&mut read).unwrap();
        assert_eq!(read, payload);
    }
}

/// The next such segment that the host sends to the peer's port.
fn answer(sniffer: &OwnedFd, port: u16, is_it: impl Fn(&TcpHeader) -> bool) -> TcpHeader {
    let end = Instant::now() + Duration::from_secs(20);
    loop {
        assert!(Instant::now() < end, "the host answers");
        let mut bytes = [0; 256];
        let Ok(length) = recv(sniffer.as_raw_fd(), &mut bytes, MsgFlags::empty()) else {
            continue;
        };
        match PacketHeaders::from_ethernet_slice(&bytes[..length]).map(|p| p.transport) {
            Ok(Some(TransportHeader::Tcp(tcp))) if tcp.destination_port == port && is_it(&tcp) => {
                return tcp;
            }
            _ => {}
        }
    }
}
