//! Where results go besides the table.

use std::io::Write;
use std::path::{Path, PathBuf};

use plimsoll_lab::{Document, Run, csv, html};

use crate::output;

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

    /// Writes what was asked for; true if standard output is taken.
    pub(super) fn write(&self, runs: &[Run]) -> crate::Result<bool> {
        if let Some(target) = &self.json {
            let mut writer = output::json_writer(target)?;
            serde_json::to_writer_pretty(&mut *writer, &Document::new(runs))?;
            writeln!(writer)?;
        }
        if let Some(target) = &self.csv {
            output::json_writer(target)?.write_all(csv(runs).as_bytes())?;
        }
        if let Some(target) = &self.html {
            output::write_page(target, &html(runs, &output::made_by())?)?;
        }
        let taken = [&self.json, &self.csv];
        Ok(taken
            .iter()
            .any(|target| target.as_deref() == Some(Path::new("-"))))
    }
}
