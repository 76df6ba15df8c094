//! Loses whole frames instead of a packet of each.
//!
//! A frame (of motion JPEG, or the cells of one packet) is worth something only
//! if all of it arrives. When one of its packets has to be dropped, the others
//! have become worthless at that moment, and not before: no label that a sender
//! could put on them says so (sections 11.3; MR-87, MR-88). So once a packet of a
//! frame was dropped the rest of that frame is dropped too, and the capacity this
//! frees carries other frames whole. To shed before the overload comes (MR-89),
//! [`set_shedding`](Frames::set_shedding) drops a part of the frames from their
//! first packets on.
//!
//! **Limits.** The caller knows the group and the frame of a packet (an RTP
//! timestamp, say) and whether something must be shed now. The latest four frames
//! of a group are remembered; a packet later than that counts as a new frame.
//!
//! **When it loses.** Where a decoder can make use of incomplete frames, or where
//! the packets dropped along would have cost nothing.

use alloc::vec::Vec;

use crate::config::{ConfigError, Field, Fraction};

/// Frames remembered per group: enough for packets out of order across a frame's
/// end.
const REMEMBERED: usize = 4;

/// Settings of [`Frames`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FramesConfig {
    /// Groups are numbered below this.
    pub groups_max: usize,
    /// Packets of a frame already begun that are let through although something
    /// must be shed, so that the work done for it is not wasted; what they exceed
    /// the capacity by is made up by the frames after. 0 drops at once. Default
    /// 16.
    pub finish_packets: u32,
}

impl FramesConfig {
    /// Up to `groups_max` groups.
    #[must_use]
    pub const fn new(groups_max: usize) -> Self {
        Self {
            groups_max,
            finish_packets: 16,
        }
    }
}

/// A sequence of frames, such as a video stream. Chosen by the caller, below
/// [`FramesConfig::groups_max`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct GroupId(pub u32);

/// Remembers which frames are lost.
#[derive(Clone, Debug)]
pub struct Frames {
    finish_packets: u32,
    groups: Vec<Group>,
}

#[derive(Clone, Copy, Debug)]
struct Group {
    frames: [Option<Frame>; REMEMBERED],
    /// The place in `frames` of the one begun last.
    latest: usize,
    shedding: Fraction,
    /// Part of a frame that is still to be shed.
    owed_ppm: u32,
}

#[derive(Clone, Copy, Debug)]
struct Frame {
    number: u64,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Complete so far, with so many packets let through under pressure.
    Whole {
        forced: u32,
    },
    Lost,
}

impl Frames {
    /// Groups 0 to `groups_max` − 1, nothing lost.
    #[must_use]
    pub fn new(config: FramesConfig) -> Self {
        let group = Group {
            frames: [None; REMEMBERED],
            latest: 0,
            shedding: Fraction::NONE,
            owed_ppm: 0,
        };
        Self {
            finish_packets: config.finish_packets,
            groups: alloc::vec![group; config.groups_max],
        }
    }

    /// Drops this part of the group's frames from now on, evenly spread.
    ///
    /// # Errors
    ///
    /// There is no such group.
    pub fn set_shedding(&mut self, group: GroupId, part: Fraction) -> Result<(), ConfigError> {
        let state = self.groups.get_mut(group.0 as usize);
        let state = state.ok_or_else(|| Field("group", group.0).refused("below `groups_max`"))?;
        state.shedding = part;
        Ok(())
    }

    /// Whether to keep a packet of frame number `frame`; `shed` says that there is
    /// no room for it. A packet kept although there was no room is to be charged
    /// all the same.
    #[must_use]
    pub fn keeps(&mut self, group: GroupId, frame: u64, shed: bool) -> bool {
        let finish_packets = self.finish_packets;
        let group = &mut self.groups[group.0 as usize];
        let known = group.frames.iter_mut().flatten();
        let Some(known) = known.into_iter().find(|known| known.number == frame) else {
            return group.begin(frame, shed);
        };
        known.state = match known.state {
            State::Whole { forced } if shed && forced >= finish_packets => State::Lost,
            State::Whole { forced } => State::Whole {
                forced: forced + u32::from(shed),
            },
            State::Lost => State::Lost,
        };
        known.state != State::Lost
    }
}

impl Group {
    /// The first packet of a frame decides for all of it.
    fn begin(&mut self, number: u64, shed: bool) -> bool {
        self.owed_ppm += self.shedding.as_ppm();
        let due = self.owed_ppm >= Fraction::WHOLE.as_ppm();
        if due {
            self.owed_ppm -= Fraction::WHOLE.as_ppm();
        }
        let state = if shed || due {
            State::Lost
        } else {
            State::Whole { forced: 0 }
        };
        self.latest = (self.latest + 1) % REMEMBERED;
        self.frames[self.latest] = Some(Frame { number, state });
        state != State::Lost
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const VIDEO: GroupId = GroupId(0);

    fn frames(finish_packets: u32) -> Frames {
        Frames::new(FramesConfig {
            groups_max: 1,
            finish_packets,
        })
    }

    #[test]
    fn one_lost_packet_takes_the_rest_of_its_frame_along() {
        let mut frames = frames(0);
        assert!(frames.keeps(VIDEO, 7, false));
        assert!(!frames.keeps(VIDEO, 7, true));
        assert!(
            !frames.keeps(VIDEO, 7, false),
            "room again, but it is worthless"
        );
        assert!(frames.keeps(VIDEO, 8, false));
        assert!(!frames.keeps(VIDEO, 7, false), "late, but remembered");
    }

    #[test]
    fn a_frame_that_was_begun_may_be_finished() {
        let mut frames = frames(2);
        assert!(frames.keeps(VIDEO, 1, false));
        assert!(frames.keeps(VIDEO, 1, true) && frames.keeps(VIDEO, 1, true));
        assert!(!frames.keeps(VIDEO, 1, true));
        assert!(!frames.keeps(VIDEO, 2, true), "a new one is not begun");
    }

    #[test]
    fn shedding_before_overload_drops_that_part_of_the_frames_whole() {
        let mut frames = frames(0);
        frames
            .set_shedding(VIDEO, Fraction::from_percent(30))
            .unwrap();
        let (mut whole, mut broken) = (0, 0);
        for frame in 0..1000 {
            let kept = (0..5).filter(|_| frames.keeps(VIDEO, frame, false)).count();
            whole += u32::from(kept == 5);
            broken += u32::from((1..5).contains(&kept));
        }
        assert_eq!((whole, broken), (700, 0));
        assert!(frames.set_shedding(GroupId(1), Fraction::NONE).is_err());
    }

    /// Frames of ten packets over a path that can take nine tenths of them and has
    /// a buffer for ten: how many of 1000 arrive whole, and how many packets were
    /// let through.
    fn whole_frames(mut keep: impl FnMut(u64, bool) -> bool) -> (u32, u32) {
        let (mut whole, mut packets, mut room_tenths) = (0, 0, 0i32);
        for frame in 0..1000 {
            let mut kept = 0;
            for _ in 0..10 {
                room_tenths = (room_tenths + 9).min(100);
                if keep(frame, room_tenths < 10) {
                    room_tenths -= 10;
                    kept += 1;
                }
            }
            whole += u32::from(kept == 10);
            packets += kept;
        }
        (whole, packets)
    }

    #[test]
    fn the_same_loss_spoils_every_frame_or_a_tenth_of_them() {
        assert_eq!(whole_frames(|_, shed| !shed).0, 0, "every one is broken");
        let mut at_once = frames(0);
        let (whole, _) = whole_frames(|frame, shed| at_once.keeps(VIDEO, frame, shed));
        assert!(whole >= 450, "{whole}");
        let mut finishing = frames(16);
        let (whole, packets) = whole_frames(|frame, shed| finishing.keeps(VIDEO, frame, shed));
        assert!(whole >= 850, "{whole}");
        assert!(packets <= 9010, "{packets} of 9000 that fit");
    }

    proptest! {
        #[test]
        fn no_packet_is_kept_after_one_of_its_frame_was_lost(
            finish_packets in 0..4u32,
            packets in prop::collection::vec((0..6u64, any::<bool>()), 0..200),
        ) {
            let mut frames = frames(finish_packets);
            let (mut lost, mut newest) = ([false; 100], 0);
            for (step, (lag, shed)) in packets.into_iter().enumerate() {
                // A new frame every three packets, and late ones of the two before.
                let newer = step as u64 / 3;
                let lag = if newer > newest { 0 } else { lag.min(2) };
                newest = newer;
                let frame = newest.saturating_sub(lag);
                let kept = frames.keeps(VIDEO, frame, shed);
                prop_assert!(!(kept && lost[frame as usize]));
                lost[frame as usize] |= !kept;
            }
        }
    }
}
