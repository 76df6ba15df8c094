//! Calls that wait: each is woken by what it waits for, whoever else waits, and by the end of
//! the device. A call that misses its waking waits until its test's patience is over.

use std::io::{self, ErrorKind, Read, Write};
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use plimsoll_core::pacing::Rate;
use plimsoll_stack::device::simulated::{SimulatedConfig, SimulatedDevice};
use plimsoll_stack::device::{Batch, Capabilities, Device, Drops, Pool};
use plimsoll_stack::{Pacing, Stack, StackConfig, TcpListener, TcpStream, UdpSocket};

/// No test waits longer for what must come.
const SOON: Duration = Duration::from_secs(20);

/// A device that breaks when it is told to.
#[derive(Debug)]
struct Breaking {
    inner: SimulatedDevice,
    broken: Arc<AtomicBool>,
}

impl Device for Breaking {
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn pool(&self) -> &Arc<Pool> {
        self.inner.pool()
    }

    fn receive(&self, batch: &mut Batch, max: usize) -> io::Result<usize> {
        if self.broken.load(Ordering::Relaxed) {
            return Err(io::Error::other("unplugged"));
        }
        self.inner.receive(batch, max)
    }

    fn transmit(&self, batch: &mut Batch) -> io::Result<usize> {
        self.inner.transmit(batch)
    }

    fn readiness(&self) -> BorrowedFd<'_> {
        self.inner.readiness()
    }

    fn drops(&self) -> Drops {
        self.inner.drops()
    }
}

/// A client, a server, and what breaks the server's device.
fn pair() -> (Stack, Stack, Arc<AtomicBool>) {
    let (one, inner) = SimulatedDevice::pair(&SimulatedConfig::default()).unwrap();
    let broken = Arc::new(AtomicBool::new(false));
    let other = Breaking {
        inner,
        broken: Arc::clone(&broken),
    };
    let config = |last: u8| StackConfig {
        addresses: vec![format!("10.0.0.{last}/24").parse().unwrap()],
        ..StackConfig::default()
    };
    let client = Stack::start(one, &config(1)).unwrap();
    (client, Stack::start(other, &config(2)).unwrap(), broken)
}

/// Something arrives at the server, whose device is asked for it.
fn knock(client: &Stack) {
    let socket = UdpSocket::bind(client, "10.0.0.1:1000").unwrap();
    socket.send_to(b"knock", "10.0.0.2:9").unwrap();
}

fn connected(client: &Stack, listener: &TcpListener) -> (TcpStream, TcpStream) {
    let at = listener.local_addr().unwrap();
    thread::scope(|scope| {
        let accepting = scope.spawn(|| listener.accept().unwrap().0);
        let stream = TcpStream::connect(client, at).unwrap();
        (stream, accepting.join().unwrap())
    })
}

/// One that waited for room missed its waking when one that waited for data cleared it: both
/// directions stood still, three of ten times, for a second.
#[test]
fn threads_that_read_and_write_one_stream_miss_nothing() {
    const BYTES: usize = 300_000;
    let (client, server, _) = pair();
    let listener = TcpListener::bind(&server, "10.0.0.2:80").unwrap();
    let (here, there) = connected(&client, &listener);
    for stream in [&here, &there] {
        stream.set_read_timeout(Some(SOON)).unwrap();
        stream.set_write_timeout(Some(SOON)).unwrap();
    }
    for _ in 0..30 {
        thread::scope(|scope| {
            for stream in [&here, &there] {
                scope.spawn(move || (&*stream).write_all(&vec![7; BYTES]).unwrap());
                scope.spawn(move || (&*stream).read_exact(&mut vec![0; BYTES]).unwrap());
            }
        });
    }
}

/// The end of a connection gave its channel back, and then forgot who had it. By then it could be
/// the channel of the next connection, which nobody worked for any more: it waited for ever.
#[test]
fn who_connects_while_another_ends_is_not_forgotten() {
    let (client, server, _) = pair();
    let (done, is_done) = std::sync::mpsc::channel();
    let pace = Pacing::at(Rate::from_bits_per_second(50_000_000).unwrap());
    // On a thread that a failing test leaves behind.
    thread::spawn(move || {
        let listener = TcpListener::bind(&server, "10.0.0.2:80").unwrap();
        for _ in 0..200 {
            let mut here = TcpStream::connect(&client, "10.0.0.2:80").unwrap();
            here.set_pacing(pace).unwrap();
            let (mut there, _) = listener.accept().unwrap();
            here.write_all(b"question").unwrap();
            here.shutdown(Shutdown::Write).unwrap();
            there.read_to_end(&mut Vec::new()).unwrap();
            // What waits for its departure ends the connection some time later.
            there.set_pacing(pace).unwrap();
            there.write_all(&[7; 40_000]).unwrap();
            drop(there);
            here.read_to_end(&mut Vec::new()).unwrap();
        }
        done.send(()).unwrap();
    });
    is_done.recv_timeout(2 * SOON).expect("all connect");
}

/// On threads that a failing test leaves behind.
#[test]
fn all_who_wait_learn_that_the_device_has_failed() {
    let (client, server, broken) = pair();
    let listener = Arc::new(TcpListener::bind(&server, "10.0.0.2:80").unwrap());
    let (_here, there) = connected(&client, &listener);
    let there = Arc::new(there);
    let socket = UdpSocket::bind(&server, "10.0.0.2:53").unwrap();
    let (told, failures) = std::sync::mpsc::channel();
    let wait = |who: &'static str, call: Box<dyn Fn() -> io::Result<usize> + Send>| {
        let told = told.clone();
        let until_it_fails = move || loop {
            if let Err(error) = call() {
                return told.send((who, error.kind())).unwrap();
            }
        };
        thread::spawn(until_it_fails);
    };
    let reading = Arc::clone(&there);
    wait("reader", Box::new(move || (&*reading).read(&mut [0; 9])));
    // More than both buffers hold, which nobody reads.
    wait("writer", Box::new(move || (&*there).write(&[0; 9000])));
    for _ in 0..2 {
        let listener = Arc::clone(&listener);
        wait("listener", Box::new(move || listener.accept().map(|_| 1)));
    }
    let receive = move || socket.recv_from(&mut [0; 9]).map(|(length, _)| length);
    wait("socket", Box::new(receive));
    // Whether they wait already or not, each is to be told.
    thread::sleep(Duration::from_millis(50));
    broken.store(true, Ordering::Relaxed);
    knock(&client);
    for _ in 0..5 {
        let (who, error) = failures.recv_timeout(SOON).expect("all are told");
        assert_eq!(error, ErrorKind::BrokenPipe, "{who}");
    }
}

/// The first of them took the waking from the others.
#[test]
fn all_who_wait_at_one_socket_learn_that_the_device_has_failed() {
    let (client, server, broken) = pair();
    let socket = UdpSocket::bind(&server, "10.0.0.2:7").unwrap();
    socket.set_read_timeout(Some(SOON)).unwrap();
    thread::scope(|scope| {
        let waiting: Vec<_> = (0..4)
            .map(|_| scope.spawn(|| socket.recv_from(&mut [0; 9]).unwrap_err().kind()))
            .collect();
        // They wait by then; if not, they find it failed.
        thread::sleep(Duration::from_millis(100));
        broken.store(true, Ordering::Relaxed);
        knock(&client);
        for waiting in waiting {
            assert_eq!(waiting.join().unwrap(), ErrorKind::BrokenPipe);
        }
    });
}

/// An event loop was not told: it had asked before the device failed.
#[test]
fn an_event_loop_learns_that_the_device_has_failed() {
    let (client, server, broken) = pair();
    let listener = TcpListener::bind(&server, "10.0.0.2:80").unwrap();
    let (_here, there) = connected(&client, &listener);
    let (_here_too, unread) = connected(&client, &listener);
    let unread_fd = unread.as_fd();
    there.set_nonblocking(true).unwrap();
    let read = || (&there).read(&mut [0; 9]).map_err(|error| error.kind());
    assert_eq!(read(), Err(ErrorKind::WouldBlock));
    broken.store(true, Ordering::Relaxed);
    knock(&client);
    let patience = PollTimeout::try_from(SOON).unwrap();
    for descriptor in [there.as_fd(), unread_fd] {
        let mut polled = [PollFd::new(descriptor, PollFlags::POLLIN)];
        assert_eq!(poll(&mut polled, patience).unwrap(), 1);
    }
    assert_eq!(read(), Err(ErrorKind::BrokenPipe));
}

fn until_blocked(mut call: impl FnMut() -> io::Result<usize>) -> usize {
    let mut sum = 0;
    loop {
        match call() {
            Ok(length) => sum += length,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return sum,
            Err(error) => panic!("{error}"),
        }
    }
}

fn is_readable(stream: &TcpStream, limit: Duration) -> bool {
    let mut polled = [PollFd::new(stream.as_fd(), PollFlags::POLLIN)];
    poll(&mut polled, PollTimeout::try_from(limit).unwrap()).unwrap() > 0
}

/// Who has stopped reading, and writes, is not kept awake by what nobody reads.
#[test]
fn what_nobody_reads_does_not_keep_a_writer_awake() {
    let (client, server, _) = pair();
    let listener = TcpListener::bind(&server, "10.0.0.2:80").unwrap();
    let (mut here, mut there) = connected(&client, &listener);
    there.set_nonblocking(true).unwrap();
    assert_eq!(until_blocked(|| there.read(&mut [0])), 0);
    here.write_all(b"unread").unwrap();
    assert!(is_readable(&there, SOON));
    let mut written = until_blocked(|| there.write(&[7; 65_536]));
    let mut told = 0;
    while is_readable(&there, Duration::from_millis(200)) {
        written += until_blocked(|| there.write(&[7; 65_536]));
        told += 1;
        assert!(told < 200, "{written} bytes written");
    }
    assert!(told > 0, "what nobody reads is told of for a while");
    // Room is told of all the same, and then it reads again.
    here.set_read_timeout(Some(SOON)).unwrap();
    here.read_exact(&mut vec![0; written]).unwrap();
    assert!(is_readable(&there, SOON));
    assert_eq!(until_blocked(|| there.read(&mut [0; 16])), 6);
}
