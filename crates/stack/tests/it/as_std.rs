//! Where calls of the same names as the standard library's could surprise who knows those.

use std::io::{ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::time::Duration;

use plimsoll_stack::device::simulated::{SimulatedConfig, SimulatedDevice};
use plimsoll_stack::{Stack, StackConfig, TcpListener, TcpStream, UdpSocket};

/// No test waits longer for what must come.
const SOON: Duration = Duration::from_secs(10);

fn pair() -> [Stack; 2] {
    let (one, other) = SimulatedDevice::pair(&SimulatedConfig::default()).unwrap();
    [(one, 1), (other, 2)].map(|(device, last)| {
        let addresses = [format!("10.0.0.{last}/24"), format!("fd00::{last}/64")];
        let config = StackConfig {
            addresses: addresses.map(|net| net.parse().unwrap()).to_vec(),
            ..StackConfig::default()
        };
        Stack::start(device, &config).unwrap()
    })
}

/// A name has addresses of both families. The first one alone was tried.
#[test]
fn a_datagram_socket_connects_to_the_first_address_that_it_can() {
    let [one, other] = pair();
    let peer = UdpSocket::bind(&other, "10.0.0.2:7").unwrap();
    peer.set_read_timeout(Some(SOON)).unwrap();
    let socket = UdpSocket::bind(&one, "10.0.0.1:0").unwrap();
    let of_a_name: [SocketAddr; 2] = ["[fd00::2]:7", "10.0.0.2:7"].map(|at| at.parse().unwrap());
    socket.connect(&of_a_name[..]).unwrap();
    assert_eq!(socket.peer_addr().unwrap(), of_a_name[1]);
    socket.send(b"hello").unwrap();
    assert_eq!(peer.recv(&mut [0; 16]).unwrap(), 5);
}

/// It was refused.
#[test]
fn a_listener_takes_a_free_port_if_it_is_given_none() {
    let [one, other] = pair();
    let listeners = ["10.0.0.1:0", "0.0.0.0:0", "[::]:0", "[fd00::1]:0"]
        .map(|at| TcpListener::bind(&one, at).unwrap());
    for listener in &listeners {
        let mut at = listener.local_addr().unwrap();
        assert_ne!(at.port(), 0);
        if at.ip().is_unspecified() {
            at.set_ip("10.0.0.1".parse().unwrap());
        }
        let mut client = TcpStream::connect(&other, at).unwrap();
        let (mut server, _) = listener.accept_timeout(SOON).unwrap();
        assert_eq!(server.local_addr().unwrap(), at);
        client.write_all(b"hello").unwrap();
        server.set_read_timeout(Some(SOON)).unwrap();
        server.read_exact(&mut [0; 5]).unwrap();
    }
}

/// It sent a SYN, and told that nobody had answered in time.
#[test]
fn a_timeout_of_zero_is_no_timeout() {
    let [one, _other] = pair();
    let to = "10.0.0.2:80".parse().unwrap();
    let error = TcpStream::connect_timeout(&one, to, Duration::ZERO).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
}
