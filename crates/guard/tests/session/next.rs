//! A guard that starts while the one before shows its last report.

use std::fs;
use std::io;
use std::os::unix::net::{UnixListener, UnixStream};

use plimsoll_guard::session::{Console, Report, Requests, Settings};
use plimsoll_kernel::knobs::{self, Knobs};

use crate::{run, settings};

pub(crate) const TESTS: [(&str, fn()); 1] = [(
    "the_status_socket_of_the_next_guard_stays",
    the_status_socket_of_the_next_guard_stays,
)];

/// Whoever reads the last report may take its time. Another guard of the interface could start
/// then, and lost its socket as the first one ended: no `status`, no `top`. And whoever was killed
/// meanwhile left a socket of which no lock told.
fn the_status_socket_of_the_next_guard_stays() {
    let mut console = Overtaken::default();
    run(settings(), &mut console).unwrap();
    assert!(console.was_silent, "its socket goes before its lock");
    let (_listener, _knobs) = console.next.expect("it has ended");
    let path = knobs::path_of("v0", "sock").unwrap();
    UnixStream::connect(path).expect("the next guard answers");
}

/// Stops at the first report. By the last one, the next guard has started.
#[derive(Default)]
struct Overtaken {
    requests: Option<Requests>,
    was_silent: bool,
    next: Option<(UnixListener, Knobs)>,
}

impl Console for Overtaken {
    fn start(&mut self, requests: Requests) -> io::Result<()> {
        self.requests = Some(requests);
        Ok(())
    }
    fn show(&mut self, _: &Report<'_>) -> io::Result<()> {
        self.requests.as_ref().expect("it has started").stop();
        Ok(())
    }
    fn log(&mut self, _: String) {}
    fn settings(&mut self) -> Result<Settings, Box<dyn std::error::Error>> {
        unreachable!("nobody asks for a reload")
    }
    fn finish(&mut self, _: &Report<'_>) -> io::Result<()> {
        let path = knobs::path_of("v0", "sock").unwrap();
        self.was_silent = UnixStream::connect(&path).is_err();
        // As a start does it.
        let knobs = Knobs::open("v0").expect("nobody guards it");
        let _ = fs::remove_file(&path);
        self.next = Some((UnixListener::bind(&path)?, knobs));
        Ok(())
    }
}
