//! Answers: a status, headers, and content.

use std::fs::File;
use std::io::{self, Read, Write};
use std::time::SystemTime;

/// The statuses that this server has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Status {
    Ok,
    MovedPermanently,
    BadRequest,
    NotFound,
    MethodNotAllowed,
    Timeout,
    ContentTooLarge,
    HeadTooLarge,
    NotImplemented,
    Unavailable,
    VersionNotSupported,
}

impl Status {
    /// Number and name (RFC 9110, 15).
    const fn line(self) -> &'static str {
        match self {
            Self::Ok => "200 OK",
            Self::MovedPermanently => "301 Moved Permanently",
            Self::BadRequest => "400 Bad Request",
            Self::NotFound => "404 Not Found",
            Self::MethodNotAllowed => "405 Method Not Allowed",
            Self::Timeout => "408 Request Timeout",
            Self::ContentTooLarge => "413 Content Too Large",
            Self::HeadTooLarge => "431 Request Header Fields Too Large",
            Self::NotImplemented => "501 Not Implemented",
            Self::Unavailable => "503 Service Unavailable",
            Self::VersionNotSupported => "505 HTTP Version Not Supported",
        }
    }
}

/// What is behind a head.
#[derive(Debug)]
pub(super) enum Content {
    Bytes(Vec<u8>),
    /// So many bytes of a file, which are read as they are sent.
    File {
        file: File,
        bytes: u64,
    },
}

impl Content {
    fn bytes(&self) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes.len() as u64,
            Self::File { bytes, .. } => *bytes,
        }
    }

    /// Moves up to about `most` bytes to the end of `to`. False: there are none left.
    ///
    /// # Errors
    ///
    /// The file cannot be read, or is shorter than it was.
    pub(super) fn take(&mut self, to: &mut Vec<u8>, most: usize) -> io::Result<bool> {
        match self {
            Self::Bytes(content) => {
                let some = !content.is_empty();
                to.append(content);
                Ok(some)
            }
            Self::File { bytes: 0, .. } => Ok(false),
            Self::File { file, bytes } => {
                let before = to.len();
                let piece = (most as u64).min(*bytes) as usize;
                to.resize(before + piece, 0);
                if let Err(error) = file.read_exact(&mut to[before..]) {
                    to.truncate(before);
                    return Err(error);
                }
                *bytes -= piece as u64;
                Ok(true)
            }
        }
    }
}

/// Content up to this goes with its head.
const TOGETHER_BYTES: usize = 16 << 10;

/// An answer to be sent.
#[derive(Debug)]
pub(super) struct Answer {
    status: Status,
    kind: &'static str,
    content: Content,
    /// Where it is instead.
    location: Option<String>,
    head_only: bool,
    closing: bool,
}

impl Answer {
    pub(super) fn new(content: Content, kind: &'static str) -> Self {
        Self {
            status: Status::Ok,
            kind,
            content,
            location: None,
            head_only: false,
            closing: false,
        }
    }

    pub(super) fn page(content: Vec<u8>, kind: &'static str) -> Self {
        Self::new(Content::Bytes(content), kind)
    }

    pub(super) fn file(file: File, bytes: u64, kind: &'static str) -> Self {
        Self::new(Content::File { file, bytes }, kind)
    }

    pub(super) fn error(status: Status) -> Self {
        let content = format!("{}\n", status.line()).into_bytes();
        Self {
            status,
            ..Self::page(content, "text/plain; charset=utf-8")
        }
    }

    /// What was asked for is at `location`, a reference to a URI (RFC 9110, 10.2.2).
    pub(super) fn moved(location: String) -> Self {
        Self {
            location: Some(location),
            ..Self::error(Status::MovedPermanently)
        }
    }

    /// As an answer to HEAD.
    pub(super) fn without_content(self) -> Self {
        Self {
            head_only: true,
            ..self
        }
    }

    /// The last one of its connection.
    pub(super) fn closing(self) -> Self {
        Self {
            closing: true,
            ..self
        }
    }

    pub(super) fn closes(&self) -> bool {
        self.closing
    }

    pub(super) fn content_bytes(&self) -> usize {
        self.content.bytes() as usize
    }

    /// Writes the head, and as much content as goes with it; returns the rest.
    pub(super) fn write(mut self, to: &mut Vec<u8>, now: SystemTime) -> Content {
        // Writing to memory cannot fail.
        let _ = write!(
            to,
            "HTTP/1.1 {}\r\nDate: {}\r\nServer: plimsoll\r\nContent-Type: {}\r\nContent-Length: {}\r\n",
            self.status.line(),
            httpdate::fmt_http_date(now),
            self.kind,
            self.content.bytes(),
        );
        if self.status == Status::MethodNotAllowed {
            to.extend_from_slice(b"Allow: GET, HEAD\r\n");
        }
        if let Some(location) = &self.location {
            let _ = write!(to, "Location: {location}\r\n");
        }
        // Also good for clients of HTTP/1.0, who asked for it.
        let connection = if self.closing { "close" } else { "keep-alive" };
        let _ = write!(to, "Connection: {connection}\r\n\r\n");
        if self.head_only {
            return Content::Bytes(Vec::new());
        }
        // What cannot be read is found out with the rest.
        let _ = self.content.take(to, TOGETHER_BYTES);
        self.content
    }

    /// Writes all of it.
    pub(super) fn send(self, to: &mut impl Write, now: SystemTime) -> io::Result<()> {
        let mut bytes = Vec::with_capacity(256 + TOGETHER_BYTES.min(self.content_bytes()));
        let mut rest = self.write(&mut bytes, now);
        while rest.take(&mut bytes, usize::MAX)? {}
        to.write_all(&bytes)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Seek;

    use super::*;

    fn sent(answer: Answer) -> String {
        let mut bytes = Vec::new();
        answer.send(&mut bytes, SystemTime::UNIX_EPOCH).unwrap();
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn an_answer_has_its_length_and_its_date() {
        let answer = || Answer::page(b"hello".to_vec(), "text/plain");
        assert_eq!(
            sent(answer()),
            "HTTP/1.1 200 OK\r\nDate: Thu, 01 Jan 1970 00:00:00 GMT\r\nServer: plimsoll\r\n\
             Content-Type: text/plain\r\nContent-Length: 5\r\nConnection: keep-alive\r\n\r\nhello"
        );
        let head = sent(answer().without_content());
        assert!(head.contains("Content-Length: 5") && head.ends_with("\r\n\r\n"));
        let refused = sent(Answer::error(Status::MethodNotAllowed).closing());
        assert!(refused.contains("Allow: GET, HEAD") && refused.contains("Connection: close"));
    }

    /// Zeros had followed the head, as if they were the file.
    #[test]
    fn nothing_is_sent_in_place_of_what_cannot_be_read() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(b"short").unwrap();
        file.rewind().unwrap();
        let answer = Answer::file(file, 4096, "text/plain");
        let mut bytes = Vec::new();
        let mut rest = answer.write(&mut bytes, SystemTime::UNIX_EPOCH);
        let text = String::from_utf8(bytes.clone()).unwrap();
        assert!(text.ends_with("\r\n\r\n"), "{text:?}");
        let head = bytes.len();
        rest.take(&mut bytes, 4096).unwrap_err();
        assert_eq!(bytes.len(), head);
    }
}
