//! This machine's kernel with real packets, as a host of the lab's experiments.
//!
//! What is real is what the benches have: their trials are reused, one of them per
//! experiment. Where a trial offers load, its rates are multiples of a *unit*, searched anew
//! in every round: what the unmodified path of that trial takes without loss, or passes or
//! records at its peak (docs/lab.md). So the papers' rates,
//! divided by what their unmodified systems took, are offered to a machine that is a
//! hundred times faster, and to one that is half as fast as an hour ago.
//!
//! **Limits.** A veth link is no adapter. The bystander's latency is the round trip its
//! client sees, not the time inside the host.

mod capturing;
mod crossing;
mod events;
mod flood;
mod polling;
mod settings;
mod sockets;
mod spacing;
mod triggers;
mod wan;
mod web;
mod worker;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use plimsoll_lab::{Error as LabError, Figures, Host, HostKind, Point};
use plimsoll_report::Machine;
use plimsoll_testbed::{Config as TestbedConfig, Testbed};

use crate::Error;
use crate::figures::HostCpu;
use crate::mlfrr::Bounds;
use crate::passing::{KEPT, is_of_all};
use settings::{Settings, Trial};

/// This machine, flooded.
#[derive(Debug)]
pub struct RealPackets {
    program: PathBuf,
    /// What has been searched for, by what it is of and the round.
    units: RefCell<BTreeMap<(String, u64), f64>>,
}

/// One point of a trial.
#[derive(Clone, Copy, Debug)]
struct Offer {
    /// Packets per second, before the unit is known.
    rate: Rate,
    window: Duration,
    /// Of the round.
    seed: u64,
}

/// How much is offered.
#[derive(Clone, Copy, Debug)]
enum Rate {
    /// Multiple of the trial's unit.
    Multiple(f64),
    /// Packets per second.
    Absolute(f64),
}

impl RealPackets {
    /// Finds out whether this host can make a testbed. `program` is the `plimsoll`
    /// command itself, which is started as servers, guard, router and screen.
    ///
    /// # Errors
    ///
    /// This host cannot make a testbed.
    pub fn start(program: PathBuf) -> Result<Self, Error> {
        drop(Testbed::create(TestbedConfig::default())?);
        Ok(Self {
            program,
            units: RefCell::default(),
        })
    }

    /// The unit of this name in this round; `search` finds it the first time, in the
    /// whole of `bounds` or around what an earlier round has found.
    fn unit(
        &self,
        name: String,
        seed: u64,
        bounds: Bounds,
        mut search: impl FnMut(Bounds) -> Result<f64, Error>,
    ) -> Result<f64, Error> {
        let key = (name, seed);
        let known = self.units.borrow().get(&key).copied();
        if let Some(unit) = known {
            return Ok(unit);
        }
        let near = self.earlier(&key.0).map(|unit| around(unit, bounds));
        let mut unit = near.map_or(Ok(0.0), &mut search)?;
        if unit <= 0.0 {
            unit = search(bounds)?;
        }
        if unit <= 0.0 {
            let rate_pps = bounds.lowest_pps;
            return Err(Error::NoLossFreeRate { rate_pps });
        }
        self.units.borrow_mut().insert(key, unit);
        Ok(unit)
    }

    /// The unit of this name in the last round that has one.
    fn earlier(&self, name: &str) -> Option<f64> {
        let units = self.units.borrow();
        let mut named = units.iter().filter(|((known, _), _)| known == name);
        named.next_back().map(|(_, unit)| *unit)
    }

    fn measure(&self, trials: &[(Trial, Offer)]) -> Result<Vec<Figures>, Error> {
        let (first, _) = trials.first().expect("a curve has points");
        let offers = trials.iter().map(|(_, offer)| *offer);
        match first {
            Trial::Flood(trial) => flood::run(self, trial, offers),
            Trial::Sockets(trial) => sockets::run(self, trial, offers),
            Trial::Forward(trial) => crossing::forward(self, trial, offers),
            Trial::Screen(trial) => crossing::screen(self, trial, offers),
            Trial::Capture(trial) => capturing::run(self, trial, offers),
            Trial::Beside(trial) => crossing::beside(self, trial, offers),
            Trial::Web(trial) => web::run(self, trial, offers),
            Trial::Rpc(_) => worker::run(self, trials),
            Trial::Wan(_) => wan::run(self, trials),
            Trial::Polling(trial) => polling::run(self, trial, trials),
            Trial::Events(_) => events::run(self, trials),
            Trial::Spacing(_) => spacing::run(trials),
            Trial::Triggers(trial) => triggers::run(trial, offers),
        }
    }
}

/// The trials of a curve that `kind` takes, each with what it is offered.
fn of_kind<'a, T>(
    trials: &'a [(Trial, Offer)],
    kind: impl Fn(&'a Trial) -> Option<&'a T>,
) -> Vec<(&'a T, Offer)> {
    let taken = trials
        .iter()
        .filter_map(|(trial, offer)| Some((kind(trial)?, *offer)));
    taken.collect()
}

impl Host for RealPackets {
    fn name(&self) -> &'static str {
        "testbed"
    }

    fn machine(&self) -> String {
        format!("{:?}", Machine::read(None))
    }

    fn run(&self, point: &Point<'_>) -> Result<Figures, LabError> {
        let mut figures = self.run_curve(std::slice::from_ref(point))?;
        Ok(figures.remove(0))
    }

    fn run_curve(&self, points: &[Point<'_>]) -> Result<Vec<Figures>, LabError> {
        let trials = points.iter().map(|point| match point.experiment.host {
            HostKind::Real => Settings::read(point),
            HostKind::Modelled | HostKind::Testbed => Settings::of_twin(point),
        });
        let trials = trials.collect::<Result<Vec<_>, LabError>>()?;
        self.measure(&trials).map_err(|error| LabError::Testbed {
            what: points.first().map_or_else(String::new, |point| {
                format!("{}, {}", point.experiment.id, point.curve.id)
            }),
            fatal: is_of_all(&error),
            source: error.into(),
        })
    }
}

impl Rate {
    /// In packets per second; `unit` is asked for if it is needed.
    fn pps(self, unit: impl FnOnce() -> Result<f64, Error>) -> Result<f64, Error> {
        match self {
            Self::Absolute(pps) => Ok(pps),
            // No unit is needed for nothing.
            Self::Multiple(0.0) => Ok(0.0),
            Self::Multiple(multiple) => Ok(multiple * unit()?),
        }
    }
}

impl Offer {
    /// The figures of a point that was to be offered `wanted_pps`.
    ///
    /// A multiple that the generator could not offer is not measured: only what was
    /// offered is told.
    fn figures(
        self,
        wanted_pps: f64,
        offered_pps: f64,
        given: impl IntoIterator<Item = (&'static str, f64)>,
    ) -> Figures {
        let mut named = vec![("offered_pps", offered_pps)];
        let is_kept = match self.rate {
            Rate::Absolute(_) => true,
            Rate::Multiple(multiple) => {
                let unit_pps = (multiple > 0.0).then(|| wanted_pps / multiple);
                named.extend(unit_pps.map(|unit_pps| ("unit_pps", unit_pps)));
                offered_pps >= wanted_pps * KEPT
            }
        };
        let given: Vec<_> = given.into_iter().filter(|_| is_kept).collect();
        if let Rate::Multiple(multiple) = self.rate {
            let delivered = given
                .iter()
                .find(|(name, _)| name.ends_with("delivered_pps"));
            let part = delivered.map(|(_, pps)| pps / offered_pps.max(f64::MIN_POSITIVE));
            named.extend(part.map(|part| ("delivered_units", multiple * part)));
        }
        let named = named.into_iter().chain(given);
        named
            .map(|(name, value)| (name.to_owned(), value))
            .collect()
    }
}

/// From half of an earlier unit to its double, within 4 percent.
fn around(unit_pps: f64, bounds: Bounds) -> Bounds {
    Bounds {
        lowest_pps: ((unit_pps / 2.0) as u64).max(bounds.lowest_pps),
        highest_pps: ((unit_pps * 2.0) as u64).min(bounds.highest_pps),
        steps: 5,
    }
}

/// Parts of the host's CPU, by the names of the modelled host.
fn cpu_figures(cpu: HostCpu) -> [(&'static str, f64); 4] {
    [
        ("cpu.idle_pct", 100.0 * cpu.idle),
        ("cpu.busy_pct", 100.0 * (1.0 - cpu.idle)),
        ("cpu.network_pct", 100.0 * cpu.network),
        ("cpu.app_pct", 100.0 * cpu.app),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUNDS: Bounds = Bounds {
        lowest_pps: 20_000,
        highest_pps: 1_000_000,
        steps: 8,
    };

    fn real() -> RealPackets {
        RealPackets {
            program: PathBuf::new(),
            units: RefCell::default(),
        }
    }

    #[test]
    fn a_unit_is_searched_once_a_round_and_near_that_of_the_round_before() {
        let (real, searched) = (real(), RefCell::new(Vec::new()));
        let search = |found: f64| {
            let searched = &searched;
            move |bounds: Bounds| {
                searched
                    .borrow_mut()
                    .push((bounds.lowest_pps, bounds.highest_pps));
                let inside = bounds.lowest_pps as f64 <= found;
                Ok(if inside { found } else { 0.0 })
            }
        };
        let unit = |seed, found| real.unit("a".to_owned(), seed, BOUNDS, search(found));
        assert_eq!(unit(1, 100_000.0).unwrap(), 100_000.0);
        assert_eq!(unit(1, 7.0).unwrap(), 100_000.0, "known in this round");
        assert_eq!(unit(2, 90_000.0).unwrap(), 90_000.0);
        // Where the machine has become much slower, all is searched again.
        assert_eq!(unit(3, 30_000.0).unwrap(), 30_000.0);
        let wide = (20_000, 1_000_000);
        let expected = [wide, (50_000, 200_000), (45_000, 180_000), wide];
        assert_eq!(*searched.borrow(), expected);
        assert!(unit(4, 1.0).is_err());
    }

    #[test]
    fn what_could_not_be_offered_is_not_measured() {
        let offer = Offer {
            rate: Rate::Multiple(2.0),
            window: Duration::from_secs(1),
            seed: 1,
        };
        let given = [("delivered_pps", 50.0)];
        let offered = offer.figures(200.0, 200.0, given);
        assert_eq!(
            (offered["unit_pps"], offered["delivered_units"]),
            (100.0, 0.5)
        );
        let missed = offer.figures(200.0, 190.0, given);
        assert!(!missed.contains_key("delivered_pps"), "{missed:?}");
        assert_eq!(missed["offered_pps"], 190.0);
        let absolute = Offer {
            rate: Rate::Absolute(200.0),
            ..offer
        };
        let twin = absolute.figures(200.0, 100.0, given);
        assert_eq!(twin["delivered_pps"], 50.0);
    }
}
