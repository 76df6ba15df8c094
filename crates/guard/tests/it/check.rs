//! What `check` says of hosts and interfaces that have or lack something.

use std::process::Command;

use caps::{CapSet, Capability};
use nix::sys::socket::{AddressFamily, SockFlag, SockProtocol, SockType, socket};
use plimsoll_guard::check::{Check, Finding, Verdict, check};
use plimsoll_guard::status::{Client, Request, Sort};
use plimsoll_guard::{Config, Guard, Storage};

use crate::common::{in_namespace, ip};

fn finding<'a>(check: &'a Check, id: &str) -> &'a Finding {
    let found = check.findings.iter().find(|finding| finding.id == id);
    found.unwrap_or_else(|| panic!("no finding {id}"))
}

/// Asserts a verdict and what the finding mentions.
fn assert_finding(check: &Check, id: &str, verdict: Verdict, mentions: &str) {
    let finding = finding(check, id);
    assert_eq!(finding.verdict, verdict, "{finding:?}");
    assert!(finding.found.contains(mentions), "{finding:?}");
}

#[test]
fn an_interface_that_can_be_guarded_is_described() {
    in_namespace(|| {
        let check = check("v0").unwrap();
        assert!(check.can_run(), "{check:?}");
        assert_finding(&check, "program", Verdict::Ok, "verifier accepts");
        assert_finding(&check, "driver", Verdict::Ok, "veth");
        assert_finding(&check, "xdp", Verdict::Ok, "native XDP");
        assert_finding(&check, "attached", Verdict::Ok, "no XDP program");
        assert_finding(&check, "holdoff", Verdict::Ok, "whole device");
        assert_finding(&check, "threads", Verdict::Ok, "off");
        assert_finding(
            &check,
            "namespace",
            Verdict::Limited,
            "another network namespace",
        );
        assert_finding(&check, "attachment", Verdict::Limited, "no large packets");
        assert_finding(&check, "coalescing", Verdict::Ok, "coalesce");
        assert_finding(
            &check,
            "offloads",
            Verdict::Limited,
            "VLAN tags are taken out",
        );
        assert_finding(&check, "memory", Verdict::Ok, "possible CPUs");
        assert_finding(&check, "tc", Verdict::Ok, "no program or action of tc");
        assert_finding(&check, "above", Verdict::Ok, "no Open vSwitch");
        assert_eq!(check.findings.len(), 25);
    });
}

/// Of a name that the C library does not know it was said that there is no such interface, and no guard.
#[test]
fn another_name_of_an_interface_is_an_obstacle_as_it_is_for_the_guard() {
    in_namespace(|| {
        for name in ["enp3s0", "enx0123456789abcdef"] {
            ip(&format!("link property add dev v0 altname {name}"));
            let other = check(name).unwrap();
            assert!(!other.can_run());
            assert_finding(
                &other,
                "settings",
                Verdict::Missing,
                "(altname): call it `v0`",
            );
        }
    });
}

/// `guard status` said that `plimsoll guard enp3s0` starts one, which is refused.
#[test]
fn who_asks_by_another_name_is_told_the_one_by_which_a_guard_starts() {
    in_namespace(|| {
        ip("link property add dev v0 altname enp3s0");
        let (sort, limit) = (Sort::Offered, 1);
        let request = Request { sort, limit };
        for name in ["v0", "enp3s0"] {
            let absent = Client::new(name).status(&request).unwrap_err();
            let absent = absent.to_string();
            assert!(
                absent.contains("`plimsoll guard v0` starts one"),
                "{absent}"
            );
        }
    });
}

#[test]
fn each_obstacle_is_named_and_says_no() {
    in_namespace(|| {
        let lo = check("lo").unwrap();
        assert!(!lo.can_run());
        assert_finding(&lo, "xdp", Verdict::Missing, "no native XDP");
        assert_finding(&lo, "mtu", Verdict::Limited, "65536");

        // Its driver has native XDP, and says that it has none.
        ip("link add w0 numrxqueues 1 type veth peer name w1 numtxqueues 2");
        let more = Command::new("ethtool")
            .args(["-L", "w1", "tx", "2"])
            .status();
        assert!(more.expect("ethtool is installed").success());
        let fewer = check("w0").unwrap();
        assert!(!fewer.can_run());
        assert_finding(&fewer, "xdp", Verdict::Missing, "`ethtool -L w0 rx N`");

        let mut storage = Storage::default();
        let guard = Guard::attach(&mut storage, &Config::default(), "v0").unwrap();
        let busy = check("v0").unwrap();
        assert!(!busy.can_run());
        assert_finding(&busy, "attached", Verdict::Missing, "`plimsoll_guard`, id ");
        assert_finding(&busy, "holdoff", Verdict::Ok, "per queue; now defer 0");
        assert_eq!(busy.napi.len(), 1);
        drop(guard);

        ip("link set v0 down");
        assert_finding(&check("v0").unwrap(), "driver", Verdict::Limited, "down");
        assert!(check("nosuch").is_err());
    });
}

#[test]
fn without_privileges_it_still_says_what_it_can() {
    in_namespace(|| {
        // Of this thread only, which ends with the test.
        for capability in [Capability::CAP_BPF, Capability::CAP_SYS_ADMIN] {
            caps::drop(None, CapSet::Effective, capability).unwrap();
        }
        let check = check("v0").unwrap();
        assert!(!check.can_run());
        assert_finding(
            &check,
            "privileges",
            Verdict::Missing,
            "root has no CAP_BPF here",
        );
        assert_finding(
            &check,
            "program",
            Verdict::Missing,
            "root has no CAP_BPF here",
        );
        assert_finding(&check, "xdp", Verdict::Ok, "native XDP");
        assert!(check.findings.iter().all(|finding| finding.id != "memory"));
        assert_finding(&check, "syn_cookies", Verdict::Unknown, "does not tell");
    });
}

#[test]
fn offloads_and_filters_are_seen_as_they_are_switched() {
    in_namespace(|| {
        let ethtool = Command::new("ethtool")
            .args(["-K", "v0", "rx-vlan-hw-parse", "off"])
            .status();
        assert!(
            ethtool
                .expect("ethtool is installed: scripts/setup")
                .success()
        );
        let plain = check("v0").unwrap();
        assert_finding(&plain, "offloads", Verdict::Ok, "as they are on the wire");
        assert_finding(&plain, "filters", Verdict::Ok, "no packet filter");
        let nft = Command::new("nft")
            .arg("add table t; add chain t c; add rule t c accept")
            .status();
        assert!(nft.expect("nftables is installed: scripts/setup").success());
        let filtering = check("v0").unwrap();
        assert_finding(
            &filtering,
            "filters",
            Verdict::Limited,
            "nf_tables has rules",
        );
        std::fs::write("/proc/sys/net/ipv4/ip_forward", "1").unwrap();
        let forwarding = check("v0").unwrap();
        assert_finding(
            &forwarding,
            "filters",
            Verdict::Limited,
            "this host forwards",
        );
    });
}

/// This kernel has no bonds; a bridge has the same links below it and above.
#[test]
fn what_an_interface_receives_through_is_named() {
    in_namespace(|| {
        let alone = check("v0").unwrap();
        assert_finding(&alone, "stacking", Verdict::Ok, "by itself");
        ip("link add br0 type bridge");
        ip("link set v0 master br0");
        let port = check("v0").unwrap();
        assert_finding(&port, "stacking", Verdict::Limited, "the bridge br0");
        assert_finding(&port, "holdoff", Verdict::Ok, "whole device");
        let bridge = check("br0").unwrap();
        assert_finding(&bridge, "stacking", Verdict::Limited, "receives through v0");
        assert!(
            finding(&bridge, "stacking")
                .guard
                .contains("guard the interface where packets come in (v0)")
        );
        assert_finding(&bridge, "holdoff", Verdict::Limited, "interfaces below");
    });
}

/// A DHCP client's packet socket switches the cap on closed ports off: on many hosts
/// nobody would guess why.
#[test]
fn a_program_that_reads_packets_is_seen() {
    in_namespace(|| {
        assert_finding(
            &check("v0").unwrap(),
            "readers",
            Verdict::Ok,
            "no program reads packets",
        );
        let flags = SockFlag::SOCK_CLOEXEC;
        let all = SockProtocol::EthAll;
        let reader = socket(AddressFamily::Packet, SockType::Datagram, flags, all).unwrap();
        assert_finding(
            &check("v0").unwrap(),
            "readers",
            Verdict::Limited,
            "DHCP clients",
        );
        drop(reader);
    });
}
