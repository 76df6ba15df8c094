//! Every setting, every kind of mistake: the table below has a case for each
//! option that a file may set, and a test fails if one is missing.

mod cases;

use std::ffi::OsString;
use std::fs;

use clap::{CommandFactory, Parser};
use plimsoll_core::config::Fraction;
use plimsoll_guard::governor::Strategy;
use plimsoll_guard::session::{Settings, Shares};
use plimsoll_kernel::polling_limit::REAL_TIME_MOST;

use super::args::Args;
use crate::guard::{Commands, commented_settings, expand, name_place, settings_of};
use cases::{
    CASES,
    OnReload::{TakesANewStart, TakesEffect},
};

/// What is right by itself and wrong in company, the place named, and what is said.
const CONTRADICTIONS: [(&str, usize, &str); 10] = [
    (
        "low-watermark = 60\nhigh-watermark = 60",
        1,
        "low-watermark = 60: must be below high-watermark, which is 60",
    ),
    (
        "observe = true\nhigh-watermark = 40",
        2,
        "low-watermark = 50: must be below high-watermark, which is 40",
    ),
    (
        "poll-cpu = 0",
        1,
        "poll-cpu = 0: no thread polls without threaded, or strategy = \"thread\"",
    ),
    (
        "threaded = \"rt\"\npoll-control-group = \"/sys/fs/cgroup/a\"",
        2,
        "poll-control-group = /sys/fs/cgroup/a: needs threaded at a nice level; a group's share of the CPU is not for real-time threads",
    ),
    (
        "\nmetrics = \"[::]:9464\"",
        2,
        "metrics = [::]:9464: other hosts may reach this address, and metrics name every port in use; take 127.0.0.1, or say metrics-public as well",
    ),
    (
        "metrics-public = true",
        1,
        "metrics-public: needs metrics <ADDRESS:PORT> as well",
    ),
    (
        "\nmetrics-channels = 5",
        2,
        "metrics-channels: needs metrics <ADDRESS:PORT> as well",
    ),
    (
        "threaded = 3\nstandby = true",
        2,
        "standby = true: not with threaded, which polls from start to exit; strategy = \"thread\" polls in threads while a flood lasts",
    ),
    (
        "json = \"-\"\nquiet = true",
        2,
        "quiet: not together with json <FILE>; remove one",
    ),
    (
        "quiet = true\nobserve = true\njson = \"-\"",
        3,
        "json: not together with quiet; remove one",
    ),
];

/// The settings that a file makes, or what is said about it.
fn read(text: &str) -> Result<Settings, String> {
    read_with(text, &[])
}

fn read_with(text: &str, options: &[&str]) -> Result<Settings, String> {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("guard.toml");
    fs::write(&file, text).unwrap();
    let config = format!("--config={}", file.display());
    let words = ["plimsoll", "guard", "eth0", &config];
    let words = words
        .iter()
        .chain(options)
        .map(OsString::from)
        .collect::<Vec<_>>();
    let settings = expand(&crate::Cli::command(), words.clone())
        .and_then(|words| {
            let cli = crate::Cli::try_parse_from(words)?;
            let settings = guard_of(cli).settings();
            settings.validate()?;
            Ok(settings)
        })
        .map_err(|error| name_place(error, &words));
    settings.map_err(|error| {
        let said = error.to_string();
        said.replace(&format!("{}/", directory.path().display()), "")
    })
}

fn guard_of(cli: crate::Cli) -> Args {
    match cli.command {
        Some(crate::Command::Guard(Commands {
            run: Some(args), ..
        })) => args,
        other => panic!("not the guard's: {other:?}"),
    }
}

fn defaults() -> Settings {
    guard_of(crate::Cli::try_parse_from(["plimsoll", "guard", "eth0"]).unwrap()).settings()
}

/// What is said about a file, which must be refused.
fn refused(text: &str) -> String {
    read(text).expect_err(text)
}

#[test]
fn the_defaults_are_the_library_s() {
    let expected = Settings {
        callers: defaults().callers,
        ..Settings::new("eth0")
    };
    assert_eq!(defaults(), expected);
}

/// These defaults depend on other settings, so that clap does not write them.
#[test]
fn numbers_in_the_help_are_those_that_take_effect() {
    let cli = crate::Cli::command();
    let guard = cli.find_subcommand("guard").unwrap();
    let percent = |fraction: Fraction| fraction.as_ppm() / 10_000;
    let shed = percent(defaults().guard.cpu_limit);
    let polled = percent(defaults().polling_limit);
    let threads = percent(REAL_TIME_MOST);
    for (option, told) in [
        ("cpu-limit", format!("Unless given: {shed}.")),
        ("polling-limit", format!("`cpu-limit`, or {polled} where")),
        ("polling-limit", format!("are held to {threads} or to")),
    ] {
        let mut options = guard.get_arguments();
        let option = options.find(|arg| arg.get_long() == Some(option)).unwrap();
        let help = option.get_long_help().unwrap().to_string();
        let help = help.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(help.contains(&told), "{told}: {help}");
    }
}

#[test]
fn every_setting_has_a_case() {
    let cli = crate::Cli::command();
    let guard = cli.find_subcommand("guard").unwrap();
    let mut settings: Vec<_> = settings_of(guard).filter_map(clap::Arg::get_long).collect();
    let mut cases: Vec<_> = CASES.iter().map(|case| case.name).collect();
    settings.sort_unstable();
    cases.sort_unstable();
    assert_eq!(cases, settings);
}

#[test]
fn a_valid_value_takes_effect_at_the_start() {
    for case in &CASES {
        assert!(
            !(case.is_effective)(&defaults()),
            "{} is the default",
            case.name
        );
        // With underscores as well: TOML's own habit.
        for name in [case.name.to_owned(), case.name.replace('-', "_")] {
            let text = format!("{}\n{name} = {}\n", case.besides, case.value);
            let settings = read(&text).unwrap_or_else(|said| panic!("{text}: {said}"));
            assert!((case.is_effective)(&settings), "{text}");
        }
    }
}

#[test]
fn on_sighup_it_takes_effect_or_the_operator_is_told() {
    for case in &CASES {
        let old = read(case.besides).unwrap();
        let new = read(&format!(
            "{}\n{} = {}\n",
            case.besides, case.name, case.value
        ))
        .unwrap();
        let adopted = old.with_changes_of(&new);
        let waiting = adopted.differences(&new);
        if case.on_reload == TakesEffect {
            assert_eq!(adopted, new, "{}", case.name);
            assert_eq!(waiting, [""; 0]);
        } else {
            assert_eq!(adopted, old, "{}", case.name);
            assert_eq!(waiting, [case.name]);
        }
        // Taking it out again is a change like any other.
        let back = new.with_changes_of(&old);
        assert_eq!(
            back == new,
            case.on_reload == TakesANewStart && case.name != "protect-processes"
        );
    }
}

#[test]
fn rights_that_were_given_up_take_a_new_start() {
    let by_process = Settings {
        shares: Shares::Process,
        ..defaults()
    };
    let adopted = defaults().with_changes_of(&by_process);
    assert_eq!(adopted.differences(&by_process), ["shares"]);
    // Who has them may name processes, too.
    let named = Settings {
        protect_processes: vec!["/usr/sbin/nsd".into()],
        ..defaults()
    };
    assert_eq!(by_process.with_changes_of(&named), named);
    // Threads that were asked for at the start stay where they are.
    let threaded = Settings {
        threaded: Some(plimsoll_kernel::scheduling::Priority::RealTime),
        poll_cpu: Some(0),
        ..defaults()
    };
    let elsewhere = Settings {
        poll_cpu: Some(1),
        strategy: Strategy::Thread,
        ..threaded.clone()
    };
    let adopted = threaded.with_changes_of(&elsewhere);
    assert_eq!(adopted.differences(&elsewhere), ["poll-cpu"]);
}

#[test]
fn a_mistake_in_any_setting_is_named_with_its_line() {
    for case in &CASES {
        let name = case.name;
        // The place is the third line, whatever stands above.
        let text = |value| format!("# a comment\n\n{name} = {value}\n{}\n", case.besides);
        for wrong in [case.wrong_type, "{}", "2026-11-21", "[[]]"] {
            let said = refused(&text(wrong));
            let expected = format!("guard.toml:3: {name} is ");
            assert!(said.starts_with(&expected), "{name} = {wrong}: {said}");
        }
        for (value, problem) in case.refused {
            let said = refused(&text(value));
            assert!(
                said.starts_with("guard.toml:3: "),
                "{name} = {value}: {said}"
            );
            assert!(said.contains(name), "{name} = {value}: {said}");
            assert!(said.contains(problem), "{name} = {value}: {said}");
        }
        let said = refused(&format!("\n{name}s = {}\n", case.value));
        let similar = format!("guard.toml:2: no setting `{name}s`: do you mean `{name}`?");
        assert_eq!(said, similar);
        let said = refused(&format!("{name} = {0}\n{name} = {0}\n", case.value));
        assert!(
            said.starts_with("guard.toml:2: not TOML: duplicate key"),
            "{said}"
        );
        let said = refused(&format!("\n{name} = \n"));
        assert!(said.starts_with("guard.toml:2: not TOML: "), "{said}");
        let said = refused(&format!("[guard]\n{name} = {}\n", case.value));
        assert!(
            said.starts_with("guard.toml:1: no setting `guard`: "),
            "{said}"
        );
        let scale = refused(&text("99999999999999999999999999"));
        assert!(scale.starts_with("guard.toml:3: "), "{scale}");
    }
}

#[test]
fn the_same_setting_written_two_ways_is_a_duplicate() {
    let said = refused("ring-frames = 32\nring_frames = 64\n");
    assert_eq!(
        said,
        "guard.toml:2: ring-frames stands above already: remove one"
    );
}

#[test]
fn contradictions_are_named_with_line_and_remedy() {
    for (text, line, problem) in CONTRADICTIONS {
        assert_eq!(
            refused(text),
            format!("guard.toml:{line}: {problem}"),
            "{text}"
        );
    }
    let sources: Vec<_> = (0..1025)
        .map(|i| format!("\"198.{}.{}.0/24\"", 18 + i / 256, i % 256))
        .collect();
    let said = refused(&format!("\nprotect-sources = [{}]", sources.join(", ")));
    assert_eq!(
        said,
        "guard.toml:2: protect_sources = 1025: must be at most 1024"
    );
    // The command line's own contradictions are clap's to tell, and it outweighs the file.
    let said = read_with("observe = true", &["--quiet", "--json=-"]).unwrap_err();
    assert!(
        said.contains("'--quiet' cannot be used with '--json <FILE>'"),
        "{said}"
    );
    let args = read_with(
        "protect-ports = \"53/udp\"\nring-frames = 32",
        &["--protect-ports", "80/tcp", "--ring-frames=64"],
    )
    .unwrap();
    assert_eq!(cases::ports(&args), ["80/tcp"]);
    assert_eq!(args.ring_frames, Some(64));
}

/// The file of the package: what is commented out there, by name, with the
/// comments above.
fn documented() -> Vec<(String, String, String)> {
    let text = commented_settings(&mut crate::Cli::command());
    let blocks = text.split("\n\n").skip(1);
    let setting = |block: &str| {
        let (comments, last) = block.trim_end().rsplit_once('\n').unwrap();
        let (name, value) = last.strip_prefix('#').unwrap().split_once(" = ").unwrap();
        assert!(
            comments.lines().all(|line| line.starts_with('#')),
            "{block}"
        );
        (name.to_owned(), value.to_owned(), comments.to_owned())
    };
    // An empty comment parts the paragraphs about one setting.
    blocks.map(setting).collect()
}

#[test]
fn the_package_s_file_documents_effect_cost_and_default_of_every_setting() {
    let documented = documented();
    let names: Vec<_> = documented.iter().map(|(name, ..)| name.as_str()).collect();
    let mut cases = CASES.map(|case| case.name).to_vec();
    cases.sort_by_key(|case| names.iter().position(|name| name == case));
    assert_eq!(names, cases);
    for (name, value, comments) in &documented {
        let effect = comments.lines().next().unwrap();
        assert!(
            effect.len() > 20 && !effect.contains("Cost:"),
            "{name}: {effect}"
        );
        assert_eq!(
            comments.matches("# Cost: ").count(),
            1,
            "{name}:\n{comments}"
        );
        let case = CASES.iter().find(|case| case.name == name).unwrap();
        let told = comments.contains("akes a new start") || comments.contains("takes a new start");
        let exception = ["shares", "poll-cpu"].contains(&name.as_str());
        assert!(
            told == (case.on_reload == TakesANewStart) || exception,
            "{name}:\n{comments}"
        );
        if let Some(example) = value.strip_suffix("   # not set") {
            assert!(!example.is_empty());
            continue;
        }
        // Each by itself: what the operator gets who takes one comment mark away.
        let company = if name == "metrics-channels" {
            case.besides
        } else {
            ""
        };
        let expected = read(company).unwrap();
        let text = format!("{name} = {value}\n{company}");
        assert_eq!(read(&text).unwrap(), expected, "{text}");
    }
}
