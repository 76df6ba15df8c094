//! Where results go besides the table.

use std::path::PathBuf;

use plimsoll_lab::{Document, Run, csv, html};

use crate::failure::Usage;
use crate::output::{self, Target};

#[derive(clap::Args, Debug)]
pub(super) struct Outputs {
    /// Also write the results as one JSON document to FILE (`-`: standard output)
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Also write every measured value as CSV to FILE (`-`: standard output)
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,
    /// Also write the report to FILE
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

impl Outputs {
    pub(super) fn is_none(&self) -> bool {
        self.json.is_none() && self.csv.is_none() && self.html.is_none()
    }

    /// Before the work.
    pub(super) fn open(&self) -> crate::Result<Opened> {
        let json = Target::open_given(self.json.as_ref())?;
        let csv = Target::open_given(self.csv.as_ref())?;
        let both = [&json, &csv].map(|target| target.as_ref().is_some_and(Target::is_standard));
        if both == [true; 2] {
            return Err(Usage("both --json and --csv on standard output").into());
        }
        Ok(Opened {
            json,
            csv,
            html: self.html.as_deref().map(Target::open_page).transpose()?,
        })
    }
}

/// The same, to be written.
pub(super) struct Opened {
    json: Option<Target>,
    csv: Option<Target>,
    html: Option<Target>,
}

impl Opened {
    /// Writes what was asked for, and shows the text unless standard output is taken. What cannot
    /// be written does not cost the rest.
    pub(super) fn deliver(self, runs: &[Run], text: impl FnOnce() -> String) -> crate::Result<()> {
        let is_taken = self.csv.as_ref().is_some_and(Target::is_standard);
        let text = || if is_taken { String::new() } else { text() };
        let delivered = output::deliver(self.json, &Document::new(runs), text);
        let csv_put = self.csv.map_or(Ok(()), |target| target.put(&csv(runs)));
        if let Some(target) = self.html {
            target.put(&html(runs, &output::made_by())?)?;
        }
        delivered.and(csv_put)
    }
}
