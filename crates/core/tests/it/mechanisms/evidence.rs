//! What a state names as evidence: a test, or a claim of an experiment that holds.

use std::fs;
use std::path::Path;

use super::citations::ids;
use crate::named_test;

/// Checks that the evidence exists and cites `id`: a claim holds and its experiment
/// cites the id; a test, its module or a module around it does.
pub(crate) fn check(crates: &Path, evidence: &str, id: &str) -> Result<(), String> {
    let said = if evidence.contains("::") {
        named_test::find(crates, evidence)?
    } else {
        claim(&crates.join("../experiments"), evidence)?
    };
    if ids(&said).contains(id) {
        return Ok(());
    }
    Err(format!("{evidence} does not cite it"))
}

/// The text of the experiment whose claim this is.
fn claim(experiments: &Path, evidence: &str) -> Result<String, String> {
    let (experiment, claim) = evidence
        .split_once('.')
        .ok_or_else(|| format!("{evidence}: neither crate::module::name nor experiment.claim"))?;
    let table = fs::read_to_string(experiments.join("claims.txt"))
        .map_err(|why| format!("claims.txt: {why}"))?;
    let heading = format!("{experiment} ");
    let mut lines = table.lines().skip_while(|line| !line.starts_with(&heading));
    lines.next();
    let label = format!(" {claim}:");
    let line = lines
        .take_while(|line| line.starts_with(' '))
        .find(|line| line.contains(&label))
        .ok_or_else(|| format!("{evidence}: no such claim"))?;
    if !line.contains('✓') {
        return Err(format!("{evidence} does not hold"));
    }
    let file = format!("{experiment}.toml");
    fs::read_to_string(experiments.join(&file)).map_err(|why| format!("{file}: {why}"))
}

/// Whether the evidence is about this home. Claims are about the modelled host, and
/// the command's tests about the home whose name they begin with.
pub(crate) fn is_of(evidence: &str, home: &str) -> bool {
    let mut parts = evidence.split("::");
    let (folder, module) = (parts.next().unwrap_or_default(), parts.next());
    match (folder, module) {
        (_, None) => home == "experiment" || home == "sim",
        ("core", Some(module)) => home.strip_prefix("core::") == Some(module),
        ("packets", _) => home == "core::demux" || home == "guard",
        ("cli", Some(file)) => file.split('_').next() == Some(home),
        ("lab", _) => home == "experiment" || home == "sim" || home == "lab",
        _ => folder == home,
    }
}

#[test]
fn what_is_not_there_does_not_hold_or_is_silent_is_no_evidence() {
    let crates = super::crates();
    for (evidence, id) in [
        ("core::quota::tests::a_fixed_quota_stay", "MR-48"),
        ("core::quota::tests::a_fixed_quota_stays", "MR-01"),
        ("mr-fig1.curved", "MR-11"),
        ("mr-fig1.linear", "MH-01"),
        ("mr-fig2.screend-onset", "MR-08"),
        ("mr-fig1", "MR-11"),
    ] {
        assert!(check(crates, evidence, id).is_err(), "{evidence} {id}");
    }
    assert_eq!(check(crates, "mr-fig1.linear", "MR-11"), Ok(()));
    let test = "core::quota::tests::a_fixed_quota_stays";
    assert_eq!(check(crates, test, "MR-48"), Ok(()));
}
