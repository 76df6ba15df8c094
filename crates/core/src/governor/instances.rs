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
//! **When it loses.** A flood of an instance holds it off one interval later. One that was
//! busy is held off as long as overload lasts. All that are held off have one holdoff, the
//! shortest that any of them needs.

use alloc::vec::Vec;
use core::time::Duration;

use super::Mode;
use crate::time::{NANOS_PER_SECOND, span_nanos};

/// Frames per second that instances may bring together without being held off.
const LEFT_ALONE_PPS: u64 = 3_300;
/// What comes in so much time may come at once.
const BURST: Duration = Duration::from_millis(100);
/// More instances than this are not told apart.
const INSTANCES_MAX: usize = 256;

/// What one instance brought since the observation before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InstanceFrames {
    /// The kernel's number of it.
    pub id: u32,
    /// Frames polled.
    pub frames: u64,
}

/// The decision; see the module's documentation.
#[derive(Debug)]
pub struct Instances {
    held_off: Vec<u32>,
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

    /// Takes what all instances, living or not, brought in `elapsed`, and the governor's mode from now
    /// on. True if others are to be held off than before.
    pub fn on_interval(
        &mut self,
        mode: Mode,
        instances: &[InstanceFrames],
        elapsed: Duration,
    ) -> bool {
        if mode == Mode::Interrupts {
            self.is_all = false;
            let some = !self.held_off.is_empty();
            self.held_off.clear();
            self.excess.clear();
            return some;
        }
        let before = (self.held_off.len(), self.is_all);
        let sharing = instances.iter().filter(|one| self.has_part(one)).count();
        let count = u64::try_from(sharing).unwrap_or(u64::MAX).max(1);
        let (part, burst) = (frames_in(elapsed) / count, frames_in(BURST) / count);
        for instance in instances {
            if !self.held_off.contains(&instance.id) {
                let excess = self.excess_of(instance.id) + instance.frames;
                let mut left = excess.saturating_sub(part);
                if excess > part + burst {
                    self.join(instance.id);
                    left = 0;
                }
                self.set_excess(instance.id, left);
            }
        }
        self.excess.retain(|one| one.frames > 0);
        if self.held_off.is_empty() && !self.is_all {
            self.join_busiest();
        }
        // Overload that no instance shows is not told by them.
        self.is_all |= self.held_off.is_empty();
        before != (self.held_off.len(), self.is_all)
    }

    /// Overload is somebody's, also where nobody has used up its burst.
    fn join_busiest(&mut self) {
        let most = (0..self.excess.len()).max_by_key(|place| self.excess[*place].frames);
        if let Some(place) = most {
            let busiest = self.excess.swap_remove(place);
            self.join(busiest.id);
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

    fn set_excess(&mut self, id: u32, frames: u64) {
        if let Some(found) = self.excess.iter_mut().find(|one| one.id == id) {
            found.frames = frames;
        } else if frames > 0 && self.excess.len() < self.excess.capacity() {
            self.excess.push(InstanceFrames { id, frames });
        }
    }

    fn join(&mut self, id: u32) {
        if self.held_off.len() < self.held_off.capacity() {
            self.held_off.push(id);
        } else {
            self.is_all = true;
        }
    }

    /// The instances that overload holds off; `None` for all there are.
    #[must_use]
    pub fn held_off(&self) -> Option<&[u32]> {
        (!self.is_all).then_some(self.held_off.as_slice())
    }
}

/// What all that are left alone may bring in a time.
fn frames_in(time: Duration) -> u64 {
    let frames = u128::from(LEFT_ALONE_PPS) * u128::from(span_nanos(time));
    u64::try_from(frames / u128::from(NANOS_PER_SECOND)).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const INTERVAL: Duration = Duration::from_millis(10);

    fn seen(frames: &[(u32, u64)]) -> Vec<InstanceFrames> {
        let one = |(id, frames): &(u32, u64)| InstanceFrames {
            id: *id,
            frames: *frames,
        };
        frames.iter().map(one).collect()
    }

    fn overload(instances: &mut Instances, frames: &[(u32, u64)]) -> bool {
        instances.on_interval(Mode::Overload, &seen(frames), INTERVAL)
    }

    #[test]
    fn only_the_flooded_one_is_held_off() {
        let mut instances = Instances::new();
        assert!(overload(&mut instances, &[(11, 3_000), (12, 10)]));
        assert_eq!(instances.held_off(), Some(&[11][..]));
        // Two may bring 33 frames in 10 ms together, and 330 at once.
        for _ in 0..1000 {
            assert!(!overload(&mut instances, &[(11, 3_000), (12, 16)]));
        }
        assert!(!overload(&mut instances, &[(11, 3_000), (12, 165)]));
        assert!(overload(&mut instances, &[(11, 3_000), (12, 50)]));
        assert_eq!(instances.held_off(), Some(&[11, 12][..]));
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
        assert_eq!(instances.held_off(), Some(&[11, 12][..]));
        assert!(instances.on_interval(Mode::Interrupts, &seen(&[(11, 9_000)]), INTERVAL));
        assert_eq!(instances.held_off(), Some(&[][..]));
        assert!(!instances.on_interval(Mode::Interrupts, &[], INTERVAL));
    }

    #[test]
    fn overload_that_no_instance_shows_holds_all_off() {
        for frames in [&[][..], &[(11, 0), (12, 5)]] {
            let mut instances = Instances::new();
            assert!(overload(&mut instances, frames));
            assert_eq!(instances.held_off(), None);
            assert!(!overload(&mut instances, frames));
            instances.on_interval(Mode::Interrupts, &[], INTERVAL);
            assert!(overload(&mut instances, &[(12, 500)]));
            assert_eq!(instances.held_off(), Some(&[12][..]));
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
            assert_eq!(instances.held_off(), Some(&[11][..]), "{second} s");
        }
    }

    #[test]
    fn overload_that_is_within_a_burst_is_the_busiest_one_s() {
        let mut instances = Instances::new();
        assert!(overload(
            &mut instances,
            &[(12, 2), (11, 100), (13, 0), (14, 9)]
        ));
        assert_eq!(instances.held_off(), Some(&[11][..]));
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
        let held_off = instances.held_off().unwrap();
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
            instances.on_interval(Mode::Overload, &seen(&frames), elapsed);
            let alone: u64 = match instances.held_off() {
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
