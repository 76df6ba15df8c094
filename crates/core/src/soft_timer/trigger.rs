//! Where trigger states come from, what an idle CPU does, and which kind of
//! timer an event should use.

use core::time::Duration;

use crate::time::Instant;

/// What brought the system into a trigger state (section 3; the names of the
/// accounting in section 5.4, plus the idle loop and the two backups).
///
/// A user-space path has the same sources under other names: a return from
/// one of its own calls is a [`SystemCall`](Self::SystemCall), a frame put on
/// the transmit ring an [`IpOutput`](Self::IpOutput), the end of a polling turn
/// that found frames a [`NetworkInterrupt`](Self::NetworkInterrupt). There is
/// no source for TLB misses: hardware that handles them itself shows no state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TriggerSource {
    /// The end of a system call, before the return to the program.
    SystemCall,
    /// A packet was sent.
    IpOutput,
    /// The end of a network interrupt's handler.
    NetworkInterrupt,
    /// Other loops of the protocol code, such as the pass over TCP's timers.
    TcpIpOther,
    /// The end of an exception handler.
    Trap,
    /// A pass of the idle loop.
    IdleLoop,
    /// The periodic timer interrupt which bounds every delay.
    BackupInterrupt,
    /// The hardware timer armed for the earliest deadline.
    HardwareTimer,
}

impl TriggerSource {
    /// Every source, in the order of [`TriggerCounts::iter`].
    pub const ALL: [Self; 8] = [
        Self::SystemCall,
        Self::IpOutput,
        Self::NetworkInterrupt,
        Self::TcpIpOther,
        Self::Trap,
        Self::IdleLoop,
        Self::BackupInterrupt,
        Self::HardwareTimer,
    ];
}

/// How many trigger states each source gave, and how many events fired there.
///
/// Kept outside the timers, since not every user pays for it: one addition per
/// trigger state, one per fired event.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TriggerCounts {
    states: [u64; TriggerSource::ALL.len()],
    fired: [u64; TriggerSource::ALL.len()],
}

impl TriggerCounts {
    /// A trigger state from `source` was reached.
    #[inline]
    pub fn on_state(&mut self, source: TriggerSource) {
        self.states[source as usize] += 1;
    }

    /// An event fired in a trigger state from `source`.
    #[inline]
    pub fn on_fired(&mut self, source: TriggerSource) {
        self.fired[source as usize] += 1;
    }

    /// Trigger states from `source`.
    #[must_use]
    pub fn states(&self, source: TriggerSource) -> u64 {
        self.states[source as usize]
    }

    /// Events fired in trigger states from `source`.
    #[must_use]
    pub fn fired(&self, source: TriggerSource) -> u64 {
        self.fired[source as usize]
    }

    /// Each source with its trigger states and fired events.
    pub fn iter(&self) -> impl Iterator<Item = (TriggerSource, u64, u64)> {
        TriggerSource::ALL
            .into_iter()
            .map(|source| (source, self.states(source), self.fired(source)))
    }
}

/// What an idle CPU does until the next interrupt (section 5.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IdleAction {
    /// Keep passing through the idle loop: an event becomes due before the
    /// next timer interrupt and nobody else is looking.
    Check,
    /// Halt to save power, until any interrupt.
    Halt,
}

/// Which facility suits an event (section 5.10).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Facility {
    /// The conventional timer: the event is no finer than its interrupt.
    IntervalTimer,
    /// A soft event, backed by the periodic interrupt.
    SoftTimer,
    /// A soft event with a deadline of its own, backed by a hardware timer.
    SoftTimerWithDeadline,
    /// A hardware timer for each event: trigger states are too far apart.
    HardwareTimer,
}

impl Facility {
    /// Chooses by the event's `granularity` (the interval to be kept), its
    /// `tolerance` (the rare delay past it that does no harm), and what the host
    /// offers: the period of the backup interrupt and the mean interval between
    /// trigger states.
    #[must_use]
    pub fn for_event(
        granularity: Duration,
        tolerance: Duration,
        backup_period: Duration,
        trigger_interval: Duration,
    ) -> Self {
        if granularity >= backup_period {
            Self::IntervalTimer
        } else if granularity < trigger_interval {
            Self::HardwareTimer
        } else if tolerance >= backup_period {
            Self::SoftTimer
        } else {
            Self::SoftTimerWithDeadline
        }
    }
}

/// What to do with the hardware timer that covers deadlines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HardwareTimer {
    /// Arm it for this moment, in place of any other.
    Arm(Instant),
    /// Disarm it: nothing is pending.
    Cancel,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_source_counts_its_own_states_and_events() {
        let mut counts = TriggerCounts::default();
        for source in TriggerSource::ALL {
            for _ in 0..=source as usize {
                counts.on_state(source);
            }
        }
        counts.on_fired(TriggerSource::HardwareTimer);
        for (position, (source, states, fired)) in counts.iter().enumerate() {
            assert_eq!(states, position as u64 + 1);
            assert_eq!(
                fired,
                u64::from(source == TriggerSource::HardwareTimer),
                "{source:?}"
            );
        }
    }

    #[test]
    fn the_facility_follows_granularity_and_tolerance() {
        let micros = Duration::from_micros;
        let choose = |granularity, tolerance| {
            Facility::for_event(
                micros(granularity),
                micros(tolerance),
                micros(1000),
                micros(30),
            )
        };
        assert_eq!(choose(200_000, 0), Facility::IntervalTimer);
        assert_eq!(choose(1000, 0), Facility::IntervalTimer);
        assert_eq!(choose(40, 1000), Facility::SoftTimer);
        assert_eq!(choose(40, 50), Facility::SoftTimerWithDeadline);
        assert_eq!(choose(12, 1000), Facility::HardwareTimer);
    }
}
