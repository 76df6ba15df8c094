//! What a router did, as numbers and as text.

use std::fmt;

use plimsoll_kernel::routing::Counters;
use serde::Serialize;

use super::DataPath;
use super::outcome::{Counts, Fate};
use crate::sent::Transmitted;

/// A router's work since its start.
#[derive(Clone, Debug, Serialize)]
pub struct Status {
    /// Version of this form.
    pub schema: u32,
    /// Where plain packets are forwarded.
    pub path: DataPath,
    /// Seconds since the start.
    pub uptime_s: f64,
    /// All interfaces.
    pub interfaces: Vec<InterfaceStatus>,
    /// How the mirror of the kernel's tables fares.
    pub mirror: Counters,
    /// Why forwarding in user space ended by itself, if it did: the kernel forwards now.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
}

/// An interface of a router.
#[derive(Clone, Debug, Serialize)]
pub struct InterfaceStatus {
    /// Its name.
    pub name: String,
    /// Frames that the XDP program saw: the sum of `outcomes`.
    pub received: u64,
    /// What became of them there.
    pub outcomes: Counts,
    /// What this interface sent of other interfaces' packets.
    pub transmitted: Transmitted,
    /// What user space did with those that were handed to it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<UserStatus>,
}

/// What user space did. With `lost` it adds up to the frames handed to it, but for
/// those that are on their way.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct UserStatus {
    /// What became of the frames that arrived here.
    pub outcomes: Counts,
    /// Frames for which the ring had no room.
    pub lost: u64,
    /// Of `outcomes`, those of protected frames.
    pub protected: u64,
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{:<16} {:>13} {:>13} {:>11} {:>11} {:>13} {:>11}",
            "interface", "received", "forwarded", "to kernel", "dropped", "sent", "not sent"
        )?;
        for interface in &self.interfaces {
            let mut all = interface.outcomes;
            let mut dropped = all.to(Fate::Dropped);
            if let Some(user) = interface.user {
                all += user.outcomes;
                dropped = all.to(Fate::Dropped) + user.lost;
            }
            writeln!(
                f,
                "{:<16} {:>13} {:>13} {:>11} {:>11} {:>13} {:>11}",
                interface.name,
                interface.received,
                all.to(Fate::Forwarded),
                all.to(Fate::Kernel),
                dropped,
                interface.transmitted.sent,
                interface.transmitted.dropped + interface.transmitted.failed,
            )?;
        }
        let mut causes = Counts::default();
        for interface in &self.interfaces {
            causes += interface.outcomes;
            causes += interface.user.unwrap_or_default().outcomes;
        }
        for (outcome, count) in causes.iter() {
            writeln!(f, "  {:<24} {count:>13}", outcome.name())?;
        }
        let Counters {
            notifications,
            overruns,
            divergences,
            ..
        } = self.mirror;
        write!(
            f,
            "kernel's tables: {notifications} notifications, {overruns} overruns, {divergences} divergences"
        )
    }
}
