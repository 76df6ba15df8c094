//! `plimsoll guard check`: what would happen, before anything does.

use std::path::PathBuf;

use plimsoll_guard::check::{Check, Verdict, check};
use serde::Serialize;

use crate::failure::Lacks;
use crate::output::{self, Target};

/// Say what this host and driver can do for the guard, and what it would do
///
/// Looks and changes nothing. Exits with 3 if the guard could not run.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Interface to look at, in this network namespace
    #[arg(value_name = "IFACE")]
    interface: String,
    /// Write one JSON document to FILE (`-`: standard output) instead of the table
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true, default_missing_value = "-")]
    json: Option<PathBuf>,
}

/// The document of `--json`.
#[derive(Serialize)]
struct Document<'a> {
    schema: u32,
    can_run: bool,
    #[serde(flatten)]
    check: &'a Check,
}

pub(crate) fn run(args: &Args) -> crate::Result<()> {
    let json = Target::open_given(args.json.as_ref())?;
    let check = check(&args.interface)?;
    let document = || Document {
        schema: 1,
        can_run: check.can_run(),
        check: &check,
    };
    output::deliver_one(json, document, || table(&check))?;
    if check.can_run() {
        Ok(())
    } else {
        Err(Lacks(format!(
            "the guard cannot run on `{}` as it is",
            args.interface
        ))
        .into())
    }
}

pub(super) fn table(check: &Check) -> String {
    let mut text = String::new();
    for finding in &check.findings {
        let mark = match finding.verdict {
            Verdict::Ok => "ok",
            Verdict::Limited => "limited",
            Verdict::Unknown => "unknown",
            Verdict::Missing => "MISSING",
        };
        text += &format!("{mark:<9}{:<13}{}\n", finding.id, finding.found);
        if finding.verdict != Verdict::Ok {
            text += &format!("{:<22}the guard {}\n", "", finding.guard);
        }
    }
    let more = check
        .findings
        .iter()
        .filter(|f| f.verdict != Verdict::Ok)
        .count();
    let judgement = match (check.can_run(), more) {
        (false, _) => "The guard cannot run here until what is missing is there.".to_owned(),
        (true, 0) => "The guard can do all it knows here.".to_owned(),
        (true, _) => "The guard can run here, within the limits above.".to_owned(),
    };
    format!("{text}\n{judgement}\n")
}
