//! The routers that are compared.

use plimsoll_testbed::bare_router::BareRouter;
use plimsoll_testbed::placement::Placement;

use crate::Error;
use crate::passing::{HOLDOFF, Running, Site, Way};
use crate::spoken::Spoken;

/// A router.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Router {
    /// The kernel, in softirq context.
    Kernel,
    /// The kernel, polled by a thread.
    Threaded,
    /// The kernel behind a program that passes every frame: what veth's XDP costs.
    PassThrough,
    /// A program that asks the kernel's table and redirects, and nothing else.
    Bare,
    /// `plimsoll forward --path xdp`.
    Xdp,
    /// `plimsoll forward --path user`.
    User,
    /// DPDK's testpmd on AF_XDP.
    Testpmd,
}

impl Router {
    /// All, in the order in which they take turns.
    pub const ALL: [Self; 7] = [
        Self::Kernel,
        Self::Threaded,
        Self::PassThrough,
        Self::Bare,
        Self::Xdp,
        Self::User,
        Self::Testpmd,
    ];

    /// Its name on the command line and in tables.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Kernel => "kernel",
            Self::Threaded => "threaded",
            Self::PassThrough => "pass-through",
            Self::Bare => "bare",
            Self::Xdp => "xdp",
            Self::User => "user",
            Self::Testpmd => "testpmd",
        }
    }

    /// Whether it is one of ours.
    pub(crate) const fn is_ours(self) -> bool {
        matches!(self, Self::Xdp | Self::User)
    }

    /// The kernel's polling thread, at the level of ordinary processes.
    const THREADED: Placement = Placement::Threaded { nice: 0 };
}

impl Way for Router {
    fn name(self) -> &'static str {
        Self::name(self)
    }

    fn placement(self) -> Placement {
        match self {
            Self::Threaded => Self::THREADED,
            _ => Placement::Softirq { holdoff: HOLDOFF },
        }
    }

    fn start(self, site: &Site<'_>) -> Result<Running, Error> {
        let router = site.hosts.router();
        Ok(match self {
            Self::Kernel | Self::Threaded => Running::Kernel,
            Self::PassThrough => Running::held(router.pass_all()?),
            Self::Bare => Running::held(BareRouter::attach(router, site.devices()[1])?),
            Self::Xdp | Self::User => Running::Program(start_ours(site, self, &[])?),
            Self::Testpmd => Running::Program(start_testpmd(site)?),
        })
    }
}

/// Starts a router. Ours may be told to keep to a part of the CPU where others want it,
/// which takes its polling into threads.
pub(crate) fn start_limited(
    site: &Site<'_>,
    router: Router,
    limit_percent: Option<u32>,
) -> Result<Running, Error> {
    let Some(limit) = limit_percent.filter(|_| router.is_ours()) else {
        return site.start(router);
    };
    let (limit, cpu) = (limit.to_string(), site.hosts.router().cpu().to_string());
    start_with(site, router, &["--cpu-limit", &limit, "--cpu", &cpu])
}

/// Starts a router of ours with further arguments.
pub(crate) fn start_with(
    site: &Site<'_>,
    router: Router,
    arguments: &[&str],
) -> Result<Running, Error> {
    site.hosts.place(router.placement())?;
    Ok(Running::Program(start_ours(site, router, arguments)?))
}

/// `plimsoll forward` on the router's CPU, with further arguments.
fn start_ours(site: &Site<'_>, way: Router, arguments: &[&str]) -> Result<Spoken, Error> {
    let mut command = site.hosts.router().command(site.program());
    command
        .arg("forward")
        .args(site.devices())
        .args(["--path", way.name()])
        .args(arguments);
    Spoken::start(
        "plimsoll forward",
        &mut command,
        &site.file("forward"),
        "forwarding between",
    )
}

/// testpmd carries frames from one interface to the other, and looks up nothing.
fn start_testpmd(site: &Site<'_>) -> Result<Spoken, Error> {
    let cpu = site.hosts.router().cpu();
    let mut command = site.hosts.router().command("dpdk-testpmd");
    // The main core only waits, so both share the CPU.
    command
        .package("dpdk-dev")
        .arg(format!("--lcores=0@{cpu},1@{cpu}"))
        .args(["--no-huge", "-m", "1024", "--no-pci", "--no-telemetry"])
        .arg(format!("--file-prefix={}", site.hosts.router().name()));
    for (number, device) in site.devices().into_iter().enumerate() {
        command.arg(format!("--vdev=net_af_xdp{number},iface={device}"));
    }
    command.args([
        "--",
        "--forward-mode=io",
        "--auto-start",
        "--stats-period=3600",
    ]);
    let log = site.file("testpmd");
    Spoken::start("dpdk-testpmd", &mut command, &log, "Port statistics")
}
