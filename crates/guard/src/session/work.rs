//! What a session does now and then, as a trait: a test makes any of it fail.

use std::task::Poll;
use std::time::Duration;

use plimsoll_core::standby::Order;
use plimsoll_kernel::Knobs;
use plimsoll_kernel::error::with_causes;
use plimsoll_kernel::knobs::RestoreError;

use super::allow_driver;
use super::handover::ServiceManager;
use super::owners::SocketOwners;
use super::settings::Settings;
use super::standby::{Change, Standing, WATCHING};
use super::threads::Threads;
use crate::error::Error;
use crate::governor::Governor;
use crate::guard::{Guard, Regulated};
use crate::presence::Absence;
use crate::status::{Condition, Snapshot, StatusServer};

/// The work of a session. Each kind may fail for a moment. What is pending is under way on
/// another thread, and asked for again soon.
pub(super) trait Work {
    /// Sheds input and looks at the CPUs; due again after [`Work::interval`].
    fn regulate(&mut self) -> Result<Regulated, Error>;
    fn interval(&self) -> Duration;
    /// Turns the host's settings by what was seen.
    fn govern(&mut self, regulated: &Regulated) -> Result<(), Error>;
    /// After [`Work::govern`] failed: leaves the host's settings as they were, until
    /// governing succeeds again.
    fn stand_back(&mut self) -> Result<(), Error>;
    /// Whether this network namespace has the interface no more.
    fn is_gone(&self) -> bool;
    /// The interface's new name, once after it was renamed.
    fn renamed(&mut self) -> Option<String>;
    /// Takes over the host's addresses and settings; due once a second.
    fn refresh(&mut self) -> Result<(), Error>;
    /// Attaches the program anew if the driver does not run it any more; due once a second.
    /// What was wrong then.
    fn see_presence(&mut self) -> Result<Option<Absence>, Error>;
    /// Attaches the program that stands by, or detaches it, if it is time; due again after
    /// [`Work::watching`]. What was done, if anything.
    fn stand_by(&mut self) -> Result<Option<Change>, Error>;
    fn watching(&self) -> Duration;
    /// Has threads poll as the settings say, where the driver made its instances anew; due once
    /// a second. How many, if so.
    fn renew_threads(&mut self) -> Poll<Result<Option<usize>, Error>>;
    /// Finds out who owns new sockets; due once a second.
    fn tell_owners_apart(&mut self) -> Poll<Result<(), Error>>;
    /// Reads all counters.
    fn snapshot(&mut self) -> Result<Snapshot, Error>;
    /// Takes over these settings, or none of them; if both are refused, the error has both
    /// reasons.
    fn configure(&mut self, settings: &Settings) -> Result<(), ConfigureError>;
}

/// Why new settings were not taken over.
#[derive(Debug, thiserror::Error)]
pub(super) enum ConfigureError {
    /// They were refused, or a part of them. The source says the remedy.
    #[error("the settings stay as they were")]
    Refused(#[source] Error),
    /// So was a part of those before, when they were to hold again.
    #[error(
        "the settings are partly new and partly as they were (reload when the causes are gone, or restart): {}; and then: {}",
        with_causes(.new),
        with_causes(.old)
    )]
    Mixed {
        /// Why not the new ones.
        new: Box<Error>,
        /// Why not those before.
        old: Box<Error>,
    },
}

/// Makes `new` hold by `apply`, or else `old` again.
fn change<T>(
    old: &T,
    new: &T,
    mut apply: impl FnMut(&T) -> Result<(), Error>,
) -> Result<(), ConfigureError> {
    let Err(refused) = apply(new) else {
        return Ok(());
    };
    Err(match apply(old) {
        Ok(()) => ConfigureError::Refused(refused),
        Err(old) => ConfigureError::Mixed {
            new: Box::new(refused),
            old: Box::new(old),
        },
    })
}

/// A guarded interface.
#[derive(Debug)]
pub(super) struct Guarded<'obj> {
    settings: Settings,
    /// What the interface is called now, if it was renamed.
    name: Option<String>,
    // Fields are dropped in this order. The status socket goes first: with the lock that the knobs
    // have, the next guard may start, and have a socket there. The governor's limiter must
    // not demote a thread that is the host's own again. Nor must one be moved to another
    // control group then. Settings are restored before the program is detached.
    pub(super) status: Option<StatusServer>,
    governor: Governor,
    threads: Threads,
    pub(super) knobs: Knobs,
    pub(super) guard: Guard<'obj>,
    owners: SocketOwners,
    /// The program is attached only now and then.
    pub(super) standing: Option<Standing>,
    /// Something stays turned that should not.
    must_restore: bool,
}

impl<'obj> Guarded<'obj> {
    pub(super) fn new(
        settings: Settings,
        knobs: Knobs,
        guard: Guard<'obj>,
        governor: Governor,
    ) -> Self {
        Self {
            settings,
            name: None,
            status: None,
            governor,
            threads: Threads::default(),
            knobs,
            guard,
            owners: SocketOwners::default(),
            standing: None,
            must_restore: false,
        }
    }

    /// Attaches the program unless it is to stand by, and turns what is turned from the start.
    pub(super) fn begin(&mut self) -> Result<(), Error> {
        if self.standing.is_none() {
            self.guard.attach_now()?;
        }
        if !self.knobs.is_untouched() {
            self.knobs.restore()?;
        }
        self.threads = Threads::start(&mut self.knobs, &self.settings)?;
        Ok(())
    }

    /// Puts everything back. The program is detached, unless the service manager keeps
    /// it for the next guard of an interface that is there. Returns what could not be put back.
    pub(super) fn end(self, manager: &ServiceManager) -> Result<(), RestoreError> {
        let Self {
            status,
            governor,
            threads,
            knobs,
            mut guard,
            ..
        } = self;
        // In the order in which they are dropped.
        drop(status);
        drop(governor);
        drop(threads);
        let is_gone = knobs.is_gone();
        let restored = knobs.end();
        if !is_gone && let Some(link) = guard.hand_on() {
            manager.keep(link);
        }
        restored
    }

    /// Makes these settings hold, as far as each is taken. Tells what was refused first.
    fn apply(&mut self, settings: &Settings) -> Result<(), Error> {
        self.knobs.allow_any_driver(settings.any_driver);
        let governor = self
            .governor
            .configure(settings.governor(), &mut self.knobs);
        let guard = self.guard.configure(&settings.guard);
        let protection = self.guard.protect(&settings.protection);
        let standing = self.standing.as_mut();
        let standing = standing.map_or(Ok(()), |standing| standing.configure(settings));
        governor
            .and(guard)
            .and(protection)
            .and(standing.map_err(Error::from))
    }

    fn attach(&mut self) -> Result<(), Error> {
        self.guard.attach_now()?;
        self.governor.begin_again()
    }

    /// Settings first: without a program the instances that have them may be gone.
    fn detach(&mut self) -> Result<(), Error> {
        self.governor.begin_again()?;
        self.restore()?;
        self.guard.detach()
    }

    fn restore(&mut self) -> Result<(), Error> {
        self.must_restore = true;
        self.knobs.restore()?;
        self.must_restore = false;
        Ok(())
    }
}

impl Work for Guarded<'_> {
    fn regulate(&mut self) -> Result<Regulated, Error> {
        self.guard.regulate()
    }

    fn govern(&mut self, regulated: &Regulated) -> Result<(), Error> {
        if self.knobs.beat() {
            // The keeper has put back what was turned, as this process hung.
            self.governor.begin_again()?;
            self.must_restore = true;
        }
        if self.must_restore {
            self.restore()?;
        }
        if let Some(standing) = &mut self.standing {
            standing.on_regulated(regulated);
            if !self.guard.is_attached() {
                return self.guard.watch(standing.needs_meter());
            }
        }
        if self.governor.asks_for_company()
            && let Some(company) = self.guard.company()?
        {
            self.governor.on_company(company);
        }
        self.governor.on_instances(self.guard.instances());
        self.governor.on_interval(regulated, &mut self.knobs)?;
        self.guard.attend(self.governor.is_strained());
        if let Some(standing) = &mut self.standing {
            standing.on_governed(self.governor.is_overload() || self.guard.is_shedding());
        }
        Ok(())
    }

    /// Threads that were asked for stay.
    fn stand_back(&mut self) -> Result<(), Error> {
        // Whoever sheds must see, whatever the governor cannot do.
        self.guard.attend(true);
        if self.settings.threaded.is_some() {
            return Ok(());
        }
        self.governor.begin_again()?;
        self.restore()
    }

    fn interval(&self) -> Duration {
        if !self.guard.is_attached() {
            return WATCHING;
        }
        self.governor.interval(self.guard.is_alarmed())
    }

    fn is_gone(&self) -> bool {
        // Whoever opens or closes an interface does not hold up the question for a name.
        self.knobs.is_deleted() || self.knobs.name_now().is_none() && self.knobs.is_gone()
    }

    fn renamed(&mut self) -> Option<String> {
        let name = self.knobs.name_now()?;
        self.guard.rename(&name).then(|| {
            self.name = Some(name.clone());
            name
        })
    }

    fn refresh(&mut self) -> Result<(), Error> {
        self.governor.look_at_ring();
        let was_polled_busily = self.guard.is_polled_busily();
        let refreshed = self.guard.refresh();
        if self.guard.is_polled_busily() != was_polled_busily && self.settings.threaded.is_none() {
            // What CPU time told of overload, it does not tell of its end.
            self.governor.begin_again()?;
            self.must_restore = true;
        }
        refreshed
    }

    fn see_presence(&mut self) -> Result<Option<Absence>, Error> {
        self.guard.see_presence()
    }

    fn stand_by(&mut self) -> Result<Option<Change>, Error> {
        let Some(standing) = &mut self.standing else {
            return Ok(None);
        };
        let judged = self.guard.judged()?;
        let order = standing.on_reading(judged)?;
        let change = match order {
            Order::Keep => return Ok(None),
            Order::Attach(sign) => {
                self.attach()?;
                Change::Attached(sign)
            }
            Order::Detach => {
                self.detach()?;
                Change::Detached
            }
        };
        if let Some(standing) = &mut self.standing {
            match order {
                Order::Detach => standing.on_detached(judged),
                _ => standing.on_attached(judged),
            }
        }
        Ok(Some(change))
    }

    fn watching(&self) -> Duration {
        let standing = self.standing.as_ref();
        standing.map_or(Duration::MAX, Standing::interval)
    }

    fn renew_threads(&mut self) -> Poll<Result<Option<usize>, Error>> {
        self.threads.renew(&mut self.knobs, &self.settings)
    }

    fn tell_owners_apart(&mut self) -> Poll<Result<(), Error>> {
        match self.settings.tells_owners_apart() {
            true => self.owners.poll(&self.settings, &mut self.guard),
            false => {
                self.owners.forget(&mut self.guard);
                Poll::Ready(Ok(()))
            }
        }
    }

    fn snapshot(&mut self) -> Result<Snapshot, Error> {
        let counters = self.guard.counters()?;
        let mut governor = self.governor.status();
        let standing_by = !self.guard.is_attached();
        if let Some(standing) = self.standing.as_ref().filter(|_| standing_by) {
            // The governor sees nothing meanwhile.
            governor.network_share = standing.network_share();
        }
        Ok(Snapshot {
            renamed: self.name.clone(),
            observed: self.guard.observed(&counters.all()),
            counters,
            sources: Some(self.guard.sources()),
            condition: Condition {
                observe: self.settings.guard.observe,
                shedding: self.guard.is_shedding(),
                standing_by,
                attachments: self.guard.attachments(),
                governor,
                syn_cookies: self.guard.syn_cookies(),
                unguarded: self.guard.unguarded().clone(),
            },
        })
    }

    fn configure(&mut self, settings: &Settings) -> Result<(), ConfigureError> {
        if let Err(error) = allow_driver(&mut self.knobs, settings) {
            self.knobs.allow_any_driver(self.settings.any_driver);
            return Err(ConfigureError::Refused(error.into()));
        }
        let old = self.settings.clone();
        change(&old, settings, |settings| self.apply(settings))?;
        self.settings = settings.clone();
        self.owners.begin_anew();
        Ok(())
    }
}

#[cfg(test)]
mod tests;
