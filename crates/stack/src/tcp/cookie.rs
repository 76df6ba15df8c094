//! SYN cookies: a listener whose places half-open connections have filled answers SYNs, and keeps
//! nothing of them.
//!
//! **Intuition.** SYNs of senders that do not exist fill a backlog of any length. What the listener
//! would have to remember of a SYN fits into the first sequence number of its answer, and whoever
//! gets the answer brings that back. So a handshake's end makes a connection of which nothing was
//! known before.
//!
//! **Source.** RFC 4987, section 3.6 and appendix A. The rate is ours.
//!
//! **Rules.**
//! 1. A cookie holds when it was made (5 bits, in units of 64 s), the client's largest segment (3
//!    bits, one of [`SEGMENT_BYTES`]), and 24 bits of a keyed hash of these, of both ends and of
//!    the client's first sequence number. It is good in the unit it was made in and the next. The
//!    XDP program (`steer.bpf.c`) knows a cookie by the same rule.
//! 2. A listener answers a bounded number of SYNs in each [`PERIOD`]. What comes beyond ends at the
//!    demultiplexer (Druschel & Banga, section 3.4), so that a flood takes a part of a CPU and no
//!    more. The period is long, since clients and floods come in bursts.
//! 3. On AF_XDP the program answers them by the same rule, while it is seen that its answers arrive
//!    (`device/xdp/answering.rs`), but on the paths that show what receiving costs without a device's help
//!    (`ReceivePath::lets_device_answer`). Then the listener answers fewer itself.
//!
//! **Limits.** No other option of the SYN is kept: windows stay below 64 KiB. Whoever sends 2^23
//! made-up acknowledgements has one connection. If a client's last segment of the handshake is
//! lost and it waits for the server to speak first, it waits in vain. A program that does not know connections
//! answers SYNs between the ends of one, too: whoever has lost his state and comes again by the same port is not
//! asked (RFC 5961, 4.2).

use std::hash::Hasher;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use plimsoll_core::time::Instant;
use plimsoll_kernel::clock::monotonic_ns;
use siphasher::sip::SipHasher24;
use smoltcp::wire::TcpSeqNumber;

use crate::clock;
use crate::device::xdp::{
    COOKIE_CLASS_BITS as CLASS_BITS, COOKIE_HASH_BITS as HASH_BITS,
    COOKIE_SEGMENTS as SEGMENT_BYTES, COOKIE_UNIT as UNIT, COOKIE_UNITS as UNITS,
};
use crate::error::Error;
use crate::random::secret;

/// After so long a listener may answer again.
pub(super) const PERIOD: Duration = Duration::from_millis(50);
pub(super) const PERIODS_PER_S: u32 = 20;
/// The same where the device answers meanwhile, at a small part of the cost. It is looked after each
/// [`PERIOD`] whether it still does.
const DEVICE_PERIOD: Duration = Duration::from_secs(1);
/// In it so many times less are answered than in one of the others. More wait in a listener's channel
/// on a busy CPU, and find it full before anybody knows of a flood.
const DEVICE_PART: u32 = 4;

/// A SYN as far as its cookie knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Syn {
    pub(super) local: SocketAddr,
    pub(super) remote: SocketAddr,
    /// The client's first sequence number.
    pub(super) sequence: TcpSeqNumber,
    /// The largest segment that it takes.
    pub(super) segment_bytes: u16,
}

/// Makes cookies and knows them again.
#[derive(Debug)]
pub(crate) struct Cookies {
    key: [u64; 2],
    /// What a program in the kernel has for a time is so much later than ours.
    kernel_ahead: Duration,
}

impl Cookies {
    pub(crate) fn new() -> Result<Self, Error> {
        let since_boot = Duration::from_nanos(monotonic_ns());
        let kernel_ahead = since_boot.saturating_sub(clock::now().saturating_since(Instant::ZERO));
        let key = [secret()?, secret()?];
        Ok(Self { key, kernel_ahead })
    }

    /// For who is to know them again elsewhere.
    pub(crate) fn key(&self) -> [u64; 2] {
        self.key
    }

    /// The first sequence number of the answer to a SYN.
    pub(super) fn cookie(&self, syn: &Syn, now: Instant) -> TcpSeqNumber {
        // Whoever takes less than the least must take that (RFC 9293, 3.7.1).
        let class = SEGMENT_BYTES.partition_point(|bytes| *bytes <= syn.segment_bytes);
        let class = class.saturating_sub(1) as u32;
        let told = self.unit(now) << CLASS_BITS | class;
        self.tagged(syn, told)
    }

    /// The SYN to which the cookie was the answer, as far as it is known. `syn.segment_bytes` is
    /// not looked at.
    pub(super) fn syn(&self, syn: &Syn, cookie: TcpSeqNumber, now: Instant) -> Option<Syn> {
        let told = cookie.0.cast_unsigned() >> HASH_BITS;
        let age = self.unit(now).wrapping_sub(told >> CLASS_BITS) % UNITS;
        if age > 1 || self.tagged(syn, told) != cookie {
            return None;
        }
        let class = told as usize % SEGMENT_BYTES.len();
        Some(Syn {
            segment_bytes: SEGMENT_BYTES[class],
            ..*syn
        })
    }

    /// What is told, with the hash beneath.
    fn tagged(&self, syn: &Syn, told: u32) -> TcpSeqNumber {
        let mut hasher = SipHasher24::new_with_keys(self.key[0], self.key[1]);
        // As `struct asked` of steer.h has them.
        for end in [syn.local, syn.remote] {
            hasher.write(&octets(end.ip()));
        }
        for end in [syn.local, syn.remote] {
            hasher.write(&end.port().to_be_bytes());
        }
        hasher.write(&syn.sequence.0.to_be_bytes());
        hasher.write(&told.to_le_bytes());
        let hash = hasher.finish() as u32 & ((1 << HASH_BITS) - 1);
        TcpSeqNumber((told << HASH_BITS | hash).cast_signed())
    }

    fn unit(&self, now: Instant) -> u32 {
        let now = now + self.kernel_ahead;
        (now.as_nanos() / UNIT.as_nanos() as u64 % u64::from(UNITS)) as u32
    }
}

pub(super) fn octets(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
        IpAddr::V6(address) => address.octets(),
    }
}

/// How many SYNs one listener may still answer with a cookie.
#[derive(Clone, Debug)]
pub(super) struct Answers {
    in_period: u32,
    given: u32,
    /// When the first of the period was given.
    began: Instant,
    /// When to look whether there are all again.
    next: Instant,
    /// The last was given then.
    last: Option<Instant>,
}

impl Answers {
    /// So many in a second, or a few more; none if that is 0.
    pub(super) fn new(per_second: u32) -> Option<Self> {
        let in_period = per_second.div_ceil(PERIODS_PER_S);
        (in_period > 0).then_some(Self {
            in_period,
            given: 0,
            began: Instant::ZERO,
            next: Instant::ZERO,
            last: None,
        })
    }

    /// One of them, if any is left. `by_device`: that answers where this does not.
    pub(super) fn take(&mut self, now: Instant, by_device: bool) -> bool {
        self.renew(now, by_device);
        if self.are_used_up(by_device) {
            return false;
        }
        if self.given == 0 {
            (self.began, self.next) = (now, now + PERIOD);
        }
        self.given += 1;
        self.last = Some(now);
        true
    }

    /// There are as many as in the beginning once the time is up.
    pub(super) fn renew(&mut self, now: Instant, by_device: bool) {
        let period = if by_device { DEVICE_PERIOD } else { PERIOD };
        if now >= self.began + period {
            self.given = 0;
        } else if now >= self.next {
            self.next = now + PERIOD;
        }
    }

    /// When to look whether there are some again, if none is left.
    pub(super) fn renewed_at(&self, by_device: bool) -> Option<Instant> {
        self.are_used_up(by_device).then_some(self.next)
    }

    fn are_used_up(&self, by_device: bool) -> bool {
        let part = if by_device { DEVICE_PART } else { 1 };
        self.given >= self.in_period.div_ceil(part)
    }

    /// Whether a cookie may be under way.
    pub(super) fn are_awaited(&self, now: Instant) -> bool {
        self.last
            .is_some_and(|last| now.saturating_since(last) <= 2 * UNIT)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::any;
    use proptest::{prop_assert, prop_assert_eq, proptest};

    use super::*;

    fn at(seconds: u64) -> Instant {
        Instant::ZERO + Duration::from_secs(seconds)
    }

    fn with_key(key: u64) -> Cookies {
        Cookies {
            key: [key; 2],
            kernel_ahead: Duration::ZERO,
        }
    }

    fn syn(port: u16, sequence: i32, segment_bytes: u16) -> Syn {
        Syn {
            local: "[fd00::2]:80".parse().unwrap(),
            remote: SocketAddr::new([10, 0, 0, 1].into(), port),
            sequence: TcpSeqNumber(sequence),
            segment_bytes,
        }
    }

    proptest! {
        /// Another client, port or sequence number would need its own hash: of 2^24 one fits.
        #[test]
        fn a_cookie_is_good_for_its_syn_alone_and_for_a_while(
            port in any::<u16>(), sequence in any::<i32>(), bytes in any::<u16>(),
            made in 0u64..1 << 30, flipped in 0u32..32,
        ) {
            let cookies = with_key(7);
            let syn = syn(port, sequence, bytes);
            let cookie = cookies.cookie(&syn, at(made));
            let asked = Syn { segment_bytes: 0, ..syn };
            for age in [0, 63] {
                let known = cookies.syn(&asked, cookie, at(made + age)).expect("in time");
                prop_assert!(known.segment_bytes <= bytes.max(SEGMENT_BYTES[0]));
                prop_assert_eq!(Syn { segment_bytes: bytes, ..known }, syn);
            }
            prop_assert_eq!(cookies.syn(&asked, cookie, at(made + 128)), None);
            let other = TcpSeqNumber(cookie.0 ^ (1 << flipped));
            prop_assert_eq!(cookies.syn(&asked, other, at(made)), None);
            let another = Syn { sequence: TcpSeqNumber(sequence ^ 1), ..asked };
            prop_assert_eq!(cookies.syn(&another, cookie, at(made)), None);
            let stranger = with_key(8);
            prop_assert_eq!(stranger.syn(&asked, cookie, at(made)), None);
        }
    }

    #[test]
    fn the_largest_segment_that_both_know_is_told() {
        let cookies = with_key(7);
        for (offered, told) in [
            (0, 536),
            (536, 536),
            (1459, 1440),
            (1460, 1460),
            (9000, 8940),
        ] {
            let syn = syn(1, 2, offered);
            let cookie = cookies.cookie(&syn, at(0));
            let known = cookies.syn(&syn, cookie, at(0)).unwrap();
            assert_eq!(known.segment_bytes, told);
        }
    }

    #[test]
    fn a_listener_answers_so_many_in_a_period() {
        assert!(Answers::new(0).is_none());
        let mut answers = Answers::new(2000).unwrap();
        let mut now = at(9);
        assert!(!answers.are_awaited(now));
        for _ in 0..3 {
            let taken = (0..1000).filter(|_| answers.take(now, false)).count();
            assert_eq!(taken, 100);
            let renewed = answers.renewed_at(false).expect("none is left");
            assert_eq!(renewed, now + PERIOD);
            answers.renew(now, false);
            assert!(answers.renewed_at(false).is_some(), "too early");
            now = renewed;
            answers.renew(now, false);
            assert_eq!(answers.renewed_at(false), None);
        }
        assert!(answers.are_awaited(now + UNIT) && !answers.are_awaited(now + 3 * UNIT));
    }

    /// Where it does no more, the listener answers after the usual time.
    #[test]
    fn a_listener_answers_seldom_while_the_device_does() {
        let mut answers = Answers::new(2000).unwrap();
        let began = at(9);
        assert_eq!((0..1000).filter(|_| answers.take(began, true)).count(), 25);
        for period in 1..DEVICE_PERIOD.as_millis() / PERIOD.as_millis() {
            let now = began + PERIOD * period as u32;
            assert!(!answers.take(now, true), "{period}");
            assert_eq!(answers.renewed_at(true), Some(now + PERIOD));
        }
        let mut stopped = answers.clone();
        assert_eq!(stopped.renewed_at(false), None);
        let now = began + PERIOD;
        assert_eq!((0..1000).filter(|_| stopped.take(now, false)).count(), 100);
        assert!(answers.take(began + DEVICE_PERIOD, true));
    }
}
