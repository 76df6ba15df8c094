//! Whether a connection's segments leave by the clock, at which rate, and until when.
//!
//! A sender that waits for acknowledgements begins slowly and sends in bursts whenever
//! they come in bursts. One that knows what the path can carry needs neither: it sends by
//! the clock from the first segment on (rate-based clocking; Aron & Druschel, sections 4.1,
//! 5.7 and appendix A: ST-38, ST-39, ST-41, ST-50, ST-51).
//!
//! **How it is done around smoltcp.** Its socket emits one segment whenever it is asked, if
//! windows allow. A paced connection asks only when a departure is due, so segments are cut
//! as they leave, and timers run from then. It has no congestion control in a paced busy
//! period: the rate and the peer's window are the only limits. Acknowledgements without
//! data wait for a departure too; there is always one within the time that the last segment
//! takes at the rate.
//!
//! **A loss** shows as a segment that is sent again. From then on the connection has
//! smoltcp's Cubic, which begins with slow start, and its pace as an upper bound. The next
//! busy period is paced again, at half the rate; each busy period without a loss doubles it
//! again up to what was set.
//!
//! **Acknowledgements in bursts** ([`Pacing::SmoothAcks`]; appendix A: ST-43, ST-44, ST-49).
//! Congestion control stays as it is. [`AckSpacer`] keeps the average rate at which segments
//! were acknowledged. What a big acknowledgement releases, or a burst of compressed ones,
//! leaves at that rate, until nothing is left of it. An opened window counts as acknowledged
//! data, since it releases as much. The average is behind while a flight is larger than the one
//! before, and would hold it back. So the rate is never less than what is under way needs in a
//! round trip, and a fifth more; in slow start it is four times that
//! ([`SlowStart::longest_interval`]).
//!
//! **Slow start** ends where the path's queue begins to grow ([`SlowStart`]), if it has not
//! ended by a loss. smoltcp takes no window from outside, so the peer's is lowered on its way in.
//!
//! **Limits.** smoltcp's: a fallback begins with two segments, and it has no selective
//! acknowledgements, so several losses in one window cost a second. An estimate is renewed
//! only in busy periods without pace: growing capacity is not noticed while paced.

use std::time::Duration;

use plimsoll_core::config::Fraction;
use plimsoll_core::pacing::{
    AckRelease, AckSpacer, AckSpacingConfig, CapacityEstimator, FlowId, FlowRates, KnownCapacity,
    Rate, SlowStart, StartConfig,
};
use plimsoll_core::time::Instant;
use smoltcp::socket::tcp::{CongestionControl, Socket};

use super::wire::Payload;
use crate::error::Error;

/// Whether a connection's segments leave by the clock. A rate counts frames with their
/// Ethernet headers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pacing {
    /// Acknowledgements release segments, beginning with slow start. Default.
    #[default]
    Off,
    /// As `Off`, but what an acknowledgement of more than three segments releases, or a burst
    /// of compressed ones, leaves at the average rate of acknowledgements instead of at once,
    /// or as fast as the window grows.
    SmoothAcks,
    /// At this rate from the first segment on, without slow start. For paths whose
    /// capacity is known: too high a rate fills their queues and takes from others until
    /// the first loss.
    At(FlowRates),
    /// The first busy period begins with slow start. Those after it are paced at this
    /// part of the capacity that the acknowledgements showed: one half is cautious, since
    /// others may have come meanwhile. Where they showed nothing, slow start remains.
    LastBusyPeriod(Fraction),
}

/// The lowest rate: a full frame takes 120 ms there, and an acknowledgement may wait for so
/// long.
const RATE_MIN: u64 = 100_000;
/// A connection that sent nothing for so long begins anew (RFC 5681, 4.1: a retransmission
/// timeout, of which smoltcp's is a second at least).
const IDLE: Duration = Duration::from_secs(1);
/// Acknowledgements further apart are of different bunches.
const BUNCH_GAP: Duration = Duration::from_millis(5);
/// Acknowledgements of a bunch: what the estimator looks at.
const BUNCH: u8 = 5;
/// Halvings of the rate: after as many a path has other troubles.
const HALVINGS_MAX: u8 = 10;

impl Pacing {
    /// At `rate`; what was delayed is caught up at twice the rate.
    #[must_use]
    pub fn at(rate: Rate) -> Self {
        Self::At(with_catching_up(rate))
    }

    pub(crate) fn validate(self) -> Result<(), Error> {
        let refuse = |given: String, allowed| {
            Err(Error::Config {
                field: "pacing",
                given,
                allowed,
            })
        };
        match self {
            Self::At(rates) if rates.target.bits_per_second() < RATE_MIN => {
                let given = format!("{} bit/s", rates.target.bits_per_second());
                refuse(given, "at least 100,000 bit/s")
            }
            Self::At(rates) if rates.burst < rates.target => {
                let given = format!("a burst of {} bit/s", rates.burst.bits_per_second());
                refuse(given, "a burst rate of at least the target rate")
            }
            Self::LastBusyPeriod(Fraction::NONE) => {
                refuse("nothing of the capacity".to_owned(), "a part above nothing")
            }
            _ => Ok(()),
        }
    }
}

fn with_catching_up(target: Rate) -> FlowRates {
    FlowRates {
        target,
        burst: Rate::clamped(target.bits_per_second().saturating_mul(2)),
    }
}

/// What a segment of the peer's lets the sender send.
#[derive(Clone, Copy, Debug)]
pub(super) struct Released {
    /// Bytes that it acknowledged.
    pub(super) acknowledged: usize,
    /// Bytes by which the end of the peer's window moved.
    pub(super) opened: usize,
    /// Of a full segment.
    pub(super) segment_bytes: usize,
    /// Of a full frame.
    pub(super) frame_bytes: usize,
}

/// A connection's pace.
#[derive(Debug, Default)]
pub(super) struct Pace {
    pacing: Pacing,
    /// Of the stack's departures, once pacing was asked for.
    pub(super) flow: Option<FlowId>,
    /// This busy period is paced.
    paced: bool,
    /// Acknowledgements of a connection that is to smooth them.
    spacer: Option<AckSpacer>,
    /// What they released leaves by the clock.
    smoothing: bool,
    /// A segment was sent again in this busy period.
    lossy: bool,
    halvings: u8,
    /// The end of what was ever sent.
    sent: Option<Payload>,
    sent_at: Option<Instant>,
    estimator: CapacityEstimator,
    acknowledged_at: Option<Instant>,
    bunch: u8,
    slow_start: SlowStart,
}

impl Pace {
    /// Until told otherwise.
    pub(super) fn set(&mut self, pacing: Pacing) {
        self.pacing = pacing;
        self.halvings = 0;
        self.smoothing = false;
        self.spacer = match pacing {
            // The defaults are valid.
            Pacing::SmoothAcks => AckSpacer::new(AckSpacingConfig::default()).ok(),
            _ => None,
        };
    }

    /// The flow whose departures release segments; without one they need not wait.
    pub(super) fn gate(&self) -> Option<FlowId> {
        self.flow.filter(|_| self.paced || self.smoothing)
    }

    /// A busy period begins: there is something to send after there was nothing. Returns
    /// at which rates it is paced, if it is.
    pub(super) fn begin(&mut self, socket: &mut Socket<'_>, now: Instant) -> Option<FlowRates> {
        self.halvings = match std::mem::take(&mut self.lossy) {
            true => (self.halvings + 1).min(HALVINGS_MAX),
            false => self.halvings.saturating_sub(1),
        };
        let was_idle = self.sent_at.is_some_and(|at| now > at + IDLE);
        if let Some(spacer) = &mut self.spacer {
            spacer.on_idle();
        }
        self.apply(socket, was_idle)
    }

    /// As [`begin`](Self::begin), within a busy period after a change of the setting.
    pub(super) fn apply(&mut self, socket: &mut Socket<'_>, anew: bool) -> Option<FlowRates> {
        let rates = self.flow.and_then(|_| self.rates());
        if rates.is_some() {
            socket.set_congestion_control(CongestionControl::None);
        } else if anew || self.paced {
            socket.set_congestion_control(CongestionControl::Cubic);
            self.slow_start.on_restart();
        }
        self.paced = rates.is_some();
        rates
    }

    fn rates(&self) -> Option<FlowRates> {
        let rates = match self.pacing {
            Pacing::Off | Pacing::SmoothAcks => return None,
            Pacing::At(rates) => rates,
            Pacing::LastBusyPeriod(fraction) => {
                let capacity = self.estimator.estimate()?.low;
                let start = StartConfig {
                    fraction,
                    ..StartConfig::default()
                };
                with_catching_up(start.rate(KnownCapacity::LastBusyPeriod(capacity)))
            }
        };
        let lowered =
            |rate: Rate| Rate::clamped((rate.bits_per_second() >> self.halvings).max(RATE_MIN));
        Some(FlowRates {
            target: lowered(rates.target),
            burst: lowered(rates.burst),
        })
    }

    /// A segment leaves. The first one of a busy period that was sent before ends the
    /// time without congestion control.
    pub(super) fn on_sent(&mut self, payload: Payload, socket: &mut Socket<'_>, now: Instant) {
        self.sent_at = Some(now);
        let again = self.sent.is_some_and(|sent| payload.is_before(sent));
        if !again {
            self.slow_start.on_sent(payload.bytes() as u64, now);
            self.sent = Some(payload);
            return;
        }
        self.slow_start.on_loss();
        if !std::mem::replace(&mut self.lossy, true) && self.paced {
            socket.set_congestion_control(CongestionControl::Cubic);
        }
    }

    /// A segment of the peer's came. Returns at which rates what it released is to leave, if
    /// not at once.
    pub(super) fn on_released(&mut self, released: Released, at: Instant) -> Option<FlowRates> {
        self.flow?;
        let spacer = self.spacer.as_mut()?;
        let segments = |bytes: usize| {
            let segments = bytes.div_ceil(released.segment_bytes.max(1));
            u32::try_from(segments).unwrap_or(u32::MAX)
        };
        let release = match (released.acknowledged, released.opened) {
            (0, 0) => return None,
            (0, opened) => spacer.on_window_update(segments(opened)),
            (acknowledged, _) => spacer.on_ack(at, segments(acknowledged)),
        };
        let longest = self
            .slow_start
            .longest_interval(released.segment_bytes as u64, released.acknowledged as u64)?;
        match release {
            AckRelease::Paced(average) => {
                let interval = average.min(longest);
                let rate = Rate::from_interval(released.frame_bytes as u64, interval);
                let target = Rate::clamped(rate.bits_per_second().max(RATE_MIN));
                self.smoothing = true;
                Some(with_catching_up(target))
            }
            AckRelease::AtOnce => None,
        }
    }

    /// All that was released has left.
    pub(super) fn on_nothing_due(&mut self) {
        self.smoothing = false;
    }

    /// Bytes that may be under way, if congestion control would allow more than is good.
    pub(super) fn window(&self) -> Option<usize> {
        let window = self.slow_start.window().filter(|_| !self.paced);
        window.map(|bytes| usize::try_from(bytes).unwrap_or(usize::MAX))
    }

    /// The peer acknowledged so many bytes with a segment that came at this moment.
    pub(super) fn on_acknowledged(&mut self, bytes: usize, segment_bytes: usize, at: Instant) {
        let (acknowledged, segment) = (bytes as u64, segment_bytes as u64);
        self.slow_start.on_acknowledged(acknowledged, segment, at);
        if self.paced || !matches!(self.pacing, Pacing::LastBusyPeriod(_)) {
            return;
        }
        let apart = self
            .acknowledged_at
            .is_none_or(|last| at > last + BUNCH_GAP);
        if apart || self.bunch == BUNCH {
            self.estimator.on_bunch_start();
            self.bunch = 0;
        }
        self.bunch += 1;
        self.acknowledged_at = Some(at);
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        self.estimator.on_arrival(at, bytes);
    }
}

#[cfg(test)]
mod tests;
