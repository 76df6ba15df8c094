//! The monitor on a real link. Needs root. What a user sees of it is in the command's tests.

use std::net::UdpSocket;
use std::sync::atomic::AtomicBool;
use std::thread;
use std::time::Duration;

use pcap_file::pcapng::blocks::enhanced_packet::EnhancedPacketOption;
use pcap_file::pcapng::{Block, PcapNgReader};
use plimsoll_programs::capture::{Capture, CaptureConfig, Output};
use plimsoll_testbed::blast::{Blast, Bound, Flow, Report, Schedule, Spec, Stop, Transport};
use plimsoll_testbed::placement::Placement;
use plimsoll_testbed::{Config, Testbed};

fn testbed() -> Testbed {
    let testbed = Testbed::create(Config::default()).expect("two hosts");
    let holdoff = Duration::from_micros(100);
    Placement::Softirq { holdoff }.apply(&testbed).unwrap();
    testbed
}

/// Packets to port 9 of the test host.
fn blast(testbed: &Testbed, rate_pps: u64, frames: u64) -> Report {
    let (load, test) = (testbed.load(), testbed.test());
    let flow = Flow {
        source: "198.18.7.0/24".parse().unwrap(),
        source_ports: 2000..=2003,
        destination: test.ipv4().into(),
        destination_ports: 9..=9,
        transport: Transport::Udp {
            payload: vec![0; 18],
        },
    };
    let schedule = Schedule::Fixed { rate_pps };
    let mut spec = Spec::new(load.device(), test.mac(), flow, schedule);
    spec.bound = Bound {
        time: Duration::from_secs(20),
        frames,
    };
    let run = || Blast::load(&spec)?.run(&Stop::new());
    load.run_on_cpu(run).unwrap().unwrap()
}

/// tcpdump shows them, and each once. It was refused, since loopback is no Ethernet.
#[test]
fn packets_of_loopback_are_captured_once() {
    let testbed = testbed();
    for filter in ["udp dst port 9", ""] {
        let config = CaptureConfig {
            filter: filter.to_owned(),
            ..CaptureConfig::new("lo", Output::File("/dev/null".into()))
        };
        let sent = || {
            let capture = Capture::open(&config).expect("the capture opens");
            let taker = UdpSocket::bind("127.0.0.1:9").unwrap();
            let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
            for _ in 0..20 {
                sender.send_to(b"here", "127.0.0.1:9").unwrap();
            }
            // To another port: nobody has it, so an answer comes back.
            sender.send_to(b"there", "127.0.0.1:10").unwrap();
            drop(taker);
            let over = AtomicBool::new(true);
            capture.run(&over)
        };
        let (summary, ended) = testbed.test().run(sent).unwrap();
        ended.expect("nothing failed");
        let counts = summary.counts;
        let expected = if filter.is_empty() { (22, 0) } else { (20, 2) };
        assert_eq!((counts.recorded, counts.filtered), expected, "{summary:?}");
    }
}

/// A capture that is far behind when its end comes: a large ring holds several hundred
/// thousand packets. It took 131,072 of them, and the others were in no count.
#[test]
fn what_waits_in_the_ring_at_the_end_is_counted() {
    let testbed = testbed();
    let config = CaptureConfig {
        filter: "udp dst port 9".to_owned(),
        ring_bytes: 256 << 20,
        ..CaptureConfig::new(testbed.test().device(), Output::File("/dev/null".into()))
    };
    let open = || Capture::open(&config).expect("the capture opens");
    let capture = testbed.test().run(open).unwrap();
    let report = blast(&testbed, 100_000, 200_000);
    assert!(report.sent > 150_000, "{report}");
    // What is on its way.
    thread::sleep(Duration::from_millis(100));
    let over = AtomicBool::new(true);
    let (summary, ended) = testbed.test().run(|| capture.run(&over)).unwrap();
    ended.expect("nothing failed");
    let counts = summary.counts;
    let seen = counts.ring + counts.sampled + counts.queue + counts.recorded;
    // On a busy machine the kernel had once no room for one of 199,938, and counted it.
    assert_eq!(seen, report.sent, "{summary:?}");
    assert!(counts.recorded > 150_000, "{summary:?}");
}

/// A block of the ring counts as used with a packet or with many, and each is handed over after some
/// milliseconds: 32 MiB took no third of a second of whatever came.
#[test]
fn what_arrives_in_a_second_is_waited_for_by_the_ring_however_little() {
    let testbed = testbed();
    let config = CaptureConfig {
        filter: "udp dst port 9".to_owned(),
        ..CaptureConfig::new(testbed.test().device(), Output::File("/dev/null".into()))
    };
    let open = || Capture::open(&config).expect("the capture opens");
    let capture = testbed.test().run(open).unwrap();
    let report = blast(&testbed, 1000, 1000);
    let over = AtomicBool::new(true);
    let (summary, ended) = testbed.test().run(|| capture.run(&over)).unwrap();
    ended.expect("nothing failed");
    assert_eq!(summary.counts.ring, 0, "{summary:?}");
    assert!(summary.counts.recorded + 50 > report.sent, "{summary:?}");
}

/// Losses of a capture's last second were told by none of the packets that came behind them.
#[test]
fn packets_behind_the_last_losses_tell_them() {
    let testbed = testbed();
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("lost.pcapng");
    let config = CaptureConfig {
        ring_bytes: 1 << 20,
        ..CaptureConfig::new(testbed.test().device(), Output::File(file.clone()))
    };
    let open = || Capture::open(&config).expect("the capture opens");
    let capture = testbed.test().run(open).unwrap();
    blast(&testbed, 50_000, 50_000);
    let over = AtomicBool::new(true);
    let (summary, ended) = testbed.test().run(|| capture.run(&over)).unwrap();
    ended.expect("nothing failed");
    let counts = summary.counts;
    assert!(counts.ring > 1000 && counts.recorded > 0, "{summary:?}");
    assert_eq!(
        told(&std::fs::read(file).unwrap()),
        counts.ring,
        "{summary:?}"
    );
}

/// Lost packets that packets tell.
fn told(file: &[u8]) -> u64 {
    let mut reader = PcapNgReader::new(file).unwrap();
    let mut told = 0;
    while let Some(block) = reader.next_block() {
        if let Block::EnhancedPacket(packet) = block.unwrap() {
            told += packet.options.iter().fold(0, |sum, option| match option {
                EnhancedPacketOption::DropCount(lost) => sum + lost,
                _ => sum,
            });
        }
    }
    told
}
