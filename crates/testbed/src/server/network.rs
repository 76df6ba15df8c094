//! Whose sockets a server uses.

use std::fmt;
use std::io::{self, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::str::FromStr;

use ipnet::IpNet;
use nix::errno::Errno;
use nix::ifaddrs::getifaddrs;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};
use plimsoll_core::channel::ChannelConfig;
use plimsoll_kernel::link;
use plimsoll_stack::device::Device;
use plimsoll_stack::device::packet::PacketDevice;
use plimsoll_stack::device::tap::{TapDevice, TunDevice};
use plimsoll_stack::device::vlan::Vlan;
use plimsoll_stack::device::xdp::{CopyMode, XdpConfig, XdpInterface};
use plimsoll_stack::{BACKLOG, ProxyConfig, Stack, StackConfig, TcpConfig};

use super::{Config, Kind, Pace};
use crate::Error;

/// Whose sockets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum On {
    /// The kernel's.
    Kernel,
    /// Plimsoll's own stack on AF_XDP sockets of an interface.
    AfXdp(String),
    /// Plimsoll's own stack on a packet socket of an interface.
    Packet(String),
    /// Plimsoll's own stack on a TAP interface.
    Tap(String),
    /// Plimsoll's own stack on a TUN interface.
    Tun(String),
}

impl fmt::Display for On {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Kernel => f.write_str("kernel"),
            Self::AfXdp(interface) => write!(f, "af_xdp:{interface}"),
            Self::Packet(interface) => write!(f, "packet:{interface}"),
            Self::Tap(name) => write!(f, "tap:{name}"),
            Self::Tun(name) => write!(f, "tun:{name}"),
        }
    }
}

impl FromStr for On {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once(':') {
            None if text == "kernel" => Ok(Self::Kernel),
            Some(("af_xdp", interface)) => Ok(Self::AfXdp(interface.to_owned())),
            Some(("packet", interface)) => Ok(Self::Packet(interface.to_owned())),
            Some(("tap", name)) => Ok(Self::Tap(name.to_owned())),
            Some(("tun", name)) => Ok(Self::Tun(name.to_owned())),
            _ => Err("must be kernel, af_xdp:IFACE, packet:IFACE, tap:NAME or tun:NAME".to_owned()),
        }
    }
}

/// The network that a server is on.
#[derive(Debug)]
pub(super) enum Network {
    Kernel,
    Stack(Stack),
}

/// What a socket's channel holds, and its ring: as much as a kernel's socket with 4 MiB,
/// where a frame that XDP redirected is accounted as a page and the kernel doubles the size.
const CHANNEL_FRAMES: u32 = 2048;
/// Payload of a full segment on Ethernet.
const SEGMENT_BYTES: usize = 1460;
/// What a connection's channel holds at most: memory for all of them is taken beforehand.
const SEGMENTS_MAX: usize = 1024;
/// A server and its bystander have one each.
const CHANNELS: u32 = 8;

/// The SYNs of 256 strangers, and a fifth that they leave to others.
const LISTENER_SEGMENTS: u32 = 320;

/// Segments that may wait of a connection with such buffers: as many as one buffer sends, since the
/// peer may acknowledge each.
fn channel_segments(buffer_bytes: usize) -> u32 {
    let sent = (buffer_bytes / SEGMENT_BYTES).min(SEGMENTS_MAX) as u32;
    sent.max(TcpConfig::default().channel_segments)
}

/// A UDP socket's channel is as long as a kernel's socket's. A listener's is not, where there is
/// nothing else: it holds SYNs, and a burst of them would take all cookies of a period.
fn channel(kind: Kind) -> ChannelConfig {
    match kind {
        Kind::Http => ChannelConfig::drop_tail(LISTENER_SEGMENTS),
        Kind::Sink | Kind::Echo | Kind::Rpc | Kind::Dns => ChannelConfig::drop_tail(CHANNEL_FRAMES),
    }
}

impl Network {
    pub(super) fn open(config: &Config) -> Result<Self, Error> {
        let stack = StackConfig {
            addresses: config.address.clone(),
            gateways: config.gateway.clone(),
            path: config.receive_path(),
            work_ahead: config.work_ahead,
            proxies: ProxyConfig {
                announce: config.announce,
                ..ProxyConfig::default()
            },
            channel: channel(config.kind),
            channels_max: CHANNELS,
            tcp: TcpConfig {
                // Those that wait to be accepted have a place each.
                connections_max: u32::from(config.connections) + BACKLOG as u32,
                buffer_bytes: config.buffer_bytes(),
                channel_segments: channel_segments(config.buffer_bytes()),
                pacing: config.pace.map(Pace::of_stack).unwrap_or_default(),
                ..TcpConfig::default()
            },
            ..StackConfig::default()
        };
        let stack = match &config.on {
            On::Kernel => return of_kernel(&config.address),
            On::Tap(name) => start(TapDevice::open(name)?, config.vlan, &stack)?,
            On::Tun(name) => start(TunDevice::open(name)?, config.vlan, &stack)?,
            On::Packet(interface) => start(PacketDevice::open(interface)?, config.vlan, &stack)?,
            On::AfXdp(interface) => start_af_xdp(interface, config, stack)?,
        };
        Ok(Self::Stack(stack))
    }
}

impl Network {
    pub(super) fn stack(&self) -> Option<&Stack> {
        match self {
            Self::Kernel => None,
            Self::Stack(stack) => Some(stack),
        }
    }
}

/// The kernel's network, which has the address to listen on, if one is named.
fn of_kernel(address: &[IpNet]) -> Result<Network, Error> {
    let Some(address) = address.first() else {
        return Ok(Network::Kernel);
    };
    match UdpSocket::bind((address.addr(), 0)) {
        Err(error) if error.kind() == io::ErrorKind::AddrNotAvailable => Err(Error::Config {
            field: "address",
            given: address.to_string(),
            allowed: "an address of this host, or used with --on for a stack of its own",
        }),
        _ => Ok(Network::Kernel),
    }
}

/// In one VLAN of the device, or in none.
fn start(
    device: impl Device + 'static,
    vlan: Option<u16>,
    config: &StackConfig,
) -> Result<Stack, Error> {
    Ok(match vlan {
        Some(id) => Stack::start(Vlan::new(device, id)?, config)?,
        None => Stack::start(device, config)?,
    })
}

/// With addresses of its own, or sharing the interface's.
fn start_af_xdp(interface: &str, config: &Config, mut stack: StackConfig) -> Result<Stack, Error> {
    let device = XdpConfig {
        owned: stack.addresses.iter().map(IpNet::addr).collect(),
        ring_frames: CHANNEL_FRAMES,
        copy: match config.zero_copy {
            true => CopyMode::ZeroCopy,
            false => CopyMode::Copy,
        },
        holdoff: config.holdoff,
        threaded: config.polled(),
        poll_control_group: config.poll_control_group.clone(),
        any_driver: config.any_driver,
        ..XdpConfig::default()
    };
    if stack.addresses.is_empty() {
        stack.addresses = addresses_of(interface)?;
    }
    let device = XdpInterface::open(interface, &device)?;
    if let Some(why) = device.unthreaded() {
        // Unlike `eprintln!`, it does not panic when the reader is gone.
        let _ = writeln!(
            io::stderr(),
            "plimsoll: a flood may take the CPU from the server: {why}"
        );
    }
    start(device, config.vlan, &stack)
}

/// The addresses that the kernel has on `interface`.
fn addresses_of(interface: &str) -> Result<Vec<IpNet>, Error> {
    link::index(interface)?;
    let all = getifaddrs().map_err(Error::io("list addresses"))?;
    let of_interface = all.filter(|entry| entry.interface_name == interface);
    let nets = of_interface.filter_map(|entry| {
        let (address, mask) = (entry.address?, entry.netmask?);
        if let (Some(address), Some(mask)) = (address.as_sockaddr_in(), mask.as_sockaddr_in()) {
            return IpNet::with_netmask(address.ip().into(), mask.ip().into()).ok();
        }
        let (address, mask) = (address.as_sockaddr_in6()?, mask.as_sockaddr_in6()?);
        IpNet::with_netmask(address.ip().into(), mask.ip().into()).ok()
    });
    let nets: Vec<IpNet> = nets.collect();
    if nets.is_empty() {
        return Err(Error::UnfitInterface {
            interface: interface.to_owned(),
            why: "it has no address to share; give one with --address",
        });
    }
    Ok(nets)
}

/// Every address of a network, or the one of the kernel's that is asked for, at the port: what
/// is another's stays another's.
pub(super) fn everywhere(network: &Network, config: &Config) -> Vec<SocketAddr> {
    if let (Network::Kernel, [only]) = (network, &config.address[..]) {
        return vec![SocketAddr::new(only.addr(), config.port)];
    }
    let ipv6 = match network {
        // Dual-stack unless the administrator changed net.ipv6.bindv6only.
        Network::Kernel => has_ipv6(),
        Network::Stack(stack) => stack.addresses().any(|address| address.is_ipv6()),
    };
    let all: IpAddr = match ipv6 {
        true => Ipv6Addr::UNSPECIFIED.into(),
        false => Ipv4Addr::UNSPECIFIED.into(),
    };
    vec![SocketAddr::from((all, config.port))]
}

/// Whether this kernel has IPv6: not if it was started with `ipv6.disable=1`.
fn has_ipv6() -> bool {
    let (kind, flags) = (SockType::Datagram, SockFlag::SOCK_CLOEXEC);
    let tried = socket(AddressFamily::Inet6, kind, flags, None);
    !matches!(tried, Err(Errno::EAFNOSUPPORT))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// With a channel of 64 some transfers with a buffer of 1 MiB stood still for a second.
    #[test]
    fn a_channel_holds_an_acknowledgement_of_each_segment_that_a_buffer_sends() {
        let held = [2048, 64 << 10, 1 << 20, 1 << 30].map(channel_segments);
        assert_eq!(held, [64, 64, 718, 1024]);
    }
}
