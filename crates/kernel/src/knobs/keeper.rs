//! A process that outlives a killed guard for a moment and puts its settings back. So it does
//! for one that hangs ([`Heartbeat`]).
//!
//! The XDP link ends with the guard's process, but settings do not: a polling
//! thread that the CPU limit has demoted would hardly run beside a compute-bound
//! process, and one with real-time class would take the CPU from everybody else.
//! So a child waits at a socket for the guard's end. Its own needs are few: it is
//! forked before the guard opens anything, so that it holds nothing of it but the
//! interface's directory in sysfs.
//!
//! Whoever wants the interface closed then, has the keeper hold the attachment of its XDP
//! program ([`Keeper::keep_all_closed`]). It stays until that is detached or replaced.
//!
//! Limits: whoever kills both leaves the settings to `plimsoll guard restore` or
//! the next start. Where an interface has no NAPI instances without XDP (veth
//! without GRO), only they can put threaded polling back; nothing polls there
//! meanwhile. An interface that was to stay closed is the kernel's again then. So it is if
//! whoever takes a closed one over is killed before its keeper has seen that, some milliseconds.

#![allow(unsafe_code, reason = "fork, and leaving without the parent's cleanup")]

use std::fmt;
use std::fs::OpenOptions;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::prctl::set_name;
use nix::sys::signal::SigSet;
use nix::unistd::{ForkResult, dup2_stdin, dup2_stdout, fork};

use super::closed::Mark;
use super::device::{Device, Identity};
use super::heartbeat::Owner;
use super::record::RecordFile;
use super::{
    DIRECTORY, Families, Heartbeat, Kept, Knobs, Netdev, OpenError, file_name, heartbeat,
    left_turned,
};
use crate::error::{os, with_causes};
use crate::link;
use crate::privileges::{Need, drop_capabilities, outlive_overload, require_single_thread};
use crate::process::Process;
use crate::xdp_link::{HeldLink, XdpLink};

/// How long the end of a dying guard is waited for.
const GUARD_LIMIT: Duration = Duration::from_secs(10);
/// How long a dead guard's program is waited for.
const DETACH_LIMIT: Duration = Duration::from_secs(2);
const LOOK_AGAIN: Duration = Duration::from_millis(5);
/// How soon it is seen that an attachment is gone, or was made anew.
const HELD_LOOK: Duration = Duration::from_millis(500);

/// What a guard tells: it has put everything back …
const DONE: u8 = 0;
/// … or this program, whose number follows, is to stay.
const KEEP: u8 = 1;
/// What the keeper answers then, or zero.
const HELD: u8 = 1;

const NOT_HELD: &str = "the keeper does not find its link, which takes CAP_SYS_ADMIN; a screen that fails open needs none";

/// The guard's hold on its keeper. Dropping it tells that the guard has put
/// everything back itself, so drop it after the [`Knobs`].
#[derive(Debug)]
pub struct Keeper {
    line: Arc<UnixStream>,
    ifindex: u32,
    guard: Process,
    mark: Mark,
    /// Of a link to an interface that was closed, and is to be left so.
    stays: Option<Arc<AtomicBool>>,
}

impl Keeper {
    /// Starts the keeper of the settings of `interface` in the current network
    /// namespace. Call it before all else: what this process has open, the keeper
    /// has open too, but for `others`.
    ///
    /// # Errors
    ///
    /// No such interface; this process has other threads already; the kernel
    /// makes no process.
    pub fn start(interface: &str, others: &[BorrowedFd<'_>]) -> Result<Self, OpenError> {
        Self::start_beside(others, interface, false)
    }

    /// The child would hold `others` open as well, and hide their end.
    fn start_beside(
        others: &[BorrowedFd<'_>],
        interface: &str,
        may_close: bool,
    ) -> Result<Self, OpenError> {
        let guard = Process::current()?;
        let mark = Mark::of(interface)?;
        let ward = Ward::of(interface, guard, may_close, &Families::of_kernel())?;
        let ifindex = ward.identity.ifindex;
        let (keepers, line) = UnixStream::pair().map_err(os("make a socket to the keeper"))?;
        require_single_thread("start the keeper of settings")?;
        // SAFETY: no other thread exists that could hold a lock in the child.
        match unsafe { fork() }.map_err(os("start the keeper of settings"))? {
            ForkResult::Parent { .. } => Ok(Self {
                line: Arc::new(line),
                ifindex,
                guard,
                mark,
                stays: None,
            }),
            ForkResult::Child => {
                drop(line);
                for other in others {
                    // SAFETY: an open descriptor, which the child does not use again: it leaves
                    // without a destructor.
                    unsafe { libc::close(other.as_raw_fd()) };
                }
                let kept = catch_unwind(AssertUnwindSafe(|| ward.keep(keepers)));
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
        Self::start_each(interfaces, false)
    }

    /// The same, of keepers that can be told to [keep](Self::keep_all_closed) an interface closed.
    /// For that they go on to have `CAP_SYS_ADMIN`.
    ///
    /// # Errors
    ///
    /// As [`Keeper::start`].
    pub fn start_closing(interfaces: &[impl AsRef<str>]) -> Result<Vec<Self>, OpenError> {
        Self::start_each(interfaces, true)
    }

    /// By which this process tells that it gets on. Whoever never beats may hang for as long as it
    /// likes.
    #[must_use]
    pub fn heartbeat(&self) -> Heartbeat {
        Heartbeat::new(Arc::clone(&self.line))
    }

    fn start_each(interfaces: &[impl AsRef<str>], may_close: bool) -> Result<Vec<Self>, OpenError> {
        let mut keepers: Vec<Self> = Vec::new();
        for interface in interfaces {
            let lines: Vec<_> = keepers.iter().map(|keeper| keeper.line.as_fd()).collect();
            let keeper = Self::start_beside(&lines, interface.as_ref(), may_close)?;
            keepers.push(keeper);
        }
        Ok(keepers)
    }

    /// The XDP programs that are attached now stay if this process is killed, until the next
    /// start [takes their place](super::take_over) or somebody restores the interfaces. If it
    /// ends otherwise, the interfaces are open.
    ///
    /// # Errors
    ///
    /// There is no program; what is to be known of it cannot be written; a keeper is gone, or
    /// cannot hold it.
    pub fn keep_all_closed(keepers: &mut [Self]) -> Result<(), OpenError> {
        keepers.iter_mut().try_for_each(Self::keep_closed)?;
        for keeper in keepers {
            if let Some(stays) = keeper.stays.take() {
                stays.store(false, Ordering::Relaxed);
            }
        }
        Ok(())
    }

    /// Leaves an interface closed that was so, however this process ends.
    pub(super) fn leave_closed(&mut self, link: &XdpLink) -> Result<(), OpenError> {
        let stays = self.stays.insert(link.stays());
        stays.store(true, Ordering::Relaxed);
        self.keep_closed()
    }

    fn keep_closed(&mut self) -> Result<(), OpenError> {
        let failed = || os("have a program stay on an interface");
        let link = link::link(self.ifindex).map_err(failed())?;
        let none = || failed()(io::ErrorKind::NotFound.into());
        let program = link.xdp.ok_or_else(none)?.id;
        self.mark.write(self.guard, program)?;
        let mut message = vec![KEEP];
        message.extend(program.to_ne_bytes());
        (&*self.line).write_all(&message).map_err(failed())?;
        let mut answer = [0];
        (&*self.line).read_exact(&mut answer).map_err(failed())?;
        match answer == [HELD] {
            true => Ok(()),
            false => {
                Err(failed()(io::Error::new(io::ErrorKind::PermissionDenied, NOT_HELD)).into())
            }
        }
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        if self.stays.is_some() {
            // As if this process had been killed.
            return;
        }
        // If it is gone, it has nothing to be told; if it does not listen, it finds nothing to do.
        let _ = heartbeat::say(&self.line, DONE);
        self.mark.remove(self.guard);
    }
}

/// What the keeper must know.
struct Ward {
    interface: String,
    identity: Identity,
    device: Device,
    guard: Process,
    may_close: bool,
    /// Before its program came.
    kept: Kept,
}

impl Ward {
    fn of(
        interface: &str,
        guard: Process,
        may_close: bool,
        families: &Families,
    ) -> Result<Self, OpenError> {
        let identity = Identity::of(interface)?;
        Ok(Self {
            interface: interface.to_owned(),
            device: Device::open(interface, identity.ifindex)?,
            kept: Kept::of(identity.ifindex, families),
            identity,
            guard,
            may_close,
        })
    }

    /// Waits for the guard's end, and restores if it came without a word.
    fn keep(self, line: UnixStream) {
        prepare(self.may_close);
        if let Ok(End::Killed(held)) = self.wait(line) {
            self.restore_after_kill(held);
        }
    }

    fn restore_after_kill(self, held: Option<HeldLink>) {
        // The line is one of many things that a dying process gives back, its lock another.
        wait_while(GUARD_LIMIT, || self.guard.is_alive());
        let (interface, guard) = (self.interface.clone(), self.guard);
        let say = |what: fmt::Arguments<'_>| say(&interface, what);
        let stays = held.is_some();
        let kept = self.put_back_lost(stays);
        let restored = self.restore(stays);
        if let Err(error) = &kept {
            say(format_args!(
                ": cannot put back what the driver lost: {error}"
            ));
        }
        match restored {
            Ok(None) if kept.unwrap_or(0) == 0 => {}
            Ok(None | Some(true)) => say(format_args!(" event=restored_after_kill")),
            Ok(Some(false)) => say(format_args!(
                " event=restore_deferred: `plimsoll guard restore` or the next guard puts the rest back"
            )),
            Err(error) => say(format_args!(": {}", with_causes(&error))),
        }
        if let Some(held) = held {
            say(format_args!(
                " event=closed_after_kill: nothing passes until the next start or `plimsoll guard restore {interface}`"
            ));
            hold(&interface, guard, &held);
        }
    }

    /// Waits for the guard's end, and holds what it says.
    fn wait(&self, mut line: UnixStream) -> io::Result<End> {
        let ifindex = self.identity.ifindex;
        let mut program = None;
        let mut held: Option<HeldLink> = None;
        let mut owner = Owner::default();
        loop {
            if let Some(program) = program
                && !held.as_ref().is_some_and(HeldLink::is_attached)
            {
                held = HeldLink::of(program, ifindex);
            }
            // Some drivers' attachments are made anew now and then.
            let look = program.map(|_| HELD_LOOK);
            let wait = look.into_iter().chain(owner.patience()).min();
            let timeout = wait.map(|wait| PollTimeout::try_from(wait).unwrap_or(PollTimeout::MAX));
            let mut wanted = [PollFd::new(line.as_fd(), PollFlags::POLLIN)];
            if poll(&mut wanted, timeout.unwrap_or(PollTimeout::NONE))? == 0 {
                if owner.hangs() {
                    let Ok(relieved) = self.relieve(&line, &owner) else {
                        // It was killed meanwhile.
                        return Ok(End::Killed(held));
                    };
                    owner.on_relief(relieved);
                }
                continue;
            }
            let mut word = [0];
            let length = match line.read(&mut word) {
                // It was killed before it read an answer.
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => 0,
                length => length?,
            };
            if length == 0 {
                return Ok(End::Killed(held));
            }
            match word[0] {
                DONE => return Ok(End::Told),
                heartbeat::BEAT | heartbeat::REST => {
                    if owner.on_word(word[0]) {
                        say(&self.interface, format_args!(" event=goes_on"));
                    }
                }
                _ => {
                    let mut number = [0; 4];
                    line.read_exact(&mut number)?;
                    let number = u32::from_ne_bytes(number);
                    (program, held) = (Some(number), HeldLink::of(number, ifindex));
                    // Who was killed meanwhile hears no answer.
                    let _ = line.write(&[if held.is_some() { HELD } else { 0 }]);
                }
            }
        }
    }

    /// Puts settings back for a guard that hangs. Whether that was done; not if it has just gone
    /// on, or the kernel refuses.
    ///
    /// # Errors
    ///
    /// The guard is gone.
    fn relieve(&self, line: &UnixStream, owner: &Owner) -> nix::Result<bool> {
        heartbeat::say_to_guard(line, heartbeat::RELIEVING)?;
        let mut wanted = [PollFd::new(line.as_fd(), PollFlags::POLLIN)];
        let has_gone_on = poll(&mut wanted, PollTimeout::ZERO)? > 0;
        let restored = match has_gone_on {
            true => Ok(()),
            false => self.put_back_for_owner(),
        };
        heartbeat::say_to_guard(line, heartbeat::RELIEVED)?;
        match &restored {
            Ok(()) if !has_gone_on => say(
                &self.interface,
                format_args!(
                    " event=hangs: the guard does not answer, so its settings are as before until it does"
                ),
            ),
            Err(error) if !owner.is_refused => {
                let why = with_causes(error);
                say(&self.interface, format_args!(" event=hangs: {why}"));
            }
            _ => {}
        }
        Ok(restored.is_ok() && !has_gone_on)
    }

    fn put_back_for_owner(&self) -> Result<(), OpenError> {
        let file = RecordFile::new(Path::new(DIRECTORY), &self.interface, &self.identity);
        let Some(left) = file.read()? else {
            return Ok(());
        };
        let device = self.device.try_clone();
        let device = device.map_err(os("open the interface's directory in sysfs"))?;
        Ok(Knobs::relieve(&self.interface, device, left, file)?)
    }

    /// Of what the driver lost with the program; see [`Kept`]. A program that `stays` takes nothing.
    fn put_back_lost(&self, stays: bool) -> io::Result<usize> {
        if stays {
            return Ok(0);
        }
        wait_for_detachment(self.identity.ifindex);
        self.kept.put_back()
    }

    /// Whether everything is back; `None` if nothing was turned, or the interface is gone with
    /// its settings. If
    /// the program `stays`, nobody waits for its end.
    fn restore(self, stays: bool) -> Result<Option<bool>, OpenError> {
        let directory = Path::new(DIRECTORY);
        let file = RecordFile::new(directory, &self.interface, &self.identity);
        let left = file.read()?;
        if left.is_none() && left_turned(&self.interface).unwrap_or(0) == 0 {
            return Ok(None);
        }
        let ifindex = self.identity.ifindex;
        // It may have been renamed.
        let name = link::name(ifindex).filter(|name| {
            let now = Identity::of(name);
            now.is_ok_and(|identity| identity == self.identity)
        });
        let name = name.as_ref().unwrap_or(&self.interface);
        // In the dead guard's name: who starts meanwhile waits, as for any lock
        // that its owner left.
        let answers = directory.join(file_name(&self.interface, &self.identity, "sock"));
        let mut knobs = Knobs::take(
            directory,
            name,
            self.identity,
            self.device,
            Box::new(Netdev::new()),
            self.guard,
        )?;
        // Nobody answers there any more, and under the lock nobody does yet.
        let _ = std::fs::remove_file(answers);
        // Instances that are made anew as the program goes may have the values that they had before.
        if let Some(left) = left {
            // One that stays is another's.
            if !stays {
                wait_for_detachment(ifindex);
            }
            let instances = knobs.instances();
            if knobs.is_gone() {
                return Ok(knobs.is_elsewhere().then(|| knobs.is_untouched()));
            }
            if !instances?.is_empty() {
                knobs.take_over(&left)?;
            }
        }
        Ok(Some(knobs.is_untouched()))
    }
}

/// How a guard ended.
enum End {
    /// With everything put back.
    Told,
    /// Without a word. What is held for it stays.
    Killed(Option<HeldLink>),
}

/// Says it, if somebody reads that. Who waits for a reader keeps nothing.
fn say(interface: &str, what: fmt::Arguments<'_>) {
    let stderr = io::stderr();
    let mut read = [PollFd::new(stderr.as_fd(), PollFlags::POLLOUT)];
    if matches!(poll(&mut read, PollTimeout::ZERO), Ok(1)) {
        // In one call: another interface's keeper may write as well.
        let line = format!("plimsoll: interface={interface}{what}\n");
        let _ = (&stderr).write_all(line.as_bytes());
    }
}

/// Holds an attachment until somebody else detaches it or puts another program there.
fn hold(interface: &str, guard: Process, held: &HeldLink) {
    while held.is_attached() {
        sleep(HELD_LOOK);
    }
    let link = link::index(interface).map(link::link);
    let is_taken = matches!(link, Ok(Ok(link)) if link.xdp.is_some());
    // Whoever put another there says so in the same file.
    if !is_taken && let Ok(mark) = Mark::of(interface) {
        mark.remove(guard);
    }
}

/// Waits while something is so, but no longer than `limit`.
fn wait_while(limit: Duration, is_so: impl Fn() -> bool) {
    let end = Instant::now() + limit;
    while is_so() && Instant::now() < end {
        sleep(LOOK_AGAIN);
    }
}

/// The kernel detaches a program a moment after its process is gone.
fn wait_for_detachment(ifindex: u32) {
    wait_while(DETACH_LIMIT, || {
        link::link(ifindex).is_ok_and(|link| link.xdp.is_some())
    });
}

/// Makes the child a process of its own: what stops the guard does not stop it,
/// it holds back no reader of the guard's output, and an overload does not
/// delay it. Whatever of this fails is no reason not to keep.
fn prepare(may_close: bool) {
    let _ = SigSet::all().thread_block();
    let _ = set_name(c"plimsoll-keeper");
    if let Ok(null) = OpenOptions::new().read(true).write(true).open("/dev/null") {
        let _ = dup2_stdin(&null);
        let _ = dup2_stdout(&null);
    }
    let _ = outlive_overload();
    let mut needs = vec![Need::Settings, Need::Scheduling];
    needs.extend(may_close.then_some(Need::Links));
    let _ = drop_capabilities(&needs);
}

#[cfg(test)]
mod tests;
