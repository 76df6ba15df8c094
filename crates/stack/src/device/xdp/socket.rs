//! A queue's shared memory and rings, and the sockets on it.
//!
//! All sockets of one queue share the UMEM, and with it ONE fill and ONE
//! completion ring, which therefore have a lock. Receive and transmit rings are
//! each socket's own. Chunks are lent by the fill ring, at most as many as the
//! receive-buffer credit of `core::holdoff` says, if there is one.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicI64, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::sleep;
use std::time::{Duration, Instant};

use libc::xdp_desc;
use parking_lot::Mutex;
use plimsoll_core::driver::RingMemory;

use super::completions::Completions;
use super::reserve::Reserve;
use super::ring::{Incoming, Outgoing, Shared};
use super::room::Room;
use super::{BusyPoll, CopyMode, XdpConfig, sys};
use crate::clock;
use crate::device::pool::Lent;
use crate::device::{Batch, Capabilities, Device, Drops, PRESENCE_LOOK, Pool, gone};

/// Frames that one system call sends at most, in copy mode (`TX_BATCH_SIZE`).
const KICKS_MAX: usize = 64;
/// Chunks that are lent together.
const REFILL_BATCH: usize = 64;

/// What the kernel has beside the bytes of a frame that it copied.
const COPY_BYTES: usize = 256;

/// Frames that wait in the ring before the kernel is told although more are to come: it sends so
/// many at a time.
const TELL_AT: u32 = 32;

/// How soon it is tried again to lend chunks, while the kernel has nearly none to receive into,
/// and to send what it did not take. (What another thread leaves after a look is found by the
/// next one, within [`PRESENCE_LOOK`].)
const AGAIN: Duration = Duration::from_millis(10);

/// How long the queue of a closed socket is waited for.
const GIVEN_BACK_LIMIT: Duration = Duration::from_millis(500);
const GIVEN_BACK_LOOK: Duration = Duration::from_millis(5);

/// What all sockets of one interface's queue share.
#[derive(Debug)]
pub(super) struct Queue {
    pool: Arc<Pool>,
    ifindex: u32,
    config: XdpConfig,
    capabilities: Capabilities,
    fill: Mutex<Outgoing<u64>>,
    completions: Completions,
    /// Chunks that are lent at most, and those that are: in the fill ring or a receive ring.
    credit: AtomicU32,
    lent: AtomicI64,
    /// What the driver keeps of the chunks, where nothing is copied and a program is told.
    reserve: OnceLock<Reserve>,
    /// When to look next whether the interface is there, in nanoseconds.
    presence_look_at: AtomicU64,
    /// The first socket's descriptor, which UMEM and both rings belong to.
    first: OwnedFd,
}

/// A socket on a queue.
#[derive(Debug)]
pub struct Socket {
    /// `None`: the queue's first.
    own: Option<OwnedFd>,
    receive: Mutex<Receiving>,
    transmit: Mutex<Outgoing<xdp_desc>>,
    invalid: AtomicU64,
    /// Nothing is known before frames have arrived: until 6.13 the kernel learns from
    /// them what there is to poll. Then whether polling does anything.
    pollable: OnceLock<bool>,
    /// Whoever steers wants to know how much more the receive ring can take.
    room: Option<Room>,
    queue: Arc<Queue>,
}

/// A receive ring, and what is known of its frames.
#[derive(Debug)]
struct Receiving {
    ring: Incoming<xdp_desc>,
    taken: i64,
    /// Frames that the program gave and that did not get here.
    lost: i64,
}

impl Receiving {
    const fn of(ring: Incoming<xdp_desc>) -> Mutex<Self> {
        Mutex::new(Self {
            ring,
            taken: 0,
            lost: 0,
        })
    }

    /// Tells of room after so many frames were taken.
    fn tell(&mut self, room: &Room, reserve: Option<&Reserve>, taken: i64) {
        // The count before the ring, as for the room.
        let given = room.given();
        room.tell(|| self.ring.room());
        self.taken += taken;
        if let Some(reserve) = reserve {
            let waiting = self.ring.memory().length() - self.ring.room();
            let lost = given.cast_signed() - self.taken - i64::from(waiting);
            reserve.on_taken(taken, lost - self.lost);
            self.lost = lost;
        }
    }
}

impl Socket {
    /// The first socket of a queue, with a UMEM of its own.
    pub(super) fn first(
        ifindex: u32,
        config: &XdpConfig,
        capabilities: Capabilities,
        chunk_bytes: usize,
    ) -> io::Result<Self> {
        let pool = Pool::new(config.chunks, chunk_bytes)?;
        let socket = sys::socket()?;
        sys::register_umem(&socket, pool.memory(), chunk_bytes)?;
        Self::of_queue(socket, ifindex, config, capabilities, pool, None)
    }

    /// The first socket of a queue that shares the UMEM of `other`, which may be of
    /// another interface. It has a fill and a completion ring of its own.
    pub(super) fn first_beside(
        other: &Queue,
        ifindex: u32,
        config: &XdpConfig,
        capabilities: Capabilities,
    ) -> io::Result<Self> {
        let (socket, pool) = (sys::socket()?, Arc::clone(&other.pool));
        let umem_of = Some(&other.first);
        Self::of_queue(socket, ifindex, config, capabilities, pool, umem_of)
    }

    fn of_queue(
        socket: OwnedFd,
        ifindex: u32,
        config: &XdpConfig,
        capabilities: Capabilities,
        pool: Arc<Pool>,
        umem_of: Option<&OwnedFd>,
    ) -> io::Result<Self> {
        let completion_ring = (pool.chunks() as u32).next_power_of_two();
        let fill_ring = config.fill_frames.unwrap_or(completion_ring);
        sys::make_ring(&socket, libc::XDP_UMEM_FILL_RING, fill_ring)?;
        sys::make_ring(&socket, libc::XDP_UMEM_COMPLETION_RING, completion_ring)?;
        let (receive, transmit) = own_rings(&socket, config, pool.chunk_bytes())?;
        let offsets = sys::offsets(&socket)?;
        let fill_at = libc::XDP_UMEM_PGOFF_FILL_RING;
        let completion_at = libc::XDP_UMEM_PGOFF_COMPLETION_RING;
        let fill = Shared::map(&socket, fill_at, offsets.fr, fill_ring)?;
        let completion = Shared::map(&socket, completion_at, offsets.cr, completion_ring)?;
        let mut queue = Queue {
            fill: Mutex::new(Outgoing::new(fill)),
            completions: Completions::new(Incoming::new(completion)),
            credit: AtomicU32::new(u32::MAX),
            lent: AtomicI64::new(0),
            reserve: OnceLock::new(),
            presence_look_at: AtomicU64::new(0),
            pool,
            ifindex,
            config: config.clone(),
            capabilities,
            first: socket,
        };
        // Some drivers leak without buffers in the fill ring, even to send only.
        queue.refill();
        bind_first(&queue.first, ifindex, config, umem_of)?;
        queue.capabilities.zero_copy = sys::is_zero_copy(&queue.first)?;
        apply_busy_poll(&queue.first, config.busy_poll)?;
        Ok(Self {
            own: None,
            receive: Receiving::of(receive),
            transmit: Mutex::new(transmit),
            invalid: AtomicU64::new(0),
            pollable: OnceLock::new(),
            room: None,
            queue: Arc::new(queue),
        })
    }

    /// Another socket on the same queue and UMEM.
    pub(super) fn sharing(queue: &Arc<Queue>) -> io::Result<Self> {
        let socket = sys::socket()?;
        let (receive, transmit) = own_rings(&socket, &queue.config, queue.pool.chunk_bytes())?;
        let umem_of = Some(&queue.first);
        let bound = sys::bind(&socket, queue.ifindex, queue.config.queue, 0, umem_of);
        bound.map_err(
            |error| match sys::are_of_one_namespace(&socket, &queue.first) {
                true => error,
                false => is_elsewhere(),
            },
        )?;
        apply_busy_poll(&socket, queue.config.busy_poll)?;
        Ok(Self {
            own: Some(socket),
            receive: Receiving::of(receive),
            transmit: Mutex::new(transmit),
            invalid: AtomicU64::new(0),
            pollable: OnceLock::new(),
            room: None,
            queue: Arc::clone(queue),
        })
    }

    /// The program is told of room in the receive ring from now on.
    pub(super) fn telling(self, room: Room) -> Self {
        room.tell(|| self.receive.lock().ring.room());
        let room = Some(room);
        Self { room, ..self }
    }

    pub(super) fn queue(&self) -> &Arc<Queue> {
        &self.queue
    }

    pub(super) fn descriptor(&self) -> &OwnedFd {
        self.own.as_ref().unwrap_or(&self.queue.first)
    }

    pub(super) fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor().as_fd()
    }

    /// Puts frames in the ring, and tells the kernel if so many wait there, or others have no room.
    fn put(&self, batch: &mut Batch, tell_at: u32) -> io::Result<usize> {
        let now = clock::now();
        self.queue.completions.reclaim(&self.queue.pool, now);
        let mut ring = self.transmit.lock();
        let sent = batch.len().min(ring.room() as usize);
        self.queue.completions.on_lent(sent, now);
        for frame in batch.drain(..sent) {
            let (addr, len) = frame.lend();
            let options = 0;
            ring.put(xdp_desc { addr, len, options });
        }
        ring.publish();
        // Also of what an earlier call could not send: nobody else would come back to it.
        let has_enough = ring.queued() >= tell_at || !batch.is_empty() && ring.queued() > 0;
        let tell = has_enough && ring.memory().needs_wakeup();
        // Others may put frames in the ring while the kernel sends.
        drop(ring);
        if tell {
            self.kick()?;
        }
        Ok(sent)
    }

    /// In copy mode the kernel sends inside of this call, a batch at a time.
    fn kick(&self) -> io::Result<()> {
        for _ in 0..KICKS_MAX {
            match sys::kick_transmit(self.descriptor()) {
                Ok(()) => return Ok(()),
                Err(error) => match error.raw_os_error() {
                    // There is more to send.
                    Some(libc::EAGAIN) => {}
                    // Later: the device is busy, memory is short, or the interface is down.
                    Some(libc::EBUSY | libc::ENOBUFS | libc::ENOMEM | libc::ENETDOWN) => {
                        return Ok(());
                    }
                    Some(libc::ENXIO) => return Err(gone()),
                    _ => return Err(error),
                },
            }
        }
        Ok(())
    }

    /// Tells the kernel of frames that are left in the transmit ring. Whether some may be still.
    pub(super) fn has_unsent(&self) -> bool {
        // Whoever holds the lock puts frames there, and the kernel may leave some.
        let Some(ring) = self.transmit.try_lock() else {
            return true;
        };
        if ring.queued() > 0 && ring.memory().needs_wakeup() {
            // It is no failure of the device before that shows elsewhere.
            let _ = self.kick();
        }
        ring.queued() > 0
    }

    /// Whether some may leave soon: of an interface that is down nobody knows when, and of one
    /// that is gone never.
    pub(super) fn is_sending(&self) -> bool {
        let can_send = || {
            let refused = sys::kick_transmit(self.descriptor()).err();
            let refused = refused.and_then(|error| error.raw_os_error());
            !matches!(refused, Some(libc::ENETDOWN | libc::ENXIO))
        };
        self.has_unsent() && can_send()
    }

    /// Takes back what the kernel has received and nobody will read; how many frames these are. To
    /// be called when the XDP program no longer knows the socket. What is just being delivered is
    /// awaited with [`sys::wait_for_deliveries`].
    pub(super) fn take_unread(&self) -> u64 {
        let (mut unread, mut all) = (Batch::new(), 0);
        while let Ok(taken @ 1..) = self.receive(&mut unread, 64) {
            all += taken as u64;
            unread.clear();
        }
        all
    }
}

/// Without an endpoint: whoever has the program steers.
impl Device for Socket {
    fn capabilities(&self) -> Capabilities {
        self.queue.capabilities
    }

    fn pool(&self) -> &Arc<Pool> {
        &self.queue.pool
    }

    fn receive(&self, batch: &mut Batch, max: usize) -> io::Result<usize> {
        // A system call that polls nothing would only cost.
        let busy_poll = self.queue.config.busy_poll.is_some();
        if busy_poll && *self.pollable.get().unwrap_or(&true) {
            sys::kick_receive(self.descriptor());
        }
        let before = batch.len();
        let mut entries = 0;
        let mut receiving = self.receive.lock();
        for _ in 0..max {
            let Some(entry) = receiving.ring.take() else {
                break;
            };
            entries += 1;
            // Any option is a frame of several buffers, which was not asked for.
            let frame = (entry.options == 0)
                .then(|| self.pool().take_back(Lent::Receive, entry.addr, entry.len))
                .flatten();
            if let Some(frame) = frame {
                batch.push_back(frame);
            } else {
                self.invalid.fetch_add(1, Ordering::Relaxed);
            }
        }
        receiving.ring.release();
        if let Some(room) = &self.room {
            receiving.tell(room, self.queue.reserve.get(), entries);
        }
        drop(receiving);
        self.queue.lent.fetch_sub(entries, Ordering::Relaxed);
        self.queue.refill();
        let received = batch.len() - before;
        if busy_poll && received > 0 {
            self.pollable
                .get_or_init(|| sys::is_pollable(self.descriptor()));
        }
        Ok(received)
    }

    fn transmit(&self, batch: &mut Batch) -> io::Result<usize> {
        self.put(batch, 1)
    }

    fn enqueue(&self, batch: &mut Batch) -> io::Result<usize> {
        self.put(batch, TELL_AT)
    }

    fn readiness(&self) -> BorrowedFd<'_> {
        self.as_fd()
    }

    fn tend(&self) -> io::Result<Option<Duration>> {
        let presence = self.queue.look_for_interface()?;
        let is_short = self.queue.is_short();
        if is_short {
            // Chunks come back from channels without a call of anybody here.
            self.queue.refill();
        }
        let unfinished = self.has_unsent() || is_short;
        let look = self.queue.completions.look(&self.queue.pool, clock::now());
        if look.wake_driver {
            // As in `has_unsent`.
            let _ = self.kick();
        }
        let again = unfinished.then_some(AGAIN);
        let next = again.into_iter().chain(look.next).min();
        Ok(Some(next.map_or(presence, |next| next.min(presence))))
    }

    /// Of all sockets of the queue, which have one completion ring.
    fn unsent(&self) -> u64 {
        self.queue.completions.given_up()
    }

    fn drops(&self) -> Drops {
        let invalid = self.invalid.load(Ordering::Relaxed);
        let mut early = self.room.as_ref().map_or(0, Room::refused);
        if self.own.is_none() {
            early += self.queue.reserve.get().map_or(0, Reserve::refused);
        }
        // Without an answer only what was counted here is known.
        let kernel = sys::statistics(self.descriptor()).ok();
        kernel.map_or(
            Drops {
                early,
                invalid,
                ..Drops::default()
            },
            |kernel| Drops {
                ring_full: kernel.rx_ring_full,
                early,
                no_buffer: kernel.rx_dropped,
                invalid: kernel.rx_invalid_descs + invalid,
                ..Drops::default()
            },
        )
    }
}

/// A socket is of the namespace that its thread is in, and the kernel says only that something is wrong.
fn is_elsewhere() -> io::Error {
    let why = "this thread is in another network namespace than the interface: bind sockets on a thread of \
        the one where the device was opened";
    io::Error::new(io::ErrorKind::InvalidInput, why)
}

fn own_rings(
    socket: &OwnedFd,
    config: &XdpConfig,
    chunk_bytes: usize,
) -> io::Result<(Incoming<xdp_desc>, Outgoing<xdp_desc>)> {
    sys::make_ring(socket, libc::XDP_RX_RING, config.ring_frames)?;
    sys::make_ring(socket, libc::XDP_TX_RING, config.ring_frames)?;
    // With copies each frame on its way is charged to the socket, and beyond its limit the rest
    // would wait in the ring, although it counts as sent.
    let frame_bytes = chunk_bytes + COPY_BYTES;
    sys::allow_sending(socket, config.ring_frames as usize * frame_bytes);
    let offsets = sys::offsets(socket)?;
    let receive_at = libc::XDP_PGOFF_RX_RING.cast_unsigned();
    let transmit_at = libc::XDP_PGOFF_TX_RING.cast_unsigned();
    let receive = Shared::map(socket, receive_at, offsets.rx, config.ring_frames)?;
    let transmit = Shared::map(socket, transmit_at, offsets.tx, config.ring_frames)?;
    Ok((Incoming::new(receive), Outgoing::new(transmit)))
}

fn apply_busy_poll(socket: &OwnedFd, busy_poll: Option<BusyPoll>) -> io::Result<()> {
    busy_poll.map_or(Ok(()), |poll| {
        sys::busy_poll(socket, poll.micros, poll.budget)
    })
}

impl XdpConfig {
    fn bind_flags(&self) -> u16 {
        let copy = match self.copy {
            CopyMode::KernelChooses => 0,
            CopyMode::Copy => libc::XDP_COPY,
            CopyMode::ZeroCopy => libc::XDP_ZEROCOPY,
        };
        copy | libc::XDP_USE_NEED_WAKEUP
    }
}

impl Queue {
    /// Lends free chunks for receiving, but for some that sending needs, and wakes a driver
    /// that waits for them.
    fn refill(&self) {
        // Whoever holds the lock refills for all.
        let Some(mut fill) = self.fill.try_lock() else {
            return;
        };
        let spare = self
            .pool
            .available()
            .saturating_sub(self.config.send_frames);
        let count = spare.min(fill.room() as usize).min(self.unused_credit());
        // A few at a time cost as much as many, but the ring must not run dry.
        if count >= REFILL_BATCH || (fill.queued() as usize) < REFILL_BATCH {
            self.lend(&mut fill, count);
        }
        if fill.memory().needs_wakeup() {
            sys::kick_receive(&self.first);
        }
    }

    /// The kernel has nearly nothing to receive into, and more will be lent as soon as it is free.
    fn is_short(&self) -> bool {
        let Some(fill) = self.fill.try_lock() else {
            // What its holder does not know of may have become free meanwhile.
            return true;
        };
        let ours = self.pool.chunks().saturating_sub(self.config.send_frames);
        let all = ours.min(fill.memory().length() as usize);
        let enough = REFILL_BATCH.min(all.div_ceil(2));
        // Without copies the driver takes all that are in the ring, and has them for itself.
        let lent = self.lent.load(Ordering::Relaxed);
        let is_drivers = self.capabilities.zero_copy && lent >= all as i64;
        (fill.queued() as usize) < enough && self.unused_credit() > 0 && !is_drivers
    }

    /// Asks the kernel, if that is due, and returns when it is again.
    fn look_for_interface(&self) -> io::Result<Duration> {
        let now = clock::now().as_nanos();
        let left = self.presence_look_at.load(Ordering::Relaxed);
        if let Some(left @ 1..) = left.checked_sub(now) {
            return Ok(Duration::from_nanos(left));
        }
        if !sys::kick_receive(&self.first) {
            return Err(gone());
        }
        let next = now + PRESENCE_LOOK.as_nanos() as u64;
        self.presence_look_at.store(next, Ordering::Relaxed);
        Ok(PRESENCE_LOOK)
    }

    /// Lends `count` free chunks, or as many as there are.
    fn lend(&self, fill: &mut Outgoing<u64>, count: usize) {
        let mut lent = 0;
        for _ in 0..count {
            let Some(offset) = self.pool.lend_empty() else {
                break;
            };
            fill.put(offset);
            lent += 1;
        }
        self.lent.fetch_add(lent, Ordering::Relaxed);
        fill.publish();
        if let Some(reserve) = self.reserve.get() {
            reserve.on_lent(lent);
        }
    }

    /// The receive queue's number.
    pub(super) const fn number(&self) -> u32 {
        self.config.queue
    }

    /// The XDP program leaves the driver a reserve from now on. To be called before it knows
    /// a socket of this queue.
    pub(super) fn keep_reserve(&self, room: Room) {
        let lent = self.lent.load(Ordering::Relaxed);
        // There is one already if this was called before.
        let _ = self.reserve.set(Reserve::new(room, lent));
    }

    pub(super) fn set_credit(&self, chunks: u32) {
        match self.reserve.get() {
            Some(reserve) => reserve.set_credit(chunks),
            None => self.credit.store(chunks, Ordering::Relaxed),
        }
    }

    /// Chunks that may be lent now.
    fn unused_credit(&self) -> usize {
        let credit = i64::from(self.credit.load(Ordering::Relaxed));
        let unused = credit - self.lent.load(Ordering::Relaxed);
        usize::try_from(unused).unwrap_or(0)
    }
}

/// Binds the first socket of a queue. The kernel gives the queue of a closed socket back
/// a moment after the close, so a program that starts anew may find it taken.
fn bind_first(
    socket: &OwnedFd,
    ifindex: u32,
    config: &XdpConfig,
    umem_of: Option<&OwnedFd>,
) -> io::Result<()> {
    let end = Instant::now() + GIVEN_BACK_LIMIT;
    loop {
        match sys::bind(socket, ifindex, config.queue, config.bind_flags(), umem_of) {
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) && Instant::now() < end => {
                sleep(GIVEN_BACK_LOOK);
            }
            bound => return bound,
        }
    }
}
