//! Both halves by hand, random operations against a plain model, then two threads.

extern crate std;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, Ordering};
use core::time::Duration;
use std::thread;

use proptest::prelude::*;

use super::super::outcome::Outcome;
use super::*;

const NOW: Instant = Instant::ZERO;

fn discarded<T>(item: T, cause: Discard) -> Admission<T> {
    Admission::Discarded { item, cause }
}

/// Shows MR-79, LRP-08, LRP-38: who comes last is lost, and only at the channel that is full.
#[test]
fn a_full_channel_discards_until_something_is_consumed() {
    let (mut producer, mut consumer) = channel(&ChannelConfig::drop_tail(2)).unwrap();
    let (mut neighbour, mut reader) = channel(&ChannelConfig::drop_tail(2)).unwrap();
    assert_eq!(producer.push(1, NOW), Admission::Queued);
    assert_eq!(producer.push(2, NOW), Admission::Queued);
    assert_eq!(producer.push(3, NOW), discarded(3, Discard::Full));
    assert_eq!(neighbour.push(5, NOW), Admission::Queued);
    assert_eq!(consumer.pop(NOW).map(|a| a.item), Some(1));
    assert_eq!(producer.push(4, NOW), Admission::Queued);
    let counts = producer.monitor().counts();
    assert_eq!((counts.offered(), counts.queued), (4, 2));
    assert_eq!(counts[Outcome::Full], 1);
    let left = std::iter::from_fn(|| consumer.pop(NOW).map(|a| a.item));
    assert_eq!(left.collect::<Vec<_>>(), [2, 4]);
    assert_eq!(reader.pop(NOW).map(|a| a.item), Some(5));
}

#[test]
fn discarding_goes_on_down_to_the_low_watermark() {
    let config = ChannelConfig {
        high_watermark: 6,
        low_watermark: 2,
        ..ChannelConfig::drop_tail(8)
    };
    let (mut producer, mut consumer) = channel(&config).unwrap();
    for k in 0..6 {
        assert_eq!(producer.push(k, NOW), Admission::Queued);
    }
    for _ in 0..3 {
        assert_eq!(producer.push(9, NOW), discarded(9, Discard::Full));
        assert!(producer.is_discarding());
        consumer.pop(NOW).unwrap();
    }
    // Three left, one more than the low watermark.
    assert_eq!(producer.push(9, NOW), discarded(9, Discard::Full));
    consumer.pop(NOW).unwrap();
    assert_eq!(producer.push(6, NOW), Admission::Queued);
    assert!(!producer.is_discarding());
}

#[test]
fn interrupts_only_if_empty_and_asked() {
    let (mut producer, mut consumer) = channel(&ChannelConfig::drop_tail(4)).unwrap();
    let mut push = |item| {
        assert_eq!(producer.push(item, NOW), Admission::Queued);
        producer.interrupt_due()
    };
    assert!(!push(1), "nobody asked");
    assert_eq!(consumer.request_interrupt(), InterruptRequest::Ready);
    assert!(!push(2), "not empty, so the request was withdrawn");
    consumer.pop(NOW).unwrap();
    consumer.pop(NOW).unwrap();
    assert_eq!(consumer.pop(NOW), None);
    assert_eq!(consumer.request_interrupt(), InterruptRequest::Pending);
    assert!(push(3));
    assert!(!push(4), "once is enough");
}

#[test]
fn a_receiver_that_hoards_buffers_gets_no_more() {
    let config = ChannelConfig {
        buffers: Some(3),
        ..ChannelConfig::drop_tail(8)
    };
    let (mut producer, mut consumer) = channel(&config).unwrap();
    for k in 0..3 {
        assert_eq!(producer.push(k, NOW), Admission::Queued);
        consumer.pop(NOW).unwrap();
    }
    assert_eq!(producer.push(3, NOW), discarded(3, Discard::NoBuffer));
    consumer.return_buffers(1);
    assert_eq!(producer.push(4, NOW), Admission::Queued);
    assert_eq!(producer.push(5, NOW), discarded(5, Discard::NoBuffer));
    consumer.return_buffers(u64::MAX);
    assert_eq!(producer.push(6, NOW), Admission::Queued);
    assert_eq!(producer.push(7, NOW), Admission::Queued);
    assert_eq!(producer.push(8, NOW), discarded(8, Discard::NoBuffer));
}

#[test]
fn what_queues_too_long_is_discarded_late() {
    let config = ChannelConfig {
        delay_target: Some(DelayTarget::default()),
        ..ChannelConfig::drop_tail(1000)
    };
    let (mut producer, mut consumer) = channel(&config).unwrap();
    for k in 0..600_u32 {
        assert_eq!(producer.push(k, NOW), Admission::Queued);
    }
    for ms in 0..500 {
        consumer.pop(NOW + Duration::from_millis(100 + ms)).unwrap();
    }
    let counts = consumer.monitor().counts();
    assert_eq!(counts[Outcome::Delivered], 500);
    // The first after 100 ms, then 100, 71, 58, 50, 45 and 41 ms apart.
    assert_eq!(counts[Outcome::Late], 7);
    assert_eq!(counts.queued, 93);
}

#[test]
fn a_producer_that_leaves_lets_the_rest_be_taken() {
    let (mut producer, mut consumer) = channel(&ChannelConfig::drop_tail(4)).unwrap();
    assert_eq!(producer.push(1, NOW), Admission::Queued);
    assert!(!producer.close(), "nobody sleeps");
    assert_eq!(producer.push(2, NOW), discarded(2, Discard::Closed));
    drop(producer);
    assert_eq!(consumer.request_interrupt(), InterruptRequest::Ready);
    assert!(consumer.pop(NOW).is_some());
    assert_eq!(consumer.request_interrupt(), InterruptRequest::Closed);

    let (mut producer, mut consumer) = channel::<u32>(&ChannelConfig::drop_tail(4)).unwrap();
    assert_eq!(consumer.request_interrupt(), InterruptRequest::Pending);
    assert!(producer.close(), "the sleeper must learn it");
}

#[test]
fn a_consumer_that_leaves_frees_what_is_queued() {
    let (mut producer, consumer) = channel(&ChannelConfig::drop_tail(4)).unwrap();
    let buffer = Arc::new(());
    let _ = producer.push(buffer.clone(), NOW);
    let _ = producer.push(buffer.clone(), NOW);
    drop(consumer);
    assert_eq!(Arc::strong_count(&buffer), 1, "both buffers are free");
    assert!(producer.is_closed());
    let refused = producer.push(buffer.clone(), NOW);
    assert_eq!(refused, discarded(buffer, Discard::Closed));
    let counts = producer.monitor().counts();
    assert_eq!((counts.offered(), counts[Outcome::Closed]), (3, 3));
}

#[test]
fn configs_say_what_is_wrong() {
    let good = ChannelConfig::drop_tail(8);
    let field = |config: ChannelConfig| config.validate().unwrap_err().field;
    assert_eq!(field(ChannelConfig::drop_tail(0)), "capacity");
    assert_eq!(
        field(ChannelConfig {
            high_watermark: 9,
            ..good
        }),
        "high_watermark"
    );
    assert_eq!(
        field(ChannelConfig {
            low_watermark: 8,
            ..good
        }),
        "low_watermark"
    );
    assert_eq!(
        field(ChannelConfig {
            buffers: Some(0),
            ..good
        }),
        "buffers"
    );
    let delay_target = Some(DelayTarget {
        target: Duration::ZERO,
        ..DelayTarget::default()
    });
    assert_eq!(
        field(ChannelConfig {
            delay_target,
            ..good
        }),
        "delay_target.target"
    );
}

#[derive(Clone, Debug)]
enum Op {
    Push,
    Pop,
    Return(u64),
    Request,
    Interrupt,
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    prop::collection::vec(
        prop_oneof![
            4 => Just(Op::Push),
            3 => Just(Op::Pop),
            1 => (0_u64..4).prop_map(Op::Return),
            1 => Just(Op::Request),
            1 => Just(Op::Interrupt),
        ],
        1..300,
    )
}

/// The channel written down without regard to threads or speed.
#[derive(Default)]
struct Model {
    queue: VecDeque<usize>,
    discarding: bool,
    held: u64,
    wanted: bool,
    outcomes: [u64; 5],
}

impl Model {
    fn push(&mut self, item: usize, config: &ChannelConfig) -> Admission<usize> {
        let queued = u32::try_from(self.queue.len()).unwrap();
        self.discarding =
            queued >= config.high_watermark || self.discarding && queued > config.low_watermark;
        let in_use = u64::from(queued) + self.held;
        if self.discarding {
            self.outcomes[Outcome::Full as usize] += 1;
            discarded(item, Discard::Full)
        } else if config.buffers.is_some_and(|b| in_use >= u64::from(b)) {
            self.outcomes[Outcome::NoBuffer as usize] += 1;
            discarded(item, Discard::NoBuffer)
        } else {
            self.queue.push_back(item);
            Admission::Queued
        }
    }

    fn pop(&mut self) -> Option<usize> {
        let item = self.queue.pop_front()?;
        self.outcomes[Outcome::Delivered as usize] += 1;
        self.held += 1;
        Some(item)
    }

    fn request(&mut self) -> InterruptRequest {
        self.wanted = self.queue.is_empty();
        if self.wanted {
            InterruptRequest::Pending
        } else {
            InterruptRequest::Ready
        }
    }
}

proptest! {
    #[test]
    fn behaves_like_the_model(
        ops in ops(),
        (capacity, high, low) in (1_u32..20).prop_flat_map(|c| (Just(c), 1..=c))
            .prop_flat_map(|(c, h)| (Just(c), Just(h), 0..h)),
        buffers in prop::option::of(1_u32..20),
    ) {
        let config = ChannelConfig {
            capacity, high_watermark: high, low_watermark: low, buffers, delay_target: None,
        };
        let (mut producer, mut consumer) = channel(&config).unwrap();
        let mut model = Model::default();
        for (k, op) in ops.into_iter().enumerate() {
            match op {
                Op::Push => prop_assert_eq!(producer.push(k, NOW), model.push(k, &config)),
                Op::Pop => prop_assert_eq!(consumer.pop(NOW).map(|a| a.item), model.pop()),
                Op::Return(count) => {
                    consumer.return_buffers(count);
                    model.held = model.held.saturating_sub(count);
                }
                Op::Request => prop_assert_eq!(consumer.request_interrupt(), model.request()),
                Op::Interrupt => {
                    let wanted = core::mem::take(&mut model.wanted);
                    prop_assert_eq!(producer.interrupt_due(), wanted);
                }
            }
            let counts = consumer.monitor().counts();
            prop_assert_eq!(counts.queued, model.queue.len() as u64);
            for outcome in Outcome::ALL {
                prop_assert_eq!(counts[outcome], model.outcomes[outcome as usize]);
            }
        }
    }
}

/// Two threads, a receiver that really sleeps, and a monitor: nothing hangs,
/// nothing is lost, every item is seen once and in order.
#[test]
fn two_threads_and_a_sleeping_receiver() {
    const ITEMS: u64 = if cfg!(miri) { 300 } else { 200_000 };
    let config = ChannelConfig {
        high_watermark: 60,
        low_watermark: 30,
        ..ChannelConfig::drop_tail(64)
    };
    let (mut producer, mut consumer) = channel(&config).unwrap();
    let monitor = producer.monitor();
    let finished = AtomicBool::new(false);
    thread::scope(|scope| {
        let receiver = scope.spawn(move || {
            let mut taken = 0;
            let mut last = None;
            loop {
                while let Some(arrival) = consumer.pop(NOW) {
                    assert!(Some(arrival.item) > last);
                    last = Some(arrival.item);
                    taken += 1;
                }
                match consumer.request_interrupt() {
                    InterruptRequest::Pending => thread::park(),
                    InterruptRequest::Ready => {}
                    InterruptRequest::Closed => return taken,
                }
            }
        });
        scope.spawn(|| {
            while !finished.load(Ordering::Relaxed) {
                // One on its way in, and one on its way out: 61 left out the latter, and failed
                // once.
                assert!(monitor.counts().queued <= 62);
                thread::yield_now();
            }
        });
        let mut discarded = 0;
        for item in 0..ITEMS {
            if producer.push(item, NOW) != Admission::Queued {
                discarded += 1;
            }
            // Bursts of every length from 1 to 10.
            if item * item % 11 < 5 && producer.interrupt_due() {
                receiver.thread().unpark();
            }
        }
        if producer.close() {
            receiver.thread().unpark();
        }
        let taken: u64 = receiver.join().unwrap();
        finished.store(true, Ordering::Relaxed);
        assert_eq!(taken + discarded, ITEMS);
        let counts = monitor.counts();
        assert_eq!(counts[Outcome::Delivered], taken);
        assert_eq!(counts[Outcome::Full], discarded);
    });
}
