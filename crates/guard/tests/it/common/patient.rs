//! Sockets whose buffers take all that a test sends.

use std::net::{Ipv4Addr, UdpSocket};
use std::os::fd::AsFd;
use std::time::Duration;

use nix::sys::socket::{setsockopt, sockopt};

pub(crate) fn large_buffer(socket: &impl AsFd) {
    setsockopt(socket, sockopt::RcvBufForce, &(64 << 20)).unwrap();
}

/// A socket that loses nothing.
pub(crate) fn patient(address: (Ipv4Addr, u16)) -> UdpSocket {
    let socket = UdpSocket::bind(address).unwrap();
    large_buffer(&socket);
    let wait = Duration::from_millis(300);
    socket.set_read_timeout(Some(wait)).unwrap();
    socket
}

pub(crate) fn received(socket: &UdpSocket) -> u64 {
    let mut received = 0;
    while socket.recv(&mut [0; 2048]).is_ok() {
        received += 1;
    }
    received
}
