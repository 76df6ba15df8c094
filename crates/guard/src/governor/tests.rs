//! How long each instance is held off, what was lost by whom, and what could not be put back.
//! Needs root.

use std::fs;
use std::process::Command;

use plimsoll_kernel::knobs::{Attribute, DEFER_MARK, Device, Napi};
use plimsoll_kernel::namespace;
use plimsoll_kernel::scheduling::Scheduling;

use super::*;

/// The kernel's thread of whose kind polling threads are.
const KTHREADD: i32 = 2;

/// No guard started there.
#[test]
fn a_ring_that_cannot_be_as_the_driver_tells_is_not_known() {
    let config = Config::default();
    for frames in [0, 15] {
        assert_eq!(told_frames(Some((frames, 4096))), None);
    }
    let told = told_frames(Some((16, 4096)));
    assert_eq!(told, Some(16));
    Decision::new(core_config(&config, told)).unwrap();
}

/// Needs root.
#[test]
fn what_could_not_be_put_back_is_tried_again_and_then_left() {
    namespace::in_new(|| {
        let records = tempfile::tempdir().unwrap();
        let mut knobs = Knobs::open_in(records.path(), "lo").unwrap();
        let mut governor = Governor::new("lo", Config::default()).unwrap();
        let overload = Setting {
            mode: Mode::Overload,
            holdoff: Duration::from_micros(100),
            reason: Reason::Discards,
            is_lazy: false,
        };
        governor.apply(overload, &[], &mut knobs).unwrap();
        let files = fs::read_dir(records.path()).unwrap();
        let mut files = files.map(|file| file.unwrap().path());
        let record = files.find(|path| path.extension().is_some_and(|end| end == "json"));
        let record = record.expect("what is turned is recorded");
        // No file can be removed there.
        fs::remove_file(&record).unwrap();
        fs::create_dir(&record).unwrap();
        governor.release(&mut knobs).unwrap_err();
        governor.release(&mut knobs).unwrap_err();
        fs::remove_dir(&record).unwrap();
        governor.release(&mut knobs).unwrap();
        fs::create_dir(&record).unwrap();
        governor.release(&mut knobs).unwrap();
    })
    .expect("this test makes a network namespace and needs root: run `sudo make test`");
}

fn run(words: &str) {
    let mut words = words.split(' ');
    let mut command = Command::new(words.next().unwrap());
    assert!(command.args(words).status().unwrap().success());
}

/// An interface, what is told of two receive instances, and its governor.
struct TwoQueues {
    governor: Governor,
    knobs: Knobs,
    records: tempfile::TempDir,
    regulated: Regulated,
    brought: Vec<InstanceReading>,
}

impl TwoQueues {
    fn new(config: Config) -> Self {
        run(
            "ip link add v0 numrxqueues 2 numtxqueues 2 type veth peer name v1 numrxqueues 2 numtxqueues 2",
        );
        run("ip link set v0 up");
        run("ethtool -K v0 gro on");
        let mut host = Self::told_of("v0", config);
        let instances = host.knobs.instances().unwrap();
        assert_eq!(instances.len(), 2);
        for (brought, napi) in host.brought.iter_mut().zip(instances) {
            brought.napi = napi.id;
        }
        host
    }

    /// Whatever instances `interface` has.
    fn told_of(interface: &str, config: Config) -> Self {
        let records = tempfile::tempdir().unwrap();
        let knobs = Knobs::open_in(records.path(), interface).unwrap();
        let brought = [0, 1].map(|cpu| InstanceReading {
            napi: 8200 + cpu,
            cpu,
            frames: 0,
        });
        let readings = [0, 1].map(|cpu| {
            let mut reading = CpuReading::default();
            reading.cpu = cpu;
            reading
        });
        Self {
            governor: Governor::new(interface, config).unwrap(),
            knobs,
            records,
            regulated: Regulated {
                is_metered: true,
                wanted: vec![0, 1],
                readings: readings.to_vec(),
                ..Regulated::nothing()
            },
            brought: brought.to_vec(),
        }
    }

    /// For so many times 10 ms each CPU polls its instance for so many frames, in so many
    /// percent of its time.
    fn pass(&mut self, times: usize, polled: [(u64, u64); 2]) -> Vec<Napi> {
        for _ in 0..times {
            self.regulated.at += Duration::from_millis(10);
            for (cpu, (frames, percent)) in polled.into_iter().enumerate() {
                let reading = &mut self.regulated.readings[cpu];
                reading.network_ns += percent * 100_000;
                reading.app_ns += (100 - percent) * 100_000;
                reading.frames += frames;
                reading.runs += 50;
                self.brought[cpu].frames += frames;
            }
            self.governor.on_instances(self.brought.clone());
            self.governor
                .on_interval(&self.regulated, &mut self.knobs)
                .unwrap();
        }
        self.knobs.instances().unwrap()
    }
}

fn holdoffs_us(instances: &[Napi]) -> [u32; 2] {
    let holdoff = |napi: &Napi| {
        assert_eq!(napi.defer_hard_irqs, Some(DEFER_MARK), "held off");
        napi.gro_flush_timeout.unwrap() / 1000
    };
    [holdoff(&instances[0]), holdoff(&instances[1])]
}

/// All that were held off had the holdoff of the busiest. Needs root.
#[test]
fn each_instance_is_held_off_as_long_as_its_own_ring_has_room() {
    namespace::in_new(|| {
        let mut host = TwoQueues::new(Config::default());
        let own = host.knobs.instances().unwrap();
        let turned = host.pass(20, [(30_000, 80), (500, 20)]);
        assert_eq!(holdoffs_us(&turned), [30, 200]);
        assert!(host.governor.status().holdoff_us < 31.0, "the busiest's");
        // The flood goes to the other queue, and may come back.
        let turned = host.pass(1, [(500, 20), (30_000, 80)]);
        assert_eq!(holdoffs_us(&turned), [30, 30]);
        // All has fallen.
        let turned = host.pass(50, [(4_000, 60), (500, 20)]);
        let holdoffs = holdoffs_us(&turned);
        assert!(
            holdoffs.iter().all(|us| (140..=160).contains(us)),
            "{holdoffs:?}"
        );
        let records = fs::read_dir(host.records.path()).unwrap().count();
        assert!(records >= 2, "a lock, and what was turned");
        host.pass(200, [(10, 1), (10, 1)]);
        assert_eq!(host.knobs.instances().unwrap(), own);
        assert!(host.knobs.is_untouched());
    })
    .expect("this test makes a network namespace and needs root: run `sudo make test`");
}

/// `ethtool -G` changes it while a guard runs, which knew of none but the first: the holdoffs of a large
/// ring overflowed a small one. Needs root.
#[test]
fn a_ring_of_another_size_has_other_holdoffs() {
    namespace::in_new(|| {
        let mut host = TwoQueues::new(Config::default());
        host.governor.on_ring(Some((4096, 4096)));
        let flood = [(30_000, 80), (10_000, 20)];
        let turned = host.pass(20, flood);
        assert_eq!(holdoffs_us(&turned), [200, 200]);
        host.governor.on_ring(Some((256, 4096)));
        let turned = host.pass(20, flood);
        assert_eq!(holdoffs_us(&turned), [30, 64]);
        // As before, and not as it was set last.
        host.governor.on_ring(Some((4096, 4096)));
        let turned = host.pass(50, flood);
        assert_eq!(holdoffs_us(&turned), [200, 200]);
        // A veth tells nothing, and the ring is taken for the smallest again.
        host.governor.on_ring(Some((4096, 4096)));
        host.governor.look_at_ring();
        assert_eq!(host.governor.told_frames, None);
        let turned = host.pass(20, flood);
        assert_eq!(holdoffs_us(&turned), [30, 64]);
    })
    .expect("this test makes a network namespace and needs root: run `sudo make test`");
}

/// Whoever says what the ring holds is believed. Needs root.
#[test]
fn what_the_operator_says_of_the_ring_holds_whatever_the_driver_tells() {
    namespace::in_new(|| {
        let mut host = TwoQueues::new(Config {
            ring_frames: Some(256),
            ..Config::default()
        });
        host.governor.on_ring(Some((4096, 4096)));
        let turned = host.pass(20, [(30_000, 80), (10_000, 20)]);
        assert_eq!(holdoffs_us(&turned), [30, 64]);
    })
    .expect("this test makes a network namespace and needs root: run `sudo make test`");
}

/// A CPU at its limit had the instances of all CPUs held off for milliseconds. Needs root.
#[test]
fn the_cpu_limit_holds_off_only_what_its_cpu_polls() {
    namespace::in_new(|| {
        let mut host = TwoQueues::new(Config {
            cpu_limit: Some(Fraction::from_percent(30)),
            polling_limit: Fraction::from_percent(30),
            ..Config::default()
        });
        let turned = host.pass(100, [(4_000, 80), (3_000, 20)]);
        let [limited, other] = holdoffs_us(&turned);
        assert!((8_750..=10_000).contains(&limited), "{limited} µs");
        assert!(other <= 200, "{other} µs: 256 frames come in 850");
    })
    .expect("this test makes a network namespace and needs root: run `sudo make test`");
}

/// Before Linux 6.13 reports showed a holdoff that nothing had, and the device was set
/// whenever an instance's own would have changed. Loopback shows no instances either. Needs
/// root.
#[test]
fn the_device_s_holdoff_is_shown_and_turned_where_instances_have_none() {
    namespace::in_new(|| {
        let mut host = TwoQueues::told_of(
            "lo",
            Config {
                cpu_limit: Some(Fraction::from_percent(30)),
                polling_limit: Fraction::from_percent(30),
                ..Config::default()
            },
        );
        let device = Device::open("lo", link::index("lo").unwrap()).unwrap();
        let holdoff_us = || {
            let nanos = device.attribute(Attribute::GroFlushTimeout).unwrap();
            nanos.unwrap() / 1000
        };
        host.pass(100, [(3_000, 80), (4_000, 20)]);
        assert!((8_750..=10_000).contains(&holdoff_us()), "the CPU limit's");
        let shown = host.governor.status().holdoff_us;
        assert!(shown >= 8_750.0, "{shown} µs, not what a ring has room for");
        // Nobody sets it: the busiest would have another one, but has none.
        let set = device.set_attribute(Attribute::GroFlushTimeout, 1_000_000);
        set.unwrap().unwrap();
        host.pass(3, [(3_000, 80), (8_000, 20)]);
        assert_eq!(holdoff_us(), 1_000);
    })
    .expect("this test makes a network namespace and needs root: run `sudo make test`");
}

/// Before Linux 6.12 the kernel stops all of them where they take too much.
#[test]
fn polling_threads_take_no_more_than_real_time_threads_should() {
    let limit = |cpu_limit, polling_limit| {
        threads_limit(&Config {
            cpu_limit: Some(Fraction::from_percent(cpu_limit)),
            polling_limit: Fraction::from_percent(polling_limit),
            ..Config::default()
        })
    };
    assert_eq!(limit(50, 95), Some(REAL_TIME_MOST));
    assert_eq!(limit(50, 70), Some(Fraction::from_percent(70)));
    // Whoever lets receiving take more has said so.
    assert_eq!(limit(92, 95), Some(Fraction::from_percent(92)));
    assert_eq!(limit(100, 95), None);
}

#[test]
fn a_ring_counts_from_its_first_lost_frame_on() {
    let never = losses((5, 0), (9, 0));
    assert_eq!((never.discarded, never.ring), (4, 0));
    assert!(!never.is_ring_counted);
    let first = losses((9, 0), (9, 3));
    assert_eq!(first.ring, 3);
    assert!(first.is_ring_counted);
    let later = losses((9, 3), (9, 3));
    assert_eq!(later.ring, 0);
    assert!(later.is_ring_counted);
    // The driver's counters began anew.
    let anew = losses((9, 3), (9, 0));
    assert_eq!(anew.ring, 0);
    assert!(!anew.is_ring_counted);
}

/// Time of other softirqs and threads counted as idle would hide overload.
#[test]
fn what_a_cpu_did_between_two_readings_is_told_to_the_nanosecond() {
    let reading = |cpu: u32, times: u64| {
        let mut reading = CpuReading::default();
        reading.cpu = cpu;
        reading.app_ns = times * 1_000;
        reading.network_ns = times * 200;
        reading.other_ns = times * 30;
        reading.frames = times * 7;
        reading.runs = times * 2;
        reading.run_frames_max = 5;
        reading
    };
    let looked = |readings: Vec<CpuReading>, at| Regulated {
        at,
        readings,
        wanted: vec![1],
        ..Regulated::nothing()
    };
    let at = Instant::now();
    let mut only_network = reading(2, 3);
    only_network.network_ns += 1;
    let before = looked((0..=3).map(|cpu| reading(cpu, 3)).collect(), at);
    let now = vec![
        reading(0, 5),
        reading(1, 4),
        only_network,
        reading(3, 3),
        // That was not there before.
        reading(4, 9),
    ];
    let now = looked(now, at + Duration::from_nanos(10_000));
    let observed: Vec<_> = observations(&before, &now)
        .iter()
        .map(|cpu| {
            assert_eq!(cpu.elapsed, Duration::from_nanos(10_000));
            let times = [cpu.network, cpu.idle].map(|time| time.as_nanos());
            (cpu.cpu, times, cpu.contended, cpu.frames, cpu.runs)
        })
        .collect();
    let expected = [
        (0, [400, 10_000 - 2_460], false, 14, 4),
        (1, [200, 10_000 - 1_230], true, 7, 2),
        (2, [1, 9_999], false, 0, 0),
    ];
    assert_eq!(observed, expected);
}

/// What came before it begins anew was taken for a flood of the first interval. Needs root.
#[test]
fn a_governor_that_begins_again_suspects_nothing_of_what_came_before() {
    namespace::in_new(|| {
        let mut host = TwoQueues::new(Config::default());
        let (calm, flood) = ([(10, 1), (10, 1)], [(30_000, 80), (500, 20)]);
        host.pass(20, calm);
        host.governor.begin_again().unwrap();
        host.pass(1, flood);
        assert!(!host.governor.is_strained());
        host.pass(1, flood);
        assert!(host.governor.is_strained());
    })
    .expect("this test makes a network namespace and needs root: run `sudo make test`");
}

/// Needs root.
#[test]
fn new_settings_put_back_what_the_old_ones_turned_and_forget_no_change_of_mode() {
    namespace::in_new(|| {
        let mut host = TwoQueues::new(Config::default());
        let own = host.knobs.instances().unwrap();
        host.pass(20, [(30_000, 80), (500, 20)]);
        assert_eq!(host.governor.status().switches, 1);
        let config = Config {
            lazy: false,
            ..Config::default()
        };
        host.governor.configure(config, &mut host.knobs).unwrap();
        assert_eq!(host.knobs.instances().unwrap(), own);
        assert_eq!(host.governor.status().switches, 1);
        host.pass(20, [(30_000, 80), (500, 20)]);
        assert_eq!(host.governor.status().switches, 2);
    })
    .expect("this test makes a network namespace and needs root: run `sudo make test`");
}

/// One CPU cannot poll what several received. And after a link's flap softirqs polled. Needs root.
#[test]
fn the_threads_of_several_queues_are_left_where_the_scheduler_has_them_also_after_a_flap() {
    namespace::in_new(|| {
        let mut host = TwoQueues::new(Config {
            strategy: Strategy::Thread,
            ..Config::default()
        });
        let flood = [(30_000, 80), (30_000, 20)];
        let everywhere = Scheduling::of(KTHREADD).unwrap().cpus().to_vec();
        for is_first in [true, false] {
            host.pass(20, flood);
            let threads = host.knobs.polling_threads().unwrap();
            assert_eq!(threads.len(), 2);
            for thread in threads {
                let scheduling = Scheduling::of(thread.tid).unwrap();
                assert_eq!(scheduling.cpus(), everywhere);
            }
            if is_first {
                run("ip link set v0 down");
                run("ip link set v0 up");
                assert_eq!(host.knobs.polling_threads().unwrap(), []);
                host.governor.looked_at -= LOOK_INTERVAL;
            }
        }
    })
    .expect("this test makes a network namespace and needs root: run `sudo make test`");
}
