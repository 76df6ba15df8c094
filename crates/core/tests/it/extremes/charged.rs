//! Modules that count packets and CPU time: shedding, fairness, feedback, the governor.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use plimsoll_core::charge::contention::Contention;
use plimsoll_core::charge::shedding::{CpuLoad, Demand, PacketCosts, Shedding, SheddingConfig};
use plimsoll_core::config::Fraction;
use plimsoll_core::driver::{LazyWatchdog, WatchdogConfig};
use plimsoll_core::fairness::{
    Backlog, Budget, Fairness, FairnessConfig, Keys, Queue, Request, Share,
};
use plimsoll_core::feedback::{Feedback, FeedbackConfig, Policy, Watermarks};
use plimsoll_core::governor::metering::{Limits, Metering, Signs, Spent};
use plimsoll_core::governor::{
    Company, CpuObservation, Governor, GovernorConfig, InstanceFrames, Instances, Losses, Mode,
    Strategy as GovernorStrategy,
};
use plimsoll_core::holdoff::HoldoffRange;
use plimsoll_core::poll::{SourceId, SourceSet};
use plimsoll_core::quota::{Quota, QuotaConfig};
use proptest::prelude::*;

use super::{instant, number, part, small, span};

fn demand() -> impl Strategy<Value = Demand> {
    let parts = (
        0..4_u32,
        number(),
        prop::option::of(0..2_u64),
        any::<bool>(),
    );
    parts.prop_map(|(slot, packets, group, protected)| Demand {
        slot,
        packets,
        group,
        protected,
    })
}

proptest! {
    #[test]
    fn shedding(
        [limit, aim, guarantee] in prop::array::uniform3(part()),
        admitted in prop_oneof![Just(Duration::from_nanos(2)), Just(Duration::from_secs(1))],
        intervals in prop::collection::vec(
            (prop::array::uniform2(span()), prop::array::uniform4(number()), any::<bool>(),
             prop::option::of(prop::collection::vec(demand(), 0..8))),
            1..20,
        ),
    ) {
        let costs = PacketCosts { admitted, discarded: Duration::from_nanos(1) };
        let config = SheddingConfig { limit, aim, guarantee, costs, demands_max: 8 };
        let Ok(mut shedding) = Shedding::new(config) else { return Ok(()) };
        for ([elapsed, network], [admitted, discarded, connections, forward], contended, demands) in &intervals {
            let load = CpuLoad {
                elapsed: *elapsed, network: *network, admitted: *admitted, discarded: *discarded,
                connections: *connections, forward: *forward, contended: *contended,
                demands: demands.as_deref(),
            };
            let _ = shedding.on_interval([load, load]);
        }
    }

    #[test]
    fn contention(intervals in prop::collection::vec(prop::array::uniform3(span()), 1..20)) {
        let mut contention = Contention::default();
        for [elapsed, network, contended] in intervals {
            contention.on_interval(elapsed, network, contended);
        }
    }

    #[test]
    fn sources(
        packets in prop::collection::vec(
            (any::<[u8; 2]>(), prop::array::uniform4(small()), any::<[bool; 3]>(), instant()), 1..60,
        ),
    ) {
        let config = FairnessConfig { network_sets: 1, subnet_sets: 1, host_sets: 1 };
        let mut fairness = Fairness::new(&config, Keys([3; Keys::COUNT])).unwrap();
        let (mut share, mut budget) = (Share::default(), Budget::default());
        for ([net, host], [occupancy, high, full, capacity], [known, has_room, cookies], now) in packets {
            let source = IpAddr::from(Ipv4Addr::new(net, 1, 1, host)).into();
            let request = Request { channel: capacity, source, known };
            let queue = Queue { occupancy, low: high / 2, high, full, has_room };
            let _ = fairness.judge(&mut share, &request, &queue, now);
            match has_room {
                true => budget.allow(full, now),
                false => budget.allow_in_parts(full, now),
            }
            let _ = fairness.judge_shed(&mut share, &mut budget, &request, now);
            let _ = budget.take();
            let backlog = Backlog { accept_queue: occupancy, syn_queue: high, capacity, cookies };
            let _ = fairness.judge_syn(&mut share, &request, &backlog, now);
            let _ = fairness.judge_cookie(&mut share, &request, &backlog, now);
        }
    }

    #[test]
    fn feedback(
        timeout in span(),
        reprieve_doublings in 0..18_u32,
        stall in prop::option::of(span()),
        [capacity, packets] in prop::array::uniform2(small()),
        events in prop::collection::vec((instant(), small(), 0..3_u8), 1..60),
    ) {
        let config = FeedbackConfig { timeout, reprieve_doublings, stall, policy: Policy::Any };
        let Ok(mut feedback) = Feedback::new(config, 2) else { return Ok(()) };
        let sources = SourceSet::EMPTY.with(SourceId::from_index(0).unwrap());
        let marks = [Watermarks::of_queue(capacity), Watermarks::room_for(capacity, packets)];
        let queues = marks.map(|marks| feedback.register(marks, sources).unwrap().0);
        for (now, occupancy, event) in events {
            for queue in queues {
                let _ = match event {
                    0 => feedback.on_enqueue(queue, occupancy, now),
                    1 => feedback.on_dequeue(queue, occupancy, now),
                    _ => feedback.poll_timeout(now),
                };
            }
        }
    }

    #[test]
    fn governors(
        strategy in prop_oneof![Just(GovernorStrategy::Thread), Just(GovernorStrategy::Holdoff)],
        ring_frames in prop_oneof![Just(16_u32), Just(256), Just(u32::MAX)],
        [fill, fill_max] in prop::sample::select(vec![[1, 1], [1, 90], [25, 50], [90, 90]]),
        [polling_limit, idle_low, discard_share] in prop::array::uniform3(part()),
        cpu_limit in prop::option::of(part()),
        max in prop_oneof![Just(Duration::from_nanos(1)), Just(Duration::from_secs(1000))],
        dwell in prop_oneof![Just(Duration::from_millis(10)), Just(Duration::from_secs(60))],
        intervals in prop::collection::vec(
            (prop::array::uniform3(span()), prop::array::uniform9(number()), any::<[bool; 4]>(), instant()),
            1..20,
        ),
    ) {
        let holdoff = HoldoffRange { min: max, max, step: max };
        let config = GovernorConfig {
            strategy, ring_frames, holdoff, cpu_limit, polling_limit, cpus: 2, idle_low, discard_share,
            fill: Fraction::from_percent(fill), fill_max: Fraction::from_percent(fill_max),
            enter_dwell: dwell, leave_dwell: dwell, ..GovernorConfig::default()
        };
        let Ok(mut governor) = Governor::new(config) else { return Ok(()) };
        let mut instances = Instances::new();
        for ([elapsed, network, idle], numbers, [contended, is_ring_counted, inhibited, metered], now) in intervals {
            let [frames, runs, most, discarded, ring, others, flood, admitted, queued] = numbers;
            let observation = CpuObservation {
                cpu: 1, elapsed, network, contended, idle, frames, runs, run_frames_max: most as u32,
            };
            let losses = Losses { discarded, ring, is_ring_counted, inhibited };
            governor.on_company(Company { others, flood, admitted, queued });
            let setting = match metered {
                true => governor.on_interval(&[observation, observation], losses, now),
                false => governor.on_unmetered(&[observation], losses, now),
            };
            let of = |id, frames| InstanceFrames { id, cpu: 1, frames };
            let seen = [of(0, frames), of(1, ring), of(2, queued)];
            instances.on_interval(setting.mode, &seen, ring, elapsed);
            for instance in instances.held_off().unwrap_or_default() {
                let _ = governor.holdoff_of(instance);
            }
        }
        instances.on_interval(Mode::Interrupts, &[], 0, dwell);
    }

    #[test]
    fn metering(
        [limit, discard_share] in prop::array::uniform2(part()),
        intervals in prop::collection::vec((number(), number(), any::<bool>(), span(), span(), instant()), 1..20),
    ) {
        let mut metering = Metering::new(Limits::new(limit, discard_share));
        let mut spent = Spent::default();
        for (frames_pps, discarded_pps, is_strained, network, weight, now) in intervals {
            metering.on_interval(Signs { frames_pps, discarded_pps, is_strained }, now);
            spent.on_metered(network, weight);
            spent.on_unmetered(weight);
        }
    }

    #[test]
    fn quotas(
        [initial, min, max, pairs, rest] in prop::array::uniform5(small()),
        hysteresis in part(),
        intervals in prop::collection::vec((number(), any::<bool>()), 1..60),
    ) {
        let config = QuotaConfig { initial, min, max, pairs, hysteresis, rest };
        let Ok(mut quota) = Quota::new(config) else { return Ok(()) };
        for (delivered, saturated) in intervals {
            quota.on_interval(delivered, saturated);
            prop_assert!((min..=max).contains(&quota.packets()));
        }
    }

    #[test]
    fn watchdogs(
        [earliest, nominal, latest, stop_below] in prop::array::uniform4(span()),
        events in prop::collection::vec((instant(), number(), 0..3_u8), 1..40),
    ) {
        let config = WatchdogConfig { earliest, nominal, latest, stop_below };
        let Ok(mut watchdog) = LazyWatchdog::new(&config) else { return Ok(()) };
        for (now, frames, event) in events {
            match event {
                0 => { let _ = watchdog.on_transmit(now); }
                1 => { let _ = watchdog.on_completion(frames, now); }
                _ => { let _ = watchdog.on_expiry(now); }
            }
        }
    }
}
