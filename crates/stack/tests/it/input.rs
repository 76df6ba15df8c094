//! The input path with frames nobody would send, and what a frame costs.

use std::fs;
use std::iter;
use std::net::SocketAddr;
use std::path::Path;

use plimsoll_packets::frame::{self, Packet};
use plimsoll_stack::Outcome;
use plimsoll_stack::device::{Batch, Device};
use plimsoll_stack::driven::{Driven, IN_VLAN, Reached, TRUSTING, check, run};
use proptest::prelude::*;

/// Frames of every kind that the stack deals with.
fn frames() -> Vec<Vec<u8>> {
    let at = |text: &str| text.parse::<SocketAddr>().unwrap();
    let udp = |from: &str, to: &str| frame::udp(at(from), at(to), b"payload");
    let ping = |from: &str, to: &str, kind| {
        Packet::new(from.parse().unwrap(), to.parse().unwrap()).icmp(kind, &[0; 30])
    };
    let mut frames = vec![
        udp("10.0.0.1:5", "10.0.0.2:7"),
        udp("10.0.0.1:5", "10.0.0.2:9"),
        udp("10.0.0.1:5", "10.0.0.255:7"),
        udp("10.0.0.1:5", "192.0.2.1:7"),
        udp("[fd00::1]:5", "[fd00::2]:7"),
        udp("[fd00::1]:5", "[fd00::2]:9"),
        ping("10.0.0.1", "10.0.0.2", 8),
        ping("fd00::1", "fd00::2", 128),
        ping("fd00::1", "fd00::2", 135),
        frame::arp("10.0.0.1".parse().unwrap(), "10.0.0.2".parse().unwrap(), 0),
    ];
    // To whatever address the builder put there: for everybody.
    for frame in &mut frames {
        frame[..6].fill(0xff);
    }
    frames.extend(seeds().into_iter().flat_map(|seed| seed.frames));
    frames
}

/// What fuzzing starts from: a file.
#[derive(Clone, Debug)]
struct Seed {
    name: String,
    mode: u8,
    frames: Vec<Vec<u8>>,
}

impl Seed {
    fn named(name: &str) -> Self {
        let all = seeds().into_iter();
        let mut found = all.filter(|seed| seed.name == name);
        found.next().unwrap_or_else(|| panic!("no seed {name}"))
    }

    /// What it leads to, on every path.
    fn reaches(&self, checked: impl Fn(&Reached)) {
        for path in 0..5 {
            let mode = (self.mode & (TRUSTING | IN_VLAN)) | path;
            let reached = run(&input(mode, &self.frames));
            println!("{}, mode {mode:#x}: {reached:?}", self.name);
            checked(&reached);
        }
    }
}

fn seeds() -> Vec<Seed> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds/stack");
    let files = fs::read_dir(&folder).unwrap().map(|file| file.unwrap());
    let read = |file: fs::DirEntry| {
        let bytes = fs::read(file.path()).unwrap();
        let (mut rest, mut frames) = (&bytes[1..], Vec::new());
        while let Some((length, others)) = rest.split_first() {
            let (frame, others) = others.split_at(usize::from(*length));
            frames.push(frame.to_vec());
            rest = others;
        }
        Seed {
            name: file.file_name().into_string().unwrap(),
            mode: bytes[0],
            frames,
        }
    };
    files.map(read).collect()
}

/// Frames as the fuzz target takes them.
fn input(mode: u8, frames: &[Vec<u8>]) -> Vec<u8> {
    let frames = frames.iter().flat_map(|frame| {
        let length = u8::try_from(frame.len()).expect("a short frame");
        iter::once(length).chain(frame.iter().copied())
    });
    [mode].into_iter().chain(frames).collect()
}

/// Queries went to nobody, and so switches that snoop stopped to deliver groups.
#[test]
fn queries_reach_who_answers_them_and_malformed_ones_end_there() {
    let queries = seeds()
        .into_iter()
        .filter(|seed| seed.name.ends_with("queries"));
    for Seed { name, frames, .. } in queries {
        assert!(!frames.is_empty(), "{name}");
        for frame in frames {
            let mut driven = Driven::new("soft-lrp");
            driven.cable.send(&frame);
            driven.receive();
            driven.settle();
            let counts = driven.counts();
            let control = u64::from(!name.starts_with("malformed"));
            assert_eq!(counts[Outcome::Control], control, "{name}: {frame:02x?}");
            assert_eq!((counts.received, counts.ended()), (1, 1), "{counts:?}");
        }
    }
}

/// Connections come about, and carry data in and out of order, past a closed window and to their
/// end.
#[test]
fn a_seed_is_a_connection_where_checksums_are_trusted() {
    let mut seed = Seed::named("tcp-connection");
    seed.reaches(|reached| {
        assert_eq!((reached.accepted, reached.ended), (2, 2));
        assert_eq!(reached.bytes, 22);
        assert!(reached.counts[Outcome::SynCookie] > 0);
        assert!(reached.counts[Outcome::ClosedPort] > 0);
    });
    // A changed byte does not end at a checksum there.
    let payload = seed.frames[2].len() - 1;
    seed.frames[2][payload] ^= 1;
    seed.reaches(|reached| assert_eq!((reached.bytes, reached.counts[Outcome::Checksum]), (22, 0)));
    seed.mode &= !TRUSTING;
    seed.reaches(|reached| assert_eq!((reached.accepted, reached.bytes), (0, 0)));
}

/// Timers run out: who acknowledges nothing is given up.
#[test]
fn time_goes_by_between_frames() {
    let mut seed = Seed::named("tcp-connection");
    seed.frames.truncate(3);
    seed.reaches(|reached| assert_eq!((reached.accepted, reached.ended), (1, 0)));
    seed.frames.extend([vec![255], vec![255]]);
    seed.reaches(|reached| assert_eq!((reached.accepted, reached.ended), (1, 1)));
}

#[test]
fn a_seed_is_fragments_in_and_out_of_order_overlapping_and_alone() {
    Seed::named("fragments").reaches(|reached| {
        assert_eq!(
            reached.datagrams, 5,
            "four in fragments, one in a single one"
        );
        assert!(reached.counts[Outcome::Reassembled] > 0);
        assert!(reached.counts[Outcome::FragmentOverlap] > 0);
    });
}

/// Joined groups, a connected socket, and two at one port.
#[test]
fn a_seed_is_for_sockets_of_every_kind() {
    Seed::named("other-sockets").reaches(|reached| {
        assert_eq!((reached.datagrams, reached.told), (7, 1));
        assert_eq!(reached.counts[Outcome::Group], 1);
    });
}

#[test]
fn a_seed_is_for_others_and_forwarded() {
    Seed::named("forwarding").reaches(|reached| {
        assert_eq!(reached.counts[Outcome::Forwarded], 2);
        assert_eq!(reached.counts[Outcome::Forward], 4);
    });
}

#[test]
fn a_seed_is_of_a_vlan() {
    let mut seed = Seed::named("vlan");
    seed.reaches(|reached| {
        assert_eq!((reached.datagrams, reached.bytes), (3, 5));
        assert_eq!(reached.counts.received, 7, "without another VLAN's");
    });
    seed.mode &= !IN_VLAN;
    seed.reaches(|reached| assert_eq!((reached.datagrams, reached.bytes), (1, 5)));
}

type Changes = Vec<(prop::sample::Index, u8)>;

fn changes() -> impl Strategy<Value = Changes> {
    prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4)
}

fn change(frame: &mut [u8], changes: Changes) {
    for (place, value) in changes {
        let place = place.index(frame.len());
        frame[place] = value;
    }
}

/// Some that goes by, in a frame's place.
fn time() -> impl Strategy<Value = Vec<u8>> {
    any::<u8>().prop_map(|time| vec![time])
}

/// Frames with some bytes changed, as the fuzz target takes them.
fn changed_frames() -> impl Strategy<Value = Vec<u8>> {
    let frame = (prop::sample::select(frames()), changes(), 0..40_usize);
    let frame = frame.prop_map(|(mut frame, changes, cut)| {
        change(&mut frame, changes);
        frame.truncate(frame.len().saturating_sub(cut.saturating_sub(30)).min(255));
        frame
    });
    let any_frame = prop_oneof![9 => frame, 1 => time()];
    (any::<u8>(), prop::collection::vec(any_frame, 1..30))
        .prop_map(|(mode, frames)| input(mode, &frames))
}

/// A seed's frames in their order, a few of them changed, and pauses between them: a connection,
/// say, that goes wrong.
fn changed_seeds() -> impl Strategy<Value = Vec<u8>> {
    let some = prop::collection::vec((any::<prop::sample::Index>(), changes()), 0..3);
    let pauses = prop::collection::vec((any::<prop::sample::Index>(), time()), 0..3);
    let all = (prop::sample::select(seeds()), any::<u8>(), some, pauses);
    all.prop_map(|(mut seed, path, some, pauses)| {
        let count = seed.frames.len();
        for (which, changes) in some {
            change(&mut seed.frames[which.index(count)], changes);
        }
        for (behind, time) in pauses {
            seed.frames.insert(1 + behind.index(count), time);
        }
        let mode = (seed.mode & (TRUSTING | IN_VLAN)) | (path % 5);
        input(mode, &seed.frames)
    })
}

proptest! {
    #[test]
    fn whatever_comes_nothing_panics_and_everything_is_counted(bytes in changed_frames()) {
        check(&bytes);
    }

    #[test]
    fn nor_where_one_frame_goes_on_from_the_last(bytes in changed_seeds()) {
        check(&bytes);
    }

    #[test]
    fn not_even_with_arbitrary_bytes(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
        check(&bytes);
    }
}

/// LRP-15, LRP-32: a damaged datagram is queued as any other, and found out by
/// whoever asks for it. Eager processing finds it before anybody asks.
#[test]
fn protocol_work_is_done_in_the_receiving_call() {
    let mut damaged = frames().swap_remove(0);
    *damaged.last_mut().unwrap() ^= 1;
    for (path, before) in [("soft-lrp", 0), ("early-demux", 1)] {
        let mut driven = Driven::new(path);
        driven.cable.send(&damaged);
        driven.receive();
        assert_eq!(driven.counts()[Outcome::Checksum], before, "{path}");
        assert_eq!(driven.drain(), 0);
        assert_eq!(driven.counts()[Outcome::Checksum], 1, "{path}");
    }
}

/// LRP-33: no thread takes a turn between the call and the link.
#[test]
fn sending_is_the_callers() {
    let mut driven = Driven::new("soft-lrp");
    driven.cable.send(&frames().swap_remove(0));
    driven.receive();
    let mut datagrams = vec![driven.sockets[0].recv_datagram().unwrap()];
    let mut sent = Batch::new();
    driven.cable.receive(&mut sent, 8).unwrap();
    sent.clear();
    driven.sockets[0].reply_batch(&mut datagrams).unwrap();
    assert_eq!(driven.cable.receive(&mut sent, 8).unwrap(), 1);
}

#[test]
fn receiving_allocates_nothing_per_packet() {
    for path in ["eager", "early-demux", "soft-lrp", "polled"] {
        let mut driven = Driven::new(path);
        let frames = frames();
        let datagrams = [frames[0].clone(), frames[4].clone()];
        let mut delivered = 0;
        let mut round = |driven: &mut Driven| {
            for frame in datagrams.iter().cycle().take(32) {
                driven.cable.send(frame);
            }
            driven.receive();
            delivered += driven.drain();
        };
        // Queues of this thread get their capacity.
        round(&mut driven);
        let allocated = allocation_counter::measure(|| {
            for _ in 0..20 {
                round(&mut driven);
            }
        });
        assert_eq!(delivered, 21 * 32, "{path}");
        assert_eq!(allocated.count_total, 0, "{path}: {allocated:?}");
    }
}

#[test]
fn answering_allocates_nothing_per_packet() {
    let mut driven = Driven::new("soft-lrp");
    let question = frames().swap_remove(0);
    let (mut batch, mut sent) = (Vec::with_capacity(32), Batch::with_capacity(64));
    let mut answered = 0;
    let mut round = |driven: &mut Driven| {
        for _ in 0..32 {
            driven.cable.send(&question);
        }
        driven.receive();
        let socket = &driven.sockets[0];
        while socket.recv_batch(&mut batch, 32).is_ok() {
            answered += socket.reply_batch(&mut batch).unwrap();
            let payload: (&[u8], _) = (b"single", "10.0.0.1:9".parse().unwrap());
            socket.send_batch([payload]).unwrap();
        }
        while driven.cable.receive(&mut sent, 64).unwrap() > 0 {
            sent.clear();
        }
    };
    // Queues get their capacity, and the neighbour is asked for, for which some frames wait.
    round(&mut driven);
    driven.settle();
    for _ in 1..80 {
        round(&mut driven);
    }
    let allocated = allocation_counter::measure(|| {
        for _ in 0..20 {
            round(&mut driven);
        }
    });
    assert_eq!(answered, 100 * 32);
    assert_eq!(allocated.count_total, 0, "{allocated:?}");
}

#[test]
fn a_flood_for_a_full_socket_allocates_nothing_either() {
    let mut driven = Driven::new("soft-lrp");
    let flood = frames().swap_remove(0);
    let round = |driven: &mut Driven| {
        for _ in 0..200 {
            driven.cable.send(&flood);
        }
        driven.receive();
    };
    round(&mut driven);
    round(&mut driven);
    let allocated = allocation_counter::measure(|| {
        for _ in 0..20 {
            round(&mut driven);
        }
    });
    assert_eq!(allocated.count_total, 0, "{allocated:?}");
    assert_eq!(driven.drain(), 256, "a channel's worth");
}

/// What may not be answered is not looked at: its channel stays full, and the rest is
/// discarded by the demultiplexer.
#[test]
fn frames_for_closed_ports_are_looked_at_as_fast_as_they_may_be_answered() {
    let mut driven = Driven::new("soft-lrp");
    let mut stray = frames().swap_remove(0);
    // The low byte of an IPv4 datagram's destination port.
    stray[14 + 20 + 3] = 9;
    for _ in 0..6 {
        for _ in 0..100 {
            driven.cable.send(&stray);
        }
        driven.receive();
        driven.settle();
    }
    let counts = driven.counts();
    // Some fifty at once, and one per millisecond: fewer than half of that once in 10^8 runs.
    assert!(counts[Outcome::ClosedPort] >= 25, "{counts:?}");
    assert!(counts[Outcome::Full] > 100, "{counts:?}");
    assert_eq!(
        counts.received,
        counts.ended() + counts.queued,
        "{counts:?}"
    );
}
