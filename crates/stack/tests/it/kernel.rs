//! The stack against the kernel's own, over real devices, in network namespaces
//! of the tests' own. Needs root; fails without.

use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket as KernelSocket};
use std::path::Path;
use std::process::Command;

use plimsoll_kernel::namespace;
use plimsoll_stack::device::Device;
use plimsoll_stack::device::packet::PacketDevice;
use plimsoll_stack::device::recording::Recording;
use plimsoll_stack::device::tap::{TapDevice, TunDevice};
use plimsoll_stack::device::xdp::{CopyMode, XdpConfig, XdpInterface};
use plimsoll_stack::{
    Error, Outcome, ReceivePath, Stack, TcpListener as StackListener, TcpStream as StackStream,
    UdpSocket,
};

use crate::lan::{self, Lan, SOON, config, content, in_namespace, owned, transfer, xdp};

/// Pings, and UDP of all sizes there and back, with an echo on the stack.
fn talks_with_the_kernel(device: impl Device + 'static, path: &str) {
    let stack = Stack::start(device, &config(path)).unwrap();
    for (address, from) in [("10.0.0.2", "10.0.0.1:0"), ("fd00::2", "[fd00::1]:0")] {
        lan::run(&format!("ping -c 3 -i 0.2 -W 5 -s 1000 {address}"));
        let at = if address.contains(':') {
            format!("[{address}]:7")
        } else {
            format!("{address}:7")
        };
        let server = UdpSocket::bind(&stack, &at[..]).unwrap();
        server.set_read_timeout(Some(SOON)).unwrap();
        let client = KernelSocket::bind(from).unwrap();
        client.set_read_timeout(Some(SOON)).unwrap();
        let mut buffer = vec![0; 65_536];
        for length in [0, 1, 1000, 1452, 1453, 1472, 1473, 2952, 2953, 9000, 65_507] {
            let payload: Vec<u8> = (0..length).map(|k| (k % 253) as u8).collect();
            client.send_to(&payload, &at[..]).unwrap();
            let (received, peer) = server.recv_from(&mut buffer).unwrap();
            assert_eq!(buffer[..received], payload, "{path}: {length} bytes in");
            server.send_to(&buffer[..received], peer).unwrap();
            let (received, peer) = client.recv_from(&mut buffer).unwrap();
            assert_eq!(buffer[..received], payload, "{path}: {length} bytes out");
            assert_eq!(peer.to_string(), at);
        }
        let closed = KernelSocket::bind(from).unwrap();
        closed.set_read_timeout(Some(SOON)).unwrap();
        closed.connect((address, 9)).unwrap();
        closed.send(b"nobody there").unwrap();
        let refused = closed.recv(&mut buffer).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
    }
    lan::assert_sums(&stack);
}

/// What bulk is.
const BULK_BYTES: usize = 4_000_000;

/// Bulk in both directions, connections begun by either side.
fn transfers_with_the_kernel(device: impl Device + 'static, path: &str) {
    transfers(device, path, BULK_BYTES);
}

fn transfers(device: impl Device + 'static, path: &str, bytes: usize) {
    let stack = Stack::start(device, &config(path)).unwrap();
    let sent = content(bytes);
    for (here, there) in [
        ("10.0.0.2:80", "10.0.0.1:81"),
        ("[fd00::2]:80", "[fd00::1]:81"),
    ] {
        let ours = StackListener::bind(&stack, here).unwrap();
        let mut kernels = TcpStream::connect(here).unwrap();
        let mut accepted = ours.accept().unwrap().0;
        there_and_back(&mut kernels, &mut accepted, &sent);
        drop(kernels);
        assert_eq!(accepted.read(&mut [0; 1]).unwrap(), 0, "the kernel closed");
        let theirs = TcpListener::bind(there).unwrap();
        let mut connected = StackStream::connect(&stack, there).unwrap();
        let mut kernels = theirs.accept().unwrap().0;
        there_and_back(&mut connected, &mut kernels, &sent);
        drop(connected);
        assert_eq!(kernels.read(&mut [0; 1]).unwrap(), 0, "the stack closed");
        drop(ours);
        let refused = TcpStream::connect(here).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
    }
    let refused = StackStream::connect(&stack, "10.0.0.1:82").unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
    lan::assert_sums(&stack);
}

/// Sends from one to the other and then the other way round.
fn there_and_back<A: Read + Write + Send, B: Read + Write + Send>(
    one: &mut A,
    other: &mut B,
    sent: &[u8],
) {
    transfer(one, other, sent);
    transfer(other, one, sent);
}

#[test]
fn tcp_over_tap() {
    in_namespace(|| {
        let device = TapDevice::open("tap0").unwrap();
        lan::set_up_kernel_side("tap0");
        transfers_with_the_kernel(device, "soft-lrp");
    });
}

#[test]
fn tcp_over_a_packet_socket() {
    Lan::create(|| {
        transfers_with_the_kernel(PacketDevice::open("stack0").unwrap(), "early-demux");
    });
}

#[test]
fn tcp_over_af_xdp() {
    for path in ["polled", "ni-lrp", "soft-timer-polling"] {
        Lan::create(|| transfers_with_the_kernel(xdp(&owned()), path));
    }
}

#[test]
fn over_tap() {
    in_namespace(|| {
        let device = TapDevice::open("tap0").unwrap();
        lan::set_up_kernel_side("tap0");
        talks_with_the_kernel(device, "soft-lrp");
    });
}

#[test]
fn over_tun() {
    in_namespace(|| {
        let device = TunDevice::open("tun0").unwrap();
        lan::set_up_kernel_side("tun0");
        talks_with_the_kernel(device, "soft-lrp");
    });
    in_namespace(|| {
        let device = TunDevice::open("tun0").unwrap();
        lan::set_up_kernel_side("tun0");
        transfers(device, "early-demux", BULK_BYTES / 4);
    });
    in_namespace(|| {
        lan::run("ip tuntap add tap1 mode tap");
        let wrong = TunDevice::open("tap1").unwrap_err().to_string();
        assert!(wrong.contains("tap1") && wrong.contains("TUN"), "{wrong}");
    });
}

#[test]
fn over_a_packet_socket() {
    Lan::create(|| {
        talks_with_the_kernel(PacketDevice::open("stack0").unwrap(), "polled");
    });
}

/// TB-40: frames lie in one memory that the kernel and this process have mapped.
#[test]
fn over_af_xdp_on_every_path() {
    for path in ReceivePath::NAMES {
        Lan::create(|| talks_with_the_kernel(xdp(&owned()), path));
    }
}

#[test]
fn ports_share_the_kernels_address_and_the_rest_stays_the_kernels() {
    for path in ["soft-lrp", "ni-lrp"] {
        Lan::create_apart(|far| {
            // The kernel has 10.0.0.2 on this side, and a server of its own.
            let listener = TcpListener::bind("10.0.0.2:22").unwrap();
            let echo = KernelSocket::bind("10.0.0.2:8").unwrap();
            let stack = Stack::start(xdp(&XdpConfig::default()), &config(path)).unwrap();
            let server = UdpSocket::bind(&stack, "10.0.0.2:7").unwrap();
            server.set_read_timeout(Some(SOON)).unwrap();
            far.run(|| {
                let client = KernelSocket::bind("10.0.0.1:5000").unwrap();
                client.send_to(b"stack", "10.0.0.2:7").unwrap();
                client.send_to(b"kernel", "10.0.0.2:8").unwrap();
                lan::run("ping -c 1 -W 5 10.0.0.2");
                let mut ssh = TcpStream::connect("10.0.0.2:22").unwrap();
                ssh.write_all(b"still there").unwrap();
            });
            let mut buffer = [0; 100];
            let (length, from) = server.recv_from(&mut buffer).unwrap();
            assert_eq!(&buffer[..length], b"stack");
            server.send_to(b"answer", from).unwrap();
            let (length, _) = echo.recv_from(&mut buffer).unwrap();
            assert_eq!(&buffer[..length], b"kernel");
            let mut text = String::new();
            listener
                .accept()
                .unwrap()
                .0
                .read_to_string(&mut text)
                .unwrap();
            assert_eq!(text, "still there");
            // The answer went out by the link, to whom it came from.
            far.run(|| {
                let client = KernelSocket::bind("10.0.0.1:5001").unwrap();
                client.set_read_timeout(Some(SOON)).unwrap();
                client.send_to(b"again", "10.0.0.2:7").unwrap();
                let (length, from) = server.recv_from(&mut buffer).unwrap();
                server.send_to(&buffer[..length], from).unwrap();
                let (length, _) = client.recv_from(&mut buffer).unwrap();
                assert_eq!(&buffer[..length], b"again");
            });
            drop(server);
            // Unbound, the port is the kernel's again: it refuses.
            far.run(|| {
                let client = KernelSocket::bind("10.0.0.1:0").unwrap();
                client.set_read_timeout(Some(SOON)).unwrap();
                client.connect("10.0.0.2:7").unwrap();
                client.send(b"gone").unwrap();
                let error = client.recv(&mut [0; 10]).unwrap_err();
                assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
            });
            lan::assert_sums(&stack);
        });
    }
}

#[test]
fn a_full_ring_of_ni_lrp_loses_its_own_packets_and_nobody_elses() {
    Lan::create(|| {
        let stack = Stack::start(xdp(&owned()), &config("ni-lrp")).unwrap();
        let hung = UdpSocket::bind(&stack, "10.0.0.2:1").unwrap();
        let server = UdpSocket::bind(&stack, "10.0.0.2:2").unwrap();
        server.set_read_timeout(Some(SOON)).unwrap();
        let client = KernelSocket::bind("10.0.0.1:0").unwrap();
        let mut buffer = [0; 100];
        for _ in 0..40 {
            for _ in 0..32 {
                client.send_to(b"flood", "10.0.0.2:1").unwrap();
            }
            client.send_to(b"bystander", "10.0.0.2:2").unwrap();
            server.recv_from(&mut buffer).unwrap();
        }
        hung.set_nonblocking(true).unwrap();
        let mut kept = 0;
        while hung.recv_from(&mut buffer).is_ok() {
            kept += 1;
        }
        assert_eq!(kept, 256, "as many as its ring holds");
        assert_eq!(
            stack.counts()[Outcome::Full],
            0,
            "nothing reached a channel"
        );
        lan::assert_sums(&stack);
    });
}

/// Shows TB-45.
#[test]
fn sockets_of_ni_lrp_come_and_go_and_lose_no_memory() {
    Lan::create(|| {
        let device = xdp(&XdpConfig {
            chunks: 512,
            send_frames: 128,
            ..owned()
        });
        let pool = device.pool().clone();
        let stack = Stack::start(device, &config("ni-lrp")).unwrap();
        let client = KernelSocket::bind("10.0.0.1:0").unwrap();
        for _ in 0..20 {
            let _server = UdpSocket::bind(&stack, "10.0.0.2:1").unwrap();
            for _ in 0..100 {
                client.send_to(b"never read", "10.0.0.2:1").unwrap();
            }
        }
        // 2000 frames went into sockets that closed with them unread.
        let server = UdpSocket::bind(&stack, "10.0.0.2:1").unwrap();
        server.set_read_timeout(Some(SOON)).unwrap();
        let mut buffer = [0; 100];
        for _ in 0..1000 {
            client.send_to(b"read", "10.0.0.2:1").unwrap();
            server.recv_from(&mut buffer).unwrap();
        }
        assert!(pool.available() >= 64, "{pool:?}");
    });
}

#[test]
fn the_same_udp_port_twice_is_refused_and_free_after_the_first_is_gone() {
    Lan::create(|| {
        for path in ["soft-lrp", "ni-lrp"] {
            let stack = Stack::start(xdp(&owned()), &config(path)).unwrap();
            for _ in 0..3 {
                let first = UdpSocket::bind(&stack, "10.0.0.2:7").unwrap();
                let second = UdpSocket::bind(&stack, "10.0.0.2:7").unwrap_err();
                assert_eq!(second.kind(), ErrorKind::AddrInUse);
                drop(first);
            }
        }
    });
}

/// It said "Invalid argument", or "No such device".
#[test]
fn a_thread_of_another_namespace_is_told_so() {
    Lan::create(|| {
        let stack = Stack::start(xdp(&owned()), &config("ni-lrp")).unwrap();
        let bind = || UdpSocket::bind(&stack, "10.0.0.2:7").map(|_| ());
        let error = namespace::in_new(bind).unwrap().unwrap_err();
        assert!(error.to_string().contains("network namespace"), "{error}");
        bind().unwrap();
    });
}

#[test]
fn errors_name_the_remedy() {
    Lan::create(|| {
        let open = |name, config: &XdpConfig| XdpInterface::open(name, config).unwrap_err();
        let missing = open("nowhere0", &XdpConfig::default());
        assert!(missing.to_string().contains("`ip link` lists"), "{missing}");
        let queue = open(
            "stack0",
            &XdpConfig {
                queue: 7,
                ..owned()
            },
        );
        assert!(
            matches!(queue, Error::NoSuchQueue { queue: 7, .. }),
            "{queue}"
        );
        let zero = XdpConfig {
            copy: CopyMode::ZeroCopy,
            ..owned()
        };
        let zero = open("stack0", &zero);
        assert!(zero.to_string().contains("copy mode"), "{zero}");
        let taken = xdp(&owned());
        let busy = open("stack0", &owned());
        assert!(matches!(busy, Error::Busy { .. }), "{busy}");
        assert!(
            busy.to_string().contains("steer"),
            "it names the program: {busy}"
        );
        drop(taken);
        drop(xdp(&owned()));
        lan::run("ip link set stack0 mtu 9000");
        let long = open("stack0", &owned());
        assert!(
            matches!(long, Error::MtuTooLarge { max: 3818, .. }),
            "{long}"
        );
        // No driver's: a bridge has no native XDP.
        lan::run("ip link add bridge0 type bridge");
        let generic = open("bridge0", &owned()).to_string();
        assert!(
            generic.contains("native XDP") && generic.contains("packet:IFACE"),
            "{generic}"
        );
        let tap = TapDevice::open("stack0").unwrap_err();
        assert!(matches!(tap, Error::Unsupported { .. }), "{tap}");
        let _tap = TapDevice::open("tap1").unwrap();
        let twice = TapDevice::open("tap1").unwrap_err();
        assert!(matches!(twice, Error::Busy { .. }), "{twice}");
    });
}

#[test]
fn without_capabilities_errors_name_the_one_that_is_missing() {
    Lan::create(|| {
        lan::without_capabilities(|| {
            let packet = PacketDevice::open("stack0").unwrap_err();
            assert!(packet.to_string().contains("CAP_NET_RAW"), "{packet}");
            let xdp = XdpInterface::open("stack0", &owned()).unwrap_err();
            assert!(
                xdp.is_missing() && xdp.to_string().contains("CAP_"),
                "{xdp}"
            );
            let tap = TapDevice::open("tap9").unwrap_err();
            assert!(tap.to_string().contains("CAP_NET_ADMIN"), "{tap}");
        });
    });
}

/// What is wrong in a frame, as tshark sees it: also checksums. Some of our content looks to
/// it like Thrift. The kernel writes TCP's checksum 0 as 0xffff (`skb_checksum_help`), once in 65,536
/// segments; ours may not.
const WRONG: &str = "((_ws.malformed || _ws.expert.severity >= 8388608) && !thrift \
    || ip.checksum.status == 0 || tcp.checksum.status == 0 || udp.checksum.status == 0 \
    || icmp.checksum.status == 0 || icmpv6.checksum.status == 0 || igmp.checksum.status == 0) \
    && !(tcp.checksum.ffff && (ip.src == 10.0.0.1 || ipv6.src == fd00::1))";

/// A line for each frame of a capture that a filter finds: its protocols, and TCP's flags.
fn frames(capture: &Path, filter: &str) -> String {
    let mut tshark = Command::new("tshark");
    tshark.args(["-n", "-r"]).arg(capture);
    for checksum in ["ip", "tcp", "udp"] {
        tshark.args(["-o", &format!("{checksum}.check_checksum:TRUE")]);
    }
    tshark.args([
        "-Y",
        filter,
        "-T",
        "fields",
        "-e",
        "frame.protocols",
        "-e",
        "tcp.flags.str",
    ]);
    let output = tshark.output().expect("scripts/setup installs tshark");
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// Pings, datagrams of all sizes and streams, both ways and over both families. With `ni-lrp`
/// datagrams come by sockets of their own, which must not pass the capture by.
#[test]
fn tshark_finds_nothing_wrong_in_a_capture() {
    let directory = tempfile::tempdir().unwrap();
    let captures = ["talk", "transfers", "rings"].map(|name| directory.path().join(name));
    Lan::create(|| {
        let recorded = |file: &Path| {
            let device = xdp(&owned());
            Recording::new(device, File::create(file).unwrap()).unwrap()
        };
        talks_with_the_kernel(recorded(&captures[0]), "soft-lrp");
        transfers(recorded(&captures[1]), "soft-lrp", 100_000);
        talks_with_the_kernel(recorded(&captures[2]), "ni-lrp");
    });
    for capture in &captures {
        assert_eq!(frames(capture, WRONG), "", "{}", capture.display());
    }
    let [talk, transfers, rings] = captures.map(|capture| frames(&capture, "frame"));
    for kind in [
        ":arp",
        ":ip:icmp",
        ":ipv6:icmpv6",
        ":ip:udp",
        ":ipv6:udp",
        ":ip:data",
    ] {
        assert!(talk.contains(kind), "{kind}: {talk}");
    }
    // Eleven there and eleven back, of two families.
    assert!(rings.matches(":udp").count() >= 44, "{rings}");
    for kind in [":ip:tcp", ":ipv6:tcp", "F", "R"] {
        assert!(transfers.contains(kind), "{kind}: {transfers}");
    }
}

/// Reports and leaves as tshark understands them, and datagrams of the kernel's to groups.
#[test]
fn groups_are_joined_reported_heard_and_left() {
    let directory = tempfile::tempdir().unwrap();
    let capture = directory.path().join("groups");
    Lan::create(|| {
        lan::run("ip route add 239.0.0.0/8 dev kernel0");
        let device = Recording::new(xdp(&owned()), File::create(&capture).unwrap()).unwrap();
        let stack = Stack::start(device, &config("soft-lrp")).unwrap();
        let index = nix::net::if_::if_nametoindex("kernel0").unwrap();
        let six: std::net::Ipv6Addr = "ff02::4321".parse().unwrap();
        let six = std::net::SocketAddrV6::new(six, 5000, 0, index);
        let four: SocketAddr = "239.1.2.3:5000".parse().unwrap();
        for (local, group, from) in [
            ("10.0.0.2:5000", four, "10.0.0.1:0"),
            ("[fd00::2]:5000", SocketAddr::V6(six), "[fd00::1]:0"),
        ] {
            let socket = UdpSocket::bind(&stack, local).unwrap();
            socket.set_read_timeout(Some(SOON)).unwrap();
            socket.join_multicast(group.ip()).unwrap();
            let again = socket.join_multicast(group.ip()).unwrap_err();
            assert_eq!(again.kind(), ErrorKind::AddrInUse);
            let client = KernelSocket::bind(from).unwrap();
            client.set_read_timeout(Some(SOON)).unwrap();
            client.send_to(b"to all", group).unwrap();
            let mut batch = Vec::new();
            socket.recv_batch(&mut batch, 8).unwrap();
            assert_eq!(batch[0].payload(), b"to all");
            assert_eq!(batch[0].destination().ip(), group.ip());
            socket.reply_batch(&mut batch).unwrap();
            let answered = client.recv_from(&mut [0; 100]).unwrap().1;
            assert_eq!(answered, local.parse().unwrap(), "not from the group");
            socket.leave_multicast(group.ip()).unwrap();
            client.send_to(b"to others", group).unwrap();
            client.send_to(b"to it", local).unwrap();
            let mut buffer = [0; 100];
            let length = socket.recv_from(&mut buffer).unwrap().0;
            assert_eq!(&buffer[..length], b"to it");
        }
        let socket = UdpSocket::bind(&stack, "10.0.0.2:5001").unwrap();
        let unicast = socket.join_multicast("10.0.0.9".parse().unwrap());
        assert_eq!(unicast.unwrap_err().kind(), ErrorKind::InvalidInput);
        lan::assert_sums(&stack);
    });
    assert_eq!(frames(&capture, WRONG), "");
    let reported = |filter| !frames(&capture, filter).is_empty();
    assert!(reported("igmp.type == 0x16 && igmp.maddr == 239.1.2.3"));
    let of_six = "icmpv6.type == 131 && icmpv6.mld.multicast_address == ff02::4321";
    assert!(reported(of_six));
    assert!(
        reported("igmp.type == 0x17 && igmp.maddr == 239.1.2.3"),
        "left"
    );
    let of_six = "icmpv6.type == 132 && icmpv6.mld.multicast_address == ff02::4321";
    assert!(reported(of_six), "left");
}
