//! Sources of a listener: floods of real connections, and of forged SYNs.

use core::time::Duration;

use super::*;

const CAPACITY: u32 = 128;
/// How long a handshake takes, in ticks, of a client that ends it.
const ROUND_TRIP_TICKS: u64 = 1;
/// … and of one that never does.
const TIMEOUT_TICKS: u64 = 700;

/// A server that accepts `rate` connections a second.
struct Listener {
    fairness: Fairness,
    share: Share,
    random: Random,
    rate: f64,
    now: Instant,
    accepted: f64,
    accept_queue: f64,
    /// When each handshake ends, and whether the client ends it.
    handshakes: Vec<(u64, bool)>,
    cookies: bool,
}

/// Clients, their SYNs in a tick on average, and whether they end their handshakes.
type Clients = [(Sender, f64, bool)];

/// Connections and SYNs of each client.
#[derive(Debug, Default, Clone, Copy)]
struct Served {
    offered: u32,
    /// With a place in the SYN queue.
    admitted: u32,
    /// By cookie, and with a place in the accept queue.
    by_cookie: u32,
}

impl Served {
    fn part(&self) -> f64 {
        f64::from(self.admitted + self.by_cookie) / f64::from(self.offered)
    }
}

impl Listener {
    fn new(rate: f64, cookies: bool) -> Self {
        Self {
            fairness: Fairness::new(&FairnessConfig::DEFAULT, KEYS).unwrap(),
            share: Share::default(),
            random: Random(11),
            rate,
            now: Instant::from_nanos(7_000_000_000),
            accepted: 0.0,
            accept_queue: 0.0,
            handshakes: Vec::new(),
            cookies,
        }
    }

    fn backlog(&self) -> Backlog {
        Backlog {
            accept_queue: self.accept_queue as u32,
            syn_queue: self.handshakes.len() as u32,
            capacity: CAPACITY,
            cookies: self.cookies,
        }
    }

    /// A tick passes: handshakes end where there is room, the server accepts.
    fn pass(&mut self) {
        self.now += TICK;
        let tick = self.now.as_nanos() >> TICK_SHIFT;
        let Self {
            handshakes,
            accept_queue,
            ..
        } = self;
        handshakes.retain(|(end, ends)| {
            let enters = *ends && *end <= tick && *accept_queue <= f64::from(CAPACITY);
            *accept_queue += f64::from(u8::from(enters));
            !enters && (*ends || *end > tick)
        });
        let accepts = (self.rate * TICK.as_secs_f64()).min(self.accept_queue);
        self.accept_queue -= accepts;
        self.accepted += accepts;
    }

    fn syn(&mut self, sender: &Sender, ends: bool, served: &mut Served) {
        let request = Request {
            channel: 3,
            source: sender.source(&mut self.random),
            known: sender.known,
        };
        let tick = self.now.as_nanos() >> TICK_SHIFT;
        served.offered += 1;
        let backlog = self.backlog();
        let (fairness, share) = (&mut self.fairness, &mut self.share);
        match fairness.judge_syn(share, &request, &backlog, self.now) {
            SynVerdict::Admitted => {
                served.admitted += 1;
                let lasts = if ends {
                    ROUND_TRIP_TICKS
                } else {
                    TIMEOUT_TICKS
                };
                self.handshakes.push((tick + lasts, ends));
            }
            SynVerdict::Cookie if self.cookies && ends => {
                let verdict = fairness.judge_cookie(share, &request, &backlog, self.now);
                if verdict == Verdict::Admitted && self.accept_queue <= f64::from(CAPACITY) {
                    served.by_cookie += 1;
                    self.accept_queue += 1.0;
                }
            }
            _ => {}
        }
    }

    fn run(&mut self, clients: &Clients, ticks: u32) -> Vec<Served> {
        let mut served = std::vec![Served::default(); clients.len()];
        for _ in 0..ticks {
            self.pass();
            for ((sender, mean, ends), served) in clients.iter().zip(&mut served) {
                let whole = mean.floor();
                let more = (self.random.below(1000) as f64) < (mean - whole) * 1000.0;
                for _ in 0..whole as u32 + u32::from(more) {
                    self.syn(sender, *ends, served);
                }
            }
        }
        served
    }

    /// What the clients get once shares have settled.
    fn settled(&mut self, clients: &Clients) -> Vec<Served> {
        self.run(clients, 600);
        self.accepted = 0.0;
        self.run(clients, 1200)
    }
}

fn client() -> Sender {
    Sender::new(v4(1, 1, 1), 0)
}

/// A burst finds a place as long as there is one, but not where there was none a moment ago.
#[test]
fn while_a_listener_is_pressed_its_last_places_are_kept_at_once() {
    let now = Instant::from_nanos(7_000_000_000);
    let request = Request {
        channel: 3,
        source: IpAddr::from(v4(1, 1, 1)).into(),
        known: false,
    };
    let backlog = Backlog {
        accept_queue: CAPACITY - 1,
        syn_queue: 0,
        capacity: CAPACITY,
        cookies: true,
    };
    let mut fairness = Fairness::new(&FairnessConfig::DEFAULT, KEYS).unwrap();
    let mut share = Share::default();
    let verdict = fairness.judge_syn(&mut share, &request, &backlog, now);
    assert_eq!(verdict, SynVerdict::Admitted);
    share.on_discarded(tick_of(now));
    let verdict = fairness.judge_syn(&mut share, &request, &backlog, now);
    assert_eq!(verdict, SynVerdict::SourceShare);
}

#[test]
fn a_client_connects_beside_one_that_connects_without_end() {
    for cookies in [false, true] {
        let mut listener = Listener::new(500.0, cookies);
        let loud = Sender::new(v4(9, 9, 9), 0);
        let served = listener.settled(&[(loud, 40.0, true), (client(), 0.2, true)]);
        assert!(served[1].part() > 0.97, "{served:?}");
        // 500 a second in 1,200 ticks of 4.2 ms.
        let whole = 500.0 * 1200.0 * TICK.as_secs_f64();
        assert!(listener.accepted > 0.95 * whole, "{}", listener.accepted);
    }
}

#[test]
fn a_client_connects_beside_many_in_one_network() {
    let mut listener = Listener::new(500.0, false);
    let mut loud = Sender::new(v4(9, 9, 9), 0);
    loud.hides = Hides::InItsNetwork;
    let served = listener.settled(&[(loud, 40.0, true), (client(), 0.2, true)]);
    assert!(served[1].part() > 0.97, "{served:?}");
}

/// Nobody may make cookies: only places in the SYN queue count.
#[test]
fn a_known_client_finds_a_place_among_forged_syns() {
    let mut listener = Listener::new(500.0, false);
    let mut forged = Sender::new(v4(9, 9, 9), 0);
    forged.hides = Hides::Anywhere;
    let mut known = client();
    known.known = true;
    let served = listener.settled(&[(forged, 40.0, false), (known, 0.05, true)]);
    assert!(served[1].part() > 0.97, "{served:?}");
    let unknown = listener.settled(&[(forged, 40.0, false), (client(), 0.05, true)]);
    assert!(unknown[1].part() < 0.5, "nothing tells it from forged ones");
}

/// Whoever finds no place gets through without.
#[test]
fn with_cookies_everybody_connects() {
    let mut listener = Listener::new(500.0, true);
    let mut forged = Sender::new(v4(9, 9, 9), 0);
    forged.hides = Hides::Anywhere;
    let served = listener.settled(&[(forged, 40.0, false), (client(), 0.05, true)]);
    assert!(served[1].part() > 0.999, "{served:?}");
}

/// A burst that fits is taken as a host without fairness takes it: up to the kept places
/// of the SYN queue at once, and up to the last place of the accept queue.
#[test]
fn a_burst_that_fits_is_admitted() {
    let at_once = CAPACITY - CAPACITY / BACKLOG_KEPT_PARTS;
    for (bursts, syns) in [(1, at_once), (8, CAPACITY / 8)] {
        let mut listener = Listener::new(0.0, false);
        let mut served = Served::default();
        for _ in 0..bursts {
            listener.pass();
            for _ in 0..syns {
                listener.syn(&client(), true, &mut served);
            }
        }
        assert_eq!(served.admitted, bursts * syns, "{served:?}");
    }
}

proptest! {
    /// Whoever sends, a full queue admits nobody, and one that is far from full everybody.
    #[test]
    fn full_queues_and_empty_ones_decide_alone(
        cookies: bool,
        packets in prop::collection::vec((any::<u8>(), 0_u32..200, 0_u32..200, 0_u64..3000), 1..600),
    ) {
        let mut listener = Listener::new(0.0, false);
        for (host, accept_queue, syn_queue, gap_us) in packets {
            listener.now += Duration::from_micros(gap_us);
            let backlog = Backlog { accept_queue, syn_queue, capacity: CAPACITY, cookies };
            let source = IpAddr::from(v4(1, 1, host)).into();
            let request = Request { channel: 3, source, known: host < 3 };
            let (fairness, share) = (&mut listener.fairness, &mut listener.share);
            let verdict = fairness.judge_syn(share, &request, &backlog, listener.now);
            if accept_queue > CAPACITY {
                prop_assert_eq!(verdict, SynVerdict::AcceptQueue);
            } else if syn_queue >= CAPACITY {
                prop_assert_eq!(verdict, SynVerdict::Cookie);
            } else if accept_queue < CAPACITY * 3 / 4 && (cookies || syn_queue < CAPACITY * 7 / 8) {
                prop_assert_eq!(verdict, SynVerdict::Admitted);
            } else {
                prop_assert_ne!(verdict, SynVerdict::Cookie);
            }
        }
    }
}
