//! The report: one HTML file that needs nothing else.
//!
//! The form is that of all pages (`plimsoll-report`); it prints one experiment
//! after the other.

use std::time::SystemTime;

use maud::{Markup, PreEscaped, html};
use plimsoll_report::page::{class, legend_entry, shell};
use plimsoll_report::plot::Line;
use plimsoll_report::{date, mark};

use crate::breakdown::breakdown;
use crate::claim::Verdict;
use crate::declared::Kind;
use crate::distance;
use crate::document::{MODELLED, figure, measured_on, real_machine, seeds_of, value};
use crate::error::Error;
use crate::experiment::{Experiment, Measure};
use crate::explain;
use crate::machines::machines;
use crate::paper_pages::{anchor, cited, page};
use crate::plot;
use crate::published::{Paper, Uncovered, uncovered};
use crate::runner::{Measured, Run, Tally};
use crate::score::{Score, differing, sentence};

/// The report on `runs`. `by`: the program, its version and commit, and the command that makes
/// the same page.
///
/// # Errors
///
/// A plot could not be drawn: our own mistake.
pub fn html(runs: &[Run], by: &str) -> Result<String, Error> {
    let sections = runs.iter().map(|run| section(run, runs));
    let sections = sections.collect::<Result<Vec<_>, _>>()?;
    let machines = machines(runs)?;
    let whole = runs.len() > 1;
    let uncovered = if whole { uncovered()? } else { Vec::new() };
    let papers = if whole { cited(runs)? } else { Vec::new() };
    let title = "Plimsoll lab report";
    let body = html! {
        header {
            h1 { (title) }
            (score(runs))
            (how_to_read(runs))
            (made_by(runs, by))
        }
        (contents(runs, &papers))
        main {
            @for paper in &papers { (page(runs, paper)) }
            @for section in &sections { (section) }
            (machines)
            @if whole { (not_claimed(&uncovered)) }
        }
    };
    Ok(without_optional_ends(&shell(title, &body)))
}

/// What lines, rings and verdicts are.
fn how_to_read(runs: &[Run]) -> Markup {
    let has_model = measured_on(runs, |host| host == MODELLED);
    let has_real = measured_on(runs, |host| host != MODELLED);
    let (measured, means, says) = match (has_model, has_real) {
        (true, true) => (
            "the modelled host measured, or, where experiment or curve say so, the machine named below with real packets",
            "seeds or rounds",
            "what the model lacks or what is different today",
        ),
        (false, true) => (
            "the machine named below measured with real packets",
            "rounds",
            "what is different today",
        ),
        (_, false) => (
            "the modelled host measured",
            "seeds",
            "what the model lacks",
        ),
    };
    html! {
        p.note {
            "Curves are what " (measured) ", means over the " (means) " with their 95 percent "
            "intervals; rings are published numbers. A claim holds if all of its interval is within its "
            "bound. A claim that does not hold stays, and its experiment says " (says) "."
        }
    }
}

/// What makes the same page; of real packets also where, and the day of the page.
fn made_by(runs: &[Run], by: &str) -> Markup {
    html! {
        p.note {
            (by)
            @if runs.first().is_some_and(|run| run.seeds == 1) { ". One seed says nothing of chance." }
        }
        @if let Some(machine) = real_machine(runs) {
            p.note {
                "Real packets: Linux " (machine.kernel) ", " (machine.cpus) " CPUs"
                @if let Some(model) = &machine.model { " (" (model) ")" }
                @if let Some(link) = machine.link { ", over " (link) }
                ". The page is of " (date(SystemTime::now())) "."
            }
        }
    }
}

/// The ends of cells and rows follow from what comes next, and HTML does not ask for them:
/// a tenth of a report with all experiments.
fn without_optional_ends(page: &str) -> String {
    let ends = ["</td>", "</th>", "</tr>", "</thead>", "</tbody>", "</li>"];
    ends.iter()
        .fold(page.to_owned(), |page, end| page.replace(end, ""))
}

/// Test claims by paper, and the others apart.
fn score(runs: &[Run]) -> Markup {
    let score = Score::of(runs);
    let row = |name: &str, tally: Tally| {
        html! {
            tr {
                th { (name) }
                td { (tally.hold) } td { (tally.fail) } td { (tally.undecided) }
                td { (tally.unmeasured) } td { (tally.total()) }
            }
        }
    };
    html! {
        @if score.test.total() > 0 { p.score { "Test claims: " (sentence(score.test)) "." } }
        @if score.real.total() > 0 { p.score { "On real packets: " (sentence(score.real)) "." } }
        div.scroll {
            table.score {
                thead {
                    tr { th {} th { "hold" } th { "do not" } th { "undecided" } th { "not measured" } th { "all" } }
                }
                tbody {
                    @for (paper, tally) in &score.by_paper { (row(&format!("{paper}, test"), *tally)) }
                    @for (paper, tally) in &score.real_by_paper {
                        (row(&format!("{paper}, test on real packets"), *tally))
                    }
                    @for (kind, tally) in &score.by_kind {
                        @if *kind != Kind::Test { (row(&format!("{}, not in the score", kind.name()), *tally)) }
                    }
                }
            }
        }
        (causes(&score))
        p.note {
            "A test is about a published number or statement that nothing of the model was chosen by. "
            "Claims about what was calibrated or put in say little about the model, and what is arithmetic of "
            "other claims says nothing more; neither they nor our own claims count."
        }
    }
}

/// Why tests do not hold, the most frequent cause first.
fn causes(score: &Score) -> Markup {
    let missed = score.test.fail + score.test.undecided;
    html! {
        @if score.traced() > 0 {
            details {
                summary {
                    "Cause traced for " (score.traced() - score.differing()) " of the " (missed) " others"
                    (score.but_differing())
                }
                table.score {
                    tbody {
                        @for (name, count) in score.causes_by_count() { tr { th { (name) (differing(count)) } td { (count.claims) } } }
                    }
                }
            }
        }
    }
}

fn not_claimed(uncovered: &[Uncovered]) -> Markup {
    html! {
        section id="uncovered" {
            h2 { "Published numbers that no claim is about" }
            div.scroll {
                table {
                    thead { tr { th { "Numbers" } th { "Why" } } }
                    tbody {
                        @for one in uncovered {
                            tr { td { (one.of.join(", ")) } td { (one.why) } }
                        }
                    }
                }
            }
        }
    }
}

fn contents(runs: &[Run], papers: &[Paper]) -> Markup {
    html! {
        nav {
            ul {
                @for paper in papers {
                    li { a href={ "#" (anchor(paper)) } { (paper.title) } }
                }
                li { a href="#machines" { "The machines and their costs" } }
                @for run in runs {
                    @let tests = run.tally(&[Kind::Test]);
                    li {
                        a href={ "#" (run.experiment.id) } { (run.experiment.title) }
                        @if tests.total() > 0 { " " span.tally { (tests.hold) "/" (tests.total()) } }
                    }
                }
            }
        }
    }
}

fn section(run: &Run, runs: &[Run]) -> Result<Markup, Error> {
    let experiment = &run.experiment;
    let figures = experiment
        .measures
        .iter()
        .map(|measure| figure_of(run, measure, runs));
    let figures = figures.collect::<Result<Vec<_>, _>>()?;
    let machine = explain::machine(experiment)?;
    let fails = run
        .verdicts
        .iter()
        .any(|verdict| verdict.holds == Some(false) || verdict.is_undecided());
    Ok(html! {
        section id=(experiment.id) {
            h2 { (experiment.title) }
            p.meta { (meta_line(run)) }
            @for figure in &figures { (figure) }
            (claims(run))
            (distance::markup(run))
            @if fails {
                h3 { (explain::lacking(experiment)) }
                @for paragraph in explain::paragraphs(&experiment.explain.limits) {
                    p.why { (paragraph) }
                }
            }
            @for curve in run.curves.iter().filter(|curve| curve.points.is_empty()) {
                p.note { (curve.label) " was not measured: " (curve.why.as_deref().unwrap_or_default()) }
            }
            (breakdown(run))
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
    let (host, seeds) = (experiment.runs_on(), seeds_of(run));
    format!("{text} · {host} · {seeds}")
}

/// A plot, or a table where there is nothing to draw a line through.
fn figure_of(run: &Run, measure: &Measure, runs: &[Run]) -> Result<Markup, Error> {
    let has = |curve: &&Measured| curve.series(&measure.of).is_some();
    if !run.curves.iter().any(|curve| has(&curve)) {
        return Ok(html! { p.note { (measure.label) ": no run gave a value." } });
    }
    let beside = plot::beside(run, measure, runs);
    let drawn = if run.experiment.sweep.is_a_range() {
        plot::svg(run, measure, &beside)?
    } else {
        None
    };
    Ok(html! {
        figure {
            figcaption { (measure.label) " (" (measure.unit) ")" }
            @if let Some(svg) = &drawn {
                (PreEscaped(svg))
                (legend(run, measure, &beside))
                details { summary { "The numbers" } (numbers(run, measure)) }
            } @else {
                (cases(run, measure))
            }
        }
    })
}

fn legend(run: &Run, measure: &Measure, beside: &[(String, Line)]) -> Markup {
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
            @for (label, line) in beside { (legend_entry(line.index, label)) }
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
    let index = curve.points.iter().position(|point| point.0 == x);
    let estimate = index.and_then(|index| curve.estimate(index, &measure.of));
    let mut lists = run.experiment.published.iter();
    let list = lists.find(|list| list.curve == curve.id && list.measure == measure.id);
    let published = list.and_then(|list| list.points.iter().find(|point| point.0 == x));
    html! {
        td {
            @match estimate {
                Some(estimate) => {
                    (figure(estimate.value))
                    @if let Some((low, high)) = estimate.interval.filter(|(low, high)| low < high) {
                        small { " ± " (figure((high - low) / 2.0)) }
                    }
                }
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

/// The papers' claims, then ours, then what was changed of them.
fn claims(run: &Run) -> Markup {
    let verdicts = run.verdicts.iter();
    let (ours, papers): (Vec<&Verdict>, Vec<&Verdict>) =
        verdicts.partition(|verdict| verdict.kind == Kind::Ours);
    let experiment = &run.experiment;
    html! {
        @if !papers.is_empty() { h3 { "What the paper says" } (claims_table(&papers)) }
        @if !ours.is_empty() { h3 { "What we say" } (claims_table(&ours)) }
        @if !experiment.choices.is_empty() {
            h3 { "Chosen by a published result" }
            ul {
                @for one in &experiment.choices {
                    li { (one.key) ": by " (one.entry) " (" (one.kind.name()) "); " (one.why) "." }
                }
            }
        }
        @if !experiment.revised.is_empty() {
            h3 { "Changed" }
            ul {
                @for one in &experiment.revised {
                    li {
                        (one.date) ", " (one.claim) ": from “" (one.from) "” to “" (one.to) "”; " (one.why) "."
                    }
                }
            }
        }
    }
}

fn claims_table(verdicts: &[&Verdict]) -> Markup {
    html! {
        div.scroll {
            table.claims {
                thead {
                    tr { th { "" } th { "Kind" } th { "Claim" } th { "Measured" } th { "Bound" } th { "From" } }
                }
                tbody {
                    @for verdict in verdicts {
                        tr class=(class(verdict.holds)) {
                            td.mark { (mark(verdict.holds)) }
                            td { (verdict.kind.name()) }
                            td { (verdict.text) (traced(verdict)) }
                            td.value {
                                (value(verdict))
                                @if verdict.is_undecided() { br; "undecided" }
                            }
                            td.value { (verdict.bound) }
                            td.entry { (verdict.entry.as_deref().unwrap_or("ours")) }
                        }
                    }
                }
            }
        }
    }
}

/// Why a claim does not hold.
pub(crate) fn traced(verdict: &Verdict) -> Markup {
    html! {
        @if let Some(cause) = &verdict.cause {
            br; span.why { (cause.name) ": " (cause.traced) }
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
                (explain::done(experiment), &explain.model),
            ] {
                h3 { (title) }
                p { (text) }
            }
            @if !told {
                h3 { "Limits" }
                @for paragraph in explain::paragraphs(&explain.limits) { p { (paragraph) } }
            }
            h3 { "Machine" }
            p { (machine) }
        }
    }
}
