//! The report: one HTML file that needs nothing else.
//!
//! The form is that of all pages (`plimsoll-report`); it prints one experiment
//! after the other.

use maud::{Markup, PreEscaped, html};
use plimsoll_report::mark;
use plimsoll_report::page::{class, legend_entry, shell};

use crate::claim::Verdict;
use crate::document::{figure, value};
use crate::error::Error;
use crate::experiment::{Experiment, Measure};
use crate::explain;
use crate::plot;
use crate::runner::{Measured, Run, Tally};

/// The report on `runs`.
///
/// # Errors
///
/// A plot could not be drawn: our own mistake.
pub fn html(runs: &[Run]) -> Result<String, Error> {
    let sections = runs.iter().map(section).collect::<Result<Vec<_>, _>>()?;
    let title = "Plimsoll lab report";
    let body = html! {
        header {
            h1 { (title) }
            p { (summary(runs)) }
            p.note {
                "Curves are what the modelled host measured; rings are published numbers. "
                "A claim that does not hold stays, and its experiment says what the model lacks."
            }
        }
        (contents(runs))
        main { @for section in &sections { (section) } }
    };
    Ok(shell(title, &body))
}

fn summary(runs: &[Run]) -> String {
    let tally = Tally::of(runs);
    let count = runs.len();
    let experiments = if count == 1 {
        "One experiment".to_owned()
    } else {
        format!("{count} experiments")
    };
    let (hold, total) = (tally.hold, tally.total());
    let mut text = format!("{experiments}: {hold} of {total} claims hold");
    if tally.unmeasured > 0 {
        text += &format!(", {} could not be measured", tally.unmeasured);
    }
    text + "."
}

fn contents(runs: &[Run]) -> Markup {
    html! {
        nav {
            ul {
                @for run in runs {
                    @let tally = run.tally();
                    li {
                        a href={ "#" (run.experiment.id) } { (run.experiment.title) }
                        " " span.tally { (tally.hold) "/" (tally.total()) }
                    }
                }
            }
        }
    }
}

fn section(run: &Run) -> Result<Markup, Error> {
    let experiment = &run.experiment;
    let figures = experiment
        .measures
        .iter()
        .map(|measure| figure_of(run, measure));
    let figures = figures.collect::<Result<Vec<_>, _>>()?;
    let machine = explain::machine(experiment)?;
    let fails = run
        .verdicts
        .iter()
        .any(|verdict| verdict.holds == Some(false));
    Ok(html! {
        section id=(experiment.id) {
            h2 { (experiment.title) }
            p.meta { (meta_line(run)) }
            @for figure in &figures { (figure) }
            (claims(&run.verdicts))
            @if fails {
                h3 { "What the model lacks" }
                @for paragraph in explain::paragraphs(&experiment.explain.limits) {
                    p.why { (paragraph) }
                }
            }
            @for curve in run.curves.iter().filter(|curve| curve.points.is_empty()) {
                p.note { (curve.label) " was not measured: " (curve.why.as_deref().unwrap_or_default()) }
            }
            (explanation(experiment, &machine, fails))
        }
    })
}

fn meta_line(run: &Run) -> String {
    let experiment = &run.experiment;
    let mut text = experiment.id.clone();
    if !experiment.paper.is_empty() {
        text += &format!(" · {}", experiment.paper.join(", "));
    }
    text += &format!(" · profile {} · seed {}", experiment.profile, run.seed);
    text
}

/// A plot, or a table where there is nothing to draw a line through.
fn figure_of(run: &Run, measure: &Measure) -> Result<Markup, Error> {
    let has = |curve: &&Measured| curve.series(&measure.of).is_some();
    if !run.curves.iter().any(|curve| has(&curve)) {
        return Ok(html! { p.note { (measure.label) ": no run gave a value." } });
    }
    let drawn = if run.experiment.sweep.is_a_range() {
        plot::svg(run, measure)?
    } else {
        None
    };
    Ok(html! {
        figure {
            figcaption { (measure.label) " (" (measure.unit) ")" }
            @if let Some(svg) = &drawn {
                (PreEscaped(svg))
                (legend(run, measure))
                details { summary { "The numbers" } (numbers(run, measure)) }
            } @else {
                (cases(run, measure))
            }
        }
    })
}

fn legend(run: &Run, measure: &Measure) -> Markup {
    let curves = run.curves.iter().enumerate();
    let curves = curves.filter(|(_, curve)| curve.series(&measure.of).is_some());
    let ringed = |id: &str| {
        let mut lists = run.experiment.published.iter();
        lists.any(|list| list.curve == id && list.measure == measure.id)
    };
    html! {
        ul.legend {
            @for (index, curve) in curves {
                @let rings = if ringed(&curve.id) { " (rings: published)" } else { "" };
                (legend_entry(index, &format!("{}{rings}", curve.label)))
            }
        }
    }
}

/// The curves that have points.
fn measured(run: &Run) -> Vec<&Measured> {
    let curves = run.curves.iter();
    curves.filter(|curve| !curve.points.is_empty()).collect()
}

/// The value of a curve at `x`, with the published one below it.
fn number(run: &Run, measure: &Measure, curve: &Measured, x: f64) -> Markup {
    let mut points = curve.points.iter();
    let point = points.find(|point| point.0 == x);
    let value = point.and_then(|point| point.1.get(&measure.of).copied());
    let mut lists = run.experiment.published.iter();
    let list = lists.find(|list| list.curve == curve.id && list.measure == measure.id);
    let published = list.and_then(|list| list.points.iter().find(|point| point.0 == x));
    html! {
        td {
            @match value {
                Some(value) => (figure(value)),
                None => "–",
            }
            @if let Some((_, value)) = published {
                br; span.published { "published " (figure(*value)) }
            }
        }
    }
}

/// One row per curve, one column per case.
fn cases(run: &Run, measure: &Measure) -> Markup {
    let sweep = &run.experiment.sweep;
    html! {
        div.scroll {
            table {
                @if sweep.values.len() > 1 {
                    thead {
                        tr { th {} @for x in &sweep.values { th { (sweep.name(*x)) } } }
                    }
                }
                tbody {
                    @for curve in measured(run) {
                        tr {
                            th { (curve.label) }
                            @for x in &sweep.values { (number(run, measure, curve, *x)) }
                        }
                    }
                }
            }
        }
    }
}

/// One row per value of the swept parameter, one column per curve; published
/// numbers stand below the measured ones.
fn numbers(run: &Run, measure: &Measure) -> Markup {
    let sweep = &run.experiment.sweep;
    let curves = measured(run);
    html! {
        div.scroll {
            table {
                thead {
                    tr {
                        th { (sweep.label) }
                        @for curve in &curves { th { (curve.label) } }
                    }
                }
                tbody {
                    @for x in &sweep.values {
                        tr {
                            th { (sweep.name(*x)) }
                            @for curve in &curves { (number(run, measure, curve, *x)) }
                        }
                    }
                }
            }
        }
    }
}

fn claims(verdicts: &[Verdict]) -> Markup {
    html! {
        div.scroll {
            table.claims {
                thead { tr { th { "" } th { "Claim" } th { "Measured" } th { "Bound" } th { "From" } } }
                tbody {
                    @for verdict in verdicts {
                        tr class=(class(verdict.holds)) {
                            td.mark { (mark(verdict.holds)) }
                            td { (verdict.text) }
                            td.value { (value(verdict)) }
                            td.value { (verdict.bound) }
                            td.value { (verdict.from.as_deref().unwrap_or("ours")) }
                        }
                    }
                }
            }
        }
    }
}

/// `told`: the limits stand elsewhere.
fn explanation(experiment: &Experiment, machine: &str, told: bool) -> Markup {
    let explain = &experiment.explain;
    html! {
        details.explain {
            summary { "What this is, and where the model departs" }
            @for (title, text) in [
                ("What was done", explain.setup.as_str()),
                ("What the model does", &explain.model),
            ] {
                h3 { (title) }
                p { (text) }
            }
            @if !told {
                h3 { "Limits" }
                @for paragraph in explain::paragraphs(&explain.limits) { p { (paragraph) } }
            }
            h3 { "Machine profile" }
            p { (machine) }
        }
    }
}
