//! Do all opinions agree? Arbitrary bytes become frames, or changes of
//! endpoints with frames between them; [`plimsoll_core::demux::Demux`] and
//! [`Model`] must say the same after each.
//!
//! The fuzz targets and the tests call these functions, so what fuzzing checks
//! is checked on every test run as well, on fewer inputs.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::LazyLock;
use std::time::Duration;

use arbitrary::{Arbitrary, Unstructured};
use plimsoll_core::demux::{
    ChannelId, Channels, Classified, Demux, DemuxConfig, Kind, Protocol, Seed,
};
use plimsoll_core::time::Instant;

use crate::corpus::{frames, hand_built};
use crate::frame::{self, Fragment, Packet, TcpFlags};
use crate::host::{Endpoint, Host, Transport};
use crate::model::Model;

/// Channels for everything that is for no socket, far from the endpoints'.
pub const CHANNELS: Channels = Channels {
    fragment: ChannelId(1_000_000),
    multicast: ChannelId(1_000_001),
    time_wait: ChannelId(1_000_002),
    icmp: ChannelId(1_000_003),
    neighbour: ChannelId(1_000_004),
    forward: ChannelId(1_000_005),
    closed_port: ChannelId(1_000_006),
    other: ChannelId(1_000_007),
    malformed: ChannelId(1_000_008),
};

/// A key for tests.
pub const SEED: Seed = Seed([0x0123_4567_89ab_cdef, 0xfedc_ba98_7654_3210]);

/// The two demultiplexers, told and asked the same.
#[derive(Debug)]
pub struct Pair {
    demux: Demux,
    model: Model,
}

impl Pair {
    /// Neither knows anything.
    ///
    /// # Panics
    ///
    /// If the config is not valid.
    #[must_use]
    pub fn new(config: &DemuxConfig) -> Self {
        Self {
            demux: Demux::new(config, SEED).expect("a valid config"),
            model: Model::new(config),
        }
    }

    /// Both know `host`; its endpoints have their place in [`Host::endpoints`]
    /// as channel.
    ///
    /// # Panics
    ///
    /// If the two disagree, or the config has no room for the host.
    #[must_use]
    pub fn of_host(config: &DemuxConfig, host: &Host) -> Self {
        let mut pair = Self::new(config);
        for address in [IpAddr::from(host.v4), host.v6.into()] {
            pair.demux.add_local_address(address).expect("room");
            pair.model.add_address(address, true).expect("room");
        }
        let broadcast = host.v4_broadcast;
        pair.demux.add_broadcast_address(broadcast).expect("room");
        pair.model
            .add_address(broadcast.into(), false)
            .expect("room");
        for (number, endpoint) in (0..).zip(host.endpoints()) {
            pair.open(endpoint, ChannelId(number));
        }
        pair
    }

    fn open(&mut self, endpoint: Endpoint, channel: ChannelId) {
        let Self { demux, model } = self;
        match endpoint {
            Endpoint::Bound {
                transport,
                at,
                dual_stack,
            } => {
                let protocol = protocol(transport);
                let real = demux.bind(protocol, at, dual_stack, channel);
                assert_eq!(real, Ok(()), "{endpoint:?}");
                assert_eq!(model.bind(protocol, at, dual_stack, channel), real);
            }
            Endpoint::Connected {
                transport,
                local,
                remote,
            } => {
                let protocol = protocol(transport);
                let real = demux.connect(protocol, local, remote, channel);
                assert_eq!(real, Ok(()), "{endpoint:?}");
                assert_eq!(model.connect(protocol, local, remote, channel), real);
            }
            Endpoint::Group { at } => {
                assert_eq!(demux.join(at, channel), Ok(channel), "{endpoint:?}");
                assert_eq!(model.join(at, channel), Ok(channel));
            }
        }
    }

    /// What both say of `frame`.
    ///
    /// # Panics
    ///
    /// If they disagree.
    pub fn classify(&mut self, frame: &[u8], now: Instant) -> Classified {
        let real = self.demux.classify(frame, now);
        let model = self.model.classify(frame, now);
        assert_eq!(real, model, "(demux, model) of {frame:02x?}");
        real
    }
}

fn protocol(transport: Transport) -> Protocol {
    match transport {
        Transport::Udp => Protocol::Udp,
        Transport::Tcp => Protocol::Tcp,
    }
}

/// Reads steps from `bytes` up to their end.
///
/// `Vec<T>` as arbitrary reads it flips a coin after each element, so random
/// bytes would rarely make more than two steps.
#[must_use]
pub fn steps<'a, T: Arbitrary<'a>>(bytes: &'a [u8]) -> Vec<T> {
    let mut bytes = Unstructured::new(bytes);
    let step = || (!bytes.is_empty()).then(|| T::arbitrary(&mut bytes).ok());
    std::iter::from_fn(step).map_while(|step| step).collect()
}

/// One step of a sequence of frames for [`Host::default`].
#[derive(Arbitrary, Debug)]
pub enum FrameStep {
    /// These bytes.
    Raw(Bytes),
    /// These bytes after an Ethernet header with this ethertype.
    Payload(Ethertype, Bytes),
    /// A hand-built frame, by its number, with changes.
    Changed(u16, Option<Edit>, Option<Edit>),
    /// Nothing for this many seconds.
    Wait(u8),
}

/// Up to 255 bytes.
#[derive(Debug)]
pub struct Bytes(Vec<u8>);

impl<'a> Arbitrary<'a> for Bytes {
    fn arbitrary(bytes: &mut Unstructured<'a>) -> arbitrary::Result<Self> {
        let length = usize::from(bytes.arbitrary::<u8>()?).min(bytes.len());
        Ok(Self(bytes.bytes(length)?.to_vec()))
    }
}

/// The ethertypes under which something is parsed.
#[derive(Arbitrary, Clone, Copy, Debug)]
pub enum Ethertype {
    /// The internet protocol, version 4.
    Ipv4,
    /// The internet protocol, version 6.
    Ipv6,
    /// Address resolution.
    Arp,
    /// A VLAN tag.
    Vlan,
}

/// A change of a frame.
#[derive(Arbitrary, Debug)]
pub enum Edit {
    /// Overwrites one of the first 256 bytes.
    Set(u8, u8),
    /// Inserts a byte before one of the first 256.
    Insert(u8, u8),
    /// Takes a byte out.
    Remove(u8),
    /// Ends the frame there.
    Cut(u8),
    /// Appends bytes.
    Append(Bytes),
}

impl Edit {
    fn apply(&self, frame: &mut Vec<u8>) {
        let within = |at: u8| usize::from(at).min(frame.len());
        match self {
            Self::Set(at, byte) => {
                if let Some(place) = frame.get_mut(usize::from(*at)) {
                    *place = *byte;
                }
            }
            Self::Insert(at, byte) => frame.insert(within(*at), *byte),
            Self::Remove(at) if usize::from(*at) < frame.len() => {
                frame.remove(usize::from(*at));
            }
            Self::Remove(_) => {}
            Self::Cut(at) => frame.truncate(usize::from(*at)),
            Self::Append(bytes) => frame.extend_from_slice(&bytes.0),
        }
    }
}

static HAND_BUILT: LazyLock<Vec<Vec<u8>>> = LazyLock::new(|| frames(&hand_built(&Host::default())));

/// A third implementation, which is asked the same frames. It answers only for
/// those it can judge. This is where the guard's BPF program joins: its test
/// host has the addresses and sockets of [`Host::default`].
pub type Third<'a> = &'a mut dyn FnMut(&[u8], Instant) -> Option<Kind>;

/// Sends the frames that `steps` describe to [`Host::default`].
///
/// # Panics
///
/// If demultiplexer, model and `third` do not all agree on every frame.
pub fn check_frames(steps: &[FrameStep], third: Third<'_>) {
    let mut pair = Pair::of_host(&small(), &Host::default());
    let mut now = Instant::ZERO;
    for step in steps {
        let frame = match step {
            FrameStep::Raw(bytes) => bytes.0.clone(),
            FrameStep::Payload(ethertype, bytes) => {
                let number = match ethertype {
                    Ethertype::Ipv4 => 0x0800,
                    Ethertype::Ipv6 => 0x86dd,
                    Ethertype::Arp => 0x0806,
                    Ethertype::Vlan => frame::VLAN,
                };
                frame::ethertype(&[], number, &bytes.0)
            }
            FrameStep::Changed(number, one, two) => {
                let mut frame = HAND_BUILT[usize::from(*number) % HAND_BUILT.len()].clone();
                for edit in one.iter().chain(two) {
                    edit.apply(&mut frame);
                }
                frame
            }
            FrameStep::Wait(seconds) => {
                now += Duration::from_secs(u64::from(*seconds));
                continue;
            }
        };
        let kind = pair.classify(&frame, now).kind;
        if let Some(third) = third(&frame, now) {
            assert_eq!(kind, third, "(demux, third) of {frame:02x?}");
        }
    }
}

/// One step in the life of a host: a change of its endpoints, or a packet.
/// All numbers are taken modulo what there is to choose from.
#[derive(Arbitrary, Clone, Copy, Debug)]
pub enum HostStep {
    /// Another unicast address (true) or broadcast address.
    AddAddress(u8, bool),
    /// One address less.
    RemoveAddress(u8),
    /// A socket is bound.
    Bind(Proto, Place, bool),
    /// It is closed.
    Unbind(Proto, Place),
    /// A listener's backlog fills or drains.
    Backlog(Place, bool),
    /// A connection comes to be.
    Connect(Proto, Pair4),
    /// It goes.
    Disconnect(Proto, Pair4),
    /// It goes by way of TIME_WAIT.
    TimeWait(Pair4),
    /// A group is joined.
    Join(Place),
    /// A group is left.
    Leave(Place),
    /// A class of forwarded packets gets a channel.
    Forward(u8),
    /// Seconds go by.
    Wait(u8),
    /// A packet comes in; a class, and flags if it is TCP.
    Packet(Proto, Pair4, u8, Flags),
    /// A fragment of a UDP datagram comes in: identification, and which of three.
    Fragment(Pair4, u8, u8),
}

/// UDP or TCP.
#[derive(Arbitrary, Clone, Copy, Debug)]
pub enum Proto {
    /// UDP.
    Udp,
    /// TCP.
    Tcp,
}

impl From<Proto> for Protocol {
    fn from(proto: Proto) -> Self {
        match proto {
            Proto::Udp => Self::Udp,
            Proto::Tcp => Self::Tcp,
        }
    }
}

/// One of few addresses, and one of few ports.
#[derive(Arbitrary, Clone, Copy, Debug)]
pub struct Place(u8, u8);

/// Two places of one family: the host's, and the other end's.
#[derive(Arbitrary, Clone, Copy, Debug)]
pub struct Pair4(Place, Place);

/// TCP flags.
#[derive(Arbitrary, Clone, Copy, Debug)]
pub struct Flags(u8);

const V4: [Ipv4Addr; 6] = [
    Ipv4Addr::UNSPECIFIED,
    Ipv4Addr::new(192, 0, 2, 1),
    Ipv4Addr::new(192, 0, 2, 2),
    Ipv4Addr::new(192, 0, 2, 255),
    Ipv4Addr::new(233, 252, 0, 1),
    Ipv4Addr::BROADCAST,
];

const V6: [Ipv6Addr; 6] = [
    Ipv6Addr::UNSPECIFIED,
    Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1),
    Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 2),
    Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 3),
    Ipv6Addr::new(0xff05, 0, 0, 0, 0, 0, 0xdb8, 1),
    Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1),
];

fn address(number: u8) -> IpAddr {
    let place = usize::from(number) / 2 % V4.len();
    if number.is_multiple_of(2) {
        V4[place].into()
    } else {
        V6[place].into()
    }
}

impl Place {
    fn socket(self) -> SocketAddr {
        SocketAddr::new(address(self.0), 1 + u16::from(self.1 % 2))
    }
}

impl Pair4 {
    fn ends(self) -> (SocketAddr, SocketAddr) {
        let remote = Place(self.1.0 & !1 | self.0.0 & 1, self.1.1);
        (self.0.socket(), remote.socket())
    }
}

impl Flags {
    fn tcp(self) -> TcpFlags {
        TcpFlags {
            syn: self.0 & 1 != 0,
            ack: self.0 & 2 != 0,
            fin: self.0 & 4 != 0,
            rst: self.0 & 8 != 0,
        }
    }
}

/// Just room for a [`Host`]: fuzzing makes many. 8 is one set of a memory, for
/// which the model is exact.
fn small() -> DemuxConfig {
    DemuxConfig {
        addresses_max: 4,
        sockets_max: 16,
        udp_connections_max: 4,
        tcp_connections_max: 4,
        groups_max: 4,
        fragments_max: 8,
        time_wait_max: 8,
        ..DemuxConfig::new(CHANNELS)
    }
}

/// Every limit is soon reached.
fn tiny() -> DemuxConfig {
    DemuxConfig {
        addresses_max: 3,
        sockets_max: 3,
        udp_connections_max: 3,
        tcp_connections_max: 3,
        groups_max: 2,
        ..small()
    }
}

/// Lives through `steps`, from a host that has two addresses.
///
/// # Panics
///
/// If demultiplexer and model ever answer differently.
pub fn check_host(steps: &[HostStep]) {
    let mut pair = Pair::new(&tiny());
    let mut now = Instant::ZERO;
    pair.step(&HostStep::AddAddress(2, true), ChannelId(0), &mut now);
    pair.step(&HostStep::AddAddress(3, true), ChannelId(0), &mut now);
    for (number, step) in (0..).zip(steps) {
        pair.step(step, ChannelId(number), &mut now);
    }
}

impl Pair {
    fn step(&mut self, step: &HostStep, channel: ChannelId, now: &mut Instant) {
        match *step {
            HostStep::Wait(seconds) => *now += Duration::from_secs(u64::from(seconds)),
            HostStep::Packet(protocol, ends, class, flags) => {
                self.packet(protocol, ends, class, flags, *now);
            }
            HostStep::Fragment(ends, id, number) => self.fragment(ends, id, number, *now),
            _ => self.change(step, channel, *now),
        }
    }

    fn packet(&mut self, protocol: Proto, ends: Pair4, class: u8, flags: Flags, now: Instant) {
        let (local, remote) = ends.ends();
        let packet = Packet::new(remote.ip(), local.ip()).traffic_class(class);
        let frame = match protocol {
            Proto::Udp => packet.udp(remote.port(), local.port(), b"x"),
            Proto::Tcp => packet.tcp(remote.port(), local.port(), flags.tcp(), b"x"),
        };
        let _ = self.classify(&frame, now);
    }

    fn fragment(&mut self, ends: Pair4, id: u8, number: u8, now: Instant) {
        let (local, remote) = ends.ends();
        let packet = Packet::new(remote.ip(), local.ip());
        let datagram = packet.udp_datagram(remote.port(), local.port(), &[0; 16]);
        let place = Fragment {
            id: u32::from(id % 12),
            offset: u16::from(number % 3) * 8,
            more: number % 3 < 2,
        };
        let bytes = &datagram[usize::from(place.offset)..][..8];
        let _ = self.classify(&packet.fragment(place).protocol(frame::UDP, bytes), now);
    }

    fn change(&mut self, step: &HostStep, channel: ChannelId, now: Instant) {
        let Self { demux, model } = self;
        match *step {
            HostStep::AddAddress(number, local) => add_address(demux, model, number, local),
            HostStep::RemoveAddress(number) => {
                let removed = demux.remove_address(address(number));
                assert_eq!(removed, model.remove_address(address(number)));
            }
            HostStep::Bind(protocol, place, dual_stack) => {
                let (protocol, at) = (protocol.into(), place.socket());
                let dual_stack = dual_stack && at.ip() == IpAddr::V6(Ipv6Addr::UNSPECIFIED);
                if suitable(at) || at.ip().is_unspecified() {
                    let real = demux.bind(protocol, at, dual_stack, channel);
                    assert_eq!(real, model.bind(protocol, at, dual_stack, channel));
                }
            }
            HostStep::Unbind(protocol, place) => {
                let (protocol, at) = (protocol.into(), place.socket());
                assert_eq!(demux.unbind(protocol, at), model.unbind(protocol, at));
            }
            HostStep::Backlog(place, beyond) => {
                let real = demux.set_beyond_backlog(place.socket(), beyond);
                assert_eq!(real, model.set_beyond_backlog(place.socket(), beyond));
            }
            HostStep::Connect(protocol, ends) => {
                let (local, remote) = ends.ends();
                if suitable(local) && suitable(remote) {
                    let protocol = protocol.into();
                    let real = demux.connect(protocol, local, remote, channel);
                    assert_eq!(real, model.connect(protocol, local, remote, channel));
                }
            }
            HostStep::Disconnect(protocol, ends) => {
                let (local, remote) = ends.ends();
                let real = demux.disconnect(protocol.into(), local, remote);
                assert_eq!(real, model.disconnect(protocol.into(), local, remote));
            }
            HostStep::TimeWait(ends) => {
                let (local, remote) = ends.ends();
                let real = demux.enter_time_wait(local, remote, now);
                assert_eq!(real, model.enter_time_wait(local, remote, now));
            }
            HostStep::Join(place) => {
                let real = demux.join(place.socket(), channel);
                assert_eq!(real, model.join(place.socket(), channel));
            }
            HostStep::Leave(place) => {
                assert_eq!(demux.leave(place.socket()), model.leave(place.socket()));
            }
            HostStep::Forward(dscp) => {
                demux.set_forward_channel(dscp, channel);
                model.set_forward_channel(dscp, channel);
            }
            HostStep::Wait(_) | HostStep::Packet(..) | HostStep::Fragment(..) => {
                unreachable!("not a change")
            }
        }
    }
}

fn add_address(demux: &mut Demux, model: &mut Model, number: u8, local: bool) {
    let address = address(number);
    if !suitable(SocketAddr::new(address, 1)) {
        return;
    }
    match address {
        IpAddr::V4(broadcast) if !local => {
            let real = demux.add_broadcast_address(broadcast);
            assert_eq!(real, model.add_address(address, false));
        }
        _ => {
            let real = demux.add_local_address(address);
            assert_eq!(real, model.add_address(address, true));
        }
    }
}

fn suitable(at: SocketAddr) -> bool {
    let address = at.ip();
    let broadcast = address == IpAddr::V4(Ipv4Addr::BROADCAST);
    !address.is_unspecified() && !address.is_multicast() && !broadcast
}
