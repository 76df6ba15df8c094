//! The steps that have no file of their own.

use std::fmt;
use std::net::UdpSocket;
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use plimsoll_kernel::link;
use serde_json::Value;

use super::Outcome;
use super::guard::{self, Guard, attached};
use super::settings::Settings;
use super::site::{HOST, LOAD, Site};
use super::traffic::{Flood, Greeter, connect, datagrams, download, syns, upload_tagged};

/// What a host lacks (the exit codes of `docs/guard.md`).
const LACKS: i32 = 3;
const SYN_PPS: u64 = 4_000;
const FILL_PPS: u64 = 3_000;
/// Enough for the receive buffer of a socket by default, several times.
const FILL_TIME: Duration = Duration::from_secs(2);
const AFTERWARDS: u32 = 50;
const LOSS_ROUNDS: u32 = 7;
const UNTIL_LIMIT: Duration = Duration::from_secs(20);
const ETHERNET_MTU: u32 = 1500;
const OTHER_MTU: u32 = 1400;
/// Seconds of the flood that a capture records, more than those before the new link.
const TAKE_SECONDS: u64 = 6;
const TAKE_START: Duration = Duration::from_secs(3);

/// What the host does without the guard.
pub(crate) struct Stock {
    greeter: Greeter,
    connected: u32,
}

/// What became of datagrams.
struct Passed {
    sent: u32,
    received: u32,
    /// Frames that the driver counted meanwhile, the guard's discards among them. What is
    /// missing here was lost by the adapter.
    by_driver: u64,
}

impl Passed {
    fn of(site: &Site, send: impl FnOnce(&Site) -> Outcome<(u32, u32)>) -> Outcome<Self> {
        let before = site.received_frames()?;
        let (sent, received) = send(site)?;
        Ok(Self {
            sent,
            received,
            by_driver: site.received_frames()? - before,
        })
    }

    fn lost(&self) -> f64 {
        f64::from(self.sent - self.received) / f64::from(self.sent.max(1))
    }
}

impl fmt::Display for Passed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (received, sent, by_driver) = (self.received, self.sent, self.by_driver);
        write!(
            f,
            "{received} of {sent} datagrams ({by_driver} frames by the driver's count)"
        )
    }
}

pub(crate) fn stock(site: &Site) -> Outcome<Stock> {
    let greeter = Greeter::start()?;
    let connected = {
        let _flood = Flood::start(site, syns(greeter.port), SYN_PPS)?;
        sleep(Duration::from_secs(1));
        connect(site, greeter.port)?
    };
    Ok(Stock { greeter, connected })
}

/// Looks, and finds that the guard can run.
pub(crate) fn check(site: &Site) -> Outcome {
    let before = Settings::of(site)?;
    let (code, findings) = look(site)?;
    if code != 0 {
        return Err(format!("exit code {code}: {}", with(&findings, "missing")).into());
    }
    if Settings::of(site)? != before || link::link(site.ifindex)?.xdp.is_some() {
        return Err("it changed something".into());
    }
    let limited = with(&findings, "limited");
    let release = nix::sys::utsname::uname().map_err(|error| format!("uname: {error}"))?;
    let is_realtime = release.release().to_string_lossy().contains("-rt-");
    if limited.split(", ").any(|id| id == "kernel") != is_realtime {
        return Err(format!("of PREEMPT_RT it says what is not so: limited: {limited}").into());
    }
    Ok(format!("limited: {limited}"))
}

pub(crate) fn check_refuses(site: &Site, word: &str) -> Outcome {
    let output = guard::run(&["check", &site.device])?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned()
        + &String::from_utf8_lossy(&output.stderr);
    let line = said.lines().find(|line| line.contains(word));
    match (output.status.code(), line) {
        (Some(LACKS), Some(line)) => Ok(line.trim().to_owned()),
        (code, _) => Err(format!("exit code {code:?}: {said}").into()),
    }
}

/// One sentence on standard error, and nothing is attached.
pub(crate) fn start_refuses(site: &Site, word: &str) -> Outcome {
    let output = guard::run(&[&site.device])?;
    let said = String::from_utf8_lossy(&output.stderr);
    let said = said.trim();
    if output.status.code() != Some(LACKS) || !said.contains(word) || said.lines().count() != 1 {
        return Err(format!("exit code {:?}: {said}", output.status.code()).into());
    }
    if link::link(site.ifindex)?.xdp.is_some() {
        return Err("a program is attached".into());
    }
    Ok(said.to_owned())
}

fn look(site: &Site) -> Outcome<(i32, Vec<Value>)> {
    let output = guard::run(&["check", &site.device, "--json"])?;
    let said = String::from_utf8_lossy(&output.stderr);
    let document: Value = serde_json::from_slice(&output.stdout)
        .map_err(|error| format!("{error}: {}", said.trim()))?;
    let findings = document["findings"].as_array().ok_or("no findings")?;
    Ok((output.status.code().unwrap_or(-1), findings.clone()))
}

/// What `check` says of a thing that limits the guard.
pub(crate) fn limited_by(site: &Site, id: &str) -> Outcome {
    let (_, findings) = look(site)?;
    let is_it = |finding: &&Value| finding["id"] == id && finding["verdict"] == "limited";
    let finding = findings.iter().find(is_it);
    let finding = finding.ok_or(format!("`check` finds no limit of {id}"))?;
    let text = |field: &str| finding[field].as_str().unwrap_or_default().to_owned();
    Ok(format!("{}; {}", text("found"), text("guard")))
}

/// The ids of the findings with this verdict.
fn with(findings: &[Value], verdict: &str) -> String {
    let ids = findings
        .iter()
        .filter(|finding| finding["verdict"] == verdict)
        .filter_map(|finding| finding["id"].as_str());
    ids.collect::<Vec<_>>().join(", ")
}

pub(crate) fn start(site: &Site) -> Outcome<(Guard, String)> {
    let began = Instant::now();
    let guard = Guard::start(site)?;
    attached(site)?;
    let seconds = began.elapsed().as_secs_f64();
    // Some drivers take the link down to attach.
    site.wait_for_packets()?;
    Ok((guard, format!("native, after {seconds:.1} s")))
}

/// A socket that nobody reads fills; what comes then is discarded early. Read, it gets
/// everything again.
pub(crate) fn drain(site: &Site, guard: &Guard) -> Outcome {
    let socket = UdpSocket::bind((HOST, 0))?;
    let port = socket.local_addr()?.port();
    let before = discarded(guard)?;
    let flood = Flood::start(site, datagrams(port), FILL_PPS)?;
    sleep(FILL_TIME);
    let sent = flood.stop();
    let discarded = discarded(guard)? - before;
    if discarded == 0 {
        let unguarded = guard.unguarded()?;
        let told = format!("none of {sent} datagrams for a full socket was discarded; {unguarded}");
        return Err(told.into());
    }
    socket.set_read_timeout(Some(Duration::from_millis(500)))?;
    let waited = receive(&socket);
    let sender = site.in_load(|| Ok(UdpSocket::bind((LOAD, 0))?))?;
    let mut again = 0;
    for _ in 0..AFTERWARDS {
        sender.send_to(b"again", (HOST, port))?;
        again += u32::from(socket.recv(&mut [0; 256]).is_ok());
    }
    if again != AFTERWARDS {
        return Err(format!("drained, the socket got {again} of {AFTERWARDS}").into());
    }
    Ok(format!(
        "of {sent} datagrams {discarded} discarded, {waited} kept; drained, {again} of {AFTERWARDS}"
    ))
}

/// Datagrams for sockets that had no room, whether or not their source has had its share.
fn discarded(guard: &Guard) -> Outcome<u64> {
    let of = |outcome| guard.packets("udp_socket", outcome);
    Ok(of("socket_queue")? + of("source_share")?)
}

fn receive(socket: &UdpSocket) -> u32 {
    let mut received = 0;
    while socket.recv(&mut [0; 256]).is_ok() {
        received += 1;
    }
    received
}

/// As many connections as without the guard.
pub(crate) fn syn_flood(site: &Site, guard: &Guard, stock: &Stock) -> Outcome {
    let port = stock.greeter.port;
    let before = guard.packets("tcp_listener", "syn_cookie")?;
    let flood = Flood::start(site, syns(port), SYN_PPS)?;
    sleep(Duration::from_secs(1));
    let connected = connect(site, port)?;
    let rate = flood.rate_pps();
    drop(flood);
    let cookies = guard.packets("tcp_listener", "syn_cookie")? - before;
    let found = format!(
        "{connected} connections, {} without the guard, at {rate} SYN/s; {cookies} cookies",
        stock.connected
    );
    if connected < stock.connected {
        return Err(found.into());
    }
    Ok(found)
}

/// A gateway's download loses no more than without the guard.
pub(crate) fn masquerade(site: &Site) -> Outcome {
    no_more_lost(site, download)
}

/// As [`masquerade`], for a VLAN device, whose packets come with a tag or have lost it to
/// the adapter.
pub(crate) fn vlan(site: &Site) -> Outcome {
    no_more_lost(site, upload_tagged)
}

/// Compares stock and guard by turns, until a round in which the guard lost no more. It must
/// never discard. What an adapter's ring loses of a burst is chance (on igb in one of four
/// samples without any program): if that were all, the guard would lose more in each of seven
/// rounds once in 128 times at most.
fn no_more_lost(site: &Site, send: fn(&Site) -> Outcome<(u32, u32)>) -> Outcome {
    let mut rounds = Vec::new();
    for _ in 0..LOSS_ROUNDS {
        // Some drivers take the link down to detach as well.
        site.wait_for_packets()?;
        let stock = Passed::of(site, send)?;
        let (guard, _) = start(site)?;
        let guarded = Passed::of(site, send)?;
        let discarded = guard.not_admitted()?;
        let unguarded = guard.unguarded()?;
        guard.stop()?;
        let found = format!("{guarded}, without the guard {stock}; {discarded} discarded");
        if discarded > 0 {
            return Err(found.into());
        }
        // This host translates. A guard that could not ask its connection tracking, a module, would
        // guard no socket.
        if unguarded != "[]" {
            return Err(format!("{found}; unguarded: {unguarded}").into());
        }
        rounds.push(found);
        if guarded.lost() <= stock.lost() {
            return Ok(rounds.join(" | "));
        }
    }
    Err(rounds.join(" | ").into())
}

/// A new link may come with new rings, and another MTU too: whoever has a program there sees
/// what comes by them.
pub(crate) fn link(site: &Site) -> Outcome {
    let socket = UdpSocket::bind((HOST, 0))?;
    let port = socket.local_addr()?.port();
    let guard = Guard::start(site)?;
    let _flood = Flood::start(site, datagrams(port), FILL_PPS)?;
    sees_flood(&guard)?;
    site.renew_link()?;
    let began = Instant::now();
    sees_flood(&guard).map_err(|why| format!("after a new link: {why}"))?;
    let seconds = began.elapsed().as_secs_f64();
    site.set_mtu(OTHER_MTU)?;
    sees_flood(&guard).map_err(|why| format!("after another MTU: {why}"))?;
    site.set_mtu(ETHERNET_MTU)?;
    let said = guard.said();
    guard.stop()?;
    take(site)?;
    Ok(format!("seen again after {seconds:.1} s; {said}"))
}

/// A capture that takes the interface from the kernel gets what comes by a new link.
fn take(site: &Site) -> Outcome<()> {
    let mut command = Command::new(guard::PROGRAM);
    command.args(["capture", &site.device, "--mode", "take", "--snaplen", "64"]);
    command.args(["--ring", "4M", "--queue", "4M", "--write", "/dev/null"]);
    let packets = (FILL_PPS * TAKE_SECONDS).to_string();
    let mut capture = command.args(["--count", &packets]).spawn()?;
    sleep(TAKE_START);
    site.renew_link()?;
    let ended = until("the capture has its packets", || {
        Ok(capture.try_wait()?.is_some())
    });
    if ended.is_err() {
        capture.kill()?;
    }
    let status = capture.wait()?;
    ended?;
    if !status.success() {
        return Err(format!("the capture ended with {status}").into());
    }
    Ok(())
}

/// Waits until the guard discards.
pub(crate) fn sees_flood(guard: &Guard) -> Outcome<()> {
    let before = discarded(guard)?;
    until("the guard discards", || Ok(discarded(guard)? > before))
}

/// Waits until something holds.
pub(crate) fn until(what: &str, mut holds: impl FnMut() -> Outcome<bool>) -> Outcome<()> {
    let end = Instant::now() + UNTIL_LIMIT;
    while !holds()? {
        if Instant::now() > end {
            return Err(format!("{what}: not within {UNTIL_LIMIT:?}").into());
        }
        sleep(Duration::from_millis(20));
    }
    Ok(())
}

/// All is as before the first guard.
pub(crate) fn end(site: &Site, before: &Settings) -> Outcome {
    let own = Settings::of(site)?;
    if own != *before || link::link(site.ifindex)?.xdp.is_some() {
        return Err(format!("first {before:?}; last {own:?}").into());
    }
    let files = left_on_disk();
    if !files.is_empty() {
        return Err(format!("left on disk: {}", files.join(", ")).into());
    }
    site.wait_for_packets()?;
    Ok(format!("{own:?}"))
}

/// Records and status sockets.
pub(crate) fn left_on_disk() -> Vec<String> {
    let mut files = Vec::new();
    if let Ok(entries) = std::fs::read_dir(plimsoll_kernel::knobs::DIRECTORY) {
        let names = entries.flatten().map(|entry| entry.file_name());
        files.extend(names.map(|name| name.to_string_lossy().into_owned()));
    }
    files.retain(|name| !name.ends_with(".lock"));
    files
}
