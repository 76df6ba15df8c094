//! Who waits for a connection, and who wakes them.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use plimsoll_core::time::Instant;
use smoltcp::socket::tcp::{Socket, State};

use super::{Connection, Inner};
use crate::host::Host;

/// What an owner's thread waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::tcp) enum Wanted {
    /// The end of the handshake.
    Connection,
    /// Something to read, or the end.
    Data,
    /// Room to write.
    Room,
}

impl Wanted {
    pub(super) const KINDS: usize = 3;
}

/// How long a call waits for what is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::tcp) enum Wait {
    /// The caller waits for the descriptor instead.
    Not,
    /// The caller only looks, whatever the descriptor waits for.
    Look,
    For(Duration),
    Ever,
}

impl Connection {
    /// As [`with`](Self::with). If `act` has no answer, this waits as it is told, or the
    /// descriptor becomes readable when there is any of what is `wanted`.
    pub(in crate::tcp) fn with_or_await<R>(
        &self,
        host: &Host,
        now: Instant,
        (wanted, wait): (&[Wanted], Wait),
        act: impl FnOnce(&mut Socket<'static>) -> Option<R>,
    ) -> Option<R> {
        self.owner.set_to_this_thread();
        let work = self.account.work();
        let mut inner = self.inner.lock();
        let result = inner.act(host, now, act);
        if result.is_none() && wait != Wait::Look {
            if wait == Wait::Not {
                self.waker.clear();
                inner.by_descriptor = true;
            }
            for wanted in wanted {
                if !inner.awaited.contains(wanted) {
                    inner.awaited.push(*wanted);
                }
            }
        }
        if result.is_some() || matches!(wait, Wait::Not | Wait::Look) {
            self.after(inner, host, now);
            return result;
        }
        self.prepare(&mut inner, host, now);
        host.egress.push_on_if_there();
        drop(work);
        // A device that fails from here on finds this call waiting, and wakes it.
        if !host.has_failed() {
            match wait {
                Wait::For(limit) => drop(self.changed.wait_for(&mut inner, limit)),
                _ => self.changed.wait(&mut inner),
            }
        }
        None
    }

    /// Whoever takes the descriptor is going to wait for it: for data, unless a call has told for
    /// what. `read_shut`: reading returns at once.
    pub(in crate::tcp) fn await_by_descriptor(&self, host: &Host, read_shut: &AtomicBool) {
        let mut inner = self.inner.lock();
        if inner.by_descriptor {
            return;
        }
        inner.by_descriptor = true;
        if !inner.awaited.contains(&Wanted::Data) {
            inner.awaited.push(Wanted::Data);
        }
        let is_shut = read_shut.load(Ordering::Relaxed);
        // A device that fails from here on finds the descriptor waited for, and wakes it.
        if is_shut || inner.has_what_is_awaited() || host.has_failed() {
            self.wake_all(&mut inner);
        }
    }

    /// Whoever waits is to look again.
    pub(in crate::tcp) fn wake(&self) {
        self.wake_all(&mut self.inner.lock());
    }

    pub(super) fn wake_all(&self, inner: &mut Inner) {
        inner.awaited.clear();
        self.changed.notify_all();
        if std::mem::take(&mut inner.by_descriptor) {
            self.waker.wake();
        }
    }
}

/// Readable once something happened that a call had to wait for.
impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.waker.as_fd()
    }
}

impl Inner {
    /// Whether somebody who waits would go on now.
    pub(super) fn has_what_is_awaited(&mut self) -> bool {
        let socket = self.sockets.get::<Socket<'_>>(self.handle);
        let connecting = matches!(socket.state(), State::SynSent | State::SynReceived);
        // What waits for a departure must be there in time: a writer that comes late would
        // send a burst.
        let clocked = self.pace.flow.is_some();
        let room = if clocked {
            socket.can_send()
        } else {
            has_room(socket)
        };
        self.awaited.iter().any(|wanted| match wanted {
            Wanted::Connection => !connecting,
            Wanted::Data => socket.can_recv() || !socket.may_recv() && !connecting,
            Wanted::Room => room || !socket.may_send() && !connecting,
        })
    }
}

/// Room that is worth waking a writer for: a third of the buffer, as Linux does
/// (`sk_stream_is_writeable`). With less, each acknowledgement cost two switches between
/// threads for two segments.
fn has_room(socket: &Socket<'_>) -> bool {
    let (queued, capacity) = (socket.send_queue(), socket.send_capacity());
    socket.can_send() && (capacity - queued >= capacity / 3 || queued == 0)
}
