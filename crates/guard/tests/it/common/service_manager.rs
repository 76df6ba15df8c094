//! A service manager in a test's own process, which starts guards and keeps what they
//! hand over.

#![allow(unsafe_code, reason = "forks, and passes descriptors")]

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::time::Duration;

use nix::sys::socket::{ControlMessageOwned, MsgFlags, recvmsg};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{ForkResult, Pid, fork};

/// A service manager with a store for descriptors, as systemd is one.
pub(crate) struct Manager {
    _directory: tempfile::TempDir,
    path: PathBuf,
    socket: UnixDatagram,
    pub(crate) stored: Vec<OwnedFd>,
    pub(crate) said: Vec<String>,
}

impl Manager {
    pub(crate) fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("notify");
        let socket = UnixDatagram::bind(&path).unwrap();
        let short = Some(Duration::from_millis(20));
        socket.set_read_timeout(short).unwrap();
        Self {
            _directory: directory,
            path,
            socket,
            stored: Vec::new(),
            said: Vec::new(),
        }
    }

    /// Runs a guard as a child, with what is stored.
    pub(crate) fn start(&self, guard: impl FnOnce()) -> Pid {
        // SAFETY: this process has no other thread that could hold a lock.
        if let ForkResult::Parent { child } = unsafe { fork() }.unwrap() {
            return child;
        }
        let path = self.path.to_str().unwrap().to_owned();
        for (name, value) in [
            ("NOTIFY_SOCKET", path),
            ("LISTEN_PID", std::process::id().to_string()),
            ("LISTEN_FDS", self.stored.len().to_string()),
            ("LISTEN_FDNAMES", "plimsoll-xdp".to_owned()),
        ] {
            // SAFETY: nobody else reads the environment of this process.
            unsafe { std::env::set_var(name, value) };
        }
        if let Some(link) = self.stored.first() {
            let link = link.as_raw_fd();
            // SAFETY: the session takes this descriptor; what had it is not used here.
            let passed = unsafe { libc::dup2(link, 3) };
            assert_eq!(passed, 3);
            if link != passed {
                // SAFETY: an open descriptor, which this process does not use again: it leaves
                // without a destructor. The guard has one copy, as systemd gives it.
                unsafe { libc::close(link) };
            }
        }
        guard();
        std::process::exit(0);
    }

    /// Serves messages until `child` has ended; how it ended.
    pub(crate) fn wait(&mut self, child: Pid) -> WaitStatus {
        loop {
            // In this order: what it said last is heard as well.
            let ended = waitpid(child, Some(WaitPidFlag::WNOHANG)).unwrap();
            while self.receive() {}
            if ended != WaitStatus::StillAlive {
                return ended;
            }
        }
    }

    pub(crate) fn receive(&mut self) -> bool {
        let mut bytes = [0; 4096];
        let mut control = nix::cmsg_space!([i32; 1]);
        let mut parts = [io::IoSliceMut::new(&mut bytes)];
        let flags = MsgFlags::empty();
        let fd = self.socket.as_raw_fd();
        let Ok(message) = recvmsg::<()>(fd, &mut parts, Some(&mut control), flags) else {
            return false;
        };
        let mut fds = Vec::new();
        for part in message.cmsgs().unwrap() {
            if let ControlMessageOwned::ScmRights(received) = part {
                // SAFETY: just received, and nothing else knows of them.
                fds.extend(
                    received
                        .iter()
                        .map(|fd| unsafe { OwnedFd::from_raw_fd(*fd) }),
                );
            }
        }
        let length = message.bytes;
        let text = String::from_utf8(bytes[..length].to_vec()).unwrap();
        if text.contains("FDSTOREREMOVE=1") {
            self.stored.clear();
        } else if text.contains("FDSTORE=1") {
            self.stored.append(&mut fds);
        }
        self.said.push(text);
        // What is not stored is closed: for a barrier, that is the answer.
        true
    }
}
