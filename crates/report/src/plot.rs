//! Curves over one axis as an SVG plot.
//!
//! Text is black and lines have colours of middle lightness; the page's style
//! sheet turns the black into its own text colour, so that one drawing serves
//! light and dark. The legend is the page's, not the drawing's, because a page can
//! break it into lines on a phone.

use plotters::coord::Shift;
use plotters::coord::ranged1d::{AsRangedCoord, ValueFormatter};
use plotters::prelude::*;

use serde::{Deserialize, Serialize};

const WIDTH: u32 = 720;
const HEIGHT: u32 = 380;

/// Colours that are told apart on white and on near-black.
const PALETTE: [RGBColor; 12] = [
    RGBColor(0x1f, 0x83, 0xd6),
    RGBColor(0xe0, 0x6c, 0x1f),
    RGBColor(0x2b, 0xa0, 0x5a),
    RGBColor(0xd6, 0x45, 0x55),
    RGBColor(0x92, 0x6b, 0xd6),
    RGBColor(0xa3, 0x76, 0x4c),
    RGBColor(0xd8, 0x62, 0xb4),
    RGBColor(0x84, 0x8b, 0x94),
    RGBColor(0xa8, 0xa0, 0x1c),
    RGBColor(0x16, 0xa3, 0xb0),
    RGBColor(0x5b, 0x74, 0xe8),
    RGBColor(0xc9, 0x8a, 0x14),
];

/// The colour of the curve at this place of a plot.
pub(crate) fn colour(index: usize) -> RGBColor {
    PALETTE[index % PALETTE.len()]
}

/// Beyond the palette lines are dashed.
pub(crate) fn is_dashed(index: usize) -> bool {
    (index / PALETTE.len()) % 2 == 1
}

/// How an axis is drawn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Scale {
    /// Equal distances are equal differences.
    #[default]
    Linear,
    /// Equal distances are equal ratios.
    Log,
}

/// One curve: its place in the palette and its points.
#[derive(Clone, Debug)]
pub struct Line {
    /// Chooses colour and dashes; the same for one curve in all plots.
    pub index: usize,
    /// By increasing x.
    pub points: Vec<(f64, f64)>,
    /// Where chance leaves some of the values: x, least and greatest.
    pub spread: Vec<(f64, f64, f64)>,
}

impl Line {
    /// A curve without anything said of chance.
    #[must_use]
    pub const fn new(index: usize, points: Vec<(f64, f64)>) -> Self {
        Self {
            index,
            points,
            spread: Vec::new(),
        }
    }
}

/// What an axis shows.
#[derive(Clone, Copy, Debug)]
pub struct Axis<'a> {
    /// The quantity.
    pub label: &'a str,
    /// Its unit; empty for a pure number.
    pub unit: &'a str,
    /// How it is drawn.
    pub scale: Scale,
}

/// The plotting library could not draw: our own mistake.
#[derive(Debug, thiserror::Error)]
#[error("cannot draw the plot of {what}: {problem}")]
pub struct PlotError {
    /// What was to be drawn.
    pub what: String,
    /// The library's complaint, which has no type of its own.
    pub problem: String,
}

/// A plot: curves as lines, published points as rings.
#[allow(missing_debug_implementations, reason = "it borrows a function")]
pub struct Drawing<'a> {
    /// From left to right.
    pub x: Axis<'a>,
    /// Upwards.
    pub y: Axis<'a>,
    /// Drawn as lines.
    pub lines: Vec<&'a Line>,
    /// Drawn as rings.
    pub published: Vec<&'a Line>,
    /// Names the values of the x axis where they stand for cases.
    pub name: Option<&'a dyn Fn(f64) -> String>,
}

impl Drawing<'_> {
    /// The drawing as SVG.
    ///
    /// # Errors
    ///
    /// The plotting library complains: our own mistake.
    pub fn svg(&self) -> Result<String, PlotError> {
        self.drawn().map_err(|problem| PlotError {
            what: self.y.label.to_owned(),
            problem,
        })
    }

    fn drawn(&self) -> Result<String, String> {
        let all = || {
            let lines = self.lines.iter().chain(&self.published);
            lines.flat_map(|line| &line.points)
        };
        let x = extent(all().map(|point| point.0), self.x.scale);
        let intervals = self.lines.iter().flat_map(|line| &line.spread);
        let ends = intervals.flat_map(|(_, low, high)| [*low, *high]);
        let y = extent(all().map(|point| point.1).chain(ends), self.y.scale);
        let mut text = String::new();
        let root = SVGBackend::with_string(&mut text, (WIDTH, HEIGHT)).into_drawing_area();
        match (self.x.scale, self.y.scale) {
            (Scale::Linear, Scale::Linear) => self.fill(&root, x.0..x.1, y.0..y.1),
            (Scale::Log, Scale::Linear) => self.fill(&root, (x.0..x.1).log_scale(), y.0..y.1),
            (Scale::Linear, Scale::Log) => self.fill(&root, x.0..x.1, (y.0..y.1).log_scale()),
            (Scale::Log, Scale::Log) => {
                let (x, y) = ((x.0..x.1).log_scale(), (y.0..y.1).log_scale());
                self.fill(&root, x, y)
            }
        }?;
        root.present().map_err(|error| error.to_string())?;
        drop(root);
        let text = SHORTER
            .iter()
            .fold(text, |text, (long, short)| text.replace(long, short));
        Ok(joined(&text))
    }

    fn fill<X, Y>(
        &self,
        root: &DrawingArea<SVGBackend<'_>, Shift>,
        x: X,
        y: Y,
    ) -> Result<(), String>
    where
        X: AsRangedCoord<Value = f64>,
        Y: AsRangedCoord<Value = f64>,
        X::CoordDescType: Ranged<ValueType = f64> + ValueFormatter<f64>,
        Y::CoordDescType: Ranged<ValueType = f64> + ValueFormatter<f64>,
    {
        let mut chart = ChartBuilder::on(root)
            .margin(12)
            .x_label_area_size(56)
            .y_label_area_size(64)
            .build_cartesian_2d(x, y)
            .map_err(|error| error.to_string())?;
        chart
            .configure_mesh()
            .x_desc(self.x.description())
            .y_desc(self.y.description())
            .x_label_formatter(&|value| {
                self.name.map_or_else(|| short(*value), |name| name(*value))
            })
            .y_label_formatter(&|value| short(*value))
            .x_labels(8)
            .y_labels(6)
            .max_light_lines(0)
            .label_style(("sans-serif", 13))
            .axis_desc_style(("sans-serif", 14))
            .draw()
            .map_err(|error| error.to_string())?;
        for line in &self.lines {
            let style = colour(line.index).stroke_width(2);
            let (points, dots) = (line.points.iter().copied(), line.points.iter());
            if is_dashed(line.index) {
                chart.draw_series(DashedLineSeries::new(points, 6, 4, style))
            } else {
                chart.draw_series(LineSeries::new(points, style))
            }
            .map_err(|error| error.to_string())?;
            let dots = dots.map(|point| Circle::new(*point, 2, colour(line.index).filled()));
            chart.draw_series(dots).map_err(|error| error.to_string())?;
        }
        for line in &self.lines {
            let colour = colour(line.index).stroke_width(1);
            let bars = line.spread.iter();
            let bars = bars.map(|&(x, low, high)| PathElement::new([(x, low), (x, high)], colour));
            chart.draw_series(bars).map_err(|error| error.to_string())?;
        }
        for line in &self.published {
            let style = colour(line.index).stroke_width(2);
            let rings = line.points.iter();
            let rings = rings.map(|point| Circle::new(*point, 6, style));
            let drawn = chart.draw_series(rings);
            drawn.map_err(|error| error.to_string())?;
        }
        Ok(())
    }
}

impl Axis<'_> {
    fn description(&self) -> String {
        if self.unit.is_empty() {
            return self.label.to_owned();
        }
        format!("{} ({})", self.label, self.unit)
    }
}

/// The range of an axis: from 0 on a linear one, and never empty.
fn extent(values: impl Iterator<Item = f64>, scale: Scale) -> (f64, f64) {
    let shown = values.filter(|value| scale == Scale::Linear || *value > 0.0);
    let (low, high) = shown.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), value| {
        (low.min(value), high.max(value))
    });
    if low > high {
        return (0.1, 1.0);
    }
    match scale {
        Scale::Linear if low >= 0.0 => (0.0, if high > 0.0 { high * 1.05 } else { 1.0 }),
        Scale::Linear => (low * 1.05, high.max(0.0) * 1.05 + f64::MIN_POSITIVE),
        Scale::Log => (low / 1.2, high * 1.2),
    }
}

/// A number as an axis shows it.
fn short(value: f64) -> String {
    let (scaled, suffix) = match value.abs() {
        large if large >= 999_950.0 => (value / 1e6, "M"),
        middle if middle >= 10_000.0 => (value / 1e3, "k"),
        _ => (value, ""),
    };
    let digits = match scaled.abs() {
        large if large >= 100.0 => 0,
        middle if middle >= 1.0 => 1,
        _ => 3,
    };
    let text = format!("{scaled:.digits$}");
    let text = match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.'),
        false => &text,
    };
    format!("{text}{suffix}")
}

/// What the plotting library writes although SVG has it so, or at each element, or with more
/// digits than are seen: a quarter of a report with many plots.
const SHORTER: [(&str, &str); 10] = [
    (r#" opacity="1""#, ""),
    (r#" stroke-width="1""#, ""),
    (r#" stroke="none""#, ""),
    ("#000000", "#000"),
    (r#""10.483870967741936""#, r#""10.5""#),
    (r#""11.290322580645162""#, r#""11.3""#),
    // Once for all: most elements are lines, and texts name their fill.
    (r#" fill="none""#, ""),
    (r#" font-family="sans-serif""#, ""),
    (
        "<svg w",
        r#"<svg style="font-family:sans-serif;fill:none" w"#,
    ),
    // The end of a polyline's points.
    (r#" "/>"#, r#""/>"#),
];

/// The dots of a curve as one path, and its intervals as another: of a page of hundreds of plots a
/// quarter.
fn joined(svg: &str) -> String {
    let mut text = String::with_capacity(svg.len());
    let mut open = String::new();
    for line in svg.lines() {
        let Some((begin, piece)) = dot(line).or_else(|| interval(line)) else {
            end(&mut text, &mut open);
            text.push_str(line);
            text.push('\n');
            continue;
        };
        if begin != open {
            end(&mut text, &mut open);
            text.push_str(&begin);
            open = begin;
        }
        text.push_str(&piece);
    }
    end(&mut text, &mut open);
    text
}

/// Ends the path that is open, if one is.
fn end(text: &mut String, open: &mut String) {
    if !std::mem::take(open).is_empty() {
        text.push_str("\"/>\n");
    }
}

/// The beginning of a path of dots, and this dot of it.
fn dot(line: &str) -> Option<(String, String)> {
    let (x, rest) = line.strip_prefix("<circle cx=\"")?.split_once("\" cy=\"")?;
    let (y, rest) = rest.split_once("\" r=\"2\" fill=\"")?;
    let colour = rest.strip_suffix("\"/>")?;
    let begin =
        format!("<path stroke=\"{colour}\" stroke-width=\"4\" stroke-linecap=\"round\" d=\"");
    Some((begin, format!("M{x} {y}h0")))
}

/// The same of a line between two points.
fn interval(line: &str) -> Option<(String, String)> {
    let (style, rest) = line
        .strip_prefix("<polyline stroke=\"")?
        .split_once("\" points=\"")?;
    let (from, to) = rest.strip_suffix("\"/>")?.split_once(' ')?;
    let is_one = !to.contains(' ');
    is_one.then(|| {
        (
            format!("<path stroke=\"{style}\" d=\""),
            format!("M{from} {to}"),
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_show_short_numbers() {
        for (value, text) in [
            (0.0, "0"),
            (0.25, "0.25"),
            (4.0, "4"),
            (2.5, "2.5"),
            (4700.0, "4700"),
            (15_000.0, "15k"),
            (2_500_000.0, "2.5M"),
            (1_000_000.0, "1M"),
        ] {
            assert_eq!(short(value), text);
        }
    }

    #[test]
    fn an_axis_is_never_empty_and_a_log_one_never_at_zero() {
        assert_eq!(extent([0.0, 0.0].into_iter(), Scale::Linear), (0.0, 1.0));
        let (low, high) = extent([0.0, 5.0].into_iter(), Scale::Log);
        assert!(0.0 < low && low < 5.0 && 5.0 < high);
        assert!(extent([].into_iter(), Scale::Log).0 > 0.0);
    }

    #[test]
    fn a_drawing_leaves_out_what_svg_has_by_default() {
        let axis = |label| Axis {
            label,
            unit: "",
            scale: Scale::Linear,
        };
        let line = Line::new(0, vec![(0.0, 1.0), (1.0, 2.0), (2.0, 3.0)]);
        let drawing = Drawing {
            x: axis("x"),
            y: axis("y"),
            lines: vec![&line],
            published: Vec::new(),
            name: None,
        };
        let svg = drawing.svg().unwrap();
        assert!(svg.contains("<polyline") && svg.contains("opacity=\"0.2\""));
        assert!(svg.contains(r##"fill="#000""##), "a text is seen");
        assert!(!SHORTER.iter().any(|(long, _)| svg.contains(long)));
    }

    /// An interval that went beyond the axis was cut off there, and looked shorter than it is.
    #[test]
    fn an_interval_is_drawn_from_end_to_end() {
        let axis = |label| Axis {
            label,
            unit: "",
            scale: Scale::Linear,
        };
        let mut line = Line::new(0, vec![(0.0, 1.0), (1.0, 2.0), (2.0, 3.0)]);
        line.spread = vec![(1.0, -2.0, 6.0)];
        let drawing = Drawing {
            x: axis("x"),
            y: axis("y"),
            lines: vec![&line],
            published: Vec::new(),
            name: None,
        };
        let svg = drawing.svg().unwrap();
        let path = |separator: char| {
            let of_curve = svg.lines().filter(|line| line.contains("1F83D6"));
            let drawn = of_curve.filter_map(|line| line.split_once("d=\"M"));
            let paths = drawn.map(|(_, path)| path.trim_end_matches("\"/>"));
            let mut paths = paths.filter(|path| path.contains(separator));
            let places = paths.next().unwrap().split(['M', ' ', ',', 'h']);
            let heights = places.map(|number| number.parse::<f64>().unwrap());
            heights.collect::<Vec<_>>()
        };
        // Dots: x, y and a 0 each; the interval: x and y of both ends.
        let (dots, ends) = (path('h'), path(','));
        let pixels = (dots[1] - dots[7]) / 2.0;
        let length = (ends[1] - ends[3]).abs() / pixels;
        assert!((length - 8.0).abs() < 0.1, "{length}");
    }

    #[test]
    fn dots_and_intervals_of_a_curve_are_a_path_each() {
        let svg = r##"<circle cx="1" cy="2" r="2" fill="#00F"/>
<circle cx="3" cy="4" r="2" fill="#00F"/>
<circle cx="3" cy="4" r="2" fill="#0F0"/>
<circle cx="3" cy="4" r="6" stroke="#00F"/>
<polyline stroke="#00F" points="1,2 1,3"/>
<polyline stroke="#00F" points="3,2 3,5"/>
<polyline stroke="#00F" points="1,2 2,3 3,4"/>
"##;
        let expected = r##"<path stroke="#00F" stroke-width="4" stroke-linecap="round" d="M1 2h0M3 4h0"/>
<path stroke="#0F0" stroke-width="4" stroke-linecap="round" d="M3 4h0"/>
<circle cx="3" cy="4" r="6" stroke="#00F"/>
<path stroke="#00F" d="M1,2 1,3M3,2 3,5"/>
<polyline stroke="#00F" points="1,2 2,3 3,4"/>
"##;
        assert_eq!(joined(svg), expected);
    }
}
