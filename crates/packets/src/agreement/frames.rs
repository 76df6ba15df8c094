//! Frames for a host whose endpoints stay: arbitrary bytes, and corpus frames with changes.

use std::sync::LazyLock;
use std::time::Duration;

use arbitrary::{Arbitrary, Unstructured};
use plimsoll_core::demux::Kind;
use plimsoll_core::time::Instant;

use super::{Pair, small};
use crate::corpus::{frames, hand_built};
use crate::frame;
use crate::host::Host;

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
