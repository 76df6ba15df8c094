//! The modelled host: virtual time, the same result everywhere.

use plimsoll_sim::scenario::TraceConfig;
use plimsoll_sim::{Outcome, Profile, Scenario, Trace, round_trip, timers, transfer};
use serde::de::DeserializeOwned;
use toml::{Table, Value};

use crate::document::MODELLED;
use crate::error::Error;
use crate::host::{Figures, Host, Point};
use crate::settings::overlay;

/// `plimsoll-sim` as a host of experiments.
///
/// Settings are a [`Scenario`], or with `model` another one of its models:
/// `timers`, `transfer` or `round-trip`. A table `profile` among them is laid over
/// the machine profile, for example `profile.costs.demux.ns`.
#[derive(Clone, Copy, Debug, Default)]
pub struct Modelled;

impl Host for Modelled {
    fn name(&self) -> &'static str {
        MODELLED
    }

    fn run(&self, point: &Point<'_>) -> Result<Figures, Error> {
        let mut settings = point.settings.clone();
        let figures = match settings.remove("model") {
            None => simulate(point, settings, None)?.measures(),
            Some(model) => other_model(point, &model, settings)?,
        };
        Ok(figures.into_iter().collect())
    }
}

impl Modelled {
    /// Runs one point and records what happens from `start_ms` after the start of
    /// the run, for `duration_ms`, up to `events_max` events.
    ///
    /// # Errors
    ///
    /// As [`Host::run`].
    pub fn trace(&self, point: &Point<'_>, config: TraceConfig) -> Result<Trace, Error> {
        let outcome = simulate(point, point.settings.clone(), Some(config))?;
        Ok(outcome.trace.unwrap_or_default())
    }
}

/// Names of the machine profiles.
#[must_use]
pub fn profiles() -> Vec<&'static str> {
    Profile::names().collect()
}

const REMEDY: &str = "correct [scenario] or the curve's `set`";

fn simulate(
    point: &Point<'_>,
    mut settings: Table,
    trace: Option<TraceConfig>,
) -> Result<Outcome, Error> {
    let profile = profile(point, settings.remove("profile"))?;
    let mut scenario: Scenario = read(point, settings)?;
    if trace.is_some() {
        scenario.trace = trace;
    }
    plimsoll_sim::run(&profile, &scenario, point.seed).map_err(|error| match error {
        source @ plimsoll_sim::Error::Imbalance { .. } => Error::Model {
            what: format!(
                "{}, curve {} at {}",
                point.experiment.id, point.curve.id, point.x
            ),
            source,
        },
        error => point.error(error.to_string(), REMEDY),
    })
}

/// The models that are no host receiving packets.
fn other_model(
    point: &Point<'_>,
    model: &Value,
    mut settings: Table,
) -> Result<Vec<(String, f64)>, Error> {
    let profile = profile(point, settings.remove("profile"))?;
    let figures = match model.as_str() {
        Some("timers") => timers::run(&profile, &read(point, settings)?, point.seed),
        Some("transfer") => transfer::run(&read(point, settings)?),
        Some("round-trip") => round_trip::run(&profile, &read(point, settings)?),
        _ => {
            let remedy = "use \"timers\", \"transfer\", \"round-trip\", or none for a host";
            return Err(point.error(format!("scenario: there is no model {model}"), remedy));
        }
    };
    figures.map_err(|error| point.error(error.to_string(), REMEDY))
}

fn read<T: DeserializeOwned>(point: &Point<'_>, settings: Table) -> Result<T, Error> {
    serde_path_to_error::deserialize(Value::Table(settings)).map_err(|error| {
        let problem = format!("scenario: {}: {}", error.path(), error.inner().message());
        point.error(problem, REMEDY)
    })
}

fn profile(point: &Point<'_>, changes: Option<Value>) -> Result<Profile, Error> {
    let remedy = "name a profile that `plimsoll lab list` shows";
    let profile = point.experiment.profile_named(point.profile());
    let profile = profile.map_err(|error| point.error(error.to_string(), remedy))?;
    let Some(Value::Table(changes)) = changes else {
        return Ok(profile);
    };
    let remedy = "name a key of the machine profile, for example profile.costs.demux.ns";
    let wrong = |problem: String| point.error(problem, remedy);
    let mut table = Table::try_from(&profile).map_err(|error| wrong(error.to_string()))?;
    overlay(&mut table, &changes).map_err(wrong)?;
    Profile::from_toml(point.profile(), &table.to_string())
        .map_err(|error| wrong(error.to_string()))
}
