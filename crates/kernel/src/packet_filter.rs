//! What the packet filter's rules look at: whether they may refuse the end of a TCP
//! handshake whose beginning they never saw.
//!
//! Rules are not carried out here. Only rules that remember something of earlier packets
//! can treat the same segment in two ways. If none of them looks at TCP flags, the first
//! segment they see begins a connection for them, be it a SYN or an ACK. So the signs are
//! both together. They may be in rules that have nothing to do with each other: the answer
//! is careful, not exact.
//!
//! The rules of `nf_tables` are read, also those that `iptables-nft` makes. Legacy iptables, BPF
//! programs, and what sets contain are not read.

pub mod balanced;
pub mod diverted;
pub mod forwarded;

use std::fs;
use std::io;
use std::ops::RangeInclusive;
use std::path::Path;
use std::sync::OnceLock;

use netlink_bindings::nftables::{
    CtKeys, IterableExprAttrs, IterableRuleAttrs, Nfgenmsg, PayloadBase, Request,
};
use netlink_bindings::nftables::{ExprOps, IterableCompatMatchAttrs};

use crate::netlink;

/// Ports, and their IP protocol unless it is that of every one.
pub type Ports = (Option<u8>, RangeInclusive<u16>);
const EVERY: RangeInclusive<u16> = 0..=u16::MAX;

/// The rules of a packet filter, as far as it matters here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rules {
    /// A rule looks at connections, or at what another rule noted of earlier packets.
    pub remembers: bool,
    /// A rule decides by TCP flags.
    pub tcp_flags: bool,
    /// A rule answers SYNs itself (`synproxy`).
    pub synproxy: bool,
}

impl Rules {
    /// Whether they may refuse a handshake's end whose SYN they never saw.
    #[must_use]
    pub fn may_want_syn(&self) -> bool {
        self.synproxy || (self.remembers && self.tcp_flags)
    }

    fn add(&mut self, other: Self) {
        self.remembers |= other.remembers;
        self.tcp_flags |= other.tcp_flags;
        self.synproxy |= other.synproxy;
    }
}

/// The number of the rule set of this network namespace, another after each change;
/// `None` if there is no `nf_tables`.
///
/// # Errors
///
/// The kernel refuses to tell.
pub fn generation() -> io::Result<Option<u32>> {
    if !has_nf_tables() {
        return Ok(None);
    }
    let mut socket = netlink::Socket::new();
    let request = Request::new().op_getgen_do(&Nfgenmsg::default());
    let absent = [libc::EPROTONOSUPPORT, libc::EINVAL, libc::EOPNOTSUPP];
    let is_absent = |error: &io::Error| error.raw_os_error().is_some_and(|n| absent.contains(&n));
    let answer = socket.request(&request).and_then(|mut replies| {
        let (_, attributes) = replies.recv_one().map_err(io::Error::from)?;
        Ok(attributes.get_id().ok())
    });
    match answer {
        Err(error) if is_absent(&error) => Ok(None),
        answer => answer,
    }
}

/// What the rules of this network namespace look at; `None` if they are more than `max`.
///
/// # Errors
///
/// The kernel refuses to tell, or the answer is damaged.
pub fn rules(max: usize) -> io::Result<Option<Rules>> {
    let mut rules = Rules::default();
    let mut socket = netlink::Socket::new();
    let request = Request::new().op_getrule_dump(&Nfgenmsg::default());
    let mut replies = socket.request(&request)?;
    let mut count = 0;
    while let Some(reply) = replies.recv() {
        let (_, attributes) = reply?;
        rules.add(rule(&attributes));
        count += 1;
        if rules.may_want_syn() {
            break;
        }
        if count > max {
            return Ok(None);
        }
    }
    Ok(Some(rules))
}

/// Whether `nf_tables` has any rule in this network namespace.
///
/// # Errors
///
/// The kernel refuses to tell.
pub fn has_rules() -> io::Result<bool> {
    if generation()?.is_none() {
        return Ok(false);
    }
    let mut socket = netlink::Socket::new();
    let request = Request::new().op_getrule_dump(&Nfgenmsg::default());
    let mut replies = socket.request(&request)?;
    let first = replies.recv().transpose()?;
    Ok(first.is_some())
}

/// Asking for `nf_tables` where it is a module and not loaded would load it.
fn has_nf_tables() -> bool {
    static BUILT_IN: OnceLock<bool> = OnceLock::new();
    let is_built_in = || {
        let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        let list = format!("/lib/modules/{}/modules.builtin", release.trim());
        // Without modules there is nothing that could be loaded.
        !Path::new("/proc/modules").exists()
            || fs::read_to_string(list).is_ok_and(|list| list.contains("/nf_tables.ko"))
    };
    Path::new("/sys/module/nf_tables").exists() || *BUILT_IN.get_or_init(is_built_in)
}

fn rule(attributes: &IterableRuleAttrs<'_>) -> Rules {
    let mut seen = Rules::default();
    let mut decides = false;
    let Ok(expressions) = attributes.get_expressions() else {
        return seen;
    };
    for expression in expressions.get_elem() {
        let name = expression.get_name().unwrap_or_default().to_bytes();
        decides |= DECIDING.contains(&name);
        seen.add(looks_at(name, &expression));
    }
    // A rule that clamps the MSS of SYNs refuses nobody.
    seen.tcp_flags &= decides;
    seen
}

/// Expressions by which a rule refuses, accepts, goes elsewhere, or notes something.
const DECIDING: [&[u8]; 7] = [
    b"immediate",
    b"lookup",
    b"reject",
    b"queue",
    b"dynset",
    b"objref",
    b"target",
];
/// Matches of iptables that know earlier packets.
const REMEMBERING: [&[u8]; 8] = [
    b"conntrack",
    b"state",
    b"connbytes",
    b"connlimit",
    b"connmark",
    b"helper",
    b"recent",
    b"set",
];
/// Where TCP's flags are in its header.
const TCP_FLAGS: u32 = 13;
/// Where `struct xt_tcp` says which flags are looked at.
const XT_TCP_FLAG_MASK: usize = 9;

fn looks_at(name: &[u8], expression: &IterableExprAttrs<'_>) -> Rules {
    let mut seen = Rules::default();
    match name {
        b"dynset" | b"connlimit" => seen.remembers = true,
        b"synproxy" => seen.synproxy = true,
        b"ct" | b"payload" | b"match" | b"target" => match expression.get_data() {
            // A connection's zone and the like say nothing of its beginning.
            Ok(ExprOps::Ct(ct)) => {
                seen.remembers = ct.get_key().is_ok_and(|key| key != CtKeys::Zone as u32);
            }
            Ok(ExprOps::Payload(payload)) => {
                let base = payload.get_base().unwrap_or(0);
                let (from, bytes) = (payload.get_offset(), payload.get_len());
                let covers =
                    |from: u32, bytes: u32| (from..from.saturating_add(bytes)).contains(&TCP_FLAGS);
                let covers = from.and_then(|from| Ok(covers(from, bytes?)));
                seen.tcp_flags =
                    base == PayloadBase::TransportHeader as u32 && covers.unwrap_or(false);
            }
            Ok(ExprOps::Match(one)) => seen = iptables_match(&one),
            Ok(ExprOps::Target(target)) => {
                seen.synproxy = target.get_name().is_ok_and(|n| n.to_bytes() == b"SYNPROXY");
            }
            _ => {}
        },
        _ => {}
    }
    seen
}

fn iptables_match(one: &IterableCompatMatchAttrs<'_>) -> Rules {
    let name = one.get_name().unwrap_or_default().to_bytes();
    let info = one.get_info().unwrap_or_default();
    Rules {
        remembers: REMEMBERING.contains(&name),
        tcp_flags: name == b"tcp" && has_flag_mask(info),
        synproxy: false,
    }
}

/// Of a `struct xt_tcp` (`linux/netfilter/xt_tcpudp.h`).
fn has_flag_mask(info: &[u8]) -> bool {
    info.get(XT_TCP_FLAG_MASK).is_some_and(|mask| *mask != 0)
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;
    use crate::namespace;

    /// iptables of today writes most such rules as nftables would; older ones did not.
    #[test]
    fn flags_of_an_iptables_match_are_found_behind_ports_and_option() {
        // Ports 0 to 65,535 and 80 to 443, and an option.
        let mut tcp = [0, 0, 0xff, 0xff, 80, 0, 0xbb, 1, 5, 0, 0, 0];
        assert!(!has_flag_mask(&tcp));
        tcp[9] = 0x17;
        assert!(has_flag_mask(&tcp));
        assert!(!has_flag_mask(&tcp[..9]), "damaged");
    }

    fn nft(rules: &str) {
        let status = Command::new("nft").arg(rules).status();
        assert!(status.expect("nftables is installed").success(), "{rules}");
    }

    fn of(chain: &str, rule: &str) -> Rules {
        nft("flush ruleset");
        nft("add table inet t; add chain inet t c { type filter hook input priority 0; }");
        nft("add chain inet t f { type filter hook forward priority 0; }");
        nft(&format!("add rule inet t {chain} {rule}"));
        rules(100).unwrap().expect("few rules")
    }

    /// Needs root and nftables.
    #[test]
    fn what_a_rule_looks_at_is_read() {
        let (remembers, tcp_flags, synproxy) = (true, true, true);
        let none = Rules::default();
        let cases = [
            ("c", "tcp dport 80 accept", none),
            ("c", "ip saddr 198.18.0.0/24 drop", none),
            (
                "c",
                "ct state established accept",
                Rules { remembers, ..none },
            ),
            (
                "c",
                "ct state vmap { new : accept, invalid : drop }",
                Rules { remembers, ..none },
            ),
            (
                "c",
                "tcp flags & (fin | syn) == fin | syn drop",
                Rules { tcp_flags, ..none },
            ),
            (
                "c",
                "tcp flags vmap { syn : accept }",
                Rules { tcp_flags, ..none },
            ),
            ("f", "tcp flags syn tcp option maxseg size set rt mtu", none),
            (
                "c",
                "tcp dport 80 synproxy mss 1460",
                Rules { synproxy, ..none },
            ),
            (
                "c",
                "ct state new tcp flags & syn != syn drop",
                Rules {
                    remembers,
                    tcp_flags,
                    ..none
                },
            ),
        ];
        let seen = namespace::in_new(|| cases.map(|(chain, rule, _)| of(chain, rule)));
        for ((_, rule, expected), seen) in cases.iter().zip(seen.unwrap()) {
            assert_eq!(seen, *expected, "{rule}");
        }
    }

    #[test]
    fn only_both_signs_together_or_a_proxy_want_the_syn() {
        for bits in 0..8 {
            let [remembers, tcp_flags, synproxy] = [1, 2, 4].map(|bit| bits & bit != 0);
            let rules = Rules {
                remembers,
                tcp_flags,
                synproxy,
            };
            assert_eq!(rules.may_want_syn(), bits >= 3, "{rules:?}");
        }
    }

    #[test]
    fn each_change_has_another_number_and_too_many_rules_are_not_judged() {
        namespace::in_new(|| {
            let before = generation().unwrap().expect("nf_tables is there");
            assert!(!has_rules().unwrap());
            assert_eq!(generation().unwrap(), Some(before));
            nft("add table t; add chain t c; add rule t c accept; add rule t c accept");
            assert_ne!(generation().unwrap(), Some(before));
            assert!(has_rules().unwrap());
            assert_eq!(rules(2).unwrap(), Some(Rules::default()));
            assert_eq!(rules(1).unwrap(), None);
        })
        .unwrap();
    }
}
