//! `plimsoll triggers`: when this machine could fire soft timers.

use std::path::PathBuf;

use clap::ValueEnum;
use clap::builder::PossibleValue;
use plimsoll_bench::triggers::{self, Plan, Workload};

use crate::output::{self, Target};

/// Measure how often this kernel passes moments at which a soft timer could fire.
///
/// Probes stand at the ends of system calls, softirqs and interrupts, at page
/// faults, at each packet's output and at idle's entry and exit. For each workload
/// you see the intervals between these moments, the share of each source, and what
/// changes without it. The probes' own cost is measured and shown. Nothing is
/// changed on this machine; nginx runs between two network namespaces made for it.
#[derive(clap::Args, Debug)]
#[command(after_help = HELP)]
pub(crate) struct Args {
    /// Workloads to measure, one after the other
    #[arg(value_name = "WORKLOAD", default_values_t = [Choice(Workload::Idle)])]
    workloads: Vec<Choice>,
    /// How long each is measured
    #[arg(long, value_name = "S", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=60))]
    seconds: u32,
    /// States recorded per CPU at most, in thousands (8 kB each)
    #[arg(long, value_name = "K", default_value_t = 4000, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    kilo_states: u32,
    /// Write the figures as one JSON document to FILE (`-`: standard output instead of the tables)
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Also write the curves as one self-contained HTML page to FILE
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

const HELP: &str = "\
Workloads:
  idle            nothing of ours: whatever runs on this machine
  nginx           nginx saturated by wrk
  nginx-compute   the same beside a process that computes on nginx's CPU
  build           gcc compiles a small file again and again
  files           a file is read from the disk again and again: its cached pages are
                  dropped each time
  media           1000 datagrams/s, each decoded for 300 us
Needs root and a kernel with BTF; nginx and nginx-compute also two CPUs, nginx, wrk and
ethtool; build gcc (scripts/setup installs them).";

/// A workload on the command line.
#[derive(Clone, Copy, Debug)]
struct Choice(Workload);

impl ValueEnum for Choice {
    fn value_variants<'a>() -> &'a [Self] {
        const CHOICES: [Choice; Workload::ALL.len()] = {
            let mut choices = [Choice(Workload::Idle); Workload::ALL.len()];
            let mut index = 0;
            while index < choices.len() {
                choices[index] = Choice(Workload::ALL[index]);
                index += 1;
            }
            choices
        };
        &CHOICES
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        Some(PossibleValue::new(self.0.name()))
    }
}

impl std::fmt::Display for Choice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.0.name())
    }
}

pub(crate) fn run(args: &Args) -> crate::Result<()> {
    let workloads: Vec<Workload> = args.workloads.iter().map(|choice| choice.0).collect();
    let plan = Plan {
        seconds: args.seconds,
        states: args.kilo_states * 1000,
    };
    let json = Target::open_given(args.json.as_ref())?;
    let page = args.html.as_deref().map(Target::open_page).transpose()?;
    let document = triggers::measure(&workloads, plan, output::progress);
    output::clear_progress();
    let document = document?;
    let delivered = output::deliver(json, &document, || document.tables());
    if let Some(page) = page {
        page.put(&document.html()?)?;
    }
    delivered
}
