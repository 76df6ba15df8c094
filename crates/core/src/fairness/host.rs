//! A source: its credit, or whose turn it is.
//!
//! While a share is worth a packet in half a second or more, its source saves credit. Below,
//! credit would be worth nothing: it is mostly used up, and then chance decides. So sources have
//! turns: one is in profile if it was last served longer ago than a packet takes to earn. Who is
//! refused keeps that time. So the longest waiting are served first, and a change of the share
//! shows at once.

use super::Profile;
use super::level::{cap, initial, refill, spend};
use super::numbers::{
    NEWCOMER_TURNS, PACKET, PART_SHIFT, TURN_AGE_MAX, TURN_TICKS, WAIT_TICKS_MAX,
};
use super::table::{Entry, Owner};

/// Whether sources with this share have turns.
pub(super) const fn has_turns(level: u32) -> bool {
    level < PACKET / TURN_TICKS
}

/// In so many ticks a packet is earned.
const fn turn_of(level: u32) -> u16 {
    PACKET.div_ceil(level) as u16
}

/// A source's credit.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Host {
    /// When its last packet came.
    tick: u16,
    /// So many ticks later it has its `credit`. Until then it has none.
    wait: u16,
    /// When it was last served, as far as its turns go.
    since: u16,
    credit: u32,
}

impl Entry for Host {
    fn tick(&self) -> u16 {
        self.tick
    }
}

impl Host {
    pub(super) fn is_waiting(&self, tick: u32) -> bool {
        (tick as u16).wrapping_sub(self.tick) < self.wait
    }

    /// Whether a newcomer in the place of somebody who waits has no credit either, at
    /// whatever level up to this bound.
    pub(super) fn has_none_for(&self, bound: Option<u32>, tick: u32) -> bool {
        let elapsed = (tick as u16).wrapping_sub(self.tick);
        let has_none = |bound| u64::from(bound) * u64::from(elapsed.max(1)) < PACKET.into();
        self.is_waiting(tick) && bound.is_some_and(has_none)
    }

    pub(super) fn go_on_waiting(&mut self, tick: u32) {
        self.wait -= (tick as u16).wrapping_sub(self.tick);
        self.tick = tick as u16;
    }

    pub(super) fn take(&mut self, level: u32, tick: u32, owner: Owner) -> Profile {
        if has_turns(level) {
            return self.take_turn(level, tick, owner);
        }
        let elapsed = (tick as u16).wrapping_sub(self.tick);
        self.credit = if owner == Owner::Nobody {
            initial(level)
        } else if self.is_waiting(tick) {
            // What was promised to somebody else, at his level, is void.
            refill(0, level, elapsed.max(1))
        } else {
            refill(self.credit, level, elapsed - self.wait)
        };
        self.tick = tick as u16;
        let profile = spend(&mut self.credit, level);
        if profile != Profile::Out {
            self.since = self.tick;
        }
        self.wait_for_credit(level);
        profile
    }

    /// It is in profile once it has waited for a turn; its part is that of eight turns.
    fn take_turn(&mut self, level: u32, tick: u32, owner: Owner) -> Profile {
        let tick = tick as u16;
        let turn = turn_of(level);
        if owner == Owner::Nobody || tick.wrapping_sub(self.tick) >= TURN_AGE_MAX {
            let age = (u32::from(turn) * NEWCOMER_TURNS).min(TURN_AGE_MAX.into());
            self.since = tick.wrapping_sub(age as u16);
        }
        let age = tick.wrapping_sub(self.since).min(TURN_AGE_MAX);
        self.since = tick.wrapping_sub(age);
        self.tick = tick;
        self.credit = (u32::from(age) * level).min(cap(level));
        self.wait = 0;
        if age < turn {
            self.wait = (turn - age).min(WAIT_TICKS_MAX as u16);
            return Profile::Out;
        }
        Profile::In((self.credit << PART_SHIFT) / cap(level))
    }

    /// It was served. The next look finds how long it has to wait.
    pub(super) fn end_turn(&mut self) {
        self.since = self.tick;
        self.credit = 0;
        self.wait = 1;
    }

    /// It waits until it has one packet's credit, and has it then.
    fn wait_for_credit(&mut self, level: u32) {
        self.wait = 0;
        if self.credit < PACKET {
            let ticks = (PACKET - self.credit).div_ceil(level).min(WAIT_TICKS_MAX);
            self.wait = ticks as u16;
            self.credit += level * ticks;
        }
    }
}
