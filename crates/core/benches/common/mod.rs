//! What every bench file of this crate shares: how long criterion measures.

use std::time::Duration;

use criterion::Criterion;

/// Criterion as all benches of this crate use it: short enough that the whole
/// suite takes a few minutes, long enough for a steady median.
pub(crate) fn criterion() -> Criterion {
    Criterion::default()
        .warm_up_time(Duration::from_millis(500))
        .measurement_time(Duration::from_secs(2))
        .sample_size(50)
        .configure_from_args()
}
