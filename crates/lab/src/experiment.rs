//! An experiment as data: what is modelled, what is swept, what is measured,
//! and what must come out.
//!
//! One TOML file holds one experiment. It names a machine profile and a base
//! `[scenario]`; each `[[curve]]` lays its own settings over it (usually another
//! receive path), `[sweep]` changes one parameter from point to point, and every
//! `[[claim]]` is an expression over the measured curves with a bound. The bounds
//! are those of the published statement and are never fitted to our results.
//!
//! A file is checked when it is read: names, the sweep, and every claim, which is
//! evaluated once on made-up curves so that a misspelt name shows at once. The
//! scenario is checked by the host that is to run it.

use std::collections::BTreeSet;
use std::sync::Arc;

pub use plimsoll_report::plot::Scale;
use plimsoll_sim::Profile;
use serde::{Deserialize, Serialize};
use toml::Table;

use crate::claim;
use crate::declared::{Cause, Choice, Claim, Revised};
use crate::error::Error;
use crate::flood_model::{Beside, FloodModel};
use crate::settings::{number, overlay, set};

/// One experiment file.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Experiment {
    /// The file it was read from, for messages.
    #[serde(skip)]
    pub file: String,
    /// Unique name; also the file's name without `.toml`.
    pub id: String,
    /// One line.
    pub title: String,
    /// Published figures, tables and statements it reproduces, for example
    /// `MR-E08`; empty for an experiment that no paper has.
    #[serde(default)]
    pub paper: Vec<String>,
    /// Machine profile: costs of the modelled host; empty if nothing is modelled.
    #[serde(default)]
    pub profile: String,
    /// The profile itself, if it is not a built-in one.
    #[serde(skip)]
    pub machine: Option<Arc<Profile>>,
    /// Where it runs.
    #[serde(default)]
    pub host: HostKind,
    /// On real packets: the modelled experiments of the same figures.
    #[serde(default)]
    pub twins: Vec<String>,
    /// Prose for `plimsoll lab explain`.
    pub explain: Explain,
    /// What changes from point to point.
    pub sweep: Sweep,
    /// What is measured at each point; each is one plot of the report.
    #[serde(rename = "measure")]
    pub measures: Vec<Measure>,
    /// What all curves share.
    #[serde(default)]
    pub scenario: Table,
    /// What is compared.
    #[serde(rename = "curve")]
    pub curves: Vec<Curve>,
    /// Numbers of the papers, drawn into the plots.
    #[serde(default)]
    pub published: Vec<Published>,
    /// On real packets: modelled curves that are drawn into its plots.
    #[serde(default)]
    pub beside: Vec<Beside>,
    /// On real packets: the same floods on the model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<FloodModel>,
    /// What of its own settings was chosen by a published result.
    #[serde(default, rename = "choice")]
    pub choices: Vec<Choice>,
    /// What must come out.
    #[serde(default, rename = "claim")]
    pub claims: Vec<Claim>,
    /// Why claims do not hold.
    #[serde(default, rename = "cause")]
    pub causes: Vec<Cause>,
    /// What was changed of its claims and settings.
    #[serde(default)]
    pub revised: Vec<Revised>,
}

/// Where an experiment runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum HostKind {
    /// The modelled host only.
    #[default]
    Modelled,
    /// The modelled host and, beside it, this machine's kernel with real packets,
    /// for those curves that have a receive path there.
    Testbed,
    /// This machine's kernel with real packets. A `[model]` of the same floods may stand beside it.
    Real,
}

/// Prose, one paragraph each.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Explain {
    /// What the paper did, or why the experiment exists.
    pub setup: String,
    /// What the model does instead.
    pub model: String,
    /// Where model and paper differ, and what that means for the claims.
    pub limits: String,
}

/// The parameter that changes from point to point.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Sweep {
    /// Dotted key inside the scenario, for example `source.flood.traffic.rate_pps`;
    /// list elements by their `name`, or by number.
    pub parameter: String,
    /// Further keys that get the same value.
    #[serde(default)]
    pub also: Vec<String>,
    /// What the parameter is, for the plot's axis.
    pub label: String,
    /// Unit of the values; empty for a pure number.
    #[serde(default)]
    pub unit: String,
    /// The values, increasing.
    pub values: Vec<f64>,
    /// Names of the values where they stand for cases, for example workloads.
    #[serde(default)]
    pub names: Vec<String>,
    /// How the axis is drawn.
    #[serde(default)]
    pub scale: Scale,
}

/// One number that every point gives.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Measure {
    /// Name in claims: lower-case letters, digits, underscores.
    pub id: String,
    /// Name of the figure among those a host gives, for example `delivered_pps`.
    pub of: String,
    /// What it is, for the plot's axis.
    pub label: String,
    /// Its unit.
    pub unit: String,
    /// How the axis is drawn.
    #[serde(default)]
    pub scale: Scale,
}

/// One line of the plots.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Curve {
    /// Name in claims: lower-case letters, digits, underscores.
    pub id: String,
    /// Name for a reader.
    pub label: String,
    /// What this curve lays over the scenario. A table with a `kind` replaces the
    /// one below it, any other table is merged key by key. A quoted key may be
    /// dotted like the swept parameter.
    #[serde(default)]
    pub set: Table,
    /// Another profile than the experiment's.
    #[serde(default)]
    pub profile: Option<String>,
    /// The same receive path on real packets, if there is one.
    #[serde(default)]
    pub testbed: Option<TestbedPath>,
}

/// A receive path that exists on the testbed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum TestbedPath {
    /// The kernel as it is: interrupt context, with a holdoff.
    Stock,
    /// The kernel's threaded polling at the lowest priority.
    Threaded,
    /// `plimsoll guard` in front of the stock path.
    Guard,
}

/// Published numbers of one curve.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Published {
    /// The curve they belong to.
    pub curve: String,
    /// What was measured: a measure's id.
    pub measure: String,
    /// Where the numbers stand, for example `LRP-E03`.
    pub from: String,
    /// Swept parameter and measured value.
    pub points: Vec<(f64, f64)>,
}

impl Experiment {
    /// Reads and checks the text of the file `file`.
    ///
    /// # Errors
    ///
    /// The text is no such experiment; the error names file, key and remedy.
    pub fn parse(file: &str, text: &str) -> Result<Self, Error> {
        let deserializer = toml::Deserializer::parse(text).map_err(|error| {
            let before = error.span().map_or("", |span| &text[..span.start]);
            let line = 1 + before.matches('\n').count();
            let message = error.message().to_owned();
            Error::file(file, format!("line {line}"), message, "correct the TOML")
        })?;
        let mut experiment: Self =
            serde_path_to_error::deserialize(deserializer).map_err(|error| {
                let key = error.path().to_string();
                let problem = error.inner().message().to_owned();
                Error::file(file, key, problem, "docs/lab.md lists the keys of a file")
            })?;
        file.clone_into(&mut experiment.file);
        experiment.check(file)?;
        Ok(experiment)
    }

    /// The settings of `curve` at the value `x` of the swept parameter.
    ///
    /// # Errors
    ///
    /// The swept parameter leads through something that is neither table nor list.
    pub fn settings(&self, curve: &Curve, x: f64) -> Result<Table, Error> {
        let file = &self.file;
        let mut settings = self.scenario.clone();
        overlay(&mut settings, &curve.set).map_err(|problem| {
            Error::file(
                file,
                format!("curve.{}.set", curve.id),
                problem,
                PARAMETER_REMEDY,
            )
        })?;
        for key in std::iter::once(&self.sweep.parameter).chain(&self.sweep.also) {
            set(&mut settings, key, number(x)).map_err(|problem| {
                Error::file(file, "sweep.parameter", problem, PARAMETER_REMEDY)
            })?;
        }
        Ok(settings)
    }

    /// The same experiment without `cause`, to ask whether its claims hold then.
    ///
    /// # Errors
    ///
    /// A setting of the cause leads through something that is neither table nor list.
    pub fn without(&self, cause: &Cause) -> Result<Self, Error> {
        let mut without = self.clone();
        let about = |id: &str| cause.curves.is_empty() || cause.curves.iter().any(|one| one == id);
        for curve in without.curves.iter_mut().filter(|one| about(&one.id)) {
            overlay(&mut curve.set, &cause.set).map_err(|problem| {
                let key = format!("cause.{}.set", cause.name);
                Error::file(&self.file, key, problem, PARAMETER_REMEDY)
            })?;
        }
        Ok(without)
    }

    /// Why the claim `id` does not hold, if that was traced.
    #[must_use]
    pub fn cause(&self, id: &str) -> Option<&Cause> {
        let about = |cause: &&Cause| cause.claims.iter().any(|claim| claim == id);
        self.causes.iter().find(about)
    }

    fn check(&self, file: &str) -> Result<(), Error> {
        self.check_names(file)?;
        self.check_host(file)?;
        self.sweep.check(file)?;
        let mut model = self.model.iter();
        model.try_for_each(|model| model.check(file, self))?;
        for published in &self.published {
            let key = format!("published.{}", published.curve);
            if self.curve(&published.curve).is_none() {
                let remedy = format!("use one of the curves {}", self.curve_ids());
                return Err(Error::file(file, key, "there is no such curve", remedy));
            }
            if self.measure(&published.measure).is_none() {
                let remedy = format!("use one of the measures {}", self.measure_ids());
                return Err(Error::file(file, key, "there is no such measure", remedy));
            }
        }
        for revised in &self.revised {
            revised.check(file)?;
        }
        for (index, cause) in self.causes.iter().enumerate() {
            cause.check(file, &self.claims)?;
            let before = self.causes[..index].iter().flat_map(|one| &one.claims);
            if let Some(twice) = { before }.find(|id| cause.claims.contains(id)) {
                let key = format!("cause.{}", cause.name);
                let problem = format!("claim {twice} has two causes");
                return Err(Error::file(file, key, problem, "tell both in one sentence"));
            }
        }
        claim::check(file, self)
    }

    fn check_names(&self, file: &str) -> Result<(), Error> {
        let stem = file.rsplit('/').next().unwrap_or(file);
        if stem.trim_end_matches(".toml") != self.id {
            let remedy = format!("name the file {}.toml or change the id", self.id);
            return Err(Error::file(
                file,
                "id",
                "differs from the file's name",
                remedy,
            ));
        }
        if self.measures.is_empty() || self.curves.is_empty() {
            let remedy = "give at least one [[measure]] and one [[curve]]";
            return Err(Error::file(file, "measure", "nothing to measure", remedy));
        }
        let measures = self.measures.iter().map(|measure| ("measure", &measure.id));
        let curves = self.curves.iter().map(|curve| ("curve", &curve.id));
        let mut seen = BTreeSet::new();
        for (list, id) in measures.chain(curves) {
            let key = format!("{list}.{id}.id");
            if !is_name(id) {
                let problem = "is no name for expressions";
                let remedy = "use lower-case letters, digits and underscores, and no word of \
                              the expression language such as new or static";
                return Err(Error::file(file, key, problem, remedy));
            }
            if !seen.insert((list, id)) {
                return Err(Error::file(file, key, "occurs twice", "rename one of them"));
            }
        }
        Ok(())
    }

    /// A machine profile belongs to a model, and to nothing else.
    fn check_host(&self, file: &str) -> Result<(), Error> {
        let real = self.host == HostKind::Real;
        let (key, problem, remedy) = if real != self.profile.is_empty() {
            let remedy = "name a machine profile, or use host = \"real\" without one";
            ("profile", "does not fit the host", remedy)
        } else if real && self.curves.iter().any(|curve| curve.testbed.is_some()) {
            let remedy = "leave testbed out: all curves of host = \"real\" are real";
            ("curve.testbed", "does not fit the host", remedy)
        } else if let Some(one) = self.beside.iter().find(|one| !self.can_draw(one)) {
            let remedy = "draw a twin into one of the measures, with units above 0";
            (one.twin.as_str(), "cannot be drawn beside", remedy)
        } else if !real && (!self.twins.is_empty() || self.model.is_some()) {
            let remedy = "use twins and model in an experiment with host = \"real\"";
            ("twins", "is about real packets", remedy)
        } else {
            return Ok(());
        };
        Err(Error::file(file, key, problem, remedy))
    }

    fn can_draw(&self, one: &Beside) -> bool {
        let units = one.unit > 0.0 && one.measure_unit > 0.0;
        units && self.twins.contains(&one.twin) && self.measure(&one.measure).is_some()
    }

    /// A machine profile, or real packets.
    #[must_use]
    pub fn runs_on(&self) -> String {
        match self.host {
            HostKind::Real => "real packets".to_owned(),
            HostKind::Modelled | HostKind::Testbed => format!("profile {}", self.profile),
        }
    }

    /// The measure with this id.
    #[must_use]
    pub fn measure(&self, id: &str) -> Option<&Measure> {
        self.measures.iter().find(|measure| measure.id == id)
    }

    /// The curve with this id.
    #[must_use]
    pub fn curve(&self, id: &str) -> Option<&Curve> {
        self.curves.iter().find(|curve| curve.id == id)
    }

    pub(crate) fn curve_ids(&self) -> String {
        let ids: Vec<&str> = self.curves.iter().map(|curve| curve.id.as_str()).collect();
        ids.join(", ")
    }

    pub(crate) fn measure_ids(&self) -> String {
        let ids = self.measures.iter().map(|measure| measure.id.as_str());
        ids.collect::<Vec<_>>().join(", ")
    }
}

impl Curve {
    /// Name of the same curve measured with real packets.
    #[must_use]
    pub fn testbed_id(&self) -> String {
        format!("{}_testbed", self.id)
    }
}

impl Sweep {
    /// Whether there is a line to draw from value to value, rather than a table of
    /// cases.
    #[must_use]
    pub fn is_a_range(&self) -> bool {
        self.values.len() > 1 && self.names.is_empty()
    }

    pub(crate) fn check(&self, file: &str) -> Result<(), Error> {
        let increasing = self.values.windows(2).all(|pair| pair[0] < pair[1]);
        if self.values.is_empty() || !increasing || self.values.iter().any(|x| !x.is_finite()) {
            let remedy = "list at least one finite number, each greater than the one before";
            return Err(Error::file(
                file,
                "sweep.values",
                "are not increasing",
                remedy,
            ));
        }
        if !self.names.is_empty() && self.names.len() != self.values.len() {
            let problem = format!(
                "{} names for {} values",
                self.names.len(),
                self.values.len()
            );
            return Err(Error::file(
                file,
                "sweep.names",
                problem,
                "give one name per value or none",
            ));
        }
        if self.scale == Scale::Log && self.values[0] <= 0.0 {
            let remedy = "start above 0 or use scale = \"linear\"";
            return Err(Error::file(
                file,
                "sweep.scale",
                "log of a value ≤ 0",
                remedy,
            ));
        }
        Ok(())
    }

    /// The value as a reader should see it.
    #[must_use]
    pub fn name(&self, x: f64) -> String {
        let position = self.values.iter().position(|value| *value == x);
        match position.and_then(|index| self.names.get(index)) {
            Some(name) => name.clone(),
            None => format!("{x}"),
        }
    }
}

/// Whether an expression can name a curve or measure like this.
fn is_name(id: &str) -> bool {
    let plain = |character: char| {
        character.is_ascii_lowercase() || character.is_ascii_digit() || character == '_'
    };
    id.starts_with(|first: char| first.is_ascii_lowercase())
        && id.chars().all(plain)
        && claim::is_variable(id)
}

const PARAMETER_REMEDY: &str =
    "name a key of [scenario] or of every curve's `set`, list elements by name or number";
