//! What the table keeps of a channel, and what its receiver has.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};

use crossbeam_queue::ArrayQueue;
use plimsoll_core::channel::{self, Monitor, PooledConsumer, PooledProducer};
use plimsoll_core::demux::ChannelId;

use crate::account::Account;
use crate::device::Frame;
use crate::outcome::Counts;
use crate::tcp::Urgency;
use crate::wait::Waker;
use crate::wire::datagram::Datagram;

/// What stands in a channel.
#[derive(Debug)]
pub(crate) enum Arrived {
    /// As it came: the receiver does the protocol processing.
    Raw {
        frame: Frame,
        /// Fragments of its datagram came before it.
        early: bool,
    },
    /// Processed already (receive paths that are not lazy).
    Ready(Datagram),
}

impl Arrived {
    /// The frame as it came.
    pub(crate) fn into_frame(self) -> Option<Frame> {
        match self {
            Self::Raw { frame, .. } => Some(frame),
            Self::Ready(_) => None,
        }
    }
}

/// A bound endpoint's half.
#[derive(Debug)]
pub(crate) struct Bound {
    pub(crate) channel: ChannelId,
    pub(crate) consumer: PooledConsumer<Arrived>,
    /// Woken when something came after the consumer had asked for it.
    pub(crate) waker: Arc<Waker>,
    /// Set while the channel inhibits input: who takes from it tells the
    /// receiving thread once there is room.
    pub(crate) inhibiting: Arc<AtomicBool>,
    pub(crate) trouble: Arc<Pending>,
}

/// An error that the network told of, until a call of the socket returns it.
#[derive(Debug, Default)]
pub(crate) struct Pending(AtomicI32);

impl Pending {
    pub(super) fn set(&self, errno: i32) {
        self.0.store(errno, Ordering::Release);
    }

    /// The next call returns an error.
    pub(crate) fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed) != 0
    }

    /// Each error is returned once.
    #[inline]
    pub(crate) fn take(&self) -> io::Result<()> {
        if self.0.load(Ordering::Relaxed) == 0 {
            return Ok(());
        }
        match self.0.swap(0, Ordering::Acquire) {
            0 => Ok(()),
            errno => Err(io::Error::from_raw_os_error(errno)),
        }
    }
}

#[derive(Debug)]
pub(super) struct Slot {
    pub(super) producer: PooledProducer<Arrived>,
    pub(super) waker: Arc<Waker>,
    pub(super) inhibiting: Arc<AtomicBool>,
    pub(super) trouble: Arc<Pending>,
    pub(super) touched: bool,
    /// A listener's: of SYNs beyond the backlog, those of known sources may pass.
    pub(super) takes_known: bool,
    /// Whose receiver is the TCP thread.
    pub(super) tcp: bool,
    /// None: the stack's own.
    pub(super) account: Option<Arc<Account>>,
    /// What became of the channel's frames, also in former lives, and of those until this one.
    pub(super) monitor: Monitor,
    pub(super) before: channel::Counts,
}

impl Slot {
    pub(super) fn counts(&self) -> Counts {
        Counts::of_channel(&self.monitor.counts(), &self.before)
    }
}

/// Channels whose receiver is the TCP thread and must be told which of them has
/// something.
#[derive(Debug)]
pub(crate) struct Ready {
    channels: ArrayQueue<ChannelId>,
    /// By channel: it is in `channels`. So there is room for each, however many reasons it has.
    waits: Box<[AtomicBool]>,
    pub(crate) waker: Arc<Waker>,
    /// The level of the thread that looks at them.
    pub(crate) urgency: Urgency,
}

impl Ready {
    pub(super) fn new(channels: usize) -> io::Result<Self> {
        Ok(Self {
            channels: ArrayQueue::new(channels),
            waits: (0..channels).map(|_| AtomicBool::new(false)).collect(),
            urgency: Urgency::new(channels),
            waker: Arc::new(Waker::new()?),
        })
    }

    /// The TCP thread is to look at the channel.
    pub(crate) fn push(&self, channel: ChannelId) {
        // If it waits already, whoever takes it off sees what was done before this.
        if !self.waits[channel.0 as usize].swap(true, Ordering::AcqRel) {
            let _ = self.channels.push(channel);
        }
        self.wake_for(channel);
    }

    /// The TCP thread is to work for the channel's owner soon, at that owner's priority.
    pub(crate) fn wake_for(&self, channel: ChannelId) {
        self.urgency.raise(channel);
        self.waker.wake();
    }

    pub(crate) fn pop(&self) -> Option<ChannelId> {
        let channel = self.channels.pop()?;
        // Before it is looked at, and not by a store, which what is looked at could overtake.
        self.waits[channel.0 as usize].swap(false, Ordering::AcqRel);
        Some(channel)
    }

    pub(crate) fn len(&self) -> usize {
        self.channels.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.channels.is_empty()
    }
}
