//! Stories with a hand-moved clock, then random brackets against a count of every
//! single nanosecond, and the long-run share.

extern crate std;
use std::vec;
use std::vec::Vec;

use proptest::prelude::*;

use super::*;

fn us(micros: u64) -> Instant {
    Instant::from_nanos(micros * 1000)
}

fn limit(percent: u32) -> CpuLimit {
    let limit = Fraction::from_percent(percent);
    CpuLimit::new(
        CpuLimitConfig {
            limit,
            ..CpuLimitConfig::default()
        },
        Instant::ZERO,
    )
    .unwrap()
}

#[test]
fn what_is_left_of_a_period_is_told() {
    let mut limit = limit(30);
    let told = |limit: &CpuLimit| (limit.left(), limit.period_end());
    assert_eq!(told(&limit), (Duration::from_millis(3), us(10_000)));
    let _ = turn(&mut limit, 1000, 3000);
    assert_eq!(told(&limit), (Duration::from_millis(1), us(10_000)));
    let _ = turn(&mut limit, 3000, 7000);
    assert_eq!(told(&limit), (Duration::ZERO, us(10_000)));
    let _ = limit.poll_timeout(us(10_000));
    assert_eq!(told(&limit), (Duration::ZERO, us(20_000)));
    let _ = limit.poll_timeout(us(20_000));
    assert_eq!(told(&limit), (Duration::from_millis(3), us(30_000)));
}

/// One turn on CPU 0, in microseconds.
fn turn(limit: &mut CpuLimit, from: u64, to: u64) -> Change {
    limit.on_enter(0, us(from));
    limit.on_exit(0, us(to))
}

#[test]
fn configs_name_the_field_that_is_wrong() {
    let field = |config: CpuLimitConfig| config.validate().unwrap_err().field;
    let default = CpuLimitConfig::default();
    assert_eq!(
        field(CpuLimitConfig {
            limit: Fraction::NONE,
            ..default
        }),
        "limit"
    );
    assert_eq!(
        field(CpuLimitConfig {
            period: Duration::from_nanos(1),
            ..default
        }),
        "period"
    );
    assert_eq!(
        field(CpuLimitConfig {
            period: Duration::from_secs(3601),
            ..default
        }),
        "period"
    );
    assert_eq!(field(CpuLimitConfig { cpus: 0, ..default }), "cpus");
    assert_eq!(
        field(CpuLimitConfig {
            debt_periods: 1001,
            ..default
        }),
        "debt_periods"
    );
    assert_eq!(default.validate(), Ok(()));
}

#[test]
fn input_stops_when_the_limit_is_used_and_resumes_with_the_next_period() {
    let mut limit = limit(50);
    assert_eq!(turn(&mut limit, 0, 4_999), Change::None);
    assert_eq!(turn(&mut limit, 6_000, 6_001), Change::Inhibit);
    assert!(limit.inhibited());
    assert_eq!(limit.next_timeout(), Some(us(10_000)));
    assert_eq!(limit.poll_timeout(us(9_999)), Change::None);
    assert_eq!(limit.poll_timeout(us(10_000)), Change::Allow);
    assert_eq!(limit.next_timeout(), None);
}

#[test]
fn overrun_is_worked_off_before_input_resumes() {
    let mut limit = limit(25);
    // 9 ms used where 2.5 were allowed: debt of 6.5, 4 and 1.5 ms follow.
    assert_eq!(turn(&mut limit, 0, 9_000), Change::Inhibit);
    assert_eq!(limit.next_timeout(), Some(us(30_000)));
    assert_eq!(limit.poll_timeout(us(10_000)), Change::None);
    assert_eq!(limit.poll_timeout(us(20_000)), Change::None);
    assert_eq!(limit.poll_timeout(us(30_000)), Change::Allow);
    assert_eq!(turn(&mut limit, 30_000, 30_999), Change::None);
    assert_eq!(turn(&mut limit, 30_999, 31_000), Change::Inhibit);
}

/// The paper's timer clears the total (MR-55).
#[test]
fn without_debt_each_period_begins_with_nothing_used() {
    let config = CpuLimitConfig {
        limit: Fraction::from_percent(25),
        debt_periods: 0,
        ..CpuLimitConfig::default()
    };
    let mut limit = CpuLimit::new(config, Instant::ZERO).unwrap();
    for period in 0..3 {
        let start = period * 10_000;
        assert_eq!(turn(&mut limit, start, start + 9_000), Change::Inhibit);
        assert_eq!(limit.next_timeout(), Some(us(start + 10_000)));
        assert_eq!(limit.poll_timeout(us(start + 10_000)), Change::Allow);
        assert_eq!(limit.left(), Duration::from_micros(2500));
    }
}

#[test]
fn a_changed_limit_forgives_nothing() {
    let mut limit = limit(50);
    assert_eq!(turn(&mut limit, 0, 4_000), Change::None);
    limit.set_limit(Fraction::from_percent(45)).unwrap();
    assert_eq!(limit.left(), Duration::from_micros(500));
    assert_eq!(turn(&mut limit, 4_000, 9_000), Change::Inhibit);
    // 9 ms used, and now 3 a period: allowed again in the fourth.
    limit.set_limit(Fraction::from_percent(30)).unwrap();
    assert_eq!(limit.next_timeout(), Some(us(30_000)));
    assert_eq!(limit.poll_timeout(us(29_999)), Change::None);
    assert_eq!(limit.poll_timeout(us(30_000)), Change::Allow);
    // A higher one allows at once what is below it.
    assert_eq!(turn(&mut limit, 30_000, 34_000), Change::Inhibit);
    limit.set_limit(Fraction::from_percent(60)).unwrap();
    assert_eq!(limit.poll_timeout(us(34_000)), Change::Allow);
    assert_eq!(limit.left(), Duration::from_millis(2));
    assert_eq!(limit.set_limit(Fraction::NONE).unwrap_err().field, "limit");
    assert_eq!(limit.left(), Duration::from_millis(2), "the old one stays");
}

#[test]
fn a_turn_across_the_end_of_a_period_is_split() {
    let mut limit = limit(50);
    assert_eq!(
        turn(&mut limit, 9_000, 14_000),
        Change::None,
        "1 ms and 4 ms"
    );
    assert_eq!(turn(&mut limit, 15_000, 16_000), Change::Inhibit);
}

#[test]
fn what_was_not_used_is_not_saved_up() {
    let mut limit = limit(50);
    assert_eq!(turn(&mut limit, 500_000, 505_000), Change::Inhibit);
}

#[test]
fn an_idle_cpu_clears_everything_mid_period() {
    let mut limit = limit(50);
    assert_eq!(turn(&mut limit, 0, 9_000), Change::Inhibit);
    assert_eq!(limit.on_idle(us(9_100)), Change::Allow);
    assert_eq!(limit.on_idle(us(9_200)), Change::None);
    assert_eq!(
        turn(&mut limit, 10_000, 14_999),
        Change::None,
        "no debt is left"
    );
}

#[test]
fn interrupt_handlers_count_once_wherever_they_run() {
    let mut limit = limit(50);
    limit.on_enter(0, us(0));
    limit.on_enter(0, us(1_000)); // an interrupt within the turn
    assert_eq!(limit.on_exit(0, us(2_000)), Change::None);
    assert_eq!(limit.on_exit(0, us(3_000)), Change::None);
    // Interrupts alone, with no turn: at light load these are most of the cost.
    for start in [3_000, 4_000] {
        assert!(!limit.inhibited());
        let _ = turn(&mut limit, start, start + 1_000);
    }
    assert!(limit.inhibited());
}

#[test]
fn the_whole_is_no_limit() {
    let mut limit = limit(100);
    limit.on_enter(0, us(0));
    for now in (0..100_000).step_by(700) {
        assert_eq!(limit.on_exit(0, us(now)), Change::None);
        limit.on_enter(0, us(now));
    }
}

#[test]
fn one_limit_for_the_host_leaves_the_division_to_the_cpus() {
    let config = CpuLimitConfig {
        limit: Fraction::from_percent(25),
        cpus: 4,
        ..CpuLimitConfig::default()
    };
    let mut limit = CpuLimit::new(config, Instant::ZERO).unwrap();
    limit.on_enter(1, us(0));
    limit.on_enter(3, us(2_000));
    assert_eq!(limit.on_exit(3, us(6_000)), Change::None);
    assert_eq!(limit.on_exit(1, us(6_000)), Change::Inhibit, "10 ms of 40");
}

#[test]
fn a_suspended_machine_is_not_punished_for_long() {
    let mut limit = limit(50);
    assert_eq!(turn(&mut limit, 0, 3_600_000_000), Change::Inhibit);
    let allowed_at = limit.next_timeout().unwrap();
    assert!(allowed_at <= us(3_600_000_000 + 110_000), "{allowed_at:?}");
    assert_eq!(limit.poll_timeout(allowed_at), Change::Allow);
}

#[test]
fn a_clock_that_steps_back_counts_nothing() {
    let mut limit = limit(50);
    assert_eq!(turn(&mut limit, 9_000, 1_000), Change::None);
    assert_eq!(turn(&mut limit, 1_000, 6_000), Change::Inhibit);
}

/// Adds up nanosecond by nanosecond what [`CpuLimit`] computes by spans.
struct Model {
    depth: Vec<u32>,
    period: u64,
    allowance: u64,
    used_max: u64,
    used: u64,
    now: u64,
}

impl Model {
    fn advance(&mut self, to: u64) {
        while self.now < to {
            let busy = self.depth.iter().filter(|&&depth| depth > 0).count();
            self.used = self.used_max.min(self.used + busy as u64);
            self.now += 1;
            if self.now.is_multiple_of(self.period) {
                self.used = self.used.saturating_sub(self.allowance);
            }
        }
    }
}

#[derive(Clone, Copy, Debug)]
enum Op {
    Enter(usize),
    Exit(usize),
    Idle,
    Timeout,
}

const CPUS: usize = 3;

fn op() -> impl Strategy<Value = (u64, Op)> {
    let op = prop_oneof![
        4 => (0..CPUS).prop_map(Op::Enter),
        6 => (0..CPUS).prop_map(Op::Exit),
        1 => Just(Op::Idle),
        2 => Just(Op::Timeout),
    ];
    (prop_oneof![5 => 0..60u64, 1 => 0..500u64], op)
}

/// Plays turns of the given lengths in nanoseconds back to back whenever input is
/// allowed, and returns time used and time passed up to a period's end.
fn flood(limit: &mut CpuLimit, period: u64, turns: &[u64], periods: u64) -> u64 {
    let (mut now, mut used) = (0, 0);
    for turn in turns.iter().cycle() {
        if let Some(allowed_at) = limit.next_timeout() {
            now = allowed_at.as_nanos();
            assert_eq!(limit.poll_timeout(allowed_at), Change::Allow);
        }
        let end = periods * period;
        if now >= end {
            break;
        }
        limit.on_enter(0, Instant::from_nanos(now));
        used += (end - now).min(*turn);
        now += turn;
        let _ = limit.on_exit(0, Instant::from_nanos(now));
    }
    used
}

proptest! {
    #[test]
    fn spans_add_up_as_single_nanoseconds_do(
        ops in prop::collection::vec(op(), 0..300),
        percent in 1..=100u32,
        debt_periods in 0..4u32,
    ) {
        let (period, fraction) = (100, Fraction::from_percent(percent));
        let config = CpuLimitConfig {
            limit: fraction,
            period: Duration::from_nanos(period),
            cpus: CPUS,
            debt_periods,
        };
        let mut limit = CpuLimit::new(config, Instant::ZERO).unwrap();
        let allowance = u64::from(percent) * CPUS as u64;
        let used_max = allowance * u64::from(1 + debt_periods);
        let depth = vec![0; CPUS];
        let mut model = Model { depth, period, allowance, used_max, used: 0, now: 0 };
        for (wait, op) in ops {
            let now = model.now + wait;
            let at = Instant::from_nanos(now);
            model.advance(now);
            match op {
                Op::Enter(cpu) => {
                    model.depth[cpu] += 1;
                    limit.on_enter(cpu, at);
                }
                Op::Exit(cpu) if model.depth[cpu] > 0 => {
                    model.depth[cpu] -= 1;
                    let _ = limit.on_exit(cpu, at);
                }
                Op::Exit(_) | Op::Timeout => {
                    let _ = limit.poll_timeout(at);
                }
                Op::Idle => {
                    model.used = 0;
                    let _ = limit.on_idle(at);
                }
            }
            let _ = limit.poll_timeout(at);
            limit.count_open(at);
            prop_assert_eq!(limit.used_ns, model.used);
        }
    }

    #[test]
    fn a_flood_gets_its_share_and_at_most_one_turn_more(
        percent in 1..=100u32,
        turns in prop::collection::vec(1..200_000u64, 1..20),
        periods in 1..200u64,
    ) {
        let period = 100_000;
        let config = CpuLimitConfig {
            limit: Fraction::from_percent(percent),
            period: Duration::from_nanos(period),
            cpus: 1,
            debt_periods: 1000,
        };
        let mut limit = CpuLimit::new(config, Instant::ZERO).unwrap();
        let used = flood(&mut limit, period, &turns, periods);
        let share = u64::from(percent) * period / 100 * periods;
        let longest = *turns.iter().max().unwrap();
        prop_assert!(used >= share, "{used} of {share}");
        prop_assert!(used <= share + longest, "{used} of {share}, turns up to {longest}");
    }
}
