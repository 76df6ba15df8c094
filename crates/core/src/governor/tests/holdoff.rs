//! How long interrupts are held off in overload.

use super::*;

#[test]
fn the_holdoff_fills_its_part_of_the_ring_at_every_load() {
    // A quarter of it, more for a holdoff of 30 µs, and never more than half.
    for (pps, frames) in [
        (1_000_000, 64),
        (2_000_000, 64),
        (3_000_000, 90),
        (4_800_000, 128),
    ] {
        let mut run = Run::new(GovernorConfig::default());
        run.offer(pps, SECOND * 3, Mode::Overload).unwrap();
        let waiting = pps * run.governor.setting().holdoff.as_nanos() as u64 / NANOS_PER_SECOND;
        assert!(waiting.abs_diff(frames) <= 4, "{pps}: {waiting}");
    }
}

#[test]
fn the_holdoff_falls_when_the_ring_overflows_and_recovers() {
    let mut run = Run::new(GovernorConfig::default());
    run.offer(1_000_000, SECOND, Mode::Overload).unwrap();
    let before = run.governor.setting().holdoff;
    let (cpu, losses) = run.host.observe(run.governor.setting(), MS * 10, 1_000_000);
    let overflow = Losses { ring: 1, ..losses };
    let after = run.governor.on_interval(&[cpu], overflow, run.now).holdoff;
    assert!(after < before * 9 / 10, "{before:?} {after:?}");
    let meant = Losses {
        ring: 1000,
        inhibited: true,
        ..losses
    };
    let inhibited = run.governor.on_interval(&[cpu], meant, run.now).holdoff;
    assert!(inhibited * 10 >= after * 9, "{after:?} {inhibited:?}");
    run.offer(1_000_000, SECOND * 2, Mode::Overload);
    assert!(run.governor.setting().holdoff * 20 >= before * 19);
}

/// Shorter than a run takes, as all of this device's are.
#[test]
fn a_device_that_has_short_holdoffs_only_gets_its_longest() {
    let us = Duration::from_micros;
    let mut run = Run::new(GovernorConfig {
        holdoff: HoldoffRange {
            min: us(1),
            max: us(4),
            step: us(1),
        },
        ..GovernorConfig::default()
    });
    run.offer(1_000_000, SECOND, Mode::Overload).unwrap();
    assert_eq!(run.governor.setting().holdoff, us(4));
}

#[test]
fn after_overflows_the_holdoff_recovers_step_by_step() {
    let mut run = Run::new(GovernorConfig::default());
    run.offer(400_000, SECOND, Mode::Overload).unwrap();
    let before = run.governor.setting().holdoff;
    let (cpu, losses) = run.host.observe(run.governor.setting(), MS * 10, 400_000);
    let overflow = Losses { ring: 1, ..losses };
    for _ in 0..20 {
        run.now += MS * 10;
        run.governor.on_interval(&[cpu], overflow, run.now);
    }
    let least = run.governor.setting().holdoff;
    assert!(least * 3 < before, "{before:?} {least:?}");
    // What was lost comes back in 24 steps, one in ten intervals.
    let mut holdoffs = Vec::from([least]);
    for _ in 0..260 {
        run.now += MS * 10;
        holdoffs.push(run.governor.on_interval(&[cpu], losses, run.now).holdoff);
    }
    let step = |pair: &[Duration]| pair[1].saturating_sub(pair[0]);
    let greatest = holdoffs.windows(2).map(step).max().unwrap();
    assert!(greatest <= before / 16, "{greatest:?} at once");
    let recovered = holdoffs
        .iter()
        .position(|holdoff| *holdoff * 20 >= before * 19);
    assert!((180..260).contains(&recovered.unwrap()), "{recovered:?}");
}

#[test]
fn a_rate_that_rises_shortens_the_holdoff_at_once_and_a_pause_lengthens_it_slowly() {
    let mut run = Run::new(GovernorConfig::default());
    run.offer(1_000_000, SECOND, Mode::Overload).unwrap();
    let before = run.governor.setting().holdoff;
    run.host.consumed_pps = 4_000_000;
    let risen = run.step(2_000_000).holdoff;
    assert!(risen * 3 < before * 2, "{before:?} {risen:?}");
    assert!(run.step(10).holdoff < before, "a pause of one interval");
}

/// What the CPU polled in 10 ms, with `share_percent` of its time.
fn polling(cpu: u32, frames: u64, share_percent: u32) -> CpuObservation {
    CpuObservation {
        cpu,
        elapsed: MS * 10,
        network: MS * 10 * share_percent / 100,
        contended: true,
        idle: Duration::ZERO,
        frames,
        runs: 50,
        run_frames_max: 64,
    }
}

/// Overload by what two CPUs have polled, each of its own instance, for half a second.
fn overloaded(governor: &mut Governor, cpus: [CpuObservation; 2]) -> [Duration; 2] {
    for step in 1..50 {
        let now = Instant::ZERO + MS * 10 * step;
        let setting = governor.on_interval(&cpus, Losses::default(), now);
        assert!(step < 5 || setting.mode == Mode::Overload);
    }
    cpus.map(|cpu| {
        governor.holdoff_of(&InstanceRate {
            id: 8200 + cpu.cpu,
            cpu: cpu.cpu,
            rate_pps: cpu.frames * 100,
        })
    })
}

/// All that were held off once had the holdoff of the busiest: one that brings little was
/// polled every 30 µs for another one's flood, and never slept while overload lasted.
#[test]
fn an_instance_is_held_off_as_long_as_its_own_ring_has_room() {
    let mut governor = Governor::new(GovernorConfig::default()).unwrap();
    let cpus = [polling(0, 30_000, 80), polling(1, 500, 20)];
    let [flooded, little] = overloaded(&mut governor, cpus);
    assert_eq!(flooded, governor.setting().holdoff);
    assert!(flooded <= US * 31, "{flooded:?} at 3 million a second");
    assert_eq!(little, US * 200, "at 50,000 a second");
    let of = |rate_pps| {
        governor.holdoff_of(&InstanceRate {
            id: 1,
            cpu: 0,
            rate_pps,
        })
    };
    assert_eq!(of(1_000_000), US * 64);
    // Two of half the rate on one CPU fill two rings.
    assert_eq!(of(1_500_000), Duration::from_nanos(42_666));
    assert_eq!(of(9_000_000), flooded, "the load has fallen since");
}

/// A larger ring takes the same load for longer.
#[test]
fn a_larger_ring_has_room_for_longer_holdoffs() {
    let holdoffs = [256, 4096].map(|ring_frames| {
        let mut governor = Governor::new(GovernorConfig {
            ring_frames,
            ..GovernorConfig::default()
        })
        .unwrap();
        overloaded(
            &mut governor,
            [polling(0, 30_000, 80), polling(1, 10_000, 20)],
        )
    });
    assert_eq!(holdoffs[0][1], US * 64);
    assert_eq!(holdoffs[1], [US * 200; 2]);
}

/// An administrator gives the interface another one (`ethtool -G`). The holdoffs of the larger one had
/// overflowed it.
#[test]
fn a_ring_that_becomes_smaller_has_shorter_holdoffs_from_then_on() {
    let mut governor = Governor::new(GovernorConfig {
        ring_frames: 4096,
        ..GovernorConfig::default()
    })
    .unwrap();
    let mut of = |ring_frames| {
        governor.set_ring_frames(ring_frames).unwrap();
        let cpus = [polling(0, 30_000, 80), polling(1, 10_000, 20)];
        overloaded(&mut governor, cpus)[1]
    };
    assert_eq!([of(4096), of(256), of(4096)], [US * 200, US * 64, US * 200]);
    assert!(governor.set_ring_frames(15).is_err());
}

/// A CPU at its limit once had the instances of all CPUs held off for milliseconds, and
/// those lost most of what came to them.
#[test]
fn the_cpu_limit_of_one_cpu_does_not_overflow_another_one_s_ring() {
    let mut governor = Governor::new(GovernorConfig {
        cpu_limit: Some(Fraction::from_percent(30)),
        polling_limit: Fraction::from_percent(30),
        ..GovernorConfig::default()
    })
    .unwrap();
    let cpus = [polling(0, 4_000, 80), polling(1, 3_000, 20)];
    let [limited, other] = overloaded(&mut governor, cpus);
    assert_eq!(limited, MS * 10, "80 % are more than 30");
    assert_eq!(governor.setting().holdoff, limited, "enough for each CPU");
    let waiting = 300_000 * other.as_nanos() as u64 / NANOS_PER_SECOND;
    assert!(waiting <= RING / 4, "{waiting} frames wait {other:?}");
}

#[test]
fn each_cpu_keeps_the_limit_by_its_own_holdoff() {
    let mut governor = Governor::new(GovernorConfig {
        cpu_limit: Some(Fraction::from_percent(50)),
        polling_limit: Fraction::from_percent(50),
        ..GovernorConfig::default()
    })
    .unwrap();
    // What a run takes: 300 µs on one CPU, 900 µs on the other.
    let work_us = [300, 900];
    let mut holdoffs = [US * 30; 2];
    let mut shares = [0, 0];
    for step in 1..200 {
        let cpus = [0, 1].map(|cpu: usize| {
            let turn_us = holdoffs[cpu].as_micros() as u64 + work_us[cpu];
            let runs = 1_000_000 / turn_us;
            shares[cpu] = 100 * work_us[cpu] / turn_us;
            CpuObservation {
                network: US * u32::try_from(runs * work_us[cpu]).unwrap(),
                runs,
                elapsed: SECOND,
                ..polling(u32::try_from(cpu).unwrap(), 100_000, 0)
            }
        });
        let now = Instant::ZERO + SECOND * step;
        governor.on_interval(&cpus, Losses::default(), now);
        holdoffs = [0, 1].map(|cpu| {
            governor.holdoff_of(&InstanceRate {
                id: cpu,
                cpu,
                rate_pps: 100_000,
            })
        });
    }
    for share in shares {
        assert!((45..=55).contains(&share), "{shares:?} {holdoffs:?}");
    }
}

/// It learns from turns between which it held off.
#[test]
fn a_limit_holds_nothing_off_while_the_host_has_its_own_settings() {
    let mut run = Run::new(GovernorConfig {
        cpu_limit: Some(Fraction::from_percent(50)),
        polling_limit: Fraction::from_percent(50),
        ..GovernorConfig::default()
    });
    let instance = InstanceRate {
        id: 1,
        cpu: 0,
        rate_pps: 1000,
    };
    for _ in 0..20 {
        run.now += 10 * MS;
        let cpu = CpuObservation {
            elapsed: 10 * MS,
            network: 8 * MS,
            idle: 2 * MS,
            contended: true,
            frames: 10,
            runs: 10,
            ..CpuObservation::default()
        };
        let setting = run.governor.on_interval(&[cpu], Losses::default(), run.now);
        assert_eq!(setting.mode, Mode::Interrupts);
    }
    let longest = GovernorConfig::default().holdoff.max;
    assert_eq!(run.governor.holdoff_of(&instance), longest);
}
