//! The loss ledger on real packets: known numbers of every fate are sent, and
//! each is found in its place, with nothing left over but what a packet filter
//! takes. Needs root.

use std::fs;
use std::net::{Ipv4Addr, UdpSocket};
use std::process::Command;
use std::time::{Duration, Instant};

use nix::sys::socket::{SockaddrIn, bind};
use plimsoll_guard::ledger::{Fate, Ledger, LedgerReader};
use plimsoll_guard::{Config, Error, Guard, Storage};
use plimsoll_kernel::knobs::{Knobs, Queues};
use plimsoll_packets::frame::{self, Fragment, Packet, TcpFlags};

use crate::common::{
    HOST_MAC, HOST_V4, PEER_MAC, PEER_V4, Wire, in_namespace, ip, to_host, udp_socket,
};

const PORT: u16 = 5000;
const CLOSED: u16 = 5999;
const FILTERED: u16 = 5009;

/// An attached guard with its ledger.
struct Session<'a> {
    guard: Guard<'a>,
    reader: LedgerReader,
}

impl<'a> Session<'a> {
    fn start(storage: &'a mut Storage, config: &Config) -> Self {
        // No router solicitations and listener reports beside the test's packets.
        fs::write("/proc/sys/net/ipv6/conf/all/disable_ipv6", "1").unwrap();
        Self::start_on("v0", storage, config)
    }

    fn start_on(interface: &str, storage: &'a mut Storage, config: &Config) -> Self {
        let mut guard = Guard::attach(storage, config, interface).unwrap();
        let reader = LedgerReader::begin::<Error>(interface, || guard.counters()).unwrap();
        Self { guard, reader }
    }

    fn ledger(&mut self) -> Ledger {
        let begun = self.reader.start();
        let counters = self.guard.counters().unwrap();
        let observed = self.guard.observed(&counters.all());
        self.reader.ledger(begun, &counters, &observed)
    }
}

fn packets(ledger: &Ledger, stage: &str, place: &str) -> u64 {
    ledger.place(stage, place).map_or(0, |place| place.packets)
}

/// All that came is in a place or named as unaccounted.
fn assert_adds_up(ledger: &Ledger) {
    let mut came = ledger.stages[0].entered;
    let mut ended = 0;
    for stage in &ledger.stages {
        came += stage.joined;
        ended += stage.places.iter().map(|place| place.packets).sum::<u64>();
        assert_eq!(stage.in_motion, 0, "nothing moves any more: {stage:#?}");
    }
    assert_eq!(
        came.cast_signed(),
        ended.cast_signed() + ledger.unaccounted,
        "{ledger:#?}"
    );
}

fn send(wire: &Wire, frame: &[u8], times: u64) {
    for _ in 0..times {
        wire.send(frame);
    }
}

/// Sends packets that end in the stack, so many of each fate.
fn send_what_the_stack_refuses(wire: &Wire) {
    let to = |port| to_host(HOST_V4).udp(4000, port, &[0; 18]);
    send(wire, &to(CLOSED), 12);
    send(wire, &to(FILTERED), 13);
    let mut bad_sum = to(PORT);
    *bad_sum.last_mut().unwrap() ^= 1;
    send(wire, &bad_sum, 14);
    let mut bad_header = to(PORT);
    // The IPv4 header's checksum.
    bad_header[14 + 10] ^= 1;
    send(wire, &bad_header, 15);
    let elsewhere = Packet::new(PEER_V4.into(), Ipv4Addr::new(203, 0, 113, 9).into());
    let elsewhere = elsewhere.macs(PEER_MAC, HOST_MAC);
    send(wire, &elsewhere.udp(1, 2, &[]), 16);
    let other_host = to_host(HOST_V4).macs(PEER_MAC, [2; 6]);
    send(wire, &other_host.udp(1, 2, &[]), 17);
    send(wire, &to_host(HOST_V4).protocol(253, &[0; 20]), 18);
    send(wire, &frame::ethertype(&[], 0x88b5, &[0; 46]), 19);
}

/// Sends packets that the kernel takes for itself, so many of each.
fn send_what_the_kernel_takes(wire: &Wire) {
    send(wire, &frame::arp(PEER_V4, HOST_V4, 0), 21);
    send(wire, &to_host(HOST_V4).icmp(8, &[0; 20]), 22);
    let syn = to_host(HOST_V4).tcp(4000, CLOSED, TcpFlags::SYN, &[]);
    send(wire, &syn, 23);
    let fragment = Fragment {
        id: 1,
        offset: 0,
        more: true,
    };
    let part = to_host(HOST_V4).fragment(fragment);
    send(wire, &part.protocol(17, &[0; 24]), 1);
}

fn filter_one_port() {
    let rules = "add table ip t; \
        add chain ip t c { type filter hook input priority 0; }; \
        add rule ip t c udp dport 5009 drop";
    let nft = Command::new("nft").arg(rules).output().unwrap();
    assert!(nft.status.success(), "{nft:?}");
}

#[test]
fn every_packet_is_in_its_place_and_all_adds_up() {
    in_namespace(|| {
        filter_one_port();
        let local_server = udp_socket((Ipv4Addr::LOCALHOST, PORT), 64 << 10);
        let local = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let send_locally = |times| {
            for _ in 0..times {
                local.send_to(b"x", (Ipv4Addr::LOCALHOST, PORT)).unwrap();
            }
        };
        send_locally(7);
        let mut storage = Storage::default();
        let mut session = Session::start(&mut storage, &Config::default());
        let answers_before = answers();

        let reader = udp_socket((HOST_V4, PORT), 64 << 10);
        let _idle = udp_socket((HOST_V4, PORT + 1), 64 << 10);
        let wire = Wire::open();
        let to = |port| to_host(HOST_V4).udp(4000, port, &[0; 18]);
        send(&wire, &to(PORT), 20);
        while reader.recv(&mut [0; 64]).is_ok() {}
        send(&wire, &to(PORT + 1), 11);
        send_what_the_stack_refuses(&wire);
        send_what_the_kernel_takes(&wire);
        send_locally(24);
        for _ in 0..3 {
            local_server.recv(&mut [0; 8]).unwrap();
        }

        let ledger = session.ledger();
        assert_adds_up(&ledger);
        for (stage, place, sent) in [
            ("protocols", "udp", 20 + 3),
            ("protocols", "udp_waiting", 11 + 7 - 3 + 24),
            ("protocols", "no_port", 12),
            ("protocols", "udp_checksum", 14),
            ("ip", "ip_header", 15),
            ("ip", "ip_address", 16),
            ("host", "other_host", 17 + answers() - answers_before - 21),
            ("ip", "unknown_protocol", 18),
            ("host", "no_protocol", 19),
            ("host", "arp", 21),
            ("protocols", "icmp", 22),
            ("protocols", "tcp", 23),
            ("ip", "fragments", 1),
        ] {
            assert_eq!(packets(&ledger, stage, place), sent, "{place}: {ledger:#?}");
        }
        // The answers to ARP are for the other end itself, which has no guard:
        // the kernel counts ARP nowhere.
        assert_eq!(ledger.stages[2].unaccounted, 21);
        assert_eq!(ledger.stages[3].unaccounted, 13, "the packet filter's");
        assert_eq!(ledger.unaccounted, 34, "{ledger:#?}");
        assert_eq!(ledger.not_visible, [""; 0]);
    });
}

/// They were told as unaccounted. A kernel without UDP-Lite has none of its counters.
#[test]
fn datagrams_of_udp_lite_have_their_places() {
    let counters = fs::read_to_string("/proc/thread-self/net/snmp").unwrap();
    if !counters.contains("UdpLite:") {
        return;
    }
    in_namespace(|| {
        let mut storage = Storage::default();
        let mut session = Session::start(&mut storage, &Config::default());
        let [server, client] = [(); 2].map(|()| udp_lite_socket());
        for _ in 0..9 {
            client.send_to(b"x", server.local_addr().unwrap()).unwrap();
            server.recv(&mut [0; 8]).unwrap();
        }
        client.send_to(b"x", (Ipv4Addr::LOCALHOST, 1)).unwrap();
        let wire = Wire::open();
        // From and to some port, of which eight bytes are summed up, to 0, which is no sum.
        let no_sum = to_host(HOST_V4).protocol(136, &[15, 160, 0, 9, 0, 8, 0, 0]);
        send(&wire, &no_sum, 10);
        let ledger = session.ledger();
        assert_adds_up(&ledger);
        assert_eq!(packets(&ledger, "protocols", "udp_lite"), 9, "{ledger:#?}");
        assert_eq!(packets(&ledger, "protocols", "udp_lite_lost"), 1 + 10);
        assert_eq!(ledger.unaccounted, 0, "{ledger:#?}");
    });
}

#[allow(unsafe_code, reason = "nix knows no UDP-Lite")]
fn udp_lite_socket() -> UdpSocket {
    use std::os::fd::{AsRawFd, FromRawFd};
    // SAFETY: three numbers.
    let fd = unsafe { libc::socket(libc::AF_INET, libc::SOCK_DGRAM, libc::IPPROTO_UDPLITE) };
    assert!(fd >= 0, "{}", std::io::Error::last_os_error());
    // SAFETY: just opened, and nobody else has it.
    let socket = unsafe { UdpSocket::from_raw_fd(fd) };
    let [a, b, c, d] = Ipv4Addr::LOCALHOST.octets();
    bind(socket.as_raw_fd(), &SockaddrIn::new(a, b, c, d, 0)).unwrap();
    socket
}

/// What the host has answered so far. At the other end of its link that is for
/// another host.
fn answers() -> u64 {
    let links = Command::new("ip")
        .args(["-j", "-s", "link", "show", "v0"])
        .output()
        .unwrap();
    let links: serde_json::Value = serde_json::from_slice(&links.stdout).unwrap();
    links[0]["stats64"]["tx"]["packets"].as_u64().unwrap()
}

/// Discarded for a full queue: all of them, or the source's that has had its share.
fn discarded(ledger: &Ledger) -> u64 {
    packets(ledger, "guard", "socket_queue") + packets(ledger, "guard", "source_share")
}

#[test]
fn a_full_socket_loses_early_with_the_guard_and_late_when_it_observes() {
    for observe in [false, true] {
        in_namespace(|| {
            let mut storage = Storage::default();
            let config = Config {
                observe,
                ..Config::default()
            };
            let mut session = Session::start(&mut storage, &config);
            let _full = udp_socket((HOST_V4, PORT), 32 << 10);
            let wire = Wire::open();
            send(&wire, &to_host(HOST_V4).udp(4000, PORT, &[0; 18]), 500);
            let ledger = session.ledger();
            assert_adds_up(&ledger);
            assert_eq!(ledger.unaccounted, 0);
            let early = discarded(&ledger);
            let late = packets(&ledger, "protocols", "socket_queue");
            let waiting = packets(&ledger, "protocols", "udp_waiting");
            assert_eq!(early + late + waiting, 500, "{ledger:#?}");
            assert!(waiting > 5, "{ledger:#?}");
            if observe {
                assert!(early == 0 && late > 300, "{ledger:#?}");
            } else {
                assert!(late == 0 && early > 300, "{ledger:#?}");
            }
        });
    }
}

#[test]
fn observing_on_and_off_keeps_the_books() {
    in_namespace(|| {
        let mut storage = Storage::default();
        let mut session = Session::start(&mut storage, &Config::default());
        let _full = udp_socket((HOST_V4, PORT), 32 << 10);
        let wire = Wire::open();
        let frame = to_host(HOST_V4).udp(4000, PORT, &[0; 18]);
        for observe in [true, false, true, false] {
            let config = Config {
                observe,
                ..Config::default()
            };
            session.guard.configure(&config).unwrap();
            send(&wire, &frame, 200);
        }
        let ledger = session.ledger();
        assert_adds_up(&ledger);
        assert_eq!(ledger.unaccounted, 0, "{ledger:#?}");
        assert_eq!(discarded(&ledger), 400);
        assert!(packets(&ledger, "protocols", "socket_queue") > 300);
    });
}

/// What a guard beside it discarded was told as unaccounted, by an interface that had received
/// nothing.
#[test]
fn what_another_guard_discards_is_not_missing_on_an_idle_interface() {
    in_namespace(|| {
        ip("link add d0 type veth peer name d1");
        ip("link set d0 up");
        let mut storages = [Storage::default(), Storage::default()];
        let [first, second] = &mut storages;
        let mut flooded = Session::start(first, &Config::default());
        let mut idle = Session::start_on("d0", second, &Config::default());
        let _full = udp_socket((HOST_V4, PORT), 32 << 10);
        let wire = Wire::open();
        send(&wire, &to_host(HOST_V4).udp(4000, PORT, &[0; 18]), 500);
        let early = discarded(&flooded.ledger());
        assert!(early > 300, "{early}");
        let ledger = idle.ledger();
        assert_adds_up(&ledger);
        assert_eq!(ledger.unaccounted, 0, "{ledger:#?}");
        assert_eq!(ledger.packets(Fate::Lost), 0, "{ledger:#?}");
        let other = ledger.place("host", "other_interfaces").unwrap();
        assert_eq!((other.fate, other.packets), (Fate::Undivided, early));
    });
}

#[test]
fn a_full_receive_ring_is_named() {
    in_namespace(|| {
        let mut storage = Storage::default();
        let mut session = Session::start(&mut storage, &Config::default());
        let directory = tempfile::tempdir().unwrap();
        let mut knobs = Knobs::open_in(directory.path(), "v0").unwrap();
        let server = udp_socket((HOST_V4, PORT), 0);
        let wire = Wire::open();
        let frame = to_host(HOST_V4).udp(4000, PORT, &[0; 18]);
        // Polled only every so often, the ring of 256 frames overflows.
        let holdoff = Duration::from_millis(500);
        knobs.set_holdoff(Queues::All, 1_000_000, holdoff).unwrap();
        for _ in 0..1000 {
            // What the ring does not hold is refused.
            let _ = wire.try_send(&frame);
        }
        knobs.restore().unwrap();
        let deadline = Instant::now() + Duration::from_secs(20);
        let ledger = loop {
            let _ = wire.try_send(&frame);
            std::thread::sleep(Duration::from_millis(100));
            let ledger = session.ledger();
            if ledger.stages[0].unaccounted == 0 || Instant::now() > deadline {
                break ledger;
            }
        };
        assert_adds_up(&ledger);
        assert_eq!(ledger.unaccounted, 0, "{ledger:#?}");
        assert!(
            packets(&ledger, "adapter", "receive_ring") > 500,
            "{ledger:#?}"
        );
        assert!(ledger.packets(Fate::Lost) >= packets(&ledger, "adapter", "receive_ring"));
        drop(server);
    });
}
