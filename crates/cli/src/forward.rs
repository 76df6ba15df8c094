//! `plimsoll forward`: a router that keeps forwarding under overload.

use std::io::IsTerminal;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use clap::ValueEnum;
use plimsoll_core::config::Fraction;
use plimsoll_core::cpu_limit::CpuLimitConfig;
use plimsoll_metrics::MetricsServer;
use plimsoll_programs::forward::{
    self, Config, DataPath, Limits, Live, ReversePath, Router, Status,
};
use signal_hook::consts::{SIGINT, SIGTERM};

use crate::failure::Context;
use crate::metrics::MetricsArgs;
use crate::output::{self, Target};
use crate::polling::{DriverArgs, parse_cpu};

/// Forward IPv4 and IPv6 packets between interfaces, past the kernel's stack.
///
/// Routes, neighbours and addresses stay the kernel's: `ip route`, FRR and BIRD are in
/// charge. Packets that are not plain forwarding (own addresses, ARP, options, expired
/// TTLs, no route or neighbour) go to the kernel. Packets that are sent on here pass no
/// filter: netfilter does not see them. Everything is as before when it ends, also after
/// a kill.
#[derive(clap::Args, Debug)]
#[command(after_help = HELP)]
pub(crate) struct Args {
    /// Interfaces of this network namespace, at least two
    #[arg(value_name = "IFACE", required = true, num_args = 2..)]
    interfaces: Vec<String>,
    /// Where plain packets are forwarded
    #[arg(long, value_enum, default_value_t = PathChoice::Xdp)]
    path: PathChoice,
    /// Drop packets whose way back to their source leads elsewhere (RFC 3704); without this,
    /// as the kernel's `rp_filter` says for each interface, which is for IPv4 alone
    #[arg(long, value_enum, value_name = "HOW")]
    reverse_path: Option<ReverseChoice>,
    /// Filter expression of packets that pass before all others, also during a flood that the
    /// adapter's ring holds, with `--path user`
    #[arg(long, value_name = "FILTER")]
    protect: Option<String>,
    #[arg(long, value_name = "PERCENT", help = cpu_limit_help(), value_parser = clap::value_parser!(u32).range(1..=99))]
    cpu_limit: Option<u32>,
    /// Poll on this CPU alone; with --cpu-limit, or --path user
    #[arg(long, value_name = "CPU", value_parser = parse_cpu)]
    cpu: Option<usize>,
    #[command(flatten)]
    driver: DriverArgs,
    /// Packets of an interface in a turn of polling, with `--path user`
    #[arg(long, value_name = "PACKETS", default_value_t = Config::default().quota, value_parser = clap::value_parser!(u32).range(1..=1024))]
    quota: u32,
    /// Packets a second that the kernel answers with an ICMP error, at most; 0: no limit
    #[arg(long, value_name = "PPS", default_value_t = Limits::default().answered_pps)]
    answered_pps: u64,
    /// Packets a second whose next hop the kernel must ask for its address; 0: no limit
    #[arg(long, value_name = "PPS", default_value_t = Limits::default().unresolved_pps)]
    unresolved_pps: u64,
    /// Packets a second that the kernel forwards or judges: options, tunnels, rules, doubtful
    /// sources, those that it cuts; 0: no limit
    #[arg(long, value_name = "PPS", default_value_t = Limits::default().slow_pps)]
    slow_pps: u64,
    /// Write what was done as one JSON document to FILE at the end (`-`: standard output instead
    /// of the table)
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    #[command(flatten)]
    metrics: MetricsArgs,
    /// End after this many seconds
    #[arg(long, value_name = "S", value_parser = clap::value_parser!(u32).range(0..=1_000_000_000))]
    seconds: Option<u32>,
}

const HELP: &str = "\
Needs root, native XDP on every interface, Linux 6.3 or newer with BTF (6.8 with
--cpu-limit), and a host that is a router:
sysctl -w net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1
Limits in packets a second are those of each interface and CPU; with --path user those of
user space are for all interfaces together.
Example: plimsoll forward eth0 eth1 --cpu-limit 75";

fn cpu_limit_help() -> String {
    format!(
        "Leave at least the rest of each CPU to processes that want it: forwarding takes this \
         part, in percent; polling moves into threads, which takes Linux 6.8. Default: none, and \
         {} with --path user",
        CpuLimitConfig::LIMIT.as_percent()
    )
}

#[derive(ValueEnum, Clone, Copy, Debug)]
enum PathChoice {
    /// In the driver, by the kernel's tables
    Xdp,
    /// In this process, over AF_XDP
    User,
}

#[derive(ValueEnum, Clone, Copy, Debug)]
enum ReverseChoice {
    /// Look at no source
    Off,
    /// The way back must lead to the interface that the packet came in by
    Strict,
    /// There must be a way back
    Loose,
}

/// How often the table on a terminal is drawn anew.
const REDRAW: Duration = Duration::from_secs(1);
const LOOK: Duration = Duration::from_millis(50);
/// A reading takes milliseconds; who waits longer asks a router that is ending.
const PATIENCE: Duration = Duration::from_secs(2);

/// Somebody who wants the status.
type Question = Sender<Status>;

pub(crate) fn run(args: &Args) -> crate::Result<()> {
    let config = config(args);
    let json = Target::open_given(args.json.as_ref())?;
    let metrics = args.metrics.server()?;
    let keepers = Router::keepers(&config)?;
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&stop)).context("cannot catch signals")?;
    }
    let router = Router::start(&config, keepers)?;
    if let Some(problem) = router.problem() {
        output::say(format_args!("plimsoll: {problem}"));
    }
    output::warn_of_frames(args.interfaces.iter().map(String::as_str));
    output::warn_of(forward::warnings(&config));
    let (asker, questions) = channel();
    if let Some(server) = metrics {
        serve_metrics(server, asker.clone())?;
    }
    output::say(format_args!(
        "plimsoll: forwarding between {} until Ctrl-C",
        args.interfaces.join(", ")
    ));
    let end = args
        .seconds
        .map(|s| Instant::now() + Duration::from_secs(s.into()));
    let mut top = Top::new(&router)?;
    let mut told = false;
    while !stop.load(Ordering::Relaxed) && end.is_none_or(|end| Instant::now() < end) {
        answer(&router, &questions)?;
        if let Some(failure) = router.failure().filter(|_| !told) {
            told = true;
            output::say(format_args!(
                "plimsoll: forwarding ended by itself, and the kernel forwards: {failure}. Start it again"
            ));
        }
        if let Some(gone) = router.take_gone() {
            output::say(format_args!(
                "plimsoll: {gone} is gone: if it comes back, the kernel forwards by it until you start this again"
            ));
        }
        top.draw(&router)?;
    }
    let status = router.end()?;
    output::deliver(json, &status, || format!("{status}\n"))
}

/// What happens now, drawn anew each second on a terminal.
struct Top {
    shown: Status,
    due: Instant,
}

impl Top {
    fn new(router: &Router) -> crate::Result<Self> {
        Ok(Self {
            shown: router.status()?,
            due: Instant::now() + REDRAW,
        })
    }

    fn draw(&mut self, router: &Router) -> crate::Result<()> {
        if !std::io::stdout().is_terminal() || Instant::now() < self.due {
            return Ok(());
        }
        self.due += REDRAW;
        let before = std::mem::replace(&mut self.shown, router.status()?);
        let live = Live {
            before: &before,
            now: &self.shown,
        };
        output::clear_screen();
        output::print(&format!("{live}\n"))
    }
}

fn serve_metrics(server: MetricsServer, asker: Sender<Question>) -> crate::Result<()> {
    Ok(server.start(move |format| {
        let (question, status) = channel();
        asker.send(question).ok()?;
        Some(status.recv_timeout(PATIENCE).ok()?.metrics(format))
    })?)
}

/// Waits a moment, and tells whoever asks meanwhile.
fn answer(router: &Router, questions: &Receiver<Question>) -> crate::Result<()> {
    if let Ok(question) = questions.recv_timeout(LOOK) {
        // Who is gone needs no answer.
        let _ = question.send(router.status()?);
    }
    Ok(())
}

fn config(args: &Args) -> Config {
    Config {
        interfaces: args.interfaces.clone(),
        path: match args.path {
            PathChoice::Xdp => DataPath::Xdp,
            PathChoice::User => DataPath::User,
        },
        limits: Limits {
            answered_pps: args.answered_pps,
            unresolved_pps: args.unresolved_pps,
            slow_pps: args.slow_pps,
        },
        reverse_path: args.reverse_path.map(|how| match how {
            ReverseChoice::Off => ReversePath::Off,
            ReverseChoice::Strict => ReversePath::Strict,
            ReverseChoice::Loose => ReversePath::Loose,
        }),
        protected: args.protect.clone(),
        cpu_limit: args.cpu_limit.map(Fraction::from_percent),
        cpu: args.cpu,
        any_driver: args.driver.any_driver,
        quota: args.quota,
    }
}
