//! What travels, and the bounded queue it waits in.

/// What a packet is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A datagram for a consumer, or a packet to be forwarded.
    Datagram,
    /// Fails the protocol's checks; never reaches a socket queue (LRP-19).
    Corrupt,
    /// Opens a TCP connection.
    Syn,
    /// TCP without data: acknowledgement, or the last of a handshake.
    Ack,
    /// TCP with a request.
    Request,
    /// Closes a TCP connection.
    Fin,
    /// Closes the client's side of a connection that the server has closed.
    SecondFin,
    /// Accepts a connection request.
    SynAck,
    /// Part of a response.
    Segment,
    /// The last part of a response.
    LastSegment,
    /// Answers a datagram.
    Reply,
    /// An ICMP error of the host's own: no source heeds one.
    IcmpError,
}

/// A packet: less than half a cache line, copied from queue to queue.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Packet {
    /// When it reached the adapter, in ns.
    pub(crate) arrived: u64,
    /// Host CPU time spent on it so far, in ns.
    pub(crate) work: u32,
    /// Whatever its source wants to know it by.
    pub(crate) tag: u32,
    /// Index of the source.
    pub(crate) source: u16,
    /// Index of the consumer.
    pub(crate) to: u16,
    /// Length on the wire.
    pub(crate) bytes: u16,
    /// What it is for.
    pub(crate) kind: Kind,
}

impl Packet {
    /// On its way through: what a host makes itself is of other kinds.
    #[inline]
    pub(crate) fn is_forwarded(&self) -> bool {
        matches!(self.kind, Kind::Datagram | Kind::Corrupt)
    }
}

/// A first-in first-out queue with a limit: drop-tail is its caller's business.
#[derive(Clone, Debug)]
pub(crate) struct Fifo {
    slots: Box<[Packet]>,
    head: usize,
    len: usize,
    limit: usize,
    /// The limit that it was made with.
    most: usize,
}

impl Fifo {
    /// An empty queue for at most `limit` packets.
    pub(crate) fn new(limit: usize) -> Self {
        let empty = Packet {
            arrived: 0,
            work: 0,
            tag: 0,
            source: 0,
            to: 0,
            bytes: 0,
            kind: Kind::Datagram,
        };
        Self {
            slots: vec![empty; limit.next_power_of_two().max(1)].into(),
            head: 0,
            len: 0,
            limit,
            most: limit,
        }
    }

    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    #[inline]
    pub(crate) fn is_full(&self) -> bool {
        self.len >= self.limit
    }

    pub(crate) fn limit(&self) -> usize {
        self.limit
    }

    /// Changes the limit, to at most the one it was made with. What exceeds a
    /// lowered limit stays until it is taken.
    pub(crate) fn set_limit(&mut self, limit: usize) {
        self.limit = limit.min(self.most);
    }

    /// Appends `packet`; false, and nothing is kept, if there is no room.
    #[inline]
    #[must_use]
    pub(crate) fn push(&mut self, packet: Packet) -> bool {
        if self.is_full() {
            return false;
        }
        let index = (self.head + self.len) & (self.slots.len() - 1);
        self.slots[index] = packet;
        self.len += 1;
        true
    }

    #[inline]
    pub(crate) fn front(&self) -> Option<&Packet> {
        (self.len > 0).then(|| &self.slots[self.head])
    }

    #[inline]
    pub(crate) fn pop(&mut self) -> Option<Packet> {
        let packet = *self.front()?;
        self.head = (self.head + 1) & (self.slots.len() - 1);
        self.len -= 1;
        Some(packet)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_order_and_limit_over_the_wrap() {
        let mut queue = Fifo::new(3);
        let mut packet = Packet {
            arrived: 0,
            work: 0,
            tag: 0,
            source: 0,
            to: 0,
            bytes: 64,
            kind: Kind::Datagram,
        };
        let mut expected = 0;
        for tag in 0..20 {
            packet.tag = tag;
            assert!(queue.push(packet));
            if queue.is_full() {
                assert!(!queue.push(packet));
                assert_eq!(queue.pop().map(|packet| packet.tag), Some(expected));
                expected += 1;
            }
        }
        assert_eq!(queue.len(), 2);
    }

    /// A queue for 3 has 4 slots.
    #[test]
    fn a_limit_is_never_above_the_one_it_was_made_with() {
        let mut queue = Fifo::new(3);
        queue.set_limit(2);
        assert_eq!(queue.limit(), 2);
        queue.set_limit(100);
        assert_eq!(queue.limit(), 3);
    }
}
