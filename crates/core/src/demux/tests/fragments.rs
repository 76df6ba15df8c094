//! Fragments: later ones go where the first one went, for a while and within bounds.

use super::*;

#[test]
fn later_fragments_follow_the_first() {
    let mut demux = demux();
    for (address, id) in [(V4, 5), (V6, 70_000)] {
        let to = at(address, 53);
        let bound = demux.bind(Protocol::Udp, to, false, ChannelId(1));
        assert_eq!(bound, Ok(()));
        for number in [0, 2, 1, 3, 3] {
            let said = demux.classify(&fragment(to, id, number), NOW);
            let wanted = Classified::new(Kind::UdpSocket, ChannelId(1));
            assert_eq!(said, wanted, "{address}, fragment {number}");
        }
    }
}

#[test]
fn fragments_before_the_first_wait_on_their_channel_and_reassembly_hears_of_it() {
    let mut demux = demux();
    let to = at(V4, 53);
    let bound = demux.bind(Protocol::Udp, to, false, ChannelId(1));
    assert_eq!(bound, Ok(()));
    let early = demux.classify(&fragment(to, 5, 2), NOW);
    assert_eq!(early, Classified::new(Kind::Fragment, ChannelId(100)));
    let first = demux.classify(&fragment(to, 5, 0), NOW);
    assert_eq!((first.kind, first.channel), (Kind::UdpSocket, ChannelId(1)));
    assert!(first.earlier_fragments);
    // A repeated first has nothing new to say.
    assert!(!demux.classify(&fragment(to, 5, 0), NOW).earlier_fragments);
    // Nor has one whose early fragments are long gone.
    let _ = demux.classify(&fragment(to, 6, 2), NOW);
    let late = demux.classify(&fragment(to, 6, 0), NOW + Duration::from_secs(30));
    assert!(!late.earlier_fragments);
}

#[test]
fn a_first_fragment_is_forgotten_when_its_lifetime_is_over() {
    let mut demux = demux();
    let to = at(V4, 53);
    let bound = demux.bind(Protocol::Udp, to, false, ChannelId(1));
    assert_eq!(bound, Ok(()));
    let _ = demux.classify(&fragment(to, 5, 0), NOW);
    let end = NOW + Duration::from_secs(30);
    let last = end - Duration::from_nanos(1);
    let kind = |demux: &mut Demux, now| demux.classify(&fragment(to, 5, 1), now).kind;
    assert_eq!(kind(&mut demux, last), Kind::UdpSocket);
    assert_eq!(kind(&mut demux, end), Kind::Fragment);
}

#[test]
fn a_flood_of_first_fragments_displaces_the_oldest_and_is_counted() {
    let config = DemuxConfig {
        fragments_max: 64,
        ..DemuxConfig::new(CHANNELS)
    };
    let mut demux = host(&config);
    let to = at(V4, 53);
    let bytes = demux.memory_bytes();
    for id in 0..10_000 {
        let _ = demux.classify(&fragment(to, id, 0), NOW);
    }
    assert_eq!(demux.memory_bytes(), bytes);
    let known = (0..10_000).filter(|id| {
        let said = demux.classify(&fragment(to, *id, 1), NOW);
        said.kind == Kind::ClosedPort
    });
    assert_eq!(known.count(), 64);
    assert_eq!(demux.fragments_forgotten(), 10_000 - 64);
}

#[test]
fn no_fragment_follows_to_a_channel_that_was_given_back() {
    let mut demux = demux();
    let to = at(V6, 53);
    let group = at(GROUP, 53);
    let peer = at(V6_PEER, 9);
    let connected = at(V6, 54);
    assert_eq!(demux.bind(Protocol::Udp, to, false, ChannelId(1)), Ok(()));
    assert_eq!(demux.join(group, ChannelId(2)), Ok(ChannelId(2)));
    let done = demux.connect(Protocol::Udp, connected, peer, ChannelId(3));
    assert_eq!(done, Ok(()));
    for to in [to, group, connected] {
        let _ = demux.classify(&fragment(to, 5, 0), NOW);
    }
    assert_eq!(demux.unbind(Protocol::Udp, to), Some(ChannelId(1)));
    assert_eq!(demux.leave(group), Some(ChannelId(2)));
    let gone = demux.disconnect(Protocol::Udp, connected, peer);
    assert_eq!(gone, Some(ChannelId(3)));
    for to in [to, group, connected] {
        let said = demux.classify(&fragment(to, 5, 1), NOW);
        assert_eq!(said.channel, CHANNELS.fragment, "{to}");
    }
}
