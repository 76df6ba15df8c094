//! A bar chart in text: for each load a bar per protection, before the tables.

use std::fmt::Write as _;

use crate::figures::grouped;

/// Columns that the longest bar takes.
const WIDTH: f64 = 40.0;
/// Parts of a column, from an eighth on.
const EIGHTHS: [&str; 8] = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"];

/// One bar: at which load, behind what, how much.
pub type Bar = (f64, &'static str, f64);

/// A chart of bars in the order given. Loads are per second, and a load stands at its
/// first bar only. At each load there are two bars, stock's and ours.
#[must_use]
pub fn chart(title: &str, bars: &[Bar]) -> String {
    let longest = bars.iter().map(|(_, _, value)| *value).fold(0.0, f64::max);
    let mut text = format!("{title}\n");
    for (index, (load, name, value)) in bars.iter().enumerate() {
        let first = index % PER_LOAD == 0;
        let load = if first {
            load_name(*load)
        } else {
            String::new()
        };
        let bar = bar(*value, longest);
        let _ = writeln!(text, "{load:>12} {name:>8} {bar} {}", grouped(*value));
    }
    text + "\n"
}

/// Stock and ours.
const PER_LOAD: usize = super::PROTECTIONS.len();

fn load_name(per_second: f64) -> String {
    if per_second < 1.0 {
        return "no flood".to_owned();
    }
    format!("{}/s", grouped(per_second))
}

fn bar(value: f64, longest: f64) -> String {
    let eighths = (8.0 * WIDTH * value / longest.max(f64::MIN_POSITIVE)).round() as usize;
    "█".repeat(eighths / 8) + EIGHTHS[eighths % 8]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_bar_is_full_and_others_are_in_proportion() {
        let bars = [
            (0.0, "stock", 1000.0),
            (0.0, "guard", 4000.0),
            (150_000.0, "stock", 50.0),
            (149_000.0, "guard", 0.0),
        ];
        let text = chart("requests/s", &bars);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "requests/s");
        assert_eq!(
            lines[1],
            format!("    no flood    stock {} 1,000", "█".repeat(10))
        );
        assert_eq!(
            lines[2],
            format!("                guard {} 4,000", "█".repeat(40))
        );
        assert_eq!(lines[3], "   150,000/s    stock ▌ 50");
        assert_eq!(lines[4], "                guard  0");
    }

    #[test]
    fn nothing_at_all_is_no_bar() {
        let text = chart("goodput", &[(0.0, "stock", 0.0)]);
        assert_eq!(text.lines().nth(1), Some("    no flood    stock  0"));
    }
}
