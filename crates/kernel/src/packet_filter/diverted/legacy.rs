//! The rules of legacy iptables that divert. TPROXY is for the table `mangle` alone, and a zone of
//! connection tracking for `raw`.
//!
//! The kernel gives all entries of a table at once (`IPT_SO_GET_ENTRIES`): `struct ipt_entry` or
//! `struct ip6t_entry`, which matches and a target follow.

#![allow(unsafe_code, reason = "options of a socket that no crate knows")]

use std::collections::HashSet;
use std::fs;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, UdpSocket};
use std::ops::Range;
use std::os::fd::AsRawFd;

use nix::errno::Errno;

use super::{Ports, Wanted, x_tables};

const TABLES: [&[u8]; 2] = [b"mangle", b"raw"];
/// Where a table's name ends, in questions and answers.
const NAME_BYTES: usize = 32;
/// `IPT_SO_GET_INFO` and `IPT_SO_GET_ENTRIES`, and `IP6T_…` as well.
const GET_INFO: i32 = 64;
const GET_ENTRIES: i32 = 65;
/// Of a `struct ipt_getinfo`, and where it says how many bytes all entries have.
const INFO_BYTES: usize = 84;
const INFO_SIZE: usize = 80;
/// Where entries begin in a `struct ipt_get_entries`.
const ENTRIES: usize = 40;
/// `IPT_INV_VIA_IN` and `IPT_INV_PROTO`: others are meant.
const INVERTED_INTERFACE: u8 = 0x01;
const INVERTED_PROTOCOL: u8 = 0x40;
/// The name of a match or a target, after its size.
const NAME: Range<usize> = 2..31;
/// Where its own data begin.
const DATA: usize = 32;

/// A family's tables.
struct Family {
    /// Which tables there are, below `/proc/thread-self/net`.
    names: &'static str,
    level: i32,
    /// A socket that may be asked.
    socket: fn() -> io::Result<UdpSocket>,
    /// Where an entry says what it is for.
    interface: usize,
    interface_mask: usize,
    protocol: usize,
    inverted: usize,
    /// Where it says at which byte of it the target begins, and the next entry.
    offsets: usize,
    matches: usize,
}

const FAMILIES: [Family; 2] = [
    Family {
        names: "ip_tables_names",
        level: libc::SOL_IP,
        socket: || UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)),
        interface: 16,
        interface_mask: 48,
        protocol: 80,
        inverted: 83,
        offsets: 88,
        matches: 112,
    },
    Family {
        names: "ip6_tables_names",
        level: libc::SOL_IPV6,
        socket: || UdpSocket::bind((Ipv6Addr::UNSPECIFIED, 0)),
        interface: 64,
        interface_mask: 96,
        protocol: 128,
        inverted: 132,
        offsets: 140,
        matches: 168,
    },
];

/// As [`super::ports`], of legacy iptables alone. No table is made by asking for it.
pub(super) fn ports(interfaces: &[(u32, String)]) -> io::Result<HashSet<Ports>> {
    let mut ports = HashSet::new();
    for family in &FAMILIES {
        let path = format!("/proc/thread-self/net/{}", family.names);
        let names = fs::read(path).unwrap_or_default();
        let names: Vec<_> = names.split(|byte| *byte == b'\n').collect();
        for table in TABLES.into_iter().filter(|table| names.contains(table)) {
            let entries = family.entries(table)?;
            let wanted = family.diverted(&entries, interfaces);
            ports.extend(wanted.into_iter().flat_map(Wanted::into_ports));
        }
    }
    Ok(ports)
}

impl Family {
    /// All entries of a table. They may change between the two questions.
    fn entries(&self, table: &[u8]) -> io::Result<Vec<u8>> {
        const TRIES: u32 = 10;
        let socket = (self.socket)()?;
        for _ in 0..TRIES {
            let mut info = question(table, INFO_BYTES);
            self.ask(&socket, GET_INFO, &mut info)?;
            let size = number::<4>(&info, INFO_SIZE).map(u32::from_ne_bytes);
            let size = size.unwrap_or_default();
            let mut answer = question(table, ENTRIES + usize::try_from(size).unwrap_or_default());
            answer[NAME_BYTES..NAME_BYTES + 4].copy_from_slice(&size.to_ne_bytes());
            match self.ask(&socket, GET_ENTRIES, &mut answer) {
                Err(Errno::EAGAIN) => {}
                told => return Ok(told.map(|()| answer.split_off(ENTRIES))?),
            }
        }
        Err(Errno::EAGAIN.into())
    }

    fn ask(&self, socket: &UdpSocket, option: i32, answer: &mut [u8]) -> nix::Result<()> {
        let mut bytes = libc::socklen_t::try_from(answer.len()).map_err(|_| Errno::E2BIG)?;
        // SAFETY: the kernel writes at most `bytes` bytes to `answer`, which has so many, and
        // the number of them to `bytes`.
        let told = unsafe {
            libc::getsockopt(
                socket.as_raw_fd(),
                self.level,
                option,
                answer.as_mut_ptr().cast(),
                &raw mut bytes,
            )
        };
        Errno::result(told).map(drop)
    }

    /// What the entries divert that are for these interfaces.
    fn diverted(&self, mut entries: &[u8], interfaces: &[(u32, String)]) -> Vec<Wanted> {
        let mut found = Vec::new();
        while let Some(next) = number::<2>(entries, self.offsets + 2) {
            let next = usize::from(u16::from_ne_bytes(next));
            let Some(entry) = entries.get(..next).filter(|entry| !entry.is_empty()) else {
                break;
            };
            found.extend(self.entry(entry, interfaces));
            entries = &entries[next..];
        }
        found
    }

    fn entry(&self, entry: &[u8], interfaces: &[(u32, String)]) -> Option<Wanted> {
        let target = usize::from(u16::from_ne_bytes(number(entry, self.offsets)?));
        let last = entry.get(target..)?;
        let diverts = x_tables::diverts(name(last)?, last.get(DATA..).unwrap_or_default());
        if !diverts || !self.is_for(entry, interfaces)? {
            return None;
        }
        let mut wanted = Wanted::default();
        let protocol = u16::from_ne_bytes(number(entry, self.protocol)?);
        let is_inverted = entry.get(self.inverted)? & INVERTED_PROTOCOL != 0;
        wanted.protocol = u8::try_from(protocol)
            .ok()
            .filter(|protocol| *protocol != 0 && !is_inverted);
        let mut matches = entry.get(self.matches..target)?;
        while let Some(size) = number::<2>(matches, 0) {
            let size = usize::from(u16::from_ne_bytes(size));
            let Some(one) = matches.get(..size).filter(|one| !one.is_empty()) else {
                break;
            };
            if let Some(ports) = x_tables::ports(name(one)?, one.get(DATA..)?) {
                wanted.keep(&ports);
            }
            matches = &matches[size..];
        }
        Some(wanted)
    }

    /// Whether packets of one of the interfaces are meant: their names are compared where the mask
    /// has bits.
    fn is_for(&self, entry: &[u8], interfaces: &[(u32, String)]) -> Option<bool> {
        let meant: [u8; 16] = number(entry, self.interface)?;
        let mask: [u8; 16] = number(entry, self.interface_mask)?;
        let is_inverted = entry.get(self.inverted)? & INVERTED_INTERFACE != 0;
        let mut names = interfaces.iter().map(|(_, name)| name.as_bytes());
        Some(names.any(|name| {
            let own = |at: usize| name.get(at).copied().unwrap_or(0);
            let is_same = (0..16).all(|at| (own(at) ^ meant[at]) & mask[at] == 0);
            is_same != is_inverted
        }))
    }
}

/// An empty answer that names the table.
fn question(table: &[u8], bytes: usize) -> Vec<u8> {
    let mut question = vec![0; bytes];
    question[..table.len()].copy_from_slice(table);
    question
}

fn number<const BYTES: usize>(of: &[u8], at: usize) -> Option<[u8; BYTES]> {
    of.get(at..)?.first_chunk().copied()
}

/// The name of a match or a target.
fn name(of: &[u8]) -> Option<&[u8]> {
    of.get(NAME)?.split(|byte| *byte == 0).next()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::namespace;
    use crate::packet_filter::EVERY;
    use crate::packet_filter::diverted::tests::{TARGETS_OF_RAW, run};

    const UDP: Option<u8> = Some(17);
    const TCP: Option<u8> = Some(6);

    /// Needs root and legacy iptables.
    #[test]
    fn rules_of_legacy_iptables_are_read() {
        let cases = [
            ("-p udp --dport 53", vec![(UDP, 53..=53)]),
            ("-p tcp --dport 1000:2000", vec![(TCP, 1000..=2000)]),
            (
                "-p tcp -m multiport --dports 80,443,8000:8080",
                vec![(TCP, 80..=80), (TCP, 443..=443), (TCP, 8000..=8080)],
            ),
            ("-i lo -p udp --dport 53", vec![(UDP, 53..=53)]),
            ("-i l+ -p udp --dport 53", vec![(UDP, 53..=53)]),
            ("-i lo0 -p udp --dport 53", vec![]),
            ("! -i lo -p udp --dport 53", vec![]),
            ("-p udp", vec![(UDP, EVERY)]),
            ("-p tcp ! --dport 53", vec![(TCP, EVERY)]),
            ("-p tcp -m multiport --ports 80,443", vec![(TCP, EVERY)]),
            ("-p udp -m mark --mark 7", vec![(UDP, EVERY)]),
        ];
        for (rule, expected) in cases {
            for program in ["iptables-legacy", "ip6tables-legacy"] {
                let seen = namespace::in_new(|| {
                    run(
                        program,
                        "-t mangle -A PREROUTING -p tcp --dport 9 -j ACCEPT",
                    );
                    let target = "-j TPROXY --on-port 6000";
                    run(program, &format!("-t mangle -A PREROUTING {rule} {target}"));
                    ports(&[(1, "lo".to_owned())]).unwrap()
                });
                assert_eq!(seen.unwrap(), expected.iter().cloned().collect(), "{rule}");
            }
        }
        for (target, expected) in TARGETS_OF_RAW {
            let seen = namespace::in_new(|| {
                let rule = format!("-t raw -A PREROUTING -p udp --dport 53 -j {target}");
                run("iptables-legacy", &rule);
                ports(&[(1, "lo".to_owned())]).unwrap()
            });
            let expected = expected.then_some((UDP, 53..=53)).into_iter().collect();
            assert_eq!(seen.unwrap(), expected, "{target}");
        }
    }

    #[test]
    fn damaged_entries_divert_nothing() {
        let [family, _] = &FAMILIES;
        let lo = [(1, "lo".to_owned())];
        for bytes in [0, 90, 92, 200] {
            assert!(family.diverted(&vec![0; bytes], &lo).is_empty());
            assert!(family.diverted(&vec![0xff; bytes], &lo).is_empty());
        }
    }
}
