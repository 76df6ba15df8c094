//! A page over HTTP/1.1 from one thread around epoll: a server that passes trigger
//! states, for measuring what events cost it.
//!
//! The server of [`super`] has one thread around epoll, too, but tells nobody of its
//! calls. This one tells a [`Passing`] whenever a call of its own returns.
//!
//! **Limits.** IPv4, one page from memory, GET and HEAD alike. An answer that does not
//! fit the socket's buffer ends the connection.

use std::collections::HashMap;
use std::io::{self, Read};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::time::{Duration, Instant, SystemTime};

use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};

use super::answer::Answer;
use super::request::{HEAD_BYTES_MAX, parse};

/// Who is told of a program's trigger states.
pub trait Passing {
    /// A descriptor to be watched beside the connections.
    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// The descriptor is readable.
    ///
    /// # Errors
    ///
    /// What reading it answers.
    fn on_readable(&mut self) -> io::Result<()> {
        Ok(())
    }

    /// A call has returned: a moment in which a check costs no more than itself.
    fn pass(&mut self);
}

/// A server of one page. Dropping it closes its connections.
#[derive(Debug)]
pub struct PageServer {
    listener: TcpListener,
    epoll: Epoll,
    /// By descriptor.
    connections: HashMap<u64, Connection>,
    page: Vec<u8>,
}

#[derive(Debug)]
struct Connection {
    stream: TcpStream,
    received: Vec<u8>,
}

/// What the listener and the one who is told are known as in the epoll instance; no descriptors.
const LISTENER: u64 = u64::MAX;
const PASSING: u64 = u64::MAX - 1;
/// One ready descriptor at a time. With more, a timer's descriptor would have to wait until
/// so many requests are answered.
const READY: usize = 1;
const SILENCE: Duration = Duration::from_millis(100);
const LIMIT: Duration = Duration::from_secs(1);

impl PageServer {
    /// Listens on a port of all addresses; 0 takes a free one.
    ///
    /// # Errors
    ///
    /// The port is taken, or there are no more descriptors.
    pub fn listen(port: u16, page: Vec<u8>) -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, port))?;
        listener.set_nonblocking(true)?;
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        epoll.add(&listener, EpollEvent::new(EpollFlags::EPOLLIN, LISTENER))?;
        Ok(Self {
            listener,
            epoll,
            connections: HashMap::new(),
            page,
        })
    }

    /// Where it listens.
    ///
    /// # Errors
    ///
    /// None that is known.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Answers so many requests; how many it were. Fewer: for 100 ms nothing came, or
    /// signals left no time for more in a second.
    ///
    /// # Errors
    ///
    /// What the listener, epoll or the one who is told answers. A broken connection is
    /// closed.
    pub fn serve(&mut self, requests: u64, passing: &mut impl Passing) -> io::Result<u64> {
        if let Some(descriptor) = passing.descriptor() {
            let event = EpollEvent::new(EpollFlags::EPOLLIN, PASSING);
            self.epoll.add(descriptor, event)?;
        }
        let served = self.serve_watched(requests, passing);
        if let Some(descriptor) = passing.descriptor() {
            self.epoll.delete(descriptor)?;
        }
        served
    }

    fn serve_watched(&mut self, requests: u64, passing: &mut impl Passing) -> io::Result<u64> {
        let silence = EpollTimeout::try_from(SILENCE).expect("it fits");
        let (mut answered, begun) = (0, Instant::now());
        while answered < requests {
            let mut ready = [EpollEvent::empty(); READY];
            let found = match self.epoll.wait(&mut ready, silence) {
                Ok(0) => break,
                Ok(found) => found,
                // A timer's signal. It begins the wait anew.
                Err(Errno::EINTR) if begun.elapsed() < LIMIT => 0,
                Err(Errno::EINTR) => break,
                Err(error) => return Err(error.into()),
            };
            passing.pass();
            for event in &ready[..found] {
                match event.data() {
                    LISTENER => self.accept()?,
                    PASSING => passing.on_readable()?,
                    place => answered += self.turn(place, passing),
                }
            }
        }
        Ok(answered)
    }

    fn accept(&mut self) -> io::Result<()> {
        let stream = match self.listener.accept() {
            Ok((stream, _)) => stream,
            Err(error) if is_of_the_client(&error) => return Ok(()),
            Err(error) => return Err(error),
        };
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        let place = stream.as_fd().as_raw_fd() as u64;
        self.epoll
            .add(&stream, EpollEvent::new(EpollFlags::EPOLLIN, place))?;
        let connection = Connection {
            stream,
            received: Vec::with_capacity(4096),
        };
        self.connections.insert(place, connection);
        Ok(())
    }

    /// Answers what a connection asks; how many requests. Closing its descriptor takes it
    /// out of the epoll instance.
    fn turn(&mut self, place: u64, passing: &mut impl Passing) -> u64 {
        let Some(connection) = self.connections.get_mut(&place) else {
            return 0;
        };
        let (answered, open) = connection.turn(&self.page, passing);
        if !open {
            self.connections.remove(&place);
        }
        answered
    }
}

impl Connection {
    /// How many requests were answered, and whether more may come.
    fn turn(&mut self, page: &[u8], passing: &mut impl Passing) -> (u64, bool) {
        let mut chunk = [0; 4096];
        let read = self.stream.read(&mut chunk);
        passing.pass();
        match read {
            Ok(0) => return (0, false),
            Ok(length) => self.received.extend_from_slice(&chunk[..length]),
            Err(error) => return (0, is_of_the_client(&error)),
        }
        let mut answered = 0;
        loop {
            let answer = match parse(&self.received) {
                Ok(Some((request, length))) => {
                    self.received.drain(..length);
                    let answer = Answer::page(page.to_vec(), "text/html; charset=utf-8");
                    match request.persistent {
                        true => answer,
                        false => answer.closing(),
                    }
                }
                Ok(None) => return (answered, self.received.len() < HEAD_BYTES_MAX),
                Err(status) => Answer::error(status).closing(),
            };
            let closes = answer.closes();
            let sent = answer.send(&mut self.stream, SystemTime::now());
            passing.pass();
            answered += 1;
            if sent.is_err() || closes {
                return (answered, false);
            }
        }
    }
}

/// It would block, was interrupted, or the client has gone.
fn is_of_the_client(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, Interrupted, WouldBlock};
    matches!(error.kind(), ConnectionAborted | Interrupted | WouldBlock)
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::thread;

    use super::*;
    use crate::periodic::{By, Periodic, Work};

    struct Counted(u64);

    impl Passing for Counted {
        fn pass(&mut self) {
            self.0 += 1;
        }
    }

    fn ask(at: SocketAddr, request: &str) -> String {
        let mut stream = TcpStream::connect(at).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    #[test]
    fn pages_are_served_and_trigger_states_told() {
        let mut server = PageServer::listen(0, b"page".to_vec()).unwrap();
        let at = (Ipv4Addr::LOCALHOST, server.address().unwrap().port()).into();
        let mut counted = Counted(0);
        assert_eq!(
            server.serve(1, &mut counted).unwrap(),
            0,
            "nobody asked yet"
        );
        let client = thread::spawn(move || {
            let twice = "GET / HTTP/1.1\r\nHost: x\r\n\r\n\
                GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
            (ask(at, twice), ask(at, "GET nowhere HTTP/1.1\r\n\r\n"))
        });
        while !client.is_finished() {
            server.serve(3, &mut counted).unwrap();
        }
        let (pages, refused) = client.join().unwrap();
        assert_eq!(pages.matches("\r\n\r\npage").count(), 2, "{pages}");
        assert!(refused.starts_with("HTTP/1.1 400 "), "{refused}");
        // Two accepts and two reads at least, and three answers.
        assert!(counted.0 >= 7, "{}", counted.0);
    }

    /// It waited for ever: each signal began the wait for requests anew.
    #[test]
    fn signals_that_come_all_the_time_do_not_keep_it_waiting() {
        let mut server = PageServer::listen(0, Vec::new()).unwrap();
        let every = Duration::from_micros(200);
        let mut signals = Periodic::start(By::Signal, every, Work::Empty).unwrap();
        assert_eq!(server.serve(1, &mut signals).unwrap(), 0);
        assert!(signals.fired() > 0);
    }
}
