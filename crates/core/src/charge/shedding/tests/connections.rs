//! Packets of established connections, beside others and alone.

use super::*;

/// A bulk transfer that takes a whole CPU for receiving was shed, and collapsed.
#[test]
fn a_bulk_transfer_is_not_shed() {
    let mut shedding = Shedding::new(SheddingConfig::DEFAULT).unwrap();
    let transfer = [demand(10, 9000, None, true)];
    for interval in 0..100 {
        let load = CpuLoad {
            connections: 9000,
            ..busy(20, Some(&transfer))
        };
        assert_eq!(shedding.on_interval([load]), Order::Keep, "{interval}");
    }
    assert!(!shedding.is_strained());
}

#[test]
fn a_flood_beside_a_bulk_transfer_is_shed_until_it_ends() {
    let mut shedding = Shedding::new(SheddingConfig::DEFAULT).unwrap();
    let flood = [
        demand(10, 2000, None, true),
        demand(20, 30_000, None, false),
    ];
    for _ in 0..3 {
        let load = CpuLoad {
            connections: 2000,
            ..busy(20, Some(&flood))
        };
        shedding.on_interval([load]);
    }
    assert!(shedding.is_active());
    // The transfer fills the CPU from now on.
    let transfer = [demand(10, 9000, None, true)];
    let mut stopped = false;
    for _ in 0..=CALM_TIME.as_millis() / INTERVAL.as_millis() {
        let load = CpuLoad {
            connections: 9000,
            ..busy(20, Some(&transfer))
        };
        stopped |= shedding.on_interval([load]) == Order::Stop;
    }
    assert!(stopped && !shedding.is_active());
}
