//! Sockets are found with the process and the control group they are of.

use std::net::{TcpListener, UdpSocket};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use nix::time::{ClockId, clock_gettime};
use plimsoll_guard::{Kind, Owners};

use crate::common::{HOST_V4, HOST_V6, in_namespace};

const PORT: u16 = 5300;

#[test]
fn a_socket_is_found_with_its_process_and_forgotten_with_it() {
    in_namespace(|| {
        let any4 = "0.0.0.0".parse().unwrap();
        let any6 = "::".parse().unwrap();
        let socket = UdpSocket::bind((HOST_V4, PORT)).unwrap();
        let _listener = TcpListener::bind(("::", PORT)).unwrap();
        let mut owners = Owners::new();
        owners.refresh().unwrap();

        let owner = owners
            .of_channel(Kind::UdpSocket, HOST_V4.into(), PORT)
            .unwrap();
        let process = owner.process.unwrap();
        assert_eq!(process.pid, std::process::id());
        let comm = std::fs::read_to_string("/proc/self/comm").unwrap();
        assert_eq!(process.name, comm.trim_end());
        assert_eq!((owner.sockets, owner.user), (1, 0));
        assert!(owners.of_channel(Kind::UdpSocket, any4, PORT).is_none());
        // A listener for any address is found by each, in either family.
        for address in [any4, any6, HOST_V6.into()] {
            let owner = owners.of_channel(Kind::TcpListener, address, PORT);
            assert_eq!(owner.unwrap().process.unwrap().pid, std::process::id());
        }
        assert!(owners.of_channel(Kind::Icmp, any4, 0).is_none());

        let cookie = rustix::net::sockopt::socket_cookie(&socket).unwrap();
        assert!(owners.of_cookie(cookie).is_some());
        drop(socket);
        // A command that another test starts has a copy of the socket until it runs.
        let deadline = Instant::now() + Duration::from_secs(20);
        while owners.of_cookie(cookie).is_some() && Instant::now() < deadline {
            owners.refresh().unwrap();
        }
        assert!(owners.of_cookie(cookie).is_none());
    });
}

#[test]
fn the_control_group_is_that_of_the_process() {
    let own = std::fs::read_to_string("/proc/self/cgroup").unwrap();
    let unified = own.lines().find_map(|line| line.strip_prefix("0::"));
    in_namespace(|| {
        let _socket = UdpSocket::bind((HOST_V4, PORT)).unwrap();
        let mut owners = Owners::new();
        owners.refresh().unwrap();
        let owner = owners
            .of_channel(Kind::UdpSocket, HOST_V4.into(), PORT)
            .unwrap();
        assert_eq!(owner.control_group.as_deref(), unified);
    });
}

#[test]
fn a_socket_that_changes_hands_is_found_with_its_new_process() {
    in_namespace(|| {
        let socket = UdpSocket::bind((HOST_V4, PORT)).unwrap();
        let mut child = Command::new("sleep")
            .arg("60")
            .stdin(Stdio::from(std::os::fd::OwnedFd::from(socket)))
            .spawn()
            .unwrap();
        // The command took the socket along; its copy here is closed.
        let mut owners = Owners::new();
        let mut name = String::new();
        let deadline = Instant::now() + Duration::from_secs(20);
        while name != "sleep" && Instant::now() < deadline {
            owners = Owners::new();
            owners.refresh().unwrap();
            let owner = owners.of_channel(Kind::UdpSocket, HOST_V4.into(), PORT);
            let process = owner.unwrap().process;
            name = process.map(|process| process.name).unwrap_or_default();
        }
        assert_eq!(name, "sleep");
        child.kill().unwrap();
        child.wait().unwrap();
        owners.refresh().unwrap();
        let gone = owners.of_channel(Kind::UdpSocket, HOST_V4.into(), PORT);
        assert!(gone.is_none(), "{gone:?}");
    });
}

#[test]
fn ten_thousand_sockets_are_listed_and_cost_little_when_known() {
    const SOCKETS: u16 = 10_000;
    in_namespace(|| {
        let first = 20_000;
        let sockets: Vec<_> = (first..first + SOCKETS)
            .map(|port| UdpSocket::bind((HOST_V4, port)).unwrap())
            .collect();
        let mut owners = Owners::new();
        // Each looks at 2,000 descriptors, and other processes have some, too.
        for _ in 0..50 {
            owners.refresh().unwrap();
        }
        assert!(!owners.is_truncated());
        for port in first..first + SOCKETS {
            let owner = owners.of_channel(Kind::UdpSocket, HOST_V4.into(), port);
            assert!(owner.unwrap().process.is_some(), "{port}");
        }
        // CPU time: on a busy machine it waits for others as well.
        let clock = ClockId::CLOCK_THREAD_CPUTIME_ID;
        let before = Duration::from(clock_gettime(clock).unwrap());
        owners.refresh().unwrap();
        let cost = Duration::from(clock_gettime(clock).unwrap()) - before;
        // Generous: without optimisation.
        assert!(cost < Duration::from_secs(2), "{cost:?}");
        println!("a refresh with {SOCKETS} known sockets: {cost:?}");
        drop(sockets);
    });
}
