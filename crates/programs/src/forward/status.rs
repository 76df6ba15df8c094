//! What a router did, as numbers and as text.

use std::fmt;

use plimsoll_kernel::routing::Counters;
use serde::Serialize;

use super::DataPath;
use super::outcome::{Counts, Fate, Outcome};
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
    /// Frames for which the ring had no room, and at the end those that were in it yet.
    pub lost: u64,
    /// Of `outcomes`, those of protected frames.
    pub protected: u64,
}

/// What happens now: packets a second since an earlier status, beside all since the start.
#[derive(Clone, Copy, Debug)]
pub struct Live<'a> {
    /// The earlier status.
    pub before: &'a Status,
    /// The later one.
    pub now: &'a Status,
}

const COLUMNS: [&str; 6] = [
    "received",
    "forwarded",
    "to kernel",
    "dropped",
    "sent",
    "not sent",
];

impl InterfaceStatus {
    /// By [`COLUMNS`].
    fn columns(&self) -> [u64; COLUMNS.len()] {
        let user = self.user.unwrap_or_default();
        let mut all = self.outcomes;
        all += user.outcomes;
        [
            self.received,
            all.to(Fate::Forwarded),
            all.to(Fate::Kernel),
            all.to(Fate::Dropped) + user.lost,
            self.transmitted.sent,
            self.transmitted.dropped + self.transmitted.failed,
        ]
    }
}

impl Status {
    /// What became of packets, in the program and in user space.
    fn outcomes(&self) -> Counts {
        let mut outcomes = Counts::default();
        for interface in &self.interfaces {
            outcomes += interface.outcomes;
            outcomes += interface.user.unwrap_or_default().outcomes;
        }
        outcomes
    }

    /// User space has decided on all frames that it was handed, and done with all that it
    /// forwards.
    pub(super) fn is_worked_off(&self) -> bool {
        let (mut decided, mut handed, mut done, mut forwarded) = (0, 0, 0, 0);
        for interface in &self.interfaces {
            let user = interface.user.unwrap_or_default();
            let Transmitted {
                sent,
                dropped,
                failed,
            } = interface.transmitted;
            decided += user.outcomes.total() + user.lost;
            handed += interface.outcomes.of(Outcome::ToUser);
            done += sent + dropped + failed;
            forwarded += user.outcomes.of(Outcome::Forwarded);
        }
        decided >= handed && done >= forwarded
    }

    fn write_mirror(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
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

fn write_row(f: &mut fmt::Formatter<'_>, name: &str, cells: [impl fmt::Display; 6]) -> fmt::Result {
    write!(f, "{name:<16}")?;
    for cell in cells {
        write!(f, " {cell:>13}")?;
    }
    writeln!(f)
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_row(f, "interface", COLUMNS)?;
        for interface in &self.interfaces {
            write_row(f, &interface.name, interface.columns())?;
        }
        for (outcome, count) in self.outcomes().iter() {
            writeln!(f, "  {:<24} {count:>13}", outcome.name())?;
        }
        self.write_mirror(f)
    }
}

impl fmt::Display for Live<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.now.uptime_s - self.before.uptime_s;
        let rate = |now: u64, before: u64| now.saturating_sub(before) as f64 / seconds.max(1e-3);
        write_row(f, "packets/s", COLUMNS)?;
        for (now, before) in self.now.interfaces.iter().zip(&self.before.interfaces) {
            let (all, old) = (now.columns(), before.columns());
            let rates = std::array::from_fn::<_, 6, _>(|column| rate(all[column], old[column]));
            write_row(f, &now.name, rates.map(|rate| format!("{rate:.0}")))?;
        }
        writeln!(
            f,
            "\n  {:<24} {:>13} {:>15}",
            "outcome", "packets/s", "in all"
        )?;
        let before = self.before.outcomes();
        for (outcome, count) in self.now.outcomes().iter() {
            let rate = rate(count, before.of(outcome));
            writeln!(f, "  {:<24} {rate:>13.0} {count:>15}", outcome.name())?;
        }
        writeln!(f, "\nup {:.0} s", self.now.uptime_s)?;
        self.now.write_mirror(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A router with one interface that forwards in user space.
    fn status(uptime_s: f64, forwarded: u64, lost: u64) -> Status {
        let counts = |outcome, number| {
            let mut counts = Counts::default();
            (0..number).for_each(|_| counts.count(outcome));
            counts
        };
        Status {
            schema: 1,
            path: DataPath::User,
            uptime_s,
            interfaces: vec![InterfaceStatus {
                name: "eth0".to_owned(),
                received: forwarded + lost,
                outcomes: counts(Outcome::ToUser, forwarded + lost),
                transmitted: Transmitted::default(),
                user: Some(UserStatus {
                    outcomes: counts(Outcome::Forwarded, forwarded),
                    lost,
                    protected: 0,
                }),
            }],
            mirror: Counters::default(),
            failure: None,
        }
    }

    #[test]
    fn the_live_view_has_rates_and_totals() {
        let (before, now) = (status(10.0, 100, 5), status(12.0, 700, 25));
        let view = Live {
            before: &before,
            now: &now,
        }
        .to_string();
        let words = |line: &str| {
            line.split_whitespace()
                .map(str::to_owned)
                .collect::<Vec<_>>()
        };
        let lines: Vec<_> = view.lines().map(words).collect();
        assert!(lines.contains(&words("eth0 310 300 0 10 0 0")), "{view}");
        assert!(lines.contains(&words("forwarded 300 700")), "{view}");
        assert!(lines.contains(&words("to_user 310 725")), "{view}");
        assert!(view.contains("up 12 s"), "{view}");
    }

    #[test]
    fn what_waits_in_a_ring_or_for_a_link_is_not_worked_off() {
        let mut status = status(10.0, 100, 5);
        assert!(!status.is_worked_off(), "nothing is sent");
        status.interfaces[0].transmitted.sent = 90;
        status.interfaces[0].transmitted.dropped = 10;
        assert!(status.is_worked_off());
        status.interfaces[0].outcomes.count(Outcome::ToUser);
        assert!(!status.is_worked_off(), "one is in the ring");
    }

    #[test]
    fn two_readings_at_once_divide_by_no_zero() {
        let now = status(10.0, 100, 5);
        let view = Live {
            before: &now,
            now: &now,
        }
        .to_string();
        assert!(!view.contains("NaN") && !view.contains("inf"), "{view}");
    }
}
