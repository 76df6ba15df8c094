//! `plimsoll guard status`: what a running guard does, asked from outside.

use std::io::Write;
use std::path::PathBuf;

use plimsoll_guard::Outcome;
use plimsoll_guard::status::{
    ChannelStatus, ClassStatus, Client, Request, Sort, SourcesStatus, Status, guarded_interfaces,
};

use plimsoll_kernel::error::with_causes;

use super::{ledger, words};
use crate::failure::Absent;
use crate::output::{self, Target};

/// Show what the running guard does, to whom, and who floods
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Guarded interface, in this network namespace; all of them if none is named
    #[arg(value_name = "IFACE")]
    interface: Option<String>,
    /// Order of channels
    #[arg(long, value_enum, default_value_t = Order::Discarded)]
    sort: Order,
    /// Channels shown at most
    #[arg(long, value_name = "CHANNELS", default_value_t = 20)]
    limit: usize,
    /// Write one JSON document per line and interface to FILE (`-`: standard output) instead of the
    /// table
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true, default_missing_value = "-")]
    json: Option<PathBuf>,
}

#[derive(clap::ValueEnum, Clone, Copy, Debug)]
pub(crate) enum Order {
    /// Packets offered per second
    Offered,
    /// Packets discarded early per second
    Discarded,
    /// CPU time charged for their packets
    Charged,
    /// How full the queue is
    Occupancy,
}

impl From<Order> for Sort {
    fn from(order: Order) -> Self {
        match order {
            Order::Offered => Self::Offered,
            Order::Discarded => Self::Discarded,
            Order::Charged => Self::Charged,
            Order::Occupancy => Self::Occupancy,
        }
    }
}

pub(crate) fn run(args: &Args) -> crate::Result<()> {
    let request = Request {
        sort: args.sort.into(),
        limit: args.limit,
    };
    let interfaces = match &args.interface {
        Some(interface) => vec![interface.clone()],
        None => guarded_interfaces()?,
    };
    if interfaces.is_empty() {
        let absent = "no guard runs in this network namespace: `plimsoll guard IFACE` starts one";
        return Err(Absent(absent).into());
    }
    let mut writer = Target::open_given(args.json.as_ref())?;
    let mut failed = None;
    for interface in interfaces {
        let status = match Client::new(&interface).status(&request) {
            Ok(status) => status,
            // The others may answer.
            Err(error) => {
                if let Some(before) = failed.replace(error) {
                    output::say(format_args!("plimsoll: {}", with_causes(&before)));
                }
                continue;
            }
        };
        match &mut writer {
            Some(writer) => write_document(writer, &status)?,
            None => output::print(&table(&status))?,
        }
    }
    failed.map_or(Ok(()), |error| Err(error.into()))
}

/// One line for programs.
pub(super) fn write_document(mut writer: impl Write, status: &Status) -> crate::Result<()> {
    serde_json::to_writer(&mut writer, status)?;
    Ok(writer.write_all(b"\n")?)
}

pub(super) fn table(status: &Status) -> String {
    let mut text = format!(
        "{}  process {}  up {:.0} s  rates over {:.1} s\n{}\n",
        status.interface,
        status.pid,
        status.uptime_s,
        status.interval_s,
        words::doing(&status.condition),
    );
    if let Some(cookies) = words::syn_cookies(status) {
        text += &format!("{cookies}\n");
    }
    if let Some(unguarded) = words::unguarded(status) {
        text += &format!("{unguarded}\n");
    }
    if let Some(most) = words::most_offered(status) {
        text += &format!("most offered: {most}\n");
    }
    text += &format!(
        "\n{:<16}{:>12}{:>14}{:>8}{:>16}{:>16}\n",
        "kind", "offered/s", "discarded/s", "CPU", "offered", "discarded"
    );
    for kind in &status.kinds {
        let offered: u64 = kind.packets.values().sum();
        let others = Outcome::ALL.into_iter().filter(|one| !one.is_discard());
        let others = others.filter_map(|one| kind.packets.get(one.name()));
        let discarded = offered - others.sum::<u64>();
        text += &format!(
            "{:<16}{:>12.0}{:>14.0}{:>7.1}%{offered:>16}{discarded:>16}\n",
            kind.kind,
            kind.offered_pps,
            kind.discarded_pps,
            kind.charged_cpus * 100.0,
        );
    }
    let names = status
        .channels
        .iter()
        .map(|channel| words::name(channel).len());
    let width = names.max().unwrap_or(0).max(40);
    text += &format!(
        "\n{:<width$}{:>6}{:>12}{:>14}{:>8}  {}\n",
        "channel", "full", "offered/s", "discarded/s", "CPU", "owner"
    );
    for channel in &status.channels {
        text += &row(channel, width);
    }
    let more = status.channels_total - status.channels.len();
    if more > 0 {
        text += &format!("… and {more} more\n");
    }
    text += &sources(status, width);
    text.push('\n');
    text += &ledger::table(&status.ledger);
    text
}

/// The channels whose packets were judged by source.
fn sources(status: &Status, width: usize) -> String {
    let judged = status.channels.iter();
    let judged = judged.filter_map(|channel| Some((channel, channel.sources.as_ref()?)));
    let rows: String = judged
        .map(|(channel, sources)| {
            let heaviest = format!("  {}", words::heaviest(sources));
            let row = |head: &str, name, class| class_row(head, name, width, sources, class);
            let known = row(&words::name(channel), "known", &sources.known);
            known + row(&heaviest, "unknown", &sources.unknown).as_str()
        })
        .collect();
    let mut text = String::new();
    if !rows.is_empty() {
        text += &format!(
            "\n{:<width$} {:<8}{:>8}{:>12}{:>14}{:>14}{:>14}\n{rows}",
            "sources of", "class", "seen", "admitted/s", "discarded/s", "admitted", "discarded"
        );
    }
    if status.known_sources > 0 {
        text += &format!("\nknown sources: {}\n", status.known_sources);
    }
    text
}

fn class_row(
    head: &str,
    class: &str,
    width: usize,
    sources: &SourcesStatus,
    of_class: &ClassStatus,
) -> String {
    format!(
        "{head:<width$} {class:<8}{:>8}{:>12.0}{:>14.0}{:>14}{:>14}\n",
        words::seen(sources, of_class),
        of_class.admitted_pps,
        of_class.discarded_pps,
        of_class.admitted,
        of_class.discarded,
    )
}

fn row(channel: &ChannelStatus, width: usize) -> String {
    let percent = u64::from(channel.occupancy) * 100 / u64::from(channel.capacity.max(1));
    let row = format!(
        "{:<width$}{percent:>5}%{:>12.0}{:>14.0}{:>7.1}%  {}",
        words::name(channel),
        channel.offered_pps,
        channel.discarded_pps,
        channel.charged_cpus * 100.0,
        words::owner(channel)
    );
    format!("{}\n", row.trim_end())
}
