//! A switch that snoops, as the kernel's bridge is one: it asks who is in which multicast group, and
//! delivers groups to members alone. Needs root.

use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6, UdpSocket as KernelSocket};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use plimsoll_kernel::link;
use plimsoll_stack::device::Device;
use plimsoll_stack::device::packet::PacketDevice;
use plimsoll_stack::device::xdp::XdpConfig;
use plimsoll_stack::{Stack, UdpSocket};

use crate::lan::{self, Far, SOON, config, owned, run, xdp};

/// The bridge forgets a member that it has not heard of for so long; it asks every second.
const MEMBERSHIP: Duration = Duration::from_secs(4);
/// After a leave it asks twice, half a second apart. One that is silent is forgotten 2.5 s after its leave at the earliest.
const FORGOTTEN_AFTER_LEAVE: Duration = Duration::from_secs(2);
/// Of IGMP and MLD.
const VERSIONS: [[u8; 2]; 2] = [[2, 1], [3, 2]];

/// `stack0` at a port of a bridge of the far namespace, where the kernel is at another one.
fn with_switch(versions: [u8; 2], test: impl FnOnce(&Far) + Send) {
    let far = Far::create();
    let (name, [igmp, mld]) = (far.name().to_owned(), versions);
    lan::in_namespace(|| {
        run(&format!(
            "ip link add stack0 type veth peer name port0 netns {name}"
        ));
        far.run(|| {
            run("ip link set lo up");
            // Times in hundredths of a second.
            run(&format!(
                "ip link add switch type bridge mcast_snooping 1 mcast_querier 1 \
                 mcast_igmp_version {igmp} mcast_mld_version {mld} mcast_query_interval 100 \
                 mcast_startup_query_interval 100 \
                 mcast_query_response_interval 50 mcast_membership_interval 400 \
                 mcast_last_member_interval 50"
            ));
            run("ip link add kernel0 type veth peer name port1");
            for port in ["port0", "port1"] {
                run(&format!("ip link set {port} master switch"));
                run(&format!("ip link set {port} up"));
            }
            run("ip link set switch up");
            lan::set_up_kernel_side("kernel0");
            run("ip route add 239.0.0.0/8 dev kernel0");
        });
        lan::set_up_stack_side();
        far.run(|| link::wait_until_sending("port0").unwrap());
        test(&far);
    });
}

/// Whether the bridge delivers the group to the stack's port.
fn is_member(far: &Far, group: IpAddr) -> bool {
    let shown = far.run(|| Command::new("bridge").args(["mdb", "show"]).output());
    let shown = shown.unwrap();
    assert!(shown.status.success(), "{shown:?}");
    let shown = String::from_utf8(shown.stdout).unwrap();
    let entry = format!("port port0 grp {group} ");
    shown.lines().any(|line| line.contains(&entry))
}

/// Waits until that is so, or is not.
fn wait_until_member(far: &Far, group: IpAddr, wanted: bool, end: Instant) {
    while is_member(far, group) != wanted {
        assert!(Instant::now() < end, "{group}: not {wanted} in time");
        thread::sleep(Duration::from_millis(20));
    }
}

/// A socket in a group, and who sends to that.
struct Member {
    socket: UdpSocket,
    group: IpAddr,
    sender: KernelSocket,
    to: SocketAddr,
}

impl Member {
    fn join(stack: &Stack, far: &Far, [here, there, group]: [&str; 3]) -> Self {
        let socket = UdpSocket::bind(stack, SocketAddr::new(here.parse().unwrap(), 5000)).unwrap();
        socket.set_read_timeout(Some(SOON)).unwrap();
        let group: IpAddr = group.parse().unwrap();
        socket.join_multicast(group).unwrap();
        let from = SocketAddr::new(there.parse().unwrap(), 0);
        let (sender, to) = far.run(|| {
            let index = nix::net::if_::if_nametoindex("kernel0").unwrap();
            let to = match group {
                IpAddr::V4(group) => SocketAddr::from((group, 5000)),
                IpAddr::V6(group) => SocketAddrV6::new(group, 5000, 0, index).into(),
            };
            (KernelSocket::bind(from).unwrap(), to)
        });
        Self {
            socket,
            group,
            sender,
            to,
        }
    }

    fn hears(&self, message: &[u8]) -> io::Result<()> {
        self.sender.send_to(message, self.to).unwrap();
        let mut buffer = [0; 100];
        let length = self.socket.recv_from(&mut buffer)?.0;
        assert_eq!(&buffer[..length], message);
        Ok(())
    }
}

/// Members stay members for longer than the switch remembers them without an answer, and are
/// forgotten soon after they leave.
fn stays_a_member(device: impl Device + 'static, far: &Far) {
    let stack = Stack::start(device, &config("soft-lrp")).unwrap();
    let members = [
        ["10.0.0.2", "10.0.0.1", "239.1.2.3"],
        ["fd00::2", "fd00::1", "ff02::4321"],
    ];
    let members = members.map(|ends| Member::join(&stack, far, ends));
    for member in &members {
        wait_until_member(far, member.group, true, Instant::now() + SOON);
    }
    let end = Instant::now() + MEMBERSHIP + MEMBERSHIP / 2;
    let mut round = 0_u32;
    while Instant::now() < end {
        for member in &members {
            let heard = member.hears(&round.to_be_bytes());
            heard.unwrap_or_else(|error| panic!("{}, round {round}: {error}", member.group));
        }
        round += 1;
        thread::sleep(Duration::from_millis(100));
    }
    for member in &members {
        assert!(
            is_member(far, member.group),
            "{} is forgotten",
            member.group
        );
    }
    let end = Instant::now() + FORGOTTEN_AFTER_LEAVE;
    for member in &members {
        member.socket.leave_multicast(member.group).unwrap();
    }
    for member in &members {
        wait_until_member(far, member.group, false, end);
    }
    lan::assert_sums(&stack);
}

/// A member's stack on a device, behind a switch.
type Case = fn(&Far);

fn on_af_xdp(far: &Far) {
    stays_a_member(xdp(&owned()), far);
}

fn on_a_packet_socket(far: &Far) {
    stays_a_member(PacketDevice::open("stack0").unwrap(), far);
}

/// The kernel has the addresses, too, and answers the same queries for groups of its own.
fn beside_the_kernel(far: &Far) {
    run("ip addr add 10.0.0.2/24 dev stack0");
    run("ip addr add fd00::2/64 dev stack0 nodad");
    stays_a_member(xdp(&XdpConfig::default()), far);
}

/// Reports once a minute kept nobody a member who was asked every second, and a leave was not
/// told. On AF_XDP queries are the kernel's, and the stack has to overhear them.
///
/// All at once, each behind a switch of its own: a member mostly waits.
#[test]
fn a_member_is_delivered_its_groups() {
    let cases: [(&str, Case); 3] = [
        ("on AF_XDP", on_af_xdp),
        ("on a packet socket", on_a_packet_socket),
        ("beside the kernel", beside_the_kernel),
    ];
    thread::scope(|scope| {
        for (name, case) in cases {
            for versions in VERSIONS {
                // A panic names its thread.
                let [igmp, mld] = versions;
                let named = thread::Builder::new().name(format!("{name}, IGMPv{igmp}, MLDv{mld}"));
                let behind_switch = move || with_switch(versions, case);
                named.spawn_scoped(scope, behind_switch).unwrap();
            }
        }
    });
}

/// Neighbours ask at the group of an address, which is as any other to a switch that snoops.
#[test]
fn an_address_of_the_stacks_own_is_found_behind_a_switch_that_snoops() {
    with_switch([3, 2], |far| {
        let stack = Stack::start(xdp(&owned()), &config("soft-lrp")).unwrap();
        let group: Ipv6Addr = "ff02::1:ff00:2".parse().unwrap();
        wait_until_member(far, group.into(), true, Instant::now() + SOON);
        let socket = UdpSocket::bind(&stack, "[fd00::2]:7").unwrap();
        socket.set_read_timeout(Some(SOON)).unwrap();
        // As long as the switch would remember it unasked.
        thread::sleep(MEMBERSHIP + MEMBERSHIP / 2);
        let client = far.run(|| KernelSocket::bind("[fd00::1]:0").unwrap());
        client.send_to(b"where are you?", "[fd00::2]:7").unwrap();
        assert_eq!(socket.recv(&mut [0; 100]).unwrap(), 14);
    });
}
