//! A restart under a service manager, which keeps the guard's link meanwhile
//! (`sd_notify(3)`, `sd_listen_fds(3)`).

use std::io::{self, IoSliceMut, stdin};
use std::mem::MaybeUninit;
use std::net::UdpSocket;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixDatagram;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle, sleep};
use std::time::{Duration, Instant};

use caps::CapSet;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};

use super::Outcome;
use super::guard::{Guard, attached};
use super::site::{HOST, LOAD, Site};

/// The word that makes this program hand standard input on as a stored link.
pub(crate) const PASS_LINK: &str = "pass-link";
const SOCKET: &str = "/run/notify";
const FIRST_PASSED: i32 = 3;
const DETACH_LIMIT: Duration = Duration::from_secs(10);

/// The word that makes this program run another with the capabilities of the package's unit.
pub(crate) const AS_UNIT: &str = "as-unit";
const UNIT: &str = include_str!("../../../packaging/plimsoll-guard@.service");

/// Becomes the program that the arguments name, which can have no other capabilities than those.
pub(crate) fn as_unit() -> io::Error {
    let kept = UNIT
        .lines()
        .find_map(|line| line.strip_prefix("CapabilityBoundingSet="));
    let kept: Vec<&str> = kept.unwrap_or_default().split(' ').collect();
    let others = caps::all().into_iter();
    for other in others.filter(|it| !kept.contains(&it.to_string().as_str())) {
        // One that this kernel does not know is nobody's.
        let _ = caps::drop(None, CapSet::Bounding, other);
    }
    let mut words = std::env::args().skip(2);
    Command::new(words.next().unwrap_or_default())
        .args(words)
        .exec()
}

/// Becomes the program that the arguments name, with standard input as the first passed
/// descriptor. The process has to say its own number, so nobody else can do it.
pub(crate) fn pass_link() -> io::Error {
    let link = match rustix::io::fcntl_dupfd_cloexec(stdin().as_fd(), FIRST_PASSED) {
        Ok(link) if link.as_raw_fd() == FIRST_PASSED => link,
        Ok(_) => return io::Error::other("descriptor 3 is taken"),
        Err(error) => return error.into(),
    };
    if let Err(error) = rustix::io::fcntl_setfd(&link, rustix::io::FdFlags::empty()) {
        return error.into();
    }
    let mut words = std::env::args().skip(2);
    Command::new(words.next().unwrap_or_default())
        .args(words)
        .env("LISTEN_PID", std::process::id().to_string())
        .env("LISTEN_FDS", "1")
        .env("LISTEN_FDNAMES", "plimsoll-xdp")
        .exec()
}

/// What a manager keeps. It listens until the machine is off.
#[derive(Clone, Default)]
struct Store(Arc<Mutex<Vec<OwnedFd>>>);

impl Store {
    fn listen() -> Outcome<Self> {
        let socket = UnixDatagram::bind(SOCKET)?;
        let store = Self::default();
        let own = store.clone();
        thread::spawn(move || while own.receive(&socket).is_ok() {});
        Ok(store)
    }

    fn receive(&self, socket: &UnixDatagram) -> io::Result<()> {
        let mut bytes = [0; 4096];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut parts = [IoSliceMut::new(&mut bytes)];
        let length = recvmsg(socket, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC)?.bytes;
        let mut received = Vec::new();
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(fds) = message {
                received.extend(fds);
            }
        }
        let text = String::from_utf8_lossy(&bytes[..length]);
        let mut stored = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if text.contains("FDSTOREREMOVE=1") {
            stored.clear();
        } else if text.contains("FDSTORE=1") {
            stored.append(&mut received);
        }
        // What is not stored is closed: for a barrier, that is the answer.
        Ok(())
    }

    fn link(&self) -> Option<OwnedFd> {
        let stored = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        stored.first().and_then(|link| link.try_clone().ok())
    }

    fn clear(&self) {
        let mut stored = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        stored.clear();
    }
}

/// A steady stream of datagrams to a socket that reads them.
struct Stream {
    stop: Arc<AtomicBool>,
    sender: JoinHandle<u32>,
    receiver: JoinHandle<u32>,
}

impl Stream {
    fn start(site: &Site) -> Outcome<Self> {
        let receiver = UdpSocket::bind((HOST, 0))?;
        let to = receiver.local_addr()?;
        let sender = site.in_load(|| Ok(UdpSocket::bind((LOAD, 0))?))?;
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let sender = thread::spawn(move || {
            let mut sent = 0;
            while !stopped.load(Ordering::Relaxed) {
                sent += u32::from(sender.send_to(b"steady", to).is_ok());
                sleep(Duration::from_millis(5));
            }
            sent
        });
        receiver.set_read_timeout(Some(Duration::from_secs(3)))?;
        let receiver = thread::spawn(move || {
            let mut received = 0;
            while receiver.recv(&mut [0; 16]).is_ok() {
                received += 1;
            }
            received
        });
        Ok(Self {
            stop,
            sender,
            receiver,
        })
    }

    /// Datagrams sent and received.
    fn stop(self) -> Outcome<(u32, u32)> {
        self.stop.store(true, Ordering::Relaxed);
        let sent = self.sender.join().map_err(|_| "the sender panicked")?;
        let received = self.receiver.join().map_err(|_| "the receiver panicked")?;
        Ok((sent, received))
    }
}

/// One guard ends, and the next takes its link over: the program is never gone, and no
/// datagram is lost.
pub(crate) fn hand_over(site: &Site) -> Outcome {
    let store = Store::listen()?;
    let first = Guard::start_under(site, SOCKET, None)?;
    site.wait_for_packets()?;
    let before = attached(site)?;
    let stream = Stream::start(site)?;
    first.stop()?;
    let between = attached(site);
    let second = Guard::start_under(site, SOCKET, store.link())?;
    let after = attached(site)?;
    let (sent, received) = stream.stop()?;
    second.stop()?;
    // As the manager does when no guard is to follow.
    store.clear();
    if between? != before {
        return Err("another program was attached between the two".into());
    }
    if after == before {
        return Err("the second guard's program is not the one attached".into());
    }
    let found = format!("{received} of {sent} datagrams of a steady stream");
    if received != sent {
        return Err(found.into());
    }
    wait_until_detached(site)?;
    Ok(found)
}

fn wait_until_detached(site: &Site) -> Outcome<()> {
    let end = Instant::now() + DETACH_LIMIT;
    while attached(site).is_ok() {
        if Instant::now() > end {
            return Err("the program stays after the last guard".into());
        }
        sleep(Duration::from_millis(10));
    }
    Ok(())
}
