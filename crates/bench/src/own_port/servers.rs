//! The flooded servers and their honest clients: NSD with dnsperf, an echo, and nginx
//! with new connections.

use std::net::SocketAddr;
use std::time::Duration;

use plimsoll_testbed::blast::Spec;
use plimsoll_testbed::crowd::{self, Client};
use plimsoll_testbed::dns::{DnsLoad, Nsd, run_dnsperf};
use plimsoll_testbed::http::{HttpLoad, Nginx, run_wrk};
use plimsoll_testbed::server::{Config as ServerConfig, Kind, Server};
use plimsoll_testbed::{connect, interrupt};
use serde::Serialize;

use super::floods::{SourcesFlood, one_client, slow_clients};
use crate::Error;
use crate::nftables::Limit;
use crate::protection::{Protector, Stage};
use crate::traffic::counting_answers;
use crate::traffic::{during, on_load_host};
use crate::udp::ECHO_PORT;
use crate::web::NGINX_PORT;

pub(crate) const DNS_PORT: u16 = 53;
/// The echo's work per packet.
const ECHO_WORK: Duration = Duration::from_micros(5);
const RCVBUF_BYTES: usize = 4 << 20;
/// The honest client's queries/s. One of 17 networks, it asks for less than its share
/// even while discarding takes half of the CPU.
pub(crate) const CLIENT_QPS: u32 = 1_000;
/// Its new connections/s.
const CLIENT_CPS: u32 = 500;
pub(crate) const QUERY_TIMEOUT: Duration = Duration::from_millis(500);
/// Long enough for one repetition of a lost SYN.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// A client that is known from before has been there this long: the guard wants to have served
/// it in three periods of four seconds.
const KNOWN_SECONDS: u32 = 12;
/// Floods of its own port that look for a server's highest answer rate.
pub(crate) const CAPACITY_RATES_PPS: [u64; 4] = [60_000, 120_000, 180_000, 240_000];
/// Connections that look for nginx's.
const CAPACITY_CONNECTIONS: u32 = 32;

/// Who is flooded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum SourcesServer {
    /// NSD; dnsperf asks it.
    Nsd,
    /// An echo over UDP.
    Echo,
    /// nginx; new connections.
    Nginx,
}

impl SourcesServer {
    pub(crate) const ALL: [Self; 3] = [Self::Nsd, Self::Echo, Self::Nginx];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Nsd => "nsd",
            Self::Echo => "echo",
            Self::Nginx => "nginx",
        }
    }

    /// What is asked of it, for a goal's text.
    pub(crate) const fn asked(self) -> &'static str {
        match self {
            Self::Nsd | Self::Echo => "queries",
            Self::Nginx => "connections",
        }
    }

    /// The floods that make sense: slow TCP clients with addresses of their own would
    /// need a TCP of their own.
    pub(crate) fn floods(self) -> impl Iterator<Item = SourcesFlood> {
        let all = SourcesFlood::ALL.into_iter();
        all.filter(move |flood| self != Self::Nginx || *flood != SourcesFlood::Many)
    }

    /// A packet filter's limit of each source.
    pub(crate) fn limit(self, rate_pps: u64) -> Limit {
        match self {
            Self::Nsd => Limit::of_each_source(&format!("udp dport {DNS_PORT}"), rate_pps),
            Self::Echo => Limit::of_each_source(&format!("udp dport {ECHO_PORT}"), rate_pps),
            Self::Nginx => Limit::of_each_source(
                &format!("tcp dport {NGINX_PORT} tcp flags & (syn|ack) == syn"),
                rate_pps,
            ),
        }
    }
}

/// What the honest client got, and the server gave, in one run.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Served {
    pub(crate) offered_pps: f64,
    pub(crate) asked: u64,
    pub(crate) answered: u64,
    pub(crate) seconds: f64,
    /// The server's answers to anybody; nothing for nginx, whose answers to SYNs are
    /// not its work.
    pub(crate) answers_per_s: Option<f64>,
    /// Sources that the guard knew when the flood of [`SourcesFlood::Known`] began.
    pub(crate) known_sources: Option<u64>,
}

impl Served {
    pub(crate) fn percent(&self) -> f64 {
        100.0 * self.answered as f64 / self.asked.max(1) as f64
    }

    pub(crate) fn answered_per_s(&self) -> f64 {
        self.answered as f64 / self.seconds
    }
}

/// A server that runs.
pub(crate) enum Running {
    Nsd(Nsd),
    Echo {
        /// Ends with this.
        _server: Server,
    },
    Nginx(Nginx),
}

impl Running {
    pub(crate) fn start(server: SourcesServer, stage: &Stage<'_>) -> Result<Self, Error> {
        let host = stage.host();
        Ok(match server {
            SourcesServer::Nsd => Self::Nsd(Nsd::start(host, DNS_PORT)?),
            SourcesServer::Echo => Self::Echo {
                _server: start_echo(stage, ECHO_WORK, RCVBUF_BYTES)?,
            },
            SourcesServer::Nginx => Self::Nginx(Nginx::start(host, NGINX_PORT)?),
        })
    }

    /// The most answers, or new connections, per second on the stock host.
    pub(crate) fn capacity(&self, stage: &Stage<'_>, window: Duration) -> Result<f64, Error> {
        stage.stock()?;
        let port = match self {
            Self::Nginx(nginx) => {
                let load = HttpLoad {
                    connections: CAPACITY_CONNECTIONS,
                    seconds: 1,
                    keep_alive: false,
                    patience: CONNECT_TIMEOUT,
                };
                let result = run_wrk(stage.testbed.load(), nginx.address(), load)?;
                return Ok(result.requests_per_second);
            }
            Self::Nsd(_) => DNS_PORT,
            Self::Echo { .. } => ECHO_PORT,
        };
        let mut most: f64 = 0.0;
        for rate_pps in CAPACITY_RATES_PPS {
            let spec = SourcesFlood::Networks.queries(stage, port, rate_pps);
            let (_, answers) = during(stage, Some(&spec), || {
                let sleep = || Ok(interrupt::sleep(window)?);
                Ok(counting_answers(stage.host(), sleep)?.1)
            })?;
            most = most.max(answers);
        }
        Ok(most)
    }

    /// The honest client asks while the flood runs, if its rate is not 0; for [`SourcesFlood::Known`] it also
    /// asked before. Ends the protection.
    pub(crate) fn serve(
        &self,
        stage: &Stage<'_>,
        protector: Protector<'_>,
        flood: SourcesFlood,
        rate_pps: u64,
        seconds: u32,
    ) -> Result<Served, Error> {
        let known_sources = self.become_known(stage, &protector, flood)?;
        let spec = (rate_pps > 0).then(|| self.spec(stage, flood, rate_pps));
        let (report, (asked, answers_per_s)) = during(stage, spec.as_ref(), || {
            counting_answers(stage.host(), || self.ask(stage, flood, seconds))
        })?;
        protector.stop()?;
        let (asked, answered) = asked;
        Ok(Served {
            offered_pps: report.map_or(0.0, |report| report.offered_pps),
            asked,
            answered,
            seconds: seconds.into(),
            answers_per_s: (!matches!(self, Self::Nginx(_))).then_some(answers_per_s),
            known_sources,
        })
    }

    /// The honest client asks before the flood, if somebody learns from it. How many sources
    /// are known then.
    fn become_known(
        &self,
        stage: &Stage<'_>,
        protector: &Protector<'_>,
        flood: SourcesFlood,
    ) -> Result<Option<u64>, Error> {
        let (SourcesFlood::Known, Protector::Guard(guard)) = (flood, protector) else {
            return Ok(None);
        };
        self.ask(stage, flood, KNOWN_SECONDS)?;
        guard.new_lines()?;
        Ok(Some(guard.next_line()?.known_sources))
    }

    fn spec(&self, stage: &Stage<'_>, flood: SourcesFlood, rate_pps: u64) -> Spec {
        match self {
            Self::Nsd(_) => flood.queries(stage, DNS_PORT, rate_pps),
            Self::Echo { .. } => flood.queries(stage, ECHO_PORT, rate_pps),
            Self::Nginx(_) => flood.syns(stage, NGINX_PORT, rate_pps),
        }
    }

    /// What the honest asked, and how much of it was answered.
    fn ask(
        &self,
        stage: &Stage<'_>,
        flood: SourcesFlood,
        seconds: u32,
    ) -> Result<(u64, u64), Error> {
        let (target, clients) = match (self, flood) {
            (Self::Nginx(nginx), _) => return connect_to(stage, nginx.address(), seconds),
            (Self::Nsd(nsd), SourcesFlood::Many) => (nsd.address(), slow_clients()),
            (Self::Nsd(nsd), _) => {
                let load = DnsLoad {
                    rate_qps: CLIENT_QPS,
                    seconds,
                    timeout: QUERY_TIMEOUT,
                };
                let result = run_dnsperf(stage.testbed.load(), nsd.address(), load)?;
                return Ok((result.sent, result.completed.min(result.sent)));
            }
            (Self::Echo { .. }, SourcesFlood::Many) => (echo_address(stage), slow_clients()),
            (Self::Echo { .. }, _) => {
                let client = one_client(stage.testbed, CLIENT_QPS.into());
                (echo_address(stage), client)
            }
        };
        let report = ask_as(stage, target, clients, Duration::from_secs(seconds.into()))?;
        let total = report.total();
        Ok((total.asked, total.answered))
    }
}

/// An echo that works on every packet.
pub(crate) fn start_echo(
    stage: &Stage<'_>,
    work: Duration,
    rcvbuf_bytes: usize,
) -> Result<Server, Error> {
    let mut config = ServerConfig::new(Kind::Echo, ECHO_PORT);
    config.work = work;
    config.rcvbuf_bytes = Some(rcvbuf_bytes);
    Ok(Server::start(stage.host(), stage.program, &config)?)
}

fn echo_address(stage: &Stage<'_>) -> SocketAddr {
    SocketAddr::new(stage.host().ipv4().into(), ECHO_PORT)
}

/// Honest clients ask for `duration`.
pub(crate) fn ask_as(
    stage: &Stage<'_>,
    target: SocketAddr,
    clients: Vec<Client>,
    duration: Duration,
) -> Result<crowd::Report, Error> {
    let SocketAddr::V4(target) = target else {
        unreachable!("servers of the bench have IPv4 addresses")
    };
    let config = crowd::Config {
        target,
        clients,
        duration,
        timeout: QUERY_TIMEOUT,
        realtime: true,
    };
    on_load_host(stage, || crowd::run(&config))
}

fn connect_to(stage: &Stage<'_>, target: SocketAddr, seconds: u32) -> Result<(u64, u64), Error> {
    let config = connect::Config {
        target,
        rate_pps: CLIENT_CPS,
        duration: Duration::from_secs(seconds.into()),
        timeout: CONNECT_TIMEOUT,
        realtime: true,
    };
    let report = on_load_host(stage, || connect::run(&config))?;
    Ok((report.attempts, report.succeeded))
}
