//! Channels, holdoff control and the driver's decisions allocate nothing once
//! they are constructed, whatever is asked of them.

use std::time::Duration;

use allocation_counter::measure;
use plimsoll_core::channel::{ChannelConfig, ChannelPool, DelayTarget, channel};
use plimsoll_core::config::Fraction;
use plimsoll_core::driver::{
    DescriptorRing, DeviceDescriptor, LazyWatchdog, NetidTable, PredictionConfig, ProtectedSection,
    ReceiveModes, ReceivePrediction, RingConfig, TransmitConfig, TransmitSlots, WatchdogConfig,
};
use plimsoll_core::holdoff::{
    BufferCredit, BufferLedger, Costs, CreditConfig, HoldoffConfig, HoldoffRange, Limits,
    LoadTarget, Model, OverheadCalibration, Turn, TurnDrops, Window,
};
use plimsoll_core::time::Instant;

const ROUNDS: u32 = 2000;
const MS: Duration = Duration::from_millis(1);

fn assert_allocates_nothing(operations: impl FnOnce()) {
    let info = measure(operations);
    assert_eq!(info.count_total, 0, "{info:?}");
}

#[test]
fn the_measure_notices_an_allocation() {
    assert_eq!(
        measure(|| drop(std::hint::black_box(Box::new(1)))).count_total,
        1
    );
}

#[test]
fn channels() {
    let config = ChannelConfig {
        high_watermark: 60,
        low_watermark: 20,
        buffers: Some(50),
        delay_target: Some(DelayTarget {
            target: MS,
            interval: MS * 2,
        }),
        ..ChannelConfig::drop_tail(64)
    };
    let (mut producer, mut consumer) = channel(&config).unwrap();
    let monitor = producer.monitor();
    assert_allocates_nothing(|| {
        for round in 0..ROUNDS {
            let now = Instant::ZERO + MS * round;
            for item in 0..round % 90 {
                let _ = producer.push(item, now);
            }
            let _ = producer.interrupt_due();
            while consumer.pop(now + MS * (round % 9)).is_some() && round % 7 > 0 {}
            let _ = consumer.request_interrupt();
            consumer.return_buffers(u64::from(round % 60));
        }
        let counts = monitor.counts();
        assert_eq!(
            counts.offered(),
            counts.queued + counts.discarded() + counts[plimsoll_core::channel::Outcome::Delivered]
        );
    });
}

#[test]
fn channel_pools() {
    let mut pool = ChannelPool::new(&ChannelConfig::drop_tail(4), 3).unwrap();
    assert_allocates_nothing(|| {
        for round in 0..ROUNDS {
            let one = pool.create();
            let (mut producer, consumer) = pool.create().unwrap();
            for item in 0..6 {
                let _ = producer.push(item, Instant::ZERO);
            }
            if round % 2 == 0 {
                drop(consumer);
            }
            drop(one);
        }
        assert_eq!(pool.available(), 3);
    });
}

#[test]
fn holdoff() {
    let mut target = LoadTarget::new(&HoldoffConfig::default()).unwrap();
    let mut credit = BufferCredit::new(&CreditConfig::default()).unwrap();
    let mut ledger = BufferLedger::new(256);
    let model = Model::new(Costs {
        enter: Duration::from_micros(1),
        dequeue: Duration::from_nanos(50),
        leave: Duration::from_micros(1),
    });
    let limits = Limits {
        range: HoldoffRange::FINE,
        buffers_max: 256,
        link_pps: 1e6,
        latency_max: MS,
    };
    assert_allocates_nothing(|| {
        for round in 0..ROUNDS {
            let entered = Instant::ZERO + MS * round;
            let returned = entered + Duration::from_micros((round % 300).into());
            target.on_turn(Turn { entered, returned });
            while ledger.take() {}
            let drops = TurnDrops {
                packets: 100,
                dropped: (round % 11).into(),
                cpu_was_idle: false,
            };
            let _ = ledger.end_turn(credit.on_turn(drops));
        }
        model
            .for_rate(&limits, 2e5, Fraction::from_percent(5), 1e6)
            .unwrap();
        model.for_latency(&limits, 2e5, 1e6).unwrap();
        let quiet = Window {
            elapsed: MS,
            work: 1000,
            turns: 0,
            in_handler: Duration::ZERO,
        };
        let mut calibration = OverheadCalibration::new(quiet).unwrap();
        for turns in 1..100 {
            calibration
                .on_window(Window {
                    turns,
                    work: 900,
                    ..quiet
                })
                .unwrap();
        }
        assert!(calibration.overhead().is_some());
    });
}

#[test]
fn the_driver() {
    let mut watchdog = LazyWatchdog::new(&WatchdogConfig::default()).unwrap();
    let mut table = NetidTable::new(16).unwrap();
    let section = ProtectedSection::new();
    let mut slots = TransmitSlots::new(&TransmitConfig {
        slots: 8,
        reserved: 1,
        buffer_bytes: 1514,
        urgent_bytes: 60,
    })
    .unwrap();
    let mut prediction = ReceivePrediction::new(&PredictionConfig { gain: MS, loss: MS }).unwrap();
    let mut modes = ReceiveModes::new();
    assert_allocates_nothing(|| {
        for round in 0..u16::try_from(ROUNDS).unwrap() {
            let now = Instant::ZERO + MS * 100 * round.into();
            let _ = watchdog.on_transmit(now);
            let _ = watchdog.on_completion(1, now);
            // A full table that is always being rebound: no growth, no rehash
            // into new memory.
            let _ = table.unbind(round.wrapping_sub(16));
            table.bind(round, round).unwrap();
            table.on_packet(round);
            let inside = section.try_enter().unwrap();
            let _ = section.on_interrupt();
            let _ = inside.leave();
            let _ = (slots.claim_queued(), slots.claim_urgent());
            slots.on_completion(2);
            prediction.on_request(round);
            prediction.on_packet(round / 2);
            let _ = (modes.add_multicast(), modes.remove_multicast());
        }
    });
}

#[test]
fn descriptor_rings() {
    let mut ring = DescriptorRing::new(&RingConfig {
        descriptors: 64,
        buffer_bytes: 1514,
        bus_address: 0,
        card_offset: 0,
        descriptor_bytes: 16,
    })
    .unwrap();
    assert_allocates_nothing(|| {
        for _ in 0..ROUNDS {
            let (_, written) = ring.give(1514).unwrap();
            let read = DeviceDescriptor {
                status: 0,
                ..written
            };
            let completion = ring.complete(read).unwrap().unwrap();
            ring.release(completion);
        }
    });
}
