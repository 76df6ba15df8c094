//! What is turned of the kernel's polling while an interface is open.
//!
//! **In threads** ([`XdpConfig::threaded`]). In softirq context the kernel's polling comes
//! before every process. In copy mode it copies each frame, so a flood leaves nothing to the
//! program that is to work on them. As a thread beneath the program it polls when the
//! program has worked off what came before; what it does not poll overflows the adapter's
//! ring, at no cost (Druschel & Banga 1996: receiver processing at the receiver's priority).
//!
//! With [`Threaded::Auto`] a thread of ours (`polling`) has the settings and turns them on.
//!
//! **Holdoff** ([`XdpConfig::holdoff`]). Each interrupt costs a busy host more than the
//! frames it brings. After a poll that found frames the kernel polls again when the holdoff
//! is over, and only after some empty polls do interrupts come back on
//! (`Documentation/networking/napi.rst`). So frames that come while nothing happens still
//! interrupt at once.
//!
//! The old values are on disk before they are changed, as the guard does it, and are put back
//! when the interface is dropped.

use std::fmt;
use std::io;
use std::path::Path;
use std::str::FromStr;

use parking_lot::Mutex;
use plimsoll_kernel::error::with_causes;
use plimsoll_kernel::knobs::{Device, Knobs, Queues, TurnError};
use plimsoll_kernel::scheduling::{Priority, Scheduling};
use plimsoll_kernel::threaded::{
    PolledInterface, check_control_group, poll_in_control_group, poll_in_threads,
};

use super::company::Watched;
use super::polling::Polling;
use super::{LEVELS_MAX, XdpConfig};
use crate::error::Error;

/// Empty polls until interrupts come back on.
const EMPTY_POLLS: u32 = 2;
/// The nice level that runs last.
const NICE_MAX: i32 = 19;

/// How the kernel's polling thread competes with the program ([`XdpConfig::threaded`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Threaded {
    /// It does not: the kernel polls as the interface has it.
    Off,
    /// So many nice levels (0 to 19) beneath the thread that opens the interface. So a flood
    /// cannot take the CPU from whoever works on its frames: what they do not take overflows
    /// the adapter's ring. So does other traffic of the queue while they are busy: take this
    /// where the program is alone there. [`XdpConfig::BENEATH`] is what was measured to be good.
    Beneath(u8),
    /// That, by [`XdpConfig::BENEATH`] levels, while one endpoint of UDP is flooded and nobody else's
    /// frames come. Otherwise above every process, so that those lose nothing whose endpoints have sockets of their own
    /// ([`open_endpoint`](crate::device::Device::open_endpoint)); where it takes more than nine tenths of a
    /// CPU, it leaves the rest to processes. Beside a flood the first frames of somebody who has been
    /// away may be lost, until one of them is seen. Not for [`open_whole`](super::open_whole).
    Auto,
}

impl fmt::Display for Threaded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Off => f.write_str("off"),
            Self::Beneath(levels) => levels.fmt(f),
            Self::Auto => f.write_str("auto"),
        }
    }
}

impl FromStr for Threaded {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let levels = || text.parse().ok().filter(|levels| *levels <= LEVELS_MAX);
        match text {
            "off" => Ok(Self::Off),
            "auto" => Ok(Self::Auto),
            _ => levels().map(Self::Beneath).ok_or_else(|| Error::Config {
                field: "threaded",
                given: text.to_owned(),
                allowed: "off, auto, or nice levels from 0 to 19",
            }),
        }
    }
}

type Refusal = Box<dyn std::error::Error + Send + Sync>;

/// Settings in force. Dropping them puts the old ones back.
pub(super) struct Settings {
    /// Nobody asks for it; with the lock it may be in a device that threads share.
    _knobs: Option<Mutex<Knobs>>,
    /// It has the knobs instead.
    _polling: Option<Polling>,
    unthreaded: Option<String>,
}

impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Settings").finish_non_exhaustive()
    }
}

impl Settings {
    /// Turns what `config` asks for, if anything, for this queue, or for all. A holdoff that
    /// is refused is an error, and so is a control group that cannot pay; without threads
    /// things go on, and [`Settings::unthreaded`] says why. With [`Threaded::Auto`] somebody must be watched.
    pub(super) fn turn(
        interface: &str,
        ifindex: u32,
        queue: Option<u32>,
        config: &XdpConfig,
        watched: Option<Watched>,
    ) -> Result<Self, Error> {
        let mut settings = Self {
            _knobs: None,
            _polling: None,
            unthreaded: None,
        };
        if config.holdoff.is_none() && config.threaded == Threaded::Off {
            return Ok(settings);
        }
        let refused = |error: Refusal| {
            Error::io(format!("set how {interface} is polled"))(io::Error::other(error))
        };
        let group = config.poll_control_group.as_deref();
        let pays = group.map_or(Ok(()), check_control_group);
        pays.map_err(|error| refused(error.into()))?;
        let opened = Device::open(interface, ifindex).map_err(Refusal::from);
        let opened = opened.and_then(|device| Ok((device, Knobs::open(interface)?)));
        let (device, mut knobs) = match opened {
            Err(error) if config.holdoff.is_none() => {
                settings.unthreaded = Some(with_causes(&refused(error)));
                return Ok(settings);
            }
            opened => opened.map_err(refused)?,
        };
        knobs.allow_any_driver(config.any_driver);
        // A driver that knows no queues apart has settings for all, which are turned for one
        // queue only if there is no other.
        let queue = queue.filter(|_| !matches!(device.receive_queues(), Ok(1)));
        let only = queue.map(|queue| [queue]);
        let queues = only.as_ref().map_or(Queues::All, |only| Queues::Only(only));
        if let Some(holdoff) = config.holdoff {
            let set = knobs.set_holdoff(queues, EMPTY_POLLS, holdoff);
            set.map_err(|error| refused(error.into()))?;
        }
        let threaded = match (config.threaded, watched) {
            (Threaded::Beneath(levels), _) => {
                let threaded = thread(&mut knobs, queues, levels, group);
                settings._knobs = Some(Mutex::new(knobs));
                threaded.map_err(Refusal::from)
            }
            (Threaded::Auto, Some(watched)) => {
                let interface = PolledInterface::new(knobs, queue);
                settings.place(interface, watched)
            }
            _ => {
                settings._knobs = Some(Mutex::new(knobs));
                Ok(())
            }
        };
        let problem = threaded.err();
        settings.unthreaded = problem.map(|error| with_causes(&refused(error)));
        Ok(settings)
    }

    /// Threads were asked for and are not there, for this reason.
    pub(super) fn without_threads(self, why: String) -> Self {
        let unthreaded = Some(why);
        Self { unthreaded, ..self }
    }

    /// The kernel polls in threads of which a thread of ours says where they run.
    fn place(&mut self, mut interface: PolledInterface, watched: Watched) -> Result<(), Refusal> {
        let own = Scheduling::of(0)?;
        if let Err(error) = interface.look(Priority::RealTime, own.cpus(), || ()) {
            self._knobs = Some(Mutex::new(interface.into_knobs()));
            return Err(error.into());
        }
        let nice = beneath(&own, XdpConfig::BENEATH);
        self._polling = Some(Polling::start(interface, watched, nice, own.cpus())?);
        Ok(())
    }

    /// Why the kernel does not poll in threads, if it was to.
    pub(super) fn unthreaded(&self) -> Option<&str> {
        self.unthreaded.as_deref()
    }
}

/// The kernel polls so many levels beneath this thread, if given in a control group that pays.
fn thread(
    knobs: &mut Knobs,
    queues: Queues<'_>,
    levels: u8,
    group: Option<&Path>,
) -> Result<(), TurnError> {
    let own = Scheduling::of(0).map_err(plimsoll_kernel::error::os("ask how this runs"))?;
    let nice = Priority::Short(beneath(&own, levels));
    let polled = match group {
        Some(group) => poll_in_control_group(knobs, queues, nice, Some(own.cpus()), group),
        None => poll_in_threads(knobs, queues, nice, Some(own.cpus())),
    };
    polled.map(drop)
}

/// The nice level so many beneath that of a thread.
fn beneath(own: &Scheduling, levels: u8) -> i8 {
    (own.nice() + i32::from(levels)).min(NICE_MAX) as i8
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_parse_back_from_their_names() {
        for text in ["off", "auto", "0", "19"] {
            assert_eq!(text.parse::<Threaded>().unwrap().to_string(), text);
        }
        for wrong in ["20", "-1", "always", ""] {
            let refused = wrong.parse::<Threaded>().unwrap_err();
            assert!(refused.is_usage(), "{wrong}");
        }
    }
}
