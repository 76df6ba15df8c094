//! Figures of ways as goals. A goal is measured only if the load that it is about was.

use plimsoll_report::{Goal, Side, median};

use super::{KEPT, Mlfrr, OVERLOAD, PassingCase, PassingRun};

/// How many times the MLFRR of `beside` a way must have.
pub(crate) fn mlfrr_ratio(
    id: String,
    what: String,
    least: f64,
    ours: Option<&PassingCase>,
    beside: Option<&PassingCase>,
) -> Goal {
    let goal = |runs| Goal::new(id, what, Side::AtLeast, least, "times", runs);
    let (ours, beside) = match (with_runs(ours), with_runs(beside)) {
        (Ok(ours), Ok(beside)) => (ours, beside),
        (Err(why), _) | (_, Err(why)) => return goal(Vec::new()).because(why),
    };
    let base = median(&mlfrrs(beside)).unwrap_or(0.0);
    if base <= 0.0 {
        let why = format!("{} loses packets at any rate", beside.way);
        return goal(Vec::new()).because(why);
    }
    let ratios: Vec<f64> = mlfrrs(ours).iter().map(|pps| pps / base).collect();
    let met = median(&ratios).is_some_and(|ratio| ratio >= least);
    // A rate that the generator ended is a lower bound.
    let in_doubt = if met { beside } else { ours };
    let at_least = |run: &PassingRun| run.mlfrr_is == Mlfrr::AtLeast;
    if in_doubt.runs.iter().any(at_least) {
        let why = format!(
            "the generator could not offer what {} loses; ratios {ratios:.2?}",
            in_doubt.way
        );
        return goal(Vec::new()).because(why);
    }
    goal(ratios)
}

/// Which part of its peak a way passes at [`OVERLOAD`] times its MLFRR.
pub(crate) fn at_overload(
    id: String,
    what: String,
    (side, bound): (Side, f64),
    case: Option<&PassingCase>,
) -> Goal {
    let goal = |runs| Goal::new(id, what, side, bound, "%", runs);
    let case = match with_runs(case) {
        Ok(case) => case,
        Err(why) => return goal(Vec::new()).because(why),
    };
    let found: Vec<(f64, f64)> = case.runs.iter().filter_map(of_peak).collect();
    let offered = found.iter().map(|(multiple, _)| *multiple);
    let least_offered = offered.fold(f64::INFINITY, f64::min);
    let parts: Vec<f64> = found.iter().map(|(_, part)| *part).collect();
    if least_offered < OVERLOAD * KEPT {
        let why = format!(
            "the generator offered {least_offered:.1} times the MLFRR; there {:.1} % of the peak passed",
            median(&parts).unwrap_or(0.0)
        );
        return goal(Vec::new()).because(why);
    }
    goal(parts)
}

/// What was offered of a run's heaviest load, as a multiple of its MLFRR, and the part
/// of its peak that passed there, in percent. Nothing for a way that loses at any rate.
fn of_peak(run: &PassingRun) -> Option<(f64, f64)> {
    let last = run.curve.last()?;
    if run.mlfrr_pps <= 0.0 {
        return None;
    }
    let part = last.passed_pps / run.peak_pps().max(f64::EPSILON) * 100.0;
    Some((last.offered_pps / run.mlfrr_pps, part))
}

/// The case, or why nothing of it says something about a goal.
pub(crate) fn with_runs(case: Option<&PassingCase>) -> Result<&PassingCase, String> {
    let case = case.ok_or("not asked for")?;
    let given = case.runs.iter().any(|run| run.mlfrr_is == Mlfrr::Given);
    match &case.why {
        _ if given => Err("the MLFRR was given, not measured".to_owned()),
        _ if !case.runs.is_empty() => Ok(case),
        Some(why) => Err(why.clone()),
        None => Err("no run gave a value".to_owned()),
    }
}

fn mlfrrs(case: &PassingCase) -> Vec<f64> {
    case.runs.iter().map(|run| run.mlfrr_pps).collect()
}

#[cfg(test)]
mod tests {
    use super::super::{Family, PassingCounts, Point};
    use super::*;

    fn case(way: &'static str, mlfrrs: &[f64]) -> PassingCase {
        let run = |&mlfrr_pps: &f64| PassingRun {
            mlfrr_pps,
            mlfrr_is: Mlfrr::Measured,
            curve: Vec::new(),
        };
        PassingCase {
            way,
            family: Family::Ipv4,
            runs: mlfrrs.iter().map(run).collect(),
            why: None,
        }
    }

    fn ratio(ours: &PassingCase, beside: &PassingCase) -> Goal {
        let (id, what) = ("id".to_owned(), "what".to_owned());
        mlfrr_ratio(id, what, 2.0, Some(ours), Some(beside))
    }

    #[test]
    fn each_run_is_compared_with_the_others_median() {
        let goal = ratio(&case("ours", &[3e5, 5e5]), &case("it", &[1e5, 9e5, 2e5]));
        assert_eq!((goal.runs, goal.met), (vec![1.5, 2.5], Some(true)));
        let goal = ratio(&case("ours", &[1e5]), &case("it", &[0.0]));
        assert_eq!(goal.met, None);
        assert_eq!(goal.why.unwrap(), "it loses packets at any rate");
    }

    #[test]
    fn a_lower_bound_proves_only_one_side() {
        let bound = |way, mlfrr| {
            let mut case = case(way, &[mlfrr]);
            case.runs[0].mlfrr_is = Mlfrr::AtLeast;
            case
        };
        assert_eq!(ratio(&bound("a", 4e5), &case("b", &[1e5])).met, Some(true));
        assert_eq!(ratio(&bound("a", 1e5), &case("b", &[1e5])).met, None);
        assert_eq!(ratio(&case("a", &[1e5]), &bound("b", 1e5)).met, Some(false));
        assert_eq!(ratio(&case("a", &[4e5]), &bound("b", 1e5)).met, None);
    }

    #[test]
    fn an_overload_that_was_not_offered_is_not_measured() {
        let goal = |offered_pps| {
            let mut case = case("a", &[1e5]);
            let point = |multiple, offered_pps, passed_pps| Point {
                multiple,
                offered_pps,
                passed_pps,
                counts: PassingCounts::default(),
            };
            case.runs[0].curve = vec![point(1.0, 1e5, 1e5), point(10.0, offered_pps, 9e4)];
            let least = (Side::AtLeast, 85.0);
            at_overload("id".to_owned(), "what".to_owned(), least, Some(&case))
        };
        assert_eq!((goal(1e6).runs, goal(1e6).met), (vec![90.0], Some(true)));
        let short = goal(5e5);
        assert_eq!((short.measured, short.met), (None, None));
        let why = short.why.unwrap();
        assert!(why.contains("5.0 times") && why.contains("90.0 %"), "{why}");
    }

    #[test]
    fn nothing_is_promised_about_a_rate_that_was_given() {
        let mut given = case("a", &[4e5]);
        given.runs[0].mlfrr_is = Mlfrr::Given;
        let goal = ratio(&given, &case("b", &[1e5]));
        assert_eq!((goal.measured, goal.met), (None, None));
        assert!(goal.why.unwrap().contains("given"));
    }

    #[test]
    fn a_way_that_is_not_there_says_why() {
        let absent = PassingCase {
            why: Some("nfq is not installed".to_owned()),
            ..case("nfq", &[])
        };
        let goal = ratio(&case("ours", &[1.0]), &absent);
        assert_eq!(goal.why.as_deref(), Some("nfq is not installed"));
        let goal = at_overload(String::new(), String::new(), (Side::AtLeast, 1.0), None);
        assert_eq!(goal.why.as_deref(), Some("not asked for"));
    }
}
