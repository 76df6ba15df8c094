//! What happened, as lines for a log: overload and shedding begin and end, others answer
//! SYNs, no socket of a protocol is guarded, channels become saturated and are relieved.
//!
//! A saturated channel discards and admits by turns many times a second, so it
//! counts as relieved only after a while without a discard. A flood of many
//! ports makes few lines: beyond a number per reading they are only counted.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fmt;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use plimsoll_core::demux::Kind;

use crate::by_channel::ByChannel;
use crate::counters::Channel;
use crate::hidden::Unguarded;
use crate::status::Snapshot;
use crate::syn_cookies::SynCookies;

/// Without a discard for this long a channel is relieved.
const RELIEVED_AFTER: Duration = Duration::from_secs(10);
/// What should pass in a moment is told when it has lasted this long.
const SETTLED_AFTER: Duration = Duration::from_secs(10);
/// Lines about channels per reading.
const CHANNEL_EVENTS_MAX: usize = 10;

/// Something that began or ended. Displays as `key=value` pairs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The governor's mode changed.
    Mode {
        /// The new mode.
        mode: Cow<'static, str>,
        /// Why.
        reason: Cow<'static, str>,
    },
    /// Input is shed by shares from now on, or no more.
    Shedding(bool),
    /// Who answers SYNs past a full SYN queue from now on.
    SynCookies(SynCookies),
    /// No socket of a protocol is guarded from now on …
    Unguarded(Unguarded),
    /// … what can be done about it, told once …
    Remedy(&'static str),
    /// … or they are again, for all that this one does.
    Guarded(Unguarded),
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
            Self::SynCookies(decided) => write!(f, "event=syn_cookies {decided}"),
            Self::Unguarded(one) => write!(f, "event=unguarded {one}"),
            Self::Remedy(remedy) => write!(f, "event=remedy: {remedy}"),
            Self::Guarded(one) => write!(f, "event=guarded {one}"),
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
    mode: Cow<'static, str>,
    shedding: bool,
    /// What was told of SYN cookies last, and since when a passing state holds.
    syn_cookies: SynCookies,
    passing_since: Option<Instant>,
    unguarded: BTreeSet<Unguarded>,
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
            mode: "interrupts".into(),
            shedding: false,
            syn_cookies: SynCookies::DRIVER,
            passing_since: None,
            unguarded: BTreeSet::new(),
            channels: ByChannel::default(),
        }
    }
}

impl Events {
    /// What happened since the last reading; call it once a second or so.
    pub fn on_reading(&mut self, snapshot: &Snapshot, now: Instant) -> Vec<Event> {
        let mut events = Vec::new();
        let condition = &snapshot.condition;
        let (mode, reason) = (&condition.governor.mode, &condition.governor.reason);
        if *mode != self.mode {
            self.mode = mode.clone();
            events.push(Event::Mode {
                mode: mode.clone(),
                reason: reason.clone(),
            });
        }
        if condition.shedding != self.shedding {
            self.shedding = condition.shedding;
            events.push(Event::Shedding(self.shedding));
        }
        let decided = condition.syn_cookies.as_ref();
        events.extend(decided.and_then(|decided| self.on_syn_cookies(decided, now)));
        let unguarded = || condition.unguarded.difference(&self.unguarded);
        events.extend(unguarded().map(|one| Event::Unguarded(*one)));
        events.extend(unguarded().find_map(Unguarded::remedy).map(Event::Remedy));
        let guarded = self.unguarded.difference(&condition.unguarded);
        events.extend(guarded.map(|one| Event::Guarded(*one)));
        self.unguarded.clone_from(&condition.unguarded);
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

    /// Where it is for a moment only, that is not told: a flood of forged sources has a trial
    /// again and again.
    fn on_syn_cookies(&mut self, decided: &SynCookies, now: Instant) -> Option<Event> {
        let passing_since = match decided.is_passing() && *decided != self.syn_cookies {
            true => Some(self.passing_since.unwrap_or(now)),
            false => None,
        };
        self.passing_since = passing_since;
        let is_settled = passing_since.is_none_or(|since| now - since >= SETTLED_AFTER);
        if *decided == self.syn_cookies || !is_settled {
            return None;
        }
        self.syn_cookies.clone_from(decided);
        Some(Event::SynCookies(decided.clone()))
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
    use crate::hidden::Taker;
    use crate::owner::diag::Protocol;

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
        let condition = &mut snapshot.condition;
        condition.governor.mode = "overload".into();
        condition.governor.reason = "ring".into();
        condition.shedding = true;
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
    fn who_answers_syns_is_told_once_it_is_settled() {
        let start = Instant::now();
        let mut events = Events::default();
        let mut told = |second, by: &'static str, reason: &'static str| {
            let mut snapshot = channels(0);
            snapshot.condition.syn_cookies = Some(SynCookies {
                by: by.into(),
                reason: reason.into(),
            });
            lines(&mut events, &snapshot, start + Duration::from_secs(second)).join("")
        };
        assert_eq!(told(0, "driver", "no_objection"), "", "so it began");
        let refused = "event=syn_cookies by=stack reason=link_refused";
        assert_eq!(told(1, "stack", "link_refused"), refused);
        assert_eq!(told(2, "stack", "link_refused"), "");
        let by_driver = "event=syn_cookies by=driver reason=no_objection";
        assert_eq!(told(3, "driver", "no_objection"), by_driver);
        // Trials that change nothing, each too short to be told.
        for second in 4..40 {
            let (by, reason) = match second % 5 {
                0 => ("driver", "no_objection"),
                _ => ("stack", "trial"),
            };
            assert_eq!(told(second, by, reason), "");
        }
        let lost = "event=syn_cookies by=stack reason=lost";
        assert_eq!(told(41, "stack", "lost"), lost);
        assert_eq!(told(42, "stack", "filter_unread"), "");
        let unread = "event=syn_cookies by=stack reason=filter_unread";
        assert_eq!(told(52, "stack", "filter_unread"), unread);
        assert_eq!(told(53, "stack", "filter_unread"), "");
    }

    #[test]
    fn that_no_socket_is_guarded_begins_and_ends_once() {
        let mut events = Events::default();
        let mut told = |unguarded: &[Unguarded]| {
            let mut snapshot = channels(0);
            snapshot.condition.unguarded.extend(unguarded);
            lines(&mut events, &snapshot, Instant::now())
        };
        let [rules, tc] = [Taker::PacketFilter, Taker::Tc].map(|taker| Unguarded {
            protocol: Protocol::Udp,
            taker,
        });
        assert_eq!(told(&[]), [""; 0]);
        let of_rules = "event=unguarded protocol=udp taker=packet_filter";
        assert_eq!(told(&[rules]), [of_rules]);
        assert_eq!(told(&[rules]), [""; 0]);
        let changed = [
            "event=unguarded protocol=udp taker=tc",
            "event=guarded protocol=udp taker=packet_filter",
        ];
        assert_eq!(told(&[tc]), changed);
        assert_eq!(told(&[]), ["event=guarded protocol=udp taker=tc"]);
    }

    /// Only the guide said that a new start helps.
    #[test]
    fn what_helps_where_translation_cannot_be_asked_is_told_once() {
        let both = [Protocol::Udp, Protocol::Tcp].map(|protocol| Unguarded {
            protocol,
            taker: Taker::Translation,
        });
        let mut events = Events::default();
        let mut told = || {
            let mut snapshot = channels(0);
            snapshot.condition.unguarded.extend(both);
            lines(&mut events, &snapshot, Instant::now())
        };
        let [udp, tcp, remedy] = &told()[..] else {
            panic!("three lines");
        };
        assert!(udp.starts_with("event=unguarded ") && tcp.starts_with("event=unguarded "));
        assert!(remedy.contains("start it anew"), "{remedy}");
        assert_eq!(told(), [""; 0]);
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
