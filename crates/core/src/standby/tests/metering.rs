//! When CPU time is metered while nothing is attached.

use super::*;

/// It costs whoever is calm.
#[test]
fn cpu_time_is_metered_only_where_it_may_tell_something() {
    let packets = |received| Evidence { received, ..NONE };
    let many = packets(5_000);
    for calm in [
        NONE,
        // 0.1 s of 85 % at 20 us each is 4,250 packets.
        packets(4_249),
        // A transfer loses frames by itself, and fills a CPU.
        bulk(0),
        bulk(100_000),
        // A small buffer, whatever the CPUs do.
        flood(100),
    ] {
        let mut host = Host::new();
        host.read(&calm);
        assert!(!host.standby.needs_meter(), "{calm:?}");
    }
    let lost = Evidence {
        ring: 1,
        ..packets(10)
    };
    let forwarded = Evidence {
        forwarded: 5_000,
        ..many
    };
    for busy in [packets(4_250), many, lost, forwarded] {
        let mut host = Host::new();
        host.read(&busy);
        assert!(host.standby.needs_meter(), "{busy:?}");
        let kept = readings(looks::KEPT);
        assert_eq!(host.until_change(&NONE, kept - 1), None);
        assert!(host.standby.needs_meter(), "until the next burst");
        host.read(&NONE);
        assert!(!host.standby.needs_meter(), "{busy:?}");
    }
    let mut host = Host::attached();
    host.read(&NONE);
    assert!(host.standby.needs_meter(), "the program's governor asks");
}

/// A router at its capacity, metered or not.
fn full_router(received: u64, is_metered: bool) -> Evidence {
    Evidence {
        received,
        forwarded: received,
        ring: 1_000,
        share: is_metered.then_some(Fraction::WHOLE),
        ..NONE
    }
}

/// Readings of this until it is metered, or no more.
fn until_metered(host: &mut Host, is_metered: bool, received: u64) -> u32 {
    let shows = |_: &u32| {
        host.read(&full_router(received, !is_metered));
        host.standby.needs_meter() == is_metered
    };
    (1..=1_000)
        .find(shows)
        .expect("each look ends, and each rest")
}

#[test]
fn a_look_that_shows_nothing_is_short_and_the_next_one_comes_later_and_later() {
    let mut host = Host::new();
    assert_eq!(until_metered(&mut host, true, 50_000), 1);
    for rest in [10, 20, 40, 80, 160, 160] {
        assert_eq!(until_metered(&mut host, false, 50_000), 5);
        assert_eq!(until_metered(&mut host, true, 50_000), rest);
    }
    // What is not metered shows nothing, and between bursts there is nothing to see.
    for unseen in [
        full_router(50_000, false),
        Evidence {
            share: Some(Fraction::NONE),
            ..NONE
        },
    ] {
        assert_eq!(host.until_change(&unseen, 50), None);
        assert!(host.standby.needs_meter(), "{unseen:?}");
    }
}

#[test]
fn a_rest_ends_at_once_when_twice_as_much_presses() {
    let arriving = |received| Evidence {
        received,
        share: Some(Fraction::NONE),
        ..NONE
    };
    let mut host = Host::new();
    for _ in 0..100 {
        host.read(&arriving(10_000));
    }
    assert!(!host.standby.needs_meter(), "a long rest");
    host.read(&arriving(20_000));
    assert!(!host.standby.needs_meter());
    host.read(&arriving(20_001));
    assert!(host.standby.needs_meter());
    // The next rests are short again.
    let is_metered = |host: &mut Host| {
        host.read(&arriving(20_001));
        host.standby.needs_meter()
    };
    let metered: Vec<_> = (0..17).map(|_| is_metered(&mut host)).collect();
    let looks = [true; 4].into_iter().chain([false; 10]).chain([true; 3]);
    assert_eq!(metered, looks.collect::<Vec<_>>());
}

/// What a router forwards may starve somebody.
#[test]
fn a_rest_ends_at_once_when_twice_as_much_is_forwarded() {
    let mut host = Host::new();
    for _ in 0..100 {
        host.read(&full_router(50_000, true));
    }
    assert!(!host.standby.needs_meter(), "a long rest");
    assert_eq!(until_metered(&mut host, true, 100_001), 1);
}

#[test]
fn a_full_cpu_is_looked_at_until_it_is_full_no_more() {
    let share = |percent| Evidence {
        received: 20_000,
        share: Some(Fraction::from_percent(percent)),
        ..NONE
    };
    let mut host = Host::new();
    for _ in 0..100 {
        assert!(!host.follow(&share(99)) && !host.follow(&share(99)));
        assert!(!host.follow(&share(10)));
        assert!(host.standby.needs_meter());
    }
}
