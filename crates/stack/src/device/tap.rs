//! A TAP or TUN interface: the kernel's stack of this machine is the peer.
//!
//! What the kernel sends into the interface is received here, one system call
//! and one copy per frame. An interface of the name is created if there is none
//! (`CAP_NET_ADMIN`); one that was made with `ip tuntap add … user ME` can be
//! opened by that user without privileges. It has to be set up with an address
//! of the kernel's side (`ip addr`, `ip link set up`); the stack has another one. One that the
//! kernel has on this host as the stack starts is refused.
//!
//! TAP carries Ethernet frames, TUN IP packets: nobody is asked for Ethernet addresses there,
//! and whatever is sent goes to the kernel. The stack works with frames, so a [`TunDevice`]
//! puts a header in front of what it receives and takes it off again.

#![allow(unsafe_code, reason = "two ioctls that no crate wraps")]

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::simulated::chunk_bytes_for;
use super::wrapper::Wrapper;
use super::{Batch, Capabilities, Device, Drops, Frame, HEADROOM_BYTES, Mac, Pool, gone};
use crate::error::Error;
use crate::interface::{self, KernelBeside};
use crate::wait;
use crate::wire::{ETHERNET_BYTES, emit};

/// The stack's side of a TAP interface.
#[derive(Debug)]
pub struct TapDevice {
    file: File,
    kernel: KernelBeside,
    mac: Mac,
    mtu: usize,
    pool: Arc<Pool>,
    no_buffer: AtomicU64,
    unsent: AtomicU64,
}

/// The stack's side of a TUN interface.
#[derive(Debug)]
pub struct TunDevice {
    device: TapDevice,
    /// The kernel's, in the headers that are put in front.
    peer: Mac,
}

/// Buffers, besides those in sockets' channels.
const CHUNKS: usize = 4096;

impl TapDevice {
    /// Opens or creates the interface `name` of this network namespace.
    ///
    /// # Errors
    ///
    /// The name is impossible, another program has the interface, it is no TAP
    /// interface, or this process may not.
    pub fn open(name: &str) -> Result<Self, Error> {
        Self::open_as(name, TAP)
    }

    fn open_as(name: &str, kind: Kind) -> Result<Self, Error> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(libc::O_NONBLOCK | libc::O_CLOEXEC)
            .open("/dev/net/tun")
            .map_err(not_opened)?;
        attach(&file, name, kind)?;
        let mtu = interface::mtu(name)?;
        let pool = Pool::new(CHUNKS, chunk_bytes_for(mtu));
        Ok(Self {
            file,
            kernel: KernelBeside::of(name),
            mac: random_mac().map_err(Error::io("draw an Ethernet address"))?,
            mtu,
            pool: pool.map_err(Error::io("get memory for frames"))?,
            no_buffer: AtomicU64::new(0),
            unsent: AtomicU64::new(0),
        })
    }
}

/// What the kernel's answers to opening `/dev/net/tun` mean.
fn not_opened(error: io::Error) -> Error {
    match error.raw_os_error() {
        Some(libc::ENODEV | libc::ENXIO | libc::ENOENT) => Error::Unsupported {
            what: "this kernel".to_owned(),
            feature: "TAP and TUN interfaces",
            remedy: "load the module: `modprobe tun`; a container needs the device /dev/net/tun as well",
        },
        _ => Error::privileged("open /dev/net/tun", "CAP_NET_ADMIN")(error),
    }
}

/// What the kernel calls it, and what a user does.
type Kind = (libc::c_int, &'static str);

const TAP: Kind = (libc::IFF_TAP, "TAP");
const TUN: Kind = (libc::IFF_TUN, "TUN");

fn attach(file: &File, name: &str, (flag, kind): Kind) -> Result<(), Error> {
    let mut request = interface::request(name)?;
    request.ifr_ifru.ifru_flags = (flag | libc::IFF_NO_PI) as libc::c_short;
    // SAFETY: TUNSETIFF reads and writes one `ifreq`, which lives here.
    let result = unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETIFF, &raw mut request) };
    if result == 0 {
        return Ok(());
    }
    let error = io::Error::last_os_error();
    Err(match error.raw_os_error() {
        Some(libc::EBUSY) => Error::Busy {
            what: format!("the {kind} interface {name}"),
            remedy: "end that program, or take another name".to_owned(),
        },
        Some(libc::EINVAL) => Error::Unsupported {
            what: name.to_owned(),
            feature: kind,
            remedy: "it is an interface of another kind; take another name",
        },
        _ => Error::privileged("open a TAP or TUN interface", "CAP_NET_ADMIN")(error),
    })
}

/// Locally administered, unicast (IEEE 802).
fn random_mac() -> io::Result<Mac> {
    let mut mac = [0; 6];
    getrandom::fill(&mut mac).map_err(io::Error::other)?;
    mac[0] = mac[0] & 0xfc | 0x02;
    Ok(mac)
}

impl Device for TapDevice {
    fn capabilities(&self) -> Capabilities {
        Capabilities::plain(self.mac, self.mtu)
    }

    fn pool(&self) -> &Arc<Pool> {
        &self.pool
    }

    fn receive(&self, batch: &mut Batch, max: usize) -> io::Result<usize> {
        for received in 0..max {
            let Some(mut frame) = self.pool.take() else {
                self.discard_one();
                return Ok(received);
            };
            match (&self.file).read(&mut frame.chunk_mut()[HEADROOM_BYTES..]) {
                Ok(length) => frame.set_range(HEADROOM_BYTES..HEADROOM_BYTES + length),
                Err(error) if nothing_now(&error) => return Ok(received),
                Err(error) => return Err(broken(error)),
            }
            batch.push_back(frame);
        }
        Ok(max)
    }

    fn transmit(&self, batch: &mut Batch) -> io::Result<usize> {
        let mut sent = 0;
        while let Some(frame) = batch.front() {
            match (&self.file).write(frame) {
                Ok(_) => {}
                Err(error) if is_for_later(&error) => break,
                Err(error) if is_refused(&error) => {
                    self.unsent.fetch_add(1, Ordering::Relaxed);
                }
                Err(error) => return Err(broken(error)),
            }
            batch.pop_front();
            sent += 1;
        }
        Ok(sent)
    }

    fn has_room(&self) -> bool {
        wait::is_writable(self.file.as_fd())
    }

    fn readiness(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    fn add_address(&self, address: IpAddr) -> Result<(), Error> {
        self.kernel.refuse(address)
    }

    fn unsent(&self) -> u64 {
        self.unsent.load(Ordering::Relaxed)
    }

    fn drops(&self) -> Drops {
        Drops {
            no_buffer: self.no_buffer.load(Ordering::Relaxed),
            ..Drops::default()
        }
    }
}

impl TapDevice {
    /// Without a buffer a frame must still leave the queue, or the descriptor
    /// stays readable and its reader spins.
    fn discard_one(&self) {
        if (&self.file).read(&mut [0; 1]).is_ok() {
            self.no_buffer.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl TunDevice {
    /// Opens or creates the interface `name` of this network namespace.
    ///
    /// # Errors
    ///
    /// As [`TapDevice::open`].
    pub fn open(name: &str) -> Result<Self, Error> {
        Ok(Self {
            device: TapDevice::open_as(name, TUN)?,
            peer: random_mac().map_err(Error::io("draw an Ethernet address"))?,
        })
    }
}

impl Wrapper for TunDevice {
    type Inner = TapDevice;

    fn inner(&self) -> &TapDevice {
        &self.device
    }

    fn narrow(&self, inner: Capabilities) -> Capabilities {
        Capabilities {
            peer: Some(self.peer),
            ..inner
        }
    }

    fn receive_through(&self, batch: &mut Batch, max: usize) -> io::Result<usize> {
        let before = batch.len();
        let received = self.device.receive(batch, max)?;
        for frame in batch.iter_mut().skip(before) {
            let packet = frame.range();
            frame.set_range(packet.start - ETHERNET_BYTES..packet.end);
            emit::write_link(frame, self.peer);
            emit::set_link_destination(frame, self.device.mac);
        }
        Ok(received)
    }

    fn transmit_through(&self, batch: &mut Batch) -> io::Result<usize> {
        let move_start = |frame: &mut Frame, start: usize| {
            let end = frame.range().end;
            frame.set_range(start..end);
        };
        for frame in batch.iter_mut() {
            move_start(frame, frame.range().start + ETHERNET_BYTES);
        }
        let result = self.device.transmit(batch);
        // What found no room comes again; its header is still there.
        for frame in batch.iter_mut() {
            move_start(frame, frame.range().start - ETHERNET_BYTES);
        }
        result
    }
}

/// Nothing to read, or the interface is down.
fn nothing_now(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::WouldBlock || error.raw_os_error() == Some(libc::EIO)
}

/// The interface is down, as a cable that is not plugged in, or the frame is none, or holds no packet where there
/// are packets alone.
fn is_refused(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EIO | libc::EINVAL))
}

/// The device's queue is full, or the kernel's memory is short.
fn is_for_later(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::EAGAIN | libc::ENOBUFS | libc::ENOMEM)
    )
}

/// What the kernel says of a file whose interface was deleted names no interface.
fn broken(error: io::Error) -> io::Error {
    match error.raw_os_error() {
        Some(libc::EBADFD) => gone(),
        _ => error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// There may be a node without a driver, and no interface is meant yet.
    #[test]
    fn a_kernel_without_the_module_says_its_remedy() {
        let refused = |number| not_opened(io::Error::from_raw_os_error(number)).to_string();
        for number in [libc::ENODEV, libc::ENXIO, libc::ENOENT] {
            let said = refused(number);
            assert!(said.contains("`modprobe tun`"), "{said}");
            assert!(!said.contains("`ip link`"), "{said}");
        }
        assert!(refused(libc::EACCES).contains("CAP_NET_ADMIN"));
        assert!(refused(libc::EMFILE).contains("`ulimit -n`"));
    }
}
