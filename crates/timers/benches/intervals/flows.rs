//! Ten thousand paced flows on one core.

use std::fmt::Write as _;
use std::io::IoSlice;
use std::net::UdpSocket;
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use nix::sys::socket::{ControlMessage, MsgFlags, MultiHeaders, SockaddrIn, sendmmsg};
use plimsoll_report::{Goal, Side};
use plimsoll_timers::pacing::{FlowId, FlowRates, Pacer, PacerConfig, Rate};
use serde::Serialize;

use crate::{Outcome, bind_to};

const FLOWS: u32 = 10_000;
const BYTES: u32 = 1200;
/// 600,000 departures a second in all.
const INTERVAL: Duration = Duration::from_nanos(16_666_667);
const BATCH: usize = 64;
const CPU: usize = 1;

#[derive(Serialize)]
pub(crate) struct Departures {
    what: &'static str,
    target_per_s: f64,
    per_s: f64,
    /// Share that left more than one interval after they should have.
    late_percent: f64,
}

pub(crate) fn measure(millis: u64) -> Outcome<(Vec<Departures>, Vec<Goal>)> {
    bind_to(CPU)?;
    let span = Duration::from_millis(millis);
    // Nobody reads it: what does not fit its buffer is dropped there.
    let sink = UdpSocket::bind("127.0.0.1:0")?;
    let socket = UdpSocket::bind("127.0.0.1:0")?;
    socket.connect(sink.local_addr()?)?;
    let decided = depart("decided", span, |_| Ok(()))?;
    let mut headers = MultiHeaders::<SockaddrIn>::preallocate(BATCH, None);
    let payload = [0; BYTES as usize];
    let sent = depart("sent, 64 a call", span, |count| {
        let slices = [[IoSlice::new(&payload)]; BATCH];
        let none: [ControlMessage<'_>; 0] = [];
        sendmmsg(
            socket.as_raw_fd(),
            &mut headers,
            &slices[..count],
            vec![None; count],
            none,
            MsgFlags::empty(),
        )?;
        Ok(())
    })?;
    let goals = [&decided, &sent].into_iter().flat_map(|one| {
        let id = one.what.split(',').next().unwrap_or(one.what);
        [
            Goal::new(
                format!("departures_{id}"),
                format!("10,000 paced flows on one core, {}: departures", one.what),
                Side::AtLeast,
                500_000.0,
                "/s",
                vec![one.per_s],
            ),
            Goal::new(
                format!("departures_{id}_late"),
                format!("10,000 paced flows, {}: late by an interval", one.what),
                Side::AtMost,
                5.0,
                "%",
                vec![one.late_percent],
            ),
        ]
    });
    let goals = goals.collect();
    Ok((vec![decided, sent], goals))
}

/// Polls the flows for `span`; `send` is given the number of packets that leave
/// together.
fn depart(
    what: &'static str,
    span: Duration,
    mut send: impl FnMut(usize) -> Outcome<()>,
) -> Outcome<Departures> {
    let mut pacer = flows()?;
    let (mut departures, mut late) = (0_u64, 0_u64);
    let mut due: Vec<FlowId> = Vec::with_capacity(BATCH);
    let start = Instant::now();
    while start.elapsed() < span {
        let Some(now) = pacer.check() else { continue };
        due.extend(std::iter::from_fn(|| pacer.poll_departure(now)).take(BATCH));
        send(due.len())?;
        for flow in due.drain(..) {
            pacer.on_sent(now, flow, BYTES, true)?;
            let train = pacer.train(flow)?;
            // Its first packet was due at the train's start.
            let packet = train.bytes / u64::from(BYTES) - 1;
            let meant = train.start + INTERVAL * u32::try_from(packet)?;
            late += u64::from(now > meant + INTERVAL);
            departures += 1;
        }
    }
    Ok(Departures {
        what,
        target_per_s: f64::from(FLOWS) / INTERVAL.as_secs_f64(),
        per_s: departures as f64 / start.elapsed().as_secs_f64(),
        late_percent: 100.0 * late as f64 / departures.max(1) as f64,
    })
}

/// All flows, started one after the other over one interval.
fn flows() -> Outcome<Pacer> {
    let mut pacer = Pacer::new(PacerConfig {
        flows: FLOWS,
        ..PacerConfig::default()
    })?;
    let target = Rate::from_interval(BYTES.into(), INTERVAL);
    let burst = Rate::from_interval(BYTES.into(), INTERVAL / 10);
    let start = pacer.now();
    for flow in 0..FLOWS {
        let id = pacer.add_flow(FlowRates { target, burst })?;
        let phase = INTERVAL * flow / FLOWS;
        while pacer.now().saturating_since(start) < phase {
            std::hint::spin_loop();
        }
        pacer.on_backlog(id)?;
    }
    Ok(pacer)
}

pub(crate) fn table(all: &[Departures]) -> String {
    let mut text = String::from("10,000 flows on one core  departures/s  late by an interval %\n");
    for one in all {
        let _ = writeln!(
            text,
            "{:<26} {:>11.0} {:>10.2}",
            one.what, one.per_s, one.late_percent
        );
    }
    text
}
