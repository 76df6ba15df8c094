//! How `plimsoll capture` ends while what it writes to takes nothing, or takes no more. Needs
//! root.

use std::fs::{self, File};
use std::io::Read;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Stdio;
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use pcap_file::pcapng::{Block, PcapNgReader};
use plimsoll_testbed::{Host, Process};
use serde_json::Value;

use crate::capturing::{blast, running, start, start_on_small_disk, sum, testbed};
use crate::common::{LIMIT, PROGRAM};

/// Whether an XDP program has the host's interface.
fn is_taken(host: &Host) -> bool {
    let mut command = host.command("ip");
    let shown = command.args(["link", "show", host.device()]).output(LIMIT);
    String::from_utf8(shown.unwrap().stdout)
        .unwrap()
        .contains("prog/xdp")
}

fn results(document: &Path) -> Value {
    let text = fs::read_to_string(document).unwrap();
    let document: Value = serde_json::from_str(&text).unwrap();
    document["results"].clone()
}

/// A reader that takes nothing. The capture kept the interface, and only SIGKILL ended it.
#[test]
fn a_blocked_writer_holds_neither_the_interface_nor_a_later_signal() {
    for mode in ["take", "copy"] {
        let testbed = testbed();
        let host = testbed.test();
        let arguments = ["--mode", mode, "-w", "-", "--queue", "1M"];
        let (mut process, _output) = start(&testbed, &arguments);
        blast(&testbed, 100_000, 60_000);
        assert_eq!(is_taken(host), mode == "take");
        // Some send each signal twice, as timeout(1) does.
        process.signal(Signal::SIGTERM).unwrap();
        process.signal(Signal::SIGTERM).unwrap();
        let end = Instant::now() + LIMIT;
        while is_taken(host) {
            assert!(Instant::now() < end, "the interface is still taken");
            thread::sleep(Duration::from_millis(50));
        }
        let ended = process.try_wait().unwrap();
        assert_eq!(ended, None, "{mode}: the queue was not written");
        let status = loop {
            if let Some(status) = process.try_wait().unwrap() {
                break status;
            }
            assert!(Instant::now() < end, "{mode}: it goes on");
            thread::sleep(Duration::from_millis(200));
            let _ = process.signal(Signal::SIGTERM);
        };
        assert_eq!(status.signal(), Some(Signal::SIGTERM as i32), "{mode}");
    }
}

/// What was in the queue was in no count.
#[test]
fn a_reader_that_goes_away_ends_it_and_every_packet_is_counted() {
    let testbed = testbed();
    let directory = tempfile::tempdir().unwrap();
    let json = directory.path().join("json");
    let arguments = ["-w", "-", "--json", json.to_str().unwrap()];
    let (mut process, output) = start(&testbed, &arguments);
    // Much more than a pipe holds.
    let report = blast(&testbed, 20_000, 10_000);
    drop(output);
    assert!(process.wait(LIMIT).unwrap().success());
    let results = results(&json);
    let (counts, interface) = (&results["counts"], &results["interface_counts"]);
    let passed = ["received", "sent"].map(|way| interface[way].as_u64().unwrap());
    assert_eq!(sum(counts), passed[0] + passed[1], "{results}");
    assert!(sum(counts) >= report.sent, "{results}");
    assert!(counts["disk"].as_u64().unwrap() > 0, "{results}");
}

/// It panicked, and its document was lost: a terminal that closes takes standard error with it.
#[test]
fn a_terminal_that_closes_costs_nothing_but_what_it_would_have_shown() {
    let testbed = testbed();
    let host = testbed.test();
    let directory = tempfile::tempdir().unwrap();
    let json = directory.path().join("json");
    let mut process = on_a_terminal(host, "--default-signal=HUP", &json);
    process.signal(Signal::SIGHUP).unwrap();
    assert_eq!(process.wait(LIMIT).unwrap().code(), Some(0));
    let results = results(&json);
    assert!(results["counts"]["recorded"].is_u64(), "{results}");
}

/// A capture that runs, started so (env(1)). Nobody reads what it says.
fn on_a_terminal(host: &Host, signals: &str, json: &Path) -> Process {
    let mut command = host.command("env");
    command
        .args([signals, PROGRAM, "capture", host.device()])
        .args(["-w", "/dev/null", "--json"])
        .arg(json)
        .stderr(Stdio::piped());
    running(command).0
}

/// Under nohup(1) it ended with its terminal.
#[test]
fn a_terminal_that_closes_does_not_end_a_capture_that_is_to_survive_it() {
    let testbed = testbed();
    let host = testbed.test();
    let directory = tempfile::tempdir().unwrap();
    let json = directory.path().join("json");
    let mut process = on_a_terminal(host, "--ignore-signal=HUP", &json);
    process.signal(Signal::SIGHUP).unwrap();
    blast(&testbed, 1_000, 300);
    assert_eq!(process.try_wait().unwrap(), None);
    process.signal(Signal::SIGTERM).unwrap();
    assert_eq!(process.wait(LIMIT).unwrap().code(), Some(0));
    let recorded = results(&json)["counts"]["recorded"].as_u64().unwrap();
    assert!(recorded >= 300, "{recorded}");
}

/// Packets of whole blocks, in a file whose last block may be cut off.
fn packets(path: &Path) -> u64 {
    let mut reader = PcapNgReader::new(File::open(path).unwrap()).unwrap();
    let mut packets = 0;
    while let Some(Ok(block)) = reader.next_block() {
        packets += u64::from(matches!(block, Block::EnhancedPacket(_)));
    }
    packets
}

/// It went on, and each further try damaged the file in its middle.
#[test]
fn standard_output_on_a_full_disk_ends_it() {
    let testbed = testbed();
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path().to_str().unwrap();
    let words = format!("--duration 30 -w - --json {place}/json > {place}/disk/full.pcapng");
    let (mut process, mut says) = start_on_small_disk(testbed.test(), place, &words);
    blast(&testbed, 20_000, 20_000);
    let status = process.wait(LIMIT).expect("it ends before its time");
    assert_eq!(status.code(), Some(1));
    let mut rest = String::new();
    says.read_to_string(&mut rest).unwrap();
    assert!(rest.contains("cannot write standard output"), "{rest}");
    assert_eq!(rest.matches("No space left").count(), 1, "{rest}");
    let results = results(&directory.path().join("json"));
    let counts = &results["counts"];
    assert!(counts["disk"].as_u64().unwrap() > 0, "{results}");
    let packets = packets(&directory.path().join("full.pcapng"));
    let recorded = counts["recorded"].as_u64().unwrap();
    assert!(recorded > 0 && packets >= recorded, "{packets}: {results}");
}
