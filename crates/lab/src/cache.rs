//! Results of points in a file, so that an interrupted sweep goes on where it was.
//!
//! A result is found by a hash of everything it depends on: this very program, the
//! host and its machine, the profile, the settings and the seed. One line per result, the
//! last of several; a line that was cut off when the program ended counts as absent. A part of a run that came to
//! its end has a line that says of which run and which part.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs::{self, File, OpenOptions};
use std::hash::Hasher;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use serde::{Deserialize, Serialize};
use siphasher::sip128::{Hasher128, SipHasher13};

use crate::error::Error;
use crate::experiment::Experiment;
use crate::host::{Figures, Host, Point};
use crate::runner::Shard;

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

/// The line of a finished part.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize, Serialize)]
struct Part {
    /// A hash of everything that all parts of a run have in common.
    run: String,
    part: usize,
    of: usize,
}

impl Part {
    /// What is wrong with it in `file`, and what to do.
    fn error(&self, file: &Path, problem: impl Into<String>, remedy: &str) -> Error {
        let key = format!("part {} of {}", self.part, self.of);
        Error::file(&file.display().to_string(), key, problem, remedy)
    }
}

/// A file of results, as it is read for joining.
struct Results {
    /// Lines by their keys.
    lines: Vec<(String, String)>,
    parts: BTreeSet<Part>,
}

impl Cache {
    /// Opens or makes the file.
    ///
    /// # Errors
    ///
    /// The file, or this program's own, cannot be read or written.
    pub fn open(path: &Path) -> Result<Self, Error> {
        let program = std::env::current_exe().and_then(fs::read);
        let program = program.map_err(io(path))?;
        let mut options = OpenOptions::new();
        let file = options.create(true).append(true).open(path);
        let file = file.map_err(io(path))?;
        let text = fs::read_to_string(path).map_err(io(path))?;
        if !text.is_empty() && !text.ends_with('\n') {
            // What was cut off must not swallow the next line.
            writeln!(&file).map_err(io(path))?;
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

    /// Joins the files of all parts of a run into `output`, each result once, in the
    /// order of their keys: the same bytes however the work was divided. Says how many
    /// there are.
    ///
    /// # Errors
    ///
    /// A part is missing, there twice, not finished, or of another run; or a file
    /// cannot be read or written.
    pub fn merge(files: &[PathBuf], output: &Path) -> Result<usize, Error> {
        let mut results = BTreeMap::new();
        let mut parts: Vec<(Part, &Path)> = Vec::new();
        for file in files {
            let read = read(file)?;
            parts.push((the_part(file, &read.parts)?, file));
            results.extend(read.lines);
        }
        check_parts(&parts)?;
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

    /// The key of a point on a host.
    pub(crate) fn key(&self, host: &dyn Host, point: &Point<'_>) -> String {
        let settings = point.settings.to_string();
        let modelled = point.experiment.machine.as_ref();
        let modelled = modelled.map_or_else(String::new, |given| format!("{given:?}"));
        let machine = host.machine();
        let parts = [
            &self.program.to_le_bytes()[..],
            host.name().as_bytes(),
            machine.as_bytes(),
            point.profile().as_bytes(),
            modelled.as_bytes(),
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
        self.append(&Line { key, figures })
    }

    /// Notes that all results of a part are here. Of a run on `host` with so many
    /// seeds from the first.
    pub(crate) fn keep_part(
        &self,
        host: &str,
        experiments: &[Experiment],
        (seed, seeds): (u64, u32),
        shard: Shard,
    ) -> Result<(), Error> {
        let experiments = format!("{experiments:?}");
        let parts = [
            &self.program.to_le_bytes()[..],
            host.as_bytes(),
            experiments.as_bytes(),
            &seed.to_le_bytes(),
            &seeds.to_le_bytes(),
        ];
        self.append(&Part {
            run: format!("{:032x}", hash(&parts)),
            part: shard.index,
            of: shard.of,
        })
    }

    fn append(&self, line: &impl Serialize) -> Result<(), Error> {
        let io = io(&self.path);
        let line = serde_json::to_string(line);
        let mut line = line.map_err(|error| io(error.into()))?;
        line.push('\n');
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        file.write_all(line.as_bytes()).map_err(io)
    }
}

fn io(file: &Path) -> impl Fn(std::io::Error) -> Error {
    let file = file.to_owned();
    move |source| Error::Io {
        file: file.clone(),
        source,
    }
}

fn read(file: &Path) -> Result<Results, Error> {
    let text = fs::read_to_string(file).map_err(io(file))?;
    let mut results = Results {
        lines: Vec::new(),
        parts: BTreeSet::new(),
    };
    for line in text.lines() {
        if let Ok(Line { key, .. }) = serde_json::from_str(line) {
            results.lines.push((key, line.to_owned()));
        } else if let Ok(part) = serde_json::from_str(line) {
            results.parts.insert(part);
        }
    }
    Ok(results)
}

/// The one part that a file is.
fn the_part(file: &Path, parts: &BTreeSet<Part>) -> Result<Part, Error> {
    let wrong = |problem: &str, remedy: &str| {
        let file = file.display().to_string();
        Err(Error::file(&file, "part", problem, remedy))
    };
    let mut all = parts.iter();
    match (all.next(), all.next()) {
        (Some(part), None) => Ok(part.clone()),
        (None, _) => wrong(
            "it holds no finished part of a run",
            "run it to its end with --shard I/N and --resume FILE",
        ),
        (Some(_), Some(_)) => wrong(
            "it holds parts of several runs",
            "give each part of each run a file of its own",
        ),
    }
}

/// All parts of one run, each once.
fn check_parts(parts: &[(Part, &Path)]) -> Result<(), Error> {
    let mut found: BTreeMap<usize, &Path> = BTreeMap::new();
    let Some((reference, beside)) = parts.first() else {
        return Ok(());
    };
    for (part, file) in parts {
        if (&part.run, part.of) != (&reference.run, reference.of) {
            let problem = format!("it is of another run than {}", beside.display());
            let remedy = "all parts need the same program, command and number of parts";
            return Err(part.error(file, problem, remedy));
        }
        if let Some(other) = found.insert(part.part, file) {
            let problem = format!("it is in {} as well", other.display());
            return Err(part.error(file, problem, "name each part once"));
        }
    }
    let missing = (1..=reference.of).find(|part| !found.contains_key(part));
    missing.map_or(Ok(()), |part| {
        let part = Part {
            part,
            ..reference.clone()
        };
        Err(part.error(beside, "it is missing", "name the files of all parts"))
    })
}

fn hash(parts: &[&[u8]]) -> u128 {
    let mut hasher = SipHasher13::new();
    for part in parts {
        hasher.write(&part.len().to_le_bytes());
        hasher.write(part);
    }
    hasher.finish128().as_u128()
}
