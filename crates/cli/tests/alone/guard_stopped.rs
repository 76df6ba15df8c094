//! A guard that is stopped (SIGSTOP) while it discards, as by a debugger or a frozen control
//! group. Nobody adapts then what it last decided, so within some two seconds the program
//! leaves off whatever depends on that; what it reads itself goes on. Needs root.
//!
//! A stopped guard tells nothing. So what it leaves off is seen at the stack, whose own
//! counters then count the flood.

use std::fs;
use std::io::BufRead;
use std::net::{TcpListener, UdpSocket};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use plimsoll_testbed::blast::{Schedule, Spec, Transport};
use plimsoll_testbed::server::{Config as ServerConfig, Kind, Server};
use plimsoll_testbed::{Config, Host, Process, Testbed};

use crate::common::overload::{
    await_mode, await_report, busy_server, class_of, flood, flooded, receive_on_test_cpu, settings,
};
use crate::common::{PROGRAM, start_with};
use crate::turn;

const SERVER: u16 = 7000;
const CALM: u16 = 7001;
/// Nobody listens here.
const CLOSED: u16 = 7002;
const WEB: u16 = 7003;
/// More than a debug build's server takes, and what a CPU has time for.
const RATE_PPS: u64 = 150_000;
const SYN_PPS: u64 = 20_000;
/// How long something that must come about is waited for.
const PATIENCE: Duration = Duration::from_secs(30);
/// The program's own is some two seconds.
const UNHEARD: Duration = Duration::from_secs(3);
const SECOND: Duration = Duration::from_secs(1);

/// A guard that does nothing. It goes on when this is dropped, also by a panic.
struct Stopped(Pid);

impl Stopped {
    fn stop(guard: &Process) -> Self {
        let guard = Pid::from_raw(guard.pid().cast_signed());
        kill(guard, Signal::SIGSTOP).unwrap();
        Self(guard)
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        let _ = kill(self.0, Signal::SIGCONT);
    }
}

/// A counter of the host's stack, as `Udp.NoPorts`.
fn counter(host: &Host, name: &str) -> u64 {
    let (protocol, field) = name.split_once('.').unwrap();
    let read = |file| fs::read_to_string(format!("/proc/thread-self/net/{file}")).unwrap();
    let text = host.run(|| read("snmp") + &read("netstat")).unwrap();
    let lines = text.lines().filter(|line| {
        let rest = line.strip_prefix(protocol);
        rest.is_some_and(|rest| rest.starts_with(':'))
    });
    let lines: Vec<Vec<&str>> = lines.map(|line| line.split(' ').collect()).collect();
    let place = lines[0].iter().position(|one| *one == field);
    lines[1][place.unwrap_or_else(|| panic!("no {name}"))]
        .parse()
        .unwrap()
}

/// Waits until a counter of the stack has grown by so much in a second.
fn await_growth(host: &Host, name: &str, least: u64) {
    let began = Instant::now();
    let mut grown = 0;
    while grown < least {
        assert!(began.elapsed() < PATIENCE, "{name}: {grown} in a second");
        let (before, at) = (counter(host, name), Instant::now());
        thread::sleep(SECOND);
        let grown_by = (counter(host, name) - before) as f64;
        grown = (grown_by / at.elapsed().as_secs_f64()) as u64;
    }
}

/// Waits until so many packets of a kind had one of these outcomes between two reports.
fn await_outcomes(reports: &mut impl BufRead, (kind, outcomes): (&str, &[&str]), least: u64) {
    let mut before = None;
    await_report(reports, outcomes[0], |report| {
        let packets = |one: &&str| report["totals"][kind][*one].as_u64().unwrap();
        let now: u64 = outcomes.iter().map(packets).sum();
        before.replace(now).is_some_and(|then| now - then >= least)
    });
}

/// Datagrams of a client, one a millisecond: how many of a hundred its server gets.
fn served(testbed: &Testbed, server: &UdpSocket) -> usize {
    let to = (testbed.test().ipv4(), CALM);
    let client = testbed.load().run(|| UdpSocket::bind("0.0.0.0:0")).unwrap();
    let client = client.unwrap();
    let sent = (0..100).filter(|_| {
        thread::sleep(Duration::from_millis(1));
        client.send_to(b"calm", to).is_ok()
    });
    assert_eq!(sent.count(), 100);
    thread::sleep(Duration::from_millis(100));
    let got = (0..100).take_while(|_| server.recv(&mut [0; 8]).is_ok());
    got.count()
}

/// Of a hundred; nobody asks for more.
const ENOUGH: usize = 99;

/// The most of a hundred that a client gets in some tries, until it is enough: what a busy
/// machine takes away is no sign.
fn served_at_best(testbed: &Testbed, server: &UdpSocket) -> usize {
    let mut best = 0;
    for _ in 0..5 {
        best = best.max(served(testbed, server));
        if best >= ENOUGH {
            break;
        }
    }
    best
}

fn calm_server(host: &Host) -> UdpSocket {
    let server = host.run(|| UdpSocket::bind((host.ipv4(), CALM))).unwrap();
    let server = server.unwrap();
    server.set_nonblocking(true).unwrap();
    server
}

fn syns(testbed: &Testbed) -> Spec {
    let mut spec = flood(testbed, WEB..=WEB, SYN_PPS);
    spec.flow.transport = Transport::TcpSyn;
    spec.flow.source = "198.19.0.0/16".parse().unwrap();
    spec
}

/// The bound on a closed port holds while the guard lives, and not while it is stopped. A client
/// of a calm socket gets as much.
#[test]
fn a_stopped_guard_bounds_no_closed_port() {
    let _one = turn();
    let testbed = Testbed::create(Config::default()).unwrap();
    let host = testbed.test();
    let (guard, mut reports) = start_with(host, &["--interval-ms", "100"]);
    receive_on_test_cpu(&testbed);
    let calm = calm_server(host);
    let whole = flood(&testbed, CLOSED..=CLOSED, RATE_PPS);
    flooded(&testbed, &whole, || {
        let bounded = ("closed_port", &["share"][..]);
        await_outcomes(&mut reports, bounded, 1000);
        let before = served_at_best(&testbed, &calm);
        let stopped = Stopped::stop(&guard);
        // Beside the bound, 64 packets in 4 ms, it is 16,000.
        await_growth(host, "Udp.NoPorts", 30_000);
        assert!(served_at_best(&testbed, &calm) >= before.min(ENOUGH));
        drop(stopped);
        await_outcomes(&mut reports, bounded, 1000);
    });
}

/// The stack makes its own cookies while the guard is stopped.
#[test]
fn a_stopped_guard_answers_no_syn() {
    let _one = turn();
    let testbed = Testbed::create(Config::default()).unwrap();
    let host = testbed.test();
    // Without it this veth drops what the driver sends back.
    let _answered = testbed.load().pass_all().unwrap();
    let (guard, mut reports) = start_with(host, &["--interval-ms", "100"]);
    receive_on_test_cpu(&testbed);
    let listener = host.run(|| TcpListener::bind((host.ipv4(), WEB)));
    let _listener = listener.unwrap().unwrap();
    let calm = calm_server(host);
    flooded(&testbed, &syns(&testbed), || {
        let answered = ("tcp_listener", &["syn_cookie"][..]);
        await_outcomes(&mut reports, answered, 500);
        let before = served_at_best(&testbed, &calm);
        let stopped = Stopped::stop(&guard);
        await_growth(host, "TcpExt.SyncookiesSent", SYN_PPS / 4);
        assert!(served_at_best(&testbed, &calm) >= before.min(ENOUGH));
        drop(stopped);
        await_outcomes(&mut reports, answered, 500);
    });
}

/// Of SYNs to a port without a listener the stack refuses as many as shares admit, and all of
/// them while the guard is stopped.
#[test]
fn a_stopped_guard_sheds_nothing() {
    let _one = turn();
    let testbed = Testbed::create(Config::default()).unwrap();
    let host = testbed.test();
    // Without a governor the ring loses nothing of what shares are to discard.
    let limited = ["--strategy", "off", "--cpu-limit", "5"];
    let options = [&["--interval-ms", "100"][..], &limited].concat();
    let (guard, mut reports) = start_with(host, &options);
    receive_on_test_cpu(&testbed);
    let mut whole = syns(&testbed);
    whole.schedule = Schedule::Fixed { rate_pps: RATE_PPS };
    flooded(&testbed, &whole, || {
        let shed = ("closed_port", &["share", "source_share"][..]);
        await_outcomes(&mut reports, shed, 1000);
        let before = counter(host, "Tcp.OutRsts");
        thread::sleep(SECOND);
        let admitted = counter(host, "Tcp.OutRsts") - before;
        assert!(admitted > 0);
        let stopped = Stopped::stop(&guard);
        await_growth(host, "Tcp.OutRsts", 2 * admitted);
        drop(stopped);
        await_outcomes(&mut reports, shed, 1000);
    });
}

/// The server's buffer, as the kernel counts it: twice what is asked for.
const BUFFER_BYTES: usize = 2 << 20;

/// Bytes that wait in the server's queue, the most of some looks.
fn waiting_bytes(host: &Host) -> u64 {
    let suffix = format!(":{SERVER:04X}");
    let look = || {
        thread::sleep(Duration::from_millis(10));
        let table = host.run(|| fs::read_to_string("/proc/thread-self/net/udp6"));
        let table = table.unwrap().unwrap();
        let row = table.lines().find_map(|line| {
            let row: Vec<&str> = line.split_whitespace().collect();
            row.get(1).filter(|local| local.ends_with(&suffix))?;
            let (_, waiting) = row[4].split_once(':')?;
            u64::from_str_radix(waiting, 16).ok()
        });
        row.expect("it listens")
    };
    (0..50).map(|_| look()).max().unwrap()
}

/// Delay limits end. What a full queue cannot take is discarded all the same, and does not come
/// to the stack.
#[test]
fn a_stopped_guard_keeps_to_full_queues_alone() {
    let _one = turn();
    let testbed = Testbed::create(Config::default()).unwrap();
    let host = testbed.test();
    let options = ["--interval-ms", "100", "--delay-target-ms", "1"];
    let (guard, mut reports) = start_with(host, &options);
    receive_on_test_cpu(&testbed);
    // So slow that its queue is long whenever it may be.
    let slow = ServerConfig {
        work: Duration::from_micros(20),
        rcvbuf_bytes: Some(BUFFER_BYTES / 2),
        ..ServerConfig::new(Kind::Sink, SERVER)
    };
    let _server = Server::start_as_service(host, Path::new(PROGRAM), &slow).unwrap();
    let whole = flood(&testbed, SERVER..=SERVER, RATE_PPS);
    flooded(&testbed, &whole, || {
        let full = ("udp_socket", &["socket_queue", "source_share"][..]);
        await_outcomes(&mut reports, full, 1000);
        let began = Instant::now();
        let mut short = waiting_bytes(host);
        while short > BUFFER_BYTES as u64 / 4 {
            assert!(began.elapsed() < PATIENCE, "{short} bytes wait");
            short = waiting_bytes(host);
        }
        assert!(short > 0);
        let stopped = Stopped::stop(&guard);
        thread::sleep(UNHEARD);
        let began = Instant::now();
        // A full queue is held at seven tenths.
        while waiting_bytes(host) < 2 * short {
            assert!(began.elapsed() < PATIENCE, "{short} bytes waited before");
        }
        let refused = counter(host, "Udp.RcvbufErrors");
        thread::sleep(SECOND);
        let refused = counter(host, "Udp.RcvbufErrors") - refused;
        assert!(refused < RATE_PPS / 100, "{refused} found no room");
        drop(stopped);
        await_outcomes(&mut reports, full, 1000);
    });
}

/// The part of its CPU that a process had meanwhile, by the scheduler's books.
fn share_of(process: &Process, time: Duration) -> f64 {
    let spent = || {
        let stat = fs::read_to_string(format!("/proc/{}/schedstat", process.pid())).unwrap();
        Duration::from_nanos(stat.split(' ').next().unwrap().parse().unwrap())
    };
    let (before, at) = (spent(), Instant::now());
    thread::sleep(time);
    (spent() - before).as_secs_f64() / at.elapsed().as_secs_f64()
}

/// Where the guard is stopped while its polling thread comes before every process, nobody holds the
/// thread back until the keeper does. Everything of the host is on one CPU, the keeper as well. Other
/// processes may have the machine's time for a while, so the best of some tries counts.
#[test]
fn the_polling_thread_of_a_stopped_guard_leaves_a_process_its_time() {
    const FIFO: u32 = 1;
    const UNTIL_RELIEVED: Duration = Duration::from_millis(1500);
    let _one = turn();
    let testbed = Testbed::create(Config::default()).unwrap();
    let host = testbed.test();
    receive_on_test_cpu(&testbed);
    let _server = busy_server(host, SERVER);
    let computing = host.computing().own_session().spawn().unwrap();
    let whole = flood(&testbed, SERVER..=SERVER, 600_000);
    let (stock, _) = flooded(&testbed, &whole, || {
        thread::sleep(SECOND);
        share_of(&computing, 2 * SECOND)
    });
    let options = ["--interval-ms", "100", "--strategy", "thread"];
    let (guard, mut reports) = start_with(host, &options);
    receive_on_test_cpu(&testbed);
    let mut shares = Vec::new();
    let is_enough = |share: &f64| *share >= stock / 2.0;
    flooded(&testbed, &whole, || {
        for _ in 0..10 {
            await_mode(&mut reports, "overload");
            let stopped = Stopped::stop(&guard);
            let threads = settings(host).1;
            if threads.iter().any(|thread| class_of(*thread) == Some(FIFO)) {
                shares.push(share_of(&computing, UNTIL_RELIEVED));
            }
            let began = Instant::now();
            while !settings(host).1.is_empty() {
                assert!(began.elapsed() < PATIENCE, "the keeper does nothing");
                thread::sleep(Duration::from_millis(10));
            }
            drop(stopped);
            if shares.iter().any(is_enough) {
                break;
            }
        }
    });
    assert!(shares.iter().any(is_enough), "{shares:?}, stock {stock}");
}
