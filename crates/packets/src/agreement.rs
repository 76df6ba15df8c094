//! Do all opinions agree? Arbitrary bytes become frames, or changes of
//! endpoints with frames between them; [`plimsoll_core::demux::Demux`] and
//! [`Model`] must say the same after each.
//!
//! The fuzz targets and the tests call these functions, so what fuzzing checks
//! is checked on every test run as well, on fewer inputs.

mod endpoints;
mod frames;

use std::net::IpAddr;

use arbitrary::{Arbitrary, Unstructured};
use plimsoll_core::demux::{ChannelId, Channels, Classified, Demux, DemuxConfig, Protocol, Seed};
use plimsoll_core::time::Instant;

pub use self::endpoints::{Flags, HostStep, Pair4, Place, Proto, check_host};
pub use self::frames::{Bytes, Edit, Ethertype, FrameStep, Third, check_frames};
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
            pair.add_local_address(address);
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

    /// The host has this address as well.
    ///
    /// # Panics
    ///
    /// If the config has no room for it.
    pub fn add_local_address(&mut self, address: IpAddr) {
        self.demux.add_local_address(address).expect("room");
        self.model.add_address(address, true).expect("room");
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
