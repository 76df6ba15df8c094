//! Soft timers, pacing and aggregation take all their memory when they are
//! constructed: every other operation is run here under a counting allocator.

use std::time::Duration;

use allocation_counter::measure;
use plimsoll_core::aggregation::{Aggregation, AggregationConfig, NextPoll};
use plimsoll_core::pacing::{
    AckSpacer, AckSpacingConfig, CapacityEstimator, FlowRates, KnownCapacity, Pacer, PacerConfig,
    Rate, StartConfig,
};
use plimsoll_core::soft_timer::{SoftTimerConfig, SoftTimers};
use plimsoll_core::time::Instant;

fn at(micros: u64) -> Instant {
    Instant::from_nanos(micros * 1000)
}

#[track_caller]
fn assert_allocates_nothing(operations: impl FnOnce()) {
    assert_eq!(measure(operations).count_total, 0);
}

#[test]
fn the_counter_counts() {
    let allocations = measure(|| drop(std::hint::black_box(vec![1_u64; 100])));
    assert_eq!(allocations.count_total, 1);
}

#[test]
fn soft_timers_up_to_their_capacity_and_beyond() {
    let mut timers = SoftTimers::<u64>::new(SoftTimerConfig {
        capacity: 1000,
        ..SoftTimerConfig::default()
    })
    .unwrap();
    assert_allocates_nothing(|| {
        let mut now = at(0);
        for round in 0..20_000 {
            let ticks = ((round * 7919) % 5_000_000) >> (round % 20);
            let event = timers.schedule_with_deadline(now, ticks, round as u32 % 100, round);
            if let (Ok(event), 0) = (event, round % 5) {
                timers.cancel(event);
            }
            now += Duration::from_micros(round % 97);
            while timers.poll_event(now).is_some() {}
            timers.poll_hardware_timer();
            std::hint::black_box(timers.idle_action(now, false));
        }
        while timers.pending() < 1000 {
            timers.schedule_soft_event(now, 1_000_000, 0).unwrap();
        }
        assert!(timers.schedule_soft_event(now, 1_000_000, 0).is_err());
        while timers.poll_event(Instant::MAX).is_some() {}
    });
}

#[test]
fn pacing_of_as_many_flows_as_configured() {
    let mut pacer = Pacer::new(PacerConfig {
        flows: 100,
        ..PacerConfig::default()
    })
    .unwrap();
    let rates = FlowRates {
        target: Rate::from_interval(1500, Duration::from_micros(40)),
        burst: Rate::from_interval(1500, Duration::from_micros(12)),
    };
    assert_allocates_nothing(|| {
        for round in 0..3 {
            let mut flows = [None; 100];
            for place in &mut flows {
                let flow = pacer.add_flow(rates).unwrap();
                pacer.on_backlog(at(round * 100_000), flow).unwrap();
                *place = Some(flow);
            }
            assert!(pacer.add_flow(rates).is_err());
            for step in 0..5000 {
                let now = at(round * 100_000 + step * 3);
                while let Some(flow) = pacer.poll_departure(now) {
                    pacer.on_sent(now, flow, 1500, true).unwrap();
                }
                pacer.poll_hardware_timer();
            }
            for flow in flows.into_iter().flatten() {
                pacer.set_rates(flow, rates).unwrap();
                assert!(pacer.train(flow).unwrap().bytes > 0);
                pacer.remove_flow(flow).unwrap();
            }
        }
    });
}

#[test]
fn acks_estimates_and_aggregation() {
    assert_allocates_nothing(|| {
        let mut spacer = AckSpacer::new(AckSpacingConfig::default()).unwrap();
        let mut estimator = CapacityEstimator::new();
        let mut aggregation = Aggregation::new(AggregationConfig::default()).unwrap();
        let mut next = aggregation.on_idle_cpus(at(0), 0);
        for round in 0..1000 {
            let NextPoll::At(now) = next else {
                unreachable!("no CPU is idle")
            };
            next = aggregation.on_poll(now, round % 9);
            spacer.on_ack(now, round % 5);
            if round % 5 == 0 {
                estimator.on_bunch_start();
            }
            estimator.on_arrival(now, 1500);
        }
        let low = estimator.estimate().unwrap().low;
        let start = StartConfig::default().rate(KnownCapacity::Estimated(low));
        assert!(start < low);
    });
}
