//! When receive buffers go back to the device: at the end of a turn, all at once.
//!
//! Intuition: a buffer returned while the handler still runs is filled again,
//! and the handler may never come to an end; packets that slip in late also wait
//! much shorter than others, which is jitter. Returned only at the end, at most
//! as many packets are handled per turn as the device had buffers when it began
//! (Macpherson & Heiser, section 7.2). Below overload enough buffers are still
//! with the device, so that it can receive during the turn.
//!
//! The ledger makes the early return impossible: the only way to return buffers
//! is [`end_turn`](BufferLedger::end_turn). It also carries out a changed credit:
//! fewer are returned than were used, or more.
//!
//! When it loses: mean latency is higher than with early return.

/// Where the buffers of one receive ring are.
#[derive(Debug)]
pub struct BufferLedger {
    total: u32,
    at_device: u32,
    /// Taken from the device in this turn.
    taken: u32,
}

impl BufferLedger {
    /// `total` buffers, none of them with the device. Begin with
    /// [`end_turn`](Self::end_turn), which gives the first ones out.
    #[must_use]
    pub const fn new(total: u32) -> Self {
        Self {
            total,
            at_device: 0,
            taken: 0,
        }
    }

    /// A filled buffer is about to be taken from the device. False if the device
    /// cannot have one: every buffer it was given has been taken in this turn.
    /// Then the turn is over, whatever the device claims.
    #[must_use]
    pub fn take(&mut self) -> bool {
        if self.at_device == 0 {
            return false;
        }
        self.at_device -= 1;
        self.taken += 1;
        true
    }

    /// The turn ends: how many buffers to give to the device now, so that it has
    /// `credit` of them (or as many as there are). None if it still has more;
    /// those cannot be called back and are used up first.
    #[must_use = "these buffers must be given to the device"]
    pub fn end_turn(&mut self, credit: u32) -> u32 {
        let returned = credit.min(self.total).saturating_sub(self.at_device);
        self.at_device += returned;
        self.taken = 0;
        returned
    }

    /// Buffers the device has.
    #[must_use]
    pub const fn at_device(&self) -> u32 {
        self.at_device
    }

    /// Packets taken in this turn.
    #[must_use]
    pub const fn taken(&self) -> u32 {
        self.taken
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_turn_ends_even_if_packets_do_not() {
        let mut ledger = BufferLedger::new(16);
        assert_eq!(ledger.end_turn(8), 8);
        // The link is faster than the handler: there is always a packet.
        let handled = (0..1000).take_while(|_| ledger.take()).count();
        assert_eq!(handled, 8);
        assert_eq!(ledger.taken(), 8);
        assert_eq!(ledger.end_turn(8), 8);
        assert_eq!(ledger.taken(), 0, "in the next turn");
    }

    #[test]
    fn below_overload_buffers_are_left_during_the_turn() {
        let mut ledger = BufferLedger::new(16);
        assert_eq!(ledger.end_turn(16), 16);
        assert!(ledger.take() && ledger.take());
        assert_eq!(ledger.at_device(), 14);
        assert_eq!(ledger.end_turn(16), 2);
    }

    #[test]
    fn a_smaller_credit_is_reached_by_giving_back_less() {
        let mut ledger = BufferLedger::new(16);
        assert_eq!(ledger.end_turn(16), 16);
        assert!((0..4).all(|_| ledger.take()));
        assert_eq!(ledger.end_turn(8), 0, "it still has 12");
        assert!((0..6).all(|_| ledger.take()));
        assert_eq!(ledger.end_turn(8), 2);
        assert_eq!(ledger.end_turn(16), 8, "and a larger one by giving more");
    }

    proptest! {
        #[test]
        fn no_buffer_appears_or_vanishes(turns in prop::collection::vec((0_u32..40, 0_u32..40), 1..100)) {
            let mut ledger = BufferLedger::new(32);
            let (mut given, mut taken) = (0_u64, 0_u64);
            for (wanted, credit) in turns {
                let before = ledger.at_device();
                let handled = (0..wanted).take_while(|_| ledger.take()).count();
                prop_assert!(handled <= before as usize);
                taken += handled as u64;
                given += u64::from(ledger.end_turn(credit));
                prop_assert_eq!(given - taken, u64::from(ledger.at_device()));
                prop_assert!(ledger.at_device() <= 32);
                prop_assert!(ledger.at_device() >= credit.min(32));
            }
        }
    }
}
