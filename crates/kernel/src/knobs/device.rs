//! One interface of one network namespace: who it is, and its device-wide
//! settings.
//!
//! `/sys/class/net` shows the devices of the namespace it was *mounted* in,
//! which after `nsenter -n` is another than the process is in, and the same
//! name may be another interface there. So the current namespace's own sysfs
//! is opened as a mount that is attached nowhere; where that is not allowed
//! (it takes `CAP_SYS_ADMIN`), `/sys` is used if it shows an interface of the
//! same index.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::Path;

use nix::dir::Dir;
use nix::errno::Errno;
use nix::fcntl::{OFlag, open, openat, readlinkat};
use nix::sys::stat::Mode;
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};
use serde::{Deserialize, Serialize};

use super::OpenError;
use crate::error::{CallError, FAILED, os};
use crate::link::{self, Link};
use crate::scheduling::Level;

/// What tells an interface from all others of all namespaces and boots.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Identity {
    /// `/proc/sys/kernel/random/boot_id`.
    pub(crate) boot_id: String,
    /// The namespace's cookie: never given twice in a boot, unlike the inode.
    pub(crate) netns_cookie: u64,
    /// The namespace's inode, as lsns(8) shows it: for the reader.
    pub(crate) netns_inode: u64,
    /// The interface's index in that namespace.
    pub(crate) ifindex: u32,
}

impl Identity {
    /// Of `interface` in the current network namespace.
    pub(crate) fn of(interface: &str) -> Result<Self, OpenError> {
        let ifindex = link::index(interface)?;
        Ok(Self {
            boot_id: boot_id()?,
            netns_cookie: netns_cookie().map_err(os("ask for the network namespace's cookie"))?,
            netns_inode: netns_inode()?,
            ifindex,
        })
    }
}

/// The current network namespace's inode, which a later one may have again.
pub(crate) fn netns_inode() -> Result<u64, CallError> {
    let namespace = nix::sys::stat::stat("/proc/thread-self/ns/net");
    let namespace = namespace.map_err(os("look at the network namespace"))?;
    Ok(namespace.st_ino)
}

pub(crate) fn boot_id() -> Result<String, CallError> {
    let id = fs::read_to_string("/proc/sys/kernel/random/boot_id");
    let id = id.map_err(os("read the boot's id"))?;
    Ok(id.trim().to_owned())
}

/// The current network namespace's cookie (`SO_NETNS_COOKIE`, Linux 5.14).
#[allow(
    unsafe_code,
    reason = "neither nix nor rustix knows this socket option"
)]
pub(crate) fn netns_cookie() -> io::Result<u64> {
    let socket = std::net::UdpSocket::bind(("127.0.0.1", 0)).or_else(|_| {
        // A namespace whose loopback is down, or without IPv4.
        std::os::unix::net::UnixDatagram::unbound().map(|unix| OwnedFd::from(unix).into())
    })?;
    let mut cookie = 0u64;
    let mut length = libc::socklen_t::try_from(size_of_val(&cookie)).expect("eight");
    // SAFETY: the descriptor is open, and both pointers are to initialised
    // values of the sizes stated.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_NETNS_COOKIE,
            (&raw mut cookie).cast(),
            &raw mut length,
        )
    };
    if result == 0 {
        Ok(cookie)
    } else {
        Err(io::Error::last_os_error())
    }
}

/// A device-wide setting, by its name in sysfs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Attribute {
    /// Whether threads poll.
    Threaded,
    /// Empty polls until interrupts come back on.
    NapiDeferHardIrqs,
    /// Holdoff, ns.
    GroFlushTimeout,
}

impl Attribute {
    /// The file's name in `/sys/class/net/*`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Threaded => "threaded",
            Self::NapiDeferHardIrqs => "napi_defer_hard_irqs",
            Self::GroFlushTimeout => "gro_flush_timeout",
        }
    }
}

/// Why an interface's directory in sysfs is not to be had.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SysfsError {
    /// `/sys` shows the devices of another network namespace.
    #[error(
        "/sys/class/net does not show the `{interface}` of this network namespace: enter it with `ip netns exec`, or with nsenter's --net and --mount"
    )]
    Foreign {
        /// As given.
        interface: String,
    },
    /// The interface has several names, and sysfs knows it by another one.
    #[error("`{interface}` is another name of the interface `{name}` (altname): call it `{name}`")]
    OtherName {
        /// As given.
        interface: String,
        /// The one that counts.
        name: String,
    },
    /// The kernel refuses.
    #[error(transparent)]
    Call(#[from] CallError),
}

impl SysfsError {
    /// The exit code of a command that ends by it.
    #[must_use]
    pub const fn exit_code(&self) -> u8 {
        match self {
            Self::Foreign { .. } | Self::OtherName { .. } | Self::Call(_) => FAILED,
        }
    }
}

/// The interface's directory in sysfs. It is the same device's as long as it
/// is held, also if the device is renamed or moved to another network namespace, or
/// another takes its name.
#[derive(Debug)]
pub struct Device {
    directory: OwnedFd,
}

impl Device {
    /// Opens the directory of `interface`, which has this index in the current
    /// network namespace.
    ///
    /// # Errors
    ///
    /// [`SysfsError::OtherName`], [`SysfsError::Foreign`], or the kernel refuses.
    pub fn open(interface: &str, ifindex: u32) -> Result<Self, SysfsError> {
        if let Some(name) = link::name(ifindex).filter(|name| name != interface) {
            let interface = interface.to_owned();
            return Err(SysfsError::OtherName { interface, name });
        }
        let path = format!("class/net/{interface}");
        let found = match own_sysfs() {
            Ok(sysfs) => openat(sysfs, path.as_str(), DIRECTORY, Mode::empty()),
            Err(_) => open(format!("/sys/{path}").as_str(), DIRECTORY, Mode::empty()),
        };
        let directory = found.map_err(|errno| match errno {
            Errno::ENOENT => SysfsError::Foreign {
                interface: interface.to_owned(),
            },
            errno => os("open the interface's directory in sysfs")(errno).into(),
        })?;
        let device = Self { directory };
        let shown = device.read_number("ifindex");
        let shown = shown.map_err(os("read the interface's index in sysfs"))?;
        if shown == u64::from(ifindex) {
            Ok(device)
        } else {
            Err(SysfsError::Foreign {
                interface: interface.to_owned(),
            })
        }
    }

    pub(super) fn try_clone(&self) -> io::Result<Self> {
        let directory = self.directory.try_clone()?;
        Ok(Self { directory })
    }

    /// Whether there is the device still, in whatever namespace. That this process may open
    /// no more files does not say that it is gone.
    pub(crate) fn is_there(&self) -> bool {
        !matches!(absent_is_none(self.read_number("ifindex")), Ok(None))
    }

    /// The setting's value; `None` if this kernel or device has no such
    /// setting, or the device is gone.
    ///
    /// # Errors
    ///
    /// The kernel refuses, or holds no number.
    pub fn attribute(&self, attribute: Attribute) -> io::Result<Option<u64>> {
        absent_is_none(self.read_number(attribute.name()))
    }

    /// Sets it; `None` as in [`Self::attribute`].
    ///
    /// # Errors
    ///
    /// The kernel refuses.
    pub fn set_attribute(&self, attribute: Attribute, value: u64) -> io::Result<Option<()>> {
        let write = || {
            self.file(attribute.name(), OFlag::O_WRONLY)?
                .write_all(value.to_string().as_bytes())
        };
        absent_is_none(beneath_real_time(write))
    }

    /// One of the device's counters (`statistics/NAME`), held open: opening a
    /// file of sysfs costs many times what reading it does.
    ///
    /// # Errors
    ///
    /// The driver has no such counter.
    pub fn statistic(&self, name: &str) -> io::Result<Statistic> {
        let file = self.file(&format!("statistics/{name}"), OFlag::O_RDONLY)?;
        Ok(Statistic { file })
    }

    /// How often the link lost its carrier (`carrier_down_count`), held open as well.
    ///
    /// # Errors
    ///
    /// The device is gone.
    pub fn carrier_downs(&self) -> io::Result<Statistic> {
        let file = self.file("carrier_down_count", OFlag::O_RDONLY)?;
        Ok(Statistic { file })
    }

    /// Whether the link can send (`operstate`), held open as well.
    ///
    /// # Errors
    ///
    /// The device is gone.
    pub fn link_state(&self) -> io::Result<LinkState> {
        let file = self.file("operstate", OFlag::O_RDONLY)?;
        Ok(LinkState { file })
    }

    /// Name of the driver; of a virtual device its kind, such as `veth`.
    #[must_use]
    pub fn driver(&self, link: &Link) -> Option<String> {
        let driver = readlinkat(&self.directory, "device/driver").ok();
        let driver = driver.as_ref().and_then(|path| Path::new(path).file_name());
        let driver = driver.map(|name| name.to_string_lossy().into_owned());
        driver.or_else(|| link.kind.clone())
    }

    /// Number of receive queues the device has now.
    ///
    /// # Errors
    ///
    /// The device is gone.
    pub fn receive_queues(&self) -> io::Result<usize> {
        let queues = Dir::openat(&self.directory, "queues", OFlag::O_DIRECTORY, Mode::empty())?;
        let names = queues.into_iter().flatten();
        Ok(names
            .filter(|entry| entry.file_name().to_bytes().starts_with(b"rx-"))
            .count())
    }

    /// Names of the interfaces that it receives through, in order: a bond's members, a
    /// bridge's ports, what a VLAN device stands on.
    ///
    /// # Errors
    ///
    /// The device is gone.
    pub fn lower(&self) -> io::Result<Vec<String>> {
        lower_in(&self.directory)
    }

    fn read(&self, name: &str) -> io::Result<String> {
        let mut text = String::new();
        self.file(name, OFlag::O_RDONLY)?
            .read_to_string(&mut text)?;
        Ok(text.trim().to_owned())
    }

    fn read_number(&self, name: &str) -> io::Result<u64> {
        let text = self.read(name)?;
        text.parse()
            .map_err(|_| io::Error::other(format!("`{name}` holds `{text}`")))
    }

    fn file(&self, name: &str, mode: OFlag) -> io::Result<File> {
        let file = openat(
            self.directory.as_fd(),
            name,
            mode | OFlag::O_CLOEXEC,
            Mode::empty(),
        )?;
        Ok(file.into())
    }
}

/// A counter of a device.
#[derive(Debug)]
pub struct Statistic {
    file: File,
}

impl Statistic {
    /// Its value.
    ///
    /// # Errors
    ///
    /// The device is gone.
    pub fn read(&self) -> io::Result<u64> {
        let mut digits = [0; 24]; // more than 2^64 has
        let length = self.file.read_at(&mut digits, 0)?;
        let text = String::from_utf8_lossy(&digits[..length]);
        let refused = |_| io::Error::other(format!("a statistic holds `{text}`"));
        text.trim().parse().map_err(refused)
    }
}

/// What the kernel says of a link, without waiting for the lock of all interfaces.
///
/// It says at once that an interface was set down. A work queue notices that the carrier is gone,
/// mostly at once, and a second later if it was there a moment before (`operstates.rst` of the
/// kernel's documentation; `net/core/link_watch.c`).
#[derive(Debug)]
pub struct LinkState {
    file: File,
}

impl LinkState {
    /// Whether the interface is down or has no carrier. One that waits for its key (802.1X) sends.
    ///
    /// # Errors
    ///
    /// The device is gone.
    pub fn is_down(&self) -> io::Result<bool> {
        let mut word = [0; 16]; // more than each of them has
        let length = self.file.read_at(&mut word, 0)?;
        let word = word[..length].trim_ascii_end();
        Ok([&b"down"[..], b"lowerlayerdown", b"notpresent"].contains(&word))
    }
}

/// As many links as it has to such interfaces are in its directory.
fn lower_in(directory: &impl AsFd) -> io::Result<Vec<String>> {
    let entries = Dir::openat(directory, ".", OFlag::O_DIRECTORY, Mode::empty())?;
    let mut names: Vec<String> = entries
        .into_iter()
        .flatten()
        .filter_map(|entry| {
            let name = entry.file_name().to_string_lossy();
            name.strip_prefix("lower_").map(str::to_owned)
        })
        .collect();
    names.sort_unstable();
    Ok(names)
}

const DIRECTORY: OFlag = OFlag::O_PATH
    .union(OFlag::O_DIRECTORY)
    .union(OFlag::O_CLOEXEC);

fn own_sysfs() -> rustix::io::Result<OwnedFd> {
    let context = fsopen("sysfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_create(&context)?;
    fsmount(
        &context,
        FsMountFlags::FSMOUNT_CLOEXEC,
        MountAttrFlags::empty(),
    )
}

/// Before Linux 6.15 whoever writes to an interface's file in sysfs tries for the lock of all
/// interfaces again and again (`restart_syscall` in net/core/net-sysfs.c). A real-time thread
/// would keep the CPU from the one that has it.
fn beneath_real_time<T>(work: impl FnOnce() -> T) -> T {
    let first = Level::nice(-20);
    let own = Level::of(0).ok().filter(|own| *own > first);
    let _ = own.map(|_| first.give_to(0));
    let done = work();
    let _ = own.map(|own| own.give_to(0));
    done
}

fn absent_is_none<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) if error.raw_os_error() == Some(libc::ENODEV) => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::thread;
    use std::time::{Duration, Instant};

    use super::*;
    use crate::iproute::ip;
    use crate::scheduling::{Class, set_class};

    /// On Linux before 6.15 a guard kept its CPU from whoever had the lock that it waited for.
    #[test]
    fn a_real_time_thread_is_none_while_it_writes_a_setting() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join(Attribute::Threaded.name());
        // To open it, the writer waits for a reader.
        nix::unistd::mkfifo(&path, Mode::S_IRWXU).unwrap();
        let device = Device {
            directory: File::open(directory.path()).unwrap().into(),
        };
        let (begun, begins) = channel();
        let writer = thread::spawn(move || {
            set_class(0, Class::Watcher).unwrap();
            let own = Level::of(0).unwrap();
            begun.send(nix::unistd::gettid().as_raw()).unwrap();
            device.set_attribute(Attribute::Threaded, 1).unwrap();
            assert_eq!(Level::of(0).unwrap(), own);
        });
        let tid = begins.recv().unwrap();
        let end = Instant::now() + Duration::from_secs(10);
        while Level::of(tid).unwrap() != Level::nice(-20) {
            assert!(Instant::now() < end, "it waits as a real-time thread");
            thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(fs::read_to_string(&path).unwrap(), "1");
        writer.join().unwrap();
    }

    /// Udev gives most adapters several names. Who took another one was told to enter the network
    /// namespace that he was in. Needs root.
    #[test]
    fn another_name_of_an_interface_says_which_one_counts() {
        let inside = || {
            ip("link add v0 type veth peer name v1");
            ip("link property add dev v0 altname enp3s0");
            ip("link property add dev v0 altname enx0123456789abcdef");
            let open = |name| Device::open(name, link::index(name).unwrap());
            open("v0").unwrap();
            for name in ["enp3s0", "enx0123456789abcdef"] {
                let refused = open(name).unwrap_err().to_string();
                assert!(refused.ends_with(": call it `v0`"), "{refused}");
            }
            assert!(link::index("enx0123456789abcdee").is_err());
        };
        crate::namespace::in_new(inside)
            .expect("this test makes a namespace: run `sudo make test`");
    }

    /// As the bonding driver makes it; this tree has no driver behind it.
    #[test]
    fn what_an_interface_receives_through_is_linked_in_its_directory() {
        let directory = tempfile::tempdir().unwrap();
        let link = |name: &str| {
            std::os::unix::fs::symlink("../eth0", directory.path().join(name)).unwrap();
        };
        let found = || lower_in(&File::open(directory.path()).unwrap()).unwrap();
        for name in ["upper_br0", "master", "lower", "statistics"] {
            link(name);
        }
        assert_eq!(found(), [""; 0]);
        for name in ["lower_eth1", "lower_eth0"] {
            link(name);
        }
        assert_eq!(found(), ["eth0", "eth1"]);
    }
}
