//! Servers of datagrams: what becomes of each is the caller's to say.

use std::io::{self, IoSliceMut};
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;

use nix::sys::socket::{
    MsgFlags, MultiHeaders, RecvMsg, SockaddrStorage, recvmmsg, recvmsg, setsockopt, sockopt,
};
use plimsoll_stack::{Datagram, Stack};

use super::counters::SharedCounters;
use super::network::{Network, everywhere};
use super::option::set_option;
use super::source::{Answers, Headers, Source, send_from};
use super::{Config, Kind, LOOK, is_retry};
use crate::{Error, interrupt};

/// What is sent back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reply {
    Nothing,
    /// What came.
    Same,
    /// What was written.
    Written,
}

/// The longest datagram.
const DATAGRAM_BYTES_MAX: usize = 65_536;

/// Serves until interrupted. `handle` gets what came and a buffer for the answer.
pub(super) fn serve(
    config: &Config,
    network: &Network,
    counters: &SharedCounters,
    handle: impl FnMut(&[u8], &mut Vec<u8>) -> Reply,
) -> Result<(), Error> {
    let served = match network {
        Network::Kernel if config.batch() == 1 => by_one(config, network, counters, handle),
        Network::Kernel => by_many(config, network, counters, handle),
        Network::Stack(stack) => on_stack(config, network, stack, counters, handle),
    };
    served.map_err(Error::io("serve"))
}

fn bind(config: &Config, network: &Network) -> io::Result<UdpSocket> {
    let socket = UdpSocket::bind(&everywhere(network, config)[..])?;
    if let Some(bytes) = config.rcvbuf_bytes {
        setsockopt(&socket, sockopt::RcvBufForce, &bytes)?;
    }
    if !config.busy_poll.is_zero() {
        set_busy_poll(&socket, config.busy_poll)?;
    }
    socket.set_read_timeout(Some(LOOK))?;
    // Of one address there is no question, and a sink answers nobody: each message costs less.
    if config.kind != Kind::Sink && socket.local_addr()?.ip().is_unspecified() {
        Source::ask(&socket)?;
    }
    Ok(socket)
}

/// The kernel polls the device from the receiving call (socket(7)).
fn set_busy_poll(socket: &UdpSocket, span: std::time::Duration) -> io::Result<()> {
    let micros = u32::try_from(span.as_micros()).unwrap_or(u32::MAX);
    set_option(socket, nix::libc::SO_BUSY_POLL, &micros)
}

/// What came: how long, from whom, and to which address of this host.
#[derive(Clone, Copy)]
struct Received {
    length: usize,
    from: Option<SockaddrStorage>,
    at: Option<Source>,
}

impl Received {
    fn of(message: RecvMsg<'_, '_, SockaddrStorage>) -> Self {
        Self {
            length: message.bytes,
            from: message.address,
            at: Source::of(&message),
        }
    }
}

/// A receive and a send per packet.
fn by_one(
    config: &Config,
    network: &Network,
    counters: &SharedCounters,
    mut handle: impl FnMut(&[u8], &mut Vec<u8>) -> Reply,
) -> io::Result<()> {
    let socket = bind(config, network)?;
    counters.set_listening();
    let (mut buffer, mut written) = (vec![0; DATAGRAM_BYTES_MAX], Vec::new());
    let (fd, mut control) = (socket.as_raw_fd(), Source::space());
    while !interrupt::requested() {
        let mut slice = [IoSliceMut::new(&mut buffer)];
        let told = Some(&mut control[..]);
        let one = match recvmsg(fd, &mut slice, told, MsgFlags::empty()) {
            Ok(message) => Received::of(message),
            // Nothing came for a while: look at the interrupt flag.
            Err(error) if is_retry(&error.into()) => continue,
            Err(error) => return Err(error.into()),
        };
        let reply = handle(&buffer[..one.length], &mut written);
        counters.count_received(one.length);
        let answer = match reply {
            Reply::Nothing => continue,
            Reply::Same => &buffer[..one.length],
            Reply::Written => &written[..],
        };
        let sent = send_from(one.at.as_ref(), &socket, answer, one.from.as_ref());
        counters.count_sent(sent);
    }
    Ok(())
}

/// What one packet of a batch may have.
const BATCH_BYTES: usize = 2048;

/// As many as there are, up to the batch, with one system call (recvmmsg(2),
/// sendmmsg(2)): the kernel's sockets at their best.
fn by_many(
    config: &Config,
    network: &Network,
    counters: &SharedCounters,
    mut handle: impl FnMut(&[u8], &mut Vec<u8>) -> Reply,
) -> io::Result<()> {
    let socket = bind(config, network)?;
    counters.set_listening();
    let batch = usize::from(config.batch());
    let mut buffers = vec![[0_u8; BATCH_BYTES]; batch];
    let mut written = vec![Vec::new(); batch];
    let mut received: Vec<Received> = Vec::with_capacity(batch);
    // They keep the room that the last datagram's source took. It is the same for each.
    let mut incoming = MultiHeaders::preallocate(batch, Some(Source::space()));
    let mut outgoing = Headers::up_to(batch);
    while !interrupt::requested() {
        received.clear();
        let mut slices: Vec<_> = buffers
            .iter_mut()
            .map(|buffer| [IoSliceMut::new(buffer)])
            .collect();
        let flags = MsgFlags::MSG_WAITFORONE;
        match recvmmsg(socket.as_raw_fd(), &mut incoming, &mut slices, flags, None) {
            Ok(messages) => received.extend(messages.map(Received::of)),
            Err(error) if is_retry(&error.into()) => continue,
            Err(error) => return Err(error.into()),
        }
        let bytes = received.iter().map(|one| one.length).sum();
        let mut answers = Answers::up_to(batch);
        let buffers = buffers.iter().zip(&mut written);
        for (one, (buffer, written)) in received.iter().zip(buffers) {
            let reply = handle(&buffer[..one.length], written);
            let answer = match reply {
                Reply::Nothing => continue,
                Reply::Same => &buffer[..one.length],
                Reply::Written => &written[..],
            };
            answers.push(answer, one.from, one.at);
        }
        counters.add_received(received.len(), bytes);
        counters.add_sent(answers.len(), answers.send(&socket, &mut outgoing));
    }
    Ok(())
}

/// On Plimsoll's own stack, in batches and in the memory that they came in.
fn on_stack(
    config: &Config,
    network: &Network,
    stack: &Stack,
    counters: &SharedCounters,
    mut handle: impl FnMut(&[u8], &mut Vec<u8>) -> Reply,
) -> io::Result<()> {
    let at: Vec<SocketAddr> = everywhere(network, config);
    let socket = plimsoll_stack::UdpSocket::bind(stack, &at[..])?;
    socket.set_read_timeout(Some(LOOK))?;
    socket.set_busy_poll(config.busy_poll);
    counters.set_listening();
    let max = usize::from(config.batch());
    let mut batch: Vec<Datagram> = Vec::with_capacity(max);
    let mut written = Vec::new();
    while !interrupt::requested() {
        batch.clear();
        match socket.recv_batch(&mut batch, max) {
            Ok(_) => {}
            Err(error) if is_retry(&error) => continue,
            Err(error) => return Err(error),
        }
        let (received, mut bytes, mut answers) = (batch.len(), 0, 0);
        batch.retain_mut(|datagram| {
            let payload = datagram.payload();
            bytes += payload.len();
            let reply = handle(payload, &mut written);
            answers += usize::from(reply != Reply::Nothing);
            match reply {
                Reply::Nothing => false,
                Reply::Same => true,
                Reply::Written => datagram.set_payload(&written),
            }
        });
        counters.add_received(received, bytes);
        if answers > 0 {
            let sent = socket.reply_batch(&mut batch).unwrap_or(0);
            counters.add_sent(answers, sent);
        }
    }
    Ok(())
}
