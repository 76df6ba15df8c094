//! The CPU meter: its books balance, and it counts the guarded interface's
//! frames, not another's.

mod common;

use std::hint::black_box;
use std::time::{Duration, Instant};

use common::{HOST_V4, Wire, in_namespace, to_host, udp_socket};
use nix::sched::sched_getcpu;
use plimsoll_guard::{Config, Guard, Storage};
use plimsoll_kernel::error::MeterError;
use plimsoll_kernel::meter::{CpuMeter, CpuReading, Options};

const FRAMES: u64 = 2000;

/// The CPU that this thread, which is pinned, runs on.
fn own(readings: &[CpuReading]) -> CpuReading {
    let cpu = u32::try_from(sched_getcpu().unwrap()).unwrap();
    *readings
        .iter()
        .find(|reading| reading.cpu == cpu)
        .expect("this CPU has had events")
}

/// All CPUs, and the polling of one interface.
fn start(interface: &str) -> Result<CpuMeter, MeterError> {
    CpuMeter::start(Options {
        interface: Some(interface),
        ..Options::default()
    })
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
        let mut meter = start("v0").unwrap();
        // A switch to and from idle is the first event.
        std::thread::sleep(Duration::from_millis(20));
        let outer = Instant::now();
        let before = meter.read();
        let inner = Instant::now();
        compute(Duration::from_millis(50));
        std::thread::sleep(Duration::from_millis(50));
        let inner = inner.elapsed();
        let after = meter.read();
        let outer = outer.elapsed();

        assert!(!before.is_empty());
        for earlier in &before {
            let later = after.iter().find(|later| later.cpu == earlier.cpu).unwrap();
            let passed = later.since(earlier).elapsed;
            assert!(
                inner <= passed && passed <= outer,
                "{inner:?}, {passed:?}, {outer:?}"
            );
        }
        let busy_ns = own(&after).app_ns - own(&before).app_ns;
        assert!(busy_ns > 0, "the computation is on this CPU's books");
    });
}

#[test]
fn frames_and_polling_runs_of_the_guarded_interface_are_counted() {
    in_namespace(|| {
        let mut storage = Storage::default();
        let mut guard = Guard::attach(&mut storage, &Config::default(), "v0").unwrap();
        let _server = udp_socket((HOST_V4, 5000), 64 << 10);
        let mut guarded = start("v0").unwrap();
        let mut other = start("v1").unwrap();
        std::thread::sleep(Duration::from_millis(20));
        let before = guarded.read();
        let offered_before = guard.counters().unwrap().all().offered();
        let wire = Wire::open();
        for _ in 0..FRAMES {
            wire.send(&to_host(HOST_V4).udp(4000, 5000, &[0; 18]));
        }
        std::thread::sleep(Duration::from_millis(20));
        let after = guarded.read();
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
        let longest = after.iter().map(|reading| reading.run_frames_max).max();
        assert!(longest > Some(0) && longest <= Some(256), "{longest:?}");
        assert_eq!(sum(&other.read(), |reading| reading.frames), 0);

        let quiet = guarded.read();
        assert!(quiet.iter().all(|reading| reading.run_frames_max == 0));
    });
}

#[test]
fn an_interface_that_is_not_there_is_named() {
    in_namespace(|| {
        let refused = start("nosuch0").unwrap_err();
        assert!(matches!(refused, MeterError::Interface(_)), "{refused}");
    });
}
