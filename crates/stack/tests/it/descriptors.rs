//! What a descriptor says to an event loop that waits for it before the first call on its socket: poll(2) or
//! epoll comes first there, and nothing has returned `WouldBlock` yet. Needs root.

use std::io::{ErrorKind, Read, Write};
use std::net::{
    TcpListener as KernelListener, TcpStream as KernelStream, UdpSocket as KernelSocket,
};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};
use plimsoll_stack::{Outcome, Readiness, Stack, TcpListener, TcpStream, UdpSocket};

use crate::lan::{Lan, SOON, config, owned, xdp};

/// Where frames are demultiplexed by a thread, by the device, and by a thread that polls.
const PATHS: [&str; 3] = ["soft-lrp", "ni-lrp", "polled"];

fn on_each_path(test: impl Fn(&Stack) + Sync) {
    for path in PATHS {
        Lan::create(|| {
            println!("{path}");
            test(&Stack::start(xdp(&owned()), &config(path)).unwrap());
        });
    }
}

fn is_readable(socket: &impl AsFd, limit: Duration) -> bool {
    let mut wanted = [PollFd::new(socket.as_fd(), PollFlags::POLLIN)];
    poll(&mut wanted, PollTimeout::try_from(limit).unwrap()).unwrap() == 1
}

/// It waits, and then this comes.
fn assert_tells_of_later(socket: &impl AsFd, send: impl FnOnce()) {
    let mut wanted = [PollFd::new(socket.as_fd(), PollFlags::POLLIN)];
    assert_eq!(poll(&mut wanted, PollTimeout::ZERO).unwrap(), 0);
    send();
    let timeout = PollTimeout::try_from(SOON).unwrap();
    assert_eq!(poll(&mut wanted, timeout).unwrap(), 1);
}

/// Waits until the stack has processed so many frames for its sockets.
fn wait_for_delivered(stack: &Stack, frames: u64) {
    let end = Instant::now() + SOON;
    while stack.counts()[Outcome::Delivered] < frames {
        assert!(Instant::now() < end, "{:?}", stack.counts());
        thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn that_of_a_udp_socket_tells_of_datagrams() {
    on_each_path(|stack| {
        let client = KernelSocket::bind("10.0.0.1:0").unwrap();
        let send = |to| {
            client.send_to(b"hello", to).unwrap();
        };
        let before = UdpSocket::bind(stack, "10.0.0.2:7").unwrap();
        send("10.0.0.2:7");
        assert!(is_readable(&before, SOON));
        let later = UdpSocket::bind(stack, "10.0.0.2:8").unwrap();
        assert_tells_of_later(&later, || send("10.0.0.2:8"));
    });
}

/// Whenever the descriptor tells of something, takes one datagram and answers it.
fn answer_one_at_a_time(socket: &UdpSocket, stop: &AtomicBool) {
    let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).unwrap();
    let event = EpollEvent::new(EpollFlags::EPOLLIN, 0);
    epoll.add(socket, event).unwrap();
    let (mut events, mut buffer) = ([event], [0; 16]);
    while !stop.load(Ordering::Relaxed) {
        if epoll.wait(&mut events, 100_u8).unwrap() == 1
            && let Ok((length, from)) = socket.recv_from(&mut buffer)
        {
            socket.send_to(&buffer[..length], from).unwrap();
        }
    }
}

/// `exchange`: sends some and hears all answers.
pub(crate) fn assert_answers_one_at_a_time(socket: &UdpSocket, exchange: impl Fn() -> bool) {
    const ROUNDS: usize = 2000;
    socket.set_nonblocking(true).unwrap();
    let stop = AtomicBool::new(false);
    let answered = thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| answer_one_at_a_time(socket, &stop));
        }
        let answered = (0..ROUNDS).take_while(|_| exchange()).count();
        stop.store(true, Ordering::Relaxed);
        answered
    });
    assert_eq!(answered, ROUNDS);
}

/// What a call left in a ring of the socket's own told nothing: threads that wait for one socket slept
/// on beside it.
#[test]
fn that_of_a_udp_socket_tells_of_what_a_call_left() {
    on_each_path(|stack| {
        let server = UdpSocket::bind(stack, "10.0.0.2:7").unwrap();
        let client = KernelSocket::bind("10.0.0.1:0").unwrap();
        client.connect("10.0.0.2:7").unwrap();
        client.set_read_timeout(Some(SOON)).unwrap();
        assert_answers_one_at_a_time(&server, || {
            let sent = (0..4).all(|_| client.send(b"hello").is_ok());
            sent && (0..4).all(|_| client.recv(&mut [0; 16]).is_ok())
        });
    });
}

#[test]
fn that_of_a_listener_tells_of_connections() {
    on_each_path(|stack| {
        let before = TcpListener::bind(stack, "10.0.0.2:80").unwrap();
        let _client = KernelStream::connect("10.0.0.2:80").unwrap();
        // The SYN, and the acknowledgement of its answer.
        wait_for_delivered(stack, 2);
        assert!(is_readable(&before, SOON));
        let later = TcpListener::bind(stack, "10.0.0.2:81").unwrap();
        assert_tells_of_later(&later, || {
            drop(KernelStream::connect("10.0.0.2:81").unwrap());
        });
    });
}

/// One that was never read from told nothing, of what was there and of what came.
#[test]
fn that_of_a_stream_tells_of_data() {
    on_each_path(|stack| {
        let listener = TcpListener::bind(stack, "10.0.0.2:80").unwrap();
        let accepted = || {
            let client = KernelStream::connect("10.0.0.2:80").unwrap();
            (client, listener.accept().unwrap().0)
        };
        let (mut client, before) = accepted();
        let delivered = stack.counts()[Outcome::Delivered];
        client.write_all(b"hello").unwrap();
        wait_for_delivered(stack, delivered + 1);
        assert!(is_readable(&before, Duration::ZERO));
        let (mut client, later) = accepted();
        assert_tells_of_later(&later, || client.write_all(b"hello").unwrap());
        let (client, ends) = accepted();
        assert_tells_of_later(&ends, || drop(client));

        let kernels = KernelListener::bind("10.0.0.1:81").unwrap();
        let connected = TcpStream::connect(stack, "10.0.0.1:81").unwrap();
        let mut server = kernels.accept().unwrap().0;
        assert_tells_of_later(&connected, || server.write_all(b"hello").unwrap());
    });
}

/// Reading returns at once then.
#[test]
fn that_of_a_stream_tells_that_reading_was_shut_down() {
    on_each_path(|stack| {
        let listener = TcpListener::bind(stack, "10.0.0.2:80").unwrap();
        let _clients = [(); 2].map(|()| KernelStream::connect("10.0.0.2:80").unwrap());
        let [before, later] = [(); 2].map(|()| listener.accept().unwrap().0);
        let shut = |stream: &TcpStream| stream.shutdown(std::net::Shutdown::Read).unwrap();
        shut(&before);
        assert!(is_readable(&before, Duration::ZERO));
        assert_tells_of_later(&later, || shut(&later));
    });
}

/// An event loop that waits for room alone, with data that it does not want yet, would spin.
#[test]
fn who_waits_for_room_is_not_told_of_data() {
    on_each_path(|stack| {
        let listener = TcpListener::bind(stack, "10.0.0.2:80").unwrap();
        let mut client = KernelStream::connect("10.0.0.2:80").unwrap();
        let mut server = listener.accept().unwrap().0;
        client.write_all(b"hello").unwrap();
        let ready = server.poll(Readiness::READABLE, Some(SOON)).unwrap();
        assert_eq!(ready, Readiness::READABLE);
        server.set_nonblocking(true).unwrap();
        let mut told = false;
        loop {
            match server.write(&[1; 4096]) {
                Ok(written) => told = written == 0,
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::WouldBlock);
                    assert!(!told, "there was no room");
                    told = is_readable(&server, Duration::ZERO);
                    if !told {
                        break;
                    }
                }
            }
        }
    });
}

/// Whoever asks whether there is room has not told what the descriptor is to wait for. It had
/// kept silent about data from then on.
#[test]
fn that_of_a_stream_tells_of_data_after_a_look_that_found_nothing() {
    on_each_path(|stack| {
        let listener = TcpListener::bind(stack, "10.0.0.2:80").unwrap();
        let mut client = KernelStream::connect("10.0.0.2:80").unwrap();
        let mut server = listener.accept().unwrap().0;
        let look = |stream: &TcpStream, at| stream.poll(at, Some(Duration::ZERO)).unwrap();
        assert_eq!(look(&server, Readiness::NONE), Readiness::NONE);
        assert_tells_of_later(&server, || client.write_all(b"hello").unwrap());
        let mut buffer = [0; 5];
        server.read_exact(&mut buffer).unwrap();

        let delivered = stack.counts()[Outcome::Delivered];
        client.write_all(b"hello").unwrap();
        wait_for_delivered(stack, delivered + 1);
        let fill = |mut stream: &TcpStream| {
            while look(stream, Readiness::WRITABLE) == Readiness::WRITABLE {
                assert_ne!(stream.write(&[1; 4096]).unwrap(), 0);
            }
        };
        fill(&server);
        let mut wanted = [PollFd::new(server.as_fd(), PollFlags::POLLIN)];
        assert_eq!(poll(&mut wanted, PollTimeout::ZERO).unwrap(), 1);
        fill(&server);
        assert_eq!(poll(&mut wanted, PollTimeout::ZERO).unwrap(), 1, "lost");
    });
}
