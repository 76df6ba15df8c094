//! HTTP beside a flood of SYNs for another port (LRP's figure 5), and new connections beside SYNs
//! for the server's own: nginx on the kernel's sockets, and `plimsoll serve http` on an address of
//! our stack's own.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use plimsoll_testbed::blast::{Priority, Spec, Transport};
use plimsoll_testbed::http::{FILE_BYTES, HttpLoad, Nginx, run_wrk};
use plimsoll_testbed::server::{Config as ServerConfig, Kind, On, Server};
use serde::Serialize;

use super::site::{Answers, Site};
use super::turns::{SideCase, in_turns};
use super::{Effort, Plan, Side};
use crate::Error;
use crate::traffic::{SPOOFED_SOURCES, during_flood_of};

/// The flood, in packets per second.
pub(super) const SYNS_PPS: u64 = 150_000;
/// Those for the server's port: fewer than our stack answers with cookies, and more.
pub(super) const OWN_SYNS_PPS: [u64; 2] = [10_000, 100_000];
const PORT: u16 = 80;
/// Nobody listens there.
const OTHER_PORT: u16 = 8080;
const CONNECTIONS: u32 = 32;
/// Whole seconds, as wrk counts.
const SECONDS: u32 = 2;
/// Two repetitions of a lost SYN.
const PATIENCE: Duration = Duration::from_secs(4);
/// Four: beside SYNs for its port, of wrk's first connection as well.
const PATIENCE_OWN: Duration = Duration::from_secs(32);
/// Our stack's own, on the link.
const ADDRESS: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 3);

/// Requests without a flood and with one.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct HttpRun {
    /// Answered requests per second, without a flood.
    pub calm_rps: f64,
    /// The flood, in SYNs per second.
    pub offered_pps: f64,
    /// Answered requests per second, beside it.
    pub flooded_rps: f64,
    /// Connections that were made, asked once and closed, per second, without a flood.
    pub connected_cps: f64,
    /// The same beside 10,000 and 100,000 SYNs per second for that port.
    pub connected_flooded_cps: [f64; 2],
}

pub(super) fn measure(
    plan: &Plan,
    progress: &mut impl FnMut(&str),
) -> Result<Vec<SideCase<HttpRun>>, Error> {
    let sides = [Side::Kernel, Side::NiLrp, Side::SoftLrp];
    let sides = sides.into_iter().filter(|side| plan.sides.contains(side));
    let sides: Vec<Side> = sides.collect();
    in_turns(plan, ("http", &sides), Side::name, progress, |side| {
        one_run(&plan.effort, side)
    })
}

/// Ends with the value.
enum Running {
    Nginx { _server: Nginx },
    Ours(Server),
}

fn one_run(effort: &Effort, side: Side) -> Result<HttpRun, Error> {
    let site = Site::new(effort, Answers::Received)?;
    let (running, at) = start(&site, side)?;
    let host = site.testbed.load();
    let per_second = |keep_alive, patience| {
        let load = HttpLoad {
            connections: CONNECTIONS,
            seconds: SECONDS,
            keep_alive,
            patience,
        };
        Ok(run_wrk(host, at, load)?.requests_per_second)
    };
    let served = || per_second(true, PATIENCE);
    let connected = || per_second(false, PATIENCE_OWN);
    let calm_rps = served()?;
    let others = syns(&site, SocketAddr::new(at.ip(), OTHER_PORT), SYNS_PPS);
    let (report, flooded_rps) = during_flood_of(host, Some(&others), served)?;
    let connected_cps = connected()?;
    let mut connected_flooded_cps = [0.0; OWN_SYNS_PPS.len()];
    for (cps, rate_pps) in connected_flooded_cps.iter_mut().zip(OWN_SYNS_PPS) {
        let flood = syns(&site, at, rate_pps);
        (_, *cps) = during_flood_of(host, Some(&flood), connected)?;
    }
    if let Running::Ours(server) = running {
        server.stop()?;
    }
    Ok(HttpRun {
        calm_rps,
        offered_pps: report.map_or(0.0, |report| report.offered_pps),
        flooded_rps,
        connected_cps,
        connected_flooded_cps,
    })
}

fn start(site: &Site<'_>, side: Side) -> Result<(Running, SocketAddr), Error> {
    if side == Side::Kernel {
        let nginx = Nginx::start(site.testbed.test(), PORT)?;
        let at = nginx.address();
        return Ok((Running::Nginx { _server: nginx }, at));
    }
    let page = "x".repeat(FILE_BYTES);
    let config = side.server(Kind::Http, PORT, site.testbed.test().device());
    let (server, at) = serve_configured(site, config, "index.html", page.as_bytes())?;
    Ok((Running::Ours(server), at))
}

/// Serves a file with `plimsoll serve http`; its place and the address are set here.
pub(crate) fn serve_configured(
    site: &Site<'_>,
    mut config: ServerConfig,
    name: &str,
    content: &[u8],
) -> Result<(Server, SocketAddr), Error> {
    let (load, test) = (site.testbed.load(), site.testbed.test());
    std::fs::write(site.file(name), content).map_err(|source| Error::Traffic {
        action: "write a page",
        source,
    })?;
    config.root = Some(site.file(""));
    let mut address = test.ipv4();
    if config.on != On::Kernel {
        // The link has no address resolution.
        let mac = test.mac().map(|byte| format!("{byte:02x}")).join(":");
        let device = load.device();
        load.ip(&format!(
            "neighbour replace {ADDRESS} lladdr {mac} dev {device} nud permanent"
        ))?;
        address = ADDRESS;
        config.address = vec![format!("{address}/24").parse().expect("a network")];
    }
    let server = Server::start(test, site.program(), &config)?;
    Ok((server, SocketAddr::new(address.into(), config.port)))
}

/// SYNs from addresses that lead nowhere.
fn syns(site: &Site<'_>, at: SocketAddr, rate_pps: u64) -> Spec {
    let mut spec = site.flood(rate_pps as f64);
    spec.flow.source = SPOOFED_SOURCES.into();
    spec.flow.source_ports = 1024..=65535;
    spec.flow.destination = at.ip();
    spec.flow.destination_ports = at.port()..=at.port();
    spec.flow.transport = Transport::TcpSyn;
    // The client shares this CPU and must not be what limits the server.
    spec.priority = Priority::Idle;
    spec
}
