//! Which interfaces receive what another one brings: bridges, VLAN devices, and the like.

use std::collections::BTreeSet;
use std::io;

use netlink_bindings::rt_link;

use crate::netlink;

/// What is above an interface.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Above {
    /// The interfaces through which this host may receive what comes in by it: those that it belongs to
    /// (a bridge, a bond, a VRF, the ports of this host at Open vSwitch), those that stand on it, and
    /// those above these.
    pub interfaces: BTreeSet<u32>,
    /// Those of them that run an XDP program.
    pub with_xdp: BTreeSet<u32>,
    /// One of these that is directly above: the kernel takes no program below it.
    pub refusing: Option<u32>,
    /// Flows of Open vSwitch decide who gets a frame.
    pub has_open_vswitch: bool,
    /// Where one of them is a bridge, which hands on what is for other hosts: the Ethernet addresses of
    /// all interfaces of this host, since what is for one of these may come back to it. Else none.
    pub ethernet: BTreeSet<[u8; 6]>,
}

/// Kinds of devices that stand on another one, and get packets that it receives.
const STANDING: [&str; 5] = ["vlan", "macvlan", "macvtap", "ipvlan", "ipvtap"];
/// The kind of this host's ports at Open vSwitch, and of what all ports there belong to.
const OPEN_VSWITCH: &str = "openvswitch";
const BRIDGE: &str = "bridge";

/// What is above an interface of the current network namespace.
///
/// # Errors
///
/// The kernel does not answer.
pub fn above(ifindex: u32) -> io::Result<Above> {
    let request = rt_link::Request::new().op_getlink_dump(&rt_link::Ifinfomsg::default());
    let mut socket = netlink::Socket::new();
    let mut replies = socket.request(&request)?;
    let mut all = Vec::new();
    while let Some(reply) = replies.recv() {
        let (header, attributes) = reply?;
        let kind = attributes.get_linkinfo().and_then(|link| link.get_kind());
        let kind = kind.unwrap_or_default().to_string_lossy().into_owned();
        let is_here = attributes.get_link_netnsid().is_err();
        let stands = STANDING.contains(&&*kind) && is_here;
        let xdp = attributes.get_xdp().and_then(|xdp| xdp.get_attached());
        all.push(Stacked {
            index: header.ifi_index.cast_unsigned(),
            master: attributes.get_master().ok(),
            below: attributes.get_link().ok().filter(|_| stands),
            is_open_vswitch: kind == OPEN_VSWITCH,
            is_bridge: kind == BRIDGE,
            ethernet: attributes
                .get_address()
                .ok()
                .and_then(|it| it.try_into().ok()),
            runs_xdp: xdp.is_ok_and(|mode| mode != 0),
        });
    }
    Ok(above_of(ifindex, &all))
}

/// How an interface stands to others.
#[derive(Default)]
struct Stacked {
    index: u32,
    master: Option<u32>,
    /// On which it stands.
    below: Option<u32>,
    is_open_vswitch: bool,
    is_bridge: bool,
    /// Its address.
    ethernet: Option<[u8; 6]>,
    runs_xdp: bool,
}

impl Stacked {
    fn is_directly_above(&self, other: &Self) -> bool {
        other.master == Some(self.index) || self.below == Some(other.index)
    }

    /// Open vSwitch hands frames to this host by ports of its own. That to which all ports belong is
    /// one of them, and no frame comes by it.
    fn is_above(&self, other: &Self) -> bool {
        self.is_directly_above(other) || other.is_open_vswitch && self.is_open_vswitch
    }
}

fn above_of(ifindex: u32, all: &[Stacked]) -> Above {
    let Some(own) = all.iter().find(|one| one.index == ifindex) else {
        return Above::default();
    };
    let mut above = Above::default();
    let mut todo = vec![own];
    while let Some(below) = todo.pop() {
        let next = all
            .iter()
            .filter(|one| one.index != ifindex && one.is_above(below));
        for one in next {
            if above.interfaces.insert(one.index) {
                todo.push(one);
                above.with_xdp.extend(one.runs_xdp.then_some(one.index));
                above.has_open_vswitch |= one.is_open_vswitch;
            }
        }
    }
    let refusing = all
        .iter()
        .find(|one| one.runs_xdp && one.is_directly_above(own));
    above.refusing = refusing.map(|one| one.index);
    let is_bridged = |one: &Stacked| one.is_bridge && above.interfaces.contains(&one.index);
    if all.iter().any(is_bridged) {
        above.ethernet = all.iter().filter_map(|one| one.ethernet).collect();
    }
    above
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::iproute::ip;
    use crate::link::index;
    use crate::namespace;

    /// A bridge of a macvlan device, and what is beside them. Needs root.
    #[test]
    fn what_receives_by_an_interface_is_above_it() {
        namespace::in_new(|| {
            for words in [
                "link add v0 type veth peer name v1",
                "link add link v0 name m0 type macvlan mode bridge",
                "link add br0 type bridge",
                "link set m0 master br0",
                "link add link v1 name m1 type macvlan mode bridge",
                "link add vx0 type vxlan id 1 dev v0 dstport 4789",
            ] {
                ip(words);
            }
            let of = |names: &[&str]| names.iter().map(|name| index(name).unwrap()).collect();
            let above = |name| above(index(name).unwrap()).unwrap().interfaces;
            assert_eq!(above("v0"), of(&["m0", "br0"]));
            assert_eq!(above("m0"), of(&["br0"]));
            assert_eq!(
                above("v1"),
                of(&["m1"]),
                "and not what is above its other end"
            );
            assert_eq!(above("br0"), of(&[]));
        })
        .expect("this test makes a network namespace and needs root: run `sudo make test`");
    }

    /// Needs root.
    #[test]
    fn all_addresses_of_this_host_are_known_below_a_bridge_alone() {
        namespace::in_new(|| {
            for words in [
                "link add v0 address 02:00:00:00:00:01 type veth peer name v1",
                "link set v1 address 02:00:00:00:00:02",
                "link add link v0 name m0 address 02:00:00:00:00:03 type macvlan mode bridge",
                "link add br0 address 02:00:00:00:00:04 type bridge",
            ] {
                ip(words);
            }
            let of = |name| above(index(name).unwrap()).unwrap().ethernet;
            assert_eq!(of("v0"), BTreeSet::new(), "no bridge is above");
            ip("link set m0 master br0");
            let mut known = BTreeSet::from([1, 2, 3, 4].map(|last| [2, 0, 0, 0, 0, last]));
            known.insert([0; 6]); // loopback's
            assert_eq!(of("v0"), known);
            assert_eq!(of("m0"), known);
            assert_eq!(of("br0"), BTreeSet::new());
        })
        .expect("this test makes a network namespace and needs root: run `sudo make test`");
    }

    /// Sockets bound to a port of this host at Open vSwitch were not known to be above its adapter. (The
    /// kernel of the tests has no Open vSwitch.)
    #[test]
    fn this_host_s_ports_at_open_vswitch_are_above_its_others() {
        let port = |index, master, is_open_vswitch| Stacked {
            index,
            master,
            is_open_vswitch,
            ..Stacked::default()
        };
        let (adapter, switch, own, vlan) = (2, 3, 4, 5);
        let all = [
            port(adapter, Some(switch), false),
            port(switch, None, true),
            port(own, Some(switch), true),
            Stacked {
                below: Some(own),
                runs_xdp: true,
                ..port(vlan, None, false)
            },
            port(6, None, false),
        ];
        let above = above_of(adapter, &all);
        assert_eq!(above.interfaces, BTreeSet::from([switch, own, vlan]));
        assert!(above.has_open_vswitch);
        assert_eq!(above.with_xdp, BTreeSet::from([vlan]));
        assert_eq!(above.refusing, None, "it is not directly above");
        assert_eq!(above_of(own, &all).refusing, Some(vlan));
        assert!(!above_of(6, &all).has_open_vswitch);
    }
}
