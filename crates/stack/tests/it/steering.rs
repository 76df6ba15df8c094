//! The XDP program gives each frame to whom a plain rule gives it: main socket, endpoint or
//! kernel. Needs root.

use std::collections::BTreeMap;
use std::net::IpAddr;

use plimsoll_packets::agreement::{FrameStep, check_frames, steps};
use plimsoll_packets::corpus::corpus;
use plimsoll_packets::frame::{ETHERNET_BYTES, Packet, TcpFlags};
use plimsoll_packets::host::Host;
use plimsoll_stack::driven::To;
use proptest::prelude::*;
use proptest::test_runner::TestRunner;

use crate::steered;

const SEED: u64 = 1996;
/// What the test-run facility, like every driver, asks of a frame.
const FRAME_BYTES_MIN: usize = 14;

fn kind(to: &To) -> &'static str {
    match to {
        To::Kernel => "kernel",
        To::Main => "main",
        To::Endpoint(_) => "endpoint",
        To::Channel(_) => "channel",
        To::Nobody => "nobody",
        To::BeyondBacklog => "beyond the backlog",
    }
}

/// In a VLAN.
fn tagged(frame: &[u8], vlan: u16) -> Vec<u8> {
    let (addresses, rest) = frame.split_at(12);
    [addresses, &[0x81, 0], &vlan.to_be_bytes(), rest].concat()
}

/// ICMP errors about what each endpoint sent, and who asks for an address: cut off at every byte.
/// The corpus' own quote nothing.
fn of_icmp(host: &Host) -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    let [v4, v6] = [IpAddr::from(host.v4), host.v6.into()];
    let peers = [(v4, host.v4_peer.into(), 3), (v6, host.v6_peer.into(), 2)];
    for (local, peer, error) in peers {
        let (sent, answer) = (Packet::new(local, peer), Packet::new(peer, local));
        let wildcards = [host.v4_wildcard, host.v6_wildcard, host.dual_stack];
        for port in [host.bound, host.connected, host.closed]
            .into_iter()
            .chain(wildcards)
        {
            let udp = sent.udp(port, host.remote, b"x");
            let tcp = sent.tcp(port, host.remote, TcpFlags::ACK, b"x");
            for quoted in [udp, tcp] {
                frames.push(answer.icmp(error, &quoted[ETHERNET_BYTES..]));
            }
        }
    }
    for target in [host.v6, host.v6_elsewhere] {
        let asks = Packet::new(host.v6_peer.into(), host.v6_group.into());
        frames.push(asks.icmp(135, &target.octets()));
    }
    let cut =
        |frame: Vec<u8>| (FRAME_BYTES_MIN..=frame.len()).map(move |end| frame[..end].to_vec());
    frames.into_iter().flat_map(cut).collect()
}

#[test]
fn what_icmp_is_about_decides_whose_it_is() {
    let programs = steered::programs();
    let mut ours = 0;
    for frame in of_icmp(&Host::default()) {
        for program in &programs {
            ours += usize::from(program.check(&frame) == To::Main);
        }
    }
    assert!(ours >= 200, "{ours}");
}

/// Hand-built frames for all programs, each of the many that are derived from them for one.
#[test]
fn every_frame_of_the_corpus_goes_where_the_plain_rule_says() {
    let programs = steered::programs();
    let mut seen = vec![BTreeMap::new(); programs.len()];
    let mut turn = 0;
    for sequence in corpus(&Host::default(), SEED) {
        for step in sequence.steps {
            if step.frame.len() < FRAME_BYTES_MIN {
                continue;
            }
            let all = 0..programs.len();
            turn = (turn + 1) % programs.len();
            let which = if step.expected.is_some() {
                all
            } else {
                turn..turn + 1
            };
            for of in which {
                let mut check = |frame: &[u8]| {
                    let to = kind(&programs[of].check(frame));
                    *seen[of].entry(to).or_insert(0) += 1;
                };
                check(&step.frame);
                if of == steered::OF_VLAN {
                    check(&tagged(&step.frame, steered::VLAN));
                    check(&tagged(&step.frame, steered::VLAN + 1));
                }
            }
        }
    }
    let enough = |of: usize, kinds: &[&str]| {
        for kind in kinds {
            let frames = seen[of].get(kind).copied().unwrap_or(0);
            assert!(frames >= 5, "{of}: {frames} for {kind}: {seen:?}");
        }
    };
    let all = ["kernel", "main", "endpoint", "channel", "nobody"];
    enough(0, &all);
    enough(1, &all);
    enough(0, &["beyond the backlog"]);
    enough(
        steered::OF_VLAN,
        &["kernel", "main", "endpoint", "channel", "nobody"],
    );
    enough(3, &["kernel", "endpoint"]);
    assert_eq!(seen[4].keys().collect::<Vec<_>>(), [&"kernel"]);
}

#[test]
fn frames_of_any_bytes_go_where_the_plain_rule_says() {
    let programs = steered::programs();
    let bytes = prop::collection::vec(any::<u8>(), 0..4096);
    let judged = TestRunner::deterministic().run(&bytes, |bytes| {
        check_frames(&steps::<FrameStep>(&bytes), &mut |frame, _| {
            if frame.len() >= FRAME_BYTES_MIN {
                programs
                    .iter()
                    .for_each(|program| drop(program.check(frame)));
            }
            None
        });
        Ok(())
    });
    judged.unwrap();
}
