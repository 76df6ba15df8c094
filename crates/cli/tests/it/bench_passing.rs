//! `plimsoll bench forward` and `plimsoll bench screen`, hosts that pass packets on, from end
//! to end with tiny durations. Needs root.

use serde_json::Value;

use crate::benching::{assert_goals, measure};

/// Frames that a host sends by itself during a point, such as a report of multicast groups: the
/// output's counter has them as well. (None were allowed at first; then 3,999 of 3,998 passed.)
const OWN_FRAMES: u64 = 5;

/// What was sent to a host that passes packets went somewhere, whatever its length.
fn assert_passed(cases: &Value, ways: &[&str]) {
    let cases = cases.as_array().unwrap();
    let found: Vec<_> = cases
        .iter()
        .map(|case| {
            (
                case["family"].as_str().unwrap(),
                case["way"].as_str().unwrap(),
            )
        })
        .collect();
    let expected = ["ipv4", "ipv4-imix"].map(|family| ways.iter().map(move |way| (family, *way)));
    assert_eq!(found, expected.into_iter().flatten().collect::<Vec<_>>());
    for case in cases {
        assert!(case["why"].is_null(), "{case}");
        let mut passed = 0;
        for point in case["runs"][0]["curve"].as_array().unwrap() {
            let count = |name: &str| point["counts"][name].as_u64().unwrap();
            let taken = count("ring_full") + count("failed") + count("received");
            assert_eq!(count("offered"), taken, "{case}");
            passed += count("passed");
            let left = count("passed") + count("sink_full");
            assert!(left <= count("received") + OWN_FRAMES, "{case}");
        }
        // Of one point, a tenth of a second beside other tests, none may pass.
        assert!(passed > 0, "{case}");
    }
}

const PASSING: [&str; 8] = [
    "--runs",
    "1",
    "--window-ms",
    "100",
    "--mlfrr",
    "20000",
    "--ip",
    "4",
];

/// The goals of a bench, for each version of IP and each choice of lengths.
fn of_families(bench: &str, names: &[&str]) -> Vec<String> {
    ["ipv4", "ipv6", "ipv4-imix", "ipv6-imix"]
        .iter()
        .flat_map(|family| {
            names
                .iter()
                .map(move |name| format!("{bench}.{family}.{name}"))
        })
        .collect()
}

/// Routers in the driver and in user space, and what a flood leaves to others.
#[test]
fn routers_forward_what_they_take_and_every_goal_is_listed() {
    let document = measure(&[&["forward", "--only", "bare,xdp,user"], &PASSING[..]].concat());
    assert_passed(&document["cases"], &["bare", "xdp", "user"]);
    let names = [
        "xdp.mlfrr.kernel",
        "xdp.mlfrr.bare",
        "user.mlfrr.testpmd",
        "xdp.overload",
        "user.overload",
        "xdp.share",
        "xdp.ssh",
        "user.share",
        "user.ssh",
        "first-packet",
    ];
    let mut ids = of_families("forward", &names);
    // A first packet is no mix of lengths.
    ids.retain(|id| !id.ends_with("imix.first-packet"));
    assert_goals(&document, &ids);
    for case in document["beside"].as_array().unwrap() {
        let run = &case["runs"][0];
        assert!(run["ssh_attempts"].as_u64().unwrap() > 0, "{case}");
        let percent = run["compute_percent"].as_f64().unwrap();
        assert!((0.0..=100.0).contains(&percent), "{case}");
    }
}

/// Ours and a process behind NFQUEUE, which this kernel has by way of iptables.
#[test]
fn screens_pass_what_they_accept_and_every_goal_is_listed() {
    let document = measure(&[&["screen", "--only", "screen,nfqueue"], &PASSING[..]].concat());
    assert_passed(&document["cases"], &["screen", "nfqueue"]);
    let ids = of_families("screen", &["mlfrr.nfqueue", "overload"]);
    assert_goals(&document, &ids);
}
