//! A listener's queues as channels: whose connections have room in them.

use super::numbers::{BACKLOG_BEHIND_PARTS, BACKLOG_KEPT_PARTS, BACKLOG_KNOWN_PARTS, BACKLOG_MIN};
use super::{Fairness, Queue, Request, Share, Verdict, tick_of};
use crate::time::Instant;

/// A listener's queues as they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backlog {
    /// Connections that the server has not accepted yet.
    pub accept_queue: u32,
    /// Handshakes that have not ended yet.
    pub syn_queue: u32,
    /// What each of the two may hold (`listen(2)`).
    pub capacity: u32,
    /// Whether a SYN that finds the SYN queue full gets a cookie. The kernel makes none while
    /// the queue has room, so its places are then for who comes first.
    pub cookies: bool,
}

/// What becomes of a SYN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SynVerdict {
    /// It has a place in the SYN queue.
    Admitted,
    /// The SYN queue is full. A cookie needs no place; where nobody may make one, the SYN is
    /// discarded.
    Cookie,
    /// Discarded: the source has had its share of a server that is behind, or of a SYN queue
    /// without cookies.
    SourceShare,
    /// Discarded: the accept queue is full.
    AcceptQueue,
}

impl Backlog {
    /// Whether sources are told apart at all.
    #[must_use]
    pub const fn is_divided(&self) -> bool {
        self.capacity >= BACKLOG_MIN
    }

    /// Whether the server accepts more slowly than connections come. Cookies do not help
    /// then: they only put off what has no place in the accept queue.
    #[must_use]
    pub const fn is_behind(&self) -> bool {
        self.accept_queue >= self.capacity - self.capacity / BACKLOG_BEHIND_PARTS
    }

    /// Linux's own condition: the accept queue holds one more.
    const fn is_accept_queue_full(&self) -> bool {
        self.accept_queue > self.capacity
    }

    const fn is_syn_queue_full(&self) -> bool {
        self.syn_queue >= self.capacity
    }

    /// What a SYN finds. If the server is behind, each handshake that has begun will want
    /// a place in the accept queue.
    fn for_syn(&self, known: bool) -> Queue {
        let occupancy = if self.is_accept_queue_full() || self.is_syn_queue_full() {
            self.capacity.saturating_add(1)
        } else if self.is_behind() {
            let both = self.accept_queue.saturating_add(self.syn_queue);
            both.min(self.capacity)
        } else {
            self.syn_queue
        };
        self.queue(occupancy, known)
    }

    /// What the end of a handshake finds that was answered with a cookie.
    const fn for_cookie(&self, known: bool) -> Queue {
        self.queue(self.accept_queue, known)
    }

    const fn queue(&self, occupancy: u32, known: bool) -> Queue {
        let kept = if known {
            0
        } else {
            self.capacity / BACKLOG_KNOWN_PARTS
        };
        let high = self.capacity - self.capacity / BACKLOG_KEPT_PARTS;
        Queue {
            occupancy,
            low: high,
            high,
            full: (self.capacity - kept).saturating_add(1),
            // Its last places are kept from the first SYN on.
            has_room: false,
        }
    }
}

impl Fairness {
    /// Judges a SYN for a listener whose backlog [is divided](Backlog::is_divided). Places
    /// in the accept queue are kept for others only after the server has been behind for
    /// longer than a burst; or at once, while the listener is pressed: it was short of room
    /// a moment ago. Places in the SYN queue are kept only where there are no cookies.
    pub fn judge_syn(
        &mut self,
        share: &mut Share,
        request: &Request,
        backlog: &Backlog,
        now: Instant,
    ) -> SynVerdict {
        let is_divided = if backlog.is_behind() {
            share.on_behind(tick_of(now)) || share.is_pressed()
        } else {
            !backlog.cookies
        };
        let verdict = if is_divided {
            self.judge(share, request, &backlog.for_syn(request.known), now)
        } else {
            Verdict::Admitted
        };
        if backlog.is_accept_queue_full() {
            SynVerdict::AcceptQueue
        } else if backlog.is_syn_queue_full() {
            SynVerdict::Cookie
        } else if verdict == Verdict::Admitted {
            SynVerdict::Admitted
        } else {
            SynVerdict::SourceShare
        }
    }

    /// Judges the end of a handshake that carries a valid cookie: whoever sends it has its
    /// address for certain.
    pub fn judge_cookie(
        &mut self,
        share: &mut Share,
        request: &Request,
        backlog: &Backlog,
        now: Instant,
    ) -> Verdict {
        if backlog.is_behind() && share.on_behind(tick_of(now)) {
            self.judge(share, request, &backlog.for_cookie(request.known), now)
        } else {
            Verdict::Admitted
        }
    }
}
