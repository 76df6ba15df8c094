//! What the tests share.

pub(crate) mod capture;

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::path::Path;
use std::time::Duration;

use plimsoll_testbed::{Config, Host, Testbed};

/// A testbed on the default CPUs. Without root, fails with the sentence that
/// says so.
pub(crate) fn create() -> Testbed {
    Testbed::create(Config::default()).unwrap_or_else(|error| panic!("{error}"))
}

/// The helper stands in for the `plimsoll` binary.
pub(crate) fn plimsoll() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_testbed-helper"))
}

/// A socket of `host` that does not wait forever.
pub(crate) fn bound(host: &Host, address: impl Into<IpAddr>) -> UdpSocket {
    let address = SocketAddr::new(address.into(), 0);
    let socket = host.run(|| UdpSocket::bind(address)).unwrap().unwrap();
    socket
        .set_read_timeout(Some(Duration::from_secs(5)))
        .unwrap();
    socket
}

/// How long threads were ready to run and had no CPU (`/proc/*/schedstat`, second
/// field): those of a process, or the calling one.
pub(crate) fn waited_for_cpu(process: Option<u32>) -> Duration {
    let delay = |path: &Path| {
        let text = std::fs::read_to_string(path).unwrap_or_default();
        let delay = text.split(' ').nth(1).and_then(|delay| delay.parse().ok());
        Duration::from_nanos(delay.unwrap_or(0))
    };
    let Some(process) = process else {
        return delay(Path::new("/proc/thread-self/schedstat"));
    };
    let tasks = std::fs::read_dir(format!("/proc/{process}/task")).unwrap();
    tasks
        .flatten()
        .map(|task| delay(&task.path().join("schedstat")))
        .sum()
}

/// Takes all that waits in the socket's queue and returns how much it was.
pub(crate) fn drain(socket: &UdpSocket) -> u64 {
    socket
        .set_read_timeout(Some(Duration::from_millis(200)))
        .unwrap();
    let mut buffer = [0; 2048];
    std::iter::from_fn(|| socket.recv(&mut buffer).ok()).count() as u64
}
