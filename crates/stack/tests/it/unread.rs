//! What becomes of a connection whose owner drops it without having read all.

use std::io::Read;
use std::net::Shutdown;

use plimsoll_packets::frame::TcpFlags;
use plimsoll_stack::TcpStream;
use plimsoll_stack::driven::Driven;

use crate::raw_peer::{Peer, Segment};

/// What a peer is sent when the stream of its connection is dropped after `before`.
fn sent_at_drop(before: impl FnOnce(&mut Driven, &mut Peer, &mut TcpStream)) -> Vec<Segment> {
    let mut driven = Driven::new("soft-lrp");
    let (mut peer, mut stream) = Peer::connect(&mut driven, 5000);
    before(&mut driven, &mut peer, &mut stream);
    peer.take(&mut driven);
    let expected = peer.expected;
    drop(stream);
    driven.work();
    let sent = peer.take(&mut driven);
    assert!(sent.iter().all(|one| one.sequence == expected), "{sent:?}");
    sent
}

fn is_reset(sent: &[Segment]) -> bool {
    matches!(sent, [only] if only.rst && !only.fin)
}

/// The peer took its data for delivered: the connection ended as if all had been read (RFC 2525, 2.17).
#[test]
fn a_drop_with_unread_data_resets_the_connection() {
    let sent = sent_at_drop(|driven, peer, stream| {
        peer.send(driven, TcpFlags::ACK, b"question");
        stream.read_exact(&mut [0; 7]).unwrap();
    });
    assert!(is_reset(&sent), "{sent:?}");
    // Also where one side has said all, or the other.
    let sent = sent_at_drop(|driven, peer, stream| {
        stream.shutdown(Shutdown::Write).unwrap();
        peer.send(driven, TcpFlags::ACK, b"question");
    });
    assert!(is_reset(&sent), "{sent:?}");
    let sent = sent_at_drop(|driven, peer, _| {
        peer.send(driven, TcpFlags::FIN_ACK, b"question");
    });
    assert!(is_reset(&sent), "{sent:?}");
}

#[test]
fn a_drop_after_all_was_read_ends_the_connection() {
    let sent = sent_at_drop(|driven, peer, stream| {
        peer.send(driven, TcpFlags::ACK, b"question");
        stream.read_exact(&mut [0; 8]).unwrap();
    });
    assert!(
        matches!(&sent[..], [only] if only.fin && !only.rst),
        "{sent:?}"
    );
    // Nobody is there any more to be told.
    let sent = sent_at_drop(|driven, peer, stream| {
        stream.shutdown(Shutdown::Write).unwrap();
        peer.take(driven);
        peer.send(driven, TcpFlags::FIN_ACK, b"question");
    });
    assert!(sent.is_empty(), "{sent:?}");
}

/// It was acknowledged, though nobody could read it any more (RFC 1122, 4.2.2.13).
#[test]
fn what_comes_after_the_drop_resets_the_connection() {
    let mut driven = Driven::new("soft-lrp");
    let (mut peer, stream) = Peer::connect(&mut driven, 5000);
    drop(stream);
    driven.work();
    // It was under way, so our end is not acknowledged.
    peer.send(&mut driven, TcpFlags::ACK, b"question");
    let sent = peer.take(&mut driven);
    let [end, reset] = &sent[..] else {
        panic!("{sent:?}")
    };
    assert!(end.fin && !end.rst && reset.rst, "{sent:?}");
    assert_eq!(reset.sequence, peer.expected);
}
