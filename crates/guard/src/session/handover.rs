//! A restart without a gap: the link goes through systemd's file descriptor store
//! from a guard that was asked to stop to the next one (`sd_notify(3)`, `FDSTORE`).
//!
//! The next guard puts its program in the place of the old one, so no packet passes
//! unjudged and no driver resets its rings. If no guard follows (`systemctl stop`),
//! systemd closes its copy, and the kernel detaches.
//!
//! **A crash still detaches at once.** The store has a copy only between an orderly end
//! and the next start, which takes it out again. A guard that cannot start takes it
//! out, too, whatever is wrong: a [`ServiceManager`] is made before settings are read, and drops
//! the link that it was given.
//!
//! Limits: a guard that is killed before it protects, or whose file the kernel cannot execute,
//! leaves the link in the store. The maps are the new program's, so counters begin at 0.
//! In between, some tenths of a second, the old program goes on alone: watermarks count, nothing
//! is shed, and addresses are those of then.

#![allow(unsafe_code, reason = "descriptors that another program left open")]

use std::env;
use std::io::{self, IoSlice};
use std::mem::{MaybeUninit, take};
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixDatagram;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use rustix::net::{
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, sendmsg_addr,
};

/// The name of a link in the store.
const NAME: &str = "plimsoll-xdp";
/// The first descriptor that a service manager passes on (`sd_listen_fds(3)`).
const FIRST_PASSED: i32 = 3;
/// How long the manager may take to note that a descriptor came.
const PATIENCE: Duration = Duration::from_secs(2);

/// The service manager, if one listens. Dropping it takes the link of the guard before out of
/// the manager's store, unless that was done.
#[derive(Debug, Default)]
pub struct ServiceManager {
    notify: Option<SocketAddrUnix>,
    /// A link that the guard before handed on.
    link: Option<OwnedFd>,
    /// The store has a copy of it.
    is_stored: bool,
}

impl ServiceManager {
    /// Takes what the manager passed to this process, at the first call; a later one knows of
    /// no manager. To be called before anything is opened or forked, and before anything may
    /// fail.
    #[must_use]
    pub fn of_this_process() -> Self {
        static TAKEN_BY: AtomicU32 = AtomicU32::new(0);
        let process = std::process::id();
        if TAKEN_BY.swap(process, Ordering::Relaxed) == process {
            return Self::default();
        }
        let notify = env::var("NOTIFY_SOCKET").ok();
        let notify = notify.and_then(|path| match path.strip_prefix('@') {
            Some(name) => SocketAddrUnix::new_abstract_name(name.as_bytes()).ok(),
            None => SocketAddrUnix::new(path.as_str()).ok(),
        });
        let link = passed_link();
        Self {
            notify,
            is_stored: link.is_some(),
            link,
        }
    }

    /// The link of the guard before, once.
    pub(super) fn link(&mut self) -> Option<OwnedFd> {
        self.link.take()
    }

    /// Says that the guard protects, and takes the link out of the store: from now on,
    /// the program is detached when this process dies.
    pub(super) fn ready(&mut self) {
        self.clear_store();
        // Without a manager nobody needs to know.
        let _ = self.tell("READY=1", &[]);
    }

    fn clear_store(&mut self) {
        if take(&mut self.is_stored) {
            let _ = self.tell(&format!("FDSTOREREMOVE=1\nFDNAME={NAME}"), &[]);
        }
    }

    /// Gives `link` to the store, and waits until it is there.
    pub(super) fn keep(&self, link: BorrowedFd<'_>) {
        let stored = format!("STOPPING=1\nFDSTORE=1\nFDNAME={NAME}\nFDPOLL=0");
        // If it cannot be kept, the program is detached, as without a manager.
        if self.tell(&stored, &[link]).is_ok_and(|told| told) {
            let _ = self.wait();
        }
    }

    /// Waits until all that was told is noted: the manager closes its end of the pipe
    /// only then.
    fn wait(&self) -> io::Result<()> {
        let (reader, writer) = io::pipe()?;
        self.tell("BARRIER=1", &[writer.as_fd()])?;
        drop(writer);
        let mut polled = [PollFd::new(reader.as_fd(), PollFlags::empty())];
        let patience = PollTimeout::try_from(PATIENCE).unwrap_or(PollTimeout::MAX);
        match poll(&mut polled, patience)? {
            0 => Err(io::ErrorKind::TimedOut.into()),
            _ => Ok(()),
        }
    }

    /// Sends a message with descriptors. False if nobody listens.
    fn tell(&self, text: &str, fds: &[BorrowedFd<'_>]) -> io::Result<bool> {
        let Some(notify) = &self.notify else {
            return Ok(false);
        };
        let socket = UnixDatagram::unbound()?;
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() {
            control.push(SendAncillaryMessage::ScmRights(fds));
        }
        let parts = [IoSlice::new(text.as_bytes())];
        sendmsg_addr(&socket, notify, &parts, &mut control, SendFlags::NOSIGNAL)?;
        Ok(true)
    }
}

impl Drop for ServiceManager {
    /// A start that failed: the link is not kept for another try, so that the host
    /// receives as without a guard.
    fn drop(&mut self) {
        self.clear_store();
    }
}

/// The link that the service manager passed to this process, if it did
/// (`sd_listen_fds(3)`). Descriptors of other names are closed.
fn passed_link() -> Option<OwnedFd> {
    let number = |name: &str| env::var(name).ok()?.parse::<u32>().ok();
    let count =
        number("LISTEN_FDS").filter(|_| number("LISTEN_PID") == Some(std::process::id()))?;
    let names = env::var("LISTEN_FDNAMES").unwrap_or_default();
    let mut link = None;
    for (place, name) in (0..i32::try_from(count).ok()?).zip(names.split(':')) {
        // SAFETY: the manager has opened this descriptor for this process, as the
        // variables say, and nothing else here knows of it: this is done once.
        let fd = unsafe { OwnedFd::from_raw_fd(FIRST_PASSED + place) };
        let _ = rustix::io::fcntl_setfd(&fd, rustix::io::FdFlags::CLOEXEC);
        if name == NAME {
            link = Some(fd);
        }
    }
    link
}
