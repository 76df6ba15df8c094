//! The XDP program answers SYNs that a flooded listener has no answers left for, where its
//! answers arrive. Needs root.

use std::cell::Cell;
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use plimsoll_kernel::pass_all::PassAll;
use plimsoll_packets::frame::{Packet, TcpFlags, VLAN};
use plimsoll_stack::device::packet::PacketDevice;
use plimsoll_stack::device::vlan::Vlan;
use plimsoll_stack::device::xdp::XdpInterface;
use plimsoll_stack::device::{Device, Mac};
use plimsoll_stack::{Outcome, Stack, TcpListener};

use crate::lan::{self, Lan, SOON, config, owned, xdp};
use crate::tcp_channels::{answer, at, send_frames};

const BACKLOG: usize = 2;
/// That of the builder.
const VLAN_ID: u16 = 5;

/// A stack and whoever sends to it.
struct Trial {
    stack: Stack,
    device: Arc<XdpInterface>,
    listener: TcpListener,
    sender: PacketDevice,
    mac: Mac,
    here: SocketAddr,
    tagged: bool,
    /// The next one's port.
    strangers: Cell<u16>,
}

impl Trial {
    /// One cookie in a period, and none before.
    fn start(path: &str, here: &str, tagged: bool) -> Self {
        let device = Arc::new(xdp(&owned()));
        let mut config = config(path);
        config.tcp.syn_cookies_per_s = 1;
        let stack = match tagged {
            true => Stack::start(Vlan::new(Arc::clone(&device), VLAN_ID).unwrap(), &config),
            false => Stack::start(Arc::clone(&device), &config),
        };
        let stack = stack.unwrap();
        Self {
            listener: TcpListener::bind_with_backlog(&stack, here, BACKLOG).unwrap(),
            mac: device.mac(),
            stack,
            device,
            sender: PacketDevice::open("kernel0").unwrap(),
            here: at(here),
            tagged,
            strangers: Cell::new(10_000),
        }
    }

    /// Client number so and so, of an address of its own.
    fn client(&self, number: u8) -> SocketAddr {
        let address = match self.here {
            SocketAddr::V4(_) => format!("10.0.0.{number}"),
            SocketAddr::V6(_) => format!("fd00::{number}"),
        };
        SocketAddr::new(address.parse().unwrap(), 5000 + u16::from(number))
    }

    fn send(&self, from: SocketAddr, flags: TcpFlags, numbers: (u32, u32)) {
        let packet = Packet::new(from.ip(), self.here.ip());
        let packet = packet.macs(self.sender.capabilities().mac, self.mac);
        let packet = packet.numbers(numbers.0, numbers.1);
        let packet = match self.tagged {
            true => packet.tag(VLAN),
            false => packet,
        };
        let segment = packet.tcp(from.port(), self.here.port(), flags, b"");
        send_frames(&self.sender, &segment, 1);
    }

    fn connect(&self, from: SocketAddr) {
        self.send(from, TcpFlags::SYN, (1, 0));
        let first = answer(&self.sender, from.port());
        self.send(from, TcpFlags::ACK, (2, first.wrapping_add(1)));
        let accepted = self.listener.accept_timeout(SOON);
        let (_, found) = accepted.unwrap_or_else(|error| panic!("{from}: {error}"));
        assert_eq!(found, from);
    }

    /// Strangers that were not here before take all places and the answer.
    fn flood(&self) {
        for _ in 0..=BACKLOG {
            let mut stranger = self.client(200);
            stranger.set_port(self.strangers.replace(self.strangers.get() + 1));
            self.send(stranger, TcpFlags::SYN, (1, 0));
            answer(&self.sender, stranger.port());
        }
    }

    fn answered(&self) -> u64 {
        self.stack.counts()[Outcome::SynCookie]
    }
}

/// For both families, in a VLAN and in none, and without channels of connections.
fn for_each(test: impl Fn(&Trial) + Send + Copy) {
    for (path, tagged) in [("ni-lrp", false), ("ni-lrp", true), ("soft-lrp", false)] {
        Lan::create(move || {
            lan::run("ethtool -K kernel0 rxvlan off txvlan off");
            lan::run("ethtool -K stack0 rxvlan off txvlan off");
            for here in ["10.0.0.2:80", "[fd00::2]:81"] {
                let trial = Trial::start(path, here, tagged);
                test(&trial);
                lan::assert_sums(&trial.stack);
            }
        });
    }
}

/// A client that came for the first time had the chance of any SYN of the flood. With GRO alone at the other
/// end, what `XDP_TX` sent back waited there, and once it filled the ring nothing arrived any more.
#[test]
fn who_comes_for_the_first_time_is_answered_whatever_others_have_taken() {
    const CLIENTS: u8 = 60;
    for program in [true, false] {
        for_each(|trial| {
            let polled = program.then(|| PassAll::attach("kernel0").unwrap());
            if !program {
                lan::run("ethtool -K kernel0 gro on");
            }
            trial.flood();
            let began = Instant::now();
            for number in 10..10 + CLIENTS {
                assert!(began.elapsed() < 2 * SOON, "answers wait at the other end");
                trial.connect(trial.client(number));
                // Places may be free again.
                trial.flood();
            }
            let answered = trial.answered();
            assert!(answered >= u64::from(CLIENTS), "{answered}");
            assert!(trial.device.answers_syns());
            drop(polled);
            lan::run("ethtool -K kernel0 gro off");
        });
    }
}

/// On a plain veth, whose other end does not poll, they never arrive.
#[test]
fn answers_that_the_link_refuses_end_and_known_clients_are_answered_by_the_stack() {
    for_each(|trial| {
        trial.connect(trial.client(10));
        trial.flood();
        assert!(trial.device.answers_syns());
        let began = Instant::now();
        for number in 100.. {
            trial.send(trial.client(number), TcpFlags::SYN, (1, 0));
            thread::sleep(Duration::from_millis(1));
            if !trial.device.answers_syns() {
                break;
            }
            assert!(began.elapsed() < SOON, "they are given for ever");
        }
        let mut known = trial.client(10);
        known.set_port(6000);
        trial.connect(known);
    });
}

/// All hosts of a network send nothing (RFC 1122, 3.2.1.3). The stack threw such a SYN away, and the program
/// answered it: every host of the network got the answer.
#[test]
fn a_syn_from_all_hosts_is_not_answered() {
    for_each(|trial| {
        let SocketAddr::V4(_) = trial.here else {
            return;
        };
        let polled = PassAll::attach("kernel0").unwrap();
        trial.flood();
        for number in 100..110 {
            let before = trial.device.answered_syns();
            let all_hosts = at(&format!("10.0.0.255:{}", 6000 + u16::from(number)));
            trial.send(all_hosts, TcpFlags::SYN, (1, 0));
            // Frames are looked at in their order.
            let client = trial.client(number);
            trial.send(client, TcpFlags::SYN, (1, 0));
            answer(&trial.sender, client.port());
            let answered = trial.device.answered_syns() - before;
            assert!(answered <= 1, "{answered} of {number}");
            trial.flood();
        }
        assert!(trial.device.answered_syns() > 0, "a flood that was none");
        drop(polled);
    });
}

/// There the device looks at no segment of a connection, and at none that is not a SYN.
#[test]
fn connections_of_other_paths_go_on_beside_answers() {
    for path in ["soft-lrp", "polled", "soft-timer-polling"] {
        Lan::create(move || {
            let polled = PassAll::attach("kernel0").unwrap();
            let trial = Trial::start(path, "10.0.0.2:80", false);
            let mut client = TcpStream::connect(trial.here).unwrap();
            let (mut server, _) = trial.listener.accept_timeout(SOON).unwrap();
            let mut clients = (10..60).map(|number| trial.client(number));
            while trial.device.answered_syns() == 0 {
                trial.flood();
                trial.connect(clients.next().expect("an answer of the device"));
            }
            let sent = lan::content(300_000);
            lan::transfer(&mut client, &mut server, &sent);
            lan::transfer(&mut server, &mut client, &sent);
            drop(polled);
            lan::assert_sums(&trial.stack);
            drop(trial.listener);
            TcpListener::bind(&trial.stack, trial.here).expect("the port is free again");
        });
    }
}

/// They show what it costs if all comes to the host.
#[test]
fn the_papers_other_orders_are_left_to_themselves() {
    for path in ["eager", "early-demux"] {
        Lan::create(move || {
            let _polled = PassAll::attach("kernel0").unwrap();
            let trial = Trial::start(path, "10.0.0.2:80", false);
            trial.flood();
            assert!(!trial.device.answers_syns(), "{path}");
            assert_eq!(trial.answered(), 1, "{path}: its own");
        });
    }
}
