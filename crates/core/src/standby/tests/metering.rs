//! When CPU time is metered while nothing is attached.

use super::*;

/// It costs whoever is calm.
#[test]
fn cpu_time_is_metered_only_where_it_may_tell_something() {
    let packets = |received| Evidence { received, ..NONE };
    let many = packets(5_000);
    for calm in [
        NONE,
        // 0.1 s of 85 % at 20 us each is 4,250 packets.
        packets(4_249),
        // A transfer loses frames by itself, and fills a CPU.
        bulk(0),
        bulk(100_000),
        // A small buffer, whatever the CPUs do.
        flood(100),
    ] {
        let mut host = Host::new();
        host.read(&calm);
        assert!(!host.standby.needs_meter(), "{calm:?}");
    }
    let lost = Evidence {
        ring: 1,
        ..packets(10)
    };
    let forwarded = Evidence {
        forwarded: 5_000,
        ..many
    };
    for busy in [packets(4_250), many, lost, forwarded] {
        let mut host = Host::new();
        host.read(&busy);
        assert!(host.standby.needs_meter(), "{busy:?}");
        let kept = readings(METER_KEPT);
        assert_eq!(host.until_change(&NONE, kept - 1), None);
        assert!(host.standby.needs_meter(), "until the next burst");
        host.read(&NONE);
        assert!(!host.standby.needs_meter(), "{busy:?}");
    }
    let mut host = Host::attached();
    host.read(&NONE);
    assert!(host.standby.needs_meter(), "the program's governor asks");
}
