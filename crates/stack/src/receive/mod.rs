//! The receive paths: who does which work when a frame has arrived. One file
//! each, with the simulator's names.
//!
//! All of them have one thread per stack, the place of the papers' interrupt
//! handlers and polling thread, and differ in what that thread does with a frame
//! before the application asks for it. With `soft-timer-polling` the application's own
//! calls do that thread's work while no CPU is idle. They share the table (`core::demux` and
//! the channels), which the thread holds for one turn of some frames at a time
//! and then hands to whoever waits for it, so that sockets can be bound and
//! closed also under overload.

pub(crate) mod ahead;
mod credit;
mod eager;
mod early_demux;
pub(crate) mod ni_lrp;
pub(crate) mod polled;
mod soft_lrp;
pub(crate) mod soft_timers;

use std::fmt;
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use plimsoll_core::demux::{Classified, Kind};
use plimsoll_core::time::Instant;
use plimsoll_kernel::scheduling::{Priority, Scheduling};

use self::credit::Credit;
use crate::account::{Account, Owner};
use crate::clock;
use crate::config::{ReceivePath, StackConfig};
use crate::device::{Batch, Frame};
use crate::error::Error;
use crate::host::Host;
use crate::table::{Arrived, Table};
use crate::wait;
use crate::wire::datagram::Input;

/// What a turn leaves to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// There is more to do now.
    Again,
    /// Nothing, until then or until woken; `device`: or until a frame arrives.
    Wait {
        device: bool,
        until: Option<Instant>,
    },
}

/// What a turn works on.
pub(crate) struct Turn<'a> {
    pub(crate) host: &'a Host,
    pub(crate) tally: &'a Arc<Account>,
    pub(crate) batch: &'a mut Batch,
    /// The device's descriptor was found readable.
    pub(crate) arrived: bool,
    pub(crate) now: Instant,
}

/// A receive path.
pub(crate) trait Path: Send + fmt::Debug {
    /// Some bounded work.
    fn turn(&mut self, turn: &mut Turn<'_>) -> io::Result<Next>;

    /// As an interrupt handler's, its work comes before every process.
    fn outranks_processes(&self) -> bool {
        false
    }
}

/// The receiving thread's state. Drives itself by [`run`](Self::run), or is
/// driven turn by turn.
pub(crate) struct Receiver {
    host: Arc<Host>,
    tally: Arc<Account>,
    batch: Batch,
    path: Box<dyn Path>,
    credit: Option<Credit>,
}

impl Receiver {
    pub(crate) fn new(host: &Arc<Host>, config: &StackConfig) -> Result<Self, Error> {
        let frames = config.turn_frames;
        let path: Box<dyn Path> = match &config.path {
            ReceivePath::Eager => Box::new(eager::Eager::new(frames)),
            ReceivePath::EarlyDemux => Box::new(early_demux::EarlyDemux { frames }),
            ReceivePath::SoftLrp => Box::new(soft_lrp::SoftLrp { frames }),
            ReceivePath::NiLrp => Box::new(ni_lrp::rest(frames)),
            ReceivePath::SoftTimerPolling(_) => Box::new(soft_timers::SoftTimerPolling {
                interrupts: soft_lrp::SoftLrp { frames },
            }),
            ReceivePath::Polled(polled) => {
                Box::new(polled::Polled::new(polled, config, clock::now())?)
            }
        };
        let credit = config.credit.as_ref();
        let credit = credit.map(|credit| Credit::new(credit, host));
        Ok(Self {
            host: Arc::clone(host),
            tally: host.book.open(Owner::Demultiplexer),
            batch: Batch::with_capacity(frames.max(64)),
            path,
            credit: credit.transpose()?,
        })
    }

    /// One turn; `arrived`: the device was found readable.
    pub(crate) fn turn(&mut self, arrived: bool) -> io::Result<Next> {
        let _work = self.tally.work();
        let now = clock::now();
        let next = self.path.turn(&mut Turn {
            host: &self.host,
            tally: &self.tally,
            batch: &mut self.batch,
            arrived,
            now,
        });
        if let Some(credit) = &mut self.credit {
            credit.on_turn(&self.host, &self.tally, now);
        }
        next
    }

    /// Receives until the stack stops, or its device fails.
    pub(crate) fn run(mut self) {
        let first = self.path.outranks_processes() && outrank_processes().is_ok();
        if !first {
            run_soon_after_waking();
        }
        let result = self.receive_until_stopped();
        if let Err(error) = result {
            self.host.fail(&error);
        }
    }

    fn receive_until_stopped(&mut self) -> io::Result<()> {
        let host = Arc::clone(&self.host);
        let mut arrived = false;
        while !host.is_stopping() {
            let Next::Wait { device, until } = self.turn(arrived)? else {
                arrived = false;
                continue;
            };
            let tended = host.device.tend()?;
            let limit = until.map(|until| until.saturating_since(clock::now()));
            let limit = limit.into_iter().chain(tended).min();
            let attention = host.attention.as_fd();
            let (woken, readable) = if device {
                let [woken, readable] =
                    wait::wait_any([attention, host.device.readiness()], limit)?;
                (woken, readable)
            } else {
                (wait::wait_any([attention], limit)?[0], false)
            };
            if woken {
                host.attention.clear();
            }
            arrived = readable;
        }
        Ok(())
    }
}

/// This thread gets the CPU whenever it wants it, but for a hundredth. It takes `CAP_SYS_NICE`.
fn outrank_processes() -> io::Result<()> {
    let this = nix::unistd::gettid().as_raw();
    let highest = Scheduling::of(this)?.with_priority(Priority::Short(NICE_MIN));
    highest.give_to(this).map(|_| ())
}

/// The nice level that runs first.
const NICE_MIN: i8 = -20;

/// This thread stands for an interrupt handler: what it does is short, and cannot wait
/// until an application has used up its slice. The ring would overflow meanwhile.
fn run_soon_after_waking() {
    let this = nix::unistd::gettid().as_raw();
    // A kernel that refuses leaves it as it was.
    let _ = Scheduling::of(this).and_then(|found| found.with_slice(SLICE).give_to(this));
}

/// The shortest that the scheduler takes (`__setparam_fair`).
const SLICE: Duration = Duration::from_micros(100);

/// Waits for the device alone.
const WAIT_FOR_DEVICE: Next = Next::Wait {
    device: true,
    until: None,
};

/// Protocol processing at once, for a frame that was admitted: UDP is carried
/// up to its socket's channel. Everything else is the proxies' or TCP's, who
/// have threads of their own, and their channels inhibit nothing. Returns how
/// many items a UDP socket's channel holds then.
fn process_and_push(
    turn: &Turn<'_>,
    table: &mut Table,
    frame: Frame,
    to: &Classified,
) -> Option<usize> {
    let early = to.earlier_fragments;
    if !matches!(to.kind, Kind::UdpSocket | Kind::Multicast) {
        let item = Arrived::Raw { frame, early };
        table.push(to.channel, item, turn.tally, turn.now);
        return None;
    }
    let account = table.account(to.channel);
    let _work = account.and_then(|account| account.work_instead_of(turn.tally));
    match turn.host.udp_input(frame, early, turn.now) {
        Input::Datagram(datagram) => {
            let item = Arrived::Ready(datagram);
            Some(table.push(to.channel, item, turn.tally, turn.now))
        }
        Input::Kept => None,
        Input::Ended(outcome) => {
            turn.tally.count(outcome);
            None
        }
    }
}
