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

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::AsRawFd;

use ipnet::Ipv4Net;
use plimsoll_kernel::link::wait_until_local;
use rtnetlink::packet_route::link::{InfoData, InfoVeth};
use rtnetlink::packet_route::route::{RouteScope, RouteType};
use rtnetlink::{
    Handle, LinkMessageBuilder, LinkUnspec, LinkVeth, RouteMessageBuilder, new_connection,
};

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
/// The table of a host's own addresses (`RT_TABLE_LOCAL`, rtnetlink(7)).
const LOCAL_TABLE: u32 = 255;

/// Joins the two hosts.
pub(crate) fn join(load: &Host, test: &Host) -> Result<(), Error> {
    load.run(|| {
        with_netlink("make the veth pair", async |netlink| {
            add_pair(netlink, test).await
        })
    })??;
    configure(load, &test.end, Side::Load)?;
    configure(test, &load.end, Side::Test)?;
    for host in [load, test] {
        // Both ends are up only now.
        host.run(|| wait_until_local(host.ipv6()))?
            .map_err(Error::io(format!(
                "wait for the address of {}",
                host.name()
            )))?;
    }
    Ok(())
}

/// Takes the link away at once: a namespace may linger until the last of its
/// sockets is closed, and its polling timers with it.
pub(crate) fn remove(load: &Host) -> Result<(), Error> {
    let index = load.ifindex();
    load.run(|| {
        with_netlink("remove the veth pair", async |netlink| {
            netlink.link().del(index).execute().await
        })
    })?
}

#[derive(Clone, Copy, PartialEq)]
enum Side {
    Load,
    Test,
}

async fn add_pair(netlink: &Handle, test: &Host) -> Result<(), rtnetlink::Error> {
    let peer = LinkMessageBuilder::<LinkUnspec>::new()
        .name(TEST.device)
        .index(TEST.ifindex)
        .address(TEST.mac.to_vec())
        .setns_by_fd(test.namespace().as_raw_fd())
        .build();
    let pair = LinkVeth::new(LOAD.device, TEST.device)
        .index(LOAD.ifindex)
        .address(LOAD.mac.to_vec())
        .set_info_data(InfoData::Veth(InfoVeth::Peer(peer)))
        .build();
    netlink.link().add(pair).execute().await
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
        with_netlink(&action, async |netlink| {
            set_up(netlink, end).await?;
            add_neighbours(netlink, end.ifindex, peer).await?;
            add_routes(netlink, peer, side).await
        })
    })?
}

async fn set_up(netlink: &Handle, end: &End) -> Result<(), rtnetlink::Error> {
    let address = netlink.address();
    let (ipv4, ipv6) = (IpAddr::from(end.ipv4), IpAddr::from(end.ipv6));
    // Without address resolution (the neighbours are permanent) the host joins
    // no solicited-node groups, and so reports none to multicast routers.
    for up in [
        LinkUnspec::new_with_index(LOOPBACK).up(),
        LinkUnspec::new_with_index(end.ifindex).arp(false).up(),
    ] {
        netlink.link().set(up.build()).execute().await?;
    }
    address
        .add(end.ifindex, ipv4, IPV4_PREFIX)
        .execute()
        .await?;
    address.add(end.ifindex, ipv6, IPV6_PREFIX).execute().await
}

async fn add_neighbours(netlink: &Handle, index: u32, peer: &End) -> Result<(), rtnetlink::Error> {
    for address in [IpAddr::from(peer.ipv4), IpAddr::from(peer.ipv6)] {
        // Permanent is what the crate asks for by default.
        netlink
            .neighbours()
            .add(index, address)
            .link_layer_address(&peer.mac)
            .execute()
            .await?;
    }
    Ok(())
}

async fn add_routes(netlink: &Handle, peer: &End, side: Side) -> Result<(), rtnetlink::Error> {
    let mut ipv4 =
        RouteMessageBuilder::<Ipv4Addr>::new().destination_prefix(IPV4_RANGE.0, IPV4_RANGE.1);
    let mut ipv6 =
        RouteMessageBuilder::<Ipv6Addr>::new().destination_prefix(IPV6_RANGE.0, IPV6_RANGE.1);
    match side {
        Side::Load => {
            ipv4 = ipv4.kind(RouteType::BlackHole);
            ipv6 = ipv6.kind(RouteType::BlackHole);
        }
        Side::Test => {
            ipv4 = ipv4.gateway(peer.ipv4);
            ipv6 = ipv6.gateway(peer.ipv6);
        }
    }
    netlink.route().add(ipv4.build()).execute().await?;
    netlink.route().add(ipv6.build()).execute().await
}

/// Routes every other IPv4 address from the test host to the load host, which discards
/// what is not its own.
pub(crate) fn route_all(load: &Host, test: &Host) -> Result<(), Error> {
    let all =
        || RouteMessageBuilder::<Ipv4Addr>::new().destination_prefix(Ipv4Addr::UNSPECIFIED, 0);
    let discard = all().kind(RouteType::BlackHole);
    add_ipv4_routes(load, "discard what is nobody's", vec![discard])?;
    let gateway = all().gateway(load.ipv4());
    add_ipv4_routes(test, "route all to the load host", vec![gateway])
}

/// Makes every address of these networks one of `host`'s own, without configuring it: a
/// socket may send from it, and gets what comes for it.
pub(crate) fn own(host: &Host, networks: &[Ipv4Net]) -> Result<(), Error> {
    let route = |net: &Ipv4Net| {
        RouteMessageBuilder::<Ipv4Addr>::new()
            .destination_prefix(net.network(), net.prefix_len())
            .kind(RouteType::Local)
            .scope(RouteScope::Host)
            .table_id(LOCAL_TABLE)
            .output_interface(LOOPBACK)
    };
    add_ipv4_routes(host, "own networks", networks.iter().map(route).collect())
}

fn add_ipv4_routes(
    host: &Host,
    action: &str,
    routes: Vec<RouteMessageBuilder<Ipv4Addr>>,
) -> Result<(), Error> {
    let add = async |netlink: &Handle| {
        for route in routes {
            netlink.route().add(route.build()).execute().await?;
        }
        Ok(())
    };
    host.run(|| with_netlink(&format!("{action} in {}", host.name()), add))?
}

/// Runs `work` with a netlink socket of the calling thread's namespace.
fn with_netlink<T>(
    action: &str,
    work: impl AsyncFnOnce(&Handle) -> Result<T, rtnetlink::Error>,
) -> Result<T, Error> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .build()
        .map_err(Error::io("start a netlink runtime"))?;
    runtime.block_on(async {
        let (connection, netlink, _) =
            new_connection().map_err(Error::io("open a netlink socket"))?;
        tokio::spawn(connection);
        work(&netlink).await.map_err(|error| {
            let source = match error {
                rtnetlink::Error::NetlinkError(message) => message.to_io(),
                other => std::io::Error::other(other),
            };
            Error::io(action)(source)
        })
    })
}
