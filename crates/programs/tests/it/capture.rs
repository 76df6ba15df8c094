//! The monitor on a real link. Needs root. What a user sees of it is in the command's tests.

use std::sync::atomic::AtomicBool;
use std::thread;
use std::time::Duration;

use plimsoll_programs::capture::{Capture, CaptureConfig, Output};
use plimsoll_testbed::blast::{Blast, Bound, Flow, Report, Schedule, Spec, Stop, Transport};
use plimsoll_testbed::placement::Placement;
use plimsoll_testbed::{Config, Testbed};

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

/// A capture that is far behind when its end comes: a large ring holds several hundred
/// thousand packets. It took 131,072 of them, and the others were in no count.
#[test]
fn what_waits_in_the_ring_at_the_end_is_counted() {
    let testbed = Testbed::create(Config::default()).expect("two hosts");
    let holdoff = Duration::from_micros(100);
    Placement::Softirq { holdoff }.apply(&testbed).unwrap();
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
