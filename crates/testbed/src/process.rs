//! Programs that run inside a host.
//!
//! The usual `std::process` pattern, with what a testbed needs: the child
//! starts inside the host's namespace, on the host's CPU, is killed when its
//! parent dies, and is written down so that a later run can end it should even
//! that fail.
#![allow(unsafe_code)] // `pre_exec`: the child has to enter the host before it becomes the program.

use std::env;
use std::ffi::OsStr;
use std::fs;
use std::io::{self, Read};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, ChildStderr, ChildStdout, ExitStatus, Output, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::prctl::set_pdeathsig;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, getpid, getppid, setsid};
use rustix::process::setpriority_process;

use plimsoll_kernel::namespace;

use crate::registry::Registration;
use crate::{Error, Host, interrupt};

/// Lets this process have as many descriptors open as it may at all: each socket
/// and each connection under way needs one.
///
/// # Errors
///
/// [`Error::Io`] with the kernel's answer.
pub fn allow_descriptors() -> Result<(), Error> {
    let raise = || -> nix::Result<()> {
        let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
        setrlimit(Resource::RLIMIT_NOFILE, hard, hard)
    };
    raise().map_err(Error::io("raise the limit of open files"))
}

/// Whether [`Command`]s find this program, before there is any other work.
///
/// # Errors
///
/// [`Error::MissingProgram`] with the Debian package that brings it.
pub fn require_program(program: &str, package: &'static str) -> Result<(), Error> {
    let path = env::var_os("PATH").unwrap_or_else(|| "/bin:/usr/bin".into());
    let is_program = |directory: PathBuf| {
        let found = fs::metadata(directory.join(program));
        found.is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0)
    };
    match env::split_paths(&path).any(is_program) {
        true => Ok(()),
        false => Err(Error::MissingProgram {
            program: program.to_owned(),
            package,
        }),
    }
}

/// A program to be started inside a [`Host`].
///
/// Standard input is empty; output and errors go where the caller's go, until
/// told otherwise.
#[derive(Debug)]
pub struct Command<'a> {
    host: &'a Host,
    inner: std::process::Command,
    cpu: Option<usize>,
    nice: i8,
    own_session: bool,
    package: &'static str,
}

impl<'a> Command<'a> {
    pub(crate) fn new(host: &'a Host, program: &OsStr) -> Self {
        let mut inner = std::process::Command::new(program);
        inner.stdin(Stdio::null());
        Self {
            host,
            inner,
            cpu: Some(host.cpu),
            nice: 0,
            own_session: false,
            package: "that brings it",
        }
    }

    /// Adds an argument.
    pub fn arg(&mut self, arg: impl AsRef<OsStr>) -> &mut Self {
        self.inner.arg(arg);
        self
    }

    /// Adds arguments.
    pub fn args(&mut self, args: impl IntoIterator<Item = impl AsRef<OsStr>>) -> &mut Self {
        self.inner.args(args);
        self
    }

    /// Sets an environment variable.
    pub fn env(&mut self, name: impl AsRef<OsStr>, value: impl AsRef<OsStr>) -> &mut Self {
        self.inner.env(name, value);
        self
    }

    /// Sets where standard input comes from.
    pub fn stdin(&mut self, from: impl Into<Stdio>) -> &mut Self {
        self.inner.stdin(from);
        self
    }

    /// Sets where standard output goes.
    pub fn stdout(&mut self, to: impl Into<Stdio>) -> &mut Self {
        self.inner.stdout(to);
        self
    }

    /// Sets where standard error goes.
    pub fn stderr(&mut self, to: impl Into<Stdio>) -> &mut Self {
        self.inner.stderr(to);
        self
    }

    /// Runs it on `cpu` instead of the host's; `None`: wherever the caller may run.
    pub fn cpu(&mut self, cpu: Option<usize>) -> &mut Self {
        self.cpu = cpu;
        self
    }

    /// Sets the nice level, -20 (most favoured) to 19.
    pub fn nice(&mut self, nice: i8) -> &mut Self {
        self.nice = nice;
        self
    }

    /// Runs it in a session of its own. The scheduler may give each session one share of
    /// a CPU (`sched_autogroup_enabled`, sched(7)): within a generator's session, whose nice
    /// level is -20, a program's share of its own CPU is next to nothing.
    pub fn own_session(&mut self) -> &mut Self {
        self.own_session = true;
        self
    }

    /// Names the Debian package to install when the program is missing.
    pub fn package(&mut self, package: &'static str) -> &mut Self {
        self.package = package;
        self
    }

    /// Starts the program. It is killed when the returned [`Process`] is
    /// dropped, and also when the *thread* that called this ends: start
    /// long-lived programs from a thread that lives as long.
    ///
    /// # Errors
    ///
    /// [`Error::MissingProgram`], or [`Error::Io`] if it cannot be started.
    pub fn spawn(&mut self) -> Result<Process, Error> {
        let name = self.inner.get_program().to_string_lossy().into_owned();
        self.enter_before_exec();
        let child = self.inner.spawn().map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => Error::MissingProgram {
                program: name.clone(),
                package: self.package,
            },
            _ => Error::io(format!("start {name} in {}", self.host.name))(error),
        })?;
        // From here on the child ends with the value, also if writing fails.
        let process = Process {
            name,
            child,
            registration: Arc::clone(&self.host.registration),
        };
        process.registration.add_process(process.pid())?;
        Ok(process)
    }

    /// Runs the program to its end, for at most `limit`, and returns what it wrote.
    ///
    /// # Errors
    ///
    /// As [`Command::spawn`]; [`Error::Timeout`] and [`Error::Interrupted`],
    /// after which it has been killed; [`Error::Failed`] with the end of what
    /// it said if its exit status is not 0.
    pub fn output(&mut self, limit: Duration) -> Result<Output, Error> {
        self.inner.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut process = self.spawn()?;
        let stdout = process.child.stdout.take().map(collect);
        let stderr = process.child.stderr.take().map(collect);
        let status = process.wait(limit)?;
        let output = Output {
            status,
            stdout: stdout.map(join).unwrap_or_default(),
            stderr: stderr.map(join).unwrap_or_default(),
        };
        if status.success() {
            return Ok(output);
        }
        let said = if output.stderr.is_empty() {
            &output.stdout
        } else {
            &output.stderr
        };
        Err(Error::Failed {
            program: process.name.clone(),
            status: status.to_string(),
            output: tail(said),
        })
    }

    /// Makes the forked child enter the host before it becomes the program.
    fn enter_before_exec(&mut self) {
        let Ok(namespace) = self.host.namespace().try_clone() else {
            // Out of descriptors: the spawn below fails with the same error.
            return;
        };
        let (cpu, nice, parent) = (self.cpu, self.nice, getpid());
        let own_session = self.own_session;
        let prepare = move || -> io::Result<()> {
            set_pdeathsig(Signal::SIGKILL)?;
            if getppid() != parent {
                // The parent died before the line above; nobody would kill us.
                return Err(Errno::ESRCH.into());
            }
            if own_session {
                setsid()?;
            }
            namespace::enter(&namespace)?;
            if let Some(cpu) = cpu {
                namespace::pin(cpu)?;
            }
            Ok(setpriority_process(None, nice.into())?)
        };
        // SAFETY: `prepare` only makes system calls: it takes no lock and
        // allocates nothing, so it may run between fork and exec of a
        // threaded process.
        unsafe { self.inner.pre_exec(prepare) };
    }
}

/// A running program. Dropping it kills it.
#[derive(Debug)]
pub struct Process {
    name: String,
    child: Child,
    registration: Arc<Registration>,
}

impl Process {
    /// Its process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Its standard output, if that was piped and not taken yet.
    pub fn take_stdout(&mut self) -> Option<ChildStdout> {
        self.child.stdout.take()
    }

    /// Its standard error, if that was piped and not taken yet.
    pub fn take_stderr(&mut self) -> Option<ChildStderr> {
        self.child.stderr.take()
    }

    /// How it ended, or `None` while it runs.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] if it cannot be waited for.
    pub fn try_wait(&mut self) -> Result<Option<ExitStatus>, Error> {
        self.child
            .try_wait()
            .map_err(Error::io(format!("wait for {}", self.name)))
    }

    /// Waits until it ends by itself.
    ///
    /// # Errors
    ///
    /// [`Error::Timeout`] after `limit`, [`Error::Interrupted`]; it runs on in
    /// both cases.
    pub fn wait(&mut self, limit: Duration) -> Result<ExitStatus, Error> {
        let what = format!("the end of {}", self.name);
        interrupt::wait_for(&what, limit, || self.try_wait())
    }

    /// Sends it a signal.
    ///
    /// # Errors
    ///
    /// [`Error::Io`], in particular if it has ended.
    pub fn signal(&self, signal: Signal) -> Result<(), Error> {
        let pid = Pid::from_raw(i32::try_from(self.pid()).unwrap_or(i32::MAX));
        kill(pid, signal).map_err(Error::io(format!("signal {}", self.name)))
    }

    /// Ends it: SIGTERM, and SIGKILL should it not have ended after `grace`.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] if it cannot be waited for, [`Error::Interrupted`] (then
    /// it has been killed).
    pub fn stop(mut self, grace: Duration) -> Result<ExitStatus, Error> {
        if let Some(status) = self.try_wait()? {
            return Ok(status);
        }
        self.signal(Signal::SIGTERM)?;
        match self.wait(grace) {
            Err(Error::Timeout { .. }) => {
                self.signal(Signal::SIGKILL)?;
                self.child
                    .wait()
                    .map_err(Error::io(format!("wait for {}", self.name)))
            }
            ended => ended,
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Fails only if it has been reaped already, which is what is wanted.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn collect(mut from: impl Read + Send + 'static) -> thread::JoinHandle<Vec<u8>> {
    thread::spawn(move || {
        let mut bytes = Vec::new();
        // A broken pipe ends the text; what was read before is kept.
        let _ = from.read_to_end(&mut bytes);
        bytes
    })
}

fn join(reader: thread::JoinHandle<Vec<u8>>) -> Vec<u8> {
    reader.join().unwrap_or_default()
}

/// The last lines of what a program said, for an error message.
pub(crate) fn tail(said: &[u8]) -> String {
    let text = String::from_utf8_lossy(said);
    let lines: Vec<&str> = text.trim().lines().collect();
    lines[lines.len().saturating_sub(5)..].join("; ")
}
