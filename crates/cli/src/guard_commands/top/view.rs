//! Draws the live view.

use std::net::SocketAddr;

use plimsoll_guard::status::{ChannelStatus, KindStatus, Sort, Status};
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span, Text};
use ratatui::widgets::{Cell, Paragraph, Row, Table, TableState};

use super::state::State;
use crate::guard_commands::ledger;
use crate::guard_commands::status::owner;

const BAR_CELLS: usize = 10;
const KEYS: &str = "d o u f: sort by discarded, offered, CPU, fullness   space: pause   q: quit";

pub(super) fn draw(frame: &mut Frame<'_>, state: &State, interface: &str) {
    let kinds = state.status().map_or(0, |status| status.kinds.len());
    let heights = [
        Constraint::Length(1),
        Constraint::Length(u16::try_from(kinds + 2).unwrap_or(u16::MAX).min(13)),
        Constraint::Min(3),
        Constraint::Length(1),
        Constraint::Length(1),
        Constraint::Length(1),
    ];
    let [head, kinds, channels, chosen, packets, foot] =
        Layout::vertical(heights).areas(frame.area());
    frame.render_widget(header(state, interface), head);
    if let Some(status) = state.status() {
        frame.render_widget(kinds_table(&status.kinds), kinds);
    }
    draw_channels(frame, state, channels);
    frame.render_widget(detail(state), chosen);
    if let Some(status) = state.status() {
        let text = format!("since the start: {}", ledger::summary(&status.ledger));
        frame.render_widget(Paragraph::new(text), packets);
    }
    frame.render_widget(Paragraph::new(KEYS).style(faint()), foot);
}

fn header(state: &State, interface: &str) -> Paragraph<'static> {
    let mut spans = vec![Span::styled(
        format!("plimsoll guard {interface}"),
        strong(),
    )];
    if let Some(status) = state.status() {
        let offered: f64 = status.kinds.iter().map(|kind| kind.offered_pps).sum();
        let discarded: f64 = status.kinds.iter().map(|kind| kind.discarded_pps).sum();
        spans.push(Span::raw(format!(
            "  up {}  offered {}/s  discarded {}/s  channels {}",
            duration(status.uptime_s),
            count(offered),
            count(discarded),
            status.channels_total
        )));
        spans.push(mode(status));
    }
    if state.status().is_some_and(|status| status.observe) {
        spans.push(Span::styled("  OBSERVING, nothing is discarded", strong()));
    }
    if state.is_paused() {
        spans.push(Span::styled("  PAUSED", strong()));
    }
    if let Some(problem) = state.problem() {
        spans.push(Span::styled(format!("  {problem}"), alarm()));
    }
    Paragraph::new(Line::from(spans))
}

/// What the governor does, and why.
fn mode(status: &Status) -> Span<'static> {
    let governor = &status.governor;
    let shedding = if status.shedding { ", shedding" } else { "" };
    let text = format!(
        "  {} ({}{shedding}, network {:.0}% of a CPU)",
        governor.mode,
        governor.reason,
        governor.network_share * 100.0
    );
    let style = if governor.mode == "interrupts" {
        Style::new()
    } else {
        warning()
    };
    Span::styled(text, style)
}

fn kinds_table(kinds: &[KindStatus]) -> Table<'static> {
    let rows = kinds.iter().map(|kind| {
        let style = if kind.discarded_pps > 0.0 {
            alarm()
        } else {
            Style::new()
        };
        Row::new([
            Cell::from(kind.kind.clone()),
            right(&count(kind.offered_pps)),
            right(&count(kind.discarded_pps)),
            right(&cpus(kind.charged_cpus)),
        ])
        .style(style)
    });
    let widths = [16, 11, 11, 6].map(Constraint::Length);
    let head = [
        Cell::from("kind"),
        right("offered/s"),
        right("discarded/s"),
        right("CPU"),
    ];
    Table::new(rows, widths).header(Row::new(head).style(faint()))
}

fn draw_channels(frame: &mut Frame<'_>, state: &State, area: Rect) {
    let mark = |sort, name: &str| {
        if state.sort() == sort {
            right(&format!("{name}▼"))
        } else {
            right(name)
        }
    };
    let head = [
        Cell::from("channel"),
        Cell::from("queue"),
        mark(Sort::Occupancy, "full"),
        mark(Sort::Offered, "offered/s"),
        mark(Sort::Discarded, "discarded/s"),
        mark(Sort::Charged, "CPU"),
        Cell::from("outcome"),
        Cell::from("owner"),
    ];
    let widths = [
        Constraint::Max(44),
        Constraint::Length(u16::try_from(BAR_CELLS).unwrap_or(10)),
        Constraint::Length(6),
        Constraint::Length(11),
        Constraint::Length(12),
        Constraint::Length(6),
        Constraint::Length(13),
        Constraint::Min(10),
    ];
    let rows = state.channels().iter().map(channel_row);
    let table = Table::new(rows, widths)
        .header(Row::new(head).style(faint()))
        .row_highlight_style(Style::new().add_modifier(Modifier::REVERSED));
    let mut selection = TableState::new().with_selected(Some(state.chosen()));
    frame.render_stateful_widget(table, area, &mut selection);
}

fn channel_row(channel: &ChannelStatus) -> Row<'static> {
    let full = fullness(channel);
    let style = match (channel.discarding, full > 0.5) {
        (true, _) => alarm(),
        (false, true) => warning(),
        (false, false) => Style::new(),
    };
    Row::new([
        Cell::from(name(channel)),
        Cell::from(bar(full)),
        right(&format!("{:.0}%", full * 100.0)),
        right(&count(channel.offered_pps)),
        right(&count(channel.discarded_pps)),
        right(&cpus(channel.charged_cpus)),
        Cell::from(main_outcome(channel)),
        Cell::from(owner(channel)),
    ])
    .style(style)
}

/// All that is known of the chosen channel, by outcome.
fn detail(state: &State) -> Paragraph<'static> {
    let Some(channel) = state.channels().get(state.chosen()) else {
        return Paragraph::new("");
    };
    let outcomes = channel.outcome_pps.iter().filter(|(_, rate)| **rate > 0.0);
    let outcomes: Vec<_> = outcomes
        .map(|(outcome, rate)| format!("{outcome} {}/s", count(*rate)))
        .collect();
    let users = channel.owner.as_ref().map_or(0, |owner| owner.sockets);
    let sockets = if users > 1 {
        format!("  {users} sockets")
    } else {
        String::new()
    };
    Paragraph::new(format!(
        "{}  {} of {}{sockets}  {}",
        name(channel),
        channel.occupancy,
        channel.capacity,
        outcomes.join("  ")
    ))
}

fn name(channel: &ChannelStatus) -> String {
    let address = SocketAddr::new(channel.address, channel.port);
    format!("{} {address}", channel.kind)
}

/// What becomes of most packets that are not simply admitted.
fn main_outcome(channel: &ChannelStatus) -> String {
    let others = channel.outcome_pps.iter();
    let others = others.filter(|(outcome, rate)| *outcome != "admitted" && **rate > 0.0);
    let most = others.max_by(|a, b| a.1.total_cmp(b.1));
    most.map_or_else(String::new, |(outcome, _)| outcome.clone())
}

fn fullness(channel: &ChannelStatus) -> f64 {
    (f64::from(channel.occupancy) / f64::from(channel.capacity.max(1))).min(1.0)
}

fn bar(full: f64) -> String {
    let cells = (full * BAR_CELLS as f64).round() as usize;
    format!("{}{}", "█".repeat(cells), "░".repeat(BAR_CELLS - cells))
}

/// A rate in few places: 950, 12.3k, 4.56M.
fn count(rate: f64) -> String {
    match rate {
        rate if rate >= 1e6 => format!("{:.2}M", rate / 1e6),
        rate if rate >= 1e4 => format!("{:.1}k", rate / 1e3),
        rate => format!("{rate:.0}"),
    }
}

/// CPU time as a percentage of one CPU.
fn cpus(cpus: f64) -> String {
    format!("{:.1}%", cpus * 100.0)
}

fn duration(seconds: f64) -> String {
    let seconds = seconds as u64;
    let (hours, minutes) = (seconds / 3600, seconds / 60 % 60);
    format!("{hours}:{minutes:02}:{:02}", seconds % 60)
}

/// Numbers are read from the right.
fn right(text: &str) -> Cell<'static> {
    Cell::from(Text::from(text.to_owned()).right_aligned())
}

fn strong() -> Style {
    Style::new().add_modifier(Modifier::BOLD)
}

fn faint() -> Style {
    Style::new().add_modifier(Modifier::DIM)
}

fn alarm() -> Style {
    coloured(Color::Red)
}

fn warning() -> Style {
    coloured(Color::Yellow)
}

/// See <https://no-color.org>.
fn coloured(colour: Color) -> Style {
    if std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty()) {
        strong()
    } else {
        Style::new().fg(colour)
    }
}

/// An answer with so many channels, for tests.
#[cfg(test)]
pub(super) fn sample(channels: u16) -> Status {
    let channel = |i: u16| {
        let discarded = f64::from(i) * 1000.0;
        serde_json::json!({
            "kind": "udp_socket", "address": "198.18.0.2", "port": 5000 + i,
            "packets": {"admitted": 10, "socket_queue": 5},
            "offered_pps": 12_345.0, "discarded_pps": discarded, "charged_cpus": 0.25,
            "outcome_pps": {"admitted": 12_345.0 - discarded, "socket_queue": discarded},
            "discarding": i > 0, "occupancy": 70, "capacity": 100,
            "owner": {"process": {"pid": 7, "name": "nsd"}, "control_group": "/system.slice",
                      "user": 0, "sockets": 2},
        })
    };
    let status = serde_json::json!({
        "schema": 1, "interface": "eth0", "pid": 1, "uptime_s": 3725.0, "interval_s": 0.5,
        "observe": false, "shedding": true,
        "governor": {"mode": "overload", "reason": "ring", "holdoff_us": 30.0,
                     "network_share": 0.8, "switches": 1},
        "kinds": [{"kind": "udp_socket", "packets": {"admitted": 10, "socket_queue": 5},
                   "offered_pps": 2_345_678.0, "discarded_pps": 950.0, "charged_cpus": 0.5}],
        "channels_total": channels,
        "channels": (0..channels).map(channel).collect::<Vec<_>>(),
        "ledger": {"stages": [], "unaccounted": 0, "not_visible": [], "began_anew": []},
    });
    serde_json::from_value(status).expect("the form of an answer")
}

#[cfg(test)]
mod tests {
    use super::*;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    fn screen(state: &State, width: u16, height: u16) -> Vec<String> {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| draw(frame, state, "eth0")).unwrap();
        let buffer = terminal.backend().buffer().clone();
        let cells = buffer.content().chunks(usize::from(width));
        cells
            .map(|row| {
                let line: String = row.iter().map(ratatui::buffer::Cell::symbol).collect();
                line.trim_end().to_owned()
            })
            .collect()
    }

    #[test]
    fn the_screen_tells_who_suffers_why_and_whose_it_is() {
        let mut state = State::default();
        state.on_answer(Ok(sample(2)));
        let expected = [
            "plimsoll guard eth0  up 1:02:05  offered 2.35M/s  discarded 950/s  channels 2  overload (ring, shedding, network 80% of a CPU)",
            "kind               offered/s discarded/s CPU",
            "udp_socket             2.35M         950 50.0%",
            "",
            "channel                    queue      full     offered/s  discarded/s▼ CPU outcome       owner",
            "udp_socket 198.18.0.2:5000 ███████░░░ 70%          12.3k            0  25.0%              nsd (7) /system.slice",
            "udp_socket 198.18.0.2:5001 ███████░░░ 70%          12.3k         1000  25.0% socket_queue  nsd (7) /system.slice",
            "udp_socket 198.18.0.2:5000  70 of 100  2 sockets  admitted 12.3k/s",
            "since the start: delivered 0, lost 0, discarded 0, unaccounted 0",
            KEYS,
        ];
        let lines = screen(&state, 140, 10);
        for (line, expected) in lines.iter().zip(expected) {
            let squeeze = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
            assert_eq!(squeeze(line), squeeze(expected), "{lines:#?}");
        }
    }

    #[test]
    fn it_fits_any_terminal() {
        let mut state = State::default();
        for (width, height) in [(1, 1), (20, 5), (80, 24), (300, 100)] {
            screen(&state, width, height);
        }
        state.on_answer(Ok(sample(200)));
        for (width, height) in [(1, 1), (20, 5), (80, 24), (300, 100)] {
            screen(&state, width, height);
        }
        state.on_answer(Err("no guard runs on `eth0`".to_owned()));
        assert!(screen(&state, 160, 24)[0].contains("no guard runs on `eth0`"));
    }

    #[test]
    fn rates_take_few_places() {
        assert_eq!(count(0.4), "0");
        assert_eq!(count(9_999.0), "9999");
        assert_eq!(count(12_345.0), "12.3k");
        assert_eq!(count(2_345_678.0), "2.35M");
        assert_eq!(bar(0.0), "░".repeat(10));
        assert_eq!(bar(1.0), "█".repeat(10));
    }
}
