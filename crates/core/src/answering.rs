//! Whether SYNs past a listener's queue are answered with cookies from the driver,
//! or left to the stack, which makes its own: by evidence that the answers arrive.
//!
//! **Intuition.** A cookie from the driver saves the stack's whole path. It helps
//! nobody if it never reaches the client: the link may refuse what its own program
//! sends back, something on the way may drop it, or a packet filter on this host may
//! refuse the handshake's end because it never saw the beginning. Then the stack's
//! own cookies, which cost more, are the better answer. None of this can be read
//! from a driver's name, so it is seen from what happens.
//!
//! **Source.** RFC 4987, section 3.6, for cookies. The rules below are ours.
//!
//! **Rules.**
//! 1. An answer that the link refused stops answering at once.
//! 2. Handshakes whose end carries a valid cookie are counted where they go on to the
//!    stack and where it takes them. If it takes fewer than half, answering stops.
//! 3. If nobody comes back for a while, the sources may all be forged, or the
//!    answers lost. A short trial tells: the stack answers, and if clients come back
//!    then, the answers from the driver were lost, and answering stops. The first
//!    interval of a trial still belongs to the answers from before it.
//! 4. After a stop, answering is tried again. Each stop that follows makes the next
//!    pause twice as long; a handshake that the stack took ends that.
//!
//! **When it loses.** Answers that arrive only at some clients pass for arriving. A
//! trial takes the host back to the stack's costs for [`TRIAL`]. A client whose answer
//! was lost has to send its SYN again.

use core::time::Duration;

use crate::time::Instant;

/// Answers without a handshake's end that make a trial worth while: fewer may all
/// have been for forged sources, or for clients that are still on their way.
pub const SILENT_ANSWERS: u64 = 64;
/// How long nobody must have come back before the first trial: longer than most
/// clients' round trips, shorter than their second SYN's patience of three seconds.
pub const SILENCE: Duration = Duration::from_secs(2);
/// How long a trial lasts, its first interval included.
pub const TRIAL: Duration = Duration::from_secs(3);
/// Handshakes that rule 2 wants to have seen.
pub const PASSED_MIN: u64 = 8;
/// The first pause after a stop.
pub const PAUSE_MIN: Duration = Duration::from_secs(10);
/// The longest pause, and the longest time between trials.
pub const PAUSE_MAX: Duration = Duration::from_secs(640);

/// What was seen in one interval, in packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// SYNs answered from the driver.
    pub answered: u64,
    /// Answers from the driver that the link refused.
    pub refused: u64,
    /// Ends of handshakes with a valid cookie, whoever made it: an answer has arrived.
    pub returned: u64,
    /// Those of them that went on to the stack.
    pub passed: u64,
    /// Ends of handshakes with a cookie that the stack took.
    pub taken: u64,
}

/// Who answers, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answerer {
    /// The driver: nothing speaks against it.
    Driver,
    /// The stack, for the length of a trial.
    Trial,
    /// The stack: the link refused answers from the driver.
    Refused,
    /// The stack: it did not take the handshakes that were answered for it.
    NotTaken,
    /// The stack: clients come back to its answers, and did not to the driver's.
    Lost,
}

/// The decision. See the module.
#[derive(Clone, Debug)]
pub struct Answering {
    answerer: Answerer,
    /// When the present pause or trial is over.
    until: Instant,
    /// Whether the present trial's first interval has passed.
    is_trial_clean: bool,
    /// The next pause.
    pause: Duration,
    /// Answers since somebody came back, and since when.
    silent_answers: u64,
    silent_since: Option<Instant>,
    /// How long silence must last before the next trial.
    silence: Duration,
    passed: u64,
    taken: u64,
}

impl Default for Answering {
    fn default() -> Self {
        Self::new()
    }
}

impl Answering {
    /// Answers from the driver until something speaks against it.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            answerer: Answerer::Driver,
            until: Instant::ZERO,
            is_trial_clean: false,
            pause: PAUSE_MIN,
            silent_answers: 0,
            silent_since: None,
            silence: SILENCE,
            passed: 0,
            taken: 0,
        }
    }

    /// Who answers now.
    #[must_use]
    pub const fn answerer(&self) -> Answerer {
        self.answerer
    }

    /// Takes in what was seen since the last call; says who answers from now on.
    /// Call it about once a second.
    pub fn on_interval(&mut self, now: Instant, seen: &Seen) -> Answerer {
        match self.answerer {
            Answerer::Driver => self.on_answered(now, seen),
            Answerer::Trial => self.on_trial(now, seen),
            _ if self.until <= now => self.answer(),
            _ => {}
        }
        self.answerer
    }

    fn on_answered(&mut self, now: Instant, seen: &Seen) {
        if seen.refused > 0 {
            return self.stop(Answerer::Refused, now);
        }
        self.passed = self.passed.saturating_add(seen.passed);
        self.taken = self.taken.saturating_add(seen.taken);
        if self.passed >= PASSED_MIN {
            if self.taken < self.passed / 2 {
                return self.stop(Answerer::NotTaken, now);
            }
            self.pause = PAUSE_MIN;
            (self.passed, self.taken) = (0, 0);
        }
        if seen.returned > 0 {
            self.break_silence();
        } else if seen.answered > 0 {
            self.silent_answers = self.silent_answers.saturating_add(seen.answered);
            let since = *self.silent_since.get_or_insert(now);
            let lasted = now.saturating_since(since) >= self.silence;
            if lasted && self.silent_answers >= SILENT_ANSWERS {
                self.answerer = Answerer::Trial;
                self.is_trial_clean = false;
                self.until = now + TRIAL;
            }
        }
    }

    fn on_trial(&mut self, now: Instant, seen: &Seen) {
        match (seen.returned > 0, self.is_trial_clean) {
            (true, true) => self.stop(Answerer::Lost, now),
            // They come back to the driver's last answers.
            (true, false) => self.answer(),
            (false, _) if self.until <= now => {
                let silence = (self.silence * 2).min(PAUSE_MAX);
                self.answer();
                self.silence = silence;
            }
            (false, _) => self.is_trial_clean = true,
        }
    }

    fn stop(&mut self, why: Answerer, now: Instant) {
        self.answerer = why;
        self.until = now + self.pause;
        self.pause = (self.pause * 2).min(PAUSE_MAX);
        self.break_silence();
        (self.passed, self.taken) = (0, 0);
    }

    fn answer(&mut self) {
        self.answerer = Answerer::Driver;
        self.break_silence();
    }

    fn break_silence(&mut self) {
        self.silent_answers = 0;
        self.silent_since = None;
        self.silence = SILENCE;
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use std::vec::Vec;

    use proptest::prelude::{prop, prop_assert, proptest};

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);
    const FORGED: Seen = Seen {
        answered: 100_000,
        refused: 0,
        returned: 0,
        passed: 0,
        taken: 0,
    };
    const CLIENTS: Seen = Seen {
        answered: 100_000,
        refused: 0,
        returned: 20,
        passed: 20,
        taken: 20,
    };

    /// The answerer after each second; `seen` sees who answered in it.
    fn follow(
        answering: &mut Answering,
        seen: impl Fn(Answerer) -> Seen,
        seconds: u64,
    ) -> Vec<Answerer> {
        let mut now = Instant::ZERO;
        let step = |_| {
            now += SECOND;
            let seen = seen(answering.answerer());
            answering.on_interval(now, &seen)
        };
        (0..seconds).map(step).collect()
    }

    #[test]
    fn while_clients_come_back_the_driver_answers() {
        let answerers = follow(&mut Answering::new(), |_| CLIENTS, 1000);
        assert!(answerers.iter().all(|one| *one == Answerer::Driver));
    }

    #[test]
    fn a_refused_answer_stops_at_once_and_pauses_double() {
        let refusing = |answerer| match answerer {
            Answerer::Driver => Seen {
                refused: 1,
                ..FORGED
            },
            _ => Seen::default(),
        };
        let answerers = follow(&mut Answering::new(), refusing, 10_000);
        assert_eq!(answerers[0], Answerer::Refused);
        let tries: Vec<usize> = (1..answerers.len())
            .filter(|second| answerers[*second] == Answerer::Driver)
            .collect();
        assert_eq!(tries[..4], [10, 31, 72, 153]);
        let last = tries.windows(2).last().unwrap();
        assert_eq!((last[1] - last[0]) as u64, PAUSE_MAX.as_secs() + 1);
    }

    #[test]
    fn handshakes_that_the_stack_refuses_stop_it() {
        let filtered = |_| Seen {
            taken: 9,
            ..CLIENTS
        };
        let answerers = follow(&mut Answering::new(), filtered, 1);
        assert_eq!(answerers, [Answerer::NotTaken]);
        let half = |_| Seen {
            taken: 10,
            ..CLIENTS
        };
        let answerers = follow(&mut Answering::new(), half, 100);
        assert!(answerers.iter().all(|one| *one == Answerer::Driver));
    }

    /// A server that hangs lets nobody in, and yet every answer arrives.
    #[test]
    fn who_comes_back_and_is_refused_before_the_stack_is_no_sign_of_loss() {
        let refused = |_| Seen {
            passed: 0,
            taken: 0,
            ..CLIENTS
        };
        let answerers = follow(&mut Answering::new(), refused, 100);
        assert!(answerers.iter().all(|one| *one == Answerer::Driver));
    }

    #[test]
    fn a_trial_finds_that_answers_were_lost() {
        // Clients come back to the stack's answers only.
        let lost = |answerer| match answerer {
            Answerer::Driver => FORGED,
            _ => CLIENTS,
        };
        let mut answering = Answering::new();
        // The first interval of the trial is not yet the stack's.
        let mut seconds = 0;
        while answering.answerer() == Answerer::Driver {
            seconds += 1;
            answering.on_interval(Instant::ZERO + SECOND * seconds, &FORGED);
        }
        assert_eq!(answering.answerer(), Answerer::Trial);
        assert_eq!(seconds, 3, "the silence begins with the first interval");
        let mut after = |seen: &Seen| {
            seconds += 1;
            answering.on_interval(Instant::ZERO + SECOND * seconds, seen)
        };
        assert_eq!(after(&FORGED), Answerer::Trial);
        assert_eq!(after(&lost(Answerer::Trial)), Answerer::Lost);
    }

    #[test]
    fn what_comes_back_as_a_trial_begins_came_back_to_the_driver() {
        let mut answering = Answering::new();
        for second in 1..=3 {
            answering.on_interval(Instant::ZERO + SECOND * second, &FORGED);
        }
        assert_eq!(answering.answerer(), Answerer::Trial);
        let answerer = answering.on_interval(Instant::ZERO + SECOND * 4, &CLIENTS);
        assert_eq!(answerer, Answerer::Driver);
    }

    #[test]
    fn forged_sources_alone_cost_ever_rarer_trials() {
        let answerers = follow(&mut Answering::new(), |_| FORGED, 10_000);
        let trials = answerers.iter().filter(|one| **one == Answerer::Trial);
        let trials = trials.count() as u64 / TRIAL.as_secs();
        assert!((8..=24).contains(&trials), "{trials}");
        let stopped = |one: &&Answerer| !matches!(one, Answerer::Driver | Answerer::Trial);
        assert_eq!(answerers.iter().find(stopped), None);
    }

    #[test]
    fn a_taken_handshake_ends_long_pauses() {
        let mut answering = Answering::new();
        let mut now = Instant::ZERO;
        for _ in 0..20 {
            answering.on_interval(
                now,
                &Seen {
                    refused: 1,
                    ..FORGED
                },
            );
            now += PAUSE_MAX;
            answering.on_interval(now, &Seen::default());
        }
        answering.on_interval(now, &CLIENTS);
        answering.on_interval(
            now,
            &Seen {
                refused: 1,
                ..FORGED
            },
        );
        let answerer = answering.on_interval(now + PAUSE_MIN, &Seen::default());
        assert_eq!(answerer, Answerer::Driver);
    }

    proptest! {
        /// Whatever is seen: no pause is longer than the longest, and where no
        /// answer arrives the driver answers for a small part of the time only.
        #[test]
        fn answers_that_never_arrive_end(
            seconds in prop::collection::vec((0u64..200_000, prop::bool::ANY), 3000..4000)
        ) {
            let mut answering = Answering::new();
            let mut now = Instant::ZERO;
            let mut by_driver = 0;
            for (answered, has_clients) in &seconds {
                now += SECOND;
                let by_stack = answering.answerer() != Answerer::Driver;
                let clients = u64::from(by_stack && *has_clients);
                let seen = Seen {
                    answered: if by_stack { 0 } else { *answered },
                    refused: 0,
                    returned: clients,
                    passed: clients,
                    taken: clients,
                };
                by_driver += u64::from(!by_stack);
                answering.on_interval(now, &seen);
            }
            prop_assert!(by_driver * 4 < seconds.len() as u64 * 3, "{by_driver}");
        }
    }
}
