//! How fast a server's TCP connections send.

use std::fmt;
use std::net::TcpStream;
use std::str::FromStr;

use nix::libc;
use plimsoll_core::config::Fraction;
use plimsoll_core::pacing::Rate;
use plimsoll_stack::Pacing;

use super::option::set_option;

/// A pace, as given on the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pace {
    /// At this rate.
    At(Rate),
    /// At half of what the last busy period showed.
    Last,
    /// As acknowledgements came on the average, instead of in their bursts.
    Acks,
}

/// In bits per second.
const MEGABIT: f64 = 1e6;

impl Pace {
    /// For Plimsoll's own stack.
    pub(super) fn of_stack(self) -> Pacing {
        match self {
            Self::At(rate) => Pacing::at(rate),
            Self::Last => Pacing::LastBusyPeriod(Fraction::from_percent(50)),
            Self::Acks => Pacing::SmoothAcks,
        }
    }

    /// Limits what the kernel sends on a connection.
    pub(crate) fn limit(self, stream: &TcpStream) -> std::io::Result<()> {
        let Self::At(rate) = self else { return Ok(()) };
        let bytes_per_second: u64 = rate.bits_per_second() / 8;
        set_option(stream, libc::SO_MAX_PACING_RATE, &bytes_per_second)
    }
}

impl fmt::Display for Pace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::At(rate) => write!(f, "{}", rate.bits_per_second() as f64 / MEGABIT),
            Self::Last => f.write_str("last"),
            Self::Acks => f.write_str("acks"),
        }
    }
}

impl FromStr for Pace {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "last" => return Ok(Self::Last),
            "acks" => return Ok(Self::Acks),
            _ => {}
        }
        let refuse = || "must be a rate of 0.1 to 100000 Mbit/s, `last` or `acks`".to_owned();
        let megabits: f64 = text.parse().map_err(|_| refuse())?;
        if !(0.1..=1e5).contains(&megabits) {
            return Err(refuse());
        }
        Ok(Self::At(Rate::clamped((megabits * MEGABIT).round() as u64)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pace_parses_back_and_others_are_refused() {
        for text in ["last", "acks", "100", "0.1", "12.5"] {
            assert_eq!(text.parse::<Pace>().unwrap().to_string(), text);
        }
        for wrong in ["", "0", "fast", "nan", "1e9"] {
            assert!(wrong.parse::<Pace>().is_err(), "{wrong}");
        }
    }
}
