//! One VLAN of a device (IEEE 802.1Q): tags are taken off what is received and put in front of
//! what is sent.
//!
//! Around any device. Frames without this VLAN's tag are not for the stack: AF_XDP leaves them
//! to the kernel, and what comes here nevertheless ends as [`Drops::other_vlan`].
//!
//! **Limits.** One tag: what is in two (802.1ad) is another VLAN's. The priority is 0 in what
//! is sent and means nothing in what is received. An adapter that takes tags off by itself must
//! be told not to where the device is AF_XDP (`ethtool -K IFACE rxvlan off`), since an XDP
//! program does not see them then.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::{
    Batch, Capabilities, Channel, CookieAnswers, Device, Drops, Endpoint, Frame, Pool, Readers,
};
use crate::error::Error;

/// Both addresses, which stand before the tag.
const ADDRESSES_BYTES: usize = 12;
pub(super) const TAG_BYTES: usize = 4;
/// 802.1Q.
const TAG_PROTOCOL: u16 = 0x8100;
/// Of the tag's second half; priority and drop eligibility are above.
const ID_MASK: u16 = 0xfff;
/// 0 is no VLAN, and the last number is reserved.
const IDS: std::ops::RangeInclusive<u16> = 1..=4094;

/// A device as a member of one VLAN.
#[derive(Debug)]
pub struct Vlan {
    device: Arc<dyn Device>,
    id: u16,
    other: AtomicU64,
}

impl Vlan {
    /// The VLAN `id` of `device`.
    ///
    /// # Errors
    ///
    /// An `id` that is not from 1 to 4094, or the device cannot be told of it.
    pub fn new(device: impl Device + 'static, id: u16) -> Result<Self, Error> {
        if !IDS.contains(&id) {
            return Err(Error::Config {
                field: "vlan",
                given: id.to_string(),
                allowed: "from 1 to 4094",
            });
        }
        let told = device.select_vlan(id);
        told.map_err(Error::io(format!("select the VLAN {id}")))?;
        Ok(Self::of(Arc::new(device), id))
    }

    fn of(device: Arc<dyn Device>, id: u16) -> Self {
        Self {
            device,
            id,
            other: AtomicU64::new(0),
        }
    }

    /// Without the tag, if it is this VLAN's.
    fn untag(&self, mut frame: Frame) -> Option<Frame> {
        let tag: [u8; TAG_BYTES] = frame.get(ADDRESSES_BYTES..)?.first_chunk().copied()?;
        let [protocol, tag] = [[tag[0], tag[1]], [tag[2], tag[3]]].map(u16::from_be_bytes);
        if protocol != TAG_PROTOCOL || tag & ID_MASK != self.id {
            return None;
        }
        frame.copy_within(..ADDRESSES_BYTES, TAG_BYTES);
        let range = frame.range();
        frame.set_range(range.start + TAG_BYTES..range.end);
        Some(frame)
    }

    /// With tags, in one way or the other.
    fn give(
        &self,
        batch: &mut Batch,
        way: impl FnOnce(&dyn Device, &mut Batch) -> io::Result<usize>,
    ) -> io::Result<usize> {
        let before = batch.len();
        batch.retain_mut(|frame| insert_tag(frame, [TAG_PROTOCOL, self.id]));
        let result = way(&*self.device, batch);
        // What found no room comes again.
        batch.iter_mut().for_each(take_tag_back);
        result?;
        Ok(before - batch.len())
    }
}

/// Whether a tag is that of a VLAN. One of VLAN 0 has a priority alone (IEEE 802.1Q).
pub(super) const fn names_vlan([_, tag]: [u16; 2]) -> bool {
    tag & ID_MASK != 0
}

/// Puts a tag behind the addresses. False: there is no room in front of the frame, or it is
/// too short to have any.
pub(super) fn insert_tag(frame: &mut Frame, [protocol, tag]: [u16; 2]) -> bool {
    let range = frame.range();
    if range.start < TAG_BYTES || range.len() < ADDRESSES_BYTES {
        return false;
    }
    frame.set_range(range.start - TAG_BYTES..range.end);
    frame.copy_within(TAG_BYTES..TAG_BYTES + ADDRESSES_BYTES, 0);
    let place = &mut frame[ADDRESSES_BYTES..ADDRESSES_BYTES + TAG_BYTES];
    place[..2].copy_from_slice(&protocol.to_be_bytes());
    place[2..].copy_from_slice(&tag.to_be_bytes());
    true
}

/// Takes the tag off that [`insert_tag`] has put there.
fn take_tag_back(frame: &mut Frame) {
    frame.copy_within(..ADDRESSES_BYTES, TAG_BYTES);
    let range = frame.range();
    frame.set_range(range.start + TAG_BYTES..range.end);
}

impl Device for Vlan {
    fn capabilities(&self) -> Capabilities {
        self.device.capabilities()
    }

    fn pool(&self) -> &Arc<Pool> {
        self.device.pool()
    }

    fn receive(&self, batch: &mut Batch, max: usize) -> io::Result<usize> {
        let before = batch.len();
        self.device.receive(batch, max)?;
        let mut other = 0;
        for _ in before..batch.len() {
            // Once around, so that all keep their order.
            let Some(frame) = batch.remove(before) else {
                break;
            };
            match self.untag(frame) {
                Some(frame) => batch.push_back(frame),
                None => other += 1,
            }
        }
        self.other.fetch_add(other, Ordering::Relaxed);
        Ok(batch.len() - before)
    }

    fn transmit(&self, batch: &mut Batch) -> io::Result<usize> {
        self.give(batch, |device, batch| device.transmit(batch))
    }

    fn enqueue(&self, batch: &mut Batch) -> io::Result<usize> {
        self.give(batch, |device, batch| device.enqueue(batch))
    }

    fn has_room(&self) -> bool {
        self.device.has_room()
    }

    fn readiness(&self) -> BorrowedFd<'_> {
        self.device.readiness()
    }

    fn queries(&self) -> Option<BorrowedFd<'_>> {
        self.device.queries()
    }

    fn receive_query(&self, buffer: &mut [u8]) -> Option<usize> {
        self.device.receive_query(buffer)
    }

    fn tend(&self) -> io::Result<Option<Duration>> {
        self.device.tend()
    }

    fn drops(&self) -> Drops {
        let drops = self.device.drops();
        Drops {
            other_vlan: drops.other_vlan + self.other.load(Ordering::Relaxed),
            ..drops
        }
    }

    fn unsent(&self) -> u64 {
        self.device.unsent()
    }

    fn open_endpoint(&self, endpoint: Endpoint) -> io::Result<Arc<dyn Device>> {
        let device = self.device.open_endpoint(endpoint)?;
        Ok(Arc::new(Vlan::of(device, self.id)))
    }

    fn open_member(&self, endpoint: Endpoint) -> io::Result<Arc<dyn Device>> {
        let device = self.device.open_member(endpoint)?;
        Ok(Arc::new(Vlan::of(device, self.id)))
    }

    fn open_connection(
        &self,
        ends: (SocketAddr, SocketAddr),
        frames: u32,
    ) -> io::Result<Arc<dyn Channel>> {
        self.device.open_connection(ends, frames)
    }

    fn open_listener(&self, endpoint: Endpoint) -> io::Result<Arc<dyn Channel>> {
        self.device.open_listener(endpoint)
    }

    fn set_credit(&self, frames: u32) -> bool {
        self.device.set_credit(frames)
    }

    fn add_address(&self, address: IpAddr) -> Result<(), Error> {
        self.device.add_address(address)
    }

    fn add_broadcast(&self, address: Ipv4Addr) -> Result<(), Error> {
        self.device.add_broadcast(address)
    }

    fn open_all_connections(&self) -> io::Result<()> {
        self.device.open_all_connections()
    }

    fn know_cookies(&self, answers: &CookieAnswers) -> io::Result<()> {
        self.device.know_cookies(answers)
    }

    fn answers_syns(&self) -> bool {
        self.device.answers_syns()
    }

    fn answered_syns(&self) -> u64 {
        self.device.answered_syns()
    }

    fn know_source(&self, source: IpAddr) {
        self.device.know_source(source);
    }

    fn claim(&self, endpoint: Endpoint) -> io::Result<()> {
        self.device.claim(endpoint)
    }

    fn know_readers(&self, readers: Arc<dyn Readers>) {
        self.device.know_readers(readers);
    }

    fn owns_address(&self) -> bool {
        self.device.owns_address()
    }

    fn release(&self, endpoint: Endpoint) {
        self.device.release(endpoint);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::simulated::{SimulatedConfig, SimulatedDevice};

    fn devices() -> (SimulatedDevice, Vlan) {
        let (cable, device) = SimulatedDevice::pair(&SimulatedConfig::default()).unwrap();
        (cable, Vlan::new(device, 5).unwrap())
    }

    /// A frame with these bytes behind the addresses.
    fn frame(rest: &[u8]) -> Vec<u8> {
        let addresses: Vec<u8> = (1..=12).collect();
        [&addresses, rest].concat()
    }

    #[test]
    fn only_the_vlans_own_frames_are_received_and_in_order() {
        let (cable, vlan) = devices();
        let of = |id: u16, last: u8| {
            let [a, b] = id.to_be_bytes();
            frame(&[0x81, 0, a, b, 8, 0, last])
        };
        for bytes in [
            of(5, 1),
            of(6, 0),
            frame(&[8, 0, 0]),
            // With a priority.
            of(0xe005, 2),
            // A tag of 802.1ad, and half a tag.
            frame(&[0x88, 0xa8, 0, 5, 8, 0]),
            frame(&[0x81, 0, 0]),
            vec![1; 3],
            of(5, 3),
        ] {
            assert!(cable.send(&bytes));
        }
        let mut batch = Batch::new();
        assert_eq!(vlan.receive(&mut batch, 100).unwrap(), 3);
        for (frame_, last) in batch.iter().zip(1..) {
            assert_eq!(frame_[..], frame(&[8, 0, last]));
        }
        assert_eq!(vlan.drops().other_vlan, 5);
    }

    #[test]
    fn what_is_sent_has_a_tag_and_what_is_not_sent_has_none() {
        let config = SimulatedConfig {
            ring_frames: 1,
            ..SimulatedConfig::default()
        };
        let (cable, device) = SimulatedDevice::pair(&config).unwrap();
        let vlan = Vlan::new(device, 5).unwrap();
        let mut batch = Batch::new();
        let mut whole = vlan.pool().take().unwrap();
        assert!(whole.copy_from(&frame(&[8, 0, 9])));
        batch.push_back(whole);
        let mut received = Batch::new();
        assert_eq!(vlan.enqueue(&mut batch).unwrap(), 1);
        assert_eq!(cable.receive(&mut received, 10).unwrap(), 0, "it waits");
        assert_eq!(vlan.transmit(&mut batch).unwrap(), 0);
        cable.receive(&mut received, 10).unwrap();
        assert_eq!(received[0][..], frame(&[0x81, 0, 0, 5, 8, 0, 9]));
        let mut tagged = received.pop_front().unwrap();
        take_tag_back(&mut tagged);
        assert_eq!(tagged[..], frame(&[8, 0, 9]));
    }

    #[test]
    fn impossible_numbers_are_refused() {
        for id in [0, 4095, u16::MAX] {
            let (_, device) = SimulatedDevice::pair(&SimulatedConfig::default()).unwrap();
            assert!(Vlan::new(device, id).unwrap_err().is_usage(), "{id}");
        }
    }
}
