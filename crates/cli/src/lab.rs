//! `plimsoll lab`: the papers' experiments, and ours, on a modelled host or on real
//! packets.

mod calibrate;

use std::fmt::Write as _;
use std::io::Write;
use std::path::{Path, PathBuf};

use crate::failure::Context;
use plimsoll_bench::RealPackets;
use plimsoll_lab::{
    Cache, Catalogue, Document, Experiment, HostKind, Modelled, Options, Run, Shard, SweepPlan,
    TracePlan, csv, html, profile_file, profiles, range, table, trace, values,
};

use crate::output;

/// Run the papers' experiments on a modelled host and check their claims.
///
/// Every published overload figure, and some that no paper has, as data: what is
/// swept, what is measured, and what must come out. Needs no root and no network, but
/// for the experiments on real packets (`real`) and `calibrate`, which need root.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  \
    plimsoll lab run all               every claim, with its measured value\n  \
    plimsoll lab report                the same as one HTML file with all curves\n  \
    sudo plimsoll lab run real         the papers' figures on this machine's kernel, half an hour\n  \
    plimsoll lab explain lrp-fig3      what was done, and where the model departs\n  \
    sudo plimsoll lab calibrate --out today.toml    this machine's costs, for --profile\n  \
    sudo plimsoll lab run real-lrp-fig3 real-mh-fig4 --calibrate today.toml\n      \
                                       real packets beside the model of this machine, and how far apart\n  \
    plimsoll lab sweep mr-fig7 --parameter path.quota --from 2 --to 40 --steps 20 \\\n      \
    --set source.flood.traffic.rate_pps=14000 --curve quota5 --html quota.html")]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand, Debug)]
enum Command {
    /// List the experiments
    List(Source),
    /// Run experiments and check their claims
    Run(RunArgs),
    /// Say what an experiment is about, what the model does, and where it departs
    Explain(ExplainArgs),
    /// Sweep any parameter over any range with the curves of an experiment
    Sweep(SweepArgs),
    /// Show one point's life: interrupts, threads and packets in order of time
    Trace(TraceArgs),
    /// Write all curves and claims as one HTML file
    Report(ReportArgs),
    Calibrate(calibrate::Args),
    /// Join the results of the parts of a run (`--shard`) into one file for `--resume`
    Merge(MergeArgs),
}

#[derive(clap::Args, Debug)]
struct Source {
    /// Directory of experiment files to use instead of the built-in ones
    #[arg(long, value_name = "DIR")]
    experiments: Option<PathBuf>,
}

#[derive(clap::Args, Debug)]
struct Outputs {
    /// Also write the results as one JSON document to FILE (`-`: standard output)
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Also write every measured value as CSV to FILE (`-`: standard output)
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,
    /// Also write the report to FILE
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

#[derive(clap::Args, Debug)]
struct How {
    #[command(flatten)]
    source: Source,
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
    /// real packets rounds, at most 4
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000), conflicts_with = "quick")]
    seeds: Option<u32>,
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

/// Seeds that a claim is judged on without `--seeds`.
const SEEDS: u32 = 20;

#[derive(clap::Args, Debug)]
struct RunArgs {
    /// Experiments, `all` that are modelled, or `real` for those on real packets (root)
    #[arg(required = true, value_name = "ID")]
    ids: Vec<String>,
    /// Also run on real packets what can be: the same as `host = "testbed"` in the files
    #[arg(long)]
    testbed: bool,
    /// Show every measured value as well
    #[arg(long)]
    values: bool,
    #[command(flatten)]
    how: How,
    #[command(flatten)]
    outputs: Outputs,
}

#[derive(clap::Args, Debug)]
struct ExplainArgs {
    /// The experiment
    #[arg(value_name = "ID")]
    id: String,
    #[command(flatten)]
    source: Source,
}

#[derive(clap::Args, Debug)]
struct SweepArgs {
    /// The experiment whose scenario and curves are used
    #[arg(value_name = "ID")]
    id: String,
    /// What is swept: a dotted key of the scenario, or `profile.costs.NAME.ns`
    #[arg(long, value_name = "KEY")]
    parameter: String,
    /// Its values
    #[arg(long, value_delimiter = ',', value_name = "VALUES", conflicts_with_all = ["from", "to", "steps"])]
    values: Vec<f64>,
    /// First value
    #[arg(long, value_name = "VALUE", requires = "to")]
    from: Option<f64>,
    /// Last value
    #[arg(long, value_name = "VALUE", requires = "from")]
    to: Option<f64>,
    /// How many values from first to last
    #[arg(long, value_name = "N", default_value_t = 11)]
    steps: u32,
    /// Values at equal ratios instead of equal distances
    #[arg(long)]
    log: bool,
    /// Another setting for all curves; may be repeated
    #[arg(long = "set", value_name = "KEY=VALUE")]
    settings: Vec<String>,
    /// Only this curve; may be repeated
    #[arg(long = "curve", value_name = "CURVE")]
    curves: Vec<String>,
    /// Measure this figure as well, for example `cpu.busy_pct`; may be repeated
    #[arg(long = "figure", value_name = "FIGURE")]
    figures: Vec<String>,
    #[command(flatten)]
    how: How,
    #[command(flatten)]
    outputs: Outputs,
}

#[derive(clap::Args, Debug)]
struct TraceArgs {
    /// The experiment
    #[arg(value_name = "ID")]
    id: String,
    /// Its curve; the first without this
    #[arg(long, value_name = "CURVE")]
    curve: Option<String>,
    /// Value of the swept parameter; the middle one without this
    #[arg(long, value_name = "VALUE")]
    at: Option<f64>,
    /// Recording begins this long after the start of the run, in ms
    #[arg(long, value_name = "MS", default_value_t = 200.0)]
    start_ms: f64,
    /// Length of the recording, in ms
    #[arg(long, value_name = "MS", default_value_t = 1.0)]
    ms: f64,
    /// Recording begins when the next packet arrives, and ends with that packet
    #[arg(long, conflicts_with = "ms")]
    packet: bool,
    /// Write the trace for ui.perfetto.dev to FILE (`-`: standard output)
    #[arg(long, value_name = "FILE")]
    perfetto: Option<PathBuf>,
    /// The same seed gives the same trace
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    #[command(flatten)]
    source: Source,
}

#[derive(clap::Args, Debug)]
struct ReportArgs {
    /// Experiments, `all` or `real`; all that are modelled without any
    #[arg(value_name = "ID")]
    ids: Vec<String>,
    /// Where to write it
    #[arg(short, long, value_name = "FILE", default_value = "plimsoll-lab.html")]
    output: PathBuf,
    #[command(flatten)]
    how: How,
}

#[derive(clap::Args, Debug)]
struct MergeArgs {
    /// Files of results, as `--resume` keeps them
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Where to write all of them
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
}

fn parse_shard(text: &str) -> Result<Shard, String> {
    let parts = text.split_once('/');
    let parsed = parts.and_then(|(index, of)| Some((index.parse().ok()?, of.parse().ok()?)));
    match parsed {
        Some((index, of)) if (1..=of).contains(&index) => Ok(Shard { index, of }),
        _ => Err("write I/N with I from 1 to N".to_owned()),
    }
}

pub(crate) fn run(args: &Args) -> crate::Result<()> {
    match &args.command {
        Command::List(source) => list(source),
        Command::Run(args) => run_experiments(args),
        Command::Explain(args) => explain(args),
        Command::Sweep(args) => sweep(args),
        Command::Trace(args) => show_trace(args),
        Command::Report(args) => report(args),
        Command::Calibrate(args) => calibrate::run(args),
        Command::Merge(args) => merge(args),
    }
}

impl Source {
    fn catalogue(&self) -> crate::Result<Catalogue> {
        Ok(match &self.experiments {
            Some(directory) => Catalogue::read(directory)?,
            None => Catalogue::built_in()?,
        })
    }
}

impl How {
    fn seeds(&self, default: u32) -> u32 {
        if self.quick {
            return 1;
        }
        self.seeds.unwrap_or(default)
    }

    /// Says what a part of a run has done; true if this is one.
    fn was_part(&self) -> crate::Result<bool> {
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
    fn run(
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

impl Outputs {
    fn is_none(&self) -> bool {
        self.json.is_none() && self.csv.is_none() && self.html.is_none()
    }

    /// Writes what was asked for; true if standard output is taken.
    fn write(&self, runs: &[Run]) -> crate::Result<bool> {
        if let Some(target) = &self.json {
            let mut writer = output::json_writer(target)?;
            serde_json::to_writer_pretty(&mut *writer, &Document::new(runs))?;
            writeln!(writer)?;
        }
        if let Some(target) = &self.csv {
            output::json_writer(target)?.write_all(csv(runs).as_bytes())?;
        }
        if let Some(target) = &self.html {
            output::write_page(target, &html(runs, crate::PROGRAM)?)?;
        }
        let taken = [&self.json, &self.csv];
        Ok(taken
            .iter()
            .any(|target| target.as_deref() == Some(Path::new("-"))))
    }
}

fn list(source: &Source) -> crate::Result<()> {
    let mut text = String::new();
    for experiment in source.catalogue()?.all() {
        let _ = writeln!(
            text,
            "{:<24} {} ({} curves, {} claims, {})",
            experiment.id,
            experiment.title,
            experiment.curves.len(),
            experiment.claims.len(),
            experiment.runs_on()
        );
    }
    let _ = writeln!(text, "Machine profiles: {}", profiles().join(", "));
    output::print(&text)
}

/// Those that are modelled alone run on both hosts. What needs no model has none.
fn run_beside_real_packets(experiments: &mut [Experiment]) {
    for experiment in experiments {
        if experiment.host == HostKind::Modelled {
            experiment.host = HostKind::Testbed;
        }
    }
}

fn run_experiments(args: &RunArgs) -> crate::Result<()> {
    let mut experiments = args.how.source.catalogue()?.select(&args.ids)?;
    if args.testbed {
        run_beside_real_packets(&mut experiments);
    }
    let claims_alone = !args.values && args.outputs.is_none();
    let runs = args.how.run(&experiments, SEEDS, claims_alone)?;
    if args.how.was_part()? {
        return Ok(());
    }
    if !args.outputs.write(&runs)? {
        if args.values {
            output::print(&values(&runs))?;
        }
        output::print(&table(&runs))?;
    }
    Ok(())
}

fn explain(args: &ExplainArgs) -> crate::Result<()> {
    let catalogue = args.source.catalogue()?;
    output::print(&plimsoll_lab::explain(catalogue.get(&args.id)?)?)
}

fn sweep(args: &SweepArgs) -> crate::Result<()> {
    let catalogue = args.how.source.catalogue()?;
    let values = match (args.from, args.to) {
        (Some(from), Some(to)) => range(from, to, args.steps, args.log),
        _ => args.values.clone(),
    };
    let plan = SweepPlan {
        parameter: args.parameter.clone(),
        values,
        log: args.log,
        settings: args.settings.clone(),
        curves: args.curves.clone(),
        figures: args.figures.clone(),
    };
    let experiment = catalogue.get(&args.id)?.with_sweep(&plan)?;
    // A sweep asks for values, not for a judgement.
    let runs = args.how.run(&[experiment], 1, false)?;
    if args.how.was_part()? {
        return Ok(());
    }
    plan.check_figures(&runs)?;
    if !args.outputs.write(&runs)? {
        output::print(&csv(&runs))?;
    }
    Ok(())
}

fn show_trace(args: &TraceArgs) -> crate::Result<()> {
    let catalogue = args.source.catalogue()?;
    let recorded = trace::record(
        catalogue.get(&args.id)?,
        &TracePlan {
            curve: args.curve.clone(),
            x: args.at,
            start_ms: args.start_ms,
            duration_ms: args.ms,
            one_packet: args.packet,
            seed: args.seed,
        },
    )?;
    let Some(target) = &args.perfetto else {
        return output::print(&trace::text(&recorded));
    };
    let mut writer = output::json_writer(target)?;
    serde_json::to_writer(&mut *writer, &trace::perfetto(&recorded))?;
    writeln!(writer)?;
    Ok(())
}

fn report(args: &ReportArgs) -> crate::Result<()> {
    let catalogue = args.how.source.catalogue()?;
    let experiments = match args.ids.as_slice() {
        [] => catalogue.modelled(),
        ids => catalogue.select(ids)?,
    };
    let runs = args.how.run(&experiments, SEEDS, false)?;
    if args.how.was_part()? {
        return Ok(());
    }
    output::write_page(&args.output, &html(&runs, crate::PROGRAM)?)?;
    output::print(&format!("wrote {}\n", args.output.display()))
}

fn merge(args: &MergeArgs) -> crate::Result<()> {
    let results = Cache::merge(&args.files, &args.output)?;
    output::print(&format!(
        "{results} results are in {}\n",
        args.output.display()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_needs_no_model_stays_without_one_beside_real_packets() {
        let catalogue = Catalogue::built_in().unwrap();
        let ids = ["mr-fig2", "real-mr-fig5"].map(str::to_owned);
        let mut experiments = catalogue.select(&ids).unwrap();
        run_beside_real_packets(&mut experiments);
        let hosts: Vec<HostKind> = experiments.iter().map(|one| one.host).collect();
        assert_eq!(hosts, [HostKind::Testbed, HostKind::Real]);
    }
}
