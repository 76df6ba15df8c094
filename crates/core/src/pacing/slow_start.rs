//! Where slow start ends: before the path's queue overflows.
//!
//! Slow start doubles what is under way with every round trip and, left alone, stops only
//! at a loss. By then up to half of it is lost, hundreds of segments on a long path. A
//! sender with selective acknowledgements mends that in a round trip or two. One without
//! them needs a round trip for each. So slow start should end before (Ha and Rhee, `HyStart`;
//! RFC 9406).
//!
//! [`SlowStart`] measures round trips all over each flight. Where a flight's acknowledgements have
//! come for a third of a round trip, and the latest eight trips are longer than the shortest of
//! all by an eighth, the flight comes faster than the path carries it: its
//! end waits in a queue that its beginning did not find. The window stays for a round then. If
//! less than a quarter of that round's trips were longer, somebody paused for a moment, and slow
//! start goes on. Else the window grows by a sixteenth per round (a round: what is under way is
//! acknowledged once), until a round begins with longer trips, by 4 ms at least and 16 ms at
//! most: the queue stays. From then on it grows by a segment per round, as in congestion
//! avoidance. After a loss congestion control has a bound of its own, and this one ends.
//!
//! **How far apart segments may leave** without holding the sender back follows from the same
//! samples ([`SlowStart::longest_interval`]): what is under way leaves anew in a round trip.
//!
//! Departures: RFC 9406 looks at the shortest trip of a round, so it sees only a queue that was
//! there when the round began: a flight too late. Linux adds trains of acknowledgements for half
//! a round trip, none more than 2 ms after the one before. That was tried: one pause of 2 ms
//! hides a train. On a modelled path (100 ms, 100 Mbit/s, pauses of up to 4 ms) the queue grew to
//! 609 packets in the median and 1,727 at worst, with the first version of this rule to 309 and
//! 565. Paced flights look like trains, too.
//!
//! When it loses: a receiver or a link that delays everything for some milliseconds looks
//! like a queue, and what is left of the path's capacity is found only slowly.

use core::time::Duration;

use crate::time::Instant;

/// Fewer round trips than these show nothing (RFC 9406: `N_RTT_SAMPLE`).
const SAMPLES_MIN: u32 = 8;
/// By how much round trips must be longer for a queue that stays, at least and at most
/// (`MIN_RTT_THRESH`, `MAX_RTT_THRESH`), and as a part of the shortest (`MIN_RTT_DIVISOR`).
const GROWTH: [Duration; 2] = [Duration::from_millis(4), Duration::from_millis(16)];
const GROWTH_DIVISOR: u32 = 8;
/// A round is looked at once it has lasted for so much of a round trip: a burst makes a queue
/// of a moment long before the path is full.
const ROUND_DIVISOR: u32 = 3;
/// With fewer segments under way slow start goes on (Linux: `hystart_low_window`).
const SEGMENTS_MIN: u64 = 16;
/// By which part the window grows once a flight has filled the path. What a step does to the
/// queue is seen two rounds later, so an eighth would be too much for a queue of half a path.
const STEP_DIVISOR: u64 = 16;
/// How much faster than what is under way needs in a round trip segments must be able to leave.
/// While it doubles: the doubled flight, in half a round trip. Otherwise a fifth faster. So
/// does Linux (`tcp_pacing_ss_ratio`, `tcp_pacing_ca_ratio`), whose window has doubled already
/// when the first half of a flight is acknowledged.
const GAIN_PERCENT: [u64; 2] = [400, 120];
/// Each sample moves the mean round trip by an eighth (RFC 6298).
const MEAN_DIVISOR: u32 = 8;
/// Segments whose departures are remembered.
const PROBES: usize = 64;
/// They are so much of a flight apart. It may double until they are acknowledged.
const PROBES_APART: u64 = 32;

/// A segment under way: the stream's bytes up to its end, and when it left.
#[derive(Clone, Copy, Debug)]
struct Probe {
    end: u64,
    left_at: Instant,
}

/// What bounds the window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Phase {
    /// Nothing.
    #[default]
    Doubling,
    /// It stays for a round, which shows whether the queue grew.
    Doubted(u64),
    /// It grows by a part.
    Careful(u64),
    /// It grows by a segment.
    Steady(u64),
    /// Congestion control.
    Lost,
}

/// What a round showed so far.
#[derive(Clone, Copy, Debug, Default)]
struct Round {
    /// It is over once more than this is acknowledged.
    end: u64,
    /// Its first acknowledgement.
    began: Option<Instant>,
    shortest: Option<Duration>,
    samples: u32,
    /// Of these, longer than the shortest of all rounds.
    longer: u32,
}

/// A sender's slow start. Bytes are those of the stream, each counted once.
#[derive(Clone, Debug)]
pub struct SlowStart {
    sent: u64,
    acknowledged: u64,
    /// In the order of departure, from `first` on.
    probes: [Option<Probe>; PROBES],
    first: usize,
    probes_len: usize,
    /// The end of the latest one.
    probed: u64,
    /// What was under way when the round began.
    flight: u64,
    /// Since the round before, by more than a sixteenth.
    grew: bool,
    round: Round,
    /// The shortest round trip of all rounds.
    shortest: Option<Duration>,
    /// Of all segments, with what they waited for their acknowledgements.
    mean: Option<Duration>,
    /// The latest round trips.
    latest: [Duration; SAMPLES_MIN as usize],
    phase: Phase,
}

impl Default for SlowStart {
    fn default() -> Self {
        Self {
            sent: 0,
            acknowledged: 0,
            probes: [None; PROBES],
            first: 0,
            probes_len: 0,
            probed: 0,
            flight: 0,
            grew: true,
            round: Round::default(),
            shortest: None,
            mean: None,
            latest: [Duration::ZERO; SAMPLES_MIN as usize],
            phase: Phase::Doubling,
        }
    }
}

impl SlowStart {
    /// Bytes that may be under way. None: as many as congestion control allows.
    #[must_use]
    pub const fn window(&self) -> Option<u64> {
        match self.phase {
            Phase::Doubted(window) | Phase::Careful(window) | Phase::Steady(window) => Some(window),
            Phase::Doubling | Phase::Lost => None,
        }
    }

    /// The longest time between two segments of `segment_bytes` that does not slow the sender
    /// down, when `bytes` of what was under way were just acknowledged (Little's law: the rate is
    /// what is under way, divided by the mean round trip). None: no round trip was seen yet.
    #[must_use]
    pub fn longest_interval(&self, segment_bytes: u64, bytes: u64) -> Option<Duration> {
        let gain = match self.phase {
            // Lost: congestion control may be in slow start again.
            Phase::Doubling | Phase::Lost if self.grew => GAIN_PERCENT[0],
            _ => GAIN_PERCENT[1],
        };
        let under_way = self.sent.saturating_sub(self.acknowledged) + bytes;
        let trip = self.mean?.as_nanos() as u64;
        let in_a_trip = (under_way.saturating_mul(gain) / 100 / segment_bytes.max(1)).max(1);
        Some(Duration::from_nanos(trip / in_a_trip))
    }

    /// A segment with `bytes` of the stream left, for the first time.
    pub fn on_sent(&mut self, bytes: u64, now: Instant) {
        self.sent += bytes;
        let flight = self.flight.max(self.sent.saturating_sub(self.acknowledged));
        if self.probes_len == PROBES || self.sent < self.probed + flight / PROBES_APART {
            return;
        }
        self.probed = self.sent;
        let place = (self.first + self.probes_len) % PROBES;
        self.probes[place] = Some(Probe {
            end: self.sent,
            left_at: now,
        });
        self.probes_len += 1;
    }

    /// `bytes` more of the stream were acknowledged, sent in segments of `segment_bytes`.
    pub fn on_acknowledged(&mut self, bytes: u64, segment_bytes: u64, now: Instant) {
        let under_way = self.sent.saturating_sub(self.acknowledged);
        self.acknowledged = self.acknowledged.saturating_add(bytes).min(self.sent);
        if bytes == 0 {
            return;
        }
        self.take_sample(now);
        let looks = self.phase == Phase::Doubling && under_way >= SEGMENTS_MIN * segment_bytes;
        if looks && (self.queue_grows(now) || self.queue_stays()) {
            self.phase = Phase::Doubted(under_way);
            self.round = self.next_round();
            return;
        }
        if let Phase::Careful(window) = self.phase
            && self.queue_stays()
        {
            // The window's last step has not shown its effect yet, and is taken back.
            self.phase = Phase::Steady(window - window / (STEP_DIVISOR + 1));
        }
        if self.acknowledged > self.round.end {
            self.end_round(under_way, segment_bytes);
        }
    }

    /// It lasts until all that is under way is acknowledged.
    fn next_round(&self) -> Round {
        Round {
            end: self.sent,
            ..Round::default()
        }
    }

    /// The window grows if the round made use of it.
    fn end_round(&mut self, under_way: u64, segment_bytes: u64) {
        let used = |window: u64| under_way >= window - window / STEP_DIVISOR;
        self.phase = match self.phase {
            Phase::Doubted(_) if self.round.longer < self.round.samples / 4 => Phase::Doubling,
            Phase::Doubted(window) => Phase::Careful(window),
            phase => phase,
        };
        match &mut self.phase {
            Phase::Careful(window) if used(*window) => {
                *window += segment_bytes.max(*window / STEP_DIVISOR);
            }
            Phase::Steady(window) if used(*window) => *window += segment_bytes,
            _ => {}
        }
        self.grew = under_way > self.flight + self.flight / STEP_DIVISOR;
        self.flight = under_way;
        self.round = self.next_round();
    }

    /// A segment is sent again: congestion control has its own bound from now on.
    pub fn on_loss(&mut self) {
        self.phase = Phase::Lost;
    }

    /// Another slow start begins, after a time without anything to send.
    pub fn on_restart(&mut self) {
        *self = Self::default();
    }

    /// The latest segment that was acknowledged tells how long the round trip is: its
    /// acknowledgement waited least.
    fn take_sample(&mut self, now: Instant) {
        let mut latest = None;
        while let Some(probe) = self.probes[self.first] {
            if probe.end > self.acknowledged {
                break;
            }
            let took = now.saturating_since(probe.left_at);
            let mean = self.mean.unwrap_or(took);
            self.mean = Some(mean - mean / MEAN_DIVISOR + took / MEAN_DIVISOR);
            latest = Some(took);
            self.probes[self.first] = None;
            self.first = (self.first + 1) % PROBES;
            self.probes_len -= 1;
        }
        let Some(took) = latest else { return };
        for shortest in [&mut self.shortest, &mut self.round.shortest] {
            *shortest = Some(shortest.map_or(took, |least| least.min(took)));
        }
        self.round.began.get_or_insert(now);
        self.round.longer += u32::from(self.is_longer(took));
        self.latest.rotate_left(1);
        self.latest[SAMPLES_MIN as usize - 1] = took;
        self.round.samples += 1;
    }

    /// By an eighth than the shortest one.
    fn is_longer(&self, trip: Duration) -> bool {
        self.shortest
            .is_some_and(|shortest| trip >= shortest + shortest / GROWTH_DIVISOR)
    }

    /// The latest round trips are all longer, far into a round.
    fn queue_grows(&self, now: Instant) -> bool {
        let (Some(began), Some(trip)) = (self.round.began, self.shortest) else {
            return false;
        };
        now.saturating_since(began) >= trip / ROUND_DIVISOR
            && self.latest.iter().all(|trip| self.is_longer(*trip))
    }

    /// All round trips of the round are longer so far.
    fn queue_stays(&self) -> bool {
        let (Some(now), Some(before)) = (self.round.shortest, self.shortest) else {
            return false;
        };
        let growth = (before / GROWTH_DIVISOR).clamp(GROWTH[0], GROWTH[1]);
        self.round.samples >= SAMPLES_MIN && now >= before + growth
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEGMENT: u64 = 1000;

    fn at(micros: u64) -> Instant {
        Instant::from_nanos(micros * 1000)
    }

    /// A round of `segments` that leave together and are acknowledged in order, the first
    /// after `trip` µs, one every `gap` µs. Returns when the last one was.
    fn round(start: &mut SlowStart, now: u64, segments: u64, trip: u64, gap: u64) -> u64 {
        for _ in 0..segments {
            start.on_sent(SEGMENT, at(now));
        }
        for k in 0..segments {
            start.on_acknowledged(SEGMENT, SEGMENT, at(now + trip + gap * k));
        }
        now + trip + gap * segments
    }

    #[test]
    fn short_trains_and_a_steady_round_trip_end_nothing() {
        let (mut start, mut now) = (SlowStart::default(), 0);
        for doubling in 0..11 {
            now = round(&mut start, now, 2 << doubling, 100_000, 10);
            assert_eq!(start.window(), None, "{doubling}");
        }
    }

    #[test]
    fn a_longer_round_trip_ends_it_with_what_is_under_way() {
        let (mut start, mut now) = (SlowStart::default(), 0);
        for segments in [4, 8, 16, 32] {
            now = round(&mut start, now, segments, 100_000, 10);
        }
        // An eighth of 100 ms is enough, a ninth is not.
        let mut other = start.clone();
        round(&mut other, now, 64, 111_000, 10);
        assert_eq!(other.window(), None);
        now = round(&mut start, now, 64, 113_000, 10);
        // The round's first acknowledgement ends the round before; it takes eight more.
        let window = (64 - 8) * SEGMENT;
        assert_eq!(start.window(), Some(window));
        // What was under way then confirms it, and the window grows by a sixteenth. But the queue
        // stays: that is taken back, and each round adds a segment, if the one before had the
        // window filled.
        for segments in [56, 57] {
            now = round(&mut start, now, segments, 113_000, 10);
            assert_eq!(start.window(), Some(segments * SEGMENT));
        }
        now = round(&mut start, now, 30, 113_000, 10);
        assert_eq!(start.window(), Some(57 * SEGMENT));
        round(&mut start, now, 30, 113_000, 10);
        assert_eq!(start.window(), Some(57 * SEGMENT));
    }

    #[test]
    fn a_flight_faster_than_the_path_ends_the_doubling_before_it_is_over() {
        // 1 ms per segment: the path holds 100.
        let (mut start, mut now) = (SlowStart::default(), 0);
        for segments in [2, 4, 8, 12] {
            now = round(&mut start, now, segments, 100_000, 1000);
            assert_eq!(start.window(), None, "{segments}");
        }
        // A third of a round trip after the first one.
        now = round(&mut start, now, 80, 100_000, 1000);
        let window = (80 - 35) * SEGMENT;
        assert_eq!(start.window(), Some(window));
        now = round(&mut start, now, 45, 100_000, 1000);
        let window = window + window / 16;
        assert_eq!(start.window(), Some(window));
        // The beginnings of flights find no queue: it grows on.
        round(&mut start, now, 47, 100_000, 1000);
        assert_eq!(start.window(), Some(window + window / 16));
    }

    /// The sender or a receiver pauses: what was under way then comes late, and no more.
    #[test]
    fn a_pause_does_not_end_it() {
        let (mut start, mut now) = (SlowStart::default(), 0);
        for segments in [4, 8, 16, 32] {
            now = round(&mut start, now, segments, 100_000, 10);
        }
        for segments in [64, 128] {
            for _ in 0..segments {
                start.on_sent(SEGMENT, at(now));
            }
            for number in 0..segments {
                let pause = if number < 16 { 30_000 } else { 0 };
                start.on_acknowledged(SEGMENT, SEGMENT, at(now + 100_000 + pause));
            }
            now += 130_000;
        }
        assert!(start.window().is_some(), "at first it looks like a queue");
        for segments in [64, 64] {
            now = round(&mut start, now, segments, 100_000, 10);
        }
        assert_eq!(start.window(), None);
    }

    #[test]
    fn a_quarter_of_longer_round_trips_confirms_a_queue() {
        // Nine look like one. Of the 39 others that are measured a quarter decides.
        for (longer, is_queue) in [(9 + 8, false), (9 + 9, true)] {
            let mut start = SlowStart::default();
            let now = round(&mut start, 0, 32, 100_000, 10);
            for _ in 0..64 {
                start.on_sent(SEGMENT, at(now));
            }
            for number in 0..64 {
                let late = if number < longer { 13_000 } else { 0 };
                start.on_acknowledged(SEGMENT, SEGMENT, at(now + 100_000 + late));
            }
            round(&mut start, now + 120_000, 1, 100_000, 0);
            assert_eq!(start.window().is_some(), is_queue, "{longer} of 64");
        }
    }

    /// However many segments one acknowledgement is for.
    #[test]
    fn round_trips_are_taken_all_over_a_flight() {
        let (mut start, mut now) = (SlowStart::default(), 0);
        for doubling in 0..10 {
            now = round(&mut start, now, 2 << doubling, 100_000, 10);
        }
        for _ in 0..1000 {
            start.on_sent(SEGMENT, at(now));
        }
        for number in 1..=20 {
            let window = start.window();
            assert_eq!(window.is_some(), number > 19, "{number}: {window:?}");
            start.on_acknowledged(40 * SEGMENT, SEGMENT, at(now + 100_000 + 2000 * number));
        }
    }

    #[test]
    fn a_loss_ends_the_bound_until_the_next_start() {
        let (mut start, mut now) = (SlowStart::default(), 0);
        for (segments, trip) in [(32, 20_000), (64, 30_000)] {
            now = round(&mut start, now, segments, trip, 10);
        }
        assert!(start.window().is_some());
        start.on_loss();
        now = round(&mut start, now, 50, 90_000, 10);
        assert_eq!(start.window(), None);
        start.on_restart();
        for (segments, trip) in [(32, 20_000), (64, 30_000)] {
            now = round(&mut start, now, segments, trip, 10);
        }
        assert!(start.window().is_some());
    }

    #[test]
    fn what_is_under_way_leaves_within_a_round_trip() {
        let mut start = SlowStart::default();
        assert_eq!(
            start.longest_interval(SEGMENT, 0),
            None,
            "no round trip yet"
        );
        let mut now = round(&mut start, 0, 32, 100_000, 0);
        // Doubled, and in half of a round trip.
        let interval = |start: &SlowStart, acknowledged: u64| {
            let interval = start.longest_interval(SEGMENT, acknowledged * SEGMENT);
            interval.unwrap().as_micros()
        };
        assert_eq!(interval(&start, 32), 100_000 / 128);
        for _ in 0..20 {
            now = round(&mut start, now, 64, 200_000, 0);
        }
        assert!(start.window().is_some(), "slow start has ended");
        // 64, and a fifth.
        assert!((2600..=2640).contains(&interval(&start, 64)));
        assert!((5200..=5280).contains(&interval(&start, 32)));
        start.on_loss();
        now = round(&mut start, now, 32, 200_000, 0);
        assert!((5200..=5280).contains(&interval(&start, 32)));
        for segments in [64, 128] {
            now = round(&mut start, now, segments, 200_000, 0);
        }
        assert!((385..=391).contains(&interval(&start, 128)), "it grows");
        // Nothing is under way: one segment may leave in a round trip.
        assert!((199_000..=200_000).contains(&interval(&start, 0)));
    }

    #[test]
    fn few_segments_and_one_acknowledgement_for_all_show_nothing() {
        let (mut start, mut now) = (SlowStart::default(), 0);
        for trip in [10_000, 20_000, 40_000, 80_000] {
            now = round(&mut start, now, SEGMENTS_MIN - 1, trip, 10);
        }
        assert_eq!(start.window(), None);
        for trip in [10_000, 90_000] {
            for _ in 0..100 {
                start.on_sent(SEGMENT, at(now));
            }
            now += trip;
            start.on_acknowledged(100 * SEGMENT, SEGMENT, at(now));
        }
        assert_eq!(start.window(), None);
    }
}
