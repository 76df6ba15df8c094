//! Requests: a head, as far as it matters here, and how much content follows.

use super::answer::Status;

/// The longest head of a request.
pub(super) const HEAD_BYTES_MAX: usize = 16 << 10;
/// Content of a request that is read past, to keep the connection.
const CONTENT_BYTES_MAX: u64 = 64 << 10;
const HEADERS_MAX: usize = 64;
/// In letters of either case (RFC 3986, 3.1).
const SCHEME: &str = "http://";

/// A request as far as it matters here.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Request {
    pub(super) method: Method,
    /// Percent-decoded, without query. Of other methods none.
    pub(super) path: String,
    /// As it came, with its question mark; or nothing.
    pub(super) query: String,
    pub(super) persistent: bool,
    pub(super) content_bytes: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Method {
    Get,
    Head,
    Other,
}

/// The request at the beginning of `bytes` and its length; nothing if it is not
/// all there yet.
pub(super) fn parse(bytes: &[u8]) -> Result<Option<(Request, usize)>, Status> {
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
    // A list may come in several fields (RFC 9110, 5.3).
    let says = |word: &str| {
        let named = |header: &&httparse::Header<'_>| header.name.eq_ignore_ascii_case("connection");
        let fields = head.headers.iter().filter(named);
        let mut words = fields.flat_map(|field| field.value.split(|&byte| byte == b','));
        words.any(|one| one.trim_ascii().eq_ignore_ascii_case(word.as_bytes()))
    };
    let method = match head.method {
        Some("GET") => Method::Get,
        Some("HEAD") => Method::Head,
        _ => Method::Other,
    };
    let path = match method {
        Method::Get | Method::Head => decode(head.path.unwrap_or_default()),
        Method::Other => Some(String::new()),
    };
    let request = Request {
        method,
        path: path.ok_or(Status::BadRequest)?,
        query: query(head.path.unwrap_or_default()),
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

/// The query of a target. A fragment is the client's own.
fn query(target: &str) -> String {
    let target = target.split('#').next().unwrap_or_default();
    let begin = target.find('?').unwrap_or(target.len());
    target[begin..].to_owned()
}

/// The path of a target, without query and scheme, percent-decoded.
fn decode(target: &str) -> Option<String> {
    let path = target.split(['?', '#']).next()?;
    let path = match path.split_at_checked(SCHEME.len()) {
        Some((scheme, rest)) if scheme.eq_ignore_ascii_case(SCHEME) => {
            rest.find('/').map_or("/", |slash| &rest[slash..])
        }
        _ => path,
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
            query: "?c".to_owned(),
            persistent: true,
            content_bytes: 0,
        };
        assert_eq!(request, expected);
        assert!(!parsed("GET / HTTP/1.0\r\n\r\n").persistent);
        assert!(parsed("GET / HTTP/1.0\r\nConnection: Keep-Alive\r\n\r\n").persistent);
        assert!(!parsed("HEAD / HTTP/1.1\r\nHost: x\r\nConnection: a, close\r\n\r\n").persistent);
        let twice = "GET / HTTP/1.1\r\nHost: x\r\nConnection: a\r\nConnection: close\r\n\r\n";
        assert!(!parsed(twice).persistent);
        for (target, query) in [("/p?a=%20?b#c", "?a=%20?b"), ("/p#c?a", ""), ("/p?", "?")] {
            let request = parsed(&format!("GET {target} HTTP/1.1\r\nHost: h\r\n\r\n"));
            assert_eq!((&request.path[..], &request.query[..]), ("/p", query));
        }
        for target in ["http://h/p", "HTTP://h/p", "/p"] {
            let request = format!("GET {target} HTTP/1.1\r\nHost: h\r\n\r\n");
            assert_eq!(parsed(&request).path, "/p", "{target}");
        }
    }

    /// They have targets of other forms (RFC 9112, 3.2.3 and 3.2.4), and were bad requests.
    #[test]
    fn of_other_methods_no_target_is_wrong() {
        for line in ["OPTIONS *", "CONNECT host:443"] {
            let request = parsed(&format!("{line} HTTP/1.1\r\nHost: host\r\n\r\n"));
            assert_eq!(request.method, Method::Other, "{line}");
            assert!(request.persistent, "{line}");
        }
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
}
