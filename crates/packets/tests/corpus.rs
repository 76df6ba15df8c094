//! The corpus is what it says it is.

use std::collections::HashSet;

use plimsoll_core::demux::Kind;
use plimsoll_packets::corpus::{corpus, frames, hand_built};
use plimsoll_packets::host::Host;

#[test]
fn names_are_unique_and_every_hand_built_step_says_what_it_is() {
    let mut names = HashSet::new();
    for sequence in hand_built(&Host::default()) {
        assert!(
            names.insert(sequence.name.clone()),
            "{} twice",
            sequence.name
        );
        for step in sequence.steps {
            assert!(step.expected.is_some(), "{}", sequence.name);
        }
    }
}

#[test]
fn every_kind_occurs_and_every_endpoint_is_reached() {
    let host = Host::default();
    let sequences = hand_built(&host);
    let steps = sequences.iter().flat_map(|sequence| &sequence.steps);
    let expected: Vec<_> = steps.filter_map(|step| step.expected).collect();
    for kind in Kind::ALL {
        assert!(expected.iter().any(|e| e.kind == kind), "no {kind}");
    }
    for endpoint in host.endpoints() {
        assert!(
            expected.iter().any(|e| e.endpoint == Some(endpoint)),
            "nothing for {endpoint:?}"
        );
    }
}

#[test]
fn the_same_seed_gives_the_same_corpus_and_another_seed_another() {
    let host = Host::default();
    assert_eq!(corpus(&host, 1), corpus(&host, 1));
    assert_ne!(corpus(&host, 1), corpus(&host, 2));
}

#[test]
fn valid_frames_are_accepted_by_an_independent_parser() {
    let host = Host::default();
    for frame in frames(&hand_built(&host)).iter().filter(|f| f.len() > 300) {
        // Only the long ones are all valid: 1000 bytes of payload, long options.
        etherparse::SlicedPacket::from_ethernet(frame).expect("a valid frame");
    }
}
