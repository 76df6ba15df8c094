//! One connection of a client: requests in, answers out, as far as it goes without waiting.

use std::io::Read;
use std::time::SystemTime;

use super::super::events::{Progress, Session, Stream};
use super::super::is_retry;
use super::Site;
use super::answer::{Answer, Content, Status};
use super::request::{HEAD_BYTES_MAX, parse};

/// Answers, or pieces of one, before others have a turn.
const STEPS: usize = 16;
/// What a connection holds of a file at a time.
const PIECE_BYTES: usize = 64 << 10;
/// What one look at a connection takes.
const READ_BYTES: usize = 4096;
/// What an idle connection may keep of its buffers.
const KEPT_BYTES: usize = 8 << 10;
/// More to be read past than a client can send: where its request ends is not known.
const UNKNOWN_BYTES: u64 = u64::MAX;

/// A connection's state.
pub(super) struct HttpSession<'a> {
    site: &'a Site<'a>,
    received: Vec<u8>,
    /// Content of a request that is still to be read past.
    unread: u64,
    outgoing: Vec<u8>,
    sent: usize,
    /// The answer that is on its way.
    answering: Option<Answering>,
    /// The last answer is sent, and the client has still more to say. A close now would be a
    /// reset, which can overtake the answer (RFC 9112, section 9.6).
    lingers: bool,
    /// Heads and contents of requests that were whole, and bytes of answers that were sent.
    done: u64,
}

struct Answering {
    /// What follows once `outgoing` is sent.
    rest: Content,
    closes: bool,
}

/// Why a connection goes no further.
enum Stop {
    Waits,
    Ended,
}

impl<'a> HttpSession<'a> {
    pub(super) fn new(site: &'a Site<'a>) -> Self {
        Self {
            site,
            received: Vec::new(),
            unread: 0,
            outgoing: Vec::new(),
            sent: 0,
            answering: None,
            lingers: false,
            done: 0,
        }
    }

    /// An answer or a piece of one, and what must come before.
    fn step(&mut self, stream: &mut impl Stream) -> Result<(), Stop> {
        if self.answering.is_some() {
            return self.send(stream);
        }
        if self.lingers {
            self.received.clear();
            return self.read(stream);
        }
        let buffered = (self.unread as usize).min(self.received.len());
        self.received.drain(..buffered);
        self.unread -= buffered as u64;
        if self.unread > 0 {
            return self.read(stream);
        }
        self.done += u64::from(buffered > 0);
        match parse(&self.received) {
            Ok(Some((request, bytes))) => {
                self.received.drain(..bytes);
                self.done += 1;
                self.unread = request.content_bytes;
                self.site.work.run();
                let content = usize::try_from(request.content_bytes).unwrap_or(usize::MAX);
                self.answer(self.site.answer(&request), bytes.saturating_add(content));
                Ok(())
            }
            Ok(None) if self.received.len() < HEAD_BYTES_MAX => self.read(stream),
            refused => {
                self.refuse(refused.err().unwrap_or(Status::HeadTooLarge));
                Ok(())
            }
        }
    }

    fn refuse(&mut self, status: Status) {
        self.unread = UNKNOWN_BYTES;
        self.answer(Answer::error(status).closing(), self.received.len());
    }

    /// Answers a request of so many bytes.
    fn answer(&mut self, answer: Answer, bytes: usize) {
        self.site.counters.count_received(bytes);
        self.outgoing.clear();
        self.sent = 0;
        let closes = answer.closes();
        let rest = answer.write(&mut self.outgoing, SystemTime::now());
        self.answering = Some(Answering { rest, closes });
    }

    fn send(&mut self, stream: &mut impl Stream) -> Result<(), Stop> {
        while self.sent < self.outgoing.len() {
            match stream.write(&self.outgoing[self.sent..]) {
                Ok(0) => return Err(self.lost()),
                Ok(length) => {
                    self.sent += length;
                    self.done += length as u64;
                }
                Err(error) if is_retry(&error) => return Err(Stop::Waits),
                Err(_) => return Err(self.lost()),
            }
        }
        self.outgoing.clear();
        self.sent = 0;
        let Some(answering) = &mut self.answering else {
            return Ok(());
        };
        match answering.rest.take(&mut self.outgoing, PIECE_BYTES) {
            Ok(true) => return Ok(()),
            Ok(false) => {}
            // Its length was told, so only an end can tell that it is not all.
            Err(_) => return Err(self.lost()),
        }
        let closes = answering.closes;
        self.answering = None;
        self.site.counters.count_sent(true);
        if !closes {
            return Ok(());
        }
        self.lingers = self.has_more_to_say(stream);
        match self.lingers && stream.end_sending().is_ok() {
            true => Ok(()),
            false => Err(Stop::Ended),
        }
    }

    /// Whether the client has said, or still says, more than was to be answered: content of an unknown
    /// length, or further requests.
    fn has_more_to_say(&mut self, stream: &mut impl Read) -> bool {
        self.unread != self.received.len() as u64 || self.read(stream).is_ok()
    }

    /// The client went away, or its file did.
    fn lost(&mut self) -> Stop {
        self.answering = None;
        self.site.counters.count_sent(false);
        Stop::Ended
    }

    fn read(&mut self, stream: &mut impl Read) -> Result<(), Stop> {
        let mut chunk = [0; READ_BYTES];
        match stream.read(&mut chunk) {
            Ok(0) => Err(Stop::Ended),
            Ok(length) => {
                self.received.extend_from_slice(&chunk[..length]);
                Ok(())
            }
            Err(error) if is_retry(&error) => Err(Stop::Waits),
            Err(_) => Err(Stop::Ended),
        }
    }

    /// Nothing is asked and nothing on its way.
    fn is_idle(&self) -> bool {
        self.received.is_empty() && self.answering.is_none() && self.unread == 0
    }

    fn let_go(&mut self) {
        for buffer in [&mut self.received, &mut self.outgoing] {
            if buffer.is_empty() && buffer.capacity() > KEPT_BYTES {
                *buffer = Vec::new();
            }
        }
    }
}

impl Session for HttpSession<'_> {
    fn turn(&mut self, stream: &mut impl Stream, silent: bool) -> Progress {
        if silent {
            if self.is_idle() || self.answering.is_some() || self.lingers {
                return Progress::Ended;
            }
            // Who was silent for so long is not waited for once more.
            self.unread = 0;
            let bytes = self.received.len();
            self.received.clear();
            self.answer(Answer::error(Status::Timeout).closing(), bytes);
        }
        for _ in 0..STEPS {
            match self.step(stream) {
                Ok(()) => {}
                Err(Stop::Ended) => return Progress::Ended,
                Err(Stop::Waits) => {
                    self.let_go();
                    return Progress::Waits;
                }
            }
        }
        Progress::Yields
    }

    fn done(&self) -> u64 {
        self.done
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::io::{self, Write};
    use std::net::{Shutdown, TcpListener, TcpStream};
    use std::time::Duration;

    use nix::sys::socket::{setsockopt, sockopt};

    use super::super::super::counters::SharedCounters;
    use super::*;
    use crate::spin::Work;

    /// A client that sends pieces, and takes so many bytes at a time.
    struct Client {
        pieces: VecDeque<Vec<u8>>,
        got: Vec<u8>,
        takes: usize,
    }

    impl Read for Client {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            let piece = self.pieces.pop_front();
            let piece = piece.ok_or(io::ErrorKind::WouldBlock)?;
            buffer[..piece.len()].copy_from_slice(&piece);
            Ok(piece.len())
        }
    }

    impl Write for Client {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let length = bytes.len().min(std::mem::take(&mut self.takes));
            if length == 0 {
                return Err(io::ErrorKind::WouldBlock.into());
            }
            self.got.extend_from_slice(&bytes[..length]);
            Ok(length)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl Stream for Client {
        fn end_sending(&self) -> io::Result<()> {
            Ok(())
        }
    }

    fn with_site(test: impl FnOnce(&Site<'_>)) {
        let directory = tempfile::tempdir().unwrap();
        let large = vec![b'x'; 3 * PIECE_BYTES + 7];
        std::fs::write(directory.path().join("large"), large).unwrap();
        std::fs::write(directory.path().join("small"), "small").unwrap();
        let counters = SharedCounters::anonymous().unwrap();
        let work = Work::calibrate(Duration::ZERO);
        let site = Site::open(directory.path(), work, &counters).unwrap();
        test(&site);
    }

    #[test]
    fn requests_in_pieces_are_answered_in_pieces() {
        with_site(|site| {
            let mut session = HttpSession::new(site);
            let asked = b"POST /small HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabc\
                GET /large HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
            let mut client = Client {
                pieces: asked.chunks(10).map(<[u8]>::to_vec).collect(),
                got: Vec::new(),
                takes: 0,
            };
            let mut turns = 0;
            while session.turn(&mut client, false) != Progress::Ended {
                client.takes = 1000;
                assert!(session.outgoing.capacity() <= 2 * PIECE_BYTES);
                turns += 1;
            }
            let client_bytes = client.got.len() as u64;
            let got = String::from_utf8(client.got).unwrap();
            assert!(got.starts_with("HTTP/1.1 405 "), "{got}");
            let (_, second) = got[1..].split_once("HTTP/1.1 200 OK").unwrap();
            let (_, content) = second.split_once("\r\n\r\n").unwrap();
            assert_eq!(content.len(), 3 * PIECE_BYTES + 7);
            assert!(turns > 3 * PIECE_BYTES / 1000, "{turns}");
            assert_eq!(site.counters.read().sent, 2);
            // Two heads, a content, and the answers.
            assert_eq!(session.done(), 3 + client_bytes);
        });
    }

    #[test]
    fn a_client_that_takes_everything_lets_others_have_turns() {
        with_site(|site| {
            let mut session = HttpSession::new(site);
            let asked = b"GET /small HTTP/1.1\r\nHost: x\r\n\r\n".repeat(STEPS);
            struct Greedy(Client);
            impl Read for Greedy {
                fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
                    self.0.read(buffer)
                }
            }
            impl Write for Greedy {
                fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
                    Ok(bytes.len())
                }
                fn flush(&mut self) -> io::Result<()> {
                    Ok(())
                }
            }
            impl Stream for Greedy {
                fn end_sending(&self) -> io::Result<()> {
                    Ok(())
                }
            }
            let mut client = Greedy(Client {
                pieces: [asked].into(),
                got: Vec::new(),
                takes: 0,
            });
            assert_eq!(session.turn(&mut client, false), Progress::Yields);
            while session.turn(&mut client, false) == Progress::Yields {}
            assert_eq!(site.counters.read().sent, STEPS as u64);
        });
    }

    /// The connection was reset under such a client, and what it was told could be lost.
    #[test]
    fn a_client_that_still_sends_is_told_why_it_is_refused() {
        with_site(|site| {
            let large = format!("Content-Length: {}\r\n\r\n", 1 << 20);
            let closing = "Connection: close\r\nContent-Length: 60000\r\n\r\n".to_owned();
            let endless = format!("X: {}", "x".repeat(HEAD_BYTES_MAX));
            for (head, status) in [(large, "413"), (closing, "405"), (endless, "431")] {
                let listener = TcpListener::bind("127.0.0.1:0").unwrap();
                let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
                let (mut ours, _) = listener.accept().unwrap();
                ours.set_read_timeout(Some(Duration::from_millis(100)))
                    .unwrap();
                let mut session = HttpSession::new(site);
                let head = format!("POST / HTTP/1.1\r\nHost: x\r\n{head}");
                client.write_all(head.as_bytes()).unwrap();
                while !session.lingers {
                    assert_ne!(session.turn(&mut ours, false), Progress::Ended, "{status}");
                }
                let mut told = String::new();
                client.read_to_string(&mut told).unwrap();
                assert!(told.starts_with(&format!("HTTP/1.1 {status} ")), "{told}");
                for _ in 0..2 {
                    client.write_all(&[b'x'; 30_000]).unwrap();
                    assert_ne!(session.turn(&mut ours, false), Progress::Ended, "{status}");
                }
                assert!(session.received.capacity() <= KEPT_BYTES, "{status}");
                client.shutdown(Shutdown::Write).unwrap();
                while session.turn(&mut ours, false) != Progress::Ended {}
            }
        });
    }

    /// The close was a reset, and took what the client had not read yet with it.
    #[test]
    fn a_client_that_said_more_than_was_asked_for_gets_all_of_the_answer() {
        with_site(|site| {
            for (more, why) in [
                ("x".repeat(60_000), "content without a length"),
                ("GET /small HTTP/1.0\r\n\r\n".repeat(500), "more requests"),
            ] {
                let listener = TcpListener::bind("127.0.0.1:0").unwrap();
                let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
                setsockopt(&client, sockopt::RcvBuf, &(32 << 10)).unwrap();
                let (mut ours, _) = listener.accept().unwrap();
                ours.set_read_timeout(Some(Duration::from_millis(100)))
                    .unwrap();
                let mut session = HttpSession::new(site);
                let asked = format!("GET /large HTTP/1.0\r\n\r\n{more}");
                client.write_all(asked.as_bytes()).unwrap();
                std::thread::scope(|scope| {
                    let reader = scope.spawn(|| {
                        let mut told = Vec::new();
                        std::thread::sleep(Duration::from_millis(50));
                        let read = client.read_to_end(&mut told);
                        let _ = client.shutdown(Shutdown::Both);
                        (read.map_err(|error| error.kind()), told)
                    });
                    while session.turn(&mut ours, false) != Progress::Ended {}
                    drop(ours);
                    let (read, told) = reader.join().unwrap();
                    let head = told.windows(4).position(|bytes| bytes == b"\r\n\r\n");
                    let content = told.len() - head.unwrap_or(0) - 4;
                    assert_eq!(read, Ok(told.len()), "{why}");
                    assert_eq!(content, 3 * PIECE_BYTES + 7, "{why}");
                });
            }
        });
    }

    #[test]
    fn silence_ends_a_connection_and_half_a_request_is_told() {
        with_site(|site| {
            let client = |piece: &[u8]| Client {
                pieces: [piece.to_vec()].into(),
                got: Vec::new(),
                takes: 1000,
            };
            let mut idle = HttpSession::new(site);
            assert_eq!(idle.turn(&mut client(b""), true), Progress::Ended);
            let mut slow = HttpSession::new(site);
            let mut stream = client(b"GET / HTTP/1.1\r\n");
            assert_eq!(slow.turn(&mut stream, false), Progress::Waits);
            assert_eq!(slow.done(), 0, "a piece of a request");
            assert_eq!(slow.turn(&mut stream, true), Progress::Ended);
            assert!(stream.got.starts_with(b"HTTP/1.1 408 "));
        });
    }
}
