//! The frames that both demultiplexers must agree on.
//!
//! Hand-built frames come first, grouped in sequences because a fragment's
//! channel depends on what came before it; each step says what it should be
//! taken for. The derived frames follow: every hand-built frame cut off at
//! every byte, seeded mutations, and garbage. For those nobody knows the answer
//! beforehand: the implementations are compared with each other.
//!
//! Run it from beginning to end on one demultiplexer, all at the same time:
//! fragment identifications are used once only among the hand-built sequences,
//! so no sequence disturbs another. `BPF_PROG_TEST_RUN` refuses frames of fewer
//! than 14 bytes; leave these out there.

mod extensions;
mod fragments;
mod malformed;
mod whole;

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use plimsoll_core::demux::Kind;

use crate::frame::{Fragment, Packet};
use crate::host::{Endpoint, Host, Transport};

/// Frames that are sent one after the other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sequence {
    /// Unique within the corpus.
    pub name: String,
    /// The frames in their order.
    pub steps: Vec<Step>,
}

/// One frame and what it is known to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// From the first byte of the Ethernet header on, without check sequence.
    pub frame: Vec<u8>,
    /// Written by hand; nothing for derived frames.
    pub expected: Option<Expected>,
}

/// What a frame should be taken for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expected {
    /// The kind.
    pub kind: Kind,
    /// Whose channel it goes on; nothing for the proxy channels, for a group
    /// that no socket joined, and for the fragment channel.
    pub endpoint: Option<Endpoint>,
    /// Whether it asks a listener for a new connection (SYN without ACK, RST
    /// and FIN), and so is subject to the listener's backlog.
    pub new_demand: bool,
}

impl Expected {
    /// A kind without an endpoint.
    #[must_use]
    pub fn kind(kind: Kind) -> Self {
        Self {
            kind,
            endpoint: None,
            new_demand: false,
        }
    }

    /// What a packet for `endpoint` should be taken for, when it is not a
    /// request for a connection.
    #[must_use]
    pub fn endpoint(endpoint: Endpoint) -> Self {
        let kind = match endpoint {
            Endpoint::Group { .. } => Kind::Multicast,
            Endpoint::Bound {
                transport: Transport::Tcp,
                ..
            } => Kind::TcpListener,
            Endpoint::Connected {
                transport: Transport::Tcp,
                ..
            } => Kind::TcpConnection,
            _ => Kind::UdpSocket,
        };
        Self {
            kind,
            endpoint: Some(endpoint),
            new_demand: false,
        }
    }

    /// The same, but asking for a new connection.
    #[must_use]
    pub fn asking(self) -> Self {
        Self {
            new_demand: true,
            ..self
        }
    }
}

/// Every frame: hand-built, cut off, mutated with `seed`, and garbage.
#[must_use]
pub fn corpus(host: &Host, seed: u64) -> Vec<Sequence> {
    let mut sequences = hand_built(host);
    let frames: Vec<Vec<u8>> = frames(&sequences);
    sequences.extend(cut_off(&frames));
    let mut random = fastrand::Rng::with_seed(seed);
    sequences.push(mutated(&frames, 20_000, &mut random));
    sequences.push(garbage(&frames, 2_000, &mut random));
    sequences
}

/// The hand-built frames, each with what it should be taken for.
#[must_use]
pub fn hand_built(host: &Host) -> Vec<Sequence> {
    let mut book = Book {
        host: *host,
        sequences: Vec::new(),
        fragment_id: 100,
    };
    whole::add(&mut book);
    malformed::add(&mut book);
    extensions::add(&mut book);
    fragments::add(&mut book);
    book.sequences
}

/// The frames of `sequences` in order, without duplicates.
#[must_use]
pub fn frames(sequences: &[Sequence]) -> Vec<Vec<u8>> {
    let mut seen = std::collections::HashSet::new();
    let steps = sequences.iter().flat_map(|sequence| &sequence.steps);
    let frames = steps.map(|step| step.frame.clone());
    frames.filter(|frame| seen.insert(frame.clone())).collect()
}

/// Every frame cut off at every byte; of long ones, every sixteenth byte of
/// what only is payload.
fn cut_off(frames: &[Vec<u8>]) -> impl Iterator<Item = Sequence> {
    frames.iter().enumerate().map(|(number, frame)| {
        let lengths = (0..frame.len()).filter(|length| *length < 256 || length % 16 == 0);
        let steps = lengths.map(|length| Step {
            frame: frame[..length].to_vec(),
            expected: None,
        });
        Sequence {
            name: format!("cut off/{number}"),
            steps: steps.collect(),
        }
    })
}

fn mutated(frames: &[Vec<u8>], count: usize, random: &mut fastrand::Rng) -> Sequence {
    let steps = (0..count).map(|_| {
        let mut frame = frames[random.usize(..frames.len())].clone();
        for _ in 0..random.usize(1..4) {
            mutate(&mut frame, random);
        }
        Step {
            frame,
            expected: None,
        }
    });
    Sequence {
        name: "mutated".into(),
        steps: steps.collect(),
    }
}

/// Changes one thing, mostly in the headers.
fn mutate(frame: &mut Vec<u8>, random: &mut fastrand::Rng) {
    if frame.is_empty() {
        frame.push(random.u8(..));
        return;
    }
    let at = random.usize(..frame.len().min(96));
    match random.u8(..6) {
        0 => frame[at] ^= 1 << random.u8(..8),
        1 => frame[at] = random.u8(..),
        2 => frame[at] = [0, 1, 6, 17, 44, 51, 58, 60, 0x45, 0xff][random.usize(..10)],
        3 => frame.truncate(random.usize(..frame.len())),
        4 => frame.insert(at, random.u8(..)),
        _ => drop(frame.remove(at)),
    }
}

/// Random bytes: alone, and after the first bytes of a good frame.
fn garbage(frames: &[Vec<u8>], count: usize, random: &mut fastrand::Rng) -> Sequence {
    let steps = (0..count).map(|number| {
        let mut frame = Vec::new();
        if number % 2 == 0 {
            let good = &frames[random.usize(..frames.len())];
            frame.extend_from_slice(&good[..random.usize(..=good.len())]);
        }
        let noise = random.usize(..128);
        frame.extend(std::iter::repeat_with(|| random.u8(..)).take(noise));
        Step {
            frame,
            expected: None,
        }
    });
    Sequence {
        name: "garbage".into(),
        steps: steps.collect(),
    }
}

/// Where the hand-built sequences are written down.
struct Book {
    host: Host,
    sequences: Vec<Sequence>,
    fragment_id: u32,
}

impl Book {
    /// A sequence of one frame.
    fn one(&mut self, name: impl Into<String>, frame: Vec<u8>, expected: Expected) {
        self.sequence(name, vec![(frame, expected)]);
    }

    fn sequence(&mut self, name: impl Into<String>, steps: Vec<(Vec<u8>, Expected)>) {
        let steps = steps.into_iter().map(|(frame, expected)| Step {
            frame,
            expected: Some(expected),
        });
        self.sequences.push(Sequence {
            name: name.into(),
            steps: steps.collect(),
        });
    }

    /// An identification that no other hand-built datagram has.
    fn fragment_id(&mut self) -> u32 {
        self.fragment_id += 1;
        self.fragment_id
    }

    /// The two ways to reach the host.
    fn families(&self) -> [Family; 2] {
        let host = &self.host;
        [
            Family {
                name: "ipv4",
                local: host.v4.into(),
                peer: host.v4_peer.into(),
                elsewhere: host.v4_elsewhere.into(),
                group: host.v4_group.into(),
            },
            Family {
                name: "ipv6",
                local: host.v6.into(),
                peer: host.v6_peer.into(),
                elsewhere: host.v6_elsewhere.into(),
                group: host.v6_group.into(),
            },
        ]
    }
}

/// The host's addresses of one family.
#[derive(Clone, Copy)]
struct Family {
    name: &'static str,
    local: IpAddr,
    peer: IpAddr,
    elsewhere: IpAddr,
    group: IpAddr,
}

impl Family {
    fn to_local(self) -> Packet {
        self.to(self.local)
    }

    fn to(self, destination: IpAddr) -> Packet {
        Packet::new(self.peer, destination)
    }

    fn is_v4(self) -> bool {
        self.local.is_ipv4()
    }

    /// The socket at the local address of this family.
    fn bound(self, host: &Host, transport: Transport) -> Endpoint {
        if self.is_v4() {
            host.bound_v4(transport)
        } else {
            host.bound_v6(transport)
        }
    }
}

fn first(id: u32) -> Fragment {
    Fragment {
        id,
        offset: 0,
        more: true,
    }
}

/// The unspecified address of the family of `other`.
fn unspecified(other: IpAddr) -> IpAddr {
    match other {
        IpAddr::V4(_) => SocketAddr::from(([0, 0, 0, 0], 0)).ip(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    }
}
