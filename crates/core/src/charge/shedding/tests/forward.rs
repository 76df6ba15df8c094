//! Packets for other hosts, where nobody else wants the CPU and where somebody does.

use super::*;

/// A CPU that does nothing but forward: all of its time goes to these packets.
fn forwarding(demands: Option<&[Demand]>, contended: bool) -> CpuLoad<'_> {
    let load = busy(20, demands);
    CpuLoad {
        forward: load.admitted,
        contended,
        ..load
    }
}

/// A gateway at the end of its capacity had half of its packets discarded, although nobody wanted the
/// time.
#[test]
fn forwarding_on_a_cpu_that_nobody_else_wants_is_not_shed() {
    let mut shedding = Shedding::new(SheddingConfig::DEFAULT).unwrap();
    let packets = [demand(7, 9000, None, false)];
    for interval in 0..100 {
        let load = forwarding(Some(&packets), false);
        assert_eq!(shedding.on_interval([load]), Order::Keep, "{interval}");
    }
    assert!(!shedding.is_strained());
}

#[test]
fn forwarding_is_shed_while_others_wait_for_the_cpu_and_not_any_longer() {
    let mut shedding = Shedding::new(SheddingConfig::DEFAULT).unwrap();
    let packets = [demand(7, 9000, None, false)];
    for _ in 0..3 {
        shedding.on_interval([forwarding(Some(&packets), true)]);
    }
    assert!(shedding.is_active());
    let mut stopped = false;
    for _ in 0..=CALM_TIME.as_millis() / INTERVAL.as_millis() {
        let load = forwarding(Some(&packets), false);
        stopped |= shedding.on_interval([load]) == Order::Stop;
    }
    assert!(stopped && !shedding.is_active());
}

/// Whoever waits for packets that were lost sleeps, and wants no CPU.
#[test]
fn packets_to_the_host_itself_are_shed_although_nobody_waits() {
    let mut shedding = Shedding::new(SheddingConfig::DEFAULT).unwrap();
    let flood = [demand(7, 5000, None, false), demand(8, 4000, None, false)];
    for _ in 0..3 {
        shedding.on_interval([CpuLoad {
            forward: 5000,
            contended: false,
            ..busy(20, Some(&flood))
        }]);
    }
    assert!(shedding.is_active());
}

/// The busiest CPU decided, and it only forwarded.
#[test]
fn a_cpu_that_only_forwards_hides_none_that_others_want() {
    let mut shedding = Shedding::new(SheddingConfig::DEFAULT).unwrap();
    let packets = [demand(7, 9000, None, false)];
    for _ in 0..3 {
        let shared = CpuLoad {
            network: INTERVAL * 9 / 10,
            ..forwarding(Some(&packets), true)
        };
        shedding.on_interval([forwarding(Some(&packets), false), shared]);
    }
    assert!(shedding.is_active());
}
