//! What a router looks at in a frame, with the outcomes of [`Outcome`].
//!
//! [`plimsoll_stack::forwarding`] examines. Its order is that of `forward.bpf.c`, and one corpus
//! of frames runs through both.

use plimsoll_stack::device::Mac;
use plimsoll_stack::forwarding::{self, NotPlain};
pub use plimsoll_stack::forwarding::{ETHERNET_BYTES, Plain, rewrite};

use super::outcome::Outcome;

/// A plain packet, or what becomes of the frame instead. `station` is the Ethernet
/// address of the interface that it came in by.
///
/// # Errors
///
/// The frame's outcome if it is not plain.
pub fn examine(frame: &[u8], station: Mac) -> Result<Plain, Outcome> {
    forwarding::examine(frame, station).map_err(|why| match why {
        NotPlain::Malformed => Outcome::Malformed,
        NotPlain::AddressResolution => Outcome::AddressResolution,
        NotPlain::OtherProtocol => Outcome::OtherProtocol,
        NotPlain::Multicast => Outcome::Multicast,
        NotPlain::OtherHost => Outcome::OtherHost,
        NotPlain::Options => Outcome::Options,
        NotPlain::Martian => Outcome::Martian,
        NotPlain::LinkLocal => Outcome::LinkLocal,
    })
}

/// Whether the kernel cuts the packet of this frame where it is too long, and answers nothing.
pub(super) fn may_be_cut(frame: &[u8]) -> bool {
    const IPV4: [u8; 2] = [8, 0];
    const DONT_FRAGMENT: u8 = 0x40;
    let flags = frame.get(ETHERNET_BYTES + 6);
    frame.get(12..ETHERNET_BYTES) == Some(&IPV4)
        && flags.is_some_and(|flags| flags & DONT_FRAGMENT == 0)
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::{Just, any};
    use proptest::{prop_assert, prop_assert_eq, prop_oneof, proptest};

    use super::super::frames::{self, STATION};
    use super::*;

    #[test]
    fn every_kind_of_frame_has_its_outcome() {
        for case in frames::corpus() {
            let outcome = examine(&case.frame, STATION).err();
            assert_eq!(outcome, case.outcome, "{}", case.name);
        }
    }

    #[test]
    fn a_forwarded_frame_differs_in_addresses_ttl_and_checksum_only() {
        for case in frames::corpus()
            .into_iter()
            .filter(|case| case.outcome.is_none())
        {
            let mut sent = case.frame.clone();
            let before = examine(&sent, STATION).unwrap();
            rewrite(&mut sent, before.source.is_ipv4(), [4; 6], [2; 6]);
            assert_eq!(sent[..12], [2, 2, 2, 2, 2, 2, 4, 4, 4, 4, 4, 4]);
            // It is valid at the next router.
            let after = examine(&sent, [2; 6]).unwrap();
            assert_eq!(
                after,
                Plain {
                    ttl: before.ttl - 1,
                    ..before
                },
                "{}",
                case.name
            );
            let payload = if before.source.is_ipv4() { 34 } else { 54 };
            assert_eq!(sent[payload..], case.frame[payload..]);
        }
    }

    proptest! {
        /// Whatever arrives has an outcome, and nothing panics.
        #[test]
        fn any_bytes_are_examined(
            mut frame in vec(any::<u8>(), 0..200),
            kind in prop_oneof![Just(0x0800u16), Just(0x86dd), any::<u16>()],
        ) {
            if frame.len() >= ETHERNET_BYTES {
                frame[..6].copy_from_slice(&STATION);
                frame[12..14].copy_from_slice(&kind.to_be_bytes());
            }
            if let Ok(plain) = examine(&frame, STATION) {
                prop_assert!(plain.bytes + ETHERNET_BYTES <= frame.len());
                prop_assert_eq!(plain.source.is_ipv4(), plain.destination.is_ipv4());
            }
        }
    }
}
