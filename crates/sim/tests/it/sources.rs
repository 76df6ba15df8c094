//! One flooded process and its honest client, by each rule of whose packets are taken.

use plimsoll_sim::{Outcome, Profile, run};

use crate::common::{figure, machine, scenario, simulate};

fn text(path: &str, flood_pps: f64, probe: &str, duration_ms: u32) -> String {
    format!(
        r#"
        duration_ms = {duration_ms}
        warmup_ms = 700
        path = {{ kind = "governed-guard", holdoff_us = 30, {path} }}
        [[source]]
        name = "flood"
        to = "server"
        traffic = {{ kind = "constant", rate_pps = {flood_pps}, jitter_pct = 20 }}
        [[source]]
        name = "client"
        to = "server"
        traffic = {probe}
        [[source]]
        name = "bystander"
        to = "other"
        traffic = {{ kind = "steps", steps = [{{ at_ms = 0, rate_pps = 0 }}, {{ at_ms = 1000, rate_pps = 100 }}] }}
        [[consumer]]
        name = "server"
        role = {{ kind = "sink", work_us = 5 }}
        [[consumer]]
        name = "other"
        role = {{ kind = "sink", work_us = 5 }}
        "#
    )
}

fn measured(path: &str, flood_pps: f64, probe: &str, duration_ms: u32) -> Outcome {
    let profile = Profile::named("modern-veth").unwrap();
    simulate(&profile, &text(path, flood_pps, probe, duration_ms))
}

const CLIENT: &str = r#"{ kind = "poisson", rate_pps = 1000 }"#;
const NOBODY: &str = r#"{ kind = "constant", rate_pps = 0 }"#;

fn lost_percent(outcome: &Outcome, source: &str) -> f64 {
    let lost = figure(outcome, &format!("source.{source}.lost_pps"));
    let sent = figure(outcome, &format!("source.{source}.sent_pps"));
    100.0 * lost / sent
}

#[test]
fn a_client_loses_little_by_fairness_and_nearly_all_by_chance() {
    let by = |path| measured(path, 1e6, CLIENT, 250);
    let any = by("fair = false");
    let fair = by("fair = true");
    assert!(
        lost_percent(&any, "client") > 60.0,
        "{}",
        lost_percent(&any, "client")
    );
    assert!(
        lost_percent(&fair, "client") < 1.0,
        "{}",
        lost_percent(&fair, "client")
    );
    // What the server takes is hardly less.
    let goodput = |outcome| figure(outcome, "consumer.server.delivered_pps");
    assert!(goodput(&fair) > 0.9 * goodput(&any), "{}", goodput(&fair));
}

#[test]
fn a_limit_for_each_source_serves_the_client_and_wastes_the_server() {
    let any = measured("fair = false", 1e6, CLIENT, 250);
    let limited = measured("source_limit_pps = 2000", 1e6, CLIENT, 250);
    assert!(lost_percent(&limited, "client") < 5.0);
    let goodput = |outcome| figure(outcome, "consumer.server.delivered_pps");
    assert!(goodput(&limited) < 3100.0);
    assert!(goodput(&any) > 20.0 * goodput(&limited));
}

/// Nobody but the flood for a second; then a bystander begins.
#[test]
fn a_lone_flood_may_overflow_the_ring_and_a_bystander_ends_that() {
    let by = |path, duration_ms| measured(path, 2e6, NOBODY, duration_ms);
    let goodput = |outcome: &Outcome| figure(outcome, "consumer.server.delivered_pps");
    let attentive = by("fair = true", 250);
    let lazy = by("fair = true, lazy = true", 250);
    assert_eq!(figure(&attentive, "path.lazy"), 0.0);
    assert_eq!(figure(&lazy, "path.lazy"), 1.0);
    let (lazy, attentive) = (goodput(&lazy), goodput(&attentive));
    assert!(lazy > 1.1 * attentive, "{attentive}, lazy {lazy}");
    let ended = by("fair = true, lazy = true", 1000);
    assert_eq!(figure(&ended, "path.lazy"), 0.0, "the bystander is there");
    // One second is measured, in 700 ms of which it sends: those before it was noticed.
    let lost = figure(&ended, "source.bystander.lost_pps");
    assert!(lost <= 16.0, "{lost}");
}

/// A flood of 500,000 packets/s from these addresses, by this rule; with a client that is known
/// and one that is not.
fn flooded_from(from: &str, path: &str) -> Outcome {
    let flood = "traffic = { kind = \"constant\"";
    let text = text(path, 5e5, CLIENT, 500)
        .replacen(flood, &format!("from = {from}\n{flood}"), 1)
        .replacen("name = \"bystander\"", "known = true\nname = \"known\"", 1)
        .replacen("to = \"other\"", "to = \"server\"", 1);
    simulate(&Profile::named("modern-veth").unwrap(), &text)
}

#[test]
fn a_client_beside_a_thousand_sources_loses_little_by_fairness_and_half_by_a_limit() {
    let thousand = r#"{ kind = "hosts", hosts = 1000, networks = 16 }"#;
    let fair = flooded_from(thousand, "fair = true");
    let limited = flooded_from(thousand, "source_limit_pps = 1000");
    let (fair, limited) = (
        lost_percent(&fair, "client"),
        lost_percent(&limited, "client"),
    );
    assert!(fair < 1.0, "{fair}");
    assert!(limited > 50.0, "{limited}");
}

#[test]
fn only_a_known_client_is_served_beside_forged_addresses() {
    let outcome = flooded_from(r#"{ kind = "forged" }"#, "fair = true");
    let known = lost_percent(&outcome, "known");
    let unknown = lost_percent(&outcome, "client");
    assert!(known < 2.0, "{known}");
    assert!(unknown > 50.0, "{unknown}");
    // One of 8193 networks.
    let got = 10.0 * (100.0 - unknown);
    let share = figure(&outcome, "consumer.server.delivered_pps") / 8193.0;
    assert!(got >= share, "{got} of {share}");
}

/// The model's keys were all the same once. So a known host and an unknown one with the next
/// address had the same hash, and the same credit.
#[test]
fn a_known_client_shares_no_credit_with_its_neighbour() {
    let host =
        |first| format!("from = {{ kind = \"hosts\", hosts = 1, networks = 1, first = {first} }}");
    let (client, flood) = ("name = \"client\"", "name = \"flood\"");
    let text = text("fair = true", 5e5, CLIENT, 500)
        .replacen(client, &format!("{client}\nknown = true\n{}", host(1)), 1)
        .replacen(flood, &format!("{flood}\n{}", host(2)), 1);
    let outcome = simulate(&Profile::named("modern-veth").unwrap(), &text);
    let lost = lost_percent(&outcome, "client");
    assert!(lost < 2.0, "{lost}");
}

#[test]
fn addresses_that_make_no_sense_are_refused() {
    let profile = Profile::named("modern-veth").unwrap();
    for from in [
        r#"{ kind = "hosts", hosts = 15, networks = 16 }"#,
        r#"{ kind = "hosts", hosts = 4065, networks = 16 }"#,
        r#"{ kind = "hosts", hosts = 16, networks = 16, first = 255 }"#,
        r#"{ kind = "hosts", hosts = 5000, networks = 5000 }"#,
    ] {
        let text = text("fair = true", 1e3, NOBODY, 100);
        let flood = "traffic = { kind = \"constant\"";
        let text = text.replacen(flood, &format!("from = {from}\n{flood}"), 1);
        assert!(run(&profile, &scenario(&text), 1).is_err(), "{from}");
    }
    // It would hear answers to others.
    let asking = r#"{ kind = "ping-pong" }
        from = { kind = "forged" }"#;
    let text = text("fair = true", 1e3, asking, 100);
    assert!(run(&profile, &scenario(&text), 1).is_err());
}

#[test]
fn rules_that_exclude_each_other_are_refused() {
    let profile = Profile::named("modern-veth").unwrap();
    for path in [
        "fair = true, source_limit_pps = 5.0",
        "lazy = true",
        "source_limit_pps = -1.0",
    ] {
        let scenario = scenario(&text(path, 1e3, NOBODY, 100));
        assert!(run(&profile, &scenario, 1).is_err(), "{path}");
    }
}

/// Packets of a burst leave together; the rate stays what it is.
#[test]
fn bursts_leave_together_and_keep_the_rate() {
    for kind in ["constant", "poisson", "syn-flood"] {
        let received = |burst: u32| {
            let text = format!(
                "duration_ms = 10000\npath = {{ kind = \"batched-interrupts\" }}\n\
                 [[source]]\nname = \"source\"\nto = \"server\"\n\
                 traffic = {{ kind = \"{kind}\", rate_pps = 1000, burst = {burst} }}\n\
                 [[consumer]]\nname = \"server\"\nrole = {{ kind = \"{}\" }}\n",
                if kind == "syn-flood" {
                    "listener"
                } else {
                    "sink"
                }
            );
            let mut profile = Profile::named("sparcstation-20").unwrap();
            profile.queues.remove("receive_batch");
            let outcome = simulate(&profile, &text);
            (outcome.offered, outcome.interrupts)
        };
        let (offered, interrupts) = received(5);
        assert!(offered.abs_diff(10_000) < 500, "{kind}: {offered}");
        // A burst is found by one interrupt.
        assert!(interrupts * 4 < offered, "{kind}: {interrupts}");
        assert!(received(1).1 > 9_000, "{kind}");
    }
}

/// The fourth of five segments finds the output queue full, each time, and the fifth gets
/// through: the client has no response, and asks anew.
#[test]
fn a_response_without_one_of_its_segments_is_none() {
    let mut profile = machine(&[("tcp_output", 700_000)], 100);
    for queue in ["output_queue", "transmit_ring"] {
        profile.queues.get_mut(queue).unwrap().packets = 1;
    }
    let outcome = simulate(
        &profile,
        r#"
        duration_ms = 5000
        path = { kind = "batched-interrupts" }
        adapter = [{ name = "in", link = { rate_mbps = 10 } }]
        [[source]]
        name = "client"
        to = "httpd"
        traffic = { kind = "http", clients = 1, response_bytes = 6144, timeout_ms = 100 }
        [[consumer]]
        name = "httpd"
        role = { kind = "web" }
        "#,
    );
    assert!(figure(&outcome, "loss.output-queue_pps") > 0.0);
    assert!(figure(&outcome, "source.client.timeouts_hz") > 0.0);
    assert_eq!(figure(&outcome, "source.client.completed_hz"), 0.0);
}

fn close(measured: f64, expected: f64) {
    let off = (measured - expected).abs() / expected;
    assert!(off < 0.005, "measured {measured}, expected {expected}");
}

/// What a client sends for an answer of five segments, which come `apart_us` from each other.
fn sent_per_answer(closes: bool, apart_us: u32) -> f64 {
    let outcome = {
        let rate_mbps = 12_000 / apart_us;
        let text = format!(
            r#"
            duration_ms = 3000
            path = {{ kind = "batched-interrupts" }}
            adapter = [{{ name = "in", link = {{ rate_mbps = {rate_mbps} }} }}]
            [[source]]
            name = "client"
            to = "httpd"
            traffic = {{ kind = "http", clients = 1, response_bytes = 6144, client_us = 100, server_closes = {closes} }}
            [[consumer]]
            name = "httpd"
            role = {{ kind = "web" }}
            "#
        );
        simulate(&machine(&[("interrupt_enter", 1_000)], 100), &text)
    };
    figure(&outcome, "source.client.sent_pps") / figure(&outcome, "source.client.completed_hz")
}

/// With HTTP/1.0 the server closes: its end of an answer of five segments is acknowledged at
/// once, after the second and the fourth, and then the client closes its side. The other way
/// round that is one packet.
#[test]
fn a_client_whose_server_closes_acknowledges_that_before_it_closes_too() {
    close(sent_per_answer(false, 120), 6.0);
    close(sent_per_answer(true, 120), 7.0);
}

/// A machine receives before its clients read: of segments that come faster than it takes
/// them none is read before all are received, and one acknowledgement is for all (ST-46).
#[test]
fn clients_of_a_machine_that_is_slower_than_its_link_send_big_acknowledgements() {
    close(sent_per_answer(false, 80), 5.0);
    close(sent_per_answer(true, 80), 6.0);
}

/// Who receives a close acknowledges it (RFC 793): beside the answer to the opening and a segment
/// the server sends a packet for that, where it is the client that closes last.
#[test]
fn a_server_acknowledges_its_clients_close() {
    let outcome = simulate(
        &machine(&[("interrupt_enter", 1_000)], 100),
        r#"
        duration_ms = 1000
        path = { kind = "batched-interrupts" }
        adapter = [{ name = "in", transmit_batch = 1 }]
        [[source]]
        name = "client"
        to = "httpd"
        traffic = { kind = "http", clients = 1, client_us = 100, server_closes = true }
        [[consumer]]
        name = "httpd"
        role = { kind = "web" }
        "#,
    );
    close(
        figure(&outcome, "transmitted_pps") / figure(&outcome, "delivered_pps"),
        3.0,
    );
}
