//! Which source is served next, with what quota, and when its interrupts come
//! back on.
//!
//! **Intuition.** An interrupt is a good way to learn that work has begun and a
//! bad way to learn that there is more of it: interrupts preempt everything, so
//! at a high enough rate nothing else runs, and all that was received is thrown
//! away (receive livelock). Here an interrupt does one thing, it starts the
//! poller. The poller then goes round all sources that asked for service, and
//! both directions of each, giving every one a bounded turn, and a source's
//! interrupts come back on only when a visit found it with nothing left to do.
//! At light load that is an interrupt per packet and no added latency; at
//! overload there are no interrupts at all.
//!
//! **Source.** Mogul & Ramakrishnan, "Eliminating receive livelock in an
//! interrupt-driven kernel", ACM TOCS 15(3) 1997, sections 4.4, 5.2–5.4, 6.4–6.6,
//! 8.2, 10 and 11.2. Covered: MR-14 (transmit starvation cannot occur), MR-16 and
//! MR-37 (quota), MR-19 and MR-44 (input of one source inhibited, by
//! [`inhibit_input`](Poller::inhibit_input)), MR-21, MR-26, MR-27, MR-28, MR-30,
//! MR-31, MR-33 to MR-36, MR-38, MR-39, MR-41, MR-42, MR-54 to MR-56 (input of
//! all sources), MR-63, MR-65, MR-68 (its remedies), MR-70, MR-82, MR-86.
//!
//! **Limits.** At most 64 sources per poller. Nothing is shared between pollers:
//! one per CPU, each with sources of its own, so a source is never served by two
//! CPUs. The poller does not preempt: its caller's turns must keep to the quota.
//! A packet that was taken in a turn is finished by the caller even if input is
//! inhibited meanwhile; only the next turn is affected.
//!
//! **When it loses.** With one source, plenty of CPU and few packets, each
//! interrupt costs a wake-up of the poller and often one empty visit more than a
//! handler that does the work itself (section 8.2). A consumer that needs a
//! thread of its own gets nothing while the poller runs: that is what
//! [`feedback`](crate::feedback) and [`cpu_limit`](crate::cpu_limit) are for.
//!
//! **Departures.** The paper's devices have an interrupt per direction; many
//! have one for both ([`Interrupts::Shared`]), and then the quiet direction has
//! to be looked at in every round, since it cannot interrupt. A gap after each
//! round of receive turns ([`PollerConfig::receive_gap`]) is added for transmit work
//! that runs outside of the poller.

mod config;
mod source;

use core::time::Duration;

pub use config::{Initiation, PollerConfig};
pub use source::{Direction, Directions, SourceId, SourceSet};
use source::{Slot, Slots};

use crate::config::{ConfigError, TableFull};
use crate::time::Instant;

/// How many pollers a host with `cpus` CPUs should run: one fewer, so that the
/// consumers of a burst's first packets find a CPU while the rest is still being
/// received, and at least one (section 8.2.1, MR-70).
#[must_use]
pub const fn pollers_for(cpus: usize) -> usize {
    if cpus > 2 { cpus - 1 } else { 1 }
}

/// How a source takes part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Driver {
    /// Served by the poller.
    Polled(Interrupts),
    /// Its interrupt handler goes on doing all the work; it lives beside the
    /// polled ones and the poller never touches its interrupts (MR-39).
    Unmodified,
}

/// Which interrupts a polled source has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interrupts {
    /// One per direction, switched independently.
    Separate,
    /// One for both directions. While one direction is being polled the other
    /// cannot interrupt, so it is looked at once per round. While input is
    /// inhibited the interrupt stays off, and completions are found only after
    /// [`request`](Poller::request), which the output path calls when it is out
    /// of descriptors.
    Shared,
    /// None for transmit: completions are looked for after each receive turn and
    /// on [`request`](Poller::request) (MR-63). Saves an interrupt and an empty
    /// visit per burst (section 8.2) and holds buffers longer.
    ReceiveOnly,
}

/// What an interrupt handler has to do, apart from recording nothing itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Response {
    /// Unmodified source: do the device's work and enable its interrupt on return.
    Handle,
    /// Return with the interrupt disabled and wake the poller.
    Wake,
    /// Return with the interrupt disabled; the poller is awake, or its input is
    /// inhibited.
    Return,
}

/// A visit to one direction of one source. Hand it back to
/// [`on_turn_done`](Poller::on_turn_done) afterwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Turn {
    /// Whom to serve.
    pub source: SourceId,
    /// What for.
    pub direction: Direction,
    /// How many packets or completions may be handled, at least 1.
    pub quota: u32,
}

/// Round robin over the receive and transmit work of up to 64 sources.
///
/// ```
/// use plimsoll_core::poll::{PollerConfig, Directions, Driver, Interrupts, Poller, Response};
/// use plimsoll_core::time::Instant;
///
/// let mut poller = Poller::new(PollerConfig::default(), Instant::ZERO)?;
/// let source = poller.register(Driver::Polled(Interrupts::Separate))?;
/// assert_eq!(poller.on_interrupt(source, Directions::RECEIVE), Response::Wake);
/// while let Some(turn) = poller.poll_next(Instant::ZERO) {
///     let (handled, more) = (3, false); // from the device
///     let enable = poller.on_turn_done(turn, handled, more);
///     assert_eq!(enable, Directions::RECEIVE);
/// }
/// # Ok::<(), Box<dyn core::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Poller {
    config: PollerConfig,
    registered: usize,
    /// Both directions of the sources served here.
    polled: Slots,
    shared: Slots,
    /// Both directions of sources without a transmit interrupt.
    receive_only: Slots,
    /// Work is known or suspected.
    pending: Slots,
    /// Asked for since the turn in progress began.
    fresh: Slots,
    interrupts_on: Slots,
    /// Receive directions whose consumers have no room.
    inhibited: Slots,
    all_input_inhibited: bool,
    awake: bool,
    last: Slot,
    /// A receive turn was given in this round.
    received: bool,
    receive_after: Instant,
    /// From a round's end to the end of its gap.
    rests: bool,
    clock: Clock,
}

/// State of the clocked initiations.
#[derive(Clone, Copy, Debug)]
struct Clock {
    running: bool,
    tick_at: Instant,
    window_began: Instant,
    window_packets: u64,
}

impl Poller {
    /// A poller without sources, at time `now`.
    ///
    /// # Errors
    ///
    /// The config is out of range.
    pub fn new(config: PollerConfig, now: Instant) -> Result<Self, ConfigError> {
        config.validate()?;
        Ok(Self {
            config,
            registered: 0,
            polled: Slots::NONE,
            shared: Slots::NONE,
            receive_only: Slots::NONE,
            pending: Slots::NONE,
            fresh: Slots::NONE,
            interrupts_on: Slots::NONE,
            inhibited: Slots::NONE,
            all_input_inhibited: false,
            awake: false,
            last: Slot::LAST,
            received: false,
            receive_after: Instant::ZERO,
            rests: false,
            clock: Clock {
                running: matches!(config.initiation, Initiation::Clock { .. }),
                tick_at: now,
                window_began: now,
                window_packets: 0,
            },
        })
    }

    /// Adds a source. Its interrupts must then be as [`interrupts`](Self::interrupts)
    /// says.
    ///
    /// # Errors
    ///
    /// There are 64 sources already.
    pub fn register(&mut self, driver: Driver) -> Result<SourceId, TableFull> {
        let source = SourceId::from_index(self.registered).map_err(|_| TableFull {
            entries: "sources",
            places: SourceId::COUNT_MAX,
        })?;
        self.registered += 1;
        let both = Slots::of(source, Directions::BOTH);
        if let (Driver::Polled(interrupts), true) = (driver, self.polls()) {
            self.polled = self.polled.or(both);
            let on = match interrupts {
                Interrupts::Separate => Directions::BOTH,
                Interrupts::Shared => {
                    self.shared = self.shared.or(both);
                    Directions::BOTH
                }
                Interrupts::ReceiveOnly => {
                    self.receive_only = self.receive_only.or(both);
                    Directions::RECEIVE
                }
            };
            if !self.clock.running {
                self.interrupts_on = self.interrupts_on.or(Slots::of(source, on));
            }
        } else {
            self.interrupts_on = self.interrupts_on.or(both);
        }
        Ok(source)
    }

    /// Which interrupts of `source` are enabled by this poller's account.
    #[must_use]
    pub fn interrupts(&self, source: SourceId) -> Directions {
        self.interrupts_on.at(source)
    }

    /// Takes a new receive quota, at least 1, as found by [`quota`](crate::quota).
    pub fn set_receive_quota(&mut self, packets: u32) {
        self.config.receive_quota = packets.max(1);
    }

    /// An interrupt of `source` for `which` directions; the handler acts on the
    /// response. An interrupt that was already on its way when it was disabled
    /// does no harm.
    pub fn on_interrupt(&mut self, source: SourceId, which: Directions) -> Response {
        let both = Slots::of(source, Directions::BOTH);
        if self.polled.and(both).is_none() {
            return Response::Handle;
        }
        let asked = if self.shared.and(both).is_none() {
            Slots::of(source, which)
        } else {
            both
        };
        self.interrupts_on = self.interrupts_on.without(asked);
        self.ask(asked)
    }

    /// Work of `source` that was noticed otherwise than by an interrupt, such as
    /// an output path that has run out of descriptors. True if the poller has to
    /// be woken.
    pub fn request(&mut self, source: SourceId, which: Directions) -> bool {
        let asked = Slots::of(source, which).and(self.polled);
        self.ask(asked) == Response::Wake
    }

    /// The next visit, or nothing to do at `now`. If nothing, ask
    /// [`next_wakeup`](Self::next_wakeup) how long to sleep at most.
    pub fn poll_next(&mut self, now: Instant) -> Option<Turn> {
        self.tick(now);
        let Some(slot) = self.next_slot(now) else {
            self.awake = false;
            return None;
        };
        self.awake = true;
        self.last = slot;
        self.fresh = self.fresh.without(Slots::one(slot));
        let direction = slot.direction();
        let quota = match direction {
            Direction::Receive => {
                self.received = true;
                self.config.receive_quota
            }
            Direction::Transmit => self.config.transmit_quota,
        };
        Some(Turn {
            source: slot.source(),
            direction,
            quota,
        })
    }

    /// The visit ended after `handled` packets; `more` says that work was seen
    /// to be left. Returns the interrupts of the source to enable now.
    ///
    /// Whoever enables an interrupt looks at the device once more: what arrived
    /// between the visit and the enabling may raise none
    /// ([`request`](Self::request) it then).
    #[must_use]
    pub fn on_turn_done(&mut self, turn: Turn, handled: u32, more: bool) -> Directions {
        let slot = Slot::new(turn.source, turn.direction);
        let (this, both) = (Slots::one(slot), Slots::of(turn.source, Directions::BOTH));
        if turn.direction == Direction::Receive {
            self.clock.window_packets += u64::from(handled);
        }
        let more = more || self.fresh.has(slot);
        if !more {
            self.pending = self.pending.without(this);
        }
        let shared = !self.shared.and(both).is_none();
        let silent_transmit = !self.receive_only.and(both).is_none();
        if shared && more {
            self.pending = self.pending.or(both);
        } else if silent_transmit && turn.direction == Direction::Receive {
            self.pending = self.pending.or(both.transmit());
        }
        let idle = both.without(self.pending);
        let wanted = match (shared, silent_transmit) {
            (true, _) if idle != both => Slots::NONE,
            (true, _) => both,
            (false, true) => idle.and(this).receive(),
            (false, false) => idle.and(this),
        };
        self.enable(wanted, shared).at(turn.source)
    }

    /// The consumers of `source` have no room: no receive turns until
    /// [`allow_input`](Self::allow_input). Returns the interrupts to disable.
    #[must_use]
    pub fn inhibit_input(&mut self, source: SourceId) -> Directions {
        let receive = Slots::of(source, Directions::RECEIVE).and(self.polled);
        self.inhibited = self.inhibited.or(receive);
        let off = self.interrupts_on.and(receive);
        self.interrupts_on = self.interrupts_on.without(off);
        off.at(source)
    }

    /// There is room again. The source is visited at once, and its receive
    /// interrupt comes back on when a visit finds nothing. True if the poller
    /// has to be woken.
    pub fn allow_input(&mut self, source: SourceId) -> bool {
        let receive = Slots::of(source, Directions::RECEIVE);
        let was = self.inhibited.and(receive);
        self.inhibited = self.inhibited.without(receive);
        !was.is_none() && self.ask(receive.without(self.interrupts_on)) == Response::Wake
    }

    /// The CPU limit was reached: no receive turns at all until
    /// [`allow_all_input`](Self::allow_all_input). Output goes on. Returns the
    /// sources whose receive interrupts are to be disabled.
    #[must_use]
    pub fn inhibit_all_input(&mut self) -> SourceSet {
        self.all_input_inhibited = true;
        let off = self.interrupts_on.and(self.polled).receive();
        self.interrupts_on = self.interrupts_on.without(off);
        off.receiving_sources()
    }

    /// The CPU limit is over (end of the period, or the CPU went idle). True if
    /// the poller has to be woken.
    pub fn allow_all_input(&mut self) -> bool {
        let was = core::mem::replace(&mut self.all_input_inhibited, false);
        let silent = self.polled.receive().without(self.interrupts_on);
        was && self.ask(silent) == Response::Wake
    }

    /// When [`poll_next`](Self::poll_next) has to be asked again although nothing
    /// happens meanwhile.
    #[must_use]
    pub fn next_wakeup(&self) -> Option<Instant> {
        let held_back = !self.allowed().receive().is_none();
        let after_gap = held_back.then_some(self.receive_after);
        let tick = self.clock.running.then_some(self.clock.tick_at);
        [after_gap, tick].into_iter().flatten().min()
    }

    fn polls(&self) -> bool {
        self.config.initiation != Initiation::Unmodified
    }

    /// Pending work that is not inhibited.
    fn allowed(&self) -> Slots {
        if self.all_input_inhibited {
            self.pending.transmit()
        } else {
            self.pending.without(self.inhibited)
        }
    }

    fn ask(&mut self, asked: Slots) -> Response {
        self.pending = self.pending.or(asked);
        self.fresh = self.fresh.or(asked);
        if self.awake || self.allowed().and(asked).is_none() {
            return Response::Return;
        }
        self.awake = true;
        Response::Wake
    }

    /// Turns on what of `wanted` may be on. A shared interrupt comes on for both
    /// directions or not at all.
    fn enable(&mut self, wanted: Slots, shared: bool) -> Slots {
        if self.clock.running {
            return Slots::NONE;
        }
        let barred = if self.all_input_inhibited {
            wanted.receive()
        } else {
            wanted.and(self.inhibited)
        };
        let on = match (shared, barred.is_none()) {
            (true, false) => Slots::NONE,
            _ => wanted.without(barred).without(self.interrupts_on),
        };
        self.interrupts_on = self.interrupts_on.or(on);
        on
    }

    /// The first slot after the last one served; a new round begins where the
    /// old one ends, and wherever transmit turns of the gap have got to.
    fn next_slot(&mut self, now: Instant) -> Option<Slot> {
        if self.rests && now >= self.receive_after {
            self.rests = false;
            self.last = Slot::LAST;
        }
        let candidates = self.candidates(now);
        if let Some(slot) = candidates.after(self.last) {
            return Some(slot);
        }
        if core::mem::take(&mut self.received) && !self.config.receive_gap.is_zero() {
            self.receive_after = now + self.config.receive_gap;
            self.rests = true;
            return self.candidates(now).first();
        }
        candidates.first()
    }

    fn candidates(&self, now: Instant) -> Slots {
        let allowed = self.allowed();
        if now < self.receive_after {
            allowed.transmit()
        } else {
            allowed
        }
    }

    /// Clocked initiation: asks all sources when a period is over, and changes
    /// between clock and interrupts when a window is.
    fn tick(&mut self, now: Instant) {
        let period = match self.config.initiation {
            Initiation::Interrupt | Initiation::Unmodified => return,
            Initiation::Clock { period } => period,
            Initiation::ClockAboveRate {
                period,
                window,
                packets,
            } => {
                self.judge_rate(now, window, packets);
                period
            }
        };
        if self.clock.running && now >= self.clock.tick_at {
            self.look_at_all();
            // Ticks that nobody waited for are not made up.
            self.clock.tick_at = now + period;
        }
    }

    fn judge_rate(&mut self, now: Instant, window: Duration, packets: u32) {
        let elapsed = now.saturating_since(self.clock.window_began);
        if elapsed < window {
            return;
        }
        let allowance = elapsed.as_nanos() * u128::from(packets);
        let fast = u128::from(self.clock.window_packets) * window.as_nanos() > allowance;
        self.clock.window_began = now;
        self.clock.window_packets = 0;
        if fast && !self.clock.running {
            self.clock.tick_at = now;
        } else if !fast && self.clock.running {
            // A last visit to each brings the interrupts back.
            self.look_at_all();
        }
        self.clock.running = fast;
    }

    fn look_at_all(&mut self) {
        let silent = self.polled.without(self.interrupts_on);
        self.pending = self.pending.or(silent);
    }
}

#[cfg(test)]
mod tests;
