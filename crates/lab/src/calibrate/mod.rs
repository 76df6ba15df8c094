//! A machine profile of measured costs: trials in, the text of a profile out.
//!
//! Whoever can reach a machine runs the trials ([`TRIALS`]); `derived` says which number
//! of the profile follows from which of them, and this file writes it down in the form of every
//! profile. Each measured number names its trial, its lowest, median and highest value
//! over the repeats, the date, the kernel and the machine. What no trial measures keeps
//! the value of `BASE` and is called `assumed`, with the reason.
//!
//! **Limits.** A number that is a difference of two trials is taken per repeat, so that
//! both saw the machine in the same state; one that comes out below 0 is written as 0
//! and says so. A cost is one number: how it depends on load or caches is lost.

mod derived;
mod trials;

use std::collections::BTreeMap;
use std::fmt::Write as _;

use plimsoll_report::{Machine, median};
use plimsoll_sim::Profile;
use plimsoll_sim::profile::Cost;
use serde::Serialize;
use toml::Value;

use self::derived::{COSTS, Derived, PARTS, QUEUES, Values};
pub use self::trials::TRIALS;
use crate::error::Error;

/// The profile that gives what no trial measures.
const BASE: &str = "modern-veth";

/// What one repeat of all trials measured, by trial.
pub type Round = BTreeMap<&'static str, f64>;

/// Where and when.
#[derive(Clone, Debug, Serialize)]
pub struct Place {
    /// The day, as `2026-11-24`.
    pub date: String,
    /// The machine.
    #[serde(flatten)]
    pub machine: Machine,
    /// How long each trial measured, in ms.
    pub window_ms: f64,
}

/// The trials of one machine.
#[derive(Clone, Debug, Serialize)]
pub struct Calibration {
    place: Place,
    trials: Vec<Trial>,
}

/// One trial.
#[derive(Clone, Debug, Serialize)]
struct Trial {
    id: &'static str,
    what: &'static str,
    unit: &'static str,
    /// By repeat.
    values: Vec<f64>,
    #[serde(flatten)]
    spread: Spread,
}

/// The repeats of a number.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
struct Spread {
    lowest: f64,
    median: f64,
    highest: f64,
}

impl Spread {
    fn of(values: &[f64]) -> Self {
        Self {
            lowest: values.iter().copied().fold(f64::INFINITY, f64::min),
            median: median(values).unwrap_or(f64::NAN),
            highest: values.iter().copied().fold(f64::NEG_INFINITY, f64::max),
        }
    }

    fn text(self, unit: &str) -> String {
        let Self {
            lowest,
            median,
            highest,
        } = self;
        format!("lowest {lowest:.0}, median {median:.0}, highest {highest:.0} {unit}")
    }
}

impl Calibration {
    /// The trials of these rounds.
    ///
    /// # Errors
    ///
    /// There is no round, or a round lacks a trial.
    pub fn new(place: Place, rounds: &[Round]) -> Result<Self, Error> {
        let trial = |&(id, unit, what): &(&'static str, &'static str, &'static str)| {
            let values = rounds.iter().map(|round| round.get(id).copied());
            let values: Vec<f64> = values.flatten().filter(|one| one.is_finite()).collect();
            if rounds.is_empty() || values.len() < rounds.len() {
                return Err(Error::Calibration { trial: id });
            }
            Ok(Trial {
                id,
                what,
                unit,
                spread: Spread::of(&values),
                values,
            })
        };
        let trials = TRIALS.iter().map(trial).collect::<Result<_, _>>()?;
        Ok(Self { place, trials })
    }

    /// The trials, for a person.
    #[must_use]
    pub fn table(&self) -> String {
        let mut text = format!(
            "{:<12}{:>9}{:>9}{:>9}  {:<8} what\n",
            "trial", "lowest", "median", "highest", "unit"
        );
        for trial in &self.trials {
            let Trial {
                id,
                what,
                unit,
                spread,
                ..
            } = trial;
            let _ = writeln!(
                text,
                "{id:<12}{:>9.0}{:>9.0}{:>9.0}  {unit:<8} {what}",
                spread.lowest, spread.median, spread.highest
            );
        }
        text
    }

    /// The machine profile `name`, as the text of a file.
    ///
    /// # Errors
    ///
    /// The text is no profile: our own mistake.
    pub fn profile(&self, name: &str) -> Result<String, Error> {
        let mistake = |source| Error::Model {
            what: format!("the profile {name}"),
            source,
        };
        let base = Profile::named(BASE).map_err(mistake)?;
        let text = self.text(name, &base);
        Profile::from_toml(name, &text).map_err(mistake)?;
        Ok(text)
    }

    fn text(&self, name: &str, base: &Profile) -> String {
        let Place {
            date, window_ms, ..
        } = &self.place;
        let repeats = self.repeats();
        let mut text = format!("# Written by `plimsoll lab calibrate` on {date}.\n");
        let quoted = |text: &str| Value::String(text.to_owned()).to_string();
        let title = format!("one CPU of this machine, {}, veth pair", self.machine());
        let paper = format!(
            "measured on {date}: {repeats} repeats of {window_ms} ms each. Metering is part of what it \
             measures, some 50 ns for each interrupt. clock_hz, quantum_ms and scheduler are not measured: \
             they are assumed, as in {BASE}"
        );
        for (key, value) in [("name", name), ("title", &title), ("paper", &paper)] {
            let _ = writeln!(text, "{key} = {}", quoted(value));
        }
        for key in ["clock_hz", "quantum_ms", "scheduler"] {
            let table = toml::Table::try_from(base).unwrap_or_default();
            let value = table.get(key).map(Value::to_string);
            let _ = writeln!(text, "{key} = {}", value.unwrap_or_default());
        }
        text.push_str("\n[costs]\n");
        for (cost, given) in &base.costs {
            let Cost { ns, source } = self.cost(cost, given, base);
            let source = quoted(&source);
            let _ = writeln!(text, "{cost} = {{ ns = {ns}, source = {source} }}");
        }
        text.push_str("\n[queues]\n");
        for (queue, given) in &base.queues {
            let derived = QUEUES.iter().find(|derived| derived.name == queue);
            let (packets, source) = match derived {
                Some(derived) => self.number(derived, "packets", base),
                None => (given.packets.into(), not_measured(&given.source)),
            };
            let (packets, source) = (packets.max(1), quoted(&source));
            let _ = writeln!(
                text,
                "{queue} = {{ packets = {packets}, source = {source} }}"
            );
        }
        text
    }

    fn cost(&self, name: &str, given: &Cost, base: &Profile) -> Cost {
        if let Some(derived) = COSTS.iter().find(|derived| derived.name == name) {
            let (ns, source) = self.number(derived, "ns", base);
            return Cost { ns, source };
        }
        if let Some((_, part)) = PARTS.iter().find(|(part, _)| *part == name) {
            let source = format!("measured: {part}; {}", self.when());
            return Cost { ns: 0, source };
        }
        Cost {
            ns: given.ns,
            source: not_measured(&given.source),
        }
    }

    /// A number that follows from the trials, and its source.
    fn number(&self, derived: &Derived, unit: &str, base: &Profile) -> (u64, String) {
        let rounds = self.rounds();
        let values = rounds
            .iter()
            .map(|round| (derived.of)(&Values { round, base }));
        let spread = Spread::of(&values.collect::<Vec<_>>());
        let below = if spread.median < 0.0 {
            ", so 0 is charged"
        } else {
            ""
        };
        let source = format!(
            "measured: {}; {}{below} over {} repeats; {}",
            derived.from,
            spread.text(unit),
            self.repeats(),
            self.when()
        );
        (spread.median.round().max(0.0) as u64, source)
    }

    fn rounds(&self) -> Vec<Round> {
        let round = |index: usize| {
            let trials = self.trials.iter();
            trials
                .map(|trial| (trial.id, trial.values[index]))
                .collect()
        };
        (0..self.repeats()).map(round).collect()
    }

    fn repeats(&self) -> usize {
        self.trials.first().map_or(0, |trial| trial.values.len())
    }

    fn when(&self) -> String {
        format!("{}, {}", self.place.date, self.machine())
    }

    fn machine(&self) -> String {
        let Machine {
            kernel,
            cpus,
            model,
            ..
        } = &self.place.machine;
        let model = model.as_deref().unwrap_or("a processor without a name");
        format!("Linux {kernel}, {cpus} CPUs, {model}")
    }
}

fn not_measured(source: &str) -> String {
    format!("assumed: no trial measures it; the value of {BASE}, which says: {source}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn calibration(rounds: &[Round]) -> Result<Calibration, Error> {
        let place = Place {
            date: "2026-11-24".to_owned(),
            machine: Machine {
                kernel: "6.18.44".to_owned(),
                cpus: 2,
                model: Some("A \"quoted\" CPU".to_owned()),
                link: Some("veth"),
            },
            window_ms: 300.0,
        };
        Calibration::new(place, rounds)
    }

    /// Values that are a thousand, two thousand and so on, shifted by `shift`.
    fn round(shift: f64) -> Round {
        let trials = TRIALS.iter().enumerate();
        trials
            .map(|(index, (id, ..))| (*id, 1000.0 * (index + 1) as f64 + shift))
            .collect()
    }

    fn rounds() -> Vec<Round> {
        [0.0, 10.0, -10.0, 5.0, 3.0].map(round).to_vec()
    }

    #[test]
    fn a_written_profile_is_read_back_with_all_of_its_numbers() {
        let calibration = calibration(&rounds()).unwrap();
        let text = calibration.profile("today").unwrap();
        let profile = Profile::from_toml("today", &text).unwrap();
        let base = Profile::named(BASE).unwrap();
        assert_eq!(profile.name, "today");
        assert!(profile.costs.keys().eq(base.costs.keys()), "{text}");
        assert!(profile.queues.keys().eq(base.queues.keys()), "{text}");
        let written = toml::Table::try_from(&profile).unwrap().to_string();
        assert_eq!(Profile::from_toml("today", &written).unwrap(), profile);
        assert_eq!(profile.costs["driver_receive"].ns, 4003);
        assert_eq!(profile.queues["receive_ring"].packets, 14_003);
    }

    #[test]
    fn every_measured_number_says_how_and_every_other_is_assumed() {
        let calibration = calibration(&rounds()).unwrap();
        let text = calibration.profile("today").unwrap();
        let profile = Profile::from_toml("today", &text).unwrap();
        let costs = profile
            .costs
            .iter()
            .map(|(name, cost)| (name, &cost.source));
        let queues = profile
            .queues
            .iter()
            .map(|(name, queue)| (name, &queue.source));
        let when = "2026-11-24, Linux 6.18.44, 2 CPUs, A \"quoted\" CPU";
        let (mut measured, mut assumed) = (0, 0);
        for (name, source) in costs.chain(queues) {
            if source.starts_with("measured: ") {
                measured += 1;
                let is_part = PARTS.iter().any(|(part, _)| part == name);
                let spread = ["lowest", "median", "highest", "over 5 repeats"];
                let spread = spread.iter().all(|word| source.contains(word));
                assert!(is_part || spread, "{name}: {source}");
                assert!(
                    source.contains("trial ") && source.ends_with(when),
                    "{source}"
                );
            } else {
                assumed += 1;
                assert!(source.starts_with("assumed: no trial "), "{name}: {source}");
            }
        }
        assert_eq!(measured, COSTS.len() + PARTS.len() + QUEUES.len());
        assert!(assumed > 0);
    }

    #[test]
    fn a_difference_is_taken_per_repeat_and_below_0_it_says_so() {
        let mut drifting = rounds();
        for (index, round) in drifting.iter_mut().enumerate() {
            let drift = 500.0 * index as f64;
            round.insert("queue", 700.0 + drift);
            round.insert("drop", 100.0 + drift);
            round.insert("full", 600.0 + drift);
        }
        let text = calibration(&drifting).unwrap().profile("today").unwrap();
        let profile = Profile::from_toml("today", &text).unwrap();
        let input = &profile.costs["protocol_input"];
        assert_eq!(input.ns, 600);
        assert!(
            input
                .source
                .contains("lowest 600, median 600, highest 600 ns")
        );
        let discard = &profile.costs["discard"];
        assert_eq!(discard.ns, 0);
        assert!(
            discard
                .source
                .contains("median -100, highest -100 ns, so 0 is charged")
        );
    }

    #[test]
    fn the_models_steps_add_up_to_what_was_measured_as_a_whole() {
        let mut rounds = rounds();
        for round in &mut rounds {
            round.extend([("timer", 10_000.0), ("thread", 6000.0)]);
            round.extend([("switch", 4000.0), ("wake", 1000.0)]);
            round.extend([("queue", 2000.0), ("drop", 500.0)]);
        }
        let text = calibration(&rounds).unwrap().profile("today").unwrap();
        let profile = Profile::from_toml("today", &text).unwrap();
        let sum = |costs: &[&str]| {
            costs
                .iter()
                .map(|cost| profile.costs[*cost].ns)
                .sum::<u64>()
        };
        let interrupt = ["interrupt_enter", "interrupt_exit", "poll_pass"];
        assert_eq!(sum(&interrupt) + sum(&["soft_dispatch"]), 10_000);
        assert_eq!(
            sum(&interrupt) + sum(&["thread_switch", "poll_start"]),
            6000
        );
        assert_eq!(sum(&["driver_receive", "protocol_input"]), 2000);
    }

    #[test]
    fn a_trial_that_is_missing_is_named() {
        let mut rounds = rounds();
        rounds[2].remove("syn");
        let error = calibration(&rounds).unwrap_err();
        assert!(error.to_string().contains("`syn`"), "{error}");
        assert!(calibration(&[]).is_err());
    }

    #[test]
    fn the_table_has_every_trial() {
        let table = calibration(&rounds()).unwrap().table();
        for (id, ..) in TRIALS {
            assert!(table.contains(&format!("\n{id} ")), "{id}: {table}");
        }
    }
}
