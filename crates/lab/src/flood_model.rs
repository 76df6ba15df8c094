//! The floods of an experiment on real packets, on the model: at each point, round by round,
//! the rate that the generator has offered.
//!
//! The rates are multiples of what this machine takes, so they are known only when the real
//! packets have been measured. The model comes after them. Curves of a paper's own machine
//! can only be drawn [beside](Beside) real ones.

use plimsoll_sim::Profile;
use serde::{Deserialize, Serialize};
use toml::Table;

use crate::cache::Cache;
use crate::error::Error;
use crate::experiment::{Curve, Experiment};
use crate::host::{Figures, Host};
use crate::runner::{Measured, cached, measured_alone, point};

/// How an experiment on real packets is modelled.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct FloodModel {
    /// Machine profile.
    pub profile: String,
    /// Dotted key of its scenario that gets the offered packets per second.
    pub rate: String,
    /// What its curves share: a scenario of `plimsoll-sim`.
    pub scenario: Table,
    /// What is modelled.
    #[serde(rename = "curve")]
    pub curves: Vec<ModelCurve>,
}

/// One curve of real packets on one modelled path.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct ModelCurve {
    /// Its name.
    pub id: String,
    /// The curve of real packets that meets the same floods.
    pub of: String,
    /// Name for a reader.
    pub label: String,
    /// What it lays over the scenario.
    #[serde(default)]
    pub set: Table,
}

/// Modelled curves beside real ones: rates as multiples of the paper's unit.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Beside {
    /// The plot: a measure's id.
    pub measure: String,
    /// One of the twins.
    pub twin: String,
    /// Its curves.
    pub curves: Vec<String>,
    /// The id of its measure.
    pub of: String,
    /// What its swept parameter is divided by.
    pub unit: f64,
    /// What its measure is divided by. Default 1.
    #[serde(default = "one")]
    pub measure_unit: f64,
}

fn one() -> f64 {
    1.0
}

/// What the generator has offered, among the figures of real packets.
pub(crate) const OFFERED: &str = "offered_pps";

impl FloodModel {
    /// Checks that its curves have floods to meet, and names of their own.
    pub(crate) fn check(&self, file: &str, experiment: &Experiment) -> Result<(), Error> {
        for (index, curve) in self.curves.iter().enumerate() {
            let before = self.curves[..index].iter().any(|one| one.id == curve.id);
            let problem = if experiment.curve(&curve.of).is_none() {
                "there is no such curve of real packets"
            } else if before || experiment.curve(&curve.id).is_some() {
                "occurs twice"
            } else {
                continue;
            };
            let key = format!("model.curve.{}", curve.id);
            let remedy = format!("let it be of one of {}", experiment.curve_ids());
            return Err(Error::file(file, key, problem, remedy));
        }
        Ok(())
    }
}

/// All modelled curves of an experiment whose real ones are `real`.
pub(crate) fn run(
    experiment: &Experiment,
    real: &[Measured],
    host: &dyn Host,
    seed: u64,
    cache: Option<&Cache>,
) -> Result<Vec<Measured>, Error> {
    let Some(model) = &experiment.model else {
        return Ok(Vec::new());
    };
    let twin = twin(experiment, model);
    let curves = model.curves.iter().zip(&twin.curves);
    let measured = curves.map(|(of, curve)| {
        let real = real.iter().find(|real| real.id == of.of);
        let real = real.expect("checked when the file was read");
        let points = (0..real.points.len()).map(|index| {
            let floods = floods(experiment, real, index).into_iter();
            let rounds = floods.map(|(round, offered_pps)| {
                let seed = seed.wrapping_add(round);
                let mut figures = cached(host, &point(&twin, curve, offered_pps, seed)?, cache)?;
                if round > 0 {
                    measured_alone(experiment, &mut figures);
                }
                Ok(figures)
            });
            rounds.collect::<Result<Vec<_>, Error>>()
        });
        let taken = points.collect::<Result<Vec<_>, Error>>()?;
        let (id, label) = (curve.id.clone(), format!("{} (model)", curve.label));
        let measured = Measured::new(experiment, id, label, host.name(), taken);
        let why = "its real packets were not measured".to_owned();
        let why = measured.points.is_empty().then_some(why);
        Ok(Measured { why, ..measured })
    });
    measured.collect()
}

/// Pairs of modelled and real curve.
pub(crate) fn pairs(experiment: &Experiment) -> impl Iterator<Item = (&str, &str)> {
    let curves = experiment.model.iter().flat_map(|model| &model.curves);
    curves.map(|curve| (curve.id.as_str(), curve.of.as_str()))
}

/// The machine of an experiment's modelled floods.
pub(crate) fn profile(experiment: &Experiment) -> Result<Option<Profile>, Error> {
    let named = |model: &FloodModel| {
        experiment.profile_named(&model.profile).map_err(|error| {
            let remedy = "name one of the built-in profiles";
            Error::file(&experiment.file, "model.profile", error.to_string(), remedy)
        })
    };
    experiment.model.as_ref().map(named).transpose()
}

/// The modelled experiment.
fn twin(experiment: &Experiment, model: &FloodModel) -> Experiment {
    let mut twin = experiment.clone();
    twin.profile.clone_from(&model.profile);
    twin.scenario.clone_from(&model.scenario);
    twin.sweep.parameter.clone_from(&model.rate);
    let curve = |one: &ModelCurve| Curve {
        id: one.id.clone(),
        label: one.label.clone(),
        set: one.set.clone(),
        profile: None,
        testbed: None,
    };
    twin.curves = model.curves.iter().map(curve).collect();
    twin
}

/// Rounds in which the point was measured, and what was offered in whole packets per second.
fn floods(experiment: &Experiment, real: &Measured, index: usize) -> Vec<(u64, f64)> {
    let first = real.points.get(index).map(|(_, figures)| figures);
    let others = real.others.get(index).into_iter().flatten();
    let rounds = first.into_iter().chain(others).zip(0..);
    let offered = rounds.filter(|(figures, _)| is_measured(experiment, figures));
    offered
        .filter_map(|(figures, round)| Some((round, figures.get(OFFERED)?.round())))
        .collect()
}

/// Of a load that the generator could not offer, only that and the unit are told.
fn is_measured(experiment: &Experiment, figures: &Figures) -> bool {
    let mut wanted = experiment.measures.iter().map(|measure| &measure.of);
    wanted.any(|name| !["unit_pps", OFFERED].contains(&name.as_str()) && figures.contains_key(name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::Point;
    use crate::runner::{Options, Run};
    use crate::{Catalogue, distance, distances};

    /// Real packets: the unit is another in each round, and this multiple of it cannot be
    /// offered.
    struct Real(f64);

    impl Host for Real {
        fn name(&self) -> &'static str {
            "testbed"
        }

        fn run(&self, point: &Point<'_>) -> Result<Figures, Error> {
            let offered = point.x * 100_000.0 * point.seed as f64;
            let mut figures = vec![(OFFERED, offered)];
            if point.x != self.0 {
                figures.push(("consumer.sink.delivered_pps", offered));
            }
            let named = figures.into_iter();
            Ok(named
                .map(|(name, value)| (name.to_owned(), value))
                .collect())
        }
    }

    /// Delivers half of a flood.
    struct Half;

    impl Host for Half {
        fn name(&self) -> &'static str {
            crate::document::MODELLED
        }

        fn run(&self, point: &Point<'_>) -> Result<Figures, Error> {
            let rate = point.settings["source"][0]["traffic"]["rate_pps"].clone();
            let delivered = rate.as_integer().unwrap() as f64 / 2.0;
            let known = point.experiment.profile_named(point.profile()).is_ok();
            assert!(known, "{}", point.profile());
            Ok([("consumer.sink.delivered_pps".to_owned(), delivered)].into())
        }
    }

    fn experiment() -> Experiment {
        let catalogue = Catalogue::built_in().unwrap();
        catalogue.get("real-lrp-fig3").unwrap().clone()
    }

    fn measured(not_offered: f64) -> Run {
        let real = Real(not_offered);
        let options = Options {
            seed: 1,
            seeds: 2,
            testbed: Some(&real),
            ..Options::default()
        };
        let runs = crate::run(&[experiment()], &Half, &options, &|_, _| {});
        runs.unwrap().remove(0)
    }

    #[test]
    fn the_model_meets_the_rates_that_were_offered_round_by_round() {
        let run = measured(4.0);
        let model = run.curves.iter().find(|curve| curve.id == "napi").unwrap();
        let delivered = |index| model.estimate(index, "consumer.sink.delivered_pps");
        // 0.8 times the units of both rounds, halved.
        assert_eq!(delivered(0).unwrap().value, 60_000.0);
        assert_eq!(
            delivered(5),
            None,
            "what could not be offered is not modelled"
        );
    }

    #[test]
    fn each_modelled_curve_has_its_distance() {
        let run = measured(4.0);
        let all = distances(&run);
        let of: Vec<&str> = all.iter().map(|one| one.curve.as_str()).collect();
        let expected = ["napi", "napi_merged", "endless", "guard_off", "governed"];
        assert_eq!(of, expected);
        assert!(all.iter().all(|one| one.furthest == Some(2.0)), "{all:?}");
        assert!(
            distance::text(&run).contains("governed"),
            "{}",
            distance::text(&run)
        );
    }

    /// The model's points had moved up by one, and each was compared with the load before it.
    #[test]
    fn a_load_that_was_not_offered_moves_no_other() {
        for one in distances(&measured(1.57)) {
            let loads: Vec<f64> = one.points.iter().map(|point| point.x).collect();
            assert_eq!(loads, [0.8, 1.16, 2.35, 3.13, 4.0], "{}", one.curve);
            for point in &one.points {
                assert!((point.ratio.unwrap() - 2.0).abs() < 1e-9, "{point:?}");
            }
        }
    }

    #[test]
    fn of_a_load_that_was_not_offered_nothing_is_claimed() {
        let verdict = |not_offered| {
            let verdicts = measured(not_offered).verdicts;
            let livelock = verdicts.into_iter().find(|one| one.id == "livelock");
            let livelock = livelock.unwrap();
            (livelock.holds, livelock.why.unwrap())
        };
        let (holds, why) = verdict(4.0);
        assert_eq!(holds, None, "{why}");
        assert!(why.contains("up to 3.13"), "{why}");
        assert_eq!(verdict(1.57).0, Some(false), "it was flooded to the end");
    }

    #[test]
    fn the_floods_move_to_another_machine() {
        let mut profile = Profile::named("modern-veth").unwrap();
        profile.name = "today".to_owned();
        let moved = experiment().on(&std::sync::Arc::new(profile));
        assert_eq!(super::profile(&moved).unwrap().unwrap().name, "today");
        assert!(
            moved.profile.is_empty(),
            "the claims are about real packets"
        );
    }

    #[test]
    fn a_model_of_nothing_is_answered_with_the_curves() {
        let told = |change: fn(&mut FloodModel)| {
            let experiment = experiment();
            let mut model = experiment.model.clone().unwrap();
            change(&mut model);
            model.check("file", &experiment).unwrap_err().to_string()
        };
        let text = told(|model| model.curves[0].of = "magic".to_owned());
        assert!(text.contains("stock, early_demux, guard"), "{text}");
        let text = told(|model| model.curves[1].id = "napi".to_owned());
        assert!(text.contains("twice"), "{text}");
    }

    /// Settings that cannot be would be found only after minutes of real packets.
    #[test]
    fn every_model_in_the_files_runs() {
        let catalogue = Catalogue::built_in().unwrap();
        let mut models = 0;
        for experiment in catalogue.select(&["real".to_owned()]).unwrap() {
            let Some(model) = &experiment.model else {
                continue;
            };
            let twin = twin(&experiment, model);
            for curve in &twin.curves {
                let point = point(&twin, curve, 50_000.0, 1).unwrap();
                let figures = crate::Modelled.run(&point).unwrap();
                let delivered = figures["consumer.sink.delivered_pps"];
                assert!(delivered > 25_000.0, "{}: {delivered}", curve.id);
                models += 1;
            }
        }
        assert!(models >= 9, "{models}");
    }
}
