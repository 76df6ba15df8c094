//! The demo's document, and its table for a person.

use std::fmt::Write as _;

use plimsoll_report::page::Figure;
use plimsoll_report::plot::PlotError;
use plimsoll_report::{Goal, Machine, page};
use serde::Serialize;

use super::bars::{Bar, chart};
use super::router::{ROUTERS, RouterCase, RouterScene, name};
use crate::figures::{HostCpu, conclusion, grouped};
use crate::page::{curves_over_flood, loss_percent, over_flood};
use crate::protection::Protection;
use crate::udp::UdpCase;

/// Everything the demo measured.
#[derive(Clone, Debug, Serialize)]
pub struct Document {
    /// Version of this form.
    pub schema: u32,
    /// Where it was measured.
    pub machine: Machine,
    /// The UDP flood.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub udp: Option<Udp>,
    /// The SYN flood.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub syn: Option<Syn>,
    /// The DNS flood.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dns: Option<Dns>,
    /// The flooded router.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub router: Option<RouterScene>,
    /// The promised figures.
    pub goals: Vec<Goal>,
}

/// The UDP flood.
#[derive(Clone, Debug, Serialize)]
pub struct Udp {
    /// Maximum loss-free receive rate of the stock sink, packets/s.
    pub mlfrr_pps: f64,
    /// By flood, stock before guard.
    pub cases: Vec<UdpCase>,
}

/// The SYN flood.
#[derive(Clone, Debug, Serialize)]
pub struct Syn {
    /// The TCP server.
    pub server: String,
    /// By flood, stock before guard.
    pub cases: Vec<SynCase>,
}

/// One flood on the other listener: medians over the runs.
#[derive(Clone, Debug, Serialize)]
pub struct SynCase {
    /// What stood in between.
    pub protection: Protection,
    /// SYN/s that the generator achieved.
    pub offered_pps: f64,
    /// Requests that nginx answered, per second.
    pub requests_per_s: f64,
    /// 99th percentile of their latency in microseconds, as the closed-loop
    /// client sees it.
    pub p99_us: f64,
    /// Where the host's CPU went. What it left idle, the client could not use.
    pub host_cpu: HostCpu,
}

/// The DNS flood.
#[derive(Clone, Debug, Serialize)]
pub struct Dns {
    /// Queries per second of the honest client.
    pub queries_per_s: u32,
    /// Who floods.
    pub flood: &'static str,
    /// By flood, stock before guard.
    pub cases: Vec<DnsCase>,
}

/// One flood on the DNS server's own port: medians over the runs; counts are their sums.
#[derive(Clone, Debug, Serialize)]
pub struct DnsCase {
    /// What stood in between.
    pub protection: Protection,
    /// Queries/s that the generator achieved.
    pub offered_pps: f64,
    /// Queries of the honest client.
    pub asked: u64,
    /// Those answered within half a second.
    pub answered: u64,
    /// The same, per second.
    pub answered_per_s: f64,
    /// All answers of the server, to anybody, per second.
    pub answers_per_s: f64,
}

impl Document {
    /// The document as a page.
    ///
    /// # Errors
    ///
    /// A plot could not be drawn: our own mistake.
    pub fn page(&self) -> Result<String, PlotError> {
        let mut figures = Vec::new();
        figures.extend(self.udp.iter().flat_map(Udp::figures));
        figures.extend(self.syn.iter().map(Syn::figure));
        figures.extend(self.dns.iter().map(Dns::figure));
        figures.extend(self.router.iter().flat_map(RouterScene::figures));
        let tables = self.tables();
        page::measured(
            "Plimsoll demo",
            &self.machine,
            &figures,
            &self.goals,
            &tables,
        )
    }

    /// The document for a person: charts for each scene, then the tables.
    #[must_use]
    pub fn text(&self) -> String {
        let mut text = String::new();
        text.extend(self.udp.iter().map(Udp::chart));
        text.extend(self.syn.iter().map(Syn::chart));
        text.extend(self.dns.iter().map(Dns::chart));
        text.extend(self.router.iter().map(RouterScene::charts));
        text + self.tables().as_str()
    }

    fn tables(&self) -> String {
        let tables = [
            self.udp.as_ref().map(Udp::table),
            self.syn.as_ref().map(Syn::table),
            self.dns.as_ref().map(Dns::table),
            self.router.as_ref().map(RouterScene::table),
        ];
        let tables: Vec<String> = tables.into_iter().flatten().collect();
        tables.join("\n") + conclusion(&self.machine, &self.goals).as_str()
    }
}

impl Udp {
    fn figures(&self) -> [Figure<'static>; 2] {
        let over = |label, unit, of: fn(&UdpCase) -> f64| {
            over_flood(label, unit, &self.cases, |case| {
                (case.protection, case.offered_pps, of(case))
            })
        };
        [
            over("Delivered to the flooded server", "packets/s", |case| {
                case.goodput_pps
            }),
            over("Probes that a bystander loses", "%", |case| {
                loss_percent(case.bystander)
            }),
        ]
    }

    fn chart(&self) -> String {
        let bar = |case: &UdpCase| {
            let name = case.protection.name();
            // Without a flood nothing is delivered to its target.
            (case.offered_pps > 0.0).then_some((case.offered_pps, name, case.goodput_pps))
        };
        let bars: Vec<Bar> = self.cases.iter().filter_map(bar).collect();
        chart("Goodput of a flooded UDP server, packets/s", &bars)
    }

    fn table(&self) -> String {
        let mut text = format!(
            "UDP flood of one socket, MLFRR {} packets/s; a bystander echo on another port is probed, p50 and p99 of those answered\n\
             {:>10} {:>6}{:>11}{:>8}{:>5}{:>5}{:>5}  {:>9}{:>9}{:>9}{:>9}\n",
            grouped(self.mlfrr_pps),
            "offered/s",
            "",
            "goodput/s",
            "of MLF.",
            "app%",
            "net%",
            "idle",
            "lost",
            "of",
            "p50 µs",
            "p99 µs",
        );
        for case in &self.cases {
            let percent = |part: f64| part * 100.0;
            let _ = writeln!(
                text,
                "{:>10} {:>6}{:>11}{:>7.0}%{:>5.0}{:>5.0}{:>5.0}  {:>9}{:>9}{:>9.0}{:>9.0}",
                grouped(case.offered_pps),
                case.protection.name(),
                grouped(case.goodput_pps),
                percent(case.goodput_pps / self.mlfrr_pps),
                percent(case.host_cpu.app),
                percent(case.host_cpu.network),
                percent(case.host_cpu.idle),
                case.bystander.lost,
                case.bystander.sent,
                case.bystander.p50_us,
                case.bystander.p99_us,
            );
        }
        text += "where the packets went\n";
        for case in &self.cases {
            let losses = &case.losses;
            let _ = writeln!(
                text,
                "{:>10} {:>6} offered {} = delivered {} + early discard {} + receive ring {} + socket queue {} + other {} + unaccounted {}",
                grouped(case.offered_pps),
                case.protection.name(),
                losses.offered,
                losses.delivered,
                losses.early_discard,
                losses.receive_ring,
                losses.socket_queue,
                losses.other,
                losses.unaccounted,
            );
        }
        text
    }
}

impl Syn {
    fn figure(&self) -> Figure<'static> {
        over_flood(
            "Requests nginx answers during a SYN flood of another port",
            "1/s",
            &self.cases,
            |case| (case.protection, case.offered_pps, case.requests_per_s),
        )
    }

    fn chart(&self) -> String {
        let cases = self.cases.iter();
        let bars = cases.map(|case| {
            let name = case.protection.name();
            (case.offered_pps, name, case.requests_per_s)
        });
        let title = "Requests/s of nginx while another port gets a SYN flood";
        chart(title, &bars.collect::<Vec<_>>())
    }

    fn table(&self) -> String {
        let mut text = format!(
            "SYN flood of another listener while {} serves\n{:>10} {:>6}{:>12}{:>10}{:>5}{:>5}{:>6}\n",
            self.server, "SYN/s", "", "requests/s", "p99 µs", "app%", "net%", "idle%"
        );
        for case in &self.cases {
            let _ = writeln!(
                text,
                "{:>10} {:>6}{:>12}{:>10.0}{:>5.0}{:>5.0}{:>6.0}",
                grouped(case.offered_pps),
                case.protection.name(),
                grouped(case.requests_per_s),
                case.p99_us,
                case.host_cpu.app * 100.0,
                case.host_cpu.network * 100.0,
                case.host_cpu.idle * 100.0,
            );
        }
        text
    }
}

impl Dns {
    fn figure(&self) -> Figure<'static> {
        over_flood(
            "Queries NSD answers its client during a flood of its own port",
            "1/s",
            &self.cases,
            |case| (case.protection, case.offered_pps, case.answered_per_s),
        )
    }

    fn chart(&self) -> String {
        let cases = self.cases.iter();
        let bars = cases.map(|case| {
            let name = case.protection.name();
            (case.offered_pps, name, case.answered_per_s)
        });
        let title = format!(
            "Queries/s that NSD answers its client, of {}, while others flood its port",
            grouped(self.queries_per_s.into())
        );
        chart(&title, &bars.collect::<Vec<_>>())
    }

    fn table(&self) -> String {
        let mut text = format!(
            "Flood of NSD's own port by {}; its client asks {} queries/s\n\
             {:>10} {:>6}{:>10}{:>8}{:>9}{:>11}\n",
            self.flood,
            grouped(self.queries_per_s.into()),
            "flood/s",
            "",
            "answered",
            "of",
            "percent",
            "answers/s",
        );
        for case in &self.cases {
            let percent = 100.0 * case.answered as f64 / case.asked.max(1) as f64;
            let _ = writeln!(
                text,
                "{:>10} {:>6}{:>10}{:>8}{percent:>8.1}%{:>11}",
                grouped(case.offered_pps),
                case.protection.name(),
                case.answered,
                case.asked,
                grouped(case.answers_per_s),
            );
        }
        text
    }
}

impl RouterScene {
    fn figures(&self) -> [Figure<'static>; 3] {
        let over = |label, unit, of: fn(&RouterCase) -> f64| {
            curves_over_flood(label, unit, &ROUTERS.map(name), &self.cases, |case| {
                (case.router, case.offered_pps, of(case))
            })
        };
        [
            over("Forwarded by the flooded router", "packets/s", |case| {
                case.forwarded_pps
            }),
            over("CPU of a compute-bound process on it", "%", |case| {
                case.compute_percent
            }),
            over("Time that its routing session is up", "%", |case| {
                case.session_percent
            }),
        ]
    }

    fn charts(&self) -> String {
        let bars = |of: fn(&RouterCase) -> f64| {
            let bar = |case: &RouterCase| (case.offered_pps, case.router, of(case));
            self.cases.iter().map(bar).collect::<Vec<Bar>>()
        };
        let forwarded = bars(|case| case.forwarded_pps).into_iter();
        // Without a flood nothing is forwarded.
        let forwarded: Vec<Bar> = forwarded
            .filter(|(offered_pps, ..)| *offered_pps > 0.0)
            .collect();
        let title = "CPU of a compute-bound process on that router, %";
        chart("Packets/s that a flooded router forwards", &forwarded)
            + chart(title, &bars(|case| case.compute_percent)).as_str()
            + chart(
                "Time that its routing session is up, %",
                &bars(|case| case.session_percent),
            )
            .as_str()
    }

    fn table(&self) -> String {
        let mut text = format!(
            "Flood across a router, MLFRR of the kernel {} packets/s; forward leaves {} % of its CPU; {}\n\
             {:>10} {:>8}{:>12}{:>9}{:>12}{:>7}  where the packets went\n",
            grouped(self.mlfrr_pps),
            self.left_percent,
            self.session,
            "offered/s",
            "",
            "forwarded/s",
            "compute",
            "session up",
            "ended",
        );
        for case in &self.cases {
            let behind = case.offered.saturating_sub(case.ring_full + case.forwarded);
            let _ = writeln!(
                text,
                "{:>10} {:>8}{:>12}{:>8.0}%{:>11.0}%{:>7}  offered {} = forwarded {} + receive ring {} + behind it {behind}",
                grouped(case.offered_pps),
                case.router,
                grouped(case.forwarded_pps),
                case.compute_percent,
                case.session_percent,
                case.session_ended,
                case.offered,
                case.forwarded,
                case.ring_full,
            );
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figures::{Bystander, Losses};

    fn udp(protection: Protection, offered_pps: f64, goodput_pps: f64) -> UdpCase {
        UdpCase {
            protection,
            offered_pps,
            goodput_pps,
            host_cpu: HostCpu::default(),
            bystander: Bystander {
                sent: 100,
                lost: 1,
                p50_us: 50.0,
                p99_us: 500.0,
            },
            losses: Losses::default(),
        }
    }

    fn router(router: &'static str, session_percent: f64) -> RouterCase {
        RouterCase {
            router,
            offered_pps: 2e6,
            forwarded_pps: 1e6,
            compute_percent: 25.0,
            session_percent,
            session_ended: 3,
            offered: 1000,
            ring_full: 400,
            forwarded: 500,
        }
    }

    #[test]
    fn the_page_has_a_plot_for_each_question_and_a_curve_per_protection() {
        let cases = [(Protection::Stock, 1e3), (Protection::Guard, 9e4)].into_iter();
        let cases = cases.flat_map(|(protection, goodput)| {
            [udp(protection, 1e5, 1e5), udp(protection, 2e6, goodput)]
        });
        let document = Document {
            schema: plimsoll_report::SCHEMA,
            machine: Machine::read(Some("veth")),
            udp: Some(Udp {
                mlfrr_pps: 1e5,
                cases: cases.collect(),
            }),
            syn: Some(Syn {
                server: "nginx".to_owned(),
                cases: vec![SynCase {
                    protection: Protection::Guard,
                    offered_pps: 1.5e5,
                    requests_per_s: 3e4,
                    p99_us: 1e3,
                    host_cpu: HostCpu::default(),
                }],
            }),
            dns: Some(Dns {
                queries_per_s: 1000,
                flood: "one source",
                cases: vec![DnsCase {
                    protection: Protection::Guard,
                    offered_pps: 8e5,
                    asked: 2000,
                    answered: 1990,
                    answered_per_s: 995.0,
                    answers_per_s: 6e4,
                }],
            }),
            router: Some(RouterScene {
                mlfrr_pps: 1e6,
                left_percent: 25,
                session: "BIRD".to_owned(),
                cases: vec![router("stock", 50.0), router("forward", 100.0)],
            }),
            goals: Vec::new(),
        };
        let text = document.text();
        assert!(text.contains("1990    2000    99.5%"), "{text}");
        let page = document.page().unwrap();
        assert!(
            text.contains("forwarded 500 + receive ring 400 + behind it 100"),
            "{text}"
        );
        assert_eq!(page.matches("<svg").count(), 7);
        assert_eq!(page.matches("> forward</li>").count(), 3);
        assert_eq!(page.matches("> stock</li>").count(), 5);
        assert_eq!(page.matches("> guard</li>").count(), 4);
    }
}
