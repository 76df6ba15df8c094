//! When input is shed because receiving takes too much of a CPU, how many packets
//! are then admitted, and whose.
//!
//! **Intuition.** A full queue discards by itself. What no queue bounds (packets to
//! closed ports, ICMP, forwarding, many sockets that each keep up) takes the CPU
//! unless somebody says how much of it may be admitted. So the time that a limit
//! leaves is turned into a number of packets by what packets were seen to cost,
//! and that number is divided between those who ask.
//!
//! **Source.** Mogul & Ramakrishnan 1997, sections 7 (a limit on the CPU time of
//! packets) and 10 (a share for each consumer when input must be shed:
//! MR-94); Druschel & Banga 1996, section 3 (a flood is its own consumer's loss).
//! The paper stops all input for the rest of a period. Here some is always
//! admitted, and who admits it counts packets for each consumer in each
//! [`TICK`]: a BPF program, or its model.
//!
//! **Rules.**
//! - Shedding begins when receiving has taken more than [`SheddingConfig::limit`] of
//!   a CPU for two intervals, mostly for packets that were admitted: to admit fewer
//!   helps against nothing else.
//! - It does not begin, or goes on, for established TCP connections' sake. Their senders follow the
//!   receiver's window and the network's losses by themselves (RFC 9293, 5681), and a
//!   bulk transfer that loses segments to a share collapses. So others must have taken
//!   `OTHERS_LEAST` of the time on receiving, and calm is about others' demand.
//! - The same holds for packets to other hosts, and to tunnels that end in the kernel, while nobody
//!   else wants the CPU
//!   ([`contention`](super::contention)). Forwarding is then all that the CPU is for: what a limit left
//!   of it would be used by nobody, and what is beyond it is lost in the receive ring at no cost.
//!   Packets to processes of the host are another case: a process whose packets are lost sleeps, and
//!   waits for no CPU.
//! - The budget is what [`SheddingConfig::aim`] of the limit leaves after all packets have been
//!   looked at, but never less than `PROGRESS` of it.
//! - All protected traffic is one party with a guarantee. The others, slots or
//!   groups of slots, get max-min fair shares. Who asks for less than the others
//!   get may ask for as much at once.
//! - Shedding ends when demand has been below `CALM` of the budget for
//!   `CALM_TIME`, on every CPU of which it is known.
//!
//! **Several CPUs.** The busiest CPU decides, and its shares hold on every CPU, so
//! that one with less to do never sheds more. While input is shed another CPU takes
//! over only when it is clearly busier: CPUs under equal load would otherwise take
//! turns, and each turn would need the other CPU's demands. If those are not known,
//! the shares stay as they are, and the interval says nothing about calm.
//!
//! **Beside the governor.** The [`Governor`](crate::governor::Governor) keeps the
//! same limit by longer holdoffs. Shedding has to aim lower: if both aimed at the
//! limit itself, the holdoffs would grow until the ring overflows, which costs
//! bystanders packets that shedding would have spared.
//!
//! **Limits.** A packet's cost is a mean over all packets. A kind that costs more
//! than the mean is admitted too often until the mean has followed. What a polling
//! run costs apart from its packets is taken for the packets' cost.
//!
//! **When it loses.** Packets that cost several times what was assumed at first are
//! never found to be the reason, and are not shed: see `LEARNT_MOST_FACTOR`.

use alloc::vec::Vec;
use core::time::Duration;

mod division;
#[cfg(test)]
mod tests;

use division::Division;

use crate::config::{ConfigError, Field, Fraction, NANOSECOND, PPM};
use crate::time::{TICK, span_nanos};

/// The shortest interval to decide on, some ticks long: demands of a shorter one say
/// too little about packets per tick.
pub const INTERVAL_MIN: Duration = Duration::from_millis(15);
/// What early discard costs per packet, everything included: measured on veth at
/// 1 to 5 million packets/s. Adapters differ by less than it matters.
pub const DISCARDED: Duration = Duration::from_nanos(160);
/// What an admitted packet is taken to cost until that is seen: between the 0.8 µs
/// of a datagram on veth and the 3 µs of one that passes packet filters.
const ADMITTED: Duration = Duration::from_nanos(1500);

/// The part of the limit that admitted packets keep whatever discarding costs: the
/// flooded consumer still makes progress, if a tenth of what it could.
const PROGRESS: Fraction = Fraction::from_percent(10);
/// Intervals above the limit before input is shed: one alone is a burst.
const INTERVALS_ABOVE: u32 = 2;
/// Packets of others than established TCP connections take at least this part of the time on receiving
/// when input is shed: with less, to admit fewer of them would hardly help.
const OTHERS_LEAST: Fraction = Fraction::from_percent(25);
/// Demand below this part of the budget is calm: without shedding receiving would
/// stay well below the limit, so that shedding does not begin again at once.
const CALM: Fraction = Fraction::from_percent(80);
/// Calm must last this long, some times the longest pause of a flood that a sender
/// makes without meaning it (a retransmission time of 200 ms).
const CALM_TIME: Duration = Duration::from_millis(500);
/// Another CPU decides when it is busier by more than this part. Equal queues differ
/// by some percent from one interval to the next.
const CLEARLY: Fraction = Fraction::from_percent(10);
/// One part in so many of the newest cost enters the mean: followed within some
/// intervals, and one odd interval moves it little.
const NEWEST_PARTS: u64 = 4;
/// Costs are learnt from at least this many packets …
const LEARNT_PACKETS: u64 = 20;
/// … that by what was first assumed are one part in so many of the work. Else what
/// polling costs, which does not depend on how few packets there are, would be
/// charged to them, fewer would be admitted, and each would seem to cost more still.
const LEARNT_WORK_PARTS: u64 = 4;
/// A packet is never found to cost more than so many times what was first assumed …
const LEARNT_MOST_FACTOR: u64 = 2;
/// … nor, beyond a discarded one's cost, less than one part in so many of it.
const LEARNT_LEAST_PARTS: u64 = 10;
/// No packet costs more.
const COST_MAX: Duration = Duration::from_secs(1);

/// What packets cost the CPU that receives them, everything included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PacketCosts {
    /// One that is admitted; above `discarded`.
    pub admitted: Duration,
    /// One that is discarded early.
    pub discarded: Duration,
}

/// Settings of [`Shedding`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SheddingConfig {
    /// The part of each CPU's time that receiving may take, above zero. Default:
    /// 85 %; more leaves a flood of unbounded packets the whole CPU, less sheds what
    /// the host could take.
    pub limit: Fraction,
    /// Shedding aims at this part of the limit, above zero. Default: 95 %, more below
    /// the limit than a budget is usually wrong by. At the limit itself it would work
    /// against a governor that has the same limit.
    pub aim: Fraction,
    /// The part of what is admitted that protected traffic gets first, as far as it
    /// needs it. Default: 30 %.
    pub guarantee: Fraction,
    /// What packets are taken to cost. Discarded ones stay at that, admitted ones
    /// are measured. Default: those of a veth device.
    pub costs: PacketCosts,
    /// Demands of one CPU in one interval, at most. Memory is taken for all of them,
    /// 20 bytes each. Default: 64.
    pub demands_max: usize,
}

impl SheddingConfig {
    /// The defaults.
    pub const DEFAULT: Self = Self {
        limit: Fraction::from_percent(85),
        aim: Fraction::from_percent(95),
        guarantee: Fraction::from_percent(30),
        costs: PacketCosts {
            admitted: ADMITTED,
            discarded: DISCARDED,
        },
        demands_max: 64,
    };

    /// Checks every field.
    ///
    /// # Errors
    ///
    /// Names the first field that is out of range.
    pub fn validate(&self) -> Result<(), ConfigError> {
        Field("limit", self.limit).must_be_in(PPM.., "above 0 ppm")?;
        Field("aim", self.aim).must_be_in(PPM.., "above 0 ppm")?;
        let PacketCosts {
            admitted,
            discarded,
        } = self.costs;
        Field("costs.discarded", discarded).must_be_in(NANOSECOND.., "above zero")?;
        let most = COST_MAX;
        Field("costs.admitted", admitted).must_be(
            admitted > discarded && admitted <= most,
            "above costs.discarded, at most 1 s",
        )?;
        Field("demands_max", self.demands_max)
            .must_be_in(..=u32::MAX as usize, "at most 4294967295")
    }
}

impl Default for SheddingConfig {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// What asked to be admitted in an interval, and would have been if there were no
/// shares: what a full queue discards asks for nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Demand {
    /// Where its packets are counted: a consumer, or a kind of packet without one.
    pub slot: u32,
    /// How many came.
    pub packets: u64,
    /// Slots of one group share its share; `None`: a group of its own.
    pub group: Option<u64>,
    /// It is part of the protected traffic, whatever its group. Such a slot is to be
    /// reported when nothing came, too, so that its guarantee holds from the first
    /// packet on.
    pub protected: bool,
}

/// Packets of all of them.
fn sum<'a>(demands: impl Iterator<Item = &'a Demand>) -> u64 {
    let packets = demands.map(|demand| demand.packets);
    packets.fold(0, u64::saturating_add)
}

/// What one CPU did in an interval.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuLoad<'a> {
    /// The length of the interval; zero: the CPU is offline, or new.
    pub elapsed: Duration,
    /// Time spent on receiving.
    pub network: Duration,
    /// Packets admitted.
    pub admitted: u64,
    /// Packets discarded early, for whatever reason.
    pub discarded: u64,
    /// Packets of established TCP connections: of those that were admitted, or were refused for
    /// want of a share. What the connections themselves do not take is not among them.
    pub connections: u64,
    /// Of the same, packets for other hosts, for tunnels that end in the kernel, and those that
    /// are translated. The last are known by a sample, and may be told a little before they are
    /// among the others.
    pub forward: u64,
    /// Others want this CPU.
    pub contended: bool,
    /// What asked to be admitted, if that is known. Needed while input is shed.
    pub demands: Option<&'a [Demand]>,
}

impl CpuLoad<'_> {
    /// Packets for whose sake nothing is shed.
    fn unshed(&self) -> u64 {
        if self.contended {
            self.connections
        } else {
            self.connections.saturating_add(self.forward)
        }
    }
}

/// How many packets of a slot are admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// Whose.
    pub slot: u32,
    /// In each [`TICK`] on each CPU; at least 1.
    pub packets: u32,
}

/// What is to be admitted from now on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order<'a> {
    /// Nothing changes.
    Keep,
    /// Whatever fits, again.
    Stop,
    /// Shares.
    Shed {
        /// Packets in each [`TICK`] on each CPU, of each slot that is not named; at
        /// least 1.
        others: u32,
        /// Slots with a share of their own.
        slots: &'a [Share],
    },
}

/// The decision; see the module's documentation.
#[derive(Clone, Debug)]
pub struct Shedding {
    config: SheddingConfig,
    costs_ns: Costs,
    division: Division,
    /// The CPU that decides, by its place among the CPUs.
    cpu: usize,
    intervals_above: u32,
    calm: Duration,
    is_active: bool,
    /// There are shares.
    is_ordered: bool,
}

/// [`PacketCosts`] in ns.
#[derive(Clone, Copy, Debug)]
struct Costs {
    admitted: u64,
    discarded: u64,
}

impl Shedding {
    /// Nothing is shed yet.
    ///
    /// # Errors
    ///
    /// The config is out of range.
    pub fn new(config: SheddingConfig) -> Result<Self, ConfigError> {
        config.validate()?;
        Ok(Self {
            config,
            costs_ns: Costs {
                admitted: span_nanos(config.costs.admitted),
                discarded: span_nanos(config.costs.discarded),
            },
            division: Division::new(config.demands_max),
            cpu: 0,
            intervals_above: 0,
            calm: Duration::ZERO,
            is_active: false,
            is_ordered: false,
        })
    }

    /// Whether input is being shed.
    #[must_use]
    pub const fn is_active(&self) -> bool {
        self.is_active
    }

    /// Whether input is being shed or may be from the next interval on.
    #[must_use]
    pub const fn is_strained(&self) -> bool {
        self.is_active || self.intervals_above > 0
    }

    /// What packets cost, as far as that is known.
    #[must_use]
    pub const fn costs(&self) -> PacketCosts {
        PacketCosts {
            admitted: Duration::from_nanos(self.costs_ns.admitted),
            discarded: self.config.costs.discarded,
        }
    }

    /// Which CPU is to decide about an interval. While nothing is shed, one that has a reason
    /// to comes first: one that only forwards may be busier.
    fn choose_cpu<'a>(&self, cpus: impl Iterator<Item = CpuLoad<'a>> + Clone) -> usize {
        let reason = |cpu: &CpuLoad<'_>| !self.is_active && self.is_above(cpu);
        let busiest = cpus.clone().enumerate();
        let busiest = busiest.max_by_key(|(_, cpu)| (reason(cpu), cpu.network));
        let Some((busiest, CpuLoad { network: most, .. })) = busiest else {
            return 0;
        };
        let mut network = cpus.map(|cpu| cpu.network);
        let current = network.nth(self.cpu);
        let is_clear = current.is_none_or(|spent| {
            let spent = span_nanos(spent);
            span_nanos(most) > spent.saturating_add(CLEARLY.of(spent))
        });
        if self.is_active && !is_clear {
            self.cpu
        } else {
            busiest
        }
    }

    /// Takes what all CPUs did in an interval of at least [`INTERVAL_MIN`], each at
    /// the same place every time.
    ///
    /// # Panics
    ///
    /// If a CPU has more demands than [`SheddingConfig::demands_max`].
    pub fn on_interval<'a>(
        &mut self,
        cpus: impl IntoIterator<Item = CpuLoad<'a>, IntoIter: Clone>,
    ) -> Order<'_> {
        let cpus = cpus.into_iter();
        self.cpu = self.choose_cpu(cpus.clone());
        let deciding = cpus.clone().nth(self.cpu);
        let Some(load) = &deciding.filter(|cpu| !cpu.elapsed.is_zero()) else {
            return Order::Keep;
        };
        self.learn(load);
        if !self.is_active && !self.begins(load) {
            return Order::Keep;
        }
        if self.ends(cpus, load) {
            return Order::Stop;
        }
        if load.demands.is_none() && self.is_ordered {
            return Order::Keep;
        }
        self.is_ordered = true;
        let budget = self.budget(load);
        let guarantee = self.config.guarantee.of(budget);
        let demands = load.demands.unwrap_or_default();
        self.division
            .divide(budget, guarantee, demands, load.elapsed)
    }

    /// Receiving took more than its limit, and to admit fewer packets would help.
    fn is_above(&self, load: &CpuLoad<'_>) -> bool {
        let network_ns = span_nanos(load.network);
        let limit_ns = self.config.limit.of(span_nanos(load.elapsed));
        let cost = |packets: u64| packets.saturating_mul(self.costs_ns.admitted);
        let is_admission = cost(load.admitted) > network_ns / 2;
        let others = load.admitted.saturating_sub(load.unshed());
        let is_others = cost(others) >= OTHERS_LEAST.of(network_ns);
        network_ns > limit_ns && is_admission && is_others
    }

    /// Whether input is shed from now on.
    fn begins(&mut self, load: &CpuLoad<'_>) -> bool {
        self.intervals_above = if self.is_above(load) {
            self.intervals_above + 1
        } else {
            0
        };
        if self.intervals_above < INTERVALS_ABOVE {
            return false;
        }
        self.is_active = true;
        self.calm = Duration::ZERO;
        true
    }

    /// Whether nothing need be shed any more. An interval in which the deciding
    /// CPU's demand is not known says nothing.
    fn ends<'a>(
        &mut self,
        mut cpus: impl Iterator<Item = CpuLoad<'a>>,
        load: &CpuLoad<'_>,
    ) -> bool {
        if load.demands.is_none() {
            return false;
        }
        self.calm = if cpus.all(|cpu| self.is_calm(&cpu)) {
            self.calm.saturating_add(load.elapsed)
        } else {
            Duration::ZERO
        };
        if self.calm < CALM_TIME {
            return false;
        }
        self.is_active = false;
        self.is_ordered = false;
        self.intervals_above = 0;
        true
    }

    /// As far as is known, less is asked for on this CPU, besides what nothing is shed for, than
    /// it could take.
    fn is_calm(&self, cpu: &CpuLoad<'_>) -> bool {
        let Some(demands) = cpu.demands.filter(|_| !cpu.elapsed.is_zero()) else {
            return true;
        };
        let wanted = sum(demands.iter());
        wanted.saturating_sub(cpu.unshed()) < CALM.of(self.budget(cpu))
    }

    /// Follows what an admitted packet costs.
    fn learn(&mut self, load: &CpuLoad<'_>) {
        let Costs {
            admitted,
            discarded,
        } = self.costs_ns;
        let first = span_nanos(self.config.costs.admitted);
        let network_ns = span_nanos(load.network);
        let work_ns = load.admitted.saturating_mul(first);
        if load.admitted < LEARNT_PACKETS || work_ns <= network_ns / LEARNT_WORK_PARTS {
            return;
        }
        let discarding_ns = load.discarded.saturating_mul(discarded);
        let cost = network_ns.saturating_sub(discarding_ns) / load.admitted;
        let least = discarded + (first / LEARNT_LEAST_PARTS).max(1);
        let cost = cost.clamp(least, (first * LEARNT_MOST_FACTOR).max(least));
        let kept = admitted - admitted / NEWEST_PARTS;
        self.costs_ns.admitted = (kept + cost / NEWEST_PARTS).max(least);
    }

    /// Packets that the limit leaves time for in an interval like this one.
    fn budget(&self, load: &CpuLoad<'_>) -> u64 {
        let Costs {
            admitted,
            discarded,
        } = self.costs_ns;
        let limit_ns = self.config.limit.of(span_nanos(load.elapsed));
        let offered = load.admitted.saturating_add(load.discarded);
        let looking_ns = offered.saturating_mul(discarded);
        let left_ns = self.config.aim.of(limit_ns).saturating_sub(looking_ns);
        // An admitted packet has been looked at already.
        (left_ns / (admitted - discarded)).max(PROGRESS.of(limit_ns) / admitted)
    }
}
