//! Trigger states of this machine under a workload (Aron & Druschel's figures 2 to 4 and
//! tables IV and V).

use plimsoll_lab::Figures;
use plimsoll_timers_bpf::{Analysis, Distribution};

use super::Offer;
use super::settings::TriggersTrial;
use crate::Error;
use crate::triggers::{Plan, record};

/// As many as the paper took of each workload.
const STATES: u32 = 2_000_000;

pub(super) fn run(
    trial: &TriggersTrial,
    offers: impl Iterator<Item = Offer>,
) -> Result<Vec<Figures>, Error> {
    let one = |offer: Offer| {
        let plan = Plan {
            seconds: offer.window.as_secs().max(1) as u32,
            states: STATES,
        };
        let recorded = record(trial.workload, plan)?;
        let mut figures = offer.figures(0.0, 0.0, []);
        add(&mut figures, &recorded.analysis);
        Ok(figures)
    };
    offers.map(one).collect()
}

/// By the names that the model uses, where it has them.
fn add(figures: &mut Figures, analysis: &Analysis) {
    let mut put = |name: String, value: f64| {
        figures.insert(name, value);
    };
    if let Some(all) = &analysis.all {
        for (name, value) in of(all) {
            put(name.to_owned(), value);
        }
    }
    put("states_hz".to_owned(), analysis.states_per_s);
    for source in &analysis.sources {
        let name = source.source.name().replace(' ', "-");
        put(format!("share.{name}_pct"), source.share_percent);
        if let Some(without) = &source.without {
            put(format!("without.{name}_mean_us"), without.mean_us);
            put(format!("without.{name}_median_us"), without.median_us);
        }
    }
    for windows in &analysis.windows {
        let length = windows.window_ms;
        put(format!("median_{length}ms_low_us"), windows.p5_us);
        put(format!("median_{length}ms_high_us"), windows.p95_us);
        put(
            format!("windows_{length}ms_above_40us_pct"),
            windows.above_40us_percent,
        );
    }
}

fn of(all: &Distribution) -> [(&'static str, f64); 7] {
    [
        ("interval_mean_us", all.mean_us),
        ("interval_median_us", all.median_us),
        ("interval_stddev_us", all.stddev_us),
        ("interval_p99_us", all.p99_us),
        ("above_100us_pct", all.above_100us_percent),
        ("above_150us_pct", all.above_150us_percent),
        ("delay_us", all.delay_us),
    ]
}
