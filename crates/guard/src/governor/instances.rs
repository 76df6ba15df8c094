//! What each receive instance brings between two looks of the governor, which of them
//! overload holds off, and how long each.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use plimsoll_core::governor::{Governor, InstanceFrames, Instances, Mode};
use plimsoll_kernel::knobs::{DEFER_MARK, Knobs, Queues, TurnError};
use plimsoll_kernel::meter::InstanceReading;

/// A holdoff is set anew only when it changes by more than one part of this.
const NOTICEABLE: u32 = 8;

/// Which instances overload holds off.
#[derive(Debug, Default)]
pub(super) struct HeldOff {
    decision: Instances,
    /// Frames of each since the start, by the kernel's number of it, and when they were read.
    before: Option<(Instant, HashMap<u32, u64>)>,
}

impl HeldOff {
    /// Takes the mode from now on, what instances have brought, and how many frames the rings
    /// lost since the call before.
    pub(super) fn on_interval(
        &mut self,
        mode: Mode,
        readings: &[InstanceReading],
        lost: u64,
        now: Instant,
    ) {
        let read = readings.iter().map(|one| (one.napi, one.frames)).collect();
        let (brought, elapsed) = match self.before.replace((now, read)) {
            None => (Vec::new(), Duration::ZERO),
            Some((then, before)) => {
                let since = |one: &InstanceReading| InstanceFrames {
                    id: one.napi,
                    cpu: one.cpu,
                    frames: one
                        .frames
                        .saturating_sub(before.get(&one.napi).copied().unwrap_or(0)),
                };
                (readings.iter().map(since).collect(), now - then)
            }
        };
        self.decision.on_interval(mode, &brought, lost, elapsed);
    }

    /// The holdoffs that `governor` has for them, and the `common` one.
    pub(super) fn holdoffs(&self, common: Duration, governor: &Governor) -> Holdoffs {
        let own = self.decision.held_off().map(|held_off| {
            let of = |one| governor.holdoff_of(one);
            held_off.iter().map(|one| (one.id, of(one))).collect()
        });
        Holdoffs {
            own,
            ..Holdoffs::of_all(common)
        }
    }

    /// The holdoff of the one that brings most.
    pub(super) fn busiest(&self, governor: &Governor) -> Option<Duration> {
        let held_off = self.decision.held_off()?.iter();
        let busiest = held_off.max_by_key(|one| one.rate_pps);
        busiest.map(|one| governor.holdoff_of(one))
    }
}

/// The holdoffs of an interface in overload.
#[derive(Clone, Debug, Default)]
pub(super) struct Holdoffs {
    /// Where all instances have one.
    common: Duration,
    /// Of those that are held off, by the kernel's number; `None`: all have the common one.
    own: Option<Vec<(u32, Duration)>>,
    /// Instances could have none of their own when they were last set: the device has `common`.
    is_of_device: bool,
}

impl Holdoffs {
    /// All instances have this one.
    pub(super) const fn of_all(common: Duration) -> Self {
        Self {
            common,
            own: None,
            is_of_device: false,
        }
    }

    /// Whether instances have holdoffs of their own.
    pub(super) const fn are_own(&self) -> bool {
        self.own.is_some()
    }

    /// Turns these into those that are `wanted`. What hardly differs stays.
    pub(super) fn turn(&mut self, wanted: Self, knobs: &mut Knobs) -> Result<(), TurnError> {
        let is_other_common = differs(self.common, wanted.common);
        let Some(own) = wanted.own else {
            if is_other_common || self.own.is_some() {
                knobs.set_holdoff(Queues::All, DEFER_MARK, wanted.common)?;
                *self = Self::of_all(wanted.common);
            }
            return Ok(());
        };
        let mut set = self.own.take().unwrap_or_default();
        let is_new = |(id, holdoff): &(u32, Duration)| {
            let present = set.iter().find(|(other, _)| other == id);
            present.is_none_or(|(_, present)| differs(*present, *holdoff))
        };
        let turned: Vec<_> = own.into_iter().filter(is_new).collect();
        let is_other_own = !turned.is_empty() && !self.is_of_device;
        if is_other_common || is_other_own {
            self.is_of_device = !knobs.set_holdoffs(&turned, DEFER_MARK, wanted.common)?;
            self.common = wanted.common;
            set.retain(|(id, _)| turned.iter().all(|(other, _)| other != id));
            set.extend(turned);
        }
        self.own = (!self.is_of_device).then_some(set);
        Ok(())
    }
}

fn differs(present: Duration, wanted: Duration) -> bool {
    present.abs_diff(wanted) > wanted / NOTICEABLE
}
