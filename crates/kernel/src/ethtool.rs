//! What the ethtool family of netlink says of an adapter: rings, channels, offloads,
//! interrupt coalescing.

use std::collections::BTreeSet;
use std::io;
use std::marker::PhantomData;

use netlink_bindings::ethtool;
use netlink_bindings::traits::{NetlinkRequest, Protocol};

use crate::netlink;

/// Commands of `linux/ethtool_netlink_generated.h`. The bindings' own requests carry
/// those of the kernel's answers (netlink-bindings 0.3.5).
const FEATURES_GET: u8 = 11;
const RINGS_GET: u8 = 15;
const CHANNELS_GET: u8 = 17;
const COALESCE_GET: u8 = 19;

/// A question with the right command.
struct Get<O> {
    payload: Vec<u8>,
    answered_as: PhantomData<O>,
}

impl<O: NetlinkRequest> Get<O> {
    fn new(command: u8, question: &O) -> Self {
        let mut payload = question.payload().to_vec();
        // The command is the first byte of the generic header.
        payload[0] = command;
        Self {
            payload,
            answered_as: PhantomData,
        }
    }

    /// What `read` makes of the answer; `None` if the driver or kernel does not tell.
    fn ask<T>(&self, read: impl FnOnce(O::ReplyType<'_>) -> T) -> io::Result<Option<T>> {
        let mut socket = netlink::Socket::new();
        let mut replies = match socket.request(self) {
            Ok(replies) => replies,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        match replies.recv_one() {
            Ok(reply) => Ok(Some(read(reply))),
            Err(error) if error.as_io_error().raw_os_error() == Some(libc::EOPNOTSUPP) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }
}

impl<O: NetlinkRequest> NetlinkRequest for Get<O> {
    type ReplyType<'buf> = O::ReplyType<'buf>;

    fn protocol(&self) -> Protocol {
        Protocol::Generic(ethtool::PROTONAME.as_bytes())
    }

    fn flags(&self) -> u16 {
        0
    }

    fn payload(&self) -> &[u8] {
        &self.payload
    }

    fn decode_reply(buf: &[u8]) -> Self::ReplyType<'_> {
        O::decode_reply(buf)
    }
}

/// Size of the receive ring and its largest size, in descriptors; `None` if
/// the driver does not tell.
///
/// # Errors
///
/// The kernel does not answer.
pub fn receive_ring(ifindex: u32) -> io::Result<Option<(u32, u32)>> {
    let mut question = ethtool::Request::new().op_rings_get_do();
    question.encode().nested_header().push_dev_index(ifindex);
    let rings = Get::new(RINGS_GET, &question)
        .ask(|rings| rings.get_rx().ok().zip(rings.get_rx_max().ok()))?;
    Ok(rings.flatten())
}

/// Receive channels in use and at most, those that also send included; `None` if the
/// driver does not tell.
///
/// # Errors
///
/// The kernel does not answer.
pub fn receive_channels(ifindex: u32) -> io::Result<Option<(u32, u32)>> {
    let mut question = ethtool::Request::new().op_channels_get_do();
    question.encode().nested_header().push_dev_index(ifindex);
    Get::new(CHANNELS_GET, &question).ask(|channels| {
        let sum = |a: Option<u32>, b: Option<u32>| a.unwrap_or(0) + b.unwrap_or(0);
        (
            sum(
                channels.get_combined_count().ok(),
                channels.get_rx_count().ok(),
            ),
            sum(channels.get_combined_max().ok(), channels.get_rx_max().ok()),
        )
    })
}

/// Names of the offloads that are on, as `ethtool -k` knows them in the kernel's words
/// (`rx-lro`); `None` if the kernel does not tell.
///
/// # Errors
///
/// The kernel does not answer.
pub fn active_features(ifindex: u32) -> io::Result<Option<BTreeSet<String>>> {
    let mut question = ethtool::Request::new().op_features_get_do();
    question.encode().nested_header().push_dev_index(ifindex);
    let features = Get::new(FEATURES_GET, &question).ask(|features| {
        let bits = features.get_active().and_then(|active| active.get_bits());
        let bits = bits.ok()?.get_bit();
        let names =
            bits.filter_map(|bit| Some(bit.get_name().ok()?.to_string_lossy().into_owned()));
        Some(names.collect())
    })?;
    Ok(features.flatten())
}

/// How long an adapter holds interrupts back by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Coalescing {
    /// Microseconds from a packet to its interrupt, at most.
    pub receive_us: u32,
    /// The adapter changes it by its load.
    pub is_adaptive: bool,
}

/// The adapter's interrupt coalescing; `None` if it has none.
///
/// # Errors
///
/// The kernel does not answer.
pub fn coalescing(ifindex: u32) -> io::Result<Option<Coalescing>> {
    let mut question = ethtool::Request::new().op_coalesce_get_do();
    question.encode().nested_header().push_dev_index(ifindex);
    let coalescing = Get::new(COALESCE_GET, &question).ask(|coalesce| {
        Some(Coalescing {
            receive_us: coalesce.get_rx_usecs().ok()?,
            is_adaptive: coalesce
                .get_use_adaptive_rx()
                .is_ok_and(|adaptive| adaptive != 0),
        })
    })?;
    Ok(coalescing.flatten())
}
