//! `plimsoll blast`: the load generator.

use std::fs::File;
use std::io::{self, BufReader};
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::failure::{Context, Usage};
use crate::prefix::parse_prefix;
use ipnet::IpNet;
use plimsoll_report::{Machine, SCHEMA};
use plimsoll_testbed::blast::{
    Blast, Bound, Departures, FRAMES_MAX, Flow, Hosts, Priority, Report, Schedule, Sources, Spec,
    Stop, Transport,
};
use plimsoll_testbed::{Config as TestbedConfig, Placement, Testbed, interrupt};

use crate::output::{self, Target as Json};

/// Generate load: millions of small packets per second from one core.
///
/// Without --interface, sends from the load host to the test host of a testbed
/// of its own, which is removed afterwards. With --interface and
/// --destination-mac, sends there: make sure that you may. Inside a testbed's
/// network namespace, --interface needs no --destination-mac.
///
/// Always ends by itself, after --duration or --count, whichever comes first.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(flatten)]
    target: Target,
    #[command(flatten)]
    frames: Frames,
    #[command(flatten)]
    schedule: ScheduleArgs,
    /// Stop after this many seconds (at most 600)
    #[arg(long, value_name = "SECONDS", default_value_t = Bound::default().time.as_secs_f64())]
    duration: f64,
    /// Stop after this many packets
    #[arg(long, value_name = "PACKETS", default_value_t = FRAMES_MAX)]
    count: u64,
    /// Seed of addresses, ports and random gaps: the same seed sends the same packets
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// CPU to run on [default in a testbed: 0]
    #[arg(long, value_name = "CPU")]
    cpu: Option<usize>,
    /// Nice level, -20 to 19, for a CPU that is shared with a prober or client
    #[arg(long, default_value_t = 0, allow_negative_numbers = true, value_parser = clap::value_parser!(i8).range(-20..=19))]
    nice: i8,
    /// Run only while nobody else wants the CPU, and make up for it later: for a client or
    /// prober on the same CPU that should keep its own rate
    #[arg(long, conflicts_with = "nice")]
    idle: bool,
    /// Write one JSON document to FILE (`-`: standard output) instead of the text
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

const EXAMPLES: &str = "Needs root and Linux 6.2 or newer with BTF; without --interface also two CPUs and ethtool.\n\
    Examples:\n  \
    plimsoll blast --rate 1000000 --duration 2\n  \
    plimsoll blast --syn --source 198.19.0.0/16 --destination-ports 80 --rate 150000\n  \
    plimsoll blast --source 24.0.7.0/24 --hosts 1000 --networks 16\n  \
    plimsoll blast --unlimited --count 10000000\n  \
    plimsoll capture --replay day.pcapng | plimsoll blast --arrivals -";

/// Where the packets go.
#[derive(clap::Args, Debug)]
struct Target {
    /// Interface to send on, in this network namespace
    #[arg(long, value_name = "IFACE")]
    interface: Option<String>,
    /// Ethernet address to send to, as 02:00:00:00:00:02
    #[arg(long, value_name = "MAC", requires = "interface", value_parser = parse_mac)]
    destination_mac: Option<[u8; 6]>,
    /// IP address to send to [default in a testbed: the test host's]
    #[arg(long, value_name = "ADDRESS")]
    destination: Option<IpAddr>,
}

/// What the packets are.
#[derive(clap::Args, Debug)]
struct Frames {
    /// Source address, or a prefix to draw it from [default in a testbed: the load host's]
    #[arg(long, value_name = "ADDRESS[/BITS]", value_parser = parse_prefix)]
    source: Option<IpNet>,
    /// Draw from this many hosts instead, dealt out evenly over --networks; --source is
    /// the first of these
    #[arg(long, value_name = "N", requires = "source")]
    hosts: Option<u32>,
    /// Networks of --hosts, each in a /16 (IPv6: /48) of its own
    #[arg(long, value_name = "N", default_value_t = 1, requires = "hosts")]
    networks: u32,
    /// Source port, or a range to draw it from
    #[arg(long, value_name = "FIRST[-LAST]", default_value = "1024-65535", value_parser = parse_ports)]
    source_ports: RangeInclusive<u16>,
    /// Destination port, or a range to draw it from
    #[arg(long, value_name = "FIRST[-LAST]", default_value = "9", value_parser = parse_ports)]
    destination_ports: RangeInclusive<u16>,
    /// UDP payload in bytes
    #[arg(
        long,
        value_name = "BYTES",
        default_value_t = 18,
        conflicts_with = "syn"
    )]
    payload: usize,
    /// Send TCP SYNs instead of UDP
    #[arg(long)]
    syn: bool,
}

impl Frames {
    /// `source`, or the hosts that begin there.
    fn sources(&self, source: IpNet) -> Sources {
        let Some(hosts) = self.hosts else {
            return source.into();
        };
        let apart = if source.addr().is_ipv4() { 16 } else { 48 };
        Sources::Hosts(Hosts {
            first: source,
            networks: self.networks,
            apart: source.prefix_len().min(apart),
            hosts,
        })
    }
}

/// When the packets depart.
#[derive(clap::Args, Debug)]
struct ScheduleArgs {
    /// Mean rate in packets per second
    #[arg(long, value_name = "PPS", default_value_t = 1_000_000)]
    rate: u64,
    /// Random gaps (a Poisson process) instead of even ones
    #[arg(long, conflicts_with_all = ["burst", "ramp_to", "unlimited"])]
    poisson: bool,
    /// Back-to-back bursts of this many packets, evenly spaced
    #[arg(long, value_name = "PACKETS", conflicts_with_all = ["ramp_to", "unlimited"])]
    burst: Option<u32>,
    /// Change the rate steadily from --rate to this one
    #[arg(long, value_name = "PPS", conflicts_with = "unlimited")]
    ramp_to: Option<u64>,
    /// As fast as this CPU can
    #[arg(long, conflicts_with = "rate")]
    unlimited: bool,
    /// At the times in FILE (`-`: standard input), once: seconds, a line for each packet, as
    /// `plimsoll capture --replay` writes them. Those after --duration are left out
    #[arg(long, value_name = "FILE", conflicts_with_all = ["rate", "poisson", "burst", "ramp_to", "unlimited"])]
    arrivals: Option<PathBuf>,
}

impl ScheduleArgs {
    /// The times in `--arrivals`.
    fn departures(&self) -> crate::Result<Option<Departures>> {
        let Some(file) = &self.arrivals else {
            return Ok(None);
        };
        if file == Path::new("-") {
            return Ok(Some(Departures::read(io::stdin().lock())?));
        }
        let opened = File::open(file).with_context(|| format!("cannot read {}", file.display()))?;
        Ok(Some(Departures::read(BufReader::new(opened))?))
    }

    fn schedule(&self) -> Schedule {
        let rate_pps = self.rate;
        match (self.burst, self.ramp_to) {
            _ if self.unlimited => Schedule::Unlimited,
            _ if self.poisson => Schedule::Poisson { rate_pps },
            (Some(burst_frames), _) => Schedule::Bursts {
                rate_pps,
                burst_frames,
            },
            (None, Some(to_pps)) => Schedule::Ramp {
                from_pps: rate_pps,
                to_pps,
            },
            (None, None) => Schedule::Fixed { rate_pps },
        }
    }
}

pub(crate) fn run(args: &Args) -> crate::Result<()> {
    interrupt::install()?;
    let json = Json::open_given(args.json.as_ref())?;
    let report = match &args.target.interface {
        Some(interface) => on_interface(args, interface)?,
        None => on_testbed(args)?,
    };
    let document = || {
        let link = args.target.interface.is_none().then_some("veth");
        serde_json::json!({
            "schema": SCHEMA, "machine": Machine::read(link), "results": report, "goals": [],
        })
    };
    output::deliver_one(json, document, || format!("{report}\n"))
}

fn on_interface(args: &Args, interface: &str) -> crate::Result<Report> {
    let Some(destination) = args.target.destination else {
        return Err(Usage("--interface needs --destination, the IP address to send to").into());
    };
    let Some(source) = args.frames.source else {
        let problem = "--interface needs --source, the IP address or prefix to send from";
        return Err(Usage(problem).into());
    };
    let mut spec = spec(args, interface, [0xff; 6], source, destination)?;
    if let Some(mac) = args.target.destination_mac {
        spec.foreign_interface = true;
        spec.destination_mac = mac;
    }
    Ok(Blast::load(&spec)?.run(&Stop::new())?)
}

fn on_testbed(args: &Args) -> crate::Result<Report> {
    let testbed = Testbed::create(TestbedConfig::default())?;
    Placement::Softirq {
        holdoff: Duration::from_micros(50),
    }
    .apply(&testbed)?;
    let (load, test) = (testbed.load(), testbed.test());
    let destination = args
        .target
        .destination
        .unwrap_or_else(|| test.ipv4().into());
    let own: IpAddr = if destination.is_ipv4() {
        load.ipv4().into()
    } else {
        load.ipv6().into()
    };
    let source = args.frames.source.unwrap_or_else(|| own.into());
    let mut spec = spec(args, load.device(), test.mac(), source, destination)?;
    spec.cpu = Some(args.cpu.unwrap_or_else(|| load.cpu()));
    let report = load.run_on_cpu(|| Blast::load(&spec)?.run(&Stop::new()))?;
    Ok(report?)
}

fn spec(
    args: &Args,
    interface: &str,
    mac: [u8; 6],
    source: IpNet,
    destination: IpAddr,
) -> crate::Result<Spec> {
    let flow = Flow {
        source: args.frames.sources(source),
        source_ports: args.frames.source_ports.clone(),
        destination,
        destination_ports: args.frames.destination_ports.clone(),
        transport: if args.frames.syn {
            Transport::TcpSyn
        } else {
            Transport::Udp {
                payload: vec![0; args.frames.payload],
            }
        },
    };
    let mut spec = Spec::new(interface, mac, flow, args.schedule.schedule());
    let time = Duration::try_from_secs_f64(args.duration).context("--duration")?;
    spec.bound = Bound {
        time,
        frames: args.count,
    };
    if let Some(departures) = args.schedule.departures()? {
        spec.depart_at(departures);
    }
    spec.seed = args.seed;
    spec.cpu = args.cpu;
    spec.priority = if args.idle {
        Priority::Idle
    } else {
        Priority::Nice(args.nice)
    };
    Ok(spec)
}

fn parse_mac(text: &str) -> Result<[u8; 6], String> {
    let bytes: Option<Vec<u8>> = text
        .split(':')
        .map(|part| {
            (part.len() == 2)
                .then(|| u8::from_str_radix(part, 16).ok())
                .flatten()
        })
        .collect();
    bytes
        .and_then(|bytes| bytes.try_into().ok())
        .ok_or_else(|| "must be six hexadecimal bytes, as 02:00:00:00:00:02".to_owned())
}

fn parse_ports(text: &str) -> Result<RangeInclusive<u16>, String> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    match (first.parse(), last.parse()) {
        (Ok(first), Ok(last)) if 0 < first && first <= last => Ok(first..=last),
        _ => Err("must be a port from 1 to 65535, or a range as 1024-65535".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_one_or_a_range() {
        assert_eq!(parse_ports("9"), Ok(9..=9));
        assert_eq!(parse_ports("1024-65535"), Ok(1024..=65535));
        for wrong in ["", "0", "9-8", "65536", "a", "1-2-3"] {
            assert!(parse_ports(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn an_ethernet_address_is_six_bytes() {
        assert_eq!(parse_mac("02:00:00:00:00:ff"), Ok([2, 0, 0, 0, 0, 255]));
        for wrong in [
            "",
            "02:00:00:00:00",
            "02:00:00:00:00:00:00",
            "0:1:2:3:4:5",
            "gg:00:00:00:00:00",
        ] {
            assert!(parse_mac(wrong).is_err(), "{wrong}");
        }
    }
}
