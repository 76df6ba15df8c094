//! What `bench forward` and `bench screen` are both asked, how long, how often, and with
//! which packets; and with which ones `bench capture` is.

use std::path::PathBuf;
use std::time::Duration;

use plimsoll_bench::passing::{Effort, Family};

use super::{millis, this_program};

#[derive(clap::Args, Debug)]
pub(super) struct PassingArgs {
    /// How often each case runs
    #[arg(long, value_name = "N", default_value_t = defaults().runs as u8, value_parser = clap::value_parser!(u8).range(1..=99))]
    runs: u8,
    /// How long each multiple of the MLFRR is offered, in milliseconds
    #[arg(long, value_name = "MS", default_value_t = millis(defaults().window), value_parser = clap::value_parser!(u64).range(50..=60_000))]
    window_ms: u64,
    #[command(flatten)]
    packets: PacketArgs,
    /// MLFRR of all in packets/s, instead of measuring it
    #[arg(long, value_name = "PPS", value_parser = clap::value_parser!(u64).range(1000..))]
    mlfrr: Option<u64>,
    /// Write the figures as one JSON document to FILE (`-`: standard output instead of the table)
    #[arg(long, value_name = "FILE")]
    pub(super) json: Option<PathBuf>,
}

/// With which packets.
#[derive(clap::Args, Debug)]
pub(super) struct PacketArgs {
    /// Measure only this version of IP, 4 or 6
    #[arg(long, value_name = "VERSION", value_parser = parse_version)]
    ip: Option<Version>,
    /// Measure only these lengths of frames: 64 (the smallest) or imix
    #[arg(long, value_name = "LENGTHS", value_parser = parse_lengths)]
    frames: Option<Lengths>,
}

impl PacketArgs {
    /// What is asked for; nothing asked is all.
    pub(super) fn families(&self) -> Vec<Family> {
        let is_asked = |family: &Family| {
            self.ip
                .is_none_or(|one| (one == Version::V4) == family.is_ipv4())
                && self
                    .frames
                    .is_none_or(|one| (one == Lengths::Imix) == family.is_imix())
        };
        Family::ALL.into_iter().filter(is_asked).collect()
    }
}

fn defaults() -> Effort {
    Effort::new(PathBuf::new())
}

impl PassingArgs {
    pub(super) fn effort(&self) -> crate::Result<Effort> {
        let defaults = Effort::new(this_program()?);
        Ok(Effort {
            runs: self.runs.into(),
            window: Duration::from_millis(self.window_ms),
            families: self.packets.families(),
            mlfrr_pps: self.mlfrr.map(|pps| pps as f64),
            ..defaults
        })
    }
}

/// A version of IP to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Version {
    V4,
    V6,
}

fn parse_version(text: &str) -> Result<Version, String> {
    match text {
        "4" => Ok(Version::V4),
        "6" => Ok(Version::V6),
        _ => Err("must be 4 or 6".to_owned()),
    }
}

/// How long frames are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lengths {
    Smallest,
    Imix,
}

fn parse_lengths(text: &str) -> Result<Lengths, String> {
    match text {
        "64" => Ok(Lengths::Smallest),
        "imix" => Ok(Lengths::Imix),
        _ => Err("must be 64 or imix".to_owned()),
    }
}
