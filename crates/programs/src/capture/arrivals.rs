//! When the packets of a recorded file came: `plimsoll blast` sends at these times.
//!
//! libpcap reads the file, pcap or pcapng, whoever wrote it. It knows the units of time of
//! each interface and checks all lengths. A damaged file is an error, never a part of a
//! schedule.

use std::path::PathBuf;
use std::time::Duration;

use pcap::{Capture, Precision};
use plimsoll_kernel::error::{FAILED, USED_WRONGLY};

use crate::filter::{Filter, FilterError, refused};

/// The most times that are taken.
pub const ARRIVALS_MAX: usize = 1 << 22;
const SECOND_NS: i128 = 1_000_000_000;

/// What is wanted of a file.
#[derive(Clone, Debug)]
pub struct ArrivalsConfig {
    /// The file; `-`: standard input.
    pub file: PathBuf,
    /// A pcap filter; empty: all packets.
    pub filter: String,
    /// The first of so many. Without it, more than [`ARRIVALS_MAX`] are an error.
    pub packets_max: Option<u64>,
    /// None that came later than this after the first.
    pub time_max: Duration,
}

/// Why a file has no arrival times for us.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ArrivalsError {
    /// It is no capture, or cannot be read.
    #[error("cannot read {}: {why}; it must be a pcap or pcapng file", file.display())]
    Open {
        /// The file.
        file: PathBuf,
        /// libpcap's words.
        why: String,
    },
    /// The filter is none for this file.
    #[error(transparent)]
    Filter(#[from] FilterError),
    /// It is damaged.
    #[error(
        "{} is damaged after {packets} packets: {why}; --count takes packets before the damage",
        file.display()
    )]
    Damaged {
        /// The file.
        file: PathBuf,
        /// Packets that were read.
        packets: usize,
        /// libpcap's words.
        why: String,
    },
    /// It has more packets than are taken.
    #[error("{} has more than {ARRIVALS_MAX} packets: --count or a filter takes some of them", file.display())]
    TooMany {
        /// The file.
        file: PathBuf,
    },
    /// It has no packets, or the filter accepts none.
    #[error("no packet of {} is left: is the filter right?", file.display())]
    Nothing {
        /// The file.
        file: PathBuf,
    },
}

impl ArrivalsError {
    /// The exit code of a command that ends by it: 1 failed, 2 used wrongly.
    #[must_use]
    pub const fn exit_code(&self) -> u8 {
        match self {
            Self::Filter(_) => USED_WRONGLY,
            Self::Open { .. }
            | Self::Damaged { .. }
            | Self::TooMany { .. }
            | Self::Nothing { .. } => FAILED,
        }
    }
}

/// Times from the first packet on, in order. (Packets of several queues may stand in a
/// file a little out of order.)
///
/// # Errors
///
/// See [`ArrivalsError`].
pub fn arrivals(config: &ArrivalsConfig) -> Result<Vec<Duration>, ArrivalsError> {
    let file = || config.file.clone();
    let open = |error: pcap::Error| ArrivalsError::Open {
        file: file(),
        why: words(error),
    };
    let mut capture =
        Capture::from_file_with_precision(&config.file, Precision::Nano).map_err(open)?;
    if !config.filter.is_empty() {
        let refused = |error| refused(&config.filter, error);
        let program = capture.compile(&config.filter, true).map_err(refused)?;
        Filter::of(&config.filter, program).check_in_frames()?;
        capture.filter(&config.filter, true).map_err(refused)?;
    }
    let mut times: Vec<i128> = Vec::new();
    let is_wanted = |taken: usize| config.packets_max.is_none_or(|max| (taken as u64) < max);
    while is_wanted(times.len()) {
        match capture.next_packet() {
            Ok(packet) if times.len() < ARRIVALS_MAX => {
                let time = packet.header.ts;
                // With this precision the second field has nanoseconds.
                times.push(i128::from(time.tv_sec) * SECOND_NS + i128::from(time.tv_usec));
            }
            Ok(_) => return Err(ArrivalsError::TooMany { file: file() }),
            Err(pcap::Error::NoMorePackets) => break,
            Err(error) => {
                return Err(ArrivalsError::Damaged {
                    file: file(),
                    packets: times.len(),
                    why: words(error),
                });
            }
        }
    }
    from_first(times, config.time_max).ok_or_else(|| ArrivalsError::Nothing { file: file() })
}

/// `None` if there is none.
fn from_first(mut times: Vec<i128>, time_max: Duration) -> Option<Vec<Duration>> {
    times.sort_unstable();
    let first = *times.first()?;
    let times = times.into_iter().map(|time| {
        let nanos = u64::try_from(time - first).unwrap_or(u64::MAX);
        Duration::from_nanos(nanos)
    });
    Some(times.take_while(|time| *time <= time_max).collect())
}

fn words(error: pcap::Error) -> String {
    match error {
        pcap::Error::PcapError(text) => text,
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_put_in_order_and_count_from_the_first() {
        let from_first =
            |times: &[i128], max| from_first(times.to_vec(), Duration::from_nanos(max));
        let nanos = |times: &[u64]| Some(times.iter().copied().map(Duration::from_nanos).collect());
        assert_eq!(from_first(&[7, 5, 9], 10), nanos(&[0, 2, 4]));
        assert_eq!(from_first(&[7, 5, 9], 3), nanos(&[0, 2]));
        assert_eq!(from_first(&[], 3), None);
    }
}
