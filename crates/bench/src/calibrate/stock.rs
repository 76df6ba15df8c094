//! The kernel's own path, polled by a timer in softirq context.

use std::io;
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::time::{Duration, Instant};

use plimsoll_lab::calibrate::Round;
use plimsoll_testbed::blast::{Schedule, Transport};

use super::site::{Booked, FILL, GENERATOR, LITTLE, RATE_PPS, SINGLE_PPS, Site, drain, traffic};
use crate::Error;
use crate::traffic::flood;
use crate::udp::{ECHO_PORT, SINK_PORT, SINK_RCVBUF_BYTES};

/// Holds all that a trial fills a queue with.
const LONG_QUEUE_BYTES: usize = 256 << 20;
const SYN_PPS: u64 = 50_000;
/// Beyond what the sink's buffer holds.
const OVERFULL: u64 = 2 * FILL;
const PAYLOAD: [u8; 18] = [0; 18];
/// An answer of the same CPU that takes longer is lost.
const PATIENCE: Duration = Duration::from_secs(1);
/// The clock is read once for so many packets.
const BATCH: u32 = 16;

pub(super) fn run(site: &mut Site<'_>, round: &mut Round) -> Result<(), Error> {
    let _stock = site.stage.stock()?;
    let _answers = site.stage.testbed.drop_answers()?;
    let spinning = site.spinning()?;
    site.timer_ns = site.flooded(None)?.per_run();
    round.insert("timer", site.timer_ns);
    let queue = queue_and_read(site, round)?;
    full(site, round)?;
    let waking = site.per_packet("wake", &site.flood_of(SINK_PORT, SINGLE_PPS))?;
    round.insert("wake", waking - queue);
    drop(spinning);
    round.insert("switch", switch(site)?);
    round.insert("send", sending(site)?);
    round.insert("syn", syn(site)?);
    Ok(())
}

/// Fills a long queue and reads it; returns what a queued packet took.
fn queue_and_read(site: &Site<'_>, round: &mut Round) -> Result<f64, Error> {
    let (socket, port) = site.unread(LONG_QUEUE_BYTES)?;
    let (sent, booked) = site.fill(port, FILL)?;
    let reading = || {
        let read = site.stage.host().run_on_cpu(|| drain(&socket))?;
        read.map_err(traffic("read a long queue"))
    };
    let (read, reading) = site.booked(reading)?;
    site.require("queue", read as f64, sent as f64, LITTLE)?;
    let queued = booked.network_beyond(site.timer_ns) / booked.frames();
    round.insert("queue", queued);
    round.insert("read", reading.process_ns() / read as f64);
    Ok(queued)
}

/// Floods a socket that is as large as the bench's sink and full.
fn full(site: &Site<'_>, round: &mut Round) -> Result<(), Error> {
    let (socket, port) = site.unread(SINK_RCVBUF_BYTES)?;
    let (sent, _) = site.fill(port, OVERFULL)?;
    let full = site.per_packet("full", &site.flood_of(port, RATE_PPS))?;
    let held = drain(&socket).map_err(traffic("read a full queue"))?;
    if held >= sent {
        let problem = format!("trial full: {held} packets did not fill the queue");
        return Err(Error::Tool {
            tool: "calibration",
            problem,
        });
    }
    round.insert("full", full);
    round.insert("room", held as f64);
    Ok(())
}

/// Round trips with a server on the same CPU, against as many packets to oneself.
fn switch(site: &Site<'_>) -> Result<f64, Error> {
    let own = SocketAddr::new(site.stage.host().ipv4().into(), 0);
    let echo = SocketAddr::new(own.ip(), ECHO_PORT);
    let (trips, pair) = exchange(site, |socket| socket.connect(echo), own)?;
    let to_oneself = |socket: &UdpSocket| socket.connect(socket.local_addr()?);
    let (packets, single) = exchange(site, to_oneself, own)?;
    let each = |booked: &Booked, count: u64| booked.all_beyond(site.timer_ns) / count as f64;
    Ok((each(&pair, trips) - 2.0 * each(&single, packets)) / 2.0)
}

/// Sends and waits for what comes, for a window, on the test host's CPU.
fn exchange(
    site: &Site<'_>,
    connect: impl Fn(&UdpSocket) -> io::Result<()> + Sync,
    own: SocketAddr,
) -> Result<(u64, Booked), Error> {
    repeated(site, own, connect, |socket| {
        socket.send(&PAYLOAD)?;
        socket.recv(&mut [0; PAYLOAD.len()]).map(drop)
    })
}

/// Sends to the load host, which drops everything in its driver.
fn sending(site: &Site<'_>) -> Result<f64, Error> {
    let own = SocketAddr::new(site.stage.host().ipv4().into(), 0);
    let load = SocketAddr::new(site.stage.testbed.load().ipv4().into(), SINK_PORT);
    let connect = |socket: &UdpSocket| socket.connect(load);
    let (sent, booked) = repeated(site, own, connect, |socket| socket.send(&PAYLOAD).map(drop))?;
    Ok(booked.all_beyond(site.timer_ns) / sent as f64)
}

/// Does something with a socket again and again for a window, on the test host's CPU.
fn repeated(
    site: &Site<'_>,
    own: SocketAddr,
    connect: impl Fn(&UdpSocket) -> io::Result<()> + Sync,
    work: impl Fn(&UdpSocket) -> io::Result<()> + Sync,
) -> Result<(u64, Booked), Error> {
    let window = site.window;
    let all = || -> io::Result<u64> {
        let socket = UdpSocket::bind(own)?;
        connect(&socket)?;
        socket.set_read_timeout(Some(PATIENCE))?;
        let end = Instant::now() + window;
        let mut count = 0;
        while Instant::now() < end {
            for _ in 0..BATCH {
                work(&socket)?;
            }
            count += u64::from(BATCH);
        }
        Ok(count)
    };
    site.booked(|| {
        let done = site.stage.host().run_on_cpu(all)?;
        done.map_err(traffic("exchange packets on one CPU"))
    })
}

/// SYNs to a listener of its own; connections never come about.
fn syn(site: &Site<'_>) -> Result<f64, Error> {
    let address = SocketAddr::new(site.stage.host().ipv4().into(), 0);
    let listener = site.stage.host().run(|| TcpListener::bind(address))?;
    let listener = listener.map_err(traffic("listen"))?;
    let port = listener.local_addr().map_err(traffic("listen"))?.port();
    let rate_pps = SYN_PPS;
    let mut spec = flood(
        &site.stage,
        port,
        Transport::TcpSyn,
        Schedule::Fixed { rate_pps },
    );
    spec.priority = GENERATOR;
    site.per_packet("syn", &spec)
}
