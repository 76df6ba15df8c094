//! The CPU meter: its books balance, and it counts the guarded interface's
//! frames, not another's.

mod common;

use std::hint::black_box;
use std::time::{Duration, Instant};

use common::{HOST_V4, Wire, in_namespace, to_host, udp_socket};
use nix::sched::sched_getcpu;
use plimsoll_guard::{Config, Guard, Storage};
use plimsoll_kernel::Error;
use plimsoll_kernel::meter::{CpuMeter, CpuReading};

const FRAMES: u64 = 2000;

/// The CPU that this thread, which is pinned, runs on.
fn own(readings: &[CpuReading]) -> CpuReading {
    let cpu = u32::try_from(sched_getcpu().unwrap()).unwrap();
    *readings
        .iter()
        .find(|reading| reading.cpu == cpu)
        .expect("this CPU has had events")
}

fn total_ns(reading: &CpuReading) -> u64 {
    reading.network_ns + reading.idle_ns + reading.other_ns
}

fn compute(time: Duration) {
    let start = Instant::now();
    while start.elapsed() < time {
        black_box(start);
    }
}

#[test]
fn every_nanosecond_is_on_one_account() {
    in_namespace(|| {
        let mut meter = CpuMeter::start("v0").unwrap();
        // A switch to and from idle is the first event.
        std::thread::sleep(Duration::from_millis(20));
        let before = meter.read().unwrap();
        compute(Duration::from_millis(50));
        std::thread::sleep(Duration::from_millis(50));
        let after = meter.read().unwrap();

        let passed: Vec<u64> = before
            .iter()
            .map(|earlier| {
                let later = after.iter().find(|later| later.cpu == earlier.cpu).unwrap();
                total_ns(later) - total_ns(earlier)
            })
            .collect();
        assert!(passed.iter().all(|ns| *ns == passed[0]), "{passed:?}");
        assert!(passed[0] >= 100_000_000, "{passed:?}");
        let busy_ns = own(&after).other_ns - own(&before).other_ns;
        assert!(busy_ns > 0, "the computation is on this CPU's books");
    });
}

#[test]
fn frames_and_polling_runs_of_the_guarded_interface_are_counted() {
    in_namespace(|| {
        let mut storage = Storage::default();
        let mut guard = Guard::attach(&mut storage, &Config::default(), "v0").unwrap();
        let _server = udp_socket((HOST_V4, 5000), 64 << 10);
        let mut guarded = CpuMeter::start("v0").unwrap();
        let mut other = CpuMeter::start("v1").unwrap();
        std::thread::sleep(Duration::from_millis(20));
        let before = guarded.read().unwrap();
        let offered_before = guard.counters().unwrap().all().offered();
        let wire = Wire::open();
        for _ in 0..FRAMES {
            wire.send(&to_host(HOST_V4).udp(4000, 5000, &[0; 18]));
        }
        std::thread::sleep(Duration::from_millis(20));
        let after = guarded.read().unwrap();
        // The peer's own neighbour discovery included.
        let offered = guard.counters().unwrap().all().offered() - offered_before;

        let sum = |readings: &[CpuReading], value: fn(&CpuReading) -> u64| -> u64 {
            readings.iter().map(value).sum()
        };
        assert_eq!(
            sum(&after, |reading| reading.frames) - sum(&before, |reading| reading.frames),
            offered
        );
        assert!(offered >= FRAMES);
        assert!(sum(&after, |reading| reading.runs) > sum(&before, |reading| reading.runs));
        assert!(
            sum(&after, |reading| reading.network_ns) > sum(&before, |reading| reading.network_ns)
        );
        let backlog = after.iter().map(|reading| reading.backlog_max).max();
        assert!(backlog > Some(0) && backlog <= Some(256), "{backlog:?}");
        assert_eq!(sum(&other.read().unwrap(), |reading| reading.frames), 0);

        let quiet = guarded.read().unwrap();
        assert!(quiet.iter().all(|reading| reading.backlog_max == 0));
    });
}

#[test]
fn an_interface_that_is_not_there_is_named() {
    in_namespace(|| {
        let refused = CpuMeter::start("nosuch0").unwrap_err();
        assert!(
            matches!(refused, Error::NoSuchInterface { .. }),
            "{refused}"
        );
    });
}
