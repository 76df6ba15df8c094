//! The delay target: a queue's limit in time instead of bytes.
//!
//! Discarding when full bounds loss, not delay: a large buffer may hold seconds.
//! From how fast a consumer empties its queue follows how many datagrams it may
//! hold so that the last one waits no longer than the target (Little's law; the
//! purpose is `CoDel`'s, RFC 8289, the means are not, since XDP cannot see how long
//! a queued datagram has waited).
//!
//! Limits: sockets that were not read from for a whole interval keep the limit
//! they had. Never below a batch of datagrams, or nothing would be left to read.

use std::time::Duration;

/// A queue holds at least this many datagrams before its packets are discarded.
const DATAGRAMS_MIN: u64 = 32;

/// A socket's queue as last seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Queue {
    /// Datagrams let in so far.
    pub(crate) admitted: u64,
    /// Datagrams in it.
    pub(crate) queued: u32,
    /// Bytes in it.
    pub(crate) occupancy: u32,
}

/// The occupancy in bytes from which on datagrams would wait longer than
/// `target`, or `None` if nothing can be said.
pub(crate) fn limit(
    before: &Queue,
    now: &Queue,
    passed: Duration,
    target: Duration,
) -> Option<u32> {
    let let_in = now.admitted.saturating_sub(before.admitted);
    let taken = (let_in + u64::from(before.queued)).saturating_sub(now.queued.into());
    if taken == 0 || now.queued == 0 || passed.is_zero() {
        return None;
    }
    let datagrams = u128::from(taken) * target.as_nanos() / passed.as_nanos();
    let datagrams = datagrams.max(DATAGRAMS_MIN.into());
    let bytes = u128::from(now.occupancy) * datagrams / u128::from(now.queued);
    Some(u32::try_from(bytes).unwrap_or(u32::MAX).max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_queue_holds_what_its_consumer_takes_within_the_target() {
        let before = Queue::default();
        let now = Queue {
            admitted: 101_000,
            queued: 1000,
            occupancy: 830_000,
        };
        // 100,000 taken in a second: 1000 in 10 ms, of 830 bytes each.
        let target = Duration::from_millis(10);
        assert_eq!(limit(&before, &now, SECOND, target), Some(830_000));
        assert_eq!(limit(&before, &now, SECOND, target / 2), Some(415_000));
        assert_eq!(
            limit(&before, &now, SECOND, Duration::from_nanos(1)),
            Some(830 * 32),
            "never less than a batch"
        );
    }

    #[test]
    fn a_consumer_that_takes_nothing_tells_nothing() {
        let before = Queue {
            admitted: 50,
            queued: 50,
            occupancy: 41_500,
        };
        let now = Queue {
            admitted: 90,
            queued: 90,
            occupancy: 74_700,
        };
        assert_eq!(limit(&before, &now, SECOND, SECOND), None);
        let empty = Queue {
            queued: 0,
            occupancy: 0,
            ..now
        };
        assert_eq!(limit(&before, &empty, SECOND, SECOND), None);
    }
}
