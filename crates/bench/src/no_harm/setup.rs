//! The set-ups that operators really have. In each, the look-up from the driver sees
//! less than the stack knows, or the stack is not who takes the packets.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use plimsoll_testbed::{Host, INNER_DEVICE, Testbed};

use super::traffic::{self, Receiver};
use crate::Error;

/// The port that the load host is asked at, or that it sends to.
pub(super) const PORT: u16 = 4433;
/// Of datagrams that fit into one frame.
pub(super) const PAYLOAD_BYTES: usize = 1400;
/// The address of the host behind, and of the test host towards it.
pub(super) const BEHIND: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 2);
const BEHIND_V6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0x77, 0, 0, 0, 0, 0, 2);
/// Where a tunnel's ends listen, and the load host's address in it.
pub(super) const TUNNEL_PORT: u16 = 51820;
pub(super) const TUNNEL_LOAD: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);
/// Whom a download to the host behind is for, which its gateway keeps.
pub(super) const DOWNLOAD_PORT: u16 = 9000;
const BEHIND_MAC: &str = "02:00:00:00:00:03";
const GROUP: Ipv4Addr = Ipv4Addr::new(239, 1, 1, 1);

/// A set-up of the test host and what crosses it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Setup {
    pub(super) name: &'static str,
    pub(super) what: &'static str,
    pub(super) load: Load,
    prepare: fn(&Site<'_>) -> Result<(), Error>,
}

/// What crosses it.
#[derive(Clone, Copy, Debug)]
pub(super) enum Load {
    /// Datagrams from the load host.
    Udp {
        receiver: Receiver,
        /// The receiver is on the host behind.
        behind: bool,
        target: Target,
        payload_bytes: usize,
    },
    /// Datagrams from the load host through a tunnel whose ends are processes.
    Tunnel,
    /// Bytes over one connection; `true`: towards the test host.
    Tcp(bool),
    /// Bytes over one connection to the host behind, asked for at the test host's address.
    TcpBehind,
    /// Clients of nginx on the test host. The flood is one of SYNs to its port.
    Web,
    /// Connections to the test host, one after the other.
    Connections,
    /// The flood itself, to the host behind: `calm_pps`, or more than a CPU forwards.
    Forwarded { calm_pps: u64 },
    /// The generator's datagrams of a download to the host behind: as calm as the others, or at
    /// a rate at which stock begins to lose some of them.
    Download,
}

impl Load {
    /// What counts is how much arrives, not which part of what was sent.
    pub(super) const fn is_throughput(self) -> bool {
        !matches!(
            self,
            Self::Udp { .. } | Self::Tunnel | Self::Web | Self::Download
        )
    }
}

/// Whom the load host sends to.
#[derive(Clone, Copy, Debug)]
pub(super) enum Target {
    /// Whoever asks it.
    Asker,
    /// The test host's address.
    TestHost,
    /// The same over IPv6.
    TestHostV6,
    /// The host behind.
    Behind,
    BehindV6,
    Group,
}

/// The hosts of a run.
pub(super) struct Site<'a> {
    pub(super) testbed: &'a Testbed,
    pub(super) behind: Host,
}

impl Setup {
    pub(super) fn prepare(&self, site: &Site<'_>) -> Result<(), Error> {
        (self.prepare)(site)
    }
}

impl Target {
    pub(super) fn address(self, site: &Site<'_>) -> SocketAddr {
        let ip: IpAddr = match self {
            Self::Asker => site.testbed.load().ipv4().into(),
            Self::TestHost => site.testbed.test().ipv4().into(),
            Self::TestHostV6 => site.testbed.test().ipv6().into(),
            Self::Behind => BEHIND.into(),
            Self::BehindV6 => BEHIND_V6.into(),
            Self::Group => GROUP.into(),
        };
        SocketAddr::new(ip, PORT)
    }
}

const fn udp(receiver: Receiver, behind: bool, target: Target) -> Load {
    Load::Udp {
        receiver,
        behind,
        target,
        payload_bytes: PAYLOAD_BYTES,
    }
}

/// All of them. A machine that cannot make one says so.
pub(super) const ALL: [Setup; 28] = [
    Setup {
        name: "socket",
        what: "a UDP server of the host itself",
        load: udp(Receiver::Bound(PORT), false, Target::TestHost),
        prepare: |_| Ok(()),
    },
    Setup {
        name: "socket-ipv6",
        what: "the same over IPv6",
        load: udp(Receiver::Bound(PORT), false, Target::TestHostV6),
        prepare: |_| Ok(()),
    },
    Setup {
        name: "fragments",
        what: "datagrams to the host in three fragments each",
        load: Load::Udp {
            receiver: Receiver::Bound(PORT),
            behind: false,
            target: Target::TestHost,
            payload_bytes: 4000,
        },
        prepare: |_| Ok(()),
    },
    Setup {
        name: "masquerade",
        what: "a download through a gateway that masquerades (nftables)",
        load: udp(Receiver::Asking, true, Target::Asker),
        prepare: masquerading,
    },
    Setup {
        name: "masquerade-full",
        what: "a download through such a gateway, as fast as it takes it",
        load: Load::Download,
        prepare: |site| {
            masquerading(site)?;
            alone_behind(site)?;
            let target = Target::Asker.address(site);
            traffic::ask_through(&site.behind, DOWNLOAD_PORT, site.testbed.load(), target)?;
            // Its stack would take a part of the gateway's CPU.
            Ok(site.behind.consume_ipv4()?)
        },
    },
    Setup {
        name: "dnat",
        what: "a published port of a container (destination translation)",
        load: udp(Receiver::Bound(9000), true, Target::TestHost),
        prepare: |site| {
            routed(site)?;
            publish(site, "udp")
        },
    },
    Setup {
        name: "dnat-tcp",
        what: "a bulk transfer over TCP to a published port of a container",
        load: Load::TcpBehind,
        prepare: |site| {
            routed(site)?;
            offloads(site.testbed.load(), "load0", "tso off gso off")?;
            publish(site, "tcp")
        },
    },
    Setup {
        name: "load-balancer",
        what: "an nftables load balancer in front of two ports of a server",
        load: udp(Receiver::Bound(9000), true, Target::TestHost),
        prepare: |site| {
            routed(site)?;
            nft(
                site,
                "add chain t pre { type nat hook prerouting priority -100 ; }",
            )?;
            nft(
                site,
                "add rule t pre udp dport 4433 dnat ip to numgen inc mod 2 map \
                 { 0 : 10.77.0.2 , 1 : 10.77.0.2 } : 9000",
            )
        },
    },
    Setup {
        name: "ipvs",
        what: "IPVS in front of a server (needs ipvsadm)",
        load: udp(Receiver::Bound(9000), true, Target::TestHost),
        prepare: |site| {
            routed(site)?;
            let test = site.testbed.test();
            let service = format!("{}:{PORT}", test.ipv4());
            let ipvs = |words: &str| test.configure("ipvsadm", words.split_whitespace());
            ipvs(&format!("-A -u {service} -s rr"))?;
            Ok(ipvs(&format!("-a -u {service} -r {BEHIND}:9000 -m"))?)
        },
    },
    Setup {
        name: "bridge",
        what: "a container on a bridge that the interface belongs to",
        load: udp(Receiver::Bound(PORT), true, Target::Behind),
        prepare: bridged,
    },
    Setup {
        name: "macvlan",
        what: "a container with a macvlan device on the interface",
        load: udp(Receiver::Bound(PORT), true, Target::Behind),
        prepare: macvlan,
    },
    Setup {
        name: "vlan",
        what: "a VLAN device on the interface",
        load: udp(Receiver::Bound(PORT), false, Target::Behind),
        prepare: vlan,
    },
    Setup {
        name: "vxlan",
        what: "a VXLAN tunnel that ends on the host",
        load: udp(Receiver::Bound(PORT), false, Target::Behind),
        prepare: vxlan,
    },
    Setup {
        name: "router",
        what: "a router between the interface and another",
        load: udp(Receiver::Bound(PORT), true, Target::Behind),
        prepare: routed,
    },
    Setup {
        name: "router-full",
        what: "a router that is sent more than its CPU forwards",
        load: Load::Forwarded { calm_pps: 300_000 },
        prepare: |site| {
            routed(site)?;
            // Dropped by its stack, each packet would cost the guard a probe.
            Ok(site.behind.consume_ipv4()?)
        },
    },
    Setup {
        name: "router-ipv6",
        what: "a router over IPv6",
        load: udp(Receiver::Bound(PORT), true, Target::BehindV6),
        prepare: routed_ipv6,
    },
    Setup {
        name: "tunnel",
        what: "a tunnel over UDP whose ends are processes",
        load: Load::Tunnel,
        prepare: |_| Ok(()),
    },
    Setup {
        name: "packet-reader",
        what: "a program that reads packets without a socket for their port",
        load: udp(Receiver::PacketReader(PORT), false, Target::TestHost),
        prepare: |_| Ok(()),
    },
    Setup {
        name: "multicast",
        what: "a member of a multicast group",
        load: udp(Receiver::Member(GROUP, PORT), false, Target::Group),
        prepare: |site| {
            let (load, test) = (site.testbed.load(), site.testbed.test());
            load.ip("route add 239.0.0.0/8 dev load0")?;
            Ok(test.ip("route add 239.0.0.0/8 dev test0")?)
        },
    },
    Setup {
        name: "bound-device",
        what: "a socket bound to the interface",
        load: udp(
            Receiver::BoundToDevice(PORT, "test0"),
            false,
            Target::TestHost,
        ),
        prepare: |_| Ok(()),
    },
    Setup {
        name: "ephemeral",
        what: "clients with a new port for every few datagrams",
        load: udp(Receiver::Ephemeral, false, Target::Asker),
        prepare: |_| Ok(()),
    },
    Setup {
        name: "connected",
        what: "64 connected sockets on one port",
        load: udp(Receiver::Connected(PORT), false, Target::TestHost),
        prepare: |_| Ok(()),
    },
    Setup {
        name: "conntrack",
        what: "a packet filter with connection tracking before a UDP server",
        load: udp(Receiver::Bound(PORT), false, Target::TestHost),
        prepare: |site| {
            nft(site, "add table t")?;
            nft(
                site,
                "add chain t in { type filter hook input priority 0 ; }",
            )?;
            nft(site, "add rule t in ct state invalid drop")
        },
    },
    // As a veth is made: whole runs of 64 KiB go to a host without XDP, past NAPI, on the sender's
    // CPU. The placement of receive work had switched that off, until 2026-11-26.
    Setup {
        name: "tcp-in",
        what: "a bulk transfer to the host over TCP",
        load: Load::Tcp(true),
        prepare: |site| offloads(site.testbed.load(), "load0", "tso on"),
    },
    // No adapter receives such runs.
    Setup {
        name: "tcp-in-frames",
        what: "a bulk transfer to the host in frames of the link's MTU, which it merges",
        load: Load::Tcp(true),
        prepare: |site| {
            let (load, test) = (site.testbed.load(), site.testbed.test());
            offloads(load, "load0", "tso off gso off")?;
            offloads(test, test.device(), "gro on")
        },
    },
    Setup {
        name: "connections",
        what: "connections to the host, one after the other",
        load: Load::Connections,
        prepare: |_| Ok(()),
    },
    // A veth drops what XDP sends back, unless GRO is on or a program runs at its other end.
    Setup {
        name: "syn-plain-veth",
        what: "clients of nginx on a plain veth, also beside SYNs to its own port",
        load: Load::Web,
        prepare: |site| {
            site.testbed.test().configure("nginx", ["-v"])?;
            offloads(site.testbed.load(), "load0", "gro off")
        },
    },
    Setup {
        name: "tcp-out",
        what: "a bulk transfer from the host over TCP",
        load: Load::Tcp(false),
        prepare: |_| Ok(()),
    },
];

fn nft(site: &Site<'_>, words: &str) -> Result<(), Error> {
    let test = site.testbed.test();
    Ok(test.configure("nft", words.split_whitespace())?)
}

/// Turns offloads of a device, as `tso off`.
fn offloads(host: &Host, device: &str, words: &str) -> Result<(), Error> {
    let arguments = ["-K", device].into_iter().chain(words.split_whitespace());
    Ok(host.configure("ethtool", arguments)?)
}

/// The test host routes between its two interfaces; the load host knows the way.
fn routed(site: &Site<'_>) -> Result<(), Error> {
    let (load, test, behind) = (site.testbed.load(), site.testbed.test(), &site.behind);
    test.ip(&format!("address add 10.77.0.1/24 dev {INNER_DEVICE}"))?;
    test.sysctl("net.ipv4.ip_forward", "1")?;
    behind.ip("address add 10.77.0.2/24 dev behind0")?;
    behind.ip("route add default via 10.77.0.1")?;
    load.ip(&format!("route add 10.77.0.0/24 via {}", test.ipv4()))?;
    nft(site, "add table t")
}

/// The test host routes, and what it sends out has its own address.
fn masquerading(site: &Site<'_>) -> Result<(), Error> {
    routed(site)?;
    nft(
        site,
        "add chain t post { type nat hook postrouting priority 100 ; }",
    )?;
    nft(site, "add rule t post oifname test0 masquerade")
}

/// The host behind gets no frames but those that it is sent, so that its interface's counter
/// says how many of them came.
fn alone_behind(site: &Site<'_>) -> Result<(), Error> {
    let (test, behind) = (site.testbed.test(), &site.behind);
    for host in [test, behind] {
        host.sysctl("net.ipv6.conf.all.disable_ipv6", "1")?;
    }
    Ok(test.ip(&format!(
        "neighbour replace {BEHIND} lladdr {BEHIND_MAC} dev {INNER_DEVICE} nud permanent"
    ))?)
}

/// A port of the test host is one of the host behind, to which it routes.
fn publish(site: &Site<'_>, protocol: &str) -> Result<(), Error> {
    nft(
        site,
        "add chain t pre { type nat hook prerouting priority -100 ; }",
    )?;
    let rule = format!("add rule t pre {protocol} dport 4433 dnat ip to 10.77.0.2:9000");
    nft(site, &rule)
}

fn routed_ipv6(site: &Site<'_>) -> Result<(), Error> {
    let (load, test, behind) = (site.testbed.load(), site.testbed.test(), &site.behind);
    test.ip(&format!(
        "-6 address add fd00:77::1/64 dev {INNER_DEVICE} nodad"
    ))?;
    test.sysctl("net.ipv6.conf.all.forwarding", "1")?;
    behind.ip(&format!("-6 address add {BEHIND_V6}/64 dev behind0 nodad"))?;
    behind.ip("-6 route add default via fd00:77::1")?;
    // A router asks for it from its link-local address, which takes a second to be unique.
    test.ip(&format!(
        "-6 neighbour replace {BEHIND_V6} lladdr {BEHIND_MAC} dev {INNER_DEVICE} nud permanent"
    ))?;
    Ok(load.ip(&format!("-6 route add fd00:77::/64 via {}", test.ipv6()))?)
}

/// The interface and the container's belong to one bridge; the container has an
/// address of the load host's network.
fn bridged(site: &Site<'_>) -> Result<(), Error> {
    let (load, test, behind) = (site.testbed.load(), site.testbed.test(), &site.behind);
    test.ip("link add br0 type bridge")?;
    test.ip(&format!("link set {INNER_DEVICE} master br0"))?;
    test.ip(&format!("link set {} master br0", test.device()))?;
    test.ip("link set br0 up")?;
    behind.ip("address add 10.77.0.2/24 dev behind0")?;
    load.ip("address add 10.77.0.1/24 dev load0")?;
    load.ip("neighbour replace 10.77.0.2 lladdr 02:00:00:00:00:03 dev load0")?;
    Ok(behind.ip("neighbour replace 10.77.0.1 lladdr 02:00:00:00:00:01 dev behind0")?)
}

fn macvlan(site: &Site<'_>) -> Result<(), Error> {
    let (load, test, behind) = (site.testbed.load(), site.testbed.test(), &site.behind);
    test.ip(&format!(
        "link add link {} name mac0 address 02:00:00:00:00:04 netns {} type macvlan mode bridge",
        test.device(),
        behind.name()
    ))?;
    behind.ip("address add 10.77.0.2/24 dev mac0")?;
    behind.ip("link set mac0 up")?;
    load.ip("address add 10.77.0.1/24 dev load0")?;
    Ok(load.ip("neighbour replace 10.77.0.2 lladdr 02:00:00:00:00:04 dev load0")?)
}

fn vlan(site: &Site<'_>) -> Result<(), Error> {
    let (load, test) = (site.testbed.load(), site.testbed.test());
    for (host, device, address) in [
        (load, "load0", "10.77.0.1/24"),
        (test, test.device(), "10.77.0.2/24"),
    ] {
        host.ip(&format!("link add link {device} name vlan7 type vlan id 7"))?;
        host.ip(&format!("address add {address} dev vlan7"))?;
        host.ip("link set vlan7 up")?;
    }
    Ok(())
}

fn vxlan(site: &Site<'_>) -> Result<(), Error> {
    let (load, test) = (site.testbed.load(), site.testbed.test());
    for (host, other, device, address) in [
        (load, test, "load0", "10.77.0.1/24"),
        (test, load, "test0", "10.77.0.2/24"),
    ] {
        host.ip(&format!(
            "link add vx0 type vxlan id 7 dstport 4789 local {} remote {} dev {device}",
            host.ipv4(),
            other.ipv4()
        ))?;
        host.ip(&format!("address add {address} dev vx0"))?;
        host.ip("link set vx0 up")?;
    }
    Ok(())
}
