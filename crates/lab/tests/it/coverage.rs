//! Every published number is claimed by an experiment, or listed with the reason why
//! not; no claim is from what does not exist; and no test is about what the model
//! was given or chosen by.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use plimsoll_lab::published::{Address, PaperEntry, PublishedNumber, papers, uncovered};
use plimsoll_lab::{Catalogue, Claim, HostKind, Kind, contradiction, sources};

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

#[test]
fn a_claim_says_what_of_it_is_not_its_papers() {
    let catalogue = Catalogue::built_in().unwrap();
    for experiment in catalogue.all() {
        let sources = sources(experiment).unwrap();
        for claim in experiment
            .claims
            .iter()
            .filter(|claim| claim.kind != Kind::Ours)
        {
            for ours in [None, Some(String::new())] {
                let silent = Claim {
                    ours,
                    ..claim.clone()
                };
                let problem = contradiction(&silent, &sources).unwrap();
                assert!(problem.starts_with("does not say"), "{problem}");
            }
            assert!(!claim.text.contains("ours"), "{}: told twice", claim.id);
        }
    }
}

/// What is left of a measure without those of `others`: no word but `max` and `min` if it
/// is arithmetic of them.
fn is_arithmetic_of<'a>(measure: &str, others: impl Iterator<Item = &'a Claim>) -> bool {
    let mut others: Vec<&str> = others.map(|other| other.measure.as_str()).collect();
    others.retain(|other| *other != measure);
    others.sort_unstable_by_key(|other| std::cmp::Reverse(other.len()));
    let rest = others
        .iter()
        .fold(measure.to_owned(), |rest, other| rest.replace(other, " "));
    let mut words = rest.split(|one: char| !one.is_alphanumeric() && one != '_');
    words.all(|word| matches!(word, "max" | "min") || !word.contains(char::is_alphabetic))
}

/// What a measure looks at: its figures, without the arithmetic between them.
fn figures(measure: &str) -> Vec<String> {
    const ARITHMETIC: [&str; 3] = ["max", "min", "abs"];
    let is_name = |one: char| one.is_alphanumeric() || one == '_' || one == '.';
    let (mut figures, mut rest) = (Vec::new(), measure);
    while let Some(begin) = rest.find(|one: char| one.is_alphabetic()) {
        rest = &rest[begin..];
        let name = rest.find(|one| !is_name(one)).unwrap_or(rest.len());
        let (mut depth, mut end) = (0, name);
        if rest[name..].starts_with('(') && !ARITHMETIC.contains(&&rest[..name]) {
            for (at, one) in rest.char_indices().skip(name) {
                depth += i32::from(one == '(') - i32::from(one == ')');
                if depth == 0 {
                    end = at + 1;
                    break;
                }
            }
        }
        if !ARITHMETIC.contains(&&rest[..end]) {
            figures.push(rest[..end].to_owned());
        }
        rest = &rest[end..];
    }
    figures
}

#[test]
fn a_measure_has_the_figures_that_its_arithmetic_joins() {
    let measure = "100 * max(abs(peak(between(a.rate, 1, 7)) / 750 - 1), b.rate) - at(c, 2)";
    let expected = ["peak(between(a.rate, 1, 7))", "b.rate", "at(c, 2)"];
    assert_eq!(figures(measure), expected);
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
            let measured = others.iter().flat_map(|other| figures(&other.measure));
            let measured: BTreeSet<_> = measured.collect();
            let own = figures(&claim.measure);
            let arithmetic = own.iter().all(|figure| measured.contains(figure));
            let name = format!("{}.{}", experiment.id, claim.id);
            assert!(arithmetic != BY_RULE.contains(&name.as_str()), "{name}");
        }
    }
    assert_eq!(derived, 54);
}

/// Derived from other claims' numbers, but not by the arithmetic of its measure.
const BY_RULE: [&str; 7] = [
    "st-table12.faster-gains-more",
    "st-table8.t60-12",
    "st-table8.t60-15",
    "st-table8.t60-20",
    "st-table8.t60-25",
    "st-table8.t60-30",
    "st-table8.t60-35",
];

/// The numbers of an experiment's claims in the kept run.
fn measured(experiment: &str) -> BTreeMap<String, f64> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../experiments/claims.txt");
    let text = fs::read_to_string(path).unwrap();
    let lines = text.lines();
    let lines = lines.skip_while(|line| !line.starts_with(&format!("{experiment}  ")));
    let lines = lines.skip(1).take_while(|line| line.starts_with(' '));
    let claims = lines.filter_map(|line| {
        let id = line.split_whitespace().nth(2)?.strip_suffix(':')?;
        let number = line.rsplit(": ").next()?.split(' ').next()?;
        Some((id.to_owned(), number.parse().ok()?))
    });
    claims.collect()
}

/// A flow that is always behind waits the burst interval, whatever its target; and one gain is to
/// another as the claims of both are.
#[test]
fn what_is_derived_by_rule_has_the_number_that_follows() {
    let near = |one: f64, other: f64| assert!((one / other - 1.0).abs() < 5e-3, "{one} {other}");
    let clocked = measured("st-table8");
    for row in ["30", "35"] {
        let [other, own] = ["t40", "t60"].map(|target| clocked[&format!("{target}-{row}")]);
        assert_eq!(other, own);
    }
    let polled = measured("st-table12");
    let ratio = |column: &str| {
        let rate = |server: &str| 100.0 + polled[&format!("{server}-{column}")];
        rate("flash") / rate("apache")
    };
    let protocols = ["http", "persistent"].iter();
    let columns = protocols.flat_map(|one| [1, 2, 5, 10, 15].map(|quota| format!("{one}-{quota}")));
    let least = columns.map(|column| ratio(&column)).reduce(f64::min);
    near(polled["faster-gains-more"], least.unwrap());
}

/// Tests that are computed from what other claims measure, and are no published number: they
/// say which of two is greater.
const ORDERS: [&str; 1] = ["st-table8.rising"];

/// Seven more, such as LRP's 44 percent beside the two loss-free rates, had stayed tests.
#[test]
fn no_test_is_a_number_that_others_give() {
    let mut found = Vec::new();
    for experiment in Catalogue::built_in().unwrap().all() {
        let tests = experiment.claims.iter();
        for claim in tests.filter(|claim| claim.kind == Kind::Test) {
            let others = experiment.claims.iter();
            let others = others.filter(|other| other.kind != Kind::Derived && other.id != claim.id);
            if is_arithmetic_of(&claim.measure, others) {
                found.push(format!("{}.{}", experiment.id, claim.id));
            }
        }
    }
    found.sort_unstable();
    assert_eq!(found, ORDERS);
}

/// The number of this address: entry, row and name.
fn printed(entry: &str, row: &str, name: &str) -> f64 {
    let papers = papers().unwrap();
    let mut entries = papers.iter().flat_map(|paper| &paper.entries);
    let numbers = entries.find(|one| one.id == entry).unwrap().numbers();
    let mut numbers = numbers.iter();
    let number = numbers.find(|one| one.address.row == row && one.address.name == name);
    let number = number.unwrap_or_else(|| panic!("{entry}[{row}].{name}"));
    number.value
}

/// Also in the paper: each printed reduction is that of the printed response times, and the
/// greatest is that of the transfer that the text names.
#[test]
fn printed_reductions_are_those_of_the_printed_response_times() {
    let best = printed("ST-E27", "", "best_transfer");
    for entry in ["ST-E25", "ST-E26"] {
        let reduced = ["5", "100", "1000", "10000", "100000"].map(|row| {
            let paced = printed(entry, row, "rbc_response");
            let computed = 100.0 * (1.0 - paced / printed(entry, row, "tcp_response"));
            // The paper leaves out the part behind the point.
            let reduction = printed(entry, row, "response_reduction");
            assert_eq!(computed.floor(), reduction, "{entry}, {row} packets");
            (computed, row.parse::<f64>().unwrap())
        });
        let greatest = reduced
            .into_iter()
            .max_by(|one, other| one.0.total_cmp(&other.0));
        assert_eq!(greatest.unwrap().1, best, "{entry}");
    }
}

/// As are the numbers of the other derived claims: by the arithmetic of their measures.
#[test]
fn what_is_derived_is_arithmetic_of_the_printed_numbers() {
    let rate = |kernel| printed("LRP-E08", kernel, "mlfrr");
    let gain = 100.0 * (rate("SOFT-LRP") / rate("BSD") - 1.0);
    assert_eq!(gain.round(), printed("LRP-E08", "", "gain"));
    let hump = |name| printed("LRP-E11", "", name);
    assert_eq!((100.0 * hump("peak_bsd") / hump("peak_lrp")).round(), 136.0);
    let elapsed = |row| printed("LRP-E13", row, "worker_elapsed");
    let reduction = |row, bsd| (100.0 * (1.0 - elapsed(row) / elapsed(bsd))).round();
    let table = |name| printed("LRP-E14", "", name);
    let medium = "Medium/4.4BSD";
    assert_eq!(
        reduction("Medium/SOFT-LRP", medium),
        table("medium_worker_reduction_soft")
    );
    assert_eq!(
        reduction("Medium/NI-LRP", medium),
        table("medium_worker_reduction_ni")
    );
    assert_eq!(
        reduction("Fast/NI-LRP", "Fast/4.4BSD"),
        table("fast_worker_reduction_ni")
    );
    // Of 11.5 s of computation; the paper leaves out the part behind the point.
    let share = |row| (100.0 * 11.5 / elapsed(row)).floor();
    let range = |name| printed("LRP-E15", "", name);
    assert_eq!(share("Fast/SOFT-LRP"), range("lrp_min"));
    assert_eq!(share("Medium/NI-LRP"), range("lrp_max"));
    assert_eq!(share("Fast/4.4BSD"), range("bsd_min"));
    assert_eq!(share("Slow/4.4BSD"), range("bsd_max"));
    let feedback = |name| printed("MR-E15", "", name);
    let with = feedback("mlfrr_with_feedback") / feedback("mlfrr_without");
    assert_eq!((100.0 * with).round(), 145.0);
    let later = |row| printed("MR-E31", row, "polling") - printed("MR-E31", row, "non_polling");
    // "Almost 100 µs" earlier; the other two later by 122.5 on average.
    assert_eq!(later("1"), -96.0);
    assert_eq!(f64::midpoint(later("2"), later("3")), 122.5);
    let flash = |row| printed("ST-E18", row, "flash");
    let beyond = flash("8253_20us/overhead_pct") - flash("soft/overhead_pct");
    let dispatch = printed("ST-E19", "", "base_dispatch");
    assert_eq!(
        beyond - dispatch,
        printed("ST-E19", "", "extra_pollution_flash")
    );
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

/// Two tests on one measured number count one outcome twice: where they have bounds of one
/// side, the looser adds nothing, and where they exclude each other, one always fails.
#[test]
fn no_measured_number_has_two_tests() {
    let mut twice = Vec::new();
    for experiment in Catalogue::built_in().unwrap().all() {
        let tests = experiment.claims.iter();
        let tests: Vec<&Claim> = tests.filter(|claim| claim.kind == Kind::Test).collect();
        for (index, one) in tests.iter().enumerate() {
            let before = tests[..index].iter();
            let mut same = before.filter(|other| other.measure == one.measure);
            if let Some(other) = same.next() {
                twice.push(format!("{}: {} and {}", experiment.id, other.id, one.id));
            }
        }
    }
    assert!(twice.is_empty(), "{twice:#?}");
}
