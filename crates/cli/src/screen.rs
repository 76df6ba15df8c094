//! `plimsoll screen`: the screening firewall.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use clap::ValueEnum;
use plimsoll_core::config::Fraction;
use plimsoll_core::cpu_limit::CpuLimitConfig;
use plimsoll_kernel::error::with_causes;
use plimsoll_programs::screen::{
    Counts, Error, Firewall, PortCounts, Remember, Rules, ScreenConfig, Verdict,
};
use plimsoll_report::{Machine, SCHEMA};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::failure::Context;
use crate::output::{self, Target};
use crate::polling::DriverArgs;

/// Let frames pass between two interfaces only if rules say so, decided in user space.
///
/// Both interfaces are taken from the kernel (AF_XDP on all receive queues) until it ends.
/// SIGHUP reads the rules anew, without loss; rules that are wrong change nothing.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Interface towards the inside
    #[arg(value_name = "INSIDE")]
    inside: String,
    /// Interface towards the outside
    #[arg(value_name = "OUTSIDE")]
    outside: String,
    /// Rules: filter expressions with verdicts, the first that matches decides
    #[arg(long, value_name = "FILE")]
    rules: PathBuf,
    /// Filter expression of frames that pass undecided, also while the screen is overloaded
    #[arg(long, value_name = "FILTER")]
    protect: Option<String>,
    /// What becomes of frames when the screen dies or hangs, or this process is killed
    #[arg(long, value_enum, default_value_t = Failure::Closed)]
    on_failure: Failure,
    /// Frames that wait for the screen, per interface
    #[arg(long, value_name = "FRAMES", default_value_t = ScreenConfig::QUEUE_FRAMES, value_parser = clap::value_parser!(u32).range(4..=65_536))]
    queue: u32,
    /// Frames of each receive queue in a turn of polling
    #[arg(long, value_name = "FRAMES", default_value_t = ScreenConfig::QUOTA, value_parser = clap::value_parser!(u32).range(1..=1024))]
    quota: u32,
    /// Have the driver do again what was decided, for so many flows of each interface, where
    /// rules look at addresses, protocol and ports alone. Some frames may overtake those of their
    /// flow that wait in user space
    #[arg(long, value_name = "FLOWS", value_parser = clap::value_parser!(u32).range(1..=i64::from(Remember::FLOWS_MAX)))]
    remember: Option<u32>,
    /// Decide anew on a flow after this many seconds
    #[arg(long, value_name = "S", requires = "remember", default_value_t = Remember::LIFETIME.as_secs(), value_parser = clap::value_parser!(u64).range(1..=3600))]
    remember_seconds: u64,
    #[arg(long, value_name = "PERCENT", help = cpu_limit_help(), value_parser = clap::value_parser!(u32).range(1..=99))]
    cpu_limit: Option<u32>,
    #[command(flatten)]
    driver: DriverArgs,
    /// Write what it came to as one JSON document to FILE (`-`: standard output)
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

fn cpu_limit_help() -> String {
    format!(
        "Leave at least the rest of a CPU to processes that want it: screening and the kernel's \
         polling for it take this part together, in percent. Default: {}; given, it takes Linux \
         6.8",
        CpuLimitConfig::LIMIT.as_percent()
    )
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Failure {
    /// They are discarded
    Closed,
    /// They pass
    Open,
}

const EXAMPLES: &str = "Needs root, Linux 6.2 or newer with BTF, and a driver with native XDP.\n\
    A file of rules:\n  \
    default = \"discard\"\n  \
    [[rule]]\n  \
    filter = \"arp or icmp6 or tcp port 443\"\n  \
    verdict = \"accept\"\n\
    Example:\n  \
    plimsoll screen eth0 eth1 --rules rules.toml --protect 'tcp port 22'";

/// How often signals are looked for.
const LOOK: Duration = Duration::from_millis(20);

pub(crate) fn run(args: &Args) -> crate::Result<()> {
    let rules = Rules::read(&args.rules)?;
    let json = Target::open_given(args.json.as_ref())?;
    let [stop, hangup] = [(); 2].map(|()| Arc::new(AtomicBool::new(false)));
    for (signal, flag) in [(SIGINT, &stop), (SIGTERM, &stop), (SIGHUP, &hangup)] {
        signal_hook::flag::register(signal, Arc::clone(flag)).context("cannot catch signals")?;
    }
    let mut config = ScreenConfig::between(&args.inside, &args.outside);
    config.protected.clone_from(&args.protect);
    config.queue_frames = args.queue;
    config.quota = args.quota;
    config.cpu_limit = args.cpu_limit.map(Fraction::from_percent);
    config.any_driver = args.driver.any_driver;
    config.remember = args.remember.map(|flows| Remember {
        flows,
        lifetime: Duration::from_secs(args.remember_seconds),
    });
    config.on_failure = match args.on_failure {
        Failure::Closed => Verdict::Discard,
        Failure::Open => Verdict::Accept,
    };
    let ended = screen(args, &config, rules, [&stop, &hangup])?;
    let counts = ended.as_ref().map_or_else(Error::counts, Some);
    let reported = counts.map_or(Ok(()), |counts| report(json, counts));
    // Why it ended comes before that nobody could be told what it came to.
    ended?;
    reported
}

/// Screens until the first of these is set. The interfaces are the kernel's again when this
/// returns: who reads what it came to may take any time.
fn screen(
    args: &Args,
    config: &ScreenConfig,
    rules: Rules,
    [stop, hangup]: [&AtomicBool; 2],
) -> crate::Result<Result<Counts, Error>> {
    // Before all threads, and dropped last.
    let mut keepers = Firewall::keepers(config)?;
    let firewall = Firewall::open(config, &mut keepers)?;
    let ended = thread::scope(|scope| {
        let running = scope.spawn(|| firewall.run(Box::new(rules), stop));
        let mut is_told = false;
        while !running.is_finished() {
            if !is_told && firewall.is_screening() {
                is_told = true;
                let (inside, outside) = (args.inside.as_str(), args.outside.as_str());
                output::say(format_args!("screening between {inside} and {outside}"));
                output::warn_of_frames([inside, outside]);
            }
            if let Some(problem) = firewall.take_problem() {
                output::say(format_args!("plimsoll: {problem}"));
            }
            if hangup.swap(false, Ordering::Relaxed) {
                read_anew(args, &firewall);
            }
            thread::sleep(LOOK);
        }
        running.join()
    });
    Ok(ended.unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
}

fn read_anew(args: &Args, firewall: &Firewall) {
    match Rules::read(&args.rules) {
        Ok(rules) => {
            firewall.reload().put(Box::new(rules));
            output::say("rules read anew");
        }
        Err(error) => output::say(format_args!(
            "plimsoll: the rules stay as they are: {}",
            with_causes(&error)
        )),
    }
}

fn report(json: Option<Target>, counts: &Counts) -> crate::Result<()> {
    output::say(table(counts));
    let document = serde_json::json!({
        "schema": SCHEMA, "machine": Machine::read(None), "results": counts, "goals": [],
    });
    json.map_or(Ok(()), |json| json.put_json(&document))
}

fn table(counts: &Counts) -> String {
    let row = |side: &str, counts: &PortCounts| {
        let lost = counts.ring + counts.queue + counts.output;
        format!(
            "{side:<8} {:>12} {:>12} {:>12} {:>12} {:>12}",
            counts.received(),
            counts.accepted,
            counts.discarded,
            counts.failed,
            lost
        )
    };
    let head = "from         received     accepted    discarded    undecided         lost";
    let (inside, outside) = (
        row("inside", &counts.inside),
        row("outside", &counts.outside),
    );
    format!("{head}\n{inside}\n{outside}")
}
