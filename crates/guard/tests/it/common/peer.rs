//! A host of its own at the other end of the wire.

use std::fs::File;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::AsRawFd;
use std::sync::mpsc::{Sender, channel};
use std::thread;

use plimsoll_guard::{Config, Guard, Storage};
use plimsoll_kernel::{link, namespace};

use super::{HOST_V4, HOST_V6, PEER_V4, PEER_V6, call, ip};

/// Addresses of its network that nobody has.
pub(crate) const NOBODY_V4: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 77);
/// The same.
pub(crate) const NOBODY_V6: Ipv6Addr = Ipv6Addr::new(0x2001, 2, 0, 1, 0, 0, 0, 0x77);

/// What the peer, a host of its own at the other end of the wire, is told to do.
pub(crate) type Job = Box<dyn FnOnce() + Send>;

/// Whether a link's other end takes what XDP sends back. veth hands that on only where
/// a program runs there, or GRO is on.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum OtherEnd {
    Takes,
    /// With GRO and without a program.
    Aggregates,
    Refuses,
}

/// Runs `test` on the host; jobs sent to it run on the peer, one by one.
pub(crate) fn with_peer(other_end: OtherEnd, test: impl FnOnce(&Sender<Job>)) {
    let (sender, jobs) = channel::<Job>();
    let (ready, is_ready) = channel();
    thread::scope(|scope| {
        let peer = move || {
            let namespace = File::open("/proc/thread-self/ns/net").unwrap();
            ready.send(namespace).unwrap();
            let mut jobs = jobs.iter();
            // The wire's end is here now: set it up.
            jobs.next().expect("a first job")();
            if other_end == OtherEnd::Aggregates {
                call("ethtool", "-K v1 gro on");
            }
            let mut storage = Storage::default();
            let _program = (other_end == OtherEnd::Takes).then(|| {
                let observe = Config {
                    observe: true,
                    ..Config::default()
                };
                Guard::attach(&mut storage, &observe, "v1").unwrap()
            });
            for job in jobs {
                job();
            }
        };
        let peer = scope.spawn(|| namespace::in_new(peer).unwrap());
        let namespace = is_ready.recv().unwrap();
        let path = format!("/proc/{}/fd/{}", std::process::id(), namespace.as_raw_fd());
        ip(&format!("link set v1 netns {path}"));
        run(&sender, set_up_peer);
        link::wait_until_sending("v0").unwrap();
        let nobody = "02:00:00:00:00:99";
        for (address, mac) in [
            (IpAddr::V4(PEER_V4), "02:00:00:00:00:01"),
            (IpAddr::V6(PEER_V6), "02:00:00:00:00:01"),
            (IpAddr::V4(NOBODY_V4), nobody),
            (IpAddr::V6(NOBODY_V6), nobody),
        ] {
            ip(&format!("neighbour replace {address} lladdr {mac} dev v0"));
        }
        test(&sender);
        drop(sender);
        peer.join().unwrap();
    });
}

fn set_up_peer() {
    ip("link set lo up");
    ip(&format!("address add {PEER_V4}/24 dev v1"));
    ip(&format!("address add {PEER_V6}/64 dev v1 nodad"));
    ip("link set v1 up");
    link::wait_until_local(PEER_V6).unwrap();
    for host in [HOST_V4.to_string(), HOST_V6.to_string()] {
        ip(&format!(
            "neighbour replace {host} lladdr 02:00:00:00:00:02 dev v1"
        ));
    }
}

/// Has the peer do something and waits for it.
pub(crate) fn run<T: Send + 'static>(
    peer: &Sender<Job>,
    job: impl FnOnce() -> T + Send + 'static,
) -> T {
    let (done, result) = channel();
    let job = move || done.send(job()).expect("the test waits");
    peer.send(Box::new(job)).unwrap();
    result.recv().expect("the peer did its job")
}
