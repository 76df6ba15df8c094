//! The kept mutations still fit the sources: each text to be replaced is there
//! once, each test that has to notice exists, and no module of core is left out.
//! Whether the tests do notice takes longer: `make mutants`.

mod list;

use std::collections::BTreeSet;

/// What a decision of core may be built from, without being one.
const NOT_DECISIONS: [&str; 3] = ["config", "sync", "time"];

#[test]
fn every_mutation_fits_the_sources() {
    let checks = list::read().into_iter().map(|mutation| mutation.check());
    let faults: Vec<String> = checks.filter_map(Result::err).collect();
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn no_mutation_stands_twice() {
    let mutations = list::read();
    let mut changes = BTreeSet::new();
    for one in &mutations {
        let is_new = changes.insert((&one.folder, &one.file, &one.from, &one.to));
        assert!(is_new, "{} ({}) stands twice", one.module, one.why);
    }
}

#[test]
fn every_module_of_core_has_at_least_two() {
    let mut mutations = list::read();
    mutations.retain(|mutation| mutation.folder == list::CORE);
    let modules = include_str!("../../src/lib.rs")
        .lines()
        .filter_map(|line| line.trim_start_matches("pub ").strip_prefix("mod "))
        .filter_map(|line| line.strip_suffix(';'))
        .filter(|module| !NOT_DECISIONS.contains(module));
    let mut known = 0;
    for module in modules {
        let count = mutations.iter().filter(|one| one.module == module).count();
        assert!(count >= 2, "{module} has {count}");
        known += count;
    }
    assert_eq!(known, mutations.len(), "some are of no module");
}
