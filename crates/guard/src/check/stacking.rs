//! Interfaces that receive through others, and those that receive for others: a bond and
//! its members, a bridge and its ports, VLAN and macvlan devices.
//!
//! Rings, interrupts and their settings are those of the interface that has the adapter.
//! An interface on top of it has none, so a governor there sees and turns nothing.

use std::io;

use nix::net::if_::if_indextoname;
use plimsoll_kernel::error::os;
use plimsoll_kernel::knobs::Device;
use plimsoll_kernel::link::{self, Link};

use crate::error::Error;

use super::{Finding, Verdict, finding};

/// What a guard that starts here has to say of it, if there is anything.
pub(crate) fn warning(interface: &str) -> Result<Option<String>, Error> {
    let ifindex = link::index(interface)?;
    let own = link::link(ifindex).map_err(os("ask for the interface's state"))?;
    let below = Device::open(interface, ifindex)?.lower();
    let below = below.map_err(os("list the interfaces below"))?;
    let finding = stacking(interface, &own, &below);
    let finding = finding.map_err(os("ask how the interface stands to others"))?;
    Ok((finding.verdict != Verdict::Ok)
        .then(|| format!("{}. The guard {}", finding.found, finding.guard)))
}

/// How the interface stands to others; it receives through those `below`.
pub(super) fn stacking(interface: &str, own: &Link, below: &[String]) -> io::Result<Finding> {
    let master = own.master.map(|index| {
        let name = if_indextoname(index)?.to_string_lossy().into_owned();
        io::Result::Ok((name, link::link(index)?.kind.unwrap_or_default()))
    });
    let kind = own.kind.as_deref().unwrap_or_default();
    Ok(stacking_of(interface, kind, below, master.transpose()?))
}

/// Kinds whose members receive for addresses that only the master has.
fn is_bond(kind: &str) -> bool {
    matches!(kind, "bond" | "team")
}

/// With this kind, and a master of such a name and kind.
fn stacking_of(
    interface: &str,
    kind: &str,
    below: &[String],
    master: Option<(String, String)>,
) -> Finding {
    let limited =
        |found: String, guard: String| finding("stacking", Verdict::Limited, found, guard);
    let through = below.join(", ");
    if is_bond(kind) {
        let found = match below {
            [] => format!("{interface} is a {kind} without members"),
            _ => format!("{interface} is a {kind} of {through}"),
        };
        return limited(
            found,
            format!(
                "cannot govern its members from here, nor see their rings: guard each member instead of {interface}"
            ),
        );
    }
    if !below.is_empty() {
        return limited(
            format!("{interface} receives through {through}"),
            format!(
                "cannot govern interrupts from here: guard the interface where packets come in ({through}) instead of {interface}"
            ),
        );
    }
    match master {
        Some((name, kind)) if is_bond(&kind) => limited(
            format!("{interface} is a member of the {kind} {name}"),
            format!(
                "governs this member; guard each other member of {name} as well. SYN cookies stay with the stack, since addresses are {name}'s"
            ),
        ),
        Some((name, kind)) => limited(
            format!("{interface} belongs to the {kind} {name}"),
            "judges packets for this host's addresses and admits the rest. SYN cookies stay with the stack".to_owned(),
        ),
        None => {
            let found = "receives by itself, for itself";
            finding("stacking", Verdict::Ok, found, "governs its interrupts")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(kind: &str, below: &[&str], master: Option<(&str, &str)>) -> Finding {
        let below: Vec<String> = below.iter().map(|&name| name.to_owned()).collect();
        let master = master.map(|(name, kind)| (name.to_owned(), kind.to_owned()));
        stacking_of("x0", kind, &below, master)
    }

    #[test]
    fn a_bond_says_that_its_members_are_to_be_guarded() {
        for kind in ["bond", "team"] {
            let bond = told(kind, &["eth0", "eth1"], None);
            assert_eq!(bond.verdict, Verdict::Limited);
            assert_eq!(bond.found, format!("x0 is a {kind} of eth0, eth1"));
            assert!(bond.guard.contains("guard each member instead of x0"));
            assert!(told(kind, &[], None).found.contains("without members"));
            let member = told("", &[], Some(("bond0", kind)));
            assert_eq!(member.verdict, Verdict::Limited);
            assert!(member.guard.contains("guard each other member of bond0"));
            // A bond in a bridge is still a bond.
            let bridged = told(kind, &["eth0"], Some(("br0", "bridge")));
            assert!(bridged.guard.contains("guard each member"));
        }
    }

    #[test]
    fn what_stands_on_an_interface_names_it() {
        for kind in ["vlan", "macvlan", "bridge"] {
            let above = told(kind, &["eth0"], None);
            assert_eq!(above.verdict, Verdict::Limited);
            assert!(above.guard.contains("come in (eth0) instead of x0"));
        }
        let port = told("veth", &[], Some(("br0", "bridge")));
        assert_eq!(port.found, "x0 belongs to the bridge br0");
        assert_eq!(told("", &[], None).verdict, Verdict::Ok);
    }
}
