//! `plimsoll lab calibrate`: this machine's costs as a machine profile.

use std::path::{Path, PathBuf};
use std::time::Duration;

use plimsoll_bench::{CalibrationPlan, calibrate};
use plimsoll_lab::calibrate::Calibration;

use crate::failure::{Context, Usage};
use crate::output::{self, Target};

/// Measure what this machine's host costs, and write it as a machine profile (root).
///
/// Real packets, in network namespaces made for it. Every number of the profile
/// says by which trial it was measured, with which spread, when and where. A number that no trial
/// measures is that of modern-veth, and says that it is assumed. Let the machine be
/// quiet meanwhile: the spread shows whether it was.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  \
    sudo plimsoll lab calibrate --out today.toml\n  \
    sudo plimsoll lab run demo-udp modern-guard --testbed --profile today.toml --seeds 4\n  \
    sudo plimsoll lab run real-lrp-fig3 real-mh-fig4 --calibrate today.toml    both in one")]
pub(super) struct Args {
    /// Where to write the profile; its name is the file's without .toml
    #[arg(short, long, value_name = "FILE")]
    out: PathBuf,
    /// How often each trial is repeated
    #[arg(long, value_name = "N", default_value_t = REPEATS, value_parser = clap::value_parser!(u32).range(5..=100))]
    repeats: u32,
    /// How long each trial measures
    #[arg(long, value_name = "MS", default_value_t = WINDOW_MS, value_parser = clap::value_parser!(u64).range(20..=1000))]
    window_ms: u64,
    /// Also write all trials as one JSON document to FILE (`-`: standard output)
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

const REPEATS: u32 = 5;
const WINDOW_MS: u64 = 250;
/// With `lab run --quick`.
const QUICK_WINDOW_MS: u64 = 50;

/// Writes a profile of this machine to `out`, for experiments that run right after it.
pub(super) fn into_file(out: &Path, quick: bool) -> crate::Result<()> {
    let args = Args {
        out: out.to_owned(),
        repeats: REPEATS,
        window_ms: if quick { QUICK_WINDOW_MS } else { WINDOW_MS },
        json: None,
    };
    written(&args).map(drop)
}

pub(super) fn run(args: &Args) -> crate::Result<()> {
    let json = Target::open_given(args.json.as_ref())?;
    let calibration = written(args)?;
    output::deliver(json, &calibration, || {
        let (table, out) = (calibration.table(), args.out.display());
        format!("{table}wrote {out}; `--profile {out}` of lab run, report and sweep uses it\n")
    })
}

/// Measures, and writes the profile.
fn written(args: &Args) -> crate::Result<Calibration> {
    let name = args.out.file_stem().and_then(|stem| stem.to_str());
    let name = name.ok_or(Usage(
        "--out or --calibrate: name a file, for example today.toml",
    ))?;
    // Before minutes of measuring.
    let target = Target::open_page(&args.out)?;
    let calibration = measure(args)?;
    target.put(&calibration.profile(name)?)?;
    Ok(calibration)
}

fn measure(args: &Args) -> crate::Result<Calibration> {
    let plan = CalibrationPlan {
        program: std::env::current_exe().context("cannot find this program")?,
        repeats: args.repeats,
        window: Duration::from_millis(args.window_ms),
    };
    let progress = |done, of| output::progress(&format!("{done} of {of} repeats"));
    let measured = calibrate(&plan, &progress);
    output::clear_progress();
    Ok(measured?)
}
