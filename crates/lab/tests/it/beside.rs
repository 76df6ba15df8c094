//! Where a bound takes in a number that is printed beside the claim's own, the claim says so, and
//! names it.
//!
//! Audits named it again and again: a tolerance in which the number of the next row, of the other
//! server or of the twin table is as good as the claim's own.

use std::collections::{BTreeMap, BTreeSet};

use plimsoll_lab::published::{Address, PaperEntry, PublishedNumber, papers};
use plimsoll_lab::{Catalogue, Claim, Kind, Number};

/// Tables of one form, which differ by the machine, the target or the rate.
const TWINS: [&[&str]; 3] = [
    &["ST-E18", "ST-E20"],
    &["ST-E22", "ST-E23"],
    &["ST-E25", "ST-E26", "ST-E37"],
];
/// What arithmetic of printed numbers may leave.
const ROUNDING: f64 = 1e-9;

fn numbers() -> Vec<PublishedNumber> {
    let papers = papers().unwrap();
    let entries = papers.iter().flat_map(|paper| &paper.entries);
    entries.flat_map(PaperEntry::numbers).collect()
}

/// The entries that a number's table is told in.
fn table(number: &PublishedNumber) -> &str {
    let entry = number.address.entry.as_str();
    let twins = TWINS.iter().find(|twins| twins.contains(&entry));
    twins.map_or(entry, |twins| twins[0])
}

/// The last of a row's names.
fn metric(number: &PublishedNumber) -> Option<&str> {
    let names = number.address.row.rsplit('/').next();
    names.filter(|_| number.unit == "see metric")
}

/// What is counted. Soft and hardware timers have columns of one quantity.
fn quantity(number: &PublishedNumber) -> &str {
    let name = number.address.name.as_str();
    match metric(number) {
        Some(metric) => metric,
        None if table(number) == "ST-E22" => name.split_once('_').map_or(name, |(_, what)| what),
        None => &number.unit,
    }
}

/// Numbers of one quantity and table, or of twin tables: of one column or one row, or single ones.
fn are_beside(one: &PublishedNumber, other: &PublishedNumber) -> bool {
    let column = |number: &PublishedNumber| match metric(number) {
        Some(metric) => metric.to_owned(),
        None => number.address.name.clone(),
    };
    let of_one_kind = table(one) == table(other) && quantity(one) == quantity(other);
    of_one_kind && (column(one) == column(other) || one.address.row == other.address.row)
}

/// Between which numbers a claim holds.
fn bound(claim: &Claim) -> Option<(f64, f64)> {
    let value = |number: &Option<Number>| match number {
        Some(Number::Value(value)) => Some(*value),
        _ => None,
    };
    match (value(&claim.near), claim.within_percent) {
        (Some(near), Some(percent)) => {
            let aside = near.abs() * percent / 100.0;
            Some((near - aside, near + aside))
        }
        _ => Some((value(&claim.at_least)?, value(&claim.at_most)?)),
    }
}

/// A printed number as this claim asks for it: the ratios of ST's Table XII are claimed as
/// gains in percent.
fn asked(claim: &Claim, number: &PublishedNumber) -> f64 {
    match number.address.entry.as_str() {
        "ST-E30" if claim.unit == "%" => 100.0 * (number.value - 1.0),
        _ => number.value,
    }
}

fn is(one: f64, other: f64) -> bool {
    (one - other).abs() <= ROUNDING
}

/// The claim's own printed numbers within its bound, and the others beside them.
fn within(claim: &Claim, numbers: &[PublishedNumber]) -> (Vec<f64>, Vec<f64>) {
    let Some((least, most)) = bound(claim) else {
        return (Vec::new(), Vec::new());
    };
    let within = numbers
        .iter()
        .filter(|one| (least - ROUNDING..=most + ROUNDING).contains(&asked(claim, one)));
    let from = Address::all_in(claim.from.as_deref().unwrap_or_default());
    let (own, others): (Vec<_>, Vec<_>) = within.partition(|one| {
        let mut from = from.iter().filter(|from| !from.is_whole());
        from.any(|from| from.overlaps(&one.address))
    });
    let beside = |other: &&PublishedNumber| {
        let mut own = own.iter();
        own.any(|own| are_beside(own, other) && !is(asked(claim, own), asked(claim, other)))
    };
    let beside = others.into_iter().filter(beside);
    let beside = beside.map(|one| asked(claim, one)).collect();
    (own.iter().map(|one| asked(claim, one)).collect(), beside)
}

/// A word's number, without the sign of a thousand.
fn number(word: &str) -> Option<f64> {
    let word = word.trim_matches(|one: char| !one.is_alphanumeric());
    word.replace(',', "").parse().ok()
}

/// Whether behind a "takes in" this number stands, or a range of it between two of `printed`.
fn is_named(ours: &str, value: f64, printed: &[f64]) -> bool {
    let clauses = ours.split("takes in").skip(1);
    let mut clauses = clauses.map(|rest| rest.split(';').next().unwrap_or_default());
    clauses.any(|clause| {
        let words: Vec<&str> = clause.split_whitespace().collect();
        let mut ranges = words.windows(3).filter(|three| three[1] == "to");
        let is_printed = |end: f64| printed.iter().any(|one| is(*one, end));
        let in_a_range = ranges.any(|three| match (number(three[0]), number(three[2])) {
            (Some(low), Some(high)) => {
                is_printed(low) && is_printed(high) && (low..=high).contains(&value)
            }
            _ => false,
        });
        let mut named = words.iter().filter_map(|word| number(word));
        in_a_range || named.any(|named| is(named, value))
    })
}

/// The printed numbers beside its own that a claim's bound takes in and `ours` does not name.
fn untold(claim: &Claim, numbers: &[PublishedNumber]) -> Vec<f64> {
    let ours = claim.ours.as_deref().unwrap_or_default();
    let (own, beside) = within(claim, numbers);
    let printed: Vec<f64> = own.iter().chain(&beside).copied().collect();
    let mut untold = beside;
    untold.retain(|value| !is_named(ours, *value, &printed));
    untold.sort_by(f64::total_cmp);
    untold.dedup();
    untold
}

#[test]
fn a_bound_that_takes_in_a_number_beside_names_it() {
    let numbers = numbers();
    let (mut wide, mut silent) = (BTreeSet::new(), BTreeMap::new());
    for experiment in Catalogue::built_in().unwrap().all() {
        let asked = |kind| !matches!(kind, Kind::Ours | Kind::Derived);
        for claim in experiment.claims.iter().filter(|claim| asked(claim.kind)) {
            let name = format!("{}.{}", experiment.id, claim.id);
            let untold = untold(claim, &numbers);
            if !untold.is_empty() {
                silent.insert(name.clone(), untold);
            }
            if !within(claim, &numbers).1.is_empty() {
                wide.insert(name);
            }
        }
    }
    assert!(silent.is_empty(), "{silent:#?}");
    assert!(wide.len() > 100, "{wide:#?}");
}

/// What such a test overlooked before: any "takes in" was enough, rows of other names and twin
/// tables were not looked at, and calibrated claims and inputs were not either.
#[test]
fn one_that_names_only_some_is_found() {
    let numbers = numbers();
    let catalogue = Catalogue::built_in().unwrap();
    let untold = |experiment: &str, id: &str, ours: &str| {
        let experiment = catalogue.get(experiment).unwrap();
        let claim = experiment.claims.iter().find(|claim| claim.id == id);
        let ours = Some(ours.to_owned());
        let claim = Claim {
            ours,
            ..claim.unwrap().clone()
        };
        untold(&claim, &numbers)
    };
    let within = |ours: &str| format!("the tolerance, which takes in {ours}; runs of 5 s");
    for (experiment, id, ours, missing) in [
        ("st-table12", "flash-persistent-15", "21 of 10", 25.0),
        ("lrp-table2", "slow-bsd-rate", "SOFT-LRP's 2134", 2208.0),
        ("lrp-table2", "fast-ni-lrp-elapsed", "34.1 and 35.7 s", 37.9),
        ("st-table8", "stddev60-12", "none", 34.5),
        ("st-table8", "t40-30", "hardware timers' 63", 60.0),
        ("st-table10", "tcp-100", "none", 1056.0),
        ("st-table6", "xmit-piii-apache-soft", "19.41", 21.72),
        ("st-table13", "base", "none", 1.1),
        ("st-table4", "stddev-apache", "the 32.1 of another", 31.52),
        ("tb-fig2", "read", "none", 14.0),
    ] {
        let found = untold(experiment, id, &within(ours));
        let name = format!("{experiment}.{id}: {found:?}");
        assert!(found.len() == 1 && is(found[0], missing), "{name}");
    }
    // A range counts between two printed numbers, and not between two rows' names.
    let deviations = |ours: &str| untold("st-table8", "stddev40-35", &within(ours));
    assert!(deviations("30.5 to 30.9, and 30 to 31.2").is_empty());
    assert_eq!(deviations("those of 20 to 35 µs"), [30.0, 30.5, 30.9, 31.2]);
    // Told elsewhere than behind "takes in".
    let told = "the tolerance; 34.5 as well";
    assert_eq!(untold("st-table8", "stddev60-12", told), [34.5]);
}
