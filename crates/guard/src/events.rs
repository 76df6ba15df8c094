//! What happened, as lines for a log: overload and shedding begin and end,
//! channels become saturated and are relieved.
//!
//! A saturated channel discards and admits by turns many times a second, so it
//! counts as relieved only after a while without a discard. A flood of many
//! ports makes few lines: beyond a number per reading they are only counted.

use std::fmt;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use plimsoll_core::demux::Kind;

use crate::by_channel::ByChannel;
use crate::counters::Channel;
use crate::status::Snapshot;

/// Without a discard for this long a channel is relieved.
const RELIEVED_AFTER: Duration = Duration::from_secs(10);
/// Lines about channels per reading.
const CHANNEL_EVENTS_MAX: usize = 10;

/// Something that began or ended. Displays as `key=value` pairs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The governor's mode changed.
    Mode {
        /// The new mode.
        mode: &'static str,
        /// Why.
        reason: &'static str,
    },
    /// Input is shed by shares from now on, or no more.
    Shedding(bool),
    /// A channel discards from now on, or has not for a while.
    Saturated {
        /// The channel.
        channel: (Kind, IpAddr, u16),
        /// False: relieved.
        is_saturated: bool,
    },
    /// So many more channels changed than are told one by one.
    More(usize),
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Mode { mode, reason } => write!(f, "event=mode mode={mode} reason={reason}"),
            Self::Shedding(true) => write!(f, "event=shedding_began"),
            Self::Shedding(false) => write!(f, "event=shedding_ended"),
            Self::Saturated {
                channel: (kind, address, port),
                is_saturated,
            } => {
                let event = if *is_saturated {
                    "channel_saturated"
                } else {
                    "channel_relieved"
                };
                let kind = kind.name();
                write!(f, "event={event} kind={kind} address={address} port={port}")
            }
            Self::More(count) => write!(f, "event=more_channels count={count}"),
        }
    }
}

/// What was the case at the last reading.
#[derive(Debug)]
pub struct Events {
    mode: &'static str,
    shedding: bool,
    channels: ByChannel<State>,
}

#[derive(Clone, Copy, Debug)]
struct State {
    discarded: u64,
    /// The last reading that found new discards, while saturated.
    saturated: Option<Instant>,
}

impl Default for Events {
    fn default() -> Self {
        Self {
            mode: "interrupts",
            shedding: false,
            channels: ByChannel::default(),
        }
    }
}

impl Events {
    /// What happened since the last reading; call it once a second or so.
    pub fn on_reading(&mut self, snapshot: &Snapshot, now: Instant) -> Vec<Event> {
        let mut events = Vec::new();
        let (mode, reason) = (snapshot.governor.mode, snapshot.governor.reason);
        if mode != self.mode {
            self.mode = mode;
            events.push(Event::Mode { mode, reason });
        }
        if snapshot.shedding != self.shedding {
            self.shedding = snapshot.shedding;
            events.push(Event::Shedding(self.shedding));
        }
        let mut changed = Vec::new();
        self.channels
            .carry(&snapshot.counters.channels, |channel, before| {
                let (state, change) = next(channel, before, now);
                changed.extend(change.map(|is_saturated| Event::Saturated {
                    channel: (channel.kind, channel.address, channel.port),
                    is_saturated,
                }));
                state
            });
        let more = changed.len().saturating_sub(CHANNEL_EVENTS_MAX);
        events.extend(changed.into_iter().take(CHANNEL_EVENTS_MAX));
        events.extend((more > 0).then_some(Event::More(more)));
        events
    }
}

/// A channel's state after this reading, and whether it became saturated or was
/// relieved.
fn next(channel: &Channel, before: Option<State>, now: Instant) -> (State, Option<bool>) {
    let discarded = channel.packets.discarded();
    let discards = discarded > before.map_or(0, |state| state.discarded);
    let was = before.and_then(|state| state.saturated);
    let (saturated, change) = match was {
        _ if discards => (Some(now), was.is_none().then_some(true)),
        Some(last) if now.duration_since(last) >= RELIEVED_AFTER => (None, Some(false)),
        was => (was, None),
    };
    let state = State {
        discarded,
        saturated,
    };
    (state, change)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(events: &mut Events, snapshot: &Snapshot, now: Instant) -> Vec<String> {
        let events = events.on_reading(snapshot, now);
        events.iter().map(ToString::to_string).collect()
    }

    fn channels(discarded: u64) -> Snapshot {
        Snapshot::sample(vec![
            Channel::sample(53, 100, discarded),
            Channel::sample(54, 100, 0),
        ])
    }

    #[test]
    fn a_channel_is_saturated_once_and_relieved_after_a_while() {
        let start = Instant::now();
        let at = |s| start + Duration::from_secs(s);
        let mut events = Events::default();
        assert_eq!(lines(&mut events, &channels(0), at(0)), [""; 0]);
        let line = "kind=udp_socket address=198.18.0.2 port=53";
        assert_eq!(
            lines(&mut events, &channels(5), at(1)),
            [format!("event=channel_saturated {line}")]
        );
        assert_eq!(lines(&mut events, &channels(9), at(2)), [""; 0]);
        assert_eq!(lines(&mut events, &channels(9), at(11)), [""; 0]);
        assert_eq!(
            lines(&mut events, &channels(9), at(12)),
            [format!("event=channel_relieved {line}")]
        );
        assert_eq!(lines(&mut events, &channels(9), at(30)), [""; 0]);
    }

    #[test]
    fn modes_and_shedding_begin_and_end_once() {
        let now = Instant::now();
        let mut events = Events::default();
        let mut snapshot = channels(0);
        snapshot.governor.mode = "overload";
        snapshot.governor.reason = "ring";
        snapshot.shedding = true;
        let began = [
            "event=mode mode=overload reason=ring",
            "event=shedding_began",
        ];
        assert_eq!(lines(&mut events, &snapshot, now), began);
        assert_eq!(lines(&mut events, &snapshot, now), [""; 0]);
        let ended = [
            "event=mode mode=interrupts reason=calm",
            "event=shedding_ended",
        ];
        assert_eq!(lines(&mut events, &channels(0), now), ended);
    }

    #[test]
    fn many_channels_make_few_lines() {
        let channels = (1..=50).map(|port| Channel::sample(port, 0, 1)).collect();
        let snapshot = Snapshot::sample(channels);
        let lines = lines(&mut Events::default(), &snapshot, Instant::now());
        assert_eq!(lines.len(), CHANNEL_EVENTS_MAX + 1);
        assert_eq!(lines[CHANNEL_EVENTS_MAX], "event=more_channels count=40");
    }
}
