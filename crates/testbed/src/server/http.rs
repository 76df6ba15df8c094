//! Static files over HTTP/1.1 (RFC 9110, RFC 9112), a thread per connection.
//!
//! GET and HEAD, persistent connections, correct errors. What is served lies
//! beneath one directory: a path that leaves it, also by a symbolic link, is not
//! found. No ranges, no conditions, no compression.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use super::counters::SharedCounters;
use super::network::{Network, everywhere};
use super::tcp::{self, Connection, IDLE};
use super::{Config, LOOK, is_retry};
use crate::spin::Work;
use crate::{Error, interrupt};

mod answer;
mod event_loop;

use self::answer::{Answer, Status};
pub use self::event_loop::{PageServer, Passing};

/// The longest head of a request.
const HEAD_BYTES_MAX: usize = 16 << 10;
/// Content of a request that is read past, to keep the connection.
const CONTENT_BYTES_MAX: u64 = 64 << 10;
const HEADERS_MAX: usize = 64;

/// What all connections share.
struct Site<'a> {
    root: PathBuf,
    work: Work,
    counters: &'a SharedCounters,
}

pub(super) fn serve(
    config: &Config,
    network: &Network,
    work: Work,
    counters: &SharedCounters,
) -> Result<(), Error> {
    let root = fs::canonicalize(&config.root)
        .map_err(Error::io(format!("serve {}", config.root.display())))?;
    let site = Site {
        root,
        work,
        counters,
    };
    let at = everywhere(network, config);
    tcp::serve_each(
        network,
        &at,
        config.pace,
        || counters.set_listening(),
        |connection| {
            // The client went away: its loss.
            let _ = serve_connection(&site, connection);
        },
    )
    .map_err(Error::io("serve"))
}

fn serve_connection(site: &Site<'_>, connection: &mut dyn Connection) -> io::Result<()> {
    let mut buffer = Vec::with_capacity(4096);
    loop {
        let answer = match read_request(connection, &mut buffer)? {
            Received::Request(request) => {
                site.work.run();
                let content = request.content_bytes;
                if !skip_content(connection, &mut buffer, content)? {
                    return Ok(());
                }
                site.answer(&request)
            }
            Received::Bad(status) => Answer::error(status).closing(),
            Received::Nothing => return Ok(()),
        };
        site.counters.count_received(answer.content_bytes());
        let sent = answer.send(connection, SystemTime::now());
        site.counters.count_sent(sent.is_ok());
        sent?;
        if answer.closes() {
            return Ok(());
        }
    }
}

/// A request as far as it matters here.
#[derive(Debug, PartialEq, Eq)]
struct Request {
    method: Method,
    /// Percent-decoded, without query.
    path: String,
    persistent: bool,
    content_bytes: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Method {
    Get,
    Head,
    Other,
}

enum Received {
    Request(Request),
    Bad(Status),
    /// The client closed, was silent for too long, or the server ends.
    Nothing,
}

fn read_request(connection: &mut dyn Connection, buffer: &mut Vec<u8>) -> io::Result<Received> {
    let mut silent = Duration::ZERO;
    loop {
        match parse(buffer) {
            Ok(Some((request, bytes))) => {
                buffer.drain(..bytes);
                return Ok(Received::Request(request));
            }
            Ok(None) if buffer.len() < HEAD_BYTES_MAX => {}
            Ok(None) => return Ok(Received::Bad(Status::HeadTooLarge)),
            Err(status) => return Ok(Received::Bad(status)),
        }
        let mut chunk = [0; 4096];
        match connection.read(&mut chunk) {
            Ok(0) => return Ok(Received::Nothing),
            Ok(length) => buffer.extend_from_slice(&chunk[..length]),
            Err(error) if is_retry(&error) => {
                silent += LOOK;
                if interrupt::requested() || silent >= IDLE {
                    return Ok(match buffer.is_empty() {
                        true => Received::Nothing,
                        false => Received::Bad(Status::Timeout),
                    });
                }
            }
            Err(error) => return Err(error),
        }
    }
}

/// The request at the beginning of `bytes` and its length; nothing if it is not
/// all there yet.
fn parse(bytes: &[u8]) -> Result<Option<(Request, usize)>, Status> {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut head = httparse::Request::new(&mut headers);
    let length = match head.parse(bytes) {
        Ok(httparse::Status::Complete(length)) => length,
        Ok(httparse::Status::Partial) => return Ok(None),
        Err(httparse::Error::TooManyHeaders) => return Err(Status::HeadTooLarge),
        Err(httparse::Error::Version) => return Err(Status::VersionNotSupported),
        Err(_) => return Err(Status::BadRequest),
    };
    let of_version_1_1 = head.version == Some(1);
    let value = |name: &str| {
        let named = head.headers.iter();
        let mut named = named.filter(move |header| header.name.eq_ignore_ascii_case(name));
        (
            named.next().map(|header| header.value),
            named.next().is_some(),
        )
    };
    let (host, several) = value("host");
    if several || of_version_1_1 && host.is_none() {
        return Err(Status::BadRequest);
    }
    if value("transfer-encoding").0.is_some() {
        return Err(Status::NotImplemented);
    }
    let content_bytes = match value("content-length") {
        (None, _) => 0,
        (Some(_), true) => return Err(Status::BadRequest),
        (Some(digits), false) => number(digits).ok_or(Status::BadRequest)?,
    };
    if content_bytes > CONTENT_BYTES_MAX {
        return Err(Status::ContentTooLarge);
    }
    let connection = value("connection").0.unwrap_or_default();
    let says = |word: &str| {
        let mut words = connection.split(|&byte| byte == b',');
        words.any(|one| one.trim_ascii().eq_ignore_ascii_case(word.as_bytes()))
    };
    let request = Request {
        method: match head.method {
            Some("GET") => Method::Get,
            Some("HEAD") => Method::Head,
            _ => Method::Other,
        },
        path: decode(head.path.unwrap_or_default()).ok_or(Status::BadRequest)?,
        persistent: !says("close") && (of_version_1_1 || says("keep-alive")),
        content_bytes,
    };
    Ok(Some((request, length)))
}

fn number(digits: &[u8]) -> Option<u64> {
    let all = !digits.is_empty() && digits.iter().all(u8::is_ascii_digit);
    let text = std::str::from_utf8(digits).ok()?;
    all.then(|| text.parse().ok()).flatten()
}

/// The path of a target, without query and scheme, percent-decoded.
fn decode(target: &str) -> Option<String> {
    let path = target.split(['?', '#']).next()?;
    let path = match path.strip_prefix("http://") {
        Some(rest) => rest.find('/').map_or("/", |slash| &rest[slash..]),
        None => path,
    };
    let mut bytes = path.bytes();
    let mut decoded = Vec::with_capacity(path.len());
    while let Some(byte) = bytes.next() {
        decoded.push(match byte {
            b'%' => {
                let mut digit = || char::from(bytes.next()?).to_digit(16);
                (digit()? << 4 | digit()?) as u8
            }
            byte => byte,
        });
    }
    let decoded = String::from_utf8(decoded).ok()?;
    (decoded.starts_with('/') && !decoded.contains('\0')).then_some(decoded)
}

/// Reads past a request's content. False: the client went away.
fn skip_content(
    connection: &mut dyn Connection,
    buffer: &mut Vec<u8>,
    bytes: u64,
) -> io::Result<bool> {
    let buffered = (bytes as usize).min(buffer.len());
    buffer.drain(..buffered);
    let mut left = bytes - buffered as u64;
    let mut chunk = [0; 4096];
    let mut silent = Duration::ZERO;
    while left > 0 {
        let want = chunk.len().min(left as usize);
        match connection.read(&mut chunk[..want]) {
            Ok(0) => return Ok(false),
            Ok(length) => left -= length as u64,
            Err(error) if is_retry(&error) && silent < IDLE && !interrupt::requested() => {
                silent += LOOK;
            }
            Err(error) => return Err(error),
        }
    }
    Ok(true)
}

impl Site<'_> {
    fn answer(&self, request: &Request) -> Answer {
        let answer = match request.method {
            Method::Other => Answer::error(Status::MethodNotAllowed),
            Method::Get | Method::Head => self
                .read(&request.path)
                .unwrap_or_else(|| Answer::error(Status::NotFound)),
        };
        let answer = match request.method {
            Method::Head => answer.without_content(),
            _ => answer,
        };
        match request.persistent {
            true => answer,
            false => answer.closing(),
        }
    }

    /// The file at `path`, or the index of a directory.
    fn read(&self, path: &str) -> Option<Answer> {
        let beneath = self.root.join(path.trim_start_matches('/'));
        let mut file = fs::canonicalize(beneath).ok()?;
        if file.is_dir() {
            file = fs::canonicalize(file.join("index.html")).ok()?;
        }
        // Links are followed, but not out of the directory.
        let served = file.starts_with(&self.root) && file.is_file();
        let content = served.then(|| fs::read(&file).ok()).flatten()?;
        Some(Answer::file(content, kind_of(&file)))
    }
}

/// The media type that a file's name tells.
fn kind_of(file: &Path) -> &'static str {
    match file.extension().and_then(|extension| extension.to_str()) {
        Some("html" | "htm") => "text/html; charset=utf-8",
        Some("css") => "text/css; charset=utf-8",
        Some("js") => "text/javascript; charset=utf-8",
        Some("txt" | "md") => "text/plain; charset=utf-8",
        Some("json") => "application/json",
        Some("svg") => "image/svg+xml",
        Some("png") => "image/png",
        Some("jpg" | "jpeg") => "image/jpeg",
        _ => "application/octet-stream",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Request {
        let (request, length) = parse(text.as_bytes()).unwrap().expect("all is there");
        assert_eq!(length, text.len());
        request
    }

    #[test]
    fn requests_are_understood() {
        let request = parsed("GET /a%20b?c HTTP/1.1\r\nHost: x\r\n\r\n");
        let expected = Request {
            method: Method::Get,
            path: "/a b".to_owned(),
            persistent: true,
            content_bytes: 0,
        };
        assert_eq!(request, expected);
        assert!(!parsed("GET / HTTP/1.0\r\n\r\n").persistent);
        assert!(parsed("GET / HTTP/1.0\r\nConnection: Keep-Alive\r\n\r\n").persistent);
        assert!(!parsed("HEAD / HTTP/1.1\r\nHost: x\r\nConnection: a, close\r\n\r\n").persistent);
        assert_eq!(
            parsed("GET http://h/p HTTP/1.1\r\nHost: h\r\n\r\n").path,
            "/p"
        );
    }

    #[test]
    fn a_part_of_a_request_is_no_request_yet() {
        let whole = "GET / HTTP/1.1\r\nHost: x\r\n\r\n";
        for length in 0..whole.len() {
            assert_eq!(parse(&whole.as_bytes()[..length]), Ok(None), "{length}");
        }
    }

    #[test]
    fn mistakes_have_their_status() {
        for (text, status) in [
            ("GET / HTTP/1.1\r\n\r\n", Status::BadRequest),
            (
                "GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
                Status::BadRequest,
            ),
            (
                "GET nowhere HTTP/1.1\r\nHost: a\r\n\r\n",
                Status::BadRequest,
            ),
            ("GET /%zz HTTP/1.1\r\nHost: a\r\n\r\n", Status::BadRequest),
            (
                "GET / HTTP/3.0\r\nHost: a\r\n\r\n",
                Status::VersionNotSupported,
            ),
            (
                "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: +5\r\n\r\n",
                Status::BadRequest,
            ),
            (
                "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 99999999\r\n\r\n",
                Status::ContentTooLarge,
            ),
            (
                "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n",
                Status::NotImplemented,
            ),
        ] {
            assert_eq!(parse(text.as_bytes()), Err(status), "{text}");
        }
    }

    #[test]
    fn nothing_beside_the_directory_is_served() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().join("root");
        fs::create_dir(&root).unwrap();
        fs::write(directory.path().join("secret"), "secret").unwrap();
        fs::write(root.join("file.txt"), "file").unwrap();
        std::os::unix::fs::symlink("../secret", root.join("link")).unwrap();
        let counters = SharedCounters::anonymous().unwrap();
        let site = Site {
            root: fs::canonicalize(&root).unwrap(),
            work: Work::calibrate(Duration::ZERO),
            counters: &counters,
        };
        assert!(site.read("/file.txt").is_some());
        for path in [
            "/../secret",
            "/link",
            "//../secret",
            "/",
            "/none",
            "/file.txt/",
        ] {
            assert!(site.read(path).is_none(), "{path}");
        }
    }
}
