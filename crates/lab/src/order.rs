//! In which order points run: it changes how long a run takes, and no result.

use rayon::prelude::*;

use crate::runner::Place;

/// Runs all `places`, those that are expected to take longest first: a long one that began
/// last would run while all other cores have nothing left. The results are in the order of
/// the places.
pub(crate) fn longest_first<T: Send>(
    places: &[Place<'_>],
    run: impl Fn(&Place<'_>) -> T + Sync,
) -> Vec<T> {
    let mut order: Vec<_> = places.iter().enumerate().collect();
    order.sort_by(|(_, one), (_, other)| expected(other).total_cmp(&expected(one)));
    // Each core takes the next one in this order when it has finished its last.
    let done = order.into_iter().par_bridge();
    let mut done: Vec<(usize, T)> = done.map(|(index, place)| (index, run(place))).collect();
    done.sort_unstable_by_key(|(index, _)| *index);
    done.into_iter().map(|(_, result)| result).collect()
}

/// What a place takes, about and in no unit: its packets, where a rate is swept.
fn expected((experiment, _, x): &Place<'_>) -> f64 {
    let of = |key: &str| {
        let value = experiment.scenario.get(key)?;
        let whole = value.as_integer().map(|whole| whole as f64);
        whole.or_else(|| value.as_float())
    };
    if !experiment.sweep.parameter.ends_with("rate_pps") {
        return 0.0;
    }
    *x * (of("duration_ms").unwrap_or(0.0) + of("warmup_ms").unwrap_or(100.0))
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;
    use crate::experiment::Experiment;

    #[test]
    fn the_longest_begin_first_and_the_order_of_results_is_that_of_the_places() {
        let text = r#"
            id = "made-up"
            title = "-"
            profile = "none"
            explain = { setup = "-", model = "-", limits = "-" }
            sweep = { parameter = "source.flood.traffic.rate_pps", label = "-", values = [1, 2, 3] }
            scenario = { duration_ms = 10 }
            measure = [{ id = "goodput", of = "delivered_pps", label = "-", unit = "packets/s" }]
            curve = [{ id = "one", label = "-" }]
        "#;
        let experiment = Experiment::parse("made-up.toml", text).unwrap();
        let curve = &experiment.curves[0];
        let places = [
            (&experiment, curve, 2.0),
            (&experiment, curve, 3.0),
            (&experiment, curve, 1.0),
        ];
        let begun = Mutex::new(Vec::new());
        let pool = rayon::ThreadPoolBuilder::new().num_threads(1).build();
        let results = pool.unwrap().install(|| {
            longest_first(&places, |(_, _, x)| {
                begun.lock().unwrap().push(*x);
                *x
            })
        });
        assert_eq!(begun.into_inner().unwrap(), [3.0, 2.0, 1.0]);
        assert_eq!(results, [2.0, 3.0, 1.0]);
    }
}
