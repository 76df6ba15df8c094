//! The guard is killed while it has settings turned.

use std::fs;
use std::net::UdpSocket;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill as send_signal};
use nix::unistd::Pid;
use plimsoll_vm::Orders;

use super::Outcome;
use super::guard::{self, Guard};
use super::settings::Settings;
use super::site::{HOST, Site};
use super::traffic::{Flood, datagrams};

pub(crate) const FLOOD_PPS: u64 = 30_000;
const TURN_LIMIT: Duration = Duration::from_secs(20);
/// A kill comes so long after the first turn, at most.
const MOMENT_MS: u64 = 400;
/// Of so many kills, one takes the keeper as well, and `guard restore` is asked; and one
/// leaves the rest to the next guard.
const KINDS: u32 = 5;

/// Kills one guard after the other, each in overload at a random moment.
pub(crate) fn kill(site: &Site, orders: &Orders) -> Outcome {
    let before = Settings::of(site)?;
    let socket = UdpSocket::bind((HOST, 0))?;
    let port = socket.local_addr()?.port();
    fastrand::seed(orders.seed);
    let mut turned = Turned::default();
    for number in 0..orders.kills {
        let label = format!("kill {} of {}", number + 1, orders.kills);
        let began = Instant::now();
        let done = once(site, port, &before, number, &mut turned);
        done.map_err(|why| format!("{label}: {why}"))?;
        // For the console, which is shown if the machine does not get to the end.
        eprintln!("guest: {label}: {:.1} s", began.elapsed().as_secs_f64());
    }
    let (kills, rate) = (orders.kills, turned.rate_pps);
    if turned.kills < kills {
        let of = turned.kills;
        return Err(
            format!("settings were turned at {of} of {kills} kills, at {rate} packets/s").into(),
        );
    }
    let last = turned
        .last
        .as_ref()
        .map_or_else(String::new, |last| format!("{last:?}"));
    Ok(format!(
        "{kills} kills at {rate} packets/s ({} of them with the keeper, restored by command or next start): settings as before, {before:?}; turned to {last}",
        turned.keepers
    ))
}

#[derive(Default)]
struct Turned {
    kills: u32,
    keepers: u32,
    rate_pps: u64,
    last: Option<Settings>,
}

fn once(
    site: &Site,
    port: u16,
    before: &Settings,
    number: u32,
    turned: &mut Turned,
) -> Outcome<()> {
    // Started in calm, which is quicker; killed and restored in overload.
    let guard = Guard::start(site)?;
    let _busy = Busy::start();
    let flood = Flood::start(site, datagrams(port), FLOOD_PPS)?;
    let end = Instant::now() + TURN_LIMIT;
    while Instant::now() < end {
        let now = Settings::of(site)?;
        if now.are_turned() {
            turned.last = Some(now);
            break;
        }
        sleep(Duration::from_millis(10));
    }
    sleep(Duration::from_millis(fastrand::u64(0..MOMENT_MS)));
    turned.rate_pps = flood.rate_pps();
    turned.kills += u32::from(Settings::of(site)?.are_turned());
    let takes_keeper = number % KINDS >= KINDS - 2;
    if takes_keeper {
        turned.keepers += 1;
        let keeper = keeper_of(guard.pid())?;
        // The keeper first: it would be quicker.
        send_signal(keeper, Signal::SIGKILL)?;
    }
    let said = guard.kill()?;
    if takes_keeper {
        if number % KINDS == KINDS - 1 {
            Guard::start(site)?.stop()?;
        } else {
            let output = guard::run(&["restore", &site.device])?;
            if !output.status.success() {
                let said = String::from_utf8_lossy(&output.stderr).into_owned();
                return Err(format!("guard restore: {said}").into());
            }
        }
    }
    let back = before.wait_until_back(site);
    back.map_err(|error| format!("{error}; it said: {said}").into())
}

fn keeper_of(guard: u32) -> Outcome<Pid> {
    for entry in fs::read_dir("/proc")?.flatten() {
        let Ok(status) = fs::read_to_string(entry.path().join("status")) else {
            continue;
        };
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name))?;
            line.split_whitespace().next()
        };
        // The kernel cuts names to 15 bytes.
        if field("Name:").is_some_and(|name| "plimsoll-keeper".starts_with(name))
            && field("PPid:") == Some(&guard.to_string())
        {
            let pid = field("Pid:").and_then(|pid| pid.parse().ok());
            return Ok(Pid::from_raw(pid.ok_or("no pid")?));
        }
    }
    Err("the guard has no keeper".into())
}

/// Processes that compute leave no CPU idle: overload is only what takes time from
/// somebody.
pub(crate) struct Busy(Arc<AtomicBool>);

impl Busy {
    pub(crate) fn start() -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let cpus = thread::available_parallelism().map_or(1, std::num::NonZero::get);
        for _ in 0..cpus {
            let stop = Arc::clone(&stop);
            thread::spawn(move || {
                // Only this thread's.
                let _ = rustix::process::nice(15);
                while !stop.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
        }
        Self(stop)
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
