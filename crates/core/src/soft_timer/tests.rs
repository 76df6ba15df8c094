//! The story of the facility with a clock moved by hand, and its comparison
//! with a sorted list.

extern crate std;

use std::vec;
use std::vec::Vec;

use proptest::prelude::*;

use super::*;

const TICK_NANOS: u64 = 1000;

fn config(backup_hz: u64, capacity: u32) -> SoftTimerConfig {
    SoftTimerConfig {
        measure_resolution_hz: NANOS_PER_SECOND / TICK_NANOS,
        interrupt_clock_resolution_hz: backup_hz,
        capacity,
    }
}

/// Ticks of a microsecond, a backup every millisecond.
fn timers() -> SoftTimers<u32> {
    SoftTimers::new(config(1000, 64)).expect("the config is valid")
}

fn at(ticks: u64) -> Instant {
    Instant::from_nanos(ticks * TICK_NANOS)
}

/// The payloads of everything due at `now`.
fn fired<T: Copy>(timers: &mut SoftTimers<T>, now: Instant) -> Vec<T> {
    core::iter::from_fn(|| timers.poll_event(now))
        .map(|event| event.payload)
        .collect()
}

#[test]
fn the_four_operations_agree_on_the_clocks() {
    let timers = timers();
    assert_eq!(timers.measure_resolution(), 1_000_000);
    assert_eq!(timers.interrupt_clock_resolution(), 1000);
    assert_eq!(timers.backup_ticks(), 1000);
    assert_eq!(timers.measure_time(Instant::from_nanos(7_999)), 7);
    assert_eq!(timers.ticks(Duration::from_nanos(7_001)), 8);
}

#[test]
fn an_event_fires_when_the_clock_moved_by_one_tick_more_than_asked() {
    let mut timers = timers();
    // Scheduled at the very end of tick 10: at tick 15 only 4.001 ticks passed.
    timers
        .schedule_soft_event(Instant::from_nanos(10_999), 5, 7)
        .unwrap();
    assert_eq!(timers.poll_event(Instant::from_nanos(15_999)), None);
    let event = timers.poll_event(at(16)).unwrap();
    assert_eq!(event.payload, 7);
    assert_eq!(event.scheduled, at(16));
    assert_eq!(timers.poll_event(at(16)), None);
}

#[test]
fn one_tick_asked_with_a_backup_every_second_one_fires_within_four() {
    // The paper's figure 1: T = 1, X = 2.
    let mut timers = SoftTimers::new(config(500_000, 4)).unwrap();
    assert_eq!(timers.backup_ticks(), 2);
    let scheduled = Instant::from_nanos(100_500);
    timers.schedule_soft_event(scheduled, 1, ()).unwrap();
    // Without any trigger state, the backups at even ticks must do.
    assert_eq!(timers.poll_event(at(100)), None);
    assert!(timers.poll_event(at(102)).is_some());
    let elapsed = at(102).saturating_since(scheduled).as_nanos() as u64;
    assert!(TICK_NANOS < elapsed && elapsed < 4 * TICK_NANOS);
}

#[test]
fn a_host_without_trigger_states_delays_events_to_the_backup_but_no_further() {
    let mut timers = timers();
    for payload in 0..40 {
        timers
            .schedule_soft_event(at(0), u64::from(payload) * 25, payload)
            .unwrap();
    }
    // Busy: nobody asks until the backup at the millisecond.
    let late = fired(&mut timers, at(1000));
    assert_eq!(late, (0..40).collect::<Vec<u32>>());
}

#[test]
fn events_leave_by_due_tick_and_then_in_the_order_they_came() {
    let mut timers = timers();
    // Tick 200 waits two levels up at first, and in the lowest one at the end.
    timers.schedule_soft_event(at(0), 199, 1).unwrap();
    timers.schedule_soft_event(at(0), 69, 2).unwrap();
    timers.schedule_soft_event(at(0), 199, 3).unwrap();
    assert_eq!(fired(&mut timers, at(198)), [2]);
    timers.schedule_soft_event(at(198), 1, 4).unwrap();
    timers.schedule_soft_event(at(198), 0, 5).unwrap();
    assert_eq!(fired(&mut timers, at(300)), [5, 1, 3, 4]);
}

#[test]
fn an_event_scheduled_by_a_handler_waits_for_the_next_tick() {
    let mut timers = timers();
    timers.schedule_soft_event(at(5), 0, 0).unwrap();
    let mut handled = 0;
    while let Some(event) = timers.poll_event(at(6)) {
        timers
            .schedule_soft_event(at(6), 0, event.payload + 1)
            .unwrap();
        handled += 1;
    }
    assert_eq!(handled, 1);
    assert_eq!(fired(&mut timers, at(7)), [1]);
}

#[test]
fn a_full_facility_says_so_and_takes_events_again_after_one_fired() {
    let mut timers = SoftTimers::new(config(1000, 2)).unwrap();
    timers.schedule_soft_event(at(0), 1, 'a').unwrap();
    timers.schedule_soft_event(at(0), 9, 'b').unwrap();
    let refused = timers.schedule_soft_event(at(0), 0, 'c');
    assert_eq!(refused, Err(TimersFull { capacity: 2 }));
    assert_eq!(fired(&mut timers, at(2)), ['a']);
    timers.schedule_soft_event(at(2), 0, 'd').unwrap();
    assert_eq!(fired(&mut timers, at(20)), ['d', 'b']);
    assert_eq!(timers.pending(), 0);
}

#[test]
fn a_cancelled_event_never_fires_and_its_name_matches_no_other() {
    let mut timers = SoftTimers::new(config(1000, 1)).unwrap();
    let first = timers.schedule_soft_event(at(0), 5, 'a').unwrap();
    assert_eq!(timers.cancel(first), Some('a'));
    assert_eq!(timers.next_event(), None);
    let second = timers.schedule_soft_event(at(0), 5, 'b').unwrap();
    assert_eq!(timers.cancel(first), None);
    assert_eq!(fired(&mut timers, at(6)), ['b']);
    assert_eq!(timers.cancel(second), None);
}

#[test]
fn events_of_one_tick_can_be_cancelled_between_two_of_them() {
    let mut timers = timers();
    let mut schedule = |payload| timers.schedule_soft_event(at(0), 9, payload).unwrap();
    schedule(1);
    let second = schedule(2);
    schedule(3);
    let last = schedule(4);
    assert_eq!(timers.poll_event(at(10)).unwrap().payload, 1);
    // What handler 1 takes back does not fire any more.
    assert_eq!(timers.cancel(second), Some(2));
    assert_eq!(timers.cancel(last), Some(4));
    assert_eq!(fired(&mut timers, at(10)), [3]);
}

#[test]
fn the_hardware_timer_covers_the_earliest_deadline_of_all_events() {
    let mut timers = timers();
    assert_eq!(timers.poll_hardware_timer(), None);
    timers.schedule_with_deadline(at(0), 9, 100, 1).unwrap();
    assert_eq!(
        timers.poll_hardware_timer(),
        Some(HardwareTimer::Arm(at(110)))
    );
    // Due later, but wanted earlier.
    timers.schedule_with_deadline(at(0), 49, 20, 2).unwrap();
    assert_eq!(
        timers.poll_hardware_timer(),
        Some(HardwareTimer::Arm(at(70)))
    );
    // Due and wanted later: the timer stays.
    timers.schedule_with_deadline(at(0), 99, 20, 3).unwrap();
    assert_eq!(timers.poll_hardware_timer(), None);
}

/// Where arming is dear an earlier expiry is suffered, but no deadline is left uncovered.
#[test]
fn a_timer_that_is_dear_to_arm_stays_armed_for_an_earlier_deadline() {
    let mut timers = timers();
    assert_eq!(timers.poll_earlier_hardware_timer(), None);
    timers.schedule_with_deadline(at(0), 9, 100, 1).unwrap();
    assert_eq!(timers.poll_earlier_hardware_timer(), Some(at(110)));
    assert_eq!(timers.poll_earlier_hardware_timer(), None, "it is armed");
    // A trigger state fires the event in time, and the next one has a later deadline.
    assert!(timers.poll_event(at(10)).is_some());
    assert_eq!(timers.poll_earlier_hardware_timer(), None);
    timers.schedule_with_deadline(at(10), 9, 100, 2).unwrap();
    assert_eq!(timers.poll_earlier_hardware_timer(), None);
    // The expiry is too early for it: the timer is armed anew.
    timers.on_hardware_expiry();
    assert_eq!(timers.poll_event(at(19)), None);
    assert_eq!(timers.poll_earlier_hardware_timer(), Some(at(120)));
    // An earlier deadline is never left to it.
    timers.schedule_with_deadline(at(11), 9, 20, 3).unwrap();
    assert_eq!(timers.poll_earlier_hardware_timer(), Some(at(41)));
}

#[test]
fn a_trigger_state_before_the_deadline_cancels_the_hardware_timer() {
    let mut timers = timers();
    timers.schedule_with_deadline(at(0), 9, 50, 1).unwrap();
    assert_eq!(
        timers.poll_hardware_timer(),
        Some(HardwareTimer::Arm(at(60)))
    );
    let event = timers.poll_event(at(12)).unwrap();
    assert_eq!((event.scheduled, event.deadline), (at(10), at(60)));
    assert_eq!(timers.poll_hardware_timer(), Some(HardwareTimer::Cancel));
}

#[test]
fn an_expired_hardware_timer_fires_the_overdue_events_and_is_armed_again() {
    let mut timers = timers();
    timers.schedule_with_deadline(at(0), 9, 50, 1).unwrap();
    timers.schedule_with_deadline(at(0), 19, 500, 2).unwrap();
    timers.schedule_with_deadline(at(0), 99, 10, 3).unwrap();
    timers.poll_hardware_timer();
    // At its deadline the first event is overdue; the second is due anyway and
    // spares a later check.
    timers.on_hardware_expiry();
    assert_eq!(fired(&mut timers, at(60)), [1, 2]);
    assert_eq!(
        timers.poll_hardware_timer(),
        Some(HardwareTimer::Arm(at(110)))
    );
}

#[test]
fn a_hardware_timer_that_expired_too_early_is_armed_again() {
    let mut timers = timers();
    timers.schedule_with_deadline(at(0), 9, 50, 1).unwrap();
    let armed = timers.poll_hardware_timer();
    timers.on_hardware_expiry();
    assert_eq!(timers.poll_event(at(5)), None);
    assert_eq!(timers.poll_hardware_timer(), armed);
}

#[test]
fn without_a_deadline_of_its_own_an_event_has_the_backups_bound() {
    let mut timers = timers();
    timers.schedule_soft_event(at(0), 9, 1).unwrap();
    // T = 9 and X = 1000: earlier than T + X + 1 even if scheduled on a tick.
    assert_eq!(timers.next_deadline(), Some(at(1009)));
}

#[test]
fn an_idle_cpu_halts_unless_an_event_comes_before_the_next_interrupt() {
    let mut timers = timers();
    assert_eq!(timers.idle_action(at(1000), false), IdleAction::Halt);
    timers.schedule_soft_event(at(0), 1999, 1).unwrap();
    assert_eq!(timers.idle_action(at(1000), false), IdleAction::Halt);
    assert_eq!(timers.idle_action(at(2000), false), IdleAction::Halt);
    assert_eq!(timers.idle_action(at(3000), false), IdleAction::Check);
    assert_eq!(timers.idle_action(at(3000), true), IdleAction::Halt);
}

#[test]
fn conventional_timers_share_the_backups_interrupt_with_overdue_events() {
    let mut timers = timers();
    // 30 ms, a conventional timer's business, and a soft event of 40 µs.
    timers.schedule_soft_event(at(0), 29_999, 30_000).unwrap();
    timers.schedule_soft_event(at(0), 39, 40).unwrap();
    for backup in 1..30 {
        let expected: &[u32] = if backup == 1 { &[40] } else { &[] };
        assert_eq!(fired(&mut timers, at(backup * 1000)), expected);
    }
    assert_eq!(fired(&mut timers, at(30_000)), [30_000]);
}

#[test]
fn the_wheel_wraps_around_at_every_level() {
    for level in 1..8 {
        let boundary = 1_u64 << (6 * level);
        let mut timers = timers();
        let start = boundary - 3;
        for ticks in 0..6 {
            timers
                .schedule_soft_event(at(start), ticks, ticks as u32)
                .unwrap();
        }
        for ticks in 0..6 {
            assert_eq!(fired(&mut timers, at(start + ticks)), vec![0; 0]);
            assert_eq!(fired(&mut timers, at(start + ticks + 1)), [ticks as u32]);
        }
    }
}

#[test]
fn what_lies_beyond_the_clocks_end_fires_at_its_end() {
    for measure_resolution_hz in [NANOS_PER_SECOND, 1_000_000] {
        let config = SoftTimerConfig {
            measure_resolution_hz,
            ..SoftTimerConfig::default()
        };
        let mut timers = SoftTimers::new(config).unwrap();
        let start = Instant::from_nanos(u64::MAX - 5000);
        timers.schedule_soft_event(start, u64::MAX, 'x').unwrap();
        assert_eq!(
            timers.poll_event(Instant::from_nanos(u64::MAX - 1000)),
            None
        );
        assert_eq!(fired(&mut timers, Instant::MAX), ['x']);
        assert_eq!(timers.poll_event(Instant::MAX), None);
    }
}

#[test]
fn a_clock_that_steps_back_delays_events_but_breaks_nothing() {
    let mut timers = timers();
    timers.schedule_soft_event(at(5000), 0, 1).unwrap();
    assert_eq!(fired(&mut timers, at(5001)), [1]);
    timers.schedule_soft_event(at(10), 0, 2).unwrap();
    assert_eq!(timers.poll_event(at(4000)), None);
    assert_eq!(fired(&mut timers, at(5001)), [2]);
}

#[test]
fn configs_name_the_field_that_is_wrong() {
    let field = |config: SoftTimerConfig| SoftTimers::<()>::new(config).err().map(|e| e.field);
    let valid = SoftTimerConfig::default();
    assert_eq!(field(valid), None);
    for wrong in [0, 3, 2_000_000_000] {
        let config = SoftTimerConfig {
            measure_resolution_hz: wrong,
            ..valid
        };
        assert_eq!(field(config), Some("measure_resolution_hz"));
    }
    for wrong in [0, 1_000_001] {
        let config = SoftTimerConfig {
            interrupt_clock_resolution_hz: wrong,
            ..valid
        };
        assert_eq!(field(config), Some("interrupt_clock_resolution_hz"));
    }
    for wrong in [0, u32::MAX] {
        let config = SoftTimerConfig {
            capacity: wrong,
            ..valid
        };
        assert_eq!(field(config), Some("capacity"));
    }
}

/// What a user may do next.
#[derive(Clone, Debug)]
enum Step {
    Relative { ticks: u64, slack_ticks: u32 },
    Absolute { nanos: u64 },
    Cancel { which: prop::sample::Index },
    Poll { nanos: u64 },
}

/// Spans with as many short as long ones, up to many levels of the wheel.
fn span() -> impl Strategy<Value = u64> {
    (0_u32..34).prop_flat_map(|bits| 0..1_u64 << bits)
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => (span(), 0..5000_u32).prop_map(|(ticks, slack_ticks)| Step::Relative { ticks, slack_ticks }),
        1 => span().prop_map(|nanos| Step::Absolute { nanos }),
        1 => any::<prop::sample::Index>().prop_map(|which| Step::Cancel { which }),
        3 => span().prop_map(|nanos| Step::Poll { nanos }),
    ]
}

/// The plain model: a list in order of scheduling.
#[derive(Default)]
struct Model {
    pending: Vec<(u64, u64, u32, EventId)>,
    cancelled: bool,
}

impl Model {
    fn earliest(&self, value: impl Fn(&(u64, u64, u32, EventId)) -> u64) -> Option<Instant> {
        self.pending.iter().map(value).min().map(at)
    }

    fn take_due(&mut self, tick: u64) -> Vec<u32> {
        let (mut due, later): (Vec<_>, Vec<_>) =
            self.pending.drain(..).partition(|event| event.0 <= tick);
        self.pending = later;
        // Stable: events of one tick keep their order.
        due.sort_by_key(|event| event.0);
        due.into_iter().map(|event| event.2).collect()
    }
}

fn run(
    timers: &mut SoftTimers<u32>,
    model: &mut Model,
    now: &mut Instant,
    step: &Step,
    payload: u32,
) {
    let tick = timers.measure_time(*now);
    match *step {
        Step::Relative { ticks, slack_ticks } => {
            let due = tick + ticks + 1;
            let id = timers.schedule_with_deadline(*now, ticks, slack_ticks, payload);
            add(model, id, due, due + u64::from(slack_ticks), payload);
        }
        Step::Absolute { nanos } => {
            let moment = *now + Duration::from_nanos(nanos);
            let due = moment.as_nanos().div_ceil(TICK_NANOS).max(tick + 1);
            let id = timers.schedule_at(*now, moment, payload);
            add(model, id, due, due + 999, payload);
        }
        Step::Cancel { which } => {
            if !model.pending.is_empty() {
                let (_, _, payload, id) = model.pending.remove(which.index(model.pending.len()));
                assert_eq!(timers.cancel(id), Some(payload));
                assert_eq!(timers.cancel(id), None);
                model.cancelled = true;
            }
        }
        Step::Poll { nanos } => {
            *now += Duration::from_nanos(nanos);
            let expected = model.take_due(timers.measure_time(*now));
            assert_eq!(fired(timers, *now), expected);
        }
    }
}

fn add(model: &mut Model, id: Result<EventId, TimersFull>, due: u64, deadline: u64, payload: u32) {
    match id {
        Ok(id) => model.pending.push((due, deadline, payload, id)),
        Err(full) => assert_eq!(model.pending.len(), full.capacity as usize),
    }
}

proptest! {
    #[test]
    fn the_wheel_does_what_a_sorted_list_does(
        start in 0..1_u64 << 50,
        steps in prop::collection::vec(step(), 1..200),
    ) {
        let mut timers = timers();
        let mut model = Model::default();
        let mut now = Instant::from_nanos(start);
        for (payload, step) in (0..).zip(steps) {
            run(&mut timers, &mut model, &mut now, &step, payload);
            prop_assert_eq!(timers.pending() as usize, model.pending.len());
            let (due, deadline) = (model.earliest(|e| e.0), model.earliest(|e| e.1));
            if model.cancelled {
                prop_assert!(timers.next_event() <= due);
                prop_assert!(timers.next_deadline() <= deadline);
            } else {
                prop_assert_eq!(timers.next_event(), due);
                prop_assert_eq!(timers.next_deadline(), deadline);
            }
        }
        // At its end every event fired exactly once.
        let rest = model.take_due(u64::MAX);
        prop_assert_eq!(fired(&mut timers, Instant::MAX), rest);
        prop_assert_eq!(timers.pending(), 0);
    }

    #[test]
    fn every_event_fires_within_the_papers_bounds(
        scheduled in 0..1_000_000_u64,
        ticks in 0..3000_u64,
        backup_ticks in 1..1500_u64,
        trigger_states in prop::collection::vec(1..2_000_000_u64, 0..50),
    ) {
        let backup_hz = 1_000_000 / backup_ticks;
        let mut timers = SoftTimers::new(config(backup_hz, 1)).unwrap();
        let backup_ticks = u64::from(timers.backup_ticks());
        timers.schedule_soft_event(Instant::from_nanos(scheduled), ticks, ()).unwrap();
        // Trigger states at any nanosecond, and a backup at every X-th tick.
        let backups = (0..).map(|n| n * backup_ticks * TICK_NANOS);
        let mut moments: Vec<u64> = backups.take_while(|&nanos| nanos < 6_000_000).collect();
        moments.extend(trigger_states);
        moments.sort_unstable();
        let fired = moments
            .into_iter()
            .filter(|&nanos| nanos >= scheduled)
            .find(|&nanos| timers.poll_event(Instant::from_nanos(nanos)).is_some());
        let elapsed = fired.expect("a backup came") - scheduled;
        prop_assert!(elapsed > ticks * TICK_NANOS);
        prop_assert!(elapsed < (ticks + backup_ticks + 1) * TICK_NANOS);
    }
}
