//! Shedding: when receiving takes more of a CPU than it may, how many packets
//! are still admitted, and whose.
//!
//! Full queues discard by themselves (`guard.bpf.c`). What no queue bounds, such
//! as packets to closed ports, ICMP, forwarded ones, or many sockets that each
//! keep up, is bounded here: the time that the limit leaves is turned into a
//! number of packets by what they were seen to cost, and divided by max-min
//! fairness ([`allot`]). All protected traffic is one claim with a guarantee.
//!
//! The busiest CPU decides and its budget holds on every CPU, so that a CPU with
//! less to do never sheds more than the busiest one.
//!
//! Limits: costs are means over all packets; a kind that costs more than the mean
//! is admitted too often for one interval, until the mean has followed.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use plimsoll_core::charge::{Claim, allot};
use plimsoll_core::config::Fraction;

/// What early discard costs, everything included, in nanoseconds: measured on
/// veth at 1 to 5 million packets/s. Adapters differ by less than it matters.
const DISCARDED_NS: f64 = 160.0;
/// What an admitted packet may be found to cost; outside, something else is measured.
const ADMITTED_NS: (f64, f64) = (300.0, 3000.0);
const ADMITTED_FIRST_NS: f64 = 1500.0;
/// Part of the newest cost in the mean.
const NEWEST: f64 = 0.25;
/// Intervals above the limit before input is shed: one alone is a burst.
const INTERVALS_ABOVE: u32 = 2;
/// Demand below this part of the budget ends shedding …
const CALM: f64 = 0.8;
/// … when it lasts this long.
const CALM_TIME: Duration = Duration::from_millis(500);
/// The part of the limit that admitted packets keep whatever discarding costs:
/// the flooded server still makes progress.
const PROGRESS: f64 = 0.1;

/// Settings of shedding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SheddingConfig {
    /// The part of each CPU's time that receiving may take. Default: 85 %; more
    /// leaves a flood of unbounded packets the whole CPU, less sheds what the
    /// host could take.
    pub limit: Fraction,
    /// The part of what is admitted that protected traffic gets first, as far as
    /// it needs it. Default: 30 %.
    pub guarantee: Fraction,
}

impl Default for SheddingConfig {
    fn default() -> Self {
        Self {
            limit: Fraction::from_percent(85),
            guarantee: Fraction::from_percent(30),
        }
    }
}

/// What one CPU did in an interval.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Load {
    pub(crate) elapsed_ns: u64,
    pub(crate) network_ns: u64,
    pub(crate) admitted: u64,
    pub(crate) discarded: u64,
}

/// Packets that asked for a share in an interval.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Demand {
    pub(crate) slot: u32,
    pub(crate) packets: u64,
    /// Slots of one group share its share; `None`: a group of its own.
    pub(crate) group: Option<u64>,
    pub(crate) protected: bool,
}

/// What the program is to be told.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Order {
    /// Nothing changes.
    Keep,
    /// Admit again whatever fits.
    Stop,
    /// Packets per second: for slots that are not named, and for those that are.
    Shed {
        others: u64,
        slots: BTreeMap<u32, u64>,
    },
}

/// The decision, interval by interval.
#[derive(Debug)]
pub(crate) struct Shedding {
    config: SheddingConfig,
    admitted_ns: f64,
    intervals_above: u32,
    calm: Duration,
    active: bool,
}

impl Shedding {
    pub(crate) fn new(config: SheddingConfig) -> Self {
        Self {
            config,
            admitted_ns: ADMITTED_FIRST_NS,
            intervals_above: 0,
            calm: Duration::ZERO,
            active: false,
        }
    }

    pub(crate) const fn is_active(&self) -> bool {
        self.active
    }

    /// What an admitted and a discarded packet cost, in nanoseconds.
    pub(crate) const fn costs(&self) -> (f64, f64) {
        (self.admitted_ns, DISCARDED_NS)
    }

    /// Takes the busiest CPU's load of the interval past and its demands.
    pub(crate) fn on_interval(&mut self, load: &Load, demands: &[Demand]) -> Order {
        if load.elapsed_ns == 0 {
            return Order::Keep;
        }
        self.learn(load);
        let share = load.network_ns as f64 / load.elapsed_ns as f64;
        let is_admission = load.admitted as f64 * self.admitted_ns > load.network_ns as f64 / 2.0;
        if !self.active {
            let above = share > part(self.config.limit) && is_admission;
            self.intervals_above = if above { self.intervals_above + 1 } else { 0 };
            if self.intervals_above < INTERVALS_ABOVE {
                return Order::Keep;
            }
            self.active = true;
            self.calm = Duration::ZERO;
        }
        let budget = self.budget(load);
        let wanted: u64 = demands.iter().map(|demand| demand.packets).sum();
        if (wanted as f64) < budget * CALM {
            self.calm += Duration::from_nanos(load.elapsed_ns);
            if self.calm >= CALM_TIME {
                self.active = false;
                self.intervals_above = 0;
                return Order::Stop;
            }
        } else {
            self.calm = Duration::ZERO;
        }
        self.divide(budget as u64, demands, load.elapsed_ns)
    }

    /// Only where admitted packets are much of the work: else polling itself,
    /// which costs the same for few packets, would be charged to them, fewer
    /// would be admitted, and each would seem to cost more still.
    fn learn(&mut self, load: &Load) {
        let is_much = load.admitted as f64 * ADMITTED_FIRST_NS > load.network_ns as f64 / 4.0;
        if load.admitted < 20 || !is_much {
            return;
        }
        let discarding = load.discarded as f64 * DISCARDED_NS;
        let cost = (load.network_ns as f64 - discarding) / load.admitted as f64;
        let cost = cost.clamp(ADMITTED_NS.0, ADMITTED_NS.1);
        self.admitted_ns += (cost - self.admitted_ns) * NEWEST;
    }

    /// Packets that the limit leaves time for in an interval like this one.
    fn budget(&self, load: &Load) -> f64 {
        let time = load.elapsed_ns as f64 * part(self.config.limit);
        let offered = (load.admitted + load.discarded) as f64;
        let left = time - offered * DISCARDED_NS;
        // An admitted packet is not discarded.
        (left / (self.admitted_ns - DISCARDED_NS)).max(time * PROGRESS / self.admitted_ns)
    }

    fn divide(&self, budget: u64, demands: &[Demand], elapsed_ns: u64) -> Order {
        let per_second = |packets: u64| {
            u64::try_from(u128::from(packets) * 1_000_000_000 / u128::from(elapsed_ns))
                .unwrap_or(u64::MAX)
        };
        let guarantee = self.config.guarantee.of(budget);
        let mut groups: HashMap<(bool, u64), Vec<&Demand>> = HashMap::new();
        for demand in demands {
            let key = match demand.group {
                Some(group) => (true, group),
                None => (false, demand.slot.into()),
            };
            groups.entry(key).or_default().push(demand);
        }
        let groups: Vec<Vec<&Demand>> = groups.into_values().collect();
        let claim = |members: &Vec<&Demand>| Claim {
            demand: members.iter().map(|member| member.packets).sum(),
            weight: 1,
            guarantee: if members.iter().any(|member| member.protected) {
                guarantee
            } else {
                0
            },
        };
        let claims: Vec<Claim> = groups.iter().map(claim).collect();
        let mut grants = vec![0; claims.len()];
        allot(budget, &claims, &mut grants);
        let level = fair_level(budget, &claims, &grants);
        let mut slots = BTreeMap::new();
        for ((members, claim), grant) in groups.iter().zip(&claims).zip(grants) {
            // Who asks for less than the others get may ask for more at once, and a
            // guarantee holds from the first packet of a burst on.
            let allowed = grant.max(level).max(claim.guarantee);
            if members.len() > 1 || claim.guarantee > 0 {
                share_within(allowed, members, &mut |slot, packets| {
                    slots.insert(slot, per_second(packets));
                });
            }
        }
        Order::Shed {
            others: per_second(level),
            slots,
        }
    }
}

/// What those get who cannot have all they ask for; all of it if everybody can.
fn fair_level(budget: u64, claims: &[Claim], grants: &[u64]) -> u64 {
    let cut = claims.iter().zip(grants);
    cut.filter(|(claim, grant)| claim.demand > **grant && claim.guarantee == 0)
        .map(|(_, grant)| *grant)
        .max()
        .unwrap_or(budget)
}

/// Divides a group's packets among its members.
fn share_within(packets: u64, members: &[&Demand], set: &mut impl FnMut(u32, u64)) {
    let claims: Vec<Claim> = members
        .iter()
        .map(|member| Claim {
            demand: member.packets,
            weight: 1,
            guarantee: 0,
        })
        .collect();
    let mut grants = vec![0; claims.len()];
    allot(packets, &claims, &mut grants);
    let level = fair_level(packets, &claims, &grants);
    for (member, grant) in members.iter().zip(grants) {
        set(member.slot, grant.max(level));
    }
}

fn part(fraction: Fraction) -> f64 {
    f64::from(fraction.as_ppm()) / 1e6
}

#[cfg(test)]
mod tests {
    use super::*;

    const INTERVAL_NS: u64 = 20_000_000;

    /// A host that spends 2 µs on each admitted packet and 160 ns on each other.
    struct Host {
        shedding: Shedding,
        level: Option<u64>,
        slots: BTreeMap<u32, u64>,
    }

    impl Host {
        fn new(limit: u32) -> Self {
            Self {
                shedding: Shedding::new(SheddingConfig {
                    limit: Fraction::from_percent(limit),
                    ..SheddingConfig::default()
                }),
                level: None,
                slots: BTreeMap::new(),
            }
        }

        /// One interval with packets/s by slot; what each got, and the share of
        /// the CPU that it took.
        fn run(&mut self, offered: &[(u32, u64, bool)]) -> (Vec<u64>, f64) {
            let interval = |rate: u64| rate * INTERVAL_NS / 1_000_000_000;
            let admitted: Vec<u64> = offered
                .iter()
                .map(|(slot, rate, _)| {
                    let allowed = self.slots.get(slot).copied().or(self.level);
                    interval(allowed.map_or(*rate, |allowed| allowed.min(*rate)))
                })
                .collect();
            let all: u64 = offered.iter().map(|(_, rate, _)| interval(*rate)).sum();
            let load = Load {
                elapsed_ns: INTERVAL_NS,
                admitted: admitted.iter().sum(),
                discarded: all - admitted.iter().sum::<u64>(),
                network_ns: 0,
            };
            let load = Load {
                network_ns: (load.admitted * 2000 + load.discarded * 160).min(INTERVAL_NS),
                ..load
            };
            let demands: Vec<Demand> = offered
                .iter()
                .map(|(slot, rate, protected)| Demand {
                    slot: *slot,
                    packets: interval(*rate),
                    group: None,
                    protected: *protected,
                })
                .collect();
            match self.shedding.on_interval(&load, &demands) {
                Order::Keep => {}
                Order::Stop => {
                    self.level = None;
                    self.slots.clear();
                }
                Order::Shed { others, slots } => {
                    self.level = Some(others);
                    self.slots = slots;
                }
            }
            (admitted, load.network_ns as f64 / INTERVAL_NS as f64)
        }
    }

    #[test]
    fn a_flood_of_unbounded_packets_is_held_to_the_limit() {
        for limit in [30, 50, 70] {
            let mut host = Host::new(limit);
            let flood = [(8, 1_000_000, false)];
            let shares: Vec<f64> = (0..50).map(|_| host.run(&flood).1).collect();
            let settled = shares[20..].iter().sum::<f64>() / 30.0;
            assert!(
                (settled - f64::from(limit) / 100.0).abs() < 0.03,
                "limit {limit} %: {shares:?}"
            );
        }
    }

    #[test]
    fn the_flood_pays_and_the_others_get_all_they_ask_for() {
        let mut host = Host::new(50);
        let offered = [(20, 10_000, false), (8, 900_000, false), (12, 30_000, true)];
        for _ in 0..20 {
            host.run(&offered);
        }
        let (admitted, _) = host.run(&offered);
        assert_eq!(admitted[0], 200, "10,000/s in 20 ms");
        assert_eq!(admitted[2], 600, "protected");
        assert!(admitted[1] > 1000, "the rest is the flood's: {admitted:?}");
    }

    #[test]
    fn light_load_is_never_shed_and_shedding_ends() {
        let mut host = Host::new(85);
        for _ in 0..100 {
            assert_eq!(host.run(&[(20, 100_000, false)]).0, [2000]);
        }
        assert!(!host.shedding.is_active());
        for _ in 0..10 {
            host.run(&[(8, 2_000_000, false)]);
        }
        assert!(host.shedding.is_active());
        let intervals = (0..100)
            .take_while(|_| {
                host.run(&[(20, 100_000, false)]);
                host.shedding.is_active()
            })
            .count();
        assert!((24..30).contains(&intervals), "half a second: {intervals}");
    }

    #[test]
    fn what_polling_costs_is_not_charged_to_few_packets() {
        let mut shedding = Shedding::new(SheddingConfig::default());
        for _ in 0..100 {
            // 9 of 10 ms on polling and discarding, with a full queue behind it.
            let load = Load {
                elapsed_ns: 10_000_000,
                network_ns: 9_000_000,
                admitted: 500,
                discarded: 30_000,
            };
            assert_eq!(shedding.on_interval(&load, &[]), Order::Keep);
        }
        assert_eq!(shedding.costs().0, ADMITTED_FIRST_NS);
    }

    #[test]
    fn beyond_all_capacity_there_is_still_progress() {
        let mut host = Host::new(85);
        let flood = [(20, 8_000_000, false)];
        for _ in 0..20 {
            host.run(&flood);
        }
        let (admitted, _) = host.run(&flood);
        assert!(admitted[0] * 50 >= 30_000, "{admitted:?}");
    }

    #[test]
    fn a_guarantee_holds_also_for_a_burst_out_of_nothing() {
        let shedding = Shedding::new(SheddingConfig::default());
        let demand = |slot, packets, protected| Demand {
            slot,
            packets,
            group: None,
            protected,
        };
        let mut demands: Vec<_> = (100..200).map(|slot| demand(slot, 1000, false)).collect();
        demands.push(demand(12, 0, true));
        let Order::Shed { others, slots } = shedding.divide(1000, &demands, 1_000_000_000) else {
            panic!("it divides");
        };
        assert_eq!(others, 10, "a hundredth each");
        assert_eq!(slots, BTreeMap::from([(12, 300)]), "30 %");
    }

    #[test]
    fn channels_of_one_group_share_its_share() {
        let shedding = Shedding::new(SheddingConfig::default());
        let demand = |slot, group| Demand {
            slot,
            packets: 1000,
            group,
            protected: false,
        };
        let demands = [demand(20, Some(7)), demand(21, Some(7)), demand(22, None)];
        let Order::Shed { others, slots } = shedding.divide(1000, &demands, 1_000_000_000) else {
            panic!("it divides");
        };
        assert_eq!(others, 500);
        assert_eq!(slots, BTreeMap::from([(20, 250), (21, 250)]));
    }
}
