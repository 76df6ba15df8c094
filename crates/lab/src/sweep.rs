//! Any parameter over any range, with the curves of an experiment.

use std::collections::BTreeSet;

use toml::Value;

use crate::error::Error;
use crate::experiment::{Experiment, Measure, Scale, Sweep};
use crate::runner::Run;

/// What is swept instead of the experiment's own parameter.
#[derive(Clone, Debug, Default)]
pub struct SweepPlan {
    /// Dotted key inside the scenario, or `profile.…`.
    pub parameter: String,
    /// Its values; any order.
    pub values: Vec<f64>,
    /// Drawn on a logarithmic axis.
    pub log: bool,
    /// Other settings, `KEY=VALUE` with TOML values; they go over the curves' own.
    pub settings: Vec<String>,
    /// Only these curves; none means all.
    pub curves: Vec<String>,
    /// Figures to measure in addition to the experiment's, by name.
    pub figures: Vec<String>,
}

impl Experiment {
    /// This experiment with another sweep and without claims, which are about its
    /// own.
    ///
    /// # Errors
    ///
    /// There is no such curve, a setting is not `KEY=VALUE`, there is no value, or one
    /// that a logarithmic axis cannot have.
    pub fn with_sweep(&self, plan: &SweepPlan) -> Result<Self, Error> {
        let mut experiment = self.clone();
        experiment.claims.clear();
        experiment.published.clear();
        if plan.values.is_empty() {
            let remedy = "give --values, or --from and --to".to_owned();
            return Err(unknown("sweep of", &plan.parameter, remedy));
        }
        if plan.log && !plan.values.iter().all(|value| *value > 0.0) {
            let remedy = "give values above 0, or leave out --log".to_owned();
            return Err(unknown("logarithmic sweep of", &plan.parameter, remedy));
        }
        let mut values = plan.values.clone();
        values.sort_by(f64::total_cmp);
        values.dedup();
        experiment.sweep = Sweep {
            parameter: plan.parameter.clone(),
            also: Vec::new(),
            label: plan.parameter.clone(),
            unit: String::new(),
            values,
            names: Vec::new(),
            scale: if plan.log { Scale::Log } else { Scale::Linear },
        };
        experiment.sweep.check("sweep")?;
        for id in &plan.curves {
            if self.curve(id).is_none() {
                return Err(unknown(
                    "curve",
                    id,
                    format!("use one of {}", self.curve_ids()),
                ));
            }
        }
        if !plan.curves.is_empty() {
            experiment
                .curves
                .retain(|curve| plan.curves.contains(&curve.id));
        }
        for setting in &plan.settings {
            let (key, value) = parse(setting)?;
            for curve in &mut experiment.curves {
                curve.set.insert(key.clone(), value.clone());
            }
        }
        for figure in &plan.figures {
            experiment.measures.push(Measure {
                id: figure.replace(|letter: char| !letter.is_ascii_alphanumeric(), "_"),
                of: figure.clone(),
                label: figure.clone(),
                unit: String::new(),
                scale: Scale::Linear,
            });
        }
        Ok(experiment)
    }
}

impl SweepPlan {
    /// Says so if a figure that was asked for has no value anywhere.
    ///
    /// # Errors
    ///
    /// No run gave such a figure; the error lists those that there are.
    pub fn check_figures(&self, runs: &[Run]) -> Result<(), Error> {
        let curves = runs.iter().flat_map(|run| &run.curves);
        let points: Vec<_> = curves.flat_map(|curve| &curve.points).collect();
        let known: BTreeSet<&str> = points
            .iter()
            .flat_map(|(_, figures)| figures.keys().map(String::as_str))
            .collect();
        let missing = self
            .figures
            .iter()
            .find(|one| !known.contains(one.as_str()));
        missing.map_or(Ok(()), |figure| {
            let known = known.into_iter().collect::<Vec<_>>().join(", ");
            Err(unknown("figure", figure, format!("use one of {known}")))
        })
    }
}

fn parse(setting: &str) -> Result<(String, Value), Error> {
    let wrong = || {
        unknown(
            "setting",
            setting,
            "write KEY=VALUE, VALUE as in TOML".to_owned(),
        )
    };
    let (key, value) = setting.split_once('=').ok_or_else(wrong)?;
    let table: toml::Table = toml::from_str(&format!("value = {value}")).map_err(|_| wrong())?;
    let value = table.get("value").cloned().ok_or_else(wrong)?;
    Ok((key.trim().to_owned(), value))
}

fn unknown(what: &'static str, given: &str, remedy: String) -> Error {
    Error::Unknown {
        what,
        given: given.to_owned(),
        remedy,
    }
}

/// `steps` values from `from` to `to`, at equal distances or equal ratios.
#[must_use]
pub fn range(from: f64, to: f64, steps: u32, log: bool) -> Vec<f64> {
    let last = f64::from(steps.max(2) - 1);
    let value = |step: u32| {
        let part = f64::from(step) / last;
        if log {
            from * libm::pow(to / from, part)
        } else {
            from + (to - from) * part
        }
    };
    (0..steps).map(value).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Catalogue;

    fn plan(settings: &[&str]) -> SweepPlan {
        SweepPlan {
            parameter: "path.quota".to_owned(),
            values: vec![8.0, 2.0, 2.0],
            settings: settings.iter().map(|&setting| setting.to_owned()).collect(),
            ..SweepPlan::default()
        }
    }

    #[test]
    fn a_sweep_replaces_the_experiments_own_and_its_claims() {
        let catalogue = Catalogue::built_in().unwrap();
        let base = &catalogue.all()[0];
        let swept = base
            .with_sweep(&plan(&["cpus=2", "path={ kind = 'x' }"]))
            .unwrap();
        assert_eq!(swept.sweep.values, [2.0, 8.0]);
        assert!(swept.claims.is_empty());
        let settings = swept.settings(&swept.curves[0], 8.0).unwrap();
        assert_eq!(settings["cpus"].as_integer(), Some(2));
        assert_eq!(settings["path"]["kind"].as_str(), Some("x"));
        assert_eq!(settings["path"]["quota"].as_integer(), Some(8));
    }

    #[test]
    fn what_cannot_be_set_is_said() {
        let catalogue = Catalogue::built_in().unwrap();
        let base = &catalogue.all()[0];
        for setting in ["cpus", "cpus=="] {
            let error = base.with_sweep(&plan(&[setting])).unwrap_err();
            assert!(error.to_string().contains("KEY=VALUE"), "{error}");
        }
        let mut plan = plan(&[]);
        plan.curves = vec!["none".to_owned()];
        assert!(base.with_sweep(&plan).unwrap_err().is_usage());
        plan.curves.clear();
        plan.log = true;
        plan.values = vec![0.0, 1.0];
        let error = base.with_sweep(&plan).unwrap_err();
        assert!(error.to_string().contains("above 0"), "{error}");
        plan.values.clear();
        let error = base.with_sweep(&plan).unwrap_err();
        assert!(error.is_usage() && error.to_string().contains("--values"));
    }

    #[test]
    fn ranges_include_both_ends() {
        assert_eq!(range(2.0, 20.0, 3, false), [2.0, 11.0, 20.0]);
        let log = range(1.0, 100.0, 3, true);
        assert!((log[1] - 10.0).abs() < 1e-9 && log[2] == 100.0);
        assert_eq!(range(5.0, 9.0, 1, false), [5.0]);
    }
}
