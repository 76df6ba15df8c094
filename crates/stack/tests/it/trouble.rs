//! What the network says about the stack's packets: ICMP errors reach the sockets, and the
//! path MTU is found. Against the kernel as a router, in network namespaces; needs root.

use std::io::ErrorKind;
use std::net::{IpAddr, UdpSocket as KernelSocket};
use std::thread;
use std::time::Instant;

use plimsoll_stack::device::tap::TapDevice;
use plimsoll_stack::device::xdp::XdpConfig;
use plimsoll_stack::{
    Stack, StackConfig, TcpListener, TcpStream as StackStream, TooLong, UdpSocket,
};

use crate::lan::{self, Lan, SOON, config, content, in_namespace, owned, transfer, xdp};

/// The MTU of the link behind the router.
const NARROW: usize = 1300;

/// `tap0` with a stack at 10.0.0.2, the kernel as a router, and `tap1` with another at
/// 10.0.1.2, behind a link that takes less than both believe.
fn routed(test: impl FnOnce(&Stack, &Stack) + Send) {
    in_namespace(|| {
        let near = TapDevice::open("tap0").unwrap();
        let far = TapDevice::open("tap1").unwrap();
        lan::set_up_kernel_side("tap0");
        lan::run("ip addr add 10.0.1.1/24 dev tap1");
        lan::run("ip addr add fd01::1/64 dev tap1 nodad");
        lan::run(&format!("ip link set tap1 up mtu {NARROW}"));
        lan::run("ethtool -K tap1 tx off");
        lan::run("sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1");
        lan::run("ip route add unreachable 203.0.113.0/24");
        lan::run("ip route add unreachable 2001:db8::/64");
        let near = Stack::start(near, &gateways("soft-lrp", "10.0.0.1", "fd00::1"));
        let mut config = gateways("soft-lrp", "10.0.1.1", "fd01::1");
        config.addresses = ["10.0.1.2/24", "fd01::2/64"]
            .map(|net| net.parse().unwrap())
            .into();
        test(&near.unwrap(), &Stack::start(far, &config).unwrap());
    });
}

fn gateways(path: &str, four: &str, six: &str) -> StackConfig {
    StackConfig {
        gateways: [four, six].map(|gateway| gateway.parse().unwrap()).into(),
        ..config(path)
    }
}

fn bind(stack: &Stack, at: &str) -> UdpSocket {
    let socket = UdpSocket::bind(stack, at).unwrap();
    socket.set_read_timeout(Some(SOON)).unwrap();
    socket
}

#[test]
fn a_connected_socket_learns_that_nobody_is_there() {
    for path in ["soft-lrp", "ni-lrp"] {
        Lan::create(|| {
            // As often as it is asked. (A limit of 0 would use up what the kernel may tell of
            // unreachable routes.)
            lan::run("sysctl -qw net.ipv4.icmp_ratemask=0 net.ipv6.icmp.ratelimit=0");
            lan::run("ip route add unreachable 203.0.113.0/24");
            lan::run("ip route add unreachable 2001:db8::/64");
            lan::run("sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1");
            let stack = Stack::start(xdp(&owned()), &gateways(path, "10.0.0.1", "fd00::1"));
            let stack = stack.unwrap();
            for (from, to, kind) in [
                ("10.0.0.2:0", "10.0.0.1:9", ErrorKind::ConnectionRefused),
                ("[fd00::2]:0", "[fd00::1]:9", ErrorKind::ConnectionRefused),
                ("10.0.0.2:0", "203.0.113.1:9", ErrorKind::HostUnreachable),
                (
                    "[fd00::2]:0",
                    "[2001:db8::1]:9",
                    ErrorKind::NetworkUnreachable,
                ),
            ] {
                // Its neighbour does the same and is not connected: it hears nothing.
                let other = bind(&stack, from);
                other.set_nonblocking(true).unwrap();
                other.send_to(b"anybody?", to).unwrap();
                let socket = bind(&stack, from);
                socket.connect(to).unwrap();
                socket.send(b"anybody?").unwrap();
                let error = socket.recv(&mut [0; 10]).unwrap_err();
                assert_eq!(error.kind(), kind, "{path}: {to}");
                // It is told once, and the socket goes on.
                socket.set_nonblocking(true).unwrap();
                let error = socket.recv(&mut [0; 10]).unwrap_err();
                assert_eq!(error.kind(), ErrorKind::WouldBlock);
                let error = other.recv(&mut [0; 10]).unwrap_err();
                assert_eq!(error.kind(), ErrorKind::WouldBlock);
            }
            for (to, kind) in [
                ("203.0.113.1:80", ErrorKind::HostUnreachable),
                ("[2001:db8::1]:80", ErrorKind::NetworkUnreachable),
            ] {
                let began = Instant::now();
                let error = StackStream::connect(&stack, to).unwrap_err();
                assert_eq!(error.kind(), kind, "{to}");
                assert!(began.elapsed() < SOON, "it waited in vain");
            }
            lan::assert_sums(&stack);
        });
    }
}

#[test]
fn datagrams_find_the_paths_mtu() {
    routed(|near, far| {
        for (here, there, headers) in [
            ("10.0.0.2:5", "10.0.1.2:7", 28),
            ("[fd00::2]:5", "[fd01::2]:7", 48),
        ] {
            let (sender, receiver) = (bind(near, here), bind(far, there));
            let to: IpAddr = receiver.local_addr().unwrap().ip();
            assert_eq!(sender.payload_max_to(to), 1500 - headers);
            let sent = content(1400);
            let mut buffer = [0; 5000];
            let lengths = [1400, 4000];
            let mut allocator = near.allocator(8);
            let made = lengths.map(|bytes| {
                let to = receiver.local_addr().unwrap();
                let mut message = sender.message(&mut allocator, to, bytes).unwrap();
                message.write_at(0, &content(bytes));
                message
            });
            // The first are lost: too long for the second link.
            let end = Instant::now() + SOON;
            while sender.payload_max_to(to) == 1500 - headers {
                sender.send_to(&sent, there).unwrap();
                assert!(Instant::now() < end, "nobody told");
                thread::sleep(std::time::Duration::from_millis(10));
            }
            assert_eq!(sender.payload_max_to(to), NARROW - headers);
            sender.send_to(&sent, there).unwrap();
            let (length, _) = receiver.recv_from(&mut buffer).unwrap();
            assert!(buffer[..length] == sent, "{there}: as fragments");
            // Messages that were made for the longer path.
            for message in made {
                let sent = content(message.len());
                sender.send_messages(&mut vec![message]).unwrap();
                let (length, _) = receiver.recv_from(&mut buffer).unwrap();
                assert!(buffer[..length] == sent, "{there}: copied");
            }
            sender.set_dont_fragment(true);
            let error = sender.send_to(&sent, there).unwrap_err();
            let too_long = error
                .get_ref()
                .and_then(|error| error.downcast_ref::<TooLong>());
            assert_eq!(too_long.unwrap().payload_max, NARROW - headers);
            assert!(error.to_string().contains("set_dont_fragment"), "{error}");
            let sent = &sent[..NARROW - headers];
            sender.send_to(sent, there).unwrap();
            let (length, _) = receiver.recv_from(&mut buffer).unwrap();
            assert!(buffer[..length] == *sent, "{there}: in one packet");
        }
    });
}

#[test]
fn segments_find_the_paths_mtu() {
    routed(|near, far| {
        let sent = content(300_000);
        for at in ["10.0.1.2:80", "[fd01::2]:80"] {
            let listener = TcpListener::bind(far, at).unwrap();
            let mut client = StackStream::connect(near, at).unwrap();
            let mut server = listener.accept().unwrap().0;
            transfer(&mut client, &mut server, &sent);
            let to: IpAddr = server.local_addr().unwrap().ip();
            let probe = bind(
                near,
                if to.is_ipv4() {
                    "10.0.0.2:0"
                } else {
                    "[fd00::2]:0"
                },
            );
            let headers = if to.is_ipv4() { 28 } else { 48 };
            assert_eq!(probe.payload_max_to(to), NARROW - headers, "{at}");
        }
        lan::assert_sums(near);
    });
}

/// What is too long is lost, and the router's word of that as well. A transfer stood still until it was given up.
#[test]
fn segments_get_through_where_no_router_tells() {
    routed(|near, far| {
        lan::run("nft add table inet mute");
        lan::run("nft add chain inet mute out { type filter hook output priority 0 ; }");
        for error in [
            "icmp type destination-unreachable",
            "icmpv6 type packet-too-big",
        ] {
            lan::run(&format!("nft add rule inet mute out {error} drop"));
        }
        thread::scope(|scope| {
            for at in ["10.0.1.2:80", "[fd01::2]:80"] {
                scope.spawn(move || {
                    let listener = TcpListener::bind(far, at).unwrap();
                    let mut client = StackStream::connect(near, at).unwrap();
                    let mut server = listener.accept().unwrap().0;
                    client.set_write_timeout(Some(4 * SOON)).unwrap();
                    server.set_read_timeout(Some(4 * SOON)).unwrap();
                    transfer(&mut client, &mut server, &content(300_000));
                });
            }
        });
        lan::assert_sums(near);
    });
}

/// The kernel's address is shared: the XDP program takes errors about what endpoints sent.
#[test]
fn errors_to_a_shared_address_reach_the_endpoints() {
    for path in ["soft-lrp", "ni-lrp"] {
        Lan::create_apart(|far| {
            let stack = Stack::start(xdp(&XdpConfig::default()), &config(path)).unwrap();
            let socket = bind(&stack, "0.0.0.0:7");
            // It comes and goes, so its address on the link is known and its port closed.
            far.run(|| {
                let client = KernelSocket::bind("10.0.0.1:9").unwrap();
                client.send_to(b"hello", "10.0.0.2:7").unwrap();
            });
            let (_, from) = socket.recv_from(&mut [0; 10]).unwrap();
            socket.connect(from).unwrap();
            socket.send(b"still there?").unwrap();
            let error = socket.recv(&mut [0; 10]).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::ConnectionRefused, "{path}");
            // What the kernel's sockets cause stays the kernel's.
            let theirs = KernelSocket::bind("10.0.0.2:8").unwrap();
            theirs.set_read_timeout(Some(SOON)).unwrap();
            theirs.connect("10.0.0.1:9").unwrap();
            theirs.send(b"anybody?").unwrap();
            let error = theirs.recv(&mut [0; 10]).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
        });
    }
}
