//! Why claims do not hold: a cause is told of claims that do not hold on 20 seeds, and of
//! no other; and where it names settings, the claims hold with them.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use plimsoll_lab::{Catalogue, Kind, Modelled, Options, run};

/// The mark of each claim in `experiments/claims.txt`, by experiment and claim.
fn kept() -> BTreeMap<(String, String), char> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../experiments/claims.txt");
    let text = fs::read_to_string(path).unwrap();
    let mut marks = BTreeMap::new();
    let mut experiment = "";
    for line in text.lines() {
        if !line.starts_with(' ') {
            experiment = line.split("  ").next().unwrap();
            continue;
        }
        let mut words = line.split_whitespace();
        let mark = words.next().and_then(|word| word.chars().next());
        let (Some(mark @ ('✓' | '✗' | '?')), Some(_), Some(id)) =
            (mark, words.next(), words.next())
        else {
            continue;
        };
        let id = id.trim_end_matches(':').to_owned();
        marks.insert((experiment.to_owned(), id), mark);
    }
    marks
}

#[test]
fn a_claim_that_holds_has_no_cause_for_not_holding() {
    let kept = kept();
    assert!(kept.len() > 300, "{}", kept.len());
    for experiment in Catalogue::built_in().unwrap().modelled() {
        for id in experiment.causes.iter().flat_map(|cause| &cause.claims) {
            let mark = kept.get(&(experiment.id.clone(), id.clone()));
            let missed = matches!(mark, Some('✗' | '?'));
            assert!(missed, "{}.{id} has a cause and is {mark:?}", experiment.id);
        }
    }
}

#[test]
fn every_test_that_does_not_hold_has_a_traced_cause() {
    let kept = kept();
    let mut untraced = Vec::new();
    for experiment in Catalogue::built_in().unwrap().modelled() {
        let tests = experiment
            .claims
            .iter()
            .filter(|one| one.kind == Kind::Test);
        for claim in tests {
            let mark = kept.get(&(experiment.id.clone(), claim.id.clone()));
            if mark != Some(&'✓') && experiment.cause(&claim.id).is_none() {
                untraced.push(format!("{}.{}", experiment.id, claim.id));
            }
        }
    }
    assert!(untraced.is_empty(), "no cause is told: {untraced:#?}");
}

/// A cause that names settings was found by changing the model: with them, and nothing
/// else, its claims hold.
#[test]
fn without_its_cause_a_claim_holds() {
    let options = Options {
        seed: 1,
        claims_alone: true,
        ..Options::default()
    };
    let catalogue = Catalogue::built_in().unwrap().modelled();
    let causes = catalogue.iter().flat_map(|experiment| {
        let causes = experiment.causes.iter().filter(|one| !one.set.is_empty());
        causes.map(move |cause| (experiment, cause))
    });
    let causes: Vec<_> = causes.collect();
    let without = causes.iter().map(|(experiment, cause)| {
        let mut without = experiment.without(cause).unwrap();
        without.claims.retain(|one| cause.claims.contains(&one.id));
        without
    });
    let without: Vec<_> = without.collect();
    // All at once, so that no CPU waits for the last point of each.
    let runs = run(&without, &Modelled, &options, &|_, _| ()).unwrap();
    assert_eq!(runs.len(), causes.len());
    for (run, (experiment, cause)) in runs.iter().zip(causes) {
        assert_eq!(run.verdicts.len(), cause.claims.len(), "{}", cause.name);
        for verdict in &run.verdicts {
            let id = format!("{}.{}: {}", experiment.id, verdict.id, cause.name);
            assert_eq!(verdict.holds, Some(true), "{id}: {verdict:?}");
        }
    }
}
