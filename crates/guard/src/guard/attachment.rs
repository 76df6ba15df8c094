//! When a guard's program is attached: from the start on, or only now and then, while it stands
//! by between.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};

use plimsoll_kernel::knobs::{Napi, Netdev};
use plimsoll_kernel::lasting_link::LastingLink;
use plimsoll_kernel::link;
use plimsoll_kernel::tunnels;
use plimsoll_kernel::xdp_link::XdpLink;

use super::Guard;
use crate::cookies::Cookies;
use crate::counters::{self, Outcome, Unseen};
use crate::error::Error;
use crate::hidden::Hidden;
use crate::looks::Looks;
use crate::presence::{Absence, Presence};
use crate::regulator::Regulator;

/// The program's place on an interface.
#[derive(Debug, Default)]
pub(super) struct Attachment {
    /// `None` without an interface.
    link: Option<LastingLink>,
    /// Where the driver's count of frames is to be had. It is opened at the start, which may take
    /// privileges that are given up then.
    presence: Option<Presence>,
    /// How often the program was attached.
    count: u64,
    /// What the driver had received before and after the program was detached; `None` while it
    /// is attached.
    detached_at: Option<Unseen>,
    /// What came in all times before without the program.
    unseen: Unseen,
}

impl Attachment {
    fn is_attached(&self) -> bool {
        self.link.as_ref().is_some_and(LastingLink::is_wanted)
    }

    fn frames(&self) -> u64 {
        self.presence.as_ref().map_or(0, Presence::frames)
    }

    /// What came without the program so far.
    pub(super) fn unseen(&self) -> Unseen {
        match self.detached_at {
            None => self.unseen,
            Some(at) => self.unseen.with(at, (self.frames(), self.frames())),
        }
    }

    fn attach(&mut self) -> Result<(), Error> {
        let Some(link) = self.link.as_mut().filter(|link| !link.is_wanted()) else {
            return Ok(());
        };
        let frames = || self.presence.as_ref().map_or(0, Presence::frames);
        let before = frames();
        link.attach_now()?;
        let after = frames();
        if let Some(at) = self.detached_at.take() {
            self.unseen = self.unseen.with(at, (before, after));
        }
        self.begin();
        Ok(())
    }

    /// The program has just come.
    fn begin(&mut self) {
        self.count += 1;
        if let Some(presence) = &mut self.presence {
            presence.begin_anew();
        }
    }

    fn detach(&mut self) {
        let before = self.frames();
        let Some(link) = &mut self.link else {
            return;
        };
        link.detach();
        let after = self.frames();
        self.detached_at = Some(Unseen {
            least: before,
            most: after,
        });
    }
}

fn is_polled_busily(ifindex: u32) -> io::Result<bool> {
    let instances = Netdev::new().instances(ifindex)?;
    Ok(instances.iter().any(Napi::is_polled_busily))
}

impl Guard<'_> {
    /// As [`Guard::prepare`], of a program that may be attached much later. So it refuses what would
    /// be refused then, as far as that is known.
    pub(crate) fn stand_by(
        &mut self,
        before: Option<OwnedFd>,
        interface: &str,
    ) -> Result<(), Error> {
        self.prepare(before, interface)?;
        if !self.is_attached() {
            XdpLink::require_free(interface, link::index(interface)?)?;
        }
        Ok(())
    }

    /// All that is before the program is attached to `interface`. A guard before may hand its link
    /// on, which gets the program at once.
    pub(crate) fn prepare(
        &mut self,
        before: Option<OwnedFd>,
        interface: &str,
    ) -> Result<(), Error> {
        let ifindex = link::index(interface)?;
        self.regulator = Some(Regulator::start(interface)?);
        self.cookies = Some(Cookies::watch(ifindex, &self.program)?);
        self.tunnels = Some(Looks::begin(tunnels::protocols));
        self.busy_polling = Some(Looks::begin(move || is_polled_busily(ifindex)));
        self.hidden = Some(Hidden::begin(ifindex));
        self.interface = Some(interface.to_owned());
        let config = self.config;
        self.configure(&config)?;
        self.refusals = Some(self.program.watch_refusals()?);
        self.refresh()?;
        let program = self.program.fd();
        let before = before.and_then(|link| XdpLink::take_over(link, program, ifindex));
        let is_taken_over = before.is_some();
        let link = match before {
            Some(link) => LastingLink::of(link, program, interface, ifindex)?,
            None => LastingLink::unattached(program, interface, ifindex)?,
        };
        let presence = Presence::watch(interface, ifindex);
        let frames = presence.as_ref().map_or(0, Presence::frames);
        let detached_at = Unseen {
            least: frames,
            most: frames,
        };
        self.attachment = Attachment {
            link: Some(link),
            presence,
            detached_at: (!is_taken_over).then_some(detached_at),
            ..Attachment::default()
        };
        if is_taken_over {
            self.attachment.begin();
        } else {
            XdpLink::require_unused(interface, ifindex)?;
        }
        Ok(())
    }

    /// Attaches the program that was made ready, unless it is attached.
    ///
    /// # Errors
    ///
    /// The driver refuses; another program is there.
    pub(crate) fn attach_now(&mut self) -> Result<(), Error> {
        self.attachment.attach()?;
        if let Some(regulator) = &mut self.regulator {
            regulator.begin_metering()?;
        }
        // What was seen and shed before has nothing to do with what comes now.
        Ok(self.begin_shedding_anew()?)
    }

    /// Detaches the program, which stands by from now on.
    ///
    /// # Errors
    ///
    /// None, as long as the settings are those that were validated.
    pub(crate) fn detach(&mut self) -> Result<(), Error> {
        self.attachment.detach();
        Ok(self.begin_shedding_anew()?)
    }

    /// Whether the program is attached. It is not while the guard stands by.
    #[must_use]
    pub fn is_attached(&self) -> bool {
        self.attachment.is_attached()
    }

    /// How often the program was attached since the start.
    #[must_use]
    pub fn attachments(&self) -> u64 {
        self.attachment.count
    }

    /// Packets that the program has discarded or answered since the start.
    ///
    /// # Errors
    ///
    /// The maps cannot be read.
    pub(crate) fn judged(&self) -> Result<u64, Error> {
        let all = counters::sum(self.program.totals()?.iter());
        Ok(all.offered() - all.count(Outcome::Admitted))
    }

    /// The descriptor of the attachment, to hand it on; `None` unless attached. Whoever
    /// holds a copy keeps the program attached when this guard is gone. So nothing is
    /// shed from now on: nobody would adapt the shares.
    pub fn hand_on(&mut self) -> Option<BorrowedFd<'_>> {
        // If the program cannot be told, it notices the silence and sheds nothing either.
        let _ = self.begin_shedding_anew();
        let link = self.attachment.link.as_mut();
        link.and_then(LastingLink::hand_on)
    }

    /// Call once a second: attaches the program anew where the driver may have lost it.
    /// Whether there was need, or is still.
    ///
    /// # Errors
    ///
    /// The counts cannot be read; the driver refuses the program, which is tried again at
    /// the next call.
    pub(crate) fn see_presence(&mut self) -> Result<Option<Absence>, Error> {
        let Attachment { link, presence, .. } = &mut self.attachment;
        let Some(link) = link.as_mut().filter(|link| link.is_wanted()) else {
            return Ok(None);
        };
        if link.on_second()? {
            return Ok(Some(Absence::Repaired));
        }
        let Some(presence) = presence else {
            return Ok(None);
        };
        presence.on_second(|| Ok(counters::sum(self.program.totals()?.iter()).offered()))
    }
}
