//! A stack in one VLAN: over veth with the kernel's VLAN-unaware side and another stack as
//! the peer, since not every kernel has VLAN devices. Needs root.

use std::net::UdpSocket as KernelSocket;

use plimsoll_kernel::link;
use plimsoll_packets::frame::{Packet, VLAN};
use plimsoll_stack::device::packet::PacketDevice;
use plimsoll_stack::device::vlan::Vlan;
use plimsoll_stack::device::xdp::XdpInterface;
use plimsoll_stack::device::{Batch, Device};
use plimsoll_stack::{Stack, StackConfig, TcpListener, TcpStream, UdpSocket};

use crate::lan::{self, SOON, config, content, in_namespace, owned, transfer};

const ID: u16 = 100;

/// `one0` and `two0`, joined; both ends are the test's.
fn joined(test: impl FnOnce() + Send) {
    in_namespace(|| {
        lan::run("ip link add one0 type veth peer name two0");
        for end in ["one0", "two0"] {
            lan::run(&format!("ip link set {end} addrgenmode none"));
            lan::run(&format!("ip link set {end} up"));
            lan::run(&format!("ethtool -K {end} tx off rxvlan off txvlan off"));
        }
        link::wait_until_sending("one0").unwrap();
        test();
    });
}

/// The peer's, at 10.0.0.1.
fn peers() -> StackConfig {
    StackConfig {
        addresses: ["10.0.0.1/24", "fd00::1/64"]
            .map(|net| net.parse().unwrap())
            .into(),
        ..config("soft-lrp")
    }
}

fn bind(stack: &Stack, at: &str) -> UdpSocket {
    let socket = UdpSocket::bind(stack, at).unwrap();
    socket.set_read_timeout(Some(SOON)).unwrap();
    socket
}

/// UDP of sizes across fragmentation, and TCP, between a stack of the VLAN on `two0` and one
/// on `one0`.
fn talk(device: impl Device + 'static, path: &str) {
    let peer = PacketDevice::open("one0").unwrap();
    let peer = Stack::start(Vlan::new(peer, ID).unwrap(), &peers()).unwrap();
    let stack = Stack::start(device, &config(path)).unwrap();
    for (here, there) in [("10.0.0.2:7", "10.0.0.1:0"), ("[fd00::2]:7", "[fd00::1]:0")] {
        let (server, client) = (bind(&stack, here), bind(&peer, there));
        let mut buffer = vec![0; 10_000];
        for length in [0, 1, 1472, 1473, 9000] {
            let sent = content(length);
            client.send_to(&sent, here).unwrap();
            let (received, from) = server.recv_from(&mut buffer).unwrap();
            assert!(buffer[..received] == sent, "{path}: {length} bytes in");
            server.send_to(&sent, from).unwrap();
            let (received, _) = client.recv_from(&mut buffer).unwrap();
            assert!(buffer[..received] == sent, "{path}: {length} bytes out");
        }
    }
    let listener = TcpListener::bind(&stack, "10.0.0.2:80").unwrap();
    let mut client = TcpStream::connect(&peer, "10.0.0.2:80").unwrap();
    let mut server = listener.accept().unwrap().0;
    transfer(&mut client, &mut server, &content(200_000));
    transfer(&mut server, &mut client, &content(200_000));
    lan::assert_sums(&stack);
}

#[test]
fn a_vlan_over_af_xdp() {
    for path in ["soft-lrp", "ni-lrp"] {
        joined(|| {
            let device = XdpInterface::open("two0", &owned()).unwrap();
            talk(Vlan::new(device, ID).unwrap(), path);
        });
    }
}

#[test]
fn a_vlan_over_a_packet_socket() {
    joined(|| {
        let device = PacketDevice::open("two0").unwrap();
        talk(Vlan::new(device, ID).unwrap(), "soft-lrp");
    });
}

/// Untagged frames stay the kernel's with AF_XDP, and those of another VLAN are nobody's.
#[test]
fn other_vlans_are_not_the_stacks() {
    joined(|| {
        let device = XdpInterface::open("two0", &owned()).unwrap();
        let stack = Vlan::new(device, ID).unwrap();
        let stack = Stack::start(stack, &config("soft-lrp")).unwrap();
        let server = bind(&stack, "10.0.0.2:7");
        // The kernel on `two0`, without a tag and at another address of the same port.
        lan::run("ip addr add 10.0.0.3/24 dev two0");
        let kernels = KernelSocket::bind("10.0.0.3:7").unwrap();
        kernels.set_read_timeout(Some(SOON)).unwrap();
        let plain = Stack::start(PacketDevice::open("one0").unwrap(), &peers()).unwrap();
        bind(&plain, "10.0.0.1:0")
            .send_to(b"untagged", "10.0.0.3:7")
            .unwrap();
        let mut buffer = [0; 100];
        let (length, _) = kernels.recv_from(&mut buffer).unwrap();
        assert_eq!(&buffer[..length], b"untagged");
        drop(plain);
        let other = Vlan::new(PacketDevice::open("one0").unwrap(), ID + 1).unwrap();
        let other = Stack::start(other, &peers()).unwrap();
        bind(&other, "10.0.0.1:0")
            .send_to(b"another VLAN", "10.0.0.2:7")
            .unwrap();
        drop(other);
        let ours = Vlan::new(PacketDevice::open("one0").unwrap(), ID).unwrap();
        let ours = Stack::start(ours, &peers()).unwrap();
        bind(&ours, "10.0.0.1:0")
            .send_to(b"ours", "10.0.0.2:7")
            .unwrap();
        let (length, _) = server.recv_from(&mut buffer).unwrap();
        assert_eq!(&buffer[..length], b"ours");
        lan::assert_sums(&stack);
    });
}

/// IEEE 802.1Q: a tag of VLAN 0 has a priority and says nothing of a network, and every host takes it. Such frames
/// were nobody's.
#[test]
fn a_tag_with_a_priority_alone_is_none() {
    joined(|| {
        let device = PacketDevice::open("two0").unwrap();
        let stack = Stack::start(device, &config("soft-lrp")).unwrap();
        let server = bind(&stack, "10.0.0.2:7");
        let sender = PacketDevice::open("one0").unwrap();
        let tagged = Packet::new("10.0.0.1".parse().unwrap(), "10.0.0.2".parse().unwrap())
            .macs([2, 0, 0, 0, 0, 1], [0xff; 6])
            .tag(VLAN);
        for (tag, arrives) in [([0xa0, 0], true), ([0, 0], true), ([0xa0, 7], false)] {
            let mut bytes = tagged.udp(5000, 7, &tag);
            bytes[14..16].copy_from_slice(&tag);
            let mut frame = sender.pool().take().unwrap();
            assert!(frame.copy_from(&bytes));
            sender.transmit(&mut Batch::from([frame])).unwrap();
            if arrives {
                let mut buffer = [0; 8];
                let (length, _) = server.recv_from(&mut buffer).unwrap();
                assert_eq!(buffer[..length], tag);
            }
        }
        // The other VLAN's is still nobody's.
        lan::assert_sums(&stack);
        server
            .set_read_timeout(Some(std::time::Duration::from_millis(100)))
            .unwrap();
        assert!(server.recv_from(&mut [0; 8]).is_err());
    });
}
