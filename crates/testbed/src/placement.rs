//! Puts the test host's receive work on the test host's CPU, and proves it.
//!
//! Left alone, veth delivers a frame in the context of the process that sent
//! it: a flood would burn the generator's CPU and the test host would see a
//! lighter load the harder it is flooded. Two ways lead out, and both need the
//! device to receive through NAPI, which veth does once GRO is on (ethtool(8))
//! or an XDP program is attached. GRO is used, so that "stock" carries no
//! program at all. (For frames of ordinary sockets veth also wants the sending
//! device to be without TSO, else it bypasses NAPI.)
//!
//! - **Softirq.** With `gro_flush_timeout` set and `napi_defer_hard_irqs` very
//!   high (see the kernel's `Documentation/networking/napi.rst`), NAPI never goes
//!   back to being woken by the sender: a pinned high-resolution timer polls
//!   every holdoff, on the CPU where it was first armed. So the first frame
//!   is sent from the test host's CPU. From then on receive work runs there in
//!   softirq context, above every process, as an adapter's interrupts would.
//! - **Threaded.** The device's `threaded` flag moves polling into a kernel
//!   thread, which is bound to the test host's CPU and given a nice level.
//!
//! A short holdoff is not free: under 0.3 million packets/s a sink with 2 µs of
//! work got 24,000 to 92,000 a second at a holdoff of 10 µs (16 runs on a virtual
//! machine) and 206,000 at 80 µs (one). Timer interrupts are the likely
//! reason; that was not separated from the effect of larger batches.
//!
//! Answers are the mirror image: the test host sends them, so its CPU would pay
//! for receiving them as well. Receive packet steering (the kernel's
//! `Documentation/networking/scaling.rst`) on the load host's device hands them to the
//! load host's CPU.
//!
//! Attaching or replacing an XDP program, or toggling GRO, may renew the
//! polling thread: call [`Placement::apply`] again after it. It is idempotent.
//!
//! The proof is exact and unaffected by other traffic on the machine: frames
//! go back and forth between connected sockets and each socket is asked on
//! which CPU its last packet was processed (`SO_INCOMING_CPU`).

use std::fs;
use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::thread;
use std::time::Duration;

use plimsoll_kernel::knobs::{Attribute, Device, Netdev};
use plimsoll_kernel::namespace::pin;
use plimsoll_kernel::scheduling::{Priority, Scheduling};
use rustix::net::sockopt::socket_incoming_cpu;

use crate::{Error, Host, Testbed, interrupt};

/// How the test host receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// In softirq context, above every process.
    Softirq {
        /// Time between two polls, 1 µs to 10 ms: the delay an adapter would
        /// wait before its interrupt.
        holdoff: Duration,
    },
    /// In a kernel thread.
    Threaded {
        /// Its nice level, -20 (most favoured) to 19.
        nice: i8,
    },
}

/// Frames sent each way for the proof.
const TRAIN_FRAMES: u32 = 64;

/// How long a frame of the proof may take. Much longer than any holdoff.
const PATIENCE: Duration = Duration::from_secs(2);

/// The kernel's largest count of empty polls before deferral ends. At a
/// holdoff of 10 µs that is six hours without a single frame.
const DEFER_FOREVER: u32 = i32::MAX as u32;

/// Tries to arm the timer on the right CPU. It takes more than one only if
/// somebody else's frame arrives in between.
const ATTEMPTS: usize = 5;

impl Placement {
    /// Puts receive work where `self` says and proves it with [`Self::verify`].
    ///
    /// # Errors
    ///
    /// [`Error::Config`] for a value out of range, [`Error::MissingProgram`]
    /// without ethtool, [`Error::MissingKernelFeature`] without NAPI settings,
    /// [`Error::Placement`] if the proof fails.
    pub fn apply(self, testbed: &Testbed) -> Result<(), Error> {
        self.validate()?;
        let test = testbed.test();
        receive_on(testbed.load(), testbed.load().cpu())?;
        set_feature(test, "gro", "on")?;
        // Else veth bypasses NAPI for what ordinary sockets send: it expects
        // such a sender to have filled whole segments, so that GRO is pointless.
        set_feature(testbed.load(), "tso", "off")?;
        match self {
            Self::Softirq { holdoff } => self.apply_softirq(testbed, holdoff),
            Self::Threaded { nice } => {
                set_polling(test, Duration::ZERO, 0, true)?;
                let thread = required_polling_thread(test)?;
                let scheduled =
                    scheduling(test, thread, nice).and_then(|(_, wanted)| wanted.give_to(thread));
                scheduled.map_err(Error::io(format!("schedule polling thread {thread}")))?;
                self.verify(testbed)
            }
        }
    }

    fn apply_softirq(self, testbed: &Testbed, holdoff: Duration) -> Result<(), Error> {
        if self.verify(testbed).is_ok() {
            return Ok(());
        }
        let mut outcome = Ok(());
        for _ in 0..ATTEMPTS {
            // Let a timer on another CPU run out first.
            let before = read_holdoff(testbed.test())?;
            set_polling(testbed.test(), Duration::ZERO, 0, false)?;
            interrupt::sleep(before + Duration::from_millis(1))?;
            set_polling(testbed.test(), holdoff, DEFER_FOREVER, false)?;
            send_from_test_cpu(testbed)?;
            outcome = self.verify(testbed);
            if outcome.is_ok() {
                break;
            }
        }
        outcome
    }

    /// Checks the settings, then sends frames both ways and checks the CPU
    /// that received each.
    ///
    /// # Errors
    ///
    /// [`Error::Placement`] saying what is elsewhere, [`Error::Io`] if the
    /// settings cannot be read.
    pub fn verify(self, testbed: &Testbed) -> Result<(), Error> {
        self.verify_settings(testbed.test())?;
        verify_receiving_cpus(testbed)
    }

    fn verify_settings(self, test: &Host) -> Result<(), Error> {
        match self {
            Self::Softirq { holdoff } => {
                let actual = read_holdoff(test)?;
                if read_setting(test, Attribute::Threaded)? != 0 || actual != holdoff {
                    return Err(Error::Placement(format!(
                        "{} polls every {actual:?} or in a thread, not in softirq every {holdoff:?}",
                        test.device()
                    )));
                }
            }
            Self::Threaded { nice } => {
                let thread = required_polling_thread(test)?;
                let (actual, wanted) = scheduling(test, thread, nice)
                    .map_err(Error::io(format!("ask about polling thread {thread}")))?;
                if actual != wanted {
                    return Err(Error::Placement(format!(
                        "polling thread {thread} of {} is not at nice level {nice} on CPU {} alone: {actual}",
                        test.device(),
                        test.cpu()
                    )));
                }
            }
        }
        Ok(())
    }

    fn validate(self) -> Result<(), Error> {
        match self {
            Self::Softirq { holdoff }
                if !(Duration::from_micros(1)..=Duration::from_millis(10)).contains(&holdoff) =>
            {
                Err(Error::Config {
                    field: "holdoff",
                    given: format!("{holdoff:?}"),
                    allowed: "1 µs to 10 ms",
                })
            }
            Self::Threaded { nice } if !(-20..=19).contains(&nice) => Err(Error::Config {
                field: "nice",
                given: nice.to_string(),
                allowed: "-20 to 19",
            }),
            _ => Ok(()),
        }
    }
}

/// The id of the thread that polls the test host's interface, if one does.
///
/// # Errors
///
/// The kernel does not answer.
pub fn polling_thread(host: &Host) -> Result<Option<i32>, Error> {
    let index = host.ifindex();
    let instances = host
        .run(|| Netdev::new().instances(index))?
        .map_err(Error::io(format!("ask how {} is polled", host.device())))?;
    Ok(instances.iter().find_map(|napi| napi.thread))
}

fn required_polling_thread(host: &Host) -> Result<i32, Error> {
    polling_thread(host)?.ok_or_else(|| {
        Error::Placement(format!(
            "{} shows no polling thread (it takes Linux 6.8 or newer)",
            host.device()
        ))
    })
}

/// How a polling thread is scheduled, and how it should be.
fn scheduling(host: &Host, thread: i32, nice: i8) -> io::Result<(Scheduling, Scheduling)> {
    let actual = Scheduling::of(thread)?;
    let wanted = actual.with_priority(Priority::Nice(nice));
    let wanted = wanted.with_cpus(&[host.cpu()]);
    Ok((actual, wanted))
}

fn set_feature(host: &Host, feature: &str, value: &str) -> Result<(), Error> {
    host.command("ethtool")
        .args(["-K", host.device(), feature, value])
        .cpu(None)
        .package("ethtool")
        .output(Duration::from_secs(10))
        .map(drop)
}

/// Steers what a host's device receives to a CPU (receive packet steering), whoever sent it.
///
/// # Errors
///
/// [`Error::MissingKernelFeature`] without `CONFIG_RPS`; [`Error::Io`] if the kernel refuses.
pub fn receive_on(host: &Host, cpu: usize) -> Result<(), Error> {
    let path = format!("/sys/class/net/{}/queues/rx-0/rps_cpus", host.device());
    host.run(|| fs::write(&path, cpu_mask(cpu)))?
        .map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => missing("CONFIG_RPS", &path),
            _ => Error::io(format!("write {path}"))(error),
        })
}

/// The bitmap format of sysfs: hexadecimal, a comma every 32 CPUs.
fn cpu_mask(cpu: usize) -> String {
    let zeros = ",00000000".repeat(cpu / 32);
    format!("{:x}{zeros}", 1u32 << (cpu % 32))
}

pub(crate) fn set_polling(
    host: &Host,
    holdoff: Duration,
    defer: u32,
    threaded: bool,
) -> Result<(), Error> {
    for (setting, value) in [
        (Attribute::Threaded, u64::from(threaded)),
        (Attribute::NapiDeferHardIrqs, u64::from(defer)),
        (Attribute::GroFlushTimeout, holdoff.as_nanos() as u64),
    ] {
        with_setting(host, setting, "set", |device| {
            device.set_attribute(setting, value)
        })?;
    }
    Ok(())
}

fn read_holdoff(host: &Host) -> Result<Duration, Error> {
    read_setting(host, Attribute::GroFlushTimeout).map(Duration::from_nanos)
}

fn read_setting(host: &Host, setting: Attribute) -> Result<u64, Error> {
    with_setting(host, setting, "read", |device| device.attribute(setting))
}

fn with_setting<T: Send>(
    host: &Host,
    setting: Attribute,
    action: &str,
    work: impl FnOnce(&Device) -> io::Result<Option<T>> + Send,
) -> Result<T, Error> {
    let (device, index) = (host.device(), host.ifindex());
    let opened = host.run(|| Device::open(device, index).map(|opened| work(&opened)))??;
    let name = setting.name();
    opened
        .map_err(Error::io(format!("{action} {name} of {device}")))?
        .ok_or_else(|| missing("NAPI settings in sysfs", &format!("{name} of {device}")))
}

fn missing(feature: &'static str, what: &str) -> Error {
    Error::MissingKernelFeature {
        feature,
        detail: format!("{what} does not exist"),
    }
}

/// Arms the polling timer on the test host's CPU: frames to a socket of the
/// test host, sent by a thread of the load host that runs on the test host's
/// CPU for once.
fn send_from_test_cpu(testbed: &Testbed) -> Result<(), Error> {
    let (client, server) = connected_pair(testbed)?;
    thread::scope(|scope| {
        let send = || -> io::Result<()> {
            pin(testbed.test().cpu())?;
            for _ in 0..3 {
                client.send(b"arm")?;
                server.recv(&mut [0; 8])?;
            }
            Ok(())
        };
        scope.spawn(send).join()
    })
    .unwrap_or_else(|payload| std::panic::resume_unwind(payload))
    .map_err(Error::io("send the first frame from the test host's CPU"))
}

/// Sends frames from the load host's CPU, has them answered on the test
/// host's, and counts those that were received anywhere else.
fn verify_receiving_cpus(testbed: &Testbed) -> Result<(), Error> {
    let (client, server) = connected_pair(testbed)?;
    let (load, test) = (testbed.load().cpu(), testbed.test().cpu());
    let answer = || -> io::Result<u32> {
        pin(test)?;
        let mut elsewhere = 0;
        for _ in 0..TRAIN_FRAMES {
            server.recv(&mut [0; 8])?;
            elsewhere += u32::from(!arrived_on(&server, test)?);
            server.send(b"answer")?;
        }
        Ok(elsewhere)
    };
    let ask = || -> io::Result<u32> {
        pin(load)?;
        let mut elsewhere = 0;
        for _ in 0..TRAIN_FRAMES {
            client.send(b"frame")?;
            client.recv(&mut [0; 8])?;
            elsewhere += u32::from(!arrived_on(&client, load)?);
        }
        Ok(elsewhere)
    };
    let (frames, answers) = thread::scope(|scope| {
        let answering = scope.spawn(answer);
        let asking = scope.spawn(ask);
        (answering.join(), asking.join())
    });
    let resume = |payload| std::panic::resume_unwind(payload);
    judge(
        "frames to the test host",
        test,
        frames.unwrap_or_else(resume),
    )?;
    judge(
        "answers to the load host",
        load,
        answers.unwrap_or_else(resume),
    )
}

/// Whether the socket's last packet was processed on `cpu`.
fn arrived_on(socket: &UdpSocket, cpu: usize) -> io::Result<bool> {
    let actual = socket_incoming_cpu(socket)?;
    Ok(usize::try_from(actual).is_ok_and(|actual| actual == cpu))
}

fn judge(what: &str, cpu: usize, elsewhere: io::Result<u32>) -> Result<(), Error> {
    match elsewhere {
        Ok(0) => Ok(()),
        Ok(count) => Err(Error::Placement(format!(
            "{count} of {TRAIN_FRAMES} {what} were received elsewhere than on CPU {cpu}"
        ))),
        Err(error) => Err(Error::Placement(format!("{what} did not pass: {error}"))),
    }
}

/// Two sockets, one in each host, connected to each other: only connected
/// sockets know their incoming CPU.
fn connected_pair(testbed: &Testbed) -> Result<(UdpSocket, UdpSocket), Error> {
    let bind = |host: &Host| {
        let address = SocketAddr::new(host.ipv4().into(), 0);
        host.run(move || UdpSocket::bind(address))?
            .map_err(Error::io(format!("open a socket in {}", host.name())))
    };
    let client = bind(testbed.load())?;
    let server = bind(testbed.test())?;
    let connect = || -> io::Result<()> {
        client.connect(server.local_addr()?)?;
        server.connect(client.local_addr()?)?;
        client.set_read_timeout(Some(PATIENCE))?;
        server.set_read_timeout(Some(PATIENCE))
    };
    connect().map_err(Error::io("connect a pair of sockets across the link"))?;
    Ok((client, server))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_masks_are_written_as_sysfs_wants_them() {
        assert_eq!(cpu_mask(0), "1");
        assert_eq!(cpu_mask(5), "20");
        assert_eq!(cpu_mask(33), "2,00000000");
    }

    #[test]
    fn values_out_of_range_are_named() {
        let holdoff = Duration::from_secs(1);
        let error = Placement::Softirq { holdoff }.validate().unwrap_err();
        assert_eq!(error.to_string(), "holdoff = 1s: must be 1 µs to 10 ms");
        assert!(Placement::Threaded { nice: 20 }.validate().is_err());
        assert!(Placement::Threaded { nice: -20 }.validate().is_ok());
    }
}
