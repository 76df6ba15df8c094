//! `plimsoll lab`: the papers' experiments, and ours, on a modelled host or on real
//! packets.

mod calibrate;
mod how;
mod outputs;

use std::fmt::Write as _;
use std::path::PathBuf;

use plimsoll_lab::{
    Cache, Experiment, HostKind, SweepPlan, TracePlan, csv, html, profiles, range, table, trace,
    values,
};

pub(crate) use how::run_modelled;
use how::{How, Source};
use outputs::Outputs;

use crate::output::{self, Target};

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
    #[arg(long, value_name = "N", default_value_t = 11, value_parser = clap::value_parser!(u32).range(1..))]
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
    /// Experiments, `all` that are modelled, or `real`
    #[arg(value_name = "ID", default_value = "all")]
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
    let outputs = args.outputs.open()?;
    let runs = args.how.run(&experiments, SEEDS, claims_alone)?;
    if args.how.was_part()? {
        return Ok(());
    }
    outputs.deliver(&runs, || match args.values {
        true => format!("{}{}", values(&runs), table(&runs)),
        false => table(&runs),
    })
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
    let outputs = args.outputs.open()?;
    let runs = args.how.run(&[experiment], 1, false)?;
    if args.how.was_part()? {
        return Ok(());
    }
    plan.check_figures(&runs)?;
    outputs.deliver(&runs, || csv(&runs))
}

fn show_trace(args: &TraceArgs) -> crate::Result<()> {
    let catalogue = args.source.catalogue()?;
    let perfetto = Target::open_given(args.perfetto.as_ref())?;
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
    match perfetto {
        Some(target) => target.put(&(serde_json::to_string(&trace::perfetto(&recorded))? + "\n")),
        None => output::print(&trace::text(&recorded)),
    }
}

fn report(args: &ReportArgs) -> crate::Result<()> {
    let experiments = args.how.source.catalogue()?.select(&args.ids)?;
    let page = Target::open_page(&args.output)?;
    let runs = args.how.run(&experiments, SEEDS, false)?;
    if args.how.was_part()? {
        return Ok(());
    }
    page.put(&html(&runs, &output::made_by())?)?;
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
    use plimsoll_lab::Catalogue;

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
