//! Inhibits or allows all input from the CPU time that packets have cost.
//!
//! **Intuition.** Polling and feedback keep packets moving, and would give them
//! the whole CPU. So the time spent on packets is measured; when it has used up
//! its part of the current period, input stops until the period ends, or until
//! the CPU goes idle, since then nobody else wants it.
//!
//! **Source.** Mogul & Ramakrishnan, sections 5.1, 7, 7.1 and 8.2.1. Covered: MR-20
//! (its third signal), MR-23, MR-24, MR-25 ([`SampledLimit`]), MR-52 to MR-58,
//! MR-59 (errors that are removed here), MR-61, MR-71, MR-86 (limit per CPU or for
//! the host).
//!
//! **What is counted.** Whatever the caller brackets with
//! [`on_enter`](CpuLimit::on_enter) and [`on_exit`](CpuLimit::on_exit): polling
//! turns of both directions, and interrupt handlers. Brackets may nest, as when
//! an interrupt arrives within a turn; every nanosecond counts once.
//!
//! **Departures.** In the paper a share of 50 % comes out some 10 % wrong. Three
//! causes are removed: interrupt handlers are counted; a turn that crosses the end
//! of a period is split between the two; and what was used beyond the limit (the
//! check comes only at the end of a turn, and output goes on when input has
//! stopped) is carried over as debt to be worked off in later periods, where the
//! paper forgets it. With input always offered and a CPU always there for it, the
//! time used in n periods is thus n limits, and at most one turn per CPU more.
//! What was left unused is forgotten: it was an idle CPU's, or another's.
//!
//! **Limits.** Time that is not bracketed (the entry to an interrupt handler,
//! cache misses caused elsewhere) is not limited. Debt is bounded
//! ([`CpuLimitConfig::debt_periods`]), so that a stopped clock or a suspended machine
//! cannot inhibit input for long; a turn longer than that is partly forgiven. The
//! first packet of a burst that begins while input is inhibited waits up to the
//! rest of the period.
//!
//! **When it loses.** A limit below what the offered load needs turns CPU that
//! the consumers may not be able to use into packet loss; with consumers that
//! queue, [`feedback`](crate::feedback) finds the balance by itself. Local users
//! notice the difference, remote ones lose packets (section 7).

mod sampled;

use alloc::boxed::Box;
use core::time::Duration;

pub use sampled::{SampledLimit, SampledLimitConfig};

use crate::config::{CPUS_MAX, ConfigError, Field, Fraction, PPM};
use crate::time::{Instant, span_nanos};

/// The longest period, in nanoseconds.
const PERIOD_MAX_NS: u64 = 3_600_000_000_000;

/// Length of a period where threads of the kernel poll: short, since the receive ring overflows
/// while its thread waits.
pub const POLLING_PERIOD: Duration = Duration::from_millis(2);

/// What to do with all input now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Change {
    /// Nothing: as before.
    None,
    /// Stop receiving. Output goes on.
    Inhibit,
    /// Receive again, interrupts included.
    Allow,
}

/// Settings of a [`CpuLimit`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CpuLimitConfig {
    /// The part of the CPU time that packets may use, above zero. The whole means
    /// no limit. Default [`Self::LIMIT`].
    pub limit: Fraction,
    /// Length of a period, at most an hour and long enough for `limit` of it to
    /// be a nanosecond. Shorter bounds the wait of others better (they wait up to
    /// `limit` of it) and switches more often. Default 10 ms.
    pub period: Duration,
    /// CPUs that share this limit, 1 to 8192: 1 for a limit of each CPU's own,
    /// all of them for one of the whole host. Default 1.
    pub cpus: usize,
    /// Debt carried over at most, in limits, up to 1000. 0 forgets it, which is the paper's
    /// rule. Default 10.
    pub debt_periods: u32,
}

impl Default for CpuLimitConfig {
    fn default() -> Self {
        Self {
            limit: Self::LIMIT,
            period: Duration::from_millis(10),
            cpus: 1,
            debt_periods: 10,
        }
    }
}

impl CpuLimitConfig {
    /// The default of [`CpuLimitConfig::limit`], and what programs take that are not told any:
    /// a kernel that forwards leaves others about as much under a flood.
    pub const LIMIT: Fraction = Fraction::from_percent(75);

    /// Checks every field.
    ///
    /// # Errors
    ///
    /// Names the first field that is out of range.
    pub fn validate(&self) -> Result<(), ConfigError> {
        let period = self.period_ns();
        Field("limit", self.limit).must_be_in(PPM.., "above 0 ppm")?;
        Field("period", self.period).must_be(
            period <= PERIOD_MAX_NS && self.limit.of(period) > 0,
            "at most an hour, and `limit` of it at least 1 ns",
        )?;
        Field("cpus", self.cpus).must_be_in(1..=CPUS_MAX, "from 1 to 8192")?;
        Field("debt_periods", self.debt_periods).must_be_in(..=1000, "at most 1000")
    }

    fn period_ns(&self) -> u64 {
        span_nanos(self.period)
    }

    fn allowance_ns(&self) -> u64 {
        self.limit.of(self.period_ns() * self.cpus as u64)
    }

    fn used_max_ns(&self) -> u64 {
        let periods = 1 + u64::from(self.debt_periods);
        self.allowance_ns().saturating_mul(periods)
    }
}

/// Keeps the CPU time spent on packets to a configured share.
#[derive(Clone, Debug)]
pub struct CpuLimit {
    period_ns: u64,
    /// What may be used in a period, by all CPUs together.
    allowance_ns: u64,
    used_max_ns: u64,
    debt_periods: u32,
    /// Used in this period, with the debt of earlier ones.
    used_ns: u64,
    period_end: Instant,
    inhibited: bool,
    cpus: Box<[Cpu]>,
    /// CPUs within a bracket.
    busy: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Cpu {
    /// Brackets that are open, one within the other.
    depth: u32,
    /// Up to when the outermost has been counted.
    since: Instant,
}

impl CpuLimit {
    /// A limit whose first period begins at `now`.
    ///
    /// # Errors
    ///
    /// The config is out of range.
    pub fn new(config: CpuLimitConfig, now: Instant) -> Result<Self, ConfigError> {
        config.validate()?;
        Ok(Self {
            period_ns: config.period_ns(),
            allowance_ns: config.allowance_ns(),
            used_max_ns: config.used_max_ns(),
            debt_periods: config.debt_periods,
            used_ns: 0,
            period_end: now + config.period,
            inhibited: false,
            cpus: alloc::vec![Cpu::default(); config.cpus].into_boxed_slice(),
            busy: 0,
        })
    }

    /// Changes the limit from the present period on. What was used of it counts,
    /// and so does debt: a limit that is corrected often would otherwise be none.
    ///
    /// # Errors
    ///
    /// The config is out of range; the old limit stays.
    pub fn set_limit(&mut self, limit: Fraction) -> Result<(), ConfigError> {
        let config = CpuLimitConfig {
            limit,
            period: Duration::from_nanos(self.period_ns),
            cpus: self.cpus.len(),
            debt_periods: self.debt_periods,
        };
        config.validate()?;
        self.allowance_ns = config.allowance_ns();
        self.used_max_ns = config.used_max_ns();
        self.used_ns = self.used_ns.min(self.used_max_ns);
        Ok(())
    }

    /// CPU number `cpu` begins to work on packets.
    pub fn on_enter(&mut self, cpu: usize, now: Instant) {
        self.begin_periods(now);
        let state = &mut self.cpus[cpu];
        if state.depth == 0 {
            state.since = now;
            self.busy += 1;
        }
        state.depth += 1;
    }

    /// CPU number `cpu` ends what it began last.
    ///
    /// # Panics
    ///
    /// If it began nothing.
    pub fn on_exit(&mut self, cpu: usize, now: Instant) -> Change {
        self.begin_periods(now);
        let state = &mut self.cpus[cpu];
        assert!(state.depth > 0, "CPU {cpu} left what it never entered");
        state.depth -= 1;
        if state.depth == 0 {
            self.busy -= 1;
            let spent = now.as_nanos().saturating_sub(state.since.as_nanos());
            self.use_up(spent);
        }
        self.decide()
    }

    /// A CPU has nothing to run: nobody is waiting for what packets use. Clears
    /// what was used, debt included.
    pub fn on_idle(&mut self, now: Instant) -> Change {
        self.begin_periods(now);
        self.count_open(now);
        self.used_ns = 0;
        self.decide()
    }

    /// When [`poll_timeout`](Self::poll_timeout) will allow input again, if it is
    /// inhibited and nothing more is used.
    #[must_use]
    pub fn next_timeout(&self) -> Option<Instant> {
        let periods = self.used_ns / self.allowance_ns;
        let wait = periods.saturating_sub(1).saturating_mul(self.period_ns);
        self.inhibited
            .then(|| self.period_end + Duration::from_nanos(wait))
    }

    /// What may be used yet before input stops, of the period that the last event
    /// fell in.
    #[must_use]
    pub fn left(&self) -> Duration {
        Duration::from_nanos(self.allowance_ns.saturating_sub(self.used_ns))
    }

    /// When that period ends.
    #[must_use]
    pub fn period_end(&self) -> Instant {
        self.period_end
    }

    /// Begins a new period, if one is due at `now`.
    pub fn poll_timeout(&mut self, now: Instant) -> Change {
        self.begin_periods(now);
        self.decide()
    }

    /// Input is inhibited.
    #[must_use]
    pub fn inhibited(&self) -> bool {
        self.inhibited
    }

    fn decide(&mut self) -> Change {
        let over = self.used_ns >= self.allowance_ns;
        match (core::mem::replace(&mut self.inhibited, over), over) {
            (false, true) => Change::Inhibit,
            (true, false) => Change::Allow,
            _ => Change::None,
        }
    }

    fn use_up(&mut self, nanos: u64) {
        self.used_ns = self.used_ns.saturating_add(nanos).min(self.used_max_ns);
    }

    /// Counts open brackets up to `now`.
    fn count_open(&mut self, now: Instant) {
        let mut spent = 0u64;
        for cpu in self.cpus.iter_mut().filter(|cpu| cpu.depth > 0) {
            let span = now.as_nanos().saturating_sub(cpu.since.as_nanos());
            spent = spent.saturating_add(span);
            cpu.since = cpu.since.max(now);
        }
        self.use_up(spent);
    }

    /// Closes the periods that ended by `now`: each pays for one allowance, and
    /// what it used beyond that is the next one's debt.
    fn begin_periods(&mut self, now: Instant) {
        if now < self.period_end {
            return;
        }
        self.count_open(self.period_end);
        self.used_ns = self.used_ns.saturating_sub(self.allowance_ns);
        let beyond = now.as_nanos() - self.period_end.as_nanos();
        let skipped = beyond / self.period_ns;
        if skipped > 0 {
            self.skip_periods(skipped);
        }
        self.period_end += Duration::from_nanos((skipped + 1).saturating_mul(self.period_ns));
    }

    /// Whole periods in which nothing was reported: open brackets went on.
    fn skip_periods(&mut self, periods: u64) {
        let each = self.busy * self.period_ns;
        if each >= self.allowance_ns {
            let owed = (each - self.allowance_ns).saturating_mul(periods);
            let debt_max = self.used_max_ns - self.allowance_ns;
            self.used_ns = self.used_ns.saturating_add(owed).min(debt_max);
        } else {
            let paid = (self.allowance_ns - each).saturating_mul(periods);
            self.used_ns = self.used_ns.saturating_sub(paid);
        }
        let until = self.period_end + Duration::from_nanos(periods.saturating_mul(self.period_ns));
        for cpu in self.cpus.iter_mut().filter(|cpu| cpu.depth > 0) {
            cpu.since = until;
        }
    }
}

#[cfg(test)]
mod tests;
