//! Wrong experiment files are answered with file, key and remedy, and no file
//! makes the lab panic.

use plimsoll_lab::{Experiment, Modelled, Options, run};
use proptest::prelude::*;

/// A right file, small enough to run at once.
const RIGHT: &str = r#"
id = "right"
title = "A sink"
profile = "sparcstation-20"
explain = { setup = "-", model = "-", limits = "-" }

[sweep]
parameter = "source.flood.traffic.rate_pps"
label = "Offered"
values = [1000, 5000]

[scenario]
duration_ms = 50
path = { kind = "batched-interrupts" }
source = [{ name = "flood", to = "sink", traffic = { kind = "constant", rate_pps = 0 } }]
consumer = [{ name = "sink", role = { kind = "sink" } }]

[[measure]]
id = "goodput"
of = "delivered_pps"
label = "Goodput"
unit = "packets/s"

[[curve]]
id = "bsd"
label = "4.4BSD"

[[claim]]
id = "all"
kind = "ours"
text = "All is delivered"
measure = "first(bsd.goodput)"
near = 1000
within_percent = 5
"#;

/// What reading and running a file says; nothing if it went well.
fn answer(text: &str) -> Option<String> {
    let error = match Experiment::parse("right.toml", text) {
        Err(error) => error,
        Ok(experiment) => run(&[experiment], &Modelled, &Options::default(), &|_, _| ()).err()?,
    };
    assert!(error.is_usage(), "{error}");
    Some(error.to_string())
}

#[test]
fn a_right_file_runs_and_its_claim_holds() {
    let experiment = Experiment::parse("right.toml", RIGHT).unwrap();
    let runs = run(&[experiment], &Modelled, &Options::default(), &|_, _| ()).unwrap();
    assert_eq!(runs[0].verdicts[0].holds, Some(true));
}

/// What is replaced in the right file, by what, the key that is blamed, and a part
/// of the remedy.
const WRONG: &[(&str, &str, &str, &str)] = &[
    ("title =", "titel =", "titel", "docs/lab.md"),
    ("[sweep]", "[sweep", "line 7", "correct the TOML"),
    // At the beginning of a line it was the line before.
    (
        "label = \"Offered\"",
        "= \"Offered\"",
        "line 9:",
        "correct the TOML",
    ),
    ("id = \"right\"", "id = \"left\"", "id", "left.toml"),
    ("[1000, 5000]", "[5000, 1000]", "sweep.values", "greater"),
    ("[1000, 5000]", "[]", "sweep.values", "at least one"),
    (
        "[1000, 5000]",
        "[0, 1]\nscale = \"log\"",
        "sweep.scale",
        "linear",
    ),
    (
        "[1000, 5000]",
        "[1, 2]\nnames = [\"a\"]",
        "sweep.names",
        "one name per value",
    ),
    (
        "source.flood.",
        "source.flod.",
        "sweep.parameter",
        "by name or number",
    ),
    (
        "id = \"bsd\"",
        "id = \"4bsd\"",
        "curve.4bsd.id",
        "lower-case letters",
    ),
    ("id = \"bsd\"", "id = \"new\"", "curve.new.id", "no word of"),
    ("first(", "frist(", "claim.all", "the curves bsd"),
    ("near = 1000", "at_most = 1000", "claim.all", "at_least"),
    (
        "near = 1000\nwithin_percent = 5",
        "at_least = 1000\nat_most = 999",
        "claim.all",
        "not above at_most",
    ),
    (
        "kind = \"ours\"",
        "kind = \"sure\"",
        "claim[0].kind",
        "docs/lab.md",
    ),
    (
        "[[claim]]",
        "[[revised]]\nclaim = \"all\"\ndate = \"today\"\nfrom = \"a\"\nto = \"b\"\nwhy = \"c\"\n[[claim]]",
        "revised.all",
        "2026-11-21",
    ),
    (
        "\"sparcstation-20\"",
        "\"vax\"",
        "curve.bsd at",
        "sparcstation-20",
    ),
    (
        "duration_ms = 50",
        "duration = 50",
        "curve.bsd at",
        "correct [scenario]",
    ),
    (
        "duration_ms = 50",
        "duration_ms = -5",
        "curve.bsd at",
        "correct [scenario]",
    ),
    (
        "batched-interrupts",
        "batched",
        "curve.bsd at",
        "correct [scenario]",
    ),
    (
        "[scenario]",
        "[scenario]\nmodel = \"abacus\"",
        "curve.bsd at",
        "round-trip",
    ),
    (
        "[scenario]",
        "[scenario]\nprofile.costs.demox.ns = 5",
        "curve.bsd at",
        "machine profile",
    ),
];

#[test]
fn a_wrong_file_is_answered_with_file_key_and_remedy() {
    for (right, wrong, key, remedy) in WRONG {
        assert!(RIGHT.contains(right), "{right}");
        let answer = answer(&RIGHT.replacen(right, wrong, 1)).expect(wrong);
        assert!(
            answer.starts_with(&format!("right.toml: {key}")),
            "{wrong}: {answer}"
        );
        assert!(answer.contains(remedy), "{wrong}: {answer}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn no_damaged_file_panics(at in 0..RIGHT.len(), length in 0usize..30, insert in "[ -~\n]{0,12}") {
        let end = (at + length).min(RIGHT.len());
        let damaged = format!("{}{insert}{}", &RIGHT[..at], &RIGHT[end..]);
        if let Some(answer) = answer(&damaged) {
            prop_assert!(answer.starts_with("right.toml: "), "{answer}");
        }
    }

    #[test]
    fn packets_are_never_more_than_were_offered(rate in 1.0..40_000.0f64, seed: u64) {
        let text = RIGHT.replace("[1000, 5000]", &format!("[{rate}]"));
        let text = text.replace("duration_ms = 50", "duration_ms = 500");
        let experiment = Experiment::parse("right.toml", &text).unwrap();
        let options = Options { seed, ..Options::default() };
        let runs = run(&[experiment], &Modelled, &options, &|_, _| ()).unwrap();
        let goodput = runs[0].curves[0].points[0].1["delivered_pps"];
        // Over 500 ms one packet is 2 packets/s, and some may wait as the counting begins.
        prop_assert!(goodput <= rate + 21.0, "{goodput} of {rate}");
    }
}
