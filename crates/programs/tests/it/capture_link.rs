//! The monitor while its link goes down, and is deleted. Needs root.

use std::net::UdpSocket;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use nix::time::{ClockId, clock_gettime};
use plimsoll_kernel::error::with_causes;
use plimsoll_kernel::{link, namespace};
use plimsoll_packets::frame::{Packet, VLAN};
use plimsoll_programs::capture::{Capture, CaptureConfig, Error, Mode, Output, Summary};
use plimsoll_stack::device::packet::PacketDevice;
use plimsoll_stack::device::{Batch, Device};

/// No test waits longer for what must come.
const SOON: Duration = Duration::from_secs(10);

fn ip(words: &str) {
    let output = Command::new("ip").args(words.split(' ')).output().unwrap();
    assert!(output.status.success(), "ip {words}: {output:?}");
}

/// What a capture came to, and the CPU time of its thread.
struct Ended {
    summary: Summary,
    result: Result<(), Error>,
    taken: Duration,
}

/// Captures packets to port 9 of `watched`, the other end of the link that `meanwhile` sends by,
/// until it ends itself or `meanwhile` says that it is to.
fn capture(mode: Mode, meanwhile: impl FnOnce(&UdpSocket, &AtomicBool) + Send) -> Ended {
    capture_of("udp dst port 9", mode, meanwhile)
}

/// The same of packets that a filter accepts.
fn capture_of(
    filter: &str,
    mode: Mode,
    meanwhile: impl FnOnce(&UdpSocket, &AtomicBool) + Send,
) -> Ended {
    let inside = || {
        ip("link add near type veth peer name watched");
        ip("addr add 10.0.0.1/24 dev near");
        ip("link set near up");
        ip("link set watched up");
        link::wait_until_sending("near").unwrap();
        ip("neigh add 10.0.0.2 lladdr 02:00:00:00:00:02 dev near");
        let config = CaptureConfig {
            filter: filter.to_owned(),
            mode,
            ..CaptureConfig::new("watched", Output::File("/dev/null".into()))
        };
        let capture = Capture::open(&config).expect("the capture opens");
        let (client, stop) = (
            UdpSocket::bind("10.0.0.1:0").unwrap(),
            AtomicBool::new(false),
        );
        client.connect("10.0.0.2:9").unwrap();
        thread::scope(|scope| {
            let capturing = scope.spawn(|| {
                let (summary, result) = capture.run(&stop);
                let taken = clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).unwrap();
                Ended {
                    summary,
                    result,
                    taken: taken.into(),
                }
            });
            meanwhile(&client, &stop);
            let end = Instant::now() + SOON;
            while !capturing.is_finished() && Instant::now() < end {
                thread::sleep(Duration::from_millis(10));
            }
            let ended = capturing.is_finished();
            stop.store(true, Ordering::Relaxed);
            let result = capturing.join().unwrap();
            assert!(ended, "it did not end by itself");
            result
        })
    };
    namespace::in_new(inside).expect("these tests make network namespaces: run them as root")
}

/// Until frames leave by it.
fn send(client: &UdpSocket, packets: u64) {
    for _ in 0..packets {
        client.send(b"x").unwrap();
    }
}

/// Sends frames with a VLAN tag.
fn send_tagged(packets: usize) {
    let [source, destination] = ["10.0.0.1", "10.0.0.2"].map(|host| host.parse().unwrap());
    let frame = Packet::new(source, destination).tag(VLAN).udp(1, 9, b"x");
    let device = PacketDevice::open("near").unwrap();
    let mut batch = Batch::new();
    for _ in 0..packets {
        let mut copy = device.pool().take().unwrap();
        assert!(copy.copy_from(&frame));
        batch.push_back(copy);
    }
    assert_eq!(device.transmit(&mut batch).unwrap(), packets);
}

/// A filter for the type matched nothing in mode `copy`: the kernel takes tags out of frames before
/// it runs filters. The last two are as the guide says.
#[test]
fn filters_see_tags_as_the_mode_has_it() {
    for (filter, mode, recorded) in [
        ("ether proto 0x8100", Mode::Copy, 5),
        ("ether proto 0x8100", Mode::Take, 5),
        ("vlan and udp dst port 9", Mode::Copy, 5),
        ("vlan and udp dst port 9", Mode::Take, 5),
        ("udp dst port 9", Mode::Copy, 5),
        ("udp dst port 9", Mode::Take, 0),
    ] {
        let ended = capture_of(filter, mode, |_, stop| {
            send_tagged(5);
            thread::sleep(Duration::from_millis(200));
            stop.store(true, Ordering::Relaxed);
        });
        ended.result.expect("nothing failed");
        assert_eq!(
            ended.summary.counts.recorded, recorded,
            "{filter}, {mode:?}"
        );
    }
}

/// The error that the link left was never taken, so poll(2) did not wait any more until the
/// capture's end.
#[test]
fn a_link_that_goes_down_and_up_costs_no_cpu_and_is_recorded_again() {
    let ended = capture(Mode::Copy, |client, stop| {
        ip("link set watched down");
        thread::sleep(Duration::from_secs(1));
        ip("link set watched up");
        link::wait_until_sending("near").unwrap();
        thread::sleep(Duration::from_millis(100));
        send(client, 10);
        thread::sleep(Duration::from_millis(200));
        stop.store(true, Ordering::Relaxed);
    });
    ended.result.expect("nothing failed");
    assert_eq!(ended.summary.counts.recorded, 10, "{:?}", ended.summary);
    assert!(
        ended.taken < Duration::from_millis(200),
        "{:?}",
        ended.taken
    );
}

/// Its own counters were looked for under the old name, and were all 0.
#[test]
fn an_interface_that_is_renamed_keeps_its_counters() {
    for mode in [Mode::Copy, Mode::Take] {
        let ended = capture(mode, |client, stop| {
            send(client, 10);
            for words in ["watched down", "watched name renamed", "renamed up"] {
                ip(&format!("link set {words}"));
            }
            thread::sleep(Duration::from_millis(100));
            stop.store(true, Ordering::Relaxed);
        });
        ended.result.expect("nothing failed");
        let summary = ended.summary;
        let counts = summary.interface_counts;
        assert!(
            counts.is_some_and(|counts| counts.received >= 10),
            "{summary:?}"
        );
    }
}

#[test]
fn a_capture_of_a_deleted_interface_ends_with_what_it_has() {
    for mode in [Mode::Copy, Mode::Take] {
        let ended = capture(mode, |client, _| {
            send(client, 5);
            ip("link del watched");
        });
        let error = with_causes(&ended.result.expect_err("it ended early"));
        assert!(error.contains("the interface is gone"), "{error}");
        assert_eq!(ended.summary.counts.recorded, 5, "{:?}", ended.summary);
        assert!(ended.summary.interface_counts.is_none());
    }
}
