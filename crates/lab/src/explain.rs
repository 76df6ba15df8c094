//! `plimsoll lab explain`: one experiment in prose.

use std::fmt::Write as _;

use crate::error::Error;
use crate::experiment::{Experiment, HostKind};
use crate::flood_model;

/// What was done, what the model does, where it departs, what its machine profile
/// was calibrated on, and the claims.
///
/// # Errors
///
/// There is no such machine profile.
pub fn explain(experiment: &Experiment) -> Result<String, Error> {
    let machine = machine(experiment)?;
    let mut text = format!("{} ({})\n", experiment.title, experiment.id);
    if !experiment.paper.is_empty() {
        let _ = writeln!(text, "Reproduces {}", experiment.paper.join(", "));
    }
    let explain = &experiment.explain;
    for (title, prose) in [
        ("What was done", &explain.setup),
        (done(experiment), &explain.model),
        ("Limits", &explain.limits),
    ] {
        let _ = writeln!(text, "\n{title}");
        for paragraph in paragraphs(prose) {
            let _ = writeln!(text, "{}", indented(paragraph));
        }
    }
    let _ = writeln!(text, "\nMachine\n{}", indented_lines(&machine));
    let _ = writeln!(text, "\nClaims");
    for claim in &experiment.claims {
        let from = claim.from.as_deref().map(|from| format!(", {from}"));
        let (kind, from) = (claim.kind.name(), from.unwrap_or_default());
        let _ = writeln!(text, "  {} ({kind}{from}): {}", claim.id, claim.told());
    }
    if !experiment.choices.is_empty() {
        let _ = writeln!(text, "\nChosen by a published result");
    }
    for choice in &experiment.choices {
        let line = format!("{}: by {}; {}", choice.key, choice.entry, choice.why);
        let _ = writeln!(text, "{}", indented(&line));
    }
    if !experiment.causes.is_empty() {
        let _ = writeln!(text, "\nWhy claims do not hold");
    }
    for cause in &experiment.causes {
        let line = format!(
            "{}: {}: {}",
            cause.claims.join(", "),
            cause.name,
            cause.traced
        );
        let _ = writeln!(text, "{}", indented(&line));
    }
    if !experiment.revised.is_empty() {
        let _ = writeln!(text, "\nChanged");
    }
    for one in &experiment.revised {
        let (date, claim, why) = (&one.date, &one.claim, &one.why);
        let line = format!(
            "{date}, {claim}: from \"{}\" to \"{}\"; {why}",
            one.from, one.to
        );
        let _ = writeln!(text, "{}", indented(&line));
    }
    Ok(text)
}

/// What stands above what an experiment does instead of the paper.
pub(crate) fn done(experiment: &Experiment) -> &'static str {
    match experiment.host {
        HostKind::Real => "What is done here",
        HostKind::Modelled | HostKind::Testbed => "What the model does",
    }
}

/// What stands above why claims do not hold.
pub(crate) fn lacking(experiment: &Experiment) -> &'static str {
    match experiment.host {
        HostKind::Real => "What is different today",
        HostKind::Modelled | HostKind::Testbed => "What the model lacks",
    }
}

/// Prose, with a new paragraph for what was traced and for what is supposed.
pub(crate) fn paragraphs(prose: &str) -> Vec<&str> {
    const MARKS: [&str; 2] = ["Traced: ", "Supposed: "];
    let marks = MARKS.iter().flat_map(|mark| prose.match_indices(mark));
    let mut starts: Vec<usize> = marks.map(|(start, _)| start).collect();
    starts.push(0);
    starts.sort_unstable();
    starts.dedup();
    let ends = starts.iter().skip(1).copied().chain([prose.len()]);
    let parts = starts.iter().zip(ends);
    parts
        .map(|(&start, end)| prose[start..end].trim())
        .collect()
}

/// The machine profile and the published points its costs were chosen to meet, a
/// line each.
pub(crate) fn machine(experiment: &Experiment) -> Result<String, Error> {
    if experiment.host == HostKind::Real {
        let mut text = "The machine that it runs on: no cost is put in.".to_owned();
        if let Some(profile) = flood_model::profile(experiment)? {
            let _ = write!(
                text,
                "\nBeside it the same floods on the model: {}",
                profile.name
            );
        }
        return Ok(text);
    }
    let profile = experiment.profile_named(&experiment.profile);
    let profile = profile.map_err(|error| {
        let remedy = "name one of the built-in profiles";
        Error::file(&experiment.file, "profile", error.to_string(), remedy)
    })?;
    let mut text = format!("{}: {}", profile.name, profile.title);
    if profile.calibration.is_empty() {
        text.push_str("\nCalibrated on no published point.");
    }
    for point in &profile.calibration {
        let _ = write!(
            text,
            "\nCalibrated on {}, {}: {}",
            point.entry,
            point.point,
            point.costs.join(", ")
        );
    }
    Ok(text)
}

fn indented_lines(text: &str) -> String {
    text.lines().map(indented).collect::<Vec<_>>().join("\n")
}

fn indented(prose: &str) -> String {
    const WIDTH: usize = 98;
    let mut text = String::new();
    let mut column = 0;
    for word in prose.split_whitespace() {
        let length = word.chars().count();
        if column == 0 || column + 1 + length > WIDTH {
            let _ = write!(text, "{}  {word}", if column == 0 { "" } else { "\n" });
            column = 2 + length;
        } else {
            let _ = write!(text, " {word}");
            column += 1 + length;
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_traced_and_what_is_supposed_stand_apart() {
        let prose = "General. Traced: one. Supposed: two. Traced: three.";
        let expected = [
            "General.",
            "Traced: one.",
            "Supposed: two.",
            "Traced: three.",
        ];
        assert_eq!(paragraphs(prose), expected);
        assert_eq!(paragraphs("Traced: one."), ["Traced: one."]);
        assert_eq!(paragraphs("None of them."), ["None of them."]);
    }
}
