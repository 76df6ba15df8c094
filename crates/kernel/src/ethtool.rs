//! What the ethtool family of netlink says of an adapter: rings, channels, offloads,
//! interrupt coalescing.

use std::collections::BTreeSet;
use std::io;
use std::marker::PhantomData;

use netlink_bindings::ethtool::{self, IterableBitset};
use netlink_bindings::traits::{NetlinkRequest, Protocol};
use netlink_bindings::utils::ErrorContext;

use crate::netlink;

/// Commands of `linux/ethtool_netlink_generated.h`. The bindings' own requests carry
/// those of the kernel's answers (netlink-bindings 0.3.5).
const FEATURES_GET: u8 = 11;
const FEATURES_SET: u8 = 12;
const RINGS_GET: u8 = 15;
const CHANNELS_GET: u8 = 17;
const COALESCE_GET: u8 = 19;

/// A question, or an order, with the right command.
struct Ask<O> {
    payload: Vec<u8>,
    answered_as: PhantomData<O>,
}

impl<O: NetlinkRequest> Ask<O> {
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
    fn send<T>(&self, read: impl FnOnce(O::ReplyType<'_>) -> T) -> io::Result<Option<T>> {
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

impl<O: NetlinkRequest> NetlinkRequest for Ask<O> {
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
    let rings = Ask::new(RINGS_GET, &question)
        .send(|rings| rings.get_rx().ok().zip(rings.get_rx_max().ok()))?;
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
    Ask::new(CHANNELS_GET, &question).send(|channels| {
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
    Ok(features(ifindex)?.map(|features| features.active))
}

/// Names of offloads.
struct Features {
    /// As the operator, or by default the driver, wants it.
    wanted: BTreeSet<String>,
    active: BTreeSet<String>,
}

fn features(ifindex: u32) -> io::Result<Option<Features>> {
    let mut question = ethtool::Request::new().op_features_get_do();
    question.encode().nested_header().push_dev_index(ifindex);
    let names = |set: Result<IterableBitset<'_>, ErrorContext>| {
        let bits = set.and_then(|set| set.get_bits()).ok()?.get_bit();
        let names = bits.filter_map(|bit| bit.get_name().ok());
        Some(
            names
                .map(|name| name.to_string_lossy().into_owned())
                .collect(),
        )
    };
    let features = Ask::new(FEATURES_GET, &question).send(|features| {
        Some(Features {
            wanted: names(features.get_wanted())?,
            active: names(features.get_active())?,
        })
    })?;
    Ok(features.flatten())
}

/// Says that an offload is wanted, or not. A driver that cannot have it leaves it off.
///
/// # Errors
///
/// The kernel knows none of this name, or refuses.
pub fn switch_feature(ifindex: u32, name: &str, is_on: bool) -> io::Result<()> {
    let mut order = ethtool::Request::new().op_features_set_do();
    {
        let attributes = order.encode().nested_header().push_dev_index(ifindex);
        let bits = attributes.end_nested().nested_wanted().nested_bits();
        let bit = bits.nested_bit().push_name_bytes(name.as_bytes());
        if is_on {
            bit.push_value(());
        }
    }
    Ask::new(FEATURES_SET, &order).send(|_| ())?;
    Ok(())
}

/// Has the driver look at an offload again that is wanted and off. Whether it is on now.
///
/// # Errors
///
/// The kernel does not answer, or refuses.
pub(crate) fn renew_feature(ifindex: u32, name: &str) -> io::Result<bool> {
    let is_off = features(ifindex)?
        .is_some_and(|now| now.wanted.contains(name) && !now.active.contains(name));
    if !is_off {
        return Ok(false);
    }
    // The kernel asks the driver when what is wanted changes.
    switch_feature(ifindex, name, false)?;
    switch_feature(ifindex, name, true)?;
    Ok(features(ifindex)?.is_some_and(|now| now.active.contains(name)))
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
    let coalescing = Ask::new(COALESCE_GET, &question).send(|coalesce| {
        Some(Coalescing {
            receive_us: coalesce.get_rx_usecs().ok()?,
            is_adaptive: coalesce
                .get_use_adaptive_rx()
                .is_ok_and(|adaptive| adaptive != 0),
        })
    })?;
    Ok(coalescing.flatten())
}
