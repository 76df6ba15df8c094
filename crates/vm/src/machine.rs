//! One machine: two interfaces on a wire, a serial port for the kernel and one for what
//! the guest finds.

use std::fs;
use std::io::{self, BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use crate::files::{Kernel, Qemu};
use crate::{Finding, HOST_MAC, LOAD_MAC, Orders, Step};

/// What `--drivers` may name, in the table's order.
pub const DRIVERS: [&str; 5] = ["virtio_net", "vmxnet3", "igb", "e1000e", "veth"];
const CPUS: u32 = 2;
const MEMORY_MIB: u32 = 1024;
/// So many of the kernel's last lines are shown when a machine dies.
const LAST_LINES: usize = 12;

/// How a machine ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ending {
    /// It said that it is done.
    Done,
    /// It ended, or was ended, before that; the kernel's last lines.
    Died(String),
}

/// Boots `kernel` and hands on each finding as it comes, for at most `limit`.
///
/// # Errors
///
/// QEMU cannot be started.
pub fn run(
    qemu: &Qemu,
    kernel: &Kernel,
    file_system: &Path,
    orders: &Orders,
    limit: Duration,
    mut found: impl FnMut(Finding),
) -> io::Result<Ending> {
    let console = file_system.with_extension("console");
    let mut child = command(qemu, kernel, file_system, orders, &console)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| io::Error::other(format!("QEMU: {error}")))?;
    let (sender, lines) = channel();
    if let Some(stdout) = child.stdout.take() {
        thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    break;
                }
            }
        });
    }
    let end = Instant::now() + limit;
    let mut done = false;
    let outcome = loop {
        match lines.recv_timeout(end.saturating_duration_since(Instant::now())) {
            Ok(line) => {
                if let Ok(finding) = serde_json::from_str::<Finding>(line.trim()) {
                    done |= finding.step == Step::End;
                    found(finding);
                }
            }
            Err(why) => break why,
        }
    };
    let said = stop(&mut child)?;
    if done {
        return Ok(Ending::Done);
    }
    let why = match outcome {
        RecvTimeoutError::Timeout => format!("not done after {} s", limit.as_secs()),
        RecvTimeoutError::Disconnected => "ended early".to_owned(),
    };
    Ok(Ending::Died(format!(
        "{why}\n{said}{}",
        last_lines(&console)
    )))
}

/// Ends QEMU if it has not ended; its own words.
fn stop(child: &mut Child) -> io::Result<String> {
    // One that has ended cannot be killed.
    let _ = child.kill();
    child.wait()?;
    let stderr = child.stderr.take();
    Ok(stderr
        .and_then(|stderr| io::read_to_string(stderr).ok())
        .unwrap_or_default())
}

fn last_lines(console: &Path) -> String {
    let text = fs::read(console).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<_> = text.lines().collect();
    lines[lines.len().saturating_sub(LAST_LINES)..].join("\n")
}

fn command(
    qemu: &Qemu,
    kernel: &Kernel,
    file_system: &Path,
    orders: &Orders,
    console: &Path,
) -> Command {
    let is_virtio = orders.driver == "virtio_net";
    let taps = is_virtio && can_have_taps();
    let mut command = qemu.command(if taps { &WITH_TAPS } else { &[] });
    command
        .args(["-accel", "tcg,thread=multi", "-cpu", "max", "-nodefaults"])
        .args(["-display", "none", "-no-reboot", "-smp", &CPUS.to_string()])
        .args(["-m", &MEMORY_MIB.to_string()])
        .args(["-serial", &format!("file:{}", console.display())])
        .args(["-serial", "stdio"])
        .arg("-kernel")
        .arg(kernel.image())
        .arg("-initrd")
        .arg(file_system)
        .arg("-append")
        .arg(format!("console=ttyS0 quiet panic=-1 {}", orders.words()));
    if orders.driver != "veth" {
        interfaces(&mut command, &orders.driver, taps);
    }
    command
}

/// A wire between the loading interface and the guarded one. QEMU's own has one queue;
/// virtio-net with several needs taps, which are joined in a namespace of QEMU's.
fn interfaces(command: &mut Command, driver: &str, taps: bool) {
    let model = match driver {
        "virtio_net" => "virtio-net-pci",
        other => other,
    };
    let mut guarded = format!("{model},netdev=host,mac={HOST_MAC},romfile=");
    let wire = |end: &str, id: &str| {
        if taps {
            format!("tap,id={id},ifname={id},script=no,downscript=no{end}")
        } else {
            format!("hubport,id={id},hubid=0")
        }
    };
    if taps {
        guarded += &format!(",mq=on,vectors={}", 2 * CPUS + 2);
    }
    command
        .args(["-netdev", &wire("", "load")])
        .args([
            "-device",
            &format!("virtio-net-pci,netdev=load,mac={LOAD_MAC},romfile="),
        ])
        .args(["-netdev", &wire(&format!(",queues={CPUS}"), "host")])
        .args(["-device", &guarded]);
}

/// A command in a namespace of its own, which needs no root on most hosts.
const WITH_TAPS: [&str; 8] = [
    "unshare",
    "--user",
    "--map-root-user",
    "--net",
    "sh",
    "-c",
    TAPS,
    "sh",
];
/// Makes the taps and the bridge between them, then becomes QEMU.
const TAPS: &str = "set -e; PATH=$PATH:/usr/sbin:/sbin
ip tuntap add load mode tap
ip tuntap add host mode tap multi_queue
ip link add wire type bridge mcast_snooping 0
for end in load host; do ip link set $end master wire up; done
ip link set wire up
exec \"$@\"";

fn can_have_taps() -> bool {
    let tried = Command::new(WITH_TAPS[0])
        .args(&WITH_TAPS[1..])
        .arg("true")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    tried.is_ok_and(|status| status.success())
}
