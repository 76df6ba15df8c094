//! What keeps the program attached, and for how long.

use super::*;

#[test]
fn anything_holds_it_and_a_minute_of_quiet_detaches() {
    let all = readings(QUIET);
    for evidence in [
        flood(20_000),
        Evidence {
            judged: 20_000,
            ..NONE
        },
        Evidence {
            is_busy: true,
            ..NONE
        },
        Evidence {
            cookies: 20_000,
            ..NONE
        },
        Evidence {
            listeners: 20_000,
            ..NONE
        },
        Evidence {
            ring: 20_000,
            ..NONE
        },
        Evidence {
            received: 50_000,
            share: Some(Fraction::WHOLE),
            ..NONE
        },
    ] {
        let mut host = Host::attached();
        for _ in 0..3 {
            assert_eq!(host.until_change(&NONE, all - 1), None);
            assert!(!host.follow(&evidence), "{evidence:?}");
        }
        let quiet = host.until_change(&NONE, 2 * all).unwrap();
        assert!((all..=all + readings(QUIET_AFTER)).contains(&quiet));
        assert!(!host.standby.is_attached());
    }
}

/// Less than a thousand a second, whoever loses it: perhaps the program is why.
#[test]
fn a_few_losses_do_not_hold_it() {
    let all = readings(QUIET);
    let of = |sockets, judged| Evidence {
        sockets,
        judged,
        ..NONE
    };
    for (evidence, holds) in [(of(60, 30), false), (of(60, 60), true), (of(0, 120), true)] {
        let mut host = Host::attached();
        let changed = host.until_change(&evidence, 10 * all);
        assert_eq!(changed, (!holds).then_some(all), "{evidence:?}");
    }
}

/// Hours of a flood that comes as soon as the program is gone.
#[test]
fn where_it_alternates_it_stays_for_ever_longer() {
    let mut host = Host::new();
    let mut stays = Vec::new();
    for _ in 0..9 {
        assert!(host.follow(&flood(60_000)), "it never waits to protect");
        let stay = host.until_change(&NONE, u32::MAX).unwrap();
        stays.push(stay / readings(QUIET));
    }
    assert_eq!(stays, [1, 2, 4, 8, 16, 32, 64, 64, 64]);
    // After long enough it begins again.
    host.now += QUIET * QUIETS_MAX * SOON_QUIETS;
    assert!(host.follow(&flood(60_000)));
    assert_eq!(host.until_change(&NONE, u32::MAX), Some(readings(QUIET)));
}

/// It was detached by somebody else, say.
#[test]
fn once_detached_it_begins_anew() {
    let mut host = Host::attached();
    host.read(&flood(60_000));
    host.standby.on_detached(host.now);
    assert_eq!(host.read(&NONE), Order::Keep, "what was lost before");

    let part = |percent| Some(Fraction::from_percent(percent));
    let full = Evidence {
        received: 10_000,
        share: part(100),
        ..NONE
    };
    let forwarding = Evidence {
        ring: 60_000,
        forwarded: 10_000,
        share: part(10),
        is_wanted: true,
        ..full
    };
    for (evidence, sign) in [(full, Sign::Cpu), (forwarding, Sign::Ring)] {
        let mut host = Host::new();
        for _ in 0..2 {
            for _ in 1..READINGS {
                assert_eq!(host.read(&evidence), Order::Keep, "{sign:?}");
            }
            host.standby.on_attached(host.now);
            assert!(host.standby.needs_meter());
            host.standby.on_detached(host.now);
            assert!(!host.standby.needs_meter());
        }
        for _ in 1..READINGS {
            assert_eq!(host.read(&evidence), Order::Keep, "{sign:?}");
        }
        assert_eq!(host.read(&evidence), Order::Attach(sign));
    }
}

#[test]
fn a_new_cpu_limit_holds_from_the_next_reading_on() {
    let mut host = Host::new();
    let evidence = Evidence {
        received: 10_000,
        share: Some(Fraction::from_percent(60)),
        ..NONE
    };
    assert_eq!(host.until_change(&evidence, 20), None);
    let config = Config {
        cpu_limit: Fraction::from_percent(50),
        ..Config::default()
    };
    host.standby.configure(config).unwrap();
    assert_eq!(host.until_change(&evidence, 20), Some(READINGS));
}
