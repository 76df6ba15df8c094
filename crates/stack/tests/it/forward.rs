//! The forwarding proxy (LRP-45): packets for others are sent on, or who sent them is told why not.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket as KernelSocket};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use plimsoll_kernel::link;
use plimsoll_packets::frame::{self, Fragment, Packet};
use plimsoll_stack::device::simulated::{SimulatedConfig, SimulatedDevice};
use plimsoll_stack::device::tap::TapDevice;
use plimsoll_stack::device::{Batch, Device};
use plimsoll_stack::{ForwardConfig, Outcome, Owner, ProxyConfig, Stack, StackConfig};
use smoltcp::wire::{Icmpv4Packet, Ipv4Packet};

use crate::lan::{self, Far, Lan, SOON, in_namespace, owned, run, xdp};

const IP: usize = 14;
const ICMP: usize = IP + 20;

/// Two networks, and the ends of packets between them.
const NEAR: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 9);
const FAR: Ipv4Addr = Ipv4Addr::new(10, 0, 1, 9);
/// A network that nobody knows the way to.
const NOWHERE: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 1);

fn config(forward: Option<ForwardConfig>) -> StackConfig {
    let addresses = ["10.0.0.2/24", "10.0.1.2/24", "fd00::2/64", "fd01::2/64"];
    StackConfig {
        addresses: addresses.map(|net| net.parse().unwrap()).to_vec(),
        proxies: ProxyConfig {
            forward,
            ..ProxyConfig::default()
        },
        ..StackConfig::default()
    }
}

/// A router, and the far end of its cable.
struct Router {
    stack: Stack,
    cable: SimulatedDevice,
}

impl Router {
    fn new(forward: Option<ForwardConfig>) -> Self {
        let (cable, device) = SimulatedDevice::pair(&SimulatedConfig::default()).unwrap();
        let stack = Stack::start(device, &config(forward)).unwrap();
        let router = Self { stack, cable };
        // The far host asks, and thereby says where it is.
        router.send(&frame::arp(FAR, Ipv4Addr::new(10, 0, 1, 2), 0));
        router.next();
        router
    }

    fn send(&self, frame: &[u8]) {
        assert!(self.cable.send(frame));
    }

    /// The next frame that comes back.
    fn next(&self) -> Vec<u8> {
        let end = Instant::now() + SOON;
        loop {
            if let Some(frame) = self.come_back() {
                return frame;
            }
            assert!(Instant::now() < end, "{:?}", self.stack.counts());
            thread::yield_now();
        }
    }

    /// One that has come back, but for what the router says of its own addresses' groups.
    fn come_back(&self) -> Option<Vec<u8>> {
        let mut batch = Batch::new();
        while self.cable.receive(&mut batch, 1).unwrap() > 0 {
            let frame = batch.pop_front().map(|frame| frame.to_vec());
            if frame.as_ref().is_some_and(|frame| !is_mld(frame)) {
                return frame;
            }
        }
        None
    }

    fn wait_for(&self, outcome: Outcome, frames: u64) {
        let end = Instant::now() + SOON;
        while self.stack.counts()[outcome] < frames {
            assert!(Instant::now() < end, "{:?}", self.stack.counts());
            thread::yield_now();
        }
    }
}

/// IPv6 with hop-by-hop options.
fn is_mld(frame: &[u8]) -> bool {
    frame[12..14] == [0x86, 0xdd] && frame[20] == 0
}

fn packet(from: Ipv4Addr, to: Ipv4Addr) -> Packet {
    Packet::new(from.into(), to.into())
}

fn udp(from: Ipv4Addr, to: Ipv4Addr) -> Vec<u8> {
    packet(from, to).udp(1000, 2000, b"payload")
}

fn with_ttl(mut frame: Vec<u8>, ttl: u8) -> Vec<u8> {
    let mut packet = Ipv4Packet::new_unchecked(&mut frame[IP..]);
    packet.set_hop_limit(ttl);
    packet.fill_checksum();
    frame
}

#[test]
fn packets_for_others_are_sent_on_and_by_default_are_not() {
    let router = Router::new(Some(ForwardConfig::default()));
    let sent = packet(NEAR, FAR).padding(9).udp(1000, 2000, b"payload");
    router.send(&sent);
    let got = router.next();
    let ip = Ipv4Packet::new_checked(&got[IP..]).unwrap();
    assert!(ip.verify_checksum());
    assert_eq!((ip.hop_limit(), ip.dst_addr()), (63, FAR));
    // To the far host, from the router, without padding.
    assert_eq!(got[..12], [2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2]);
    assert_eq!(got[ICMP..], udp(NEAR, FAR)[ICMP..]);
    router.wait_for(Outcome::Forwarded, 1);
    let charged = router.stack.charged();
    assert_eq!(charged[&Owner::Forwarding].counts[Outcome::Forwarded], 1);
    lan::assert_sums(&router.stack);

    let host = Router::new(None);
    host.send(&sent);
    host.wait_for(Outcome::Forward, 1);
    assert_eq!(host.come_back(), None);
}

/// What had waited for a neighbour that never answered was in no count of what is lost.
#[test]
fn what_no_neighbour_takes_is_counted() {
    let router = Router::new(Some(ForwardConfig::default()));
    let nobody = Ipv4Addr::new(10, 0, 1, 77);
    for _ in 0..70 {
        router.send(&udp(NEAR, nobody));
    }
    router.wait_for(Outcome::Forwarded, 70);
    assert!(router.stack.unsent() >= 6, "64 may wait");
    let end = Instant::now() + SOON;
    while router.stack.unsent() < 70 {
        assert!(Instant::now() < end, "{} of 70", router.stack.unsent());
        thread::sleep(Duration::from_millis(10));
    }
}

/// The type and code of an ICMP error from the router to the near host, which quotes `about`.
fn error(got: &[u8], about: &[u8]) -> (u8, u8) {
    let ip = Ipv4Packet::new_checked(&got[IP..]).unwrap();
    assert_eq!((ip.src_addr(), ip.dst_addr()), ([10, 0, 0, 2].into(), NEAR));
    let icmp = Icmpv4Packet::new_checked(&got[ICMP..]).unwrap();
    assert!(ip.verify_checksum() && icmp.verify_checksum());
    assert_eq!(got[ICMP + 8..], about[IP..]);
    (u8::from(icmp.msg_type()), icmp.msg_code())
}

#[test]
fn who_sent_it_is_told_why_it_went_no_further() {
    let router = Router::new(Some(ForwardConfig::default()));
    let late = Fragment {
        id: 7,
        offset: 64,
        more: false,
    };
    let mut to_all = with_ttl(udp(NEAR, FAR), 1);
    to_all[..6].fill(0xff);
    // Nobody is told of these: errors, later fragments, broadcasts, addresses that lie.
    for silent in [
        with_ttl(packet(NEAR, FAR).icmp(3, &[0; 40]), 1),
        with_ttl(packet(NEAR, FAR).fragment(late).udp(1, 2, b"payload"), 1),
        to_all,
        with_ttl(udp([10, 0, 0, 2].into(), FAR), 1),
        udp([127, 0, 0, 1].into(), FAR),
        packet(NEAR, FAR).ipv4_options(1).udp(1, 2, b"payload"),
    ] {
        router.send(&silent);
    }
    for ttl in [0, 1] {
        let old = with_ttl(udp(NEAR, FAR), ttl);
        router.send(&old);
        assert_eq!(error(&router.next(), &old), (11, 0));
    }
    let ping = with_ttl(packet(NEAR, FAR).icmp(8, &[0; 40]), 1);
    router.send(&ping);
    assert_eq!(error(&router.next(), &ping), (11, 0));
    let lost = udp(NEAR, NOWHERE);
    router.send(&lost);
    assert_eq!(error(&router.next(), &lost), (3, 0));
    router.send(&with_ttl(udp(NEAR, FAR), 2));
    assert_eq!(router.next()[IP + 8], 1, "sent on");
    router.wait_for(Outcome::Forwarded, 1);
    assert_eq!(router.stack.counts()[Outcome::Forward], 10);
    lan::assert_sums(&router.stack);
}

#[test]
fn errors_come_in_bursts_of_some_fifty_and_a_thousand_a_second() {
    let router = Router::new(Some(ForwardConfig::default()));
    let (old, began) = (with_ttl(udp(NEAR, FAR), 1), Instant::now());
    for _ in 0..200 {
        router.send(&old);
    }
    router.wait_for(Outcome::Forward, 200);
    // What was counted is sent with the end of the turn.
    router.send(&udp(NEAR, FAR));
    let mut told = 0;
    while router.next()[IP + 9] == 1 {
        told += 1;
    }
    // A token for each on average: missed once in 10^8 runs.
    let tokens = 51 + began.elapsed().as_millis();
    let most = 2 * tokens;
    assert!((25..=most).contains(&told), "{told} of {most}");
}

#[test]
fn af_xdp_leaves_others_packets_to_the_kernel_and_says_so() {
    Lan::create(|| {
        let forward = Some(ForwardConfig::default());
        let refused = Stack::start(xdp(&owned()), &config(forward)).unwrap_err();
        assert!(refused.is_missing(), "{refused}");
        assert!(
            refused.to_string().contains("plimsoll forward"),
            "{refused}"
        );
    });
}

/// A namespace's host on the bridge, with the router as its gateway.
fn host(far: &Far, number: u8) {
    let name = far.name();
    run(&format!(
        "ip link add port{number} type veth peer name host netns {name}"
    ));
    run(&format!("ip link set port{number} master bridge up"));
    far.run(|| {
        run("ip link set lo up");
        lan::set_up_host(number);
    });
    link::wait_until_sending(&format!("port{number}")).unwrap();
}

/// Between hosts of the kernel, in both directions and families.
#[test]
fn the_kernels_hosts_reach_each_other_through_the_router() {
    let (near, far) = (Far::create(), Far::create());
    in_namespace(|| {
        run("ip link add bridge type bridge");
        run("ip link set bridge up");
        host(&near, 0);
        host(&far, 1);
        let tap = TapDevice::open("tap0").unwrap();
        run("ip link set tap0 master bridge up");
        let stack = Stack::start(tap, &config(Some(ForwardConfig::default()))).unwrap();
        for (from, to) in [("10.0.0.1:7", "10.0.1.1:7"), ("[fd00::1]:7", "[fd01::1]:7")] {
            let bind = |at: &str| {
                let socket = KernelSocket::bind(at).unwrap();
                socket.set_read_timeout(Some(SOON)).unwrap();
                socket
            };
            let (one, other) = (near.run(|| bind(from)), far.run(|| bind(to)));
            let (mut payload, to) = ([0; 2000], to.parse::<SocketAddr>().unwrap());
            for bytes in [1, 1400, 1999] {
                one.send_to(&vec![7; bytes], to).unwrap();
                let (length, source) = other.recv_from(&mut payload).unwrap();
                assert_eq!((length, source), (bytes, from.parse().unwrap()));
                other.send_to(&payload[..length], source).unwrap();
                assert_eq!(one.recv(&mut payload).unwrap(), bytes);
            }
            let told = near.run(|| too_far(to.ip()));
            assert!(told.contains("exceeded"), "{told}");
        }
        lan::assert_sums(&stack);
        assert!(stack.counts()[Outcome::Forwarded] >= 16);
    });
}

/// What ping says of a packet that may take one step.
fn too_far(to: IpAddr) -> String {
    let ping = Command::new("ping")
        .args(["-c", "1", "-t", "1", "-W", "2", &to.to_string()])
        .output();
    String::from_utf8(ping.unwrap().stdout).unwrap()
}
