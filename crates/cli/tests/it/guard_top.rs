//! A terminal session of `guard top`: driven by keys, its screen read back.
//! Needs root.

use std::fs::File;
use std::io::{Read, Write};
use std::net::UdpSocket;
use std::path::Path;
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use nix::pty::{Winsize, openpty};
use nix::sys::signal::Signal;
use nix::sys::termios::{LocalFlags, tcgetattr};
use plimsoll_testbed::blast::Transport;
use plimsoll_testbed::http::Nginx;
use plimsoll_testbed::server::{self, Kind, Server};
use plimsoll_testbed::{Config, Host, Process, Testbed};

use crate::common::overload::{self, busy_server, flood, receive_on_test_cpu};
use crate::common::{LIMIT, PROGRAM, refused, start};

const PORT: u16 = 5000;
const ECHO: u16 = 5001;
const HTTP: u16 = 80;
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
        Self::sized(host, WINDOW.ws_col)
    }

    fn sized(host: &Host, ws_col: u16) -> Self {
        let window = Winsize { ws_col, ..WINDOW };
        let pty = openpty(Some(&window), None).unwrap();
        let mut command = host.command(PROGRAM);
        command
            .args(["guard", "top", host.device(), "--interval-ms", "100"])
            .stdin(Stdio::from(pty.slave.try_clone().unwrap()))
            .stdout(Stdio::from(pty.slave))
            .env("TERM", "xterm-256color");
        let process = command.spawn().unwrap();
        let parser = vt100::Parser::new(window.ws_row, window.ws_col, 0);
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

    /// Waits until a line begins with each of these starts and contains what is
    /// beside it.
    fn expect_all(&self, lines: &[(&str, &str)]) {
        let deadline = Instant::now() + LIMIT;
        loop {
            let screen = self.screen();
            let shown = |(start, what): &(&str, &str)| {
                let mut lines = screen.lines();
                lines.any(|line| line.starts_with(start) && line.contains(what))
            };
            if lines.iter().all(shown) {
                return;
            }
            assert!(Instant::now() < deadline, "not {lines:?} in\n{screen}");
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// What stands under a column's head, in the row that begins so. Numbers are
    /// aligned with the end of their head, texts with its start.
    fn column(&self, row: &str, head: &str) -> String {
        // A row may be seen while it is being written anew: the same is read twice.
        let deadline = Instant::now() + LIMIT;
        let mut before = String::new();
        loop {
            let text = self.column_now(row, head);
            if (text == before && !text.is_empty()) || Instant::now() > deadline {
                return text;
            }
            before = text;
            thread::sleep(Duration::from_millis(20));
        }
    }

    fn column_now(&self, row: &str, head: &str) -> String {
        let screen = self.screen();
        let line = |start: &str| -> Vec<char> {
            let line = screen.lines().find(|line| line.starts_with(start));
            let line = line.unwrap_or_else(|| panic!("no `{start}` in\n{screen}"));
            line.chars().collect()
        };
        let heads: String = line("channel ").into_iter().collect();
        let bytes = heads
            .find(head)
            .unwrap_or_else(|| panic!("no `{head}` in\n{screen}"));
        let start = heads[..bytes].chars().count();
        let row = line(row);
        let word = |at: &usize| row.get(*at).is_some_and(|c| !c.is_whitespace());
        let inside = (start..start + head.len()).rfind(word).unwrap_or(start);
        let begin = (0..=inside).rev().take_while(word).last().unwrap_or(inside);
        row.iter()
            .skip(begin)
            .take_while(|c| !c.is_whitespace())
            .collect()
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
    let is_given_back = || {
        let terminal = session.terminal.lock().unwrap();
        !terminal.screen().alternate_screen() && !terminal.screen().hide_cursor()
    };
    let deadline = Instant::now() + LIMIT;
    while !is_given_back() {
        assert!(Instant::now() < deadline, "{}", session.screen());
        thread::sleep(Duration::from_millis(20));
    }
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

/// Sends a bystander's server a packet every millisecond, until it is dropped.
struct Bystander(Arc<AtomicBool>);

impl Bystander {
    fn start(testbed: &Testbed, port: u16) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let load = testbed.load();
        let bind = || UdpSocket::bind((load.ipv4(), 0)).unwrap();
        let client = load.run(bind).unwrap();
        client.connect((testbed.test().ipv4(), port)).unwrap();
        thread::spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                // A server that does not answer is what the test looks for elsewhere.
                let _ = client.send(b"packet");
                thread::sleep(Duration::from_millis(1));
            }
        });
        Self(stop)
    }
}

impl Drop for Bystander {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// What a newcomer at the screen wants to know of a flood: who causes it, who
/// suffers, what is done. Told on a small screen as on a wide one.
#[test]
fn a_flood_s_screen_tells_its_cause_the_others_and_what_is_done() {
    let testbed = Testbed::create(Config::default()).unwrap();
    let host = testbed.test();
    receive_on_test_cpu(&testbed);
    let sink = busy_server(host, PORT);
    let echo = server::Config::new(Kind::Echo, ECHO);
    let echo = Server::start_as_service(host, Path::new(PROGRAM), &echo).unwrap();
    let nginx = Nginx::start(host, HTTP).unwrap();
    let (_guard, _reports) = start(host);
    receive_on_test_cpu(&testbed);
    let _bystander = Bystander::start(&testbed, ECHO);
    let mut screens = [80, 140].map(|columns| Session::sized(host, columns));

    let udp = flood(&testbed, PORT..=PORT, 400_000);
    let cause = format!("udp_socket [::]:{PORT}  plimsoll ({})", sink.pid());
    let [flooded, bystander] = [PORT, ECHO].map(|port| format!("udp_socket [::]:{port} "));
    overload::flooded(&testbed, &udp, || {
        for screen in &mut screens {
            // The bystander among the first rows, whatever else is.
            screen.press("o");
            screen.expect_all(&[
                ("channel ", "offered/s▼"),
                ("overload (", "; receiving takes "),
                ("most offered: ", &cause),
                (&flooded, "k "),
                (&bystander, "plimsoll ("),
            ]);
            assert_ne!(screen.column(&flooded, "discarded/s"), "0");
            assert_eq!(screen.column(&bystander, "discarded/s"), "0");
            assert_ne!(screen.column(&bystander, "offered/s"), "0");
        }
        let owner = format!("plimsoll ({})", echo.pid());
        screens[1].expect_all(&[(&flooded, "source_share"), (&bystander, &owner)]);
    });

    let mut syn = flood(&testbed, HTTP..=HTTP, 50_000);
    syn.flow.transport = Transport::TcpSyn;
    // Sources that answer nothing.
    syn.flow.source = "198.19.0.0/16".parse().unwrap();
    let cause = format!("tcp_listener 0.0.0.0:{HTTP}  nginx ({})", nginx.pid());
    overload::flooded(&testbed, &syn, || {
        for screen in &screens {
            screen.expect_all(&[("most offered: ", &cause)]);
        }
        screens[1].expect_all(&[(&format!("tcp_listener 0.0.0.0:{HTTP} "), "syn_cookie")]);
    });
}

/// The shell had a terminal that showed nothing of what was typed.
#[test]
fn a_signal_gives_the_terminal_back() {
    let testbed = Testbed::create(Config::default()).unwrap();
    let host = testbed.test();
    let (_guard, _output) = start(host);
    for signal in [Signal::SIGTERM, Signal::SIGHUP, Signal::SIGINT] {
        let mut session = Session::start(host);
        session.expect("channel ");
        let is_taken = || {
            let terminal = session.terminal.lock().unwrap();
            terminal.screen().alternate_screen()
        };
        assert!(is_taken());
        session.process.signal(signal).unwrap();
        let end = Instant::now() + LIMIT;
        while is_taken() {
            assert!(Instant::now() < end, "{signal}");
            thread::sleep(Duration::from_millis(20));
        }
        let settings = tcgetattr(&session.keys).unwrap();
        assert!(
            settings
                .local_flags
                .contains(LocalFlags::ECHO | LocalFlags::ICANON)
        );
        assert!(session.process.wait(LIMIT).unwrap().success());
    }
}
