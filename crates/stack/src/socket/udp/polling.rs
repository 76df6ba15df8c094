//! Waiting for a socket without receiving or sending.

use std::io;
use std::sync::atomic::Ordering;
use std::time::Duration;

use plimsoll_core::channel::InterruptRequest;
use plimsoll_core::time::Instant;

use super::{NEVER, UdpSocket};
use crate::clock;
use crate::socket::readiness::Readiness;
use crate::wait;

/// Nobody tells when a device has room again.
const LOOK_FOR_ROOM: Duration = Duration::from_millis(1);
/// Who waits for nothing sleeps so long at a time.
const WHILE: Duration = Duration::from_secs(1);

impl UdpSocket {
    /// Waits until the socket is ready for any of `wanted`, and returns for which; for nothing once
    /// `timeout` is over. `None` waits for ever, zero only looks. Unlike the descriptor this may be
    /// called at any time, and tells of room to send as well. As with the kernel's sockets, what
    /// made it readable may turn out damaged: then receiving waits nevertheless.
    ///
    /// After a call that found no room in the device, it is asked once a millisecond.
    ///
    /// # Errors
    ///
    /// `BrokenPipe`: the device has failed.
    pub fn poll(&self, wanted: Readiness, timeout: Option<Duration>) -> io::Result<Readiness> {
        let mut now = clock::now();
        let deadline = timeout.map(|timeout| now + timeout);
        loop {
            self.host().trigger_state(now);
            // Counted first: who takes what has come passes on what is left to those who wait.
            self.waiting.fetch_add(1, Ordering::Relaxed);
            let waited = self.wait_until_ready(wanted, deadline.map(|at| at.saturating_since(now)));
            self.waiting.fetch_sub(1, Ordering::Relaxed);
            let ready = waited?;
            now = clock::now();
            if ready != Readiness::NONE || timeout == Some(Duration::ZERO) {
                return Ok(ready);
            }
            if deadline.is_some_and(|deadline| now >= deadline) {
                // What came while this thread waited for a CPU.
                return self.wait_until_ready(wanted, Some(Duration::ZERO));
            }
        }
    }

    /// Whoever takes the descriptor is going to wait for it, and may not have received before.
    pub(super) fn tell_of_arrivals(&self) {
        let receiving = &mut *self.receiving.lock();
        receiving.by_descriptor = true;
        let is_there = receiving.has_more() || self.trouble.is_set();
        if is_there || receiving.consumer.request_interrupt() != InterruptRequest::Pending {
            self.waker.wake();
        }
    }

    /// Looks, and if it is ready for nothing, waits once.
    fn wait_until_ready(
        &self,
        wanted: Readiness,
        limit: Option<Duration>,
    ) -> io::Result<Readiness> {
        let ready = Readiness {
            readable: wanted.readable && self.is_readable()?,
            writable: wanted.writable && self.is_writable()?,
        };
        if ready == Readiness::NONE && limit != Some(Duration::ZERO) {
            let limit = match wanted.writable {
                true => Some(limit.map_or(LOOK_FOR_ROOM, |limit| limit.min(LOOK_FOR_ROOM))),
                false => limit,
            };
            match (wanted.readable, limit) {
                (false, limit) => std::thread::sleep(limit.unwrap_or(WHILE)),
                (true, limit) => self.wait(limit)?,
            }
        }
        Ok(ready)
    }

    /// If not, the next arrival will wake who waits.
    fn is_readable(&self) -> io::Result<bool> {
        let receiving = &mut *self.receiving.lock();
        if receiving.has_more() {
            return Ok(true);
        }
        self.clear(receiving);
        let request = receiving.consumer.request_interrupt();
        let ready = self.trouble.is_set() || request != InterruptRequest::Pending;
        if ready {
            // That may have been others' waking, and nothing would wake them again.
            self.waker.wake();
        }
        if request == InterruptRequest::Closed {
            return Err(self.host().failure());
        }
        let in_ring = match &self.both {
            Some(both) => wait::wait_any([both.ring.readiness()], Some(Duration::ZERO))?[0],
            None => false,
        };
        Ok(ready || in_ring)
    }

    fn is_writable(&self) -> io::Result<bool> {
        let refused = self.refused.load(Ordering::Relaxed);
        if refused == NEVER || self.trouble.is_set() {
            return Ok(true);
        }
        if self.host().has_failed() {
            return Err(self.host().failure());
        }
        // The device may see room where this datagram had none: it is not to be tried again at once.
        let since = clock::now().saturating_since(Instant::from_nanos(refused));
        if since < LOOK_FOR_ROOM {
            return Ok(false);
        }
        // What it has sent it is to give back.
        self.egress().push_on()?;
        let device = &self.host().device;
        let room = device.has_room() && device.pool().available() > 0;
        if room {
            self.refused.store(NEVER, Ordering::Relaxed);
        }
        Ok(room)
    }

    /// A call found no room in the device.
    pub(super) fn would_block(&self) -> io::Error {
        self.refused
            .store(clock::now().as_nanos(), Ordering::Relaxed);
        io::ErrorKind::WouldBlock.into()
    }
}
