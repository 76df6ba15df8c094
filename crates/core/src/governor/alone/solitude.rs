//! Since when a flood has been alone, and how long that must last before anybody is lazy.
//!
//! **Intuition.** Company that went away comes back about as soon as it did before. So
//! quiet must last twice as long as company was away: who comes every ten seconds is not
//! forgotten in between.
//!
//! **When it loses.** Company that is away for longer than [`QUIET_MAX`] is a newcomer
//! each time.

use core::time::Duration;

use super::Company;
use crate::time::Instant;

/// The shortest and the longest time without company after which a flood is alone. The
/// shortest is fifty intervals of overload; a bystander that comes less often than every
/// five minutes may lose a packet each time.
pub(in crate::governor) const QUIET_MIN: Duration = Duration::from_millis(500);
const QUIET_MAX: Duration = Duration::from_secs(300);
/// So many times as long as company was away, quiet must last.
const QUIET_FACTOR: u32 = 2;
/// How often one interval is spent on seeing everything: one in 25 intervals of 10 ms
/// costs 4 % of what laziness saves, and so long a change of the flood stays unseen.
pub(in crate::governor) const LOOK_INTERVAL: Duration = Duration::from_millis(250);

/// The state; see the module's documentation.
#[derive(Clone, Debug)]
pub(in crate::governor) struct Solitude {
    /// When company was last seen; at first, when looking began.
    seen_at: Option<Instant>,
    /// Since when there has been a flood and no company.
    since: Option<Instant>,
    /// How long that must last, and until when this is remembered.
    quiet: Duration,
    remembered_until: Instant,
    /// The flood was there in the interval before.
    was_steady: bool,
}

impl Solitude {
    pub(in crate::governor) const fn new() -> Self {
        Self {
            seen_at: None,
            since: None,
            quiet: QUIET_MIN,
            remembered_until: Instant::ZERO,
            was_steady: false,
        }
    }

    /// Whether a flood has been alone for long enough. `is_steady`: the interval is no
    /// pause of the flood; `matters`: to discard it costs time that somebody lacks.
    pub(in crate::governor) fn on_interval(
        &mut self,
        company: Company,
        is_steady: bool,
        matters: bool,
        now: Instant,
    ) -> bool {
        self.note_company(company, is_steady, now);
        let floods = company.others == 0 && company.flood > 0 && matters;
        if !floods {
            self.since = None;
            return false;
        }
        let since = *self.since.get_or_insert(now);
        now.saturating_since(since) >= self.quiet
    }

    /// There is no overload. Until the next one nobody looks, so nobody is seen to be away.
    pub(in crate::governor) fn end(&mut self) {
        self.seen_at = None;
        self.since = None;
        self.was_steady = false;
    }

    /// Learns how long company stays away.
    fn note_company(&mut self, company: Company, is_steady: bool, now: Instant) {
        let seen_at = *self.seen_at.get_or_insert(now);
        let is_steady = company.flood > 0 && is_steady;
        let was_steady = core::mem::replace(&mut self.was_steady, is_steady);
        if company.others == 0 || !(is_steady && was_steady) {
            return;
        }
        self.seen_at = Some(now);
        let away = now.saturating_since(seen_at);
        let quiet = away.saturating_mul(QUIET_FACTOR);
        let quiet = quiet.clamp(QUIET_MIN, QUIET_MAX);
        if quiet >= self.quiet || now >= self.remembered_until {
            self.quiet = quiet;
            self.remembered_until = now + QUIET_MAX;
        }
    }
}

/// Which intervals of laziness see everything.
#[derive(Clone, Copy, Debug)]
pub(in crate::governor) struct Looks {
    looked: Instant,
    is_due: bool,
}

impl Looks {
    /// Everything was seen in the interval that ends now.
    pub(in crate::governor) const fn after_all(now: Instant) -> Self {
        Self {
            looked: now,
            is_due: false,
        }
    }

    /// A lazy interval ends now.
    pub(in crate::governor) fn next(self, now: Instant) -> Self {
        Self {
            is_due: now.saturating_since(self.looked) >= LOOK_INTERVAL,
            ..self
        }
    }

    /// The interval that begins is to see everything.
    pub(in crate::governor) const fn is_due(self) -> bool {
        self.is_due
    }
}
