//! How a stack works.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;
use std::time::Duration;

use ipnet::IpNet;
use plimsoll_core::aggregation::AggregationConfig;
use plimsoll_core::channel::ChannelConfig;
use plimsoll_core::holdoff::CreditConfig;

use crate::error::Error;
use crate::receive::polled::PolledConfig;
use crate::tcp::Pacing;
use crate::wire::reassembly::ReassemblyConfig;

/// Settings of a [`Stack`](crate::Stack).
#[derive(Clone, Debug)]
pub struct StackConfig {
    /// The stack's addresses, each with its network, as `198.18.0.2/24`. At
    /// least one.
    pub addresses: Vec<IpNet>,
    /// Where packets for other networks go: the first gateway of a family.
    pub gateways: Vec<IpAddr>,
    /// When received packets are processed, and for whom.
    pub path: ReceivePath,
    /// The bounded queue of each UDP socket, and of each TCP listener for what belongs to no
    /// connection, of which SYNs of strangers take four fifths at most. Default: 256 frames, discard
    /// when full.
    pub channel: ChannelConfig,
    /// UDP sockets and TCP listeners at a time, at least 1. Memory is taken for all of them: a
    /// channel of 256 frames takes about 25 KiB. Default 64.
    pub channels_max: u32,
    /// Frames that one turn of the receiving thread takes, at least 1: others
    /// wait at most that long for the table of sockets. Default 64.
    pub turn_frames: usize,
    /// Takes buffers from the device while packets are dropped at full sockets, and gives them
    /// back slowly: what comes then is dropped by the device, at no cost to this host. For
    /// AF_XDP, and not with `ni-lrp`, where full rings do it. Default none.
    pub credit: Option<CreditConfig>,
    /// A thread of idle priority processes what waits for receiving calls while a CPU is
    /// idle: a receiver that was busy elsewhere finds up to 64 datagrams processed, beside what
    /// its channel holds. For UDP on the paths `soft-lrp` and `soft-timer-polling`; it takes
    /// `CAP_SYS_NICE`. Cost: the receiving thread may wake one more thread. Default no.
    pub work_ahead: bool,
    /// Who does what belongs to no socket.
    pub proxies: ProxyConfig,
    /// Bounds of reassembly.
    pub reassembly: ReassemblyConfig,
    /// Bounds of TCP.
    pub tcp: TcpConfig,
}

/// The proxies: threads that do what belongs to no socket, each with a channel of its own, as
/// long as a socket's ([`StackConfig::channel`]).
///
/// A nice level says how much of a busy CPU such work may take from programs. A level better
/// than that of the thread that starts the stack takes `CAP_SYS_NICE`. Default for each: that
/// thread's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProxyConfig {
    /// The nice level for ARP and neighbour discovery, from -20 to 19. Beneath busy programs,
    /// neighbours wait for answers, and so does what is to be sent to new ones.
    pub neighbour_nice: Option<i8>,
    /// That for ICMP: pings, and what the network says of our packets.
    pub icmp_nice: Option<i8>,
    /// That for answers to ports that nobody bound, of which there are a thousand a second at
    /// most.
    pub closed_port_nice: Option<i8>,
    /// Packets for other hosts are sent on, as a router does. Default no: they end here, and are
    /// counted as [`Outcome::Forward`](crate::Outcome::Forward).
    pub forward: Option<ForwardConfig>,
    /// Neighbours are told where the stack's own addresses are, at the start and two seconds later (RFC 5227, 3; RFC
    /// 4861, 7.2.6). So who knew one of them at another host sends here at once, and not when it asks again. Cost: a host
    /// that still has the address loses its traffic to this one. Default no.
    pub announce: bool,
}

/// How packets for other hosts are sent on: to the stack's own networks, and to its gateways, by
/// the device that they came by. Errors (no route, the time to live ended) are told a thousand
/// times a second at most.
///
/// Cost: whoever sends such packets has this host ask for its neighbours' Ethernet addresses.
/// Not with AF_XDP, where the kernel gets what is for others; that is what `plimsoll forward`
/// is for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ForwardConfig {
    /// The nice level, from -20 to 19. At 19 busy programs leave it next to nothing. Default:
    /// that of the thread that starts the stack.
    pub nice: Option<i8>,
}

impl ProxyConfig {
    fn validate(&self) -> Result<(), Error> {
        for (field, nice) in [
            ("proxies.neighbour_nice", self.neighbour_nice),
            ("proxies.icmp_nice", self.icmp_nice),
            ("proxies.closed_port_nice", self.closed_port_nice),
            (
                "proxies.forward.nice",
                self.forward.and_then(|forward| forward.nice),
            ),
        ] {
            if let Some(nice) = nice.filter(|nice| !(-20..=19).contains(nice)) {
                return Err(Error::Config {
                    field,
                    given: nice.to_string(),
                    allowed: "a nice level from -20 to 19",
                });
            }
        }
        Ok(())
    }
}

/// Bounds of TCP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TcpConfig {
    /// Connections at a time; from 1 to 1,048,576. Those in `TIME_WAIT`, and those that were closed
    /// here and wait for the peer's end alone, do not count. Memory for the channels is taken
    /// beforehand, about 100 bytes per frame. Default 256.
    pub connections_max: u32,
    /// A connection's receive buffer, and its send buffer as well; from 2 KiB to
    /// 1 GiB. Taken for each connection that is there. Default 64 KiB.
    pub buffer_bytes: usize,
    /// Segments that may wait for the TCP thread, per connection; at least 1. Give it as many as a
    /// buffer sends: the peer may acknowledge each, and where the last acknowledgements find no
    /// room it is asked again. More only wait in vain. Default 64.
    pub channel_segments: u32,
    /// A listener whose places half-open connections have filled answers so many SYNs a second
    /// without keeping anything (SYN cookies, RFC 4987), in bursts of a twentieth, and beyond these a
    /// quarter as many of addresses that have ended a handshake in the last ten minutes. Each takes some
    /// microseconds, so 50,000 took 40 % of a CPU over veth. On AF_XDP, but for `eager` and `early-demux`, the XDP program
    /// answers the others where its answers arrive, and then all but a few of these. Such connections know no window
    /// scaling. 0: none. Default 50,000.
    pub syn_cookies_per_s: u32,
    /// How connections send, until [`TcpStream::set_pacing`](crate::TcpStream::set_pacing)
    /// says otherwise. Default [`Pacing::Off`].
    pub pacing: Pacing,
    /// The TCP thread does not sleep if a paced segment is due so soon. As long as the
    /// kernel takes to wake a thread (20 to 100 µs), segments leave within some
    /// microseconds of their time, and the thread takes most of a CPU while it sends
    /// above 100 Mbit/s. Default 0: they leave when the kernel wakes it, and the rate is kept
    /// by catching up.
    pub wake_up: Duration,
}

impl Default for TcpConfig {
    fn default() -> Self {
        Self {
            connections_max: 256,
            buffer_bytes: 64 << 10,
            channel_segments: 64,
            syn_cookies_per_s: 50_000,
            pacing: Pacing::Off,
            wake_up: Duration::ZERO,
        }
    }
}

impl TcpConfig {
    pub(crate) fn channel(&self) -> ChannelConfig {
        ChannelConfig::drop_tail(self.channel_segments)
    }
}

impl Default for StackConfig {
    fn default() -> Self {
        Self {
            addresses: Vec::new(),
            gateways: Vec::new(),
            path: ReceivePath::SoftLrp,
            channel: ChannelConfig::drop_tail(256),
            channels_max: 64,
            turn_frames: 64,
            credit: None,
            work_ahead: false,
            proxies: ProxyConfig::default(),
            reassembly: ReassemblyConfig::default(),
            tcp: TcpConfig::default(),
        }
    }
}

impl StackConfig {
    /// The defaults with one address.
    #[must_use]
    pub fn at(address: IpNet) -> Self {
        Self {
            addresses: vec![address],
            ..Self::default()
        }
    }

    pub(crate) fn validate(&self) -> Result<(), Error> {
        let refuse = |field, given: String, allowed| {
            Err(Error::Config {
                field,
                given,
                allowed,
            })
        };
        if self.addresses.is_empty() {
            return refuse("addresses", "none".to_owned(), "at least one");
        }
        if self.turn_frames == 0 {
            return refuse("turn_frames", "0".to_owned(), "at least 1");
        }
        if let Some(net) = self.addresses.iter().find(|net| !is_hosts(net)) {
            let allowed = "a host's address, as 10.0.0.2/24: not its network's own or broadcast, no group, no loopback";
            return refuse("addresses", net.to_string(), allowed);
        }
        let own = |gateway: &IpAddr| self.addresses.iter().any(|net| net.addr() == *gateway);
        let unfit = |gateway: &&IpAddr| !is_unicast(**gateway) || own(gateway);
        if let Some(gateway) = self.gateways.iter().find(unfit) {
            return refuse("gateways", gateway.to_string(), "another host's address");
        }
        if !(1..=1 << 20).contains(&self.channels_max) {
            let given = self.channels_max.to_string();
            return refuse("channels_max", given, "from 1 to 1,048,576");
        }
        let raw_on_channels = [ReceivePath::NAMES[2], ReceivePath::NAMES[5]];
        if self.work_ahead && !raw_on_channels.contains(&self.path.name()) {
            let given = format!("yes with {}", self.path);
            return refuse(
                "work_ahead",
                given,
                "no, but for soft-lrp and soft-timer-polling",
            );
        }
        if let Some(credit) = &self.credit {
            credit.validate()?;
            if self.path == ReceivePath::NiLrp {
                let given = format!("{credit:?}");
                return refuse("credit", given, "none with ni-lrp: full rings do it");
            }
        }
        self.proxies.validate()?;
        let tcp = &self.tcp;
        if !(1..=1 << 20).contains(&tcp.connections_max) {
            let given = tcp.connections_max.to_string();
            return refuse("tcp.connections_max", given, "from 1 to 1,048,576");
        }
        if !(2048..=1 << 30).contains(&tcp.buffer_bytes) {
            let given = tcp.buffer_bytes.to_string();
            return refuse("tcp.buffer_bytes", given, "from 2048 to 1,073,741,824");
        }
        tcp.channel().validate()?;
        tcp.pacing.validate()?;
        match &self.path {
            ReceivePath::Polled(polled) => polled.validate()?,
            ReceivePath::SoftTimerPolling(config) => config.validate()?,
            _ => {}
        }
        Ok(self.channel.validate()?)
    }
}

/// Whether an interface on a link may have the address: what others send from there is dropped
/// otherwise (`wire::packet`), or they do not send to it.
fn is_hosts(net: &IpNet) -> bool {
    let is_networks = match net {
        IpNet::V4(net) => {
            net.prefix_len() < 31 && [net.network(), net.broadcast()].contains(&net.addr())
        }
        IpNet::V6(net) => net.prefix_len() < 127 && net.addr() == net.network(),
    };
    is_unicast(net.addr()) && !is_networks
}

fn is_unicast(address: IpAddr) -> bool {
    let is_everybodys = match address {
        IpAddr::V4(address) => address.is_broadcast(),
        IpAddr::V6(address) => address.to_ipv4_mapped().is_some(),
    };
    let others = address.is_multicast() || address.is_loopback() || address.is_unspecified();
    !others && !is_everybodys
}

/// Who does the protocol processing of a received packet, and when. The names
/// are those of the simulator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReceivePath {
    /// As 4.4BSD: everything at arrival, through one shared queue. There to be compared with: its
    /// paper's host collapses under overload. This one kept its own goodput in two runs and half of
    /// it in a third, and other endpoints lost most of their packets.
    Eager,
    /// The socket is known before any work, and a full one costs nothing more;
    /// but what is admitted is processed at once, before any application.
    EarlyDemux,
    /// Lazy receiver processing: frames are only put where they belong, and the
    /// receiving call does the rest, on its thread and its CPU time.
    SoftLrp,
    /// The same with the demultiplexing done by the device: a ring of its own for every UDP
    /// endpoint, no thread of ours in between. TCP comes by the main ring, as much as its channels
    /// have room for.
    NiLrp,
    /// Aron & Druschel: as `SoftLrp`, but while no CPU is idle, arrivals wake nobody. The
    /// calls of the sockets poll, so often that a poll finds a quota of packets on average.
    /// By name with another quota than the default: `soft-timer-polling:10`.
    SoftTimerPolling(AggregationConfig),
    /// Mogul & Ramakrishnan: polling in bounded turns, input inhibited while
    /// sockets are full or packets have used their share of the CPU.
    Polled(PolledConfig),
}

impl ReceivePath {
    /// The names, for command lines.
    pub const NAMES: [&'static str; 6] = [
        "eager",
        "early-demux",
        "soft-lrp",
        "ni-lrp",
        "polled",
        "soft-timer-polling",
    ];

    /// The name of this one.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Eager => Self::NAMES[0],
            Self::EarlyDemux => Self::NAMES[1],
            Self::SoftLrp => Self::NAMES[2],
            Self::NiLrp => Self::NAMES[3],
            Self::Polled(_) => Self::NAMES[4],
            Self::SoftTimerPolling(_) => Self::NAMES[5],
        }
    }

    /// Whether the device may answer SYNs for listeners. 4.4BSD's order has its price, and early demultiplexing
    /// its own, only if all comes to the host.
    pub(crate) const fn lets_device_answer(&self) -> bool {
        !matches!(self, Self::Eager | Self::EarlyDemux)
    }
}

impl fmt::Display for ReceivePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())?;
        match self {
            Self::SoftTimerPolling(config) if config.quota != default_quota() => {
                write!(f, ":{}", config.quota)
            }
            _ => Ok(()),
        }
    }
}

impl FromStr for ReceivePath {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self, Error> {
        let refused = || Error::Config {
            field: "path",
            given: name.to_owned(),
            allowed: "eager, early-demux, soft-lrp, ni-lrp, polled, soft-timer-polling or \
                soft-timer-polling:QUOTA",
        };
        let (name, quota) = match name.split_once(':') {
            Some(("soft-timer-polling", quota)) => {
                let quota = quota.parse().map_err(|_| refused())?;
                ("soft-timer-polling", quota)
            }
            Some(_) => return Err(refused()),
            None => (name, default_quota()),
        };
        match name {
            "eager" => Ok(Self::Eager),
            "early-demux" => Ok(Self::EarlyDemux),
            "soft-lrp" => Ok(Self::SoftLrp),
            "ni-lrp" => Ok(Self::NiLrp),
            "polled" => Ok(Self::Polled(PolledConfig::default())),
            "soft-timer-polling" => {
                let config = AggregationConfig {
                    quota,
                    ..AggregationConfig::default()
                };
                config.validate()?;
                Ok(Self::SoftTimerPolling(config))
            }
            _ => Err(refused()),
        }
    }
}

/// The aggregation quota of a path that is named without one.
fn default_quota() -> u32 {
    AggregationConfig::default().quota
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_parse_back_from_their_names() {
        for name in ReceivePath::NAMES {
            assert_eq!(name.parse::<ReceivePath>().unwrap().to_string(), name);
        }
        let ten = "soft-timer-polling:10";
        assert_eq!(ten.parse::<ReceivePath>().unwrap().to_string(), ten);
        for wrong in ["soft-timer-polling:0", "soft-timer-polling:x", "polled:8"] {
            assert!(
                wrong.parse::<ReceivePath>().unwrap_err().is_usage(),
                "{wrong}"
            );
        }
        assert!("lazy".parse::<ReceivePath>().unwrap_err().is_usage());
    }

    #[test]
    fn settings_are_checked_before_anything_is_made() {
        let good = StackConfig::at("10.0.0.1/24".parse().unwrap());
        good.validate().unwrap();
        let field = |config: StackConfig| match config.validate() {
            Err(Error::Config { field, .. }) => field,
            other => panic!("{other:?}"),
        };
        assert_eq!(field(StackConfig::default()), "addresses");
        for address in [
            "10.0.0.0/24",
            "10.0.0.255/24",
            "127.0.0.1/8",
            "224.0.0.1/24",
            "0.0.0.0/0",
            "255.255.255.255/32",
            "fd00::/64",
            "::1/128",
            "ff02::1/64",
            "::ffff:10.0.0.1/120",
        ] {
            let at = StackConfig::at(address.parse().unwrap());
            assert_eq!(field(at), "addresses", "{address}");
        }
        for address in ["10.0.0.0/31", "10.0.0.0/32", "fd00::/127", "fe80::1/64"] {
            let at = StackConfig::at(address.parse().unwrap());
            at.validate().unwrap();
        }
        for (gateway, fits) in [
            ("10.0.0.1", false),
            ("224.0.0.1", false),
            ("127.0.0.1", false),
            ("0.0.0.0", false),
            // Beyond the network: hosts with an address alone have such.
            ("192.0.2.1", true),
            ("fe80::1", true),
        ] {
            let through = StackConfig {
                gateways: vec![gateway.parse().unwrap()],
                ..good.clone()
            };
            assert_eq!(through.validate().is_ok(), fits, "{gateway}");
        }
        let no_turn = StackConfig {
            turn_frames: 0,
            ..good.clone()
        };
        assert_eq!(field(no_turn), "turn_frames");
        let no_channels = StackConfig {
            channels_max: 0,
            ..good
        };
        assert_eq!(field(no_channels), "channels_max");
    }
}
