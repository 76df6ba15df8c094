//! One section of the report per paper: its score, experiment by experiment, and the test
//! claims that do not hold.

use maud::{Markup, html};
use plimsoll_report::mark;

use crate::claim::Verdict;
use crate::declared::Kind;
use crate::document::value;
use crate::error::Error;
use crate::html::traced;
use crate::published::{Paper, papers};
use crate::runner::{Run, Tally};
use crate::score::{paper, sentence};

/// The papers that `runs` have claims about.
pub(crate) fn cited(runs: &[Run]) -> Result<Vec<Paper>, Error> {
    let mut all = papers()?;
    all.retain(|one| runs.iter().any(|run| !verdicts(run, one).is_empty()));
    Ok(all)
}

/// The anchor of a paper's section.
pub(crate) fn anchor(paper: &Paper) -> String {
    format!("paper-{}", paper.paper)
}

/// The section of one paper.
pub(crate) fn page(runs: &[Run], paper: &Paper) -> Markup {
    let about: Vec<(&Run, Vec<&Verdict>)> = runs
        .iter()
        .map(|run| (run, verdicts(run, paper)))
        .filter(|(_, verdicts)| !verdicts.is_empty())
        .collect();
    let tests = |real: bool| {
        let all = about.iter().flat_map(|(_, verdicts)| verdicts);
        let tests = all.filter(|one| one.kind == Kind::Test && one.is_real() == real);
        Tally::of(tests.copied())
    };
    html! {
        section id=(anchor(paper)) {
            h2 { (paper.title) }
            @for (what, tally) in [("Test claims", tests(false)), ("On real packets", tests(true))] {
                @if tally.total() > 0 { p.score { (what) ": " (sentence(tally)) "." } }
            }
            (experiments(&about))
            (failing(&about))
        }
    }
}

/// What `run` says of `paper`.
fn verdicts<'a>(run: &'a Run, of: &Paper) -> Vec<&'a Verdict> {
    let all = run.verdicts.iter();
    all.filter(|one| paper(one) == of.paper).collect()
}

fn experiments(about: &[(&Run, Vec<&Verdict>)]) -> Markup {
    html! {
        div.scroll {
            table.score {
                thead {
                    tr { th {} th { "tests hold" } th { "do not" } th { "undecided" } th { "not in the score" } }
                }
                tbody {
                    @for (run, verdicts) in about {
                        @let tests = verdicts.iter().filter(|one| one.kind == Kind::Test);
                        @let tally = Tally::of(tests.copied());
                        tr {
                            th { a href={ "#" (run.experiment.id) } { (run.experiment.title) } }
                            td { (tally.hold) } td { (tally.fail) } td { (tally.undecided) }
                            td { (verdicts.len() - tally.total()) }
                        }
                    }
                }
            }
        }
    }
}

fn failing(about: &[(&Run, Vec<&Verdict>)]) -> Markup {
    let all = about
        .iter()
        .flat_map(|(run, verdicts)| verdicts.iter().map(move |one| (run, one)));
    let failing: Vec<_> = all
        .filter(|(_, one)| one.kind == Kind::Test && one.holds != Some(true))
        .collect();
    html! {
        @if !failing.is_empty() {
            details {
                summary { "The tests that do not hold, or are undecided" }
                div.scroll {
                    table.claims {
                        tbody {
                            @for (run, one) in &failing {
                                tr {
                                    td.mark { (mark(one.holds)) }
                                    td { a href={ "#" (run.experiment.id) } { (run.experiment.id) } }
                                    td { (one.text) (traced(one)) }
                                    td.value { (value(one)) }
                                    td.value { (one.bound) }
                                }
                            }
                        }
                    }
                }
            }
        }
    }
}
