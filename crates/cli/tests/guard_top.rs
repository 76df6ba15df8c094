//! A terminal session of `guard top`: driven by keys, its screen read back.
//! Needs root.

mod common;

use std::fs::File;
use std::io::{Read, Write};
use std::net::UdpSocket;
use std::process::Stdio;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use common::{LIMIT, PROGRAM, refused, start};
use nix::pty::{Winsize, openpty};
use plimsoll_testbed::{Config, Host, Process, Testbed};

const PORT: u16 = 5000;
const WINDOW: Winsize = Winsize {
    ws_row: 24,
    ws_col: 140,
    ws_xpixel: 0,
    ws_ypixel: 0,
};

/// `guard top` on a terminal of its own.
struct Session {
    process: Process,
    keys: File,
    terminal: Arc<Mutex<vt100::Parser>>,
}

impl Session {
    fn start(host: &Host) -> Self {
        let pty = openpty(Some(&WINDOW), None).unwrap();
        let mut command = host.command(PROGRAM);
        command
            .args(["guard", "top", host.device(), "--interval-ms", "100"])
            .stdin(Stdio::from(pty.slave.try_clone().unwrap()))
            .stdout(Stdio::from(pty.slave))
            .env("TERM", "xterm-256color");
        let process = command.spawn().unwrap();
        let parser = vt100::Parser::new(WINDOW.ws_row, WINDOW.ws_col, 0);
        let terminal = Arc::new(Mutex::new(parser));
        let keys = File::from(pty.master);
        let mut output = keys.try_clone().unwrap();
        let screen = terminal.clone();
        thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(count @ 1..) = output.read(&mut bytes) {
                screen.lock().unwrap().process(&bytes[..count]);
            }
        });
        Self {
            process,
            keys,
            terminal,
        }
    }

    fn screen(&self) -> String {
        self.terminal.lock().unwrap().screen().contents()
    }

    /// Waits until the screen shows something.
    fn expect(&self, what: &str) {
        let deadline = Instant::now() + LIMIT;
        while !self.screen().contains(what) {
            assert!(
                Instant::now() < deadline,
                "no `{what}` in\n{}",
                self.screen()
            );
            thread::sleep(Duration::from_millis(20));
        }
    }

    fn press(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).unwrap();
    }
}

#[test]
fn a_session_sorts_chooses_survives_the_guard_and_gives_the_terminal_back() {
    let testbed = Testbed::create(Config::default()).unwrap();
    let host = testbed.test();
    let (guard, _output) = start(host);
    let server = host
        .run(|| UdpSocket::bind((host.ipv4(), PORT)).unwrap())
        .unwrap();
    server.set_read_timeout(Some(LIMIT)).unwrap();
    let client = testbed
        .load()
        .run(|| UdpSocket::bind((testbed.load().ipv4(), 0)).unwrap())
        .unwrap();
    client.send_to(b"packet", (host.ipv4(), PORT)).unwrap();
    server.recv(&mut [0; 16]).unwrap();

    let mut session = Session::start(host);
    session.expect(&format!("plimsoll guard {}", host.device()));
    session.expect(&format!("udp_socket {}:{PORT}", host.ipv4()));
    session.expect(&format!("({})", std::process::id()));
    session.expect("discarded/s▼");
    session.press("o");
    session.expect("offered/s▼");
    session.press("f");
    session.expect("full▼");
    session.press(" ");
    session.expect("PAUSED");
    session.press(" ");

    assert!(guard.stop(LIMIT).unwrap().success());
    session.expect("no guard runs on");
    assert!(session.process.try_wait().unwrap().is_none(), "it waits");
    let (_guard, _output) = start(host);
    let deadline = Instant::now() + LIMIT;
    while session.screen().contains("no guard runs on") {
        assert!(Instant::now() < deadline, "{}", session.screen());
        thread::sleep(Duration::from_millis(20));
    }

    session.press("q");
    assert!(session.process.wait(LIMIT).unwrap().success());
    let terminal = session.terminal.lock().unwrap();
    assert!(!terminal.screen().alternate_screen());
    assert!(!terminal.screen().hide_cursor());
}

#[test]
fn without_a_guard_or_a_terminal_it_says_what_to_do() {
    let testbed = Testbed::create(Config::default()).unwrap();
    let host = testbed.test();
    let said = refused(host, &["top", host.device()]);
    assert!(said.contains("needs a terminal"), "{said}");
    assert!(said.contains("exit status: 2"), "{said}");
    let mut session = Session::start(host);
    let status = session.process.wait(LIMIT).unwrap();
    assert_eq!(status.code(), Some(1));
}
