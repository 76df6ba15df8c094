//! What is promised of the user data path.

use plimsoll_report::{Goal, Side as Bound, median};

use super::dns::NSD;
use super::http::{HttpRun, SYNS_PPS};
use super::idle::{IDLE, IdleRun};
use super::loaded::{BystanderRun, LoadedCase, WORK};
use super::round_trip::{KERNEL_POLLING, OURS_POLLING};
use super::rpc::{RpcRun, RpcWork, WORKS_US, Way};
use super::{Dns, Figures, Part, Plan, RoundTrip, Side, SideCase, TcpCase, Udp};
use crate::figures::{p99_at_most, percents_of};
use crate::passing::{KEPT, OVERLOAD, PassingCase, PassingRun, at_overload, mlfrr_ratio};

/// The client comes first on the generator's CPU, so somewhat less may be offered.
const OFFERED: f64 = 0.8;

pub(super) fn goals(plan: &Plan, figures: &Figures) -> Vec<Goal> {
    let mut goals: Vec<Goal> = figures.udp.iter().flat_map(of_udp).collect();
    let loaded = &figures.loaded;
    let has = |part| plan.parts.contains(&part);
    let mut works: Vec<u128> = loaded.iter().map(|case| case.work_us).collect();
    works.dedup();
    for work in works {
        let of = |side: Side| {
            let mut cases = loaded.iter();
            cases.find(|case| (case.sink.way, case.work_us) == (side.name(), work))
        };
        if has(Part::Overload) {
            goals.extend(of_overload(work, of));
        }
        if has(Part::Bystander) {
            goals.extend(of_bystander(work, of(Side::NiLrp)));
        }
    }
    if has(Part::Http) {
        goals.push(of_http(&figures.http));
    }
    if has(Part::Tcp) {
        goals.push(of_tcp(&figures.tcp));
    }
    goals.extend(figures.dns.iter().flat_map(of_dns));
    if has(Part::Rpc) {
        let ways = [Way::Alike(Side::NiLrp), Way::InGroups(Side::NiLrp)];
        let of_way = |way| WORKS_US.map(|work_us| of_rpc(way, work_us, &figures.rpc));
        goals.extend(ways.into_iter().flat_map(of_way));
    }
    if has(Part::RoundTrip) {
        goals.push(of_round_trip(&figures.round_trip));
    }
    if has(Part::Idle) {
        goals.extend(of_idle(&figures.idle));
    }
    goals
}

/// With the reason why there are no runs, if there is one.
fn explained<R>(goal: Goal, case: Option<&SideCase<R>>) -> Goal {
    match case.and_then(|case| case.why.clone()) {
        Some(why) => goal.because(why),
        None => goal,
    }
}

fn of_rpc(way: Way, work_us: u64, works: &[RpcWork]) -> Goal {
    let name = way.name();
    let id = match way {
        Way::Alike(_) => format!("stack.rpc.{work_us}us"),
        Way::InGroups(_) => format!("stack.rpc.groups.{work_us}us"),
    };
    let work = works.iter().find(|work| work.work_us == work_us);
    let case = work.and_then(|work| work.cases.iter().find(|case| case.way == name));
    let goal = Goal::new(
        id,
        format!("LRP's table 2, calls of {work_us} µs: farthest from a fair third, {name}"),
        Bound::AtMost,
        2.0,
        "points",
        case.map_or_else(Vec::new, |case| case.values(RpcRun::error_points)),
    );
    explained(goal, case)
}

fn of_round_trip(cases: &[SideCase<RoundTrip>]) -> Goal {
    let of = |name: &str| cases.iter().find(|case| case.way == name);
    let means = |case: Option<&SideCase<RoundTrip>>| {
        case.map_or_else(Vec::new, |case| case.values(|run| run.mean_us))
    };
    let ours = of(OURS_POLLING);
    let ratios = percents_of(&means(ours), &means(of(KERNEL_POLLING)));
    let goal = Goal::new(
        "stack.round-trip",
        format!("round trip of 60 bytes, {OURS_POLLING}, beside the {KERNEL_POLLING}"),
        Bound::AtMost,
        1.0,
        "times",
        ratios.iter().map(|percent| percent / 100.0).collect(),
    );
    explained(goal, ours)
}

/// A whole receive buffer and send buffer of one page each, and half as much for the rest.
const IDLE_KIB: f64 = 48.0;

fn of_idle(cases: &[SideCase<IdleRun>]) -> [Goal; 2] {
    let side = Side::SoftLrp.name();
    let case = cases.iter().find(|case| case.way == side);
    // With fewer it would be another measurement.
    let whole = |case: &SideCase<IdleRun>| {
        let all = case.runs.iter().filter(|run| run.idle == IDLE as usize);
        all.copied().collect::<Vec<IdleRun>>()
    };
    let runs = case.map_or_else(Vec::new, whole);
    let kept = |run: &IdleRun| 100.0 * run.beside_rps / run.alone_rps.max(f64::EPSILON);
    let goal = Goal::new(
        "stack.idle",
        format!("requests/s of 100 busy connections beside {IDLE} idle ones, of alone, {side}"),
        Bound::AtLeast,
        90.0,
        "%",
        runs.iter().map(kept).collect(),
    );
    let memory = Goal::new(
        "stack.idle.memory",
        format!("memory of an idle connection, {side}"),
        Bound::AtMost,
        IDLE_KIB,
        "KiB",
        runs.iter().map(|run| run.bytes_each / 1024.0).collect(),
    );
    [explained(goal, case), explained(memory, case)]
}

fn of_udp(udp: &Udp) -> Vec<Goal> {
    let mut goals = Vec::new();
    for (word, cases, least) in [("sink", &udp.sink, 8.0), ("echo", &udp.echo, 4.0)] {
        let of = |side: Side| cases.iter().find(|case| case.way == side.name());
        for (other, least) in [(Side::Kernel, least), (Side::Testpmd, 1.0)] {
            let other_name = other.name();
            goals.push(mlfrr_ratio(
                format!("stack.udp.{word}.{other_name}"),
                format!("MLFRR of a UDP {word} with ni-lrp, beside {other_name}"),
                least,
                of(Side::NiLrp),
                of(other),
            ));
        }
    }
    goals
}

fn of_http(cases: &[SideCase<HttpRun>]) -> Goal {
    let side = Side::SoftLrp.name();
    let case = cases.iter().find(|case| case.way == side);
    let runs = case.map_or(&[][..], |case| &case.runs);
    let kept = |run: &HttpRun| 100.0 * run.flooded_rps / run.calm_rps.max(f64::EPSILON);
    let goal = Goal::new(
        "stack.http",
        format!("HTTP requests beside {SYNS_PPS} SYN/s, of unflooded, {side}"),
        Bound::AtLeast,
        90.0,
        "%",
        runs.iter().map(kept).collect(),
    );
    if let Some(why) = case.and_then(|case| case.why.clone()) {
        return goal.because(why);
    }
    let offered = runs.iter().map(|run| run.offered_pps);
    let least = offered.fold(f64::INFINITY, f64::min);
    if runs.is_empty() || least >= SYNS_PPS as f64 * OFFERED {
        return goal;
    }
    let found = goal.measured.unwrap_or(f64::NAN);
    Goal {
        measured: None,
        met: None,
        runs: Vec::new(),
        ..goal
    }
    .because(format!(
        "the generator offered {least:.0} SYN/s; there it was {found:.1} %"
    ))
}

fn of_tcp(cases: &[TcpCase]) -> Goal {
    let side = Side::SoftLrp.name();
    let case = cases.iter().find(|case| case.way == side);
    let goal = Goal::new(
        "stack.tcp",
        format!("TCP bulk sent with an MTU of 1500 from one CPU, {side}"),
        Bound::AtLeast,
        2.0,
        "Gbit/s",
        case.map_or_else(Vec::new, |case| case.gbit_per_s.clone()),
    );
    match case.and_then(|case| case.why.clone()) {
        Some(why) => goal.because(why),
        None => goal,
    }
}

fn of_dns(dns: &Dns) -> [Goal; 2] {
    let of = |name: &str| dns.responders.iter().find(|case| case.way == name);
    let ours = of(Side::NiLrp.name());
    let peaks = |case: Option<&PassingCase>| -> Vec<f64> {
        let runs = case.map_or(&[][..], |case| &case.runs);
        runs.iter().map(PassingRun::peak_pps).collect()
    };
    let ratios = percents_of(&peaks(ours), &peaks(of(NSD)));
    let ratios = ratios.iter().map(|percent| percent / 100.0).collect();
    let what = "DNS answers/s with ni-lrp at most, beside NSD's";
    [
        Goal::new("stack.dns.nsd", what, Bound::AtLeast, 3.0, "times", ratios),
        at_overload(
            "stack.dns.overload".to_owned(),
            format!("DNS answers/s with ni-lrp at {OVERLOAD} x MLFRR, of the peak: flat"),
            (Bound::AtLeast, 95.0),
            ours,
        ),
    ]
}

fn of_overload<'a>(work: u128, of: impl Fn(Side) -> Option<&'a LoadedCase>) -> Vec<Goal> {
    let least = |percent| (Bound::AtLeast, percent);
    let mut sides = vec![
        (Side::NiLrp, least(95.0)),
        (Side::SoftLrp, least(80.0)),
        (Side::Polled, least(80.0)),
    ];
    // It is there to collapse, and is measured with the fast sink alone.
    if work == WORK[0].as_micros() {
        sides.push((Side::Eager, (Bound::AtMost, 50.0)));
    }
    let goal = |(side, bound): (Side, (Bound, f64))| {
        let name = side.name();
        let sink: Option<&PassingCase> = of(side).map(|case| &case.sink);
        at_overload(
            format!("stack.overload.{name}.{work}us"),
            format!("goodput of {name} with {work} µs of work at {OVERLOAD} x MLFRR, of its peak"),
            bound,
            sink,
        )
    };
    sides.into_iter().map(goal).collect()
}

fn of_bystander(work: u128, case: Option<&LoadedCase>) -> [Goal; 2] {
    let runs: &[BystanderRun] = case.map_or(&[], |case| &case.bystander);
    let slower =
        |run: &BystanderRun| run.flooded.p99_of_all_us() / run.calm.p99_us.max(f64::EPSILON);
    let lost = |run: &BystanderRun| 100.0 * run.flooded.loss();
    let goal = |id: &str, what: &str, most, unit, value: &dyn Fn(&BystanderRun) -> f64| {
        let values: Vec<f64> = runs.iter().map(value).collect();
        let id = format!("stack.bystander.{id}.{work}us");
        let what =
            format!("{what} beside a sink with {work} µs of work at {OVERLOAD} x MLFRR, ni-lrp");
        let offered = runs.iter().map(|run| run.multiple);
        let least_offered = offered.fold(f64::INFINITY, f64::min);
        if runs.is_empty() || least_offered >= OVERLOAD * KEPT {
            return p99_at_most(id, what, most, unit, values);
        }
        let found = median(&values).unwrap_or(f64::NAN);
        Goal::new(id, what, Bound::AtMost, most, unit, Vec::new()).because(format!(
            "the generator offered {least_offered:.1} times the MLFRR; there it was {found:.2} {unit}"
        ))
    };
    [
        goal(
            "p99",
            "a bystander's p99, of unloaded",
            2.0,
            "times",
            &slower,
        ),
        goal("loss", "a bystander's lost packets", 0.0, "%", &lost),
    ]
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::super::Effort;
    use super::super::loaded::ComputingRun;
    use super::*;
    use crate::figures::Bystander;
    use crate::passing::{Family, Mlfrr, PassingCounts, Point};

    fn bystander(multiple: f64, p99_us: f64, lost: u64) -> BystanderRun {
        let of = |p99_us, lost| Bystander {
            sent: 1000,
            lost,
            p50_us: 1.0,
            p99_us,
        };
        BystanderRun {
            offered_pps: 1e6,
            multiple,
            calm: of(100.0, 0),
            flooded: of(p99_us, lost),
            kernel_calm: of(100.0, 0),
            kernel_flooded: of(p99_us, lost),
            newcomer: None,
            computing: ComputingRun {
                process_percent: 50.0,
                passed_pps: 1e5,
            },
        }
    }

    fn case(runs: Vec<BystanderRun>) -> LoadedCase {
        LoadedCase {
            work_us: 2,
            sink: PassingCase::new(Side::NiLrp.name(), Family::Ipv4),
            bystander: runs,
        }
    }

    #[test]
    fn a_bystander_is_compared_with_itself_without_the_flood() {
        let case = case(vec![bystander(10.0, 190.0, 0), bystander(10.0, 150.0, 5)]);
        let [p99, loss] = of_bystander(2, Some(&case));
        assert_eq!((p99.runs, p99.met), (vec![1.9, 1.5], Some(true)));
        assert_eq!((loss.runs, loss.met), (vec![0.0, 0.5], Some(false)));
    }

    #[test]
    fn a_bystander_that_most_packets_of_are_lost_has_not_kept_its_p99() {
        let case = case(vec![bystander(10.0, 150.0, 900)]);
        let [p99, _] = of_bystander(2, Some(&case));
        assert_eq!((p99.measured, p99.met), (None, Some(false)));
    }

    #[test]
    fn a_flood_that_was_not_offered_proves_nothing() {
        let case = case(vec![bystander(7.0, 900.0, 0)]);
        let [p99, _] = of_bystander(2, Some(&case));
        assert_eq!((p99.measured, p99.met), (None, None));
        let why = p99.why.unwrap();
        assert!(why.contains("7.0 times") && why.contains("9.00"), "{why}");
    }

    /// Of all others it is asked that they keep at least so much.
    #[test]
    fn the_eager_path_is_to_collapse() {
        let met = |at_overload_pps| {
            let point = |multiple, passed_pps| Point {
                multiple,
                offered_pps: 1e5 * multiple,
                passed_pps,
                counts: PassingCounts::default(),
            };
            let mut case = case(Vec::new());
            case.sink.runs = vec![PassingRun {
                mlfrr_pps: 1e5,
                mlfrr_is: Mlfrr::Measured,
                curve: vec![point(1.0, 1e5), point(10.0, at_overload_pps)],
            }];
            let goals = of_overload(2, |side| (side == Side::Eager).then_some(&case));
            let mut goals = goals.into_iter();
            goals
                .find(|goal| goal.id == "stack.overload.eager.2us")
                .unwrap()
                .met
        };
        assert_eq!([met(4e4), met(6e4)], [Some(true), Some(false)]);
        let slow = of_overload(20, |_| None);
        assert!(slow.iter().all(|goal| !goal.id.contains("eager")));
    }

    #[test]
    fn every_promise_is_listed_once_also_what_was_not_measured() {
        let plan = Plan {
            effort: Effort::new(PathBuf::new()),
            parts: Part::ALL.to_vec(),
            sides: Side::ALL.to_vec(),
        };
        let figures = Figures {
            udp: Some(Udp {
                sink: Vec::new(),
                echo: Vec::new(),
            }),
            loaded: vec![case(Vec::new())],
            dns: Some(Dns {
                responders: Vec::new(),
                dnsperf: Vec::new(),
            }),
            ..Figures::default()
        };
        let goals = goals(&plan, &figures);
        let mut ids: Vec<&str> = goals.iter().map(|goal| goal.id.as_str()).collect();
        assert_eq!(ids.len(), 4 + 4 + 2 + 4 + 1 + 1 + 2 + 1 + 2);
        assert!(
            goals
                .iter()
                .all(|goal| goal.met.is_none() && goal.why.is_some())
        );
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), goals.len());
    }
}
