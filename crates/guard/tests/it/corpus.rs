//! Every frame of the shared corpus through the BPF program: the verdict is to
//! admit, the kind is the one that `plimsoll_core::demux` finds, kind and
//! channel are the ones written down by hand, and every frame is counted
//! exactly once.

use std::net::IpAddr;

use plimsoll_core::demux::DemuxConfig;
use plimsoll_core::time::Instant;
use plimsoll_guard::{Config, Counters, Guard, Kind, Outcome, Storage};
use plimsoll_packets::agreement::{CHANNELS, FrameStep, Pair, check_frames, steps};
use plimsoll_packets::corpus::{Expected, Step, corpus};
use plimsoll_packets::host::{Endpoint, Host};

use crate::common::in_namespace;
use crate::common::packets_host::{counted, open_endpoints, set_up_addresses};

const SEED: u64 = 1994;
/// What the test-run facility, like every driver, asks of a frame.
const FRAME_BYTES_MIN: usize = 14;

/// The one channel that counted a packet, if any did.
fn channel(before: &Counters, after: &Counters) -> Option<(IpAddr, u16)> {
    let offered = |counters: &Counters, key| {
        counters
            .channels
            .iter()
            .filter(|c| (c.kind, c.address, c.port) == key)
            .map(|c| c.packets.offered())
            .sum::<u64>()
    };
    let keys = after.channels.iter().map(|c| (c.kind, c.address, c.port));
    let mut changed = keys.filter(|key| offered(before, *key) != offered(after, *key));
    let channel = changed.next();
    assert_eq!(changed.next(), None, "at most one channel counts a frame");
    channel.map(|(_, address, port)| (address, port))
}

/// How the guard reports the socket that the corpus expects.
fn reported(expected: &Expected) -> Option<(IpAddr, u16)> {
    match (expected.kind, expected.endpoint?) {
        (Kind::TcpConnection | Kind::Multicast, _) => None,
        (_, Endpoint::Bound { at, .. } | Endpoint::Group { at }) => Some((at.ip(), at.port())),
        (_, Endpoint::Connected { local, .. }) => Some((local.ip(), local.port())),
    }
}

/// Both demultiplexers, and what the program had counted before the next frame.
struct Opinions<'obj> {
    guard: Guard<'obj>,
    core: Pair,
    counters: Counters,
}

impl Opinions<'_> {
    /// Runs one frame through both.
    fn check(&mut self, name: &str, step: &Step) {
        let (admitted, _) = self
            .guard
            .test_run(&step.frame, 1)
            .unwrap_or_else(|error| panic!("{name}: {error}"));
        let before = std::mem::replace(&mut self.counters, self.guard.counters().unwrap());
        assert!(admitted, "{name}: nothing is full here");
        let kind = counted(&before, &self.counters);
        let socket = channel(&before, &self.counters);
        assert_eq!(
            kind,
            self.core.classify(&step.frame, Instant::ZERO).kind,
            "{name}: what core says of {:02x?}",
            step.frame
        );
        if let Some(expected) = &step.expected {
            assert_eq!(kind, expected.kind, "{name}");
            assert_eq!(socket, reported(expected), "{name}");
        }
        let has_channel = matches!(kind, Kind::UdpSocket | Kind::TcpListener);
        assert_eq!(socket.is_some(), has_channel, "{name}: {kind}");
    }
}

/// Shows LRP-24, LRP-26, LRP-57.
#[test]
fn every_frame_of_the_corpus_has_its_kind_and_channel() {
    let host = Host::default();
    in_namespace(|| {
        set_up_addresses(&host);
        let _sockets = open_endpoints(&host);
        let mut storage = Storage::default();
        let mut guard = Guard::load(&mut storage, &Config::default()).unwrap();
        let counters = guard.counters().unwrap();
        let config = DemuxConfig {
            fragments_max: 1 << 16,
            ..DemuxConfig::new(CHANNELS)
        };
        let mut core = Pair::of_host(&config, &host);
        for peer in [host.v4_peer.into(), host.v6_peer.into()] {
            // Local here as well; a damaged frame may be for one.
            core.add_local_address(peer);
        }
        let mut opinions = Opinions {
            guard,
            core,
            counters,
        };
        let mut frames = 0;
        for sequence in corpus(&host, SEED) {
            for step in sequence
                .steps
                .iter()
                .filter(|step| step.frame.len() >= FRAME_BYTES_MIN)
            {
                opinions.check(&sequence.name, step);
                frames += 1;
            }
        }
        assert!(frames > 1000, "the corpus is large");
        assert_eq!(opinions.counters.all().count(Outcome::Admitted), frames);
        for kind in [Kind::UdpSocket, Kind::TcpListener] {
            assert_eq!(
                opinions.counters.retired(kind).offered(),
                0,
                "every socket has a channel"
            );
        }
    });
}

/// Adapters with several buffers leave a part of the headers, or nothing of them,
/// where the program reads them in place. (The facility leaves 14 bytes at least.)
#[test]
fn every_frame_has_its_kind_wherever_its_first_buffer_ends() {
    let host = Host::default();
    in_namespace(|| {
        set_up_addresses(&host);
        let _sockets = open_endpoints(&host);
        let mut storage = Storage::default();
        let mut guard = Guard::load(&mut storage, &Config::default()).unwrap();
        let mut random = fastrand::Rng::with_seed(SEED);
        let mut cut = 0;
        for sequence in corpus(&host, SEED) {
            for step in sequence.steps {
                let frame = &step.frame;
                if frame.len() <= FRAME_BYTES_MIN {
                    continue;
                }
                let before = guard.counters().unwrap();
                guard.test_run(frame, 1).unwrap();
                let whole = guard.counters().unwrap();
                let somewhere = random.usize(FRAME_BYTES_MIN..frame.len());
                let linear = [FRAME_BYTES_MIN, somewhere][cut % 2];
                let run = guard.test_run_in_parts(frame, u32::try_from(linear).unwrap());
                run.expect("frames in parts take Linux 6.18 or newer");
                let kind = counted(&before, &whole);
                let in_parts = counted(&whole, &guard.counters().unwrap());
                assert_eq!(in_parts, kind, "{}: {linear}", sequence.name);
                cut += 1;
            }
        }
        assert!(cut > 1000, "the corpus is large");
    });
}

/// Fresh programs for each: what either side remembers of fragments never
/// comes from another case, nor is so much that it forgets.
const CASES: usize = 60;
const STEPS_MAX: usize = 8;

#[test]
fn random_frames_have_the_kind_that_core_finds() {
    let host = Host::default();
    in_namespace(|| {
        set_up_addresses(&host);
        let _sockets = open_endpoints(&host);
        let mut random = fastrand::Rng::with_seed(SEED);
        let mut judged = 0;
        for _ in 0..CASES {
            let bytes: Vec<u8> = std::iter::repeat_with(|| random.u8(..))
                .take(4096)
                .collect();
            let mut frames = steps::<FrameStep>(&bytes);
            // The program has the kernel's clock.
            frames.retain(|step| !matches!(step, FrameStep::Wait(_)));
            frames.truncate(STEPS_MAX);
            let mut storage = Storage::default();
            let mut guard = Guard::load(&mut storage, &Config::default()).unwrap();
            check_frames(&frames, &mut |frame, _| {
                if frame.len() < FRAME_BYTES_MIN {
                    return None;
                }
                let before = guard.counters().unwrap();
                guard.test_run(frame, 1).unwrap();
                judged += 1;
                Some(counted(&before, &guard.counters().unwrap()))
            });
        }
        assert!(judged > CASES, "{judged} frames are too few to tell");
    });
}
