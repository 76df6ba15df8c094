//! HTTP for one page: `GET /metrics` (or `HEAD`), one answer per connection.
//!
//! Whoever reaches the address can connect, so everything is bounded: so many
//! connections at a time, so much time for each, so long a question. More wait in the
//! kernel's queue, and beyond that are refused there. While some wait, a connection that has
//! not asked its question gives way soon. Nothing here can slow packets
//! down or use up locked memory.

use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use plimsoll_kernel::error::CallError;
use plimsoll_kernel::privileges::{answer_soon, start_thread};

/// Connections served at a time. A Prometheus server has one.
const CONNECTIONS_MAX: usize = 4;
/// A connection is closed after this long, whatever it was doing.
const CONNECTION_TIME: Duration = Duration::from_secs(5);
/// Who has asked nothing for this long gives way to who waits.
const SILENCE: Duration = Duration::from_millis(100);
/// Longest head of a request, bytes.
const HEAD_MAX: usize = 8 << 10;
/// Headers of a request at most.
const HEADERS_MAX: usize = 64;
/// Between two attempts to take a connection when there is no room for another.
const PAUSE: Duration = Duration::from_millis(100);

/// A question for a page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Question {
    /// Without what follows a `?`.
    pub(crate) path: String,
    /// The `Accept` header, empty without one.
    pub(crate) accept: String,
    /// Only the answer's head is asked for.
    pub(crate) is_head: bool,
}

/// A page and its type; `None`: there is none at this path.
pub(crate) type Page = Option<(&'static str, String)>;

/// Answers questions at `listener` until the process ends.
pub(crate) fn serve(
    listener: TcpListener,
    page: impl Fn(&Question) -> Page + Send + Sync + 'static,
) -> Result<(), CallError> {
    serve_within(CONNECTION_TIME, listener, page)
}

fn serve_within(
    time: Duration,
    listener: TcpListener,
    page: impl Fn(&Question) -> Page + Send + Sync + 'static,
) -> Result<(), CallError> {
    let shared = Arc::new((listener, page));
    for _ in 0..CONNECTIONS_MAX {
        let shared = Arc::clone(&shared);
        start_thread(move || {
            answer_soon();
            let (listener, page) = &*shared;
            loop {
                match listener.accept() {
                    // A client that goes away is nobody's error.
                    Ok((stream, _)) => drop(answer(stream, listener, time, page)),
                    // Too many open files, for instance: others may close theirs.
                    Err(_) => std::thread::sleep(PAUSE),
                }
            }
        })?;
    }
    Ok(())
}

fn answer(
    stream: TcpStream,
    others: &TcpListener,
    time: Duration,
    page: &impl Fn(&Question) -> Page,
) -> io::Result<()> {
    let end = Instant::now() + time;
    let mut connection = Connection { stream, end };
    let question = connection.question(others)?;
    let (status, kind, text) = match &question {
        Some(question) => match page(question) {
            Some((kind, text)) => ("200 OK", kind, text),
            None => (
                "404 Not Found",
                "text/plain; charset=utf-8",
                "metrics are at /metrics\n".to_owned(),
            ),
        },
        None => (
            "400 Bad Request",
            "text/plain; charset=utf-8",
            "this answers GET and HEAD requests of HTTP/1\n".to_owned(),
        ),
    };
    let length = text.len();
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n"
    );
    connection.write_all(head.as_bytes())?;
    match question.is_some_and(|question| question.is_head) {
        true => Ok(()),
        false => connection.write_all(text.as_bytes()),
    }
}

/// A connection with an end.
struct Connection {
    stream: TcpStream,
    end: Instant,
}

impl Connection {
    /// Time until the end, as a timeout of the socket.
    fn left(&self) -> io::Result<Option<Duration>> {
        let left = self.end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        Ok(Some(left))
    }

    /// Waits until something is said. An error if that takes too long: all the time there is, or
    /// `patience` if `others` wait for this connection's place.
    fn await_bytes(&self, others: &TcpListener, patience: Duration) -> io::Result<()> {
        let own = || readable(self.stream.as_fd());
        let left = self.left()?.unwrap_or_default();
        if poll(&mut [own()], timeout(left.min(patience)))? > 0 {
            return Ok(());
        }
        let mut polled = [own(), readable(others.as_fd())];
        poll(&mut polled, timeout(self.left()?.unwrap_or_default()))?;
        match polled[0].any() {
            Some(true) => Ok(()),
            _ => Err(io::ErrorKind::TimedOut.into()),
        }
    }

    /// Reads the head of a request; `None` if it is none, or too long. While `others` wait, it
    /// must have come within [`SILENCE`].
    fn question(&mut self, others: &TcpListener) -> io::Result<Option<Question>> {
        let patient_until = Instant::now() + SILENCE;
        let mut head = Vec::new();
        let mut part = [0; 1024];
        loop {
            let patience = patient_until.saturating_duration_since(Instant::now());
            let waiting = &mut [readable(others.as_fd())];
            if patience.is_zero() && !head.is_empty() && poll(waiting, PollTimeout::ZERO)? > 0 {
                return Err(io::ErrorKind::TimedOut.into());
            }
            self.await_bytes(others, patience)?;
            self.stream.set_read_timeout(self.left()?)?;
            let length = self.stream.read(&mut part)?;
            head.extend_from_slice(&part[..length]);
            match parse(&head) {
                Parsed::Question(question) => return Ok(Some(question)),
                Parsed::Incomplete if length > 0 && head.len() < HEAD_MAX => {}
                Parsed::Incomplete | Parsed::Wrong => return Ok(None),
            }
        }
    }

    fn write_all(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            self.stream.set_write_timeout(self.left()?)?;
            match self.stream.write(bytes)? {
                0 => return Err(io::ErrorKind::WriteZero.into()),
                written => bytes = &bytes[written..],
            }
        }
        Ok(())
    }
}

fn readable(fd: BorrowedFd<'_>) -> PollFd<'_> {
    PollFd::new(fd, PollFlags::POLLIN)
}

fn timeout(time: Duration) -> PollTimeout {
    PollTimeout::try_from(time).unwrap_or(PollTimeout::MAX)
}

/// What the first bytes of a connection are.
#[derive(Debug, PartialEq, Eq)]
enum Parsed {
    Question(Question),
    /// More of it may come.
    Incomplete,
    Wrong,
}

fn parse(head: &[u8]) -> Parsed {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut request = httparse::Request::new(&mut headers);
    match request.parse(head) {
        Ok(status) if status.is_partial() => Parsed::Incomplete,
        Ok(_) if matches!(request.method, Some("GET" | "HEAD")) => {
            let path = request.path.unwrap_or_default();
            let accept = request.headers.iter();
            let accept = accept.filter(|header| header.name.eq_ignore_ascii_case("accept"));
            let accept: Vec<_> = accept
                .map(|header| String::from_utf8_lossy(header.value))
                .collect();
            Parsed::Question(Question {
                path: path.split('?').next().unwrap_or_default().to_owned(),
                accept: accept.join(", "),
                is_head: request.method == Some("HEAD"),
            })
        }
        Ok(_) | Err(_) => Parsed::Wrong,
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use proptest::collection::vec;
    use proptest::{prop_assert, proptest};

    use super::*;

    proptest! {
        #[test]
        fn any_bytes_are_a_question_or_none(bytes in vec(proptest::num::u8::ANY, 0..300)) {
            if let Parsed::Question(question) = parse(&bytes) {
                let starts = [&b"GET "[..], b"HEAD ", b"\r\n", b"\n"];
                prop_assert!(starts.iter().any(|start| bytes.starts_with(start)));
                prop_assert!(!question.path.contains('?'));
            }
        }
    }

    const TIME: Duration = Duration::from_millis(500);

    /// A server whose page says the path, at a port of its own.
    fn server() -> SocketAddr {
        server_within(TIME)
    }

    fn server_within(time: Duration) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let page = |question: &Question| {
            let text = match question.path.as_str() {
                "/long" => "x".repeat(32 << 20),
                path => path.to_owned(),
            };
            (question.path != "/none").then_some(("text/plain", text))
        };
        serve_within(time, listener, page).unwrap();
        address
    }

    fn ask(address: SocketAddr, question: &[u8]) -> String {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(question).unwrap();
        let mut answer = String::new();
        // A server that has heard enough may close while more is on its way.
        let _ = stream.read_to_string(&mut answer);
        answer
    }

    #[test]
    fn questions_are_answered_and_others_refused() {
        let address = server();
        let answer = ask(address, b"GET /a?b HTTP/1.1\r\nHost: c\r\n\r\n");
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
        assert!(answer.ends_with("\r\n\r\n/a"), "{answer}");
        // As for GET, but for the page.
        let same = ask(address, b"HEAD /a HTTP/1.1\r\nHost: c\r\n\r\n");
        assert_eq!(same, answer.strip_suffix("/a").unwrap());
        for (question, status) in [
            ("GET /none HTTP/1.0\r\n\r\n", "404"),
            ("POST /a HTTP/1.1\r\n\r\n", "400"),
            ("what\r\n\r\n", "400"),
        ] {
            let answer = ask(address, question.as_bytes());
            assert!(
                answer.starts_with(&format!("HTTP/1.1 {status} ")),
                "{answer}"
            );
        }
        let long = format!("GET / HTTP/1.1\r\nA: {}", "b".repeat(2 * HEAD_MAX));
        let answer = ask(address, long.as_bytes());
        assert!(
            answer.is_empty() || answer.starts_with("HTTP/1.1 400 "),
            "{answer}"
        );
    }

    /// Who does not take the answer holds a place only so long, and there are only so many.
    #[test]
    fn slow_readers_hold_the_others_up_for_a_bounded_time() {
        let address = server();
        let start = Instant::now();
        let slow = || {
            let mut stream = TcpStream::connect(address).unwrap();
            stream.write_all(b"GET /long HTTP/1.1\r\n\r\n").unwrap();
            stream
        };
        let slow: Vec<_> = (0..CONNECTIONS_MAX).map(|_| slow()).collect();
        let answer = ask(address, b"GET /a HTTP/1.1\r\n\r\n");
        assert!(answer.ends_with("/a"), "{answer}");
        let waited = start.elapsed();
        assert!(waited >= TIME, "all places were taken: {waited:?}");
        drop(slow);
    }

    /// A hundred that said nothing held a scrape up for minutes, and then those that said one byte.
    #[test]
    fn clients_that_ask_nothing_give_way_to_who_waits() {
        let address = server_within(Duration::from_secs(60));
        let silent: Vec<_> = (0..10 * CONNECTIONS_MAX)
            .map(|n| {
                let mut client = TcpStream::connect(address).unwrap();
                client.write_all(&b"G"[..n % 2]).unwrap();
                client
            })
            .collect();
        let start = Instant::now();
        let answer = ask(address, b"GET /a HTTP/1.1\r\n\r\n");
        assert!(answer.ends_with("/a"), "{answer}");
        let waited = start.elapsed();
        assert!(waited < Duration::from_secs(20), "{waited:?}");
        drop(silent);
        // Where nobody waits it has time.
        let mut late = TcpStream::connect(address).unwrap();
        std::thread::sleep(3 * SILENCE);
        late.write_all(b"GET /b HTTP/1.1\r\n\r\n").unwrap();
        let mut answer = String::new();
        late.read_to_string(&mut answer).unwrap();
        assert!(answer.ends_with("/b"), "{answer}");
    }
}
