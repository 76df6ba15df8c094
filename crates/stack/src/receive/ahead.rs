//! Idle CPUs work ahead: what waits for a receiving call is processed before it (LRP-34).
//!
//! Druschel & Banga, section 3.3: a receiver that is blocked elsewhere, or busy on another
//! CPU, finds its packets processed. A thread of class `SCHED_IDLE` does it, which the kernel
//! runs where nobody else wants a CPU. It takes frames from sockets' channels and leaves
//! datagrams for the next receiving calls, at most [`AHEAD_MAX`] per socket.
//!
//! **It holds no lock at that priority.** A thread that may never run again would hold it for
//! ever, and a receiver with something to do would wait. So idleness only decides *when* it
//! begins: to work it returns to its usual priority, takes a socket that nobody is receiving
//! from (`try_lock`), works on [`TURN_FRAMES`], and goes back to wait for an idle CPU. A call
//! that comes meanwhile waits as it would for another thread of the program that receives. If
//! the CPU gets busy, others lose the time of one turn.
//!
//! **Whom it looks at.** The receiving thread notes the channels that it puts something on
//! while no call waits for it. Notes may get lost where too many are there: then the receiving
//! call does the work, as ever.
//!
//! **Limits.** Only the paths that leave frames raw on channels, `soft-lrp` and
//! `soft-timer-polling`. It takes `CAP_SYS_NICE`: a thread without it does not get out of
//! `SCHED_IDLE` again.

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU8, Ordering};
use std::sync::{Arc, Weak};

use crossbeam_queue::ArrayQueue;
use parking_lot::Mutex;
use plimsoll_core::demux::ChannelId;
use plimsoll_kernel::scheduling::{Class, Level, set_class};

use crate::error::Error;
use crate::host::Host;
use crate::wait::{self, Waker};

/// Datagrams of a socket that wait processed, beside what its channel holds.
pub(crate) const AHEAD_MAX: usize = 64;
/// Frames of a socket that a turn works on. Two system calls per turn are little beside them,
/// and a receiving call that comes meanwhile waits for some 20 µs of work at most.
pub(crate) const TURN_FRAMES: usize = 16;
/// Channels that are noted at a time.
const NOTES: usize = 256;

/// A socket that somebody else can work for.
pub(crate) trait WorkAhead: Send + Sync + fmt::Debug {
    /// Some frames, unless somebody is receiving. True: there is more to do.
    fn work_ahead(&self, host: &Host) -> bool;
}

/// What the thread shares with those who give it work.
#[derive(Debug)]
pub(crate) struct Ahead {
    notes: Arc<Notes>,
    sockets: Mutex<HashMap<ChannelId, Weak<dyn WorkAhead>>>,
    /// The thread; 0 before it runs.
    thread: AtomicI32,
    usual: AtomicU8,
}

/// Channels that something was put on.
#[derive(Debug)]
pub(crate) struct Notes {
    channels: ArrayQueue<ChannelId>,
    /// The thread was woken, and has not run since.
    told: AtomicBool,
    waker: Waker,
}

impl Notes {
    /// Something was put on the channel, and no call waits for it.
    #[inline]
    pub(crate) fn add(&self, channel: ChannelId) {
        if self.channels.push(channel).is_ok() && !self.told.swap(true, Ordering::AcqRel) {
            self.waker.wake();
        }
    }
}

impl Ahead {
    /// # Errors
    ///
    /// This program may not leave `SCHED_IDLE`. There are no more descriptors.
    pub(crate) fn new() -> Result<Self, Error> {
        if !may_leave_idleness() {
            return Err(Error::NotPermitted {
                action: "work ahead on idle CPUs",
                capability: "CAP_SYS_NICE",
            });
        }
        Ok(Self {
            notes: Arc::new(Notes {
                channels: ArrayQueue::new(NOTES),
                told: AtomicBool::new(false),
                waker: Waker::new().map_err(Error::io("make an event descriptor"))?,
            }),
            sockets: Mutex::default(),
            thread: AtomicI32::new(0),
            usual: AtomicU8::new(0),
        })
    }

    pub(crate) fn notes(&self) -> &Arc<Notes> {
        &self.notes
    }

    /// A socket to work for, until it is dropped.
    pub(crate) fn add(&self, channel: ChannelId, socket: Weak<dyn WorkAhead>) {
        self.sockets.lock().insert(channel, socket);
    }

    pub(crate) fn remove(&self, channel: ChannelId) {
        self.sockets.lock().remove(&channel);
    }

    /// Works where nobody else wants a CPU, until the stack stops.
    pub(crate) fn run(&self, host: &Host) {
        let result = self.work_until_stopped(host);
        self.thread.store(0, Ordering::Release);
        // Receiving calls do the work as without it.
        drop(result);
    }

    fn work_until_stopped(&self, host: &Host) -> io::Result<()> {
        let (this, usual) = (nix::unistd::gettid().as_raw(), Level::of(0)?);
        self.usual.store(usual.number(), Ordering::Relaxed);
        self.thread.store(this, Ordering::Release);
        while !host.is_stopping() {
            // From here on the thread may not run for long, and holds nothing.
            set_class(0, Class::Idle)?;
            if self.notes.channels.is_empty() {
                wait::wait_any([self.notes.waker.as_fd()], None)?;
            }
            usual.give_to(this)?;
            self.turn(host);
        }
        Ok(())
    }

    /// One socket's turn.
    fn turn(&self, host: &Host) {
        self.notes.waker.clear();
        self.notes.told.store(false, Ordering::Release);
        let Some(channel) = self.notes.channels.pop() else {
            return;
        };
        let socket = self.sockets.lock().get(&channel).and_then(Weak::upgrade);
        if socket.is_some_and(|socket| socket.work_ahead(host)) {
            // Without a place for the note the receiving call does the rest.
            let _ = self.notes.channels.push(channel);
        }
    }

    /// The stack stops: the thread is not to wait for an idle CPU.
    pub(crate) fn stop(&self) {
        let thread = self.thread.load(Ordering::Acquire);
        if thread != 0 {
            // If it fails, stopping takes until a CPU is idle.
            let usual = Level::from_number(self.usual.load(Ordering::Relaxed));
            let _ = usual.give_to(thread);
        }
        self.notes.waker.wake();
    }
}

/// Tried by a thread of its own: the caller's priority stays.
fn may_leave_idleness() -> bool {
    let there_and_back = || {
        let usual = Level::of(0)?;
        set_class(0, Class::Idle)?;
        usual.give_to(0)
    };
    let tried = std::thread::scope(|scope| scope.spawn(there_and_back).join());
    tried.is_ok_and(|result| result.is_ok())
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU32;
    use std::time::{Duration, Instant};

    use super::*;
    use crate::config::StackConfig;
    use crate::device::simulated::{SimulatedConfig, SimulatedDevice};
    use crate::stack::Parts;

    /// Looks at the priority that it is worked for at.
    #[derive(Debug, Default)]
    struct Socket {
        turns: AtomicU32,
        at_idle_priority: AtomicU32,
    }

    impl WorkAhead for Socket {
        fn work_ahead(&self, _host: &Host) -> bool {
            let idle = Level::of(0).unwrap() == Level::nice(19);
            self.at_idle_priority
                .fetch_add(idle.into(), Ordering::Relaxed);
            self.turns.fetch_add(1, Ordering::Relaxed) < 5
        }
    }

    /// Locks are taken in turns: none of them at the priority of idleness.
    #[test]
    fn it_waits_at_idle_priority_and_works_at_the_usual_one() {
        let (_cable, device) = SimulatedDevice::pair(&SimulatedConfig::default()).unwrap();
        let config = StackConfig {
            work_ahead: true,
            ..StackConfig::at("10.0.0.2/24".parse().unwrap())
        };
        let stack = Parts::assemble(device, &config).unwrap().stack;
        let (host, socket) = (stack.host(), Arc::new(Socket::default()));
        let ahead = host.ahead.as_ref().unwrap();
        let weak: Weak<Socket> = Arc::downgrade(&socket);
        ahead.add(ChannelId(9), weak);
        std::thread::scope(|scope| {
            scope.spawn(|| ahead.run(host));
            ahead.notes.add(ChannelId(8));
            ahead.notes.add(ChannelId(9));
            let end = Instant::now() + Duration::from_secs(20);
            while socket.turns.load(Ordering::Relaxed) < 6 && Instant::now() < end {
                std::thread::yield_now();
            }
            host.stopping.store(true, Ordering::Relaxed);
            ahead.stop();
        });
        assert_eq!(socket.turns.load(Ordering::Relaxed), 6);
        assert_eq!(socket.at_idle_priority.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn notes_that_find_no_place_are_lost_and_harm_nobody() {
        let ahead = Ahead::new().unwrap();
        for k in 0..NOTES as u32 + 10 {
            ahead.notes.add(ChannelId(k));
        }
        assert_eq!(ahead.notes.channels.len(), NOTES);
    }
}
