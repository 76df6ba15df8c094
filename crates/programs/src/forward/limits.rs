//! How much of what the kernel must work on passes.
//!
//! What is not plain forwarding goes to the kernel. A flood of it would move the livelock
//! there, so each kind has a limit. The defaults are above what the kernel itself answers
//! (`icmp_msgs_per_sec`, 1000) or can use, so that a calm host notices nothing. ARP has none,
//! nor have packets for own addresses, but for those with options.

use plimsoll_core::time::Instant;

use super::outcome::Outcome;
use super::packet::may_be_cut;
use super::program::types::limit_times;

/// Limits in packets per second: in the XDP program of each interface and CPU, in user
/// space of all interfaces together. 0: none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Packets that the kernel answers with an ICMP error: an expired TTL, no route, too
    /// big and not to be cut. It answers 1000 a second by default. Default 2000.
    pub answered_pps: u64,
    /// Packets whose next hop has to be asked for its Ethernet address. Default 10,000.
    pub unresolved_pps: u64,
    /// Packets that the kernel forwards, or looks at more closely: options, tunnels, routing
    /// by rules, other interfaces, doubtful sources, packets of IPv4 that it cuts. Default 100,000.
    pub slow_pps: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            answered_pps: 2_000,
            unresolved_pps: 10_000,
            slow_pps: 100_000,
        }
    }
}

impl Limits {
    /// In the order of `enum limit_kind`.
    pub(super) const fn by_kind(self) -> [u64; 3] {
        [self.answered_pps, self.unresolved_pps, self.slow_pps]
    }
}

const SECOND_NS: u64 = limit_times::SECOND_NS.0 as u64;
/// This long's packets may come at once, and one in any case.
const BURST_NS: u64 = limit_times::BURST_NS.0 as u64;

/// What a packet takes of time, and how much is saved for others; nothing without a limit.
fn cost_and_room(limit_pps: u64) -> Option<(u64, u64)> {
    let cost = SECOND_NS.checked_div(limit_pps)?;
    Some((cost, cost.max(BURST_NS)))
}

/// The limits in user space: a token bucket for each, as in the XDP program. Time
/// stands for tokens: a packet takes a second divided by the limit.
#[derive(Clone, Debug)]
pub(super) struct Buckets {
    limits_pps: [u64; 3],
    tokens_ns: [u64; 3],
    at: Instant,
}

impl Buckets {
    pub(super) fn new(limits: Limits, now: Instant) -> Self {
        Self {
            limits_pps: limits.by_kind(),
            tokens_ns: [SECOND_NS; 3],
            at: now,
        }
    }

    /// Whether a frame with this outcome may go to the kernel at `now`.
    pub(super) fn admits(&mut self, outcome: Outcome, frame: &[u8], now: Instant) -> bool {
        let kind = match outcome {
            Outcome::TooBig if may_be_cut(frame) => 2,
            Outcome::TtlExpired | Outcome::TooBig | Outcome::NoRoute => 0,
            Outcome::NoNeighbour => 1,
            Outcome::Options
            | Outcome::KernelRoute
            | Outcome::OtherHost
            | Outcome::DoubtfulSource => 2,
            _ => return true,
        };
        let passed = u64::try_from(now.saturating_since(self.at).as_nanos()).unwrap_or(u64::MAX);
        self.at = self.at.max(now);
        for (tokens, limit_pps) in self.tokens_ns.iter_mut().zip(self.limits_pps) {
            let room = cost_and_room(limit_pps).map_or(0, |(_, room)| room);
            *tokens = tokens.saturating_add(passed).min(room);
        }
        let Some((cost, _)) = cost_and_room(self.limits_pps[kind]) else {
            return true;
        };
        let left = self.tokens_ns[kind].checked_sub(cost);
        self.tokens_ns[kind] = left.unwrap_or(self.tokens_ns[kind]);
        left.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kind_has_its_rate_and_a_burst_and_no_part_of_the_others() {
        let limits = Limits {
            answered_pps: 1000,
            unresolved_pps: 10,
            slow_pps: 0,
        };
        let mut buckets = Buckets::new(limits, Instant::ZERO);
        // A second in which ten thousand come.
        let mut admitted = [0u32; 4];
        for number in 1..=10_000u64 {
            let now = Instant::from_nanos(number * 100_000);
            for (place, outcome) in [
                Outcome::TtlExpired,
                Outcome::NoNeighbour,
                Outcome::Options,
                Outcome::Local,
            ]
            .into_iter()
            .enumerate()
            {
                admitted[place] += u32::from(buckets.admits(outcome, &[], now));
            }
        }
        assert!((1099..=1101).contains(&admitted[0]), "{admitted:?}");
        assert!((10..=11).contains(&admitted[1]), "{admitted:?}");
        assert_eq!(admitted[2..], [10_000, 10_000], "without a limit");
    }
    /// A packet took more time than was saved for any: none passed at all.
    #[test]
    fn limits_of_a_few_a_second_let_these_pass() {
        for limit in 1..=20 {
            let limits = Limits {
                answered_pps: limit,
                ..Limits::default()
            };
            let mut buckets = Buckets::new(limits, Instant::ZERO);
            let times = (0..10_000u64).map(|number| Instant::from_nanos(number * 1_000_000));
            let admitted = times.filter(|now| buckets.admits(Outcome::TtlExpired, &[], *now));
            let admitted = admitted.count() as u64;
            let burst = (limit / 10).max(1);
            assert!(
                (10 * limit..=10 * limit + burst).contains(&admitted),
                "{limit}/s: {admitted} in ten seconds"
            );
        }
    }
}
