//! Who gets packets in the place of a socket of this host.

use std::net::UdpSocket;

use plimsoll_kernel::link;

use super::other_namespace::Namespace;
use super::patient::patient;
use super::{HOST_V4, fill, ip};

/// A host behind this one, by `g0`, that has its address, and a server there.
pub(crate) fn twin(mac: &'static str, port: u16) -> (Namespace, UdpSocket) {
    let twin = Namespace::new();
    let tid = twin.tid;
    ip(&format!(
        "link add g0 type veth peer name h0 address {mac} netns {tid}"
    ));
    ip("link set g0 up");
    let server = twin.run(move || {
        ip(&format!("address add {HOST_V4}/24 dev h0"));
        ip("link set h0 up");
        link::wait_until_sending("h0").unwrap();
        patient((HOST_V4, port))
    });
    link::wait_until_sending("g0").unwrap();
    (twin, server)
}

/// A socket of this host that somebody here has filled, and nobody reads.
pub(crate) fn full(port: u16) -> UdpSocket {
    let socket = UdpSocket::bind((HOST_V4, port)).unwrap();
    let filler = UdpSocket::bind((HOST_V4, 0)).unwrap();
    fill(&filler, (HOST_V4, port));
    socket
}
