//! What a running guard shows by itself: a table or JSON lines, and events as log
//! lines.
//!
//! Writing may take as long as a reader likes: a terminal that was stopped with
//! Ctrl-S, a pipe that nobody empties. Threads of their own do it, so that the
//! guard goes on. What a slow reader cannot take is left out.

use std::io::{self, Write};
use std::net::SocketAddr;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, channel, sync_channel};
use std::time::{Duration, Instant};

use plimsoll_guard::status::Condition;
use plimsoll_guard::{Channel, Counters, Kind, Outcome, Packets, SourcesReader, session};
use plimsoll_kernel::error::{file_remedy, is_disk_full};
use plimsoll_kernel::privileges::start_thread;
use serde::Serialize;

use crate::guard::doing;
use crate::output::{self, Target};

/// Channels shown on a terminal: those with most discards first.
const CHANNELS_SHOWN: usize = 20;
/// Log lines that wait for their reader at most; what comes then is lost.
const LOG_LINES_MAX: usize = 256;
/// How long the last words may take.
const PATIENCE: Duration = Duration::from_secs(1);
/// Between two attempts to give the last report.
const PAUSE: Duration = Duration::from_millis(5);

/// The form of reports.
pub(super) enum Form {
    Nothing,
    Json(Target),
    Table,
}

/// One line of `--json`.
#[derive(Serialize)]
pub(super) struct Line {
    schema: u32,
    interface: String,
    uptime_s: f64,
    #[serde(flatten)]
    condition: Condition,
    #[serde(flatten)]
    counters: Counters,
    #[serde(skip)]
    sources: Option<SourcesReader>,
}

impl From<&session::Report<'_>> for Line {
    fn from(report: &session::Report<'_>) -> Self {
        let snapshot = report.snapshot;
        Self {
            schema: 1,
            interface: report.interface.to_owned(),
            uptime_s: report.uptime.as_secs_f64(),
            condition: snapshot.condition.clone(),
            counters: snapshot.counters.clone(),
            sources: snapshot.sources.clone(),
        }
    }
}

impl Form {
    /// `is_cut`: the line before may be there in part.
    fn show(&mut self, line: &Line, before: &Counters, is_cut: bool) -> io::Result<()> {
        match self {
            Self::Nothing => Ok(()),
            Self::Json(writer) => {
                // At once: each part by itself would be a system call.
                let mut text = Vec::new();
                if is_cut {
                    text.push(b'\n');
                }
                serde_json::to_writer(&mut text, line)?;
                text.push(b'\n');
                writer.write_all(&text)?;
                writer.flush()
            }
            Self::Table => {
                output::clear_screen();
                io::stdout().write_all(table(line, before).as_bytes())
            }
        }
    }
}

/// Shows each line that comes. A full disk, or a limit of files, is no reason to end: it is told once, and what does not
/// fit is left out.
fn show_all(
    form: &mut Form,
    lines: Receiver<Line>,
    to_tell: &SyncSender<String>,
) -> io::Result<()> {
    let mut before: Option<Line> = None;
    let mut missed: io::Result<()> = Ok(());
    for mut line in lines {
        if let Some(sources) = line.sources.take() {
            sources.tell(&mut line.counters);
        }
        let counters_before = &before.as_ref().unwrap_or(&line).counters;
        let shown = form.show(&line, counters_before, missed.is_err());
        match &shown {
            Err(error) if !is_disk_full(error) && error.kind() != io::ErrorKind::FileTooLarge => {
                return shown;
            }
            Err(error) if missed.is_ok() => {
                let remedy = file_remedy(error);
                // Who reads no log lines misses it.
                let _ = to_tell.try_send(format!(
                    "cannot write a report: {error}{remedy}; the guard goes on, and reports are left out until they fit"
                ));
            }
            Err(_) => {}
            Ok(()) if missed.is_err() => {
                let _ = to_tell.try_send("can write reports again".to_owned());
            }
            Ok(()) => {}
        }
        missed = shown;
        before = Some(line);
    }
    missed
}

/// Shows reports and log lines, by threads of its own.
pub(super) struct Reporter {
    lines: Option<SyncSender<Line>>,
    /// How showing ended, if it did.
    shown: Receiver<io::Result<()>>,
    log: Option<SyncSender<String>>,
    logged: Receiver<()>,
}

impl Reporter {
    pub(super) fn start(mut form: Form) -> io::Result<Self> {
        // One that waits while one is shown: more would only be older.
        let (lines, to_show) = sync_channel::<Line>(1);
        let (end, shown) = channel();
        let is_shown = !matches!(form, Form::Nothing);
        let (log, to_log) = sync_channel::<String>(LOG_LINES_MAX);
        if is_shown {
            let to_tell = log.clone();
            start_thread(move || {
                // Who started this may be gone.
                let _ = end.send(show_all(&mut form, to_show, &to_tell));
            })
            .map_err(io::Error::other)?;
        }
        let (end, logged) = channel();
        start_thread(move || {
            for text in to_log {
                output::say(format_args!("plimsoll: {text}"));
            }
            let _ = end.send(());
        })
        .map_err(io::Error::other)?;
        Ok(Self {
            lines: is_shown.then_some(lines),
            shown,
            log: Some(log),
            logged,
        })
    }

    /// Shows a report, unless the one before still waits for its reader.
    pub(super) fn show(&self, line: Line) -> io::Result<()> {
        let Some(lines) = &self.lines else {
            return Ok(());
        };
        match lines.try_send(line) {
            Ok(()) | Err(TrySendError::Full(_)) => Ok(()),
            Err(TrySendError::Disconnected(_)) => self.shown.recv().unwrap_or(Ok(())),
        }
    }

    /// Writes a log line.
    pub(super) fn log(&self, text: String) {
        if let Some(log) = &self.log {
            // A reader who does not read has no use for it.
            let _ = log.try_send(text);
        }
    }

    /// Shows a last report, and waits a moment until all is written.
    pub(super) fn finish(mut self, mut line: Line) -> io::Result<()> {
        let deadline = Instant::now() + PATIENCE;
        let lines = self.lines.take();
        while let Some(lines) = &lines
            && let Err(TrySendError::Full(back)) = lines.try_send(line)
            && Instant::now() < deadline
        {
            line = back;
            std::thread::sleep(PAUSE);
        }
        drop(lines);
        let left = deadline.saturating_duration_since(Instant::now());
        // Who does not read in time misses the rest.
        self.shown.recv_timeout(left).unwrap_or(Ok(()))
    }
}

impl Drop for Reporter {
    /// Lets the last log lines out. Who shows reports has some to say as well, and ends first.
    fn drop(&mut self) {
        drop(self.lines.take());
        drop(self.log.take());
        let _ = self.logged.recv_timeout(PATIENCE);
    }
}

fn table(line: &Line, before: &Counters) -> String {
    let now = &line.counters;
    let all = now.all();
    let mut text = format!(
        "plimsoll guard {}  up {:.0} s  offered {}  {} {}\n{}\n\n{:<16}{}{:>12}\n",
        line.interface,
        line.uptime_s,
        all.offered(),
        if line.condition.observe {
            "would discard"
        } else {
            "discarded early"
        },
        all.discarded(),
        doing(&line.condition),
        "kind",
        Outcome::ALL
            .iter()
            .map(|outcome| format!("{:>13}", outcome.name()))
            .collect::<String>(),
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
        .map(|outcome| format!("{:>13}", packets.count(*outcome)))
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
            SocketAddr::new(channel.address, channel.port)
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

#[cfg(test)]
mod tests {
    use plimsoll_guard::status::Snapshot;

    use super::*;
    use crate::guard::golden::{assert_golden, overloaded};

    #[test]
    fn a_line_for_programs() {
        let snapshot = Snapshot {
            renamed: None,
            counters: Counters {
                totals: Default::default(),
                channels: vec![Channel {
                    kind: Kind::UdpSocket,
                    address: "198.18.0.2".parse().unwrap(),
                    port: 53,
                    packets: Packets::default(),
                    discarding: true,
                    occupancy: 90,
                    capacity: 100,
                    queued: 3,
                    charged_ns: 1_500,
                    sources: None,
                }],
                charged_ns: std::array::from_fn(|kind| kind as u64),
                known_sources: 812,
                unseen: Default::default(),
            },
            observed: Packets::default(),
            sources: None,
            condition: overloaded().condition,
        };
        let line = Line::from(&session::Report {
            interface: "eth0",
            uptime: Duration::from_millis(3_725_500),
            snapshot: &snapshot,
        });
        // Told in one line, reviewed in many; the order is the line's own.
        let text = serde_json::to_string_pretty(&line).unwrap() + "\n";
        assert_golden("line.json", &text);
    }
}
