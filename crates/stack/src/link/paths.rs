//! The longest packets that the paths to others take (path MTU discovery, RFC 1191 and 8201).
//!
//! A router that cannot hand a packet on says so, and how long one may be. From then on
//! packets to that destination are no longer. Anybody can say so, and a lie would have us
//! send in small pieces: so it is believed only about a packet that we did send. For UDP
//! that is the header of the last long datagram to that destination, with its checksum; TCP
//! knows its sequence numbers.
//!
//! What is believed is forgotten after ten minutes, since the path may have changed.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use plimsoll_core::time::Instant;

use crate::error::Error;
use crate::random::secret;

/// Packets so long are asked of no path less: Linux's `min_pmtu`, and IPv6's least MTU. A
/// shorter one is believed as this much.
const MTU_MIN: [usize; 2] = [552, 1280];
/// What nearly every path takes (RFC 8899, 5.1.2, for IPv4; IPv6's least MTU).
const MTU_LIKELY: [usize; 2] = [1200, 1280];
/// A segment that was sent so often in whole seems to be lost for its length (as Linux's `tcp_retries1`), and so
/// do, after two more, packets of the likely length.
const AGAIN: [u32; 2] = [3, 5];
/// As Linux (`mtu_expires`).
const BELIEVED: Duration = Duration::from_secs(600);
/// Destinations whose paths are known at a time. One more takes the place of the oldest.
const PATHS_MAX: usize = 1024;
/// Long datagrams that are remembered at a time, by destination.
const SENT_PLACES: usize = 1024;

/// What is known of the paths.
#[derive(Debug)]
pub(crate) struct Paths {
    known: Mutex<HashMap<IpAddr, Path>>,
    /// How many: without any nobody asks for the lock.
    count: AtomicUsize,
    sent: Box<[AtomicU64]>,
    /// Makes places that nobody can aim at.
    secret: u64,
}

#[derive(Clone, Copy, Debug)]
struct Path {
    mtu: usize,
    since: Instant,
}

impl Path {
    fn is_believed(&self, now: Instant) -> bool {
        is_believed(self.since, now)
    }
}

impl Paths {
    /// # Errors
    ///
    /// The kernel gives no secret.
    pub(crate) fn new() -> Result<Self, Error> {
        Ok(Self {
            known: Mutex::default(),
            count: AtomicUsize::new(0),
            sent: (0..SENT_PLACES).map(|_| AtomicU64::new(0)).collect(),
            secret: secret()? | 1,
        })
    }

    /// The longest packet to `to`, if a link of the path takes less than ours.
    #[inline]
    pub(crate) fn mtu(&self, to: IpAddr, now: Instant) -> Option<usize> {
        if self.count.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let path = *self.known.lock().get(&to)?;
        path.is_believed(now).then_some(path.mtu)
    }

    /// A datagram that a path might not take is sent: its UDP header.
    pub(crate) fn on_sent(&self, to: IpAddr, header: u64) {
        self.sent[self.place(to)].store(header, Ordering::Relaxed);
    }

    /// Whether such a datagram was the last long one to there.
    pub(crate) fn has_sent(&self, to: IpAddr, header: u64) -> bool {
        self.sent[self.place(to)].load(Ordering::Relaxed) == header
    }

    /// The path takes no more than `mtu` (not said: the least that paths take), as was said
    /// about a packet of ours of `bytes`. Returns what holds from now on; nothing if that
    /// packet would have passed.
    pub(crate) fn lower(
        &self,
        to: IpAddr,
        mtu: Option<usize>,
        bytes: usize,
        now: Instant,
    ) -> Option<usize> {
        let least = mtu_min(to);
        let mtu = mtu.unwrap_or(least).max(least);
        if mtu >= bytes {
            return None;
        }
        let mut known = self.known.lock();
        // A packet that was sent before the path was found to take less says nothing against that, and nobody
        // is believed that it takes more (RFC 8201, 4).
        let before = known.get(&to).filter(|path| path.is_believed(now));
        if let Some(before) = before.filter(|path| path.mtu <= mtu) {
            return Some(before.mtu);
        }
        if known.len() == PATHS_MAX && !known.contains_key(&to) {
            let oldest = known.iter().min_by_key(|(_, path)| path.since);
            let oldest = oldest.map(|(to, _)| *to);
            oldest.and_then(|oldest| known.remove(&oldest));
        }
        known.insert(to, Path { mtu, since: now });
        self.count.store(known.len(), Ordering::Relaxed);
        Some(mtu)
    }

    fn place(&self, to: IpAddr) -> usize {
        let bits = match to {
            IpAddr::V4(address) => u64::from(address.to_bits()),
            IpAddr::V6(address) => {
                let bits = address.to_bits();
                (bits >> 64) as u64 ^ (bits as u64).rotate_left(29)
            }
        };
        let mixed = (bits ^ self.secret).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (mixed >> 54) as usize % SENT_PLACES
    }
}

/// Whether what was found out about a path at `since` still counts.
pub(crate) fn is_believed(since: Instant, now: Instant) -> bool {
    now.saturating_since(since) < BELIEVED
}

/// The shortest that a path's longest packet is believed to be.
pub(crate) fn mtu_min(to: IpAddr) -> usize {
    MTU_MIN[usize::from(to.is_ipv6())]
}

/// How long packets to `to` may be if a segment has to be sent again for so many times.
pub(crate) fn suspected(to: IpAddr, times: u32) -> Option<usize> {
    let [likely, least] = AGAIN;
    match times {
        times if times >= least => Some(mtu_min(to)),
        times if times >= likely => Some(MTU_LIKELY[usize::from(to.is_ipv6())]),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FOUR: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 1));
    const SIX: IpAddr = IpAddr::V6(std::net::Ipv6Addr::LOCALHOST);

    #[test]
    fn a_path_is_known_for_ten_minutes_and_never_as_too_short() {
        let paths = Paths::new().unwrap();
        let now = Instant::from_nanos(5);
        assert_eq!(paths.mtu(FOUR, now), None);
        assert_eq!(paths.lower(FOUR, Some(1000), 1500, now), Some(1000));
        assert_eq!(paths.lower(SIX, Some(68), 1500, now), Some(1280));
        assert_eq!(
            (paths.mtu(FOUR, now), paths.mtu(SIX, now)),
            (Some(1000), Some(1280))
        );
        assert_eq!(paths.mtu(FOUR, now + BELIEVED), None);
        // An old router does not say how much.
        assert_eq!(paths.lower(FOUR, None, 1500, now), Some(552));
        // A packet that would have passed proves a lie.
        assert_eq!(paths.lower(FOUR, Some(600), 600, now), None);
        assert_eq!(paths.lower(SIX, Some(600), 1280, now), None);
        assert_eq!(paths.mtu(FOUR, now), Some(552));
    }

    /// It was believed to take more again, and what was sent then was lost.
    #[test]
    fn what_a_path_takes_is_only_lowered_while_it_is_known() {
        let paths = Paths::new().unwrap();
        let at = |seconds| Instant::ZERO + Duration::from_secs(seconds);
        assert_eq!(paths.lower(FOUR, Some(1000), 1500, at(1)), Some(1000));
        // Of another way there, about a packet from before.
        assert_eq!(paths.lower(FOUR, Some(1400), 1500, at(2)), Some(1000));
        assert_eq!(paths.mtu(FOUR, at(3)), Some(1000));
        assert_eq!(paths.lower(FOUR, Some(900), 1500, at(4)), Some(900));
        // As long as it was told first, and no longer.
        assert_eq!(paths.lower(FOUR, Some(1200), 1500, at(500)), Some(900));
        assert_eq!(paths.mtu(FOUR, at(605)), None);
        assert_eq!(paths.lower(FOUR, Some(1200), 1500, at(605)), Some(1200));
    }

    #[test]
    fn only_so_many_paths_are_known() {
        let paths = Paths::new().unwrap();
        let to = |k: usize| IpAddr::from((k as u32).to_be_bytes());
        for k in 0..=PATHS_MAX {
            paths.lower(to(k), Some(1000), 1500, Instant::from_nanos(k as u64));
        }
        let now = Instant::from_nanos(PATHS_MAX as u64);
        assert_eq!(paths.mtu(to(0), now), None);
        assert_eq!(paths.mtu(to(1), now), Some(1000));
        assert_eq!(paths.known.lock().len(), PATHS_MAX);
    }

    #[test]
    fn what_was_not_sent_is_not_believed() {
        let paths = Paths::new().unwrap();
        assert!(!paths.has_sent(FOUR, 77));
        paths.on_sent(FOUR, 77);
        assert!(paths.has_sent(FOUR, 77) && !paths.has_sent(FOUR, 78));
    }
}
