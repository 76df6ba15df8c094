//! `plimsoll serve` on the kernel's sockets where a host has several addresses, where answers
//! cannot be sent, and where descriptors or threads run out. In network namespaces; needs root
//! and dig.

use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddrV4, TcpStream, UdpSocket};
use std::os::fd::AsRawFd;
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, SockaddrIn, sendto, socket,
};
use nix::unistd::Pid;

use crate::serving::{Server, eventually, with_link};
use crate::shell::run;

/// What a test waits for where it asks once.
const LONG: Duration = Duration::from_secs(20);

fn client_at(address: &str) -> UdpSocket {
    let client = UdpSocket::bind((address, 0)).unwrap();
    client
        .set_read_timeout(Some(Duration::from_millis(200)))
        .unwrap();
    client
}

#[test]
fn an_address_alone_is_listened_on() {
    with_link(|| {
        run("ip addr add 10.0.0.9/24 dev kernel0");
        let server = Server::start("echo --port 7 --address 10.0.0.9/24");
        let client = client_at("10.0.0.1");
        client.connect("10.0.0.9:7").unwrap();
        eventually("10.0.0.9", || {
            client.send(b"hello").ok()?;
            client.recv(&mut [0; 100]).ok()
        });
        client.connect("10.0.0.1:7").unwrap();
        client.send(b"hello").unwrap();
        let refused = client.recv(&mut [0; 100]).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
        server.stop();
    });
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
            let early = client_at("10.0.0.1");
            eventually("an echo", || {
                early.send_to(b"hello", at).ok()?;
                early.recv_from(&mut [0; 100]).ok()
            });
            // It may have been asked several times: late answers reach no other client.
            let client = client_at("10.0.0.1");
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

/// It had ended with "Too many open files", and had said of a file that it is not there.
#[test]
fn a_lack_of_descriptors_passes() {
    with_link(|| {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join("index.html"), "<p>hello\n").unwrap();
        let root = directory.path().display();
        let server = Server::start(&format!("http --port 80 --root {root}"));
        let connect = || TcpStream::connect("10.0.0.1:80").ok();
        let mut first = eventually("a connection", connect);
        let (pid, most) = (server.0.id(), 24);
        // Descriptors that it was started with may be beyond.
        let open = || {
            let all = fs::read_dir(format!("/proc/{pid}/fd")).unwrap();
            let numbers = all.map(|one| one.unwrap().file_name().into_string().unwrap());
            let numbers = numbers.filter(|number| number.parse::<usize>().unwrap() < most);
            numbers.count()
        };
        run(&format!("prlimit --pid {pid} --nofile={most}:{most}"));
        let others: Vec<_> = (0..2 * most).map(|_| connect().unwrap()).collect();
        eventually("the last descriptor", || (open() == most).then_some(()));
        first.set_read_timeout(Some(LONG)).unwrap();
        let asked = b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
        first.write_all(asked).unwrap();
        let mut answer = String::new();
        first.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 503 "), "{answer}");
        drop(others);
        eventually("a page", || {
            let mut client = connect()?;
            client.set_read_timeout(Some(LONG)).ok()?;
            client.write_all(asked).ok()?;
            let mut answer = String::new();
            client.read_to_string(&mut answer).ok()?;
            answer.starts_with("HTTP/1.1 200 ").then_some(())
        });
        server.stop();
    });
}

/// The first connection without a thread had ended the server.
#[test]
fn a_lack_of_threads_passes() {
    with_link(|| {
        let directory = tempfile::tempdir().unwrap();
        let zone = directory.path().join("zone");
        let text = "$ORIGIN a.\n@ 1 IN SOA n m 1 2 3 4 5\nn 1 IN A 192.0.2.1\n";
        fs::write(&zone, text).unwrap();
        let most = 2;
        let server = Server::start(&format!(
            "dns --port 53 --zone {} --connections {most}",
            zone.display()
        ));
        let connect = || {
            let client = TcpStream::connect("10.0.0.1:53").ok()?;
            client.set_read_timeout(Some(LONG)).unwrap();
            Some(client)
        };
        // One has a thread, and keeps it: it is told that its query is none.
        let mut first = eventually("a connection", connect);
        first.write_all(&[&[0, 12], &[0; 12][..]].concat()).unwrap();
        first.read_exact(&mut [0; 14]).unwrap();
        // Too little memory for the stack of one more thread.
        let pid = server.0.id();
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let mut lines = status.lines();
        let size = lines.find_map(|line| line.strip_prefix("VmSize:")).unwrap();
        let size: u64 = size.trim().trim_end_matches(" kB").parse().unwrap();
        let bytes = (size << 10) + (64 << 10);
        run(&format!("prlimit --pid {pid} --as={bytes}:unlimited"));
        for _ in 0..2 * most {
            let mut refused = connect().unwrap();
            assert_eq!(refused.read(&mut [0; 1]).unwrap(), 0);
        }
        run(&format!("prlimit --pid {pid} --as=unlimited:unlimited"));
        let told = run("dig @10.0.0.1 +tcp +short +tries=1 +timeout=10 n.a");
        assert_eq!(told, "192.0.2.1\n");
        server.stop();
    });
}

/// Its thread waited for ever, and the server for it: it could not be ended.
#[test]
fn a_client_that_takes_no_answers_keeps_no_server_from_its_end() {
    with_link(|| {
        let directory = tempfile::tempdir().unwrap();
        let zone = directory.path().join("zone");
        let text = "x".repeat(200);
        let records = format!("n 1 IN TXT \"{text}\"\n").repeat(100);
        fs::write(
            &zone,
            format!("$ORIGIN a.\n@ 1 IN SOA n m 1 2 3 4 5\n{records}"),
        )
        .unwrap();
        let mut server = Server::start(&format!("dns --port 53 --zone {}", zone.display()));
        let mut client = eventually("a connection", || TcpStream::connect("10.0.0.1:53").ok());
        client.set_nonblocking(true).unwrap();
        // The text of n.a, of which an answer is 20 KB.
        let query = b"\0\x15\0\x01\0\0\0\x01\0\0\0\0\0\0\x01n\x01a\0\0\x10\0\x01";
        // Until nobody takes any more for a while.
        let (mut last, quiet) = (Instant::now(), Duration::from_secs(1));
        while last.elapsed() < quiet {
            match client.write(query) {
                Ok(written) if written == query.len() => last = Instant::now(),
                Ok(_) => break,
                Err(_) => thread::sleep(Duration::from_millis(10)),
            }
        }
        kill(Pid::from_raw(server.0.id().cast_signed()), Signal::SIGINT).unwrap();
        let status = eventually("its end", || server.0.try_wait().unwrap());
        assert!(status.success(), "{status}");
    });
}
