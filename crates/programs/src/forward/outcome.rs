//! What becomes of a frame. Each gets exactly one outcome where it is decided, so that
//! outcomes add up to the frames that arrived.

use serde::Serialize;

use super::program::types::forward_outcome as C;

/// What becomes of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
#[repr(u8)]
pub enum Outcome {
    /// Sent on to the next hop's interface.
    Forwarded,
    /// Handed to user space, which decides.
    ToUser,
    /// ARP: to the kernel.
    AddressResolution,
    /// Neither IP nor ARP: to the kernel.
    OtherProtocol,
    /// To one of this host's addresses: to the kernel.
    Local,
    /// Multicast or broadcast, by Ethernet or IP: to the kernel.
    Multicast,
    /// To another station's Ethernet address: to the kernel.
    OtherHost,
    /// From or to an IPv6 link-local address: to the kernel.
    LinkLocal,
    /// IPv4 options or IPv6 hop-by-hop options: to the kernel.
    Options,
    /// Its TTL or hop limit ends here: the kernel answers.
    TtlExpired,
    /// Longer than the next link takes: the kernel fragments or answers.
    TooBig,
    /// No route, or one that refuses: the kernel answers.
    NoRoute,
    /// The next hop's Ethernet address is not known: the kernel asks for it.
    NoNeighbour,
    /// The route leads elsewhere than to our interfaces, into a tunnel, or depends on
    /// rules: the kernel forwards.
    KernelRoute,
    /// The kernel does not forward what arrives at this interface, and drops it.
    ForwardingOff,
    /// From an address of this host's, or nobody here knows that the way back to its source is
    /// right: to the kernel, which looks at it and has settings of its own.
    DoubtfulSource,
    /// Dropped: no valid IP packet.
    Malformed,
    /// Dropped: a source or destination that no packet may have.
    Martian,
    /// Dropped: the way back to its source leads elsewhere (RFC 3704).
    ReversePath,
    /// Dropped: the kernel would have to work on more of these than its limit.
    Limited,
}

/// Where a frame went.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Fate {
    /// On to another host.
    Forwarded,
    /// To user space, where it gets another outcome.
    ToUser,
    /// To the kernel's stack.
    Kernel,
    /// Nowhere.
    Dropped,
}

impl Outcome {
    /// All, in the program's order.
    pub const ALL: [Self; C::OUTCOME_COUNT.0 as usize] = [
        Self::Forwarded,
        Self::ToUser,
        Self::AddressResolution,
        Self::OtherProtocol,
        Self::Local,
        Self::Multicast,
        Self::OtherHost,
        Self::LinkLocal,
        Self::Options,
        Self::TtlExpired,
        Self::TooBig,
        Self::NoRoute,
        Self::NoNeighbour,
        Self::KernelRoute,
        Self::ForwardingOff,
        Self::DoubtfulSource,
        Self::Malformed,
        Self::Martian,
        Self::ReversePath,
        Self::Limited,
    ];

    /// As in documents and metrics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Forwarded => "forwarded",
            Self::ToUser => "to_user",
            Self::AddressResolution => "address_resolution",
            Self::OtherProtocol => "other_protocol",
            Self::Local => "local",
            Self::Multicast => "multicast",
            Self::OtherHost => "other_host",
            Self::LinkLocal => "link_local",
            Self::Options => "options",
            Self::TtlExpired => "ttl_expired",
            Self::TooBig => "too_big",
            Self::NoRoute => "no_route",
            Self::NoNeighbour => "no_neighbour",
            Self::KernelRoute => "kernel_route",
            Self::ForwardingOff => "forwarding_off",
            Self::DoubtfulSource => "doubtful_source",
            Self::Malformed => "malformed",
            Self::Martian => "martian",
            Self::ReversePath => "reverse_path",
            Self::Limited => "limited",
        }
    }

    /// Where the frame went.
    #[must_use]
    pub const fn fate(self) -> Fate {
        match self {
            Self::Forwarded => Fate::Forwarded,
            Self::ToUser => Fate::ToUser,
            Self::Malformed | Self::Martian | Self::ReversePath | Self::Limited => Fate::Dropped,
            _ => Fate::Kernel,
        }
    }
}

/// Frames by outcome.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts([u64; Outcome::ALL.len()]);

impl Counts {
    /// Adds one.
    #[inline]
    pub fn count(&mut self, outcome: Outcome) {
        self.0[outcome as usize] += 1;
    }

    /// Adds what a CPU's part of the program's counters says, in native byte order.
    pub(super) fn add_bytes(&mut self, bytes: &[u8]) {
        for (count, bytes) in self.0.iter_mut().zip(bytes.chunks_exact(8)) {
            *count += u64::from_ne_bytes(bytes.try_into().unwrap_or_default());
        }
    }

    /// How many.
    #[must_use]
    pub fn of(&self, outcome: Outcome) -> u64 {
        self.0[outcome as usize]
    }

    /// All together.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }

    /// All that went there.
    #[must_use]
    pub fn to(&self, fate: Fate) -> u64 {
        let there = Outcome::ALL.into_iter();
        let there = there.filter(|outcome| outcome.fate() == fate);
        there.map(|outcome| self.of(outcome)).sum()
    }

    /// Outcomes that occurred, with their counts.
    pub fn iter(&self) -> impl Iterator<Item = (Outcome, u64)> + '_ {
        let counted = |outcome| (outcome, self.of(outcome));
        let all = Outcome::ALL.into_iter().map(counted);
        all.filter(|(_, count)| *count > 0)
    }
}

impl std::ops::AddAssign for Counts {
    fn add_assign(&mut self, other: Self) {
        for (mine, theirs) in self.0.iter_mut().zip(other.0) {
            *mine += theirs;
        }
    }
}

impl Serialize for Counts {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.iter().map(|(outcome, count)| (outcome.name(), count)))
    }
}

const _: () = {
    use Outcome as O;
    assert!(O::Forwarded as u32 == C::OUTCOME_FORWARDED.0);
    assert!(O::ToUser as u32 == C::OUTCOME_TO_USER.0);
    assert!(O::AddressResolution as u32 == C::OUTCOME_ADDRESS_RESOLUTION.0);
    assert!(O::OtherProtocol as u32 == C::OUTCOME_OTHER_PROTOCOL.0);
    assert!(O::Local as u32 == C::OUTCOME_LOCAL.0);
    assert!(O::Multicast as u32 == C::OUTCOME_MULTICAST.0);
    assert!(O::OtherHost as u32 == C::OUTCOME_OTHER_HOST.0);
    assert!(O::LinkLocal as u32 == C::OUTCOME_LINK_LOCAL.0);
    assert!(O::Options as u32 == C::OUTCOME_OPTIONS.0);
    assert!(O::TtlExpired as u32 == C::OUTCOME_TTL_EXPIRED.0);
    assert!(O::TooBig as u32 == C::OUTCOME_TOO_BIG.0);
    assert!(O::NoRoute as u32 == C::OUTCOME_NO_ROUTE.0);
    assert!(O::NoNeighbour as u32 == C::OUTCOME_NO_NEIGHBOUR.0);
    assert!(O::KernelRoute as u32 == C::OUTCOME_KERNEL_ROUTE.0);
    assert!(O::ForwardingOff as u32 == C::OUTCOME_FORWARDING_OFF.0);
    assert!(O::DoubtfulSource as u32 == C::OUTCOME_DOUBTFUL_SOURCE.0);
    assert!(O::Malformed as u32 == C::OUTCOME_MALFORMED.0);
    assert!(O::Martian as u32 == C::OUTCOME_MARTIAN.0);
    assert!(O::ReversePath as u32 == C::OUTCOME_REVERSE_PATH.0);
    assert!(O::Limited as u32 == C::OUTCOME_LIMITED.0);
};

#[cfg(test)]
mod tests {
    use super::*;

    /// The table on the terminal has names that no guide explained.
    #[test]
    fn the_guide_names_each_outcome() {
        let guide = include_str!("../../../../docs/programs.md");
        for outcome in Outcome::ALL {
            assert!(
                guide.contains(&format!("`{}`", outcome.name())),
                "{outcome:?}"
            );
        }
    }

    #[test]
    fn outcomes_are_numbered_as_they_are_listed() {
        for (number, outcome) in Outcome::ALL.into_iter().enumerate() {
            assert_eq!(outcome as usize, number, "{outcome:?}");
            let json = serde_json::to_value(outcome).unwrap();
            assert_eq!(json, outcome.name());
        }
    }

    #[test]
    fn fates_add_up_to_the_total() {
        let mut counts = Counts::default();
        for (times, outcome) in Outcome::ALL.into_iter().enumerate() {
            (0..=times).for_each(|_| counts.count(outcome));
        }
        let fates = [Fate::Forwarded, Fate::ToUser, Fate::Kernel, Fate::Dropped];
        let sum: u64 = fates.into_iter().map(|fate| counts.to(fate)).sum();
        assert_eq!(sum, counts.total());
        let mut twice = counts;
        twice += counts;
        assert_eq!(twice.total(), 2 * counts.total());
    }
}
