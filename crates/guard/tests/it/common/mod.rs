//! A host for one test: a network namespace with a veth pair. `v0` is the
//! host's interface; frames sent on `v1` arrive there. Everything vanishes
//! with the thread, however the test ends.

#![allow(dead_code, reason = "each program uses its part")]

pub(crate) mod assembled;
pub(crate) mod closed_port;
pub(crate) mod connection;
pub(crate) mod notes;
pub(crate) mod other_namespace;
pub(crate) mod packets_host;
pub(crate) mod patient;
pub(crate) mod peer;
pub(crate) mod service_manager;
pub(crate) mod steering;
pub(crate) mod syn_queue;
pub(crate) mod twin;

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::process::Command;
use std::thread;
use std::time::Duration;

use nix::sched::sched_getcpu;
use plimsoll_guard::{Channel, Counters, Guard, Kind};
use plimsoll_kernel::{link, namespace};
use plimsoll_packets::frame::Packet;

pub(crate) const HOST_V4: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 2);
pub(crate) const PEER_V4: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 1);
pub(crate) const BROADCAST_V4: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 255);
pub(crate) const HOST_V6: Ipv6Addr = Ipv6Addr::new(0x2001, 2, 0, 1, 0, 0, 0, 2);
pub(crate) const PEER_V6: Ipv6Addr = Ipv6Addr::new(0x2001, 2, 0, 1, 0, 0, 0, 1);
pub(crate) const HOST_MAC: [u8; 6] = [2, 0, 0, 0, 0, 2];
pub(crate) const PEER_MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];

/// Runs `test` in a namespace of its own.
pub(crate) fn in_namespace<T: Send>(test: impl FnOnce() -> T + Send) -> T {
    let inside = || {
        // Loopback delivers in order on one CPU.
        namespace::pin(sched_getcpu().expect("a CPU")).expect("a thread may pin itself");
        set_up();
        test()
    };
    namespace::in_new(inside)
        .expect("this test makes network namespaces and needs root: run `sudo make test`")
}

pub(crate) fn set_up() {
    ip("link set lo up");
    ip("link add v0 address 02:00:00:00:00:02 type veth peer name v1 address 02:00:00:00:00:01");
    ip(&format!(
        "address add {HOST_V4}/24 broadcast {BROADCAST_V4} dev v0"
    ));
    ip(&format!("address add {HOST_V6}/64 dev v0 nodad"));
    // What the kernel would say on `v1` by itself comes to `v0` on the CPU of its timer, and
    // that CPU then takes what a test sends on another, with a share of its own.
    ip("link set v1 addrgenmode none");
    ip("link set v0 up");
    ip("link set v1 up");
    link::wait_until_local(HOST_V6).expect("v0 is up and has it");
    link::wait_until_sending("v0").expect("v1 is up");
    // Answers to made-up peers go out on v0 and are nobody's at v1.
    for last in [1, 77, 78, 79] {
        ip(&format!(
            "neighbour add 198.18.0.{last} lladdr 02:00:00:00:00:99 dev v0"
        ));
    }
}

/// Puts `v0` into the bridge `br0`, which takes its addresses.
pub(crate) fn bridged() {
    ip("link add br0 address 02:00:00:00:00:02 type bridge");
    ip(&format!("address del {HOST_V4}/24 dev v0"));
    ip("link set v0 master br0");
    ip(&format!("address add {HOST_V4}/24 dev br0"));
    ip("link set br0 up");
}

/// Runs `ip` with these words.
pub(crate) fn ip(words: &str) {
    call("ip", words);
}

/// Calls a program of the set-up (scripts/setup) with these words.
pub(crate) fn call(program: &str, words: &str) {
    let output = Command::new(program).args(words.split(' ')).output();
    let output = output.unwrap_or_else(|error| panic!("{program}: {error}"));
    assert!(
        output.status.success(),
        "{program} {words}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
}

/// Gives `nft` these rules.
pub(crate) fn nft(rules: &str) {
    let output = Command::new("nft").arg(rules).output();
    let output = output.expect("nftables is installed");
    assert!(output.status.success(), "{output:?}");
}

/// A packet from the peer to the host, in the family of `host`.
pub(crate) fn to_host(host: impl Into<IpAddr>) -> Packet {
    let host = host.into();
    let peer = if host.is_ipv4() {
        IpAddr::V4(PEER_V4)
    } else {
        IpAddr::V6(PEER_V6)
    };
    Packet::new(peer, host).macs(PEER_MAC, HOST_MAC)
}

/// What the program says to one frame.
pub(crate) fn admits(guard: &mut Guard<'_>, frame: &[u8]) -> bool {
    guard.test_run(frame, 1).expect("test-run").0
}

/// The one channel of this kind at this port.
pub(crate) fn channel(counters: &Counters, kind: Kind, port: u16) -> Channel {
    let mut found = counters
        .channels
        .iter()
        .filter(|c| c.kind == kind && c.port == port);
    let channel = found.next().expect("the channel exists").clone();
    assert_eq!(found.next(), None, "one channel");
    channel
}

/// Sends frames on `v1`; they arrive at `v0`.
#[derive(Debug)]
pub(crate) struct Wire {
    socket: std::os::fd::OwnedFd,
    ifindex: u32,
}

impl Wire {
    pub(crate) fn open() -> Self {
        Self::at("v1")
    }

    /// The same on another interface.
    pub(crate) fn at(interface: &str) -> Self {
        use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};
        let socket = socket(
            AddressFamily::Packet,
            SockType::Raw,
            SockFlag::SOCK_CLOEXEC,
            None,
        )
        .expect("AF_PACKET");
        let ifindex = nix::net::if_::if_nametoindex(interface).expect("it exists");
        Self { socket, ifindex }
    }

    /// Waits while the receive ring of `v0` is full.
    pub(crate) fn send(&self, frame: &[u8]) {
        for _ in 0..1000 {
            match self.try_send(frame) {
                Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => {
                    thread::sleep(Duration::from_millis(1));
                }
                sent => return sent.expect("the wire takes the frame"),
            }
        }
        panic!("the receive ring stays full");
    }

    /// Fails where the receive ring of `v0` is full.
    #[allow(
        unsafe_code,
        reason = "neither nix nor the standard library builds a sockaddr_ll"
    )]
    pub(crate) fn try_send(&self, frame: &[u8]) -> io::Result<()> {
        use std::os::fd::AsRawFd;
        // SAFETY: all-zero bytes are a valid sockaddr_ll.
        let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
        address.sll_family = u16::try_from(libc::AF_PACKET).expect("fits");
        address.sll_ifindex = self.ifindex.cast_signed();
        // SAFETY: frame and address are valid for the lengths given.
        let sent = unsafe {
            libc::sendto(
                self.socket.as_raw_fd(),
                frame.as_ptr().cast(),
                frame.len(),
                0,
                (&raw const address).cast(),
                u32::try_from(size_of_val(&address)).expect("small"),
            )
        };
        if sent == frame.len().cast_signed() {
            Ok(())
        } else {
            Err(io::Error::last_os_error())
        }
    }
}

/// A UDP socket with a receive buffer of at most `bytes` (the kernel doubles
/// what it is asked for).
pub(crate) fn udp_socket(address: impl Into<SocketAddr>, bytes: usize) -> UdpSocket {
    use nix::sys::socket::{setsockopt, sockopt};
    let socket = UdpSocket::bind(address.into()).expect("the port is free");
    setsockopt(&socket, sockopt::RcvBuf, &(bytes / 2)).expect("a receive buffer");
    socket.set_nonblocking(true).expect("a socket");
    socket
}

/// Bytes queued at the UDP socket bound to `port`, as the kernel reports them.
pub(crate) fn udp_occupancy(port: u16) -> u64 {
    let table = std::fs::read_to_string("/proc/thread-self/net/udp").expect("/proc");
    let port = format!(":{port:04X}");
    let line = table
        .lines()
        .find(|line| {
            line.split_whitespace()
                .nth(1)
                .is_some_and(|local| local.ends_with(&port))
        })
        .expect("the socket is listed");
    let queues = line.split_whitespace().nth(4).expect("tx_queue:rx_queue");
    u64::from_str_radix(queues.split(':').nth(1).expect("rx_queue"), 16).expect("hexadecimal")
}

/// Fills the socket at `address` beyond any watermark, and returns when all
/// that was sent has arrived or was dropped.
pub(crate) fn fill(source: &UdpSocket, address: impl Into<SocketAddr>) {
    let address = address.into();
    for _ in 0..2000 {
        source.send_to(&[0; 64], address).expect("loopback");
    }
    let marker = UdpSocket::bind((address.ip(), 0)).expect("a port");
    marker
        .set_read_timeout(Some(Duration::from_secs(20)))
        .expect("a timeout");
    source
        .send_to(&[0; 8], marker.local_addr().expect("bound"))
        .expect("loopback");
    marker.recv(&mut [0; 8]).expect("the marker comes last");
}

/// What the program knows of a full destination may be one tick old.
pub(crate) fn let_a_tick_pass() {
    thread::sleep(Duration::from_millis(20));
}
