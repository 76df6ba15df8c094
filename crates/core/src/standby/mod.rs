//! When a guard that stands by attaches its program, and when it detaches it again.
//!
//! **Intuition.** An XDP program has a price also while it discards nothing: a veth sends it no
//! large packets of TCP. A calm host need not pay that. The kernel counts by itself what a host
//! loses for want of room. So the program waits, loaded, until the host loses, and goes when all
//! has been quiet for long.
//!
//! **Rules.**
//! - Each loss is a debt of [`LOSS`], which time pays back. The program is attached at once
//!   when the debt exceeds [`DEBT_MAX`]: a flood does that in one reading, a burst into a small
//!   buffer does not.
//! - It is attached, too, when receiving took the limit of a CPU in `READINGS` metered readings
//!   in a row, and enough came that could be the cause.
//! - Connections slow down by themselves, and what goes on to other hosts harms nobody while
//!   nobody wants the CPU. Where they are three quarters of what comes, frames that the ring or a
//!   backlog loses, and a full CPU, are no reason: a guard would shed nothing for them. Who waits
//!   for the CPU in fewer than `READINGS` metered readings in a row does not want it: at a flood's
//!   beginning whoever ran there waits a moment. Nor does who waits for a CPU that hardly receives.
//! - CPU time is metered only where so many others come that to receive them may take the limit, or
//!   frames are lost of them: to meter costs as well. A bulk transfer is not metered. Half a second
//!   that shows nothing ends a look; the next one comes after a second, then after 2, 4, 8 and
//!   each 16, or at once when twice as much presses.
//! - It is detached when nothing was shed or overloaded for as long as [`Config::quiet`], and so
//!   little lost, discarded and answered that the host may do that itself: each is a debt of
//!   [`LOSS_ATTACHED`]. The program may itself be why sockets lose a little: on a veth packets take
//!   more of their buffers while it is attached. What was right to attach for attaches again.
//! - To attach costs as well, so where it comes back soon the quiet doubles, up to [`QUIETS_MAX`]
//!   times as long.
//!
//! **Source.** Ours. The debt is a leaky bucket (ITU-T I.371, GCRA); the growing pause that of
//! Ethernet (Metcalfe & Boggs 1976).
//!
//! **When it loses.** The kernel's counters are a network namespace's or the machine's. Losses of
//! others attach as well, which protects nobody and costs what a program costs. A flood within
//! established connections that fills no socket is not noticed. Less than a hundred losses a second
//! never attach. Until the first reading that shows a flood, it is as without a guard. Whoever
//! begins to want the CPU of a full router is seen up to 16 seconds late, and so is a CPU that
//! fills slowly and loses nothing.

mod looks;

use core::time::Duration;

use looks::{Looks, Seen};

use crate::config::{ConfigError, Field, Fraction, PPM};
use crate::governor::FRAME_MOST;
use crate::time::{Instant, NANOS_PER_SECOND, span_nanos};

/// The debt of one loss: a hundred a second are paid back. A server that loses fewer is hardly
/// overloaded, and to throw them away takes the CPU no time.
pub const LOSS: Duration = Duration::from_millis(10);
/// The same while the program is attached: a thousand a second are paid back. To throw as many away
/// takes less than a hundredth of a CPU.
pub const LOSS_ATTACHED: Duration = Duration::from_millis(1);
/// A thousand losses at once. The usual receive buffer (208 KiB) holds some 280 small datagrams,
/// so a burst of a thousand, which is rare, loses less.
pub const DEBT_MAX: Duration = Duration::from_secs(10);
/// So much later than the last loss of a flood the quiet begins.
const QUIET_AFTER: Duration = Duration::from_secs(1);
/// Debt beyond this is forgotten, lest a flood attaches long after its end where the driver
/// refused.
const DEBT_KEPT: Duration = Duration::from_secs(20);
/// One reading in which a CPU is full, or wanted by others, may be a burst. Three are a third of a
/// second.
const READINGS: u32 = 3;
/// So much of a CPU receiving takes at least where others who want it lack it for that. Where packets
/// take a few microseconds, somebody waits during all of them, and takes no notice.
pub const WANTED_SHARE: Fraction = Fraction::from_percent(50);
/// The quiet grows to so many times what was configured: a minute to about an hour.
pub const QUIETS_MAX: u32 = 64;
/// Attached again within so many quiets, it comes back soon.
const SOON_QUIETS: u32 = 8;
const QUIET_SHORTEST: Duration = Duration::from_secs(1);
const QUIET_LONGEST: Duration = Duration::from_secs(86_400);

/// Settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// After so long without a flood the program is detached, at first. Default: a minute.
    pub quiet: Duration,
    /// The part of a CPU that receiving may take. Default: 85 %.
    pub cpu_limit: Fraction,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            quiet: Duration::from_secs(60),
            cpu_limit: Fraction::from_percent(85),
        }
    }
}

impl Config {
    /// Checks that the settings are in range.
    ///
    /// # Errors
    ///
    /// Names the field, its value and what is allowed.
    pub fn validate(&self) -> Result<(), ConfigError> {
        let quiets = QUIET_SHORTEST..=QUIET_LONGEST;
        Field("quiet", self.quiet).must_be_in(quiets, "from a second to a day")?;
        Field("cpu_limit", self.cpu_limit).must_be_in(PPM.., "more than nothing")
    }
}

/// What was seen since the reading before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Evidence {
    /// Frames that the receive ring did not hold, or the other end of a veth could not send.
    pub ring: u64,
    /// Packets that the CPUs' backlogs did not hold. A veth counts these as the ring's as well.
    pub backlog: u64,
    /// Datagrams that their socket's buffer did not hold.
    pub sockets: u64,
    /// SYNs that a listener's queues did not hold.
    pub listeners: u64,
    /// SYN cookies that the stack sent.
    pub cookies: u64,
    /// IP packets, as the stack receives them.
    pub received: u64,
    /// TCP segments among them.
    pub segments: u64,
    /// Resets that TCP sent: so many of the segments were for no connection, at most.
    pub resets: u64,
    /// Packets among `received` that went on to other hosts.
    pub forwarded: u64,
    /// The part of the busiest CPU's time that receiving took; `None` if it was not metered.
    pub share: Option<Fraction>,
    /// Others want a CPU of which receiving took [`WANTED_SHARE`] or more.
    pub is_wanted: bool,
    /// Packets that the attached program discarded or answered.
    pub judged: u64,
    /// The governor is in overload, or input is shed.
    pub is_busy: bool,
}

impl Evidence {
    /// Packets that neither slow down by themselves nor go on while nobody wants the CPU.
    fn pressing(&self) -> u64 {
        let handshakes = self.listeners.saturating_add(self.cookies);
        let others = self.resets.saturating_add(handshakes);
        let connections = self.segments.saturating_sub(others);
        let forwarded = if self.is_wanted { 0 } else { self.forwarded };
        let excused = connections.saturating_add(forwarded);
        self.received.saturating_sub(excused)
    }

    /// Less than a quarter presses. Where nothing at all arrives, something does.
    fn is_excused(&self) -> bool {
        self.received > 0 && self.pressing() < self.received.div_ceil(4)
    }

    /// All losses that count, each once.
    fn lost(&self) -> u64 {
        let frames = if self.is_excused() { 0 } else { self.frames() };
        let counts = [self.sockets, self.listeners, self.cookies];
        counts.into_iter().fold(frames, u64::saturating_add)
    }

    fn frames(&self) -> u64 {
        self.ring.max(self.backlog)
    }

    /// Receiving took `limit` of a CPU, and what came may be the cause.
    fn is_full(&self, limit: Fraction, elapsed: Duration) -> bool {
        let is_enough = self.is_enough(limit, elapsed) && !self.is_excused();
        is_enough && self.share.is_some_and(|share| share >= limit)
    }

    /// To receive what presses may take `limit` of a CPU.
    fn is_enough(&self, limit: Fraction, elapsed: Duration) -> bool {
        let taken = span_nanos(FRAME_MOST).saturating_mul(self.pressing());
        taken >= limit.of(span_nanos(elapsed))
    }

    /// The same where others want the CPU.
    fn as_wanted(&self) -> Self {
        let is_wanted = true;
        Self { is_wanted, ..*self }
    }

    /// What the CPUs do would tell more. Only a meter knows whether others want them.
    fn is_suspicious(&self, limit: Fraction, elapsed: Duration) -> bool {
        let wanted = self.as_wanted();
        let is_enough = !elapsed.is_zero() && wanted.is_enough(limit, elapsed);
        let presses = wanted.frames() > 0 || is_enough;
        presses && !wanted.is_excused()
    }

    /// What most of it is.
    fn sign(&self) -> Sign {
        let frames = if self.is_excused() { 0 } else { self.frames() };
        let listeners = self.listeners.saturating_add(self.cookies);
        let of_frames = if self.ring < self.backlog {
            Sign::Backlog
        } else {
            Sign::Ring
        };
        let signs = [
            (listeners, Sign::Listener),
            (self.sockets, Sign::Socket),
            (frames, of_frames),
        ];
        let most = signs.into_iter().max_by_key(|(count, _)| *count);
        most.map_or(Sign::Socket, |(_, sign)| sign)
    }
}

/// What shows that the host cannot take what comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sign {
    /// The receive ring overflows.
    Ring,
    /// A CPU's backlog overflows.
    Backlog,
    /// UDP sockets overflow.
    Socket,
    /// Listeners' queues overflow.
    Listener,
    /// Receiving takes what it may of a CPU.
    Cpu,
}

impl Sign {
    /// The name used in reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ring => "ring",
            Self::Backlog => "backlog",
            Self::Socket => "udp_socket",
            Self::Listener => "tcp_listener",
            Self::Cpu => "cpu",
        }
    }
}

/// What to do now. Whoever does it says so ([`Standby::on_attached`], [`Standby::on_detached`]);
/// else it is said again at the next reading, as long as it holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Nothing.
    Keep,
    /// Attach the program.
    Attach(Sign),
    /// Put settings back and detach it.
    Detach,
}

/// The decision; see the module's documentation. Begins without a program.
#[derive(Clone, Copy, Debug)]
pub struct Standby {
    config: Config,
    /// When the reading before was.
    before: Option<Instant>,
    /// While attached: since when it is quiet.
    quiet_since: Option<Instant>,
    /// How long it must be quiet now.
    quiet: Duration,
    detached: Option<Instant>,
    debt: Duration,
    full_readings: u32,
    wanted_readings: u32,
    looks: Looks,
}

impl Standby {
    /// Stands by.
    ///
    /// # Errors
    ///
    /// A setting is out of range.
    pub fn new(config: Config) -> Result<Self, ConfigError> {
        config.validate()?;
        Ok(Self {
            config,
            before: None,
            quiet_since: None,
            quiet: config.quiet,
            detached: None,
            debt: Duration::ZERO,
            full_readings: 0,
            wanted_readings: 0,
            looks: Looks::NONE,
        })
    }

    /// Takes new settings. The quiet is what they say, and may grow again.
    ///
    /// # Errors
    ///
    /// A setting is out of range, and the old ones stay.
    pub fn configure(&mut self, config: Config) -> Result<(), ConfigError> {
        config.validate()?;
        self.quiet = config.quiet;
        self.config = config;
        Ok(())
    }

    /// Whether the program is attached.
    #[must_use]
    pub const fn is_attached(&self) -> bool {
        self.quiet_since.is_some()
    }

    /// Whether CPU time should be metered: while attached, and where something may begin.
    #[must_use]
    pub const fn needs_meter(&self) -> bool {
        self.is_attached() || self.looks.is_due()
    }

    /// Takes what was seen since the reading before.
    pub fn on_reading(&mut self, evidence: &Evidence, now: Instant) -> Order {
        let before = self.before.replace(now);
        let elapsed = before.map_or(Duration::ZERO, |before| now.saturating_since(before));
        let is_metered = evidence.share.is_some();
        self.wanted_readings = in_a_row(self.wanted_readings, is_metered, evidence.is_wanted);
        let evidence = &Evidence {
            is_wanted: self.wanted_readings >= READINGS,
            ..*evidence
        };
        let lost = evidence.lost();
        let is_full = evidence.is_full(self.config.cpu_limit, elapsed);
        if let Some(since) = self.quiet_since {
            let judged = lost.saturating_add(evidence.judged);
            self.owe(judged, LOSS_ATTACHED, DEBT_MAX + QUIET_AFTER, elapsed);
            let is_quiet = self.debt <= DEBT_MAX && !evidence.is_busy && !is_full;
            let since = if is_quiet { since } else { now };
            self.quiet_since = Some(since);
            return match now.saturating_since(since) >= self.quiet {
                true => Order::Detach,
                false => Order::Keep,
            };
        }
        self.owe(lost, LOSS, DEBT_KEPT, elapsed);
        self.full_readings = in_a_row(self.full_readings, is_metered, is_full);
        self.looks
            .on_reading(self.seen(evidence, is_full, elapsed), now);
        if self.debt > DEBT_MAX {
            Order::Attach(evidence.sign())
        } else if self.full_readings >= READINGS {
            Order::Attach(Sign::Cpu)
        } else {
            Order::Keep
        }
    }

    fn owe(&mut self, losses: u64, each: Duration, most: Duration, elapsed: Duration) {
        let more = u32::try_from(losses).map_or(most, |losses| each.saturating_mul(losses));
        let debt = self.debt.saturating_sub(elapsed).saturating_add(more);
        self.debt = debt.min(most);
    }

    fn seen(&self, evidence: &Evidence, is_full: bool, elapsed: Duration) -> Seen {
        let pressing = evidence.as_wanted().pressing();
        let second = pressing.saturating_mul(NANOS_PER_SECOND);
        Seen {
            is_suspicious: evidence.is_suspicious(self.config.cpu_limit, elapsed),
            is_full: evidence.share.map(|_| is_full),
            pressing_pps: second.checked_div(span_nanos(elapsed)).unwrap_or_default(),
        }
    }

    /// The program is attached now.
    pub fn on_attached(&mut self, now: Instant) {
        let is_soon = self
            .detached
            .is_some_and(|at| now.saturating_since(at) < self.quiet.saturating_mul(SOON_QUIETS));
        self.quiet = match is_soon {
            true => (self.quiet * 2).min(self.config.quiet * QUIETS_MAX),
            false => self.config.quiet,
        };
        self.quiet_since = Some(now);
        self.begin();
    }

    /// The program is detached now.
    pub fn on_detached(&mut self, now: Instant) {
        self.quiet_since = None;
        self.detached = Some(now);
        self.begin();
    }

    fn begin(&mut self) {
        self.debt = Duration::ZERO;
        self.full_readings = 0;
        self.wanted_readings = 0;
        self.looks = Looks::NONE;
    }
}

/// So many metered readings in a row showed it. One that was not metered says nothing.
fn in_a_row(before: u32, is_metered: bool, is_shown: bool) -> u32 {
    match (is_metered, is_shown) {
        (true, true) => before.saturating_add(1),
        (true, false) => 0,
        (false, _) => before,
    }
}

#[cfg(test)]
mod tests;
