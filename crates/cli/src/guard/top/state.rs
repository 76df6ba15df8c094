//! What the live view shows: a pure function of answers and keys.

use plimsoll_guard::ledger::{Fate, Place};
use plimsoll_guard::status::{ChannelStatus, Request, Sort, Status};
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

/// The view between two events.
#[derive(Debug)]
pub(in crate::guard) struct State {
    status: Option<Status>,
    /// Packets lost since the last answer, and most of them where.
    losing: Option<Losing>,
    /// Why there is no newer status.
    problem: Option<String>,
    sort: Sort,
    /// Row of the chosen channel.
    chosen: usize,
    paused: bool,
    over: bool,
    asks_anew: bool,
}

/// Packets that end as lost in the ledger.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Losing {
    /// Packets per second.
    pub(super) pps: f64,
    /// The place that most of them are lost in.
    pub(super) place: String,
}

impl Losing {
    /// Between two answers of the same guard; `None` if nothing was lost.
    fn between(then: &Status, now: &Status) -> Option<Self> {
        let seconds = now.uptime_s - then.uptime_s;
        if then.pid != now.pid || seconds <= 0.0 {
            return None;
        }
        let lost = |stage: &str, place: &Place| {
            let before = then.ledger.place(stage, &place.name);
            place
                .packets
                .saturating_sub(before.map_or(0, |b| b.packets))
        };
        let places = now.ledger.stages.iter().flat_map(|stage| {
            let places = stage.places.iter();
            let places = places.filter(|place| place.fate == Fate::Lost);
            places.map(|place| (lost(&stage.name, place), &place.name))
        });
        let all: u64 = places.clone().map(|(packets, _)| packets).sum();
        let (_, most) = places.max_by_key(|(packets, _)| *packets)?;
        (all > 0).then(|| Self {
            pps: all as f64 / seconds,
            place: most.clone(),
        })
    }
}

impl Default for State {
    fn default() -> Self {
        Self {
            status: None,
            losing: None,
            problem: None,
            sort: Sort::Discarded,
            chosen: 0,
            paused: false,
            over: false,
            asks_anew: false,
        }
    }
}

impl State {
    /// What to ask for to fill `rows` rows.
    pub(super) fn request(&self, rows: usize) -> Request {
        Request {
            sort: self.sort,
            limit: rows.max(self.chosen + 1),
        }
    }

    pub(in crate::guard) fn on_answer(&mut self, answer: Result<Status, String>) {
        self.asks_anew = false;
        match answer {
            Ok(status) => {
                self.chosen = self.chosen.min(status.channels.len().saturating_sub(1));
                let before = self.status.as_ref();
                self.losing = before.and_then(|before| Losing::between(before, &status));
                self.status = Some(status);
                self.problem = None;
            }
            Err(problem) => self.problem = Some(problem),
        }
    }

    pub(super) fn on_key(&mut self, key: KeyEvent) {
        let control = key.modifiers.contains(KeyModifiers::CONTROL);
        match key.code {
            KeyCode::Char('c') if control => self.over = true,
            KeyCode::Char('q') | KeyCode::Esc => self.over = true,
            KeyCode::Char('d') => self.sort_by(Sort::Discarded),
            KeyCode::Char('o') => self.sort_by(Sort::Offered),
            KeyCode::Char('u') => self.sort_by(Sort::Charged),
            KeyCode::Char('f') => self.sort_by(Sort::Occupancy),
            KeyCode::Char(' ') => {
                self.paused = !self.paused;
                self.asks_anew = !self.paused;
            }
            KeyCode::Up | KeyCode::Char('k') => self.chosen = self.chosen.saturating_sub(1),
            KeyCode::Down | KeyCode::Char('j') => {
                let last = self.channels().len().saturating_sub(1);
                self.chosen = (self.chosen + 1).min(last);
            }
            KeyCode::Home => self.chosen = 0,
            _ => {}
        }
    }

    fn sort_by(&mut self, sort: Sort) {
        self.sort = sort;
        self.chosen = 0;
        self.asks_anew = !self.paused;
    }

    /// True if a key made the shown answer the wrong one.
    pub(super) fn asks_anew(&self) -> bool {
        self.asks_anew
    }

    pub(super) fn is_over(&self) -> bool {
        self.over
    }

    pub(super) fn is_paused(&self) -> bool {
        self.paused
    }

    pub(super) fn status(&self) -> Option<&Status> {
        self.status.as_ref()
    }

    pub(super) fn losing(&self) -> Option<&Losing> {
        self.losing.as_ref()
    }

    pub(super) fn problem(&self) -> Option<&str> {
        self.problem.as_deref()
    }

    pub(super) fn sort(&self) -> Sort {
        self.sort
    }

    pub(super) fn channels(&self) -> &[ChannelStatus] {
        self.status.as_ref().map_or(&[], |status| &status.channels)
    }

    /// The chosen channel's row.
    pub(super) fn chosen(&self) -> usize {
        self.chosen
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::guard::top::view::sample;

    fn press(state: &mut State, key: KeyCode) {
        state.on_key(KeyEvent::new(key, KeyModifiers::NONE));
    }

    #[test]
    fn keys_sort_pause_choose_and_end() {
        let mut state = State::default();
        assert_eq!(state.request(10).sort, Sort::Discarded);
        state.on_answer(Ok(sample(3)));
        for (key, sort) in [
            ('o', Sort::Offered),
            ('u', Sort::Charged),
            ('f', Sort::Occupancy),
            ('d', Sort::Discarded),
        ] {
            press(&mut state, KeyCode::Char(key));
            assert_eq!(state.request(10).sort, sort);
            assert!(state.asks_anew());
            state.on_answer(Ok(sample(3)));
        }
        for expected in [1, 2, 2] {
            press(&mut state, KeyCode::Down);
            assert_eq!(state.chosen(), expected);
        }
        state.on_answer(Ok(sample(1)));
        assert_eq!(state.chosen(), 0, "what is gone is not chosen");
        press(&mut state, KeyCode::Up);
        assert_eq!(state.chosen(), 0);
        press(&mut state, KeyCode::Char(' '));
        assert!(state.is_paused());
        press(&mut state, KeyCode::Char('o'));
        assert!(!state.asks_anew(), "paused is paused");
        press(&mut state, KeyCode::Char('q'));
        assert!(state.is_over());
        let mut state = State::default();
        state.on_key(KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL));
        assert!(state.is_over());
    }

    #[test]
    fn a_guard_that_is_gone_leaves_the_last_answer_and_says_so() {
        let mut state = State::default();
        state.on_answer(Ok(sample(2)));
        state.on_answer(Err("no guard runs".to_owned()));
        assert_eq!(state.problem(), Some("no guard runs"));
        assert_eq!(state.channels().len(), 2);
        state.on_answer(Ok(sample(2)));
        assert_eq!(state.problem(), None);
    }
}
