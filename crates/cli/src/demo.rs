//! `plimsoll demo`: what Plimsoll is for, with real packets.

use std::cmp::Ordering;
use std::fmt::Display;
use std::path::PathBuf;
use std::time::Duration;

use crate::bench::{given_or, named};
use crate::failure::Context;
use plimsoll_bench::demo::{self, Bar, Plan, Scene, chart};
use plimsoll_kernel::error::with_causes;
use plimsoll_lab::{Catalogue, Document, Options, Run, html, table, values};
use plimsoll_testbed::blast::RATE_MAX_PPS;

use crate::lab;
use crate::output::{self, Target};

/// Flood stock servers and guarded ones, and a router, and show both (four minutes).
///
/// Everything happens between network namespaces made for it, which are
/// removed again. A sink is flooded with up to 15 times the packets that it can
/// handle; another server's client measures what that costs it. nginx serves beside
/// SYNs for another port. A DNS server is flooded on its own port, and its own client
/// measures that. Packets flood a router that also computes and speaks BGP: the kernel
/// forwards, then `plimsoll forward`.
#[derive(clap::Args, Debug)]
#[command(
    after_help = "Needs root, two CPUs, Linux 6.8 or newer with BTF, and nginx, wrk, nsd, dnsperf, bird2, iproute2 and ethtool \
                        (scripts/setup installs them). Where root or a suitable kernel is missing, the UDP \
                        and SYN floods run on a modelled host, and the output says so."
)]
pub(crate) struct Args {
    /// Also write the figures as one JSON document to FILE (`-`: standard output)
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Also write the figures as one self-contained HTML page to FILE
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Show only these scenes: udp, syn, dns, router
    #[arg(long, value_name = "SCENE", value_delimiter = ',', value_parser = named(&Scene::ALL, Scene::name))]
    only: Vec<Scene>,
    #[arg(long, value_name = "N", help = defaults_to("How often each case runs", [plan().runs]), value_parser = clap::value_parser!(u8).range(1..=99))]
    runs: Option<u8>,
    #[arg(long, value_name = "MULTIPLES", help = defaults_to("Floods on the UDP sink, as multiples of its maximum loss-free rate", plan().flood_multiples), value_delimiter = ',', value_parser = multiple)]
    floods: Option<Vec<f64>>,
    #[arg(long, value_name = "RATES", help = defaults_to("Floods on the other TCP listener, in SYN/s", plan().syn_rates_pps), value_delimiter = ',', value_parser = clap::value_parser!(u64).range(..=RATE_MAX_PPS))]
    syns: Option<Vec<u64>>,
    #[arg(long, value_name = "RATES", help = defaults_to("Floods on the DNS server's own port, in queries/s", plan().dns_rates_pps), value_delimiter = ',', value_parser = clap::value_parser!(u64).range(..=RATE_MAX_PPS))]
    queries: Option<Vec<u64>>,
    #[arg(long, value_name = "MULTIPLES", help = defaults_to("Floods across the router, as multiples of the kernel's maximum loss-free rate", plan().router_multiples), value_delimiter = ',', value_parser = multiple)]
    crossing: Option<Vec<f64>>,
    #[arg(long, value_name = "US", help = defaults_to("Interrupt holdoff of the flooded servers' interface, in microseconds", [plan().holdoff.as_micros()]), value_parser = clap::value_parser!(u64).range(1..=10_000))]
    holdoff_us: Option<u64>,
    /// Use the modelled host even if this one could do it with real packets; its cases are fixed
    #[arg(long, conflicts_with_all = ["only", "runs", "floods", "syns", "queries", "crossing", "holdoff_us", "guard"])]
    modelled: bool,
    /// Arguments for `plimsoll guard`, for example "--threaded 5 --poll-cpu 1"
    #[arg(long, value_name = "ARGUMENTS", allow_hyphen_values = true)]
    guard: Option<String>,
}

/// Options are kept as given, so that those for real packets alone are known: help alone says
/// what stands for one that was not.
fn defaults_to<T: Display>(text: &str, values: impl IntoIterator<Item = T>) -> String {
    let values: Vec<_> = values.into_iter().map(|value| value.to_string()).collect();
    format!("{text} [default: {}]", values.join(","))
}

/// Each once, from light to heavy.
fn ascending<T: Clone + PartialOrd>(given: Option<&Vec<T>>, default: Vec<T>) -> Vec<T> {
    let Some(given) = given else { return default };
    let mut floods = given.clone();
    // None is NaN.
    floods.sort_by(|one, other| one.partial_cmp(other).unwrap_or(Ordering::Equal));
    floods.dedup();
    floods
}

fn multiple(text: &str) -> Result<f64, String> {
    let multiple = text.parse().ok();
    let allowed = multiple.filter(|multiple| (0.0..=1000.0).contains(multiple));
    allowed.ok_or_else(|| "must be a number from 0 to 1000".to_owned())
}

fn plan() -> Plan {
    Plan::new(PathBuf::new())
}

pub(crate) fn run(args: &Args) -> crate::Result<()> {
    let json = Target::open_given(args.json.as_ref())?;
    let page = args.html.as_deref().map(Target::open_page).transpose()?;
    if args.modelled {
        return modelled(args, (json, page), "as asked for");
    }
    let program = std::env::current_exe().context("cannot find this program")?;
    let document = match demo::run(&args.plan(program), output::progress) {
        Err(error) if error.is_missing() && !error.is_missing_program() => {
            let given = args.for_real_packets();
            if given.is_empty() {
                return modelled(args, (json, page), &with_causes(&error));
            }
            let given = given.join(" and ");
            return Err(crate::failure::Failure::from(error).context(format!(
                "{given}: for real packets only; without, the demo runs on a modelled host here"
            )));
        }
        document => document?,
    };
    output::clear_progress();
    let delivered = output::deliver(json, &document, || document.text());
    if let Some(page) = page {
        page.put(&document.page()?)?;
        args.name_page();
    }
    delivered
}

impl Args {
    fn plan(&self, program: PathBuf) -> Plan {
        let plan = Plan::new(program);
        let arguments = self.guard.iter().flat_map(|text| text.split_whitespace());
        Plan {
            scenes: given_or(&self.only, plan.scenes),
            runs: self.runs.map_or(plan.runs, Into::into),
            flood_multiples: ascending(self.floods.as_ref(), plan.flood_multiples),
            syn_rates_pps: ascending(self.syns.as_ref(), plan.syn_rates_pps),
            dns_rates_pps: ascending(self.queries.as_ref(), plan.dns_rates_pps),
            router_multiples: ascending(self.crossing.as_ref(), plan.router_multiples),
            holdoff: self.holdoff_us.map_or(plan.holdoff, Duration::from_micros),
            guard_arguments: arguments.map(str::to_owned).collect(),
            ..plan
        }
    }

    /// Says where the page is, so that nobody has to look for it.
    fn name_page(&self) {
        if let Some(target) = &self.html {
            output::say(format_args!("page written: {}", target.display()));
        }
    }

    /// The options given that a modelled host cannot honour.
    fn for_real_packets(&self) -> Vec<&'static str> {
        let all = [
            ("--only", !self.only.is_empty()),
            ("--runs", self.runs.is_some()),
            ("--floods", self.floods.is_some()),
            ("--syns", self.syns.is_some()),
            ("--queries", self.queries.is_some()),
            ("--crossing", self.crossing.is_some()),
            ("--holdoff-us", self.holdoff_us.is_some()),
            ("--guard", self.guard.is_some()),
        ];
        let given = all.into_iter().filter(|(_, given)| *given);
        given.map(|(name, _)| name).collect()
    }
}

/// The experiments that model the demo's two floods.
const MODELLED: [&str; 2] = ["demo-udp", "demo-syn"];

/// The UDP and the SYN flood on the modelled host, for whoever cannot send real packets.
fn modelled(
    args: &Args,
    (json, page): (Option<Target>, Option<Target>),
    why: &str,
) -> crate::Result<()> {
    output::clear_progress();
    output::say(format_args!(
        "No real packets ({why}): the demo runs on a modelled host instead."
    ));
    let experiments = Catalogue::built_in()?.select(&MODELLED.map(str::to_owned))?;
    let runs = lab::run_modelled(&experiments, &Options::default())?;
    let delivered = output::deliver(json, &Document::new(&runs), || {
        let note = "Modelled host, virtual time: these are not measurements of this machine.";
        let charts: String = runs.iter().map(chart_of).collect();
        let (values, table) = (values(&runs), table(&runs));
        format!("{note}\n\n{charts}{values}{table}")
    });
    if let Some(page) = page {
        page.put(&html(&runs, &output::made_by())?)?;
        args.name_page();
    }
    delivered
}

/// The first measure of an experiment as bars of stock and guard, where they are above nothing.
fn chart_of(run: &Run) -> String {
    let measure = &run.experiment.measures[0];
    let mut bars = Vec::new();
    for (index, load) in run.experiment.sweep.values.iter().enumerate() {
        let bar = |name: &'static str| {
            let curve = run.curves.iter().find(|curve| curve.id == name)?;
            Some((*load, name, curve.estimate(index, &measure.of)?.value))
        };
        let both: Vec<Bar> = ["stock", "guard"].into_iter().filter_map(bar).collect();
        if both.iter().any(|(.., value)| *value > 0.0) {
            bars.extend(both);
        }
    }
    let (of, what) = (&run.experiment.title, &measure.label);
    chart(&format!("{of}: {what}, {}", measure.unit), &bars)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        args: Args,
    }

    fn parsed(words: &str) -> Result<Plan, clap::Error> {
        let words = ["demo"].into_iter().chain(words.split(' '));
        Command::try_parse_from(words).map(|command| command.args.plan(PathBuf::new()))
    }

    /// The last one had been taken for the highest, and a second one of a kind measured in vain.
    #[test]
    fn floods_may_be_given_in_any_order() {
        let plan = parsed("--floods 15,0,5,15 --syns 150000,0 --crossing 2,0.5").unwrap();
        assert_eq!(plan.flood_multiples, [0.0, 5.0, 15.0]);
        assert_eq!(plan.syn_rates_pps, [0, 150_000]);
        assert_eq!(plan.router_multiples, [0.5, 2.0]);
        assert_eq!(plan.dns_rates_pps, super::plan().dns_rates_pps);
    }

    #[test]
    fn floods_that_nobody_can_send_are_refused_before_the_work() {
        for wrong in [
            "--floods=nan",
            "--floods=-1",
            "--crossing=inf",
            "--syns=20000001",
            "--queries=99999999",
        ] {
            let refused = parsed(wrong).err().unwrap();
            let is_value = refused.kind() == clap::error::ErrorKind::ValueValidation;
            assert!(is_value, "{wrong}: {refused}");
        }
    }
}
