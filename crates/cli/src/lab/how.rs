//! How experiments are run: which files, on what machine, with which seeds, and where results
//! are kept meanwhile.

use std::path::PathBuf;

use plimsoll_bench::RealPackets;
use plimsoll_lab::{
    Cache, Catalogue, Experiment, HostKind, Modelled, Options, Run, Shard, profile_file,
};

use super::calibrate;
use crate::failure::Context;
use crate::output;

#[derive(clap::Args, Debug)]
pub(super) struct Source {
    /// Directory of experiment files to use instead of the built-in ones
    #[arg(long, value_name = "DIR")]
    experiments: Option<PathBuf>,
}

impl Source {
    pub(super) fn catalogue(&self) -> crate::Result<Catalogue> {
        Ok(match &self.experiments {
            Some(directory) => Catalogue::read(directory)?,
            None => Catalogue::built_in()?,
        })
    }
}

#[derive(clap::Args, Debug)]
pub(super) struct How {
    #[command(flatten)]
    pub(super) source: Source,
    /// Machine profile in FILE, as `lab calibrate` writes it, in place of the experiments' own
    #[arg(long, value_name = "FILE")]
    profile: Option<PathBuf>,
    /// Measure this machine's costs first (root, about a minute), write the profile to FILE, and
    /// use it as --profile does; with --quick in windows of a fifth
    #[arg(long, value_name = "FILE", conflicts_with_all = ["profile", "shard"])]
    calibrate: Option<PathBuf>,
    /// The first seed; the same seeds give the same results
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// How many seeds each point is run with. Default: 20 for run and report, 1 for sweep; of
    /// real packets rounds, at most 4 without --rounds
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000), conflicts_with = "quick")]
    seeds: Option<u32>,
    /// How many rounds curves of real packets are run in. Four of all of them take half an hour.
    /// Default: as --seeds says, at most 4
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000), conflicts_with = "quick")]
    rounds: Option<u32>,
    /// One seed only: a quick look, which knows nothing of chance
    #[arg(long)]
    quick: bool,
    /// Keep results in FILE, and take from it what an interrupted run has done
    #[arg(long, value_name = "FILE")]
    resume: Option<PathBuf>,
    /// Run only part I of N, and only keep its results; `lab merge` joins the parts
    #[arg(long, value_name = "I/N", value_parser = parse_shard, requires = "resume")]
    shard: Option<Shard>,
}

impl How {
    fn seeds(&self, default: u32) -> u32 {
        if self.quick {
            return 1;
        }
        self.seeds.unwrap_or(default)
    }

    /// Says what a part of a run has done; true if this is one.
    pub(super) fn was_part(&self) -> crate::Result<bool> {
        let (Some(shard), Some(file)) = (self.shard, &self.resume) else {
            return Ok(false);
        };
        let Shard { index, of } = shard;
        output::print(&format!("part {index} of {of} is in {}\n", file.display()))?;
        Ok(true)
    }

    /// The same experiments on the machine of `--profile`, if there is one.
    fn moved(&self, experiments: &[Experiment]) -> crate::Result<Option<Vec<Experiment>>> {
        if let Some(file) = &self.calibrate {
            calibrate::into_file(file, self.quick)?;
        }
        let Some(file) = self.profile.as_ref().or(self.calibrate.as_ref()) else {
            return Ok(None);
        };
        let profile = profile_file(file)?;
        Ok(Some(
            experiments.iter().map(|one| one.on(&profile)).collect(),
        ))
    }

    /// `seeds`: how many without `--seeds`. `claims_alone`: nothing is asked but verdicts.
    pub(super) fn run(
        &self,
        experiments: &[Experiment],
        seeds: u32,
        claims_alone: bool,
    ) -> crate::Result<Vec<Run>> {
        let moved = self.moved(experiments)?;
        let experiments = moved.as_deref().unwrap_or(experiments);
        let cache = self.resume.as_deref().map(Cache::open).transpose()?;
        let (real, why_no_testbed) = real_packets(experiments)?;
        let options = Options {
            seed: self.seed,
            seeds: self.seeds(seeds),
            rounds: self.rounds.unwrap_or(0),
            // A part is for whoever joins it, and he may ask for more.
            claims_alone: claims_alone && self.shard.is_none(),
            shard: self.shard,
            testbed: real.as_ref().map(|real| real as _),
            why_no_testbed,
            cache: cache.as_ref(),
        };
        run_modelled(experiments, &options)
    }
}

/// Runs experiments with progress on the terminal.
pub(crate) fn run_modelled(
    experiments: &[Experiment],
    options: &Options<'_>,
) -> crate::Result<Vec<Run>> {
    let progress = |done, of| output::progress(&format!("{done} of {of} points"));
    let runs = plimsoll_lab::run(experiments, &Modelled, options, &progress);
    output::clear_progress();
    Ok(runs?)
}

/// The testbed if an experiment wants it, or why there is none. An experiment on real
/// packets alone is nothing without.
fn real_packets(
    experiments: &[Experiment],
) -> crate::Result<(Option<RealPackets>, Option<String>)> {
    let wanted = |host: HostKind| experiments.iter().any(|experiment| experiment.host == host);
    if !wanted(HostKind::Testbed) && !wanted(HostKind::Real) {
        return Ok((None, None));
    }
    let program = std::env::current_exe().context("cannot find this program")?;
    match RealPackets::start(program) {
        Ok(real) => Ok((Some(real), None)),
        Err(error) if error.is_missing() && !wanted(HostKind::Real) => {
            Ok((None, Some(error.to_string())))
        }
        Err(error) => Err(error.into()),
    }
}

fn parse_shard(text: &str) -> Result<Shard, String> {
    let parts = text.split_once('/');
    let parsed = parts.and_then(|(index, of)| Some((index.parse().ok()?, of.parse().ok()?)));
    match parsed {
        Some((index, of)) if (1..=of).contains(&index) => Ok(Shard { index, of }),
        _ => Err("write I/N with I from 1 to N".to_owned()),
    }
}
