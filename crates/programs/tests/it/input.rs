//! Inputs that nobody chose: filter expressions, rules and captures, as the fuzz targets
//! `filter` and `replay` take them. The seeds are fixed: a failure here is this commit's.

use plimsoll_programs::driven;
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

fn for_all(cases: u32, inputs: impl Strategy<Value = Vec<u8>>, check: impl Fn(&[u8])) {
    let config = Config {
        cases,
        failure_persistence: None,
        ..Config::default()
    };
    let random = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
    let run = TestRunner::new_with_rng(config, random).run(&inputs, |bytes| {
        check(&bytes);
        Ok(())
    });
    run.unwrap();
}

/// Words of the grammar in any order, and bytes after them.
fn expressions() -> impl Strategy<Value = Vec<u8>> {
    let words = prop::sample::select(vec![
        "udp",
        "tcp",
        "ip6",
        "port",
        "53",
        "and",
        "or",
        "not",
        "(",
        ")",
        "host",
        "192.0.2.1",
        "vlan",
        "ip[0]",
        "&",
        "0xf",
        "!=",
        "5",
        "len",
        ">",
        "net",
        "198.18.0.0/15",
        "'",
        "\\",
    ]);
    let words = prop::collection::vec(words, 0..8).prop_map(|words| words.join(" "));
    let frame = prop::collection::vec(any::<u8>(), 0..80);
    (words, frame).prop_map(|(words, frame)| [words.into_bytes(), vec![0], frame].concat())
}

#[test]
fn no_filter_and_no_frame_is_too_strange() {
    for_all(400, expressions(), driven::check_filter);
    for_all(
        200,
        prop::collection::vec(any::<u8>(), 0..60),
        driven::check_filter,
    );
}

/// A whole capture with some bytes changed, and cut anywhere.
fn captures() -> impl Strategy<Value = Vec<u8>> {
    let changes = prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6);
    let cut = any::<prop::sample::Index>();
    (any::<bool>(), changes, cut).prop_map(|(is_new, changes, cut)| {
        let mut bytes = driven::capture(is_new);
        for (place, byte) in changes {
            let place = place.index(bytes.len());
            bytes[place] = byte;
        }
        bytes.truncate(cut.index(bytes.len() * 2));
        bytes
    })
}

#[test]
fn no_capture_is_too_damaged() {
    driven::check_replay(&driven::capture(true));
    driven::check_replay(&driven::capture(false));
    for_all(300, captures(), driven::check_replay);
}
