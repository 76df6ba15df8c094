//! Whom the neighbour cache believes, by ARP (RFC 826) and neighbour discovery (RFC 4861), and whom it keeps.

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

use plimsoll_packets::frame::{self, Packet};
use plimsoll_stack::device::simulated::{SimulatedConfig, SimulatedDevice};
use plimsoll_stack::device::{Batch, Device};
use plimsoll_stack::driven::Driven;
use plimsoll_stack::{Stack, StackConfig, UdpSocket};
use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire::{
    EthernetAddress, EthernetFrame, EthernetProtocol, Icmpv6Repr, IpProtocol, Ipv6Packet, Ipv6Repr,
    NdiscNeighborFlags, NdiscRepr,
};

const OURS: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 2);
const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
const ETHERNET_BYTES: usize = 14;
const HOP_LIMIT_AT: usize = ETHERNET_BYTES + 7;
const SOLICITATION: u8 = 135;

fn neighbour(host: u16) -> Ipv6Addr {
    Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 1, host)
}

fn station(last: u8) -> EthernetAddress {
    EthernetAddress([2, 0, 0, 0, 9, last])
}

/// A frame of neighbour discovery.
fn discovery(from: Ipv6Addr, to: Ipv6Addr, message: NdiscRepr<'_>) -> Vec<u8> {
    let message = Icmpv6Repr::Ndisc(message);
    let ip = Ipv6Repr {
        src_addr: from,
        dst_addr: to,
        next_header: IpProtocol::Icmpv6,
        payload_len: message.buffer_len(),
        hop_limit: 255,
    };
    let mut frame = vec![0; ETHERNET_BYTES + ip.buffer_len() + message.buffer_len()];
    let mut ethernet = EthernetFrame::new_unchecked(&mut frame[..]);
    ethernet.set_src_addr(station(0));
    ethernet.set_dst_addr(EthernetAddress::BROADCAST);
    ethernet.set_ethertype(EthernetProtocol::Ipv6);
    let mut packet = Ipv6Packet::new_unchecked(&mut frame[ETHERNET_BYTES..]);
    ip.emit(&mut packet);
    let sums = ChecksumCapabilities::default();
    let mut icmp = smoltcp::wire::Icmpv6Packet::new_unchecked(packet.payload_mut());
    message.emit(&from, &to, &mut icmp, &sums);
    frame
}

fn question(host: u16, mac: u8) -> Vec<u8> {
    let message = NdiscRepr::NeighborSolicit {
        target_addr: OURS,
        lladdr: Some(station(mac).into()),
    };
    discovery(neighbour(host), OURS, message)
}

/// What a neighbour says of itself.
fn answer(host: u16, to: Ipv6Addr, flags: NdiscNeighborFlags, mac: Option<u8>) -> Vec<u8> {
    let message = NdiscRepr::NeighborAdvert {
        flags,
        target_addr: neighbour(host),
        lladdr: mac.map(|mac| station(mac).into()),
    };
    discovery(neighbour(host), to, message)
}

/// `from` asks for `wanted`, by ARP.
fn arp(from: u8, wanted: u8, mac: u8) -> Vec<u8> {
    let address = |host| Ipv4Addr::new(10, 0, 0, host);
    let mut question = frame::arp(address(from), address(wanted), 0);
    for end in [6, 22] {
        question[end..end + 6].copy_from_slice(station(mac).as_bytes());
    }
    question
}

fn bring_in(driven: &mut Driven, frame: &[u8]) {
    driven.cable.send(frame);
    driven.receive();
    driven.settle();
}

/// Where a datagram for `to` goes, if anywhere, and how many questions go with it.
fn send(driven: &mut Driven, to: SocketAddr) -> (Option<u8>, usize) {
    let socket = &driven.sockets[usize::from(to.is_ipv6())];
    socket.send_to(b"where?", to).unwrap();
    let mut batch = Batch::new();
    driven.cable.receive(&mut batch, 8).unwrap();
    let (mut mac, mut questions) = (None, 0);
    for frame in &batch {
        let ethernet = EthernetFrame::new_checked(&frame[..]).unwrap();
        let is_question = ethernet.ethertype() == EthernetProtocol::Arp
            || frame.get(ETHERNET_BYTES + 40) == Some(&SOLICITATION)
                && frame.get(HOP_LIMIT_AT) == Some(&255);
        match is_question {
            true => questions += 1,
            false => mac = Some(ethernet.dst_addr().0[5]),
        }
    }
    (mac, questions)
}

fn six(host: u16) -> SocketAddr {
    (neighbour(host), 9).into()
}

fn four(host: u8) -> SocketAddr {
    (Ipv4Addr::new(10, 0, 0, host), 9).into()
}

/// A proxy's answer took the place of the neighbour's own.
#[test]
fn an_advertisement_that_does_not_override_takes_no_place() {
    let mut driven = Driven::new("soft-lrp");
    bring_in(&mut driven, &question(1, 7));
    assert_eq!(send(&mut driven, six(1)), (Some(7), 0));
    let (plain, solicited) = (NdiscNeighborFlags::empty(), NdiscNeighborFlags::SOLICITED);
    for flags in [plain, solicited] {
        bring_in(&mut driven, &answer(1, OURS, flags, Some(8)));
        let (mac, _) = send(&mut driven, six(1));
        assert_eq!(mac, Some(7), "{flags:?}");
    }
    let overrides = NdiscNeighborFlags::OVERRIDE;
    bring_in(&mut driven, &answer(1, ALL_NODES, overrides, Some(8)));
    assert_eq!(send(&mut driven, six(1)).0, Some(8), "it has moved");
}

/// What somebody made up was believed for a minute.
#[test]
fn who_says_unasked_that_it_has_moved_is_asked() {
    let mut driven = Driven::new("soft-lrp");
    bring_in(&mut driven, &question(1, 7));
    bring_in(&mut driven, &arp(1, 2, 7));
    for to in [six(1), four(1)] {
        assert_eq!(send(&mut driven, to), (Some(7), 0));
    }
    let overrides = NdiscNeighborFlags::OVERRIDE;
    bring_in(&mut driven, &answer(1, ALL_NODES, overrides, Some(8)));
    bring_in(&mut driven, &arp(1, 1, 8));
    for to in [six(1), four(1)] {
        assert_eq!(send(&mut driven, to), (Some(8), 1), "followed, and asked");
        assert_eq!(send(&mut driven, to), (Some(8), 0), "a moment ago");
    }
    // The true one answers, and is believed.
    let answered = overrides | NdiscNeighborFlags::SOLICITED;
    bring_in(&mut driven, &answer(1, OURS, answered, Some(7)));
    let mut reply = arp(1, 2, 7);
    reply[ETHERNET_BYTES + 7] = 2;
    bring_in(&mut driven, &reply);
    for to in [six(1), four(1)] {
        assert_eq!(send(&mut driven, to), (Some(7), 0));
    }
}

/// A socket that had heard from it sent where it had been for a minute more.
#[test]
fn who_has_moved_is_followed_by_sockets_that_heard_from_it_before() {
    let mut driven = Driven::new("soft-lrp");
    bring_in(&mut driven, &question(1, 7));
    bring_in(&mut driven, &arp(1, 2, 7));
    for place in [0, 1] {
        let (from, to) = match place {
            0 => (four(1), four(2)),
            _ => (six(1), SocketAddr::new(OURS.into(), 7)),
        };
        let datagram = Packet::new(from.ip(), to.ip())
            .macs(station(7).0, [0xff; 6])
            .udp(from.port(), 7, b"hello");
        bring_in(&mut driven, &datagram);
        driven.sockets[place].recv(&mut [0; 16]).unwrap();
        assert_eq!(send(&mut driven, from), (Some(7), 0));
    }
    let overrides = NdiscNeighborFlags::OVERRIDE;
    bring_in(&mut driven, &answer(1, ALL_NODES, overrides, Some(8)));
    bring_in(&mut driven, &arp(1, 1, 8));
    for to in [six(1), four(1)] {
        assert_eq!(send(&mut driven, to).0, Some(8), "followed");
    }
}

/// Where it came from was taken for where the neighbour is.
#[test]
fn an_advertisement_without_an_address_names_none() {
    let mut driven = Driven::new("soft-lrp");
    assert_eq!(send(&mut driven, six(1)), (None, 1));
    let all = NdiscNeighborFlags::OVERRIDE | NdiscNeighborFlags::SOLICITED;
    bring_in(&mut driven, &answer(1, OURS, all, None));
    assert_eq!(send(&mut driven, six(1)).0, None);
    // To all nodes nobody says that it was asked (7.1.2).
    bring_in(&mut driven, &answer(1, ALL_NODES, all, Some(7)));
    assert_eq!(send(&mut driven, six(1)).0, None);
    driven.cable.send(&answer(1, OURS, all, Some(7)));
    driven.receive();
    driven.work();
    let mut batch = Batch::new();
    driven.cable.receive(&mut batch, 64).unwrap();
    let waited = batch.iter().filter(|frame| frame[5] == 7).count();
    assert_eq!(waited, 3, "those that waited");
}

/// Questions in the names of more neighbours than are known at a time pushed out all others.
#[test]
fn who_asks_in_many_names_pushes_out_nobody_in_use() {
    let mut driven = Driven::new("soft-lrp");
    bring_in(&mut driven, &question(1, 7));
    assert_eq!(send(&mut driven, six(1)), (Some(7), 0));
    for host in 2..3000 {
        bring_in(&mut driven, &question(host, 8));
    }
    assert_eq!(send(&mut driven, six(1)), (Some(7), 0));
    assert_eq!(send(&mut driven, six(2999)), (Some(8), 0), "the newest");
    assert_eq!(send(&mut driven, six(2)).0, None, "pushed out");
}

/// No router may forward what is for such an address (RFC 4291, 2.5.6). It was sent to one, and without
/// one there was no way.
#[test]
fn a_link_local_address_is_a_neighbours() {
    let router = neighbour(1);
    let of_the_link = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 2, 9);
    let beyond = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 9);
    for gateways in [vec![], vec![router.into()]] {
        let (cable, device) = SimulatedDevice::pair(&SimulatedConfig::default()).unwrap();
        let config = StackConfig {
            gateways: gateways.clone(),
            ..StackConfig::at("fd00::2/64".parse().unwrap())
        };
        let stack = Stack::start(device, &config).unwrap();
        let socket = UdpSocket::bind(&stack, "[fd00::2]:7").unwrap();
        let asked_for = |to: Ipv6Addr| {
            let sent = socket.send_to(b"hello", (to, 9));
            let mut batch = Batch::new();
            cable.receive(&mut batch, 64).unwrap();
            let mut asked = BTreeSet::new();
            for frame in &batch {
                let content = ETHERNET_BYTES + 40;
                if frame.get(content) == Some(&SOLICITATION) {
                    let target: [u8; 16] = frame[content + 8..content + 24].try_into().unwrap();
                    asked.insert(Ipv6Addr::from(target));
                }
            }
            (sent.map_err(|error| error.kind()), asked)
        };
        assert_eq!(asked_for(of_the_link), (Ok(5), [of_the_link].into()));
        let (sent, mut asked) = asked_for(beyond);
        // On a slow machine the first question is repeated.
        asked.remove(&of_the_link);
        let expected = match gateways.is_empty() {
            true => (Err(ErrorKind::NetworkUnreachable), [].into()),
            false => (Ok(5), [router].into()),
        };
        assert_eq!((sent, asked), expected);
    }
}
