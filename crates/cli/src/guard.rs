//! `plimsoll guard`: early discard beside unmodified servers.

use std::io::Write;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;
use plimsoll_core::config::Fraction;
use plimsoll_guard::{
    Channel, Config, Counters, Guard, Kind, Outcome, Packets, Priority, Storage, ThreadedPolling,
};
use serde::Serialize;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::output;

/// How often counters are read and shown.
const INTERVAL: Duration = Duration::from_secs(1);
/// Channels shown on a terminal: those with most discards first.
const CHANNELS_SHOWN: usize = 20;

/// Discard early what a full socket could not take; servers need no change.
///
/// Attaches to IFACE until Ctrl-C and shows its counters once a second. The
/// attachment ends with the process, however it ends.
#[derive(clap::Args, Debug)]
#[command(
    after_help = "Needs root, Linux 6.2 or newer with BTF, and a driver with native XDP.\n\
                        Example: sudo plimsoll guard eth0"
)]
pub(crate) struct Args {
    /// Interface to guard, in this network namespace
    #[arg(value_name = "IFACE")]
    interface: String,
    /// Discard for a UDP socket whose receive buffer is this full, in percent
    #[arg(long, value_name = "PERCENT", default_value_t = 70, value_parser = clap::value_parser!(u32).range(1..=100))]
    high_watermark: u32,
    /// … until it is less full than this, in percent
    #[arg(long, value_name = "PERCENT", default_value_t = 50, value_parser = clap::value_parser!(u32).range(0..=99))]
    low_watermark: u32,
    /// Switch the interface to threaded polling at this nice level (-20 to 19), or `rt` for
    /// real-time; back on exit
    #[arg(long, value_name = "NICE|rt", allow_negative_numbers = true, value_parser = parse_priority)]
    threaded: Option<Priority>,
    /// The only CPU the polling thread may run on
    #[arg(long, value_name = "CPU", requires = "threaded")]
    poll_cpu: Option<usize>,
    /// Stop after this many seconds
    #[arg(long, value_name = "SECONDS")]
    duration: Option<u64>,
    /// Write one JSON document per second and line to FILE (`-`: standard output) instead of the table
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let config = Config {
        high_watermark: Fraction::from_percent(args.high_watermark),
        low_watermark: Fraction::from_percent(args.low_watermark),
    };
    let stop = stop_on_signals()?;
    let mut report = match &args.json {
        Some(target) => Report::Json(output::json_writer(target)?),
        None => Report::Table,
    };
    let mut storage = Storage::default();
    let mut guard = Guard::attach(&mut storage, &config, &args.interface)?;
    let _threaded = args
        .threaded
        .map(|priority| ThreadedPolling::enable(&args.interface, priority, args.poll_cpu))
        .transpose()?;

    let started = Instant::now();
    let mut before = guard.counters()?;
    report.show(&args.interface, started.elapsed(), &before, &before)?;
    loop {
        let left = args
            .duration
            .map(|s| Duration::from_secs(s).saturating_sub(started.elapsed()));
        let stopped = wait(&stop, left.map_or(INTERVAL, |left| left.min(INTERVAL)));
        guard.refresh()?;
        let now = guard.counters()?;
        report.show(&args.interface, started.elapsed(), &before, &now)?;
        before = now;
        if stopped || left.is_some_and(|left| left <= INTERVAL) {
            return Ok(());
        }
    }
}

fn parse_priority(text: &str) -> Result<Priority, String> {
    if text == "rt" {
        return Ok(Priority::RealTime);
    }
    match text.parse() {
        Ok(nice @ -20..=19) => Ok(Priority::Nice(nice)),
        _ => Err("must be a nice level from -20 to 19, or rt".to_owned()),
    }
}

/// A channel that says something when the process is asked to end.
fn stop_on_signals() -> anyhow::Result<Receiver<()>> {
    let mut signals = Signals::new([SIGINT, SIGTERM]).context("cannot handle signals")?;
    let (sender, receiver) = channel();
    thread::spawn(move || {
        for _ in &mut signals {
            // Nobody listens any more: the process is ending already.
            let _ = sender.send(());
        }
    });
    Ok(receiver)
}

/// Waits for `time`; true if asked to stop before.
fn wait(stop: &Receiver<()>, time: Duration) -> bool {
    !matches!(stop.recv_timeout(time), Err(RecvTimeoutError::Timeout))
}

enum Report {
    Json(Box<dyn Write>),
    Table,
}

/// One line of `--json`.
#[derive(Serialize)]
struct Line<'a> {
    schema: u32,
    interface: &'a str,
    uptime_s: f64,
    #[serde(flatten)]
    counters: &'a Counters,
}

impl Report {
    fn show(
        &mut self,
        interface: &str,
        uptime: Duration,
        before: &Counters,
        now: &Counters,
    ) -> anyhow::Result<()> {
        match self {
            Self::Json(writer) => {
                let line = Line {
                    schema: 1,
                    interface,
                    uptime_s: uptime.as_secs_f64(),
                    counters: now,
                };
                serde_json::to_writer(&mut *writer, &line)?;
                writer.write_all(b"\n")?;
                writer.flush()?;
            }
            Self::Table => {
                output::clear_screen();
                print!("{}", table(interface, uptime, before, now));
            }
        }
        Ok(())
    }
}

fn table(interface: &str, uptime: Duration, before: &Counters, now: &Counters) -> String {
    let all = now.all();
    let mut text = format!(
        "plimsoll guard {interface}  up {} s  offered {}  discarded early {}\n\n{:<16}{:>14}{:>14}{:>14}{:>14}{:>12}\n",
        uptime.as_secs(),
        all.offered(),
        all.discarded(),
        "kind",
        "admitted",
        "socket queue",
        "accept queue",
        "SYN queue",
        "offered/s",
    );
    for kind in Kind::ALL {
        let packets = now.of(kind);
        if packets.offered() > 0 {
            text += &format!(
                "{:<16}{}{:>12}\n",
                kind.name(),
                columns(packets),
                packets.offered() - before.of(kind).offered()
            );
        }
    }
    text.push_str(&channel_table(&now.channels));
    text
}

fn columns(packets: &Packets) -> String {
    Outcome::ALL
        .iter()
        .map(|outcome| format!("{:>14}", packets.count(*outcome)))
        .collect()
}

fn channel_table(channels: &[Channel]) -> String {
    let mut shown: Vec<&Channel> = channels.iter().collect();
    shown.sort_by_key(|channel| {
        std::cmp::Reverse((channel.packets.discarded(), channel.packets.offered()))
    });
    let mut text = format!(
        "\n{:<40}{:>14}{:>14}{:>8}\n",
        "channel", "admitted", "discarded", "full"
    );
    for channel in shown.iter().take(CHANNELS_SHOWN) {
        let name = format!(
            "{} {}",
            channel.kind.name(),
            std::net::SocketAddr::new(channel.address, channel.port)
        );
        let percent = u64::from(channel.occupancy) * 100 / u64::from(channel.capacity.max(1));
        text += &format!(
            "{name:<40}{:>14}{:>14}{percent:>7}%{}\n",
            channel.packets.count(Outcome::Admitted),
            channel.packets.discarded(),
            if channel.discarding {
                "  discarding"
            } else {
                ""
            },
        );
    }
    if shown.len() > CHANNELS_SHOWN {
        text += &format!("… and {} more\n", shown.len() - CHANNELS_SHOWN);
    }
    text
}
