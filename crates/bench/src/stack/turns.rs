//! Cases that take turns: one run of each, then the next of each.

use plimsoll_kernel::error::with_causes;
use serde::Serialize;

use super::Plan;
use crate::Error;
use crate::cases::in_round;
use crate::passing::is_of_all;

/// What one way to serve came to.
#[derive(Clone, Debug, Serialize)]
pub struct SideCase<R> {
    /// Its name.
    pub way: &'static str,
    /// A value for each run.
    pub runs: Vec<R>,
    /// Why there are fewer runs than asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

impl<R> SideCase<R> {
    /// A figure of all runs.
    pub(super) fn values(&self, figure: impl Fn(&R) -> f64) -> Vec<f64> {
        self.runs.iter().map(figure).collect()
    }
}

/// Measures all ways as often as planned. What one alone lacks ends its runs, not those of
/// others.
pub(super) fn in_turns<W: Copy, R>(
    plan: &Plan,
    (part, ways): (&str, &[W]),
    name: impl Fn(W) -> &'static str,
    progress: &mut impl FnMut(&str),
    mut one_run: impl FnMut(W) -> Result<R, Error>,
) -> Result<Vec<SideCase<R>>, Error> {
    let new = |&way: &W| SideCase {
        way: name(way),
        runs: Vec::new(),
        why: None,
    };
    let mut cases: Vec<SideCase<R>> = ways.iter().map(new).collect();
    for run in 1..=plan.effort.runs {
        for (&way, case) in in_round(run, ways.iter().zip(&mut cases)) {
            if case.why.is_some() {
                continue;
            }
            progress(&format!("run {run}, {part}: {}", case.way));
            match one_run(way) {
                Ok(run) => case.runs.push(run),
                Err(error) if is_of_all(&error) => return Err(error),
                Err(error) => case.why = Some(with_causes(&error)),
            }
        }
    }
    Ok(cases)
}
