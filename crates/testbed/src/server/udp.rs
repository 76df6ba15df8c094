//! Sink and echo.

use std::io::{self, IoSlice, IoSliceMut};
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;

use nix::sys::socket::{
    MsgFlags, MultiHeaders, SockaddrStorage, recvmmsg, sendmmsg, setsockopt, sockopt,
};
use plimsoll_stack::Datagram;

use super::counters::SharedCounters;
use super::network::{Network, everywhere};
use super::{Config, Kind, LOOK, is_retry};
use crate::spin::Work;
use crate::{Error, interrupt};

/// The longest datagram.
const DATAGRAM_BYTES_MAX: usize = 65_536;

pub(super) fn serve(
    config: &Config,
    network: &Network,
    work: Work,
    counters: &SharedCounters,
) -> Result<(), Error> {
    let served = match network {
        Network::Kernel if config.batch == 1 => by_one(config, network, work, counters),
        Network::Kernel => by_many(config, network, work, counters),
        Network::Stack(_) => on_stack(config, network, work, counters),
    };
    served.map_err(Error::io("serve"))
}

fn bind(config: &Config, network: &Network) -> io::Result<UdpSocket> {
    let socket = UdpSocket::bind(&everywhere(network, config)[..])?;
    if let Some(bytes) = config.rcvbuf_bytes {
        setsockopt(&socket, sockopt::RcvBufForce, &bytes)?;
    }
    socket.set_read_timeout(Some(LOOK))?;
    Ok(socket)
}

/// A receive and a send per packet.
fn by_one(
    config: &Config,
    network: &Network,
    work: Work,
    counters: &SharedCounters,
) -> io::Result<()> {
    let socket = bind(config, network)?;
    counters.set_listening();
    let mut buffer = vec![0; DATAGRAM_BYTES_MAX];
    while !interrupt::requested() {
        match socket.recv_from(&mut buffer) {
            Ok((length, from)) => {
                work.run();
                counters.count_received(length);
                if config.kind == Kind::Echo {
                    counters.count_sent(socket.send_to(&buffer[..length], from).is_ok());
                }
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
    work: Work,
    counters: &SharedCounters,
) -> io::Result<()> {
    let socket = bind(config, network)?;
    counters.set_listening();
    let batch = usize::from(config.batch);
    let mut buffers = vec![[0_u8; BATCH_BYTES]; batch];
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
        for (length, _) in &received {
            work.run();
            counters.count_received(*length);
        }
        if config.kind == Kind::Echo {
            let payloads = buffers.iter().zip(&received);
            let slices: Vec<_> = payloads
                .map(|(buffer, (length, _))| [IoSlice::new(&buffer[..*length])])
                .collect();
            let to: Vec<_> = received.iter().map(|(_, address)| *address).collect();
            let no_control = [];
            let (fd, flags) = (socket.as_raw_fd(), MsgFlags::empty());
            let sent = sendmmsg(fd, &mut outgoing, &slices, &to, no_control, flags);
            let sent = sent.map_or(0, Iterator::count);
            (0..received.len()).for_each(|k| counters.count_sent(k < sent));
        }
    }
    Ok(())
}

/// On Plimsoll's own stack, in batches and without copies.
fn on_stack(
    config: &Config,
    network: &Network,
    work: Work,
    counters: &SharedCounters,
) -> io::Result<()> {
    let Network::Stack(stack) = network else {
        return Ok(());
    };
    let at: Vec<SocketAddr> = everywhere(network, config);
    let socket = plimsoll_stack::UdpSocket::bind(stack, &at[..])?;
    socket.set_read_timeout(Some(LOOK))?;
    counters.set_listening();
    let mut batch: Vec<Datagram> = Vec::with_capacity(config.batch.into());
    while !interrupt::requested() {
        batch.clear();
        match socket.recv_batch(&mut batch, config.batch.into()) {
            Ok(_) => {}
            Err(error) if is_retry(&error) => continue,
            Err(error) => return Err(error),
        }
        for datagram in &batch {
            work.run();
            counters.count_received(datagram.payload().len());
        }
        if config.kind == Kind::Echo {
            let count = batch.len();
            let sent = socket.reply_batch(&mut batch).unwrap_or(0);
            (0..count).for_each(|k| counters.count_sent(k < sent));
        }
    }
    Ok(())
}
