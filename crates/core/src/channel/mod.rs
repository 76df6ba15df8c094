//! The bounded queue between early demultiplexing and one consumer.
//!
//! Intuition: the packet is put where it belongs before any other work is
//! done on it, and what does not fit is discarded right there, at the price of
//! a comparison. A consumer that falls behind loses its own packets and nobody
//! else's, and costs the host next to nothing while it does (Druschel & Banga
//! 1996, sections 3 and 3.1 to 3.3).
//!
//! * One producer (the demultiplexer), one consumer (the receiver), each its
//!   own half, usable from two threads without a lock. The ring itself is
//!   [`rtrb`]; what is decided around it is ours.
//! * **Early discard** (LRP-12, LRP-18): from the high watermark on, arrivals
//!   are discarded until the consumer has brought the queue down to the low
//!   watermark. The paper's plain rule, discard when full, is
//!   [`ChannelConfig::drop_tail`].
//! * **Interrupt wanted** (LRP-31, LRP-32): a burst of pushes asks for an
//!   interrupt only if the queue was empty and the receiver asked for one.
//! * **Free buffers** (LRP-20): optionally a channel may hold only so many
//!   buffers, counting those which the receiver took and has not returned. So
//!   a receiver that hoards buffers cannot empty the pool for its neighbours.
//!   The paper's second queue becomes a count: buffers move by ownership.
//! * **Delay target**: optionally the consumer discards what queued too long,
//!   in the manner of `CoDel` (RFC 8289). Discarding when full bounds loss, not
//!   delay. `CoDel` steers senders that respond to loss; against a flood that
//!   does not, the high watermark is the only bound.
//! * **Counters by cause**: every item ends in exactly one [`Outcome`], also
//!   when either side closes with items queued.
//! * **Bounded number** (LRP-43, LRP-44): [`ChannelPool`] holds a fixed number
//!   of channels. A channel whose halves are dropped comes home by itself,
//!   which is how one is released on entering `TIME_WAIT` (LRP-42).
//!
//! Covered: LRP-10, LRP-12, LRP-18, LRP-20, LRP-31, LRP-32 (which packet, or
//! wait), LRP-42 to LRP-44 (the channel's side of them). Which packet goes to
//! which channel (LRP-11, LRP-21 to LRP-23) is the demultiplexer's decision;
//! idle-time processing (LRP-34) is the scheduler's.
//!
//! When it loses: the wake-up handshake costs a read-modify-write that waits for
//! the pushed item to become visible, tens of ns if the receiver is on another
//! CPU; a receiver that polls anyway does not need it, and a demultiplexer that
//! is called for single packets pays it for each. Against packets that all fit a
//! channel does nothing.
//!
//! Departures: the interrupt is decided once per burst instead of per packet,
//! for the reason just given; two watermarks instead of "full", because a queue that hovers at
//! full admits single packets of every burst and so favours nobody; the delay
//! target and the buffer count, for the reasons above.

mod codel;
mod outcome;
mod pool;
mod queue;
mod shared;

pub use codel::DelayTarget;
pub use outcome::{Counts, Discard, Outcome};
pub use pool::{ChannelPool, Lent, PooledConsumer, PooledProducer};
pub use queue::{
    Admission, Arrival, ChannelConfig, Consumer, InterruptRequest, Monitor, Producer, channel,
};
