//! Modules that are asked with times: limits, holdoffs, timers, queues.

use std::time::Duration;

use plimsoll_core::aggregation::{Aggregation, AggregationConfig};
use plimsoll_core::answering::{Answering, Seen};
use plimsoll_core::channel::{ChannelConfig, DelayTarget, channel};
use plimsoll_core::cpu_limit::{CpuLimit, CpuLimitConfig};
use plimsoll_core::fidelity::{FidelityConfig, FidelityControl};
use plimsoll_core::holdoff::BufferCredit;
use plimsoll_core::holdoff::{
    Costs, CreditConfig, HoldoffConfig, HoldoffRange, Limits, LoadTarget, Model, Turn, TurnDrops,
};
use plimsoll_core::pacing::{AckSpacer, AckSpacingConfig};
use plimsoll_core::soft_timer::{SoftTimerConfig, SoftTimers};
use plimsoll_core::standby::{self, Evidence, Standby};
use proptest::prelude::*;

use super::{instant, number, part, short_span, small, span};

proptest! {
    #[test]
    fn cpu_limits(
        limit in part(),
        period in short_span(),
        cpus in prop_oneof![Just(1_usize), Just(2), Just(8192)],
        debt_periods in prop_oneof![Just(0_u32), Just(10), Just(1000)],
        times in prop::collection::vec((instant(), 0..5_u8, part()), 1..40),
    ) {
        let config = CpuLimitConfig { limit, period, cpus, debt_periods };
        let Ok(mut limit) = CpuLimit::new(config, times[0].0) else { return Ok(()) };
        let mut depth = 0;
        for (now, event, part) in times {
            let _ = match event {
                0 => { limit.on_enter(0, now); depth += 1; limit.poll_timeout(now) }
                1 if depth > 0 => { depth -= 1; limit.on_exit(0, now) }
                2 => limit.on_idle(now),
                3 => { let _ = limit.set_limit(part); limit.poll_timeout(now) }
                _ => limit.poll_timeout(now),
            };
            let _ = (limit.next_timeout(), limit.left(), limit.period_end());
        }
    }

    #[test]
    fn fidelity(
        [high, low, losses_high, losses_low] in prop::array::uniform4(part()),
        [worsen_dwell, improve_dwell, improve_dwell_max, losses_window] in prop::array::uniform4(span()),
        sampling_log2_max in 0..20_u8,
        looks in prop::collection::vec((number(), number(), instant()), 1..60),
    ) {
        let config = FidelityConfig {
            high, low, worsen_dwell, improve_dwell, improve_dwell_max, losses_window,
            losses_high, losses_low, sampling_log2_max,
        };
        let Ok(mut control) = FidelityControl::new(config) else { return Ok(()) };
        for (number, other, now) in looks {
            let _ = control.on_losses(number, other, now);
            let _ = control.on_occupancy(number, other, now);
        }
    }

    #[test]
    fn holdoffs(
        load in part(),
        overhead in short_span(),
        [min, max, step] in prop::array::uniform3(short_span()),
        turns in prop::collection::vec((instant(), instant()), 1..40),
    ) {
        let range = HoldoffRange { min, max, step };
        let config = HoldoffConfig { load, overhead, range };
        let Ok(mut target) = LoadTarget::new(&config) else { return Ok(()) };
        for (entered, returned) in turns {
            let holdoff = target.on_turn(Turn { entered, returned });
            prop_assert!((min..=max).contains(&holdoff), "{holdoff:?}");
        }
    }

    #[test]
    fn modelled_holdoffs(
        costs in prop::array::uniform3(span()),
        buffers_max in prop_oneof![Just(1_u32), Just(256)],
        latency_max in span(),
        rates in prop::array::uniform3(prop_oneof![Just(f64::MIN_POSITIVE), Just(1e5), Just(f64::MAX)]),
    ) {
        let [enter, dequeue, leave] = costs;
        let model = Model::new(Costs { enter, dequeue, leave });
        let range = HoldoffRange { step: Duration::from_micros(250), ..HoldoffRange::DP83820 };
        let limits = Limits { range, buffers_max, link_pps: rates[0], latency_max };
        let _ = model.for_latency(&limits, rates[1], rates[2]);
        let _ = model.for_rate(&limits, rates[1], plimsoll_core::config::Fraction::NONE, rates[2]);
    }

    #[test]
    fn credits(
        [min, max, increase, backoff, tolerance_window] in prop::array::uniform5(small()),
        [decrease, tolerated_loss] in prop::array::uniform2(part()),
        turns in prop::collection::vec((number(), number(), any::<bool>()), 1..40),
    ) {
        let config = CreditConfig {
            min, max, decrease, increase, backoff, tolerated_loss, tolerance_window,
        };
        let Ok(mut credit) = BufferCredit::new(&config) else { return Ok(()) };
        for (packets, dropped, cpu_was_idle) in turns {
            let credit = credit.on_turn(TurnDrops { packets, dropped, cpu_was_idle });
            prop_assert!((min..=max).contains(&credit));
        }
    }

    #[test]
    fn aggregated_polls(
        [quota, found_max, averaging_polls] in prop::array::uniform3(small()),
        [interval_min, interval_max] in prop::array::uniform2(short_span()),
        step in part(),
        polls in prop::collection::vec((instant(), small(), 0..3_u32), 1..40),
    ) {
        let config = AggregationConfig {
            quota, found_max, interval_min, interval_max, step, averaging_polls,
        };
        let Ok(mut aggregation) = Aggregation::new(config) else { return Ok(()) };
        for (now, found, idle_cpus) in polls {
            aggregation.on_idle_cpus(now, idle_cpus);
            aggregation.on_poll(now, found);
            prop_assert!((interval_min..=interval_max).contains(&aggregation.interval()));
        }
    }

    #[test]
    fn acknowledgements(
        [big_ack_packets, compression_factor, burst_acks] in prop::array::uniform3(small()),
        [averaging, initial_interval] in prop::array::uniform2(short_span()),
        acks in prop::collection::vec((instant(), small()), 1..40),
    ) {
        let config = AckSpacingConfig {
            big_ack_packets, compression_factor, burst_acks, averaging, initial_interval,
        };
        let Ok(mut spacer) = AckSpacer::new(config) else { return Ok(()) };
        for (now, packets) in acks {
            let _ = spacer.on_ack(now, packets);
            let _ = spacer.on_window_update(packets);
        }
    }

    #[test]
    fn soft_timers(
        measure_resolution_hz in prop_oneof![Just(1_u64), Just(1000), Just(1_000_000_000), number()],
        interrupt_clock_resolution_hz in prop_oneof![Just(1_u64), number()],
        events in prop::collection::vec((instant(), number(), small(), instant()), 1..40),
    ) {
        let config = SoftTimerConfig { measure_resolution_hz, interrupt_clock_resolution_hz, capacity: 8 };
        let Ok(mut timers) = SoftTimers::new(config) else { return Ok(()) };
        for (now, ticks, slack, at) in events {
            let _ = timers.schedule_soft_event(now, ticks, 0_u8);
            let _ = timers.schedule_with_deadline(now, ticks, slack, 1);
            let _ = timers.schedule_at(now, at, 2);
            let _ = (timers.poll_hardware_timer(), timers.next_deadline(), timers.ticks(Duration::MAX));
            while timers.poll_event(at).is_some() {}
        }
        while timers.poll_event(plimsoll_core::time::Instant::MAX).is_some() {}
        prop_assert_eq!(timers.pending(), 0);
    }

    #[test]
    fn delay_targets(
        [target, interval] in prop::array::uniform2(short_span()),
        times in prop::collection::vec(instant(), 1..40),
    ) {
        let config = ChannelConfig {
            delay_target: Some(DelayTarget { target, interval }),
            ..ChannelConfig::drop_tail(8)
        };
        let Ok((mut producer, mut consumer)) = channel(&config) else { return Ok(()) };
        for now in times {
            for item in 0..4 {
                let _ = producer.push(item, now);
            }
            let _ = consumer.pop(now);
        }
    }

    #[test]
    fn standing_by(
        quiet in short_span(),
        cpu_limit in part(),
        readings in prop::collection::vec(
            (prop::array::uniform10(number()), prop::option::of(part()), any::<[bool; 3]>(), instant()),
            1..40,
        ),
    ) {
        let Ok(mut standby) = Standby::new(standby::Config { quiet, cpu_limit }) else { return Ok(()) };
        for (numbers, share, [is_wanted, is_busy, does], now) in readings {
            let [ring, backlog, sockets, listeners, cookies, received, segments, resets, forwarded, judged] = numbers;
            let evidence = Evidence {
                ring, backlog, sockets, listeners, cookies, received, segments, resets, forwarded,
                share, is_wanted, judged, is_busy,
            };
            match standby.on_reading(&evidence, now) {
                standby::Order::Attach(_) if does => standby.on_attached(now),
                standby::Order::Detach if does => standby.on_detached(now),
                _ => {}
            }
        }
    }

    #[test]
    fn answers(intervals in prop::collection::vec((prop::array::uniform5(number()), instant()), 1..40)) {
        let mut answering = Answering::new();
        for ([answered, refused, returned, passed, taken], now) in intervals {
            let refused = refused % 2;
            let _ = answering.on_interval(now, &Seen { answered, refused, returned, passed, taken });
        }
    }
}
