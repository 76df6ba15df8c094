//! Who receives: our paths, the kernel's sockets, testpmd.

use std::path::{Path, PathBuf};
use std::time::Duration;

use plimsoll_testbed::dns::Nsd;
use plimsoll_testbed::server::{BATCH, Config as ServerConfig, Kind, On, Server, Threaded};

use super::site::Site;
use crate::Error;
use crate::spoken::Spoken;

/// A way to receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The kernel's sockets with recvmmsg and sendmmsg.
    Kernel,
    /// Our stack on AF_XDP: the XDP program demultiplexes to a ring per endpoint.
    NiLrp,
    /// Our stack: a thread demultiplexes, the receiving call does the rest.
    SoftLrp,
    /// Our stack: polling in bounded turns, with feedback.
    Polled,
    /// Our stack: demultiplexed early, processed at once.
    EarlyDemux,
    /// Our stack: everything at arrival.
    Eager,
    /// DPDK's testpmd on AF_XDP, without sockets.
    Testpmd,
}

/// What an operator of a busy UDP server sets; a frame of this link is accounted at the
/// size of a page.
const RCVBUF_BYTES: usize = 4 << 20;

impl Side {
    /// All, in the order in which they take turns.
    pub const ALL: [Self; 7] = [
        Self::Kernel,
        Self::NiLrp,
        Self::SoftLrp,
        Self::Polled,
        Self::EarlyDemux,
        Self::Eager,
        Self::Testpmd,
    ];

    /// Its name on the command line and in tables.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Kernel => "kernel",
            Self::NiLrp => "ni-lrp",
            Self::SoftLrp => "soft-lrp",
            Self::Polled => "polled",
            Self::EarlyDemux => "early-demux",
            Self::Eager => "eager",
            Self::Testpmd => "testpmd",
        }
    }

    /// Whether it has sockets that a server can use.
    pub(crate) const fn has_sockets(self) -> bool {
        !matches!(self, Self::Testpmd)
    }

    /// Whether the kernel can be told to poll so for it.
    pub(crate) const fn takes(self, place: Threaded) -> bool {
        match place {
            // What `eager` stands for comes before every process.
            Threaded::Auto => !matches!(self, Self::Kernel | Self::Testpmd | Self::Eager),
            Threaded::Beneath(_) | Threaded::Off => !matches!(self, Self::Kernel | Self::Testpmd),
        }
    }

    /// The settings of a server on it.
    pub(crate) fn server(self, kind: Kind, port: u16, device: &str) -> ServerConfig {
        let mut config = ServerConfig::new(kind, port);
        config.batch = Some(BATCH);
        config.rcvbuf_bytes = Some(RCVBUF_BYTES);
        if self != Self::Kernel {
            config.on = On::AfXdp(device.to_owned());
            config.path = Some(self.name().parse().expect("a path of the stack"));
        }
        config
    }
}

/// What a side is told to do with the packets of one port.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Task {
    pub(crate) kind: Kind,
    /// CPU time spent on each packet.
    pub(crate) work: Duration,
    /// Another endpoint on the same host that echoes.
    pub(crate) bystander: Option<u16>,
    /// What a DNS server answers from.
    pub(crate) zone: Option<PathBuf>,
}

impl Task {
    pub(crate) fn new(kind: Kind, work: Duration) -> Self {
        Self {
            kind,
            work,
            bystander: None,
            zone: None,
        }
    }
}

/// A side at work. Dropping it ends it.
pub(crate) enum Running {
    Server(Server),
    Testpmd(Spoken),
    Nsd(Nsd),
}

impl Running {
    pub(crate) fn start(
        site: &Site<'_>,
        side: Side,
        task: &Task,
        port: u16,
    ) -> Result<Self, Error> {
        if side == Side::Testpmd {
            return start_testpmd(site, task.kind).map(Self::Testpmd);
        }
        let host = site.testbed.test();
        let mut config = site.udp_server(side, task.kind, port);
        config.work = task.work;
        config.bystander = task.bystander;
        config.zone.clone_from(&task.zone);
        let server = Server::start(host, site.program(), &config)?;
        Ok(Self::Server(server))
    }

    /// Packets that it has got so far.
    pub(crate) fn received(&self) -> u64 {
        match self {
            Self::Server(server) => server.counts().received,
            // It tells nobody; its answers are counted as they leave.
            Self::Nsd(_) => 0,
            Self::Testpmd(testpmd) => last_count(&testpmd.said(), "RX-packets:"),
        }
    }

    pub(crate) fn stop(self) -> Result<(), Error> {
        match self {
            Self::Server(server) => {
                server.stop()?;
            }
            Self::Testpmd(mut testpmd) => {
                testpmd.stop()?;
            }
            Self::Nsd(nsd) => drop(nsd),
        }
        Ok(())
    }
}

/// How often testpmd says what it has counted, in seconds.
pub(crate) const TESTPMD_SAYS: u64 = 1;

/// testpmd takes every frame of the interface; as an echo it turns the Ethernet addresses
/// around and nothing else.
fn start_testpmd(site: &Site<'_>, kind: Kind) -> Result<Spoken, Error> {
    let host = site.testbed.test();
    let cpu = host.cpu();
    let mode = match kind {
        Kind::Echo => "macswap",
        Kind::Sink | Kind::Rpc | Kind::Http | Kind::Dns => "rxonly",
    };
    let mut command = host.command("dpdk-testpmd");
    // The main core only waits, so both share the CPU.
    command
        .package("dpdk-dev")
        .arg(format!("--lcores=0@{cpu},1@{cpu}"))
        .args(["--no-huge", "-m", "1024", "--no-pci", "--no-telemetry"])
        .arg(format!("--file-prefix={}", host.name()))
        .arg(format!("--vdev=net_af_xdp0,iface={}", host.device()))
        .args(["--", "--auto-start"])
        .arg(format!("--forward-mode={mode}"))
        .arg(format!("--stats-period={TESTPMD_SAYS}"));
    let log: &Path = &site.file("testpmd");
    Spoken::start("dpdk-testpmd", &mut command, log, "RX-packets:")
}

/// The last number after `name` in a program's output.
fn last_count(said: &str, name: &str) -> u64 {
    let last = said.rsplit(name).next().filter(|_| said.contains(name));
    let word = last.and_then(|rest| rest.split_whitespace().next());
    word.and_then(|word| word.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use plimsoll_testbed::server::On;

    use super::*;

    #[test]
    fn every_path_of_ours_is_one_of_the_stack_on_af_xdp() {
        for side in Side::ALL.into_iter().filter(|side| side.has_sockets()) {
            let config = side.server(Kind::Sink, 9, "test0");
            let on = match side {
                Side::Kernel => On::Kernel,
                _ => On::AfXdp("test0".to_owned()),
            };
            assert_eq!(config.on, on);
            if side != Side::Kernel {
                assert_eq!(config.path.unwrap().name(), side.name());
            }
        }
    }

    #[test]
    fn the_latest_count_of_testpmd_is_read() {
        let said = "  RX-packets: 7   RX-missed: 0\n  RX-packets: 1234  RX-missed: 0\n";
        assert_eq!(last_count(said, "RX-packets:"), 1234);
        assert_eq!(last_count("nothing yet", "RX-packets:"), 0);
    }
}
