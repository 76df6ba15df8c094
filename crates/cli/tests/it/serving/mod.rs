//! `plimsoll serve` at one end of a link, whose other end the kernel has, and clients that
//! wait for it.

use std::io::Read;
use std::net::UdpSocket;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use plimsoll_kernel::{link, namespace};

use crate::shell::run;

/// No test waits longer for what must come.
pub(crate) const SOON: Duration = Duration::from_secs(20);

/// A veth pair in a namespace of the test's own: the kernel is at 10.0.0.1.
pub(crate) fn with_link(test: impl FnOnce() + Send) {
    namespace::in_new(|| {
        run("ip link set lo up");
        run("ip link add kernel0 type veth peer name stack0");
        run("ip addr add 10.0.0.1/24 dev kernel0");
        run("ip addr add fd00::1/64 dev kernel0 nodad");
        run("ip link set kernel0 up");
        link::wait_until_local("fd00::1".parse().unwrap()).unwrap();
        run("ip link set stack0 up");
        // Nobody computes checksums that are left to hardware.
        run("ethtool -K kernel0 tx off");
        link::wait_until_sending("kernel0").unwrap();
        test();
    })
    .expect("this test makes a network namespace: run it as root");
}

/// `plimsoll serve`, ended with the test.
pub(crate) struct Server(pub(crate) Child);

impl Server {
    pub(crate) fn start(arguments: &str) -> Self {
        Self::start_saying(arguments, Stdio::inherit())
    }

    /// What it says can be read when it has ended.
    pub(crate) fn start_telling(arguments: &str) -> Self {
        Self::start_saying(arguments, Stdio::piped())
    }

    pub(crate) fn start_saying(arguments: &str, to: Stdio) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_plimsoll"));
        command.arg("serve").args(arguments.split_whitespace());
        Self(command.stdout(Stdio::piped()).stderr(to).spawn().unwrap())
    }

    /// Ends it as Ctrl-C does; what it counted.
    pub(crate) fn stop(mut self) -> serde_json::Value {
        let pid = nix::unistd::Pid::from_raw(self.0.id().cast_signed());
        nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGINT).unwrap();
        let mut counts = String::new();
        let output = self.0.stdout.as_mut().unwrap();
        output.read_to_string(&mut counts).unwrap();
        assert!(self.0.wait().unwrap().success());
        serde_json::from_str(&counts).unwrap()
    }

    /// Ends it, or kills it.
    pub(crate) fn end(mut self, killed: bool) {
        if killed {
            self.0.kill().unwrap();
            self.0.wait().unwrap();
        } else {
            self.stop();
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Tries until it works.
pub(crate) fn eventually<T>(what: &str, mut attempt: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + SOON;
    loop {
        if let Some(result) = attempt() {
            return result;
        }
        assert!(Instant::now() < end, "{what} did not happen");
        thread::sleep(Duration::from_millis(20));
    }
}

/// A client that port 7 has answered.
pub(crate) fn client_of_an_echo() -> UdpSocket {
    let client = UdpSocket::bind("0.0.0.0:0").unwrap();
    client
        .set_read_timeout(Some(Duration::from_millis(200)))
        .unwrap();
    eventually("an echo", || {
        client.send_to(b"hello", "10.0.0.2:7").ok()?;
        client.recv_from(&mut [0; 100]).ok()
    });
    client
}
