//! Servers of datagrams: what becomes of each is the caller's to say.

use std::io::{self, IoSlice, IoSliceMut};
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;

use nix::sys::socket::{
    MsgFlags, MultiHeaders, SockaddrStorage, recvmmsg, sendmmsg, setsockopt, sockopt,
};
use plimsoll_stack::{Datagram, Stack};

use super::counters::SharedCounters;
use super::network::{Network, everywhere};
use super::option::set_option;
use super::{Config, LOOK, is_retry};
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
        Network::Kernel if config.batch == 1 => by_one(config, network, counters, handle),
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
    Ok(socket)
}

/// The kernel polls the device from the receiving call (socket(7)).
fn set_busy_poll(socket: &UdpSocket, span: std::time::Duration) -> io::Result<()> {
    let micros = u32::try_from(span.as_micros()).unwrap_or(u32::MAX);
    set_option(socket, nix::libc::SO_BUSY_POLL, &micros)
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
    while !interrupt::requested() {
        match socket.recv_from(&mut buffer) {
            Ok((length, from)) => {
                let reply = handle(&buffer[..length], &mut written);
                counters.count_received(length);
                let answer = match reply {
                    Reply::Nothing => continue,
                    Reply::Same => &buffer[..length],
                    Reply::Written => &written[..],
                };
                counters.count_sent(socket.send_to(answer, from).is_ok());
            }
            // Nothing came for a while: look at the interrupt flag.
            Err(error) if is_retry(&error) => {}
            Err(error) => return Err(error),
        }
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
    let batch = usize::from(config.batch);
    let mut buffers = vec![[0_u8; BATCH_BYTES]; batch];
    let mut written = vec![Vec::new(); batch];
    let mut received: Vec<(usize, Option<SockaddrStorage>)> = Vec::with_capacity(batch);
    let mut incoming = MultiHeaders::<SockaddrStorage>::preallocate(batch, None);
    let mut outgoing = MultiHeaders::<SockaddrStorage>::preallocate(batch, None);
    while !interrupt::requested() {
        received.clear();
        let mut slices: Vec<_> = buffers
            .iter_mut()
            .map(|buffer| [IoSliceMut::new(buffer)])
            .collect();
        let flags = MsgFlags::MSG_WAITFORONE;
        match recvmmsg(socket.as_raw_fd(), &mut incoming, &mut slices, flags, None) {
            Ok(messages) => received.extend(messages.map(|one| (one.bytes, one.address))),
            Err(error) if is_retry(&error.into()) => continue,
            Err(error) => return Err(error.into()),
        }
        let bytes = received.iter().map(|(length, _)| length).sum();
        let (mut answers, mut to) = (Vec::with_capacity(batch), Vec::with_capacity(batch));
        let buffers = buffers.iter().zip(&mut written);
        for ((length, address), (buffer, written)) in received.iter().zip(buffers) {
            let reply = handle(&buffer[..*length], written);
            let answer = match reply {
                Reply::Nothing => continue,
                Reply::Same => &buffer[..*length],
                Reply::Written => &written[..],
            };
            answers.push([IoSlice::new(answer)]);
            to.push(*address);
        }
        counters.add_received(received.len(), bytes);
        if !answers.is_empty() {
            let (fd, flags, no_control) = (socket.as_raw_fd(), MsgFlags::empty(), []);
            let sent = sendmmsg(fd, &mut outgoing, &answers, &to, no_control, flags);
            let sent = sent.map_or(0, Iterator::count);
            counters.add_sent(answers.len(), sent);
        }
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
    let mut batch: Vec<Datagram> = Vec::with_capacity(config.batch.into());
    let mut written = Vec::new();
    while !interrupt::requested() {
        batch.clear();
        match socket.recv_batch(&mut batch, config.batch.into()) {
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
