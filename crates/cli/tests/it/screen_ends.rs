//! `plimsoll screen` when something around it goes, or comes: an interface, a receive queue, who
//! reads what it says. Needs root.

use std::fs;
use std::io::{Read, Write, pipe};
use std::path::Path;
use std::process::Stdio;
use std::sync::atomic::AtomicBool;
use std::thread;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::signal::Signal;
use plimsoll_programs::screen::{Error, ScreenConfig, Side, Verdict};
use plimsoll_testbed::Host;
use plimsoll_testbed::blast::{Bound, Stop};

use crate::common::{LIMIT, PROGRAM};
use crate::screening::{
    Ending, Line, NOISE, arrived, blast_from, end, open, received, received_of, settle, shell,
};

/// Room of a pipe (pipe(7)).
const PIPE_BYTES: usize = 1 << 16;

fn write_rules(path: &Path, port: u16) {
    let rule = format!("[[rule]]\nfilter = 'arp or udp dst port {port}'\nverdict = 'accept'\n");
    fs::write(path, format!("default = 'discard'\n{rule}")).unwrap();
}

fn eventually(what: &str, is_so: impl Fn() -> bool) {
    let end_at = Instant::now() + LIMIT;
    while !is_so() {
        assert!(Instant::now() < end_at, "{what}");
        thread::sleep(Duration::from_millis(20));
    }
}

fn said(host: &Host, words: &str) -> String {
    let mut command = host.command("sh");
    let output = command.args(["-c", words]).output(LIMIT).unwrap();
    String::from_utf8(output.stdout).unwrap()
}

/// It had screened on for ever, and what could not leave was in no count.
#[test]
fn a_deleted_interface_ends_it_and_every_frame_is_counted() {
    let line = Line::new();
    let test = line.testbed.test();
    let config = ScreenConfig::between(test.device(), "out0");
    let firewall = open(test, &config);
    let (out, stop) = (line.listen(7001), AtomicBool::new(false));
    let before = arrived(&line);
    let (ended, is_late) = thread::scope(|scope| {
        let ending = Ending(&stop);
        let screen = Box::new(|_: &[u8], _: Side| Verdict::Accept);
        let running = scope.spawn(|| test.run(|| firewall.run(screen, &stop)).unwrap());
        eventually("it screens", || firewall.is_screening());
        line.send(7001, 200);
        eventually("frames come out", || received(&out) > 0);
        shell(test, "ip link del out0");
        let end_at = Instant::now() + LIMIT;
        while !running.is_finished() && Instant::now() < end_at {
            line.send(7001, 1);
            thread::sleep(Duration::from_millis(50));
        }
        let is_late = !running.is_finished();
        drop(ending);
        (running.join().unwrap(), is_late)
    });
    let came = arrived(&line) - before;
    assert!(!is_late, "it ends by itself: {ended:?}");
    let error = ended.unwrap_err();
    let Error::Ended { source, counts } = &error else {
        panic!("{error}");
    };
    let inside = counts.inside;
    // Who sends a frame notices it first, or who looks once a second.
    let refused = source.raw_os_error() == Some(Errno::ENXIO as i32);
    let is_told = refused || source.to_string().contains("the interface is gone");
    assert!(is_told, "{error}");
    assert!(inside.output > 0 || !refused, "{inside:?}");
    assert!(inside.accepted >= 200, "{inside:?}");
    assert!(
        inside.received().abs_diff(came) <= NOISE,
        "{came}: {inside:?}"
    );
}

/// Without a carrier the kernel dropped them and told nobody, so they counted as accepted. Of an
/// interface that was down it kept 2,048, and sent them when that was up again.
#[test]
fn frames_for_a_link_that_is_down_are_not_sent_and_count_so() {
    let line = Line::new();
    let test = line.testbed.test();
    let directory = tempfile::tempdir().unwrap();
    let rules = directory.path().join("rules.toml");
    write_rules(&rules, 7001);
    let out = line.listen(7001);
    let (process, _says) = line.start(&rules, &[]);
    let far = format!("ip netns exec {} ip link set far0", line.behind);
    let states = || said(test, "cat /sys/class/net/out0/operstate");
    for set in ["ip link set out0", &far] {
        shell(test, &format!("{set} down"));
        eventually("the kernel notices", || states().contains("down"));
        thread::sleep(Duration::from_millis(20));
        line.send(7001, 500);
        settle(&line);
        shell(test, &format!("{set} up"));
        eventually("the kernel notices", || states().trim() == "up");
        assert_eq!(received(&out), 0, "{set}");
        line.send(7001, 100);
        assert!(received(&out) > 0, "{set}");
    }
    let counts = end(process);
    let (output, accepted) = (&counts["inside"]["output"], &counts["inside"]["accepted"]);
    assert!(output.as_u64().unwrap() >= 1000, "{counts}");
    assert!(accepted.as_u64().unwrap() <= 200 + NOISE, "{counts}");
}

/// It had told only that its counts could not be written.
#[test]
fn why_it_ended_is_told_also_where_its_counts_cannot_be_written() {
    let line = Line::new();
    let test = line.testbed.test();
    let directory = tempfile::tempdir().unwrap();
    let rules = directory.path().join("rules.toml");
    write_rules(&rules, 7001);
    let mut command = test.command(PROGRAM);
    let to = ["--json", "/dev/full", "--rules"];
    command
        .args(["screen", test.device(), "out0"])
        .args(to)
        .arg(&rules)
        .stderr(Stdio::piped());
    let (mut process, mut says) = line.started(&mut command);
    shell(test, "ip link del out0");
    assert_eq!(process.wait(LIMIT).unwrap().code(), Some(1));
    let mut told = String::new();
    says.read_to_string(&mut told).unwrap();
    assert!(told.contains("cannot receive or send frames"), "{told}");
}

/// Frames for the hosts behind bear no address of the adapter's, which dropped them.
#[test]
fn adapters_receive_frames_for_others_as_long_as_it_lives() {
    let line = Line::new();
    let test = line.testbed.test();
    let promiscuous = || {
        said(test, "ip -d link show")
            .matches("promiscuity 1")
            .count()
    };
    let directory = tempfile::tempdir().unwrap();
    let rules = directory.path().join("rules.toml");
    write_rules(&rules, 7001);
    for signal in [Signal::SIGINT, Signal::SIGKILL] {
        assert_eq!(promiscuous(), 0, "before {signal}");
        let (mut process, _says) = line.start(&rules, &[]);
        assert_eq!(promiscuous(), 2, "until {signal}");
        process.signal(signal).unwrap();
        process.wait(LIMIT).unwrap();
        eventually("adapters are as they were", || promiscuous() == 0);
    }
}

/// `eprintln!` had ended the loop that takes signals, and nothing else.
#[test]
fn rules_are_read_anew_when_nobody_reads_standard_error() {
    let line = Line::new();
    let directory = tempfile::tempdir().unwrap();
    let rules = directory.path().join("rules.toml");
    write_rules(&rules, 7001);
    let (process, says) = line.start(&rules, &[]);
    drop(says);
    for port in [7002, 7003] {
        let socket = line.listen(port);
        write_rules(&rules, port);
        process.signal(Signal::SIGHUP).unwrap();
        eventually(&format!("rules with port {port} count"), || {
            line.send(port, 10);
            received(&socket) > 0
        });
    }
    assert_eq!(end(process)["reloads"], 2);
}

/// The firewall had lived until its counts were written.
#[test]
fn interfaces_are_given_back_although_nobody_reads_the_counts() {
    let line = Line::new();
    let test = line.testbed.test();
    let directory = tempfile::tempdir().unwrap();
    let rules = directory.path().join("rules.toml");
    write_rules(&rules, 7001);
    let (mut reader, mut writer) = pipe().unwrap();
    writer.write_all(&[b' '; PIPE_BYTES]).unwrap();
    let mut command = test.command(PROGRAM);
    command
        .args(["screen", test.device(), "out0", "--json", "-", "--rules"])
        .arg(&rules)
        .stdout(writer)
        .stderr(Stdio::piped());
    let (mut process, _says) = line.started(&mut command);
    // Or this process would keep the pipe open.
    drop(command);
    let has_program = || said(test, "ip -details link show").contains("xdp");
    assert!(has_program());
    process.signal(Signal::SIGINT).unwrap();
    eventually("the interfaces are the kernel's", || !has_program());
    assert!(process.try_wait().unwrap().is_none(), "it waits to write");
    let mut text = String::new();
    reader.read_to_string(&mut text).unwrap();
    assert!(text.contains("accepted"), "{text}");
    assert!(process.wait(LIMIT).unwrap().success());
}

/// Frames of a queue that was added later are discarded, as nobody screens them. They had been in
/// no count, and nothing was said.
#[test]
fn frames_of_a_receive_queue_that_came_later_are_counted_and_told() {
    let line = Line::new();
    let (load, test) = (line.testbed.load(), line.testbed.test());
    let channels = |host: &Host, count: u32| {
        let words = format!("ethtool -L {} rx {count} tx {count}", host.device());
        shell(host, &words);
    };
    channels(load, 1);
    channels(test, 1);
    let directory = tempfile::tempdir().unwrap();
    let rules = directory.path().join("rules.toml");
    write_rules(&rules, 7001);
    let (process, mut says) = line.start(&rules, &[]);
    channels(test, 2);
    channels(load, 2);
    // Not before does veth run the program for a queue that came later.
    test.ip(&format!("link set {} down", test.device()))
        .unwrap();
    test.ip(&format!("link set {} up", test.device())).unwrap();
    let before = arrived(&line);
    // What a CPU sends arrives in the queue with its number.
    let sent = [load.cpu(), test.cpu()].map(|cpu| {
        let bound = Bound {
            time: LIMIT,
            frames: 4_096,
        };
        blast_from(&line, cpu, 5_000, bound, &Stop::new()).sent
    });
    settle(&line);
    let came = arrived(&line) - before;
    // It looks once a second.
    thread::sleep(Duration::from_millis(1100));
    let counts = end(process);
    let inside = &counts["inside"];
    // A busy host's ring lost 172 of 4,096 once (the bounds were 4,000, 4,000 and 3,000). Where the
    // fault is, nothing of the later queue is in a count.
    assert!(sent.iter().all(|sent| *sent > 2_000), "{sent:?}");
    assert!(inside["failed"].as_u64().unwrap() > 2_000, "{counts}");
    assert!(inside["accepted"].as_u64().unwrap() > 1_500, "{counts}");
    assert!(
        received_of(inside).abs_diff(came) <= NOISE,
        "{came}: {counts}"
    );
    let mut told = String::new();
    says.read_to_string(&mut told).unwrap();
    let expected = format!("queue 1 of {} has no socket", test.device());
    assert!(told.contains(&expected), "{told}");
}
