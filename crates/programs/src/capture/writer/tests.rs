//! Names and sizes of ring files, and what becomes of a ring on a disk that takes no more.

use std::io::Read;
use std::ops::RangeInclusive;
use std::os::fd::OwnedFd;
use std::panic;
use std::thread;

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::mount::{MsFlags, mount, umount};
use nix::sched::{CloneFlags, unshare};
use pcap_file::pcapng::{Block, PcapNgReader};

use super::super::Counts;
use super::super::pcapng::{About, Remark};
use super::super::queue::{Filler, queue};
use super::names::numbered;
use super::*;

/// Four fit a file of the smallest size.
const PACKET_BYTES: usize = 15 << 10;
/// What a disk of the tests gives and takes at once.
const PAGE_BYTES: u64 = 4096;
/// The mount calls' source, kind or data.
const NONE: Option<&str> = None;

/// Works on an empty disk of this size, which nobody else sees.
fn on_disk(kilobytes: u32, work: impl FnOnce(&Path) + Send) {
    let directory = tempfile::tempdir().unwrap();
    let inside = || {
        unshare(CloneFlags::CLONE_NEWNS).expect("root, to make a mount namespace");
        mount(NONE, "/", NONE, MsFlags::MS_REC | MsFlags::MS_PRIVATE, NONE).unwrap();
        let size = format!("size={kilobytes}k");
        let (place, kind, size) = (directory.path(), Some("tmpfs"), Some(size.as_str()));
        mount(kind, place, kind, MsFlags::empty(), size).unwrap();
        work(place);
    };
    let worked = thread::scope(|scope| scope.spawn(inside).join());
    worked.unwrap_or_else(|payload| panic::resume_unwind(payload));
}

/// Takes all that is left of a disk.
fn fill(directory: &Path) -> PathBuf {
    let path = directory.join("filler");
    let mut file = File::create(&path).unwrap();
    while file.write_all(&[0; 64]).is_ok() {}
    path
}

fn ring(directory: &Path, files: Option<usize>) -> Writer {
    ring_since(directory, files, 17)
}

fn ring_since(directory: &Path, files: Option<usize>, began: u64) -> Writer {
    let mut config = CaptureConfig::new("eth0", Output::File(directory.join("x.pcapng")));
    config.ring = RingFiles {
        bytes: Some(RING_FILE_BYTES_MIN),
        files,
        ..RingFiles::default()
    };
    let (_, drainer) = queue(1 << 20, 1 << 14);
    let encoder = Encoder::new(&About::of(&config)).unwrap();
    Writer::open(&config, drainer, encoder, Duration::from_secs(began)).unwrap()
}

const ONE: Content = Content {
    packets: 1,
    told: 0,
};

/// Gives the writer segments of a packet each, the first of which has this number.
fn take(writer: &mut Writer, first: u64, segments: u64) {
    for number in first..first + segments {
        take_packet(writer, number, PACKET_BYTES);
    }
}

/// Gives the writer a segment of one packet of this length.
fn take_packet(writer: &mut Writer, number: u64, length: usize) {
    let mut remark = Remark::default();
    let packet = vec![0; length];
    writer.encoder.packet(number, &packet, length, &mut remark);
    let counts = Counts {
        recorded: number,
        ..Counts::default()
    };
    let bytes = writer.encoder.swap(Vec::new());
    writer.take(Segment {
        bytes,
        content: ONE,
        standing: Standing {
            now: Duration::ZERO,
            began: Duration::ZERO,
            counts: counts.with_disk(writer.drainer.disk()),
        },
    });
}

/// The ring's files by their numbers, each with its packets. All are whole.
fn files(directory: &Path) -> Vec<(u64, u64)> {
    let entries = fs::read_dir(directory).unwrap();
    let paths = entries.map(|entry| entry.unwrap().path());
    let mut files: Vec<_> = paths
        .filter_map(|path| {
            let name = path.file_name()?.to_str()?.strip_prefix("x_17_")?;
            let number = name.strip_suffix(".pcapng")?.parse().ok()?;
            Some((number, packets(&path)))
        })
        .collect();
    files.sort();
    files
}

fn packets(path: &Path) -> u64 {
    let bytes = fs::read(path).unwrap();
    let mut reader = PcapNgReader::new(&bytes[..]).expect("it begins with a section header");
    let mut packets = 0;
    while let Some(block) = reader.next_block() {
        packets += u64::from(matches!(block.unwrap(), Block::EnhancedPacket(_)));
    }
    packets
}

#[test]
fn a_file_that_cannot_begin_leaves_none_without_a_header() {
    on_disk(1024, |disk| {
        let mut writer = ring(disk, None);
        take(&mut writer, 1, 4);
        let filler = fill(disk);
        take(&mut writer, 5, 1);
        assert_eq!(files(disk), [(1, 4)]);
        thread::sleep(RETRY);
        take(&mut writer, 6, 1);
        assert_eq!(files(disk), [(1, 4)]);
        fs::remove_file(filler).unwrap();
        thread::sleep(RETRY);
        take(&mut writer, 7, 1);
        assert_eq!(files(disk), [(1, 4), (2, 1)]);
        assert_eq!(writer.drainer.disk(), 2);
        assert!(writer.written.failure.is_some());
    });
}

/// Two files fill the disk.
#[test]
fn a_ring_makes_room_for_its_next_file() {
    for most in [2, 5] {
        on_disk(128, |disk| {
            let mut writer = ring(disk, Some(most));
            take(&mut writer, 1, 13);
            assert_eq!(files(disk), [(3, 4), (4, 1)]);
            assert_eq!(writer.drainer.disk(), 0);
            assert!(writer.written.failure.is_none());
        });
    }
}

/// A file and a half fill the disk.
#[test]
fn a_ring_makes_room_in_the_middle_of_a_file() {
    for most in [2, 5] {
        on_disk(96, |disk| {
            let mut writer = ring(disk, Some(most));
            take(&mut writer, 1, 7);
            assert_eq!(files(disk), [(2, 3)]);
            take(&mut writer, 8, 6);
            assert_eq!(files(disk), [(3, 4), (4, 1)]);
            assert_eq!(writer.drainer.disk(), 0);
            assert!(writer.written.failure.is_none());
        });
    }
}

#[test]
fn a_ring_without_bound_removes_nothing() {
    on_disk(96, |disk| {
        let mut writer = ring(disk, None);
        take(&mut writer, 1, 7);
        let left = files(disk);
        assert_eq!(left.first(), Some(&(1, 4)));
        assert!(writer.drainer.disk() > 0);
        assert!(writer.written.failure.is_some());
    });
}

/// As with snapshots: the files have second names, so removing them makes no room.
#[test]
fn removing_that_does_not_help_ends() {
    on_disk(1024, |disk| {
        let mut writer = ring(disk, Some(9));
        take(&mut writer, 1, 13);
        for number in 1..4 {
            let name = numbered(&disk.join("x.pcapng"), 17, number);
            fs::hard_link(name, disk.join(format!("again_{number}"))).unwrap();
        }
        fill(disk);
        take(&mut writer, 14, 1);
        let left = [(2, 4), (3, 4), (4, 1)];
        assert_eq!(files(disk), left);
        assert_eq!(writer.drainer.disk(), 1);
    });
}

/// A mount point cannot be removed.
#[test]
fn a_file_that_cannot_be_removed_counts_and_is_tried_again() {
    on_disk(1024, |disk| {
        let mut writer = ring(disk, Some(2));
        take(&mut writer, 1, 8);
        let oldest = numbered(&disk.join("x.pcapng"), 17, 1);
        mount(Some(&oldest), &oldest, NONE, MsFlags::MS_BIND, NONE).unwrap();
        take(&mut writer, 9, 1);
        assert_eq!(files(disk), [(1, 4), (3, 1)]);
        umount(&oldest).unwrap();
        take(&mut writer, 10, 4);
        assert_eq!(files(disk), [(3, 4), (4, 1)]);
        assert_eq!(writer.drainer.disk(), 0);
    });
}

/// Two captures that began in the same second wrote to the same file.
#[test]
fn a_file_that_is_there_already_is_left_alone() {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path();
    let [mut first, mut second] = [(); 2].map(|()| ring(place, Some(2)));
    let obstacle = numbered(&place.join("x.pcapng"), 17, 3);
    fs::create_dir(&obstacle).unwrap();
    take(&mut first, 1, 5);
    take(&mut second, 1, 3);
    fs::remove_dir(&obstacle).unwrap();
    assert_eq!(files(place), [(1, 4), (2, 3), (4, 1)]);
    assert_eq!(first.drainer.disk() + second.drainer.disk(), 0);
}

/// The names of all that is there.
fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<_> = names.collect();
    names.sort();
    names
}

/// Each start had begun to count anew, so files piled up until the disk was full.
#[test]
fn files_of_earlier_captures_count() {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path();
    let others = [
        "x_15_1.pcapng",
        "x_15_00000001.pcap",
        "y_15_00000001.pcapng",
    ];
    for other in others {
        File::create(place.join(other)).unwrap();
    }
    let mine = || {
        let is_mine = |name: &String| !others.contains(&name.as_str());
        names(place).into_iter().filter(is_mine).collect::<Vec<_>>()
    };
    take(&mut ring_since(place, Some(3), 16), 1, 12);
    assert_eq!(mine().len(), 3);
    // Without a number nothing is removed.
    take(&mut ring_since(place, None, 17), 1, 1);
    assert_eq!(mine().len(), 4);
    let mut third = ring_since(place, Some(3), 18);
    let left = ["x_16_00000003.pcapng", "x_17_00000001.pcapng"];
    assert_eq!(mine(), [&left[..], &["x_18_00000001.pcapng"]].concat());
    take(&mut third, 1, 5);
    assert_eq!(mine().len(), 3);
    assert_eq!(names(place).len(), 3 + others.len());
    // It tells of its own alone.
    assert_eq!(third.run().files.len(), 2);
}

#[test]
fn files_of_a_capture_that_goes_on_are_not_taken_over() {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path();
    let mut first = ring_since(place, Some(3), 16);
    take(&mut first, 1, 9);
    let before = names(place);
    assert_eq!(before.len(), 3);
    take(&mut ring_since(place, Some(1), 17), 1, 1);
    assert_eq!(names(place)[..3], before);
    drop(first);
    take(&mut ring_since(place, Some(1), 18), 1, 1);
    assert_eq!(names(place), ["x_18_00000001.pcapng"]);
}

/// The disk has room for the next file's beginning and no more, and the last page of the file
/// before is full.
#[test]
fn no_packets_go_for_a_last_statement() {
    on_disk(1024, |disk| {
        let mut writer = ring(disk, None);
        take(&mut writer, 1, 2);
        let before = writer.open.bytes;
        take(&mut writer, 3, 1);
        let at = writer.open.bytes;
        let around = at - before - PACKET_BYTES as u64;
        let length = 15 * PAGE_BYTES - at - around;
        take_packet(&mut writer, 4, usize::try_from(length).unwrap());
        assert_eq!(writer.open.bytes % PAGE_BYTES, 0);
        let filler = File::options().write(true).open(fill(disk)).unwrap();
        let filled = filler.metadata().unwrap().len();
        filler.set_len(filled - PAGE_BYTES).unwrap();
        take(&mut writer, 5, 1);
        assert_eq!(files(disk), [(1, 4), (2, 0)]);
        assert_eq!(writer.drainer.disk(), 1);
    });
}

#[test]
fn a_file_that_cannot_be_made_is_tried_again_after_a_while() {
    let all = [(1, 4), (2, 4), (3, 1)];
    for (most, left) in [(None, &all[..]), (Some(2), &all[1..])] {
        let directory = tempfile::tempdir().unwrap();
        let [place, away] = ["place", "away"].map(|name| directory.path().join(name));
        fs::create_dir(&place).unwrap();
        let mut writer = ring(&place, most);
        take(&mut writer, 1, 8);
        fs::rename(&place, &away).unwrap();
        take(&mut writer, 9, 1);
        let bytes = || {
            let file = numbered(&away.join("x.pcapng"), 17, 2);
            fs::metadata(file).unwrap().len()
        };
        let said = bytes();
        assert!(writer.failed_at.is_some());
        // However long the next segments take.
        let failed_at = Some(Instant::now() + Duration::from_secs(60));
        writer.failed_at = failed_at;
        take(&mut writer, 10, 3);
        assert_eq!(writer.failed_at, failed_at, "it was tried again at once");
        assert_eq!(bytes(), said);
        assert!(said <= RING_FILE_BYTES_MIN);
        writer.failed_at = Some(Instant::now());
        for segment in 13..16 {
            thread::sleep(RETRY);
            take(&mut writer, segment, 1);
        }
        assert!(bytes() <= RING_FILE_BYTES_MIN, "each try says so");
        assert_eq!(files(&away), all[..2], "none was removed");
        fs::rename(&away, &place).unwrap();
        thread::sleep(RETRY);
        take(&mut writer, 16, 1);
        assert_eq!(files(&place), left);
        assert_eq!(writer.drainer.disk(), 7);
    }
}

#[test]
fn segments_are_a_quarter_of_a_ring_file_at_most() {
    let of = |bytes| {
        segment_bytes(&RingFiles {
            bytes,
            ..RingFiles::default()
        })
    };
    assert_eq!(of(None), SEGMENT_BYTES);
    assert_eq!(of(Some(1 << 16)), 1 << 14);
}

/// A capture that writes to `output`, and the end that it ships segments to.
fn to_stream(output: File) -> (Writer, Filler) {
    let config = CaptureConfig::new("eth0", Output::File("/dev/null".into()));
    let (filler, drainer) = queue(1 << 20, 1 << 14);
    let encoder = Encoder::new(&About::of(&config)).unwrap();
    let mut writer = Writer::open(&config, drainer, encoder, Duration::ZERO).unwrap();
    assert!(writer.open.is_stream(), "/dev/null is none that is cut");
    writer.open = OpenFile::new(Sink::Stream(output));
    (writer, filler)
}

fn ship(filler: &Filler, numbers: RangeInclusive<u64>) {
    let config = CaptureConfig::new("eth0", Output::Standard);
    let (mut encoder, _) = Encoder::new(&About::of(&config)).unwrap();
    for number in numbers {
        encoder.packet(
            number,
            &[0; PACKET_BYTES],
            PACKET_BYTES,
            &mut Remark::default(),
        );
        let counts = Counts {
            recorded: number,
            ..Counts::default()
        };
        assert!(filler.ship(Segment {
            bytes: encoder.swap(filler.take().unwrap()),
            content: ONE,
            standing: Standing {
                now: Duration::ZERO,
                began: Duration::ZERO,
                counts: counts.with_disk(filler.disk()),
            },
        }));
    }
}

fn until_over(filler: &Filler) {
    let start = Instant::now();
    while !filler.is_over() {
        assert!(start.elapsed() < Duration::from_secs(20), "it goes on");
        thread::sleep(Duration::from_millis(1));
    }
}

/// Recorded and lost packets.
fn ends(written: &Written) -> (u64, u64) {
    let counts = written.standing.unwrap().counts;
    (counts.recorded, counts.disk)
}

/// What was on its way was in no count, and the segment before in the wrong one.
#[test]
fn what_a_reader_that_goes_away_leaves_is_counted() {
    let (reader, output) = io::pipe().unwrap();
    let (writer, filler) = to_stream(File::from(OwnedFd::from(output)));
    thread::scope(|scope| {
        let writing = scope.spawn(|| writer.run());
        ship(&filler, 1..=2);
        let mut file = vec![0; 2 * PACKET_BYTES];
        (&reader).read_exact(&mut file).unwrap();
        drop(reader);
        ship(&filler, 3..=6);
        until_over(&filler);
        ship(&filler, 7..=9);
        drop(filler);
        let written = writing.join().unwrap();
        let (recorded, lost) = ends(&written);
        assert_eq!(recorded + lost, 9);
        // The second may have had its last bytes still to write.
        assert!((1..=2).contains(&recorded), "{recorded}");
        assert!(written.failure.is_none());
    });
}

#[test]
fn the_first_failure_of_a_stream_ends_the_capture() {
    let full = File::options().write(true).open("/dev/full").unwrap();
    let (writer, filler) = to_stream(full);
    ship(&filler, 1..=3);
    thread::scope(|scope| {
        let writing = scope.spawn(|| writer.run());
        until_over(&filler);
        drop(filler);
        let written = writing.join().unwrap();
        assert_eq!(ends(&written), (0, 3));
        assert!(is_disk_full(&written.failure.unwrap()));
    });
}

/// A reader that is gone before the last counts costs no packets.
#[test]
fn counts_that_a_stream_does_not_take_replace_no_packets() {
    let (reader, output) = io::pipe().unwrap();
    let (mut writer, filler) = to_stream(File::from(OwnedFd::from(output)));
    ship(&filler, 1..=1);
    let segment = writer.drainer.next(Duration::ZERO).unwrap();
    writer.take(segment);
    drop((reader, filler));
    assert_eq!(ends(&writer.run()), (1, 0));
}

/// The pipe holds less than is written, and its other end made it one that does not block.
#[test]
fn a_pipe_that_does_not_block_is_waited_for() {
    let (reader, output) = io::pipe().unwrap();
    fcntl(&output, FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).unwrap();
    let (writer, filler) = to_stream(File::from(OwnedFd::from(output)));
    thread::scope(|scope| {
        let writing = scope.spawn(|| writer.run());
        ship(&filler, 1..=20);
        drop(filler);
        let mut file = Vec::new();
        (&reader).read_to_end(&mut file).unwrap();
        assert!(file.len() > 20 * PACKET_BYTES);
        let written = writing.join().unwrap();
        assert_eq!(ends(&written), (20, 0));
        assert!(written.failure.is_none());
    });
}
