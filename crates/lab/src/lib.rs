//! Experiments as data: the published overload figures, and ours, run on a
//! modelled host or on real packets, with their claims checked.
//!
//! A [`Catalogue`] holds [`Experiment`]s, [`run`] puts each of their points on a
//! [`Host`], and a [`Run`] holds the curves and one [`Verdict`] per claim. The
//! rest writes that down: [`Document`] as JSON, [`csv`], [`table`], `html`.
//!
//! This crate knows the model only. Real packets are another [`Host`], which the
//! bench has and whoever runs experiments passes in [`Options::testbed`].

mod breakdown;
mod cache;
pub mod calibrate;
mod catalogue;
mod claim;
mod declared;
mod distance;
mod document;
mod error;
mod experiment;
mod explain;
mod flood_model;
mod host;
mod html;
mod machine;
mod machines;
mod modelled;
mod order;
mod paper_pages;
mod plot;
mod provenance;
pub mod published;
mod real;
mod runner;
mod score;
mod series;
mod settings;
mod statistics;
mod sweep;
pub mod trace;

pub use cache::Cache;
pub use catalogue::Catalogue;
pub use claim::Verdict;
pub use declared::{Cause, Choice, Claim, Kind, Number, Revised};
pub use distance::{Compared, Distance, distances};
pub use document::{CurveEntry, Document, Entry, PointEntry, csv, table, values, verdict_line};
pub use error::Error;
pub use experiment::{
    Curve, Experiment, Explain, HostKind, Measure, Published, Scale, Sweep, TestbedPath,
};
pub use explain::explain;
pub use flood_model::{Beside, FloodModel, ModelCurve};
pub use host::{Figures, Host, Point};
pub use html::html;
pub use machine::profile_file;
pub use modelled::{Modelled, profiles};
pub use provenance::{Source, behind, contradiction, sources};
pub use runner::{Measured, Options, Run, Shard, Tally, run};
pub use score::{CauseCount, Score};
pub use series::Series;
pub use statistics::Estimate;
pub use sweep::{SweepPlan, range};
pub use trace::TracePlan;
