//! Who sends, and how it is told to.

use std::net::{Ipv4Addr, SocketAddr};

use plimsoll_testbed::Host;
use plimsoll_testbed::server::{Config as ServerConfig, Kind, On, Pace};
use plimsoll_testbed::wide_area::{FAR, FAR_STACK, PREFIX};

use crate::Error;

/// A sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// The kernel as it is: Cubic, which begins with slow start after idleness.
    Kernel,
    /// The same with the path's rate as `SO_MAX_PACING_RATE`.
    KernelPaced,
    /// The same, and the window is kept over idleness (`tcp_slow_start_after_idle=0`):
    /// what an operator can have without another kernel.
    KernelKept,
    /// The kernel's BBR, which paces at what it measured and goes on with that.
    KernelBbr,
    /// Our stack with slow start.
    Ours,
    /// The same, but bursts of acknowledgements release no bursts of segments.
    OursSmooth,
    /// Our stack, paced at the path's rate.
    OursPaced,
    /// Our stack, paced at half of what the last busy period showed.
    OursLast,
}

/// Of a connection of our stack: the path's round trip at 100 Mbit/s is 1.25 MB.
const BUFFER_BYTES: usize = 4 << 20;
const PORT: u16 = 80;

impl Way {
    /// All, in the order in which they take turns.
    pub const ALL: [Self; 8] = [
        Self::Kernel,
        Self::KernelPaced,
        Self::KernelKept,
        Self::KernelBbr,
        Self::Ours,
        Self::OursSmooth,
        Self::OursPaced,
        Self::OursLast,
    ];

    /// Its name on the command line and in tables.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Kernel => "kernel",
            Self::KernelPaced => "kernel-paced",
            Self::KernelKept => "kernel-kept",
            Self::KernelBbr => "kernel-bbr",
            Self::Ours => "ours",
            Self::OursSmooth => "ours-smooth",
            Self::OursPaced => "ours-paced",
            Self::OursLast => "ours-last",
        }
    }

    fn is_ours(self) -> bool {
        matches!(
            self,
            Self::Ours | Self::OursSmooth | Self::OursPaced | Self::OursLast
        )
    }

    /// Tells the server's kernel what this way needs.
    pub(super) fn prepare(self, host: &Host) -> Result<(), Error> {
        let control = if self == Self::KernelBbr {
            "bbr"
        } else {
            "cubic"
        };
        let kept = if self == Self::KernelKept { "0" } else { "1" };
        for (setting, value) in [
            ("net.ipv4.tcp_slow_start_after_idle", kept),
            // Connections do not learn from each other.
            ("net.ipv4.tcp_no_metrics_save", "1"),
        ] {
            host.sysctl(setting, value)?;
        }
        // By the route: a namespace's default may only be what the machine allows to all.
        let mut octets = FAR.octets();
        octets[3] = 0;
        let (network, device) = (Ipv4Addr::from(octets), host.device());
        host.ip(&format!(
            "route replace {network}/{PREFIX} dev {device} proto kernel scope link src {FAR} \
             congctl {control}"
        ))?;
        Ok(())
    }

    /// The settings of its server, and where that will listen.
    pub(super) fn server(self, host: &Host, rate_mbit: u32) -> (ServerConfig, SocketAddr) {
        let mut config = ServerConfig::new(Kind::Http, PORT);
        let pace = match self {
            Self::Kernel | Self::KernelBbr | Self::Ours => None,
            Self::OursSmooth => Some("acks".to_owned()),
            Self::OursLast => Some("last".to_owned()),
            Self::KernelPaced | Self::KernelKept | Self::OursPaced => Some(rate_mbit.to_string()),
        };
        config.pace = pace.map(|pace| pace.parse::<Pace>().expect("a pace"));
        if !self.is_ours() {
            return (config, at(FAR));
        }
        let network = format!("{FAR_STACK}/{PREFIX}");
        config.on = On::AfXdp(host.device().to_owned());
        config.address = vec![network.parse().expect("a network")];
        config.tcp_buffer_bytes = Some(BUFFER_BYTES);
        (config, at(FAR_STACK))
    }
}

fn at(address: Ipv4Addr) -> SocketAddr {
    SocketAddr::new(address.into(), PORT)
}
