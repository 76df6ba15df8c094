//! How long the first packet of a burst takes through a router (the question of Mogul &
//! Ramakrishnan's figure 14): a router that sends in groups may let it wait for the others.
//!
//! A socket of the load host sends a burst every few milliseconds, so that each finds the
//! router idle. The first packet holds the time at which it was sent, and the kernel of the
//! host behind the router stamps it on arrival. All hosts have one clock.
//!
//! **Limits.** The sending and the receiving host's part is in it, the same for all routers.
//! The router polls every 50 µs, as an adapter with this holdoff has it.

use std::io::{self, IoSliceMut};
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::socket::{ControlMessageOwned, MsgFlags, recvmsg, setsockopt, sockopt};
use nix::time::{ClockId, clock_gettime};
use plimsoll_kernel::error::with_causes;
use plimsoll_report::median;
use plimsoll_testbed::routed::Sink;
use plimsoll_testbed::{Host, interrupt};
use serde::Serialize;

use super::Router;
use crate::Error;
use crate::passing::{Effort, Family, Site};

/// Packets of a burst: a quarter of the smallest ring.
const BURST: usize = 64;
const BURSTS: usize = 300;
/// The same before anything is measured: addresses are resolved, tables are filled.
const WARM_UP: usize = 20;
const PAUSE: Duration = Duration::from_millis(3);
/// Fewer arrivals than this part of the bursts are no measurement.
const ARRIVED_MIN: f64 = 0.9;
const PORT: u16 = 9000;

/// One router with one version of IP.
#[derive(Clone, Debug, Serialize)]
pub struct FirstCase {
    /// The router.
    pub way: &'static str,
    /// The version of IP.
    pub family: Family,
    /// Median latency of each run, in microseconds.
    pub p50_us: Vec<f64>,
    /// 99th percentile of each run, in microseconds.
    pub p99_us: Vec<f64>,
    /// Why there are fewer runs than asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

/// Those that route between networks; testpmd carries frames to nobody.
const ROUTERS: [Router; 4] = [Router::Kernel, Router::Threaded, Router::Xdp, Router::User];

/// Sends bursts through all routers, in turns.
pub(super) fn measure(
    effort: &Effort,
    routers: &[Router],
    mut progress: impl FnMut(&str),
) -> Result<Vec<FirstCase>, Error> {
    let mut cases = Vec::new();
    // Bursts are of one length.
    for &family in effort.families.iter().filter(|family| !family.is_imix()) {
        let asked = ROUTERS.into_iter().filter(|one| routers.contains(one));
        cases.extend(asked.map(|router| (router, FirstCase::new(router, family))));
    }
    for run in 1..=effort.runs {
        for (router, case) in cases.iter_mut().filter(|(_, case)| case.why.is_none()) {
            let (way, family) = (case.way, case.family);
            progress(&format!(
                "run {run}, {}: bursts through {way}",
                family.name()
            ));
            match one_run(effort, *router, family) {
                Ok([p50_us, p99_us]) => {
                    case.p50_us.push(p50_us);
                    case.p99_us.push(p99_us);
                }
                Err(error) if crate::passing::is_of_all(&error) => return Err(error),
                Err(error) => case.why = Some(with_causes(&error)),
            }
        }
    }
    Ok(cases.into_iter().map(|(_, case)| case).collect())
}

impl FirstCase {
    fn new(router: Router, family: Family) -> Self {
        Self {
            way: router.name(),
            family,
            p50_us: Vec::new(),
            p99_us: Vec::new(),
            why: None,
        }
    }

    /// Medians over the runs.
    pub(super) fn middle(&self) -> Option<[f64; 2]> {
        Some([median(&self.p50_us)?, median(&self.p99_us)?])
    }
}

fn one_run(effort: &Effort, router: Router, family: Family) -> Result<[f64; 2], Error> {
    let site = Site::with(effort, family, Sink::Answers)?;
    let running = site.start(router)?;
    let (local, behind): (IpAddr, IpAddr) = match family.is_ipv4() {
        true => ([0; 4].into(), [10, 77, 0, 2].into()),
        false => ([0; 16].into(), [0xfd00, 0x77, 0, 0, 0, 0, 0, 2].into()),
    };
    let target = SocketAddr::new(behind, PORT);
    let receiver = receiver(site.hosts.sink(), target)?;
    let load = site.hosts.load();
    let sender = load.run(|| UdpSocket::bind((local, 0)))?;
    let sender = sender.map_err(failed("open a socket for bursts"))?;
    let mut latencies = Vec::with_capacity(BURSTS);
    for burst in 0..WARM_UP + BURSTS {
        let sent = load.run_on_cpu(|| send_burst(&sender, target))?;
        sent.map_err(failed("send a burst"))?;
        interrupt::sleep(PAUSE)?;
        let first = first_of_burst(&receiver).map_err(failed("receive a burst"))?;
        latencies.extend(first.filter(|_| burst >= WARM_UP));
    }
    running.stop()?;
    percentiles(latencies).ok_or_else(|| Error::Tool {
        tool: router.name(),
        problem: format!(
            "let fewer than {} % of the first packets pass",
            ARRIVED_MIN * 100.0
        ),
    })
}

fn failed(action: &'static str) -> impl Fn(io::Error) -> Error {
    move |source| Error::Traffic { action, source }
}

fn receiver(sink: &Host, at: SocketAddr) -> Result<UdpSocket, Error> {
    let open = || -> io::Result<UdpSocket> {
        let socket = UdpSocket::bind(at)?;
        socket.set_nonblocking(true)?;
        setsockopt(&socket, sockopt::ReceiveTimestampns, &true)?;
        Ok(socket)
    };
    sink.run(open)?.map_err(failed("open a socket for bursts"))
}

/// By the clock that the kernel stamps packets with.
fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::CLOCK_REALTIME).map_or(Duration::ZERO, Duration::from);
    u64::try_from(now.as_nanos()).unwrap_or(u64::MAX)
}

/// The first packet has the time, the others have none.
fn send_burst(sender: &UdpSocket, target: SocketAddr) -> io::Result<()> {
    for number in 0..BURST {
        let sent_ns = if number == 0 { now_ns() } else { 0 };
        sender.send_to(&sent_ns.to_ne_bytes(), target)?;
    }
    Ok(())
}

/// How long the first packet of what has arrived took, in microseconds. Takes all that wait.
fn first_of_burst(receiver: &UdpSocket) -> io::Result<Option<f64>> {
    let mut found = None;
    loop {
        let mut sent = [0; 8];
        let mut room = nix::cmsg_space!(nix::sys::time::TimeSpec);
        let mut parts = [IoSliceMut::new(&mut sent)];
        let socket = receiver.as_raw_fd();
        let received = recvmsg::<()>(socket, &mut parts, Some(&mut room), MsgFlags::empty());
        let stamp = match received {
            Ok(message) => message.cmsgs()?.find_map(|control| match control {
                ControlMessageOwned::ScmTimestampns(stamp) => Some(Duration::from(stamp)),
                _ => None,
            }),
            Err(Errno::EAGAIN) => return Ok(found),
            Err(error) => return Err(error.into()),
        };
        let sent_ns = u64::from_ne_bytes(sent);
        if let Some(arrived) = stamp.filter(|_| sent_ns > 0) {
            found = Some((arrived.as_nanos() as f64 - sent_ns as f64) / 1e3);
        }
    }
}

/// Median and 99th percentile; nothing of too few.
fn percentiles(mut latencies: Vec<f64>) -> Option<[f64; 2]> {
    if (latencies.len() as f64) < ARRIVED_MIN * BURSTS as f64 {
        return None;
    }
    latencies.sort_by(f64::total_cmp);
    let at = |part: f64| latencies[((latencies.len() - 1) as f64 * part) as usize];
    Some([at(0.5), at(0.99)])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn too_few_arrivals_are_no_measurement() {
        let arrivals = |count: u32| (0..count).rev().map(f64::from).collect();
        assert_eq!(percentiles(arrivals(200)), None);
        assert_eq!(percentiles(arrivals(301)), Some([150.0, 297.0]));
    }
}
