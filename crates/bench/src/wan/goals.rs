//! What is promised of paced transfers.

use plimsoll_report::{Goal, Side as Bound, median};

use super::{Case, PathFigures, Way};

/// Where the goal is: 100 packets at 100 Mbit/s.
const RATE_MBIT: u32 = 100;
const PACKETS: u32 = 100;
/// Of the kernel's response time. The paper found 0.11 to 0.6.
const RESPONSE: f64 = 0.25;
/// Percent of a path's frames that leave within 20 µs of their time.
const EXACT_PERCENT: f64 = 99.0;

pub(super) fn goals(cases: &[Case], path: &[PathFigures]) -> Vec<Goal> {
    let kernel = responses(cases, Way::Kernel);
    let paced = responses(cases, Way::OursPaced);
    let ratios = median(&kernel).map(|kernel| paced.iter().map(|ours| ours / kernel).collect());
    let what = "response of 100 packets at 100 Mbit/s, paced, beside the kernel from idle";
    let ratios = ratios.unwrap_or_default();
    let exact = path.iter().map(|path| path.within_20us_percent).collect();
    let within = "frames that leave the path within 20 µs of their time";
    vec![
        Goal::new(
            "wan.response",
            what,
            Bound::AtMost,
            RESPONSE,
            "times",
            ratios,
        ),
        Goal::new(
            "wan.path",
            within,
            Bound::AtLeast,
            EXACT_PERCENT,
            "%",
            exact,
        ),
    ]
}

fn responses(cases: &[Case], way: Way) -> Vec<f64> {
    let mut cases = cases.iter();
    let case = cases.find(|case| (case.way, case.rate_mbit) == (way.name(), RATE_MBIT));
    let transfers = case
        .map(|case| case.transfers.as_slice())
        .unwrap_or_default();
    let of_length = transfers
        .iter()
        .find(|transfer| transfer.packets == PACKETS);
    of_length
        .map(|transfer| transfer.response_ms.clone())
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn case(way: Way, response_ms: &[f64]) -> Case {
        let mut case = Case::new(way, 100, &[5, 100]);
        case.transfers[1].response_ms = response_ms.to_vec();
        case
    }

    #[test]
    fn the_goal_compares_with_the_kernels_median_and_may_be_missed() {
        let kernel = case(Way::Kernel, &[400.0, 410.0, 2000.0]);
        for (ours, met) in [
            (&[100.0, 102.5, 120.0], Some(true)),
            (&[103.0; 3], Some(false)),
        ] {
            let goals = goals(&[kernel.clone(), case(Way::OursPaced, ours)], &[]);
            assert_eq!(goals[0].met, met, "{:?}", goals[0]);
            assert_eq!(goals[1].met, None, "there was no path");
        }
    }

    #[test]
    fn without_the_kernel_there_is_no_measurement() {
        assert_eq!(goals(&[case(Way::OursPaced, &[100.0])], &[])[0].met, None);
    }
}
