//! A page that needs nothing else: style sheet and plots are inside it, there is
//! no script and no address of anything outside. It opens offline in any browser,
//! follows the reader's choice of light or dark, fits a phone, and prints.

use maud::{DOCTYPE, Markup, PreEscaped, html};

use crate::plot::{self, Axis, Drawing, Line, PlotError};
use crate::{Goal, Machine, figure, mark};

/// The page around a body.
#[must_use]
pub fn shell(title: &str, body: &Markup) -> String {
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                title { (title) }
                style { (PreEscaped(include_str!("page.css"))) }
            }
            body { (body) }
        }
    };
    page.into_string()
}

/// The line of the curve at this place of a plot, and what it is.
#[must_use]
pub fn legend_entry(index: usize, label: &str) -> Markup {
    let colour = plot::colour(index);
    let style = if plot::is_dashed(index) {
        "dashed"
    } else {
        "solid"
    };
    let rgb = format!(
        "border-top: 3px {style} #{:02x}{:02x}{:02x}",
        colour.0, colour.1, colour.2
    );
    html! { li { span.line style=(rgb) {} " " (label) } }
}

/// A plot with its curves named below it.
#[derive(Clone, Debug)]
pub struct Figure<'a> {
    /// What is swept.
    pub x: Axis<'a>,
    /// What is measured; its label is the caption.
    pub y: Axis<'a>,
    /// The curves with their names.
    pub curves: Vec<(&'a str, Line)>,
}

impl Figure<'_> {
    /// Nothing where there is no curve.
    fn markup(&self) -> Result<Option<Markup>, PlotError> {
        if self.curves.is_empty() {
            return Ok(None);
        }
        let drawing = Drawing {
            x: self.x,
            y: self.y,
            lines: self.curves.iter().map(|(_, line)| line).collect(),
            published: Vec::new(),
            name: None,
        };
        let svg = drawing.svg()?;
        Ok(Some(html! {
            figure {
                figcaption { (self.y.label) " (" (self.y.unit) ")" }
                (PreEscaped(svg))
                ul.legend {
                    @for (label, line) in &self.curves { (legend_entry(line.index, label)) }
                }
            }
        }))
    }
}

/// What was measured on real packets, as a page: curves first, then the promises,
/// then the very tables that a terminal shows.
///
/// # Errors
///
/// A plot could not be drawn: our own mistake.
pub fn measured(
    title: &str,
    machine: &Machine,
    figures: &[Figure<'_>],
    goals: &[Goal],
    tables: &str,
) -> Result<String, PlotError> {
    let figures = figures.iter().map(Figure::markup);
    let figures = figures.collect::<Result<Vec<_>, _>>()?;
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
                        tr class=(class(goal.met)) {
                            td.mark { (mark(goal.met)) }
                            td { (goal.what) @if let Some(why) = &goal.why { ": " (why) } }
                            td.value { (goal.measured.map_or_else(|| "–".to_owned(), figure)) " " (goal.unit) }
                            td.value { (figure(goal.goal)) " " (goal.unit) }
                        }
                    }
                }
            }
        }
    }
}

/// The style of a row by whether what it says came out.
#[must_use]
pub const fn class(met: Option<bool>) -> &'static str {
    match met {
        Some(true) => "holds",
        Some(false) => "fails",
        None => "unmeasured",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Side;
    use crate::plot::Scale;

    #[test]
    fn a_page_has_its_curves_promises_and_tables_and_nothing_from_outside() {
        let axis = |label, unit| Axis {
            label,
            unit,
            scale: Scale::Linear,
        };
        let line = Line {
            index: 0,
            points: vec![(1.0, 2.0), (2.0, 3.0)],
            spread: vec![(1.0, 1.5, 2.5)],
        };
        let figure = |curves| Figure {
            x: axis("Flood", "packets/s"),
            y: axis("Delivered", "packets/s"),
            curves,
        };
        let figures = [figure(vec![("stock", line)]), figure(Vec::new())];
        let goal = Goal::new("a", "kept & well", Side::AtLeast, 1.0, "%", vec![2.0]);
        let machine = Machine::read(Some("veth"));
        let page = measured("Bench", &machine, &figures, &[goal], "nginx/<1>").unwrap();
        assert_eq!(page.matches("<svg").count(), 1, "no curve, no plot");
        assert!(page.contains("kept &amp; well"), "a promise, escaped");
        assert!(page.contains("nginx/&lt;1&gt;"), "the tables, escaped");
        assert!(!page.contains("http://www.w3.org/1999/xhtml") && !page.contains("<script"));
    }
}
