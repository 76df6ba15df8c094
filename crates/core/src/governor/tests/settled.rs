//! Overload that the host carries, and when it no longer does.

use super::*;

/// A CPU that is full of receiving, and loses nothing.
fn carried(span: Duration) -> CpuObservation {
    CpuObservation {
        cpu: 0,
        elapsed: span,
        network: span * 3 / 5,
        contended: true,
        idle: Duration::ZERO,
        frames: 40_000 * span.as_nanos() as u64 / NANOS_PER_SECOND,
        runs: 100,
        run_frames_max: 8,
    }
}

impl Run {
    /// Receiving as [`carried`] for `span`, with these losses in each interval.
    fn carry(&mut self, span: Duration, losses: Losses) {
        let end = self.now + span;
        while self.now < end {
            let span = self.governor.interval();
            self.now += span;
            let cpu = carried(span);
            self.governor.on_interval(&[cpu], losses, self.now);
        }
    }

    fn is_settled(&self) -> bool {
        let interval = self.governor.interval();
        let rests = interval == self.governor.config.rest_interval;
        assert_eq!(rests, !self.governor.is_strained());
        rests && self.governor.setting().mode == Mode::Overload
    }
}

#[test]
fn overload_that_loses_nothing_is_soon_looked_at_rarely() {
    let mut run = Run::new(GovernorConfig::default());
    run.carry(SECOND, Losses::default());
    assert_eq!(run.governor.setting().reason, Reason::NetworkShare);
    assert!(!run.is_settled());
    run.carry(MS * 200, Losses::default());
    assert!(run.is_settled());
    let some = |discarded, ring| Losses {
        discarded,
        ring,
        ..Losses::default()
    };
    // What costs next to nothing is no loss of time.
    run.carry(SECOND, some(1, 0));
    assert!(run.is_settled());
    for losses in [some(0, 1), some(10_000, 0)] {
        run.carry(MS, losses);
        assert!(!run.is_settled(), "{losses:?}");
        run.carry(MS * 1100, Losses::default());
        assert!(run.is_settled(), "{losses:?}");
    }
    run.offer(3_000_000, MS * 50, Mode::Overload);
    assert!(!run.is_settled());
}

#[test]
fn a_cpu_limit_that_is_near_is_kept_by_looking() {
    // Receiving takes 60 %.
    for (limit, is_settled) in [(65, false), (70, true)] {
        let mut run = Run::new(GovernorConfig {
            cpu_limit: Some(Fraction::from_percent(limit)),
            ..GovernorConfig::default()
        });
        run.carry(SECOND * 5, Losses::default());
        assert_eq!(run.governor.setting().mode, Mode::Overload);
        assert_eq!(run.is_settled(), is_settled, "{limit}");
    }
}

#[test]
fn settled_overload_does_not_end_unseen_and_ends_when_seen() {
    let mut run = Run::new(GovernorConfig::default());
    run.carry(SECOND * 2, Losses::default());
    assert!(run.is_settled());
    // Nobody meters: all seems idle.
    for _ in 0..250 {
        run.now += MS * 40;
        let unseen = CpuObservation {
            network: Duration::ZERO,
            idle: MS * 40,
            ..carried(MS * 40)
        };
        let governor = &mut run.governor;
        let setting = governor.on_unmetered(&[unseen], Losses::default(), run.now);
        assert_eq!(setting.mode, Mode::Overload);
        assert!(run.is_settled());
    }
    let lost = Losses {
        ring: 1,
        ..Losses::default()
    };
    let cpu = carried(MS * 40);
    run.governor.on_unmetered(&[cpu], lost, run.now);
    assert!(run.governor.is_strained(), "a loss is seen by all");
    let ended = run.offer(10_000, SECOND * 3, Mode::Interrupts);
    assert!(ended.is_some_and(|after| after <= SECOND * 2), "{ended:?}");
}

/// A second of calm had passed for a second of overload that loses nothing.
#[test]
fn calm_before_overload_does_not_settle_it() {
    let mut run = Run::new(GovernorConfig::default());
    run.offer(1000, 3 * SECOND, Mode::Overload);
    assert_eq!(run.governor.setting().mode, Mode::Interrupts);
    while run.governor.setting().mode == Mode::Interrupts {
        run.carry(MS, Losses::default());
    }
    assert!(run.governor.is_strained());
}

#[test]
fn one_cpu_near_its_limit_keeps_all_from_being_settled() {
    let mut run = Run::new(GovernorConfig {
        cpu_limit: Some(Fraction::from_percent(65)),
        ..GovernorConfig::default()
    });
    let end = run.now + SECOND * 5;
    while run.now < end {
        let span = run.governor.interval();
        run.now += span;
        let other = CpuObservation {
            cpu: 1,
            network: span / 10,
            ..carried(span)
        };
        run.governor
            .on_interval(&[other, carried(span)], Losses::default(), run.now);
    }
    assert!(!run.is_settled());
}
