//! Blocks of a pcapng file (draft-ietf-opsawg-pcapng), by the crate `pcap-file`.
//!
//! Every file is one section with one interface. Times are in nanoseconds. Counts are in
//! Interface Statistics Blocks, whose comment has all places, and in the packets' own
//! `epb_dropcount` and comment where something has changed: these are what Wireshark
//! shows beside the packet.
//!
//! **Byte order.** Big-endian. `pcap-file` 2.0 writes the time of an Interface Statistics
//! Block as one 64-bit number, where the format has the upper half first. In big-endian
//! order the two are the same.

use std::borrow::Cow;
use std::fmt;
use std::io;
use std::time::Duration;

use pcap_file::pcapng::blocks::enhanced_packet::{EnhancedPacketBlock, EnhancedPacketOption};
use pcap_file::pcapng::blocks::interface_description::{
    InterfaceDescriptionBlock, InterfaceDescriptionOption,
};
use pcap_file::pcapng::blocks::interface_statistics::{
    InterfaceStatisticsBlock, InterfaceStatisticsOption,
};
use pcap_file::pcapng::blocks::section_header::{SectionHeaderBlock, SectionHeaderOption};
use pcap_file::pcapng::{Block, PcapNgWriter};
use pcap_file::{DataLink, Endianness, PcapError};

use super::{CaptureConfig, Counts, Mode};

/// What a packet's block takes beside its bytes, options and padding included.
const PACKET_BLOCK_BYTES: usize = 12 + 20 + 3;
/// `if_tsresol`: 10⁻⁹ s.
const NANOSECONDS: u8 = 9;
/// `if_filter`: a libpcap expression follows.
const EXPRESSION: u8 = 0;

/// What the file says of itself.
#[derive(Clone, Debug)]
pub(super) struct About {
    pub(super) interface: String,
    pub(super) filter: String,
    pub(super) snaplen: u32,
    pub(super) mode: &'static str,
}

impl About {
    pub(super) fn of(config: &CaptureConfig) -> Self {
        Self {
            interface: config.interface.clone(),
            filter: config.filter.clone(),
            snaplen: config.snaplen,
            mode: match config.mode {
                Mode::Copy => "copy",
                Mode::Take => "take",
            },
        }
    }
}

/// A statement about the capture at one time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Standing {
    /// Time since 1970.
    pub(super) now: Duration,
    /// When the capture began.
    pub(super) began: Duration,
    pub(super) counts: Counts,
}

/// What is to be said beside the next packet.
#[derive(Clone, Debug, Default)]
pub(super) struct Remark {
    pub(super) comment: Option<String>,
    /// Packets that were lost since the last one.
    pub(super) lost: u64,
}

impl Remark {
    pub(super) fn is_empty(&self) -> bool {
        self.comment.is_none() && self.lost == 0
    }

    fn bytes(&self) -> usize {
        let comment = self.comment.as_ref().map_or(0, |text| 8 + text.len());
        comment + if self.is_empty() { 0 } else { 12 + 4 }
    }
}

/// Makes blocks in memory.
pub(super) struct Encoder {
    writer: PcapNgWriter<Vec<u8>>,
}

impl fmt::Debug for Encoder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Encoder").finish_non_exhaustive()
    }
}

impl Encoder {
    /// An encoder, and the bytes that every file begins with.
    pub(super) fn new(about: &About) -> io::Result<(Self, Vec<u8>)> {
        let section = SectionHeaderBlock {
            endianness: Endianness::Big,
            options: vec![
                SectionHeaderOption::OS(Cow::Borrowed("Linux")),
                SectionHeaderOption::UserApplication(Cow::Borrowed(concat!(
                    "plimsoll capture ",
                    env!("CARGO_PKG_VERSION")
                ))),
            ],
            ..SectionHeaderBlock::default()
        };
        let mut options = vec![
            InterfaceDescriptionOption::IfName(Cow::Owned(about.interface.clone())),
            InterfaceDescriptionOption::IfTsResol(NANOSECONDS),
            InterfaceDescriptionOption::Comment(Cow::Owned(format!("mode={}", about.mode))),
        ];
        if !about.filter.is_empty() {
            let mut filter = vec![EXPRESSION];
            filter.extend(about.filter.as_bytes());
            options.push(InterfaceDescriptionOption::IfFilter(Cow::Owned(filter)));
        }
        let interface = InterfaceDescriptionBlock {
            linktype: DataLink::ETHERNET,
            snaplen: about.snaplen,
            options,
        };
        let writer = PcapNgWriter::with_section_header(Vec::new(), section).map_err(failed)?;
        let mut encoder = Self { writer };
        encoder.write(&Block::InterfaceDescription(interface));
        let preamble = encoder.swap(Vec::new());
        Ok((encoder, preamble))
    }

    /// What was written; goes on in `buffer`.
    pub(super) fn swap(&mut self, buffer: Vec<u8>) -> Vec<u8> {
        std::mem::replace(self.writer.get_mut(), buffer)
    }

    /// What was written so far.
    pub(super) fn bytes(&self) -> &[u8] {
        self.writer.get_ref()
    }

    /// What the block of a packet takes at most.
    pub(super) fn room_for(kept: usize, remark: &Remark) -> usize {
        PACKET_BLOCK_BYTES + kept + remark.bytes()
    }

    /// Appends a packet: `kept` of its `whole` bytes.
    #[inline]
    pub(super) fn packet(&mut self, at_ns: u64, kept: &[u8], whole: usize, remark: &mut Remark) {
        let options = if remark.is_empty() {
            Vec::new()
        } else {
            options(std::mem::take(remark))
        };
        self.write(&Block::EnhancedPacket(EnhancedPacketBlock {
            interface_id: 0,
            timestamp: Duration::from_nanos(at_ns),
            original_len: whole as u32,
            data: Cow::Borrowed(kept),
            options,
        }));
    }

    /// Appends the counts, and why they are told now.
    pub(super) fn statistics(&mut self, standing: &Standing, why: &str) {
        use InterfaceStatisticsOption as Option;
        let Standing { now, began, counts } = standing;
        let nanos = |time: &Duration| time.as_nanos() as u64;
        self.write(&Block::InterfaceStatistics(InterfaceStatisticsBlock {
            interface_id: 0,
            timestamp: nanos(now),
            options: vec![
                Option::Comment(Cow::Owned(format!("{why}: {counts}"))),
                Option::IsbStartTime(nanos(began)),
                Option::IsbEndTime(nanos(now)),
                Option::IsbIfRecv(counts.received()),
                Option::IsbIfDrop(counts.dropped_before()),
                Option::IsbFilterAccept(counts.accepted()),
                Option::IsbOsDrop(counts.queue + counts.disk),
                Option::IsbUsrDeliv(counts.recorded),
            ],
        }));
    }

    fn write(&mut self, block: &Block<'_>) {
        // Memory takes everything, and all blocks are of the one interface.
        self.writer
            .write_block(block)
            .expect("a block of our own, into memory");
    }
}

fn options(remark: Remark) -> Vec<EnhancedPacketOption<'static>> {
    let comment = remark
        .comment
        .map(|text| EnhancedPacketOption::Comment(Cow::Owned(text)));
    let lost = (remark.lost > 0).then_some(EnhancedPacketOption::DropCount(remark.lost));
    comment.into_iter().chain(lost).collect()
}

fn failed(error: PcapError) -> io::Error {
    match error {
        PcapError::IoError(error) => error,
        other => io::Error::other(other),
    }
}

#[cfg(test)]
mod tests {
    use pcap_file::pcapng::PcapNgReader;

    use super::*;

    /// The longest that the config allows. One more, and the file had no readable beginning.
    #[test]
    fn a_file_with_a_long_filter_can_be_read() {
        let filter = " ".repeat(65_534);
        let (_, file) = Encoder::new(&About { filter, ..about() }).unwrap();
        let mut reader = PcapNgReader::new(&file[..]).unwrap();
        let block = reader.next_block().unwrap().unwrap();
        let Block::InterfaceDescription(interface) = block else {
            panic!("{block:?}");
        };
        let written = interface.options.iter().find_map(|option| match option {
            InterfaceDescriptionOption::IfFilter(filter) => Some(filter.len()),
            _ => None,
        });
        assert_eq!(written, Some(65_535));
        assert!(reader.next_block().is_none());
    }

    fn about() -> About {
        About {
            interface: "eth0".to_owned(),
            filter: "udp".to_owned(),
            snaplen: 96,
            mode: "copy",
        }
    }

    #[test]
    fn what_is_written_is_read_back() {
        let (mut encoder, mut file) = Encoder::new(&about()).unwrap();
        let mut remark = Remark {
            comment: Some("headers only".to_owned()),
            lost: 7,
        };
        let room = Encoder::room_for(3, &remark);
        encoder.packet(1_000_000_001, &[1, 2, 3], 60, &mut remark);
        assert!(remark.is_empty() && encoder.bytes().len() <= room);
        encoder.packet(2_000_000_002, &[4], 1, &mut remark);
        let counts = Counts {
            recorded: 2,
            ring: 7,
            ..Counts::default()
        };
        let standing = Standing {
            now: Duration::from_nanos(5_000_000_005),
            began: Duration::from_secs(1),
            counts,
        };
        encoder.statistics(&standing, "end");
        file.extend(encoder.swap(Vec::new()));

        let mut reader = PcapNgReader::new(&file[..]).unwrap();
        let mut blocks = Vec::new();
        while let Some(block) = reader.next_block() {
            blocks.push(block.unwrap().into_owned());
        }
        let [
            Block::InterfaceDescription(interface),
            Block::EnhancedPacket(first),
            Block::EnhancedPacket(second),
            Block::InterfaceStatistics(end),
        ] = &blocks[..]
        else {
            panic!("{blocks:?}");
        };
        assert_eq!(interface.snaplen, 96);
        assert_eq!((&first.data[..], first.original_len), (&[1, 2, 3][..], 60));
        assert_eq!(first.options[1], EnhancedPacketOption::DropCount(7));
        assert_eq!(second.timestamp, Duration::from_nanos(2_000_000_002));
        assert!(second.options.is_empty());
        assert!(
            end.options
                .contains(&InterfaceStatisticsOption::IsbIfRecv(9))
        );
        // The upper half of the time stands first, whatever this machine's order is.
        assert_eq!(end.timestamp, 5_000_000_005);
    }
}
