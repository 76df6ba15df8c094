//! Plimsoll's own stack on AF_XDP sockets that share the interface with the kernel.

use std::fs::{self, File};
use std::net::UdpSocket;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use plimsoll_kernel::link;
use serde_json::Value;

use super::Outcome;
use super::guard::PROGRAM;
use super::site::{HOST, LOAD, Site};
use super::steps::until;
use super::traffic::{Flood, datagrams};

const PORT: u16 = 7007;
const BYSTANDER: u16 = 7008;
const FLOOD_PPS: u64 = 30_000;
/// Of the port and of the bystander: frames for both, more than there are buffers.
const FLOOD_TIME: Duration = Duration::from_secs(2);
const ASKED: u32 = 50;
const ANSWER_LIMIT: Duration = Duration::from_secs(1);
const ZERO_COPY: &str = "--zero-copy";
/// What `virtio_net` does without copies is a matter of luck (docs/measurements-decisions.md).
const DRIVER_WITHOUT_COPIES: &str = "igb";
/// One queue for all, and one for each endpoint.
const WAYS: [&str; 4] = [
    "--path soft-lrp",
    "--path ni-lrp",
    "--path soft-lrp --zero-copy",
    "--path ni-lrp --zero-copy",
];
const STATUS: &str = "/tmp/served.json";

/// Answers come, also without copies where the driver can. A stack that is flooded,
/// stopped or killed takes nothing from the kernel's sockets.
pub(crate) fn stack(site: &Site, driver: &str) -> Outcome {
    let can = link::zero_copy(site.ifindex)?.unwrap_or(false) && driver == DRIVER_WITHOUT_COPIES;
    let mut done = Vec::new();
    for words in WAYS {
        let words: Vec<_> = words.split(' ').collect();
        let zero_copy = words.contains(&ZERO_COPY);
        if zero_copy && !can {
            continue;
        }
        let label = words[1..].join(" ");
        served(site, &words, zero_copy).map_err(|why| format!("{label}: {why}"))?;
        done.push(label);
    }
    Ok(format!(
        "{ASKED} of {ASKED} echoed, to the kernel after a flood while it was stopped, and echoed then: {}",
        done.join(", ")
    ))
}

fn served(site: &Site, words: &[&str], zero_copy: bool) -> Outcome<()> {
    let server = Server::start(site, words)?;
    let before = echoed(site)?;
    server.signal(Signal::SIGSTOP)?;
    let kernels = {
        let frames = [datagrams(PORT), datagrams(BYSTANDER)].concat();
        let flood = Flood::start(site, frames, FLOOD_PPS)?;
        sleep(FLOOD_TIME);
        drop(flood);
        through_kernel(site)?
    };
    server.signal(Signal::SIGCONT)?;
    let after = echoed(site)?;
    let status = server.stop()?;
    let all = [before, kernels, after]
        .iter()
        .all(|&answers| answers == ASKED);
    if !all || status["stack"]["zero_copy"] != zero_copy {
        return Err(format!(
            "of {ASKED} {before} echoed, {kernels} to the kernel after a flood while it was stopped, {after} echoed then; {status}"
        )
        .into());
    }
    killed(site, words)
}

/// Killed in a flood, it leaves no program, and the kernel has everything again.
fn killed(site: &Site, words: &[&str]) -> Outcome<()> {
    let server = Server::start(site, words)?;
    let flood = Flood::start(site, datagrams(PORT), FLOOD_PPS)?;
    sleep(Duration::from_millis(300));
    server.signal(Signal::SIGKILL)?;
    drop(server);
    until("the program is gone", || {
        Ok(link::link(site.ifindex)?.xdp.is_none())
    })?;
    drop(flood);
    site.wait_for_packets()
}

struct Server {
    child: Child,
}

impl Server {
    /// Starts it, and waits until it answers.
    fn start(site: &Site, words: &[&str]) -> Outcome<Self> {
        let on = format!("af_xdp:{}", site.device);
        let (port, bystander) = (PORT.to_string(), BYSTANDER.to_string());
        let mut command = Command::new(PROGRAM);
        command.args(["serve", "echo", "--port", &port, "--bystander", &bystander]);
        command.args(["--on", &on, "--json", STATUS]).args(words);
        command
            .stdout(Stdio::null())
            .stderr(File::create("/tmp/server")?);
        let child = command.spawn()?;
        let server = Self { child };
        let answers = || Ok(asked(site, PORT, 1, Duration::from_millis(100))? == 1);
        until("the server answers", answers).map_err(|why| {
            let said = fs::read_to_string("/tmp/server").unwrap_or_default();
            format!("{why}: {}", said.trim())
        })?;
        // Drivers reset their rings for a socket.
        site.wait_for_packets()?;
        Ok(server)
    }

    fn signal(&self, signal: Signal) -> Outcome<()> {
        let pid = i32::try_from(self.child.id())?;
        Ok(kill(Pid::from_raw(pid), signal)?)
    }

    /// Ends it in order; what it counted.
    fn stop(mut self) -> Outcome<Value> {
        self.signal(Signal::SIGTERM)?;
        until("the server has ended", || {
            Ok(self.child.try_wait()?.is_some())
        })?;
        Ok(serde_json::from_slice(&fs::read(STATUS)?)?)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // One that has ended cannot be killed.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn echoed(site: &Site) -> Outcome<u32> {
    // What waited since the flood is in the way, and its answers may be too many for the wire.
    for port in [PORT, BYSTANDER] {
        let answers = || Ok(asked(site, port, 1, ANSWER_LIMIT)? == 1);
        until("the flood is served", answers)?;
    }
    asked(site, PORT, ASKED, ANSWER_LIMIT)
}

/// Datagrams of `count` that came back from this port, each within `limit`.
fn asked(site: &Site, port: u16, count: u32, limit: Duration) -> Outcome<u32> {
    let client = site.in_load(|| Ok(UdpSocket::bind((LOAD, 0))?))?;
    client.set_read_timeout(Some(limit))?;
    let mut answers = 0;
    for number in 0..count {
        client.send_to(&number.to_be_bytes(), (HOST, port))?;
        answers += u32::from(is_answered(&client, number, limit));
    }
    Ok(answers)
}

/// What comes before it is an answer that was late.
fn is_answered(client: &UdpSocket, number: u32, limit: Duration) -> bool {
    let end = Instant::now() + limit;
    let mut answer = [0; 16];
    while Instant::now() < end {
        match client.recv(&mut answer) {
            Ok(bytes) if answer[..bytes] == number.to_be_bytes() => return true,
            Ok(_) => {}
            Err(_) => return false,
        }
    }
    false
}

/// The same for a socket of the kernel's.
fn through_kernel(site: &Site) -> Outcome<u32> {
    let receiver = UdpSocket::bind((HOST, 0))?;
    receiver.set_read_timeout(Some(ANSWER_LIMIT))?;
    let to = receiver.local_addr()?;
    let sender = site.in_load(|| Ok(UdpSocket::bind((LOAD, 0))?))?;
    let mut arrived = 0;
    for _ in 0..ASKED {
        sender.send_to(b"there?", to)?;
        arrived += u32::from(receiver.recv(&mut [0; 16]).is_ok());
    }
    Ok(arrived)
}
