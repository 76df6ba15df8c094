//! What a session does now and then, as a trait: a test makes any of it fail.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

use plimsoll_kernel::Knobs;

use super::allow_driver;
use super::handover::Manager;
use super::protected_owners::ProtectedOwners;
use super::settings::{Settings, Shares};
use crate::error::Error;
use crate::governor::Governor;
use crate::guard::{Guard, Regulated};
use crate::owner::Owners;
use crate::presence::Absence;
use crate::status::Snapshot;

/// The work of a session. Each kind may fail for a moment.
pub(super) trait Work {
    /// Sheds input and looks at the CPUs; due again after [`Work::interval`].
    fn regulate(&mut self) -> Result<Regulated, Error>;
    fn interval(&self) -> Duration;
    /// Turns the host's settings by what was seen.
    fn govern(&mut self, regulated: &Regulated) -> Result<(), Error>;
    /// After [`Work::govern`] failed: leaves the host's settings as they were, until
    /// governing succeeds again.
    fn stand_back(&mut self) -> Result<(), Error>;
    /// Takes over the host's addresses and settings; due once a second.
    fn refresh(&mut self) -> Result<(), Error>;
    /// Attaches the program anew if the driver does not run it any more; due once a second.
    /// What was wrong then.
    fn see_presence(&mut self) -> Result<Option<Absence>, Error>;
    /// Finds out who owns new sockets; due once a second.
    fn tell_owners_apart(&mut self) -> Result<(), Error>;
    /// Reads all counters.
    fn snapshot(&mut self) -> Result<Snapshot, Error>;
    /// Takes over these settings, or none of them.
    fn configure(&mut self, settings: &Settings) -> Result<(), Error>;
}

/// A guarded interface.
#[derive(Debug)]
pub(super) struct Guarded<'obj> {
    settings: Settings,
    // Fields are dropped in this order. The governor's limiter ends first: it must
    // not demote a thread that is the host's own again. Settings are restored before
    // the program is detached.
    governor: Governor,
    pub(super) knobs: Knobs,
    pub(super) guard: Guard<'obj>,
    owners: Owners,
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
            governor,
            knobs,
            guard,
            owners: Owners::new(),
            must_restore: false,
        }
    }

    /// Puts everything back. The program is detached, unless the service manager keeps
    /// it for the next guard.
    pub(super) fn end(self, manager: &Manager) {
        let Self {
            governor,
            knobs,
            mut guard,
            ..
        } = self;
        // It must not demote a thread that is the host's own again.
        drop(governor);
        drop(knobs);
        if let Some(link) = guard.hand_on() {
            manager.keep(link);
        }
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
        if self.must_restore {
            self.restore()?;
        }
        if self.governor.asks_for_company()
            && let Some(company) = self.guard.company()?
        {
            self.governor.on_company(company);
        }
        self.governor.on_frames(self.guard.frames_by_instance());
        self.governor.on_interval(regulated, &mut self.knobs)?;
        self.guard.attend(self.governor.is_strained());
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
        self.governor.interval(self.guard.is_alarmed())
    }

    fn refresh(&mut self) -> Result<(), Error> {
        self.guard.refresh()
    }

    fn see_presence(&mut self) -> Result<Option<Absence>, Error> {
        self.guard.see_presence()
    }

    fn tell_owners_apart(&mut self) -> Result<(), Error> {
        let settings = &self.settings;
        if !settings.tells_owners_apart() {
            return Ok(());
        }
        self.owners.refresh()?;
        let owners = &self.owners;
        let mut protected = ProtectedOwners::of(settings);
        self.guard.assign(|kind, address, port| {
            let owner = owners.of_channel(kind, address, port);
            let process = owner.as_ref().and_then(|owner| owner.process.as_ref());
            let group = match settings.shares {
                Shares::Channel => None,
                Shares::Process => process.map(|process| u64::from(process.pid)),
                Shares::ControlGroup => owner
                    .as_ref()
                    .and_then(|owner| owner.control_group.as_ref())
                    .map(|path| fingerprint(path)),
            };
            let is_protected = owner.as_ref().is_some_and(|owner| protected.contain(owner));
            (group, is_protected)
        });
        Ok(())
    }

    fn snapshot(&mut self) -> Result<Snapshot, Error> {
        let counters = self.guard.counters()?;
        Ok(Snapshot {
            observed: self.guard.observed(&counters.all()),
            counters,
            sources: Some(self.guard.sources()),
            observe: self.settings.guard.observe,
            shedding: self.guard.is_shedding(),
            governor: self.governor.status(),
        })
    }

    fn configure(&mut self, settings: &Settings) -> Result<(), Error> {
        let allowed = allow_driver(&mut self.knobs, settings);
        if allowed.is_err() {
            self.knobs.allow_any_driver(self.settings.any_driver);
        }
        allowed?;
        self.governor
            .configure(settings.governor(), &mut self.knobs)?;
        self.guard.configure(&settings.guard)?;
        self.guard.protect(&settings.protection)?;
        self.settings = settings.clone();
        Ok(())
    }
}

/// Tells control groups apart by their paths.
fn fingerprint(path: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    path.hash(&mut hasher);
    hasher.finish()
}
