//! The document as text.

use std::fmt::Write as _;

use plimsoll_report::median;

use super::{Case, Document, PathFigures, Way};
use crate::figures::conclusion;

pub(super) fn tables(document: &Document) -> String {
    let mut text = String::new();
    let mut rates: Vec<u32> = document.cases.iter().map(|case| case.rate_mbit).collect();
    rates.dedup();
    for rate in rates {
        let cases = document.cases.iter().filter(|case| case.rate_mbit == rate);
        of_rate(&mut text, rate, &cases.collect::<Vec<_>>());
        for path in document.path.iter().filter(|path| path.rate_mbit == rate) {
            of_path(&mut text, path);
        }
    }
    text += match document.carried_by {
        "relay" => "This kernel has no netem: a program carried the frames.\n",
        _ => "netem carried the frames, and stamped none.\n",
    };
    text + conclusion(&document.machine, &document.goals).as_str()
}

fn of_rate(text: &mut String, rate: u32, cases: &[&Case]) {
    let _ = writeln!(
        text,
        "\n{rate} Mbit/s, 50 ms each way: response in ms (lowest to highest), of the kernel's, Mbit/s"
    );
    let _ = write!(text, "{:<14}", "");
    for transfer in cases.iter().take(1).flat_map(|case| &case.transfers) {
        let _ = write!(text, "{:<42}", format!("{} packets", transfer.packets));
    }
    let _ = writeln!(text, "{:<26}queue full", "interval, µs");
    let kernel = cases.iter().find(|case| case.way == Way::Kernel.name());
    for case in cases {
        let _ = write!(text, "{:<14}", case.way);
        for (place, transfer) in case.transfers.iter().enumerate() {
            let kernel = kernel.and_then(|kernel| median(&kernel.transfers[place].response_ms));
            let figures = response(&transfer.response_ms, kernel, transfer.throughput_mbit);
            let _ = write!(text, "{figures:<42}");
        }
        let spacing = case
            .spacing
            .map(|spacing| format!("{:.1} ± {:.1}", spacing.mean_us, spacing.stddev_us));
        let spacing = spacing.unwrap_or_else(|| "-".to_owned());
        let _ = writeln!(text, "{spacing:<26}{}", case.queue_full);
        if let Some(why) = &case.why {
            let _ = writeln!(text, "{:<14}{why}", "");
        }
    }
}

fn response(values: &[f64], kernel: Option<f64>, throughput: Option<f64>) -> String {
    let Some(middle) = median(values) else {
        return "-".to_owned();
    };
    let lowest = values.iter().copied().fold(f64::INFINITY, f64::min);
    let highest = values.iter().copied().fold(0.0, f64::max);
    let ratio = kernel.map_or_else(String::new, |kernel| format!("  {:.2} x", middle / kernel));
    let throughput = throughput.map_or_else(String::new, |rate| format!("  {rate:.1}"));
    format!("{middle:.1} ({lowest:.1} to {highest:.1}){ratio}{throughput}")
}

fn of_path(text: &mut String, path: &PathFigures) {
    let _ = writeln!(
        text,
        "The path: {:.1} % of {} frames within 20 µs of their time, p50 {:.1} µs, p99 {:.1} µs; {} lost by itself",
        path.within_20us_percent,
        path.frames,
        path.late_p50_us,
        path.late_p99_us,
        path.lost_by_path
    );
}
