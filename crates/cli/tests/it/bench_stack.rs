//! `plimsoll bench stack` and `plimsoll bench wan`, what Plimsoll's own stack receives and
//! sends, from end to end with tiny durations. Needs root.

use crate::benching::{assert_goals, measure};

/// Short files over the path: slow start and pace, the kernel's and ours.
#[test]
fn transfers_over_a_wide_area_path_are_timed_and_the_path_loses_nothing() {
    let few = ["wan", "--only", "kernel,ours-paced", "--rates", "100"];
    let short = ["--runs", "1", "--packets", "5", "--idle-ms", "0"];
    let document = measure(&[&few[..], &short].concat());
    assert_goals(&document, &["wan.response", "wan.path"]);
    for case in document["cases"].as_array().unwrap() {
        assert!(case["why"].is_null(), "{case}");
        let times = case["transfers"][0]["response_ms"].as_array().unwrap();
        assert_eq!(times.len(), 3, "{case}");
        // There and back take 100 ms.
        assert!(
            times.iter().all(|time| time.as_f64().unwrap() > 100.0),
            "{case}"
        );
    }
    let path = &document["path"][0];
    assert!(path["frames"].as_u64().unwrap() > 300, "{path}");
    assert_eq!(path["lost_by_path"], 0, "{path}");
}

/// The receive path that demultiplexes in the driver, and what a bystander sees of it.
#[test]
fn the_stack_receives_beside_a_bystander_and_every_goal_is_listed() {
    let few = ["stack", "--only", "udp,bystander", "--sides", "ni-lrp"];
    let short = ["--runs", "1", "--window-ms", "100", "--mlfrr", "5000"];
    let document = measure(&[&few[..], &short].concat());
    let ids = [
        "udp.sink.kernel",
        "udp.sink.testpmd",
        "udp.echo.kernel",
        "udp.echo.testpmd",
        "bystander.p99.2us",
        "bystander.loss.2us",
        "bystander.p99.20us",
        "bystander.loss.20us",
    ];
    let ids = ids.map(|id| format!("stack.{id}"));
    assert_goals(&document, &ids.each_ref().map(String::as_str));
    for case in [&document["udp"]["sink"][0], &document["udp"]["echo"][0]] {
        assert!(case["why"].is_null(), "{case}");
        assert_eq!(case["runs"][0]["mlfrr_is"], "given", "{case}");
    }
    for case in document["loaded"].as_array().unwrap() {
        let run = &case["bystander"][0];
        for when in ["calm", "flooded"] {
            let of = |name: &str| run[when][name].as_u64().unwrap();
            assert!(of("sent") > 0 && of("lost") < of("sent"), "{when}: {case}");
        }
    }
}

/// The path that is there to collapse. The others' overload would take this test some 20 s more.
#[test]
fn the_eager_path_is_loaded_and_has_a_goal() {
    let few = ["stack", "--only", "overload", "--sides", "eager"];
    let short = ["--runs", "1", "--window-ms", "100", "--mlfrr", "5000"];
    let document = measure(&[&few[..], &short].concat());
    let ids = ["ni-lrp", "soft-lrp", "polled", "eager"];
    assert_goals(&document, &ids.map(|id| format!("stack.overload.{id}.2us")));
    let case = &document["loaded"][0];
    assert!(case["why"].is_null(), "{case}");
    let curve = case["runs"][0]["curve"].as_array().unwrap();
    assert_eq!(curve.last().unwrap()["multiple"], 10.0, "{case}");
}
