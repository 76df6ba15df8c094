//! What runs beside what.

use std::io::{self, BufReader, PipeReader, Read, Write};
use std::panic::resume_unwind;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, ScopedJoinHandle};
use std::time::{Duration, Instant};
use std::{env, fmt, fs, iter};

use plimsoll_tries::{Taken, Watch};

use crate::output::Said;
use crate::programs::{Need, Program};

/// Bounds of tests are for what happens within some seconds. In the time of a whole program, a
/// minute and more, a second that others took would not show.
const SECOND: Duration = Duration::from_secs(1);

/// Runs a command (`$@`) with the least weight: in its session, and of its session (sched(7),
/// autogroup). It ends with who started it.
const LOWEST: [&str; 6] = [
    "--pdeathsig=TERM",
    "setsid",
    "sh",
    "-c",
    "{ echo 19 >/proc/self/autogroup; } 2>/dev/null; exec nice -n 19 \"$@\"",
    "sh",
];

/// A program that ended, or a command: the examples of the documentation, or the lints.
pub(crate) struct Ended<'a> {
    /// None for a command.
    pub(crate) program: Option<&'a Program>,
    /// As its lines call it.
    what: String,
    pub(crate) said: Said,
    pub(crate) succeeded: bool,
    /// What others had of the machine in the worst second.
    pub(crate) taken: Option<Taken>,
}

impl fmt::Display for Ended<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.program {
            Some(program) => write!(f, "plimsoll-{}, {}: ", program.of_crate(), program.name)?,
            None => write!(f, "{}: ", self.what)?,
        }
        match self.said.failed.is_empty() {
            true => f.write_str("not by a test that it names"),
            false => f.write_str(&self.said.failed.join(", ")),
        }
    }
}

/// A program that hangs is ended after so many seconds.
const PATIENCE: &str = "1800";

/// Runs programs, and looks what others have meanwhile.
pub(crate) struct Lanes {
    seconds: Arc<Mutex<Seconds>>,
    rest: Mutex<Rest>,
}

/// Those that take the rest.
#[derive(Default)]
struct Rest {
    /// Nobody is left to leave them any. Where others compute, they would not end otherwise.
    has_all: bool,
    /// The one that runs.
    process: Option<u32>,
}

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
        let rest = Mutex::default();
        Self { seconds, rest }
    }

    /// All programs, each beside what it bears. Lints are a command of the shell, or none.
    pub(crate) fn run<'a>(
        &self,
        programs: &'a [Program],
        lints: &str,
    ) -> io::Result<Vec<Ended<'a>>> {
        let of = |need| self.lane(programs.iter().filter(move |program| program.need == need));
        let rest = || {
            let mut ended = of(Need::Rest)()?;
            ended.push(self.documentation()?);
            if !lints.is_empty() {
                ended.push(self.lints(lints)?);
            }
            Ok(ended)
        };
        let shared = of(Need::Shared);
        let mut ended = thread::scope(|scope| {
            let rest = scope.spawn(rest);
            let other = scope.spawn(&shared);
            let mut ended = shared()?;
            ended.extend(joined(other)?);
            ended.extend(of(Need::Most)()?);
            self.give_all_to_rest();
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
                .map(|program| self.end(program, &program.tests, program.need == Need::Rest))
                .collect()
        }
    }

    /// One test of a program.
    pub(crate) fn alone<'a>(&self, program: &'a Program, test: &str) -> io::Result<Ended<'a>> {
        self.end(program, &[test.to_owned()], false)
    }

    /// These tests of it, or all.
    fn end<'a>(
        &self,
        program: &'a Program,
        tests: &[String],
        is_rest: bool,
    ) -> io::Result<Ended<'a>> {
        let mut command = Command::new("timeout");
        let (path, of_crate) = (&program.path, program.of_crate());
        command.args(["--foreground", "--kill-after=10", PATIENCE]);
        command.arg(path).current_dir(&program.directory);
        if !tests.is_empty() {
            command.arg("--exact").args(tests);
        }
        let what = format!("{} of {of_crate} ({})", program.name, path.display());
        let ended = self.command(command, is_rest, &what)?;
        Ok(Ended {
            program: Some(program),
            ..ended
        })
    }

    /// Examples of the documentation are compiled by who runs them.
    fn documentation(&self) -> io::Result<Ended<'static>> {
        let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        command.args(["test", "--workspace", "--locked", "--no-fail-fast", "--doc"]);
        self.command(command, true, "examples of the documentation")
    }

    /// They compile for minutes, while tests mostly wait.
    fn lints(&self, lints: &str) -> io::Result<Ended<'static>> {
        let mut command = Command::new("sh");
        command.args(["-c", lints]);
        self.command(command, true, &format!("`{lints}`"))
    }

    /// What it says is shown when it has ended: two at once cannot be read.
    fn command(&self, command: Command, is_rest: bool, what: &str) -> io::Result<Ended<'static>> {
        println!("     Running {what}");
        let begun = lock(&self.seconds).look();
        let (mut child, reader) = self.spawn(command, is_rest)?;
        let (start, mut said) = (Instant::now(), Vec::new());
        BufReader::new(reader).read_to_end(&mut said)?;
        let status = child.wait()?;
        let text = format!("       Ended {what} after {:.1?}\n", start.elapsed());
        let text = [text.into_bytes(), said].concat();
        if is_rest {
            lock(&self.rest).process = None;
        }
        io::stdout().write_all(&text)?;
        let mut seconds = lock(&self.seconds);
        seconds.look();
        Ok(Ended {
            program: None,
            what: what.to_owned(),
            said: Said::of(&String::from_utf8_lossy(&text)),
            succeeded: status.success(),
            taken: Taken::worst(&seconds.taken[begun..]),
        })
    }

    /// Starts it; what it writes comes out of the pipe.
    fn spawn(&self, command: Command, is_rest: bool) -> io::Result<(Child, PipeReader)> {
        let mut rest = lock(&self.rest);
        let mut command = match is_rest && !rest.has_all {
            true => lowest(&command),
            false => command,
        };
        let (reader, writer) = io::pipe()?;
        command.stdin(Stdio::null()).stdout(writer.try_clone()?);
        let child = command.stderr(writer).spawn().map_err(|error| {
            let program = command.get_program().display();
            io::Error::new(error.kind(), format!("start {program}: {error}"))
        })?;
        if is_rest {
            rest.process = Some(child.id());
        }
        Ok((child, reader))
    }

    /// Those that take the rest are as all others from now on.
    fn give_all_to_rest(&self) {
        let mut rest = lock(&self.rest);
        rest.has_all = true;
        if let Some(process) = rest.process {
            // It may have ended. Without root a process keeps its own weight.
            let _ = fs::write(format!("/proc/{process}/autogroup"), "0");
            let mut renice = Command::new("renice");
            renice.args(["-n", "0", "-g", &process.to_string()]);
            let _ = renice.stdout(Stdio::null()).stderr(Stdio::null()).status();
        }
    }
}

/// What a lane's thread returned.
fn joined<T>(lane: ScopedJoinHandle<'_, io::Result<T>>) -> io::Result<T> {
    lane.join().unwrap_or_else(|panic| resume_unwind(panic))
}

fn lowest(command: &Command) -> Command {
    let mut lowest = Command::new("setpriv");
    lowest.args(LOWEST).arg(command.get_program());
    lowest.args(command.get_args());
    if let Some(directory) = command.get_current_dir() {
        lowest.current_dir(directory);
    }
    lowest
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
