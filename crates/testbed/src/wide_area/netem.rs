//! The path by the kernel itself, where it has netem: a bridge between both interfaces of the
//! middle host, and a netem queue at each of them, which limits, queues and delays.
//!
//! **Limits.** netem's clock is the kernel's, and nothing is stamped: the report has counts
//! alone.

use std::time::Duration;

use serde::Deserialize;

use super::report::{Direction, Report};
use super::{INNER_DEVICE, PathConfig};
use crate::{Error, Host};

const BRIDGE: &str = "path0";
const LIMIT: Duration = Duration::from_secs(5);

/// Whether the kernel has netem: tried on the loopback interface of `host`, which carries
/// nothing.
pub(super) fn is_there(host: &Host) -> bool {
    let netem = ["netem", "delay", "1ms"];
    // It ends with the host at the latest.
    let taken = || host.configure("tc", ["qdisc", "del", "dev", "lo", "root"]);
    add_queue(host, "lo", &netem).is_ok() && taken().is_ok()
}

/// Makes the path on the middle host.
pub(super) fn set_up(middle: &Host, path: &PathConfig) -> Result<(), Error> {
    join(middle)?;
    let words = words(path);
    let words: Vec<&str> = words.split_whitespace().collect();
    for device in [middle.device(), INNER_DEVICE] {
        add_queue(middle, device, &words)?;
    }
    Ok(())
}

/// A bridge that says nothing of its own, nor do its ports (reports of multicast listeners).
fn join(middle: &Host) -> Result<(), Error> {
    middle.ip(&format!(
        "link add {BRIDGE} type bridge stp_state 0 mcast_snooping 0"
    ))?;
    for device in [BRIDGE, middle.device(), INNER_DEVICE] {
        middle.sysctl(&format!("net/ipv6/conf/{device}/disable_ipv6"), "1")?;
    }
    for device in [middle.device(), INNER_DEVICE] {
        middle.ip(&format!("link set {device} master {BRIDGE}"))?;
    }
    middle.ip(&format!("link set {BRIDGE} up"))
}

fn add_queue(middle: &Host, device: &str, queue: &[&str]) -> Result<(), Error> {
    let place = ["qdisc", "add", "dev", device, "root"];
    middle.configure("tc", place.iter().chain(queue).copied())
}

/// netem's queue holds what travels as well as what waits.
fn words(path: &PathConfig) -> String {
    let bits = path.rate.bits_per_second();
    let micros = path.delay.as_micros();
    let frame = path.rate.interval(super::FRAME_BYTES).as_nanos().max(1);
    let travelling = path.delay.as_nanos().div_ceil(frame);
    let frames = path.queue_frames as u128 + 1 + travelling;
    format!("netem delay {micros}us rate {bits}bit limit {frames}")
}

/// What both queues counted.
pub(super) fn report(middle: &Host) -> Result<Report, Error> {
    Ok(Report {
        there: counted(middle, INNER_DEVICE)?,
        back: counted(middle, middle.device())?,
    })
}

/// A queue as `tc -s -j qdisc` shows it.
#[derive(Debug, Deserialize)]
struct Queue {
    kind: String,
    packets: u64,
    drops: u64,
    qlen: u64,
}

fn counted(middle: &Host, device: &str) -> Result<Direction, Error> {
    let mut command = middle.command("tc");
    let shown = command
        .args(["-s", "-j", "qdisc", "show", "dev", device])
        .output(LIMIT)?;
    direction(&String::from_utf8_lossy(&shown.stdout))
}

fn direction(shown: &str) -> Result<Direction, Error> {
    let unread = |detail: String| Error::Parse {
        what: "the queues that tc shows",
        detail,
    };
    let queues: Vec<Queue> =
        serde_json::from_str(shown).map_err(|error| unread(format!("{error}: {shown}")))?;
    let queue = queues.first();
    let queue = queue.ok_or_else(|| unread("there is none".to_owned()))?;
    if queue.kind == "noqueue" {
        return Err(unread("the path's queue is gone".to_owned()));
    }
    let mut direction = Direction::new(0);
    direction.delivered = queue.packets;
    direction.queue_full = queue.drops;
    direction.travelling = queue.qlen;
    direction.offered = direction.accounted();
    Ok(direction)
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;

    use plimsoll_core::pacing::Rate;

    use super::super::{By, FAR, WideArea, make_ends};
    use super::*;
    use crate::{Config, Testbed};

    #[test]
    fn a_queue_holds_what_waits_and_what_travels() {
        let path = PathConfig::of_megabits(100);
        // A frame takes 121.12 µs.
        let expected = format!(
            "netem delay 50000us rate 100000000bit limit {}",
            412 + 1 + 413
        );
        assert_eq!(words(&path), expected);
    }

    #[test]
    fn every_frame_that_tc_counts_is_accounted_for() {
        let shown = r#"[{"kind":"netem","handle":"8001:","root":true,"options":{"limit":826},
            "bytes":1514000,"packets":1000,"drops":7,"overlimits":0,"requeues":0,"backlog":4542,"qlen":3}]"#;
        let direction = direction(shown).unwrap();
        assert_eq!((direction.delivered, direction.queue_full), (1000, 7));
        assert_eq!((direction.travelling, direction.offered), (3, 1010));
        for wrong in [
            "",
            "[]",
            r#"[{"kind":"noqueue","packets":0,"drops":0,"qlen":0}]"#,
        ] {
            assert!(super::direction(wrong).is_err(), "{wrong}");
        }
    }

    /// Sends so many datagrams and returns when all that come have come.
    fn send(near: &Host, far: &Host, count: usize) -> usize {
        let at = (FAR, 9000);
        let receiver = far.run(|| UdpSocket::bind(at)).unwrap().unwrap();
        receiver
            .set_read_timeout(Some(Duration::from_millis(400)))
            .unwrap();
        let offer = || {
            let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
            for _ in 0..count {
                socket.send_to(&[0; 1472], at).unwrap();
            }
        };
        near.run(offer).unwrap();
        (0..count)
            .take_while(|_| receiver.recv(&mut [0; 2048]).is_ok())
            .count()
    }

    /// The bridge and its counts by a queue that every kernel has.
    #[test]
    fn frames_cross_the_bridge_and_both_queues_count_them() {
        let testbed = Testbed::create(Config::default()).unwrap();
        let far = testbed.add_host_behind().unwrap();
        make_ends(testbed.load(), &far).unwrap();
        let middle = testbed.test();
        join(middle).unwrap();
        for device in [middle.device(), INNER_DEVICE] {
            add_queue(middle, device, &["pfifo", "limit", "1000"]).unwrap();
        }
        assert_eq!(send(testbed.load(), &far, 20), 20);
        let report = report(middle).unwrap();
        assert_eq!((report.there.delivered, report.there.queue_full), (20, 0));
        assert_eq!(report.back.delivered, 0);
    }

    /// Where the kernel has netem. This one, which most runs are made on, has none.
    #[test]
    fn netem_is_taken_where_it_is_and_delays() {
        let path = PathConfig {
            by: By::NetemIfThere,
            ..PathConfig::new(Rate::clamped(100_000_000))
        };
        let path = WideArea::create(Config::default(), path).unwrap();
        let expected = match is_there(path.testbed.test()) {
            true => "netem",
            false => "relay",
        };
        assert_eq!(path.carried_by(), expected);
        let begun = std::time::Instant::now();
        assert_eq!(send(path.near(), path.far(), 5), 5);
        assert!(begun.elapsed() >= Duration::from_millis(50));
        let report = path.stop().unwrap();
        assert_eq!((report.there.delivered, report.there.queue_full), (5, 0));
    }
}
