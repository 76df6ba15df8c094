//! After construction no decision of `poll`, `quota`, `feedback`, `cpu_limit`,
//! `governor`, `charge` and `fairness` allocates: each runs here with tables full and empty,
//! and every allocation of the thread is counted.

use std::time::Duration;

use plimsoll_core::charge::shedding::{CpuLoad, Demand, Order, Shedding, SheddingConfig};
use plimsoll_core::charge::{
    Class, ConsumerId, Frames, FramesConfig, GroupId, Participants, Priority, Shares, SharesConfig,
    Shedder, ShedderConfig, Waiting,
};
use plimsoll_core::config::Fraction;
use plimsoll_core::cpu_limit::{CpuLimit, CpuLimitConfig, SampledLimit, SampledLimitConfig};
use plimsoll_core::fairness::{
    Fairness, FairnessConfig, Keys, Queue, Request, Share, Source, Verdict,
};
use plimsoll_core::feedback::{Feedback, FeedbackConfig, Watermarks};
use plimsoll_core::governor::{
    Company, CpuObservation, Governor, GovernorConfig, InstanceFrames, InstanceRate, Instances,
    Losses, Place, Placement, Strategy,
};
use plimsoll_core::poll::{Directions, Driver, Interrupts, Poller, PollerConfig, SourceSet};
use plimsoll_core::quota::{Quota, QuotaConfig};
use plimsoll_core::time::Instant;

const COUNT: u32 = 64;
const US: Duration = Duration::from_micros(1);

/// Allocations made by `work`.
fn allocations(work: impl FnOnce()) -> u64 {
    allocation_counter::measure(work).count_total
}

fn at(micros: u64) -> Instant {
    Instant::from_nanos(micros * 1000)
}

#[test]
fn the_counter_counts() {
    let allocated = allocations(|| drop(std::hint::black_box(Box::new(1))));
    assert_eq!(allocated, 1);
}

#[test]
fn polling_allocates_nothing() {
    let mut poller = Poller::new(PollerConfig::default(), Instant::ZERO).unwrap();
    let mut quota = Quota::new(QuotaConfig::default()).unwrap();
    let allocated = allocations(|| {
        for _ in 0..COUNT {
            let driver = Driver::Polled(Interrupts::Shared);
            let source = poller.register(driver).unwrap();
            let _ = poller.on_interrupt(source, Directions::BOTH);
            let _ = poller.inhibit_input(source);
            poller.allow_input(source);
        }
        poller.register(Driver::Unmodified).unwrap_err();
        for step in 0..10_000 {
            if let Some(turn) = poller.poll_next(at(step)) {
                let _ = poller.on_turn_done(turn, 8, step < 5000);
            }
            let _ = poller.inhibit_all_input();
            poller.allow_all_input();
            quota.on_interval(step * 1000 % 777, step % 100 != 0);
        }
    });
    assert_eq!(allocated, 0);
}

#[test]
fn stopping_input_allocates_nothing() {
    let mut feedback = Feedback::new(FeedbackConfig::default(), COUNT as usize).unwrap();
    let mut limit = CpuLimit::new(CpuLimitConfig::default(), Instant::ZERO).unwrap();
    let mut sampled = SampledLimit::new(SampledLimitConfig::default()).unwrap();
    let sources = SourceSet::EMPTY;
    let allocated = allocations(|| {
        for round in 0..4 {
            let mut queues = [None; COUNT as usize];
            for queue in &mut queues {
                let (id, _) = feedback
                    .register(Watermarks::of_queue(32), sources)
                    .unwrap();
                let _ = feedback.on_enqueue(id, 32, at(round * 2000));
                *queue = Some(id);
            }
            let _ = feedback.poll_timeout(at(round * 2000 + 1000));
            for queue in queues.into_iter().flatten() {
                let _ = feedback.on_dequeue(queue, 0, at(round * 2000 + 1000));
                let _ = feedback.unregister(queue);
            }
        }
        for step in 0..10_000 {
            limit.on_enter(0, at(step * 100));
            let _ = limit.on_exit(0, at(step * 100 + 90));
            let _ = limit.on_idle(at(step * 100 + 95));
            let _ = sampled.on_tick(step % 7 != 0);
        }
    });
    assert_eq!(allocated, 0);
}

#[test]
fn governing_allocates_nothing() {
    let mut governor = Governor::new(GovernorConfig {
        strategy: Strategy::Holdoff,
        cpu_limit: Some(Fraction::from_percent(50)),
        ..GovernorConfig::default()
    })
    .unwrap();
    let mut instances = Instances::new();
    let allocated = allocations(|| {
        // One second of flood, then four of nothing, ten times over.
        for step in 0..5000_u64 {
            let flooded = step % 500 < 100;
            let cpu = CpuObservation {
                cpu: 0,
                elapsed: US * 10_000,
                network: US * if flooded { 6000 } else { 10 },
                contended: true,
                idle: US * if flooded { 0 } else { 9000 },
                frames: if flooded { 30_000 } else { 10 },
                runs: 100,
                run_frames_max: if flooded { 200 } else { 1 },
            };
            let losses = Losses {
                discarded: u64::from(flooded),
                ..Losses::default()
            };
            let cpus = [0, 1].map(|number| CpuObservation { cpu: number, ..cpu });
            let setting = governor.on_interval(&cpus, losses, at(step * 10_000));
            let seen = [0, 1].map(|id| InstanceFrames {
                id,
                cpu: id,
                frames: cpu.frames * u64::from(id),
            });
            instances.on_interval(setting.mode, &seen, 0, cpu.elapsed);
            for one in instances.held_off().into_iter().flatten() {
                let _ = governor.holdoff_of(one);
            }
        }
    });
    assert_eq!(allocated, 0);
    assert_eq!(governor.switches(), 20, "both modes were met");
}

/// Each governor with a CPU limit had a megabyte, for as many CPUs as Linux can have.
#[test]
fn a_governor_has_memory_for_the_limit_of_its_own_cpus() {
    const CPUS: u32 = 8;
    let mut governor = None;
    let made = allocation_counter::measure(|| {
        governor = Governor::new(GovernorConfig {
            strategy: Strategy::Holdoff,
            cpu_limit: Some(Fraction::from_percent(50)),
            polling_limit: Fraction::from_percent(50),
            cpus: CPUS as usize,
            ..GovernorConfig::default()
        })
        .ok();
    });
    assert!(made.bytes_total < 4096, "{} bytes", made.bytes_total);
    let mut governor = governor.unwrap();
    // Linux numbers may leave some out.
    let cpus: [_; CPUS as usize] = std::array::from_fn(|nth| CpuObservation {
        cpu: 3 * u32::try_from(nth).unwrap(),
        elapsed: US * 10_000,
        network: US * 9000,
        contended: true,
        idle: Duration::ZERO,
        frames: 1000,
        runs: 100,
        run_frames_max: 1,
    });
    let allocated = allocations(|| {
        for step in 0..100 {
            governor.on_interval(&cpus, Losses::default(), at(step * 10_000));
        }
    });
    assert_eq!(allocated, 0);
    for CpuObservation { cpu, .. } in cpus {
        let holdoff = governor.holdoff_of(&InstanceRate {
            id: cpu,
            cpu,
            rate_pps: 100_000,
        });
        assert!(
            holdoff > US * 1000,
            "CPU {cpu} keeps the limit: {holdoff:?}"
        );
    }
}

#[test]
fn placing_allocates_nothing() {
    let mut placement = Placement::new();
    let mut places = [0_u32; 2];
    let allocated = allocations(|| {
        for step in 0..5000_u64 {
            let company = Company {
                others: u64::from(step % 1000 == 0),
                flood: 10_000,
                admitted: 1000,
                queued: 0,
            };
            let place = placement.on_interval(Some(company), US * 10_000, at(step * 10_000));
            places[usize::from(place == Place::Beneath)] += 1;
        }
    });
    assert_eq!(allocated, 0);
    assert!(places.iter().all(|times| *times > 100), "both: {places:?}");
}

#[test]
fn fairness_allocates_nothing() {
    let keys = Keys([0x9e37_79b9_7f4a_7c15; Keys::COUNT]);
    let mut fairness = Fairness::new(&FairnessConfig::for_cpus(64), keys).unwrap();
    let mut share = Share::default();
    let mut refused = 0;
    let allocated = allocations(|| {
        for step in 0..100_000_u32 {
            let address = std::net::Ipv4Addr::from_bits(step.wrapping_mul(0x9e37_79b9));
            let request = Request {
                channel: 1,
                source: Source::from(std::net::IpAddr::from(address)),
                known: step % 7 == 0,
            };
            let queue = Queue {
                occupancy: 60 + step % 40,
                low: 50,
                high: 70,
                full: 90,
                has_room: false,
            };
            let verdict = fairness.judge(&mut share, &request, &queue, at(u64::from(step) * 20));
            refused += u32::from(verdict != Verdict::Admitted);
        }
    });
    assert!(refused > 1000, "sources had more than their share");
    assert_eq!(allocated, 0);
}

#[test]
fn charging_and_shedding_allocate_nothing() {
    let mut shares = Shares::new(SharesConfig::new(COUNT as usize));
    let mut shedder = Shedder::new(ShedderConfig::new(COUNT as usize));
    let mut shedding = Shedding::new(SheddingConfig::DEFAULT).unwrap();
    let demands: Vec<Demand> = (0..COUNT)
        .map(|slot| Demand {
            slot,
            packets: 1000,
            group: (slot % 2 == 0).then_some(u64::from(slot % 16)),
            protected: slot == 1,
        })
        .collect();
    let mut waiting = Waiting::new(COUNT as usize);
    let mut frames = Frames::new(FramesConfig::new(COUNT as usize));
    let mut group = Participants::new(COUNT as usize);
    let allocated = allocations(|| {
        for id in (0..COUNT).map(ConsumerId) {
            shares.configure(id, Class::BEST_EFFORT, 1 + id.0).unwrap();
            shedder.configure(id, Class::BEST_EFFORT, 1 + id.0).unwrap();
            group.set(id, Priority(id.0)).unwrap();
            shares.on_backlog(id);
            waiting.on_block(id);
        }
        group.set(ConsumerId(COUNT), Priority(1)).unwrap_err();
        for step in 0..10_000 {
            let id = ConsumerId(step % COUNT);
            if let Some(next) = shares.poll_next() {
                shares.on_served(next, US, step % 3 != 0);
            }
            shares.on_backlog(id);
            let _ = shedder.admits(id, US);
            if step % 100 == 0 {
                shedder.on_interval(Some(US * 10));
            }
            let load = CpuLoad {
                elapsed: US * 20_000,
                network: US * 19_000,
                contended: true,
                forward: 0,
                admitted: 10_000,
                discarded: 1000,
                connections: 0,
                demands: Some(&demands),
            };
            let order = shedding.on_interval([load; 2]);
            assert!(step < 2 || matches!(order, Order::Shed { slots, .. } if slots.len() > 8));
            waiting.on_enqueue(id);
            waiting.on_dequeue(id);
            let _ = frames.keeps(GroupId(id.0), u64::from(step / 50), step % 11 == 0);
            group.set(id, Priority(step)).unwrap();
        }
    });
    assert_eq!(allocated, 0);
}
