//! Frames that are longer than their packet, as the kernel and both routers forward them. Needs
//! root.

use std::net::{IpAddr, UdpSocket};
use std::sync::PoisonError;
use std::time::{Duration, Instant};

use plimsoll_packets::frame::Packet;
use plimsoll_programs::forward::{Config, Limits, Router};
use plimsoll_stack::device::packet::PacketDevice;
use plimsoll_stack::device::{Batch, Device};
use plimsoll_testbed::routed::{Routed, Sink};
use plimsoll_testbed::{Config as TestbedConfig, INNER_DEVICE};

use crate::common::{
    Books, PATHS, TURN, config, eventually, eventually_answered, nothing_is_left, of, ping,
    with_router, with_router_of,
};

/// Bytes behind a packet: none, those of the shortest frame, a few more, and more than the next
/// link takes.
const BEHIND: [usize; 4] = [0, 14, 40, 1400];
/// Packets with as many bytes behind.
const EACH: usize = 20;
const PORT: u16 = 4000;
/// An MTU of the next link, which IPv6 takes as well.
const SHORT_MTU: usize = 1300;

/// Sends packets of each length over both families; returns how many of each came to their host.
fn arriving(hosts: &Routed) -> Vec<usize> {
    let bind = || UdpSocket::bind(("::", PORT)).unwrap();
    let socket = hosts.sink().run(bind).unwrap();
    socket
        .set_read_timeout(Some(Duration::from_millis(50)))
        .unwrap();
    let device = || PacketDevice::open(hosts.load().device()).unwrap();
    let device = hosts.load().run(device).unwrap();
    let mut came = Vec::new();
    for (source, destination) in [("198.18.0.1", "10.77.0.2"), ("2001:2::1", "fd00:77::2")] {
        let address = |text: &str| text.parse::<IpAddr>().unwrap();
        let macs = (device.capabilities().mac, hosts.router().mac());
        for bytes in BEHIND {
            let packet = Packet::new(address(source), address(destination));
            let packet = packet.macs(macs.0, macs.1).padding(bytes);
            let mut batch = Batch::new();
            for _ in 0..EACH {
                let mut frame = device.pool().take().unwrap();
                assert!(frame.copy_from(&packet.udp(1000, PORT, b"four")));
                batch.push_back(frame);
            }
            device.transmit(&mut batch).unwrap();
            assert!(batch.is_empty(), "all were sent");
            came.push(received(&socket));
        }
    }
    came
}

/// Datagrams that came, up to all of a length.
fn received(socket: &UdpSocket) -> usize {
    let end = Instant::now() + Duration::from_secs(3);
    let (mut buffer, mut count) = ([0; 2048], 0);
    while count < EACH && Instant::now() < end {
        if let Ok(bytes) = socket.recv(&mut buffer) {
            assert_eq!(&buffer[..bytes], b"four");
            count += 1;
        }
    }
    count
}

/// The kernel cuts off what is behind a packet. The router had kept it, and a link with a smaller
/// MTU did not take the frame: `--path user` counted it as sent all the same.
#[test]
fn what_is_behind_a_packet_is_cut_off() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let hosts = Routed::create(TestbedConfig::default(), Sink::Answers).expect("three hosts");
    for (host, device) in [(hosts.router(), INNER_DEVICE), (hosts.sink(), "behind0")] {
        host.ip(&format!("link set {device} mtu {SHORT_MTU}"))
            .unwrap();
    }
    for target in ["10.77.0.2", "fd00:77::2"] {
        eventually_answered(hosts.load(), target);
    }
    let all = [EACH; 2 * BEHIND.len()];
    assert_eq!(arriving(&hosts), all, "the kernel");
    for path in PATHS {
        let start = || Router::start(&config(path), Vec::new()).expect("the router starts");
        let router = hosts.router().run(start).expect("the router's host");
        for target in ["10.77.0.2", "fd00:77::2"] {
            eventually_answered(hosts.load(), target);
        }
        let before = Books::of(&hosts, &router);
        let came = arriving(&hosts);
        let after = Books::of(&hosts, &router);
        assert_eq!(came, all, "{path:?}: {}", after.status);
        let forwarded = of(&after.status, "forwarded") - of(&before.status, "forwarded");
        assert!(
            forwarded >= all.iter().sum::<usize>() as u64,
            "{}",
            after.status
        );
        before.arrivals_match(&after);
        assert_eq!(after.done(), of(&after.status, "forwarded"));
        hosts.router().run(move || drop(router)).unwrap();
        nothing_is_left(&hosts);
    }
}

/// Either router sent it whole, and where less fits it was lost without a word.
#[test]
fn what_is_longer_than_its_route_s_own_mtu_is_answered() {
    for path in PATHS {
        with_router(path, Sink::Answers, |hosts, _| {
            for (target, family, mtu) in
                [("10.77.0.2/32", "-4", 600), ("fd00:77::2/128", "-6", 1280)]
            {
                let route = format!("{family} route add {target} dev {INNER_DEVICE} mtu {mtu}");
                hosts.router().ip(&route).unwrap();
                let (target, _) = target.split_once('/').unwrap();
                eventually_answered(hosts.load(), target);
                eventually("an answer", || {
                    let said = ping(hosts.load(), &format!("-c 2 -M do -s {mtu} {target}"));
                    said.replace(" = ", "=").contains(&format!("mtu={mtu}"))
                });
            }
        });
    }
}

/// Those that may be cut counted among those that are answered: of a stream of large datagrams into a
/// link with a smaller MTU so many a second passed as the kernel may send errors.
#[test]
fn what_may_be_cut_is_limited_as_what_the_kernel_forwards() {
    for path in PATHS {
        let config = Config {
            limits: Limits {
                answered_pps: 1,
                ..Limits::default()
            },
            ..config(path)
        };
        let prepare = |hosts: &Routed| {
            for (host, device) in [(hosts.router(), INNER_DEVICE), (hosts.sink(), "behind0")] {
                host.ip(&format!("link set {device} mtu {SHORT_MTU}"))
                    .unwrap();
            }
        };
        with_router_of(&config, Sink::Answers, prepare, |hosts, router| {
            eventually_answered(hosts.load(), "10.77.0.2");
            let cut = sent_too_long(hosts, router, false);
            assert_eq!(cut, [EACH as u64, 0], "{path:?}");
            let [answered, limited] = sent_too_long(hosts, router, true);
            assert_eq!(answered + limited, EACH as u64, "{path:?}");
            assert!(limited > 0, "{path:?}");
        });
    }
}

/// Of so many packets that are too long for the next link: too big, and limited.
fn sent_too_long(hosts: &Routed, router: &Router, may_not_be_cut: bool) -> [u64; 2] {
    let socket = hosts
        .sink()
        .run(|| UdpSocket::bind(("10.77.0.2", PORT)).unwrap());
    let socket = socket.unwrap();
    let wait = Duration::from_millis(50);
    socket.set_read_timeout(Some(wait)).unwrap();
    let device = || PacketDevice::open(hosts.load().device()).unwrap();
    let device = hosts.load().run(device).unwrap();
    let addresses = ["198.18.0.1", "10.77.0.2"].map(|address| address.parse().unwrap());
    let packet = Packet::new(addresses[0], addresses[1]);
    let packet = packet.macs(device.capabilities().mac, hosts.router().mac());
    let mut frame = packet.udp(1000, PORT, &[7; SHORT_MTU]);
    if !may_not_be_cut {
        allow_to_cut(&mut frame[14..34]);
    }
    let told = || {
        let status = router.status().unwrap();
        ["too_big", "limited"].map(|outcome| of(&status, outcome))
    };
    let before = told();
    let mut came = 0;
    for _ in 0..EACH {
        let mut sent = device.pool().take().unwrap();
        assert!(sent.copy_from(&frame));
        device.transmit(&mut Batch::from([sent])).unwrap();
        came += usize::from(!may_not_be_cut && socket.recv(&mut [0; 2048]).is_ok());
    }
    hosts.settled().unwrap();
    let [too_big, limited] = told();
    let done = [too_big - before[0], limited - before[1]];
    assert!(
        may_not_be_cut || came == EACH,
        "{came} of {EACH} came: {done:?}"
    );
    done
}

/// Takes "don't fragment" out of a header of IPv4.
fn allow_to_cut(header: &mut [u8]) {
    header[6] &= !0x40;
    header[10..12].fill(0);
    let words = header
        .chunks(2)
        .map(|word| u32::from(u16::from_be_bytes([word[0], word[1]])));
    let sum: u32 = words.sum();
    let sum = (sum & 0xffff) + (sum >> 16);
    header[10..12].copy_from_slice(&(!(sum as u16)).to_be_bytes());
}
