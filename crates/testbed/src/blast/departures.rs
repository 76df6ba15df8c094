//! Departures as somebody recorded them: one time a line, in seconds from the first, as
//! `plimsoll capture --replay` writes them.

use std::io::{self, BufRead, Read as _};
use std::sync::Arc;
use std::time::Duration;

use super::spec::{RATE_MAX_PPS, Schedule};
use crate::Error;
use crate::error::check;

/// The most that are taken: 32 MiB in the kernel.
pub const DEPARTURES_MAX: usize = 1 << 22;
/// No line with a time is longer.
const LINE_MAX_BYTES: u64 = 64;
/// As many as are caught up with at once ([`super::CatchUp`]'s default): a rate is judged
/// over so many.
const GROUP: usize = 64;
const SECOND_NS: u64 = 1_000_000_000;

/// Times from the first departure, which is at zero.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Departures {
    times_ns: Arc<[u64]>,
}

impl Departures {
    /// Reads one time a line, in seconds with up to nine decimals.
    ///
    /// # Errors
    ///
    /// [`Error::Config`] naming the line, [`Error::Io`].
    pub fn read(mut from: impl BufRead) -> Result<Self, Error> {
        let mut times_ns: Vec<u64> = Vec::new();
        let mut line = String::new();
        loop {
            line.clear();
            let read = from.by_ref().take(LINE_MAX_BYTES).read_line(&mut line);
            match read {
                Ok(0) => break,
                Ok(_) => {}
                // No text at all.
                Err(error) if error.kind() == io::ErrorKind::InvalidData => line.clear(),
                Err(error) => return Err(Error::io("read departures")(error)),
            }
            let time_ns = nanos(line.trim_end());
            let last_ns = times_ns.last().copied().unwrap_or(0);
            let Some(time_ns) = time_ns.filter(|time_ns| *time_ns >= last_ns) else {
                let number = times_ns.len() + 1;
                return Err(wrong(&format_args!("line {number}, {:?}", line.trim_end())));
            };
            if times_ns.len() == DEPARTURES_MAX {
                let allowed = "at most 4194304 lines: `plimsoll capture --replay` has --count";
                check(false, "arrivals", &"more", allowed)?;
            }
            times_ns.push(time_ns);
        }
        let Some(first_ns) = times_ns.first().copied() else {
            return Err(wrong(&"nothing"));
        };
        times_ns.iter_mut().for_each(|time_ns| *time_ns -= first_ns);
        Ok(Self {
            times_ns: times_ns.into(),
        })
    }

    /// From the first, in nanoseconds.
    pub(super) fn times_ns(&self) -> &[u64] {
        &self.times_ns
    }

    /// The schedule that has these departures.
    pub(super) fn schedule(&self) -> Schedule {
        let mean_pps = rate_pps(self.times_ns.len() - 1, self.span());
        let groups = self.times_ns.windows(GROUP + 1);
        let spans = groups.map(|group| Duration::from_nanos(group[GROUP] - group[0]));
        let shortest = spans.min();
        Schedule::Recorded {
            mean_pps,
            peak_pps: shortest.map_or(mean_pps, |span| rate_pps(GROUP, span).max(mean_pps)),
        }
    }

    /// The mean rate of the first `elapsed`.
    pub(super) fn mean_pps(&self, elapsed: Duration) -> f64 {
        let nanos = u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX);
        let departed = self.times_ns.partition_point(|time_ns| *time_ns <= nanos);
        departed as f64 / elapsed.as_secs_f64().max(f64::EPSILON)
    }

    fn span(&self) -> Duration {
        Duration::from_nanos(self.times_ns.last().copied().unwrap_or(0))
    }
}

fn rate_pps(frames: usize, span: Duration) -> u64 {
    let rate = frames as f64 / span.as_secs_f64().max(f64::MIN_POSITIVE);
    (rate as u64).clamp(1, RATE_MAX_PPS)
}

fn wrong(given: &dyn std::fmt::Display) -> Error {
    Error::Config {
        field: "arrivals",
        given: given.to_string(),
        allowed: "a time in seconds on each line, as 0.001500000, never less than the one before",
    }
}

/// Nanoseconds of a decimal number of seconds.
fn nanos(text: &str) -> Option<u64> {
    let (whole, decimals) = text.split_once('.').unwrap_or((text, ""));
    let is_number = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if whole.is_empty() || !is_number(whole) || !is_number(decimals) || decimals.len() > 9 {
        return None;
    }
    let part: u64 = format!("{decimals:0<9}").parse().ok()?;
    let whole: u64 = whole.parse().ok()?;
    whole.checked_mul(SECOND_NS)?.checked_add(part)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Departures, Error> {
        Departures::read(text.as_bytes())
    }

    #[test]
    fn times_count_from_the_first() {
        let departures = read("7.5\n7.500000001\n8\n8.25\n").unwrap();
        assert_eq!(departures.times_ns(), [0, 1, 500_000_000, 750_000_000]);
        assert!((departures.mean_pps(Duration::from_millis(500)) - 6.0).abs() < 1e-9);
    }

    #[test]
    fn what_is_no_time_is_named_by_its_line() {
        for (text, line) in [
            ("", "nothing"),
            ("0\n\n", "line 2, \"\""),
            ("0\nx\n", "line 2, \"x\""),
            ("-1\n", "line 1"),
            ("1e3\n", "line 1"),
            ("0.0000000001\n", "line 1"),
            ("2\n1\n", "line 2, \"1\""),
            ("99999999999999999999\n", "line 1"),
        ] {
            let error = read(text).unwrap_err();
            assert!(error.to_string().contains(line), "{text:?}: {error}");
            assert_eq!(error.exit_code(), 2);
        }
        assert!(Departures::read(&[0xff, 0xfe, b'\n'][..]).is_err());
        assert!(read(&"1".repeat(1000)).is_err());
    }

    #[test]
    fn catching_up_is_no_slower_than_the_recorded_bursts() {
        // A hundred in 99 µs, and one a second later.
        let burst = (0..100).map(|number| format!("0.0000{number:02}\n"));
        let departures = read(&(burst.collect::<String>() + "1\n")).unwrap();
        let Schedule::Recorded { mean_pps, peak_pps } = departures.schedule() else {
            panic!("{:?}", departures.schedule());
        };
        assert_eq!((mean_pps, peak_pps), (100, 1_000_000));
        let at_once = read("0\n0\n").unwrap().schedule();
        let all = RATE_MAX_PPS;
        assert_eq!(
            at_once,
            Schedule::Recorded {
                mean_pps: all,
                peak_pps: all
            }
        );
    }
}
