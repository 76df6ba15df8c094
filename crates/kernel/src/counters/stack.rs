//! The stack's counters of a network namespace by name.
//!
//! `/proc/net/snmp` and `/proc/net/netstat` come as pairs of lines, names and
//! values (`Ip.InReceives`, `TcpExt.ListenDrops`); `/proc/net/snmp6` has a name
//! and a value per line (`Ip6InReceives`). What they count is in the kernel's
//! `Documentation/networking/snmp_counter.rst` and RFC 4293.

use std::collections::HashMap;
use std::fs;

/// Counters by name.
pub type Stack = HashMap<String, u64>;

/// Neighbour discovery of one interface (RFC 4861): `Icmp6InType133` to 137.
const NEIGHBOUR_TYPES: std::ops::RangeInclusive<u32> = 133..=137;

/// All of the current network namespace; empty where there is no `/proc`.
pub fn read() -> Stack {
    let mut stack = Stack::new();
    for path in [
        "/proc/thread-self/net/snmp",
        "/proc/thread-self/net/netstat",
    ] {
        add_pairs(&mut stack, &fs::read_to_string(path).unwrap_or_default());
    }
    let path = "/proc/thread-self/net/snmp6";
    add_lines(&mut stack, &fs::read_to_string(path).unwrap_or_default());
    stack
}

/// Messages of IPv6 neighbour discovery that `interface` received.
pub fn neighbour_messages(interface: &str) -> u64 {
    let path = format!("/proc/thread-self/net/dev_snmp6/{interface}");
    let mut counters = Stack::new();
    add_lines(&mut counters, &fs::read_to_string(path).unwrap_or_default());
    NEIGHBOUR_TYPES
        .filter_map(|number| counters.get(&format!("Icmp6InType{number}")))
        .sum()
}

/// Packets dropped from the backlog queues of all CPUs, each counter 32 bits
/// wide (`/proc/net/softnet_stat`, second column).
pub fn backlog_dropped() -> Vec<u32> {
    let rows = softnet_rows(&read_softnet());
    rows.into_iter().map(|row| row.dropped).collect()
}

/// The same of one CPU, if the kernel shows its row (and, since 5.10, whose it is).
pub fn backlog_dropped_of(cpu: usize) -> Option<u32> {
    let rows = softnet_rows(&read_softnet());
    let mut rows = rows.into_iter();
    rows.find(|row| row.cpu.is_some_and(|of| of as usize == cpu))
        .map(|row| row.dropped)
}

/// Whether any packet was handed to another CPU than the one that received it (RPS), since the
/// machine began.
pub fn has_steered() -> bool {
    let rows = softnet_rows(&read_softnet());
    rows.iter().any(|row| row.steered != 0)
}

fn read_softnet() -> String {
    fs::read_to_string("/proc/thread-self/net/softnet_stat").unwrap_or_default()
}

/// A CPU's row of `/proc/net/softnet_stat`. CPUs that are offline have none.
#[derive(Debug, PartialEq)]
pub(crate) struct Softnet {
    cpu: Option<u32>,
    pub(crate) dropped: u32,
    /// Times that another CPU had packets for it.
    steered: u32,
}

/// The second column, the tenth and the thirteenth, in hexadecimal as all are.
pub(crate) fn softnet_rows(text: &str) -> Vec<Softnet> {
    let rows = text.lines().map(|line| {
        let column = |place| u32::from_str_radix(line.split(' ').nth(place)?, 16).ok();
        Some(Softnet {
            dropped: column(1)?,
            steered: column(9).unwrap_or(0),
            cpu: column(12),
        })
    });
    rows.flatten().collect()
}

pub(crate) fn add_pairs(stack: &mut Stack, text: &str) {
    let lines: Vec<&str> = text.lines().collect();
    for pair in lines.chunks_exact(2) {
        let (mut names, mut values) = (pair[0].split(' '), pair[1].split(' '));
        let (Some(group), Some(same)) = (names.next(), values.next()) else {
            continue;
        };
        if group != same {
            continue;
        }
        let group = group.trim_end_matches(':');
        for (name, value) in names.zip(values) {
            // Some are signed (`Tcp.MaxConn` is -1); none that is used here.
            if let Ok(value) = value.parse() {
                stack.insert(format!("{group}.{name}"), value);
            }
        }
    }
}

pub(crate) fn add_lines(stack: &mut Stack, text: &str) {
    for line in text.lines() {
        let mut words = line.split_whitespace();
        if let (Some(name), Some(Ok(value))) = (words.next(), words.next().map(str::parse)) {
            stack.insert(name.to_owned(), value);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::{btree_map, vec};
    use proptest::{prop_assert, prop_assert_eq, proptest};

    use super::*;

    proptest! {
        #[test]
        fn all_counters_of_any_kernel_are_read(
            groups in btree_map("[A-Z][A-Za-z]{0,9}", btree_map("[A-Z][A-Za-z0-9]{0,20}", proptest::num::u64::ANY, 1..9), 0..5),
            softnet in vec(vec(proptest::num::u32::ANY, 2..15), 0..9),
        ) {
            let (mut pairs, mut lines) = (String::new(), String::new());
            let mut expected = Stack::new();
            for (group, counters) in &groups {
                let names: Vec<_> = counters.keys().map(String::as_str).collect();
                let values: Vec<_> = counters.values().map(u64::to_string).collect();
                pairs += &format!("{group}: {}\n{group}: {}\n", names.join(" "), values.join(" "));
                for (name, value) in counters {
                    lines += &format!("{group}{name:<32}\t{value}\n");
                    expected.insert(format!("{group}.{name}"), *value);
                }
            }
            let mut stack = Stack::new();
            add_pairs(&mut stack, &pairs);
            prop_assert_eq!(&stack, &expected);
            add_lines(&mut stack, &lines);
            for (name, value) in &expected {
                // Of two groups and names that read alike together, the last counts.
                let joined = name.replace('.', "");
                prop_assert!(stack.contains_key(&joined), "{joined} = {value}");
            }
            let text: String = softnet
                .iter()
                .map(|columns| {
                    let columns: Vec<_> = columns.iter().map(|c| format!("{c:08x}")).collect();
                    columns.join(" ") + "\n"
                })
                .collect();
            let rows = softnet.iter().map(|columns| Softnet {
                dropped: columns[1],
                cpu: columns.get(12).copied(),
                steered: columns.get(9).copied().unwrap_or(0),
            });
            prop_assert_eq!(softnet_rows(&text), rows.collect::<Vec<_>>());
        }
    }

    #[test]
    fn both_forms_are_read_by_name() {
        let mut stack = Stack::new();
        add_pairs(
            &mut stack,
            "Ip: Forwarding InReceives\nIp: 2 42\nTcp: MaxConn InSegs\nTcp: -1 7\nOdd: a\nEven: 1\n",
        );
        add_lines(&mut stack, "Ip6InReceives   \t3\nIp6InOctets\n\nx y\n");
        let mut all: Vec<_> = stack.into_iter().collect();
        all.sort();
        let expected = [
            ("Ip.Forwarding", 2),
            ("Ip.InReceives", 42),
            ("Ip6InReceives", 3),
            ("Tcp.InSegs", 7),
        ];
        assert_eq!(all, expected.map(|(name, value)| (name.to_owned(), value)));
    }

    #[test]
    fn the_backlog_s_drops_are_hexadecimal_and_found_by_their_cpu() {
        let row = |dropped, cpu| Softnet {
            cpu,
            dropped,
            steered: 0,
        };
        assert_eq!(
            softnet_rows("03bab7dd 000001f8 00000008\n2ed09f59 ffffffff 0\n"),
            [row(0x1f8, None), row(u32::MAX, None)]
        );
        // CPU 1 is offline.
        let text = "15 1 0 0 0 0 0 0 0 0 0 0 0 0 0\n15 a 0 0 0 0 0 0 0 0 0 0 2 0 0\n";
        assert_eq!(softnet_rows(text), [row(1, Some(0)), row(10, Some(2))]);
        assert_eq!(softnet_rows(""), []);
        let steered = "15 1 0 0 0 0 0 0 0 1f 0 0 0 0 0\n";
        assert_eq!(softnet_rows(steered)[0].steered, 0x1f);
    }
}
