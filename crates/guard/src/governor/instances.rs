//! What each receive instance brings between two looks of the governor, and which of them
//! overload holds off.

use std::collections::HashMap;
use std::time::Instant;

use plimsoll_core::governor::{InstanceFrames, Instances, Mode};
use plimsoll_kernel::knobs::Queues;

/// Frames of each NAPI instance since the start, by the kernel's number of it.
pub(crate) type Frames = HashMap<u32, u64>;

/// Which instances overload holds off.
#[derive(Debug, Default)]
pub(super) struct HeldOff {
    decision: Instances,
    before: Option<(Instant, Frames)>,
}

impl HeldOff {
    /// True if others are to be held off than before.
    pub(super) fn on_interval(&mut self, mode: Mode, frames: Frames, now: Instant) -> bool {
        let before = self.before.as_ref();
        let brought: Vec<_> = before.map_or_else(Vec::new, |(_, before)| {
            let since = |(id, frames): (&u32, &u64)| InstanceFrames {
                id: *id,
                frames: frames.saturating_sub(before.get(id).copied().unwrap_or(0)),
            };
            frames.iter().map(since).collect()
        });
        let elapsed = before.map(|(then, _)| now - *then).unwrap_or_default();
        self.before = Some((now, frames));
        self.decision.on_interval(mode, &brought, elapsed)
    }

    pub(super) fn queues(&self) -> Queues<'_> {
        self.decision.held_off().map_or(Queues::All, Queues::Of)
    }
}
