//! Credit at a level, and how a level follows its use.

use super::Profile;
use super::numbers::{
    BURST_PACKETS, BURST_TICKS, EPOCH_CREDIT_PACKETS, EPOCH_TICKS, EPOCH_TICKS_MAX, LEVEL_MIN,
    NEWCOMER_LEVEL, NODE_EPOCH_PACKETS, NODE_UNWANTED_PARTS, PACKET, PACKET_SHIFT, PART,
    PART_SHIFT, SAVERS_PARTS, STALE_TICKS, STEP_MAX, STEP_PARTS, WHOLE, WHOLE_SHIFT,
};
use super::table::{Entry, Owner};

/// The most credit that can be saved at a level: [`BURST_TICKS`], and
/// [`BURST_PACKETS`] at least.
pub(super) fn cap(level: u32) -> u32 {
    (level * BURST_TICKS).max(BURST_PACKETS * PACKET)
}

/// The credit that the first owner of an entry begins with.
pub(super) fn initial(level: u32) -> u32 {
    (level * BURST_TICKS).max(PACKET)
}

/// Credit after so many ticks more.
pub(super) fn refill(credit: u32, level: u32, elapsed: u16) -> u32 {
    let all = u64::from(credit) + u64::from(level) * u64::from(elapsed);
    all.min(u64::from(cap(level))) as u32
}

/// Takes one packet's credit, if there is as much.
pub(super) fn spend(credit: &mut u32, level: u32) -> Profile {
    if *credit < PACKET {
        return Profile::Out;
    }
    let part = (u64::from(*credit) << PART_SHIFT) / u64::from(cap(level));
    *credit -= PACKET;
    Profile::In(part as u32)
}

/// What follows a level, or a part, by a factor of 1/256: one of [`STEP_PARTS`] of the way.
pub(super) fn moved(level: u32, factor: u64) -> u64 {
    let factor = factor.clamp((PART / STEP_MAX).into(), (PART * STEP_MAX).into());
    let stays = u64::from((STEP_PARTS - 1) * PART);
    u64::from(level) * (factor + stays) / u64::from(STEP_PARTS * PART)
}

/// Whether an epoch of so many ticks at a level has taught enough.
pub(super) fn is_over(ticks: u32, level: u32, enough_packets: bool) -> bool {
    let earned = u64::from(ticks) * u64::from(level);
    let shows = enough_packets && earned >= u64::from(EPOCH_CREDIT_PACKETS * PACKET);
    ticks >= EPOCH_TICKS && (shows || ticks >= EPOCH_TICKS_MAX)
}

/// A network or a subnet: its own credit, and the level of those within.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Node {
    tick: u16,
    /// When the epoch began.
    began: u16,
    /// Packets since then that were in profile one level below.
    passed: u16,
    credit: u32,
    /// The part of its own level that each of those within has, of [`WHOLE`]. So when
    /// the channel's share moves, all follow at once.
    part: u32,
    /// The level at which its own credit grows, and that of those within.
    own_level: u32,
    level: u32,
}

impl Entry for Node {
    fn tick(&self) -> u16 {
        self.tick
    }
}

impl Node {
    /// The share of each of those within.
    pub(super) const fn level(&self) -> u32 {
        self.level
    }

    /// Comes up to date; its own credit grows at `own_level`.
    pub(super) fn refresh(&mut self, own_level: u32, tick: u32, owner: Owner) {
        let tick = tick as u16;
        let elapsed = tick.wrapping_sub(self.tick);
        let is_first = owner == Owner::Nobody;
        self.own_level = own_level;
        self.credit = if is_first {
            initial(own_level)
        } else {
            refill(self.credit, own_level, elapsed)
        };
        self.tick = tick;
        if is_first || u32::from(elapsed) >= EPOCH_TICKS_MAX {
            // What is so old says nothing about who is within now.
            self.part = WHOLE;
            self.began = tick;
            self.passed = 0;
        }
        self.level = self.level_within();
        self.review(tick);
    }

    /// The most that each of those within can have, as its entry stands, if that is of now.
    pub(super) fn bound_within(&self, own_level: u32, tick: u32, owner: Owner) -> Option<u32> {
        let idle = u32::from((tick as u16).wrapping_sub(self.tick));
        let is_of_now = owner != Owner::Nobody && idle < EPOCH_TICKS_MAX;
        is_of_now.then(|| Self { own_level, ..*self }.level_within())
    }

    /// One more is within: where there were n, each has a part of n + 1. Use shows that after
    /// some epochs only, and they are long where shares are small.
    pub(super) fn divide_with_newcomer(&mut self) {
        if self.level < NEWCOMER_LEVEL {
            let part = u64::from(self.part);
            let divided = (part << WHOLE_SHIFT) / (part + u64::from(WHOLE));
            self.part = divided.max(1) as u32;
            self.level = self.level_within();
        }
    }

    fn level_within(&self) -> u32 {
        let level = (u64::from(self.own_level) * u64::from(self.part)) >> WHOLE_SHIFT;
        (level as u32).max(LEVEL_MIN)
    }

    fn review(&mut self, tick: u16) {
        let ticks = u32::from(tick.wrapping_sub(self.began));
        let passed = u32::from(self.passed);
        if !is_over(ticks, self.level, passed >= NODE_EPOCH_PACKETS) {
            return;
        }
        let ticks = ticks.min(STALE_TICKS);
        let credit = u64::from(self.own_level) * u64::from(ticks);
        let wanted = credit * u64::from(NODE_UNWANTED_PARTS - 1) / u64::from(NODE_UNWANTED_PARTS);
        let wanted = wanted >> (PACKET_SHIFT - PART_SHIFT);
        let part = moved(self.part, wanted / u64::from(passed.max(1)));
        self.part = part.clamp(1, WHOLE.into()) as u32;
        self.level = self.level_within();
        self.began = tick;
        self.passed = 0;
    }

    /// Whether a packet that is in profile below is so here as well. The last of
    /// [`SAVERS_PARTS`] of the credit is for those who have saved theirs.
    pub(super) fn pass(&mut self, below: Profile) -> Profile {
        let Profile::In(part) = below else {
            return Profile::Out;
        };
        self.passed = self.passed.saturating_add(1);
        let left = (u64::from(self.credit) << PART_SHIFT) / u64::from(cap(self.own_level));
        if u64::from(part) + u64::from(SAVERS_PARTS) * left < PART.into() {
            return Profile::Out;
        }
        match spend(&mut self.credit, self.own_level) {
            Profile::In(own) => Profile::In(part.min(own)),
            Profile::Out => Profile::Out,
        }
    }
}
