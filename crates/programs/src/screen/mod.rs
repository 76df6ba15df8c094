//! A screening firewall: frames between two interfaces pass only if a screen says so.
//!
//! ```text
//! inside  ─ ring ─ queue ─┐            ┌─ outside
//!                         ├─ screen ───┤
//! outside ─ ring ─ queue ─┘            └─ inside
//! ```
//!
//! This is screend's host of Mogul & Ramakrishnan (section 6.6.1): a receiving thread
//! fills a bounded queue per interface, and a screening thread decides on each frame. At
//! 75 % of a queue its interface's input is inhibited until the queue is down to 25 %, or
//! for a tick ([`plimsoll_core::feedback`]: MR-44 to MR-46). Meanwhile frames wait, and
//! are dropped, in the receive ring, where that costs the screen nothing. The other
//! interface goes on, and so does protected traffic: the driver's program runs its filter
//! and puts it in a ring of its own (`bpf/classic.h`).
//!
//! Who decides is a [`Screen`]: [`Rules`] from a file, or a program's own.
//!
//! **A screen that dies or hangs.** From then on frames pass undecided or are discarded,
//! as [`ScreenConfig::on_failure`] says. When the whole process is killed, a screen that
//! fails closed leaves its program on both interfaces, which discards everything without a
//! socket ([`Firewall::keepers`]). Otherwise the kernel forwards what it is set to forward.
//!
//! **Remembered verdicts.** With [`ScreenConfig::remember`] the driver does for a while
//! what the screen has decided, for flows of which it would say the same again
//! (`memory`).

mod carrier;
mod counts;
mod error;
mod firewall;
mod flow;
mod inhibited;
mod memory;
mod port;
mod rules;
mod unserved;

use std::time::Duration;

use plimsoll_core::config::Fraction;

pub use counts::{Counts, PortCounts};
pub use error::Error;
pub use firewall::{Firewall, Reload};
pub use memory::Remember;
pub use rules::Rules;

/// Which interface a frame came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The first one.
    Inside,
    /// The second one.
    Outside,
}

impl Side {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Inside, Self::Outside];

    const fn index(self) -> usize {
        self as usize
    }

    const fn other(self) -> Self {
        match self {
            Self::Inside => Self::Outside,
            Self::Outside => Self::Inside,
        }
    }
}

/// What becomes of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// It leaves by the other interface.
    Accept,
    /// It is gone.
    Discard,
}

/// Decides on frames, one after the other, on a thread of its own.
pub trait Screen: Send {
    /// What becomes of an Ethernet frame that came from this side.
    fn decide(&mut self, frame: &[u8], from: Side) -> Verdict;

    /// Whether every TCP or UDP packet with these addresses and ports gets the verdict on
    /// `frame` as well, if it comes from the same side. Asked right after
    /// [`Screen::decide`], and only if verdicts are remembered. By default it is not so.
    fn holds_for_flow(&mut self, frame: &[u8], from: Side) -> bool {
        let _ = (frame, from);
        false
    }
}

impl<F: FnMut(&[u8], Side) -> Verdict + Send> Screen for F {
    fn decide(&mut self, frame: &[u8], from: Side) -> Verdict {
        self(frame, from)
    }
}

/// Settings of a [`Firewall`].
#[derive(Clone, Debug)]
pub struct ScreenConfig {
    /// The interfaces, of this network namespace: inside, outside.
    pub interfaces: [String; 2],
    /// Frames that a queue holds; from 4 to 65,536. More bridges longer absences of the
    /// screening thread, and delays more. Default 256.
    pub queue_frames: u32,
    /// Frames of each receive queue in a turn of the receiving thread; from 1 to 1024.
    /// Above the room that is left at the high watermark, one turn may overflow the queue.
    /// Default 32.
    pub quota: u32,
    /// A filter expression of frames that need no decision. Then the kernel polls before the
    /// screen decides, for up to half of the CPU limit, so that no such frame is lost in the
    /// adapter's ring meanwhile: what the driver discards then takes CPU time from the screen.
    /// Default: none, and the kernel polls beneath the screen.
    pub protected: Option<String>,
    /// What becomes of frames when the screen has died or hangs, or this process was killed
    /// ([`Firewall::keepers`]). Default [`Verdict::Discard`].
    pub on_failure: Verdict,
    /// Time without a decision, although frames wait, after which the screen counts as
    /// hung; above zero. Default 1 s.
    pub hang: Duration,
    /// Verdicts that are enforced in the driver. Default: none.
    pub remember: Option<Remember>,
    /// The part of a CPU that screening and the kernel's polling for it may take where others
    /// want it. Default: that of [`CpuLimitConfig`](plimsoll_core::cpu_limit::CpuLimitConfig).
    pub cpu_limit: Option<Fraction>,
    /// The kernel may poll in threads with any driver, not only with those that were
    /// [tried](plimsoll_kernel::threaded::TRIED). Default false.
    pub any_driver: bool,
}

impl ScreenConfig {
    /// The default of [`ScreenConfig::queue_frames`].
    pub const QUEUE_FRAMES: u32 = 256;
    /// The default of [`ScreenConfig::quota`].
    pub const QUOTA: u32 = 32;

    /// The defaults.
    #[must_use]
    pub fn between(inside: impl Into<String>, outside: impl Into<String>) -> Self {
        Self {
            interfaces: [inside.into(), outside.into()],
            queue_frames: Self::QUEUE_FRAMES,
            quota: Self::QUOTA,
            protected: None,
            on_failure: Verdict::Discard,
            hang: Duration::from_secs(1),
            remember: None,
            cpu_limit: None,
            any_driver: false,
        }
    }

    fn validate(&self) -> Result<(), Error> {
        let check = |holds, field, allowed| match holds {
            true => Ok(()),
            false => Err(Error::Config { field, allowed }),
        };
        let [inside, outside] = &self.interfaces;
        let frames = (4..=1 << 16).contains(&self.queue_frames);
        check(inside != outside, "interfaces", "two different ones")?;
        check(frames, "queue_frames", "from 4 to 65536")?;
        let quota = (1..=1024).contains(&self.quota);
        check(quota, "quota", "from 1 to 1024")?;
        check(!self.hang.is_zero(), "hang", "above zero")?;
        let remember = self.remember.is_none_or(|remember| remember.is_valid());
        check(
            remember,
            "remember",
            "from 1 to 1048576 flows, for above zero",
        )
    }
}
