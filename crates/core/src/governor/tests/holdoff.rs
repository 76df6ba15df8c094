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
