//! Results of points in a file, so that an interrupted sweep goes on where it was.
//!
//! A result is found by a hash of everything it depends on: this very program, the
//! host and its machine, the profile, the settings and the seed. One line per result, the
//! last of several; a line that was cut off when the program ended counts as absent. A part
//! of a run that came to its end has a line that says of which run and which part.
//!
//! A file that is no file of results is not written to: whoever names it has mistyped.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs::{self, File, OpenOptions};
use std::hash::Hasher;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock, PoisonError};

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
    parts: BTreeSet<Part>,
    file: Mutex<File>,
}

#[derive(Deserialize, Serialize)]
struct Line {
    key: String,
    figures: Figures,
}

/// The line of a finished part.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize, Serialize)]
pub(crate) struct Part {
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

/// A file of results, as it is read.
struct Results<'a> {
    /// Each as it stands there, too.
    lines: Vec<(Line, &'a str)>,
    parts: BTreeSet<Part>,
}

impl Cache {
    /// Opens or makes the file.
    ///
    /// # Errors
    ///
    /// The file, or this program's own, cannot be read or written; or it has something
    /// else than results.
    pub fn open(path: &Path) -> Result<Self, Error> {
        let program = this_program().map_err(io(path))?;
        let mut options = OpenOptions::new();
        let file = options.create(true).append(true).open(path);
        let file = file.map_err(io(path))?;
        let text = read(path)?;
        if !text.is_empty() && !text.ends_with('\n') {
            // What was cut off must not swallow the next line.
            writeln!(&file).map_err(io(path))?;
        }
        let Results { lines, parts } = Results::of(&text);
        let known = lines.into_iter().map(|(line, _)| (line.key, line.figures));
        Ok(Self {
            path: path.to_owned(),
            program,
            known: known.collect(),
            parts,
            file: Mutex::new(file),
        })
    }

    /// Joins the files of all parts of a run into `output`, each result once, in the
    /// order of their keys: the same bytes however the work was divided. Says how many
    /// there are.
    ///
    /// # Errors
    ///
    /// A part is missing, there twice, not finished, or of another run; `output` is one of
    /// them, or has something else than results; or a file cannot be read or written.
    pub fn merge(files: &[PathBuf], output: &Path) -> Result<usize, Error> {
        let output = may_be_replaced(output, files)?;
        let mut results = BTreeMap::new();
        let mut parts: Vec<(Part, &Path)> = Vec::new();
        for file in files {
            let text = read(file)?;
            let read = Results::of(&text);
            parts.push((the_part(file, &read.parts)?, file));
            let lines = read.lines.into_iter();
            results.extend(lines.map(|(line, text)| (line.key, text.to_owned() + "\n")));
        }
        check_parts(&parts)?;
        let count = results.len();
        let text: String = results.into_values().collect();
        replace(&output, &text).map_err(io(&output))?;
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

    /// A part of a run on `host` with so many seeds from the first.
    ///
    /// # Errors
    ///
    /// The file has another part, which would be of no use any more with this one beside it.
    pub(crate) fn part(
        &self,
        host: &str,
        experiments: &[Experiment],
        (seed, seeds): (u64, u32),
        shard: Shard,
    ) -> Result<Part, Error> {
        let experiments = format!("{experiments:?}");
        let parts = [
            &self.program.to_le_bytes()[..],
            host.as_bytes(),
            experiments.as_bytes(),
            &seed.to_le_bytes(),
            &seeds.to_le_bytes(),
        ];
        let part = Part {
            run: format!("{:032x}", hash(&parts)),
            part: shard.index,
            of: shard.of,
        };
        let Some(other) = self.parts.iter().find(|one| **one != part) else {
            return Ok(part);
        };
        let problem = match other.run == part.run {
            true => format!("it is there, and not part {} of {}", part.part, part.of),
            false => "it is there, and of another command or program".to_owned(),
        };
        let remedy = "name another file for --resume, or the part as it was";
        Err(other.error(&self.path, problem, remedy))
    }

    /// Notes that all results of a part are here.
    pub(crate) fn keep_part(&self, part: &Part) -> Result<(), Error> {
        self.append(part)
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

impl<'a> Results<'a> {
    fn of(text: &'a str) -> Self {
        let mut results = Self {
            lines: Vec::new(),
            parts: BTreeSet::new(),
        };
        for text in text.lines() {
            if let Ok(line) = serde_json::from_str(text) {
                results.lines.push((line, text));
            } else if let Ok(part) = serde_json::from_str(text) {
                results.parts.insert(part);
            }
        }
        results
    }
}

fn io(file: &Path) -> impl Fn(std::io::Error) -> Error {
    let file = file.to_owned();
    move |source| Error::Io {
        file: file.clone(),
        source,
    }
}

/// The text of a file of results, which may be empty.
fn read(file: &Path) -> Result<String, Error> {
    let bytes = fs::read(file).map_err(io(file))?;
    if !begins_with_a_result(&bytes) {
        let problem = "it is no file of results";
        return Err(refused(file, problem, "name a new file, or one of lab run"));
    }
    String::from_utf8(bytes).map_err(|error| {
        let error = std::io::Error::new(ErrorKind::InvalidData, error);
        io(file)(error)
    })
}

/// Whether a file begins as a line of ours does, or ends in the middle of that.
fn begins_with_a_result(bytes: &[u8]) -> bool {
    const DIGITS: usize = 32;
    [&br#"{"key":""#[..], br#"{"run":""#].iter().any(|start| {
        let (head, rest) = bytes.split_at(bytes.len().min(start.len()));
        let mut key = rest.iter().take(DIGITS).take_while(|byte| **byte != b'\n');
        start.starts_with(head) && key.all(u8::is_ascii_hexdigit)
    })
}

fn refused(file: &Path, problem: &str, remedy: &str) -> Error {
    Error::file(&file.display().to_string(), "file", problem, remedy)
}

/// The place of a file to write, which is new or has results, but none of `inputs`.
fn may_be_replaced(output: &Path, inputs: &[PathBuf]) -> Result<PathBuf, Error> {
    let found = match fs::metadata(output) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(output.to_owned()),
        found => found.map_err(io(output))?,
    };
    if !found.is_file() {
        return Err(refused(output, "it is no regular file", "name a new file"));
    }
    read(output)?;
    // Behind symbolic links: those stay.
    let place = fs::canonicalize(output).map_err(io(output))?;
    let is_it = |input: &PathBuf| fs::canonicalize(input).is_ok_and(|input| input == place);
    if inputs.iter().any(is_it) {
        let problem = "it is one of the parts to be joined";
        return Err(refused(output, problem, "write to another file"));
    }
    Ok(place)
}

/// Writes beside a file and puts it in its place: there is the old or the new text, and
/// never a piece.
fn replace(file: &Path, text: &str) -> std::io::Result<()> {
    let mut name = file.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}", std::process::id()));
    let beside = file.with_file_name(name);
    let mut new = File::create_new(&beside)?;
    let written = new.write_all(text.as_bytes()).and_then(|()| new.sync_all());
    let replaced = written.and_then(|()| fs::rename(&beside, file));
    if replaced.is_err() {
        // It was made here. Why it could not be used is told.
        let _ = fs::remove_file(&beside);
    }
    replaced
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

/// A hash of the file that this process runs. It is read once: many megabytes in a debug build.
fn this_program() -> std::io::Result<u128> {
    static KNOWN: OnceLock<u128> = OnceLock::new();
    if let Some(known) = KNOWN.get() {
        return Ok(*known);
    }
    let program = fs::read(std::env::current_exe()?)?;
    Ok(*KNOWN.get_or_init(|| hash(&[&program])))
}

fn hash(parts: &[&[u8]]) -> u128 {
    let mut hasher = SipHasher13::new();
    for part in parts {
        hasher.write(&part.len().to_le_bytes());
        hasher.write(part);
    }
    hasher.finish128().as_u128()
}
