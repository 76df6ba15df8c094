//! Connections of either network around one epoll instance: one thread for all of them.
//!
//! Both networks follow one rule: go on until a call would block, then wait for the
//! descriptor. The kernel's tells of an edge, our stack's that something happened since. So
//! an idle connection costs its memory and nothing else.

use std::collections::{HashMap, VecDeque};
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd};
use std::time::{Duration, Instant};

use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};

use super::network::Network;
use super::tcp::patience;
use super::{LOOK, Pace, is_lack, is_retry};
use crate::interrupt;

/// What a turn has led to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    /// It goes on when something comes, or when there is room.
    Waits,
    /// It could go on at once; others come first.
    Yields,
    Ended,
}

/// A connection of either network.
pub(super) trait Stream: Read + Write {
    /// Sends an end behind what was written; reading goes on.
    fn end_sending(&self) -> io::Result<()>;
}

impl Stream for TcpStream {
    fn end_sending(&self) -> io::Result<()> {
        self.shutdown(Shutdown::Write)
    }
}

impl Stream for plimsoll_stack::TcpStream {
    fn end_sending(&self) -> io::Result<()> {
        self.shutdown(Shutdown::Write)
    }
}

/// What a connection is for.
pub(super) trait Session {
    /// Goes on as far as it can. `silent`: nothing was done for too long, so this is the last
    /// turn but for what must be sent.
    fn turn(&mut self, stream: &mut impl Stream, silent: bool) -> Progress;

    /// Grows with what keeps a connection: whole requests, and what was sent of answers.
    fn done(&self) -> u64;
}

/// How often silent connections are looked for.
const SWEEP: Duration = Duration::from_secs(1);
/// Descriptors that one call tells of.
const READY: usize = 64;
/// Connections that are accepted before others have a turn.
const ACCEPTS: usize = 64;
/// What the listener is known as; no descriptor.
const LISTENER: u64 = u64::MAX;

/// Serves connections to one of the addresses until interrupted, at most `most` at a time;
/// more wait in the backlog. The stack's connections have their pace already.
pub(super) fn serve<S: Session>(
    network: &Network,
    at: &[SocketAddr],
    pace: Option<Pace>,
    most: usize,
    listening: impl FnOnce(),
    session: impl FnMut() -> S,
) -> io::Result<()> {
    match network {
        Network::Kernel => {
            let listener = TcpListener::bind(at)?;
            listener.set_nonblocking(true)?;
            let accept = || {
                let (stream, _) = listener.accept()?;
                stream.set_nonblocking(true)?;
                stream.set_nodelay(true)?;
                pace.map_or(Ok(()), |pace| pace.limit(&stream))?;
                Ok(stream)
            };
            Events::new(&listener, most, accept, session)?.run(listening)
        }
        Network::Stack(stack) => {
            let listener = plimsoll_stack::TcpListener::bind(stack, at)?;
            listener.set_nonblocking(true)?;
            let accept = || {
                let (stream, _) = listener.accept()?;
                stream.set_nonblocking(true)?;
                stream.set_nodelay(true)?;
                Ok(stream)
            };
            Events::new(&listener, most, accept, session)?.run(listening)
        }
    }
}

struct Connection<C, S> {
    stream: C,
    session: S,
    /// When anything was last done. Pieces of a request do not count: who sends one byte now and
    /// then would keep its place for ever.
    moved: Instant,
    /// It has yielded, and its next turn comes by itself.
    goes_on: bool,
}

struct Events<'a, C, S, A, O> {
    epoll: Epoll,
    listener: &'a dyn AsFd,
    accepting: bool,
    /// Nobody is accepted until then, since there were no descriptors.
    lacking: Option<Instant>,
    most: usize,
    accept: A,
    open: O,
    /// By descriptor.
    connections: HashMap<u64, Connection<C, S>>,
    /// Those that yielded.
    again: VecDeque<u64>,
    swept: Instant,
}

impl<'a, C, S, A, O> Events<'a, C, S, A, O>
where
    C: Stream + AsFd,
    S: Session,
    A: FnMut() -> io::Result<C>,
    O: FnMut() -> S,
{
    fn new(listener: &'a dyn AsFd, most: usize, accept: A, open: O) -> io::Result<Self> {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        let event = EpollEvent::new(EpollFlags::EPOLLIN, LISTENER);
        epoll.add(listener, event)?;
        Ok(Self {
            epoll,
            listener,
            accepting: true,
            lacking: None,
            most,
            accept,
            open,
            connections: HashMap::new(),
            again: VecDeque::new(),
            swept: Instant::now(),
        })
    }

    fn run(mut self, listening: impl FnOnce()) -> io::Result<()> {
        listening();
        let look = EpollTimeout::try_from(LOOK).map_err(io::Error::other)?;
        let mut ready = [EpollEvent::empty(); READY];
        while !interrupt::requested() {
            let limit = match self.again.is_empty() {
                true => look,
                false => EpollTimeout::ZERO,
            };
            let found = match self.epoll.wait(&mut ready, limit).map_err(io::Error::from) {
                Ok(found) => found,
                Err(error) if is_retry(&error) => 0,
                Err(error) => return Err(error),
            };
            let now = Instant::now();
            for event in &ready[..found] {
                match event.data() {
                    LISTENER => self.accept(now)?,
                    place => self.turn(place, now, false),
                }
            }
            self.go_on(now);
            self.sweep(now);
            self.listen(now)?;
        }
        Ok(())
    }

    /// A turn for each that yielded.
    fn go_on(&mut self, now: Instant) {
        for _ in 0..self.again.len() {
            let Some(place) = self.again.pop_front() else {
                return;
            };
            if let Some(connection) = self.connections.get_mut(&place) {
                connection.goes_on = false;
            }
            self.turn(place, now, false);
        }
    }

    fn accept(&mut self, now: Instant) -> io::Result<()> {
        for _ in 0..ACCEPTS {
            if self.connections.len() >= self.most {
                break;
            }
            let (stream, place) = match self.accept_one() {
                Ok(accepted) => accepted,
                Err(error) if is_retry(&error) => break,
                Err(error) if is_lack(&error) => {
                    self.lacking = Some(now + LOOK);
                    break;
                }
                // The client was gone before it was accepted.
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => continue,
                Err(error) => return Err(error),
            };
            let connection = Connection {
                stream,
                session: (self.open)(),
                moved: now,
                goes_on: false,
            };
            self.connections.insert(place, connection);
            // What came before it was watched makes no edge.
            self.turn(place, now, false);
        }
        Ok(())
    }

    /// The next connection, watched, and what it is known as.
    fn accept_one(&mut self) -> io::Result<(C, u64)> {
        let stream = (self.accept)()?;
        let place = stream.as_fd().as_raw_fd() as u64;
        let events = EpollFlags::EPOLLIN | EpollFlags::EPOLLOUT | EpollFlags::EPOLLRDHUP;
        let events = events | EpollFlags::EPOLLET;
        self.epoll.add(&stream, EpollEvent::new(events, place))?;
        Ok((stream, place))
    }

    fn turn(&mut self, place: u64, now: Instant, silent: bool) {
        let Some(connection) = self.connections.get_mut(&place) else {
            return;
        };
        let before = connection.session.done();
        let progress = connection.session.turn(&mut connection.stream, silent);
        if connection.session.done() != before {
            connection.moved = now;
        }
        match progress {
            Progress::Waits => {}
            // Once, however much has come since: others have their turns.
            Progress::Yields if connection.goes_on => {}
            Progress::Yields => {
                connection.goes_on = true;
                self.again.push_back(place);
            }
            Progress::Ended => {
                if connection.goes_on {
                    // The next connection may have its descriptor.
                    self.again.retain(|&one| one != place);
                }
                // Closing its descriptor takes it out of the epoll instance.
                self.connections.remove(&place);
            }
        }
    }

    /// Tells those that were silent for too long.
    fn sweep(&mut self, now: Instant) {
        if now.duration_since(self.swept) < SWEEP {
            return;
        }
        self.swept = now;
        let all = self.connections.iter();
        let patience = patience(all.len() >= self.most);
        let is_silent =
            |connection: &Connection<C, S>| now.duration_since(connection.moved) >= patience;
        let silent = all.filter(|(_, connection)| is_silent(connection));
        let silent: Vec<u64> = silent.map(|(place, _)| *place).collect();
        for place in silent {
            self.turn(place, now, true);
        }
    }

    /// The backlog is looked at as long as there is a place, and a descriptor.
    fn listen(&mut self, now: Instant) -> io::Result<()> {
        self.lacking = self.lacking.filter(|end| now < *end);
        let accepting = self.lacking.is_none() && self.connections.len() < self.most;
        if accepting != self.accepting {
            let events = match accepting {
                true => EpollFlags::EPOLLIN,
                false => EpollFlags::empty(),
            };
            let mut event = EpollEvent::new(events, LISTENER);
            self.epoll.modify(self.listener, &mut event)?;
            self.accepting = accepting;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::os::unix::net::UnixStream;

    use super::*;

    impl Stream for UnixStream {
        fn end_sending(&self) -> io::Result<()> {
            self.shutdown(Shutdown::Write)
        }
    }

    /// Each line is a request.
    #[derive(Default)]
    struct Lines(u64);

    impl Session for Lines {
        fn turn(&mut self, stream: &mut impl Stream, silent: bool) -> Progress {
            let mut byte = [0];
            while stream.read(&mut byte).is_ok_and(|length| length > 0) {
                self.0 += u64::from(byte == *b"\n");
            }
            match silent {
                true => Progress::Ended,
                false => Progress::Waits,
            }
        }

        fn done(&self) -> u64 {
            self.0
        }
    }

    /// Never done, and counts its turns.
    struct Busy<'a>(&'a Cell<u32>);

    impl Session for Busy<'_> {
        fn turn(&mut self, _: &mut impl Stream, _: bool) -> Progress {
            self.0.set(self.0.get() + 1);
            Progress::Yields
        }

        fn done(&self) -> u64 {
            0
        }
    }

    /// Each event while it had still to go on gave it one turn more in all rounds that followed.
    #[test]
    fn who_could_go_on_has_one_turn_in_a_round_however_much_comes() {
        let (listener, _other) = UnixStream::pair().unwrap();
        let mut all = vec![UnixStream::pair().unwrap().0];
        let accept = || all.pop().ok_or(io::ErrorKind::WouldBlock.into());
        let turns = Cell::new(0);
        let mut events = Events::new(&listener, 1, accept, || Busy(&turns)).unwrap();
        let now = Instant::now();
        events.accept(now).unwrap();
        let place = *events.connections.keys().next().unwrap();
        for _ in 0..5 {
            events.turn(place, now, false);
        }
        for _ in 0..3 {
            turns.set(0);
            events.go_on(now);
            assert_eq!(turns.get(), 1);
        }
    }

    /// Of 512 places such clients took all, and for 30 s whoever asked nothing.
    #[test]
    fn a_byte_now_and_then_keeps_no_place_the_less_where_all_are_taken() {
        let cases = [("ab", false), ("a\n", true)];
        for (most, idle) in [(1, patience(true)), (2, patience(false))] {
            for (sent, stays) in cases {
                let (ours, mut theirs) = UnixStream::pair().unwrap();
                ours.set_nonblocking(true).unwrap();
                let (listener, _other) = UnixStream::pair().unwrap();
                let mut all = vec![ours];
                let accept = || all.pop().ok_or(io::ErrorKind::WouldBlock.into());
                let mut events = Events::new(&listener, most, accept, Lines::default).unwrap();
                let begin = Instant::now();
                events.accept(begin).unwrap();
                let place = *events.connections.keys().next().unwrap();
                theirs.write_all(sent.as_bytes()).unwrap();
                events.turn(place, begin + idle - SWEEP, false);
                events.sweep(begin + idle - SWEEP);
                assert_eq!(events.connections.len(), 1, "{sent:?} of {most}");
                events.sweep(begin + idle);
                let left = events.connections.len();
                assert_eq!(left, usize::from(stays), "{sent:?} of {most}");
                events.sweep(begin + idle + idle);
                assert!(events.connections.is_empty(), "{sent:?} of {most}");
            }
        }
    }
}
