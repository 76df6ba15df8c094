//! A client with one persistent HTTP connection, which takes the time of each answer:
//! from the request's writing to the content's last byte.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::ops::Range;
use std::time::{Duration, Instant};

use crate::{Error, Host};

/// The longest head of an answer.
const HEAD_BYTES_MAX: usize = 16 << 10;
const HEADERS_MAX: usize = 32;
const BUFFER_BYTES: usize = 256 << 10;

/// The connection.
#[derive(Debug)]
pub struct Fetcher {
    stream: TcpStream,
    server: SocketAddr,
    buffer: Vec<u8>,
}

/// An answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fetched {
    /// Length of its content.
    pub content_bytes: u64,
    /// How long it took.
    pub took: Duration,
}

impl Fetcher {
    /// Connects from `host`. Neither that nor any part of an answer may take longer than
    /// `limit`.
    ///
    /// # Errors
    ///
    /// [`Error::Io`]: no connection comes about.
    pub fn connect(host: &Host, server: SocketAddr, limit: Duration) -> Result<Self, Error> {
        let connect = || {
            let stream = TcpStream::connect_timeout(&server, limit)?;
            stream.set_read_timeout(Some(limit))?;
            stream.set_nodelay(true)?;
            Ok::<_, io::Error>(stream)
        };
        let connected = host.run(connect)?;
        Ok(Self {
            stream: connected.map_err(Error::io(format!("connect to {server}")))?,
            server,
            buffer: vec![0; BUFFER_BYTES],
        })
    }

    /// Asks for the file at `path` and waits for all of it.
    ///
    /// # Errors
    ///
    /// [`Error::Io`]: the connection ended, or was silent for too long, or the answer is no
    /// file of known length.
    pub fn fetch(&mut self, path: &str) -> Result<Fetched, Error> {
        let request = format!("GET {path} HTTP/1.1\r\nHost: {}\r\n\r\n", self.server);
        let began = Instant::now();
        let answered = self.exchange(request.as_bytes());
        let took = began.elapsed();
        let content_bytes =
            answered.map_err(Error::io(format!("fetch {path} from {}", self.server)))?;
        Ok(Fetched {
            content_bytes,
            took,
        })
    }

    fn exchange(&mut self, request: &[u8]) -> io::Result<u64> {
        self.stream.write_all(request)?;
        let mut filled = 0;
        let head = loop {
            filled += self.read(filled..HEAD_BYTES_MAX)?;
            if let Some(head) = Head::parse(&self.buffer[..filled])? {
                break head;
            }
        };
        let whole = head.content_bytes + head.bytes as u64;
        let mut left = whole.saturating_sub(filled as u64);
        while left > 0 {
            let want = self
                .buffer
                .len()
                .min(usize::try_from(left).unwrap_or(usize::MAX));
            left -= self.read(0..want)? as u64;
        }
        Ok(head.content_bytes)
    }

    /// Reads into a part of the buffer: at least a byte.
    fn read(&mut self, part: Range<usize>) -> io::Result<usize> {
        match self.stream.read(&mut self.buffer[part])? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            length => Ok(length),
        }
    }
}

/// What matters of an answer's head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Head {
    bytes: usize,
    content_bytes: u64,
}

impl Head {
    /// Nothing if it is not all there yet.
    fn parse(bytes: &[u8]) -> io::Result<Option<Self>> {
        let wrong = |why: &str| io::Error::new(io::ErrorKind::InvalidData, why);
        let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
        let mut head = httparse::Response::new(&mut headers);
        let length = match head.parse(bytes) {
            Ok(httparse::Status::Complete(length)) => length,
            Ok(httparse::Status::Partial) if bytes.len() < HEAD_BYTES_MAX => return Ok(None),
            Ok(httparse::Status::Partial) => return Err(wrong("the answer's head has no end")),
            Err(error) => return Err(io::Error::new(io::ErrorKind::InvalidData, error)),
        };
        if head.code != Some(200) {
            return Err(wrong("the server has no such file"));
        }
        let mut named = head.headers.iter();
        let named = named.find(|header| header.name.eq_ignore_ascii_case("content-length"));
        let digits = named.and_then(|header| std::str::from_utf8(header.value).ok());
        let content_bytes = digits.and_then(|digits| digits.parse().ok());
        Ok(Some(Self {
            bytes: length,
            content_bytes: content_bytes.ok_or_else(|| wrong("the answer has no length"))?,
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_tells_how_much_follows() {
        let head = b"HTTP/1.1 200 OK\r\nContent-length: 7\r\n\r\n";
        let parsed = Head::parse(&[&head[..], b"content"].concat()).unwrap();
        let expected = Head {
            bytes: head.len(),
            content_bytes: 7,
        };
        assert_eq!(parsed, Some(expected));
        assert_eq!(Head::parse(&head[..20]).unwrap(), None);
    }

    #[test]
    fn other_answers_are_errors() {
        for head in [
            "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n",
            "HTTP/1.1 200 OK\r\n\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
            "nonsense\r\n\r\n",
        ] {
            assert!(Head::parse(head.as_bytes()).is_err(), "{head}");
        }
    }
}
