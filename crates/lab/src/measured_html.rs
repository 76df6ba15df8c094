//! What was measured on real packets, as a page of the report's form: the demo's
//! figures and the guard's bench.
//!
//! Curves first, then the promises, then the very tables that a terminal shows.

use maud::{Markup, PreEscaped, html};
use plimsoll_bench::guard::FloodCase;
use plimsoll_bench::{Bystander, Protection, UdpCase, demo, guard};
use plimsoll_report::{Goal, Machine};

use crate::document::{figure as number, mark};
use crate::error::Error;
use crate::experiment::Scale;
use crate::html::{legend_entry, shell};
use crate::plot::{Axis, Drawing, Line};

const OFFERED: Axis<'static> = Axis {
    label: "Flood",
    unit: "packets/s",
    scale: Scale::Linear,
};

/// The demo's document as a page.
///
/// # Errors
///
/// A plot could not be drawn: our own mistake.
pub fn demo_html(document: &demo::Document) -> Result<String, Error> {
    let udp = |of: fn(&UdpCase) -> f64| {
        let cases = &document.udp.cases;
        by_protection(cases, |case| (case.protection, case.offered_pps, of(case)))
    };
    let syns = by_protection(&document.syn.cases, |case| {
        (case.protection, case.offered_pps, case.requests_per_s)
    });
    let figures = [
        drawn(
            "Delivered to the flooded server",
            "packets/s",
            &OFFERED,
            &udp(|case| case.goodput_pps),
        ),
        drawn(
            "Probes that a bystander loses",
            "%",
            &OFFERED,
            &udp(|case| loss_percent(case.bystander)),
        ),
        drawn(
            "Requests nginx answers during a SYN flood of another port",
            "1/s",
            &OFFERED,
            &syns,
        ),
    ];
    page(
        "Plimsoll demo",
        &document.machine,
        figures,
        &document.goals,
        &document.table(),
    )
}

/// The document of the guard's bench as a page.
///
/// # Errors
///
/// As [`demo_html`].
pub fn bench_html(document: &guard::Document) -> Result<String, Error> {
    let cases = document
        .flood
        .as_ref()
        .map_or(&[][..], |flood| &flood.cases);
    let flood = |of: fn(&FloodCase) -> f64| {
        by_protection(cases, |case| (case.protection, case.offered_pps, of(case)))
    };
    let figures = [
        drawn(
            "Delivered to the flooded server",
            "packets/s",
            &OFFERED,
            &flood(|case| case.goodput_pps),
        ),
        drawn(
            "Probes that a bystander loses",
            "%",
            &OFFERED,
            &flood(|case| loss_percent(case.bystander)),
        ),
        drawn(
            "A bystander's 99th percentile",
            "µs",
            &OFFERED,
            &flood(|case| case.bystander.p99_us),
        ),
    ];
    page(
        "Plimsoll guard bench",
        &document.machine,
        figures,
        &document.goals,
        &document.table(),
    )
}

fn loss_percent(bystander: Bystander) -> f64 {
    100.0 * bystander.loss()
}

/// A curve for each protection that was there.
fn by_protection<C>(
    cases: &[C],
    point: impl Fn(&C) -> (Protection, f64, f64),
) -> Vec<(&'static str, Line)> {
    let curve = |(index, protection): (usize, Protection)| {
        let of = cases
            .iter()
            .map(&point)
            .filter(|(one, ..)| *one == protection);
        let points: Vec<(f64, f64)> = of.map(|(_, x, y)| (x, y)).collect();
        (!points.is_empty()).then(|| (protection.name(), Line { index, points }))
    };
    Protection::ALL
        .into_iter()
        .enumerate()
        .filter_map(curve)
        .collect()
}

/// One figure; nothing where no case was measured.
fn drawn(
    caption: &str,
    unit: &str,
    x: &Axis<'_>,
    curves: &[(&'static str, Line)],
) -> Result<Option<Markup>, Error> {
    if curves.is_empty() {
        return Ok(None);
    }
    let y = Axis {
        label: caption,
        unit,
        scale: Scale::Linear,
    };
    let lines: Vec<&Line> = curves.iter().map(|(_, line)| line).collect();
    let drawing = Drawing {
        x: *x,
        y,
        lines,
        published: Vec::new(),
        name: None,
    };
    let svg = drawing.svg().map_err(|problem| Error::Plot {
        what: caption.to_owned(),
        problem,
    })?;
    Ok(Some(html! {
        figure {
            figcaption { (caption) " (" (unit) ")" }
            (PreEscaped(svg))
            ul.legend {
                @for (label, line) in curves { (legend_entry(line.index, label)) }
            }
        }
    }))
}

fn page<const N: usize>(
    title: &str,
    machine: &Machine,
    figures: [Result<Option<Markup>, Error>; N],
    goals: &[Goal],
    tables: &str,
) -> Result<String, Error> {
    let figures = figures.into_iter().collect::<Result<Vec<_>, _>>()?;
    let body = html! {
        header {
            h1 { (title) }
            p.note {
                "Linux " (machine.kernel) ", " (machine.cpus) " CPUs, " (machine.link.unwrap_or("no link"))
                ". Medians; a figure from veth compares protections and predicts no adapter."
            }
        }
        main {
            section {
                @for figure in figures.iter().flatten() { (figure) }
                (promises(goals))
                div.scroll { pre { (tables) } }
            }
        }
    };
    Ok(shell(title, &body))
}

fn promises(goals: &[Goal]) -> Markup {
    html! {
        div.scroll {
            table.claims {
                thead { tr { th { "" } th { "Promise" } th { "Measured" } th { "Goal" } } }
                tbody {
                    @for goal in goals {
                        @let class = match goal.met {
                            Some(true) => "holds",
                            Some(false) => "fails",
                            None => "unmeasured",
                        };
                        tr class=(class) {
                            td.mark { (mark(goal.met)) }
                            td { (goal.what) @if let Some(why) = &goal.why { ": " (why) } }
                            td.value { (goal.measured.map_or_else(|| "–".to_owned(), number)) " " (goal.unit) }
                            td.value { (number(goal.goal)) " " (goal.unit) }
                        }
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use plimsoll_bench::demo::{Document, Syn, SynCase, Udp};
    use plimsoll_bench::{HostCpu, Losses, UdpCase};
    use plimsoll_report::{SCHEMA, Side};

    use super::*;

    fn document() -> Document {
        let udp = |protection, offered_pps, goodput_pps| UdpCase {
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
        };
        let cases = [(Protection::Stock, 1e3), (Protection::Guard, 9e4)].into_iter();
        let udp_cases = cases.flat_map(|(protection, goodput)| {
            [udp(protection, 1e5, 1e5), udp(protection, 2e6, goodput)]
        });
        Document {
            schema: SCHEMA,
            machine: Machine::read(Some("veth")),
            udp: Udp {
                mlfrr_pps: 1e5,
                cases: udp_cases.collect(),
            },
            syn: Syn {
                server: "nginx/<1>".to_owned(),
                cases: vec![SynCase {
                    protection: Protection::Guard,
                    offered_pps: 1.5e5,
                    requests_per_s: 3e4,
                    p99_us: 1e3,
                }],
            },
            goals: vec![Goal::new(
                "a",
                "kept & well",
                Side::AtLeast,
                1.0,
                "%",
                vec![2.0],
            )],
        }
    }

    #[test]
    fn the_demo_is_three_curves_its_promises_and_its_tables() {
        let page = demo_html(&document()).unwrap();
        assert_eq!(page.matches("<svg").count(), 3);
        assert!(page.contains("kept &amp; well"), "a promise, escaped");
        assert!(page.contains("nginx/&lt;1&gt;"), "the tables, escaped");
        assert!(!page.contains("http://www.w3.org/1999/xhtml") && !page.contains("<script"));
    }

    #[test]
    fn a_bench_without_floods_has_no_curve() {
        let document = guard::Document {
            schema: SCHEMA,
            machine: Machine::read(None),
            guard_arguments: Vec::new(),
            holdoff_us: 30.0,
            runs: 1,
            capacity: None,
            flood: None,
            beyond: None,
            cpu_limit: None,
            syn: None,
            light: None,
            verdict: None,
            rpc: None,
            chaos: None,
            dns: None,
            watching: None,
            goals: Vec::new(),
        };
        assert!(!bench_html(&document).unwrap().contains("<svg"));
    }
}
