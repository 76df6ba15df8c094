//! Many honest clients in one process: each has an address and a rate of its own, asks
//! on a fixed schedule, and does not care what became of earlier questions.
//!
//! Every question is a DNS query ([`crate::dns`]), so that a name server answers it and
//! an echo returns it; both keep its identification, by which an answer is found again.
//! The whole log is kept ([`Report::queries`]): who asked when, and how long the answer
//! took. Shares, starvation and first losses are functions of that log.
//!
//! One socket sends for all of them (`IP_PKTINFO`, ip(7)); the addresses must be the
//! host's own ([`crate::Testbed::own`]). As with [`crate::probe`], time counts from when
//! a question was due.
//!
//! Limits: IPv4, one source port for all, and at most [`OPEN_MAX`] questions within a
//! timeout.

use std::io::{self, IoSlice};
use std::net::{Ipv4Addr, SocketAddrV4, UdpSocket};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::libc::in_pktinfo;
use nix::sys::socket::{ControlMessage, MsgFlags, SockaddrIn, sendmsg, setsockopt, sockopt};

use crate::error::{check, check_times};
use crate::probe::{become_realtime, receive_until};
use crate::{Error, dns};

/// Most questions that can wait for their answer at once: a DNS message's
/// identification has 16 bits.
pub const OPEN_MAX: f64 = 60_000.0;
/// Most questions of a run.
const QUERIES_MAX: f64 = 10e6;
/// Spreads the clients' first questions evenly, in whatever order they are.
const GOLDEN_RATIO: f64 = 0.618_033_988_749_895;
const RCVBUF_BYTES: usize = 32 << 20;

/// One client.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Client {
    /// Where it asks from.
    pub address: Ipv4Addr,
    /// Questions per second, evenly spaced.
    pub rate_qps: f64,
}

/// Who asks whom, and for how long.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// The server.
    pub target: SocketAddrV4,
    /// At least one.
    pub clients: Vec<Client>,
    /// How long to ask, 10 ms to ten minutes.
    pub duration: Duration,
    /// How long an answer may take, 1 ms to 10 s.
    pub timeout: Duration,
    /// Whether to ask for real-time scheduling (`SCHED_FIFO`).
    pub realtime: bool,
}

impl Config {
    fn validate(&self) -> Result<(), Error> {
        let total: f64 = self.clients.iter().map(|client| client.rate_qps).sum();
        let rates = self.clients.iter().map(|client| client.rate_qps);
        let rates_valid = rates
            .min_by(f64::total_cmp)
            .is_some_and(|least| least > 0.0);
        let open = total * self.timeout.as_secs_f64();
        let queries = total * self.duration.as_secs_f64();
        check(
            rates_valid && open <= OPEN_MAX && queries <= QUERIES_MAX,
            "clients",
            &format_args!("{total} questions/s of {}", self.clients.len()),
            "rates above 0, at most 60000 questions within a timeout, and 10 million in all",
        )?;
        check_times(self.duration, self.timeout)
    }

    /// All questions, in the order in which they are due.
    fn schedule(&self) -> Vec<Query> {
        let mut queries = Vec::new();
        for (client, Client { rate_qps, .. }) in self.clients.iter().enumerate() {
            let gap = 1.0 / rate_qps;
            let phase = (client as f64 * GOLDEN_RATIO).fract();
            let due = (0..).map(|nth| Duration::from_secs_f64((f64::from(nth) + phase) * gap));
            queries.extend(due.take_while(|due| *due < self.duration).map(|due| Query {
                client,
                due,
                answered_after: None,
            }));
        }
        queries.sort_by_key(|query| query.due);
        queries
    }
}

/// A question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Query {
    /// Index of the client.
    pub client: usize,
    /// When it was due, from the start of the run.
    pub due: Duration,
    /// How long the answer took from then; nothing if none came in time.
    pub answered_after: Option<Duration>,
}

/// What became of the questions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// In the order in which they were due.
    pub queries: Vec<Query>,
    /// How many clients there were.
    pub clients: usize,
    /// Questions that the local kernel refused to send; they count as not answered.
    pub send_errors: u64,
}

/// What one client asked and got.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Questions.
    pub asked: u64,
    /// Those answered in time.
    pub answered: u64,
}

impl Report {
    /// What each client asked and got.
    #[must_use]
    pub fn by_client(&self) -> Vec<Tally> {
        let mut tallies = vec![Tally::default(); self.clients];
        for query in &self.queries {
            let tally = &mut tallies[query.client];
            tally.asked += 1;
            tally.answered += u64::from(query.answered_after.is_some());
        }
        tallies
    }

    /// What all of them asked and got.
    #[must_use]
    pub fn total(&self) -> Tally {
        let answered = self
            .queries
            .iter()
            .filter(|query| query.answered_after.is_some());
        Tally {
            asked: self.queries.len() as u64,
            answered: answered.count() as u64,
        }
    }

    /// The longest time that any client went without an answer: from its first question,
    /// or an answered one, to the next answered one, or to its last.
    #[must_use]
    pub fn longest_without(&self) -> Duration {
        let mut since: Vec<Option<Duration>> = vec![None; self.clients];
        let mut longest = Duration::ZERO;
        for query in &self.queries {
            let since = &mut since[query.client];
            longest = longest.max(query.due - since.unwrap_or(query.due));
            if query.answered_after.is_some() || since.is_none() {
                *since = Some(query.due);
            }
        }
        longest
    }
}

/// Asks from the calling thread, in its namespace, until the last answer can no longer
/// come in time.
///
/// # Errors
///
/// [`Error::Config`], [`Error::Io`] if an address is not the host's own,
/// [`Error::Interrupted`].
pub fn run(config: &Config) -> Result<Report, Error> {
    config.validate()?;
    let socket = open().map_err(Error::io("open a socket for many clients"))?;
    if config.realtime {
        become_realtime();
    }
    // Timers of ordinary threads may fire 50 µs late, to save power.
    nix::sys::prctl::set_timerslack(1).map_err(Error::io("ask for exact timers"))?;
    let mut run = Run {
        config,
        socket,
        log: Log {
            queries: config.schedule(),
            latest: vec![None; 1 << 16].into(),
        },
        payload: dns::query(0),
        send_errors: 0,
        begun: Instant::now(),
    };
    run.ask_all()?;
    Ok(Report {
        queries: run.log.queries,
        clients: config.clients.len(),
        send_errors: run.send_errors,
    })
}

fn open() -> io::Result<UdpSocket> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
    socket.set_nonblocking(true)?;
    // Answers must not be lost here. Without root the usual buffer has to do.
    let _ = setsockopt(&socket, sockopt::RcvBufForce, &RCVBUF_BYTES);
    Ok(socket)
}

/// A run under way.
struct Run<'a> {
    config: &'a Config,
    socket: UdpSocket,
    log: Log,
    payload: Vec<u8>,
    send_errors: u64,
    begun: Instant,
}

/// Who asked when, and what was answered.
struct Log {
    queries: Vec<Query>,
    /// By identification: the latest question that had it.
    latest: Box<[Option<usize>]>,
}

impl Run<'_> {
    fn ask_all(&mut self) -> Result<(), Error> {
        self.begun = Instant::now();
        for number in 0..self.log.queries.len() {
            self.receive_until(self.log.queries[number].due)?;
            self.ask(number)?;
        }
        self.receive_until(self.config.duration + self.config.timeout)
    }

    fn ask(&mut self, number: usize) -> Result<(), Error> {
        let client = &self.config.clients[self.log.queries[number].client];
        let identification = number as u16;
        self.log.latest[usize::from(identification)] = Some(number);
        self.payload[..2].copy_from_slice(&identification.to_be_bytes());
        let from = in_pktinfo {
            ipi_ifindex: 0,
            ipi_spec_dst: nix::libc::in_addr {
                s_addr: u32::from(client.address).to_be(),
            },
            ipi_addr: nix::libc::in_addr { s_addr: 0 },
        };
        let sent = sendmsg(
            self.socket.as_raw_fd(),
            &[IoSlice::new(&self.payload)],
            &[ControlMessage::Ipv4PacketInfo(&from)],
            MsgFlags::empty(),
            Some(&SockaddrIn::from(self.config.target)),
        );
        match sent {
            Ok(_) => Ok(()),
            Err(errno @ (Errno::EINVAL | Errno::ENETUNREACH | Errno::EADDRNOTAVAIL)) => {
                Err(Error::io(format!("ask from {}", client.address))(errno))
            }
            // An earlier question was refused, or a queue is full.
            Err(_) => {
                self.send_errors += 1;
                Ok(())
            }
        }
    }

    /// Takes answers until `end`, a time from the start of the run.
    fn receive_until(&mut self, end: Duration) -> Result<(), Error> {
        let target = self.config.target.into();
        let (log, timeout) = (&mut self.log, self.config.timeout);
        receive_until(&self.socket, self.begun, end, |answer, from, now| {
            if from == target {
                log.on_answer(answer, now, timeout);
            }
        })
    }
}

impl Log {
    fn on_answer(&mut self, answer: &[u8], now: Duration, timeout: Duration) {
        let Some(identification) = answer.first_chunk::<2>() else {
            return;
        };
        let identification = u16::from_be_bytes(*identification);
        let Some(number) = self.latest[usize::from(identification)] else {
            return;
        };
        let query = &mut self.queries[number];
        let after = now.saturating_sub(query.due);
        if query.answered_after.is_none() && after <= timeout {
            query.answered_after = Some(after);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn config() -> Config {
        let client = |last, rate_qps| Client {
            address: Ipv4Addr::new(70, 0, 0, last),
            rate_qps,
        };
        Config {
            target: SocketAddrV4::new(Ipv4Addr::LOCALHOST, 53),
            clients: vec![client(1, 1.0), client(2, 10.0)],
            duration: 3 * SECOND,
            timeout: SECOND,
            realtime: false,
        }
    }

    #[test]
    fn every_client_asks_at_its_own_rate_in_order() {
        let queries = config().schedule();
        assert!(queries.is_sorted_by_key(|query| query.due));
        let of = |client| queries.iter().filter(move |query| query.client == client);
        assert_eq!(of(0).count(), 3);
        assert_eq!(of(1).count(), 30);
        let mut due = of(1).map(|query| query.due);
        let gap = due.nth(1).unwrap().as_secs_f64() - of(1).next().unwrap().due.as_secs_f64();
        assert!((gap - 0.1).abs() < 1e-9, "{gap}");
    }

    #[test]
    fn values_out_of_range_are_named() {
        let mut config = config();
        config.validate().unwrap();
        config.clients[0].rate_qps = 0.0;
        let error = config.validate().unwrap_err().to_string();
        assert_eq!(
            error,
            "clients = 10 questions/s of 2: must be rates above 0, at most 60000 questions \
             within a timeout, and 10 million in all"
        );
        config.clients.clear();
        assert!(config.validate().is_err());
    }

    #[test]
    fn tallies_and_the_longest_wait_are_read_from_the_log() {
        let query = |client, at: u64, answered: bool| Query {
            client,
            due: Duration::from_secs(at),
            answered_after: answered.then_some(Duration::from_millis(1)),
        };
        let report = Report {
            queries: vec![
                query(0, 0, false),
                query(1, 1, true),
                query(0, 2, true),
                query(0, 3, true),
                query(1, 4, false),
                query(0, 4, true),
                query(1, 6, false),
            ],
            clients: 3,
            send_errors: 0,
        };
        let tally = |asked, answered| Tally { asked, answered };
        assert_eq!(report.by_client(), [tally(4, 3), tally(3, 1), tally(0, 0)]);
        assert_eq!(report.total(), tally(7, 4));
        // The second client: answered at 1, asked in vain until 6.
        assert_eq!(report.longest_without(), Duration::from_secs(5));
    }
}
