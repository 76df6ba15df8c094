//! `docs/mechanisms.md` is complete and true: every id of the papers is there
//! once, its state has one of the three forms, and each test it names exists.

mod named_test;

use std::collections::BTreeSet;
use std::path::Path;

const DOCUMENT: &str = include_str!("../../../docs/mechanisms.md");

/// How many entries the papers gave: each paper was read through once, and its
/// mechanisms, rules, pathologies and open ideas were numbered from 1 without a
/// gap. They do not change unless a paper is read again.
const ENTRIES: [(&str, usize); 5] = [("MR", 100), ("ST", 65), ("TB", 54), ("LRP", 59), ("MH", 33)];

/// One line of a table.
struct Entry<'a> {
    id: &'a str,
    meaning: &'a str,
    room: &'a str,
    state: &'a str,
}

fn crates() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}

/// Every line of every table but the tables' heads.
fn entries(document: &str) -> Vec<Entry<'_>> {
    let lines = document.lines().filter(|line| line.starts_with('|'));
    let entries = lines.map(|line| {
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        let &[id, meaning, room, state] = cells.as_slice() else {
            panic!("four cells wanted: {line}");
        };
        Entry {
            id,
            meaning,
            room,
            state,
        }
    });
    entries
        .filter(|entry| entry.id != "id" && entry.id != "---")
        .collect()
}

/// The tests that a state names.
///
/// # Errors
///
/// If the state has none of the three forms.
fn tests_of(state: &str) -> Result<Vec<&str>, String> {
    let unknown = || format!("neither `done: tests`, `planned` nor `left out: reason`: {state}");
    if state == "planned" {
        return Ok(Vec::new());
    }
    match state.split_once(": ") {
        Some(("planned" | "left out", said)) if !said.is_empty() => Ok(Vec::new()),
        Some(("done", said)) => {
            let (tests, planned) = said
                .split_once("; planned: ")
                .unwrap_or((said, "something"));
            if planned.is_empty() {
                return Err(unknown());
            }
            tests
                .split(", ")
                .map(|test| {
                    let inside = test
                        .strip_prefix('`')
                        .and_then(|test| test.strip_suffix('`'));
                    inside.ok_or_else(unknown)
                })
                .collect()
        }
        _ => Err(unknown()),
    }
}

#[test]
fn every_id_of_the_papers_is_there_once_and_in_order() {
    let expected = ENTRIES
        .iter()
        .flat_map(|&(paper, last)| (1..=last).map(move |number| format!("{paper}-{number:02}")));
    let found: Vec<&str> = entries(DOCUMENT).iter().map(|entry| entry.id).collect();
    assert_eq!(found, expected.collect::<Vec<String>>());
}

#[test]
fn every_entry_says_what_it_means_and_where_it_belongs() {
    let rooms = ["guard", "stack", "sim", "testbed", "experiment", "-"];
    for entry in entries(DOCUMENT) {
        assert!(!entry.meaning.is_empty(), "{}", entry.id);
        for room in entry.room.split(", ") {
            let module = room.strip_prefix("core::").is_some_and(|module| {
                let source = crates().join("core/src");
                source.join(module).is_dir() || source.join(format!("{module}.rs")).is_file()
            });
            assert!(module || rooms.contains(&room), "{}: {room}", entry.id);
        }
    }
}

#[test]
fn every_state_has_one_of_three_forms_and_every_named_test_exists() {
    let mut faults = Vec::new();
    let mut named = BTreeSet::new();
    for entry in entries(DOCUMENT) {
        match tests_of(entry.state) {
            Ok(tests) => named.extend(tests.into_iter().map(|test| (test, entry.id))),
            Err(why) => faults.push(format!("{}: {why}", entry.id)),
        }
    }
    for (test, id) in named {
        if let Err(why) = named_test::find(crates(), test) {
            faults.push(format!("{id}: {why}"));
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn what_is_not_a_test_is_not_found() {
    let find = |test| named_test::find(crates(), test);
    for real in [
        "core::quota::tests::a_fixed_quota_stays",
        "core::poll::tests::backlogged_directions_get_equally_many_turns",
        "core::driver::protection::loom_tests::two_writers_exclude_each_other",
        "guard::queues::a_later_fragment_follows_the_first",
    ] {
        assert_eq!(find(real), Ok(()));
    }
    for wrong in [
        "core::quota::tests::a_fixed_quota_stay",
        "core::quota::tests::goodput",
        "core::quota::a_fixed_quota_stays",
        "core::poll::tests::a_fixed_quota_stays",
        "core::quotas::tests::a_fixed_quota_stays",
        "core::driver::protection::tests::two_writers_exclude_each_other",
        "guard::corpus::a_later_fragment_follows_the_first",
        "a_fixed_quota_stays",
    ] {
        assert!(find(wrong).is_err(), "{wrong}");
    }
}

#[test]
fn other_states_are_refused() {
    for state in [
        "",
        "done",
        "done: ",
        "done: core::quota::tests::a_fixed_quota_stays",
        "done: `core::quota::tests::a_fixed_quota_stays`; planned: ",
        "left out",
        "left out: ",
        "partly",
    ] {
        assert!(tests_of(state).is_err(), "{state}");
    }
    assert_eq!(
        tests_of("done: `a::b::c`, `d::e::f`; planned: more"),
        Ok(vec!["a::b::c", "d::e::f"])
    );
}
