//! Machine profiles say the truth about themselves: what was calibrated is listed
//! as such, and nothing else was.

use plimsoll_sim::profile::Cost;
use plimsoll_sim::{Profile, Scenario};

/// The costs of a machine and of its programs, by the name calibrations use.
fn costs(profile: &Profile) -> Vec<(String, &Cost)> {
    let own = profile.costs.iter();
    let mut all: Vec<_> = own.map(|(name, cost)| (name.clone(), cost)).collect();
    for program in &profile.program {
        let of = |name: &String| format!("{}.{name}", program.name);
        all.extend(program.costs.iter().map(|(name, cost)| (of(name), cost)));
    }
    all
}

/// What else a source says that means the same.
const CHOSEN_BY_A_RESULT: [&str; 4] = ["in view", "chosen near", "fitted", "lowered after"];

#[test]
fn every_calibrated_value_is_listed_with_its_point_and_no_other() {
    for name in Profile::names() {
        let profile = Profile::named(name).unwrap();
        let points = profile.calibration.iter();
        let listed: Vec<&String> = points.flat_map(|point| &point.costs).collect();
        let costs = costs(&profile);
        let costs = costs.iter().map(|(cost, given)| (cost, &given.source));
        let queues = profile.queues.iter();
        for (value, source) in costs.chain(queues.map(|(queue, given)| (queue, &given.source))) {
            let says = source.starts_with("calibrated");
            assert_eq!(says, listed.contains(&value), "{name}: {value}");
            let hides = CHOSEN_BY_A_RESULT
                .iter()
                .any(|words| source.contains(words));
            assert!(says || !hides, "{name}: {value} is calibrated");
        }
    }
}

#[test]
fn a_fourth_calibrated_point_needs_a_reason() {
    let profile = Profile::named("pentium3-500").unwrap();
    assert_eq!(profile.calibration.len(), 3);
    let mut table = toml::Table::try_from(&profile).unwrap();
    let points = table["calibration"].as_array_mut().unwrap();
    points.push(points[0].clone());
    let error = Profile::from_toml("four", &table.to_string()).unwrap_err();
    assert!(error.to_string().contains("more_than_three"), "{error}");
    let reason = toml::Value::String("a test".to_owned());
    table.insert("more_than_three".to_owned(), reason);
    Profile::from_toml("four", &table.to_string()).unwrap();
}

#[test]
fn a_program_that_does_not_exist_is_answered_with_those_that_do() {
    let profile = Profile::named("pentium2-333").unwrap();
    let scenario = r#"
        duration_ms = 10
        path = { kind = "batched-interrupts" }
        source = [{ name = "clients", to = "httpd", traffic = { kind = "http", clients = 1 } }]
        consumer = [{ name = "httpd", role = { kind = "web", program = "lash" } }]
    "#;
    let scenario = Scenario::from_toml(scenario).unwrap();
    let error = plimsoll_sim::run(&profile, &scenario, 1).unwrap_err();
    assert!(error.to_string().contains("apache, flash"), "{error}");
}

/// A clock without a period stood still, a queue took all memory, and times overflowed.
#[test]
fn a_machine_that_cannot_be_is_refused_by_name() {
    let changed = |key: [&str; 3], value: i64| {
        let profile = Profile::named("sparcstation-20").unwrap();
        let mut table = toml::Table::try_from(&profile).unwrap();
        let mut place = table.get_mut(key[0]).unwrap();
        for part in key[1..].iter().filter(|part| !part.is_empty()) {
            place = place.get_mut(part).unwrap();
        }
        *place = toml::Value::Integer(value);
        Profile::from_toml("changed", &table.to_string()).map_err(|error| error.to_string())
    };
    for (key, value, named) in [
        (["clock_hz", "", ""], 2_000_000_000, "clock_hz"),
        (["queues", "ip_queue", "packets"], 4_000_000_000, "ip_queue"),
        (["costs", "demux", "ns"], i64::MAX, "demux"),
    ] {
        let error = changed(key, value).unwrap_err();
        assert!(
            error.contains(named) && error.contains("at most"),
            "{error}"
        );
    }
    changed(["queues", "ip_queue", "packets"], 1_000_000).unwrap();
}
