//! Answers: a status, headers, and content.

use std::io::{self, Write};
use std::time::SystemTime;

/// The statuses that this server has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Status {
    Ok,
    BadRequest,
    NotFound,
    MethodNotAllowed,
    Timeout,
    ContentTooLarge,
    HeadTooLarge,
    NotImplemented,
    VersionNotSupported,
}

impl Status {
    /// Number and name (RFC 9110, 15).
    const fn line(self) -> &'static str {
        match self {
            Self::Ok => "200 OK",
            Self::BadRequest => "400 Bad Request",
            Self::NotFound => "404 Not Found",
            Self::MethodNotAllowed => "405 Method Not Allowed",
            Self::Timeout => "408 Request Timeout",
            Self::ContentTooLarge => "413 Content Too Large",
            Self::HeadTooLarge => "431 Request Header Fields Too Large",
            Self::NotImplemented => "501 Not Implemented",
            Self::VersionNotSupported => "505 HTTP Version Not Supported",
        }
    }
}

/// An answer to be sent.
#[derive(Debug)]
pub(super) struct Answer {
    status: Status,
    kind: &'static str,
    content: Vec<u8>,
    head_only: bool,
    closing: bool,
}

impl Answer {
    pub(super) fn file(content: Vec<u8>, kind: &'static str) -> Self {
        Self {
            status: Status::Ok,
            kind,
            content,
            head_only: false,
            closing: false,
        }
    }

    pub(super) fn error(status: Status) -> Self {
        let content = format!("{}\n", status.line()).into_bytes();
        Self {
            status,
            ..Self::file(content, "text/plain; charset=utf-8")
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
        self.content.len()
    }

    /// Writes all of it with as few calls as possible.
    pub(super) fn send(&self, to: &mut (impl Write + ?Sized), now: SystemTime) -> io::Result<()> {
        let mut bytes = Vec::with_capacity(256 + self.content.len());
        write!(
            bytes,
            "HTTP/1.1 {}\r\nDate: {}\r\nServer: plimsoll\r\nContent-Type: {}\r\nContent-Length: {}\r\n",
            self.status.line(),
            httpdate::fmt_http_date(now),
            self.kind,
            self.content.len(),
        )?;
        if self.status == Status::MethodNotAllowed {
            bytes.extend_from_slice(b"Allow: GET, HEAD\r\n");
        }
        // Also good for clients of HTTP/1.0, who asked for it.
        let connection = if self.closing { "close" } else { "keep-alive" };
        write!(bytes, "Connection: {connection}\r\n\r\n")?;
        if !self.head_only {
            bytes.extend_from_slice(&self.content);
        }
        to.write_all(&bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sent(answer: &Answer) -> String {
        let mut bytes = Vec::new();
        answer.send(&mut bytes, SystemTime::UNIX_EPOCH).unwrap();
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn an_answer_has_its_length_and_its_date() {
        let answer = Answer::file(b"hello".to_vec(), "text/plain");
        assert_eq!(
            sent(&answer),
            "HTTP/1.1 200 OK\r\nDate: Thu, 01 Jan 1970 00:00:00 GMT\r\nServer: plimsoll\r\n\
             Content-Type: text/plain\r\nContent-Length: 5\r\nConnection: keep-alive\r\n\r\nhello"
        );
        let head = sent(&answer.without_content());
        assert!(head.contains("Content-Length: 5") && head.ends_with("\r\n\r\n"));
        let refused = sent(&Answer::error(Status::MethodNotAllowed).closing());
        assert!(refused.contains("Allow: GET, HEAD") && refused.contains("Connection: close"));
    }
}
