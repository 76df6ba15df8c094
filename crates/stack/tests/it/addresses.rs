//! A socket bound to any address gets what is for the stack's addresses. The kernel's, and those
//! of others behind it, stay theirs. Needs root.

use std::io::{ErrorKind, Read, Write};
use std::net::{
    SocketAddr, TcpListener as KernelListener, TcpStream as KernelStream, UdpSocket as KernelSocket,
};
use std::thread;
use std::time::{Duration, Instant};

use plimsoll_core::config::Fraction;
use plimsoll_packets::frame::Packet;
use plimsoll_stack::device::faulty::{Faults, Faulty};
use plimsoll_stack::device::packet::PacketDevice;
use plimsoll_stack::device::tap::{TapDevice, TunDevice};
use plimsoll_stack::device::vlan::Vlan;
use plimsoll_stack::device::xdp::{XdpConfig, XdpInterface};
use plimsoll_stack::device::{Batch, Device};
use plimsoll_stack::{Error, Outcome, Stack, StackConfig, TcpListener, UdpSocket};

use crate::lan::{self, Far, Lan, SOON, config, owned, run, xdp};

const PATHS: [&str; 2] = ["soft-lrp", "ni-lrp"];

/// The stack has 10.0.0.3 of its own, or shares 10.0.0.2 and `fd00::2`. Beside it the kernel has
/// those two, and 10.9.0.1 behind them.
fn start(path: &str, owns: bool) -> Stack {
    run("ip addr add 10.9.0.1/32 dev lo");
    let (device, addresses) = match owns {
        true => (vec!["10.0.0.3".parse().unwrap()], vec!["10.0.0.3/24"]),
        false => (Vec::new(), vec!["10.0.0.2/24", "fd00::2/64"]),
    };
    let device = XdpConfig {
        owned: device,
        ..XdpConfig::default()
    };
    let addresses = addresses.iter().map(|net| net.parse().unwrap());
    let config = StackConfig {
        addresses: addresses.collect(),
        ..config(path)
    };
    Stack::start(xdp(&device), &config).unwrap()
}

fn kernel_socket(at: &str) -> KernelSocket {
    let socket = KernelSocket::bind(at).unwrap();
    socket.set_read_timeout(Some(SOON)).unwrap();
    socket
}

fn bind(stack: &Stack, at: &str) -> UdpSocket {
    let socket = UdpSocket::bind(stack, at).unwrap();
    socket.set_read_timeout(Some(SOON)).unwrap();
    socket
}

/// With such an address all that was for it went to the stack, and ssh to it was cut.
#[test]
fn an_address_of_the_kernels_is_not_taken_from_it() {
    Lan::create_apart(|_| {
        run("ip addr add 10.9.0.1/32 dev lo");
        let refused = |address: &str| {
            let owned = ["10.0.0.3", address].map(|one| one.parse().unwrap());
            let config = XdpConfig {
                owned: owned.to_vec(),
                ..XdpConfig::default()
            };
            let error = XdpInterface::open("stack0", &config).unwrap_err();
            assert!(error.is_usage(), "{error}");
            error.to_string()
        };
        for address in ["10.0.0.2", "fd00::2"] {
            let told = refused(address);
            let names = told.contains(&format!("{address} on stack0"));
            assert!(names && told.contains("leave it out"), "{told}");
        }
        // What the interface does not have cannot be shared there.
        let told = refused("10.9.0.1");
        assert!(
            told.contains("10.9.0.1 on lo") && !told.contains("leave it out"),
            "{told}"
        );
    });
}

/// A stack started there, and nobody on the link could find it: no host answered for the address.
#[test]
fn an_address_is_the_kernel_s_or_the_stack_s_own() {
    Lan::create_apart(|_| {
        let start = |address: &str, vlan: bool| {
            let device = XdpConfig {
                owned: vec!["10.0.0.3".parse().unwrap()],
                ..XdpConfig::default()
            };
            match vlan {
                true => start_at(address, Vlan::new(xdp(&device), 5).unwrap()),
                false => start_at(address, xdp(&device)),
            }
        };
        for (address, vlan) in [
            ("10.0.0.4/24", false),
            ("10.0.0.4/24", true),
            ("fe80::9/64", false),
        ] {
            let error = start(address, vlan).unwrap_err();
            let told = error.to_string();
            assert!(
                error.is_usage() && told.contains("XdpConfig::owned"),
                "{told}"
            );
        }
        assert!(start("10.0.0.3/24", true).is_ok());
        assert!(start("10.0.0.2/24", false).is_ok());
        // Without being an interface's an address can be the kernel's.
        run("ip route add local 10.0.0.4 dev lo");
        assert!(start("10.0.0.4/24", false).is_ok());
    });
}

/// Starts a stack at `address` on this device.
fn start_at(address: &str, device: impl Device + 'static) -> Result<Stack, Error> {
    Stack::start(device, &StackConfig::at(address.parse().unwrap()))
}

/// It was accepted: of two hosts with one address each refused what was for the other.
#[test]
fn no_device_beside_the_kernel_gets_an_address_of_the_kernel_s() {
    Lan::create(|| {
        run("ip addr add 10.9.0.1/32 dev lo");
        for (address, at) in [
            ("10.0.0.1/24", "10.0.0.1 on kernel0"),
            ("fd00::1/64", "fd00::1 on kernel0"),
            ("10.9.0.1/32", "10.9.0.1 on lo"),
        ] {
            let packet = || PacketDevice::open("stack0").unwrap();
            let refused = [
                start_at(address, packet()),
                start_at(address, PacketDevice::open("kernel0").unwrap()),
                start_at(address, Vlan::new(packet(), 5).unwrap()),
                start_at(address, TapDevice::open("tap0").unwrap()),
                start_at(address, TunDevice::open("tun0").unwrap()),
            ];
            for error in refused.map(Result::unwrap_err) {
                assert!(error.is_usage(), "{error}");
                let told = error.to_string();
                assert!(told.contains(at) && told.contains("ip addr del"), "{told}");
            }
        }
        start_at("10.0.0.2/24", PacketDevice::open("stack0").unwrap()).unwrap();
    });
}

/// What it must not be taken for: another link's address, and that of another namespace.
#[test]
fn an_address_that_the_kernel_has_elsewhere_is_the_stack_s() {
    let packet = || PacketDevice::open("stack0").unwrap();
    Lan::create(|| {
        run("ip addr add fe80::9/64 dev kernel0 nodad");
        start_at("fe80::9/64", packet()).unwrap();
        let kernel0 = PacketDevice::open("kernel0").unwrap();
        let refused = start_at("fe80::9/64", kernel0).unwrap_err();
        assert!(refused.to_string().contains("kernel0"), "{refused}");
    });
    Lan::create_apart(|far| {
        // 10.0.0.2 is this namespace's.
        let kernel0 = || PacketDevice::open("kernel0").unwrap();
        start_at("10.0.0.2/24", far.run(kernel0)).unwrap();
        start_at("10.0.0.2/24", packet()).unwrap_err();
    });
}

/// Sends each address its name.
fn send(far: &Far, to: &[&str]) {
    far.run(|| {
        run("ip route replace 10.9.0.1 via 10.0.0.2");
        for at in to {
            let client = match at.starts_with('[') {
                true => KernelSocket::bind("[fd00::1]:0"),
                false => KernelSocket::bind("10.0.0.1:0"),
            };
            let client = client.unwrap();
            client.set_broadcast(true).unwrap();
            client.send_to(at.as_bytes(), at).unwrap();
        }
    });
}

/// That a socket gets what is for all of these, in any order: neighbours are asked for first.
fn assert_gets(
    mut receive: impl FnMut(&mut [u8]) -> std::io::Result<(usize, SocketAddr)>,
    all: &[&str],
) {
    let mut missing = all.to_vec();
    while !missing.is_empty() {
        let mut buffer = [0; 64];
        let received = receive(&mut buffer);
        let (length, _) = received.unwrap_or_else(|error| panic!("for {missing:?}: {error}"));
        let at = std::str::from_utf8(&buffer[..length]).unwrap();
        let place = missing.iter().position(|one| *one == at);
        missing.remove(place.unwrap_or_else(|| panic!("{at} instead of {missing:?}")));
    }
}

/// What the kernel's and the stack's sockets at a port get of what is sent to all of `of`.
fn assert_share(far: &Far, kernel: &KernelSocket, stack: &UdpSocket, of: [&[&str]; 2]) {
    send(far, &of.concat());
    assert_gets(|buffer| kernel.recv_from(buffer), of[0]);
    assert_gets(|buffer| stack.recv_from(buffer), of[1]);
    let soon = Duration::from_millis(100);
    stack.set_read_timeout(Some(soon)).unwrap();
    let more = stack.recv_from(&mut [0; 64]).unwrap_err();
    assert_eq!(more.kind(), ErrorKind::WouldBlock, "nothing else");
}

#[test]
fn on_an_address_of_its_own_the_wildcard_leaves_the_kernel_its_addresses() {
    for path in PATHS {
        Lan::create_apart(|far| {
            let stack = start(path, true);
            let of_kernel = kernel_socket("[::]:7");
            let of_stack = bind(&stack, "0.0.0.0:7");
            let kernels = ["10.0.0.2:7", "[fd00::2]:7", "10.9.0.1:7", "10.0.0.255:7"];
            assert_share(far, &of_kernel, &of_stack, [&kernels, &["10.0.0.3:7"]]);
            lan::assert_sums(&stack);
        });
    }
}

#[test]
fn on_a_shared_address_the_wildcard_leaves_the_kernel_all_others() {
    for path in PATHS {
        Lan::create_apart(|far| {
            let stack = start(path, false);
            let of_kernel = kernel_socket("[::]:7");
            let of_stack = bind(&stack, "0.0.0.0:7");
            let kernels = ["[fd00::2]:7", "10.9.0.1:7", "10.0.0.255:7"];
            assert_share(far, &of_kernel, &of_stack, [&kernels, &["10.0.0.2:7"]]);
            // One of both families has both.
            let of_kernel = kernel_socket("[::]:8");
            let of_stack = bind(&stack, "[::]:8");
            let stacks = ["[fd00::2]:8", "10.0.0.2:8"];
            assert_share(far, &of_kernel, &of_stack, [&["10.9.0.1:8"], &stacks]);
            lan::assert_sums(&stack);
        });
    }
}

/// What a client is told by who accepts its connection.
fn line_from(far: &Far, at: &str, accept: impl FnOnce() + Send) -> String {
    thread::scope(|scope| {
        let client = scope.spawn(|| {
            far.run(|| {
                let client = KernelStream::connect_timeout(&at.parse().unwrap(), SOON);
                let mut client = client.unwrap_or_else(|error| panic!("to {at}: {error}"));
                client.set_read_timeout(Some(SOON)).unwrap();
                let mut line = String::new();
                client.read_to_string(&mut line).unwrap();
                line
            })
        });
        accept();
        client.join().unwrap()
    })
}

/// Accepts with the kernel's listener, or gives up.
fn greet(listener: &KernelListener) {
    listener.set_nonblocking(true).unwrap();
    let end = Instant::now() + SOON;
    while Instant::now() < end {
        match listener.accept() {
            Ok((mut client, _)) => return client.write_all(b"kernel").unwrap(),
            Err(_) => thread::sleep(Duration::from_millis(1)),
        }
    }
}

#[test]
fn listeners_leave_the_kernel_its_addresses() {
    for path in PATHS {
        for (owns, any, stacks, kernels) in [
            (true, "0.0.0.0:80", "10.0.0.3:80", "10.0.0.2:80"),
            (false, "0.0.0.0:80", "10.0.0.2:80", "[fd00::2]:80"),
            (false, "[::]:80", "[fd00::2]:80", "10.9.0.1:80"),
        ] {
            Lan::create_apart(|far| {
                let stack = start(path, owns);
                send(far, &[]);
                let of_kernel = KernelListener::bind("[::]:80").unwrap();
                let of_stack = TcpListener::bind(&stack, any).unwrap();
                assert_eq!(
                    line_from(far, kernels, || greet(&of_kernel)),
                    "kernel",
                    "{path}, {kernels}"
                );
                let accept = || of_stack.accept_timeout(SOON).unwrap().0.write_all(b"stack");
                assert_eq!(
                    line_from(far, stacks, || accept().unwrap()),
                    "stack",
                    "{path}, {stacks}"
                );
            });
        }
    }
}

/// Sends a frame as it is.
fn send_frame(from: &PacketDevice, bytes: &[u8]) {
    let mut frame = from.pool().take().unwrap();
    assert!(frame.copy_from(bytes));
    let mut batch = Batch::new();
    batch.push_back(frame);
    from.transmit(&mut batch).unwrap();
    assert!(batch.is_empty());
}

/// A ring gets frames that the demultiplexer has not seen.
#[test]
fn a_ring_s_frames_for_others_are_not_delivered() {
    Lan::create(|| {
        // The device has one address more than the stack.
        let mut both = owned();
        both.owned.push("10.0.0.4".parse().unwrap());
        let device = xdp(&both);
        let (ours, sender) = (device.mac(), PacketDevice::open("kernel0").unwrap());
        let stack = Stack::start(device, &config("ni-lrp")).unwrap();
        let socket = bind(&stack, "0.0.0.0:7");
        let send = |mac: [u8; 6], to: &str, text: &[u8]| {
            let source = "10.0.0.1".parse().unwrap();
            let packet = Packet::new(source, to.parse().unwrap());
            let packet = packet.macs(sender.capabilities().mac, mac);
            send_frame(&sender, &packet.udp(9, 7, text));
        };
        send(frame_mac(9), "10.0.0.2", b"another's card");
        send(ours, "10.0.0.4", b"another's address");
        send(ours, "10.0.0.2", b"ours");
        let mut buffer = [0; 64];
        let (length, _) = socket.recv_from(&mut buffer).unwrap();
        assert_eq!(&buffer[..length], b"ours");
        let counts = stack.counts();
        assert_eq!(counts[Outcome::OtherMac], 1, "{counts:?}");
        assert_eq!(counts[Outcome::Forward], 1, "{counts:?}");
        lan::assert_sums(&stack);
    });
}

/// Nobody's Ethernet address here.
fn frame_mac(last: u8) -> [u8; 6] {
    [2, 0, 0, 0, 9, last]
}

/// Whether a socket at any address of this stack gets what the frame carries.
fn assert_takes(device: impl Device + 'static, path: &str, frame: &[u8]) {
    let sender = PacketDevice::open("kernel0").unwrap();
    let stack = Stack::start(device, &config(path)).unwrap();
    let socket = bind(&stack, "0.0.0.0:7");
    send_frame(&sender, frame);
    let mut buffer = [0; 64];
    let (length, _) = socket.recv_from(&mut buffer).unwrap();
    assert_eq!(&buffer[..length], b"ours", "{path}");
}

/// The program has its addresses from the stack, whatever devices are in between.
#[test]
fn shared_addresses_reach_the_program_through_other_devices() {
    let packet = |mac| {
        let [from, to] = ["10.0.0.1", "10.0.0.2"].map(|at| at.parse().unwrap());
        Packet::new(from, to)
            .macs(frame_mac(1), mac)
            .udp(9, 7, b"ours")
    };
    let shared = || {
        run("ip addr add 10.0.0.2/24 dev stack0");
        run("ip addr add fd00::2/64 dev stack0 nodad");
        xdp(&XdpConfig::default())
    };
    // It hands on no rings, which `ni-lrp` needs.
    Lan::create(|| {
        let device = shared();
        let frame = packet(device.mac());
        let faults = Faults::each(Fraction::from_percent(0));
        assert_takes(Faulty::new(device, faults, 1), "soft-lrp", &frame);
    });
    for path in PATHS {
        Lan::create(|| {
            let device = shared();
            let mut frame = packet(device.mac());
            frame.splice(12..12, [0x81, 0, 0, 100]);
            assert_takes(Vlan::new(device, 100).unwrap(), path, &frame);
        });
    }
}

/// A datagram for somebody whom only `recv_batch` had heard, or nobody, was taken and lost: who was
/// asked for the Ethernet address answered the kernel.
#[test]
fn on_a_shared_address_who_was_heard_is_sent_to_and_nobody_else() {
    for path in PATHS {
        Lan::create_apart(|far| {
            let stack = start(path, false);
            let server = bind(&stack, "10.0.0.2:7");
            far.run(|| run("ip addr add 10.8.0.1/32 dev kernel0"));
            run("ip route add 10.8.0.1 via 10.0.0.1");
            let clients = ["10.0.0.1:0", "10.8.0.1:0"].map(|at| {
                far.run(|| {
                    let client = kernel_socket(at);
                    client.send_to(b"question", "10.0.0.2:7").unwrap();
                    client
                })
            });
            let mut batch = Vec::new();
            while batch.len() < 2 {
                server.recv_batch(&mut batch, 8).unwrap();
            }
            for client in clients {
                let to = client.local_addr().unwrap();
                server.send_to(b"answer", to).unwrap();
                assert_eq!(client.recv(&mut [0; 64]).unwrap(), 6, "{to}");
                // Another socket of the stack's knows the way as well.
                let other = bind(&stack, "10.0.0.2:8");
                other.send_to(b"news", to).unwrap();
                assert_eq!(client.recv(&mut [0; 64]).unwrap(), 4, "{to}");
            }
            let unknown = server.send_to(b"lost", "10.0.0.77:9").unwrap_err();
            assert_eq!(unknown.kind(), ErrorKind::HostUnreachable);
        });
    }
}

/// Segments went to the old Ethernet address for ever.
#[test]
fn on_a_shared_address_a_connection_follows_its_peer_to_another_ethernet_address() {
    for path in PATHS {
        Lan::create_apart(|far| {
            let stack = start(path, false);
            let listener = TcpListener::bind(&stack, "10.0.0.2:80").unwrap();
            let socket = bind(&stack, "10.0.0.2:7");
            let mut client = far.run(|| KernelStream::connect("10.0.0.2:80").unwrap());
            let mut server = listener.accept().unwrap().0;
            client.set_read_timeout(Some(SOON)).unwrap();
            far.run(|| {
                run("ip link set kernel0 address 02:00:00:00:00:99");
                let other = kernel_socket("10.0.0.1:0");
                other.send_to(b"from elsewhere", "10.0.0.2:7").unwrap();
            });
            socket.recv_datagram().unwrap();
            server.write_all(b"answer").unwrap();
            client.read_exact(&mut [0; 6]).unwrap();
        });
    }
}

/// The groups that `stack0` is told to hear.
fn heard() -> String {
    let all = std::fs::read_to_string("/proc/thread-self/net/dev_mcast").unwrap();
    let ours = all.lines().filter(|line| line.contains("stack0"));
    ours.collect::<Vec<_>>().join("\n")
}

/// An adapter that filters let nobody's question for an IPv6 address of the stack's through.
#[test]
fn the_adapter_hears_who_asks_for_an_address_and_what_was_joined_as_long_as_the_stack_runs() {
    let [solicited, of_ipv4, of_ipv6] = ["3333ff000002", "01005e010203", "333300000123"];
    Lan::create(|| {
        let before = heard();
        assert!(!before.contains(solicited), "{before}");
        for by_packets in [false, true] {
            let stack = match by_packets {
                true => {
                    let device = PacketDevice::open("stack0").unwrap();
                    Stack::start(device, &config("soft-lrp")).unwrap()
                }
                false => Stack::start(xdp(&owned()), &config("soft-lrp")).unwrap(),
            };
            assert!(heard().contains(solicited), "{}", heard());
            let socket = bind(&stack, "[::]:7");
            for group in ["239.1.2.3", "ff15::123"] {
                socket.join_multicast(group.parse().unwrap()).unwrap();
            }
            assert!(heard().contains(of_ipv4) && heard().contains(of_ipv6));
            socket
                .leave_multicast("239.1.2.3".parse().unwrap())
                .unwrap();
            assert!(!heard().contains(of_ipv4));
            drop((socket, stack));
            // A process that another test starts has the descriptor for a moment.
            let end = Instant::now() + SOON;
            while heard() != before {
                assert!(Instant::now() < end, "{}", heard());
                thread::sleep(Duration::from_millis(1));
            }
        }
    });
}
