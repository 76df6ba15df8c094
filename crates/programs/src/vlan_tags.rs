//! VLAN tags that an adapter takes out of frames.
//!
//! It hands them over beside the frame. The kernel's stack finds them there, but XDP programs
//! see an untagged frame, and what they send on or give to a process has lost its tag.
//!
//! veth has the offload on and takes nothing out by itself. But a VLAN device at its other end
//! leaves its tags beside the frames, and they are lost in the same way (`veth_xdp_rcv_skb`,
//! from its source).
//!
//! Limits: 802.1ad's outer tags have an offload of their own, which is not looked at.

use std::fs;

use plimsoll_kernel::ethtool::active_features;
use plimsoll_kernel::link;

/// The offload, in the kernel's words.
const OFFLOAD: &str = "rx-vlan-hw-parse";

/// What is to be said about these interfaces, once a program is attached there: their frames
/// may lose their tags.
pub fn warnings<'a>(interfaces: impl IntoIterator<Item = &'a str>) -> Vec<String> {
    let all = interfaces.into_iter().filter_map(warning);
    all.collect()
}

/// None where the kernel does not tell.
fn warning(interface: &str) -> Option<String> {
    let index = link::index(interface).ok()?;
    if !active_features(index).ok()??.contains(OFFLOAD) {
        return None;
    }
    let kind = link::link(index).ok()?.kind;
    // Of this thread's network namespace. Without the kernel's VLAN module there is none.
    let vlans = fs::read_to_string("/proc/thread-self/net/vlan/config").unwrap_or_default();
    warning_of(interface, kind.as_deref(), &vlans)
}

/// With the offload on.
fn warning_of(interface: &str, kind: Option<&str>, vlans: &str) -> Option<String> {
    let remedy = match kind {
        // Its other end may be in another namespace, where nobody can look.
        Some("veth") if !has_vlan(interface, vlans) => return None,
        Some("veth") => "`ethtool -K` with `txvlan off` at its other end".to_owned(),
        _ => format!("`ethtool -K {interface} rxvlan off`"),
    };
    Some(format!(
        "{interface}: VLAN tags are taken out of frames before XDP, so tagged frames may be taken for untagged ones and lose their tags: {remedy}"
    ))
}

/// Whether a VLAN device stands on the interface, by the kernel's table of them.
fn has_vlan(interface: &str, vlans: &str) -> bool {
    let below = |line: &str| line.rsplit('|').next().map(str::trim) == Some(interface);
    vlans.lines().any(below)
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use plimsoll_kernel::namespace;

    use super::*;

    const VLANS: &str = "VLAN Dev name    | VLAN ID\n\
        Name-Type: VLAN_NAME_TYPE_RAW_PLUS_VID_NO_PAD\n\
        eth0.5         | 5  | eth0\n";

    #[test]
    fn an_adapter_that_takes_tags_out_is_told_with_the_remedy() {
        for vlans in [VLANS, ""] {
            let said = warning_of("eth0", None, vlans).unwrap();
            assert!(said.starts_with("eth0: VLAN tags"), "{said}");
            assert!(said.contains(" may "), "{said}");
            assert!(said.ends_with("`ethtool -K eth0 rxvlan off`"), "{said}");
        }
    }

    #[test]
    fn veth_is_told_only_with_a_vlan_device() {
        assert_eq!(warning_of("eth1", Some("veth"), VLANS), None);
        assert_eq!(warning_of("eth0", Some("veth"), ""), None);
        let said = warning_of("eth0", Some("veth"), VLANS).unwrap();
        assert!(said.contains("txvlan off"), "{said}");
    }

    #[test]
    fn interfaces_are_asked_in_this_namespace() {
        let made = || {
            let words = "link add here type veth peer name there";
            let ip = Command::new("ip").args(words.split(' ')).status();
            assert!(ip.is_ok_and(|status| status.success()));
            let active = active_features(link::index("here").unwrap()).unwrap();
            assert!(active.unwrap().contains(OFFLOAD));
            warnings(["here", "lo", "nowhere"])
        };
        let said = namespace::in_new(made).expect("root, to make a network namespace");
        assert_eq!(said, [""; 0]);
    }
}
