//! What is seen of the host in an interval: what each CPU did and what the interface lost,
//! with the rates and parts that [`Governor`](super::Governor) judges by.

use core::time::Duration;

use crate::config::Fraction;
use crate::time::{NANOS_PER_SECOND, span_nanos};

/// Hardly a frame takes longer to receive: 1 to 5 µs through the stack, more through long
/// packet filters. What is above that for each frame of this interface is other
/// interfaces' work, or polling that found nothing. A host where frames do take longer
/// shows its overload by its ring.
pub(crate) const FRAME_MOST: Duration = Duration::from_micros(20);

/// What one CPU did since the observation before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuObservation {
    /// The kernel's number of it.
    pub cpu: u32,
    /// The time observed.
    pub elapsed: Duration,
    /// Time spent on receiving from all interfaces, interrupts and polling threads
    /// included.
    pub network: Duration,
    /// Others want this CPU.
    pub contended: bool,
    /// Time without anything to run.
    pub idle: Duration,
    /// Frames polled from the governed interface.
    pub frames: u64,
    /// Polling runs, each until the ring was empty.
    pub runs: u64,
    /// Most frames in one run.
    pub run_frames_max: u32,
}

/// What the interface lost since the observation before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Losses {
    /// Packets discarded early.
    pub discarded: u64,
    /// Frames that the receive rings did not hold.
    pub ring: u64,
    /// The rings have counted such frames at some time: when they count none, all were
    /// held. Of other rings only the length of a run tells how full they got.
    pub is_ring_counted: bool,
    /// Receiving was inhibited for some of the time: what the ring then lost
    /// was meant to be lost.
    pub inhibited: bool,
}

/// Frames per second that arrived for a CPU; those that the rings lost might
/// all have been its.
pub(super) fn rate(cpu: &CpuObservation, lost: u64) -> u64 {
    let lost = if cpu.frames > 0 { lost } else { 0 };
    per_second(cpu.frames.saturating_add(lost), cpu.elapsed)
}

/// The rate of what comes in `elapsed`.
pub(super) fn per_second(count: u64, elapsed: Duration) -> u64 {
    let count = u128::from(count) * u128::from(NANOS_PER_SECOND);
    u64::try_from(count / elapsed.as_nanos().max(1)).unwrap_or(u64::MAX)
}

/// The part of the CPU's time that receiving took.
pub(super) fn load(cpu: &CpuObservation) -> Fraction {
    let whole = u64::from(Fraction::WHOLE.as_ppm());
    let ppm = span_nanos(cpu.network).saturating_mul(whole) / span_nanos(cpu.elapsed).max(1);
    Fraction::from_ppm(u32::try_from(ppm.min(whole)).unwrap_or(u32::MAX))
}

/// The network time that may be this interface's.
pub(super) fn own_network(cpu: &CpuObservation) -> Duration {
    let frames = u32::try_from(cpu.frames).unwrap_or(u32::MAX);
    cpu.network.min(FRAME_MOST.saturating_mul(frames))
}

pub(super) fn part(fraction: Fraction, span: Duration) -> Duration {
    Duration::from_nanos(fraction.of(span_nanos(span)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_rings_lost_may_be_of_any_cpu_that_brings_some() {
        let cpu = |frames| CpuObservation {
            elapsed: Duration::from_millis(10),
            frames,
            ..CpuObservation::default()
        };
        assert_eq!(rate(&cpu(1), 99), 10_000);
        assert_eq!(rate(&cpu(0), 99), 0);
    }
}
