//! `plimsoll guard top`: the running guard as a live view.
//!
//! `state` decides what is shown, from answers and keys; `view` draws it; this
//! file talks to the terminal and the guard.

mod state;
mod view;

use std::io::IsTerminal;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::failure::Context;
use plimsoll_guard::status::Client;
use ratatui::crossterm::event::{self, Event, KeyEventKind};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

pub(super) use state::State;
#[cfg(test)]
pub(super) use view::screen;

/// How soon a signal ends it.
const LOOK: Duration = Duration::from_millis(100);

/// Watch live who is offered what, who is full, and what is discarded
///
/// Keys: d, o, u, f sort by discarded, offered, CPU, fullness; up and down choose a
/// channel; space pauses; q quits.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Guarded interface, in this network namespace
    #[arg(value_name = "IFACE")]
    interface: String,
    /// Milliseconds between two readings
    #[arg(long, value_name = "MS", default_value_t = 500, value_parser = clap::value_parser!(u64).range(100..=60_000))]
    interval_ms: u64,
}

pub(crate) fn run(args: &Args) -> crate::Result<()> {
    if !std::io::stdout().is_terminal() {
        let message =
            "`guard top` needs a terminal; `plimsoll guard status --json` is for programs";
        return Err(crate::failure::Usage(message).into());
    }
    let mut client = Client::new(&args.interface);
    // So that a mistake is said before the screen is taken.
    let mut state = State::default();
    let first = client.status(&state.request(0))?;
    state.on_answer(Ok(first));
    let ended = Arc::new(AtomicBool::new(false));
    for signal in [SIGHUP, SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&ended)).context("cannot catch signals")?;
    }
    let mut terminal = ratatui::try_init().context("cannot take the terminal")?;
    let result = watch(args, &mut client, &mut state, &mut terminal, &ended);
    ratatui::restore();
    result
}

fn watch(
    args: &Args,
    client: &mut Client,
    state: &mut State,
    terminal: &mut ratatui::DefaultTerminal,
    ended: &AtomicBool,
) -> crate::Result<()> {
    let interval = Duration::from_millis(args.interval_ms);
    let mut due = Instant::now();
    while !state.is_over() && !ended.load(Ordering::Relaxed) {
        if due <= Instant::now() {
            if !state.is_paused() {
                let rows = usize::from(terminal.size()?.height);
                let answer = client.status(&state.request(rows));
                state.on_answer(answer.map_err(|error| error.to_string()));
            }
            due = Instant::now() + interval;
        }
        terminal.draw(|frame| view::draw(frame, state, &args.interface))?;
        if await_event(due, ended)?
            && let Event::Key(key) = event::read()?
            && key.kind != KeyEventKind::Release
        {
            state.on_key(key);
            if state.asks_anew() {
                due = Instant::now();
            }
        }
    }
    Ok(())
}

/// Waits until something happens on the terminal. `false`: it is `due`, or a signal came.
fn await_event(due: Instant, ended: &AtomicBool) -> std::io::Result<bool> {
    loop {
        let left = due.saturating_duration_since(Instant::now());
        if event::poll(left.min(LOOK))? {
            return Ok(true);
        }
        if left <= LOOK || ended.load(Ordering::Relaxed) {
            return Ok(false);
        }
    }
}
