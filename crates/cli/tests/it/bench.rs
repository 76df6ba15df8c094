//! `plimsoll bench guard` and `plimsoll bench no-harm` from end to end with tiny
//! durations: what is measured is measured badly, but every packet is accounted
//! for, and the document has its form. Needs root.
//!
//! Parts that share a test share a testbed: making one takes longer than some
//! parts do.

use std::process::Command;

use serde_json::Value;

use crate::benching::{assert_goals, measure};

/// Stands in for what takes long to measure.
const GIVEN: [&str; 4] = ["--mlfrr", "100000", "--discard-capacity", "2000000"];
const TINY: [&str; 6] = ["--runs", "1", "--window-ms", "100", "--light-pairs", "1"];

fn bench(arguments: &[&str]) -> Value {
    measure(&[&["guard"], &TINY[..], arguments].concat())
}

/// The ledger of every case came out: what was offered went somewhere.
fn assert_accounted(cases: &Value) {
    for case in cases.as_array().unwrap() {
        let losses = &case["losses"];
        assert!(losses["offered"].as_u64().unwrap() > 0, "{case}");
        assert_eq!(losses["unaccounted"], 0, "{case}");
    }
}

/// A part of the document, if it did not fail. Its goals say why it did.
fn part<'a>(document: &'a Value, name: &str) -> &'a Value {
    let part = &document[name];
    assert!(part.is_object(), "{name} failed: {}", document["goals"]);
    part
}

fn protections(cases: &Value) -> Vec<&str> {
    let cases = cases.as_array().unwrap().iter();
    cases
        .map(|case| case["protection"].as_str().unwrap())
        .collect()
}

#[test]
fn capacity_is_measured_or_extrapolated_from_points() {
    let document = bench(&["--only", "capacity", "--mlfrr", "100000"]);
    assert_goals::<&str>(&document, &[]);
    let capacity = &document["capacity"];
    assert_eq!(capacity["mlfrr_pps"], 100_000.0);
    assert!(capacity["discard_capacity_pps"].as_f64().unwrap() > 0.0);
    let points = capacity["points"].as_array().unwrap();
    assert_eq!(points.len(), 4);
    for point in points {
        let rate = |name: &str| point[name].as_f64().unwrap();
        assert!(rate("discarded_pps") <= rate("offered_pps"), "{point}");
        assert!((0.0..=1.0).contains(&rate("busy")), "{point}");
    }
    assert_eq!(document["schema"], 1);
    assert_eq!(document["machine"]["link"], "veth");
    assert!(document.get("flood").is_none(), "only what was asked for");
}

/// Shows MR-07, MR-18, LRP-47, LRP-49.
#[test]
fn floods_and_light_load_account_for_every_packet() {
    let two = ["--protections", "nftables,guard"];
    // Loads that the generator reaches beside other tests: a run in which it does not is
    // repeated.
    let given = ["--mlfrr", "100000", "--discard-capacity", "1000000"];
    let document = bench(&[&["--only", "flood,light"][..], &two, &given].concat());
    let flood = part(&document, "flood");
    assert_eq!(
        protections(&flood["cases"]),
        ["nftables", "guard"].repeat(3)
    );
    assert_accounted(&flood["cases"]);
    for case in flood["cases"].as_array().unwrap() {
        let filter = case.get("filter_pps");
        assert_eq!(filter.is_some(), case["protection"] == "nftables", "{case}");
    }
    assert!(flood["reference"]["sent"].as_u64().unwrap() > 0);
    let light = part(&document, "light");
    assert_eq!(protections(&light["sides"]), ["stock", "pass_all", "guard"]);
    assert_accounted(&light["sides"]);
    let mut ids = Vec::new();
    for load in [25, 50, 75] {
        for goal in [
            "goodput/{}",
            "bystander/{}/loss",
            "bystander/{}/p99",
            "better/{}",
        ] {
            ids.push("flood/".to_owned() + &goal.replace("{}", &load.to_string()));
        }
    }
    let light = [
        "throughput",
        "p99",
        "latency",
        "cpu",
        "latency/former",
        "cpu/former",
    ];
    ids.extend(light.map(|goal| format!("light/{goal}")));
    assert_goals(&document, &ids);
}

#[test]
fn beyond_the_capacity_clients_of_the_ssh_port_are_counted() {
    let document = bench(&[&["--only", "beyond"][..], &GIVEN].concat());
    assert_goals(
        &document,
        &["beyond/protected", "beyond/goodput", "beyond/steady"],
    );
    for case in document["beyond"]["cases"].as_array().unwrap() {
        let count = |name: &str| case[name].as_u64().unwrap();
        assert!(count("protected_attempts") > 0, "{case}");
        assert!(count("protected_succeeded") <= count("protected_attempts"));
    }
}

/// Shows LRP-50, LRP-51.
#[test]
fn syn_floods_and_the_rpc_mix_have_every_case() {
    let one = ["--protections", "guard", "--seconds", "1"];
    let fast = ["--rpc-works", "2"];
    let document = bench(&[&["--only", "syn,rpc"][..], &one, &fast].concat());
    let cases = &document["syn"]["cases"];
    assert_eq!(protections(cases), ["guard"; 3], "{document}");
    let unflooded = &cases[0];
    assert_eq!(unflooded["target"], "nowhere");
    assert_eq!(unflooded["offered_pps"], 0.0);
    assert!(unflooded["requests_per_s"].as_f64().unwrap() > 0.0);
    assert_eq!(unflooded["attempts"], 50);
    assert_eq!(
        protections(&document["rpc"]["cases"]),
        ["stock", "guard", "groups", "polling_in_group"]
    );
    for case in document["rpc"]["cases"].as_array().unwrap() {
        assert!(case["calls_per_s"].as_f64().unwrap() > 0.0, "{case}");
        assert!(case["worker_percent"].as_f64().unwrap() > 0.0, "{case}");
    }
    assert_goals(
        &document,
        &[
            "syn/other-port/requests/better",
            "syn/other-port/requests",
            "syn/own-port/connections",
            "syn/own-port/requests/better",
            "syn/own-port/requests",
            "rpc/worker/fast",
            "rpc/worker/medium",
            "rpc/worker/slow",
            "rpc/worker-in-group/fast",
            "rpc/worker-in-group/medium",
            "rpc/worker-in-group/slow",
        ],
    );
}

#[test]
fn dns_and_chaos_count_what_they_send() {
    let arguments = [
        "--only",
        "dns,chaos",
        "--chaos",
        "1",
        "--seed",
        "3",
        "--seconds",
        "1",
    ];
    let document = bench(&[&arguments[..], &GIVEN].concat());
    let chaos = &document["chaos"];
    assert_eq!(chaos["seed"], 3);
    // The eleven kinds once each, an overload, and at least one drawn flood.
    assert!(chaos["floods"].as_u64().unwrap() > 12, "{chaos}");
    assert_eq!(chaos["sent"], chaos["counted"], "{chaos}");
    assert_eq!(chaos["wrong_lines"], 0, "{chaos}");
    for case in document["dns"]["cases"].as_array().unwrap() {
        let count = |name: &str| case[name].as_u64().unwrap();
        assert!(
            count("sent") > 0 && count("lost") <= count("sent"),
            "{case}"
        );
    }
    assert_eq!(
        protections(&document["dns"]["cases"]),
        ["stock", "guard"].repeat(4)
    );
    let chaos = [
        "accounting",
        "lines",
        "memory",
        "descriptors",
        "maps",
        "return",
    ];
    let mut ids = chaos.map(|goal| format!("chaos/{goal}")).to_vec();
    let dns = ["other-server/loss", "closed-port/loss", "own-port/answers"];
    ids.extend(dns.map(|goal| format!("dns/{goal}")));
    assert_goals(&document, &ids);
}

/// Every promise has a goal, also those of cases that were not asked for.
#[test]
fn floods_of_its_own_port_tell_what_a_servers_client_gets() {
    let chosen = ["--sources", "nsd/one/5,clients", "--seconds", "1"];
    let document = bench(&[&["--only", "sources"][..], &chosen].concat());
    let sources = &document["sources"];
    let cases = sources["cases"].as_array().unwrap();
    let fairness = sources["fairness"].as_bool().unwrap();
    let sides: &[&str] = if fairness {
        &["stock", "nftables", "unfair", "guard"]
    } else {
        &["stock", "nftables", "guard"]
    };
    assert_eq!(protections(&sources["cases"]), sides);
    for case in cases {
        let count = |name: &str| case[name].as_u64().unwrap();
        assert!(count("asked") > 0, "{case}");
        assert!(count("answered") <= count("asked"), "{case}");
        assert!(case["offered_pps"].as_f64().unwrap() > 0.0, "{case}");
        let is_limited = case["protection"] == "nftables";
        assert_eq!(case["filter_pps"].is_u64(), is_limited, "{case}");
    }
    assert_eq!(protections(&sources["clients"]), sides);
    for case in sources["clients"].as_array().unwrap() {
        let jain = case["jain"].as_f64().unwrap();
        assert!((0.0..=1.0 + 1e-9).contains(&jain), "{case}");
        // A busy machine has a filter with so low a limit that nobody is answered.
        let answered = case["answered"].as_u64().unwrap();
        assert_eq!(jain > 0.0, answered > 0, "{case}");
    }
    let goals = document["goals"].as_array().unwrap();
    let ids: Vec<&str> = goals
        .iter()
        .map(|goal| goal["id"].as_str().unwrap())
        .collect();
    assert_goals(&document, &ids);
    let measured: Vec<&str> = goals
        .iter()
        .filter(|goal| goal["measured"].is_number())
        .map(|goal| goal["id"].as_str().unwrap())
        .collect();
    let mut expected = vec!["sources/nsd/one/5"];
    if fairness {
        expected.push("sources/goodput/nsd/one/5");
    }
    expected.push("sources/clients/jain");
    assert_eq!(measured, expected);
    assert_eq!(goals.len(), 60);
}

/// The client once asked for three seconds, and no guard knows anybody after so short a time.
#[test]
fn a_client_that_is_to_be_known_before_a_flood_is_known() {
    let chosen = ["--sources", "echo/known/5", "--seconds", "1"];
    let none_besides = ["--protections", "guard"];
    let document = bench(&[&["--only", "sources"][..], &none_besides, &chosen].concat());
    assert_eq!(
        protections(&document["sources"]["cases"]),
        ["unfair", "guard"]
    );
    let cases = document["sources"]["cases"].as_array().unwrap();
    let known = |protection: &str| {
        let case = cases.iter().find(|case| case["protection"] == protection);
        case.unwrap()["known_sources"].as_u64()
    };
    assert_eq!(known("guard"), Some(1), "{cases:?}");
    assert_eq!(known("unfair"), Some(0), "it learns nobody");
}

#[test]
fn a_guard_is_started_watched_and_weighed() {
    let few = ["--channels", "50", "--seconds", "1"];
    let document = bench(&[&["--only", "watching"][..], &few].concat());
    let watching = &document["watching"];
    assert_eq!(watching["channels"], 50);
    let figures = watching.as_object().unwrap();
    assert!(
        figures.values().all(|value| value.as_f64().unwrap() > 0.0),
        "{watching}"
    );
    let goals = ["start", "metrics", "top", "memory", "program"];
    let ids = goals.map(|goal| format!("watching/{goal}"));
    assert_goals(&document, &ids.each_ref().map(String::as_str));
}

#[test]
fn a_part_that_fails_says_why_and_others_go_on() {
    let verdict = "/nonexistent/verdict.json";
    let few = ["--cpu-limits", "50", "--verdict", verdict];
    let document = bench(&[&["--only", "verdict,cpu-limit"][..], &few].concat());
    let cases = part(&document, "cpu_limit")["cases"].as_array().unwrap();
    let limits: Vec<_> = cases.iter().map(|case| &case["limit_percent"]).collect();
    assert_eq!(limits, [[100; 5], [50; 5]].concat());
    let goals = document["goals"].as_array().unwrap();
    let verdicts = goals
        .iter()
        .filter(|goal| goal["id"].as_str().unwrap().starts_with("verdict/"));
    for goal in verdicts {
        assert!(goal["met"].is_null(), "{goal}");
        let why = goal["why"].as_str().unwrap();
        assert!(
            why.contains(verdict) && why.contains("make bench-verdict"),
            "{why}"
        );
    }
    assert_eq!(goals.len(), 10, "four of the verdict and six of the limit");
}

#[test]
fn an_unknown_part_is_refused_with_the_list() {
    let output = Command::new(env!("CARGO_BIN_EXE_plimsoll"))
        .args(["bench", "guard", "--only", "cpu"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(stderr.contains("capacity, flood, beyond"), "{stderr}");
}

/// A masquerading gateway, the set-up that once lost two thirds: what is sent arrives
/// or is lost, and each case has its goal.
#[test]
fn no_harm_counts_what_crosses_a_set_up() {
    let options = ["--runs", "1", "--window-ms", "200", "--only", "masquerade"];
    let document = measure(&[&["no-harm"], &options[..]].concat());
    assert_goals(&document, &["masquerade/calm", "masquerade/flooded"]);
    let cases = document["cases"].as_array().unwrap();
    // A case that broke off is not there; its goal says why.
    assert_eq!(cases.len(), 4, "{}", document["goals"]);
    for case in cases {
        let count = |name: &str| case[name].as_u64().unwrap();
        assert!(count("sent") > 0 && count("received") > 0, "{case}");
        assert!(count("received") <= count("sent"), "{case}");
        let flood_pps = case["flood_pps"].as_f64();
        assert_eq!(flood_pps.is_some(), case["flooded"].as_bool().unwrap());
        assert!(flood_pps.is_none_or(|pps| pps > 100.0), "{case}");
    }
    assert_floods(&document, "masquerade");
}

/// A download is offered to all sides at a rate of its own that was searched, and counted to the
/// datagram.
#[test]
fn no_harm_offers_a_full_gateway_what_stock_begins_to_lose() {
    let options = ["--runs", "1", "--window-ms", "200"];
    let only = ["--only", "masquerade-full"];
    let document = measure(&[&["no-harm"], &options[..], &only].concat());
    assert_goals(
        &document,
        &[
            "masquerade-full/calm",
            "masquerade-full/calm/standby",
            "masquerade-full/flooded",
            "masquerade-full/flooded/standby",
        ],
    );
    let cases = document["cases"].as_array().unwrap();
    assert_eq!(
        cases.len(),
        8,
        "stock, a program that passes all, two guards"
    );
    for case in cases {
        let count = |name: &str| case[name].as_u64().unwrap();
        assert!(count("received") > 0, "{case}");
        assert!(count("received") <= count("sent"), "{case}");
    }
    let floods = document["floods"].as_array().unwrap();
    assert_eq!(floods.len(), 1);
    assert_eq!(floods[0]["setup"], "masquerade-full");
    assert!(floods[0]["asked_pps"].as_u64().unwrap() >= 125_000);
}

/// What stock lost beside the flood decides whether the goal may be met.
fn assert_floods(document: &Value, setup: &str) {
    let [flood] = document["floods"].as_array().unwrap().as_slice() else {
        panic!("one flood: {}", document["floods"]);
    };
    assert_eq!(flood["setup"], setup);
    assert!(flood["asked_pps"].as_u64().unwrap() >= 1_000_000, "{flood}");
    let lost = flood["stock_lost"].as_f64().unwrap();
    assert!((0.0..=1.0).contains(&lost), "{flood}");
    assert_eq!(flood["is_overload"], lost >= 0.05, "{flood}");
    let goal = &document["goals"][1];
    if lost < 0.05 {
        assert_ne!(goal["met"], true, "{goal}");
        assert!(
            goal["why"].as_str().unwrap().starts_with("no overload"),
            "{goal}"
        );
    }
}

/// A kernel without VLAN devices says so; any other shows them.
#[test]
fn no_harm_names_what_this_machine_cannot_make() {
    let options = ["--runs", "1", "--window-ms", "200", "--only", "vlan"];
    let document = measure(&[&["no-harm"], &options[..]].concat());
    assert_goals(&document, &["vlan/calm", "vlan/flooded"]);
    let cases = document["cases"].as_array().unwrap();
    match document["not_shown"].as_array().unwrap().as_slice() {
        [] => assert_eq!(cases.len(), 4, "stock and guard, calm and flooded"),
        [only] => {
            assert_eq!(only["setup"], "vlan");
            assert!(!only["why"].as_str().unwrap().is_empty());
            assert!(cases.is_empty());
        }
        more => panic!("{more:?}"),
    }
}
