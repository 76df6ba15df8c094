//! Every published number is claimed by an experiment, or listed with the reason why
//! not; no claim is from what does not exist; and no test is about what the model
//! was given or chosen by.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use plimsoll_lab::published::{Address, PaperEntry, PublishedNumber, papers, uncovered};
use plimsoll_lab::{Catalogue, HostKind, Kind, contradiction, sources};

fn numbers() -> Vec<PublishedNumber> {
    let entries = papers()
        .unwrap()
        .into_iter()
        .flat_map(|paper| paper.entries);
    entries.flat_map(|entry| entry.numbers()).collect()
}

/// What claims about the model are from.
fn claimed() -> Vec<Address> {
    let modelled = Catalogue::built_in().unwrap().modelled();
    let claims = modelled.iter().flat_map(|experiment| &experiment.claims);
    let from = claims.filter_map(|claim| claim.from.as_deref());
    from.flat_map(Address::all_in).collect()
}

fn listed() -> Vec<Address> {
    let lists = uncovered().unwrap();
    let lists = lists.iter().flat_map(|list| &list.of);
    lists.flat_map(|text| Address::all_in(text)).collect()
}

/// A claim about a whole entry is about its words, not about each of its numbers.
fn is_about(claim: &Address, number: &Address) -> bool {
    !claim.is_whole() && claim.overlaps(number)
}

#[test]
fn every_published_number_is_claimed_or_listed_with_a_reason() {
    let (claimed, listed) = (claimed(), listed());
    let mut missing = Vec::new();
    let mut twice = Vec::new();
    for number in numbers() {
        let address = number.address;
        let is_claimed = claimed.iter().any(|claim| is_about(claim, &address));
        let is_listed = listed.iter().any(|list| list.overlaps(&address));
        match (is_claimed, is_listed) {
            (false, false) => missing.push(address.to_string()),
            (true, true) => twice.push(address.to_string()),
            _ => {}
        }
    }
    assert!(
        missing.is_empty(),
        "neither claimed nor listed: {missing:#?}"
    );
    assert!(twice.is_empty(), "listed, but claimed: {twice:#?}");
    for list in uncovered().unwrap() {
        assert!(list.why.len() >= 10 && !list.of.is_empty(), "{list:?}");
    }
}

#[test]
fn every_entry_in_words_is_claimed_or_listed_too() {
    let (claimed, listed) = (claimed(), listed());
    let entries = papers()
        .unwrap()
        .into_iter()
        .flat_map(|paper| paper.entries);
    let unknown = entries.filter(|entry| {
        let about = |list: &[Address]| list.iter().any(|one| one.entry == entry.id);
        !about(&claimed) && !about(&listed)
    });
    let unknown: Vec<String> = unknown.map(|entry| entry.id).collect();
    assert!(
        unknown.is_empty(),
        "neither claimed nor listed: {unknown:?}"
    );
}

#[test]
fn the_list_for_readers_is_that_of_the_data() {
    let list = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/papers.md");
    let list = fs::read_to_string(list).unwrap();
    let rows = list
        .lines()
        .filter(|line| line.contains("-E") && !line.starts_with("| PL-"));
    let listed: Vec<&str> = rows.filter(|line| line.starts_with("| ")).collect();
    let entries = papers()
        .unwrap()
        .into_iter()
        .flat_map(|paper| paper.entries);
    let wanted: Vec<String> = entries
        .map(|entry| {
            let PaperEntry {
                id,
                what,
                place,
                basis,
                ..
            } = entry;
            format!("| {id} | {what} | {place} | {basis} |")
        })
        .collect();
    for row in &wanted {
        assert!(listed.contains(&row.as_str()), "docs/papers.md lacks {row}");
    }
    assert_eq!(listed.len(), wanted.len());
}

#[test]
fn nothing_is_from_what_does_not_exist() {
    let entries = papers()
        .unwrap()
        .into_iter()
        .flat_map(|paper| paper.entries);
    let ids: BTreeSet<String> = entries.map(|entry| entry.id).collect();
    let numbers: Vec<Address> = numbers().into_iter().map(|number| number.address).collect();
    let exists = |one: &Address| match one.is_whole() {
        true => ids.contains(&one.entry),
        false => numbers.iter().any(|number| one.overlaps(number)),
    };
    for experiment in Catalogue::built_in().unwrap().all() {
        let id = &experiment.id;
        let published = experiment
            .published
            .iter()
            .map(|points| points.from.as_str());
        let claims = experiment
            .claims
            .iter()
            .filter_map(|claim| claim.from.as_deref());
        for address in published.chain(claims).flat_map(Address::all_in) {
            assert!(exists(&address), "{id}: {address}");
            assert!(
                experiment.paper.contains(&address.entry),
                "{id}: {address} is not in `paper`"
            );
        }
        // Our own measurements have no data file: docs/papers.md lists them.
        let sources = sources(experiment).unwrap();
        for source in sources
            .iter()
            .filter(|one| !one.address.entry.starts_with("PL-"))
        {
            assert!(
                exists(&source.address),
                "{id}: {} of {}",
                source.address,
                source.by
            );
        }
    }
    for address in listed() {
        assert!(exists(&address), "listed: {address}");
    }
}

#[test]
fn no_test_is_about_what_the_model_was_given_or_chosen_by() {
    let mut wrong = Vec::new();
    for experiment in Catalogue::built_in().unwrap().all() {
        let sources = sources(experiment).unwrap();
        for claim in &experiment.claims {
            let problem = contradiction(claim, &sources);
            wrong
                .extend(problem.map(|problem| format!("{}.{} {problem}", experiment.id, claim.id)));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// The reductions of ST tables X and XI were tests beside the response times that they are
/// computed from: one measurement counted twice.
#[test]
fn what_is_derived_is_arithmetic_of_other_claims() {
    let mut derived = 0;
    for experiment in Catalogue::built_in().unwrap().all() {
        let (own, others): (Vec<_>, Vec<_>) = experiment
            .claims
            .iter()
            .partition(|claim| claim.kind == Kind::Derived);
        derived += own.len();
        for claim in own {
            let rest = others.iter().fold(claim.measure.clone(), |rest, other| {
                rest.replace(&other.measure, " ")
            });
            let measures = rest.contains(char::is_alphabetic);
            assert!(!measures, "{}.{}: {rest}", experiment.id, claim.id);
        }
    }
    assert_eq!(derived, 18);
}

/// Also in the paper: each printed reduction is that of the printed response times.
#[test]
fn printed_reductions_are_those_of_the_printed_response_times() {
    for entry in ["ST-E25", "ST-E26"] {
        let papers = papers().unwrap();
        let mut entries = papers.iter().flat_map(|paper| &paper.entries);
        let numbers = entries.find(|one| one.id == entry).unwrap().numbers();
        let of = |row: &str, name: &str| {
            let mut numbers = numbers.iter();
            let number = numbers.find(|one| one.address.row == row && one.address.name == name);
            number.unwrap().value
        };
        for row in ["5", "100", "1000", "10000", "100000"] {
            let computed = 100.0 * (1.0 - of(row, "rbc_response") / of(row, "tcp_response"));
            // The paper leaves out the part behind the point.
            let printed = of(row, "response_reduction");
            assert_eq!(computed.floor(), printed, "{entry}, {row} packets");
        }
    }
}

#[test]
fn real_packets_stand_beside_models_of_the_same_figures() {
    let catalogue = Catalogue::built_in().unwrap();
    let real = catalogue.select(&["real".to_owned()]).unwrap();
    for experiment in &real {
        assert!(!experiment.twins.is_empty(), "{}", experiment.id);
        for twin in &experiment.twins {
            assert_eq!(catalogue.get(twin).unwrap().host, HostKind::Modelled);
        }
    }
    let claims = real.iter().flat_map(|experiment| &experiment.claims);
    let tests = claims.filter(|claim| claim.kind == Kind::Test).count();
    assert!(tests >= 20, "{tests} published claims on real packets");
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
