//! A server that takes so many datagrams a second, flooded through the program: what its
//! clients get beside those who hide their addresses, aim at entries, or forge a client's.
//! Needs root.
//!
//! The frames are built and judged by the test-run facility. For each that is admitted, the
//! server is sent a datagram, so its queue fills as it would. The flood is as fast as that goes
//! (some ten times what the server takes, and more on an idle machine), and clients ask by the
//! clock. What they ask while this thread has no CPU is left out, as nothing is sent then.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use fastrand::Rng;
use nix::sys::socket::{setsockopt, sockopt};
use plimsoll_core::fairness::{FairnessConfig, Keys};
use plimsoll_packets::frame::Packet;

use super::SLOT_SOCKETS;
use super::test_host::{HOST, KERNEL_TICK, UDP_PORT, unread_server, with_guard};
use crate::Guard;

/// What the server takes, in datagrams per second.
const RATE: u32 = 3000;
/// Half of what the kernel makes of it: room for some 280 datagrams.
const BUFFER_BYTES: usize = 110_000;
/// Frames of the flood between two looks at the clock.
const ROUND: usize = 16;
/// Until the shares have settled, and measured after that.
const SETTLING: Duration = Duration::from_secs(1);
const MEASURED: Duration = Duration::from_secs(3);

/// A client that asks regularly.
struct Client {
    address: IpAddr,
    gap: Duration,
    next: Duration,
    asked: u64,
    admitted: u64,
}

impl Client {
    fn new(address: impl Into<IpAddr>, rate: u32) -> Self {
        Self {
            address: address.into(),
            gap: Duration::from_secs(1) / rate,
            next: Duration::ZERO,
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
    sent: u64,
    /// By the number of the frame in its round.
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
        }
    }

    /// Whether a frame from here is admitted. Then the server's queue holds one more.
    fn send(&mut self, source: IpAddr) -> bool {
        let host = match source {
            IpAddr::V4(_) => IpAddr::from(HOST),
            IpAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
        };
        let frame = Packet::new(source, host).udp(4000, UDP_PORT, b"query");
        let admitted = self.guard.test_run(&frame, 1).unwrap().0;
        if admitted {
            let server = SocketAddr::from((HOST, UDP_PORT));
            self.sender.send_to(&[0; 64], server).unwrap();
        }
        admitted
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

    /// Floods the server: the frame of this number in a round is from there, after so long.
    fn run(
        &mut self,
        clients: &mut [Client],
        mut flood: impl FnMut(Duration, usize, &mut Rng) -> IpAddr,
    ) -> Got {
        let mut random = Rng::with_seed(3);
        let mut got = Got::default();
        let (begun, mut read) = (Instant::now(), 0.0);
        let mut is_settled = false;
        loop {
            let now = begun.elapsed();
            if now >= SETTLING + MEASURED {
                return got;
            }
            if !is_settled && now >= SETTLING {
                is_settled = true;
                got = Got::default();
                for client in &mut *clients {
                    (client.asked, client.admitted) = (0, 0);
                }
            }
            for number in 0..ROUND {
                let source = flood(now, number, &mut random);
                got.admitted[number] += u64::from(self.send(source));
                got.sent += 1;
            }
            for client in &mut *clients {
                let now = begun.elapsed();
                if now >= client.next {
                    client.next = (client.next + client.gap).max(now);
                    client.asked += 1;
                    client.admitted += u64::from(self.send(client.address));
                }
            }
            let due = begun.elapsed().as_secs_f64() * f64::from(RATE);
            while read < due {
                read = match self.server.recv(&mut [0; 64]) {
                    Ok(_) => read + 1.0,
                    // It sleeps until there is something.
                    Err(_) => due,
                };
            }
        }
    }
}

/// The part that is promised here of a client that asks for less than half of its share.
const SERVED: f64 = 0.98;
/// Where others take this thread's CPU, all sources save credit up meanwhile, and use it at once
/// after that: 0.955 was seen beside builds. So the best of some tries counts.
const TRIES: u32 = 4;

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
    rate: u32,
    flood: impl Fn(Duration, usize, &mut Rng) -> IpAddr + Send,
) -> f64 {
    let mut part = 0.0;
    let client = Client::new(address, rate);
    with_guard(|guard| {
        let mut clients = [client];
        let got = Flooded::new(guard).run(&mut clients, flood);
        // Where this thread has too little CPU, its flood is none, and shows nothing.
        if got.sent > 2 * got.admitted() {
            part = clients[0].part();
        }
    });
    part
}

fn v4(network: u8, subnet: u8, host: u8) -> Ipv4Addr {
    Ipv4Addr::new(20, network, subnet, host)
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
            let mut clients = [Client::new(OTHER, 200), Client::new(v4(1, 1, 1), 100)];
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
            served_beside(Ipv4Addr::new(192, 0, 2, 7), 75, |now, number, _| {
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
        served_beside(neighbour, 300, |_, _, random| {
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
    let hash = key(Keys::FIRST).wrapping_add(channel).wrapping_add(word);
    let cpus = libbpf_rs::num_possible_cpus().unwrap();
    (hash >> 32) as usize & (FairnessConfig::for_cpus(cpus).host_sets - 1)
}

/// Eight times as many as a set has entries: with fewer, each would have a packet in a tick, and a
/// newcomer finds that.
const AIMED: usize = 32;

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
            let mut client = [Client::new(VICTIM, 40)];
            Flooded::new(guard).run(&mut client, |_, _, random| {
                aimed[random.usize(..AIMED)].into()
            });
            part = client[0].part();
        });
        part
    };
    // Ten times what it may lose without. (The bound was that it loses half; 0.42 was seen. A
    // part of the packets out of profile is its own, too.)
    let starved = 1.0 - 10.0 * (1.0 - SERVED);
    let mut with = 1.0;
    // Where this thread has so little CPU that its flood is none, nobody loses anything.
    for _ in 0..TRIES {
        with = served(|guard| guard.program.settings().fair_keys.to_vec()).min(with);
        if with < starved {
            break;
        }
    }
    assert!(with < starved, "with the secret: {with}");
    let without = best_of_some(|| {
        served(|guard| {
            let mut random = Rng::with_seed(8);
            let keys = guard.program.settings().fair_keys;
            keys.iter().map(|_| random.u64(..)).collect()
        })
    });
    assert!(without > SERVED, "{without}");
}
