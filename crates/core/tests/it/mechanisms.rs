//! `docs/mechanisms.md` is complete and true, and cannot go stale.
//!
//! - Every id of the papers is there once.
//! - Every home of an entry has evidence, or the entry says what is planned there.
//! - Evidence is a test, or a claim that holds, and cites the id itself.
//! - A home whose files cite an id has it: there it may not be planned.

mod citations;
mod entry;
mod evidence;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use entry::{Entry, State, entries};

use crate::named_test::{self, TestName};

const DOCUMENT: &str = include_str!("../../../../docs/mechanisms.md");

/// How many entries the papers gave: each paper was read through once, and its
/// mechanisms, rules, pathologies and open ideas were numbered from 1 without a
/// gap. They do not change unless a paper is read again.
const ENTRIES: [(&str, usize); 5] = [("MR", 100), ("ST", 65), ("TB", 54), ("LRP", 59), ("MH", 33)];

/// Where an entry can be at home beside the modules of core.
const HOMES: [&str; 13] = [
    "kernel",
    "guard",
    "stack",
    "programs",
    "timers",
    "timers-bpf",
    "sim",
    "lab",
    "testbed",
    "bench",
    "packets",
    "experiment",
    "-",
];

fn crates() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}

/// Fails with all faults at once.
fn expect_none(faults: &[String]) {
    assert!(faults.is_empty(), "{}", faults.join("\n"));
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
    for Entry {
        id, meaning, homes, ..
    } in entries(DOCUMENT)
    {
        assert!(!meaning.is_empty(), "{id}");
        for home in homes {
            let module = home.starts_with("core::") && citations::text_of(crates(), home).is_some();
            assert!(module || HOMES.contains(&home), "{id}: {home}");
        }
    }
}

#[test]
fn every_home_has_evidence_that_cites_the_id_or_is_planned() {
    let mut faults = Vec::new();
    for entry in entries(DOCUMENT) {
        let (evidence, planned_in) = match entry.state() {
            Ok(State::Done {
                evidence,
                planned_in,
            }) => (evidence, planned_in),
            Ok(State::Planned | State::LeftOut) => continue,
            Err(why) => {
                faults.push(format!("{}: {why}", entry.id));
                continue;
            }
        };
        let checks = evidence
            .iter()
            .map(|one| evidence::check(crates(), one, entry.id));
        let wrong = checks.filter_map(Result::err);
        let strange = planned_in
            .iter()
            .filter(|home| !entry.homes.contains(home))
            .map(|home| format!("planned in {home}, which is none of its homes"));
        let bare = entry
            .homes
            .iter()
            .filter(|home| !planned_in.contains(home))
            .filter(|home| !evidence.iter().any(|one| evidence::is_of(one, home)))
            .map(|home| format!("no evidence in {home}, and not planned there"));
        let all = wrong.chain(strange).chain(bare);
        faults.extend(all.map(|why| format!("{}: {why}", entry.id)));
    }
    expect_none(&faults);
}

/// Found 107 entries that were called planned although most of them were built.
#[test]
fn what_a_home_cites_is_not_planned_there() {
    let mut faults = Vec::new();
    let mut cited = BTreeMap::new();
    let modules = std::fs::read_dir(crates().join("core/src")).expect("core has sources");
    let modules = modules.flatten().map(|file| {
        let path = file.path();
        let stem = path
            .file_stem()
            .map(|stem| stem.to_string_lossy().into_owned());
        format!("core::{}", stem.unwrap_or_default())
    });
    let homes = HOMES.iter().map(|home| (*home).to_owned()).chain(modules);
    for home in homes {
        let text = citations::text_of(crates(), &home).unwrap_or_default();
        let short = citations::shortened(&text);
        faults.extend(short.iter().map(|list| format!("{home}: write {list} out")));
        cited.insert(home, citations::ids(&text));
    }
    let cites = |home: &str, id: &str| cited.get(home).is_some_and(|ids| ids.contains(id));
    for entry in entries(DOCUMENT) {
        let planned: BTreeSet<&str> = match entry.state() {
            // Nobody may cite what nobody has.
            Ok(State::Planned) => cited.keys().map(String::as_str).collect(),
            Ok(State::Done { planned_in, .. }) => planned_in.into_iter().collect(),
            _ => continue,
        };
        let homes = planned.into_iter().filter(|home| cites(home, entry.id));
        faults.extend(homes.map(|home| format!("{} is planned, but {home} cites it", entry.id)));
    }
    expect_none(&faults);
    let known: BTreeSet<&str> = entries(DOCUMENT).iter().map(|entry| entry.id).collect();
    for (home, ids) in &cited {
        let unknown: Vec<&String> = ids
            .iter()
            .filter(|id| !known.contains(id.as_str()))
            .collect();
        assert!(unknown.is_empty(), "{home} cites {unknown:?}");
    }
}

#[test]
fn a_test_is_of_a_program_that_prints_it_so() {
    for (test, program, printed) in [
        (
            "core::quota::tests::a_fixed_quota_stays",
            None,
            "quota::tests::a_fixed_quota_stays",
        ),
        (
            "core::queues_allocation::the_measure_notices_an_allocation",
            Some("queues_allocation"),
            "the_measure_notices_an_allocation",
        ),
        (
            "guard::session::handover::killed_after_a_hand_over_it_is_undone_at_once",
            Some("session"),
            "killed_after_a_hand_over_it_is_undone_at_once",
        ),
        (
            "core::mechanisms::evidence::what_is_not_there_does_not_hold_or_is_silent_is_no_evidence",
            Some("it"),
            "mechanisms::evidence::what_is_not_there_does_not_hold_or_is_silent_is_no_evidence",
        ),
    ] {
        let name = TestName::parse(crates(), test).unwrap();
        assert_eq!(name.program(), program, "{test}");
        assert_eq!(name.printed(), printed);
    }
}

#[test]
fn what_is_not_a_test_is_not_found() {
    let find = |test| named_test::find(crates(), test);
    for real in [
        "core::quota::tests::a_fixed_quota_stays",
        "core::poll::tests::backlogged_directions_get_equally_many_turns",
        "core::driver::protection::loom_tests::two_writers_exclude_each_other",
        "guard::queues::a_later_fragment_follows_the_first",
        "guard::session::control_groups::polls_in_a_control_group",
        "guard::session::handover::hands_its_link_to_the_next",
        "cli::package::service::it_protects_reloads_and_stops",
    ] {
        assert!(find(real).is_ok(), "{real}");
    }
    for wrong in [
        "core::quota::tests::a_fixed_quota_stay",
        "core::quota::tests::goodput",
        "core::quota::a_fixed_quota_stays",
        "core::poll::tests::a_fixed_quota_stays",
        "core::quotas::tests::a_fixed_quota_stays",
        "core::driver::protection::tests::two_writers_exclude_each_other",
        "guard::corpus::a_later_fragment_follows_the_first",
        "guard::session::control_groups::group_with_a_share",
        "cli::package::it_protects_reloads_and_stops",
        "a_fixed_quota_stays",
    ] {
        assert!(find(wrong).is_err(), "{wrong}");
    }
}
