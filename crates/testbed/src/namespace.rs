//! A host: a network namespace with a CPU, and the two ways of running things
//! in it.
//!
//! The namespaces are ordinary named ones (`ip netns list` shows them, `ip
//! netns exec` enters them), so that any tool can look at a testbed.

use std::fs::{self, File};
use std::net::{Ipv4Addr, Ipv6Addr};
use std::panic;
use std::sync::Arc;
use std::thread;

use plimsoll_kernel::meter::{CpuMeter, Options};
use plimsoll_kernel::namespace::{create, enter, pin};
use plimsoll_kernel::pass_all::PassAll;
use tempfile::TempDir;

use crate::process::Command;
use crate::registry::Registration;
use crate::{Error, link};

/// Names of all testbeds' namespaces start with this. The load generator sends
/// inside such a namespace without asking.
pub(crate) const PREFIX: &str = "plimsoll-";

/// Names of one testbed's namespaces start with this.
pub(crate) fn prefix(id: &str) -> String {
    format!("{PREFIX}{id}-")
}

/// One of the two hosts of a testbed.
#[derive(Debug)]
pub struct Host {
    pub(crate) name: String,
    pub(crate) cpu: usize,
    pub(crate) end: link::End,
    namespace: File,
    pub(crate) registration: Arc<Registration>,
}

impl Host {
    /// Makes the namespace `name`; `end` says how it will be joined to the
    /// other host.
    pub(crate) fn create(
        registration: &Arc<Registration>,
        role: &str,
        cpu: usize,
        end: link::End,
    ) -> Result<Self, Error> {
        let name = prefix(registration.id()) + role;
        registration.add_namespace(&name)?;
        let namespace = create(&name)?;
        Ok(Self {
            name,
            cpu,
            end,
            namespace,
            registration: Arc::clone(registration),
        })
    }

    /// Makes a directory for the files of a program. Dropping it removes it, and if this process
    /// is killed the next testbed does.
    pub(crate) fn directory(&self, program: &str) -> Result<TempDir, Error> {
        let prefix = format!("{}{program}-", prefix(self.registration.id()));
        let directory = TempDir::with_prefix(prefix)
            .map_err(Error::io(format!("make a directory for {program}")))?;
        self.registration.add_directory(directory.path())?;
        Ok(directory)
    }

    /// The name of the network namespace, for `ip netns exec`.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The CPU that [`Host::command`]s and [`Host::run_on_cpu`] run on.
    #[must_use]
    pub fn cpu(&self) -> usize {
        self.cpu
    }

    /// The name of this host's end of the link.
    #[must_use]
    pub fn device(&self) -> &'static str {
        self.end.device
    }

    /// The interface index of [`Host::device`] in this host's namespace. Both
    /// hosts may have the same: an index means nothing outside its namespace.
    #[must_use]
    pub fn ifindex(&self) -> u32 {
        self.end.ifindex
    }

    /// The Ethernet address of [`Host::device`].
    #[must_use]
    pub fn mac(&self) -> [u8; 6] {
        self.end.mac
    }

    /// This host's IPv4 address.
    #[must_use]
    pub fn ipv4(&self) -> Ipv4Addr {
        self.end.ipv4
    }

    /// This host's IPv6 address.
    #[must_use]
    pub fn ipv6(&self) -> Ipv6Addr {
        self.end.ipv6
    }

    /// Runs `work` on a new thread inside this host: sockets, `/proc/thread-self/net`,
    /// `/proc/sys/net` and `/sys/class/net` are the host's own. (`/proc/net` is not:
    /// it follows the process, not the thread.) Threads that `work` starts are inside
    /// as well, and sockets it returns stay the host's.
    ///
    /// The thread keeps the caller's CPU affinity, so that looking at a
    /// flooded host neither costs that host nor waits for it.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] if the namespace cannot be entered.
    ///
    /// # Panics
    ///
    /// If `work` does.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T, Error> {
        self.run_in_thread(None, work)
    }

    /// As [`Host::run`], on the host's CPU.
    ///
    /// # Errors
    ///
    /// As [`Host::run`].
    ///
    /// # Panics
    ///
    /// If `work` does.
    pub fn run_on_cpu<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T, Error> {
        self.run_in_thread(Some(self.cpu), work)
    }

    fn run_in_thread<T: Send>(
        &self,
        cpu: Option<usize>,
        work: impl FnOnce() -> T + Send,
    ) -> Result<T, Error> {
        let run = || {
            enter(&self.namespace).map_err(Error::io(format!("enter namespace {}", self.name)))?;
            if let Some(cpu) = cpu {
                pin(cpu).map_err(Error::io(format!("run on CPU {cpu}")))?;
            }
            Ok(work())
        };
        thread::scope(|scope| scope.spawn(run).join())
            .unwrap_or_else(|payload| panic::resume_unwind(payload))
    }

    /// A program to be started inside this host, on its CPU. It sees the
    /// host's `/sys/class/net`, and it dies with the thread that started it.
    #[must_use]
    pub fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command<'_> {
        Command::new(self, program.as_ref())
    }

    /// A program that computes for ever: it wants all of the host's CPU.
    #[must_use]
    pub fn computing(&self) -> Command<'_> {
        let mut shell = self.command("sh");
        shell.args(["-c", "while :; do :; done"]);
        shell
    }

    /// Sets a network sysctl of this host; `name` as in sysctl(8), dots or slashes.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] naming the setting.
    pub fn sysctl(&self, name: &str, value: &str) -> Result<(), Error> {
        let path = format!("/proc/sys/{}", name.replace('.', "/"));
        self.run(|| fs::write(&path, value))?
            .map_err(Error::io(format!("set {name} = {value} in {}", self.name)))
    }

    /// Starts metering this host's CPU, on which processes can be watched.
    ///
    /// The meter costs that CPU time: leave it off in runs that only count packets.
    /// At a holdoff of 10 µs (100,000 timer interrupts a second) the one comparison
    /// made had well under half the goodput with a meter, where runs without it
    /// differed threefold among themselves.
    ///
    /// # Errors
    ///
    /// The kernel refuses the program, or a real-time task holds the CPU.
    pub fn cpu_meter(&self) -> Result<CpuMeter, Error> {
        Ok(CpuMeter::start(Options {
            cpu: Some(self.cpu),
            watches: true,
            ..Options::default()
        })?)
    }

    /// Attaches a program that passes everything to this host's end of the link,
    /// which then takes what the other end's program sends back.
    ///
    /// # Errors
    ///
    /// The kernel refuses the program, or another one is attached.
    pub fn pass_all(&self) -> Result<PassAll, Error> {
        Ok(self.run(|| PassAll::attach(self.device()))??)
    }

    /// A handle by which a forked child enters this host.
    pub(crate) fn namespace(&self) -> &File {
        &self.namespace
    }
}
