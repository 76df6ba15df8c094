//! Stories with a hand-moved clock, then random work against a naive round robin.

extern crate std;

mod naive;

use std::vec;
use std::vec::Vec;

use proptest::prelude::*;

use self::naive::{ops, play};
use super::*;

const SEPARATE: Driver = Driver::Polled(Interrupts::Separate);
const MS: Duration = Duration::from_millis(1);

fn at(millis: u64) -> Instant {
    Instant::from_nanos(millis * 1_000_000)
}

fn poller_with(config: PollerConfig, drivers: &[Driver]) -> (Poller, Vec<SourceId>) {
    let mut poller = Poller::new(config, Instant::ZERO).unwrap();
    let sources = drivers.iter().map(|&d| poller.register(d).unwrap());
    let sources = sources.collect();
    (poller, sources)
}

fn poller(drivers: &[Driver]) -> (Poller, Vec<SourceId>) {
    poller_with(PollerConfig::default(), drivers)
}

/// Whom the next turn serves, by index.
fn next(poller: &mut Poller) -> Option<(usize, Direction)> {
    let turn = poller.poll_next(Instant::ZERO)?;
    Some((turn.source.index(), turn.direction))
}

fn turn(source: SourceId, direction: Direction) -> Turn {
    Turn {
        source,
        direction,
        quota: 8,
    }
}

#[test]
fn configs_name_the_field_that_is_wrong() {
    let field = |config: PollerConfig| config.validate().unwrap_err().field;
    let default = PollerConfig::default();
    let clock = |period| Initiation::Clock { period };
    let rate = |window, packets| Initiation::ClockAboveRate {
        period: MS,
        window,
        packets,
    };
    assert_eq!(
        field(PollerConfig {
            receive_quota: 0,
            ..default
        }),
        "receive_quota"
    );
    assert_eq!(
        field(PollerConfig {
            transmit_quota: 0,
            ..default
        }),
        "transmit_quota"
    );
    for (initiation, wrong) in [
        (clock(Duration::ZERO), "period"),
        (rate(Duration::ZERO, 1), "window"),
        (rate(MS, 0), "packets"),
    ] {
        assert_eq!(
            field(PollerConfig {
                initiation,
                ..default
            }),
            wrong
        );
    }
    assert_eq!(default.validate(), Ok(()));
}

/// Shows MR-81.
#[test]
fn an_interrupt_only_starts_polling_and_comes_back_when_nothing_is_left() {
    let (mut poller, sources) = poller(&[SEPARATE]);
    let source = sources[0];
    assert_eq!(poller.interrupts(source), Directions::BOTH);
    assert_eq!(
        poller.on_interrupt(source, Directions::RECEIVE),
        Response::Wake
    );
    assert_eq!(poller.interrupts(source), Directions::TRANSMIT);

    let first = poller.poll_next(Instant::ZERO).unwrap();
    assert_eq!(first.quota, 8);
    assert_eq!(poller.on_turn_done(first, 8, true), Directions::NONE);
    let second = poller.poll_next(Instant::ZERO).unwrap();
    assert_eq!(poller.on_turn_done(second, 2, false), Directions::RECEIVE);
    assert_eq!(poller.poll_next(Instant::ZERO), None);
    assert_eq!(
        poller.on_interrupt(source, Directions::RECEIVE),
        Response::Wake
    );
}

#[test]
fn events_while_polling_need_no_second_wake_up() {
    let (mut poller, sources) = poller(&[SEPARATE, SEPARATE]);
    assert_eq!(
        poller.on_interrupt(sources[0], Directions::RECEIVE),
        Response::Wake
    );
    let first = poller.poll_next(Instant::ZERO).unwrap();
    assert_eq!(
        poller.on_interrupt(sources[0], Directions::TRANSMIT),
        Response::Return
    );
    assert_eq!(
        poller.on_interrupt(sources[1], Directions::RECEIVE),
        Response::Return
    );
    assert_eq!(poller.on_turn_done(first, 1, false), Directions::RECEIVE);
    assert_eq!(next(&mut poller), Some((0, Direction::Transmit)));
    assert_eq!(next(&mut poller), Some((1, Direction::Receive)));
}

#[test]
fn an_event_during_the_turn_is_not_lost() {
    let (mut poller, sources) = poller(&[SEPARATE]);
    let _ = poller.on_interrupt(sources[0], Directions::RECEIVE);
    let first = poller.poll_next(Instant::ZERO).unwrap();
    assert!(!poller.request(sources[0], Directions::RECEIVE));
    assert_eq!(poller.on_turn_done(first, 1, false), Directions::NONE);
    assert_eq!(next(&mut poller), Some((0, Direction::Receive)));
}

/// A router in miniature: every packet received needs a transmit descriptor, and
/// only transmit turns give descriptors back. Returns what was forwarded while
/// `arrivals` packets were taken from the interface, which always has more.
fn forwarded(receive_quota: u32, arrivals: u32) -> u32 {
    let config = PollerConfig {
        receive_quota,
        transmit_quota: 16,
        ..PollerConfig::default()
    };
    let (mut poller, sources) = poller_with(config, &[SEPARATE]);
    let _ = poller.on_interrupt(sources[0], Directions::BOTH);
    let (mut left, mut descriptors, mut forwarded) = (arrivals, 16, 0);
    while left > 0 {
        let turn = poller.poll_next(Instant::ZERO).unwrap();
        let handled = match turn.direction {
            Direction::Receive => {
                let taken = turn.quota.min(left);
                let sent = taken.min(descriptors);
                (left, descriptors, forwarded) =
                    (left - taken, descriptors - sent, forwarded + sent);
                taken
            }
            Direction::Transmit => {
                descriptors = 16;
                turn.quota
            }
        };
        let _ = poller.on_turn_done(turn, handled, true);
    }
    forwarded
}

#[test]
fn without_a_quota_receiving_starves_transmission_and_with_one_it_does_not() {
    assert_eq!(
        forwarded(u32::MAX, 10_000),
        16,
        "descriptors never come back"
    );
    assert_eq!(forwarded(8, 10_000), 10_000);
}

/// Shows MR-48: a turn is 8 packets by default, and as many as one tells it.
#[test]
fn a_flooded_source_does_not_delay_another_by_more_than_its_turn() {
    let default = PollerConfig::default();
    let tuned = PollerConfig {
        receive_quota: 100,
        ..default
    };
    for (config, quota) in [(default, 8), (tuned, 100)] {
        let (mut poller, sources) = poller_with(config, &[SEPARATE, SEPARATE]);
        let _ = poller.on_interrupt(sources[0], Directions::RECEIVE);
        for _ in 0..100 {
            let flood = poller.poll_next(Instant::ZERO).unwrap();
            assert_eq!((flood.source, flood.quota), (sources[0], quota));
            let _ = poller.on_interrupt(sources[1], Directions::RECEIVE);
            assert_eq!(poller.on_turn_done(flood, quota, true), Directions::NONE);
            let quiet = poller.poll_next(Instant::ZERO).unwrap();
            assert_eq!(quiet.source, sources[1]);
            assert_eq!(poller.on_turn_done(quiet, 1, false), Directions::RECEIVE);
        }
    }
}

#[test]
fn inhibited_input_waits_while_output_goes_on() {
    let (mut poller, sources) = poller(&[SEPARATE, SEPARATE]);
    let _ = poller.on_interrupt(sources[0], Directions::BOTH);
    assert_eq!(
        poller.inhibit_input(sources[0]),
        Directions::NONE,
        "is off already"
    );
    assert_eq!(poller.inhibit_input(sources[1]), Directions::RECEIVE);
    assert_eq!(next(&mut poller), Some((0, Direction::Transmit)));
    let transmit = turn(sources[0], Direction::Transmit);
    assert_eq!(
        poller.on_turn_done(transmit, 1, false),
        Directions::TRANSMIT
    );
    assert_eq!(next(&mut poller), None);

    assert!(poller.allow_input(sources[0]));
    assert!(!poller.allow_input(sources[0]), "nothing to allow");
    assert!(!poller.allow_input(sources[1]), "awake already");
    assert_eq!(next(&mut poller), Some((1, Direction::Receive)));
    assert_eq!(next(&mut poller), Some((0, Direction::Receive)));
}

#[test]
fn a_turn_in_progress_is_finished_when_input_is_inhibited() {
    let (mut poller, sources) = poller(&[SEPARATE]);
    let _ = poller.on_interrupt(sources[0], Directions::RECEIVE);
    let receiving = poller.poll_next(Instant::ZERO).unwrap();
    assert_eq!(poller.inhibit_input(sources[0]), Directions::NONE);
    let enabled = poller.on_turn_done(receiving, 3, false);
    assert_eq!(
        enabled,
        Directions::NONE,
        "inhibited, though nothing is left"
    );
    assert_eq!(next(&mut poller), None);
    assert!(poller.allow_input(sources[0]));
    assert_eq!(next(&mut poller), Some((0, Direction::Receive)));
}

#[test]
fn the_cpu_limit_stops_all_input_and_no_output() {
    let (mut poller, sources) = poller(&[SEPARATE, SEPARATE, Driver::Unmodified]);
    let _ = poller.on_interrupt(sources[0], Directions::BOTH);
    let disable = poller.inhibit_all_input();
    assert_eq!(disable, SourceSet::EMPTY.with(sources[1]));
    assert_eq!(next(&mut poller), Some((0, Direction::Transmit)));
    let _ = poller.on_turn_done(turn(sources[0], Direction::Transmit), 1, false);
    assert_eq!(next(&mut poller), None);
    assert_eq!(
        poller.on_interrupt(sources[1], Directions::RECEIVE),
        Response::Return
    );

    assert!(poller.allow_all_input());
    assert!(!poller.allow_all_input());
    assert_eq!(next(&mut poller), Some((1, Direction::Receive)));
    assert_eq!(next(&mut poller), Some((0, Direction::Receive)));
}

#[test]
fn a_shared_interrupt_comes_back_only_when_both_directions_are_idle() {
    let (mut poller, sources) = poller(&[Driver::Polled(Interrupts::Shared)]);
    let source = sources[0];
    let _ = poller.on_interrupt(source, Directions::RECEIVE);
    // The transmit side cannot interrupt now, so each round looks at it.
    for _ in 0..3 {
        assert_eq!(next(&mut poller), Some((0, Direction::Receive)));
        let done = poller.on_turn_done(turn(source, Direction::Receive), 8, true);
        assert_eq!(done, Directions::NONE);
        assert_eq!(next(&mut poller), Some((0, Direction::Transmit)));
        let done = poller.on_turn_done(turn(source, Direction::Transmit), 0, false);
        assert_eq!(done, Directions::NONE);
    }
    assert_eq!(next(&mut poller), Some((0, Direction::Receive)));
    let done = poller.on_turn_done(turn(source, Direction::Receive), 0, false);
    assert_eq!(done, Directions::BOTH);

    assert_eq!(next(&mut poller), None);
    assert_eq!(poller.inhibit_input(source), Directions::RECEIVE);
    assert!(poller.request(source, Directions::TRANSMIT));
    assert_eq!(next(&mut poller), Some((0, Direction::Transmit)));
    let done = poller.on_turn_done(turn(source, Direction::Transmit), 1, false);
    assert_eq!(done, Directions::NONE, "on for both or not at all");
}

#[test]
fn completions_without_an_interrupt_are_found_after_receiving() {
    let (mut poller, sources) = poller(&[Driver::Polled(Interrupts::ReceiveOnly)]);
    let source = sources[0];
    assert_eq!(poller.interrupts(source), Directions::RECEIVE);
    let _ = poller.on_interrupt(source, Directions::RECEIVE);
    assert_eq!(next(&mut poller), Some((0, Direction::Receive)));
    let done = poller.on_turn_done(turn(source, Direction::Receive), 1, false);
    assert_eq!(done, Directions::RECEIVE);
    assert_eq!(next(&mut poller), Some((0, Direction::Transmit)));
    let done = poller.on_turn_done(turn(source, Direction::Transmit), 1, false);
    assert_eq!(done, Directions::NONE);
    assert_eq!(next(&mut poller), None);
}

#[test]
fn unmodified_sources_live_beside_polled_ones() {
    let (mut poller, sources) = poller(&[Driver::Unmodified, SEPARATE]);
    assert_eq!(
        poller.on_interrupt(sources[0], Directions::BOTH),
        Response::Handle
    );
    assert_eq!(
        poller.on_interrupt(sources[1], Directions::RECEIVE),
        Response::Wake
    );
    assert_eq!(poller.inhibit_input(sources[0]), Directions::NONE);
    assert!(!poller.request(sources[0], Directions::BOTH));
    assert_eq!(next(&mut poller), Some((1, Direction::Receive)));
}

#[test]
fn the_switch_makes_every_source_behave_as_unmodified() {
    let config = PollerConfig {
        initiation: Initiation::Unmodified,
        ..PollerConfig::default()
    };
    let (mut poller, sources) = poller_with(config, &[SEPARATE]);
    for _ in 0..10 {
        assert_eq!(
            poller.on_interrupt(sources[0], Directions::BOTH),
            Response::Handle
        );
        assert_eq!(poller.interrupts(sources[0]), Directions::BOTH);
    }
    assert_eq!(poller.poll_next(Instant::ZERO), None);
}

#[test]
fn the_gap_holds_back_receiving_but_not_transmission() {
    let config = PollerConfig {
        receive_gap: MS,
        ..PollerConfig::default()
    };
    let (mut poller, sources) = poller_with(config, &[SEPARATE, SEPARATE]);
    let _ = poller.on_interrupt(sources[0], Directions::RECEIVE);
    let _ = poller.on_interrupt(sources[1], Directions::RECEIVE);
    for source in [0, 1] {
        let turn = poller.poll_next(at(0)).unwrap();
        assert_eq!(turn.source, sources[source]);
        let _ = poller.on_turn_done(turn, 8, true);
    }
    assert_eq!(poller.poll_next(at(1)), None, "the round is over");
    assert_eq!(poller.next_wakeup(), Some(at(2)));
    let _ = poller.on_interrupt(sources[1], Directions::TRANSMIT);
    let completion = poller.poll_next(at(1)).unwrap();
    assert_eq!(completion.direction, Direction::Transmit);
    let _ = poller.on_turn_done(completion, 1, false);
    assert_eq!(poller.poll_next(at(1)), None);
    assert_eq!(
        poller.poll_next(at(2)).unwrap().direction,
        Direction::Receive
    );
}

/// Completions of the first source alone filled each gap. What came after them had the next
/// round, and its receive direction was never reached.
#[test]
fn a_gap_ends_with_the_first_source_s_turn() {
    let config = PollerConfig {
        receive_gap: MS,
        ..PollerConfig::default()
    };
    let (mut poller, sources) = poller_with(config, &[SEPARATE, SEPARATE]);
    let _ = poller.on_interrupt(sources[0], Directions::BOTH);
    let _ = poller.on_interrupt(sources[1], Directions::RECEIVE);
    let mut received = [0; 2];
    for micros in 0..10_000 {
        let turn = poller
            .poll_next(Instant::from_nanos(micros * 1000))
            .unwrap();
        if turn.direction == Direction::Receive {
            received[turn.source.index()] += 1;
        }
        let _ = poller.on_turn_done(turn, 8, true);
    }
    assert_eq!(received, [10, 10]);
}

#[test]
fn a_clock_looks_once_per_period_and_uses_no_interrupts() {
    let initiation = Initiation::Clock { period: MS };
    let config = PollerConfig {
        initiation,
        ..PollerConfig::default()
    };
    let (mut poller, sources) = poller_with(config, &[SEPARATE]);
    assert_eq!(poller.interrupts(sources[0]), Directions::NONE);
    for millis in 0..5 {
        for _ in 0..2 {
            let turn = poller.poll_next(at(millis)).unwrap();
            assert_eq!(poller.on_turn_done(turn, 1, false), Directions::NONE);
        }
        assert_eq!(poller.poll_next(at(millis)), None);
        assert_eq!(poller.next_wakeup(), Some(at(millis + 1)));
    }
}

#[test]
fn the_clock_takes_over_at_a_high_rate_and_hands_back_at_a_low_one() {
    let initiation = Initiation::ClockAboveRate {
        period: MS,
        window: 10 * MS,
        packets: 50,
    };
    let config = PollerConfig {
        initiation,
        ..PollerConfig::default()
    };
    let (mut poller, sources) = poller_with(config, &[SEPARATE]);
    let _ = poller.on_interrupt(sources[0], Directions::RECEIVE);
    let turn = poller.poll_next(at(0)).unwrap();
    assert_eq!(poller.on_turn_done(turn, 51, false), Directions::RECEIVE);
    assert_eq!(poller.next_wakeup(), None, "still by interrupt");

    let _ = poller.on_interrupt(sources[0], Directions::RECEIVE);
    let turn = poller.poll_next(at(10)).unwrap();
    assert_eq!(poller.on_turn_done(turn, 50, false), Directions::NONE);
    assert_eq!(poller.poll_next(at(10)), None);
    assert_eq!(poller.next_wakeup(), Some(at(11)));

    // 50 in a window is not above 50: the next look brings the interrupt back.
    let turn = poller.poll_next(at(20)).unwrap();
    assert_eq!(poller.on_turn_done(turn, 0, false), Directions::RECEIVE);
    assert_eq!(poller.next_wakeup(), None);
}

#[test]
fn a_new_quota_holds_from_the_next_turn_on() {
    let (mut poller, sources) = poller(&[SEPARATE]);
    let _ = poller.on_interrupt(sources[0], Directions::BOTH);
    for (given, quota) in [(32, 32), (0, 1)] {
        poller.set_receive_quota(given);
        let turns = [poller.poll_next(at(0)), poller.poll_next(at(0))].map(Option::unwrap);
        assert_eq!(turns.map(|turn| turn.quota), [quota, 8], "receiving alone");
    }
}

/// After a gap nobody woke it.
#[test]
fn an_interrupt_while_a_poller_works_that_woke_by_itself_needs_no_wake_up() {
    let config = PollerConfig {
        receive_gap: MS,
        ..PollerConfig::default()
    };
    let (mut poller, sources) = poller_with(config, &[SEPARATE; 2]);
    let _ = poller.on_interrupt(sources[0], Directions::RECEIVE);
    let turn = poller.poll_next(at(0)).unwrap();
    let _ = poller.on_turn_done(turn, 8, true);
    assert_eq!(poller.poll_next(at(0)), None);
    assert_eq!(poller.next_wakeup(), Some(at(1)));
    assert!(poller.poll_next(at(1)).is_some());
    let response = poller.on_interrupt(sources[1], Directions::RECEIVE);
    assert_eq!(response, Response::Return);
}

#[test]
fn the_earlier_of_gap_and_clock_wakes() {
    for gap in [MS / 2, 2 * MS] {
        let config = PollerConfig {
            receive_gap: gap,
            initiation: Initiation::Clock { period: MS },
            ..PollerConfig::default()
        };
        let (mut poller, _) = poller_with(config, &[SEPARATE]);
        while let Some(turn) = poller.poll_next(at(0)) {
            let _ = poller.on_turn_done(turn, 8, turn.direction == Direction::Receive);
        }
        let first = Instant::ZERO + gap.min(MS);
        assert_eq!(poller.next_wakeup(), Some(first), "{gap:?}");
    }
}

/// Nor does the end of a turn that was given before.
#[test]
fn while_all_input_is_inhibited_no_receive_interrupt_is_on() {
    let (mut poller, sources) = poller(&[SEPARATE; 2]);
    let _ = poller.on_interrupt(sources[0], Directions::RECEIVE);
    let turn = poller.poll_next(at(0)).unwrap();
    let off = poller.inhibit_all_input();
    assert_eq!(off.iter().collect::<Vec<_>>(), [sources[1]]);
    assert_eq!(poller.interrupts(sources[1]), Directions::TRANSMIT);
    assert_eq!(poller.on_turn_done(turn, 1, false), Directions::NONE);
    assert_eq!(poller.interrupts(sources[0]), Directions::TRANSMIT);
}

#[test]
fn one_cpu_is_left_to_the_consumers() {
    assert_eq!([0, 1, 2, 3, 8].map(pollers_for), [1, 1, 1, 2, 7]);
}

#[test]
fn each_cpu_has_a_poller_of_its_own() {
    let serve = |mut poller: Poller, source: SourceId| {
        let _ = poller.on_interrupt(source, Directions::RECEIVE);
        (0..1000)
            .filter_map(|_| poller.poll_next(Instant::ZERO))
            .filter(|turn| turn.source == source)
            .count()
    };
    let (first, sources) = poller(&[SEPARATE]);
    let second = first.clone();
    let source = sources[0];
    let other = std::thread::spawn(move || serve(second, source));
    assert_eq!(serve(first, source), 1000);
    assert_eq!(other.join().unwrap(), 1000);
}

proptest! {
    #[test]
    fn turns_and_interrupts_are_those_of_a_naive_round_robin(
        (sources, ops) in (1..20usize).prop_flat_map(|n| (Just(n), ops(n)))
    ) {
        play(sources, ops);
    }

    #[test]
    fn backlogged_directions_get_equally_many_turns(
        busy in prop::collection::vec(any::<(bool, bool)>(), 1..64),
        turns in 1..1000usize,
    ) {
        let (mut poller, ids) = poller(&vec![SEPARATE; busy.len()]);
        let mut given = vec![0u32; 2 * busy.len()];
        for (&id, &(receive, transmit)) in ids.iter().zip(&busy) {
            let _ = poller.on_interrupt(id, Directions { receive, transmit });
        }
        for _ in 0..turns {
            let Some(turn) = poller.poll_next(Instant::ZERO) else { break };
            given[2 * turn.source.index() + turn.direction as usize] += 1;
            let _ = poller.on_turn_done(turn, turn.quota, true);
        }
        let of_busy = |slot: &usize| if slot.is_multiple_of(2) { busy[slot / 2].0 } else { busy[slot / 2].1 };
        let counts: Vec<_> = (0..given.len()).filter(of_busy).map(|slot| given[slot]).collect();
        if let (Some(most), Some(least)) = (counts.iter().max(), counts.iter().min()) {
            prop_assert!(most - least <= 1);
        }
        prop_assert_eq!(given.iter().sum::<u32>(), counts.iter().sum::<u32>());
    }
}
