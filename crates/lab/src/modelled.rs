//! The modelled host: virtual time, the same result everywhere.

use plimsoll_sim::scenario::TraceConfig;
use plimsoll_sim::{Outcome, Profile, Scenario, Trace};
use toml::{Table, Value};

use crate::document::MODELLED;
use crate::error::Error;
use crate::experiment::overlay;
use crate::host::{Figures, Host, Point};

/// `plimsoll-sim` as a host of experiments.
///
/// Settings are a [`Scenario`]. A table `profile` among them is laid over the
/// machine profile, for example `profile.costs.demux.ns`.
#[derive(Clone, Copy, Debug, Default)]
pub struct Modelled;

impl Host for Modelled {
    fn name(&self) -> &'static str {
        MODELLED
    }

    fn run(&self, point: &Point<'_>) -> Result<Figures, Error> {
        let outcome = simulate(point, None)?;
        Ok(outcome.measures().into_iter().collect())
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
        let outcome = simulate(point, Some(config))?;
        Ok(outcome.trace.unwrap_or_default())
    }
}

fn simulate(point: &Point<'_>, trace: Option<TraceConfig>) -> Result<Outcome, Error> {
    let mut settings = point.settings.clone();
    let profile = profile(point, settings.remove("profile"))?;
    let mut scenario: Scenario =
        serde_path_to_error::deserialize(Value::Table(settings)).map_err(|error| {
            let problem = format!("scenario: {}: {}", error.path(), error.inner().message());
            point.error(problem, "correct [scenario] or the curve's `set`")
        })?;
    if trace.is_some() {
        scenario.trace = trace;
    }
    plimsoll_sim::run(&profile, &scenario, point.seed)
        .map_err(|error| point.error(error.to_string(), "correct [scenario] or the curve's `set`"))
}

fn profile(point: &Point<'_>, changes: Option<Value>) -> Result<Profile, Error> {
    let remedy = "name a profile that `plimsoll lab list` shows";
    let profile =
        Profile::named(point.profile()).map_err(|error| point.error(error.to_string(), remedy))?;
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
