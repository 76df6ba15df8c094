//! Paces by a hand-moved clock, and a modelled path.

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

/// A path of 50 ms each way, one segment each 120 µs.
#[derive(Clone, Copy)]
struct Path {
    /// Segments that the peer acknowledges at once.
    together: u32,
    /// The sender pauses for up to so many µs, once in a hundred acknowledgements.
    pauses: u64,
    seed: u64,
}

/// What a transfer was like.
#[derive(Debug)]
struct Seen {
    millis: u64,
    /// Segments that left together with four before.
    in_bursts: u32,
    /// The most that waited at the bottleneck, in segments.
    queue: u64,
}

fn over(path: Path, pacing: Pacing, segments: u32) -> Seen {
    const BYTES: u32 = 1460;
    let (mut socket, mut pace) = (socket(), pace(pacing));
    assert_eq!(pace.begin(&mut socket, at(0)), None);
    let mut random = fastrand::Rng::with_seed(path.seed);
    let (mut now, mut sent, mut acknowledged) = (0, 0, 0);
    let (mut free_at, mut window, mut interval) = (0_u64, 2, 0);
    let (mut departed_at, mut in_a_row) = (None, 0);
    let (mut in_bursts, mut queue) = (0, 0);
    let mut acknowledgements = std::collections::VecDeque::new();
    while acknowledged < segments {
        let bound = pace.window().map_or(window, |bytes| bytes as u32 / BYTES);
        let due_at = departed_at.map_or(0, |last| last + interval);
        let waits = sent < segments && sent - acknowledged < bound.min(window);
        if waits && (pace.gate().is_none() || due_at <= now) {
            let payload = Payload::new((sent * BYTES) as i32, BYTES as usize);
            pace.on_sent(payload, &mut socket, at(now));
            let together = departed_at.replace(now) == Some(now);
            in_a_row = if together { in_a_row + 1 } else { 0 };
            in_bursts += u32::from(in_a_row >= 4);
            sent += 1;
            free_at = free_at.max(now + 50_000) + 120;
            queue = queue.max(free_at.saturating_sub(now + 50_000) / 120);
            if sent % path.together == 0 || sent == segments {
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
        now = acknowledged_at.max(now);
        if path.pauses > 0 && random.u32(..100) == 0 {
            now += random.u64(..path.pauses);
        }
        let newly = up_to - std::mem::replace(&mut acknowledged, up_to);
        window += if pace.window().is_none() { newly } else { 0 };
        if let Some(rates) = on_ack(&mut pace, newly as usize, now) {
            interval = interval_micros(rates);
        }
    }
    Seen {
        millis: now / 1000,
        in_bursts,
        queue,
    }
}

/// The average of slow start's silent round trips held later flights back: 1,000 segments
/// took four times as long as without smoothing.
#[test]
fn smoothing_holds_no_flight_back() {
    for (segments, together) in [(1000, 2), (1000, 40), (10_000, 2), (10_000, 40)] {
        let path = Path {
            together,
            pauses: 0,
            seed: 0,
        };
        let plain = over(path, Pacing::Off, segments);
        let smooth = over(path, Pacing::SmoothAcks, segments);
        let said = format!("{segments}, {together} together: {smooth:?}, without {plain:?}");
        assert!(smooth.millis <= plain.millis + plain.millis / 5, "{said}");
        assert!(smooth.in_bursts * 4 <= plain.in_bursts, "{said}");
    }
}

/// 2 ms without an acknowledgement hid from slow start that the path was full. The path holds
/// 833 segments: twice as many waited at its bottleneck then.
#[test]
fn pauses_do_not_hide_that_the_path_is_full() {
    for pacing in [Pacing::Off, Pacing::SmoothAcks] {
        let queues = (0..20).map(|seed| {
            let path = Path {
                together: 2,
                pauses: 4000,
                seed,
            };
            over(path, pacing, 10_000).queue
        });
        let mut queues: Vec<u64> = queues.collect();
        queues.sort_unstable();
        assert!(
            queues[10] < 500 && queues[19] < 833,
            "{pacing:?}: {queues:?}"
        );
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
