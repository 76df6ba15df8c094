//! Round trips of 60-byte messages with nothing else to do, as the 1994 paper measured them.
//!
//! The link is a veth pair as it is: a frame is received in the sender's call, on the
//! sender's CPU, and the server is on the other CPU. So the figures are of the sockets,
//! and of how a thread that waits is found.

use std::net::SocketAddr;
use std::time::Duration;

use plimsoll_testbed::round_trip::{self, Report};
use plimsoll_testbed::server::{Kind, Server, Threaded};

use super::site::{PORT, Site};
use super::turns::{SideCase, in_turns};
use super::{Effort, Plan, Side};
use crate::Error;
use crate::traffic::on_cpu_of;

/// Longer than a round trip takes.
const BUSY_POLL: Duration = Duration::from_millis(1);

/// Whose sockets, and whether they look for messages all the time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Way {
    name: &'static str,
    side: Side,
    busy_poll: bool,
}

/// The peer, and what is promised to be as fast.
pub(super) const KERNEL_POLLING: &str = "kernel, busy polling";
pub(super) const OURS_POLLING: &str = "ni-lrp, busy polling";

const WAYS: [Way; 5] = [
    Way::sleeping("kernel", Side::Kernel),
    Way::polling(KERNEL_POLLING, Side::Kernel),
    Way::sleeping("ni-lrp", Side::NiLrp),
    Way::polling(OURS_POLLING, Side::NiLrp),
    Way::sleeping("soft-lrp", Side::SoftLrp),
];

impl Way {
    const fn sleeping(name: &'static str, side: Side) -> Self {
        Self {
            name,
            side,
            busy_poll: false,
        }
    }

    const fn polling(name: &'static str, side: Side) -> Self {
        Self {
            name,
            side,
            busy_poll: true,
        }
    }
}

pub(super) fn measure(
    plan: &Plan,
    progress: &mut impl FnMut(&str),
) -> Result<Vec<SideCase<Report>>, Error> {
    let ways = WAYS
        .into_iter()
        .filter(|way| plan.sides.contains(&way.side));
    let ways: Vec<Way> = ways.collect();
    let name = |way: Way| way.name;
    in_turns(plan, ("round trip", &ways), name, progress, |way| {
        one_run(&plan.effort, way)
    })
}

fn one_run(effort: &Effort, way: Way) -> Result<Report, Error> {
    let site = Site::plain(effort)?;
    let host = site.testbed.test();
    // Without it veth has no receive queue that the kernel could poll.
    host.configure("ethtool", ["-K", host.device(), "gro", "on"])?;
    let mut config = site.udp_server(way.side, Kind::Echo, PORT);
    config.batch = Some(1);
    if way.busy_poll {
        config.busy_poll = BUSY_POLL;
        // A server that polls by itself would wait for the thread.
        config.threaded = Some(Threaded::Off);
    }
    let server = Server::start(host, site.program(), &config)?;
    let target = SocketAddr::new(host.ipv4().into(), PORT);
    let report = on_cpu_of(site.testbed.load(), || round_trip::run(target))?;
    server.stop()?;
    Ok(report)
}
