//! Segments of a peer that others have overtaken on their way.

use std::io::{ErrorKind, Read, Write};

use plimsoll_packets::frame::TcpFlags;
use plimsoll_stack::driven::Driven;

use crate::raw_peer::Peer;

/// It acknowledges less than what overtook it, and was thrown away for that, with its data: the peer had to
/// send it again.
#[test]
fn data_that_was_overtaken_is_taken_though_its_acknowledgement_is_old() {
    for flags in [TcpFlags::ACK, TcpFlags::FIN_ACK] {
        let mut driven = Driven::new("soft-lrp");
        let (mut peer, mut stream) = Peer::connect(&mut driven, 5000);
        stream.write_all(b"answer").unwrap();
        let first = peer.frame(TcpFlags::ACK, b"one");
        peer.sequence += 3;
        peer.take(&mut driven);
        let second = peer.frame(flags, b"two");
        for frame in [second, first] {
            driven.cable.send(&frame);
            driven.receive();
            driven.work();
        }
        let mut read = [0; 9];
        let found = stream.read(&mut read).map_err(|error| error.kind());
        assert_eq!(found, Ok(6), "{flags:?}");
        assert_eq!(&read[..6], b"onetwo");
        // What it said of the answer stays true.
        stream.write_all(b"more").unwrap();
        let sent = peer.take(&mut driven);
        assert!(sent.iter().all(|one| one.payload != b"answer"), "{sent:?}");
    }
}

/// A made-up acknowledgement of long ago has no data taken (RFC 5961, 5.2).
#[test]
fn data_is_not_taken_if_its_acknowledgement_is_too_old() {
    let mut driven = Driven::new("soft-lrp");
    let (mut peer, mut stream) = Peer::connect(&mut driven, 5000);
    stream.write_all(b"answer").unwrap();
    peer.take(&mut driven);
    peer.send(&mut driven, TcpFlags::ACK, &[]);
    peer.expected -= 3000;
    peer.send(&mut driven, TcpFlags::ACK, b"forged");
    let read = stream.read(&mut [0; 9]).map_err(|error| error.kind());
    assert_eq!(read, Err(ErrorKind::WouldBlock));
}
