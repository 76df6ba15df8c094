//! What runs beside what.

use std::io::{self, BufReader, Read, Write};
use std::panic::resume_unwind;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, ScopedJoinHandle};
use std::time::Duration;
use std::{env, fmt, iter};

use plimsoll_tries::{Taken, Watch};

use crate::output::Said;
use crate::programs::{Need, Program};

/// Bounds of tests are for what happens within some seconds. In the time of a whole program, a
/// minute and more, a second that others took would not show.
const SECOND: Duration = Duration::from_secs(1);

/// Runs a command (`$@`) when nobody else wants the CPU: `SCHED_IDLE` beside what is in its own
/// session, and a session of least weight beside others (sched(7), autogroup). It ends with
/// who started it.
const LOWEST: [&str; 6] = [
    "--pdeathsig=TERM",
    "setsid",
    "sh",
    "-c",
    "{ echo 19 >/proc/self/autogroup; } 2>/dev/null; exec chrt --idle 0 \"$@\"",
    "sh",
];

/// A program that ended, or cargo with the examples of the documentation.
pub(crate) struct Ended<'a> {
    /// None for the examples.
    pub(crate) program: Option<&'a Program>,
    pub(crate) said: Said,
    pub(crate) succeeded: bool,
    /// What others had of the machine in the worst second.
    pub(crate) taken: Option<Taken>,
}

impl fmt::Display for Ended<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.program {
            Some(program) => write!(f, "plimsoll-{}, {}: ", program.of_crate(), program.name)?,
            None => f.write_str("examples of the documentation: ")?,
        }
        match self.said.failed.is_empty() {
            true => f.write_str("not by a test that it names"),
            false => f.write_str(&self.said.failed.join(", ")),
        }
    }
}

/// Runs programs, and looks what others have meanwhile.
pub(crate) struct Lanes(Arc<Mutex<Seconds>>);

impl Lanes {
    pub(crate) fn start() -> Self {
        let seconds = Arc::new(Mutex::new(Seconds::new()));
        let looked_at = Arc::clone(&seconds);
        thread::spawn(move || {
            loop {
                thread::sleep(SECOND);
                lock(&looked_at).look();
            }
        });
        Self(seconds)
    }

    /// All programs, each beside what it bears.
    pub(crate) fn run<'a>(&self, programs: &'a [Program]) -> io::Result<Vec<Ended<'a>>> {
        let of = |need| self.lane(programs.iter().filter(move |program| program.need == need));
        let rest = || {
            let mut ended = of(Need::Rest)()?;
            ended.push(self.documentation()?);
            Ok(ended)
        };
        let shared = of(Need::Shared);
        let mut ended = thread::scope(|scope| {
            let rest = scope.spawn(rest);
            let other = scope.spawn(&shared);
            let mut ended = shared()?;
            ended.extend(joined(other)?);
            ended.extend(of(Need::Most)()?);
            ended.extend(joined(rest)?);
            io::Result::Ok(ended)
        })?;
        ended.extend(of(Need::Alone)()?);
        Ok(ended)
    }

    /// Runs one of these after the other, until there are no more. Several may do so at once.
    fn lane<'a>(
        &self,
        programs: impl Iterator<Item = &'a Program> + Send,
    ) -> impl Fn() -> io::Result<Vec<Ended<'a>>> + Sync {
        let programs = Mutex::new(programs);
        move || {
            let next = || lock(&programs).next();
            iter::from_fn(next)
                .map(|program| self.end(program, &[]))
                .collect()
        }
    }

    /// One test of a program.
    pub(crate) fn alone<'a>(&self, program: &'a Program, test: &str) -> io::Result<Ended<'a>> {
        self.end(program, &["--exact", test])
    }

    fn end<'a>(&self, program: &'a Program, arguments: &[&str]) -> io::Result<Ended<'a>> {
        let mut command = match program.need {
            Need::Rest if arguments.is_empty() => lowest(&program.path),
            _ => Command::new(&program.path),
        };
        command.args(arguments).current_dir(&program.directory);
        let of_crate = program.of_crate();
        let what = format!(
            "{} of {of_crate} ({})",
            program.name,
            program.path.display()
        );
        let ended = self.command(command, &what)?;
        Ok(Ended {
            program: Some(program),
            ..ended
        })
    }

    /// Examples of the documentation are compiled by who runs them.
    fn documentation(&self) -> io::Result<Ended<'static>> {
        let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let mut command = lowest(Path::new(&cargo));
        command.args(["test", "--workspace", "--locked", "--no-fail-fast", "--doc"]);
        self.command(command, "examples of the documentation")
    }

    /// What it says is shown when it has ended: two at once cannot be read.
    fn command(&self, mut command: Command, what: &str) -> io::Result<Ended<'static>> {
        println!("     Running {what}");
        let begun = lock(&self.0).look();
        let (reader, writer) = io::pipe()?;
        command.stdin(Stdio::null()).stdout(writer.try_clone()?);
        let mut child = command.stderr(writer).spawn().map_err(|error| {
            let program = command.get_program().display();
            io::Error::new(error.kind(), format!("start {program}: {error}"))
        })?;
        drop(command); // its ends of the pipe
        let mut text = format!("       Ended {what}\n").into_bytes();
        BufReader::new(reader).read_to_end(&mut text)?;
        let status = child.wait()?;
        io::stdout().write_all(&text)?;
        let mut seconds = lock(&self.0);
        seconds.look();
        Ok(Ended {
            program: None,
            said: Said::of(&String::from_utf8_lossy(&text)),
            succeeded: status.success(),
            taken: Taken::worst(&seconds.taken[begun..]),
        })
    }
}

/// What a lane's thread returned.
fn joined<T>(lane: ScopedJoinHandle<'_, io::Result<T>>) -> io::Result<T> {
    lane.join().unwrap_or_else(|panic| resume_unwind(panic))
}

fn lowest(program: &Path) -> Command {
    let mut command = Command::new("setpriv");
    command.args(LOWEST).arg(program);
    command
}

/// What others had, second by second.
struct Seconds {
    watch: Watch,
    taken: Vec<Taken>,
}

impl Seconds {
    fn new() -> Self {
        let (watch, taken) = (Watch::start(), Vec::new());
        Self { watch, taken }
    }

    /// Looks now. Returns the number of the next look.
    fn look(&mut self) -> usize {
        self.taken.push(self.watch.taken());
        self.taken.len()
    }
}

fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}
