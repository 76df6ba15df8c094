//! A bound that changes keeps its history: `experiments/bounds.txt` has every claim's
//! measure and bound as they were reviewed last, and the number of its `[[revised]]`
//! lines. One that differs needs a further line.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use plimsoll_lab::{Catalogue, Claim, Experiment, Number};

/// Set to write the file instead of comparing with it: `make lab-snapshot`.
const RENEW: &str = "PLIMSOLL_RENEW_CLAIMS";

fn reviewed() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../experiments/bounds.txt")
}

/// What of a claim may not change in silence, and how often it was revised.
#[derive(Clone, Debug, PartialEq)]
struct Bound {
    text: String,
    revisions: usize,
}

fn bound(claim: &Claim) -> String {
    let number = |name: &str, number: &Option<Number>| match number {
        None => String::new(),
        Some(Number::Value(value)) => format!(" {name} {value}"),
        Some(Number::Expression(text)) => format!(" {name} {text}"),
    };
    let within = claim.within_percent;
    let within = within.map_or(String::new(), |percent| format!(" within {percent} %"));
    format!(
        "{}: {}{}{}{}{within}",
        claim.kind.name(),
        claim.measure,
        number("at least", &claim.at_least),
        number("at most", &claim.at_most),
        number("near", &claim.near),
    )
}

fn revisions(experiment: &Experiment, claim: &str) -> usize {
    let about = |names: &str| names == "all claims" || names.split(", ").any(|one| one == claim);
    let revised = experiment.revised.iter();
    revised.filter(|one| about(&one.claim)).count()
}

fn bounds() -> BTreeMap<String, Bound> {
    let mut bounds = BTreeMap::new();
    for experiment in Catalogue::built_in().unwrap().all() {
        for claim in &experiment.claims {
            let text = bound(claim);
            let revisions = revisions(experiment, &claim.id);
            let key = format!("{}.{}", experiment.id, claim.id);
            bounds.insert(key, Bound { text, revisions });
        }
    }
    bounds
}

fn parse(text: &str) -> BTreeMap<String, Bound> {
    let line = |line: &str| {
        let mut parts = line.splitn(3, ' ');
        let (key, revisions) = (parts.next()?.to_owned(), parts.next()?.parse().ok()?);
        let text = parts.next()?.to_owned();
        Some((key, Bound { text, revisions }))
    };
    text.lines().filter_map(line).collect()
}

/// Claims that differ from `before` without a further line of history.
fn unexplained(
    before: &BTreeMap<String, Bound>,
    now: &BTreeMap<String, Bound>,
    removed: impl Fn(&str) -> bool,
) -> Vec<String> {
    let silent = |(key, was): (&String, &Bound)| match now.get(key) {
        Some(is) => is.text != was.text && is.revisions <= was.revisions,
        None => !removed(key),
    };
    let silent = before.iter().filter(|entry| silent(*entry));
    silent.map(|(key, _)| key.clone()).collect()
}

/// Whether an experiment says of a claim that it no longer has what became of it.
fn is_told(key: &str) -> bool {
    let (experiment, claim) = key.split_once('.').unwrap();
    let catalogue = Catalogue::built_in().unwrap();
    let told = catalogue.get(experiment);
    told.is_ok_and(|experiment| revisions(experiment, claim) > 0)
}

#[test]
fn a_reviewed_bound_changes_with_a_line_of_history_only() {
    let now = bounds();
    let before = fs::read_to_string(reviewed()).unwrap_or_default();
    let silent = unexplained(&parse(&before), &now, is_told);
    assert!(
        silent.is_empty(),
        "changed without a line of [[revised]]: {silent:#?}"
    );
    let lines = now.iter();
    let text: String = lines
        .map(|(key, bound)| format!("{key} {} {}\n", bound.revisions, bound.text))
        .collect();
    if std::env::var_os(RENEW).is_some() {
        fs::write(reviewed(), &text).unwrap();
        return;
    }
    assert!(
        before == text,
        "claims were added, or have more history: `make lab-snapshot`"
    );
}

#[test]
fn a_bound_that_was_moved_in_silence_is_found() {
    let before = bounds();
    let mut now = before.clone();
    let moved = "mr-fig2.few-interrupts";
    now.get_mut(moved).unwrap().text.push('5');
    assert_eq!(unexplained(&before, &now, is_told), [moved]);
    now.get_mut(moved).unwrap().revisions += 1;
    assert!(unexplained(&before, &now, is_told).is_empty());
    now.remove("demo-syn.guarded");
    assert_eq!(unexplained(&before, &now, is_told), ["demo-syn.guarded"]);
}
