//! SYN cookies from XDP: a listener whose SYN queue is full still takes real
//! clients, whose handshakes the stack itself validates; whoever brings no
//! cookie is turned away before it costs anything.

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::socket::{Backlog, listen};

use plimsoll_guard::{Config, Guard, Kind, Outcome, Storage};
use plimsoll_packets::frame::{Packet, TcpFlags};

use crate::common::peer::{Job, NOBODY_V6, OtherEnd, run, with_peer};
use crate::common::syn_queue::{PORT, fill_syn_queue, from_nobody, listener, request};
use crate::common::{HOST_MAC, HOST_V4, HOST_V6, PEER_MAC, PEER_V4, Wire, in_namespace, ip, nft};

const CLIENTS: usize = 20;
/// Before a client asks once more.
const SOON: Duration = Duration::from_millis(900);

/// A client's whole conversation; what went wrong.
fn converse(host: IpAddr) -> Result<(), String> {
    let address = SocketAddr::new(host, PORT);
    let mut stream = TcpStream::connect_timeout(&address, Duration::from_secs(2))
        .map_err(|error| format!("connect: {error}"))?;
    stream
        .set_read_timeout(Some(Duration::from_secs(2)))
        .map_err(|error| error.to_string())?;
    let mut answer = [0; 5];
    stream
        .write_all(b"hello")
        .and_then(|()| stream.read_exact(&mut answer))
        .map_err(|error| format!("converse: {error}"))?;
    if &answer == b"HELLO" {
        Ok(())
    } else {
        Err(format!("{answer:?}"))
    }
}

/// Answers clients until one says "leave".
fn serve(listener: &TcpListener) {
    for stream in listener.incoming() {
        let mut stream = stream.unwrap();
        let mut request = [0; 5];
        if stream.read_exact(&mut request).is_err() {
            continue;
        }
        stream.write_all(&request.to_ascii_uppercase()).unwrap();
        if &request == b"leave" {
            return;
        }
    }
}

fn real_clients_connect(host: IpAddr) {
    with_peer(OtherEnd::Takes, |peer| {
        let mut storage = Storage::default();
        let mut guard = Guard::attach(&mut storage, &Config::default(), "v0").unwrap();
        let server = listener(host);
        fill_syn_queue(peer, host);
        guard.regulate().unwrap();
        let before = *guard.counters().unwrap().of(Kind::TcpListener);

        let answers = thread::scope(|scope| {
            scope.spawn(|| serve(&server));
            let answers = run(peer, move || {
                (0..CLIENTS).map(|_| converse(host)).collect::<Vec<_>>()
            });
            // Not through the guarded interface.
            let mut leave = TcpStream::connect((host, PORT)).unwrap();
            leave.write_all(b"leave").unwrap();
            answers
        });
        let seen = guard.counters().unwrap();
        assert!(answers.iter().all(Result::is_ok), "{answers:?} {seen:?}");
        let after = *guard.counters().unwrap().of(Kind::TcpListener);
        assert!(
            after.count(Outcome::SynCookie) - before.count(Outcome::SynCookie) > 0,
            "{after:?}"
        );
        assert_eq!(after.discarded(), 0, "{after:?}");
    });
}

#[test]
fn real_clients_connect_past_a_full_syn_queue() {
    in_namespace(|| real_clients_connect(HOST_V4.into()));
}

#[test]
fn real_clients_connect_past_a_full_syn_queue_over_ipv6() {
    in_namespace(|| real_clients_connect(HOST_V6.into()));
}

/// Whoever connects from a link-local address, or through a VRF, has a connection that is bound to
/// a device. Not found from below, its segments were taken for forged ends of handshakes.
#[test]
fn segments_of_connections_that_may_be_bound_above_are_admitted() {
    in_namespace(|| {
        with_peer(OtherEnd::Takes, |peer| {
            let mut storage = Storage::default();
            let mut guard = Guard::attach(&mut storage, &Config::default(), "v0").unwrap();
            let host = IpAddr::V6(HOST_V6);
            let _server = listener(host);
            fill_syn_queue(peer, host);
            guard.regulate().unwrap();
            let ack = |from: IpAddr| {
                let packet = Packet::new(from, host).macs(PEER_MAC, HOST_MAC);
                packet.tcp(20_000, PORT, TcpFlags::ACK, &[])
            };
            let (far, near) = (NOBODY_V6.into(), "fe80::9".parse().unwrap());
            let syn = from_nobody(host, 20_000, TcpFlags::SYN);
            let is_admitted = |guard: &mut Guard<'_>, from| {
                assert!(!guard.test_run(&syn, 1).unwrap().0, "the SYN queue is full");
                guard.test_run(&ack(from), 1).unwrap().0
            };
            assert!(!is_admitted(&mut guard, far));
            assert!(is_admitted(&mut guard, near));
            // A bridge stands for a VRF, which not every kernel has.
            ip("link add br0 type bridge");
            ip("link set v0 master br0");
            guard.refresh().unwrap();
            assert!(guard.test_run(&ack(far), 1).unwrap().0);
        });
    });
}

#[test]
fn an_ack_without_a_cookie_is_discarded_only_while_the_syn_queue_is_full() {
    in_namespace(|| {
        with_peer(OtherEnd::Takes, |peer| {
            let mut storage = Storage::default();
            let mut guard = Guard::attach(&mut storage, &Config::default(), "v0").unwrap();
            let server = listener(HOST_V4.into());
            let host = IpAddr::V4(HOST_V4);
            let ack = from_nobody(host, 20_000, TcpFlags::ACK);
            assert!(guard.test_run(&ack, 1).unwrap().0, "the stack refuses it");
            fill_syn_queue(peer, host);
            guard.regulate().unwrap();
            let before = *guard.counters().unwrap().of(Kind::TcpListener);
            let syn = from_nobody(host, 20_000, TcpFlags::SYN);
            assert!(!guard.test_run(&syn, 1).unwrap().0, "answered from XDP");
            assert!(!guard.test_run(&ack, 1).unwrap().0);
            let counters = guard.counters().unwrap();
            let packets = counters.of(Kind::TcpListener);
            let new = |outcome| packets.count(outcome) - before.count(outcome);
            assert_eq!(new(Outcome::SynCookie), 1, "{counters:?}");
            assert_eq!(new(Outcome::NoCookie), 1);
            assert_eq!(new(Outcome::Admitted), 0);
            assert_eq!(packets.discarded(), 1, "an answer is no discard");
            // The queue has room again, and this CPU has seen no SYN since.
            listen(&server, Backlog::new(4096).unwrap()).unwrap();
            assert!(guard.test_run(&ack, 1).unwrap().0, "the stack refuses it");
        });
    });
}

#[test]
fn without_cookies_from_the_driver_the_stack_makes_its_own_or_refuses() {
    in_namespace(|| {
        with_peer(OtherEnd::Takes, |peer| {
            let config = Config {
                syn_cookies: Some(false),
                ..Config::default()
            };
            let mut storage = Storage::default();
            let mut guard = Guard::attach(&mut storage, &config, "v0").unwrap();
            let _server = listener(HOST_V4.into());
            fill_syn_queue(peer, HOST_V4.into());
            let syn = from_nobody(HOST_V4.into(), 20_000, TcpFlags::SYN);
            assert!(guard.test_run(&syn, 1).unwrap().0, "the stack answers");
            assert_eq!(told(&guard), "by=stack reason=switched_off");
            std::fs::write("/proc/sys/net/ipv4/tcp_syncookies", "0").unwrap();
            guard.configure(&Config::default()).unwrap();
            guard.regulate().unwrap();
            assert!(!guard.test_run(&syn, 1).unwrap().0, "the host forbids them");
            assert_eq!(told(&guard), "by=nobody reason=sysctl");
            let counters = guard.counters().unwrap();
            let packets = counters.of(Kind::TcpListener);
            assert_eq!(packets.count(Outcome::SynQueue), 1);
        });
    });
}

#[test]
fn observing_counts_the_cookie_and_lets_the_syn_pass() {
    in_namespace(|| {
        with_peer(OtherEnd::Takes, |peer| {
            let config = Config {
                observe: true,
                ..Config::default()
            };
            let mut storage = Storage::default();
            let mut guard = Guard::attach(&mut storage, &config, "v0").unwrap();
            let _server = listener(HOST_V4.into());
            fill_syn_queue(peer, HOST_V4.into());
            guard.regulate().unwrap();
            let before = *guard.counters().unwrap().of(Kind::TcpListener);
            let syn = from_nobody(HOST_V4.into(), 20_000, TcpFlags::SYN);
            assert!(guard.test_run(&syn, 1).unwrap().0);
            let after = *guard.counters().unwrap().of(Kind::TcpListener);
            let new = after.count(Outcome::SynCookie) - before.count(Outcome::SynCookie);
            assert_eq!(new, 1, "{after:?}");
        });
    });
}

/// Runs `job` on the peer; the guard goes on looking after itself meanwhile, as
/// its own loop does.
fn run_beside<T: Send + 'static>(
    peer: &Sender<Job>,
    guard: &mut Guard<'_>,
    job: impl FnOnce() -> T + Send + 'static,
) -> T {
    let (done, result) = channel();
    let job = move || done.send(job()).expect("the test waits");
    peer.send(Box::new(job)).unwrap();
    let mut refreshed = Instant::now();
    loop {
        guard.regulate().unwrap();
        if let Ok(result) = result.recv_timeout(Duration::from_millis(50)) {
            return result;
        }
        if refreshed.elapsed() >= Duration::from_secs(1) {
            refreshed = Instant::now();
            guard.refresh().unwrap();
        }
    }
}

/// Serves while clients converse with the host, which they do `times` times over.
fn conversations(
    peer: &Sender<Job>,
    guard: &mut Guard<'_>,
    host: IpAddr,
    times: usize,
) -> Vec<Result<(), String>> {
    let conversing = move || (0..times).map(|_| converse(host)).collect();
    conversations_as(peer, guard, host, conversing)
}

fn conversations_as<T: Send + 'static>(
    peer: &Sender<Job>,
    guard: &mut Guard<'_>,
    host: IpAddr,
    conversing: impl FnOnce() -> T + Send + 'static,
) -> T {
    let server = listener(host);
    fill_syn_queue(peer, host);
    thread::scope(|scope| {
        scope.spawn(|| serve(&server));
        let answers = run_beside(peer, guard, conversing);
        let mut leave = TcpStream::connect((host, PORT)).unwrap();
        leave.write_all(b"leave").unwrap();
        answers
    })
}

/// Beside SYNs from nobody, some ten thousand a second.
fn flooded_conversations(
    peer: &Sender<Job>,
    guard: &mut Guard<'_>,
    host: IpAddr,
) -> Vec<Result<(), String>> {
    let flooded = move || {
        let is_over = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                let wire = Wire::open();
                for port in (10_000..60_000).cycle() {
                    if is_over.load(Ordering::Relaxed) {
                        break;
                    }
                    wire.send(&from_nobody(host, port, TcpFlags::SYN));
                    if port % 16 == 0 {
                        thread::sleep(Duration::from_millis(1));
                    }
                }
            });
            let answers = (0..CLIENTS).map(|_| converse(host)).collect();
            is_over.store(true, Ordering::Relaxed);
            answers
        })
    };
    conversations_as(peer, guard, host, flooded)
}

/// Who answers, and why, as operators are told.
fn told(guard: &Guard<'_>) -> String {
    let decided = guard.syn_cookies().expect("it is attached");
    decided.to_string()
}

/// On a plain veth, as a container has, nobody polls at the other end: the link
/// drops what XDP sends back. All clients were lost while the program answered.
#[test]
fn where_answers_cannot_arrive_the_stack_makes_its_own() {
    in_namespace(|| {
        with_peer(OtherEnd::Refuses, |peer| {
            let mut storage = Storage::default();
            let mut guard = Guard::attach(&mut storage, &Config::default(), "v0").unwrap();
            let answers = conversations(peer, &mut guard, HOST_V4.into(), CLIENTS);
            assert!(answers.iter().all(Result::is_ok), "{answers:?}");
            guard.refresh().unwrap();
            assert_eq!(told(&guard), "by=stack reason=link_refused");
            let counters = guard.counters().unwrap();
            let answered = counters.of(Kind::TcpListener).count(Outcome::SynCookie);
            assert!(
                (1..=16).contains(&answered),
                "one batch at most: {answered}"
            );
        });
    });
}

/// With GRO and no program at the other end, what `XDP_TX` sends waits there until the stack sends
/// something. Once that had filled the ring, nothing of this host arrived any more, whoever sent it.
#[test]
fn an_other_end_that_only_aggregates_gets_each_answer() {
    in_namespace(|| {
        with_peer(OtherEnd::Aggregates, |peer| {
            let mut storage = Storage::default();
            let mut guard = Guard::attach(&mut storage, &Config::default(), "v0").unwrap();
            let host = IpAddr::V4(HOST_V4);
            let server = listener(host);
            fill_syn_queue(peer, host);
            guard.regulate().unwrap();
            let reachable = || TcpStream::connect_timeout(&(PEER_V4, 9).into(), SOON);
            assert_eq!(
                reachable().unwrap_err().kind(),
                ErrorKind::ConnectionRefused
            );
            // More than a ring of veth holds.
            request(peer, host, 1000);
            let counters = guard.counters().unwrap();
            let answered = counters.of(Kind::TcpListener).count(Outcome::SynCookie);
            assert_eq!(
                reachable().unwrap_err().kind(),
                ErrorKind::ConnectionRefused
            );
            thread::scope(|scope| {
                scope.spawn(|| serve(&server));
                let began = Instant::now();
                let answers = run_beside(peer, &mut guard, move || converse(host));
                assert_eq!(answers, Ok(()));
                assert!(began.elapsed() < SOON, "a client asked once more");
                let mut leave = TcpStream::connect((host, PORT)).unwrap();
                leave.write_all(b"leave").unwrap();
            });
            assert!(answered >= 900, "{answered}");
        });
    });
}

/// Rules that refuse a handshake's end whose beginning connection tracking never saw.
const WANTS_THE_SYN: &str = "add table t; add chain t c { type filter hook input priority 0; }; \
    add rule t c ct state new tcp flags & (syn|ack) != syn drop; \
    add rule t c ct state invalid drop";

const DRIVER: &str = "by=driver reason=no_objection";
const STACK: &str = "by=stack reason=packet_filter";

/// Until operators are told this: another thread reads the packet filter's rules.
fn await_answerer(guard: &mut Guard<'_>, answerer: &str) {
    let end = Instant::now() + Duration::from_secs(20);
    guard.refresh().unwrap();
    while told(guard) != answerer {
        assert!(Instant::now() < end, "{}", told(guard));
        thread::sleep(Duration::from_millis(10));
        guard.refresh().unwrap();
    }
}

/// Clients of a host whose rules are `before`, and `then` after the first of them, each with who
/// is to answer: what became of both, and how many SYNs the program answered each time.
fn beside_rules(before: (&str, &str), then: (&str, &str)) -> [(Vec<Result<(), String>>, u64); 2] {
    in_namespace(move || {
        let mut results = Vec::new();
        with_peer(OtherEnd::Takes, |peer| {
            nft(before.0);
            let mut storage = Storage::default();
            let mut guard = Guard::attach(&mut storage, &Config::default(), "v0").unwrap();
            for (rules, answerer) in [("", before.1), then] {
                nft(rules);
                await_answerer(&mut guard, answerer);
                let answered = |guard: &mut Guard<'_>| {
                    let counters = guard.counters().unwrap();
                    counters.of(Kind::TcpListener).count(Outcome::SynCookie)
                };
                let before = answered(&mut guard);
                let answers = flooded_conversations(peer, &mut guard, HOST_V4.into());
                results.push((answers, answered(&mut guard) - before));
            }
        });
        results.try_into().expect("two")
    })
}

/// A packet filter that never saw the SYN refuses the handshake's end. Eight handshakes
/// were lost before the guard noticed.
#[test]
fn where_a_packet_filter_wants_the_syn_no_handshake_is_lost() {
    for (answers, by_driver) in beside_rules((WANTS_THE_SYN, STACK), ("", STACK)) {
        assert!(answers.iter().all(Result::is_ok), "{answers:?}");
        assert_eq!(by_driver, 0, "the stack answers");
    }
}

#[test]
fn rules_that_come_and_go_are_followed() {
    let [before, with_rules] = beside_rules(("", DRIVER), (WANTS_THE_SYN, STACK));
    assert!(before.0.iter().all(Result::is_ok), "{before:?}");
    assert!(before.1 > 0, "nothing speaks against answers");
    assert!(with_rules.0.iter().all(Result::is_ok), "{with_rules:?}");
    assert_eq!(with_rules.1, 0, "the stack answers");
    let [_, without] = beside_rules((WANTS_THE_SYN, STACK), ("flush ruleset", DRIVER));
    assert!(without.0.iter().all(Result::is_ok), "{without:?}");
    assert!(without.1 > 0, "the rules are gone");
}

/// The rules of iptables speak of the same in other words.
#[test]
fn rules_of_iptables_that_want_the_syn_are_understood() {
    in_namespace(|| {
        for (rule, wants_the_syn) in [
            ("-p tcp -m conntrack --ctstate ESTABLISHED -j ACCEPT", false),
            ("-p tcp --syn -j ACCEPT", false),
            ("-p tcp ! --syn -m conntrack --ctstate NEW -j DROP", true),
        ] {
            let status = Command::new("iptables").args(["-F", "INPUT"]).status();
            assert!(status.expect("iptables is installed").success());
            let words = ["-A", "INPUT"].into_iter().chain(rule.split(' '));
            let status = Command::new("iptables").args(words).status();
            assert!(status.unwrap().success(), "{rule}");
            let check = plimsoll_guard::check::check("v0").unwrap();
            let finding = check.findings.iter().find(|one| one.id == "syn_cookies");
            let said = finding.unwrap().found.contains("packet filter");
            assert_eq!(said, wants_the_syn, "{rule}: {finding:?}");
        }
    });
}

/// What most firewalls say takes the end of a handshake as well as its beginning.
#[test]
fn a_firewall_that_takes_the_handshake_s_end_keeps_the_driver_answering() {
    let usual = "add table t; \
        add chain t c { type filter hook input priority 0; policy drop; }; \
        add rule t c ct state established,related accept; \
        add rule t c ct state invalid drop; \
        add rule t c iif lo accept; \
        add rule t c tcp dport 80 accept";
    let [(answers, by_driver), _] = beside_rules((usual, DRIVER), ("", DRIVER));
    assert!(answers.iter().all(Result::is_ok), "{answers:?}");
    assert!(by_driver > 0, "nothing speaks against answers");
}

/// Rules that the guard cannot read. Eight handshakes were lost before it noticed.
#[test]
fn where_a_packet_filter_cannot_be_read_the_stack_answers_unless_the_driver_is_asked_for() {
    for (rule, wanted) in [
        ("-p tcp ! --syn -m conntrack --ctstate NEW -j DROP", None),
        ("-p tcp --syn -j ACCEPT", Some(true)),
    ] {
        in_namespace(|| {
            with_peer(OtherEnd::Takes, |peer| {
                let words = ["-A", "INPUT"].into_iter().chain(rule.split(' '));
                let status = Command::new("iptables-legacy").args(words).status();
                assert!(status.expect("iptables is installed").success(), "{rule}");
                let config = Config {
                    syn_cookies: wanted,
                    ..Config::default()
                };
                let mut storage = Storage::default();
                let mut guard = Guard::attach(&mut storage, &config, "v0").unwrap();
                let answers = flooded_conversations(peer, &mut guard, HOST_V4.into());
                assert!(answers.iter().all(Result::is_ok), "{rule}: {answers:?}");
                let counters = guard.counters().unwrap();
                let by_driver = counters.of(Kind::TcpListener).count(Outcome::SynCookie);
                assert_eq!(by_driver > 0, wanted == Some(true), "{rule}: {by_driver}");
            });
        });
    }
}

/// Rules that the guard cannot judge: what the stack refuses is noticed.
#[test]
fn a_packet_filter_that_is_not_understood_is_noticed() {
    in_namespace(|| {
        with_peer(OtherEnd::Takes, |peer| {
            // A SYN is known here by its length.
            nft(
                "add table t; add set t seen { type ipv4_addr . inet_service; flags dynamic; }; \
                 add chain t c { type filter hook input priority 0; }; \
                 add rule t c ip saddr 198.18.0.1 tcp dport 80 meta length 60 add @seen { ip saddr . tcp sport }; \
                 add rule t c ip saddr 198.18.0.1 tcp dport 80 ip saddr . tcp sport != @seen drop",
            );
            let mut storage = Storage::default();
            let mut guard = Guard::attach(&mut storage, &Config::default(), "v0").unwrap();
            let answers = conversations(peer, &mut guard, HOST_V4.into(), 2 * CLIENTS);
            assert_eq!(told(&guard), "by=stack reason=not_taken", "{answers:?}");
            let last = &answers[CLIENTS..];
            assert!(last.iter().all(Result::is_ok), "{answers:?}");
        });
    });
}

/// The same known beforehand: connection tracking is told to refuse them all.
#[test]
fn where_connection_tracking_takes_whole_connections_only_nothing_is_answered() {
    in_namespace(|| {
        with_peer(OtherEnd::Takes, |peer| {
            nft(
                "add table t; add chain t c { type filter hook input priority 0; }; \
                 add rule t c ct state invalid drop",
            );
            let loose = "/proc/sys/net/netfilter/nf_conntrack_tcp_loose";
            std::fs::write(loose, "0").expect("connection tracking is there");
            let mut storage = Storage::default();
            let mut guard = Guard::attach(&mut storage, &Config::default(), "v0").unwrap();
            let answers = conversations(peer, &mut guard, HOST_V4.into(), CLIENTS);
            assert!(answers.iter().all(Result::is_ok), "{answers:?}");
            let counters = guard.counters().unwrap();
            let packets = counters.of(Kind::TcpListener);
            assert_eq!(packets.count(Outcome::SynCookie), 0);
            assert_eq!(told(&guard), "by=stack reason=packet_filter");
        });
    });
}
