//! Every setting, every kind of mistake: the table below has a case for each
//! option that a file may set, and a test fails if one is missing.

use std::ffi::OsString;
use std::fs;

use clap::{CommandFactory, Parser};

use super::args::{Args, Shares, Strategy};
use crate::guard::{Commands, commented_settings, expand, name_place, settings_of};

/// What a setting does when it is read again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OnReload {
    TakesEffect,
    TakesANewStart,
}
use OnReload::{TakesANewStart, TakesEffect};

/// One setting.
struct Case {
    name: &'static str,
    /// A value that is not the default, with what else it needs in the file.
    value: &'static str,
    besides: &'static str,
    /// True of the settings that value makes, and not of the defaults.
    is_effective: fn(&Args) -> bool,
    on_reload: OnReload,
    /// Of a type that is none of its.
    wrong_type: &'static str,
    /// Values of its type that are refused, and what is said.
    refused: &'static [(&'static str, &'static str)],
}

/// A setting by itself that takes effect at once.
const fn case(
    name: &'static str,
    value: &'static str,
    is_effective: fn(&Args) -> bool,
    wrong_type: &'static str,
    refused: &'static [(&'static str, &'static str)],
) -> Case {
    Case {
        name,
        value,
        besides: "",
        is_effective,
        on_reload: TakesEffect,
        wrong_type,
        refused,
    }
}

const CASES: [Case; 22] = [
    case(
        "high-watermark",
        "80",
        |a| ppm(a.config().high_watermark) == 800_000,
        "\"80\"",
        &[
            ("0", "0 is not in 1..=100"),
            ("101", "101 is not in 1..=100"),
        ],
    ),
    case(
        "low-watermark",
        "30",
        |a| ppm(a.config().low_watermark) == 300_000,
        "3.5",
        &[
            ("-1", "-1 is not in 0..=99"),
            ("100", "100 is not in 0..=99"),
            (
                "70",
                "low-watermark = 70: must be below high-watermark, which is 70",
            ),
        ],
    ),
    case(
        "observe",
        "true",
        |a| a.config().observe && is_off(a),
        "1",
        &[],
    ),
    case(
        "syn-cookies",
        "false",
        |a| !a.config().syn_cookies,
        "0",
        &[],
    ),
    case(
        "cpu-limit",
        "40",
        |a| {
            ppm(a.config().cpu_limit) == 400_000 && a.governor().cpu_limit.map(ppm) == Some(400_000)
        },
        "true",
        &[
            ("0", "0 is not in 1..=100"),
            ("101", "101 is not in 1..=100"),
        ],
    ),
    case(
        "protected-share",
        "0",
        |a| ppm(a.config().protected_share) == 0,
        "\"0\"",
        &[
            ("-1", "-1 is not in 0..=99"),
            ("100", "100 is not in 0..=99"),
        ],
    ),
    case(
        "protect-ports",
        "[\"53/udp\", \"443/tcp\"]",
        |a| ports(a) == ["Udp 53", "Tcp 443"],
        "22",
        &[
            ("\"22\"", "\"22\" is no port such as 22/tcp or 53/udp"),
            ("[\"22/tcp\", \"0/udp\"]", "\"0/udp\" is no port"),
            ("\"65536/tcp\"", "\"65536/tcp\" is no port"),
            ("[]", "protect-ports has no value"),
        ],
    ),
    case(
        "protect-sources",
        "\"2001:db8::/32,198.18.0.0/24\"",
        |a| a.protection().unwrap().sources.len() == 2,
        "198",
        &[
            ("\"198.18.0.0/33\"", "invalid IP address syntax"),
            ("\"198.18.0.0\"", "invalid IP address syntax"),
        ],
    ),
    Case {
        on_reload: TakesANewStart,
        ..case(
            "protect-processes",
            "[\"nsd\", \"nginx\"]",
            |a| a.needs().len() == 4,
            "7",
            &[
                (
                    "\"\"",
                    "the kernel keeps 1 to 15 bytes of a name: `ps -o comm` shows them",
                ),
                ("\"sixteen-letters!\"", "the kernel keeps 1 to 15 bytes"),
            ],
        )
    },
    case(
        "protect-connections",
        "false",
        |a| !a.protection().unwrap().connections,
        "\"no\"",
        &[],
    ),
    case(
        "shares",
        "\"control-group\"",
        |a| a.shares == Shares::ControlGroup,
        "true",
        &[(
            "\"user\"",
            "[possible values: channel, process, control-group]",
        )],
    ),
    case(
        "delay-target-ms",
        "20",
        |a| a.config().delay_target.is_some(),
        "\"20\"",
        &[
            ("-1", "-1 is not in 0..=60000"),
            ("60001", "60001 is not in 0..=60000"),
        ],
    ),
    case(
        "strategy",
        "\"off\"",
        is_off,
        "false",
        &[("\"threads\"", "[possible values: off, thread, holdoff]")],
    ),
    case(
        "ring-frames",
        "1024",
        |a| a.governor().ring_frames == Some(1024),
        "\"1024\"",
        &[
            ("15", "15 is not in 16..=1048576"),
            ("1048577", "1048577 is not in 16..=1048576"),
        ],
    ),
    Case {
        on_reload: TakesANewStart,
        ..case(
            "threaded",
            "-5",
            |a| a.threaded.is_some() && is_off(a),
            "false",
            &[
                ("20", "must be a nice level from -20 to 19, or rt"),
                ("-21", "must be a nice level from -20 to 19, or rt"),
                ("\"high\"", "must be a nice level from -20 to 19, or rt"),
            ],
        )
    },
    Case {
        besides: "strategy = \"thread\"",
        ..case(
            "poll-cpu",
            "0",
            |a| a.governor().poll_cpu == Some(0),
            "\"0\"",
            &[
                ("4096", "this host has no such CPU: `lscpu -e` lists them"),
                ("-1", "is no number of a CPU"),
            ],
        )
    },
    Case {
        on_reload: TakesANewStart,
        ..case(
            "metrics",
            "\"127.0.0.1:9464\"",
            |a| a.metrics.is_some(),
            "9464",
            &[
                ("\"localhost:9464\"", "invalid socket address syntax"),
                ("\"127.0.0.1:65536\"", "invalid socket address syntax"),
            ],
        )
    },
    Case {
        besides: "metrics = \"127.0.0.1:9464\"",
        on_reload: TakesANewStart,
        ..case(
            "metrics-channels",
            "5",
            |a| a.metrics_channels == 5,
            "5.0",
            &[
                ("-1", "-1 is not in 0..=16384"),
                ("16385", "16385 is not in 0..=16384"),
            ],
        )
    },
    case(
        "interval-ms",
        "200",
        |a| a.interval().as_millis() == 200,
        "\"200 ms\"",
        &[
            ("99", "99 is not in 100..=60000"),
            ("60001", "60001 is not in 100..=60000"),
        ],
    ),
    Case {
        on_reload: TakesANewStart,
        ..case("quiet", "true", |a| a.quiet, "\"true\"", &[])
    },
    Case {
        on_reload: TakesANewStart,
        ..case(
            "duration",
            "60",
            |a| a.duration == Some(60),
            "\"60\"",
            &[
                ("-1", "-1 is not in 0..=1000000000"),
                ("1000000001", "1000000001 is not in 0..=1000000000"),
            ],
        )
    },
    Case {
        on_reload: TakesANewStart,
        ..case("json", "\"-\"", |a| a.json.is_some(), "true", &[])
    },
];

/// What is right by itself and wrong in company, the place named, and what is said.
const CONTRADICTIONS: [(&str, usize, &str); 6] = [
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
        "\nmetrics-channels = 5",
        2,
        "metrics-channels: needs metrics <ADDRESS:PORT> as well",
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

fn ppm(fraction: plimsoll_core::config::Fraction) -> u32 {
    fraction.as_ppm()
}

fn is_off(args: &Args) -> bool {
    args.governor().strategy == plimsoll_guard::governor::Strategy::Off
}

fn ports(args: &Args) -> Vec<String> {
    let ports = args.protection().unwrap().ports;
    let text = |(transport, port)| format!("{transport:?} {port}");
    ports.into_iter().map(text).collect()
}

/// The settings that a file makes, or what is said about it.
fn read(text: &str) -> Result<Args, String> {
    read_with(text, &[])
}

fn read_with(text: &str, options: &[&str]) -> Result<Args, String> {
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
    let args = expand(&crate::Cli::command(), words.clone())
        .and_then(|words| {
            let cli = crate::Cli::try_parse_from(words)?;
            let args = guard_of(cli);
            args.validate()?;
            Ok(Args {
                config: None,
                ..args
            })
        })
        .map_err(|error| name_place(error, &words));
    args.map_err(|error| {
        let said = format!("{error:#}");
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

fn defaults() -> Args {
    guard_of(crate::Cli::try_parse_from(["plimsoll", "guard", "eth0"]).unwrap())
}

/// What is said about a file, which must be refused.
fn refused(text: &str) -> String {
    read(text).expect_err(text)
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
            let args = read(&text).unwrap_or_else(|said| panic!("{text}: {said}"));
            assert!((case.is_effective)(&args), "{text}");
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
    let by_process = Args {
        shares: Shares::Process,
        ..defaults()
    };
    let adopted = defaults().with_changes_of(&by_process);
    assert_eq!(adopted.differences(&by_process), ["shares"]);
    // Who has them may name processes, too.
    let named = Args {
        protect_processes: vec!["nsd".to_owned()],
        ..defaults()
    };
    assert_eq!(by_process.with_changes_of(&named), named);
    // Threads that were asked for at the start stay where they are.
    let threaded = Args {
        threaded: Some(plimsoll_kernel::scheduling::Priority::RealTime),
        poll_cpu: Some(0),
        ..defaults()
    };
    let elsewhere = Args {
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
    assert_eq!(ports(&args), ["Tcp 80"]);
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
