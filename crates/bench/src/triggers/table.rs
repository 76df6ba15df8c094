//! The document as text.

use std::fmt::Write as _;

use plimsoll_report::figure;

use super::document::{Document, Measured, PAPER};

pub(super) fn tables(document: &Document) -> String {
    let mut text = format!(
        "Intervals between trigger states, in us (Linux {}, {} CPUs)\n\n",
        document.machine.kernel, document.machine.cpus
    );
    intervals(document, &mut text);
    probing(document, &mut text);
    for measured in &document.workloads {
        of_each_cpu(&mut text, measured);
        sources(&mut text, measured);
        windows(&mut text, measured);
    }
    text
}

fn intervals(document: &Document, text: &mut String) {
    let _ = writeln!(
        text,
        "{:<18} {:>9} {:>8} {:>8} {:>8} {:>8} {:>9} {:>8} {:>8} {:>6} {:>8}",
        "workload",
        "states/s",
        "mean",
        "median",
        "stddev",
        "p99",
        "max",
        ">100us%",
        ">150us%",
        "idle%",
        "delay"
    );
    for measured in &document.workloads {
        let name = measured.workload.name();
        let Some(all) = &measured.analysis.all else {
            let _ = writeln!(text, "{name:<18} no trigger state");
            continue;
        };
        let _ = writeln!(
            text,
            "{name:<18} {:>9.0} {:>8.2} {:>8.2} {:>8.1} {:>8.1} {:>9.0} {:>8.3} {:>8.3} {:>6.1} {:>8.2}",
            measured.analysis.states_per_s,
            all.mean_us,
            all.median_us,
            all.stddev_us,
            all.p99_us,
            all.max_us,
            all.above_100us_percent,
            all.above_150us_percent,
            all.idle_percent,
            all.delay_us
        );
    }
    for (name, [mean, median, deviation, above_100, above_150]) in PAPER {
        let _ = writeln!(
            text,
            "{name:<18} {:>9.0} {mean:>8.2} {median:>8.2} {deviation:>8.1} {:>8} {:>9} {above_100:>8.3} {above_150:>8.3}",
            1e6 / mean,
            "-",
            "-"
        );
    }
    text.push_str(
        "\nstates/s: per CPU. idle: the CPU could have checked at any moment; that time is in no\n\
         interval. delay: mean delay of an event due at a random moment. ST-...: the paper's table IV,\n\
         a 300 MHz Pentium II in 2000, idle loop included.\n",
    );
}

fn probing(document: &Document, text: &mut String) {
    let _ = writeln!(
        text,
        "\nA probe adds {} ns to a state (a system call that does nothing takes {} ns).",
        figure(document.probes.state_ns),
        figure(document.probes.system_call_ns)
    );
    for measured in &document.workloads {
        let share = measured.analysis.states_per_s * document.probes.state_ns / 1e7;
        let _ = write!(
            text,
            "{}: {} % of a CPU",
            measured.workload.name(),
            figure(share)
        );
        if let (Some(without), Some(with), Some(slower), Some(unit)) = (
            measured.work_per_s,
            measured.work_per_s_probed,
            measured.slowdown_percent(),
            measured.workload.unit(),
        ) {
            let _ = write!(
                text,
                "; {} {unit} without probes, {} with ({slower:.1} % fewer)",
                figure(without),
                figure(with)
            );
        }
        if measured.lost > 0 {
            let _ = write!(text, "; the record was full, {} states lost", measured.lost);
        }
        text.push('\n');
    }
}

/// What each CPU passed by itself: the figures above are of the workload's CPU, or of all
/// together.
fn of_each_cpu(text: &mut String, measured: &Measured) {
    let _ = writeln!(
        text,
        "\n{}: each CPU\n{:<8} {:>9} {:>8} {:>8} {:>8} {:>8} {:>6}  most by",
        measured.workload.name(),
        "CPU",
        "states/s",
        "mean",
        "median",
        "p99",
        ">100us%",
        "idle%"
    );
    for of_cpu in &measured.cpus {
        let Some(all) = &of_cpu.analysis.all else {
            continue;
        };
        let most = of_cpu.analysis.sources.first();
        let _ = writeln!(
            text,
            "{:<8} {:>9.0} {:>8.2} {:>8.2} {:>8.1} {:>8.3} {:>6.1}  {}",
            of_cpu.cpu,
            of_cpu.analysis.states_per_s,
            all.mean_us,
            all.median_us,
            all.p99_us,
            all.above_100us_percent,
            all.idle_percent,
            most.map_or("-", |most| most.source.name())
        );
    }
}

fn sources(text: &mut String, measured: &Measured) {
    let _ = writeln!(
        text,
        "\n{}: sources\n{:<26} {:>8} {:>14} {:>14} {:>14}",
        measured.workload.name(),
        "source",
        "share %",
        "without: mean",
        "median",
        ">100us %"
    );
    for contribution in &measured.analysis.sources {
        let _ = write!(
            text,
            "{:<26} {:>8.2}",
            contribution.source.name(),
            contribution.share_percent
        );
        if let Some(without) = &contribution.without {
            let _ = write!(
                text,
                " {:>14.2} {:>14.2} {:>14.3}",
                without.mean_us, without.median_us, without.above_100us_percent
            );
        }
        text.push('\n');
    }
}

fn windows(text: &mut String, measured: &Measured) {
    for windows in &measured.analysis.windows {
        let _ = writeln!(
            text,
            "medians in {} ms: {} to {} us in nine of ten windows, middle {}; above 40 us in {} %",
            windows.window_ms,
            figure(windows.p5_us),
            figure(windows.p95_us),
            figure(windows.median_us),
            figure(windows.above_40us_percent)
        );
    }
}
