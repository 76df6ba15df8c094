//! `plimsoll serve` on the kernel's sockets where a host has several addresses, and where answers
//! cannot be sent. In network namespaces; needs root.

mod serving;
mod shell;

use std::net::{Ipv4Addr, SocketAddrV4, UdpSocket};
use std::os::fd::AsRawFd;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, SockaddrIn, sendto, socket,
};
use nix::unistd::Pid;
use serving::{Server, eventually, with_link};
use shell::run;

/// What a test waits for where it asks once.
const LONG: Duration = Duration::from_secs(20);

fn client_at(address: &str) -> UdpSocket {
    let client = UdpSocket::bind((address, 0)).unwrap();
    client
        .set_read_timeout(Some(Duration::from_millis(200)))
        .unwrap();
    client
}

/// Resolvers discarded the answers of a host's other addresses: all left from the first.
#[test]
fn answers_leave_from_the_address_that_was_asked() {
    for batch in [1, 32] {
        with_link(|| {
            run("ip addr add 10.0.0.9/24 dev kernel0");
            run("ip addr add fd00::9/64 dev kernel0 nodad");
            let server = Server::start(&format!("echo --port 7 --batch {batch}"));
            for (own, at) in [("10.0.0.1", "10.0.0.9"), ("fd00::1", "fd00::9")] {
                let client = client_at(own);
                // So it hears of nobody else.
                client.connect((at, 7)).unwrap();
                eventually(at, || {
                    client.send(b"hello").ok()?;
                    client.recv(&mut [0; 100]).ok()
                });
            }
            // No answer can leave from such an address.
            let client = client_at("10.0.0.1");
            client.set_broadcast(true).unwrap();
            let from = eventually("an answer to a broadcast", || {
                client.send_to(b"hello", "10.0.0.255:7").ok()?;
                Some(client.recv_from(&mut [0; 100]).ok()?.1)
            });
            assert_eq!(from.to_string(), "10.0.0.1:7");
            let counts = server.stop();
            assert_eq!(counts["received"], counts["sent"], "{counts}");
        });
    }
}

/// A datagram from port 0: nothing can be sent there.
fn send_from_nowhere(to: SocketAddrV4) {
    let (kind, flags) = (SockType::Raw, SockFlag::SOCK_CLOEXEC);
    let raw = socket(AddressFamily::Inet, kind, flags, SockProtocol::Udp).unwrap();
    let port = to.port().to_be_bytes();
    // Source port, port, length, and no checksum.
    let header = [0, 0, port[0], port[1], 0, 8, 0, 0];
    let (to, flags) = (SockaddrIn::from(to), MsgFlags::empty());
    sendto(raw.as_raw_fd(), &header, &to, flags).unwrap();
}

/// All that had come together with such a datagram, and after it, was not answered either.
#[test]
fn what_cannot_be_answered_costs_nobody_elses_answer() {
    for batch in [1, 32] {
        with_link(|| {
            let server = Server::start(&format!("echo --port 7 --batch {batch}"));
            let at = SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, 1), 7);
            let client = client_at("10.0.0.1");
            eventually("an echo", || {
                client.send_to(b"hello", at).ok()?;
                client.recv_from(&mut [0; 100]).ok()
            });
            // Later answers, if it was asked several times.
            while client.recv_from(&mut [0; 100]).is_ok() {}
            client.set_read_timeout(Some(LONG)).unwrap();
            // While it is stopped they gather, so that one call takes all.
            let pid = Pid::from_raw(server.0.id().cast_signed());
            kill(pid, Signal::SIGSTOP).unwrap();
            for text in [b"one", b"two"] {
                send_from_nowhere(at);
                client.send_to(text, at).unwrap();
            }
            kill(pid, Signal::SIGCONT).unwrap();
            for text in [b"one", b"two"] {
                let mut answer = [0; 3];
                client.recv_from(&mut answer).unwrap();
                assert_eq!(&answer, text);
            }
            let counts = server.stop();
            assert_eq!(counts["send_errors"], 2, "{counts}");
        });
    }
}
