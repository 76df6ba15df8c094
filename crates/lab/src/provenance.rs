//! What an experiment's model was given or chosen by, from everything that says so:
//! its machine profiles' sources, workloads and calibrated points, and its own
//! choices.
//!
//! A claim about any of it shows nothing about the model, so it may not be a test.

use plimsoll_sim::Profile;

use crate::declared::{Claim, Kind};
use crate::error::Error;
use crate::experiment::Experiment;
use crate::published::Address;

/// Something published that the model rests on.
#[derive(Clone, Debug)]
pub struct Source {
    /// What rests on it: profile and cost, or the experiment's key.
    pub by: String,
    /// What was published.
    pub address: Address,
    /// The curves that rest on it; all if none is named.
    pub curves: Vec<String>,
}

/// The machine profiles of an experiment, its own first.
///
/// # Errors
///
/// There is no such profile.
pub(crate) fn profiles(experiment: &Experiment) -> Result<Vec<Profile>, Error> {
    let others = experiment.curves.iter();
    let others = others.filter_map(|curve| curve.profile.as_deref());
    let mut names: Vec<&str> = Vec::new();
    // Real packets have no machine profile.
    names.extend(Some(experiment.profile.as_str()).filter(|name| !name.is_empty()));
    for name in others {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    let named = |name: &str| {
        experiment.profile_named(name).map_err(|error| {
            let remedy = "name one of the built-in profiles";
            Error::file(&experiment.file, "profile", error.to_string(), remedy)
        })
    };
    names.into_iter().map(named).collect()
}

/// Everything published that the experiment's model rests on.
///
/// # Errors
///
/// There is no such profile.
pub fn sources(experiment: &Experiment) -> Result<Vec<Source>, Error> {
    let mut said: Vec<(String, String)> = Vec::new();
    for profile in profiles(experiment)? {
        let name = &profile.name;
        for (cost, given) in &profile.costs {
            said.push((format!("{name}, {cost}"), given.source.clone()));
        }
        for program in &profile.program {
            let costs = program.costs.iter();
            said.extend(costs.map(|(cost, given)| {
                let by = format!("{name}, {}.{cost}", program.name);
                (by, given.source.clone())
            }));
        }
        let queues = profile.queues.iter();
        said.extend(
            queues.map(|(queue, given)| (format!("{name}, {queue}"), given.source.clone())),
        );
        let workloads = profile.workload.iter();
        said.extend(workloads.map(|one| (format!("{name}, {}", one.name), one.source.clone())));
        let points = profile.calibration.iter();
        said.extend(points.map(|point| {
            let by = format!("{name}, {}", point.costs.join(" and "));
            (by, point.entry.clone())
        }));
    }
    let machines = said.iter().flat_map(|(by, text)| named(by, text, &[]));
    let choices = experiment.choices.iter();
    let choices = choices.flat_map(|one| named(&one.key, &one.entry, &one.curves));
    Ok(machines.chain(choices).collect())
}

fn named(by: &str, text: &str, curves: &[String]) -> Vec<Source> {
    let addresses = Address::all_in(text).into_iter();
    let source = |address| Source {
        by: by.to_owned(),
        address,
        curves: curves.to_vec(),
    };
    addresses.map(source).collect()
}

/// What of the model rests on what `claim` is about.
#[must_use]
pub fn behind<'a>(claim: &Claim, sources: &'a [Source]) -> Vec<&'a Source> {
    let about = Address::all_in(claim.from.as_deref().unwrap_or_default());
    let asks = |curve: &String| claim.measure.contains(&format!("{curve}."));
    let is_meant = |source: &&Source| {
        let measured = source.curves.is_empty() || source.curves.iter().any(asks);
        measured && about.iter().any(|one| one.overlaps(&source.address))
    };
    sources.iter().filter(is_meant).collect()
}

/// What is wrong with a claim's kind; nothing if it is as it should be.
#[must_use]
pub fn contradiction(claim: &Claim, sources: &[Source]) -> Option<String> {
    let behind = behind(claim, sources);
    match (claim.kind, &claim.from) {
        (Kind::Ours, Some(_)) => Some("a claim of ours is from no paper".to_owned()),
        (Kind::Ours, None) => None,
        (_, None) => Some("says nothing of where it is from".to_owned()),
        _ if claim.ours.as_deref().unwrap_or_default().is_empty() => {
            Some("does not say what of it its paper does not give".to_owned())
        }
        (Kind::Test, Some(_)) => behind.first().map(|source| {
            let Source { by, address, .. } = source;
            format!("is called a test, but {by} rests on {address}")
        }),
        (Kind::Calibrated, Some(from)) if behind.is_empty() => {
            Some(format!("is called calibrated, but nothing rests on {from}"))
        }
        _ => None,
    }
}
