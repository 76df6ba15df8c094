//! Who waits for a connection, and who wakes them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use plimsoll_core::time::Instant;
use smoltcp::socket::tcp::{Socket, State};

use super::{Connection, Inner};
use crate::host::Host;
use crate::wait::Waker;

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

/// Some of what can be wanted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Kinds(u8);

impl Kinds {
    fn of(wanted: &[Wanted]) -> Self {
        Self(
            wanted
                .iter()
                .fold(0, |kinds, kind| kinds | 1 << *kind as u8),
        )
    }

    fn and(self, others: Self) -> Self {
        Self(self.0 | others.0)
    }

    fn without(self, others: Self) -> Self {
        Self(self.0 & !others.0)
    }

    fn common(self, others: Self) -> Self {
        Self(self.0 & others.0)
    }

    fn is_empty(self) -> bool {
        self.0 == 0
    }
}

/// What a connection's owners wait for.
#[derive(Debug)]
pub(super) struct Waiters {
    /// Readable once something happened that an event loop waits for. None: the owner is gone. It must be
    /// closed with the stream: event loops forget what was closed, and hear of what was not for ever.
    waker: Option<Arc<Waker>>,
    /// In a call.
    calls: Kinds,
    /// By the descriptor: what a call has not found since.
    descriptor: Kinds,
    /// The descriptor is readable.
    told: bool,
    /// Calls since then that did not take what it tells of.
    left: u8,
}

impl Waiters {
    pub(super) fn new(waker: Waker) -> Self {
        Self {
            waker: Some(Arc::new(waker)),
            calls: Kinds::default(),
            descriptor: Kinds::default(),
            told: false,
            left: 0,
        }
    }

    /// Nobody waits any more. A child that is forked meanwhile has the descriptor too, until it begins its
    /// program: event loops hear of that one nothing either.
    pub(super) fn close(&mut self) {
        if let Some(waker) = self.waker.take() {
            waker.clear();
        }
        self.descriptor = Kinds::default();
    }

    /// A call that waits for the descriptor has not found what it wanted. What else has come about
    /// the owner may not have seen, so it stays told, but not for ever: who has stopped reading
    /// waits for room alone.
    fn on_nothing(&mut self, wanted: Kinds, ready: Kinds) {
        self.descriptor = self.descriptor.and(wanted);
        let others = self.descriptor.common(ready);
        if others.is_empty() || self.left >= LEFT_MAX {
            self.descriptor = self.descriptor.without(others);
            self.left = 0;
            self.told = false;
            if let Some(waker) = &self.waker {
                waker.clear();
            }
        } else {
            self.left += 1;
            self.told = true;
            // Also if it is readable: an event loop that hears of each change once has heard of this.
            self.wake();
        }
    }

    /// A call has found what it wanted. Whoever wants more asks again, and hears of it then.
    fn on_found(&mut self, wanted: Kinds) {
        self.descriptor = self.descriptor.without(wanted);
        self.left = 0;
    }

    fn tell(&mut self) {
        if !self.told {
            self.told = true;
            self.wake();
        }
    }

    fn wake(&self) {
        if let Some(waker) = &self.waker {
            waker.wake();
        }
    }

    /// What is still to be told of.
    fn untold(&self) -> Kinds {
        if self.told {
            self.calls
        } else {
            self.calls.and(self.descriptor)
        }
    }
}

/// So many calls may leave what the descriptor tells of before it tells no more of that.
const LEFT_MAX: u8 = 8;

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
        let wanted = Kinds::of(wanted);
        match (wait, result.is_some()) {
            (Wait::Look, _) => {}
            (_, true) => inner.waiters.on_found(wanted),
            (Wait::Not, false) => {
                let ready = inner.ready();
                inner.waiters.on_nothing(wanted, ready);
            }
            (Wait::For(_) | Wait::Ever, false) => {
                inner.waiters.calls = inner.waiters.calls.and(wanted);
            }
        }
        if result.is_some() || matches!(wait, Wait::Not | Wait::Look) {
            self.after(inner, host, now);
            return result;
        }
        let woken = self.prepare(&mut inner, host, now);
        host.egress.push_on_if_there();
        drop(work);
        // A device that fails from here on finds this call waiting, and wakes it. What has just
        // come about, as a handshake's end by its timeout, nobody tells once more.
        if !woken && !host.has_failed() {
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
        if !inner.waiters.descriptor.is_empty() {
            return;
        }
        inner.waiters.descriptor = Kinds::of(&[Wanted::Data]);
        let is_shut = read_shut.load(Ordering::Relaxed);
        // A device that fails from here on finds the descriptor waited for, and wakes it.
        if is_shut || inner.has_what_is_awaited() || host.has_failed() {
            self.wake_all(&mut inner);
        }
    }

    /// Readable once something happened that a call had to wait for; for its only owner.
    pub(in crate::tcp) fn descriptor(&self) -> Arc<Waker> {
        let inner = self.inner.lock();
        let Some(waker) = &inner.waiters.waker else {
            unreachable!("only the owner's drop takes it away")
        };
        Arc::clone(waker)
    }

    /// The descriptor tells of what was found, too: an event loop has not seen it.
    pub(in crate::tcp) fn tell(&self) {
        self.inner.lock().waiters.tell();
    }

    /// Whoever waits is to look again.
    pub(in crate::tcp) fn wake(&self) {
        self.wake_all(&mut self.inner.lock());
    }

    pub(super) fn wake_all(&self, inner: &mut Inner) {
        inner.waiters.calls = Kinds::default();
        self.changed.notify_all();
        if !inner.waiters.descriptor.is_empty() {
            inner.waiters.tell();
        }
    }
}

impl Inner {
    /// Whether somebody who waits, and was not told yet, would go on now.
    pub(super) fn has_what_is_awaited(&self) -> bool {
        let untold = self.waiters.untold();
        !untold.is_empty() && !untold.common(self.ready()).is_empty()
    }

    /// For what a call would not wait now.
    fn ready(&self) -> Kinds {
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
        let kinds = [
            (Wanted::Connection, !connecting),
            (
                Wanted::Data,
                socket.can_recv() || !socket.may_recv() && !connecting,
            ),
            (Wanted::Room, room || !socket.may_send() && !connecting),
        ];
        let ready = kinds.iter().filter(|(_, is_ready)| *is_ready);
        ready.fold(Kinds::default(), |all, (kind, _)| {
            all.and(Kinds::of(&[*kind]))
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
