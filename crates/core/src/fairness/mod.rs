//! Which packets of an overloaded channel are discarded: those of the sources that
//! have had their fair share.
//!
//! **Intuition.** Early discard saves the host, but whoever floods a socket fills its
//! queue, and its other clients lose with him. So each source gets credit at one
//! common rate, the *share*. A packet that is covered by its source's credit is in
//! profile and finds room up to half of what is left above the high watermark. Any other
//! takes what is left over: it is admitted only while the queue is below its watermarks.
//! So nothing is wasted, and a source that asks for less than the share loses nothing, whatever others do.
//!
//! **The share** is never typed in. It follows the consumer: what a channel admits
//! over a while is what its consumer has taken. After each epoch the share moves a third of
//! the way by the factor *wanted / used*: 15/16 of what was admitted is wanted in
//! profile, and *used* was. Use grows with the share, but never faster than it. So the
//! share approaches the max-min fair one from one side, whatever the sources ask for.
//!
//! **Networks.** Somebody may have all addresses of a network. So a channel's sources
//! are a tree: networks (/16, or /48 of IPv6), in them subnets (/24, or /64), in them
//! hosts. Each network gets the channel's share; each network and each subnet has a
//! share of its own for those within, found by the same rule from what it gets itself.
//! That is hierarchical max-min fairness: a network is one of many, and within it a
//! silent host does not suffer from a loud one.
//!
//! **Memory.** Three tables of sets of four, found by a keyed hash. A newcomer takes
//! the entry of its set that has been idle for longest, *with its credit*. So what a
//! table grants is bounded by its size; a flood of random addresses shares the credit
//! of its entries, and nobody wins by losing an entry. The hash is multilinear: for
//! random keys any two prefixes collide with a probability of 2⁻³², so nobody can
//! choose a neighbour without the secret. That says nothing of the fullest set, since sums of
//! addresses side by side are an arithmetic progression. So the sums are mixed.
//!
//! **Waiting.** A source that has used its credit up cannot pass before it has earned
//! one packet's. That moment is known, so until then no level is looked at. The first
//! source of a tick that waits, mostly the loudest one, is even found without its entry.
//!
//! **Turns.** Where a share is less than a packet in half a second, there is next to no
//! credit to save, and chance would decide. So sources have turns then: in profile is who
//! was last served longer ago than a packet takes to earn. A packet that is refused costs
//! no turn, so the longest waiting come first. A newcomer counts as one that has waited for
//! [`NEWCOMER_TURNS`]: it may ask once only. What those within a network have is divided
//! anew when somebody is seen for the first time. Its use would show that too, but after
//! epochs as long as turns.
//!
//! **Strangers** are newcomers who find no credit in the entry that they take over: under
//! a flood of random addresses nearly everybody. While most of those looked at are
//! strangers, only one of [`STRANGERS_LOOK`] is looked at in networks whose hosts may
//! have less than a packet in [`STRANGERS_TICKS`]. The others are out of profile: the
//! look would miss all caches.
//!
//! **Known sources**, those that were served before the overload, have half of what
//! the consumer takes for themselves, fairly divided among them. This alone helps
//! against forged addresses at random. Whoever forges a known one gets the share of
//! that one.
//!
//! **Source.** Max-min fairness: Bertsekas & Gallager, "Data Networks", 6.5.2. Fair
//! shares by feedback and without queues per flow: Stoica, Shenker & Zhang, "Core-
//! Stateless Fair Queueing" (SIGCOMM 1998), whose rule for the share this is. Two
//! thresholds of one queue: Clark & Fang, "Explicit Allocation of Best-Effort Packet
//! Delivery Service" (1998). Multilinear hashing: Lemire & Kaser, "Strongly Universal
//! String Hashing is Fast" (2014). Mixing: Appleby's `MurmurHash3`, whose finalizer it is.
//!
//! **Shedding.** A channel without a queue that bounds it has a number of packets per tick
//! while input is shed. Its sources divide that by the same rules. What those in profile
//! left over in the tick before is for the others. Those in profile may overdraw a tick's
//! packets by a quarter, since there are not equally many in each tick. Half of a tick's
//! packets is kept for known sources: a flood from anywhere, while its share is still too
//! large, may have used all others.
//!
//! **Listeners.** A listener's places are divided by the same rules: the last eighth of
//! its backlog is for SYNs in profile, half of it for known sources alone, and others are
//! discarded. The SYN queue is divided where no cookies are made. With cookies it needs
//! no division: whoever finds it full gets one, which needs no place. Once the server is
//! behind, a cookie is of no use: both queues together are divided, and the end of a handshake
//! that was answered with a cookie is judged as well.
//!
//! **How exact.** Tests compare with the exact hierarchical max-min division. A source
//! that asks for half of its exact share or less loses nothing. In profile
//! are 15/16 of what is admitted, and 7/8 of that at each level that is overloaded within a
//! network; the rest goes to whoever comes first. So one that asks for more than it may have
//! gets less than its exact share: 0.69 of it at worst in some 2,000 random cases. How low it
//! can be is not known. What is not in profile goes to others: nobody gets more than a tenth above
//! its exact share and its part of that rest.
//!
//! **Limits.** A source may use [`BURST_TICKS`] of its share at once, or [`BURST_PACKETS`] packets if that
//! is more. A share at most
//! doubles per epoch of at least [`EPOCH_TICKS`]: the first tenths of a second of
//! an overload are less fair, and the first seconds are where each of very many sources
//! has a share of few packets a second. Turns are not exact: of a crowd
//! of 10,000 beyond the consumer's capacity nobody is forgotten in the model, but somebody waits
//! for three to four turns within a minute. Where more sources are active than a table has
//! entries, those of one set are one source. Entries keep 16 bits of a tick. Whoever comes back after
//! 275 s, give or take its last wait, is taken for one that was never away: it waits once more, for
//! half a second at most, or for its turn. Under forged addresses only known sources
//! are better off than others; an unknown one gets the part of its network then.
//!
//! The guard's BPF program makes the same decision, in `fairness.h`, by the same
//! [`numbers`]; a test shows both the same packets. There, each CPU has tables of its own.
//!
//! [`BURST_PACKETS`]: numbers::BURST_PACKETS
//! [`BURST_TICKS`]: numbers::BURST_TICKS
//! [`EPOCH_TICKS`]: numbers::EPOCH_TICKS
//! [`NEWCOMER_TURNS`]: numbers::NEWCOMER_TURNS
//! [`STRANGERS_LOOK`]: numbers::STRANGERS_LOOK
//! [`STRANGERS_TICKS`]: numbers::STRANGERS_TICKS

mod backlog;
mod budget;
mod host;
mod level;
pub mod numbers;
mod share;
mod source;
mod table;
#[cfg(test)]
mod tests;

use crate::config::{ConfigError, Field};
use crate::time::{Instant, TICK_SHIFT};

pub use self::backlog::{Backlog, SynVerdict};
pub use self::budget::Budget;
use self::host::{Host, has_turns};
use self::level::Node;
use self::numbers::{PART, PART_SHIFT, SILENT};
pub use self::share::Share;
use self::source::Paths;
pub use self::source::{Keys, Source};
use self::table::{Owner, Table};

const fn tick_of(now: Instant) -> u32 {
    (now.as_nanos() >> TICK_SHIFT) as u32
}

/// Who is asking, and what for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// Tells channels apart.
    pub channel: u32,
    /// Where the packet says that it is from.
    pub source: Source,
    /// Whether that source was served before the overload.
    pub known: bool,
}

/// A channel's queue as it is, in any one unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Queue {
    /// What is in it.
    pub occupancy: u32,
    /// Discarding ends below this.
    pub low: u32,
    /// Discarding begins here in a queue that was full lately, but for packets in profile.
    pub high: u32,
    /// Nothing is admitted from here on.
    pub full: u32,
    /// Whether one more packet fits. As long as it does, a queue that was not full lately
    /// takes whatever comes: a burst is no overload.
    pub has_room: bool,
}

/// What becomes of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is admitted.
    Admitted,
    /// Discarded: its source has had its share, or is the nearest to it while the queue
    /// is nearly full.
    SourceShare,
    /// Discarded: the queue is full, or the tick's packets are used up.
    QueueFull,
}

/// Sizes of the tables, in sets of [`WAYS`](numbers::WAYS); powers of two up to 65,536.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FairnessConfig {
    /// For networks. Default 1024.
    pub network_sets: usize,
    /// For subnets. Default 8192: of 10,000 subnets 4 % are in sets with more than have room.
    /// With half as many sets 23 % are, and by one of 20 keys somebody of such a crowd waited for 18 s.
    pub subnet_sets: usize,
    /// For hosts, known ones included. Default 65,536, in 4 MiB: of 100,000 sources 7 % are in sets
    /// with more than have room, by any keys. With half as many sets 36 % are.
    pub host_sets: usize,
}

impl FairnessConfig {
    /// The defaults, for a host with one or two CPUs.
    pub const DEFAULT: Self = Self {
        network_sets: 1 << 10,
        subnet_sets: 1 << 13,
        host_sets: 1 << 16,
    };

    /// The sizes for each of so many CPUs: a host with many needs fewer entries on each.
    #[must_use]
    pub fn for_cpus(cpus: usize) -> Self {
        let parts = cpus.div_ceil(2).next_power_of_two();
        let part = |sets: usize| (sets / parts).max(64);
        Self {
            network_sets: part(Self::DEFAULT.network_sets),
            subnet_sets: part(Self::DEFAULT.subnet_sets),
            host_sets: part(Self::DEFAULT.host_sets),
        }
    }

    /// Checks every field.
    ///
    /// # Errors
    ///
    /// Names the first field that is out of range.
    pub fn validate(&self) -> Result<(), ConfigError> {
        let fields = [
            ("network_sets", self.network_sets),
            ("subnet_sets", self.subnet_sets),
            ("host_sets", self.host_sets),
        ];
        for (name, sets) in fields {
            let fits = sets.is_power_of_two() && sets <= 1 << 16;
            Field(name, sets).must_be(fits, "a power of two up to 65,536")?;
        }
        Ok(())
    }
}

/// What is known of sources, on one CPU. Channels share the tables.
#[derive(Clone, Debug)]
pub struct Fairness {
    keys: Keys,
    networks: Table<Node>,
    subnets: Table<Node>,
    hosts: Table<Host>,
}

/// How a packet stands with its source's credit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Profile {
    /// In profile; the part of its credit that the poorest of its prefixes had left, of
    /// 256.
    In(u32),
    Out,
}

impl Fairness {
    /// No source is known yet.
    ///
    /// # Errors
    ///
    /// The config is out of range.
    pub fn new(config: &FairnessConfig, keys: Keys) -> Result<Self, ConfigError> {
        config.validate()?;
        Ok(Self {
            keys,
            networks: Table::new(config.network_sets),
            subnets: Table::new(config.subnet_sets),
            hosts: Table::new(config.host_sets),
        })
    }

    /// Judges one packet of a channel, whose share this is.
    pub fn judge(
        &mut self,
        share: &mut Share,
        request: &Request,
        queue: &Queue,
        now: Instant,
    ) -> Verdict {
        let tick = tick_of(now);
        let discarding = share.on_occupancy(queue, tick);
        if !share.is_pressed() {
            return Verdict::Admitted;
        }
        share.on_tick(tick);
        let profile = self.take(share, request, tick);
        let verdict = match profile {
            Profile::Out if discarding => Verdict::SourceShare,
            Profile::Out => Verdict::Admitted,
            Profile::In(credit) => {
                share.on_used();
                queue.judge_in_profile(credit)
            }
        };
        if verdict == Verdict::Admitted {
            share.on_admitted();
            self.end_turn(share, request, profile, tick);
        }
        verdict
    }

    /// Judges one packet of a channel that has a budget, since input is shed: its share of
    /// the work (`core::charge::shedding`) takes the place of a consumer.
    /// [`Verdict::QueueFull`]: the tick's packets are used up.
    pub fn judge_shed(
        &mut self,
        share: &mut Share,
        budget: &mut Budget,
        request: &Request,
        now: Instant,
    ) -> Verdict {
        let tick = tick_of(now);
        if !share.on_room(budget.has_room(), tick) {
            budget.admit();
            return Verdict::Admitted;
        }
        share.on_tick(tick);
        let profile = self.take(share, request, tick);
        let verdict = match profile {
            Profile::In(credit) => {
                share.on_used();
                budget.on_in_profile();
                if request.known && budget.keeps_place_for_known() {
                    budget.admit_known();
                    share.on_admitted();
                    self.end_turn(share, request, profile, tick);
                    return Verdict::Admitted;
                }
                let verdict = budget.as_queue().judge_in_profile(credit);
                if verdict != Verdict::Admitted {
                    budget.on_refused_in_profile();
                }
                verdict
            }
            Profile::Out if budget.has_room_for_others() => {
                budget.admit_other();
                share.on_admitted();
                return Verdict::Admitted;
            }
            Profile::Out => Verdict::SourceShare,
        };
        if verdict == Verdict::Admitted {
            budget.admit();
            share.on_admitted();
            self.end_turn(share, request, profile, tick);
        } else {
            share.on_discarded(tick);
        }
        verdict
    }

    /// A source is served: if it has turns, this one ends. Who is refused has waited for longer
    /// next time.
    fn end_turn(&mut self, share: &Share, request: &Request, profile: Profile, tick: u32) {
        if profile != Profile::Out && share.has_turns() {
            let (host, _) = self.hosts.find(Paths::of(&self.keys, request).host, tick);
            host.end_turn();
        }
    }

    /// Takes a packet's credit from its host, then its subnet, then its network.
    fn take(&mut self, share: &mut Share, request: &Request, tick: u32) -> Profile {
        let paths = Paths::of(&self.keys, request);
        if share.is_loudest(request.source) {
            return Profile::Out;
        }
        let (network, network_owner) = self.networks.peek(paths.network, tick);
        let bound = network.bound_within(share.level(), tick, network_owner);
        if !request.known && share.passes_over(bound) {
            return Profile::Out;
        }
        let (host, owner) = self.hosts.find(paths.host, tick);
        let waits_itself = owner == Owner::Same && host.is_waiting(tick);
        if !waits_itself && request.known {
            let (known, known_owner) = share.known(tick);
            if owner == Owner::Nobody && known_owner != Owner::Nobody {
                known.divide_with_newcomer();
            }
            let level = known.level();
            let profile = host.take(level, tick, owner);
            let profile = known.pass(profile);
            share.note_turn(has_turns(level));
            return profile;
        }
        let is_refused = owner == Owner::Other && host.has_none_for(bound, tick);
        if waits_itself || is_refused {
            share.note_stranger(is_refused);
            share.note_loudest(request.source);
            host.go_on_waiting(tick);
            return Profile::Out;
        }
        let (network, network_owner) = self.networks.find(paths.network, tick);
        network.refresh(share.level(), tick, network_owner);
        let (subnet, subnet_owner) = self.subnets.find(paths.subnet, tick);
        if subnet_owner == Owner::Nobody && network_owner != Owner::Nobody {
            network.divide_with_newcomer();
        }
        subnet.refresh(network.level(), tick, subnet_owner);
        if owner == Owner::Nobody && subnet_owner != Owner::Nobody {
            subnet.divide_with_newcomer();
        }
        let level = subnet.level();
        let profile = host.take(level, tick, owner);
        share.note_turn(has_turns(level));
        if owner == Owner::Same && matches!(profile, Profile::In(credit) if credit >= SILENT) {
            share.on_silent();
        }
        share.note_stranger(owner == Owner::Other && profile == Profile::Out);
        network.pass(subnet.pass(profile))
    }
}

impl Queue {
    /// A packet in profile finds room up to the queue's end. `credit`: the part that its
    /// source has left.
    fn judge_in_profile(&self, credit: u32) -> Verdict {
        if self.occupancy >= self.full {
            Verdict::QueueFull
        } else if credit < self.pressure() {
            Verdict::SourceShare
        } else {
            Verdict::Admitted
        }
    }

    /// How far a queue above its high watermark is filled, of 256. Who has less than
    /// this part of its credit left is refused: the last room is for the quiet ones.
    fn pressure(&self) -> u32 {
        if self.occupancy <= self.high {
            return 0;
        }
        let above = u64::from(self.occupancy - self.high) << PART_SHIFT;
        let room = u64::from(self.full.saturating_sub(self.high).max(1));
        (above / room).min(PART.into()) as u32
    }
}
