//! The loads: what is sent at the test host, and work done meanwhile.

use std::fs;
use std::net::{IpAddr, Ipv4Addr};
use std::thread;
use std::time::{Duration, Instant};

use ipnet::{IpNet, Ipv4Net};
use plimsoll_testbed::blast::{
    Blast, Bound, Flow, Priority, RATE_MAX_PPS, Report, Schedule, Spec, Stop, Transport,
};
use plimsoll_testbed::{Error as TestbedError, Host, Process, interrupt};

use crate::Error;
use crate::protection::Stage;

/// Routed back to the load host, which discards what comes for these addresses.
pub(crate) const SPOOFED_SOURCES: IpNet =
    IpNet::V4(Ipv4Net::new_assert(Ipv4Addr::new(198, 19, 0, 0), 16));
/// A flood runs this long before anything is measured, unless the run is a tiny one.
pub(crate) const RAMP_UP: Duration = Duration::from_millis(300);
/// Two servers that are called.
pub(crate) const CALL_PORTS: [u16; 2] = [5001, 5002];
/// Much longer than the scheduler keeps a server waiting for its turn.
pub(crate) const CALL_TIMEOUT: Duration = Duration::from_millis(500);

const PAYLOAD_BYTES: usize = 18;
/// The prober takes the load's CPU now and then. What is made up for at once
/// afterwards must not fill the receive ring.
const CATCH_UP_FRAMES: u32 = 16;
/// A flood is stopped when the measurement is over; should that fail, by this.
pub(crate) const TIME_BOUND: Duration = Duration::from_secs(60);

/// A flood of the test host's UDP port from one address.
pub(crate) fn udp_flood(stage: &Stage<'_>, port: u16, schedule: Schedule) -> Spec {
    let payload = vec![0; PAYLOAD_BYTES];
    let mut spec = flood(stage, port, Transport::Udp { payload }, schedule);
    spec.flow.source = IpAddr::from(stage.testbed.load().ipv4()).into();
    spec
}

/// SYNs to the test host's port from random addresses, whose answers lead
/// nowhere.
pub(crate) fn syn_flood(stage: &Stage<'_>, port: u16, rate_pps: u64) -> Spec {
    let mut spec = flood(stage, port, Transport::TcpSyn, Schedule::Fixed { rate_pps });
    // The client shares this CPU and must not be what limits the server.
    spec.priority = Priority::Idle;
    spec
}

/// A flood of one port from random addresses.
pub(crate) fn flood(
    stage: &Stage<'_>,
    port: u16,
    transport: Transport,
    schedule: Schedule,
) -> Spec {
    let (load, test) = (stage.testbed.load(), stage.testbed.test());
    let flow = Flow {
        source: SPOOFED_SOURCES.into(),
        source_ports: 1024..=65535,
        destination: test.ipv4().into(),
        destination_ports: port..=port,
        transport,
    };
    let mut spec = Spec::new(load.device(), test.mac(), flow, schedule);
    spec.bound = Bound {
        time: TIME_BOUND,
        ..Bound::default()
    };
    spec.cpu = Some(load.cpu());
    spec.catch_up.burst_frames = CATCH_UP_FRAMES;
    spec
}

/// From this rate on the generator is told to send what it can.
pub(crate) const UNLIMITED_PPS: f64 = 6_000_000.0;

/// Evenly spaced, or all that the generator can.
pub(crate) fn fixed_or_unlimited(rate_pps: f64) -> Schedule {
    if rate_pps >= UNLIMITED_PPS {
        return Schedule::Unlimited;
    }
    let rate_pps = (rate_pps as u64).clamp(1, RATE_MAX_PPS);
    Schedule::Fixed { rate_pps }
}

/// Sends until the bound of `spec`.
pub(crate) fn send(stage: &Stage<'_>, spec: &Spec) -> Result<Report, Error> {
    on_load_host(stage, || Blast::load(spec)?.run(&Stop::new()))
}

/// Does `work` while the flood runs, which begins `ramp_up` of the stage before and ends
/// after it. Without a flood it is the same, but for the packets.
pub(crate) fn during<T: Send>(
    stage: &Stage<'_>,
    spec: Option<&Spec>,
    work: impl FnOnce() -> Result<T, Error>,
) -> Result<(Option<Report>, T), Error> {
    ramped_up(stage.testbed.load(), spec, stage.ramp_up, work)
}

/// As [`during`], with the host that the flood comes from, [`RAMP_UP`] before.
pub(crate) fn during_flood_of<T: Send>(
    load: &Host,
    spec: Option<&Spec>,
    work: impl FnOnce() -> Result<T, Error>,
) -> Result<(Option<Report>, T), Error> {
    ramped_up(load, spec, RAMP_UP, work)
}

fn ramped_up<T: Send>(
    load: &Host,
    spec: Option<&Spec>,
    ramp_up: Duration,
    work: impl FnOnce() -> Result<T, Error>,
) -> Result<(Option<Report>, T), Error> {
    let stop = Stop::new();
    let blast = spec.map(|spec| on_cpu_of(load, || Blast::load(spec)));
    let mut blast = blast.transpose()?;
    let (flood, worked) = thread::scope(|scope| {
        let flood = blast.as_mut().map(|blast| {
            let stop = &stop;
            scope.spawn(move || on_cpu_of(load, || blast.run(stop)))
        });
        let worked = interrupt::sleep(ramp_up)
            .map_err(Error::from)
            .and_then(|()| work());
        stop.stop();
        (flood.map(join), worked)
    });
    Ok((flood.transpose()?, worked?))
}

/// Does `work`; also returns the frames that the host sent meanwhile, per
/// second.
pub(crate) fn counting_answers<T>(
    host: &Host,
    work: impl FnOnce() -> Result<T, Error>,
) -> Result<(T, f64), Error> {
    let (before, begun) = (sent_frames(host)?, Instant::now());
    let worked = work()?;
    let sent = sent_frames(host)? - before;
    Ok((worked, sent as f64 / begun.elapsed().as_secs_f64()))
}

fn sent_frames(host: &Host) -> Result<u64, Error> {
    device_counter(host, "tx_packets")
}

/// A counter of the host's end of the link, by its name in `/sys/class/net/*/statistics`.
pub(crate) fn device_counter(host: &Host, name: &str) -> Result<u64, Error> {
    let path = format!("/sys/class/net/{}/statistics/{name}", host.device());
    let text = host.run(|| fs::read_to_string(&path))?;
    let text = text.map_err(|source| TestbedError::Io {
        action: format!("read {path}"),
        source,
    })?;
    let wrong = |_| TestbedError::Parse {
        what: "a device counter",
        detail: text.clone(),
    };
    Ok(text.trim().parse().map_err(wrong)?)
}

/// What a scoped thread returned; its panic is ours.
pub(crate) fn join<T>(thread: thread::ScopedJoinHandle<'_, T>) -> T {
    thread
        .join()
        .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// Does something inside the load host, on its CPU.
pub(crate) fn on_load_host<T: Send>(
    stage: &Stage<'_>,
    work: impl FnOnce() -> Result<T, plimsoll_testbed::Error> + Send,
) -> Result<T, Error> {
    on_cpu_of(stage.testbed.load(), work)
}

/// Does something inside a host, on its CPU.
pub(crate) fn on_cpu_of<T: Send>(
    host: &Host,
    work: impl FnOnce() -> Result<T, plimsoll_testbed::Error> + Send,
) -> Result<T, Error> {
    Ok(host.run_on_cpu(work)??)
}

/// A process of a host that wants all the CPU it can get.
pub(crate) fn compute_bound(host: &Host) -> Result<Process, Error> {
    Ok(host.computing().spawn()?)
}
