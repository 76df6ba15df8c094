//! What a configuration file may say, and what is said of its mistakes.

use proptest::collection::vec;
use proptest::{prop_assert, proptest};

use super::*;

/// A file with every setting in effect.
fn all_settings() -> String {
    commented_settings(&mut <crate::Cli as clap::CommandFactory>::command())
        .lines()
        .map(|line| {
            let setting = line.strip_prefix('#').filter(|rest| !rest.starts_with(' '));
            format!("{}\n", setting.unwrap_or(line))
        })
        .collect()
}

/// Reads a file by the guard's own settings; a mistake has a line of the file.
fn settings_or_line(text: &str) -> Result<usize, usize> {
    crate::driven::check_settings(text.as_bytes());
    let cli = <crate::Cli as clap::CommandFactory>::command();
    let file = ConfigFile {
        path: Path::new("guard.toml"),
        text,
        command: cli.find_subcommand("guard").unwrap().clone(),
    };
    match file.settings() {
        Ok(settings) => Ok(settings.len()),
        Err(error) => Err(error.line),
    }
}

/// Values that some settings have and others refuse.
const VALUES: [&str; 24] = [
    "0",
    "1",
    "-1",
    "69",
    "70",
    "100",
    "1000",
    "99999999999",
    "0.5",
    "true",
    "false",
    "\"rt\"",
    "\"off\"",
    "\"thread\"",
    "\"process\"",
    "\"22/tcp,53/udp\"",
    "\"22/tcp/\"",
    "[\"198.18.0.0/24\", \"2001:db8::/32\"]",
    "[]",
    "[1, 2]",
    "\"/usr/sbin/nsd\"",
    "\"127.0.0.1:9464\"",
    "\"192.0.2.1:9464\"",
    "\"\\u0007 --observe\"",
];

proptest! {
    #![proptest_config(proptest::test_runner::Config::with_cases(200))]

    #[test]
    fn any_bytes_are_settings_or_a_mistake_with_a_line(
        bytes in vec(proptest::num::u8::ANY, 0..200),
        text in "([a-z_-]{1,9} ?=? ?[\\[{\"'0-9a-z.,\\]}-]{0,9}\n?){0,9}",
    ) {
        let _ = settings_or_line(&String::from_utf8_lossy(&bytes));
        let _ = settings_or_line(&text);
    }

    /// Each right by itself or not, and right together or not.
    #[test]
    fn any_settings_in_company_are_taken_or_a_mistake_with_a_line(
        lines in vec((proptest::num::u32::ANY, proptest::sample::select(VALUES.to_vec())), 0..5),
    ) {
        let cli = <crate::Cli as clap::CommandFactory>::command();
        let guard = cli.find_subcommand("guard").unwrap();
        let names: Vec<_> = settings_of(guard).filter_map(clap::Arg::get_long).collect();
        let text: String = lines
            .iter()
            .map(|(name, value)| format!("{} = {value}\n", names[*name as usize % names.len()]))
            .collect();
        crate::driven::check_settings(text.as_bytes());
    }

    /// Characters of a good file are lost, doubled or replaced.
    #[test]
    fn a_damaged_file_is_read_or_refused_with_a_line(
        damages in vec((proptest::num::u32::ANY, 0..3, ".{0,3}"), 1..5),
    ) {
        let mut text: Vec<char> = all_settings().chars().collect();
        for (place, what, other) in damages {
            let place = place as usize % text.len();
            match what {
                0 => drop(text.remove(place)),
                1 => text.insert(place, text[place]),
                _ => drop(text.splice(place..=place, other.chars())),
            }
        }
        let text: String = text.into_iter().collect();
        let read = settings_or_line(&text);
        prop_assert!(read.is_err() || read.unwrap() > 0);
    }
}

#[test]
fn the_whole_file_is_read_but_for_what_has_no_default() {
    let all = all_settings();
    let line = settings_or_line(&all).unwrap_err();
    let refused = all.lines().nth(line - 1).unwrap();
    assert!(refused.ends_with("# not set"), "{refused}");
}

fn command() -> Command {
    Command::new("guard")
        .arg(clap::Arg::new("interface").required(true))
        .arg(
            clap::Arg::new("high-watermark")
                .long("high-watermark")
                .value_parser(clap::value_parser!(u32).range(1..=100)),
        )
        .arg(clap::Arg::new("threaded").long("threaded").requires("poll"))
        .arg(clap::Arg::new("poll").long("poll"))
        .arg(
            clap::Arg::new("observe")
                .long("observe")
                .action(ArgAction::SetTrue),
        )
        .arg(
            clap::Arg::new("protect")
                .long("protect")
                .action(ArgAction::Append),
        )
}

fn arguments(text: &str) -> Result<Vec<String>, String> {
    let file = ConfigFile {
        path: Path::new("guard.toml"),
        text,
        command: command(),
    };
    let settings = file.settings().map_err(|error| error.to_string())?;
    Ok(settings
        .into_iter()
        .flat_map(|setting| setting.arguments)
        .map(|a| a.into_string().unwrap())
        .collect())
}

#[test]
fn settings_become_options() {
    let text = "# comment\nhigh_watermark = 80\nthreaded = \"rt\"\nobserve = true\nprotect = [\"port 22\", \"179\"]\n";
    let expected = [
        "--high-watermark=80",
        "--threaded=rt",
        "--observe",
        "--protect=port 22",
        "--protect=179",
    ];
    assert_eq!(arguments(text).unwrap(), expected);
    assert_eq!(arguments("poll = \"true\"").unwrap(), ["--poll=true"]);
    assert_eq!(arguments("observe = false\n").unwrap(), [""; 0]);
    assert_eq!(arguments("").unwrap(), [""; 0]);
}

#[test]
fn every_mistake_is_named_with_line_and_remedy() {
    for (text, said) in [
        ("a = ", "guard.toml:1: not TOML: "),
        (
            "\nhigh-watermark = 0\n",
            "guard.toml:2: invalid value '0' for 'high-watermark",
        ),
        (
            "high-watermark = \"80\"",
            "guard.toml:1: high-watermark is a whole number, without quotes",
        ),
        ("poll = 7", "guard.toml:1: poll is a text in quotes"),
        (
            "high-watermark = []",
            "guard.toml:1: high-watermark has no value: leave it out",
        ),
        (
            "high-watermark = [1, 2]",
            "guard.toml:1: high-watermark has one value only",
        ),
        (
            "high-watermark = {}",
            "high-watermark is a whole number, without quotes",
        ),
        (
            "\n\nhigh-watermarks = 7",
            "guard.toml:3: no setting `high-watermarks`: do you mean `high-watermark`?",
        ),
        (
            "interface = \"eth0\"",
            "no setting `interface`: `plimsoll guard --help`",
        ),
        ("observe = 1", "observe is true or false, without quotes"),
        (
            "[protect]\nport = 22",
            "guard.toml:1: protect is a text in quotes",
        ),
        (
            "observe = true\nobserve = true",
            "guard.toml:2: not TOML: duplicate key",
        ),
    ] {
        let error = arguments(text).unwrap_err();
        assert!(error.contains(said), "{text:?}: {error}");
    }
}

#[test]
fn every_command_and_option_in_the_guide_exists() {
    let guide = concat!(
        include_str!("../../../../../docs/guard.md"),
        include_str!("../../../../../docs/guard-hosts.md")
    );
    let mut commands = 0;
    for line in guide.lines() {
        let words = line
            .trim_start_matches("sudo ")
            .split(' ')
            .collect::<Vec<_>>();
        if words[0] == "plimsoll" {
            <crate::Cli as clap::Parser>::try_parse_from(&words).unwrap();
            commands += 1;
        }
    }
    assert!(commands >= 4);
    let cli = <crate::Cli as clap::CommandFactory>::command();
    let guard = cli.find_subcommand("guard").unwrap();
    let options: Vec<_> = guard
        .get_arguments()
        .filter_map(clap::Arg::get_long)
        .collect();
    for word in guide.split(|c: char| !c.is_ascii_alphanumeric() && c != '-') {
        if let Some(name) = word
            .strip_prefix("--")
            .filter(|name| name.starts_with(|c: char| c.is_ascii_alphabetic()))
        {
            // Of systemctl, cargo and docker. `--protect-*` stands for several.
            assert!(
                ["now", "release", "pid"].contains(&name)
                    || options.iter().any(|option| option.starts_with(name)),
                "--{name}"
            );
        }
    }
}

#[test]
fn the_file_is_found_among_the_arguments() {
    let find = |words: &str| {
        let arguments: Vec<_> = words.split(' ').map(OsString::from).collect();
        named_file(&arguments)
    };
    let file = Some(PathBuf::from("f"));
    assert_eq!(find("plimsoll guard eth0 --config f"), file);
    assert_eq!(find("plimsoll guard --config=f eth0"), file);
    assert_eq!(find("plimsoll guard --config=e --config f eth0"), file);
    let arguments = ["plimsoll", "guard", "--config="].map(OsString::from);
    let mut arguments = arguments.to_vec();
    arguments[2].push(OsStr::from_bytes(b"\xff"));
    let unreadable = PathBuf::from(OsStr::from_bytes(b"\xff"));
    assert_eq!(named_file(&arguments), Some(unreadable));
    assert_eq!(find("plimsoll guard eth0"), None);
    assert_eq!(find("plimsoll guard eth0 -- --config f"), None);
    assert_eq!(find("plimsoll probe --config f"), None);
}
