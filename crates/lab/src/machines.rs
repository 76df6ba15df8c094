//! The machines of the experiments in the report: every cost and queue with its
//! source, what was calibrated, and what was changed afterwards.

use maud::{Markup, html};
use plimsoll_sim::Profile;
use plimsoll_sim::profile::{COSTS, Cost, QUEUES};

use crate::error::Error;
use crate::flood_model;
use crate::provenance;
use crate::runner::Run;

/// Every machine of these runs, once.
pub(crate) fn machines(runs: &[Run]) -> Result<Markup, Error> {
    let mut profiles: Vec<Profile> = Vec::new();
    for run in runs {
        let floods = flood_model::profile(&run.experiment)?;
        for profile in provenance::profiles(&run.experiment)?
            .into_iter()
            .chain(floods)
        {
            if !profiles.iter().any(|known| known.name == profile.name) {
                profiles.push(profile);
            }
        }
    }
    Ok(html! {
        section id="machines" {
            h2 { "The machines" }
            p.note { "What everything costs on the modelled hosts, and where each number is from." }
            @for profile in &profiles { (machine(profile)) }
        }
    })
}

fn machine(profile: &Profile) -> Markup {
    html! {
        details {
            summary { (profile.name) ": " (profile.title) }
            p { (profile.paper) }
            (calibration(profile))
            div.scroll {
                table {
                    thead { tr { th { "Cost" } th { "ns" } th { "Pays for" } th { "Source" } } }
                    tbody {
                        @for (name, cost) in &profile.costs { (row(name, name, cost)) }
                        @for program in &profile.program {
                            @for (name, cost) in &program.costs {
                                (row(&format!("{}.{name}", program.name), name, cost))
                            }
                        }
                        @for (name, queue) in &profile.queues {
                            tr {
                                th { (name) }
                                td { (queue.packets) " packets" }
                                td { (meaning(name, QUEUES)) }
                                td { (queue.source) }
                            }
                        }
                        @for workload in &profile.workload {
                            tr { th { (workload.name) } td {} td { "workload" } td { (workload.source) } }
                        }
                    }
                }
            }
            @if !profile.revised.is_empty() {
                h3 { "Changed" }
                ul {
                    @for change in &profile.revised {
                        li {
                            (change.date) ", " (change.what) ": from “" (change.from) "” to “" (change.to) "”; "
                            (change.why) "."
                        }
                    }
                }
            }
        }
    }
}

fn calibration(profile: &Profile) -> Markup {
    html! {
        @if profile.calibration.is_empty() { p { "Calibrated on no published point." } }
        @else {
            p { "Calibrated on " (profile.calibration.len()) " published points:" }
            ul {
                @for point in &profile.calibration {
                    li { (point.entry) ": " (point.point) " (" (point.costs.join(", ")) ")" }
                }
            }
        }
        @if let Some(why) = &profile.more_than_three {
            p { "More than three points: " (why) "." }
        }
    }
}

fn row(name: &str, cost: &str, given: &Cost) -> Markup {
    html! {
        tr {
            th { (name) }
            td { (given.ns) }
            td { (meaning(cost, COSTS)) }
            td { (given.source) }
        }
    }
}

fn meaning(name: &str, list: &'static [(&'static str, &'static str)]) -> &'static str {
    let found = list.iter().find(|(known, _)| *known == name);
    found.map_or("", |(_, meaning)| meaning)
}
