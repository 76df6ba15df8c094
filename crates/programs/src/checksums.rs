//! Checksums that a sender leaves to its adapter.
//!
//! veth makes none. The kernel marks such a frame, and completes it where it leaves the machine.
//! But XDP programs and AF_XDP sockets get the bytes without the mark. What they send on has no
//! checksum, so its receiver drops it. The sender may be any program of this machine whose packets
//! enter at the veth's other end.
//!
//! Limits: other virtual adapters may have the same fault and are not looked at. Another namespace
//! can change the offload at any time, so this is asked at the start alone.

use plimsoll_kernel::ethtool::active_features;
use plimsoll_kernel::link;

/// The offload, in the kernel's words.
const OFFLOAD: &str = "tx-checksum-ip-generic";

/// What is to be said about these interfaces, whose frames a program sends on: some may have no
/// checksums.
pub fn warnings<'a>(interfaces: impl IntoIterator<Item = &'a str>) -> Vec<String> {
    let all = interfaces.into_iter().filter_map(warning);
    all.collect()
}

/// None where the kernel does not tell.
fn warning(interface: &str) -> Option<String> {
    let link = link::link(link::index(interface).ok()?).ok()?;
    if link.kind.as_deref() != Some("veth") {
        return None;
    }
    // Nobody can look into another namespace.
    let peer = link.peer.filter(|_| !link.peer_elsewhere);
    let features = peer.and_then(|peer| active_features(peer).ok()?);
    if features.is_some_and(|features| !features.contains(OFFLOAD)) {
        return None;
    }
    let peer = peer.and_then(link::name);
    let peer = peer.as_deref().unwrap_or("PEER");
    Some(format!(
        "{interface}: packets that this machine sends by the other end of this veth may have no checksums. They count as sent, and their receivers drop them: `ethtool -K {peer} tx off` at that end"
    ))
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use plimsoll_kernel::namespace;

    use super::*;

    fn run(words: &str) {
        let mut words = words.split(' ');
        let mut command = Command::new(words.next().unwrap());
        let output = command.args(words).output();
        assert!(output.is_ok_and(|output| output.status.success()));
    }

    /// TCP from a container failed, and its packets counted as forwarded.
    #[test]
    fn a_veth_is_told_unless_its_other_end_is_seen_to_make_checksums() {
        let made = || {
            run("ip link add here type veth peer name there");
            let on = warnings(["here", "lo", "nowhere"]);
            run("ethtool -K there tx off");
            let off = warnings(["here", "there"]);
            (on, off)
        };
        let (on, off) = namespace::in_new(made).expect("root, to make a network namespace");
        assert_eq!(on.len(), 1, "{on:?}");
        assert!(on[0].starts_with("here: ") && on[0].contains("`ethtool -K there tx off`"));
        // The first end still leaves its own to nobody.
        assert_eq!(off.len(), 1, "{off:?}");
        assert!(off[0].starts_with("there: "), "{off:?}");
    }
}
