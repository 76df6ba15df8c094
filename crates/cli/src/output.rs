//! How results reach a person or a program.

use std::fmt::Display;
use std::fs::File;
use std::io::{self, IsTerminal, Write};
use std::path::Path;

use crate::failure::Context;

/// What made a page.
const PROGRAM: &str = concat!("plimsoll ", env!("PLIMSOLL_VERSION"));

/// Opens a `--json FILE|-` argument: `-` is standard output.
pub(crate) fn json_writer(target: &Path) -> crate::Result<Box<dyn Write + Send>> {
    if target == Path::new("-") {
        return Ok(Box::new(io::stdout()));
    }
    let file =
        File::create(target).with_context(|| format!("cannot write {}", target.display()))?;
    Ok(Box::new(file))
}

/// Writes an HTML page.
pub(crate) fn write_page(target: &Path, page: &str) -> crate::Result<()> {
    std::fs::write(target, page).with_context(|| format!("cannot write {}", target.display()))
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

/// Writes one JSON document to a `--json` target.
pub(crate) fn write_json(target: &Path, document: &impl serde::Serialize) -> crate::Result<()> {
    let mut writer = json_writer(target)?;
    serde_json::to_writer_pretty(&mut writer, document)?;
    writer.write_all(b"\n")?;
    Ok(writer.flush()?)
}

/// Says which of these interfaces, which run a program of ours, may hide VLAN tags from it.
pub(crate) fn warn_of_tags<'a>(interfaces: impl IntoIterator<Item = &'a str>) {
    for warning in plimsoll_programs::vlan_tags::warnings(interfaces) {
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
    use super::*;

    #[test]
    fn a_shell_takes_quoted_words_as_they_were() {
        let words = ["path.quota", "--set", "a=1", "two words", "it's", ""];
        let quoted = words.map(quoted).join(" ");
        assert_eq!(quoted, r"path.quota --set a=1 'two words' 'it'\''s' ''");
    }
}
