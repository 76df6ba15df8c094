//! What an experiment runs on: anything that turns a point into figures.

use std::collections::BTreeMap;

use toml::Table;

use crate::error::Error;
use crate::experiment::{Curve, Experiment};

/// One run: a curve of an experiment at one value of the swept parameter.
#[derive(Clone, Debug)]
pub struct Point<'a> {
    /// The experiment.
    pub experiment: &'a Experiment,
    /// The curve.
    pub curve: &'a Curve,
    /// The value of the swept parameter.
    pub x: f64,
    /// Everything that is set, the swept parameter included.
    pub settings: Table,
    /// Repeats the run.
    pub seed: u64,
}

impl Point<'_> {
    /// The machine profile of this point.
    #[must_use]
    pub fn profile(&self) -> &str {
        let own = self.curve.profile.as_deref();
        own.unwrap_or(&self.experiment.profile)
    }

    /// An error in this point's settings.
    #[must_use]
    pub fn error(&self, problem: impl Into<String>, remedy: impl Into<String>) -> Error {
        let key = format!(
            "curve.{} at {} = {}",
            self.curve.id, self.experiment.sweep.parameter, self.x
        );
        Error::file(&self.experiment.file, key, problem, remedy)
    }
}

/// What a run measured, by name.
pub type Figures = BTreeMap<String, f64>;

/// Something that can run points.
pub trait Host {
    /// What it is, for the report and the cache's keys.
    fn name(&self) -> &'static str;

    /// The machine that its figures are of, for the cache's keys; nothing if they are the
    /// same on every machine.
    fn machine(&self) -> String {
        String::new()
    }

    /// Runs one point.
    ///
    /// # Errors
    ///
    /// The settings make no sense to this host, or the run failed.
    fn run(&self, point: &Point<'_>) -> Result<Figures, Error>;

    /// Runs the points of one curve, from light to heavy. A host that has to be made
    /// ready for a curve does so once.
    ///
    /// # Errors
    ///
    /// As [`Self::run`].
    fn run_curve(&self, points: &[Point<'_>]) -> Result<Vec<Figures>, Error> {
        points.iter().map(|point| self.run(point)).collect()
    }
}
