//! `plimsoll capture`: the monitor.

use std::fmt::{self, Write as _};
use std::fs;
use std::io::{self, BufWriter, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use clap::ValueEnum;
use plimsoll_programs::capture::{
    ArrivalsConfig, Capture, CaptureConfig, Error, Mode, Output, RingFiles, Summary, arrivals,
    program_ahead,
};
use plimsoll_report::{Machine, SCHEMA};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use signal_hook::low_level::emulate_default_handler;

use crate::failure::{Context, Usage};
use crate::output::{self, Target};

/// Record packets in a pcapng file that says what it had to leave out.
///
/// When the disk or the capture cannot follow, less is kept of each packet, in steps: short
/// packets, headers, headers of 1 flow in 2, 4, 8, … Each step and all counts stand in the file.
/// Ends at Ctrl-C, or at a bound. Then it writes what waits for the disk; Ctrl-C again, a second
/// later, ends it without. A terminal that closes ends it as well, but not under nohup(1).
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Interface to record, in this network namespace
    #[arg(value_name = "IFACE", required_unless_present = "replay")]
    interface: Option<String>,
    /// What to record, as pcap-filter(7) has it
    #[arg(value_name = "FILTER")]
    filter: Vec<String>,
    /// Write to FILE (`-`: standard output)
    #[arg(short, long, value_name = "FILE", required_unless_present = "replay")]
    write: Option<PathBuf>,
    /// Record nothing: write the arrival times of a pcap or pcapng file, for `plimsoll blast
    /// --arrivals`
    #[arg(long, value_name = "FILE", conflicts_with_all = ["mode", "snaplen", "ring_size",
        "ring_time", "files", "queue", "ring", "no_sampling", "no_outgoing", "no_promiscuous",
        "json"])]
    replay: Option<PathBuf>,
    /// Who else gets the packets
    #[arg(long, value_enum, default_value_t = ModeArg::Copy)]
    mode: ModeArg,
    /// Bytes that are kept of a packet
    #[arg(short, long, value_name = "BYTES", default_value_t = CaptureConfig::SNAPLEN)]
    snaplen: u32,
    /// Begin a new file after so many bytes, as 100M
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    ring_size: Option<Size>,
    /// Begin a new file after so many seconds
    #[arg(long, value_name = "SECONDS")]
    ring_time: Option<f64>,
    /// Keep the newest N files; older ones, and those that earlier captures left under the same
    /// name (FILE with two numbers), are removed
    #[arg(long, value_name = "N")]
    files: Option<usize>,
    /// End after so many recorded packets
    #[arg(short, long, value_name = "PACKETS")]
    count: Option<u64>,
    /// End after so many seconds
    #[arg(long, value_name = "SECONDS")]
    duration: Option<f64>,
    /// Memory between capture and disk: more bridges longer pauses of the disk
    #[arg(long, value_name = "SIZE", default_value_t = Size::of(CaptureConfig::QUEUE_BYTES), value_parser = parse_size)]
    queue: Size,
    /// Memory between kernel and capture
    #[arg(long, value_name = "SIZE", default_value_t = Size::of(CaptureConfig::RING_BYTES), value_parser = parse_size)]
    ring: Size,
    /// Keep the headers of every flow, however full the queue is: more may be lost blindly
    #[arg(long)]
    no_sampling: bool,
    /// Mode copy: leave out what this host sends
    #[arg(long)]
    no_outgoing: bool,
    /// Leave the adapter its filter, which may drop frames for other hosts
    #[arg(long)]
    no_promiscuous: bool,
    /// Write what it came to as one JSON document to FILE (`-`: standard output)
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum ModeArg {
    /// The kernel gets them as well
    Copy,
    /// Nobody: the interface is a span port (AF_XDP on all receive queues)
    Take,
}

/// Some send a signal twice at once, as timeout(1) does to its child and then to its group.
const REPEATED: Duration = Duration::from_secs(1);

const EXAMPLES: &str = "Needs root (CAP_NET_RAW; mode take also CAP_NET_ADMIN, CAP_BPF, native XDP, and \
    Linux 6.2 or newer with BTF).\n\
    Examples:\n  \
    plimsoll capture eth0 udp port 53 -w dns.pcapng\n  \
    plimsoll capture span0 --mode take -w /srv/span.pcapng --ring-size 1G --files 20\n  \
    plimsoll capture eth0 -w - | tshark -r -\n  \
    plimsoll capture --replay dns.pcapng udp port 53 | plimsoll blast --arrivals -";

pub(crate) fn run(args: &Args) -> crate::Result<()> {
    if let Some(file) = &args.replay {
        return replay(args, file);
    }
    let (Some(interface), Some(write)) = (&args.interface, &args.write) else {
        return Err(Usage("an interface and --write FILE are needed").into());
    };
    if args.json.as_ref() == Some(write) {
        return Err(Usage("--write and --json name the same file: give each its own").into());
    }
    if args.mode == ModeArg::Take && args.no_outgoing {
        let problem = "--no-outgoing is of mode copy: mode take gets nothing that this host sends";
        return Err(Usage(problem).into());
    }
    let json = Target::open_given(args.json.as_ref())?;
    let stop = Arc::new(AtomicBool::new(false));
    stop_at_signals(&stop).context("cannot catch signals")?;
    let mut capture = Capture::open(&config(args, interface, write)?).map_err(by_option)?;
    output::say(format_args!("capturing on {interface}, Ctrl-C ends"));
    match args.mode {
        ModeArg::Take => output::warn_of_tags([interface.as_str()]),
        ModeArg::Copy => output::warn_of(program_ahead(interface)),
    }
    let problems = capture.problems();
    // It ends with the capture.
    let telling = thread::Builder::new().name("capture-problems".to_owned());
    let tell = |problem| output::say(format_args!("plimsoll: {problem}"));
    telling.spawn(move || problems.into_iter().for_each(tell))?;
    let (summary, result) = capture.run(&stop);
    output::say(table(&summary).trim_end());
    let reported = json.map_or(Ok(()), |json| {
        json.put_json(&serde_json::json!({
            "schema": SCHEMA, "machine": Machine::read(None), "results": summary, "goals": [],
        }))
    });
    // Why it ended comes before that nobody could be told what it came to.
    result?;
    reported
}

/// The first signal ends the capture. What waits for the disk is written first, so a signal a while
/// later ends the process: a disk or reader may take nothing for ever.
///
/// Who started this may have it survive its terminal, as nohup(1) does. SIGINT is caught in any
/// case: shells have the jobs of a script's background ignore it, and scripts end them by it.
fn stop_at_signals(stop: &Arc<AtomicBool>) -> io::Result<()> {
    let survives = ignores(
        &fs::read_to_string("/proc/self/status").unwrap_or_default(),
        SIGHUP,
    );
    let hangup = (!survives).then_some(SIGHUP);
    let caught = [SIGINT, SIGTERM].into_iter().chain(hangup);
    let (mut signals, stop) = (Signals::new(caught)?, Arc::clone(stop));
    let wait = move || {
        let mut first = None;
        for signal in &mut signals {
            stop.store(true, Ordering::Relaxed);
            let passed = first.get_or_insert_with(Instant::now).elapsed();
            // A terminal that closes may send several.
            if signal != SIGHUP && passed >= REPEATED {
                let _ = emulate_default_handler(signal);
            }
        }
    };
    let thread = thread::Builder::new().name("capture-signals".to_owned());
    thread.spawn(wait).map(drop)
}

/// Whether a process ignores this signal, by its status in proc(5).
fn ignores(status: &str, signal: i32) -> bool {
    let mut lines = status.lines();
    let mask = lines.find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask >> (signal - 1) & 1 == 1)
}

/// Writes when the packets of `file` came, a time a line.
fn replay(args: &Args, file: &Path) -> crate::Result<()> {
    // There is no interface: the filter begins where its name would stand.
    let words = args.interface.iter().chain(&args.filter).cloned();
    let duration = args.duration.map(Duration::try_from_secs_f64).transpose();
    let writer = Target::open(args.write.as_deref().unwrap_or(Path::new("-")))?;
    let times = arrivals(&ArrivalsConfig {
        file: file.to_owned(),
        filter: words.collect::<Vec<_>>().join(" "),
        packets_max: args.count,
        time_max: duration.context("--duration")?.unwrap_or(Duration::MAX),
    })?;
    let mut writer = BufWriter::new(writer);
    for time in times {
        writeln!(writer, "{}.{:09}", time.as_secs(), time.subsec_nanos())?;
    }
    Ok(writer.flush()?)
}

fn config(args: &Args, interface: &str, write: &Path) -> crate::Result<CaptureConfig> {
    let span = |seconds: Option<f64>| seconds.map(Duration::try_from_secs_f64).transpose();
    let output = match write.as_os_str().as_encoded_bytes() {
        b"-" => Output::Standard,
        _ => Output::File(write.to_owned()),
    };
    let memory = |bytes: u64| usize::try_from(bytes).unwrap_or(usize::MAX);
    let mut config = CaptureConfig::new(interface, output);
    config.filter = args.filter.join(" ");
    config.mode = match args.mode {
        ModeArg::Copy => Mode::Copy,
        ModeArg::Take => Mode::Take,
    };
    config.snaplen = args.snaplen;
    config.ring = RingFiles {
        bytes: args.ring_size.map(|Size(bytes)| bytes),
        time: span(args.ring_time).context("--ring-time")?,
        files: args.files,
    };
    config.packets_max = args.count;
    config.time_max = span(args.duration).context("--duration")?;
    config.queue_bytes = memory(args.queue.0);
    config.ring_bytes = memory(args.ring.0);
    if args.no_sampling {
        config.fidelity.sampling_log2_max = 0;
    }
    config.outgoing = !args.no_outgoing;
    config.promiscuous = !args.no_promiscuous;
    Ok(config)
}

/// The library's names of settings, and what the operator knows them by.
const OPTIONS: [(&str, &str); 7] = [
    ("snaplen", "--snaplen"),
    ("queue_bytes", "--queue"),
    ("ring_bytes", "--ring"),
    ("ring.bytes", "--ring-size"),
    ("ring.time", "--ring-time"),
    ("ring.files", "--files"),
    ("ring", "--ring-size or --ring-time"),
];

fn by_option(error: Error) -> Error {
    let Error::Config { field, allowed } = error else {
        return error;
    };
    let named = OPTIONS.into_iter().find(|(setting, _)| *setting == field);
    let field = named.map_or(field, |(_, option)| option);
    Error::Config { field, allowed }
}

/// What became of all packets, one place per line.
fn table(summary: &Summary) -> String {
    let counts = &summary.counts;
    let places = [
        (summary.received, "received"),
        (counts.recorded, "recorded"),
        (
            counts.filtered,
            "refused by the filter (mode copy: or merged with others, or dropped by XDP)",
        ),
        (counts.sampled, "of flows that were not sampled"),
        (counts.ring, "lost: the ring was full"),
        (counts.no_buffer, "lost: no buffer to receive into"),
        (counts.invalid, "lost: no frames"),
        (
            counts.no_socket,
            "lost: of a receive queue that was added later, left to the kernel",
        ),
        (counts.queue, "lost: the queue to the disk was full"),
        (counts.disk, "lost: the disk took no more"),
    ];
    let mut text = String::new();
    for (number, place) in places {
        if number > 0 || matches!(place, "received" | "recorded") {
            let _ = writeln!(text, "{number:>12} {place}");
        }
    }
    for step in &summary.steps {
        let _ = writeln!(text, "{:>10.3} s from here on {}", step.seconds, step.keeps);
    }
    if summary.steps_left_out > 0 {
        let left_out = summary.steps_left_out;
        let _ = writeln!(
            text,
            "{left_out:>12} further steps between the first and the last 1,000"
        );
    }
    text
}

/// Bytes, as they are typed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Size(u64);

impl Size {
    const fn of(bytes: usize) -> Self {
        Self(bytes as u64)
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            bytes if bytes > 0 && bytes.is_multiple_of(1 << 20) => write!(f, "{}M", bytes >> 20),
            bytes => bytes.fmt(f),
        }
    }
}

fn parse_size(text: &str) -> Result<Size, String> {
    let digits = text.trim_end_matches(|last: char| last.is_ascii_alphabetic());
    let unit = match &text[digits.len()..] {
        "" => 1,
        "k" | "K" => 1 << 10,
        "M" => 1 << 20,
        "G" => 1 << 30,
        _ => return Err("must be a number of bytes, as 65536, 64K, 100M or 2G".to_owned()),
    };
    let number: Option<u64> = digits.parse().ok();
    let bytes = number.and_then(|number| number.checked_mul(unit));
    bytes
        .map(Size)
        .ok_or_else(|| "must be a number of bytes, as 65536, 64K, 100M or 2G".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ignored_signals_are_read_of_the_status() {
        let status = "SigBlk:\t0000000000000003\nSigIgn:\t0000000000001001\nSigCgt:\t2\n";
        assert!(ignores(status, SIGHUP) && !ignores(status, SIGINT));
        assert!(!ignores("Name:\tplimsoll\n", SIGHUP));
    }

    #[test]
    fn sizes_have_units() {
        for size in [Size(1000), Size(64 << 20), Size(0)] {
            assert_eq!(parse_size(&size.to_string()), Ok(size));
        }
        assert_eq!(parse_size("65536"), Ok(Size(65536)));
        assert_eq!(parse_size("64K"), Ok(Size(65536)));
        assert_eq!(parse_size("2G"), Ok(Size(2 << 30)));
        for wrong in ["", "M", "1T", "-1", "99999999999G"] {
            assert!(parse_size(wrong).is_err(), "{wrong}");
        }
    }
}
