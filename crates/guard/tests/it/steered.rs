//! Packets that are handed to other CPUs (RPS): the stack looks for their socket there.

#![allow(unsafe_code, reason = "nix does not know this socket option")]

use std::fs;
use std::net::UdpSocket;
use std::os::fd::AsRawFd;
use std::time::Duration;

use nix::sched::{CpuSet, sched_getaffinity};
use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, SockaddrIn, bind, setsockopt, socket, sockopt,
};
use nix::unistd::Pid;
use plimsoll_guard::{Config, Guard, Kind, Storage};
use plimsoll_kernel::namespace;

use crate::common::patient::{large_buffer, received};
use crate::common::{HOST_V4, Wire, fill, set_up, to_host};

const PORT: u16 = 5000;
const FRAMES: u16 = 100;

/// A member of a group, for the packets that a CPU looks up.
fn member(cpu: usize) -> UdpSocket {
    let (family, kind) = (AddressFamily::Inet, SockType::Datagram);
    let made = socket(family, kind, SockFlag::SOCK_CLOEXEC, None).unwrap();
    setsockopt(&made, sockopt::ReusePort, &true).unwrap();
    let cpu = i32::try_from(cpu).unwrap();
    // SAFETY: the descriptor is open, and the kernel copies the number.
    let result = unsafe {
        libc::setsockopt(
            made.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_INCOMING_CPU,
            (&raw const cpu).cast(),
            4,
        )
    };
    assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
    let [a, b, c, d] = HOST_V4.octets();
    bind(made.as_raw_fd(), &SockaddrIn::new(a, b, c, d, PORT)).unwrap();
    UdpSocket::from(made)
}

/// The member of this CPU is full. All packets are handed to the other CPU, whose member once got none
/// of them.
#[test]
fn what_is_handed_to_another_cpu_is_not_judged_by_the_member_of_this_one() {
    let allowed = sched_getaffinity(Pid::from_raw(0)).unwrap();
    let mut cpus = (0..CpuSet::count()).filter(|cpu| allowed.is_set(*cpu).unwrap_or(false));
    let (own, other) = (cpus.next().unwrap(), cpus.next().expect("two CPUs"));
    let test = || {
        namespace::pin(own).unwrap();
        let mask = format!("{:x}", 1 << other);
        // For the queues of the interfaces to come.
        fs::write("/proc/sys/net/core/rps_default_mask", mask).unwrap();
        set_up();
        let _full = member(own);
        fill(&UdpSocket::bind((HOST_V4, 0)).unwrap(), (HOST_V4, PORT));
        let server = member(other);
        large_buffer(&server);
        let wait = Duration::from_millis(300);
        server.set_read_timeout(Some(wait)).unwrap();
        let mut storage = Storage::default();
        let mut guard = Guard::attach(&mut storage, &Config::default(), "v0").unwrap();
        let wire = Wire::open();
        let send = |source| wire.send(&to_host(HOST_V4).udp(source, PORT, &[0; 64]));
        // The kernel tells of packets that were handed on once there were any.
        send(1000);
        received(&server);
        guard.refresh().unwrap();
        (2000..2000 + FRAMES).for_each(send);
        assert_eq!(received(&server), u64::from(FRAMES));
        let counted = *guard.counters().unwrap().of(Kind::UdpSocket);
        assert_eq!(counted.discarded(), 0, "{counted:?}");
    };
    namespace::in_new(test).unwrap();
}
