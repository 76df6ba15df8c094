//! Names and sizes of ring files, and what becomes of a ring on a disk that takes no more.

use std::panic;
use std::thread;

use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use pcap_file::pcapng::{Block, PcapNgReader};

use super::super::Counts;
use super::super::pcapng::{About, Remark};
use super::super::queue::queue;
use super::*;

/// Four fit a file of the smallest size.
const PACKET_BYTES: usize = 15 << 10;

/// Works on an empty disk of this size, which nobody else sees.
fn on_disk(kilobytes: u32, work: impl FnOnce(&Path) + Send) {
    const NONE: Option<&str> = None;
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
    let mut config = CaptureConfig::new("eth0", Output::File(directory.join("x.pcapng")));
    config.ring = RingFiles {
        bytes: Some(RING_FILE_BYTES_MIN),
        files,
        ..RingFiles::default()
    };
    let (_, drainer) = queue(1 << 20, 1 << 14);
    let encoder = Encoder::new(&About::of(&config)).unwrap();
    Writer::open(&config, drainer, encoder, Duration::from_secs(17)).unwrap()
}

/// Gives the writer segments of a packet each, the first of which has this number.
fn take(writer: &mut Writer, first: u64, segments: u64) {
    for number in first..first + segments {
        let mut remark = Remark::default();
        let packet = [0; PACKET_BYTES];
        writer
            .encoder
            .packet(number, &packet, PACKET_BYTES, &mut remark);
        let counts = Counts {
            recorded: number,
            ..Counts::default()
        };
        let bytes = writer.encoder.swap(Vec::new());
        let goes_on = writer.take(Segment {
            bytes,
            packets: 1,
            standing: Standing {
                now: Duration::ZERO,
                began: Duration::ZERO,
                counts: counts.with_disk(writer.drainer.disk()),
            },
        });
        assert!(goes_on);
    }
}

/// The ring's files by their numbers, each with its packets. All are whole.
fn files(directory: &Path) -> Vec<(String, u64)> {
    let entries = fs::read_dir(directory).unwrap();
    let paths = entries.map(|entry| entry.unwrap().path());
    let mut files: Vec<_> = paths
        .filter_map(|path| {
            let name = path.file_name()?.to_str()?.strip_prefix("x_17_")?;
            let number = name.strip_suffix(".pcapng")?.to_owned();
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

fn numbered_files(expected: &[(&str, u64)]) -> Vec<(String, u64)> {
    let owned = |&(number, packets): &(&str, u64)| (number.to_owned(), packets);
    expected.iter().map(owned).collect()
}

#[test]
fn a_file_that_cannot_begin_leaves_none_without_a_header() {
    on_disk(1024, |disk| {
        let mut writer = ring(disk, None);
        take(&mut writer, 1, 4);
        let filler = fill(disk);
        take(&mut writer, 5, 1);
        assert_eq!(files(disk), numbered_files(&[("00001", 4)]));
        thread::sleep(RETRY);
        take(&mut writer, 6, 1);
        assert_eq!(files(disk), numbered_files(&[("00001", 4)]));
        fs::remove_file(filler).unwrap();
        thread::sleep(RETRY);
        take(&mut writer, 7, 1);
        assert_eq!(files(disk), numbered_files(&[("00001", 4), ("00002", 1)]));
        assert_eq!(writer.drainer.disk(), 2);
        assert!(writer.written.failure.is_some());
    });
}

/// Two files fill the disk.
#[test]
fn a_ring_makes_room_for_its_next_file() {
    on_disk(128, |disk| {
        let mut writer = ring(disk, Some(2));
        take(&mut writer, 1, 13);
        assert_eq!(files(disk), numbered_files(&[("00003", 4), ("00004", 1)]));
        assert_eq!(writer.drainer.disk(), 0);
        assert!(writer.written.failure.is_none());
    });
}

#[test]
fn a_file_that_cannot_be_made_is_tried_again_after_a_while() {
    let directory = tempfile::tempdir().unwrap();
    let [place, away] = ["place", "away"].map(|name| directory.path().join(name));
    fs::create_dir(&place).unwrap();
    let mut writer = ring(&place, None);
    take(&mut writer, 1, 4);
    fs::rename(&place, &away).unwrap();
    take(&mut writer, 5, 1);
    let bytes = || {
        let file = away.join("x_17_00001.pcapng");
        fs::metadata(file).unwrap().len()
    };
    let said = bytes();
    take(&mut writer, 6, 3);
    assert_eq!(bytes(), said, "it was tried again at once");
    assert!(said <= RING_FILE_BYTES_MIN);
    for segment in 9..12 {
        thread::sleep(RETRY);
        take(&mut writer, segment, 1);
    }
    assert!(bytes() <= RING_FILE_BYTES_MIN, "each try says so");
    fs::rename(&away, &place).unwrap();
    thread::sleep(RETRY);
    take(&mut writer, 12, 1);
    assert_eq!(files(&place), numbered_files(&[("00001", 4), ("00002", 1)]));
    assert_eq!(writer.drainer.disk(), 7);
}

#[test]
fn ring_files_sort_by_name() {
    let at = |number| numbered(Path::new("/tmp/a.b.pcapng"), 17, number);
    assert_eq!(at(1), Path::new("/tmp/a.b_17_00001.pcapng"));
    assert!(at(9) < at(10));
    assert_eq!(numbered(Path::new("x"), 1, 2), Path::new("x_1_00002"));
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
