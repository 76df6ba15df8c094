//! Draws the live view.

use plimsoll_guard::status::{ChannelStatus, ClassStatus, KindStatus, Sort, SourcesStatus, Status};
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span, Text};
use ratatui::widgets::{Cell, Paragraph, Row, Table, TableState, Wrap};

use super::state::State;
use crate::guard::ledger;
use crate::guard::words::{self, doing, most_offered, owner, shortened};

const BAR_CELLS: usize = 10;
const KEYS: &str = "d o u f: sort by discarded, offered, CPU, fullness   space: pause   q: quit";
/// The widest name of a channel that is shown whole, on a wide screen and on others.
const NAME_CELLS: [u16; 2] = [44, 28];
/// What all columns of a wide screen take.
const WIDE_CELLS: u16 = 120;
/// Lines of text about the guard never take more rows than this, each.
const ROWS_MAX: usize = 3;

pub(super) fn draw(frame: &mut Frame<'_>, state: &State, interface: &str) {
    let area = frame.area();
    let all_kinds = state.status().map_or(&[][..], |status| &status.kinds);
    // Channels tell more: kinds have a quarter of the screen.
    let kinds = busiest(all_kinds, usize::from(area.height / 4).max(4));
    let texts = [header(state, interface), detail(state), ledger_line(state)];
    let [head, chosen, packets] = texts.each_ref().map(|text| height(text, area.width));
    let heights = [
        Constraint::Length(head),
        Constraint::Length(u16::try_from(kinds.len() + 2).unwrap_or(u16::MAX)),
        Constraint::Min(3),
        Constraint::Length(chosen),
        Constraint::Length(packets),
        Constraint::Length(1),
    ];
    let [head, by_kind, channels, chosen, packets, foot] = Layout::vertical(heights).areas(area);
    for (text, area) in texts.into_iter().zip([head, chosen, packets]) {
        frame.render_widget(Paragraph::new(text).wrap(Wrap { trim: true }), area);
    }
    if !kinds.is_empty() {
        let more = all_kinds.len() - kinds.len();
        frame.render_widget(kinds_table(&kinds, more), by_kind);
    }
    let table = if area.width < WIDE_CELLS {
        narrow_table(state)
    } else {
        wide_table(state)
    };
    let table = table.row_highlight_style(Style::new().add_modifier(Modifier::REVERSED));
    let mut selection = TableState::new().with_selected(Some(state.chosen()));
    frame.render_stateful_widget(table, channels, &mut selection);
    frame.render_widget(Paragraph::new(KEYS).style(faint()), foot);
}

/// Rows that a text needs on a screen of this width.
fn height(text: &Text<'_>, width: u16) -> u16 {
    let width = usize::from(width.max(1));
    let rows = |line: &Line<'_>| line.width().div_ceil(width).clamp(1, ROWS_MAX);
    u16::try_from(text.lines.iter().map(rows).sum::<usize>()).unwrap_or(u16::MAX)
}

/// How much comes, what is done about it, and whose it is.
fn header(state: &State, interface: &str) -> Text<'static> {
    let mut spans = vec![Span::styled(
        format!("plimsoll guard {interface}"),
        strong(),
    )];
    if let Some(status) = state.status() {
        spans.extend(rates(state, status));
    }
    if state.is_paused() {
        spans.push(Span::styled("  PAUSED", strong()));
    }
    if let Some(problem) = state.problem() {
        spans.push(Span::styled(format!("  {problem}"), alarm()));
    }
    let mut text = Text::from(Line::from(spans));
    if let Some(status) = state.status() {
        text.push_line(mode(status));
        text.extend(words::syn_cookies(status));
        text.extend(words::unguarded(status));
        text.push_line(most_offered(status).map_or_else(
            || "nothing is offered".to_owned(),
            |most| format!("most offered: {most}"),
        ));
    }
    text
}

fn rates(state: &State, status: &Status) -> Vec<Span<'static>> {
    let offered: f64 = status.kinds.iter().map(|kind| kind.offered_pps).sum();
    let discarded: f64 = status.kinds.iter().map(|kind| kind.discarded_pps).sum();
    let would = if status.condition.observe {
        "would discard"
    } else {
        "discarded"
    };
    let mut spans = vec![Span::raw(format!(
        "  up {}  channels {}  offered {}/s  {would} {}/s",
        duration(status.uptime_s),
        status.channels_total,
        count(offered),
        count(discarded),
    ))];
    if let Some(losing) = state.losing() {
        let text = format!("  lost {}/s, most at {}", count(losing.pps), losing.place);
        spans.push(Span::styled(text, warning()));
    }
    spans
}

/// What is done about overload, and why.
fn mode(status: &Status) -> Span<'static> {
    let condition = &status.condition;
    let style = match &*condition.governor.mode {
        _ if condition.observe => strong(),
        "interrupts" => Style::new(),
        _ => warning(),
    };
    Span::styled(doing(condition), style)
}

/// As many kinds as there is room for, those with most packets, in their order.
fn busiest(kinds: &[KindStatus], room: usize) -> Vec<&KindStatus> {
    let mut kept: Vec<(usize, &KindStatus)> = kinds.iter().enumerate().collect();
    kept.sort_by(|(_, a), (_, b)| b.offered_pps.total_cmp(&a.offered_pps));
    kept.truncate(room);
    kept.sort_by_key(|(place, _)| *place);
    kept.into_iter().map(|(_, kind)| kind).collect()
}

fn kinds_table(kinds: &[&KindStatus], more: usize) -> Table<'static> {
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
    let name = match more {
        0 => "kind".to_owned(),
        more => format!("kind ({more} more)"),
    };
    let head = [
        Cell::from(name),
        right("offered/s"),
        right("discarded/s"),
        right("CPU"),
    ];
    Table::new(rows, widths).header(Row::new(head).style(faint()))
}

/// Every column.
fn wide_table(state: &State) -> Table<'static> {
    let head = [
        Cell::from("channel"),
        Cell::from("queue"),
        sorted(state, Sort::Occupancy, "full"),
        sorted(state, Sort::Offered, "offered/s"),
        sorted(state, Sort::Discarded, "discarded/s"),
        sorted(state, Sort::Charged, "CPU"),
        Cell::from("outcome"),
        Cell::from("owner"),
    ];
    let widths = [
        Constraint::Max(NAME_CELLS[0]),
        Constraint::Length(u16::try_from(BAR_CELLS).unwrap_or(10)),
        Constraint::Length(6),
        Constraint::Length(11),
        Constraint::Length(12),
        Constraint::Length(6),
        Constraint::Length(13),
        Constraint::Min(10),
    ];
    let rows = state.channels().iter().map(|channel| {
        let full = fullness(channel);
        let cells = [
            Cell::from(name(channel, NAME_CELLS[0])),
            Cell::from(bar(full, BAR_CELLS)),
            right(&format!("{:.0}%", full * 100.0)),
            right(&count(channel.offered_pps)),
            right(&count(channel.discarded_pps)),
            right(&cpus(channel.charged_cpus)),
            Cell::from(main_outcome(channel)),
            Cell::from(owner(channel)),
        ];
        Row::new(cells).style(row_style(channel))
    });
    Table::new(rows, widths).header(Row::new(head).style(faint()))
}

/// On a screen of 80 columns names come before all else: half a bar, and the
/// outcome only of the chosen channel.
fn narrow_table(state: &State) -> Table<'static> {
    let head = [
        Cell::from("channel"),
        sorted(state, Sort::Occupancy, "full"),
        sorted(state, Sort::Offered, "offered/s"),
        sorted(state, Sort::Discarded, "discarded/s"),
        sorted(state, Sort::Charged, "CPU"),
        Cell::from("owner"),
    ];
    let widths = [
        Constraint::Length(NAME_CELLS[1]),
        Constraint::Length(5),
        Constraint::Length(10),
        Constraint::Length(12),
        Constraint::Length(6),
        Constraint::Min(10),
    ];
    let rows = state.channels().iter().map(|channel| {
        let cells = [
            Cell::from(name(channel, NAME_CELLS[1])),
            Cell::from(bar(fullness(channel), BAR_CELLS / 2)),
            right(&count(channel.offered_pps)),
            right(&count(channel.discarded_pps)),
            right(&cpus(channel.charged_cpus)),
            Cell::from(owner(channel)),
        ];
        Row::new(cells).style(row_style(channel))
    });
    Table::new(rows, widths).header(Row::new(head).style(faint()))
}

/// A column's head, marked if rows are in its order.
fn sorted(state: &State, sort: Sort, name: &str) -> Cell<'static> {
    if state.sort() == sort {
        right(&format!("{name}▼"))
    } else {
        right(name)
    }
}

fn row_style(channel: &ChannelStatus) -> Style {
    match (channel.discarding, fullness(channel) > 0.5) {
        (true, _) => alarm(),
        (false, true) => warning(),
        (false, false) => Style::new(),
    }
}

/// All that is known of the chosen channel, by outcome.
fn detail(state: &State) -> Text<'static> {
    let Some(channel) = state.channels().get(state.chosen()) else {
        return Text::from("");
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
    let mut text = Text::from(format!(
        "{}  {} of {}{sockets}  {}  {}",
        words::name(channel),
        channel.occupancy,
        channel.capacity,
        outcomes.join("  "),
        owner(channel),
    ));
    text.extend(channel.sources.as_ref().and_then(sources));
    text
}

/// Who sends to an overloaded channel, and what becomes of it.
fn sources(sources: &SourcesStatus) -> Option<Line<'static>> {
    let class = |(name, class): (&str, &ClassStatus)| {
        (class.seen > 0).then(|| {
            format!(
                "{} {name}: {}/s admitted, {}/s discarded",
                words::seen(sources, class),
                count(class.admitted_pps),
                count(class.discarded_pps),
            )
        })
    };
    let classes = [("known", &sources.known), ("unknown", &sources.unknown)];
    let told: Vec<_> = classes.into_iter().filter_map(class).collect();
    let text = format!("sources: {}  {}", told.join("  "), words::heaviest(sources));
    (!told.is_empty()).then(|| Line::from(text.trim_end().to_owned()))
}

fn ledger_line(state: &State) -> Text<'static> {
    let summary = state.status().map(|status| {
        let summary = ledger::summary(&status.ledger);
        format!("since the start: {summary}")
    });
    Text::from(summary.unwrap_or_default())
}

fn name(channel: &ChannelStatus, cells: u16) -> String {
    shortened(words::name(channel), usize::from(cells))
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

fn bar(full: f64, of: usize) -> String {
    let cells = (full * of as f64).round() as usize;
    format!("{}{}", "█".repeat(cells), "░".repeat(of - cells))
}

/// A rate in few places: 950, 12.3k, 4.56M.
fn count(rate: f64) -> String {
    match rate {
        rate if rate >= 1e6 => format!("{:.2}M", rate / 1e6),
        rate if rate >= 1e4 => format!("{:.1}k", rate / 1e3),
        // The sum of no rates is -0.0.
        rate => format!("{:.0}", rate.abs()),
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

/// The screen as text, for tests.
#[cfg(test)]
pub(in crate::guard) fn screen(state: &State, width: u16, height: u16) -> String {
    let backend = ratatui::backend::TestBackend::new(width, height);
    let mut terminal = ratatui::Terminal::new(backend).expect("memory is a terminal");
    let drawn = terminal.draw(|frame| draw(frame, state, "eth0"));
    let buffer = drawn.expect("memory is drawn on").buffer;
    let rows = buffer.content().chunks(usize::from(width));
    let text = |row: &[ratatui::buffer::Cell]| {
        let line: String = row.iter().map(ratatui::buffer::Cell::symbol).collect();
        format!("{}\n", line.trim_end())
    };
    rows.map(text).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

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
        assert!(screen(&state, 160, 24).contains("no guard runs on `eth0`"));
    }

    #[test]
    fn rates_take_few_places() {
        assert_eq!(count(0.4), "0");
        assert_eq!(count(-0.0), "0");
        assert_eq!(count(9_999.0), "9999");
        assert_eq!(count(12_345.0), "12.3k");
        assert_eq!(count(2_345_678.0), "2.35M");
        assert_eq!(bar(0.0, 10), "░".repeat(10));
        assert_eq!(bar(1.0, 10), "█".repeat(10));
        assert_eq!(bar(0.5, 4), "██░░");
    }
}
