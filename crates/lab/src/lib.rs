//! Experiments as data: the published overload figures, and ours, run on a
//! modelled host or on real packets, with their claims checked.
//!
//! A [`Catalogue`] holds [`Experiment`]s, [`run`] puts each of their points on a
//! [`Host`], and a [`Run`] holds the curves and one [`Verdict`] per claim. The
//! rest writes that down: [`Document`] as JSON, [`csv`], [`table`], [`html`].

mod cache;
mod catalogue;
mod claim;
mod document;
mod error;
mod experiment;
mod explain;
mod host;
mod html;
mod measured_html;
mod modelled;
mod plot;
mod runner;
mod series;
mod sweep;
mod testbed;
pub mod trace;

pub use cache::Cache;
pub use catalogue::Catalogue;
pub use claim::Verdict;
pub use document::{CurveEntry, Document, Entry, PointEntry, csv, table, values, verdict_line};
pub use error::Error;
pub use experiment::{
    Claim, Curve, Experiment, Explain, HostKind, Measure, Number, Published, Scale, Sweep,
    TestbedPath,
};
pub use explain::explain;
pub use host::{Figures, Host, Point};
pub use html::html;
pub use measured_html::{bench_html, demo_html};
pub use modelled::{Modelled, profiles};
pub use runner::{Measured, Options, Run, Tally, run};
pub use series::Series;
pub use sweep::{SweepPlan, range};
pub use testbed::RealPackets;
pub use trace::TracePlan;
