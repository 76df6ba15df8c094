//! A server that is flooded through the program with many times what it takes: what its
//! clients get beside those who hide their addresses, aim at entries, or forge a client's.
//! Needs root.
//!
//! The frames are built and judged by the test-run facility. For each that is admitted, the
//! server is sent a datagram, so its queue fills as it would. Frames are the clock of the server
//! and of its clients, so that the flood is the same however much CPU time this thread gets. The
//! program's own clock is the kernel's.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use fastrand::Rng;
use nix::sched::sched_getcpu;
use nix::sys::socket::{setsockopt, sockopt};
use plimsoll_core::fairness::{FairnessConfig, Keys};
use plimsoll_core::time::TICK_SHIFT;
use plimsoll_packets::frame::Packet;

use super::SLOT_SOCKETS;
use super::test_host::{HOST, KERNEL_TICK, UDP_PORT, press, unread_server, with_guard};
use super::types::limit;
use crate::Guard;

/// Frames of the flood for each datagram that the server takes.
const TIMES: u64 = 20;
/// Half of what the kernel makes of it: room for some 280 datagrams.
const BUFFER_BYTES: usize = 110_000;
/// Addresses that a flood uses at a time.
const ROUND: usize = 16;
/// Frames that are kept.
const FRAMES_MAX: usize = 4 * ROUND;
/// Until the shares have settled, and measured after that.
const SETTLING: Duration = Duration::from_secs(1);
const MEASURED: Duration = Duration::from_secs(3);

/// Of each client, so that one that is lost is less than a hundredth.
const QUERIES_MIN: u64 = 101;

/// A client that asks regularly.
struct Client {
    address: IpAddr,
    /// So many datagrams are taken between two of its queries.
    gap: u64,
    asked: u64,
    admitted: u64,
}

impl Client {
    fn new(address: impl Into<IpAddr>, gap: u64) -> Self {
        Self {
            address: address.into(),
            gap,
            asked: 0,
            admitted: 0,
        }
    }

    fn part(&self) -> f64 {
        self.admitted as f64 / self.asked as f64
    }
}

/// What a flood got while it was measured, in frames.
#[derive(Default)]
struct Got {
    /// By the number of the frame's address.
    admitted: [u64; ROUND],
}

impl Got {
    fn admitted(&self) -> u64 {
        self.admitted.iter().sum()
    }
}

struct Flooded<'a, 'obj> {
    guard: &'a mut Guard<'obj>,
    server: UdpSocket,
    sender: UdpSocket,
    times: u64,
    /// Frames that were built, by source: building one takes longer than judging it.
    frames: HashMap<IpAddr, Vec<u8>>,
}

impl<'a, 'obj> Flooded<'a, 'obj> {
    fn new(guard: &'a mut Guard<'obj>) -> Self {
        let server = unread_server(0);
        server.set_nonblocking(true).unwrap();
        setsockopt(&server, sockopt::RcvBufForce, &BUFFER_BYTES).unwrap();
        let sender = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        Self {
            guard,
            server,
            sender,
            times: TIMES,
            frames: HashMap::new(),
        }
    }

    /// Whether a frame from here is admitted.
    fn is_admitted(&mut self, source: IpAddr) -> bool {
        if self.frames.len() == FRAMES_MAX {
            self.frames.clear();
        }
        let frame = self.frames.entry(source).or_insert_with(|| {
            let host = match source {
                IpAddr::V4(_) => IpAddr::from(HOST),
                IpAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
            };
            Packet::new(source, host).udp(4000, UDP_PORT, b"query")
        });
        self.guard.test_run(frame, 1).unwrap().0
    }

    /// The same, and then the server's queue holds one more.
    fn send(&mut self, source: IpAddr) -> bool {
        let admitted = self.is_admitted(source);
        if admitted {
            let server = SocketAddr::from((HOST, UDP_PORT));
            self.sender.send_to(&[0; 64], server).unwrap();
        }
        admitted
    }

    /// Has what is queued be so many percent of the server's buffer, as if that had just been full.
    fn resize(&mut self, percent: usize) {
        let cpu = u32::try_from(sched_getcpu().unwrap()).unwrap();
        let queued = self.guard.program.books.part(SLOT_SOCKETS, cpu).occupancy;
        // The kernel doubles it.
        let buffer = queued as usize * 50 / percent;
        setsockopt(&self.server, sockopt::RcvBufForce, &buffer).unwrap();
        std::thread::sleep(KERNEL_TICK);
        press(self.guard);
    }

    /// Serves clients in calm, in as many periods as make them known.
    fn know(&mut self, clients: &[IpAddr]) {
        for period in 1..=3 {
            self.guard.program.set_epoch(4 * period);
            for client in clients {
                std::thread::sleep(KERNEL_TICK);
                assert!(self.send(*client), "a calm queue");
            }
        }
        while self.server.recv(&mut [0; 64]).is_ok() {}
    }

    /// Floods the server: the address with this number is that, after so long.
    fn run(
        &mut self,
        clients: &mut [Client],
        mut flood: impl FnMut(Duration, usize, &mut Rng) -> IpAddr,
    ) -> Got {
        let mut random = Rng::with_seed(3);
        let mut got = Got::default();
        let begun = Instant::now();
        let mut is_settled = false;
        for frame in 1_u64.. {
            let now = begun.elapsed();
            let has_asked = clients.iter().all(|client| client.asked >= QUERIES_MIN);
            if is_settled && has_asked && now >= SETTLING + MEASURED {
                break;
            }
            if !is_settled && now >= SETTLING {
                is_settled = true;
                got = Got::default();
                for client in &mut *clients {
                    (client.asked, client.admitted) = (0, 0);
                }
            }
            let number = frame as usize % ROUND;
            let source = flood(now, number, &mut random);
            got.admitted[number] += u64::from(self.send(source));
            if frame.is_multiple_of(self.times) {
                self.take_one(clients, frame / self.times);
            }
        }
        got
    }

    /// The server takes a datagram, if there is one, and clients ask whose turn it is.
    fn take_one(&mut self, clients: &mut [Client], taken: u64) {
        let _ = self.server.recv(&mut [0; 64]);
        for client in clients {
            if taken.is_multiple_of(client.gap) {
                client.asked += 1;
                client.admitted += u64::from(self.send(client.address));
            }
        }
    }
}

/// The part that is promised here of a client that asks for less than half of its share.
const SERVED: f64 = 0.98;
/// Where others take this thread's CPU, all sources save credit up meanwhile, and use it at once
/// after that. So the best of some tries counts. (Beside builds 0.955 was seen, while clients
/// still asked by the kernel's clock.)
const TRIES: u32 = 4;

/// More frames than a source has credit for, and those that are judged after that.
const SPENT: u32 = 2000;
const JUDGED: u32 = 50;

/// The first part that is enough, or the best of some tries.
fn best_of_some(mut served: impl FnMut() -> f64) -> f64 {
    let mut best = 0.0;
    for _ in 0..TRIES {
        best = served().max(best);
        if best > SERVED {
            break;
        }
    }
    best
}

/// What this client gets beside a flood, of a guard that knows nobody.
fn served_beside(
    address: impl Into<IpAddr>,
    gap: u64,
    flood: impl Fn(Duration, usize, &mut Rng) -> IpAddr + Send,
) -> f64 {
    let mut part = 0.0;
    let client = Client::new(address, gap);
    with_guard(|guard| {
        let mut clients = [client];
        Flooded::new(guard).run(&mut clients, flood);
        part = clients[0].part();
    });
    part
}

fn v4(network: u8, subnet: u8, host: u8) -> Ipv4Addr {
    Ipv4Addr::new(20, network, subnet, host)
}

/// What is kept of a queue that was full a moment ago. A flood spends what it has saved before it is
/// judged, and saves again while others have this thread's CPU: so one of some tries counts.
#[test]
fn a_queue_that_was_full_has_room_for_others_above_its_watermark() {
    const LOUD: Ipv4Addr = Ipv4Addr::new(20, 1, 1, 1);
    with_guard(|guard| {
        let mut flooded = Flooded::new(guard);
        flooded.run(&mut [], |_, _, _| LOUD.into());
        let mut newcomers = (1..).map(|network| v4(100 + network, 1, 1));
        for (percent, takes_loud, takes_others) in [
            (45, true, true),
            (65, true, true),
            (75, false, true),
            (90, false, false),
        ] {
            let is_kept = (0..TRIES).any(|_| {
                flooded.resize(percent);
                let other = newcomers.next().unwrap();
                let takes_other = flooded.is_admitted(other.into());
                for _ in 0..SPENT {
                    flooded.is_admitted(LOUD.into());
                }
                let mut judged = (0..JUDGED).map(|_| flooded.is_admitted(LOUD.into()));
                takes_other == takes_others && judged.all(|takes| takes == takes_loud)
            });
            assert!(is_kept, "{percent} % of the buffer");
        }
    });
}

/// For a program that reads packets some pass that find no room. Those that would take another source's
/// room do not, and so neither does a flood of a server that reads.
#[test]
fn for_readers_only_such_packets_pass_as_take_nobody_s_room() {
    const LOUD: Ipv4Addr = Ipv4Addr::new(20, 1, 1, 1);
    with_guard(|guard| {
        let mut flooded = Flooded::new(guard);
        flooded.run(&mut [], |_, _, _| LOUD.into());
        flooded.guard.program.set_readers(true);
        for (percent, pass) in [(75, false), (120, true)] {
            let are_as_said = (0..TRIES).any(|_| {
                flooded.resize(percent);
                for _ in 0..SPENT {
                    flooded.is_admitted(LOUD.into());
                }
                let begun = Instant::now();
                let mut passed = 0;
                while begun.elapsed() < 4 * KERNEL_TICK {
                    passed += u128::from(flooded.is_admitted(LOUD.into()));
                }
                let ticks = begun.elapsed().as_nanos() >> TICK_SHIFT;
                let of_tick = u128::from(limit::READERS_PACKETS.0);
                // This thread may have had the CPU in one of the ticks alone.
                match pass {
                    true => passed >= of_tick,
                    false => passed * 4 < of_tick * ticks,
                }
            });
            assert!(are_as_said, "{percent} % of the buffer");
        }
    });
}

/// Two clients are known. One's address is forged by a flood, and somebody unknown floods as
/// well. All known ones together have half of what the server takes.
#[test]
fn whoever_forges_a_known_client_gets_its_share_and_no_more() {
    const FORGED: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 7);
    const OTHER: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 8);
    let forged = || {
        let mut part = 0.0;
        with_guard(|guard| {
            let mut flooded = Flooded::new(guard);
            flooded.know(&[FORGED.into(), OTHER.into()]);
            let mut clients = [Client::new(OTHER, 15), Client::new(v4(1, 1, 1), 30)];
            let got = flooded.run(&mut clients, |_, number, _| {
                let unknown = v4(2, 1, 1);
                if number % 2 == 0 { FORGED } else { unknown }.into()
            });
            let [known, unknown] = &clients;
            part = known.part().min(unknown.part());
            let forged: u64 = got.admitted.iter().step_by(2).sum();
            let all = (got.admitted() + known.admitted + unknown.admitted) as f64;
            // A sixteenth is out of profile and goes to whoever comes first. The tenth is as
            // core's own test of this allows.
            let most = 1.1 * (all / 2.0 - known.admitted as f64 + all / 16.0);
            assert!((forged as f64) < most, "{forged} of {all}, at most {most}");
            // It has gained something, or nothing was tested.
            assert!(forged as f64 > all / 4.0, "{forged} of {all}");
        });
        part
    };
    let part = best_of_some(forged);
    assert!(part > SERVED, "the one that lost more: {part}");
}

/// The address with a number.
type Place = fn(u32) -> Ipv4Addr;

/// All sixteen addresses of a flood are new four times a second, and in the last run ten times.
#[test]
fn slow_rotation_of_addresses_gains_little() {
    let places: [(u128, Place); 4] = [
        (250, |number| v4(1, 1, number as u8)),
        (250, |number| v4(1, number as u8, 1)),
        (250, |number| Ipv4Addr::from(0x1400_0101 + (number << 16))),
        (100, |number| Ipv4Addr::from(0x1400_0101 + (number << 16))),
    ];
    for (level, (millis, place)) in places.into_iter().enumerate() {
        let part = best_of_some(|| {
            served_beside(Ipv4Addr::new(192, 0, 2, 7), 40, |now, number, _| {
                let round = (now.as_millis() / millis) as u32;
                place(round * ROUND as u32 + number as u32).into()
            })
        });
        assert!(part > SERVED, "place {level}: {part}");
    }
}

/// A flood has a /64 to itself and draws the interface identifier of each packet. Its neighbour
/// has another /64 of the same /48.
#[test]
fn random_interface_ids_are_one_subnet() {
    let subnet = |number: u128| 0x2001_0db8_0001_u128 << 80 | number << 64;
    let neighbour = Ipv6Addr::from_bits(subnet(3) | 1);
    let part = best_of_some(|| {
        served_beside(neighbour, 10, |_, _, random| {
            Ipv6Addr::from_bits(subnet(2) | u128::from(random.u64(..))).into()
        })
    });
    assert!(part > SERVED, "{part}");
}

/// The set of the table of hosts that an unknown source of the server has under these keys.
fn set_of(keys: &[u64], source: Ipv4Addr) -> usize {
    let key = |number: usize| keys[number];
    let channel = key(Keys::CHANNEL).wrapping_mul(u64::from(SLOT_SOCKETS));
    let word = key(Keys::WORDS + 3).wrapping_mul(u64::from(source.to_bits()));
    let sum = key(Keys::FIRST).wrapping_add(channel).wrapping_add(word);
    let cpus = libbpf_rs::num_possible_cpus().unwrap();
    Keys::hash(sum) as usize & (FairnessConfig::for_cpus(cpus).host_sets - 1)
}

/// Twice as many as a set has entries.
const AIMED: usize = 8;
/// As [`TIMES`]: the server is slow here. Beside one that takes more than some 950 datagrams a
/// second the entries of one set have a packet in each tick, and a newcomer finds it. (With 200
/// it takes more than that on a quiet machine, and the victim kept 0.75 to 0.99.)
const AIMED_TIMES: u64 = 1000;

/// Addresses that collide with the victim under these keys, each in a network of its own.
fn aimed_at(victim: Ipv4Addr, keys: &[u64]) -> Vec<Ipv4Addr> {
    let set = set_of(keys, victim);
    let in_network = |network: u8| {
        let all = (0..=u32::from(u16::MAX)).map(|host| u32::from(network) << 16 | host);
        let mut all = all.map(|low| Ipv4Addr::from(0x1400_0000 | low));
        all.find(|address| set_of(keys, *address) == set)
    };
    (0..=u8::MAX).filter_map(in_network).take(AIMED).collect()
}

/// With the secret, a few addresses take a client's entry away again and again. Without it,
/// they are sources as any other.
#[test]
fn nobody_can_aim_at_a_client_without_the_secret() {
    const VICTIM: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 7);
    let served = |keys_of: fn(&mut Guard<'_>) -> Vec<u64>| {
        let mut part = 0.0;
        with_guard(|guard| {
            let aimed = aimed_at(VICTIM, &keys_of(guard));
            assert_eq!(aimed.len(), AIMED);
            let mut client = [Client::new(VICTIM, 20)];
            let mut flooded = Flooded::new(guard);
            flooded.times = AIMED_TIMES;
            flooded.run(&mut client, |_, number, _| aimed[number % AIMED].into());
            part = client[0].part();
        });
        part
    };
    let with = served(|guard| guard.program.settings().fair_keys.to_vec());
    assert!(with < 0.5, "with the secret it is starved: {with}");
    let without = best_of_some(|| {
        served(|guard| {
            let mut random = Rng::with_seed(8);
            let keys = guard.program.settings().fair_keys;
            keys.iter().map(|_| random.u64(..)).collect()
        })
    });
    assert!(without > SERVED, "{without}");
}
