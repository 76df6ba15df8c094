//! Passes on what cargo says while it runs tests, and notes how much of the machine others had
//! while a program ran that failed.
//!
//! `plimsoll-tries ROOT FILE`: others are all processes but ROOT and what it started. FILE gets a
//! line for each program that failed, and one for `all` of the time: its path, `much` or
//! `little`, and what part others had in the worst second, in percent.

use std::fs::File;
use std::io::{self, BufRead, Write};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use plimsoll_tries::{Taken, Watch};

/// Bounds of tests are for what happens within some seconds. In the time of a whole program, a
/// minute and more, a second that others took would not show.
const SECOND: Duration = Duration::from_secs(1);

fn main() -> io::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let (Some(root), Some(file)) = (arguments.next(), arguments.next()) else {
        return Err(io::Error::other("usage: plimsoll-tries ROOT FILE"));
    };
    let root = root.parse().map_err(io::Error::other)?;
    let mut file = File::create(file)?;
    let seconds = Arc::new(Mutex::new(Seconds::new(root)));
    let looked_at = Arc::clone(&seconds);
    thread::spawn(move || {
        loop {
            thread::sleep(SECOND);
            lock(&looked_at).look();
        }
    });
    let (mut program, mut begun) = (String::new(), 0);
    let (mut input, mut output) = (io::stdin().lock(), io::stdout().lock());
    let mut line = Vec::new();
    while input.read_until(b'\n', &mut line)? > 0 {
        output.write_all(&line)?;
        output.flush()?;
        let text = String::from_utf8_lossy(&line);
        if let Some(started) = started(&text) {
            begun = lock(&seconds).look();
            started.clone_into(&mut program);
        } else if text.starts_with("error: test failed, to rerun pass ") {
            let mut seconds = lock(&seconds);
            seconds.look();
            write_worst(&mut file, &program, &seconds.taken[begun..])?;
        }
        line.clear();
    }
    let mut seconds = lock(&seconds);
    seconds.look();
    write_worst(&mut file, "all", &seconds.taken)
}

/// What others had, second by second.
struct Seconds {
    watch: Watch,
    taken: Vec<Taken>,
}

impl Seconds {
    fn new(root: u32) -> Self {
        let (watch, taken) = (Watch::beside(root), Vec::new());
        Self { watch, taken }
    }

    /// Looks now. Returns the number of the next look.
    fn look(&mut self) -> usize {
        self.taken.push(self.watch.taken());
        self.taken.len()
    }
}

fn lock(seconds: &Mutex<Seconds>) -> MutexGuard<'_, Seconds> {
    seconds.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The program that this line says to be run.
fn started(line: &str) -> Option<&str> {
    let named = line.trim().strip_prefix("Running ")?;
    named.rsplit_once('(')?.1.strip_suffix(')')
}

fn write_worst(file: &mut File, program: &str, seconds: &[Taken]) -> io::Result<()> {
    let Some(worst) = Taken::worst(seconds) else {
        return Ok(());
    };
    let how = if worst.is_much() { "much" } else { "little" };
    writeln!(file, "{program} {how} {:.1}", worst.part() * 100.0)
}
