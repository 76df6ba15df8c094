//! Which receive instances of an interface overload holds off, and which keep the host's
//! own settings.
//!
//! **Intuition.** A holdoff saves interrupts and delays frames. An instance that brings
//! few frames has few interrupts to save, and its frames would wait for those of another
//! queue's flood.
//!
//! **Rule.** An interrupt takes some 3 µs. What is left alone may bring
//! [`LEFT_ALONE_PPS`] together, so its interrupts take 1 % of a CPU at most, whatever
//! they bring. Each instance that brings some may have its part of that, and a burst of
//! [`BURST`] besides. One that brings nothing takes nobody's part: it may be gone, since who
//! meters does not forget those whose queue a driver has made anew. Where overload begins and
//! nobody has used up its burst, the one that is furthest beyond its part is held off.
//! In overload instances only join: a flood that changes its port changes its queue, too,
//! and would be met by interrupts each time it came back. All are free when overload ends.
//!
//! **What each brings.** [`Governor::holdoff_of`](super::Governor::holdoff_of) asks for its
//! highest rate. That rises at once and is forgotten over [`KEPT`]: a flood that goes to and
//! fro between queues must not meet a holdoff that its ring cannot hold each time it comes
//! back.
//!
//! **When it loses.** A flood of an instance holds it off one interval later. One that was
//! busy is held off as long as overload lasts. A flood that comes to one of those for the first
//! time overflows its ring for an interval.

use alloc::vec::Vec;
use core::time::Duration;

use super::Mode;
use super::observation::per_second;
use crate::time::{NANOS_PER_SECOND, span_nanos};

/// Frames per second that instances may bring together without being held off.
const LEFT_ALONE_PPS: u64 = 3_300;
/// What comes in so much time may come at once.
const BURST: Duration = Duration::from_millis(100);
/// In such a time most of a rate is forgotten. What the ring loses of a flood that comes back
/// later are the frames of one interval (10 ms or, in settled overload, 40) in more than so
/// many seconds.
const KEPT: Duration = Duration::from_secs(10);
/// More instances than this are not told apart.
const INSTANCES_MAX: usize = 256;

/// What one instance brought since the observation before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InstanceFrames {
    /// The kernel's number of it.
    pub id: u32,
    /// The CPU that polled it last.
    pub cpu: u32,
    /// Frames polled.
    pub frames: u64,
}

/// What an instance that is held off has brought lately.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InstanceRate {
    /// The kernel's number of it.
    pub id: u32,
    /// The CPU that polled it last.
    pub cpu: u32,
    /// Its highest rate, frames per second.
    pub rate_pps: u64,
}

/// The decision; see the module's documentation.
#[derive(Debug)]
pub struct Instances {
    held_off: Vec<InstanceRate>,
    is_all: bool,
    /// Frames beyond its part, of each instance that is left alone.
    excess: Vec<InstanceFrames>,
}

impl Default for Instances {
    fn default() -> Self {
        Self::new()
    }
}

impl Instances {
    /// None is held off.
    #[must_use]
    pub fn new() -> Self {
        Self {
            held_off: Vec::with_capacity(INSTANCES_MAX),
            is_all: false,
            excess: Vec::with_capacity(INSTANCES_MAX),
        }
    }

    /// Takes what all instances, living or not, brought in `elapsed`, how many frames `lost` besides
    /// might be of any of them, and the governor's mode from now on.
    pub fn on_interval(
        &mut self,
        mode: Mode,
        instances: &[InstanceFrames],
        lost: u64,
        elapsed: Duration,
    ) {
        if mode == Mode::Interrupts {
            self.is_all = false;
            self.held_off.clear();
            self.excess.clear();
            return;
        }
        let sharing = instances.iter().filter(|one| self.has_part(one)).count();
        let count = u64::try_from(sharing).unwrap_or(u64::MAX).max(1);
        let (part, burst) = (frames_in(elapsed) / count, frames_in(BURST) / count);
        for instance in instances {
            if !self.is_held_off(instance.id) {
                let excess = self.excess_of(instance.id);
                let excess = excess.saturating_add(instance.frames);
                let mut left = excess.saturating_sub(part);
                if excess > part.saturating_add(burst) {
                    self.join(*instance);
                    left = 0;
                }
                self.set_excess(InstanceFrames {
                    frames: left,
                    ..*instance
                });
            }
        }
        self.excess.retain(|one| one.frames > 0);
        if self.held_off.is_empty() && !self.is_all {
            self.join_busiest();
        }
        // Overload that no instance shows is not told by them.
        self.is_all |= self.held_off.is_empty();
        self.see_rates(instances, lost, elapsed);
    }

    /// Overload is somebody's, also where nobody has used up its burst.
    fn join_busiest(&mut self) {
        let most = (0..self.excess.len()).max_by_key(|place| self.excess[*place].frames);
        if let Some(place) = most {
            let busiest = self.excess.swap_remove(place);
            self.join(busiest);
        }
    }

    /// Also who brings nothing now, while it has brought more than its part.
    fn has_part(&self, instance: &InstanceFrames) -> bool {
        instance.frames > 0 || self.excess_of(instance.id) > 0
    }

    fn excess_of(&self, id: u32) -> u64 {
        let found = self.excess.iter().find(|one| one.id == id);
        found.map_or(0, |one| one.frames)
    }

    fn set_excess(&mut self, excess: InstanceFrames) {
        if let Some(found) = self.excess.iter_mut().find(|one| one.id == excess.id) {
            *found = excess;
        } else if excess.frames > 0 && self.excess.len() < self.excess.capacity() {
            self.excess.push(excess);
        }
    }

    fn is_held_off(&self, id: u32) -> bool {
        self.held_off.iter().any(|one| one.id == id)
    }

    fn join(&mut self, InstanceFrames { id, cpu, .. }: InstanceFrames) {
        if self.held_off.len() < self.held_off.capacity() {
            self.held_off.push(InstanceRate {
                id,
                cpu,
                rate_pps: 0,
            });
        } else {
            self.is_all = true;
        }
    }

    fn see_rates(&mut self, instances: &[InstanceFrames], lost: u64, elapsed: Duration) {
        for one in &mut self.held_off {
            one.rate_pps -= forgotten(one.rate_pps, elapsed);
            if let Some(seen) = instances.iter().find(|seen| seen.id == one.id) {
                one.cpu = seen.cpu;
                let lost = if seen.frames > 0 { lost } else { 0 };
                let rate_pps = per_second(seen.frames.saturating_add(lost), elapsed);
                one.rate_pps = one.rate_pps.max(rate_pps);
            }
        }
    }

    /// The instances that overload holds off; `None` for all there are.
    #[must_use]
    pub fn held_off(&self) -> Option<&[InstanceRate]> {
        (!self.is_all).then_some(self.held_off.as_slice())
    }
}

/// What all that are left alone may bring in a time.
fn frames_in(time: Duration) -> u64 {
    let frames = u128::from(LEFT_ALONE_PPS) * u128::from(span_nanos(time));
    u64::try_from(frames / u128::from(NANOS_PER_SECOND)).unwrap_or(u64::MAX)
}

/// The part of a rate that passes out of mind in `elapsed`.
fn forgotten(rate_pps: u64, elapsed: Duration) -> u64 {
    let part = u128::from(rate_pps) * u128::from(span_nanos(elapsed.min(KEPT)));
    u64::try_from(part / u128::from(span_nanos(KEPT))).unwrap_or(rate_pps)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const INTERVAL: Duration = Duration::from_millis(10);

    fn seen(frames: &[(u32, u64)]) -> Vec<InstanceFrames> {
        let one = |(id, frames): &(u32, u64)| InstanceFrames {
            id: *id,
            cpu: *id % 2,
            frames: *frames,
        };
        frames.iter().map(one).collect()
    }

    fn held_off(instances: &Instances) -> Option<Vec<u32>> {
        let held_off = instances.held_off()?.iter();
        Some(held_off.map(|one| one.id).collect())
    }

    /// Whether others are held off then than before.
    fn overload(instances: &mut Instances, frames: &[(u32, u64)]) -> bool {
        let before = held_off(instances);
        instances.on_interval(Mode::Overload, &seen(frames), 0, INTERVAL);
        held_off(instances) != before
    }

    #[test]
    fn only_the_flooded_one_is_held_off() {
        let mut instances = Instances::new();
        assert!(overload(&mut instances, &[(11, 3_000), (12, 10)]));
        assert_eq!(held_off(&instances), Some(Vec::from([11])));
        // Two may bring 33 frames in 10 ms together, and 330 at once.
        for _ in 0..1000 {
            assert!(!overload(&mut instances, &[(11, 3_000), (12, 16)]));
        }
        assert!(!overload(&mut instances, &[(11, 3_000), (12, 165)]));
        assert!(overload(&mut instances, &[(11, 3_000), (12, 50)]));
        assert_eq!(held_off(&instances), Some(Vec::from([11, 12])));
    }

    #[test]
    fn what_is_a_little_too_much_is_held_off_in_the_end() {
        let mut instances = Instances::new();
        overload(&mut instances, &[(11, 3_000), (12, 0)]);
        let joined = (0..100).find(|_| overload(&mut instances, &[(11, 3_000), (12, 20)]));
        assert_eq!(joined, Some(41));
    }

    #[test]
    fn who_was_busy_stays_until_overload_ends() {
        let mut instances = Instances::new();
        overload(&mut instances, &[(11, 3_000), (12, 0)]);
        overload(&mut instances, &[(11, 0), (12, 3_000)]);
        assert!(!overload(&mut instances, &[(11, 0), (12, 3_000)]));
        assert_eq!(held_off(&instances), Some(Vec::from([11, 12])));
        instances.on_interval(Mode::Interrupts, &seen(&[(11, 9_000)]), 0, INTERVAL);
        assert_eq!(held_off(&instances), Some(Vec::new()));
    }

    #[test]
    fn overload_that_no_instance_shows_holds_all_off() {
        for frames in [&[][..], &[(11, 0), (12, 5)]] {
            let mut instances = Instances::new();
            assert!(overload(&mut instances, frames));
            assert_eq!(instances.held_off(), None);
            assert!(!overload(&mut instances, frames));
            instances.on_interval(Mode::Interrupts, &[], 0, INTERVAL);
            assert!(overload(&mut instances, &[(12, 500)]));
            assert_eq!(held_off(&instances), Some(Vec::from([12])));
        }
    }

    /// A driver numbers its instances anew whenever the link flaps, and the old numbers stay
    /// in the meter's books.
    #[test]
    fn instances_that_bring_nothing_take_nobody_s_part() {
        let mut instances = Instances::new();
        let quiet = (0..4).map(|id| (id, 5));
        let gone = (100..300).map(|id| (id, 0));
        let frames: Vec<_> = quiet.chain(gone).chain([(11, 3_000)]).collect();
        for second in 0..10 {
            for _ in 0..100 {
                overload(&mut instances, &frames);
            }
            assert_eq!(held_off(&instances), Some(Vec::from([11])), "{second} s");
        }
    }

    #[test]
    fn overload_that_is_within_a_burst_is_the_busiest_one_s() {
        let mut instances = Instances::new();
        assert!(overload(
            &mut instances,
            &[(12, 2), (11, 100), (13, 0), (14, 9)]
        ));
        assert_eq!(held_off(&instances), Some(Vec::from([11])));
    }

    /// Whoever brought frames a moment ago still has its part.
    #[test]
    fn what_comes_by_turns_is_no_more_than_what_comes_together() {
        let mut instances = Instances::new();
        overload(&mut instances, &[(11, 3_000)]);
        for turn in 100..140 {
            let own = |id| if id == turn { 300 } else { 0 };
            let frames: Vec<_> = (100..140).map(|id| (id, own(id))).collect();
            overload(&mut instances, &frames);
        }
        let held_off = held_off(&instances).unwrap();
        let alone = (100..140).filter(|id| !held_off.contains(id)).count();
        assert!(alone * 300 <= 330 + 40 * 33, "{alone} in 400 ms");
    }

    #[test]
    fn more_than_can_be_told_apart_are_all() {
        let mut instances = Instances::new();
        let frames: Vec<_> = (0..=256).map(|id| (id, 3_000)).collect();
        let capacity = instances.held_off.capacity();
        overload(&mut instances, &frames);
        assert_eq!(instances.held_off(), None);
        assert_eq!(instances.held_off.capacity(), capacity, "nothing allocated");
        let mut instances = Instances::new();
        let capacity = instances.excess.capacity();
        let frames: Vec<_> = (0..=256).map(|id| (id, 1)).collect();
        overload(&mut instances, &frames);
        assert_eq!(instances.excess.capacity(), capacity, "nothing allocated");
    }

    #[test]
    fn an_overload_begins_without_what_was_left_of_the_one_before() {
        let mut instances = Instances::new();
        // The other one is 263 frames beyond its part.
        overload(&mut instances, &[(11, 3_000), (12, 165)]);
        instances.on_interval(Mode::Interrupts, &[], 0, INTERVAL);
        overload(&mut instances, &[(11, 3_000), (12, 100)]);
        assert_eq!(held_off(&instances), Some(Vec::from([11])));
    }

    #[test]
    fn who_is_held_off_leaves_its_part_to_the_others() {
        let mut instances = Instances::new();
        overload(&mut instances, &[(11, 3_000), (12, 0)]);
        for _ in 0..1000 {
            // All 33 in 10 ms are its own.
            assert!(!overload(&mut instances, &[(11, 0), (12, 33)]));
        }
    }

    #[test]
    fn whoever_polls_an_instance_now_is_known() {
        let mut instances = Instances::new();
        let polled_by = |cpu| InstanceFrames {
            id: 11,
            cpu,
            frames: 3_000,
        };
        for cpu in [0, 5] {
            instances.on_interval(Mode::Overload, &[polled_by(cpu)], 0, INTERVAL);
            assert_eq!(instances.held_off().unwrap()[0].cpu, cpu);
        }
    }

    fn rates(instances: &Instances) -> Vec<(u32, u32, u64)> {
        let held_off = instances.held_off().unwrap().iter();
        held_off
            .map(|one| (one.id, one.cpu, one.rate_pps))
            .collect()
    }

    #[test]
    fn a_rate_rises_at_once_and_is_forgotten_over_seconds() {
        let mut instances = Instances::new();
        overload(&mut instances, &[(11, 3_000), (12, 1_000)]);
        assert_eq!(
            rates(&instances),
            [(11, 1, 300_000), (12, 0, 100_000)],
            "per second"
        );
        overload(&mut instances, &[(11, 3_000), (12, 6_000)]);
        assert_eq!(rates(&instances), [(11, 1, 300_000), (12, 0, 600_000)]);
        // The flood has gone to the other queue, and may come back.
        for _ in 0..100 {
            overload(&mut instances, &[(11, 3_000), (12, 0)]);
        }
        let (_, _, soon) = rates(&instances)[1];
        assert!((500_000..600_000).contains(&soon), "{soon} a second later");
        for _ in 0..5_900 {
            overload(&mut instances, &[(11, 3_000), (12, 0)]);
        }
        let (_, _, late) = rates(&instances)[1];
        assert!(late < 3_000, "{late} a minute later");
    }

    #[test]
    fn what_the_rings_lost_may_be_of_any_that_brings_some() {
        let mut instances = Instances::new();
        let frames = seen(&[(11, 3_000), (12, 1_000)]);
        instances.on_interval(Mode::Overload, &frames, 500, INTERVAL);
        assert_eq!(rates(&instances), [(11, 1, 350_000), (12, 0, 150_000)]);
        let mut instances = Instances::new();
        overload(&mut instances, &[(11, 3_000), (12, 1_000)]);
        let frames = seen(&[(11, 3_000), (12, 0)]);
        instances.on_interval(Mode::Overload, &frames, 5_000, INTERVAL);
        assert!(rates(&instances)[1].2 < 100_000, "it brings nothing");
    }

    proptest! {
        #[test]
        fn what_is_left_alone_brings_little_together(
            frames in prop::collection::vec(0_u64..200, 1..40),
            millis in 1_u64..100,
        ) {
            let elapsed = Duration::from_millis(millis);
            let frames: Vec<_> = (0_u32..).zip(frames).collect();
            let mut instances = Instances::new();
            instances.on_interval(Mode::Overload, &seen(&frames), 0, elapsed);
            let alone: u64 = match held_off(&instances) {
                None => 0,
                Some(held_off) => {
                    let mut alone = frames.clone();
                    alone.retain(|(id, _)| !held_off.contains(id));
                    alone.iter().map(|(_, frames)| frames).sum()
                }
            };
            prop_assert!(alone * 1000 <= LEFT_ALONE_PPS * (millis + 100));
        }
    }
}
