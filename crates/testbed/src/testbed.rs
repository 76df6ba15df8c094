//! The testbed: both hosts and their link, made and taken down together.

use std::fs;
use std::sync::Arc;

use ipnet::Ipv4Net;
use nix::unistd::geteuid;

use crate::burner::Burner;
use crate::registry::{self, Registration};
use crate::{Error, Host, interrupt, link, routed};

/// Which CPUs the hosts get.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// The CPU that generates load and probes. Default 0.
    pub load_cpu: usize,
    /// The CPU of the test host: its receive work and its servers. Default 1.
    pub test_cpu: usize,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            load_cpu: 0,
            test_cpu: 1,
        }
    }
}

impl Config {
    fn validate(self) -> Result<(), Error> {
        if self.load_cpu == self.test_cpu {
            return Err(Error::Config {
                field: "test_cpu",
                given: self.test_cpu.to_string(),
                allowed: "another CPU than load_cpu",
            });
        }
        require_cpu(self.load_cpu)?;
        require_cpu(self.test_cpu)
    }
}

/// A load host and a test host, joined by a link.
///
/// Dropping it ends the processes that were started in it and removes both
/// namespaces. Several may exist at once, in one process or many; they share
/// nothing but the CPUs.
#[derive(Debug)]
pub struct Testbed {
    load: Host,
    test: Host,
}

impl Testbed {
    /// Makes both hosts and joins them, after removing what earlier runs that
    /// were killed have left behind. Catches SIGINT and SIGTERM from then on
    /// (see [`interrupt`]).
    ///
    /// The link is up and answers, but its receive work happens wherever veth
    /// puts it: see [`crate::placement`].
    ///
    /// # Errors
    ///
    /// [`Error::NotRoot`], [`Error::MissingCpu`],
    /// [`Error::MissingKernelFeature`], or [`Error::Io`]; nothing is left
    /// behind then.
    pub fn create(config: Config) -> Result<Self, Error> {
        if !geteuid().is_root() {
            return Err(Error::NotRoot);
        }
        config.validate()?;
        interrupt::install()?;
        registry::sweep()?;
        let registration = Arc::new(Registration::create()?);
        let testbed = Self {
            load: Host::create(&registration, "load", config.load_cpu, link::LOAD)?,
            test: Host::create(&registration, "test", config.test_cpu, link::TEST)?,
        };
        link::join(&testbed.load, &testbed.test)?;
        Ok(testbed)
    }

    /// The host that load comes from and answers go to.
    #[must_use]
    pub fn load(&self) -> &Host {
        &self.load
    }

    /// Routes answers to any IPv4 address to the load host, not only those of the
    /// ranges for benchmarking; it discards what is not its own. Once per testbed.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] if the kernel refuses the routes.
    pub fn route_all(&self) -> Result<(), Error> {
        link::route_all(&self.load, &self.test)
    }

    /// Makes every address of these networks one of the load host's own, so that clients there
    /// can use them all ([`crate::crowd`]). Answers find back only from what the test
    /// host routes there ([`Testbed::route_all`]).
    ///
    /// # Errors
    ///
    /// [`Error::Io`] if the kernel refuses a route.
    pub fn own(&self, networks: &[Ipv4Net]) -> Result<(), Error> {
        link::own(&self.load, networks)
    }

    /// Drops whatever reaches the load host, at the least cost to both CPUs, until the
    /// value is dropped: for counting answers by the test host's interface. Place receive
    /// work before, since the proof of that needs answers.
    ///
    /// # Errors
    ///
    /// As [`Burner::attach`].
    pub fn drop_answers(&self) -> Result<Burner, Error> {
        routed::drop_all(&self.load, self.load.cpu())
    }

    /// The host under test.
    #[must_use]
    pub fn test(&self) -> &Host {
        &self.test
    }
}

impl Drop for Testbed {
    fn drop(&mut self) {
        // Only for promptness: the link goes with its namespaces, but those
        // may linger.
        let _ = link::remove(&self.load);
        self.load.registration.tear_down();
    }
}

/// Fails unless `cpu` is online.
pub(crate) fn require_cpu(cpu: usize) -> Result<(), Error> {
    let path = "/sys/devices/system/cpu/online";
    let text = fs::read_to_string(path).map_err(Error::io(format!("read {path}")))?;
    let online = parse_cpu_list(&text)?;
    if online.contains(&cpu) {
        Ok(())
    } else {
        Err(Error::MissingCpu { cpu, online })
    }
}

/// Parses the kernel's CPU list format, for example `0-3,7`.
fn parse_cpu_list(text: &str) -> Result<Vec<usize>, Error> {
    let wrong = || Error::Parse {
        what: "the list of online CPUs",
        detail: text.trim().to_owned(),
    };
    let mut cpus = Vec::new();
    for range in text.trim().split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let first: usize = first.parse().map_err(|_| wrong())?;
        let last: usize = last.parse().map_err(|_| wrong())?;
        cpus.extend(first..=last);
    }
    Ok(cpus)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_lists_are_ranges_and_numbers() {
        assert_eq!(parse_cpu_list("0-1\n").unwrap(), [0, 1]);
        assert_eq!(parse_cpu_list("0,2-4,9\n").unwrap(), [0, 2, 3, 4, 9]);
        assert!(parse_cpu_list("one").is_err());
    }

    #[test]
    fn both_hosts_on_one_cpu_are_refused() {
        let config = Config {
            load_cpu: 0,
            test_cpu: 0,
        };
        assert_eq!(
            config.validate().unwrap_err().to_string(),
            "test_cpu = 0: must be another CPU than load_cpu"
        );
    }

    #[test]
    fn a_cpu_that_is_not_there_counts_as_missing() {
        let config = Config {
            load_cpu: 0,
            test_cpu: 100_000,
        };
        assert!(config.validate().unwrap_err().is_missing());
    }
}
