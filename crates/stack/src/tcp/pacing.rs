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
mod tests {
    use plimsoll_core::demux::ChannelId;
    use smoltcp::socket::tcp::SocketBuffer;

    use super::super::departures::Departures;
    use super::*;

    fn at(micros: u64) -> Instant {
        Instant::from_nanos(micros * 1000)
    }

    fn megabits(rate: u64) -> Rate {
        Rate::clamped(rate * 1_000_000)
    }

    fn socket() -> Socket<'static> {
        let buffer = || SocketBuffer::new(vec![0; 2048]);
        Socket::new(buffer(), buffer())
    }

    fn pace(pacing: Pacing) -> Pace {
        let mut pace = Pace::default();
        pace.set(pacing);
        pace.flow = Departures::new(1).open(ChannelId(1)).ok();
        pace
    }

    fn target(pace: &mut Pace, socket: &mut Socket<'_>, now: u64) -> Option<u64> {
        let rates = pace.begin(socket, at(now))?;
        assert_eq!(socket.congestion_control(), CongestionControl::None);
        assert!(pace.gate().is_some());
        Some(rates.target.bits_per_second())
    }

    /// ST-38, ST-51: a known capacity needs no slow start.
    #[test]
    fn a_known_rate_is_used_from_the_first_segment_on() {
        let (mut socket, mut pace) = (socket(), pace(Pacing::at(megabits(100))));
        assert_eq!(pace.gate(), None, "until there is something to send");
        assert_eq!(target(&mut pace, &mut socket, 0), Some(100_000_000));
    }

    #[test]
    fn a_loss_brings_congestion_control_back_and_halves_the_next_rate() {
        let (mut socket, mut pace) = (socket(), pace(Pacing::at(megabits(100))));
        target(&mut pace, &mut socket, 0);
        let (first, second) = (Payload::new(0, 1000), Payload::new(1000, 1000));
        for payload in [first, second] {
            pace.on_sent(payload, &mut socket, at(1));
            assert_eq!(socket.congestion_control(), CongestionControl::None);
        }
        pace.on_sent(first, &mut socket, at(2));
        assert_eq!(socket.congestion_control(), CongestionControl::Cubic);
        assert!(pace.gate().is_some(), "its pace stays the upper bound");
        assert_eq!(target(&mut pace, &mut socket, 3), Some(50_000_000));
        assert_eq!(target(&mut pace, &mut socket, 4), Some(100_000_000));
    }

    /// ST-39, ST-41: after an idle time at a part of what the last busy period showed.
    #[test]
    fn an_estimate_takes_the_place_of_slow_start_once_there_is_one() {
        let half = Fraction::from_percent(50);
        let (mut socket, mut pace) = (socket(), pace(Pacing::LastBusyPeriod(half)));
        assert_eq!(pace.begin(&mut socket, at(0)), None);
        assert_eq!(socket.congestion_control(), CongestionControl::Cubic);
        // Four flights; acknowledgements of two segments of 1250 bytes each 400 µs.
        for (flight, acknowledgements) in [(0, 2), (1, 3), (2, 6), (3, 12)] {
            for number in 0..acknowledgements {
                let now = flight * 100_000 + number * 400;
                pace.on_acknowledged(2500, 1250, at(now));
            }
        }
        assert_eq!(target(&mut pace, &mut socket, 500_000), Some(25_000_000));
    }

    #[test]
    fn without_a_pace_an_idle_connection_begins_with_slow_start_again() {
        let (mut socket, mut pace) = (socket(), Pace::default());
        pace.on_sent(Payload::new(0, 100), &mut socket, at(0));
        // Stands for a window that has grown.
        socket.set_congestion_control(CongestionControl::None);
        pace.begin(&mut socket, at(900_000));
        assert_eq!(socket.congestion_control(), CongestionControl::None);
        pace.begin(&mut socket, at(1_100_000));
        assert_eq!(socket.congestion_control(), CongestionControl::Cubic);
    }

    const FRAME: usize = 1514;

    fn of(acknowledged: usize, opened: usize) -> Released {
        Released {
            acknowledged: acknowledged * 1460,
            opened: opened * 1460,
            segment_bytes: 1460,
            frame_bytes: FRAME,
        }
    }

    /// The peer acknowledges so many segments.
    fn on_ack(pace: &mut Pace, segments: usize, now: u64) -> Option<FlowRates> {
        pace.on_acknowledged(segments * 1460, 1460, at(now));
        pace.on_released(of(segments, segments), at(now))
    }

    /// After a second of acknowledgements of two segments each, 1 ms apart. Forty segments are
    /// under way, for 20 ms each.
    fn acknowledged(pacing: Pacing, socket: &mut Socket<'_>) -> Pace {
        let mut pace = pace(pacing);
        assert_eq!(pace.begin(socket, at(0)), None);
        let segments = (0..).map(|number| Payload::new(number * 1460, 1460));
        let mut segments = segments.take(2040);
        for payload in segments.by_ref().take(40) {
            pace.on_sent(payload, socket, at(0));
        }
        for number in 0..1000 {
            let now = 20_000 + 1000 * number;
            let rates = on_ack(&mut pace, 2, now);
            assert_eq!(rates, None, "regular acknowledgements release at once");
            for payload in segments.by_ref().take(2) {
                pace.on_sent(payload, socket, at(now));
            }
        }
        pace
    }

    const LAST: u64 = 1_019_000;

    fn interval_micros(rates: FlowRates) -> u64 {
        rates.target.interval(FRAME as u32).as_micros() as u64
    }

    /// ST-44, ST-49: forty segments at once leave at the rate at which they were acknowledged,
    /// 500 µs each, or a fifth faster.
    #[test]
    fn what_a_big_acknowledgement_releases_leaves_at_the_average_rate() {
        let mut socket = socket();
        let mut pace = acknowledged(Pacing::SmoothAcks, &mut socket);
        assert_eq!(pace.gate(), None);
        let rates = on_ack(&mut pace, 40, LAST + 20_000).unwrap();
        let interval = interval_micros(rates);
        assert!((400..=525).contains(&interval), "{interval} µs");
        assert!(pace.gate().is_some());
        assert_eq!(socket.congestion_control(), CongestionControl::Cubic);
        pace.on_nothing_due();
        assert_eq!(pace.gate(), None);
    }

    /// A reader that was busy elsewhere opens the window by forty segments at once.
    #[test]
    fn what_an_opened_window_releases_leaves_at_the_average_rate() {
        let mut socket = socket();
        let mut pace = acknowledged(Pacing::SmoothAcks, &mut socket);
        for number in 1..=20 {
            assert_eq!(on_ack(&mut pace, 2, LAST + 1000 * number), None);
        }
        assert_eq!(pace.on_released(of(0, 0), at(LAST + 30_000)), None);
        assert_eq!(pace.on_released(of(0, 3), at(LAST + 30_000)), None);
        let rates = pace.on_released(of(0, 40), at(LAST + 40_000)).unwrap();
        let interval = interval_micros(rates);
        assert!((475..=525).contains(&interval), "{interval} µs");
    }

    /// ST-43: the way back was blocked for 20 ms, then they come 50 µs apart.
    #[test]
    fn what_compressed_acknowledgements_release_leaves_at_the_average_rate() {
        let mut socket = socket();
        let mut pace = acknowledged(Pacing::SmoothAcks, &mut socket);
        let releases: Vec<Option<u64>> = (0..20)
            .map(|number| {
                let rates = on_ack(&mut pace, 2, LAST + 20_000 + 50 * number);
                rates.map(interval_micros)
            })
            .collect();
        let paced = releases.iter().flatten();
        let paced = paced.filter(|interval| (400..=550).contains(*interval));
        assert!(paced.count() >= 17, "{releases:?}");
    }

    #[test]
    fn connections_that_were_not_told_to_are_not_smoothed() {
        let mut socket = socket();
        let mut off = acknowledged(Pacing::Off, &mut socket);
        assert_eq!(on_ack(&mut off, 40, LAST + 20_000), None);
        assert_eq!(off.gate(), None);
    }

    /// A transfer over a path of 50 ms each way, one segment each 120 µs, where the peer
    /// acknowledges so many segments at once. Returns its milliseconds, and how many segments
    /// left together with four before.
    fn over_a_long_path(pacing: Pacing, segments: u32, together: u32) -> (u64, u32) {
        const BYTES: u32 = 1460;
        let (mut socket, mut pace) = (socket(), pace(pacing));
        assert_eq!(pace.begin(&mut socket, at(0)), None);
        let (mut now, mut sent, mut acknowledged) = (0, 0, 0);
        let (mut free_at, mut window, mut interval) = (0, 2, 0);
        let (mut departed_at, mut in_a_row, mut bursts) = (None, 0, 0);
        let mut acknowledgements = std::collections::VecDeque::new();
        while acknowledged < segments {
            let bound = pace.window().map_or(window, |bytes| bytes as u32 / BYTES);
            let due_at = departed_at.map_or(0, |last| last + interval);
            let waits = sent < segments && sent - acknowledged < bound.min(window);
            if waits && (pace.gate().is_none() || due_at <= now) {
                pace.on_sent(
                    Payload::new((sent * BYTES) as i32, BYTES as usize),
                    &mut socket,
                    at(now),
                );
                in_a_row = if departed_at.replace(now) == Some(now) {
                    in_a_row + 1
                } else {
                    0
                };
                bursts += u32::from(in_a_row >= 4);
                sent += 1;
                free_at = free_at.max(now + 50_000) + 120;
                if sent % together == 0 || sent == segments {
                    acknowledgements.push_back((free_at + 50_000, sent));
                }
                continue;
            }
            if !waits {
                pace.on_nothing_due();
            }
            // The last ones of a flight the peer acknowledges when no more come for 40 ms.
            let late = (free_at + 90_000, sent);
            let (acknowledged_at, up_to) = *acknowledgements.front().unwrap_or(&late);
            if waits && due_at < acknowledged_at {
                now = due_at;
                continue;
            }
            acknowledgements.pop_front();
            now = acknowledged_at;
            let newly = up_to - std::mem::replace(&mut acknowledged, up_to);
            window += if pace.window().is_none() { newly } else { 0 };
            pace.on_acknowledged((newly * BYTES) as usize, BYTES as usize, at(now));
            let newly = newly as usize;
            if let Some(rates) = pace.on_released(of(newly, newly), at(now)) {
                interval = interval_micros(rates);
            }
        }
        (now / 1000, bursts)
    }

    /// The average of slow start's silent round trips held later flights back: 1,000 segments
    /// took four times as long as without smoothing.
    #[test]
    fn smoothing_holds_no_flight_back() {
        for (segments, together) in [(1000, 2), (1000, 40), (10_000, 2), (10_000, 40)] {
            let (plain, plain_bursts) = over_a_long_path(Pacing::Off, segments, together);
            let (smooth, bursts) = over_a_long_path(Pacing::SmoothAcks, segments, together);
            let said = format!(
                "{segments}, {together} together: {smooth} ms, {bursts} in bursts; without \
                 {plain} ms, {plain_bursts}"
            );
            assert!(smooth <= plain + plain / 5, "{said}");
            assert!(bursts * 4 <= plain_bursts, "{said}");
            println!("{said}");
        }
    }

    #[test]
    fn impossible_paces_are_refused_with_a_remedy() {
        let slow = Pacing::at(Rate::clamped(1000)).validate().unwrap_err();
        assert_eq!(
            slow.to_string(),
            "pacing = 1000 bit/s: must be at least 100,000 bit/s"
        );
        let backwards = FlowRates {
            target: megabits(2),
            burst: megabits(1),
        };
        assert!(Pacing::At(backwards).validate().unwrap_err().is_usage());
        assert!(Pacing::LastBusyPeriod(Fraction::NONE).validate().is_err());
        Pacing::at(megabits(1)).validate().unwrap();
    }
}
