//! Results of points in a file, so that an interrupted sweep goes on where it was.
//!
//! A result is found by a hash of everything it depends on: this very program, the
//! host, the profile, the settings and the seed. One line per result; a line that
//! was cut off when the program ended counts as absent.

use std::collections::{BTreeMap, HashMap};
use std::fs::{self, File, OpenOptions};
use std::hash::Hasher;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use serde::{Deserialize, Serialize};
use siphasher::sip128::{Hasher128, SipHasher13};

use crate::error::Error;
use crate::host::{Figures, Point};

/// Results of earlier runs, and the file that keeps them.
#[derive(Debug)]
pub struct Cache {
    path: PathBuf,
    program: u128,
    known: HashMap<String, Figures>,
    file: Mutex<File>,
}

#[derive(Deserialize, Serialize)]
struct Line {
    key: String,
    figures: Figures,
}

impl Cache {
    /// Opens or makes the file.
    ///
    /// # Errors
    ///
    /// The file, or this program's own, cannot be read or written.
    pub fn open(path: &Path) -> Result<Self, Error> {
        let io = |source| Error::Io {
            file: path.to_owned(),
            source,
        };
        let program = std::env::current_exe().and_then(fs::read).map_err(io)?;
        let mut options = OpenOptions::new();
        let file = options.create(true).append(true).open(path).map_err(io)?;
        let text = fs::read_to_string(path).map_err(io)?;
        if !text.is_empty() && !text.ends_with('\n') {
            // What was cut off must not swallow the next line.
            writeln!(&file).map_err(io)?;
        }
        let lines = text
            .lines()
            .filter_map(|line| serde_json::from_str(line).ok());
        Ok(Self {
            path: path.to_owned(),
            program: hash(&[&program]),
            known: lines.map(|line: Line| (line.key, line.figures)).collect(),
            file: Mutex::new(file),
        })
    }

    /// Joins files of results into `output`, each result once, in the order of their
    /// keys: the same bytes however the work was divided. Says how many there are.
    ///
    /// # Errors
    ///
    /// A file cannot be read or written.
    pub fn merge(files: &[PathBuf], output: &Path) -> Result<usize, Error> {
        let io = |file: &Path| {
            let file = file.to_owned();
            move |source| Error::Io { file, source }
        };
        let mut results = BTreeMap::new();
        for file in files {
            let text = fs::read_to_string(file).map_err(io(file))?;
            let lines = text.lines().filter_map(|text| {
                let line: Line = serde_json::from_str(text).ok()?;
                Some((line.key, text.to_owned()))
            });
            results.extend(lines);
        }
        let count = results.len();
        let text: String = results.into_values().map(|line| line + "\n").collect();
        fs::write(output, text).map_err(io(output))?;
        Ok(count)
    }

    /// How many results it holds from earlier runs.
    #[must_use]
    pub fn len(&self) -> usize {
        self.known.len()
    }

    /// Whether it holds none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.known.is_empty()
    }

    /// The key of a point on the host of this name.
    pub(crate) fn key(&self, host: &str, point: &Point<'_>) -> String {
        let settings = point.settings.to_string();
        let parts = [
            &self.program.to_le_bytes()[..],
            host.as_bytes(),
            point.profile().as_bytes(),
            settings.as_bytes(),
            &point.seed.to_le_bytes(),
        ];
        format!("{:032x}", hash(&parts))
    }

    pub(crate) fn find(&self, key: &str) -> Option<&Figures> {
        self.known.get(key)
    }

    /// Keeps a result.
    pub(crate) fn keep(&self, key: String, figures: &Figures) -> Result<(), Error> {
        let figures = figures.clone();
        let io = |source| Error::Io {
            file: self.path.clone(),
            source,
        };
        let line = serde_json::to_string(&Line { key, figures });
        let mut line = line.map_err(|error| io(error.into()))?;
        line.push('\n');
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        file.write_all(line.as_bytes()).map_err(io)
    }
}

fn hash(parts: &[&[u8]]) -> u128 {
    let mut hasher = SipHasher13::new();
    for part in parts {
        hasher.write(&part.len().to_le_bytes());
        hasher.write(part);
    }
    hasher.finish128().as_u128()
}
