//! Segments that a connection's full channel discarded, and what the stack does about it.

use std::io::Write;
use std::time::Duration;

use plimsoll_packets::frame::TcpFlags;
use plimsoll_stack::Outcome;
use plimsoll_stack::driven::Driven;

use crate::raw_peer::Peer;

/// Longer than the shortest retransmission timeout.
const TIMEOUT: Duration = Duration::from_millis(1100);
/// More segments than the channel holds.
const SEGMENTS: u32 = 100;

/// A channel discards the newest. If these were the last acknowledgements, the connection stood
/// still for a second and sent again what its peer had.
#[test]
fn whoever_discarded_acknowledgements_asks_for_the_last() {
    let mut driven = Driven::new("soft-lrp");
    let (mut peer, mut stream) = Peer::connect(&mut driven, 5000);
    for round in 1..=2 {
        stream.write_all(&[7; SEGMENTS as usize]).unwrap();
        let sent = peer.take(&mut driven);
        assert_eq!(sent.len(), 1, "{sent:?}");
        let last = peer.expected;
        // Byte by byte, while the TCP thread has no CPU.
        for left in (0..SEGMENTS).rev() {
            peer.expected = last - left;
            driven.cable.send(&peer.frame(TcpFlags::ACK, &[]));
            driven.receive();
        }
        driven.work();
        let asked = peer.take(&mut driven);
        assert_eq!(asked.len(), 1, "round {round}: {asked:?}");
        assert!(asked[0].payload.is_empty() && !asked[0].rst, "{asked:?}");
        assert_eq!(asked[0].acknowledges, peer.sequence);
        assert!(asked[0].sequence < sent[0].sequence + 64, "it is old");
        assert_eq!(peer.expected, last);
        peer.send(&mut driven, TcpFlags::ACK, &[]);
        driven.work_in(TIMEOUT);
        let again = peer.take(&mut driven);
        assert!(again.is_empty(), "round {round}: {again:?}");
    }
    assert!(driven.counts()[Outcome::Full] > 0);
    // Nothing was discarded since, so nobody is asked.
    stream.write_all(b"more").unwrap();
    peer.take(&mut driven);
    peer.expected -= 2;
    peer.send(&mut driven, TcpFlags::ACK, &[]);
    assert!(peer.take(&mut driven).is_empty());
}
