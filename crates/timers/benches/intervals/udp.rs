//! One paced flow of UDP datagrams, by three senders that share a CPU with other
//! work of the same program. The kernel stamps each datagram as it comes in.

use std::fmt::Write as _;
use std::io::IoSliceMut;
use std::net::UdpSocket;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::socket::{
    ControlMessageOwned, MsgFlags, SockaddrStorage, recvmsg, setsockopt, sockopt,
};
use nix::sys::time::TimeSpec;
use nix::time::{ClockId, ClockNanosleepFlags, clock_gettime, clock_nanosleep};
use plimsoll_report::{Goal, Side, median};
use plimsoll_timers::pacing::{FlowRates, Pacer, PacerConfig, Rate};
use serde::Serialize;

use crate::{Outcome, bind_to, unmeasured};

const BYTES: u32 = 1200;
const INTERVALS_US: [u64; 4] = [12, 40, 60, 120];
const SENDER_CPU: usize = 1;
const RECEIVER_CPU: usize = 0;

#[derive(Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Sender {
    /// Soft timers, checked between two units of the program's work.
    Soft,
    /// A thread that sleeps until the next departure, beside the working one.
    Sleeping,
    /// A thread that watches the clock; nobody works.
    Spinning,
}

/// The medians of all rounds.
#[derive(Serialize)]
pub(crate) struct Paced {
    sender: Sender,
    target_us: u64,
    mean_us: f64,
    stddev_us: f64,
    /// The program's own work while it sent, against working only.
    work_percent: f64,
    rounds_mean_us: Vec<f64>,
    rounds_stddev_us: Vec<f64>,
}

pub(crate) fn measure(rounds: u32, packets: u32) -> Outcome<(Vec<Paced>, Vec<Goal>)> {
    // The kernel begins to stamp a while after the first socket asked for it: one
    // that asks all the time spares each run that while.
    let stamped = UdpSocket::bind("127.0.0.1:0")?;
    setsockopt(&stamped, sockopt::ReceiveTimestampns, &true)?;
    thread::sleep(Duration::from_millis(200));
    let mut all = Vec::new();
    for target_us in INTERVALS_US {
        let mut paced = [Sender::Soft, Sender::Sleeping, Sender::Spinning].map(|sender| Paced {
            sender,
            target_us,
            mean_us: 0.0,
            stddev_us: 0.0,
            work_percent: 0.0,
            rounds_mean_us: Vec::new(),
            rounds_stddev_us: Vec::new(),
        });
        let mut work = [const { Vec::new() }; 3];
        for _ in 0..rounds {
            let interval = Duration::from_micros(target_us);
            let undisturbed = working_only(interval * packets)?;
            for (paced, work) in paced.iter_mut().zip(&mut work) {
                let (stamps, done) = run(paced.sender, interval, packets)?;
                let (mean, deviation) = spread(&stamps).ok_or("no datagram arrived")?;
                paced.rounds_mean_us.push(mean);
                paced.rounds_stddev_us.push(deviation);
                work.push(100.0 * done / undisturbed);
            }
        }
        for (mut paced, work) in paced.into_iter().zip(work) {
            paced.mean_us = median(&paced.rounds_mean_us).unwrap_or(f64::NAN);
            paced.stddev_us = median(&paced.rounds_stddev_us).unwrap_or(f64::NAN);
            paced.work_percent = median(&work).unwrap_or(f64::NAN);
            all.push(paced);
        }
    }
    let goals = goals(&all);
    Ok((all, goals))
}

fn goals(all: &[Paced]) -> Vec<Goal> {
    let mut goals = Vec::new();
    for target in INTERVALS_US {
        let of = |sender| {
            let mut all = all.iter();
            all.find(|one| one.target_us == target && one.sender == sender)
        };
        let (Some(soft), Some(sleeping)) = (of(Sender::Soft), of(Sender::Sleeping)) else {
            continue;
        };
        let off = |mean: &f64| 100.0 * (mean / target as f64 - 1.0).abs();
        goals.push(Goal::new(
            format!("paced_mean_{target}us"),
            format!("paced every {target} us: mean interval off its target"),
            Side::AtMost,
            0.5,
            "%",
            soft.rounds_mean_us.iter().map(off).collect(),
        ));
        let rounds = soft.rounds_stddev_us.iter().zip(&sleeping.rounds_stddev_us);
        goals.push(Goal::new(
            format!("paced_spread_{target}us"),
            format!("paced every {target} us: standard deviation against a sleeping sender"),
            Side::AtMost,
            0.5,
            "x",
            rounds.map(|(soft, sleeping)| soft / sleeping).collect(),
        ));
    }
    goals.push(unmeasured(
        "paced_spread_kernel",
        "standard deviation against the kernel's pacing",
        "paces UDP with the fq queueing discipline only; this bench does not set it up",
    ));
    goals
}

/// Mean and standard deviation of the intervals in µs.
fn spread(stamps: &[u64]) -> Option<(f64, f64)> {
    let gaps: Vec<f64> = stamps
        .windows(2)
        .map(|pair| pair[1].saturating_sub(pair[0]) as f64 / 1000.0)
        .collect();
    let count = gaps.len() as f64;
    let mean = gaps.iter().sum::<f64>() / count;
    let squares = gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>();
    (!gaps.is_empty()).then(|| (mean, (squares / count).sqrt()))
}

/// The kernel's stamps of what was received, and units of work done per second.
fn run(sender: Sender, interval: Duration, packets: u32) -> Outcome<(Vec<u64>, f64)> {
    let receiver = UdpSocket::bind("127.0.0.1:0")?;
    setsockopt(&receiver, sockopt::ReceiveTimestampns, &true)?;
    setsockopt(&receiver, sockopt::RcvBuf, &(4 << 20))?;
    receiver.set_read_timeout(Some(Duration::from_millis(300)))?;
    let socket = UdpSocket::bind("127.0.0.1:0")?;
    socket.connect(receiver.local_addr()?)?;
    let stamps = thread::spawn(move || receive(&receiver, packets));
    let done = thread::spawn(move || -> Result<f64, String> {
        let send = || match sender {
            Sender::Soft => soft(&socket, interval, packets),
            Sender::Sleeping => beside_work(|| sleeping(&socket, interval, packets)),
            Sender::Spinning => spinning(&socket, interval, packets).map(|()| 0.0),
        };
        bind_to(SENDER_CPU)
            .and_then(|()| send())
            .map_err(|error| error.to_string())
    });
    let done = done.join().map_err(|_| "the sender panicked")??;
    let stamps = stamps.join().map_err(|_| "the receiver panicked")?;
    Ok((stamps, done))
}

fn receive(socket: &UdpSocket, packets: u32) -> Vec<u64> {
    let bound = bind_to(RECEIVER_CPU);
    assert!(bound.is_ok(), "{bound:?}");
    let mut stamps = Vec::with_capacity(packets as usize);
    let mut control = nix::cmsg_space!(TimeSpec);
    let mut datagram = [0; BYTES as usize];
    while stamps.len() < packets as usize {
        let mut parts = [IoSliceMut::new(&mut datagram)];
        let received = recvmsg::<SockaddrStorage>(
            socket.as_raw_fd(),
            &mut parts,
            Some(&mut control),
            MsgFlags::empty(),
        );
        // A time-out: datagrams were lost.
        let Ok(received) = received else { break };
        let stamp = received.cmsgs().ok().and_then(|mut messages| {
            messages.find_map(|message| match message {
                ControlMessageOwned::ScmTimestampns(stamp) => Some(Duration::from(stamp)),
                _ => None,
            })
        });
        stamps.extend(stamp.map(|stamp| stamp.as_nanos() as u64));
    }
    stamps
}

/// About 2 µs of work that needs nobody.
fn unit(state: &mut u64) {
    for _ in 0..1500 {
        *state = std::hint::black_box(state.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ 1);
    }
}

/// Units of work per second when nothing is sent.
fn working_only(span: Duration) -> Outcome<f64> {
    let worker = thread::spawn(move || -> Result<f64, String> {
        bind_to(SENDER_CPU).map_err(|error| error.to_string())?;
        let (start, mut state, mut done) = (Instant::now(), 1, 0_u64);
        while start.elapsed() < span {
            unit(&mut state);
            done += 1;
        }
        Ok(done as f64 / start.elapsed().as_secs_f64())
    });
    Ok(worker.join().map_err(|_| "the worker panicked")??)
}

fn soft(socket: &UdpSocket, interval: Duration, packets: u32) -> Outcome<f64> {
    let mut pacer = Pacer::new(PacerConfig::default())?;
    // Line speed, or twice the target where that is faster.
    let burst = (interval / 2).min(Duration::from_micros(12));
    let flow = pacer.add_flow(FlowRates {
        target: Rate::from_interval(BYTES.into(), interval),
        burst: Rate::from_interval(BYTES.into(), burst),
    })?;
    pacer.on_backlog(flow)?;
    let (start, mut state, mut done, mut sent) = (Instant::now(), 1, 0_u64, 0);
    while sent < packets {
        unit(&mut state);
        done += 1;
        let Some(now) = pacer.check() else { continue };
        while let Some(flow) = pacer.poll_departure(now) {
            sent += 1;
            socket.send(&[0; BYTES as usize])?;
            pacer.on_sent(now, flow, BYTES, sent < packets)?;
        }
    }
    Ok(done as f64 / start.elapsed().as_secs_f64())
}

/// `send` beside a thread on the same CPU that works: its units per second.
fn beside_work(send: impl FnOnce() -> Outcome<()>) -> Outcome<f64> {
    let (stop, done) = (
        Arc::new(AtomicBool::new(false)),
        Arc::new(AtomicU64::new(0)),
    );
    let worker = thread::spawn({
        let (stop, done) = (Arc::clone(&stop), Arc::clone(&done));
        move || {
            let mut state = 1;
            while !stop.load(Ordering::Relaxed) {
                unit(&mut state);
                done.fetch_add(1, Ordering::Relaxed);
            }
        }
    });
    let start = Instant::now();
    let sent = send();
    stop.store(true, Ordering::Relaxed);
    let elapsed = start.elapsed().as_secs_f64();
    worker.join().map_err(|_| "the worker panicked")?;
    sent?;
    Ok(done.load(Ordering::Relaxed) as f64 / elapsed)
}

/// Absolute times, so that being late once does not lower the rate, and no timer
/// slack: the best that sleeping can do.
fn sleeping(socket: &UdpSocket, interval: Duration, packets: u32) -> Outcome<()> {
    nix::sys::prctl::set_timerslack(1)?;
    let clock = ClockId::CLOCK_MONOTONIC;
    let mut next = Duration::from(clock_gettime(clock)?);
    for _ in 0..packets {
        next += interval;
        let until = TimeSpec::from_duration(next);
        clock_nanosleep(clock, ClockNanosleepFlags::TIMER_ABSTIME, &until)?;
        socket.send(&[0; BYTES as usize])?;
    }
    Ok(())
}

fn spinning(socket: &UdpSocket, interval: Duration, packets: u32) -> Outcome<()> {
    let mut next = Instant::now();
    for _ in 0..packets {
        next += interval;
        while Instant::now() < next {
            std::hint::spin_loop();
        }
        socket.send(&[0; BYTES as usize])?;
    }
    Ok(())
}

pub(crate) fn table(all: &[Paced]) -> String {
    let mut text = String::from("paced UDP  target us   mean us  stddev us   own work %\n");
    for one in all {
        let sender = match one.sender {
            Sender::Soft => "soft",
            Sender::Sleeping => "sleeping",
            Sender::Spinning => "spinning",
        };
        let _ = writeln!(
            text,
            "{sender:<10} {:>9} {:>9.3} {:>10.2} {:>12.1}",
            one.target_us, one.mean_us, one.stddev_us, one.work_percent
        );
    }
    text
}
