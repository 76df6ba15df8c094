//! What the kernel writes under `/proc`, and what a killed guard leaves behind, without
//! either: for fuzzing, and for tests that do the same with fewer inputs.

use crate::counters::stack::{Stack, add_lines, add_pairs, softnet_rows};
use crate::host::{is_packet_reader, is_raw_reader, parse_nodes, parse_release};
use crate::knobs::record::Record;
use crate::link::is_local;
use crate::process::{Process, parse_start_ticks};

/// Any text at each parser of `/proc`: nothing panics, and no number is made up.
///
/// # Panics
///
/// If that is not so: our own fault.
pub fn check_proc(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let mut stack = Stack::new();
    add_pairs(&mut stack, &text);
    add_lines(&mut stack, &text);
    for value in stack.values() {
        // With leading zeros or a sign it may be written longer.
        assert!(text.contains(&value.to_string()), "{value} in {text:?}");
    }
    let lower = text.to_lowercase();
    for row in softnet_rows(&text) {
        let digits = format!("{:x}", row.dropped);
        assert!(lower.contains(&digits), "{row:?} in {text:?}");
    }
    if let Some(start) = parse_start_ticks(&text) {
        assert!(text.contains(&start.to_string()), "{start} in {text:?}");
    }
    if let Some(process) = Process::parse(&text) {
        assert_eq!(Process::parse(&process.to_string()), Some(process));
    }
    if let Some((major, minor)) = parse_release(&text) {
        assert_eq!(
            parse_release(&format!("{major}.{minor}")),
            Some((major, minor))
        );
    }
    // Nodes are counted from 0.
    assert_ne!(parse_nodes(&text), Some(0), "{text:?}");
    for line in text.lines() {
        // A socket that reads has a protocol, and both tables have several words.
        let reads = is_packet_reader(line) || is_raw_reader(line);
        assert!(!reads || line.split_whitespace().count() > 1, "{line:?}");
    }
    let address = std::net::Ipv6Addr::LOCALHOST;
    assert!(!is_local(&text, address) || text.contains("00000001"));
}

/// Any bytes as the record of turned settings: a record or none, and a record is
/// written as it was read.
///
/// # Panics
///
/// If that is not so: our own fault.
pub fn check_record(bytes: &[u8]) {
    if let Ok(read) = Record::parse(bytes) {
        let again = serde_json::to_vec(&read).expect("a record is JSON");
        let again = Record::parse(&again).expect("what was written is a record");
        assert_eq!(again, read, "it is written as it was read");
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::{any, proptest};

    use super::*;

    /// What Linux wrote there, each with what tells it from the others.
    const SEEN: [&str; 8] = [
        "Ip: Forwarding InReceives\nIp: 2 42\nTcp: MaxConn InSegs\nTcp: -1 7\n",
        "Ip6InReceives   \t3\nIp6InOctets\n\nx y\n",
        "15 1 0 0 0 0 0 0 0 0 0 0 0 0 0\n15 a 0 0 0 0 0 0 0 0 0 0 2 0 0\n",
        "7 (a) b) S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 4711 20 21\n",
        "6.18.44-1-amd64\n",
        "sk RefCnt Type Proto Iface R Rmem User Inode\n0 3 3 0003 2 1 0 0 1\n",
        "sl local_address rem_address\n17: 00000000:0011 00000000:0000 07 0:0\n",
        "00000000000000000000000000000001 80 00000000000000000000000000000000 00 \
         00000000000000000000000000000000 00000000 00000002 00000000 80200001       lo\n",
    ];

    #[test]
    fn what_linux_wrote_is_read() {
        for text in SEEN {
            check_proc(text.as_bytes());
        }
    }

    proptest! {
        #[test]
        fn damage_to_what_linux_wrote_harms_nobody(
            seen in proptest::sample::select(SEEN.to_vec()),
            cut: proptest::sample::Index,
            damage in vec((any::<proptest::sample::Index>(), any::<u8>()), 0..4),
        ) {
            let mut text = seen.as_bytes().to_vec();
            for (place, byte) in damage {
                let place = place.index(text.len());
                text[place] = byte;
            }
            check_proc(&text);
            check_proc(&text[..cut.index(text.len())]);
        }

        #[test]
        fn no_text_and_no_bytes_harm(
            lines in vec("[A-Za-z0-9: \t-]{0,60}|.{0,40}", 0..8),
            bytes in vec(any::<u8>(), 0..200),
        ) {
            check_proc(lines.join("\n").as_bytes());
            check_proc(&bytes);
            check_record(&bytes);
        }
    }
}
