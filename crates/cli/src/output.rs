//! How results reach a person or a program.

use std::fmt::Display;
use std::fs::{self, File, OpenOptions};
use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};

use plimsoll_kernel::error::file_remedy;
use plimsoll_programs::{checksums, vlan_tags};
use serde::Serialize;

use crate::failure::Failure;

/// What made a page.
const PROGRAM: &str = concat!("plimsoll ", env!("PLIMSOLL_VERSION"));

/// Where results go: standard output (`-`), or a file. The file is opened before the work, so that
/// one which cannot be written costs none. What stood in it stays until something is written; a
/// new one that gets nothing is removed.
pub(crate) struct Target {
    path: PathBuf,
    to: To,
}

enum To {
    Standard,
    File {
        file: File,
        is_new: bool,
    },
    /// Something was written.
    Begun(File),
}

impl Target {
    /// Opens an argument `FILE|-`.
    pub(crate) fn open(path: &Path) -> crate::Result<Self> {
        match path.as_os_str().as_encoded_bytes() {
            b"-" => Ok(Self {
                path: path.to_owned(),
                to: To::Standard,
            }),
            _ => Self::open_page(path),
        }
    }

    /// Opens an argument `FILE`.
    pub(crate) fn open_page(path: &Path) -> crate::Result<Self> {
        let to = open_file(path).map_err(|error| cannot_write(path, error))?;
        let path = path.to_owned();
        Ok(Self { path, to })
    }

    /// Opens one that may have been left out.
    pub(crate) fn open_given(path: Option<&PathBuf>) -> crate::Result<Option<Self>> {
        path.map(|path| Self::open(path)).transpose()
    }

    pub(crate) const fn is_standard(&self) -> bool {
        matches!(self.to, To::Standard)
    }

    /// Writes all that is to stand there.
    pub(crate) fn put(mut self, text: &str) -> crate::Result<()> {
        let written = self.write_all(text.as_bytes()).and_then(|()| self.flush());
        written.map_err(|error| cannot_write(&self.path, error))
    }

    /// Writes one JSON document.
    pub(crate) fn put_json(self, document: &impl Serialize) -> crate::Result<()> {
        self.put(&(serde_json::to_string_pretty(document)? + "\n"))
    }
}

impl Write for Target {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if let To::File { file, .. } = &self.to {
            let file = file.try_clone()?;
            // A pipe or device has no length.
            if file.metadata()?.is_file() {
                file.set_len(0)?;
            }
            self.to = To::Begun(file);
        }
        match &mut self.to {
            To::Begun(file) | To::File { file, .. } => file.write(bytes),
            To::Standard => io::stdout().write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self.to {
            To::Standard => io::stdout().flush(),
            To::File { .. } | To::Begun(_) => Ok(()),
        }
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        if matches!(self.to, To::File { is_new: true, .. }) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn open_file(path: &Path) -> io::Result<To> {
    let mut options = OpenOptions::new();
    let (file, is_new) = match options.write(true).create_new(true).open(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            let there = options.create_new(false).create(true).truncate(false);
            (there.open(path)?, false)
        }
        opened => (opened?, true),
    };
    Ok(To::File { file, is_new })
}

fn cannot_write(path: &Path, error: io::Error) -> Failure {
    let remedy = file_remedy(&error);
    Failure::from(error).context(format!("cannot write {}{remedy}", path.display()))
}

/// The document to where it was wanted, and the text unless the document took its place. A document
/// that cannot be written does not cost the text.
pub(crate) fn deliver(
    json: Option<Target>,
    document: &impl Serialize,
    text: impl FnOnce() -> String,
) -> crate::Result<()> {
    let is_taken = json.as_ref().is_some_and(Target::is_standard);
    let written = json.map_or(Ok(()), |json| json.put_json(document));
    let shown = match is_taken {
        true => Ok(()),
        false => print(&text()),
    };
    written.and(shown)
}

/// The document instead of the text, if it was wanted and can be written.
pub(crate) fn deliver_one<D: Serialize>(
    json: Option<Target>,
    document: impl FnOnce() -> D,
    text: impl FnOnce() -> String,
) -> crate::Result<()> {
    let Some(json) = json else {
        return print(&text());
    };
    let is_standard = json.is_standard();
    let written = json.put_json(&document());
    if written.is_err() && !is_standard {
        print(&text())?;
    }
    written
}

/// What makes a page: this program, and the command line as a shell takes it.
pub(crate) fn made_by() -> String {
    let words = std::env::args_os().skip(1);
    let words: Vec<String> = words.map(|word| quoted(&word.to_string_lossy())).collect();
    format!("{PROGRAM}: plimsoll {}", words.join(" "))
}

fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./=,:+@%".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// Moves the cursor home and clears what was there, on a terminal only.
pub(crate) fn clear_screen() {
    if io::stdout().is_terminal() {
        let _ = write!(io::stdout(), "\x1b[H\x1b[J");
    }
}

/// Shows what is being done, on one line that the next call overwrites; only
/// where standard error is a terminal.
pub(crate) fn progress(text: &str) {
    if io::stderr().is_terminal() {
        let _ = write!(io::stderr(), "\r\x1b[K{text} …");
    }
}

/// Removes the line of [`progress`].
pub(crate) fn clear_progress() {
    if io::stderr().is_terminal() {
        let _ = write!(io::stderr(), "\r\x1b[K");
    }
}

/// Says which of these interfaces, which run a program of ours, may hide VLAN tags from it.
pub(crate) fn warn_of_tags<'a>(interfaces: impl IntoIterator<Item = &'a str>) {
    warn_of(vlan_tags::warnings(interfaces));
}

/// Says which of these interfaces may have frames that must not be sent on as they are.
pub(crate) fn warn_of_frames<'a>(interfaces: impl IntoIterator<Item = &'a str> + Clone) {
    warn_of_tags(interfaces.clone());
    warn_of(checksums::warnings(interfaces));
}

pub(crate) fn warn_of(warnings: impl IntoIterator<Item = String>) {
    for warning in warnings {
        say(format_args!("plimsoll: {warning}"));
    }
}

/// Writes a line to standard error. Unlike `eprintln!`, it does not panic when the reader is
/// gone: what a program does is worth more than that it can tell.
pub(crate) fn say(line: impl Display) {
    let _ = writeln!(io::stderr().lock(), "{line}");
}

/// Writes text to standard output. Unlike `print!`, it does not panic when the
/// reader is gone.
pub(crate) fn print(text: &str) -> crate::Result<()> {
    Ok(io::stdout().lock().write_all(text.as_bytes())?)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn a_file_keeps_its_content_until_something_is_written() {
        let directory = tempfile::tempdir().unwrap();
        let [old, new] = ["old", "new"].map(|name| directory.path().join(name));
        fs::write(&old, "what was there, and is longer").unwrap();
        for path in [&old, &new] {
            drop(Target::open(path).unwrap());
        }
        assert_eq!(fs::read_to_string(&old).unwrap().len(), 29);
        assert!(!new.exists());
        for path in [&old, &new] {
            Target::open(path).unwrap().put("1\n").unwrap();
            assert_eq!(fs::read_to_string(path).unwrap(), "1\n");
        }
    }

    #[test]
    fn what_cannot_be_written_is_said_before_the_work_and_costs_no_text() {
        let refused = Target::open(Path::new("/no/such/file")).err().unwrap();
        assert!(
            refused
                .to_string()
                .starts_with("cannot write /no/such/file (name a ")
        );
        for is_given in [true, false] {
            let full = is_given.then(|| Target::open(Path::new("/dev/full")).unwrap());
            let is_shown = Cell::new(false);
            let text = || {
                is_shown.set(true);
                String::new()
            };
            assert_eq!(deliver(full, &1, text).is_err(), is_given);
            assert!(is_shown.get());
        }
        let is_shown = Cell::new(false);
        let full = Target::open(Path::new("/dev/full")).unwrap();
        let text = || {
            is_shown.set(true);
            String::new()
        };
        assert!(deliver_one(Some(full), || 1, text).is_err() && is_shown.get());
    }

    #[test]
    fn a_shell_takes_quoted_words_as_they_were() {
        let words = ["path.quota", "--set", "a=1", "two words", "it's", ""];
        let quoted = words.map(quoted).join(" ");
        assert_eq!(quoted, r"path.quota --set a=1 'two words' 'it'\''s' ''");
    }
}
