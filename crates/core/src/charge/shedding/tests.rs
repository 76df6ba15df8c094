//! Hosts whose CPUs spend so much on each packet, interval by interval; then
//! random floods, and the division against one packet at a time.

extern crate std;
use std::collections::BTreeMap;
use std::string::ToString;
use std::vec;
use std::vec::Vec;

use proptest::prelude::*;

use super::*;

mod connections;
mod forward;

const INTERVAL: Duration = Duration::from_millis(20);
const ADMITTED_NS: u64 = 2000;

/// Packets/s of a slot, and whether it is protected.
type Offer = (u32, u64, bool);

/// A host of equal CPUs that spends 2 µs on each admitted packet and 160 ns on each
/// other, and admits by shares as told.
struct Host {
    shedding: Shedding,
    others: Option<u64>,
    slots: BTreeMap<u32, u64>,
    /// The host counts the demands of the deciding CPU only.
    counts_one: bool,
}

/// What one CPU did.
struct Done {
    admitted: Vec<u64>,
    network: Duration,
}

impl Host {
    fn new(limit: u32) -> Self {
        let config = SheddingConfig {
            limit: Fraction::from_percent(limit),
            ..SheddingConfig::DEFAULT
        };
        Self {
            shedding: Shedding::new(config).unwrap(),
            others: None,
            slots: BTreeMap::new(),
            counts_one: false,
        }
    }

    fn work(&self, offered: &[Offer]) -> (Done, CpuLoad<'static>) {
        let admitted: Vec<u64> = offered
            .iter()
            .map(|(slot, rate, _)| {
                let share = self.slots.get(slot).copied().or(self.others);
                let share = share.map_or(u64::MAX, |packets| {
                    packets * INTERVAL.as_nanos() as u64 / TICK.as_nanos() as u64
                });
                packets_of(*rate).min(share)
            })
            .collect();
        let all: u64 = offered.iter().map(|(_, rate, _)| packets_of(*rate)).sum();
        let taken: u64 = admitted.iter().sum();
        let network_ns = taken * ADMITTED_NS + (all - taken) * 160;
        let network = Duration::from_nanos(network_ns).min(INTERVAL);
        let load = CpuLoad {
            elapsed: INTERVAL,
            network,
            admitted: taken,
            discarded: all - taken,
            connections: 0,
            forward: 0,
            contended: true,
            demands: None,
        };
        (Done { admitted, network }, load)
    }

    /// One interval with these packets/s on each CPU.
    fn run_cpus(&mut self, cpus: &[&[Offer]]) -> Vec<Done> {
        let demands: Vec<Vec<Demand>> = cpus.iter().map(|offered| demands(offered)).collect();
        let (done, mut loads): (Vec<_>, Vec<_>) =
            cpus.iter().map(|offered| self.work(offered)).unzip();
        let chosen = self.shedding.choose_cpu(loads.iter().copied());
        let known = self.shedding.cpu;
        for (cpu, load) in loads.iter_mut().enumerate() {
            // Who counts for one CPU has counts of a whole interval only if it is the same.
            let is_known = !self.counts_one || (cpu == chosen && chosen == known);
            load.demands = is_known.then_some(&demands[cpu]);
        }
        match self.shedding.on_interval(loads) {
            Order::Keep => {}
            Order::Stop => {
                self.others = None;
                self.slots.clear();
            }
            Order::Shed { others, slots } => {
                self.others = Some(others.into());
                self.slots = slots.iter().map(|s| (s.slot, s.packets.into())).collect();
            }
        }
        done
    }

    fn run(&mut self, offered: &[Offer]) -> Done {
        self.run_cpus(&[offered]).remove(0)
    }
}

fn packets_of(rate: u64) -> u64 {
    rate * INTERVAL.as_nanos() as u64 / 1_000_000_000
}

fn demands(offered: &[Offer]) -> Vec<Demand> {
    let demand = |(slot, rate, protected): &Offer| Demand {
        slot: *slot,
        packets: packets_of(*rate),
        group: None,
        protected: *protected,
    };
    offered.iter().map(demand).collect()
}

fn share_of(network: Duration) -> f64 {
    network.as_secs_f64() / INTERVAL.as_secs_f64()
}

#[test]
fn configs_name_the_field_that_is_wrong() {
    let field = |change: fn(&mut SheddingConfig)| {
        let mut config = SheddingConfig::DEFAULT;
        change(&mut config);
        Shedding::new(config).unwrap_err().field
    };
    assert_eq!(field(|c| c.limit = Fraction::NONE), "limit");
    assert_eq!(field(|c| c.aim = Fraction::NONE), "aim");
    assert_eq!(
        field(|c| c.costs.discarded = Duration::ZERO),
        "costs.discarded"
    );
    assert_eq!(field(|c| c.costs.admitted = DISCARDED), "costs.admitted");
    assert_eq!(field(|c| c.costs.admitted = COST_MAX * 2), "costs.admitted");
    let mut dearest = SheddingConfig::DEFAULT;
    dearest.costs.admitted = COST_MAX;
    assert_eq!(dearest.validate(), Ok(()));
    let error = SheddingConfig {
        limit: Fraction::NONE,
        ..SheddingConfig::default()
    };
    let error = error.validate().unwrap_err();
    assert_eq!(error.to_string(), "limit = 0: must be above 0 ppm");
}

#[test]
fn a_flood_of_unbounded_packets_is_held_just_below_the_limit() {
    for limit in [30, 50, 70] {
        let mut host = Host::new(limit);
        let flood = [(8, 1_000_000, false)];
        let shares: Vec<f64> = (0..50)
            .map(|_| share_of(host.run(&flood).network))
            .collect();
        let settled = shares[20..].iter().sum::<f64>() / 30.0;
        let limit = f64::from(limit) / 100.0;
        assert!(settled < limit, "{settled} of {limit}: {shares:?}");
        assert!(settled > limit * 0.92, "{settled} of {limit}: {shares:?}");
    }
}

#[test]
fn the_flood_pays_and_the_others_get_all_they_ask_for() {
    let mut host = Host::new(50);
    let offered = [(20, 10_000, false), (8, 900_000, false), (12, 30_000, true)];
    for _ in 0..20 {
        host.run(&offered);
    }
    let admitted = host.run(&offered).admitted;
    assert_eq!(admitted[0], 200, "10,000/s in 20 ms");
    assert_eq!(admitted[2], 600, "protected");
    assert!(admitted[1] > 900, "the rest is the flood's: {admitted:?}");
}

/// Its guarantee is 30 %, and the flood has nearly all.
#[test]
fn protected_traffic_may_ask_for_as_much_as_anybody_at_once() {
    let mut host = Host::new(50);
    for _ in 0..20 {
        host.run(&[(8, 900_000, false), (12, 1000, true)]);
    }
    assert!(host.slots[&12] >= host.others.unwrap(), "{:?}", host.slots);
}

#[test]
fn light_load_is_never_shed_and_shedding_ends() {
    let mut host = Host::new(85);
    for _ in 0..100 {
        assert_eq!(host.run(&[(20, 100_000, false)]).admitted, [2000]);
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
    // The 25th ends it.
    assert_eq!(intervals, 24, "half a second");
    host.run(&[(8, 2_000_000, false)]);
    assert!(!host.shedding.is_active(), "one interval alone is a burst");
}

#[test]
fn one_interval_above_the_limit_is_a_burst() {
    let mut host = Host::new(85);
    for _ in 0..20 {
        host.run(&[(8, 2_000_000, false)]);
        assert!(!host.shedding.is_active());
        assert!(host.shedding.is_strained(), "the next one decides");
        host.run(&[(8, 1000, false)]);
        assert!(!host.shedding.is_strained());
    }
}

#[test]
fn what_just_keeps_the_limit_is_not_shed() {
    let mut shedding = Shedding::new(SheddingConfig::DEFAULT).unwrap();
    for _ in 0..10 {
        // 85 % of 20 ms.
        assert_eq!(shedding.on_interval([busy(17, Some(&[]))]), Order::Keep);
    }
    assert!(!shedding.is_active());
}

/// A later flood is not the earlier one's calm.
#[test]
fn shedding_begins_anew_after_it_has_ended() {
    let (flood, calm) = ([(8, 2_000_000, false)], [(20, 1000, false)]);
    let mut host = Host::new(85);
    for round in 0..3 {
        for _ in 0..5 {
            host.run(&flood);
        }
        assert!(
            host.shedding.is_active() && host.others.is_some(),
            "{round}"
        );
        let intervals = (0..100).take_while(|_| {
            host.run(&calm);
            host.shedding.is_active()
        });
        assert!(
            intervals.count() >= 24,
            "{round}: as long as the first time"
        );
    }
    // Whoever is not known yet is held by what is known of the limit.
    let mut shedding = host.shedding;
    shedding.on_interval([busy(19, None)]);
    let order = shedding.on_interval([busy(19, None)]);
    assert!(matches!(order, Order::Shed { .. }), "{order:?}");
    let calm = busy(1, Some(&[]));
    assert_ne!(shedding.on_interval([calm]), Order::Stop, "it begins");
}

#[test]
fn polling_costs_are_not_charged_to_few_packets() {
    let mut shedding = Shedding::new(SheddingConfig::DEFAULT).unwrap();
    for _ in 0..100 {
        // 9 of 10 ms on polling and discarding, with a full queue behind it.
        let load = CpuLoad {
            elapsed: Duration::from_millis(10),
            network: Duration::from_millis(9),
            admitted: 500,
            discarded: 30_000,
            connections: 0,
            forward: 0,
            contended: true,
            demands: Some(&[]),
        };
        assert_eq!(shedding.on_interval([load]), Order::Keep);
    }
    assert_eq!(shedding.costs(), SheddingConfig::DEFAULT.costs);
}

#[test]
fn what_an_admitted_packet_costs_is_learnt_within_bounds() {
    let learnt = |cost_ns: u64| {
        let mut shedding = Shedding::new(SheddingConfig::DEFAULT).unwrap();
        for _ in 0..100 {
            let load = CpuLoad {
                elapsed: Duration::from_millis(10),
                network: Duration::from_nanos(1000 * cost_ns),
                admitted: 1000,
                discarded: 0,
                connections: 0,
                forward: 0,
                contended: true,
                demands: Some(&[]),
            };
            shedding.on_interval([load]);
        }
        shedding.costs().admitted.as_nanos()
    };
    assert!((1990..=2000).contains(&learnt(2000)), "{}", learnt(2000));
    assert!((2990..=3000).contains(&learnt(5000)), "{}", learnt(5000));
    assert!((310..=320).contains(&learnt(100)), "{}", learnt(100));
}

#[test]
fn beyond_all_capacity_there_is_still_progress() {
    let mut host = Host::new(85);
    let flood = [(20, 8_000_000, false)];
    for _ in 0..20 {
        host.run(&flood);
    }
    let admitted = host.run(&flood).admitted;
    assert!(admitted[0] * 50 >= 28_000, "{admitted:?}");
}

/// A busy CPU with these demands.
fn busy(network_ms: u64, demands: Option<&[Demand]>) -> CpuLoad<'_> {
    CpuLoad {
        elapsed: INTERVAL,
        network: Duration::from_millis(network_ms),
        admitted: 9000,
        discarded: 0,
        connections: 0,
        forward: 0,
        contended: true,
        demands,
    }
}

#[test]
fn an_interval_without_known_demand_is_not_calm() {
    let mut shedding = Shedding::new(SheddingConfig::DEFAULT).unwrap();
    for interval in 0..100 {
        let order = shedding.on_interval([busy(19, None)]);
        assert_ne!(order, Order::Stop, "at {interval}");
        assert_eq!(shedding.is_active(), interval > 0);
    }
}

#[test]
fn a_cpu_that_is_hardly_busier_does_not_take_over() {
    let flood = [demand(8, 20_000, None, false)];
    let mut shedding = Shedding::new(SheddingConfig::DEFAULT).unwrap();
    for _ in 0..5 {
        shedding.on_interval([busy(18, Some(&flood)), busy(17, Some(&flood))]);
    }
    shedding.on_interval([busy(18, Some(&flood)), busy(19, Some(&flood))]);
    assert_eq!(shedding.cpu, 0);
    shedding.on_interval([busy(18, Some(&flood)), busy(20, Some(&flood))]);
    assert_eq!(shedding.cpu, 1, "a ninth more");
    shedding.on_interval([busy(11, Some(&flood)), busy(10, Some(&flood))]);
    assert_eq!(shedding.cpu, 1, "a tenth more");
}

#[test]
fn cpus_under_equal_load_do_not_make_each_other_look_calm() {
    // Two queues with one flood each: which CPU is busier changes all the time.
    for counts_one in [false, true] {
        let mut host = Host::new(50);
        host.counts_one = counts_one;
        for interval in 0..200_u64 {
            let flood = |cpu| [(8, 1_000_000 + (interval + cpu) % 2 * 50_000, false)];
            let done = host.run_cpus(&[&flood(0), &flood(1)]);
            if interval > 20 {
                assert!(host.shedding.is_active(), "at {interval}");
                for cpu in &done {
                    let share = share_of(cpu.network);
                    assert!(share < 0.5, "{share} at {interval}, {counts_one}");
                }
            }
        }
    }
}

#[test]
fn a_clearly_busier_cpu_takes_over_and_until_it_is_counted_the_shares_stay() {
    let mut host = Host::new(50);
    host.counts_one = true;
    for _ in 0..20 {
        host.run_cpus(&[&[(8, 1_000_000, false)], &[(8, 100, false)]]);
    }
    let before = host.others.unwrap();
    assert_eq!(host.shedding.cpu, 0);
    // Looking at twice as many packets takes longer.
    let moved: [&[Offer]; 2] = [&[(8, 100, false)], &[(8, 2_000_000, false)]];
    host.run_cpus(&moved);
    assert_eq!(host.shedding.cpu, 1);
    assert_eq!(host.others, Some(before), "nothing is known of it");
    host.run_cpus(&moved);
    assert!(host.others.unwrap() < before, "then it decides");
}

#[test]
fn calm_ends_shedding_though_the_busiest_cpu_changes() {
    for counts_one in [false, true] {
        let mut host = Host::new(50);
        host.counts_one = counts_one;
        for _ in 0..20 {
            host.run_cpus(&[&[(8, 1_000_000, false)], &[(8, 900_000, false)]]);
        }
        assert!(host.shedding.is_active());
        // Each CPU is twice as busy as the other for two intervals.
        let intervals = (0..200_u64)
            .take_while(|interval| {
                let light = |cpu| [(20, 1000 * (1 + (interval / 2 + cpu) % 2), false)];
                host.run_cpus(&[&light(0), &light(1)]);
                host.shedding.is_active()
            })
            .count();
        assert!((24..=60).contains(&intervals), "{intervals}, {counts_one}");
    }
}

#[test]
fn a_cpu_that_is_still_flooded_keeps_shedding_going() {
    let mut host = Host::new(50);
    let flood: &[Offer] = &[(8, 1_000_000, false)];
    for _ in 0..20 {
        host.run_cpus(&[flood, flood]);
    }
    for _ in 0..100 {
        host.run_cpus(&[&[(20, 1000, false)], flood]);
        assert!(host.shedding.is_active());
    }
}

fn demand(slot: u32, packets: u64, group: Option<u64>, protected: bool) -> Demand {
    Demand {
        slot,
        packets,
        group,
        protected,
    }
}

/// What others get of 1000 packets a tick, and who gets something else.
fn divide(guarantee: u64, demands: &[Demand]) -> (u32, Vec<(u32, u32)>) {
    let mut division = Division::new(demands.len());
    match division.divide(1000, guarantee, demands, TICK) {
        Order::Shed { others, slots } => {
            let slots = slots.iter().map(|share| (share.slot, share.packets));
            (others, slots.collect())
        }
        order => panic!("it divides: {order:?}"),
    }
}

#[test]
fn a_guarantee_holds_also_for_a_burst_out_of_nothing() {
    let mut demands: Vec<_> = (100..200)
        .map(|slot| demand(slot, 1000, None, false))
        .collect();
    demands.push(demand(12, 0, None, true));
    let (others, slots) = divide(300, &demands);
    assert_eq!(others, 10, "a hundredth each");
    assert_eq!(slots, [(12, 300)]);
}

#[test]
fn a_guarantee_does_not_depend_on_how_many_others_ask() {
    let mut demands = vec![demand(12, 400, None, true)];
    demands.extend((100..199).map(|slot| demand(slot, 1000, None, false)));
    let (others, slots) = divide(300, &demands);
    assert_eq!(others, 7, "100 share what is left");
    assert_eq!(slots, [(12, 307)], "its guarantee and a share");
}

#[test]
fn channels_of_one_group_share_its_share() {
    let flood = |slot, group| demand(slot, 1000, group, false);
    let demands = [flood(20, Some(7)), flood(22, None), flood(21, Some(7))];
    let (others, slots) = divide(300, &demands);
    assert_eq!(others, 500);
    assert_eq!(slots, [(20, 250), (21, 250)]);
}

#[test]
fn in_a_group_who_asks_for_little_leaves_the_rest_to_the_others() {
    let demands = [
        demand(20, 50, Some(7), false),
        demand(21, 900, Some(7), false),
        demand(22, 5000, None, false),
    ];
    let (_, slots) = divide(0, &demands);
    assert_eq!(slots, [(20, 450), (21, 450)], "as much at once, if it asks");
}

/// They are those of one interval.
#[test]
fn shares_of_an_interval_before_are_gone() {
    let mut division = Division::new(4);
    let mut slots = |demands: &[Demand]| match division.divide(1000, 300, demands, TICK) {
        Order::Shed { slots, .. } => slots.iter().map(|share| share.slot).collect(),
        order => panic!("it divides: {order:?}"),
    };
    let group = |slot| demand(slot, 1000, Some(7), false);
    let before: Vec<u32> = slots(&[group(20), group(21), demand(12, 10, None, true)]);
    assert_eq!(before.len(), 3);
    assert_eq!(slots(&[demand(12, 10, None, true)]), [12]);
}

#[test]
fn a_share_is_never_nothing() {
    let demands: Vec<_> = (0..4000)
        .map(|slot| demand(slot, 10, None, false))
        .collect();
    assert_eq!(divide(0, &demands), (1, vec![]));
}

proptest! {
    /// Whatever comes: receiving settles below the limit if there is any progress to
    /// be had, whoever asks for less than an equal part gets all of it, and when the
    /// flood is over shedding ends.
    #[test]
    fn floods_settle_below_the_limit_and_cost_nobody_else_anything(
        limit in 20_u32..95,
        floods in prop::collection::vec(100_000_u64..1_500_000, 1..4),
        quiet_pps in 0_u64..2000,
    ) {
        let mut host = Host::new(limit);
        let mut offered: Vec<Offer> = (8..).zip(&floods).map(|(slot, pps)| (slot, *pps, false)).collect();
        offered.push((30, quiet_pps, false));
        let all: u64 = floods.iter().sum::<u64>() + quiet_pps;
        // Where discarding takes most of it, costs are not learnt: see the module.
        let can_hold = all * 160 < u64::from(limit) * 4_000_000;
        for interval in 0..60 {
            let done = host.run(&offered);
            if interval > 20 && can_hold {
                prop_assert!(share_of(done.network) <= f64::from(limit) / 100.0);
                prop_assert_eq!(*done.admitted.last().unwrap(), packets_of(quiet_pps));
            }
        }
        for _ in 0..30 {
            host.run(&[(30, quiet_pps, false)]);
        }
        prop_assert!(!host.shedding.is_active());
    }

    /// Each slot's share covers what one packet at a time would give it.
    #[test]
    fn shares_are_those_of_one_packet_at_a_time(
        asked in prop::collection::vec(0_u64..900, 1..8),
    ) {
        let demands: Vec<Demand> = (0..).zip(&asked).map(|(slot, n)| demand(slot, *n, None, false)).collect();
        let (others, slots) = divide(0, &demands);
        prop_assert!(slots.is_empty());
        let mut given = vec![0; asked.len()];
        for _ in 0..1000 {
            let next = (0..asked.len()).filter(|&i| given[i] < asked[i]).min_by_key(|&i| given[i]);
            let Some(next) = next else { break };
            given[next] += 1;
        }
        for (given, asked) in given.iter().zip(&asked) {
            let admitted = u64::from(others).min(*asked);
            prop_assert!(admitted.abs_diff(*given) <= 1, "{given} {admitted}");
        }
    }
}
