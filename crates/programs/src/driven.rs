//! What operators and strangers give to the programs, without the programs: for fuzzing,
//! and for tests that do the same with fewer inputs.

use std::io::Write as _;
use std::time::Duration;

use pcap_file::DataLink;
use pcap_file::pcap::{PcapPacket, PcapWriter};
use pcap_file::pcapng::PcapNgWriter;
use pcap_file::pcapng::blocks::enhanced_packet::EnhancedPacketBlock;
use pcap_file::pcapng::blocks::interface_description::InterfaceDescriptionBlock;

use crate::capture::{ArrivalsConfig, ArrivalsError, arrivals};
use crate::filter::Filter;
use crate::screen::{Rules, Screen as _, Side, Verdict};

/// Packets of [`capture`].
const PACKETS: u64 = 3;
const DATA: &[u8] = &[7; 41];

/// An expression up to the first zero, and a frame: nothing panics, an expression that is
/// refused is refused as a rule as well, and a rule says of a frame what the filter says.
///
/// # Panics
///
/// If that is not so: our own fault.
pub fn check_filter(bytes: &[u8]) {
    let end = bytes.iter().position(|byte| *byte == 0);
    let (expression, frame) = bytes.split_at(end.unwrap_or(bytes.len()));
    let Ok(expression) = std::str::from_utf8(expression) else {
        return;
    };
    let filter = Filter::compile(expression);
    let text = format!(
        "default = 'discard'\n[[rule]]\nfilter = {}\nverdict = 'accept'\n",
        toml::Value::from(expression)
    );
    let rules = Rules::parse(&text);
    assert_eq!(filter.is_ok(), rules.is_ok(), "{expression:?}");
    let (Ok(filter), Ok(mut rules)) = (filter, rules) else {
        return;
    };
    let is_accepted = rules.decide(frame, Side::Inside) == Verdict::Accept;
    assert_eq!(filter.accepts(frame), is_accepted, "{expression:?}");
    let program = filter.instructions();
    // BPF_RET: the kernel takes no program that goes on behind its end.
    assert!(
        program.last().is_none_or(|last| last.code & 7 == 6),
        "{expression:?}"
    );
}

/// A file: nothing panics, and it has an error or times in order.
///
/// # Panics
///
/// If that is not so, or no file can be written.
pub fn check_replay(bytes: &[u8]) {
    let mut file = tempfile::NamedTempFile::new().expect("a file");
    file.write_all(bytes).expect("room on the disk");
    let config = ArrivalsConfig {
        file: file.path().to_owned(),
        filter: String::new(),
        packets_max: None,
        time_max: Duration::MAX,
    };
    match arrivals(&config) {
        Ok(times) => assert!(times[0].is_zero() && times.is_sorted(), "{times:?}"),
        // Those before the damage can be had.
        Err(ArrivalsError::Damaged { packets, .. }) if packets > 0 => {
            let packets_max = Some(packets as u64);
            let times = arrivals(&ArrivalsConfig {
                packets_max,
                ..config
            });
            assert_eq!(times.map(|times| times.len()).ok(), Some(packets));
        }
        Err(_) => {}
    }
}

/// A capture with some packets: a pcapng or a pcap file.
///
/// # Panics
///
/// Never: memory can be written.
#[must_use]
pub fn capture(is_new: bool) -> Vec<u8> {
    let times = (0..PACKETS).map(|number| Duration::from_millis(1000 + number));
    if !is_new {
        let mut writer = PcapWriter::new(Vec::new()).expect("memory");
        for time in times {
            let packet = PcapPacket::new(time, 41, DATA);
            writer.write_packet(&packet).expect("memory");
        }
        return writer.into_writer();
    }
    let mut writer = PcapNgWriter::new(Vec::new()).expect("memory");
    let interface = InterfaceDescriptionBlock::new(DataLink::ETHERNET, 65_535);
    writer.write_pcapng_block(interface).expect("memory");
    for timestamp in times {
        let packet = EnhancedPacketBlock {
            interface_id: 0,
            timestamp,
            original_len: 41,
            data: DATA.into(),
            options: Vec::new(),
        };
        writer.write_pcapng_block(packet).expect("memory");
    }
    writer.into_inner()
}
