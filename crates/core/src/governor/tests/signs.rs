//! Which signs begin overload, and which do not.

use super::*;

#[test]
fn each_sign_of_overload_is_named() {
    let light = CpuObservation {
        cpu: 0,
        elapsed: MS * 10,
        network: MS,
        contended: true,
        idle: MS * 8,
        frames: 1000,
        runs: 900,
        run_frames_max: 8,
    };
    let busy = CpuObservation {
        idle: Duration::ZERO,
        ..light
    };
    let working = CpuObservation {
        network: MS * 6,
        contended: true,
        ..busy
    };
    let filling = CpuObservation {
        run_frames_max: 192,
        ..light
    };
    // 16 µs of 10 ms: more than a thousandth.
    let discarding = Losses {
        discarded: 100,
        ..Losses::default()
    };
    let trickling = Losses {
        discarded: 10,
        ..Losses::default()
    };
    let overflowing = Losses {
        ring: 1,
        ..Losses::default()
    };
    for (cpus, losses, reason) in [
        ([light, light], Losses::default(), Reason::Calm),
        ([light, light], discarding, Reason::Calm),
        ([light, busy], Losses::default(), Reason::Calm),
        ([light, busy], trickling, Reason::Calm),
        ([light, busy], discarding, Reason::Discards),
        ([light, working], Losses::default(), Reason::NetworkShare),
        ([light, filling], Losses::default(), Reason::Ring),
        ([light, light], overflowing, Reason::Ring),
    ] {
        let mut governor = Governor::new(GovernorConfig::default()).unwrap();
        let mut setting = governor.setting();
        for step in 1..5 {
            setting = governor.on_interval(&cpus, losses, Instant::ZERO + MS * 10 * step);
        }
        assert_eq!(setting.reason, reason, "{cpus:?} {losses:?}");
        let wanted = if reason == Reason::Calm {
            Mode::Interrupts
        } else {
            Mode::Overload
        };
        assert_eq!(setting.mode, wanted);
    }
}

#[test]
fn a_ring_that_reports_drops_is_believed_before_the_length_of_a_run() {
    // A driver that answers with its whole budget while it cleans up transmissions.
    let cpu = CpuObservation {
        cpu: 0,
        elapsed: MS * 10,
        network: MS,
        contended: true,
        idle: MS * 8,
        frames: 1000,
        runs: 4,
        run_frames_max: 1 << 20,
    };
    let counted = Losses {
        is_ring_counted: true,
        ..Losses::default()
    };
    let mut governor = Governor::new(GovernorConfig::default()).unwrap();
    let mut now = Instant::ZERO;
    let mut observe = |losses| {
        now += MS * 10;
        governor.on_interval(&[cpu], losses, now)
    };
    for _ in 0..1000 {
        let setting = observe(counted);
        assert_eq!(
            (setting.mode, setting.reason),
            (Mode::Interrupts, Reason::Calm)
        );
    }
    let overflow = Losses { ring: 1, ..counted };
    let settings: Vec<_> = (0..5).map(|_| observe(overflow)).collect();
    assert_eq!(settings[4].mode, Mode::Overload);
    assert_eq!(settings[4].reason, Reason::Ring);
    // It ends although runs are as long as before.
    let calm = (0..1000).map(|_| observe(counted).mode);
    assert_eq!(calm.last(), Some(Mode::Interrupts));
    // Of a ring that never counted anything, the run's length is the sign.
    let settings: Vec<_> = (0..5).map(|_| observe(Losses::default())).collect();
    assert_eq!(settings[4].mode, Mode::Overload);
    assert_eq!(settings[4].reason, Reason::Ring);
}

#[test]
fn a_trickle_of_discards_does_not_keep_overload_up() {
    // A computing process leaves no CPU idle, and a hung one's queue goes on discarding.
    let mut run = Run::new(GovernorConfig::default());
    run.offer(3_000_000, SECOND, Mode::Overload).unwrap();
    let cpu = CpuObservation {
        cpu: 0,
        elapsed: MS * 10,
        network: MS / 2,
        contended: true,
        idle: Duration::ZERO,
        frames: 100,
        runs: 50,
        run_frames_max: 4,
    };
    let trickle = Losses {
        discarded: 10,
        ..Losses::default()
    };
    let start = run.now;
    while run.governor.on_interval(&[cpu], trickle, run.now).mode == Mode::Overload {
        run.now += MS * 10;
        assert!(run.now < start + SECOND * 2, "a thousand a second pin it");
    }
    for _ in 0..1000 {
        run.now += MS * 10;
        let mode = run.governor.on_interval(&[cpu], trickle, run.now).mode;
        assert_eq!(mode, Mode::Interrupts, "nor do they begin it");
    }
}

/// What is told of overload is its last sign.
#[test]
fn the_reason_follows_the_signs_and_outlasts_a_pause() {
    let mut run = Run::new(GovernorConfig::default());
    let mut reason_after = |network: u32, idle: u32, ring| {
        run.now += 10 * MS;
        let cpu = CpuObservation {
            elapsed: 10 * MS,
            network: network * MS,
            idle: idle * MS,
            frames: 10_000,
            ..CpuObservation::default()
        };
        let losses = Losses {
            ring,
            ..Losses::default()
        };
        let setting = run.governor.on_interval(&[cpu], losses, run.now);
        (setting.mode, setting.reason)
    };
    for _ in 0..2 {
        reason_after(9, 0, 0);
    }
    assert_eq!(
        reason_after(9, 0, 0),
        (Mode::Overload, Reason::NetworkShare)
    );
    assert_eq!(reason_after(9, 0, 5), (Mode::Overload, Reason::Ring));
    assert_eq!(
        reason_after(1, 5, 0),
        (Mode::Overload, Reason::Ring),
        "a pause"
    );
    assert_eq!(
        reason_after(9, 0, 0),
        (Mode::Overload, Reason::NetworkShare)
    );
}

/// In overload, whatever one CPU or discarding takes: for four probes' time it does not end.
#[test]
fn one_strained_cpu_or_discards_alone_keep_overload_up() {
    let cpu = |network: u32, idle: u32| CpuObservation {
        elapsed: 10 * MS,
        network: network * MS,
        idle: idle * MS,
        frames: 10_000,
        ..CpuObservation::default()
    };
    let discards = Losses {
        discarded: 10_000,
        ..Losses::default()
    };
    for (cpus, losses, lasts) in [
        ([cpu(0, 10), cpu(9, 0)], Losses::default(), true),
        ([cpu(0, 10), cpu(1, 0)], discards, true),
        ([cpu(0, 10), cpu(1, 0)], Losses::default(), false),
    ] {
        let mut run = Run::new(GovernorConfig::default());
        let mut mode = Mode::Interrupts;
        let begin = (0..10).map(|_| ([cpu(9, 0); 2], Losses::default()));
        for (cpus, losses) in begin.chain((0..2000).map(|_| (cpus, losses))) {
            run.now += 10 * MS;
            mode = run.governor.on_interval(&cpus, losses, run.now).mode;
        }
        assert_eq!(mode == Mode::Overload, lasts, "{cpus:?} {losses:?}");
        assert_eq!(run.governor.switches(), if lasts { 1 } else { 2 });
    }
}
