//! The lazy watchdog: an adapter's failure is noticed without a timer operation
//! per packet.
//!
//! Intuition: a watchdog that barks after 10 s need not bark after exactly 10 s;
//! anything from 5 to 20 does. So a running timer is left alone if it would
//! expire within that window, and is not stopped when the answer comes, unless
//! it is about to expire; an expiry with nothing outstanding is ignored (Tracey
//! & Banerji, section 3.1).
//!
//! Departure: the paper restarts the window with every transmission and ends it
//! with any completion. Here it starts with the oldest unanswered transmission
//! or the latest completion, whichever is later. So neither a stream of further
//! transmissions puts a failure off, nor does the answer to one frame hide that
//! the next is never answered.
//!
//! When it loses: the paper measured it 1 % slower (section 4.2), because its
//! timer operations were as cheap as the check. With a timer wheel of one's own
//! they are; with a system call per operation they are not.
//! [`WatchdogStatistics`] says what was saved.

use core::time::Duration;

use crate::config::{ConfigError, Field, NANOSECOND};
use crate::time::Instant;

/// When an expiry is as good as another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WatchdogConfig {
    /// The adapter is given at least this time to answer; at least 1 ns.
    pub earliest: Duration,
    /// What a timer is started with, from `earliest` to `latest`.
    pub nominal: Duration,
    /// A failure is noticed within this time.
    pub latest: Duration,
    /// A timer that nothing needs any more is really stopped if less than this
    /// remains of it, at most `nominal`. Longer saves expiries that are ignored
    /// and costs stops. Zero never stops.
    pub stop_below: Duration,
}

impl Default for WatchdogConfig {
    /// The paper's example: 5, 10 and 20 s. It does not publish the least time
    /// remaining; 1 s here.
    fn default() -> Self {
        Self {
            earliest: Duration::from_secs(5),
            nominal: Duration::from_secs(10),
            latest: Duration::from_secs(20),
            stop_below: Duration::from_secs(1),
        }
    }
}

impl WatchdogConfig {
    /// Whether the spans are in order.
    ///
    /// # Errors
    /// Names the first field that is out of its range.
    pub fn validate(&self) -> Result<(), ConfigError> {
        Field("earliest", self.earliest).must_be_in(NANOSECOND.., "at least 1 ns")?;
        Field("nominal", self.nominal)
            .must_be_in(self.earliest..=self.latest, "from earliest to latest")?;
        Field("stop_below", self.stop_below).must_be_in(..=self.nominal, "at most nominal")
    }
}

/// What to do with the one timer of the watchdog.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "the watchdog believes that the timer was set"]
pub enum TimerCommand {
    /// Nothing: the common case.
    Leave,
    /// Start it, or move it, to expire then.
    Start(Instant),
    /// Stop it.
    Stop,
}

/// What an expiry of the timer means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "an adapter may have failed"]
pub enum Expiry {
    /// Nothing is outstanding.
    Ignored,
    /// The expiry was under way while the timer was moved. Start it again.
    TooEarly(Instant),
    /// The adapter has not answered for at least [`WatchdogConfig::earliest`].
    AdapterFailed,
}

/// What the laziness saved and cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WatchdogStatistics {
    /// Timers started or moved.
    pub starts: u64,
    /// Timers stopped.
    pub stops: u64,
    /// Operations of the eager watchdog that were left out.
    pub avoided: u64,
    /// Expiries with nothing outstanding, each an interrupt for nothing.
    pub ignored: u64,
}

/// The watchdog over one adapter's transmissions.
#[derive(Debug)]
pub struct LazyWatchdog {
    config: WatchdogConfig,
    /// When the timer expires, if it runs.
    deadline: Option<Instant>,
    outstanding: u64,
    /// The oldest unanswered transmission or the latest completion.
    waiting_since: Instant,
    statistics: WatchdogStatistics,
}

impl LazyWatchdog {
    /// A watchdog whose timer does not run.
    ///
    /// # Errors
    /// If the config does not [validate](WatchdogConfig::validate).
    pub fn new(config: &WatchdogConfig) -> Result<Self, ConfigError> {
        config.validate()?;
        Ok(Self {
            config: *config,
            deadline: None,
            outstanding: 0,
            waiting_since: Instant::ZERO,
            statistics: WatchdogStatistics::default(),
        })
    }

    /// A frame was given to the adapter.
    pub fn on_transmit(&mut self, now: Instant) -> TimerCommand {
        self.outstanding += 1;
        if self.outstanding > 1 {
            self.statistics.avoided += 1;
            return TimerCommand::Leave;
        }
        self.wait_from(now)
    }

    /// The adapter has answered for `frames` frames, sent or failed. More than
    /// are outstanding counts as all of them.
    pub fn on_completion(&mut self, frames: u64, now: Instant) -> TimerCommand {
        self.outstanding = self.outstanding.saturating_sub(frames);
        if self.outstanding > 0 {
            return self.wait_from(now);
        }
        match self.deadline {
            Some(deadline) if deadline.saturating_since(now) < self.config.stop_below => {
                self.deadline = None;
                self.statistics.stops += 1;
                TimerCommand::Stop
            }
            _ => {
                self.statistics.avoided += 1;
                TimerCommand::Leave
            }
        }
    }

    /// The timer expired. It does not run any more, unless told to start again.
    pub fn on_expiry(&mut self, now: Instant) -> Expiry {
        self.deadline = None;
        if self.outstanding == 0 {
            self.statistics.ignored += 1;
            return Expiry::Ignored;
        }
        if now < self.waiting_since + self.config.earliest {
            return Expiry::TooEarly(self.start(self.waiting_since));
        }
        Expiry::AdapterFailed
    }

    /// Frames that the adapter has not answered for.
    #[must_use]
    pub fn outstanding(&self) -> u64 {
        self.outstanding
    }

    /// The adapter was reset: nothing is outstanding.
    pub fn on_reset(&mut self) {
        self.outstanding = 0;
    }

    /// What the laziness saved and cost so far.
    #[must_use]
    pub fn statistics(&self) -> WatchdogStatistics {
        self.statistics
    }

    /// From now on an answer is waited for: is the timer good for that?
    fn wait_from(&mut self, now: Instant) -> TimerCommand {
        self.waiting_since = now;
        let window = now + self.config.earliest..=now + self.config.latest;
        if self.deadline.is_some_and(|at| window.contains(&at)) {
            self.statistics.avoided += 1;
            return TimerCommand::Leave;
        }
        TimerCommand::Start(self.start(now))
    }

    fn start(&mut self, since: Instant) -> Instant {
        let deadline = since + self.config.nominal;
        self.deadline = Some(deadline);
        self.statistics.starts += 1;
        deadline
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);
    const MS: Duration = Duration::from_millis(1);

    fn watchdog() -> LazyWatchdog {
        LazyWatchdog::new(&WatchdogConfig::default()).unwrap()
    }

    #[test]
    fn a_busy_second_costs_one_timer_operation() {
        let mut watchdog = watchdog();
        let start = Instant::ZERO;
        let mut commands = 0;
        for k in 0..1000 {
            let now = start + MS * k;
            commands += u32::from(watchdog.on_transmit(now) != TimerCommand::Leave);
            commands += u32::from(watchdog.on_completion(1, now) != TimerCommand::Leave);
        }
        assert_eq!(commands, 1);
        assert_eq!(watchdog.statistics().avoided, 1999);
        assert_eq!(watchdog.on_expiry(start + SECOND * 10), Expiry::Ignored);
    }

    #[test]
    fn the_timer_is_moved_only_out_of_the_window() {
        let mut watchdog = watchdog();
        let start = Instant::ZERO;
        let at = |s| TimerCommand::Start(start + SECOND * s);
        assert_eq!(watchdog.on_transmit(start), at(10));
        assert_eq!(watchdog.on_completion(1, start), TimerCommand::Leave);
        // At 5 s it would still give the adapter 5 s; a little later it would not.
        let five = start + SECOND * 5;
        assert_eq!(watchdog.on_transmit(five), TimerCommand::Leave);
        assert_eq!(watchdog.on_completion(1, five), TimerCommand::Leave);
        assert_eq!(watchdog.on_transmit(start + SECOND * 6), at(16));
    }

    #[test]
    fn a_timer_about_to_expire_for_nothing_is_stopped() {
        let mut watchdog = watchdog();
        let _ = watchdog.on_transmit(Instant::ZERO);
        let late = Instant::ZERO + MS * 9_500;
        assert_eq!(watchdog.on_completion(1, late), TimerCommand::Stop);
        assert_eq!(watchdog.statistics().stops, 1);
    }

    #[test]
    fn further_transmissions_do_not_put_a_failure_off() {
        let mut watchdog = watchdog();
        let mut timer = Instant::MAX;
        for k in 0..100 {
            if let TimerCommand::Start(at) = watchdog.on_transmit(Instant::ZERO + MS * 100 * k) {
                timer = at;
            }
        }
        assert_eq!(timer, Instant::ZERO + SECOND * 10);
        assert_eq!(watchdog.on_expiry(timer), Expiry::AdapterFailed);
        watchdog.on_reset();
        assert_eq!(watchdog.on_expiry(timer), Expiry::Ignored);
    }

    #[test]
    fn an_expiry_that_crossed_a_restart_is_no_failure() {
        let mut watchdog = watchdog();
        let _ = watchdog.on_transmit(Instant::ZERO);
        let now = Instant::ZERO + SECOND * 9;
        let _ = watchdog.on_completion(1, now);
        let again = Instant::ZERO + SECOND * 10;
        let _ = watchdog.on_transmit(again);
        assert_eq!(
            watchdog.on_expiry(again),
            Expiry::TooEarly(again + SECOND * 10)
        );
    }

    #[test]
    fn configs_say_what_is_wrong() {
        let good = WatchdogConfig::default();
        let field = |config| LazyWatchdog::new(&config).unwrap_err().field;
        let zero = Duration::ZERO;
        assert_eq!(
            field(WatchdogConfig {
                earliest: zero,
                ..good
            }),
            "earliest"
        );
        assert_eq!(
            field(WatchdogConfig {
                nominal: SECOND,
                ..good
            }),
            "nominal"
        );
        let stop_below = SECOND * 11;
        assert_eq!(field(WatchdogConfig { stop_below, ..good }), "stop_below");
    }

    proptest! {
        /// Against an ideal timer: an adapter that answers in time is never
        /// declared failed; one that does not is, within the window.
        #[test]
        fn failures_are_noticed_within_the_window(
            steps in prop::collection::vec((0_u32..3_000, any::<bool>()), 1..200),
        ) {
            let config = WatchdogConfig::default();
            let mut watchdog = LazyWatchdog::new(&config).unwrap();
            let (mut now, mut timer) = (Instant::ZERO, None);
            let (mut outstanding, mut waiting_since) = (0_u64, Instant::ZERO);
            for (gap, transmit) in steps {
                now += MS * gap;
                if let Some(at) = timer && at <= now {
                    timer = None;
                    match watchdog.on_expiry(at) {
                        Expiry::Ignored => prop_assert_eq!(outstanding, 0),
                        Expiry::TooEarly(_) => prop_assert!(false, "the timer is exact"),
                        Expiry::AdapterFailed => {
                            let waited = at.saturating_since(waiting_since);
                            prop_assert!(outstanding > 0 && waited >= config.earliest);
                            watchdog.on_reset();
                            outstanding = 0;
                        }
                    }
                }
                let waited = now.saturating_since(waiting_since);
                prop_assert!(outstanding == 0 || waited <= config.latest, "not noticed");
                let command = if transmit {
                    if outstanding == 0 {
                        waiting_since = now;
                    }
                    outstanding += 1;
                    watchdog.on_transmit(now)
                } else {
                    waiting_since = now;
                    outstanding = outstanding.saturating_sub(1);
                    watchdog.on_completion(1, now)
                };
                match command {
                    TimerCommand::Leave => {}
                    TimerCommand::Start(at) => timer = Some(at),
                    TimerCommand::Stop => timer = None,
                }
            }
        }
    }
}
