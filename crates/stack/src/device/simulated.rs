//! A cable in this process: two devices, each the other's peer.
//!
//! A frame is copied into the receiver's pool, as an adapter does by DMA, and
//! dropped there if the receive ring is full or no buffer is free. No
//! privileges are needed.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crossbeam_queue::ArrayQueue;
use nix::sys::eventfd::{EfdFlags, EventFd};
use parking_lot::Mutex;

use super::{Batch, Capabilities, Device, Drops, Frame, Mac, Pool};

/// How the cable and its two ends are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SimulatedConfig {
    /// Frames that a receive ring holds.
    pub ring_frames: usize,
    /// Chunks of each end's pool.
    pub chunks: usize,
    /// Longest IP packet, in bytes.
    pub mtu: usize,
    /// The addresses are those of the ends alone; not so where the kernel has them as well.
    pub owns_address: bool,
    /// Transport checksums count as right and are not looked at, as behind an adapter that checks them.
    pub trust_checksums: bool,
}

impl Default for SimulatedConfig {
    /// As veth: a ring of 256 and an MTU of 1500.
    fn default() -> Self {
        Self {
            ring_frames: 256,
            chunks: 4096,
            mtu: 1500,
            owns_address: true,
            trust_checksums: false,
        }
    }
}

/// One end of the cable.
#[derive(Debug)]
pub struct SimulatedDevice {
    mac: Mac,
    config: SimulatedConfig,
    pool: Arc<Pool>,
    inbound: Arc<Direction>,
    outbound: Arc<Direction>,
    /// What waits to be sent with others.
    waiting: Mutex<Batch>,
}

/// Frames on their way to one end.
#[derive(Debug)]
struct Direction {
    ring: ArrayQueue<Frame>,
    /// The receiver's.
    pool: Arc<Pool>,
    arrived: EventFd,
    ring_full: AtomicU64,
    no_buffer: AtomicU64,
    invalid: AtomicU64,
}

impl SimulatedDevice {
    /// Two ends with the addresses `02:00:00:00:00:01` and `…:02`.
    ///
    /// # Errors
    ///
    /// No memory, or no descriptors.
    pub fn pair(config: &SimulatedConfig) -> io::Result<(Self, Self)> {
        let (to_first, to_second) = (Direction::new(config)?, Direction::new(config)?);
        let end = |number, inbound: &Arc<Direction>, outbound: &Arc<Direction>| Self {
            mac: [2, 0, 0, 0, 0, number],
            config: *config,
            pool: Arc::clone(&inbound.pool),
            inbound: Arc::clone(inbound),
            outbound: Arc::clone(outbound),
            waiting: Mutex::default(),
        };
        Ok((end(1, &to_first, &to_second), end(2, &to_second, &to_first)))
    }

    /// Sends one frame of these bytes. False: it was dropped.
    pub fn send(&self, bytes: &[u8]) -> bool {
        self.outbound.deliver(bytes)
    }
}

impl Direction {
    fn new(config: &SimulatedConfig) -> io::Result<Arc<Self>> {
        let flags = EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC;
        Ok(Arc::new(Self {
            ring: ArrayQueue::new(config.ring_frames),
            pool: Pool::new(config.chunks, chunk_bytes_for(config.mtu))?,
            arrived: EventFd::from_value_and_flags(0, flags)?,
            ring_full: AtomicU64::new(0),
            no_buffer: AtomicU64::new(0),
            invalid: AtomicU64::new(0),
        }))
    }

    fn deliver(&self, bytes: &[u8]) -> bool {
        let Some(mut frame) = self.pool.take() else {
            self.no_buffer.fetch_add(1, Ordering::Relaxed);
            return false;
        };
        if !frame.copy_from(bytes) {
            self.invalid.fetch_add(1, Ordering::Relaxed);
            return false;
        }
        if self.ring.push(frame).is_err() {
            self.ring_full.fetch_add(1, Ordering::Relaxed);
            return false;
        }
        // Full only after 2^64 - 2 writes: readable anyway.
        let _ = self.arrived.write(1);
        true
    }
}

/// The smallest chunk that a frame of this MTU fits with headroom.
pub(super) fn chunk_bytes_for(mtu: usize) -> usize {
    (mtu + ETHERNET_BYTES_MAX + super::HEADROOM_BYTES)
        .next_power_of_two()
        .max(2048)
}

/// An Ethernet header with two VLAN tags.
pub(super) const ETHERNET_BYTES_MAX: usize = 22;

impl Device for SimulatedDevice {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            checksums_verified: self.config.trust_checksums,
            ..Capabilities::plain(self.mac, self.config.mtu)
        }
    }

    fn pool(&self) -> &Arc<Pool> {
        &self.pool
    }

    fn receive(&self, batch: &mut Batch, max: usize) -> io::Result<usize> {
        let inbound = &self.inbound;
        if inbound.ring.len() <= max {
            // Before the ring is emptied, or an arrival in between goes unnoticed.
            let _ = inbound.arrived.read();
        }
        let frames = std::iter::from_fn(|| inbound.ring.pop()).take(max);
        let before = batch.len();
        batch.extend(frames);
        if !inbound.ring.is_empty() {
            let _ = inbound.arrived.write(1);
        }
        Ok(batch.len() - before)
    }

    fn transmit(&self, batch: &mut Batch) -> io::Result<usize> {
        let sent = batch.len();
        let mut waiting = self.waiting.lock();
        for frame in waiting.drain(..).chain(batch.drain(..)) {
            self.outbound.deliver(&frame);
        }
        Ok(sent)
    }

    fn enqueue(&self, batch: &mut Batch) -> io::Result<usize> {
        let sent = batch.len();
        self.waiting.lock().append(batch);
        Ok(sent)
    }

    fn readiness(&self) -> BorrowedFd<'_> {
        self.inbound.arrived.as_fd()
    }

    fn drops(&self) -> Drops {
        let inbound = &self.inbound;
        Drops {
            ring_full: inbound.ring_full.load(Ordering::Relaxed),
            no_buffer: inbound.no_buffer.load(Ordering::Relaxed),
            invalid: inbound.invalid.load(Ordering::Relaxed),
            ..Drops::default()
        }
    }

    fn owns_address(&self) -> bool {
        self.config.owns_address
    }
}

#[cfg(test)]
mod tests {
    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

    use super::*;

    fn readable(device: &SimulatedDevice) -> bool {
        let mut descriptors = [PollFd::new(device.readiness(), PollFlags::POLLIN)];
        poll(&mut descriptors, PollTimeout::ZERO).unwrap() == 1
    }

    #[test]
    fn what_one_end_sends_the_other_receives_in_order() {
        let (one, other) = SimulatedDevice::pair(&SimulatedConfig::default()).unwrap();
        assert!(!readable(&other));
        for k in 0..10 {
            assert!(one.send(&[k; 60]));
        }
        assert!(readable(&other) && !readable(&one));
        let mut batch = Batch::new();
        assert_eq!(other.receive(&mut batch, 4).unwrap(), 4);
        assert!(readable(&other), "six are left");
        assert_eq!(other.receive(&mut batch, 100).unwrap(), 6);
        assert!(!readable(&other));
        assert!(batch.iter().zip(0..).all(|(frame, k)| frame[..] == [k; 60]));
    }

    #[test]
    fn what_does_not_fit_is_dropped_and_counted_by_cause() {
        let config = SimulatedConfig {
            ring_frames: 2,
            chunks: 3,
            ..SimulatedConfig::default()
        };
        let (one, other) = SimulatedDevice::pair(&config).unwrap();
        for _ in 0..5 {
            one.send(&[0; 60]);
        }
        assert_eq!(other.drops().ring_full, 3);
        let mut held = Batch::new();
        other.receive(&mut held, 2).unwrap();
        one.send(&[0; 60]);
        one.send(&[0; 60]);
        assert_eq!(other.drops().no_buffer, 1);
        drop(held);
        one.send(&[0; 4000]);
        assert_eq!(other.drops().invalid, 1);
    }
}
