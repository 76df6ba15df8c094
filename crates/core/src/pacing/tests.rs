//! The story of paced flows with a clock moved by hand, and their averages
//! against exact arithmetic.

extern crate std;

use std::vec::Vec;

use proptest::prelude::*;

use super::*;

const PACKET: u32 = 1500;

fn at(micros: u64) -> Instant {
    Instant::from_nanos(micros * 1000)
}

/// One full-size packet every so many microseconds.
fn every(micros: u64) -> Rate {
    Rate::from_interval(PACKET.into(), Duration::from_micros(micros))
}

fn rates(target_micros: u64, burst_micros: u64) -> FlowRates {
    FlowRates {
        target: every(target_micros),
        burst: every(burst_micros),
    }
}

fn pacer_with(catch_up: CatchUp) -> Pacer {
    Pacer::new(PacerConfig {
        flows: 8,
        catch_up,
        ..PacerConfig::default()
    })
    .unwrap()
}

fn pacer() -> Pacer {
    pacer_with(CatchUp::Smooth)
}

/// Asks in these trigger states (µs), always with more to send; returns when
/// which flow sent.
fn departures(
    pacer: &mut Pacer,
    trigger_states: impl IntoIterator<Item = u64>,
) -> Vec<(u64, FlowId)> {
    let mut sent = Vec::new();
    for micros in trigger_states {
        while let Some(flow) = pacer.poll_departure(at(micros)) {
            pacer.on_sent(at(micros), flow, PACKET, true).unwrap();
            sent.push((micros, flow));
        }
    }
    sent
}

fn times(sent: &[(u64, FlowId)]) -> Vec<u64> {
    sent.iter().map(|&(micros, _)| micros).collect()
}

#[test]
fn a_flow_sends_one_packet_per_target_interval() {
    let mut pacer = pacer();
    let flow = pacer.add_flow(rates(40, 12)).unwrap();
    assert_eq!(pacer.next_departure(), None);
    pacer.on_backlog(at(0), flow).unwrap();
    let sent = departures(&mut pacer, 0..=200);
    // The first at the next tick, the others by the clock of the train.
    assert_eq!(times(&sent), [1, 40, 80, 120, 160, 200]);
}

#[test]
fn after_a_gap_without_trigger_state_one_packet_leaves_not_a_burst() {
    let mut pacer = pacer();
    let flow = pacer.add_flow(rates(40, 12)).unwrap();
    pacer.on_backlog(at(0), flow).unwrap();
    departures(&mut pacer, 0..=40);
    // Those due at 80, 120 and so on leave at burst rate, until at 300 the one
    // due at 280 has left. Then the train's clock counts again.
    let sent = departures(&mut pacer, 240..=400);
    assert_eq!(times(&sent), [240, 252, 264, 276, 288, 300, 320, 360, 400]);
}

#[test]
fn the_papers_rule_knows_the_target_and_the_burst_interval_only() {
    let mut pacer = pacer_with(CatchUp::TwoIntervals);
    let flow = pacer.add_flow(rates(40, 12)).unwrap();
    pacer.on_backlog(at(0), flow).unwrap();
    // Late by a microsecond at first, so behind: burst. Then ahead, by the 27 µs
    // that it overshot: target.
    let sent = departures(&mut pacer, 0..=150);
    assert_eq!(times(&sent), [1, 13, 53, 93, 133]);
}

#[test]
fn bursts_at_line_speed_hold_the_target_that_wider_ones_miss() {
    // A trigger state every 31 µs, as on the paper's busy web server.
    let average_interval = |burst_micros| {
        let mut pacer = pacer();
        let flow = pacer.add_flow(rates(40, burst_micros)).unwrap();
        pacer.on_backlog(at(0), flow).unwrap();
        let sent = departures(&mut pacer, (0..100_000).step_by(31));
        sent[sent.len() - 1].0 / (sent.len() as u64 - 1)
    };
    assert_eq!(average_interval(12), 40);
    assert_eq!(average_interval(30), 40);
    assert_eq!(average_interval(35), 62, "every second trigger state");
}

#[test]
fn what_is_too_far_behind_is_not_made_up_for() {
    let mut pacer = Pacer::new(PacerConfig {
        deficit_max: Duration::from_micros(100),
        ..PacerConfig::default()
    })
    .unwrap();
    let flow = pacer.add_flow(rates(40, 12)).unwrap();
    pacer.on_backlog(at(0), flow).unwrap();
    let sent = departures(&mut pacer, 10_000..=10_200);
    // 100 µs of arrears: as if the packet at 10,000 had been due at 9,900.
    assert_eq!(
        times(&sent),
        [
            10_000, 10_012, 10_024, 10_036, 10_060, 10_100, 10_140, 10_180
        ]
    );
}

#[test]
fn a_flow_whose_burst_rate_is_its_target_is_a_strict_shaper() {
    let mut pacer = pacer();
    let flow = pacer.add_flow(rates(40, 40)).unwrap();
    pacer.on_backlog(at(0), flow).unwrap();
    let sent = departures(&mut pacer, (0..5).chain(500..=600));
    assert_eq!(times(&sent), [1, 500, 540, 580]);
}

#[test]
fn flows_of_different_rates_share_trigger_states_but_none_sends_twice_in_one() {
    let mut pacer = pacer();
    let fast = pacer.add_flow(rates(20, 12)).unwrap();
    let slow = pacer.add_flow(rates(60, 12)).unwrap();
    pacer.on_backlog(at(0), fast).unwrap();
    pacer.on_backlog(at(0), slow).unwrap();
    let sent = departures(&mut pacer, (0..=6000).step_by(20));
    for pair in sent.windows(2) {
        assert_ne!(pair[0], pair[1], "two packets in one trigger state");
    }
    let of = |flow| sent.iter().filter(|event| event.1 == flow).count();
    // The fast one's first packet left a trigger state late; the slow one's
    // packets at 0, 60, … 6000 all left.
    assert_eq!((of(fast), of(slow)), (300, 101));
}

#[test]
fn a_flow_that_pauses_gains_nothing() {
    let mut pacer = pacer();
    let flow = pacer.add_flow(rates(40, 12)).unwrap();
    let mut sent = Vec::new();
    for micros in 0..=200 {
        // Its queue runs empty with each packet and fills at once again.
        pacer.on_backlog(at(micros), flow).unwrap();
        while let Some(flow) = pacer.poll_departure(at(micros)) {
            pacer.on_sent(at(micros), flow, PACKET, false).unwrap();
            sent.push(micros);
        }
    }
    assert_eq!(sent, [1, 40, 80, 120, 160, 200]);
}

#[test]
fn a_packet_out_of_turn_puts_the_next_departure_off() {
    let mut pacer = pacer();
    let flow = pacer.add_flow(rates(40, 12)).unwrap();
    pacer.on_backlog(at(0), flow).unwrap();
    assert_eq!(times(&departures(&mut pacer, 0..=10)), [1]);
    // A retransmission at 35; the packet due at 40 would follow after 5 µs.
    pacer.on_sent(at(35), flow, PACKET, true).unwrap();
    assert_eq!(times(&departures(&mut pacer, 36..=130)), [80, 120]);
    // New data between a departure and its report does not schedule it twice.
    assert_eq!(pacer.poll_departure(at(160)), Some(flow));
    pacer.on_backlog(at(160), flow).unwrap();
    pacer.on_sent(at(160), flow, PACKET, true).unwrap();
    assert_eq!(times(&departures(&mut pacer, 161..=210)), [200]);
}

/// A retransmission of a flow that had nothing to send counted as one that was late by all of
/// `deficit_max`: the flow then owed 2,500 packets, and sent them at its burst rate.
#[test]
fn a_packet_out_of_turn_of_an_idle_flow_leaves_no_arrears() {
    for busy_before in [false, true] {
        let mut pacer = pacer();
        let flow = pacer.add_flow(rates(40, 12)).unwrap();
        if busy_before {
            pacer.on_backlog(at(0), flow).unwrap();
            assert_eq!(pacer.poll_departure(at(1)), Some(flow));
            pacer.on_sent(at(1), flow, PACKET, false).unwrap();
        }
        pacer.on_sent(at(1_000_000), flow, PACKET, false).unwrap();
        pacer.on_backlog(at(1_000_005), flow).unwrap();
        let sent = departures(&mut pacer, 1_000_006..=1_000_130);
        assert_eq!(times(&sent), [1_000_040, 1_000_080, 1_000_120]);
        let train = pacer.train(flow).unwrap();
        assert_eq!((train.start, train.bytes), (at(1_000_000), 4 * 1500));
    }
}

/// What a flow with something to send is behind is caught up, however late its report.
#[test]
fn a_departure_that_is_reported_late_keeps_its_arrears() {
    let mut pacer = pacer();
    let flow = pacer.add_flow(rates(40, 12)).unwrap();
    pacer.on_backlog(at(0), flow).unwrap();
    assert_eq!(pacer.poll_departure(at(90)), Some(flow));
    pacer.on_sent(at(95), flow, PACKET, true).unwrap();
    let sent = departures(&mut pacer, 96..=170);
    assert_eq!(times(&sent), [107, 119, 131, 160]);
}

#[test]
fn a_train_ends_when_its_flow_has_nothing_to_send() {
    let mut pacer = pacer();
    let flow = pacer.add_flow(rates(40, 12)).unwrap();
    pacer.on_backlog(at(0), flow).unwrap();
    departures(&mut pacer, 0..=100);
    // Nothing to send at 120: the departure is not reported.
    assert_eq!(pacer.poll_departure(at(120)), Some(flow));
    assert_eq!(pacer.next_departure(), None);
    assert_eq!(pacer.train(flow).unwrap().bytes, 3 * 1500);
    pacer.on_backlog(at(5000), flow).unwrap();
    let train = pacer.train(flow).unwrap();
    assert_eq!((train.start, train.bytes), (at(5000), 0));
    // The pause left no arrears to be made up for in a burst.
    let sent = departures(&mut pacer, 5000..=5100);
    assert_eq!(times(&sent), [5001, 5040, 5080]);
}

#[test]
fn an_idle_connection_restarts_at_the_rate_of_its_last_busy_period() {
    let mut pacer = pacer();
    let flow = pacer.add_flow(rates(40, 12)).unwrap();
    pacer.on_backlog(at(0), flow).unwrap();
    departures(&mut pacer, (0..40_000).step_by(10));
    let last = pacer.train(flow).unwrap().average_rate(at(40_000)).unwrap();
    assert_eq!(last.interval(PACKET), Duration::from_micros(40));
    // Half of it at first, from the first packet on: no slow start.
    let start = StartConfig::default().rate(KnownCapacity::LastBusyPeriod(last));
    pacer.poll_departure(at(40_000));
    let restart = FlowRates {
        target: start,
        burst: start,
    };
    pacer.set_rates(flow, restart).unwrap();
    pacer.on_backlog(at(1_000_000), flow).unwrap();
    let sent = departures(&mut pacer, 1_000_000..=1_000_240);
    assert_eq!(times(&sent), [1_000_001, 1_000_081, 1_000_161]);
}

#[test]
fn a_paced_transfer_takes_one_packet_time_per_packet() {
    // 1000 packets through a bottleneck of 50 Mbit/s, known in advance: the
    // paper's 340 ms less the round trip of 100 ms.
    let mut pacer = pacer();
    let fifty = Rate::from_bits_per_second(50_000_000).unwrap();
    let flow = pacer
        .add_flow(FlowRates {
            target: StartConfig::default().rate(KnownCapacity::Reserved(fifty)),
            burst: every(12),
        })
        .unwrap();
    pacer.on_backlog(at(0), flow).unwrap();
    let sent = departures(&mut pacer, (0..300_000).step_by(7));
    assert!(sent[999].0.abs_diff(999 * 240) <= 7);
}

#[test]
fn parts_of_a_nanosecond_add_up_over_a_long_train() {
    let mut pacer = Pacer::new(PacerConfig {
        timers: SoftTimerConfig {
            measure_resolution_hz: 1_000_000_000,
            ..SoftTimerConfig::default()
        },
        ..PacerConfig::default()
    })
    .unwrap();
    // 100 bytes at 3 Gbit/s take 266 2/3 ns.
    let target = Rate::from_bits_per_second(3_000_000_000).unwrap();
    let burst = Rate::from_bits_per_second(10_000_000_000).unwrap();
    let flow = pacer.add_flow(FlowRates { target, burst }).unwrap();
    pacer.on_backlog(Instant::ZERO, flow).unwrap();
    for _ in 0..30_000 {
        let now = pacer.next_departure().unwrap();
        assert_eq!(pacer.poll_departure(now), Some(flow));
        pacer.on_sent(now, flow, 100, true).unwrap();
    }
    assert_eq!(pacer.next_departure(), Some(Instant::from_nanos(8_000_000)));
}

#[test]
fn a_removed_flow_sends_no_more_and_its_id_names_no_other() {
    let mut pacer = pacer();
    let removed = pacer.add_flow(rates(40, 12)).unwrap();
    pacer.on_backlog(at(0), removed).unwrap();
    pacer.remove_flow(removed).unwrap();
    let other = pacer.add_flow(rates(40, 12)).unwrap();
    assert_eq!(departures(&mut pacer, 0..=100), []);
    assert_ne!(removed, other);
    assert_eq!(pacer.on_backlog(at(100), removed), Err(FlowError::Unknown));
    assert_eq!(pacer.remove_flow(removed), Err(FlowError::Unknown));
    pacer.on_backlog(at(100), other).unwrap();
    assert_eq!(pacer.poll_departure(at(101)), Some(other));
}

#[test]
fn no_more_flows_than_configured_and_no_rates_that_contradict() {
    let mut pacer = pacer();
    for _ in 0..8 {
        pacer.add_flow(rates(40, 12)).unwrap();
    }
    assert_eq!(pacer.add_flow(rates(40, 12)), Err(FlowError::Full));
    let wrong = pacer.add_flow(rates(12, 40));
    assert!(matches!(wrong, Err(FlowError::Rates(error)) if error.field == "burst"));
    let config = PacerConfig {
        flows: 0,
        ..PacerConfig::default()
    };
    assert_eq!(Pacer::new(config).unwrap_err().field, "flows");
}

proptest! {
    // Whatever the trigger states and packet sizes: no packet leaves before its
    // exact time at the target rate, nor sooner after the last one than the
    // burst rate allows; and with trigger states closer than the difference of
    // both intervals, none is later than the gap between two trigger states.
    #[test]
    fn averages_follow_exact_arithmetic(
        target in 1_000_000..2_000_000_000_u64,
        burst_factor in 2..20_u64,
        packets in prop::collection::vec((64..9000_u32, 1..100_u64), 1..200),
    ) {
        let target = Rate::from_bits_per_second(target).unwrap();
        let burst = Rate::clamped(target.bits_per_second() * burst_factor);
        let mut pacer = pacer();
        let flow = pacer.add_flow(FlowRates { target, burst }).unwrap();
        let start = 123_456;
        pacer.on_backlog(Instant::from_nanos(start), flow).unwrap();
        let mut now = Instant::from_nanos(start);
        let mut bytes = 0_u64;
        let mut last: Option<(Instant, u32)> = None;
        for (size, delay_micros) in packets {
            // The event fires in the first trigger state after its time.
            let departure = pacer.next_departure().unwrap();
            now = now.max(departure) + Duration::from_micros(delay_micros);
            prop_assert_eq!(pacer.poll_departure(now), Some(flow));
            prop_assert_eq!(pacer.poll_departure(now), None);
            let due = u128::from(bytes) * 8_000_000_000 / u128::from(target.bits_per_second());
            prop_assert!(u128::from(now.as_nanos() - start) >= due);
            if let Some((before, size)) = last {
                let gap = now.saturating_since(before) + Duration::from_nanos(1);
                prop_assert!(gap >= burst.interval(size));
                // Scheduled at the later of both times, rounded up to a tick.
                let wanted = (before + burst.interval(size)).max(Instant::from_nanos(start + due as u64));
                prop_assert!(departure <= wanted + Duration::from_nanos(1001));
            }
            pacer.on_sent(now, flow, size, true).unwrap();
            bytes += u64::from(size);
            last = Some((now, size));
        }
        let train = pacer.train(flow).unwrap();
        prop_assert_eq!(train.bytes, bytes);
        let elapsed = now.saturating_since(train.start);
        prop_assert_eq!(train.average_rate(now), Some(Rate::from_interval(bytes, elapsed)));
    }
}
