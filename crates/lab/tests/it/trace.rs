//! Recorded points: the viewer's form and the timeline say what happened.

use plimsoll_lab::{Catalogue, TracePlan, trace};

fn plan(x: f64, one_packet: bool) -> TracePlan {
    TracePlan {
        curve: Some("polled".to_owned()),
        x: Some(x),
        start_ms: 200.0,
        duration_ms: 20.0,
        one_packet,
        seed: 1,
    }
}

fn catalogue() -> Catalogue {
    Catalogue::built_in().unwrap()
}

/// Shows MR-64.
#[test]
fn one_packet_is_followed_from_arrival_to_departure() {
    let catalogue = catalogue();
    let experiment = catalogue.get("mr-fig13").unwrap();
    let text = trace::text(&trace::record(experiment, &plan(100.0, true)).unwrap());
    let order = [
        "arrives in the receive ring",
        "▶",
        "protocol work is over",
        "transmitter",
        "is transmitted",
    ];
    let mut rest = text.as_str();
    for step in order {
        let (_, after) = rest
            .split_once(step)
            .unwrap_or_else(|| panic!("{step} in order:\n{text}"));
        rest = after;
    }
    assert!(text.starts_with("       0.000 µs"), "{text}");
    assert_eq!(text.matches("arrives").count(), 1, "{text}");
}

/// Shows MR-64.
#[test]
fn the_viewers_form_has_rows_spans_and_packets() {
    let catalogue = catalogue();
    let experiment = catalogue.get("mr-fig13").unwrap();
    let recorded = trace::record(experiment, &plan(800.0, false)).unwrap();
    let document = trace::perfetto(&recorded);
    let events = document["traceEvents"].as_array().unwrap();
    let of = |phase: &str| events.iter().filter(|event| event["ph"] == phase).count();
    assert!(of("M") >= 3, "CPU and rows have names");
    assert!(of("X") > 20, "who ran when");
    assert!(of("b") >= 10 && of("e") >= 10, "packets begin and end");
    for event in events.iter().filter(|event| event["ph"] == "X") {
        let (begin, length) = (
            event["ts"].as_f64().unwrap(),
            event["dur"].as_f64().unwrap(),
        );
        // Microseconds of virtual time, within the recording.
        assert!((200_000.0..=220_000.0).contains(&begin) && length >= 0.0);
        assert!(begin + length <= 220_000.0);
    }
    assert_eq!(document["otherData"]["missed"], 0);
}

#[test]
fn an_unknown_curve_is_answered_with_those_that_exist() {
    let catalogue = catalogue();
    let mut plan = plan(100.0, true);
    plan.curve = Some("polished".to_owned());
    let error = trace::record(catalogue.get("mr-fig13").unwrap(), &plan).unwrap_err();
    assert!(
        error.is_usage() && error.to_string().contains("queued, polled"),
        "{error}"
    );
}

#[test]
fn what_cannot_be_traced_is_said_with_a_remedy() {
    let catalogue = catalogue();
    let refusal = |id: &str, plan: &TracePlan| {
        let error = trace::record(catalogue.get(id).unwrap(), plan).unwrap_err();
        assert!(error.is_usage(), "{error}");
        error.to_string()
    };
    let mut plan = plan(100.0, false);
    plan.curve = None;
    assert!(refusal("st-fig1", &plan).contains("receives no packets"));
    plan.start_ms = 1e6;
    assert!(refusal("mr-fig13", &plan).contains("ends after 4100 ms"));
}
