//! Stories with a hand-moved clock, then random work against the rules alone.

extern crate std;
use std::string::ToString;
use std::vec::Vec;

use proptest::prelude::*;

use super::*;

/// Time in ticks of the default timeout.
fn tick(ticks: u32) -> Instant {
    Instant::ZERO + FeedbackConfig::default().timeout * ticks
}

fn sources(indices: &[usize]) -> SourceSet {
    let ids = indices.iter().map(|&i| SourceId::from_index(i).unwrap());
    ids.fold(SourceSet::EMPTY, SourceSet::with)
}

fn inhibit(indices: &[usize]) -> Change {
    let inhibit = sources(indices);
    Change {
        inhibit,
        ..Change::NONE
    }
}

fn allow(indices: &[usize]) -> Change {
    let allow = sources(indices);
    Change {
        allow,
        ..Change::NONE
    }
}

fn feedback(config: FeedbackConfig, queues: &[(Watermarks, &[usize])]) -> (Feedback, Vec<QueueId>) {
    let mut feedback = Feedback::new(config, queues.len()).unwrap();
    let ids = queues.iter().map(|(watermarks, from)| {
        let (id, change) = feedback.register(*watermarks, sources(from)).unwrap();
        assert_eq!(change, Change::NONE);
        id
    });
    let ids = ids.collect();
    (feedback, ids)
}

fn of_32() -> Watermarks {
    Watermarks::of_queue(32)
}

#[test]
fn watermarks_are_those_of_the_paper() {
    let marks = |inhibit_at, allow_at| Watermarks {
        inhibit_at,
        allow_at,
    };
    assert_eq!(of_32(), marks(24, Some(8)));
    assert_eq!(Watermarks::of_queue(1), marks(1, Some(0)));
    // Room for seven more is too little, for eight enough.
    assert_eq!(Watermarks::room_for(32, 8), marks(25, None));
    assert_eq!(Watermarks::room_for(4, 8), marks(1, None));
}

#[test]
fn configs_name_the_field_that_is_wrong() {
    let field = |config: FeedbackConfig| config.validate().unwrap_err().field;
    let default = FeedbackConfig::default();
    assert_eq!(
        field(FeedbackConfig {
            timeout: Duration::ZERO,
            ..default
        }),
        "timeout"
    );
    assert_eq!(
        field(FeedbackConfig {
            reprieve_doublings: 17,
            ..default
        }),
        "reprieve_doublings"
    );
    assert_eq!(
        field(FeedbackConfig {
            stall: Some(Duration::ZERO),
            ..default
        }),
        "stall"
    );
    let mut feedback = Feedback::new(default, 1).unwrap();
    let mut refused = |inhibit_at, allow_at| {
        let marks = Watermarks {
            inhibit_at,
            allow_at,
        };
        match feedback.register(marks, SourceSet::EMPTY) {
            Err(RegisterError::Watermarks(error)) => error.field,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(refused(0, None), "inhibit_at");
    assert_eq!(refused(8, Some(8)), "allow_at");
    let _ = feedback.register(of_32(), SourceSet::EMPTY).unwrap();
    let full = feedback.register(of_32(), SourceSet::EMPTY).unwrap_err();
    let one = TableFull {
        entries: "queues",
        places: 1,
    };
    assert_eq!(full, RegisterError::Full(one));
    let text = "no place for more queues: all 1 are taken";
    assert_eq!(full.to_string(), text);
}

#[test]
fn a_socket_of_large_packets_drains_by_64_kib_and_one_of_small_ones_to_the_low_mark() {
    let marks = |packet_bytes| Watermarks::of_socket(SocketWatermarks::DEFAULT, 200, packet_bytes);
    let of = |inhibit_at, allow_at| Watermarks {
        inhibit_at,
        allow_at: Some(allow_at),
    };
    assert_eq!(marks(4096), of(140, 123), "16 packets of a page");
    assert_eq!(marks(830), of(140, 99), "78 would be more than a fifth");
    let tiny = Watermarks::of_socket(SocketWatermarks::DEFAULT, 1, 4096);
    assert_eq!(tiny, of(1, 0));
}

#[test]
fn input_stops_at_the_high_watermark_and_resumes_at_the_low_one() {
    let (mut feedback, queues) = feedback(FeedbackConfig::default(), &[(of_32(), &[3, 5])]);
    let now = Instant::ZERO;
    for occupancy in 1..24 {
        assert_eq!(feedback.on_enqueue(queues[0], occupancy, now), Change::NONE);
    }
    assert_eq!(feedback.on_enqueue(queues[0], 24, now), inhibit(&[3, 5]));
    assert_eq!(
        feedback.on_enqueue(queues[0], 25, now),
        Change::NONE,
        "once"
    );
    for occupancy in (9..25).rev() {
        assert_eq!(feedback.on_dequeue(queues[0], occupancy, now), Change::NONE);
    }
    assert_eq!(feedback.on_dequeue(queues[0], 8, now), allow(&[3, 5]));
    assert_eq!(feedback.on_dequeue(queues[0], 7, now), Change::NONE);
}

#[test]
fn the_monitor_resumes_by_timeout_only_unless_told_otherwise() {
    let by_timeout = Watermarks::room_for(32, 8);
    let direct = Watermarks {
        allow_at: Some(24),
        ..by_timeout
    };
    let (mut feedback, queues) = feedback(
        FeedbackConfig::default(),
        &[(by_timeout, &[0]), (direct, &[1])],
    );
    let now = Instant::ZERO;
    for (index, &queue) in queues.iter().enumerate() {
        assert_eq!(feedback.on_enqueue(queue, 24, now), Change::NONE);
        assert_eq!(feedback.on_enqueue(queue, 25, now), inhibit(&[index]));
    }
    assert_eq!(feedback.on_dequeue(queues[0], 0, now), Change::NONE);
    assert_eq!(feedback.on_dequeue(queues[1], 24, now), allow(&[1]));
    assert_eq!(feedback.next_timeout(), Some(tick(1)));
    assert_eq!(
        feedback.poll_timeout(tick(1) - Duration::from_nanos(1)),
        Change::NONE
    );
    assert_eq!(feedback.poll_timeout(tick(1)), allow(&[0]));
    assert_eq!(feedback.next_timeout(), None);
}

#[test]
fn a_slow_consumer_inhibits_again_with_the_next_packet_after_the_timeout() {
    let (mut feedback, queues) = feedback(FeedbackConfig::default(), &[(of_32(), &[0])]);
    for round in 0..10 {
        assert_eq!(
            feedback.on_enqueue(queues[0], 25, tick(round)),
            inhibit(&[0])
        );
        assert_eq!(
            feedback.on_dequeue(queues[0], 24, tick(round)),
            Change::NONE
        );
        assert_eq!(feedback.poll_timeout(tick(round + 1)), allow(&[0]));
    }
}

#[test]
fn each_inhibition_has_a_timeout_of_its_own() {
    let queues: [(Watermarks, &[usize]); 2] = [(of_32(), &[0]), (of_32(), &[1])];
    let (mut feedback, queues) = feedback(FeedbackConfig::default(), &queues);
    let half = FeedbackConfig::default().timeout / 2;
    let _ = feedback.on_enqueue(queues[0], 24, tick(0));
    let _ = feedback.on_enqueue(queues[1], 24, tick(0) + half);
    assert_eq!(feedback.poll_timeout(tick(1)), allow(&[0]));
    assert_eq!(feedback.next_timeout(), Some(tick(1) + half));
    assert_eq!(feedback.poll_timeout(tick(1) + half), allow(&[1]));
}

/// Ticks of `ticks` in which the others on its source can receive, while the
/// consumer of one full queue takes nothing and packets for it keep coming.
fn ticks_left_to_others(reprieve_doublings: u32, ticks: u32) -> u32 {
    let config = FeedbackConfig {
        reprieve_doublings,
        ..FeedbackConfig::default()
    };
    let (mut feedback, queues) = feedback(config, &[(of_32(), &[0]), (of_32(), &[0])]);
    let (mut inhibited, mut left) = (false, 0);
    for now in 0..ticks {
        inhibited &= feedback.poll_timeout(tick(now)).allow.is_empty();
        inhibited |= !feedback
            .on_enqueue(queues[0], 32, tick(now))
            .inhibit
            .is_empty();
        left += u32::from(!inhibited);
    }
    left
}

#[test]
fn a_hung_consumer_does_not_block_the_others() {
    assert_eq!(
        ticks_left_to_others(0, 6400),
        0,
        "the paper's rule: bursts only"
    );
    assert!(ticks_left_to_others(6, 6400) > 6400 * 97 / 100);
    assert!(
        ticks_left_to_others(6, 6400) < 6400,
        "it may only look hung"
    );
}

#[test]
fn one_packet_taken_ends_the_reprieve() {
    let (mut feedback, queues) = feedback(FeedbackConfig::default(), &[(of_32(), &[0])]);
    assert_eq!(feedback.on_enqueue(queues[0], 32, tick(0)), inhibit(&[0]));
    assert_eq!(feedback.poll_timeout(tick(1)), allow(&[0]));
    assert_eq!(feedback.on_enqueue(queues[0], 32, tick(1)), inhibit(&[0]));
    assert_eq!(feedback.poll_timeout(tick(2)), allow(&[0]));
    assert_eq!(
        feedback.on_enqueue(queues[0], 32, tick(2)),
        Change::NONE,
        "reprieved"
    );
    assert_eq!(feedback.on_dequeue(queues[0], 31, tick(2)), Change::NONE);
    assert_eq!(feedback.on_enqueue(queues[0], 32, tick(2)), inhibit(&[0]));
}

#[test]
fn no_progress_inhibits_a_queue_that_is_not_full() {
    let stall = Some(FeedbackConfig::default().timeout * 4);
    let config = FeedbackConfig {
        stall,
        ..FeedbackConfig::default()
    };
    let (mut feedback, queues) = feedback(config, &[(of_32(), &[0])]);
    assert_eq!(feedback.on_enqueue(queues[0], 1, tick(100)), Change::NONE);
    assert_eq!(feedback.on_enqueue(queues[0], 2, tick(103)), Change::NONE);
    assert_eq!(feedback.on_dequeue(queues[0], 1, tick(103)), Change::NONE);
    assert_eq!(feedback.on_enqueue(queues[0], 2, tick(106)), Change::NONE);
    assert_eq!(feedback.on_enqueue(queues[0], 3, tick(107)), inhibit(&[0]));
    assert_eq!(feedback.on_dequeue(queues[0], 2, tick(107)), allow(&[0]));
}

/// Its consumer seemed to have taken nothing since the clock began.
#[test]
fn a_queue_whose_first_packets_come_together_has_made_progress() {
    let stall = Some(FeedbackConfig::default().timeout * 4);
    let config = FeedbackConfig {
        stall,
        ..FeedbackConfig::default()
    };
    let (mut feedback, queues) = feedback(config, &[(of_32(), &[0])]);
    assert_eq!(feedback.on_enqueue(queues[0], 2, tick(100)), Change::NONE);
    assert_eq!(feedback.on_enqueue(queues[0], 4, tick(104)), inhibit(&[0]));
}

#[test]
fn any_full_queue_stops_a_source_or_all_must_agree() {
    let queues: [(Watermarks, &[usize]); 2] = [(of_32(), &[0, 1]), (of_32(), &[1])];
    let now = Instant::ZERO;
    let (mut any, ids) = feedback(FeedbackConfig::default(), &queues);
    assert_eq!(any.on_enqueue(ids[0], 24, now), inhibit(&[0, 1]));
    assert_eq!(any.on_enqueue(ids[1], 24, now), Change::NONE);
    assert_eq!(any.on_dequeue(ids[0], 8, now), allow(&[0]));
    assert_eq!(any.on_dequeue(ids[1], 8, now), allow(&[1]));

    let policy = Policy::All;
    let (mut all, ids) = feedback(
        FeedbackConfig {
            policy,
            ..FeedbackConfig::default()
        },
        &queues,
    );
    assert_eq!(all.on_enqueue(ids[0], 24, now), inhibit(&[0]));
    assert_eq!(all.on_enqueue(ids[1], 24, now), inhibit(&[1]));
    assert_eq!(all.on_dequeue(ids[1], 8, now), allow(&[1]));
    assert_eq!(
        all.unregister(ids[1]),
        inhibit(&[1]),
        "only the full one is left"
    );
    let (_, change) = all.register(of_32(), sources(&[1])).unwrap();
    assert_eq!(change, allow(&[1]));
}

#[test]
fn a_queue_takes_its_inhibition_with_it() {
    let (mut feedback, queues) = feedback(FeedbackConfig::default(), &[(of_32(), &[0])]);
    assert_eq!(feedback.on_enqueue(queues[0], 24, tick(0)), inhibit(&[0]));
    assert_eq!(feedback.unregister(queues[0]), allow(&[0]));
    assert_eq!(feedback.unregister(queues[0]), Change::NONE);
    assert_eq!(feedback.poll_timeout(tick(9)), Change::NONE);
}

#[derive(Clone, Debug)]
enum Op {
    Enqueue(usize),
    Dequeue(usize),
    Tick(u32),
}

/// Plays `ops` on queues 0 to 2, filled from sources {0}, {0, 1} and {1}, and
/// checks at every step what follows from the rules alone.
fn play(policy: Policy, ops: Vec<Op>) {
    let fills: [&[usize]; 3] = [&[0], &[0, 1], &[1]];
    let config = FeedbackConfig {
        policy,
        reprieve_doublings: 0,
        ..FeedbackConfig::default()
    };
    let (mut feedback, ids) = feedback(config, &fills.map(|from| (of_32(), from)));
    let mut length = [0u32; 3];
    let mut since: [Option<u32>; 3] = [None; 3];
    let (mut now, mut inhibited) = (0, SourceSet::EMPTY);
    for op in ops {
        let change = match op {
            Op::Enqueue(queue) => {
                length[queue] = (length[queue] + 1).min(32);
                if length[queue] >= 24 && since[queue].is_none() {
                    since[queue] = Some(now);
                }
                feedback.on_enqueue(ids[queue], length[queue], tick(now))
            }
            Op::Dequeue(queue) if length[queue] > 0 => {
                length[queue] -= 1;
                since[queue] = since[queue].filter(|_| length[queue] > 8);
                feedback.on_dequeue(ids[queue], length[queue], tick(now))
            }
            Op::Dequeue(_) => Change::NONE,
            Op::Tick(ticks) => {
                now += ticks;
                since
                    .iter_mut()
                    .for_each(|since| *since = since.filter(|at| *at == now));
                feedback.poll_timeout(tick(now))
            }
        };
        let expected = (0..2).filter(|source| {
            let mut filled = (0..3).filter(|&queue| fills[queue].contains(source));
            match policy {
                Policy::Any => filled.any(|queue| since[queue].is_some()),
                Policy::All => filled.all(|queue| since[queue].is_some()),
            }
        });
        let expected = sources(&expected.collect::<Vec<_>>());
        let kept = inhibited
            .iter()
            .filter(|&source| !change.allow.contains(source));
        inhibited = kept
            .chain(change.inhibit.iter())
            .fold(SourceSet::EMPTY, SourceSet::with);
        assert_eq!(inhibited, expected);
    }
}

proptest! {
    #[test]
    fn sources_are_inhibited_exactly_while_their_queues_say_so(
        all in any::<bool>(),
        ops in prop::collection::vec(prop_oneof![
            8 => (0..3usize).prop_map(Op::Enqueue),
            5 => (0..3usize).prop_map(Op::Dequeue),
            1 => (0..2u32).prop_map(Op::Tick),
        ], 0..600),
    ) {
        play(if all { Policy::All } else { Policy::Any }, ops);
    }
}
