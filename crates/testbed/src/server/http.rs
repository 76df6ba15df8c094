//! Static files over HTTP/1.1 (RFC 9110, RFC 9112), all connections on one thread.
//!
//! GET and HEAD, persistent connections, correct errors. What is served lies
//! beneath one directory: a path that leaves it, also by a symbolic link (every absolute one
//! does), is not found. No ranges, no conditions, no compression.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use nix::fcntl::{OFlag, OpenHow, ResolveFlag, openat2};
use nix::sys::stat::Mode;

use super::Config;
use super::counters::SharedCounters;
use super::events;
use super::is_lack;
use super::network::{Network, everywhere};
use crate::Error;
use crate::spin::Work;

mod answer;
mod event_loop;
mod request;
mod session;

use self::answer::{Answer, Status};
pub use self::event_loop::{PageServer, Passing};
use self::request::{Method, Request};
use self::session::HttpSession;

/// What all connections share.
struct Site<'a> {
    root: OwnedFd,
    work: Work,
    counters: &'a SharedCounters,
}

pub(super) fn serve(
    config: &Config,
    network: &Network,
    work: Work,
    counters: &SharedCounters,
) -> Result<(), Error> {
    let root = config.root.as_deref().unwrap_or(Path::new("."));
    let site = Site::open(root, work, counters);
    let site = site.map_err(Error::io(format!("serve {}", root.display())))?;
    let at = everywhere(network, config);
    events::serve(
        network,
        &at,
        config.pace,
        config.connections.into(),
        || counters.set_listening(),
        || HttpSession::new(&site),
    )
    .map_err(Error::io("serve"))
}

impl<'a> Site<'a> {
    fn open(root: &Path, work: Work, counters: &'a SharedCounters) -> io::Result<Self> {
        let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        Ok(Self {
            root: nix::fcntl::open(root, flags, Mode::empty())?,
            work,
            counters,
        })
    }

    fn answer(&self, request: &Request) -> Answer {
        let answer = match request.method {
            Method::Other => Answer::error(Status::MethodNotAllowed),
            Method::Get | Method::Head => self
                .read(&request.path, &request.query)
                .unwrap_or_else(|error| Answer::error(status_of(&error))),
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

    /// The file at `path`, or the index of a directory. What its pages refer to is beneath it only
    /// if a slash ends its path: a client that left it out is sent there, with its query, which the page may read.
    fn read(&self, path: &str, query: &str) -> io::Result<Answer> {
        let is_of_directory = path.ends_with('/');
        let path = path.trim_start_matches('/');
        let path = if path.is_empty() { "." } else { path };
        let (mut file, mut name) = (self.open_beneath(path)?, Path::new(path).to_owned());
        let mut found = file.metadata()?;
        let was_directory = found.is_dir();
        if was_directory {
            name.push("index.html");
            file = self.open_beneath(&name)?;
            found = file.metadata()?;
        }
        match found.is_file() {
            true if was_directory && !is_of_directory => {
                Ok(Answer::moved(with_slash(path) + query))
            }
            true => Ok(Answer::file(file, found.len(), kind_of(&name))),
            false => Err(io::ErrorKind::NotFound.into()),
        }
    }

    /// Links are followed, but not out of the directory.
    fn open_beneath(&self, path: impl AsRef<Path>) -> io::Result<File> {
        // Without waiting, if it is a pipe.
        let flags = OFlag::O_RDONLY | OFlag::O_CLOEXEC | OFlag::O_NONBLOCK;
        let beneath = ResolveFlag::RESOLVE_BENEATH;
        let how = OpenHow::new().flags(flags).resolve(beneath);
        Ok(openat2(&self.root, path.as_ref(), how)?.into())
    }
}

/// What a client is told of a file that cannot be opened.
fn status_of(error: &io::Error) -> Status {
    match is_lack(error) {
        true => Status::Unavailable,
        false => Status::NotFound,
    }
}

/// The directory at a path without a slash at its end, as its client refers to it. By its last
/// name: what begins with two slashes would be another host.
fn with_slash(path: &str) -> String {
    let (_, name) = path.rsplit_once('/').unwrap_or(("", path));
    let encoded = name.bytes().map(|byte| match byte {
        b'-' | b'.' | b'_' | b'~' => char::from(byte).to_string(),
        byte if byte.is_ascii_alphanumeric() => char::from(byte).to_string(),
        byte => format!("%{byte:02X}"),
    });
    format!("./{}/", encoded.collect::<String>())
}

/// Media types by the end of a file's name, in small letters.
const KINDS: [(&str, &str); 19] = [
    ("html", "text/html; charset=utf-8"),
    ("htm", "text/html; charset=utf-8"),
    ("css", "text/css; charset=utf-8"),
    ("js", "text/javascript; charset=utf-8"),
    ("mjs", "text/javascript; charset=utf-8"),
    ("txt", "text/plain; charset=utf-8"),
    ("md", "text/plain; charset=utf-8"),
    ("json", "application/json"),
    ("xml", "application/xml"),
    ("pdf", "application/pdf"),
    ("wasm", "application/wasm"),
    ("svg", "image/svg+xml"),
    ("png", "image/png"),
    ("jpg", "image/jpeg"),
    ("jpeg", "image/jpeg"),
    ("gif", "image/gif"),
    ("webp", "image/webp"),
    ("ico", "image/x-icon"),
    ("woff2", "font/woff2"),
];

/// The media type that a file's name tells.
fn kind_of(file: &Path) -> &'static str {
    let end = file.extension().unwrap_or_default();
    let known = KINDS
        .iter()
        .find(|(known, _)| end.eq_ignore_ascii_case(known));
    known.map_or("application/octet-stream", |(_, kind)| kind)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::time::{Duration, SystemTime};

    use super::*;

    /// A picture of most cameras was saved to the disk, and a module was not run.
    #[test]
    fn the_media_type_is_told_of_a_name_in_letters_of_either_case() {
        for (name, kind) in [
            ("INDEX.HTM", "text/html; charset=utf-8"),
            ("a/DSC01.JPG", "image/jpeg"),
            ("module.mjs", "text/javascript; charset=utf-8"),
            ("code.wasm", "application/wasm"),
            ("x.gif", "image/gif"),
            ("none", "application/octet-stream"),
            (".png", "application/octet-stream"),
        ] {
            assert_eq!(kind_of(Path::new(name)), kind, "{name}");
        }
    }

    /// Its page was sent, and what that refers to was looked for beside the directory.
    #[test]
    fn a_directory_without_a_slash_is_sent_to_the_one_with_it() {
        let directory = tempfile::tempdir().unwrap();
        let page = directory.path().join("a/b: c");
        fs::create_dir_all(&page).unwrap();
        fs::write(page.join("index.html"), "page").unwrap();
        let counters = SharedCounters::anonymous().unwrap();
        let site = Site::open(directory.path(), Work::calibrate(Duration::ZERO), &counters);
        let site = site.unwrap();
        let head = |path| {
            let mut bytes = Vec::new();
            let answer = site.read(path, "?q=1").unwrap();
            answer.send(&mut bytes, SystemTime::UNIX_EPOCH).unwrap();
            String::from_utf8(bytes).unwrap()
        };
        for path in ["/a/b: c", "//a/b: c"] {
            let moved = head(path);
            assert!(moved.starts_with("HTTP/1.1 301 "), "{moved}");
            assert!(
                moved.contains("\r\nLocation: ./b%3A%20c/?q=1\r\n"),
                "{moved}"
            );
        }
        assert!(head("/a/b: c/").ends_with("\r\n\r\npage"));
        // There is no page to be sent to.
        assert!(site.read("/a", "").is_err());
    }

    #[test]
    fn nothing_beside_the_directory_is_served() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().join("root");
        fs::create_dir(&root).unwrap();
        fs::write(directory.path().join("secret"), "secret").unwrap();
        fs::write(root.join("file.txt"), "file").unwrap();
        let link = |to: &str, name: &str| {
            std::os::unix::fs::symlink(to, root.join(name)).unwrap();
        };
        link("../secret", "link");
        link("file.txt", "inside");
        nix::unistd::mkfifo(&root.join("pipe"), Mode::S_IRWXU).unwrap();
        let counters = SharedCounters::anonymous().unwrap();
        let work = Work::calibrate(Duration::ZERO);
        let site = Site::open(&root, work, &counters).unwrap();
        assert!(site.read("/file.txt", "").is_ok());
        assert!(site.read("/inside", "").is_ok());
        for path in [
            "/../secret",
            "/link",
            "/pipe",
            "//../secret",
            "/",
            "/none",
            "/file.txt/",
        ] {
            assert!(site.read(path, "").is_err(), "{path}");
        }
    }
}
