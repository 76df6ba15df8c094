//! The kernel polls in threads: some drivers hang when that is switched on, or when an
//! interface that is polled so goes down.

use std::fs;
use std::io;
use std::net::UdpSocket;
use std::time::Instant;

use netlink_bindings::netdev;
use plimsoll_kernel::knobs::Netdev;
use plimsoll_kernel::netlink::Socket;
use plimsoll_kernel::scheduling::Scheduling;

use super::Outcome;
use super::guard::Guard;
use super::overload::{Busy, FLOOD_PPS};
use super::settings::Settings;
use super::site::{HOST, Site};
use super::steps::{left_on_disk, sees_flood, until};
use super::traffic::{Flood, datagrams};

/// Whether the driver was tried is what this is to find out.
const WORDS: [&str; 2] = ["--strategy=thread", "--any-driver"];
const ROUNDS: u32 = 3;
/// The round that ends with a kill.
const KILLED: u32 = ROUNDS - 1;

/// Threads come with a flood and with a new link. They go with the flood, with the guard
/// that is asked to end, and with one that is killed.
pub(crate) fn threads(site: &Site) -> Outcome {
    let before = Settings::of(site)?;
    let socket = UdpSocket::bind((HOST, 0))?;
    let port = socket.local_addr()?.port();
    let mut most = 0;
    // Rounds end with the flood, in order, and with a kill.
    for round in 0..ROUNDS {
        let guard = Guard::start_with(site, &WORDS)?;
        let busy = Busy::start();
        let flood = Flood::start(site, datagrams(port), FLOOD_PPS)?;
        most = most.max(polled(site, &guard)?);
        site.renew_link()?;
        polled(site, &guard).map_err(|why| format!("after a new link: {why}"))?;
        match round {
            0 => {
                drop((flood, busy));
                // Before Linux 6.17 idle threads stay, and poll nothing. veth has instances
                // only while a program is attached, so not all settings are as before.
                until("polling in threads ends with the flood", || {
                    Ok(!Settings::of(site)?.are_threaded())
                })?;
                guard.stop()?;
            }
            1 => guard.stop()?,
            _ => drop(guard.kill()?),
        }
        if round < KILLED {
            before.wait_until_back(site)?;
        }
    }
    let by = back_after_kill(site, &before)?;
    let busy = all_the_time(site)?;
    Ok(format!(
        "up to {most} threads in {ROUNDS} floods, each with a new link; settings as before, after the kill by the {by}; {busy}"
    ))
}

/// The operator has threads poll all the time: they are not the guard's to turn.
fn all_the_time(site: &Site) -> Outcome<String> {
    let before = Settings::of(site)?;
    // veth has no instances before a program is attached.
    if !poll(site, BUSILY)? || polling_threads(site)?.is_empty() {
        return Ok("no threads poll all the time here".to_owned());
    }
    let socket = UdpSocket::bind((HOST, 0))?;
    let (own, ran) = (Settings::of(site)?, polling_threads(site)?);
    drop(Guard::start_with(site, &WORDS)?.kill()?);
    own.wait_until_back(site)?;
    let guard = Guard::start_with(site, &WORDS)?;
    let flood = Flood::start(site, datagrams(socket.local_addr()?.port()), FLOOD_PPS)?;
    sees_flood(&guard)?;
    let (mode, now) = (guard.mode()?, (Settings::of(site)?, polling_threads(site)?));
    drop(flood);
    guard.stop()?;
    own.wait_until_back(site)?;
    poll(site, IN_SOFTIRQS)?;
    before.wait_until_back(site)?;
    if !now.0.has_instances_of(&own) || now.1 != ran {
        return Err(format!("beside threads that poll all the time: {now:?}").into());
    }
    let polled = now.1.len();
    Ok(format!(
        "{polled} that poll all the time were left so in mode `{mode}`, and by a kill"
    ))
}

/// Of `NETDEV_A_NAPI_THREADED`.
const IN_SOFTIRQS: u32 = 0;
const BUSILY: u32 = 2;

/// Has the kernel poll each instance so. Whether it can: Linux 6.19 can poll all the time.
fn poll(site: &Site, threaded: u32) -> Outcome<bool> {
    let mut socket = Socket::new();
    for napi in Netdev::new().instances(site.ifindex)? {
        let mut request = netdev::Request::new().op_napi_set_do();
        request.encode().push_id(napi.id).push_threaded(threaded);
        let mut replies = socket.request(&request)?;
        while let Some(reply) = replies.recv() {
            match reply.map(drop).map_err(io::Error::from) {
                Ok(()) => {}
                Err(_) if threaded == BUSILY => return Ok(false),
                Err(error) => return Err(error.into()),
            }
        }
    }
    Ok(true)
}

/// How the threads are scheduled that poll the interface, as netlink tells of them.
fn polling_threads(site: &Site) -> Outcome<Vec<Scheduling>> {
    let instances = Netdev::new().instances(site.ifindex)?;
    let threads = instances.iter().filter_map(|napi| napi.thread);
    Ok(threads.map(Scheduling::of).collect::<io::Result<_>>()?)
}

/// Who has put the settings back. The keeper does not where instances go with the program, as
/// on veth: it cannot know that their settings went along, nor before Linux 6.17 switch threads
/// off without them. So the record stays, and the next guard does.
fn back_after_kill(site: &Site, before: &Settings) -> Outcome<String> {
    let began = Instant::now();
    let no_record = || Ok(left_on_disk().is_empty());
    if before.wait_until_back(site).is_ok() && until("no record", no_record).is_ok() {
        let seconds = began.elapsed().as_secs_f64();
        return Ok(format!("keeper in {seconds:.2} s"));
    }
    Guard::start(site)?.stop()?;
    before.wait_until_back(site)?;
    Ok("next guard".to_owned())
}

/// Waits until threads poll and the guard has work; how many there are.
fn polled(site: &Site, guard: &Guard) -> Outcome<usize> {
    until("threads poll", || Ok(polling(site)? > 0))?;
    sees_flood(guard)?;
    polling(site)
}

/// The kernel's threads that poll the guarded interface, by their names: before Linux 6.8 it
/// tells them no other way.
fn polling(site: &Site) -> Outcome<usize> {
    let name = format!("napi/{}-", site.device);
    let entries = fs::read_dir("/proc")?.flatten();
    let names = entries.filter_map(|entry| fs::read_to_string(entry.path().join("comm")).ok());
    Ok(names.filter(|comm| comm.starts_with(&name)).count())
}
