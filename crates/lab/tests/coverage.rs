//! Every published entry is claimed by an experiment, or listed with the reason
//! why not; and no claim says it is from an entry that does not exist.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use plimsoll_lab::Catalogue;

/// How many entries the reference data has of each paper.
const ENTRIES: [(&str, u32); 5] = [("MR", 42), ("ST", 37), ("TB", 15), ("LRP", 23), ("MH", 30)];

/// The list, by entry.
fn uncovered() -> BTreeMap<String, String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../experiments/uncovered.txt");
    let text = fs::read_to_string(path).unwrap();
    let lines = text.lines().map(str::trim);
    let lines = lines.filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines
        .map(|line| {
            let (entry, reason) = line.split_once(' ').expect("an entry and a reason");
            (entry.to_owned(), reason.trim().to_owned())
        })
        .collect()
}

#[test]
fn every_published_entry_is_claimed_or_listed_with_a_reason() {
    let catalogue = Catalogue::built_in().unwrap();
    let mut claimed = BTreeMap::new();
    for experiment in catalogue.all() {
        let claims = experiment.claims.iter().filter_map(|one| one.from.as_ref());
        let points = experiment.published.iter().map(|points| &points.from);
        let entries = claims.chain(points).flat_map(|from| from.split(", "));
        for entry in entries {
            assert!(
                experiment.paper.iter().any(|listed| listed == entry),
                "{}: {entry} is not in `paper`",
                experiment.id
            );
            claimed.insert(entry.to_owned(), experiment.id.clone());
        }
    }
    let uncovered = uncovered();
    for (paper, count) in ENTRIES {
        for number in 1..=count {
            let entry = format!("{paper}-E{number:02}");
            match (claimed.remove(&entry), uncovered.get(&entry)) {
                (Some(id), Some(_)) => panic!("{entry} is listed, but claimed by {id}"),
                (None, None) => panic!("{entry} is neither claimed nor listed with a reason"),
                (None, Some(reason)) => assert!(reason.len() >= 10, "{entry}: {reason}"),
                (Some(_), None) => {}
            }
        }
    }
    assert!(claimed.is_empty(), "no such entries: {claimed:?}");
}

/// A cost that curves set is a free parameter unless it is what they are about.
#[test]
fn no_curve_changes_what_its_machine_costs() {
    for experiment in Catalogue::built_in().unwrap().all() {
        let settings = experiment.curves.iter().map(|curve| &curve.set);
        for table in settings.chain([&experiment.scenario]) {
            let text = table.to_string();
            assert!(!text.contains("profile"), "{}: {text}", experiment.id);
        }
    }
}
