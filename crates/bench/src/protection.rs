//! What may stand between a flood and a server, and how each is put in place.
//!
//! Every protection starts from the same host: receive work on its own CPU in
//! softirq context, as an adapter's interrupts would put it, with one holdoff.

use std::path::Path;
use std::time::Duration;

use plimsoll_kernel::pass_all::PassAll;
use plimsoll_testbed::{Host, Placement, Testbed};
use serde::Serialize;

use crate::Error;
use crate::guard_process::GuardProcess;
use crate::nftables::{Limit, PacketFilter};

/// What stands between the flood and the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Protection {
    /// Nothing but the kernel as it is.
    Stock,
    /// A rate limit at the interface by the kernel's packet filter.
    Nftables,
    /// The kernel's threaded polling, its thread at nice 19.
    Threaded,
    /// An XDP program that passes everything: what XDP itself costs on this link.
    PassAll,
    /// `plimsoll guard` without fairness among sources: early discard alone.
    Unfair,
    /// `plimsoll guard`, attached from start to exit, as it is on links other than a veth.
    Guard,
    /// The same, attached only while the host loses packets, as it is on a veth unless told
    /// otherwise.
    Standby,
}

/// What makes a guard unfair, and the option that it is part of.
const UNFAIR: [&str; 2] = ["--fairness", "off"];

/// What has a guard stand by.
const STANDBY: &str = "--standby";
/// What has it attached from the start, also on a veth, and how its help begins. A guard that does
/// not know it is attached as well.
const ATTACHED: (&str, &str) = ("--standby=false", "--standby[");

impl Protection {
    /// Those whose comparison is about more than fairness, in the order in which they
    /// take turns.
    pub const ALL: [Self; 4] = [Self::Stock, Self::Nftables, Self::Threaded, Self::Guard];

    /// Its name on the command line and in tables.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Stock => "stock",
            Self::Nftables => "nftables",
            Self::Threaded => "threaded",
            Self::PassAll => "pass-all",
            Self::Unfair => "unfair",
            Self::Guard => "guard",
            Self::Standby => "standby",
        }
    }
}

/// The nice level of [`Protection::Threaded`]: what keeps most goodput.
const THREADED_NICE: i8 = 19;

/// What all cases of a comparison share.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stage<'a> {
    pub(crate) testbed: &'a Testbed,
    /// The `plimsoll` command.
    pub(crate) program: &'a Path,
    /// Interrupt holdoff of the test host's interface.
    pub(crate) holdoff: Duration,
    /// A flood runs this long before anything is measured.
    pub(crate) ramp_up: Duration,
    /// Further arguments for `plimsoll guard`.
    pub(crate) guard_arguments: &'a [String],
}

impl<'a> Stage<'a> {
    /// The host under test.
    pub(crate) fn host(&self) -> &'a Host {
        self.testbed.test()
    }

    /// Puts the receive work in its place and starts the protection. Only the
    /// packet filter has a limit to enforce.
    pub(crate) fn protect(
        &self,
        protection: Protection,
        limit: Option<&Limit>,
    ) -> Result<Protector<'a>, Error> {
        match (protection, limit) {
            (Protection::Nftables, Some(limit)) => {
                self.stock()?;
                PacketFilter::start(self.host(), limit).map(Protector::Filter)
            }
            (Protection::Stock | Protection::Nftables, _) => self.stock(),
            (Protection::Threaded, _) => {
                let nice = THREADED_NICE;
                Placement::Threaded { nice }.apply(self.testbed)?;
                Ok(Protector::Kernel)
            }
            (Protection::PassAll, _) => {
                self.stock()?;
                Ok(Protector::PassAll(self.host().pass_all()?))
            }
            (Protection::Unfair, _) => self.guard(&UNFAIR.map(str::to_owned)).map(Protector::Guard),
            (Protection::Guard, _) => self.guard(&[]).map(Protector::Guard),
            (Protection::Standby, _) => {
                self.stock()?;
                self.start(&[STANDBY.to_owned()]).map(Protector::Guard)
            }
        }
    }

    /// Whether this guard is fair among sources and can be told not to be.
    pub(crate) fn can_be_unfair(&self) -> Result<bool, Error> {
        GuardProcess::has_option(self.host(), self.program, UNFAIR[0])
    }

    /// Puts the receive work in its place.
    pub(crate) fn stock(&self) -> Result<Protector<'a>, Error> {
        let holdoff = self.holdoff;
        Placement::Softirq { holdoff }.apply(self.testbed)?;
        Ok(Protector::Kernel)
    }

    /// The same, and an attached guard with these arguments besides the stage's own.
    pub(crate) fn guard(&self, arguments: &[String]) -> Result<GuardProcess, Error> {
        self.stock()?;
        self.start(&[&self.attached()?, arguments].concat())
    }

    /// A guard with the stage's own arguments, if `protection` is one; receive work stays where
    /// it is.
    pub(crate) fn guard_as_it_is(
        &self,
        protection: Protection,
    ) -> Result<Option<GuardProcess>, Error> {
        match protection {
            Protection::Guard => self.start(&self.attached()?).map(Some),
            Protection::Standby => self.start(&[STANDBY.to_owned()]).map(Some),
            _ => Ok(None),
        }
    }

    /// What has a guard attach its program from the start, also on a veth.
    pub(crate) fn attached(&self) -> Result<Vec<String>, Error> {
        let (word, known) = ATTACHED;
        let is_known = GuardProcess::has_option(self.host(), self.program, known)?;
        Ok(is_known.then(|| word.to_owned()).into_iter().collect())
    }

    fn start(&self, arguments: &[String]) -> Result<GuardProcess, Error> {
        let arguments = [self.guard_arguments, arguments].concat();
        GuardProcess::start(self.host(), self.program, &arguments)
    }
}

/// A protection in place. Dropping it removes it.
#[derive(Debug)]
pub(crate) enum Protector<'a> {
    /// The kernel alone, in either placement.
    Kernel,
    Filter(PacketFilter<'a>),
    PassAll(#[expect(dead_code, reason = "its end detaches the program")] PassAll),
    Guard(GuardProcess),
}

impl Protector<'_> {
    /// Ends it and returns how many packets it discarded before the stack.
    pub(crate) fn stop(self) -> Result<u64, Error> {
        match self {
            Self::Kernel | Self::PassAll(_) => Ok(0),
            Self::Filter(filter) => filter.stop(),
            Self::Guard(guard) => guard.stop().map(|line| line.discarded()),
        }
    }
}
