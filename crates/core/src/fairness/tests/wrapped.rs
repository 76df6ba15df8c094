//! Entries keep 16 bits of a tick, so that four fit a cache line. Who is away for 275 s may come
//! back as if it had never been away.

use crate::fairness::Profile;
use crate::fairness::host::{Host, has_turns};
use crate::fairness::numbers::{PACKET, WAIT_TICKS_MAX};
use crate::fairness::table::Owner;

/// When the low bits of ticks are the same again.
const WRAP: u32 = 1 << 16;

/// Whether it is served now.
fn asks(host: &mut Host, level: u32, tick: u32, owner: Owner) -> bool {
    if host.is_waiting(tick) && owner == Owner::Same {
        host.go_on_waiting(tick);
        return false;
    }
    let is_served = host.take(level, tick, owner) != Profile::Out;
    if is_served && has_turns(level) {
        host.end_turn();
    }
    is_served
}

/// The most ticks that one waits who comes back around a wrap after its last packet.
fn longest_wait(level: u32) -> u32 {
    let waits = (0..2000).step_by(7).map(|later| {
        let (mut host, begin) = (Host::default(), 1000);
        assert!(asks(&mut host, level, begin, Owner::Nobody));
        assert!(
            !asks(&mut host, level, begin + 1, Owner::Same),
            "it had its share"
        );
        let back = begin + 1 + WRAP + later;
        (0..).find(|wait| asks(&mut host, level, back + wait, Owner::Same))
    });
    waits
        .map(|wait| wait.expect("it is served in the end"))
        .max()
        .unwrap()
}

#[test]
fn who_comes_back_after_a_wrap_of_ticks_waits_no_longer_than_for_one_packet() {
    // A packet in 64 ticks, and one in 128.
    for level in [PACKET / 64, PACKET / WAIT_TICKS_MAX] {
        assert!(!has_turns(level));
        let wait = longest_wait(level);
        assert!((1..=WAIT_TICKS_MAX).contains(&wait), "{wait}");
    }
    // One in 512.
    let level = PACKET / 512;
    assert!(has_turns(level));
    let wait = longest_wait(level);
    assert!((WAIT_TICKS_MAX..=512).contains(&wait), "{wait}");
}
