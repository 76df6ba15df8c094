//! The demo's document, its goals, and its table for a person.

use std::fmt::Write as _;

use plimsoll_report::plot::PlotError;
use plimsoll_report::{Goal, Machine, Side, median, page};
use serde::Serialize;

use super::bars::chart;
use super::{dns, syn, udp};
use crate::figures::{conclusion, grouped, percents_of, percents_of_better};
use crate::own_port::servers::Served;
use crate::page::{loss_percent, over_flood};
use crate::protection::Protection;
use crate::udp::{Run, UdpCase};

/// Everything the demo measured.
#[derive(Clone, Debug, Serialize)]
pub struct Document {
    /// Version of this form.
    pub schema: u32,
    /// Where it was measured.
    pub machine: Machine,
    /// The UDP flood.
    pub udp: Udp,
    /// The SYN flood.
    pub syn: Syn,
    /// The DNS flood.
    pub dns: Dns,
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

/// The promised figures of all floods.
pub(super) fn goals(udp: &udp::Outcome, syn: &syn::Outcome, dns: &dns::Outcome) -> Vec<Goal> {
    let mut goals = udp_goodput_goals(udp);
    goals.extend(udp_bystander_goals(udp));
    goals.extend(udp_light_goals(udp));
    goals.extend(syn_goals(syn));
    goals.extend(dns_goals(dns));
    goals
}

fn udp_goodput_goals(udp: &udp::Outcome) -> Vec<Goal> {
    let percent_of_mlfrr = |protection, multiple| {
        udp.cases.values(protection, multiple, |run| {
            run.goodput_pps / udp.mlfrr_pps * 100.0
        })
    };
    let highest = udp.cases.heaviest().unwrap_or(0.0);
    let mut goals = vec![Goal::new(
        "udp/collapse",
        "stock goodput at the highest flood, of MLFRR",
        Side::AtMost,
        5.0,
        "%",
        percent_of_mlfrr(Protection::Stock, highest),
    )];
    for (multiple, percent) in [(5.0, 60.0), (15.0, 30.0)] {
        goals.push(Goal::new(
            format!("udp/goodput/{multiple}"),
            format!("guarded goodput at {multiple} × MLFRR, of MLFRR"),
            Side::AtLeast,
            percent,
            "%",
            percent_of_mlfrr(Protection::Guard, multiple),
        ));
    }
    goals
}

fn udp_bystander_goals(udp: &udp::Outcome) -> Vec<Goal> {
    let loss = |run: &Run| 100.0 * run.bystander.loss();
    let goal = |multiple: f64| {
        Goal::new(
            format!("udp/bystander/{multiple}"),
            format!("guarded bystander's loss at {multiple} × MLFRR"),
            Side::AtMost,
            0.1,
            "%",
            udp.cases.values(Protection::Guard, multiple, loss),
        )
    };
    vec![goal(5.0), goal(15.0)]
}

fn udp_light_goals(udp: &udp::Outcome) -> Vec<Goal> {
    let goodput = |protection| udp.cases.values(protection, 1.0, |run| run.goodput_pps);
    let latency = |protection| {
        udp.cases
            .values(protection, 0.0, |run| run.bystander.p50_us)
    };
    let stock = median(&latency(Protection::Stock)).unwrap_or(0.0);
    vec![
        Goal::new(
            "udp/light/throughput",
            "guarded goodput at 1 × MLFRR, of stock",
            Side::AtLeast,
            97.0,
            "%",
            percents_of(&goodput(Protection::Guard), &goodput(Protection::Stock)),
        ),
        Goal::new(
            "udp/light/latency",
            "median latency that the guard adds without a flood",
            Side::AtMost,
            2.0,
            "µs",
            latency(Protection::Guard)
                .into_iter()
                .map(|guarded| guarded - stock)
                .collect(),
        ),
    ]
}

fn syn_goals(syn: &syn::Outcome) -> Vec<Goal> {
    let requests = |protection, rate| syn.cases.values(protection, rate, |run| run.requests_per_s);
    let highest = syn.cases.heaviest().unwrap_or(0);
    vec![
        Goal::new(
            "syn/guarded/better",
            format!("guarded nginx at {highest} SYN/s, of stock or guarded unflooded, the better"),
            Side::AtLeast,
            85.0,
            "%",
            percents_of_better(
                &requests(Protection::Guard, highest),
                &requests(Protection::Stock, 0),
                &requests(Protection::Guard, 0),
            ),
        ),
        Goal::new(
            "syn/guarded",
            format!("former definition: guarded nginx at {highest} SYN/s, of guarded unflooded"),
            Side::AtLeast,
            85.0,
            "%",
            percents_of(
                &requests(Protection::Guard, highest),
                &requests(Protection::Guard, 0),
            ),
        ),
        Goal::new(
            "syn/light/throughput",
            "guarded nginx without a flood, of stock",
            Side::AtLeast,
            97.0,
            "%",
            percents_of(
                &requests(Protection::Guard, 0),
                &requests(Protection::Stock, 0),
            ),
        ),
    ]
}

fn dns_goals(dns: &dns::Outcome) -> Vec<Goal> {
    let answered = |protection, rate| dns.cases.values(protection, rate, Served::percent);
    let highest = dns.cases.heaviest().unwrap_or(0);
    vec![
        Goal::new(
            "dns/collapse",
            format!("queries that stock NSD answers its client at {highest} queries/s of others"),
            Side::AtMost,
            20.0,
            "%",
            answered(Protection::Stock, highest),
        ),
        Goal::new(
            "dns/guarded",
            format!("queries that guarded NSD answers its client at {highest} queries/s of others"),
            Side::AtLeast,
            99.0,
            "%",
            answered(Protection::Guard, highest),
        ),
    ]
}

impl Document {
    /// The document as a page.
    ///
    /// # Errors
    ///
    /// A plot could not be drawn: our own mistake.
    pub fn page(&self) -> Result<String, PlotError> {
        let udp = |label, unit, of: fn(&UdpCase) -> f64| {
            over_flood(label, unit, &self.udp.cases, |case| {
                (case.protection, case.offered_pps, of(case))
            })
        };
        let figures = [
            udp("Delivered to the flooded server", "packets/s", |case| {
                case.goodput_pps
            }),
            udp("Probes that a bystander loses", "%", |case| {
                loss_percent(case.bystander)
            }),
            over_flood(
                "Requests nginx answers during a SYN flood of another port",
                "1/s",
                &self.syn.cases,
                |case| (case.protection, case.offered_pps, case.requests_per_s),
            ),
            over_flood(
                "Queries NSD answers its client during a flood of its own port",
                "1/s",
                &self.dns.cases,
                |case| (case.protection, case.offered_pps, case.answered_per_s),
            ),
        ];
        let tables = self.tables();
        page::measured(
            "Plimsoll demo",
            &self.machine,
            &figures,
            &self.goals,
            &tables,
        )
    }

    /// The document for a person: a chart per flood, then the tables.
    #[must_use]
    pub fn text(&self) -> String {
        let udp = self.udp.cases.iter();
        let udp = udp.map(|case| (case.offered_pps, case.protection, case.goodput_pps));
        let syn = self.syn.cases.iter();
        let syn = syn.map(|case| (case.offered_pps, case.protection, case.requests_per_s));
        // Without a flood nothing is delivered to its target.
        let flooded: Vec<_> = udp.filter(|(offered_pps, ..)| *offered_pps > 0.0).collect();
        let mut text = chart("Goodput of a flooded UDP server, packets/s", &flooded);
        let title = "Requests/s of nginx while another port gets a SYN flood";
        text += &chart(title, &syn.collect::<Vec<_>>());
        let dns = self.dns.cases.iter();
        let dns = dns.map(|case| (case.offered_pps, case.protection, case.answered_per_s));
        let title = format!(
            "Queries/s that NSD answers its client, of {}, while others flood its port",
            grouped(self.dns.queries_per_s.into())
        );
        text += &chart(&title, &dns.collect::<Vec<_>>());
        text + self.tables().as_str()
    }

    fn tables(&self) -> String {
        let mut text = self.udp_table();
        text += &self.syn_table();
        text += &self.dns_table();
        text + conclusion(&self.machine, &self.goals).as_str()
    }

    fn udp_table(&self) -> String {
        let mut text = format!(
            "UDP flood of one socket, MLFRR {} packets/s; a bystander echo on another port is probed\n\
             {:>10} {:>6}{:>11}{:>8}{:>5}{:>5}{:>5}  {:>9}{:>9}{:>9}{:>9}\n",
            grouped(self.udp.mlfrr_pps),
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
        for case in &self.udp.cases {
            let percent = |part: f64| part * 100.0;
            let _ = writeln!(
                text,
                "{:>10} {:>6}{:>11}{:>7.0}%{:>5.0}{:>5.0}{:>5.0}  {:>9}{:>9}{:>9.0}{:>9.0}",
                grouped(case.offered_pps),
                case.protection.name(),
                grouped(case.goodput_pps),
                percent(case.goodput_pps / self.udp.mlfrr_pps),
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
        for case in &self.udp.cases {
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

    fn syn_table(&self) -> String {
        let mut text = format!(
            "\nSYN flood of another listener while {} serves\n{:>10} {:>6}{:>12}{:>10}\n",
            self.syn.server, "SYN/s", "", "requests/s", "p99 µs"
        );
        for case in &self.syn.cases {
            let _ = writeln!(
                text,
                "{:>10} {:>6}{:>12}{:>10.0}",
                grouped(case.offered_pps),
                case.protection.name(),
                grouped(case.requests_per_s),
                case.p99_us,
            );
        }
        text
    }
}

impl Document {
    fn dns_table(&self) -> String {
        let mut text = format!(
            "\nFlood of NSD's own port by {}; its client asks {} queries/s\n\
             {:>10} {:>6}{:>10}{:>8}{:>9}{:>11}\n",
            self.dns.flood,
            grouped(self.dns.queries_per_s.into()),
            "flood/s",
            "",
            "answered",
            "of",
            "percent",
            "answers/s",
        );
        for case in &self.dns.cases {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figures::{Bystander, HostCpu, Losses};

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

    #[test]
    fn the_page_has_a_plot_for_each_of_four_questions_and_a_curve_per_protection() {
        let cases = [(Protection::Stock, 1e3), (Protection::Guard, 9e4)].into_iter();
        let cases = cases.flat_map(|(protection, goodput)| {
            [udp(protection, 1e5, 1e5), udp(protection, 2e6, goodput)]
        });
        let document = Document {
            schema: plimsoll_report::SCHEMA,
            machine: Machine::read(Some("veth")),
            udp: Udp {
                mlfrr_pps: 1e5,
                cases: cases.collect(),
            },
            syn: Syn {
                server: "nginx".to_owned(),
                cases: vec![SynCase {
                    protection: Protection::Guard,
                    offered_pps: 1.5e5,
                    requests_per_s: 3e4,
                    p99_us: 1e3,
                }],
            },
            dns: Dns {
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
            },
            goals: Vec::new(),
        };
        let text = document.text();
        assert!(text.contains("1990    2000    99.5%"), "{text}");
        let page = document.page().unwrap();
        assert_eq!(page.matches("<svg").count(), 4);
        assert_eq!(page.matches("> stock</li>").count(), 2);
        assert_eq!(page.matches("> guard</li>").count(), 4);
    }
}
