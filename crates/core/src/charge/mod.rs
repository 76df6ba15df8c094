//! Whom packet work is charged to, and whose packets are shed when not all fit.
//!
//! **Intuition.** CPU time spent on a packet is spent for the consumer that gets
//! it, whoever happened to be running. Put on that consumer's account it lowers
//! that consumer's claim on the next packet's processing, so a flood for one is
//! paid for by that one. And if something must be lost, it is better lost in an
//! order: by shares, whole frames rather than parts of many, and rather from
//! those who would not run anyway.
//!
//! **Source.** Mogul & Ramakrishnan, sections 10, 11.3 and 11.4 (proposals which
//! the paper did not build); Druschel & Banga, "Lazy receiver processing", OSDI
//! 1996, sections 2.1 and 3 to 3.5; stride scheduling: Waldspurger & Weihl, MIT
//! LCS TM-528, 1995; the lag bound: Goyal, Vin & Cheng, "Start-time fair queueing",
//! SIGCOMM 1996.
//!
//! | part | decides | ids |
//! | --- | --- | --- |
//! | [`Shares`] | whose packet is processed next, by CPU time charged | MR-81 (weights), MR-90, MR-92 (per consumer), LRP-08, LRP-13, LRP-17, LRP-36, LRP-38, LRP-45, LRP-59 |
//! | [`shedding`] | when input is shed, how much is then admitted, and whose | MR-94 (by demand and guarantee) |
//! | [`contention`] | whether others want the CPU that receives | |
//! | [`Shedder`] | which arriving packets a budget of time admits | MR-79, MR-84 (class on reception), MR-91, MR-94, MR-95 |
//! | [`Frames`] | which packets are worthless without those already lost | MR-87 to MR-89 |
//! | [`Waiting`] | which blocked consumer to wake | MR-91, MR-93 |
//! | [`Participants`] | who pays for, and sets the priority of, a shared channel | LRP-14, LRP-16, LRP-37 |
//!
//! **Work that belongs to no process** (ICMP, ARP, forwarding) is charged to a
//! *proxy*: a consumer registered for that purpose, whose weight or class is the
//! control over what forwarding and the like may take (LRP-45). Nothing is free.
//!
//! **Departures.** LRP charges through the process scheduler's decaying usage and
//! priorities; here shares are explicit weights and passed time is not forgiven
//! by decay but by the others catching up. Tickets carried by the packets
//! themselves (MR-92) are replaced by the weight of the consumer that the packet
//! is for: nobody labels packets so.
//!
//! **Limits, and when it loses.** See the parts. All state is a table sized at
//! construction; a consumer's number is its place in that table.

pub mod contention;
mod frames;
mod level;
mod participants;
mod share;
mod shed;
pub mod shedding;
mod tournament;
mod waiting;

use core::time::Duration;

pub use frames::{Frames, FramesConfig, GroupId};
pub use participants::{Participants, Priority, interrupts};
pub use share::{Shares, SharesConfig};
pub use shed::{Preference, Shedder, ShedderConfig};
pub use waiting::Waiting;

use crate::config::{ConfigError, Field, Fraction, PPM};

/// The greatest [`Weight`].
pub const WEIGHT_MAX: Weight = 1 << 20;
/// The longest span that is counted at once, 18 minutes: longer ones are cut, so
/// that a wrong reading cannot make sums run over.
const SPAN_MAX_NS: u64 = 1 << 40;

/// A consumer: a process, a thread, or a proxy for work that has none. Chosen by
/// the caller, below the `consumers_max` of the table it is used with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConsumerId(pub u32);

impl ConsumerId {
    const fn index(self) -> usize {
        self.0 as usize
    }
}

/// A class of consumers: best effort, or one with a guaranteed minimum.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Class(u8);

impl Class {
    /// Shares what the protected classes leave.
    pub const BEST_EFFORT: Self = Self(0);
    /// Classes there can be, best effort included.
    pub const COUNT_MAX: usize = 8;

    const fn index(self) -> usize {
        self.0 as usize
    }
}

/// What each protected class gets at least while it has work: ssh, routing
/// protocols, health checks. What it does not use goes to the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Guarantees {
    shares: [Fraction; Class::COUNT_MAX],
    classes: usize,
}

impl Guarantees {
    /// Everybody is best effort.
    #[must_use]
    pub const fn none() -> Self {
        let mut shares = [Fraction::NONE; Class::COUNT_MAX];
        shares[0] = Fraction::WHOLE;
        Self { shares, classes: 1 }
    }

    /// Adds a class that is guaranteed `share` of the whole, above zero.
    ///
    /// # Errors
    ///
    /// The shares leave nothing for best effort, or there are eight classes.
    pub fn with(mut self, share: Fraction) -> Result<(Self, Class), ConfigError> {
        let left = self.shares[0];
        Field("share", share).must_be_in(
            PPM..left,
            "above 0 and below what the other guarantees leave, in ppm",
        )?;
        Field("classes", self.classes + 1)
            .must_be_in(..=Class::COUNT_MAX, "at most 8, best effort included")?;
        let class = Class(self.classes as u8);
        self.shares[0] = Fraction::from_ppm(left.as_ppm() - share.as_ppm());
        self.shares[class.index()] = share;
        self.classes += 1;
        Ok((self, class))
    }

    fn share(&self, class: usize) -> u64 {
        self.shares[class].as_ppm().into()
    }

    /// Whether `consumer` can have `weight` in `class`, in a table of this size.
    fn check(
        &self,
        consumer: ConsumerId,
        consumers_max: usize,
        class: Class,
        weight: Weight,
    ) -> Result<(), ConfigError> {
        Field("consumer", consumer.index()).must_be_in(..consumers_max, "below `consumers_max`")?;
        Field("weight", weight).must_be_in(1..=WEIGHT_MAX, "from 1 to 1048576")?;
        Field("class", class.index()).must_be_in(..self.classes, "one of this table's guarantees")
    }
}

/// A consumer's part of its class, relative to the others' in it: 1 to
/// [`WEIGHT_MAX`].
pub type Weight = u32;

fn nanos(span: Duration) -> u64 {
    span.as_nanos().min(SPAN_MAX_NS.into()) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guarantees_leave_something_for_best_effort() {
        let half = Fraction::from_percent(50);
        let (guarantees, first) = Guarantees::none().with(half).unwrap();
        assert_eq!(guarantees.share(first.index()), 500_000);
        assert_eq!(guarantees.share(0), 500_000);
        assert_eq!(guarantees.with(half).unwrap_err().field, "share");
        assert_eq!(guarantees.with(Fraction::NONE).unwrap_err().field, "share");
        let mut many = Guarantees::none();
        for _ in 1..Class::COUNT_MAX {
            many = many.with(Fraction::from_percent(1)).unwrap().0;
        }
        assert_eq!(many.share(0), 930_000);
        assert_eq!(many.with(half).unwrap_err().field, "classes");
    }

    #[test]
    fn consumers_classes_and_weights_are_checked() {
        let half = Fraction::from_percent(50);
        let (guarantees, _) = Guarantees::none().with(half).unwrap();
        let check = |consumer, class, weight| {
            guarantees
                .check(ConsumerId(consumer), 4, Class(class), weight)
                .map_err(|error| (error.field, error.given))
        };
        assert_eq!(check(3, 1, WEIGHT_MAX), Ok(()));
        assert_eq!(check(4, 1, 1), Err(("consumer", 4)));
        assert_eq!(check(3, 2, 1), Err(("class", 2)));
        assert_eq!(check(3, 1, 0), Err(("weight", 0)));
        assert_eq!(check(3, 1, WEIGHT_MAX + 1), Err(("weight", 1_048_577)));
    }
}
