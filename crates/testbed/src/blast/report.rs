//! What a blast did, as numbers and as text.

use std::fmt;
use std::time::Duration;

use hdrhistogram::Histogram;
use serde::Serialize;

use super::program;
use super::program::Progress;
use super::spec::{Schedule, Spec};
use crate::Error;

/// Departures later than this count as late: what a prober would notice.
const LATE: Duration = Duration::from_micros(100);

/// The outcome of one run.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Frames that departed: the offered load. Each is counted in exactly one
    /// of the next three.
    pub offered: u64,
    /// Taken by the link.
    pub sent: u64,
    /// Dropped because the receiver's ring was full.
    pub ring_full: u64,
    /// Refused before they reached the ring: the link was down, its other end
    /// does not receive by NAPI, or the frame exceeds its MTU.
    pub failed: u64,
    /// Length of the blast in seconds, the gap after the last frame included.
    pub elapsed_s: f64,
    /// `offered` per second.
    pub offered_pps: f64,
    /// The schedule's mean over the blast; `None` if unlimited.
    pub requested_pps: Option<f64>,
    /// `offered_pps / requested_pps - 1`. With a Poisson schedule chance alone
    /// makes it about one over the square root of `offered`.
    pub rate_error: Option<f64>,
    /// From each scheduled departure to the moment the link had the frame;
    /// `None` if unlimited or nothing departed.
    pub departure_error: Option<DepartureError>,
    /// Time off the CPU, and what became of it.
    pub lag: Lag,
    /// Program runs per batch.
    pub batch_runs: u32,
    /// Length of each frame in bytes, or of the longest, without frame check sequence.
    pub frame_bytes: usize,
    /// Why the blast ended.
    pub end: End,
}

/// How late frames departed, in nanoseconds. Never early.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct DepartureError {
    /// The median.
    pub p50_ns: u64,
    /// The 99th percentile.
    pub p99_ns: u64,
    /// The largest, within 6 %.
    pub max_ns: u64,
    /// Frames more than 100 µs late, which were made up for afterwards.
    pub late_frames: u64,
}

/// Times when the generator was not running for 100 µs or more: preempted, or
/// interrupted by softirq work on its CPU.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Lag {
    /// How many.
    pub absences: u64,
    /// Their sum, in seconds.
    pub absent_s: f64,
    /// The longest, in nanoseconds.
    pub longest_ns: u64,
    /// Part of the schedule that was given up, because it was later than
    /// [`super::CatchUp::lag_max`], in seconds.
    pub given_up_s: f64,
}

/// Why a blast ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum End {
    /// [`super::Bound::time`] was over.
    Time,
    /// [`super::Bound::frames`] had departed.
    Frames,
    /// [`super::Stop`], SIGINT or SIGTERM.
    Stopped,
}

impl Report {
    pub(super) fn new(spec: &Spec, progress: &Progress, errors: &[u64]) -> Result<Self, Error> {
        let end = match progress.finished {
            0 => End::Stopped,
            _ if progress.departed >= spec.frames_max() => End::Frames,
            _ => End::Time,
        };
        let elapsed_ns = match end {
            End::Stopped => progress.seen_ns,
            End::Time | End::Frames => progress.elapsed_ns,
        };
        let elapsed = Duration::from_nanos(elapsed_ns).min(spec.bound.time);
        let offered_pps = if elapsed.is_zero() {
            0.0
        } else {
            progress.departed as f64 / elapsed.as_secs_f64()
        };
        let requested_pps = spec.mean_pps(elapsed);
        let departure_error = match spec.schedule {
            Schedule::Unlimited => None,
            _ => departure_error(errors)?,
        };
        Ok(Self {
            offered: progress.departed,
            sent: progress.accepted,
            ring_full: progress.ring_full,
            failed: progress.failed,
            elapsed_s: elapsed.as_secs_f64(),
            offered_pps,
            requested_pps,
            rate_error: requested_pps.map(|requested| offered_pps / requested - 1.0),
            departure_error,
            lag: Lag::new(progress),
            batch_runs: program::batch_runs(spec),
            frame_bytes: spec.flow.frame_bytes(),
            end,
        })
    }
}

impl Lag {
    fn new(progress: &Progress) -> Self {
        let seconds = |nanos| Duration::from_nanos(nanos).as_secs_f64();
        Self {
            absences: progress.absences,
            absent_s: seconds(progress.absent_ns),
            longest_ns: progress.absence_max_ns,
            given_up_s: seconds(program::ticks_to_nanos(progress.given_up_ticks)),
        }
    }
}

/// Turns the program's buckets into percentiles.
fn departure_error(buckets: &[u64]) -> Result<Option<DepartureError>, Error> {
    let broken = |error: &dyn fmt::Display| Error::Parse {
        what: "the departure histogram",
        detail: error.to_string(),
    };
    // As fine as the program's buckets, and as far.
    let mut histogram = Histogram::<u64>::new(2).map_err(|error| broken(&error))?;
    for (bucket, &count) in buckets.iter().enumerate().filter(|(_, count)| **count > 0) {
        histogram
            .record_n(program::bucket_nanos(bucket), count)
            .map_err(|error| broken(&error))?;
    }
    if histogram.is_empty() {
        return Ok(None);
    }
    let late_nanos = LATE.as_nanos() as u64;
    let late = |(bucket, _): &(usize, &u64)| program::bucket_nanos(*bucket) > late_nanos;
    Ok(Some(DepartureError {
        p50_ns: histogram.value_at_quantile(0.5),
        p99_ns: histogram.value_at_quantile(0.99),
        max_ns: histogram.max(),
        late_frames: buckets
            .iter()
            .enumerate()
            .filter(late)
            .map(|(_, count)| count)
            .sum(),
    }))
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "offered           {} frames of {} bytes in {:.3} s ({})",
            self.offered,
            self.frame_bytes,
            self.elapsed_s,
            match self.end {
                End::Time => "time bound",
                End::Frames => "frame bound",
                End::Stopped => "stopped",
            }
        )?;
        write!(f, "offered load      {:.0} packets/s", self.offered_pps)?;
        match (self.requested_pps, self.rate_error) {
            (Some(requested), Some(error)) => {
                writeln!(f, ", requested {requested:.0} ({:+.3} %)", error * 100.0)?;
            }
            _ => writeln!(f, ", unlimited")?,
        }
        writeln!(f, "sent              {}", self.sent)?;
        writeln!(f, "receive ring full {}", self.ring_full)?;
        writeln!(f, "failed            {}", self.failed)?;
        if let Some(error) = &self.departure_error {
            writeln!(
                f,
                "departure error   p50 {:?}, p99 {:?}, max {:?}; {} frames over {LATE:?}",
                Duration::from_nanos(error.p50_ns),
                Duration::from_nanos(error.p99_ns),
                Duration::from_nanos(error.max_ns),
                error.late_frames
            )?;
        }
        writeln!(
            f,
            "off the CPU       {} times, {:.3} ms together, longest {:?}, given up {:.3} ms",
            self.lag.absences,
            self.lag.absent_s * 1e3,
            Duration::from_nanos(self.lag.longest_ns),
            self.lag.given_up_s * 1e3,
        )?;
        write!(f, "batch             {} runs", self.batch_runs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_come_from_the_buckets() {
        let mut buckets = vec![0; 976];
        buckets[7] = 90;
        // 16 + 1 * 16: [32, 34) ns; then the one that holds 1 ms.
        buckets[32] = 9;
        let millisecond = (0..976)
            .rfind(|&bucket| program::bucket_nanos(bucket) <= 1_000_000)
            .unwrap();
        buckets[millisecond] = 1;
        let error = departure_error(&buckets).unwrap().unwrap();
        assert_eq!(error.p50_ns, 7);
        assert_eq!(error.p99_ns, 32);
        assert!((940_000..=1_008_000).contains(&error.max_ns), "{error:?}");
        assert_eq!(error.late_frames, 1);
    }

    #[test]
    fn nothing_departed_has_no_error() {
        assert_eq!(departure_error(&[0; 976]).unwrap(), None);
    }
}
