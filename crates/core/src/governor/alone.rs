//! Lazy when alone: whether a flood may overflow the receive ring, since nobody else
//! would miss anything.
//!
//! **Intuition.** To discard a packet early costs CPU time, which the flooded server
//! could use. A packet that overflows the ring costs the host nothing. But the ring does
//! not know whose packet it is. So it may overflow only while all that is polled is the
//! flood, and enough must be polled to notice anybody else soon.
//!
//! **Company.** Any packet that is not the flood's: of another channel, of a known
//! client, or of a source that asks the flooded channel for less than its share. One
//! such packet ends laziness at once. It begins when there was no company for a while
//! ([`solitude`]).
//!
//! **How much is polled.** While the ring overflows, a packet of a bystander is polled
//! with the probability that any packet has. At [`POLLED`] a bystander loses one packet
//! on average before it is noticed, and more than three once in sixteen times; then what
//! it sends within the governor's interval. Less would save more time and lose more. And
//! twice what the consumer takes is polled, so that its queue never runs dry.
//!
//! **The rate** cannot be seen while the ring overflows. So now and then there is an
//! interval of early discard ([`Looks`]), in which everything is polled.
//!
//! **When it loses.** Beyond the discard capacity a polling run does not end, and a
//! holdoff between two runs saves nothing.

use core::time::Duration;

use super::observation::per_second;
use crate::config::Fraction;
use crate::time::{Instant, NANOS_PER_SECOND};

pub(super) mod solitude;

use solitude::{Looks, Solitude};

/// Part of the packets that arrive which is polled at least.
const POLLED: Fraction = Fraction::from_percent(50);
/// Packets polled for each that the consumer takes: where fewer are, chance may leave
/// the consumer without one.
const POLLED_PER_TAKEN: u64 = 2;
/// No holdoff is longer: so long the first packet of a bystander waits.
const HOLDOFF_MAX: Duration = Duration::from_millis(2);
/// Part of a consumer's queue that a holdoff may drain.
const DRAINED: Fraction = Fraction::from_percent(50);
/// Polling is taken to need no more than this part of a CPU: near all of it, runs hardly
/// end, and their length says nothing.
const LOAD_MAX: Fraction = Fraction::from_percent(90);
/// Polling that falls to one part in so many of the flood's rate is a pause of the flood.
/// What its source has saved in a pause makes it look like a silent one.
const PAUSE_PARTS: u64 = 4;

/// Whose packets were polled since the observation before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Company {
    /// Packets that were not the flood's.
    pub others: u64,
    /// Packets of the flood: those of one overloaded UDP channel that were judged by source,
    /// and whose source is neither known nor asks for little.
    pub flood: u64,
    /// Packets that the flooded channel admitted.
    pub admitted: u64,
    /// Packets in its queue when last looked at.
    pub queued: u64,
}

/// What the governor has seen of one interval.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seen {
    pub(super) company: Option<Company>,
    /// Frames per second of the CPU that polled most.
    pub(super) rate_pps: u64,
    /// The highest rate at which they have come recently.
    pub(super) recent_pps: u64,
    /// Part of its time that receiving took.
    pub(super) load: Fraction,
    pub(super) elapsed: Duration,
    /// A CPU lacks the time that discarding takes.
    pub(super) discards_matter: bool,
}

/// The state; see the module's documentation.
#[derive(Debug)]
pub(super) struct Alone {
    ring_frames: u64,
    solitude: Solitude,
    lazy: Option<Lazy>,
}

/// While the ring may overflow.
#[derive(Clone, Copy, Debug)]
struct Lazy {
    /// What arrives, and the part of a CPU that it would take to poll all of it.
    rate_pps: u64,
    load: Fraction,
    looks: Looks,
}

impl Alone {
    pub(super) const fn new(ring_frames: u32) -> Self {
        Self {
            ring_frames: ring_frames as u64,
            solitude: Solitude::new(),
            lazy: None,
        }
    }

    /// The ring may overflow.
    pub(super) const fn is_lazy(&self) -> bool {
        self.lazy.is_some()
    }

    /// The rate of what arrives, of which `polled_pps` were polled.
    pub(super) fn arriving(&self, polled_pps: u64) -> u64 {
        match self.lazy {
            Some(lazy) if !lazy.looks.is_due() => polled_pps.max(lazy.rate_pps),
            _ => polled_pps,
        }
    }

    /// Takes what was seen in overload; the holdoff of the next interval, unless
    /// everything is to be polled.
    pub(super) fn on_interval(&mut self, seen: &Seen, now: Instant) -> Option<Duration> {
        let Some(company) = seen.company else {
            self.end();
            return None;
        };
        let is_steady = seen.rate_pps >= seen.recent_pps / PAUSE_PARTS;
        let solitude = &mut self.solitude;
        if !solitude.on_interval(company, is_steady, seen.discards_matter, now) {
            self.lazy = None;
            return None;
        }
        let taken_pps = per_second(company.admitted, seen.elapsed);
        let part = polled_part(taken_pps, self.arriving(seen.rate_pps));
        self.lazy = part.map(|_| self.look(seen, now));
        let lazy = self.lazy.filter(|lazy| !lazy.looks.is_due())?;
        let holdoff = self.holdoff(lazy, part?);
        Some(holdoff.min(draining(company.queued, taken_pps)))
    }

    /// There is no overload.
    pub(super) fn end(&mut self) {
        self.lazy = None;
        self.solitude.end();
    }

    /// What is known of the flood now, and whether it is looked at in the next interval.
    fn look(&self, seen: &Seen, now: Instant) -> Lazy {
        match self.lazy {
            Some(lazy) if !lazy.looks.is_due() => Lazy {
                looks: lazy.looks.next(now),
                rate_pps: lazy.rate_pps.max(seen.rate_pps),
                ..lazy
            },
            // All was polled.
            _ => Lazy {
                rate_pps: seen.rate_pps,
                load: seen.load.min(LOAD_MAX),
                looks: Looks::after_all(now),
            },
        }
    }

    /// At rate `λ` and load `u` of polling everything, a run that finds the ring of `R`
    /// frames full polls `R / (1 − u)`. So `R / λ · (1 / part − u) / (1 − u)` lies between
    /// two runs that poll the wanted part.
    fn holdoff(&self, lazy: Lazy, part: Fraction) -> Duration {
        let whole = u64::from(Fraction::WHOLE.as_ppm());
        let load = u64::from(lazy.load.as_ppm());
        let filling_ns = self.ring_frames * NANOS_PER_SECOND / lazy.rate_pps.max(1);
        let inverse = whole * whole / u64::from(part.as_ppm()).max(1);
        let factor = u128::from(inverse - load);
        let nanos = u128::from(filling_ns) * factor / u128::from(whole - load);
        let nanos = u64::try_from(nanos).unwrap_or(u64::MAX);
        Duration::from_nanos(nanos).min(HOLDOFF_MAX)
    }
}

/// The part of what arrives that is polled; `None`: all of it must be.
fn polled_part(taken_pps: u64, rate_pps: u64) -> Option<Fraction> {
    let wanted = taken_pps.saturating_mul(POLLED_PER_TAKEN);
    if wanted >= rate_pps {
        return None;
    }
    let whole = u64::from(Fraction::WHOLE.as_ppm());
    let needed = u128::from(wanted) * u128::from(whole) / u128::from(rate_pps.max(1));
    let needed = Fraction::from_ppm(u32::try_from(needed).unwrap_or(u32::MAX));
    Some(needed.max(POLLED))
}

/// The time in which a consumer takes the part of its queue that it may.
fn draining(queued: u64, taken_pps: u64) -> Duration {
    let packets = DRAINED.of(queued);
    Duration::from_nanos(packets.saturating_mul(NANOS_PER_SECOND) / taken_pps.max(1))
}

#[cfg(test)]
mod tests;
