//! What the demo promises.

use plimsoll_report::{Goal, Side, median};

use super::router::Crossed;
use super::{Outcomes, dns, router, syn, udp};
use crate::figures::{percents_of, percents_of_better};
use crate::forward::{LIMIT_PERCENT, Router};
use crate::offered::{BENEATH_A_CLIENT, HELD_UP, Offered, Smaller};
use crate::own_port::servers::Served;
use crate::protection::Protection;
use crate::udp::Run;

/// The promised figures of all scenes that there were.
pub(super) fn goals(outcomes: &Outcomes) -> Vec<Goal> {
    let mut goals = Vec::new();
    if let Some(udp) = &outcomes.udp {
        goals.extend(udp_goodput_goals(udp));
        goals.extend(udp_bystander_goals(udp));
        goals.extend(udp_light_goals(udp));
    }
    goals.extend(outcomes.syn.iter().flat_map(syn_goals));
    goals.extend(outcomes.dns.iter().flat_map(dns_goals));
    goals.extend(outcomes.router.iter().flat_map(router_goals));
    goals
}

/// The floods of one multiple with one protection.
fn udp_offered(udp: &udp::Outcome, protection: Protection, multiple: f64) -> Offered {
    Offered {
        asked_pps: udp.mlfrr_pps * multiple,
        runs_pps: udp
            .cases
            .values(protection, multiple, |run| run.offered_pps),
        least: HELD_UP,
    }
}

fn udp_goodput_goals(udp: &udp::Outcome) -> Vec<Goal> {
    let percent_of_mlfrr = |protection, multiple| {
        udp.cases.values(protection, multiple, |run| {
            run.goodput_pps / udp.mlfrr_pps * 100.0
        })
    };
    let highest = udp.cases.heaviest().unwrap_or(0.0);
    let collapse = Goal::new(
        "udp/collapse",
        "stock goodput at the highest flood, of MLFRR",
        Side::AtMost,
        5.0,
        "%",
        percent_of_mlfrr(Protection::Stock, highest),
    );
    let offered = udp_offered(udp, Protection::Stock, highest);
    let mut goals = vec![offered.judge(collapse, Smaller::Harder)];
    for (multiple, percent) in [(5.0, 60.0), (15.0, 30.0)] {
        let goodput = Goal::new(
            format!("udp/goodput/{multiple}"),
            format!("guarded goodput at {multiple} × MLFRR, of MLFRR"),
            Side::AtLeast,
            percent,
            "%",
            percent_of_mlfrr(Protection::Guard, multiple),
        );
        let offered = udp_offered(udp, Protection::Guard, multiple);
        goals.push(offered.judge(goodput, Smaller::Easier));
    }
    goals
}

fn udp_bystander_goals(udp: &udp::Outcome) -> Vec<Goal> {
    let loss = |run: &Run| 100.0 * run.bystander.loss();
    let goal = |multiple: f64| {
        let goal = Goal::new(
            format!("udp/bystander/{multiple}"),
            format!("guarded bystander's loss at {multiple} × MLFRR"),
            Side::AtMost,
            0.1,
            "%",
            udp.cases.values(Protection::Guard, multiple, loss),
        );
        udp_offered(udp, Protection::Guard, multiple).judge(goal, Smaller::Easier)
    };
    vec![goal(5.0), goal(15.0)]
}

fn udp_light_goals(udp: &udp::Outcome) -> Vec<Goal> {
    let goodput = |protection| udp.cases.values(protection, 1.0, |run| run.goodput_pps);
    let latency = |protection| {
        udp.cases
            .values(protection, 0.0, |run| run.bystander.p50_us)
    };
    let stock = median(&latency(Protection::Stock)).unwrap_or(0.0);
    vec![
        Goal::new(
            "udp/light/throughput",
            "guarded goodput at 1 × MLFRR, of stock",
            Side::AtLeast,
            97.0,
            "%",
            percents_of(&goodput(Protection::Guard), &goodput(Protection::Stock)),
        ),
        Goal::new(
            "udp/light/latency",
            "median latency that the guard adds without a flood",
            Side::AtMost,
            2.0,
            "µs",
            latency(Protection::Guard)
                .into_iter()
                .map(|guarded| guarded - stock)
                .collect(),
        ),
    ]
}

fn syn_goals(syn: &syn::Outcome) -> Vec<Goal> {
    let requests = |protection, rate| syn.cases.values(protection, rate, |run| run.requests_per_s);
    let highest = syn.cases.heaviest().unwrap_or(0);
    let offered = Offered {
        asked_pps: highest as f64,
        runs_pps: syn
            .cases
            .values(Protection::Guard, highest, |run| run.offered_pps),
        least: BENEATH_A_CLIENT,
    };
    let flooded = [
        Goal::new(
            "syn/guarded/better",
            format!("guarded nginx at {highest} SYN/s, of stock or guarded unflooded, the better"),
            Side::AtLeast,
            85.0,
            "%",
            percents_of_better(
                &requests(Protection::Guard, highest),
                &requests(Protection::Stock, 0),
                &requests(Protection::Guard, 0),
            ),
        ),
        Goal::new(
            "syn/guarded",
            format!("former definition: guarded nginx at {highest} SYN/s, of guarded unflooded"),
            Side::AtLeast,
            85.0,
            "%",
            percents_of(
                &requests(Protection::Guard, highest),
                &requests(Protection::Guard, 0),
            ),
        ),
    ];
    let mut goals: Vec<Goal> = offered.judge_all(flooded, Smaller::Easier).into();
    goals.push(Goal::new(
        "syn/light/throughput",
        "guarded nginx without a flood, of stock",
        Side::AtLeast,
        97.0,
        "%",
        percents_of(
            &requests(Protection::Guard, 0),
            &requests(Protection::Stock, 0),
        ),
    ));
    goals
}

fn dns_goals(dns: &dns::Outcome) -> Vec<Goal> {
    let answered = |protection, rate| dns.cases.values(protection, rate, Served::percent);
    let highest = dns.cases.heaviest().unwrap_or(0);
    let judge = |protection, goal, smaller| {
        let offered = Offered {
            asked_pps: highest as f64,
            runs_pps: dns.cases.values(protection, highest, |run| run.offered_pps),
            least: BENEATH_A_CLIENT,
        };
        offered.judge(goal, smaller)
    };
    let [collapse, guarded] = [
        Goal::new(
            "dns/collapse",
            format!("queries that stock NSD answers its client at {highest} queries/s of others"),
            Side::AtMost,
            20.0,
            "%",
            answered(Protection::Stock, highest),
        ),
        Goal::new(
            "dns/guarded",
            format!("queries that guarded NSD answers its client at {highest} queries/s of others"),
            Side::AtLeast,
            99.0,
            "%",
            answered(Protection::Guard, highest),
        ),
    ];
    vec![
        judge(Protection::Stock, collapse, Smaller::Harder),
        judge(Protection::Guard, guarded, Smaller::Easier),
    ]
}

fn router_goals(router: &router::Outcome) -> Vec<Goal> {
    let highest = router.cases.heaviest().unwrap_or(0.0);
    let values = |of: Router, value: fn(&Crossed) -> f64| router.cases.values(of, highest, value);
    let left = f64::from(100 - LIMIT_PERCENT);
    let computed = values(Router::Xdp, |run| 100.0 * run.computed);
    let offered = Offered {
        asked_pps: router.mlfrr_pps * highest,
        runs_pps: values(Router::Xdp, |run| run.offered_pps),
        least: BENEATH_A_CLIENT,
    };
    let goals = [
        Goal::new(
            "router/forwarded",
            format!(
                "forwarded at {highest} × MLFRR by a router that leaves {left} % of its CPU, of stock"
            ),
            Side::AtLeast,
            100.0,
            "%",
            percents_of(
                &values(Router::Xdp, |run| run.forwarded_pps),
                &values(Router::Kernel, |run| run.forwarded_pps),
            ),
        ),
        Goal::new(
            "router/share",
            format!("what a compute-bound process misses of these {left} % then"),
            Side::AtMost,
            3.0,
            "points",
            computed.into_iter().map(|percent| left - percent).collect(),
        ),
        Goal::new(
            "router/session",
            format!("time that its routing session is up at {highest} × MLFRR"),
            Side::AtLeast,
            100.0,
            "%",
            values(Router::Xdp, Crossed::session_percent),
        ),
    ];
    offered.judge_all(goals, Smaller::Easier).into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cases::Cases;
    use crate::figures::{Bystander, HostCpu, Losses};

    /// Both sides at 15 times an MLFRR of 100,000, of which so much was offered.
    fn flooded(offered_pps: f64, stock_pps: f64, guarded_pps: f64) -> udp::Outcome {
        let run = |goodput_pps| Run {
            offered_pps,
            goodput_pps,
            goodput_variation: 0.0,
            host_cpu: HostCpu::default(),
            bystander: Bystander::default(),
            losses: Losses::default(),
        };
        let mut cases = Cases::new(&[Protection::Stock, Protection::Guard], &[15.0]);
        cases.0[0].runs.push(run(stock_pps));
        cases.0[1].runs.push(run(guarded_pps));
        udp::Outcome {
            mlfrr_pps: 100_000.0,
            cases,
        }
    }

    fn met(outcome: &udp::Outcome, id: &str) -> Option<bool> {
        let goals = udp_goodput_goals(outcome);
        goals.into_iter().find(|goal| goal.id == id).unwrap().met
    }

    /// It had been met at 15 times by a flood of six.
    #[test]
    fn a_flood_that_was_not_there_meets_no_goal() {
        let whole = flooded(1.4e6, 1e3, 5e4);
        assert_eq!(met(&whole, "udp/goodput/15"), Some(true));
        let smaller = flooded(6e5, 1e3, 5e4);
        assert_eq!(met(&smaller, "udp/goodput/15"), None);
        assert_eq!(met(&smaller, "udp/collapse"), Some(true));
        let neither = flooded(6e5, 5e4, 1e3);
        assert_eq!(met(&neither, "udp/goodput/15"), Some(false));
        assert_eq!(met(&neither, "udp/collapse"), None);
    }
}
