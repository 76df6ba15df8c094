//! A process that outlives a killed guard for a moment and puts its settings back.
//!
//! The XDP link ends with the guard's process, but settings do not: a polling
//! thread that the CPU limit has demoted would hardly run beside a compute-bound
//! process, and one with real-time class would take the CPU from everybody else.
//! So a child waits at a pipe for the guard's end. Its own needs are few: it is
//! forked before the guard opens anything, so that it holds nothing of it but the
//! interface's directory in sysfs.
//!
//! Limits: whoever kills both leaves the settings to `plimsoll guard restore` or
//! the next start. Where an interface has no NAPI instances without XDP (veth
//! without GRO), only they can put threaded polling back; nothing polls there
//! meanwhile.

#![allow(unsafe_code, reason = "fork, and leaving without the parent's cleanup")]

use std::fs::OpenOptions;
use std::io::{PipeReader, PipeWriter, Read, Write, pipe};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use nix::sys::prctl::set_name;
use nix::sys::signal::SigSet;
use nix::unistd::{ForkResult, dup2_stdin, dup2_stdout, fork};

use super::device::{Device, Identity};
use super::record::RecordFile;
use super::{DIRECTORY, Knobs, Netdev, OpenError, left_turned, path_of};
use crate::error::os;
use crate::link;
use crate::privileges::{Need, drop_capabilities, outlive_overload, require_single_thread};
use crate::process::Process;

/// How long the end of a dying guard is waited for.
const GUARD_LIMIT: Duration = Duration::from_secs(10);
/// How long a dead guard's program is waited for.
const DETACH_LIMIT: Duration = Duration::from_secs(2);
const LOOK_AGAIN: Duration = Duration::from_millis(5);

/// The guard's hold on its keeper. Dropping it tells that the guard has put
/// everything back itself, so drop it after the [`Knobs`].
#[derive(Debug)]
pub struct Keeper {
    line: PipeWriter,
}

impl Keeper {
    /// Starts the keeper of the settings of `interface` in the current network
    /// namespace. Call it before all else: what this process has open, the keeper
    /// has open too.
    ///
    /// # Errors
    ///
    /// No such interface; this process has other threads already; the kernel
    /// makes no process.
    pub fn start(interface: &str) -> Result<Self, OpenError> {
        let identity = Identity::of(interface)?;
        let ward = Ward {
            interface: interface.to_owned(),
            device: Device::open(interface, identity.ifindex)?,
            identity,
            guard: Process::current()?,
        };
        let (reader, writer) = pipe().map_err(os("make a pipe to the keeper"))?;
        require_single_thread("start the keeper of settings")?;
        // SAFETY: no other thread exists that could hold a lock in the child.
        match unsafe { fork() }.map_err(os("start the keeper of settings"))? {
            ForkResult::Parent { .. } => Ok(Self { line: writer }),
            ForkResult::Child => {
                drop(writer);
                let kept = catch_unwind(AssertUnwindSafe(|| ward.keep(reader)));
                // SAFETY: ends the process at once: what the parent registered
                // to be done at its exit is not the child's to do.
                unsafe { libc::_exit(i32::from(kept.is_err())) }
            }
        }
    }
}

impl Keeper {
    /// One for each of the interfaces.
    ///
    /// # Errors
    ///
    /// As [`Keeper::start`].
    pub fn start_all(interfaces: &[impl AsRef<str>]) -> Result<Vec<Self>, OpenError> {
        let interfaces = interfaces.iter();
        interfaces.map(|name| Self::start(name.as_ref())).collect()
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        // If it is gone, it has nothing to be told.
        let _ = self.line.write(&[0]);
    }
}

/// What the keeper must know.
struct Ward {
    interface: String,
    identity: Identity,
    device: Device,
    guard: Process,
}

impl Ward {
    /// Waits for the guard's end, and restores if it came without a word.
    fn keep(self, mut line: PipeReader) {
        prepare();
        let mut said = Vec::new();
        let ended = line.read_to_end(&mut said).is_ok();
        if !ended || !said.is_empty() {
            return;
        }
        // The pipe is one of many things that a dying process gives back, its lock another.
        wait_while(GUARD_LIMIT, || self.guard.is_alive());
        let interface = self.interface.clone();
        match self.restore() {
            Ok(None) => {}
            Ok(Some(true)) => {
                eprintln!("plimsoll: interface={interface} event=restored_after_kill");
            }
            Ok(Some(false)) => eprintln!(
                "plimsoll: interface={interface} event=restore_deferred: `plimsoll guard restore` or the next guard puts the rest back"
            ),
            Err(error) => eprintln!("plimsoll: interface={interface}: {error}"),
        }
    }

    /// Whether everything is back; `None` if nothing was turned.
    fn restore(self) -> Result<Option<bool>, OpenError> {
        let directory = Path::new(DIRECTORY);
        let file = RecordFile::new(directory, &self.interface, &self.identity);
        let left = file.read()?;
        if left.is_none() && left_turned(&self.interface).unwrap_or(0) == 0 {
            return Ok(None);
        }
        let ifindex = self.identity.ifindex;
        // In the dead guard's name: who starts meanwhile waits, as for any lock
        // that its owner left.
        let answers = path_of(&self.interface, "sock")?;
        let mut knobs = Knobs::take(
            directory,
            &self.interface,
            self.identity,
            self.device,
            Box::new(Netdev::new()),
            self.guard,
        )?;
        // Nobody answers there any more, and under the lock nobody does yet.
        let _ = std::fs::remove_file(answers);
        // The kernel detaches the program a moment after the guard's end. Instances that
        // are made anew then may have the values that they had before.
        if let Some(left) = left {
            // One that stays is another's.
            wait_while(DETACH_LIMIT, || {
                link::link(ifindex).is_ok_and(|link| link.xdp.is_some())
            });
            if !knobs.instances()?.is_empty() {
                knobs.take_over(&left)?;
            }
        }
        Ok(Some(knobs.is_untouched()))
    }
}

/// Waits while something is so, but no longer than `limit`.
fn wait_while(limit: Duration, is_so: impl Fn() -> bool) {
    let end = Instant::now() + limit;
    while is_so() && Instant::now() < end {
        sleep(LOOK_AGAIN);
    }
}

/// Makes the child a process of its own: what stops the guard does not stop it,
/// it holds back no reader of the guard's output, and an overload does not
/// delay it. Whatever of this fails is no reason not to keep.
fn prepare() {
    let _ = SigSet::all().thread_block();
    let _ = set_name(c"plimsoll-keeper");
    if let Ok(null) = OpenOptions::new().read(true).write(true).open("/dev/null") {
        let _ = dup2_stdin(&null);
        let _ = dup2_stdout(&null);
    }
    let _ = outlive_overload();
    let _ = drop_capabilities(&[Need::Settings, Need::Scheduling]);
}
