//! The link between the two hosts: a veth pair whose addresses, neighbours and
//! routes are all static, so that a flood cannot lose an ARP reply and no
//! address is ever tentative. Address resolution is off: the link carries only
//! what somebody sends, and the ledger of a flood comes out exact. (One multicast
//! listener report that met a full ring used to make it one packet too many.)
//!
//! Addresses are those reserved for benchmarking: 198.18.0.0/15 (RFC 2544) and
//! `2001:2::/48` (RFC 5180). The test host routes both ranges to the load host,
//! which discards what is not its own: a generator may pick any source in them
//! and the answers end there.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::AsRawFd;

use ipnet::{IpNet, Ipv4Net};
use netlink_bindings::traits::{NetlinkRequest, Pusher};
use netlink_bindings::utils::{finalize_nested_header, push_nested_header, write_header};
use netlink_bindings::{rt_addr, rt_link, rt_neigh, rt_route};
use nix::libc;
use plimsoll_kernel::link::{wait_until_local, wait_until_sending};
use plimsoll_kernel::netlink;

use crate::{Error, Host};

/// One end of the link.
#[derive(Clone, Debug)]
pub(crate) struct End {
    /// Short, because the polling thread is named `napi/DEVICE-ID` in 15 characters.
    pub(crate) device: &'static str,
    pub(crate) ifindex: u32,
    pub(crate) mac: [u8; 6],
    pub(crate) ipv4: Ipv4Addr,
    pub(crate) ipv6: Ipv6Addr,
}

/// The load host's end. Locally administered Ethernet address (IEEE 802).
pub(crate) const LOAD: End = End {
    device: "load0",
    ifindex: 2,
    mac: [0x02, 0, 0, 0, 0, 0x01],
    ipv4: Ipv4Addr::new(198, 18, 0, 1),
    ipv6: Ipv6Addr::new(0x2001, 2, 0, 0, 0, 0, 0, 1),
};

/// The test host's end.
pub(crate) const TEST: End = End {
    device: "test0",
    ifindex: 2,
    mac: [0x02, 0, 0, 0, 0, 0x02],
    ipv4: Ipv4Addr::new(198, 18, 0, 2),
    ipv6: Ipv6Addr::new(0x2001, 2, 0, 0, 0, 0, 0, 2),
};

/// The IPv4 range that answers may go to: all of it reaches the load host.
pub const IPV4_RANGE: (Ipv4Addr, u8) = (Ipv4Addr::new(198, 18, 0, 0), 15);
/// The IPv6 range that answers may go to: all of it reaches the load host.
pub const IPV6_RANGE: (Ipv6Addr, u8) = (Ipv6Addr::new(0x2001, 2, 0, 0, 0, 0, 0, 0), 48);

/// Prefix lengths of the link itself.
const IPV4_PREFIX: u8 = 24;
const IPV6_PREFIX: u8 = 64;

/// The index of every namespace's loopback interface.
const LOOPBACK: u32 = 1;
/// Of linux/veth.h.
const VETH_INFO_PEER: u16 = 1;

/// Joins the two hosts.
pub(crate) fn join(load: &Host, test: &Host) -> Result<(), Error> {
    load.run(|| with_netlink("make the veth pair", |netlink| add_pair(netlink, test)))??;
    configure(load, &test.end, Side::Load)?;
    configure(test, &load.end, Side::Test)?;
    for host in [load, test] {
        // Both ends are up only now.
        host.run(|| {
            wait_until_local(host.ipv6()).and_then(|()| wait_until_sending(host.device()))
        })?
        .map_err(Error::io(format!("wait for the link of {}", host.name())))?;
    }
    Ok(())
}

/// Takes the link away at once: a namespace may linger until the last of its
/// sockets is closed, and its polling timers with it.
pub(crate) fn remove(load: &Host) -> Result<(), Error> {
    let index = load.ifindex();
    load.run(|| {
        with_netlink("remove the veth pair", |netlink| {
            let request = rt_link::Request::new().op_dellink_do(&interface(index));
            ask(netlink, &request)
        })
    })?
}

#[derive(Clone, Copy, PartialEq)]
enum Side {
    Load,
    Test,
}

fn add_pair(netlink: &mut netlink::Socket, test: &Host) -> io::Result<()> {
    let mut request = rt_link::Request::new()
        .set_create()
        .set_excl()
        .op_newlink_do(&interface(LOAD.ifindex));
    let mut pair = named(request.encode(), &LOAD)
        .nested_linkinfo()
        .push_kind(c"veth");
    // The bindings do not know a veth's data: a message about the other end, headers and all.
    let bytes = pair.as_vec_mut();
    let data = push_nested_header(bytes, libc::IFLA_INFO_DATA);
    let peer = write_header(bytes, VETH_INFO_PEER);
    let header = interface(TEST.ifindex);
    named(rt_link::OpNewlinkDo::encode_request(bytes, &header), &TEST)
        .push_net_ns_fd(test.namespace().as_raw_fd().cast_unsigned());
    finalize_nested_header(bytes, peer);
    finalize_nested_header(bytes, data);
    drop(pair);
    ask(netlink, &request)
}

fn interface(index: u32) -> rt_link::Ifinfomsg {
    rt_link::Ifinfomsg {
        ifi_index: index.cast_signed(),
        ..Default::default()
    }
}

fn named<P: Pusher>(attributes: rt_link::PushLinkAttrs<P>, end: &End) -> rt_link::PushLinkAttrs<P> {
    attributes
        .push_ifname_bytes(end.device.as_bytes())
        .push_address(&end.mac)
}

fn configure(host: &Host, peer: &End, side: Side) -> Result<(), Error> {
    let end = &host.end;
    if !std::path::Path::new("/proc/sys/net/ipv6").exists() {
        return Err(Error::MissingKernelFeature {
            feature: "IPv6",
            detail: "/proc/sys/net/ipv6 does not exist".to_owned(),
        });
    }
    // No tentative addresses, no link-local ones and no router solicitations:
    // nothing is sent that nobody offered.
    for (setting, value) in [
        ("disable_ipv6", "0"),
        ("accept_dad", "0"),
        ("accept_ra", "0"),
        ("addr_gen_mode", "1"),
    ] {
        host.sysctl(&format!("net/ipv6/conf/{}/{setting}", end.device), value)?;
    }
    for interface in ["all", end.device] {
        host.sysctl(&format!("net/ipv4/conf/{interface}/rp_filter"), "0")?;
    }
    if side == Side::Load {
        // A server answers late, and the client has gone: the error would be a packet more
        // than was offered. One per peer in so many milliseconds means none.
        for setting in ["net/ipv4/icmp_ratelimit", "net/ipv6/icmp/ratelimit"] {
            host.sysctl(setting, &i32::MAX.to_string())?;
        }
    }
    let action = format!("configure {} in {}", end.device, host.name());
    host.run(|| {
        with_netlink(&action, |netlink| {
            set_up(netlink, end)?;
            add_addresses(netlink, end)?;
            add_neighbours(netlink, end.ifindex, peer)?;
            add_routes(netlink, peer, side)
        })
    })?
}

fn set_up(netlink: &mut netlink::Socket, end: &End) -> io::Result<()> {
    // Without address resolution (the neighbours are permanent) the host joins
    // no solicited-node groups, and so reports none to multicast routers.
    for (index, flags) in [
        (LOOPBACK, libc::IFF_UP),
        (end.ifindex, libc::IFF_UP | libc::IFF_NOARP),
    ] {
        let header = rt_link::Ifinfomsg {
            ifi_flags: flags.cast_unsigned(),
            ifi_change: flags.cast_unsigned(),
            ..interface(index)
        };
        ask(netlink, &rt_link::Request::new().op_setlink_do(&header))?;
    }
    Ok(())
}

fn add_addresses(netlink: &mut netlink::Socket, end: &End) -> io::Result<()> {
    for own in [
        IpNet::new_assert(end.ipv4.into(), IPV4_PREFIX),
        IpNet::new_assert(end.ipv6.into(), IPV6_PREFIX),
    ] {
        let header = rt_addr::Ifaddrmsg {
            ifa_family: family(own.addr()),
            ifa_prefixlen: own.prefix_len(),
            ifa_index: end.ifindex,
            ..Default::default()
        };
        let mut request = rt_addr::Request::new()
            .set_create()
            .set_excl()
            .op_newaddr_do(&header);
        request
            .encode()
            .push_address(own.addr())
            .push_local(own.addr());
        if let IpNet::V4(own) = own {
            request.encode().push_broadcast(own.broadcast());
        }
        ask(netlink, &request)?;
    }
    Ok(())
}

fn add_neighbours(netlink: &mut netlink::Socket, index: u32, peer: &End) -> io::Result<()> {
    for address in [IpAddr::from(peer.ipv4), IpAddr::from(peer.ipv6)] {
        let header = rt_neigh::Ndmsg {
            ndm_family: family(address),
            ndm_ifindex: index.cast_signed(),
            ndm_state: libc::NUD_PERMANENT,
            ..Default::default()
        };
        let mut request = rt_neigh::Request::new()
            .set_create()
            .set_excl()
            .op_newneigh_do(&header);
        request.encode().push_dst(address).push_lladdr(&peer.mac);
        ask(netlink, &request)?;
    }
    Ok(())
}

fn add_routes(netlink: &mut netlink::Socket, peer: &End, side: Side) -> io::Result<()> {
    let (ipv4, ipv6) = (IPV4_RANGE, IPV6_RANGE);
    for (range, router) in [
        (IpNet::new_assert(ipv4.0.into(), ipv4.1), peer.ipv4.into()),
        (IpNet::new_assert(ipv6.0.into(), ipv6.1), peer.ipv6.into()),
    ] {
        let target = match side {
            Side::Load => Target::Blackhole,
            Side::Test => Target::Gateway(router),
        };
        add_route(netlink, range, target)?;
    }
    Ok(())
}

/// What becomes of packets that a route takes.
#[derive(Clone, Copy)]
enum Target {
    Blackhole,
    Gateway(IpAddr),
    Local,
}

fn add_route(netlink: &mut netlink::Socket, to: IpNet, target: Target) -> io::Result<()> {
    use libc::{RT_SCOPE_HOST, RT_SCOPE_UNIVERSE, RT_TABLE_LOCAL, RT_TABLE_MAIN};
    let (kind, scope, table) = match target {
        Target::Blackhole => (libc::RTN_BLACKHOLE, RT_SCOPE_UNIVERSE, RT_TABLE_MAIN),
        Target::Gateway(_) => (libc::RTN_UNICAST, RT_SCOPE_UNIVERSE, RT_TABLE_MAIN),
        Target::Local => (libc::RTN_LOCAL, RT_SCOPE_HOST, RT_TABLE_LOCAL),
    };
    let header = rt_route::Rtmsg {
        rtm_family: family(to.addr()),
        rtm_dst_len: to.prefix_len(),
        rtm_table: table,
        rtm_protocol: libc::RTPROT_STATIC,
        rtm_scope: scope,
        rtm_type: kind,
        ..Default::default()
    };
    let mut request = rt_route::Request::new()
        .set_create()
        .set_excl()
        .op_newroute_do(&header);
    request.encode().push_dst(to.network());
    match target {
        Target::Blackhole => {}
        Target::Gateway(router) => drop(request.encode().push_gateway(router)),
        Target::Local => drop(request.encode().push_oif(LOOPBACK)),
    }
    ask(netlink, &request)
}

/// Routes every other IPv4 address from the test host to the load host, which discards
/// what is not its own.
pub(crate) fn route_all(load: &Host, test: &Host) -> Result<(), Error> {
    let all = [Ipv4Net::default()];
    add_ipv4_routes(load, "discard what is nobody's", &all, Target::Blackhole)?;
    let gateway = Target::Gateway(load.ipv4().into());
    add_ipv4_routes(test, "route all to the load host", &all, gateway)
}

/// Makes every address of these networks one of `host`'s own, without configuring it: a
/// socket may send from it, and gets what comes for it.
pub(crate) fn own(host: &Host, networks: &[Ipv4Net]) -> Result<(), Error> {
    add_ipv4_routes(host, "own networks", networks, Target::Local)
}

fn add_ipv4_routes(
    host: &Host,
    action: &str,
    networks: &[Ipv4Net],
    target: Target,
) -> Result<(), Error> {
    let action = format!("{action} in {}", host.name());
    host.run(|| {
        with_netlink(&action, |netlink| {
            let mut networks = networks.iter();
            networks.try_for_each(|network| add_route(netlink, (*network).into(), target))
        })
    })?
}

fn family(address: IpAddr) -> u8 {
    let family = match address {
        IpAddr::V4(_) => libc::AF_INET,
        IpAddr::V6(_) => libc::AF_INET6,
    };
    family as u8
}

/// Runs `work` with a netlink socket of the calling thread's namespace.
fn with_netlink(
    action: &str,
    work: impl FnOnce(&mut netlink::Socket) -> io::Result<()>,
) -> Result<(), Error> {
    work(&mut netlink::Socket::new()).map_err(Error::io(action))
}

fn ask(netlink: &mut netlink::Socket, request: &impl NetlinkRequest) -> io::Result<()> {
    Ok(netlink.request(request)?.recv_ack()?)
}
