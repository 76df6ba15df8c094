//! What stands behind the guard on a packet's way: packet filters, connection tracking,
//! address translation, load balancing.
//!
//! The guard sees packets before all of them. Here it looks whether they are at work in
//! this network namespace. Their rules are read for SYN cookies ([`crate::filter`]), and for who
//! takes packets before sockets ([`crate::hidden`]).

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::Path;

use plimsoll_kernel::host::TrackingUnasked;
use plimsoll_kernel::link::{self, Above};

use super::{Finding, Verdict, finding};
use crate::hidden::{Taker, Unguarded};

/// Files of `/proc` that tell, from `root`; whether `nf_tables` has rules; of which protocols
/// others than sockets may take every packet, if the kernel tells; and why a guard could not ask
/// who translates, where somebody may.
pub(super) fn filters(
    root: &Path,
    has_rules: &io::Result<bool>,
    unguarded: &io::Result<BTreeSet<Unguarded>>,
    unasked: Option<TrackingUnasked>,
) -> Finding {
    let mut is_refused = false;
    let mut read = |path: &str| {
        let text = fs::read_to_string(root.join(path));
        let refused = |error: &io::Error| error.kind() == io::ErrorKind::PermissionDenied;
        is_refused |= text.as_ref().is_err_and(refused);
        text.unwrap_or_default()
    };
    let mut found = Vec::new();
    let tables = ["net/ip_tables_names", "net/ip6_tables_names"].map(&mut read);
    let has_nat = tables
        .iter()
        .any(|tables| tables.lines().any(|table| table == "nat"));
    if tables.iter().any(|tables| !tables.trim().is_empty()) {
        let nat = if has_nat {
            ", address translation (NAT) among them"
        } else {
            ""
        };
        found.push(format!("iptables has tables{nat}"));
    }
    if has_rules.as_ref().is_ok_and(|has_rules| *has_rules) {
        found.push("nf_tables has rules".to_owned());
    }
    let tracked = read("sys/net/netfilter/nf_conntrack_count");
    if let Ok(tracked @ 1..) = tracked.trim().parse::<u64>() {
        found.push(format!("{tracked} connections are tracked"));
    }
    // Two lines of title and one of column names, then one per service.
    if read("net/ip_vs").lines().count() > 3 {
        found.push("IPVS has services".to_owned());
    }
    found.extend(taken(unguarded));
    found.extend(unasked.map(translated));
    if read("sys/net/ipv4/ip_forward").trim() == "1" {
        found.push("this host forwards".to_owned());
    }
    let verdict = if is_refused || has_rules.is_err() {
        found.push("only root can see whether there are rules of a packet filter".to_owned());
        Verdict::Unknown
    } else {
        Verdict::Limited
    };
    if found.is_empty() {
        let found = "no packet filter, NAT or load balancer is seen at work";
        return finding("filters", Verdict::Ok, found, "needs no more");
    }
    finding(
        "filters",
        verdict,
        found.join("; "),
        "sees packets before them: what they would refuse counts as offered, what they send elsewhere is admitted as `forward` or `closed_port`, and conntrack never sees a SYN that a cookie answers",
    )
}

/// Of which protocols rules or load balancing may take every packet, if the kernel tells. Only root is
/// told.
fn taken(unguarded: &io::Result<BTreeSet<Unguarded>>) -> Vec<String> {
    let told = match unguarded {
        Ok(told) => told,
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => return Vec::new(),
        Err(error) => {
            return vec![format!(
                "the kernel does not tell who takes packets before sockets ({error}), so no UDP and no TCP queue is guarded until it does"
            )];
        }
    };
    let others = told.iter().filter(|one| !one.taker.is_programmed());
    let said = others.map(|one| {
        let name = one.protocol().to_uppercase();
        let taker = match one.taker {
            Taker::Ipvs => "IPVS",
            _ => "a rule (TPROXY, or one that sends elsewhere)",
        };
        format!(
            "{taker} may take packets for any {name} port, so no {name} queue is guarded: name ports or the interface there"
        )
    });
    said.collect()
}

/// That packets may be translated, and why a guard that starts now could not tell which.
fn translated(unasked: TrackingUnasked) -> String {
    let why = match unasked {
        TrackingUnasked::NoTypes => "whose module does not describe its types",
        TrackingUnasked::NoPrivilege => {
            "which is a module: that takes CAP_SYS_ADMIN at the start, which it gives up then"
        }
    };
    format!(
        "packets may be translated, so no UDP queue and no listener is guarded, since a guard that is started now cannot ask connection tracking, {why}"
    )
}

/// What of tc may take packets that come in, if the kernel tells.
pub(super) fn traffic_control(takers: &io::Result<BTreeSet<String>>) -> Finding {
    let takers = match takers {
        Ok(takers) => takers,
        Err(error) => {
            let found = match error.kind() {
                io::ErrorKind::PermissionDenied => {
                    "only root can see whether tc takes packets that come in".to_owned()
                }
                _ => format!("the kernel does not tell whether tc takes packets ({error})"),
            };
            let guard = "guards no UDP queue and no listener where it may";
            return finding("tc", Verdict::Unknown, found, guard);
        }
    };
    if takers.is_empty() {
        let found = "no program or action of tc takes packets that come in";
        return finding("tc", Verdict::Ok, found, "needs no more");
    }
    let names: Vec<_> = takers.iter().map(String::as_str).collect();
    finding(
        "tc",
        Verdict::Limited,
        format!(
            "tc may send packets that come in to other sockets or hosts: {}",
            names.join(", ")
        ),
        NOT_TRUSTED,
    )
}

/// Who takes packets that interfaces above receive, if the kernel tells.
pub(super) fn above(above: &io::Result<Above>) -> Finding {
    let above = match above {
        Ok(above) => above,
        Err(error) => {
            let found = format!("the kernel does not tell what is above ({error})");
            let guard = "guards no UDP queue and no listener until it does";
            return finding("above", Verdict::Unknown, found, guard);
        }
    };
    let names = above.with_xdp.iter().filter_map(|index| link::name(*index));
    let mut takers: Vec<_> = names
        .map(|name| format!("an XDP program on {name}"))
        .collect();
    takers.extend(
        above
            .has_open_vswitch
            .then(|| "flows of Open vSwitch".to_owned()),
    );
    if takers.is_empty() {
        let found = "no XDP program and no Open vSwitch takes packets above";
        return finding("above", Verdict::Ok, found, "needs no more");
    }
    finding(
        "above",
        Verdict::Limited,
        format!(
            "these may send packets that come in to other sockets or hosts: {}",
            takers.join(", ")
        ),
        NOT_TRUSTED,
    )
}

/// What is done where somebody's programs may take packets.
const NOT_TRUSTED: &str = "guards no UDP queue and no listener, unless `--trust-tc` says that sockets of this host lose no packets by it";

/// Programs that read packets without a socket for their port. A DHCP client has such a
/// packet socket all the time on many hosts.
pub(super) fn packet_readers(are_there: bool) -> Finding {
    if are_there {
        finding(
            "readers",
            Verdict::Limited,
            "a program reads packets beside the sockets, as DHCP clients and captures do",
            "discards nothing for closed ports while it runs, and lets some packets for full sockets pass",
        )
    } else {
        let found = "no program reads packets beside the sockets";
        let guard = "holds floods of closed ports to what the stack would answer";
        finding("readers", Verdict::Ok, found, guard)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::owner::diag::Protocol;

    fn filters(
        root: &Path,
        has_rules: &io::Result<bool>,
        unguarded: &io::Result<BTreeSet<Unguarded>>,
    ) -> Finding {
        super::filters(root, has_rules, unguarded, None)
    }

    #[test]
    fn why_translated_packets_could_not_be_told_is_told() {
        let calm = tempfile::tempdir().unwrap();
        let none = BTreeSet::new();
        for (unasked, said) in [
            (TrackingUnasked::NoTypes, "does not describe its types"),
            (TrackingUnasked::NoPrivilege, "takes CAP_SYS_ADMIN"),
        ] {
            let told = super::filters(calm.path(), &Ok(false), &Ok(none.clone()), Some(unasked));
            assert_eq!(told.verdict, Verdict::Limited);
            assert!(told.found.contains("no UDP queue and no listener"));
            assert!(told.found.contains(said), "{}", told.found);
        }
    }

    fn root(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        root
    }

    #[test]
    fn each_is_found_by_its_trace_and_none_where_there_is_none() {
        let head = "IP Virtual Server version 1.2.1 (size=4096)\nProt LocalAddress:Port Scheduler Flags\n  -> RemoteAddress:Port Forward Weight ActiveConn InActConn\n";
        let service = format!("{head}TCP  C6120001:0050 rr\n");
        for (files, said) in [
            (
                vec![("net/ip_tables_names", "filter\nnat\n")],
                "iptables has tables, address translation (NAT) among them",
            ),
            (
                vec![("net/ip6_tables_names", "filter\n")],
                "iptables has tables",
            ),
            (
                vec![("sys/net/netfilter/nf_conntrack_count", "7\n")],
                "7 connections are tracked",
            ),
            (vec![("net/ip_vs", service.as_str())], "IPVS has services"),
            (
                vec![("sys/net/ipv4/ip_forward", "1\n")],
                "this host forwards",
            ),
        ] {
            let found = filters(root(&files).path(), &Ok(false), &Ok(BTreeSet::new()));
            assert_eq!(
                (found.verdict, found.found.as_str()),
                (Verdict::Limited, said)
            );
        }
        let calm = [
            ("net/ip_tables_names", ""),
            ("sys/net/netfilter/nf_conntrack_count", "0\n"),
            ("net/ip_vs", head),
            ("sys/net/ipv4/ip_forward", "0\n"),
        ];
        assert_eq!(
            filters(root(&calm).path(), &Ok(false), &Ok(BTreeSet::new())).verdict,
            Verdict::Ok
        );
        let nothing = root(&[]);
        assert_eq!(
            filters(nothing.path(), &Ok(false), &Ok(BTreeSet::new())).verdict,
            Verdict::Ok
        );
        let rules = filters(nothing.path(), &Ok(true), &Ok(BTreeSet::new()));
        assert_eq!(rules.verdict, Verdict::Limited);
        assert_eq!(rules.found, "nf_tables has rules");
        let of = |taker| Unguarded {
            protocol: Protocol::Udp,
            taker,
        };
        let diverted = BTreeSet::from([of(Taker::PacketFilter)]);
        let diverted = filters(nothing.path(), &Ok(false), &Ok(diverted));
        assert_eq!(diverted.verdict, Verdict::Limited);
        assert!(diverted.found.contains("so no UDP queue is guarded"));
        let by_tc = BTreeSet::from([of(Taker::Tc)]);
        let elsewhere = filters(nothing.path(), &Ok(false), &Ok(by_tc));
        assert_eq!(elsewhere.verdict, Verdict::Ok, "it has a line of its own");
        let refused = Err(io::ErrorKind::PermissionDenied.into());
        let unknown = filters(nothing.path(), &refused, &Ok(BTreeSet::new()));
        assert_eq!(unknown.verdict, Verdict::Unknown);
    }

    #[test]
    fn what_the_kernel_does_not_tell_is_not_taken_for_nothing() {
        let nothing = root(&[]);
        let silent = Err(io::Error::other("no sockets are told of"));
        let silent = filters(nothing.path(), &Ok(false), &silent);
        assert_eq!(silent.verdict, Verdict::Limited);
        assert!(silent.found.contains("(no sockets are told of), so no"));
        let denied = Err(io::ErrorKind::PermissionDenied.into());
        let denied = filters(nothing.path(), &Ok(false), &denied);
        assert_eq!(denied.verdict, Verdict::Ok, "only root is told");
        for (refused, said) in [
            (io::ErrorKind::PermissionDenied.into(), "only root"),
            (
                io::Error::other("no tc"),
                "the kernel does not tell whether",
            ),
        ] {
            let tc = traffic_control(&Err(refused));
            assert!(tc.found.starts_with(said), "{}", tc.found);
        }
    }
}
