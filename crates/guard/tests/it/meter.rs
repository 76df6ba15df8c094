//! The CPU meter: its books balance, and it counts the guarded interface's
//! frames, not another's.

use std::collections::BTreeMap;
use std::hint::black_box;
use std::time::{Duration, Instant};

use nix::sched::sched_getcpu;
use plimsoll_guard::{Config, Guard, Storage};
use plimsoll_kernel::error::MeterError;
use plimsoll_kernel::knobs::{DEFER_MARK, Knobs, Queues};
use plimsoll_kernel::meter::{CpuMeter, CpuReading, InstanceReading, Options};

use crate::common::{HOST_V4, Wire, in_namespace, ip, to_host, udp_socket};

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

/// Also on a CPU where nothing happens at first.
#[test]
fn a_window_begins_when_metering_is_resumed() {
    in_namespace(|| {
        let mut meter = start("v0").unwrap();
        std::thread::sleep(Duration::from_millis(20));
        meter.pause();
        std::thread::sleep(Duration::from_millis(50));
        let before = own(&meter.read());
        let outer = Instant::now();
        meter.resume();
        let inner = Instant::now();
        compute(Duration::from_millis(30));
        // So that this CPU has a switch for sure.
        std::thread::sleep(Duration::from_millis(1));
        let inner = inner.elapsed();
        let window = own(&meter.read()).since(&before).elapsed;
        let outer = outer.elapsed();
        assert!(
            inner <= window && window <= outer,
            "{inner:?}, {window:?}, {outer:?}"
        );
    });
}

#[test]
fn frames_are_counted_while_metering_pauses() {
    in_namespace(|| {
        let _server = udp_socket((HOST_V4, 5000), 64 << 10);
        let mut storage = Storage::default();
        let _guard = Guard::attach(&mut storage, &Config::default(), "v0").unwrap();
        let mut meter = start("v0").unwrap();
        std::thread::sleep(Duration::from_millis(20));
        meter.pause();
        let before = meter.read();
        let wire = Wire::open();
        for _ in 0..FRAMES {
            wire.send(&to_host(HOST_V4).udp(4000, 5000, &[0; 18]));
        }
        compute(Duration::from_millis(20));
        let after = meter.read();
        let sum = |value: fn(&CpuReading) -> u64| {
            let sum = |readings: &[CpuReading]| -> u64 { readings.iter().map(value).sum() };
            sum(&after) - sum(&before)
        };
        assert!(sum(|reading| reading.frames) >= FRAMES);
        assert!(sum(|reading| reading.runs) > 0);
        assert_eq!(sum(CpuReading::total_ns), 0);
    });
}

/// What nobody saw is booked to nobody, also when it meters again.
#[test]
fn a_detached_meter_sees_nothing_and_begins_anew() {
    in_namespace(|| {
        let _server = udp_socket((HOST_V4, 5000), 64 << 10);
        let mut storage = Storage::default();
        let _guard = Guard::attach(&mut storage, &Config::default(), "v0").unwrap();
        let mut meter = start("v0").unwrap();
        std::thread::sleep(Duration::from_millis(20));
        meter.detach();
        assert!(!meter.is_attached());
        let sum = |meter: &mut CpuMeter, value: fn(&CpuReading) -> u64| -> u64 {
            meter.read().iter().map(value).sum()
        };
        let all = |meter: &mut CpuMeter| {
            let frames = sum(meter, |reading| reading.frames);
            (frames, sum(meter, CpuReading::total_ns))
        };
        let before = all(&mut meter);
        let wire = Wire::open();
        let send = || {
            for _ in 0..FRAMES {
                wire.send(&to_host(HOST_V4).udp(4000, 5000, &[0; 18]));
            }
        };
        send();
        let unseen = Duration::from_millis(500);
        std::thread::sleep(unseen);
        assert_eq!(all(&mut meter), before);
        let begun = Instant::now();
        meter.attach().unwrap();
        send();
        compute(Duration::from_millis(20));
        let after = all(&mut meter);
        let seen = begun.elapsed();
        assert!(after.0 - before.0 >= FRAMES);
        let booked = Duration::from_nanos(after.1 - before.1);
        assert!(booked >= Duration::from_millis(10), "{booked:?}");
        let cpus = meter.read().len();
        let most = seen * u32::try_from(cpus).unwrap();
        assert!(booked <= most, "{booked:?} of {seen:?} on {cpus} CPUs");
    });
}

/// Calls a guard as its session does, after `wait`. Whether the time that passed was
/// metered.
fn turn(guard: &mut Guard<'_>, is_strained: bool, wait: impl FnOnce()) -> bool {
    wait();
    let regulated = guard.regulate().unwrap();
    guard.attend(is_strained);
    regulated.is_metered
}

#[test]
fn a_calm_host_is_hardly_metered_and_what_rises_or_strains_is() {
    in_namespace(|| {
        let mut storage = Storage::default();
        let mut guard = Guard::attach(&mut storage, &Config::default(), "v0").unwrap();
        let nap = || std::thread::sleep(Duration::from_millis(20));
        let begun = Instant::now();
        // It looks again after so long, which a busy machine may take for these turns.
        let is_early = || begun.elapsed() < Duration::from_secs(2);
        let mut calm = || {
            let turns = (0..20).filter(|_| turn(&mut guard, false, nap) && is_early());
            turns.count()
        };
        // The first reading has none before it to compare with.
        let first = calm();
        assert!((1..=2).contains(&first), "{first} of the first 20 turns");
        assert_eq!(calm(), 0, "less than 2 s later");

        let wire = Wire::open();
        let frame = to_host(HOST_V4).udp(4000, 5000, &[0; 18]);
        let flood = || {
            let start = Instant::now();
            while start.elapsed() < Duration::from_millis(20) {
                wire.send(&frame);
            }
        };
        // Others may have had the CPU instead.
        let is_alarmed = (0..20).any(|_| {
            let is_metered = turn(&mut guard, false, flood);
            assert!(!(is_metered && is_early()), "nobody could know");
            guard.is_alarmed()
        });
        assert!(is_alarmed);
        assert!(turn(&mut guard, false, flood));
        assert!((0..10).all(|turns| turn(&mut guard, turns < 9, nap) || turns == 0));
        assert!(!turn(&mut guard, false, nap), "the strain is over");
        assert!(!guard.is_alarmed());
    });
}

/// What each instance has brought since another look.
fn brought(meter: &CpuMeter, before: &BTreeMap<u32, u64>) -> BTreeMap<u32, u64> {
    let since = |read: InstanceReading| {
        let earlier = before.get(&read.napi).copied().unwrap_or(0);
        (read.napi, read.frames - earlier)
    };
    meter.instances().map(since).collect()
}

/// Two receive queues that one CPU polls, both after the same holdoff: each has more frames
/// than one poll takes, so the CPU goes from one to the other and back.
#[test]
fn the_runs_of_two_instances_on_one_cpu_are_told_apart() {
    in_namespace(|| {
        ip("link del v0");
        ip(
            "link add v0 numtxqueues 2 numrxqueues 2 address 02:00:00:00:00:02 type veth \
            peer name v1 numtxqueues 2 numrxqueues 2",
        );
        // As in `set_up`: what the kernel says by itself may come to another CPU.
        ip("link set v1 addrgenmode none");
        ip("link set v0 up");
        ip("link set v1 up");
        let mut storage = Storage::default();
        let _guard = Guard::attach(&mut storage, &Config::default(), "v0").unwrap();
        let records = tempfile::tempdir().unwrap();
        let mut knobs = Knobs::open_in(records.path(), "v0").unwrap();
        let holdoff = Duration::from_millis(50);
        knobs.set_holdoff(Queues::All, DEFER_MARK, holdoff).unwrap();
        let mut meter = start("v0").unwrap();
        let wire = Wire::open();
        let mut told_apart = 0;
        let end = Instant::now() + Duration::from_secs(60);
        while told_apart < 10 {
            assert!(Instant::now() < end, "{told_apart} rounds");
            let frames = brought(&meter, &BTreeMap::new());
            meter.read();
            // As many as the sender's buffer holds. A hash of the flow finds the queue.
            for port in 4000..4200 {
                wire.send(&to_host(HOST_V4).udp(port, 9, &[0; 18]));
            }
            // Not a multiple: where the timer fires while frames are sent, it does not always.
            std::thread::sleep(7 * holdoff / 2);
            let longest = u64::from(own(&meter.read()).run_frames_max);
            let brought: Vec<_> = brought(&meter, &frames).into_values().collect();
            let most = *brought.iter().max().unwrap();
            assert!(longest <= most, "{longest} of {brought:?}");
            // Both took several polls, and each was one run.
            let several = brought.iter().all(|frames| *frames > 64);
            told_apart += u32::from(several && longest == most);
        }
        let cpu = own(&meter.read()).cpu;
        assert!(meter.instances().all(|instance| instance.cpu == cpu));
    });
}

#[test]
fn an_interface_that_is_not_there_is_named() {
    in_namespace(|| {
        let refused = start("nosuch0").unwrap_err();
        assert!(matches!(refused, MeterError::Interface(_)), "{refused}");
    });
}
