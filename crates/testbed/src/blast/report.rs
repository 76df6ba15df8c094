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
    /// Length of the blast in seconds, the gap after the last frame included. If it was
    /// stopped, until then, whether or not the generator had its CPU at last.
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
    /// [`super::Bound::time`] was over, perhaps without the generator.
    Time,
    /// [`super::Bound::frames`] had departed.
    Frames,
    /// [`super::Stop`], SIGINT or SIGTERM.
    Stopped,
}

/// When a blast's call began and when it was told to end, in nanoseconds of the kernel's
/// monotonic clock.
#[derive(Clone, Copy, Debug)]
pub(super) struct Span {
    pub(super) began_ns: u64,
    pub(super) told_ns: u64,
}

impl Span {
    /// How long a blast lasted that did not come to its end by itself. The generator may have
    /// been off its CPU at last, or all the time, and what it missed then it did not send.
    fn elapsed_ns(self, progress: &Progress) -> u64 {
        let first_ns = match progress.origin_ns {
            0 => self.began_ns,
            origin_ns => origin_ns,
        };
        self.told_ns.saturating_sub(first_ns).max(progress.seen_ns)
    }
}

impl Report {
    pub(super) fn new(
        spec: &Spec,
        progress: &Progress,
        span: Span,
        errors: &[u64],
    ) -> Result<Self, Error> {
        let is_finished = progress.finished != 0;
        let elapsed_ns = match is_finished {
            true => progress.elapsed_ns,
            false => span.elapsed_ns(progress),
        };
        let elapsed = Duration::from_nanos(elapsed_ns).min(spec.bound.time);
        let end = match is_finished {
            true if progress.departed >= spec.frames_max() => End::Frames,
            false if elapsed < spec.bound.time => End::Stopped,
            _ => End::Time,
        };
        // Without a schedule the program does not look when it was away.
        let away_ns = match spec.schedule {
            Schedule::Unlimited => 0,
            _ if is_finished => 0,
            _ => elapsed_ns.saturating_sub(progress.seen_ns),
        };
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
            lag: Lag::new(progress, away_ns),
            batch_runs: program::batch_runs(spec),
            frame_bytes: spec.flow.frame_bytes(),
            end,
        })
    }
}

impl Lag {
    /// `away_ns`: how long the generator had been away when the blast was ended.
    fn new(progress: &Progress, away_ns: u64) -> Self {
        let seconds = |nanos| Duration::from_nanos(nanos).as_secs_f64();
        let away_ns = Some(away_ns).filter(|away_ns| *away_ns >= program::ABSENCE_NS);
        let last_ns = away_ns.unwrap_or(0);
        Self {
            absences: progress.absences + u64::from(away_ns.is_some()),
            absent_s: seconds(progress.absent_ns + last_ns),
            longest_ns: progress.absence_max_ns.max(last_ns),
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
    use super::super::spec::{Flow, Transport};
    use super::*;

    const MILLI_NS: u64 = 1_000_000;

    /// 10,000 frames a second for ten seconds.
    fn spec() -> Spec {
        let flow = Flow {
            source: std::net::IpAddr::from([198, 18, 0, 1]).into(),
            source_ports: 1..=1,
            destination: [198, 18, 0, 2].into(),
            destination_ports: 9..=9,
            transport: Transport::TcpSyn,
        };
        let schedule = Schedule::Fixed { rate_pps: 10_000 };
        Spec::new("load0", [2; 6], flow, schedule)
    }

    /// A blast that began at 5 s and was told to end `after_ms`; what it had done by then.
    fn ended(after_ms: u64, progress: Progress) -> Report {
        let began_ns = 5000 * MILLI_NS;
        let span = Span {
            began_ns,
            told_ns: began_ns + after_ms * MILLI_NS,
        };
        Report::new(&spec(), &progress, span, &[0; 976]).unwrap()
    }

    /// It had been the rate of the time in which the generator ran: as if the flood had been
    /// there all the time.
    #[test]
    fn a_generator_that_got_no_cpu_at_last_offered_less() {
        let starved = Progress {
            origin_ns: 5000 * MILLI_NS,
            seen_ns: 200 * MILLI_NS,
            departed: 2000,
            absences: 1,
            absent_ns: MILLI_NS,
            absence_max_ns: MILLI_NS,
            ..Progress::default()
        };
        let report = ended(1000, starved);
        assert_eq!((report.end, report.elapsed_s), (End::Stopped, 1.0));
        assert!((report.offered_pps - 2000.0).abs() < 1e-9, "{report}");
        assert!((report.rate_error.unwrap() + 0.8).abs() < 1e-9, "{report}");
        assert_eq!((report.lag.absences, report.lag.absent_s), (2, 0.801));
        assert_eq!(report.lag.longest_ns, 800 * MILLI_NS);
        // Until its bound was over.
        let report = ended(11_000, starved);
        assert_eq!((report.end, report.elapsed_s), (End::Time, 10.0));
    }

    #[test]
    fn a_generator_that_never_ran_offered_nothing_all_the_time() {
        let report = ended(1000, Progress::default());
        assert_eq!((report.elapsed_s, report.offered_pps), (1.0, 0.0));
        assert_eq!(report.rate_error, Some(-1.0));
        assert_eq!(report.lag.longest_ns, 1000 * MILLI_NS);
    }

    #[test]
    fn a_generator_that_ran_to_the_end_was_not_away() {
        let ran = Progress {
            origin_ns: 5000 * MILLI_NS,
            // It ends a batch after it was told.
            seen_ns: 1001 * MILLI_NS,
            departed: 10_010,
            ..Progress::default()
        };
        let report = ended(1000, ran);
        assert_eq!((report.end, report.lag.absences), (End::Stopped, 0));
        assert!((report.elapsed_s - 1.001).abs() < 1e-9, "{report}");
        let finished = Progress {
            finished: 1,
            elapsed_ns: 10_000 * MILLI_NS,
            seen_ns: 9000 * MILLI_NS,
            ..ran
        };
        let report = ended(10_500, finished);
        assert_eq!((report.end, report.elapsed_s), (End::Time, 10.0));
        assert_eq!(report.lag.absences, 0);
    }

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
