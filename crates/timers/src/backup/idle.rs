//! The idle rule: whether a thread without work blocks or goes on checking.

use std::io;
use std::time::Duration;

use plimsoll_core::soft_timer::IdleAction;
use plimsoll_core::time::Instant;

use super::{Backup, armed_for};
use crate::clock::Clock;
use crate::facility::Timers;

/// For which moment the backup of a blocked thread is armed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Until {
    /// When the next event is due. A blocked thread passes no trigger states,
    /// so waiting for its deadline gains nothing but fewer wake-ups.
    #[default]
    NextEvent,
    /// The earliest deadline: other wake-ups (input) may carry the event before.
    /// Fewer expiries, and events of an idle thread late by their slack and by the time in
    /// which the kernel wakes a thread.
    Deadline,
}

/// A thread's backup and the rule by which it is used (section 5.1).
///
/// Call [`enter`](Self::enter) before blocking and [`leave`](Self::leave) after,
/// then check the timers: both ends of a wait are trigger states.
#[derive(Debug)]
pub struct IdleRule<B> {
    backup: B,
    until: Until,
    wake_up: Duration,
    /// For which event the backup is armed ([`Until::NextEvent`]).
    armed: Option<Instant>,
}

impl<B: Backup> IdleRule<B> {
    /// An idle thread does not block if an event is due within `wake_up`: the
    /// time in which the kernel would wake it. Larger makes events more exact
    /// and burns the CPU while it waits for them; zero never spins.
    pub fn new(backup: B, until: Until, wake_up: Duration) -> Self {
        Self {
            backup,
            until,
            wake_up,
            armed: None,
        }
    }

    /// The backup, for waiting on it.
    pub fn backup(&mut self) -> &mut B {
        &mut self.backup
    }

    /// The thread has nothing to do. [`IdleAction::Halt`]: it may block, the
    /// backup is armed. [`IdleAction::Check`]: it should look at its sources
    /// without blocking and check again.
    ///
    /// # Errors
    ///
    /// The backup could not be armed.
    pub fn enter<T: Copy, C: Clock>(
        &mut self,
        timers: &mut Timers<T, C>,
    ) -> io::Result<IdleAction> {
        if timers.idle_action(self.wake_up) == IdleAction::Check {
            return Ok(IdleAction::Check);
        }
        match self.until {
            Until::Deadline => timers.arm_for_deadline(&mut self.backup)?,
            Until::NextEvent => self.arm_for_event(timers)?,
        }
        Ok(IdleAction::Halt)
    }

    /// The thread was woken. `by_backup`: the backup is ready (its descriptor
    /// was among those reported). If that is not known, say so: an expiry that
    /// did not happen only costs arming anew.
    ///
    /// # Errors
    ///
    /// The expiry could not be taken from the backup.
    pub fn leave<T: Copy, C: Clock>(
        &mut self,
        timers: &mut Timers<T, C>,
        by_backup: bool,
    ) -> io::Result<()> {
        if by_backup {
            self.armed = None;
            timers.on_backup_expiry();
            self.backup.clear()?;
        }
        Ok(())
    }

    fn arm_for_event<T: Copy, C: Clock>(&mut self, timers: &Timers<T, C>) -> io::Result<()> {
        let wanted = timers.next_event();
        if wanted == self.armed {
            return Ok(());
        }
        match wanted {
            Some(at) => {
                let span = at.saturating_since(timers.now());
                self.backup.arm(armed_for(span))?;
            }
            None => self.backup.cancel()?,
        }
        self.armed = wanted;
        Ok(())
    }
}
