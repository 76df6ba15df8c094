//! The rules of `promtool check metrics`, by the names of its linter's
//! validations (`prometheus/client_golang`, `testutil/promlint`), for the text
//! format. Each can fail, and a test shows it.

use std::collections::{BTreeMap, BTreeSet};

/// A metric as it is described and sampled.
#[derive(Default)]
struct Metric {
    help: Option<String>,
    kind: Option<String>,
    described: usize,
    labels: BTreeSet<String>,
    sampled: bool,
}

/// What is wrong with metrics in the text format, as `name: problem`.
pub(crate) fn problems(text: &str) -> Vec<String> {
    let mut problems = Vec::new();
    for (name, metric) in parse(text, &mut problems) {
        let mut say = |problem: &str| problems.push(format!("{name}: {problem}"));
        help(&metric, &mut say);
        units(&name, &mut say);
        counter(&name, &metric, &mut say);
        reserved_for_histograms(&name, &metric, &mut say);
        type_in_name(&name, &mut say);
        reserved_characters(&name, &mut say);
        camel_case(&name, &metric, &mut say);
        abbreviations(&name, &mut say);
        if metric.described > 1 {
            say("is described twice");
        }
        if !metric.sampled {
            say("is described without a sample");
        }
    }
    problems
}

fn parse(text: &str, problems: &mut Vec<String>) -> BTreeMap<String, Metric> {
    let mut metrics: BTreeMap<String, Metric> = BTreeMap::new();
    let mut series = BTreeSet::new();
    for line in text.lines() {
        let mut words = line.splitn(4, ' ');
        if let (Some("#"), Some(what), Some(name)) = (words.next(), words.next(), words.next()) {
            let metric = metrics.entry(name.to_owned()).or_default();
            let rest = words.next().map(str::to_owned);
            match what {
                "HELP" => metric.help = rest,
                "TYPE" => {
                    metric.kind = rest;
                    metric.described += 1;
                }
                other => problems.push(format!("{name}: unknown comment {other}")),
            }
            continue;
        }
        let Some((key, value)) = line.rsplit_once(' ') else {
            problems.push(format!("no sample: {line}"));
            continue;
        };
        if value.parse::<f64>().is_err() {
            problems.push(format!("no number: {line}"));
        }
        if !series.insert(key.to_owned()) {
            problems.push(format!("{key}: sampled twice"));
        }
        let (name, labels) = key.split_once('{').unwrap_or((key, ""));
        let metric = metrics.entry(name.to_owned()).or_default();
        metric.sampled = true;
        let names = labels.split(',').filter_map(|label| label.split_once('='));
        metric.labels.extend(names.map(|(name, _)| name.to_owned()));
    }
    metrics
}

fn help(metric: &Metric, say: &mut impl FnMut(&str)) {
    if metric.help.as_ref().is_none_or(String::is_empty) {
        say("no help text");
    }
}

/// Base units, and not their multiples.
fn units(name: &str, say: &mut impl FnMut(&str)) {
    let prefixes = [
        "", "pico", "nano", "micro", "milli", "centi", "deci", "kilo", "mega", "giga",
    ];
    let units = [
        "ampere", "byte", "celsius", "gram", "joule", "kelvin", "meter", "second", "volt",
    ];
    let other = [
        "minute",
        "hour",
        "day",
        "week",
        "fahrenheit",
        "percent",
        "bit",
    ];
    for word in name.split('_').map(|word| word.trim_end_matches('s')) {
        let scaled = |unit: &&str| {
            prefixes[1..]
                .iter()
                .any(|prefix| word == format!("{prefix}{unit}"))
        };
        if units.iter().any(scaled) || other.contains(&word) {
            say("no base unit");
        }
    }
}

fn counter(name: &str, metric: &Metric, say: &mut impl FnMut(&str)) {
    let is_total = name.ends_with("_total");
    match metric.kind.as_deref() {
        Some("counter") if !is_total => say("a counter should end in _total"),
        Some("counter") => {}
        Some("gauge") if is_total => say("only a counter should end in _total"),
        Some("gauge") => {}
        _ => say("no type"),
    }
}

fn reserved_for_histograms(name: &str, metric: &Metric, say: &mut impl FnMut(&str)) {
    if ["_bucket", "_count", "_sum"]
        .iter()
        .any(|end| name.ends_with(end))
    {
        say("an ending of histograms and summaries");
    }
    if ["le", "quantile"]
        .iter()
        .any(|label| metric.labels.contains(*label))
    {
        say("a label of histograms and summaries");
    }
}

fn type_in_name(name: &str, say: &mut impl FnMut(&str)) {
    let types = ["counter", "gauge", "histogram", "summary", "untyped"];
    if name.split('_').any(|word| types.contains(&word)) {
        say("the name includes the type");
    }
}

fn reserved_characters(name: &str, say: &mut impl FnMut(&str)) {
    if name.contains(':') {
        say("colons are for recording rules");
    }
}

fn camel_case(name: &str, metric: &Metric, say: &mut impl FnMut(&str)) {
    let names = metric.labels.iter().map(String::as_str).chain([name]);
    for name in names {
        if name.chars().any(char::is_uppercase) {
            say("not snake_case");
        }
    }
}

fn abbreviations(name: &str, say: &mut impl FnMut(&str)) {
    let abbreviations = [
        "s", "ms", "us", "ns", "sec", "b", "kb", "mb", "gb", "tb", "pb", "m", "h", "d",
    ];
    if name.split('_').any(|word| abbreviations.contains(&word)) {
        say("an abbreviated unit");
    }
}

#[test]
fn every_rule_can_fail() {
    let described = |name: &str, kind: &str, labels: &str| {
        format!("# HELP {name} A help text.\n# TYPE {name} {kind}\n{name}{labels} 1\n")
    };
    let good = described("a_packets_total", "counter", "{kind=\"udp\"}");
    assert_eq!(problems(&good), [""; 0]);
    for (text, problem) in [
        ("# TYPE a gauge\na 1\n".to_owned(), "no help text"),
        ("a 1\n".to_owned(), "no type"),
        (described("a_milliseconds", "gauge", ""), "no base unit"),
        (described("a_percent", "gauge", ""), "no base unit"),
        (
            described("a_packets", "counter", ""),
            "should end in _total",
        ),
        (described("a_total", "gauge", ""), "only a counter"),
        (described("a_count", "gauge", ""), "ending of histograms"),
        (described("a", "gauge", "{le=\"1\"}"), "label of histograms"),
        (described("a_gauge", "gauge", ""), "includes the type"),
        (described("a:b", "gauge", ""), "colons"),
        (described("aB", "gauge", ""), "snake_case"),
        (described("a", "gauge", "{aB=\"1\"}"), "snake_case"),
        (described("a_ms", "gauge", ""), "abbreviated"),
        (described("a", "gauge", "").repeat(2), "described twice"),
        (described("a", "gauge", "") + "a 2\n", "sampled twice"),
        (
            "# HELP a A.\n# TYPE a gauge\n".to_owned(),
            "without a sample",
        ),
        (described("a", "gauge", "") + "b\n", "no sample"),
        (
            described("a", "gauge", "").replace(" 1\n", " x\n"),
            "no number",
        ),
        (
            described("a", "gauge", "") + "# UNIT a b\n",
            "unknown comment",
        ),
    ] {
        let found = problems(&text);
        assert!(
            found.iter().any(|said| said.contains(problem)),
            "{text}: {found:?}"
        );
    }
}
