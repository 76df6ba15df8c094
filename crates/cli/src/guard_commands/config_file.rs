//! `plimsoll guard --config FILE`: any option of the command as a TOML setting.
//!
//! A setting is an option without its dashes (`high-watermark = 70`), with the
//! option's meaning, default and range; what the command line says outweighs
//! the file. So there is one definition of each setting, and one text about it
//! (`plimsoll guard --help`).
//!
//! A mistake is named with file, line and remedy, and nothing is started.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};

use clap::builder::ValueRange;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{ArgAction, Command};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// Options that make no sense in a file.
const NOT_IN_FILE: [&str; 3] = ["config", "help", "version"];

/// What is wrong with a file, and where.
#[derive(Debug, thiserror::Error)]
#[error("{}:{line}: {problem}", path.display())]
pub(crate) struct ConfigFileError {
    path: PathBuf,
    line: usize,
    problem: String,
}

/// A configuration file's settings.
struct ConfigFile<'a> {
    path: &'a Path,
    text: &'a str,
    /// The guard's command.
    command: Command,
}

/// Puts the settings of the file named by `--config` before the other
/// arguments, if `arguments` run the guard and name one.
pub(crate) fn expand(
    cli: &Command,
    arguments: Vec<OsString>,
) -> Result<Vec<OsString>, anyhow::Error> {
    let Some(path) = named_file(&arguments) else {
        return Ok(arguments);
    };
    let text = fs::read_to_string(&path).map_err(|error| ConfigFileError {
        path: path.clone(),
        line: 0,
        problem: format!("{error}: check the name after --config"),
    })?;
    let guard = cli.find_subcommand("guard").expect("the guard's command");
    let file = ConfigFile {
        path: &path,
        text: &text,
        command: guard.clone(),
    };
    let mut expanded = arguments[..2].to_vec();
    expanded.extend(file.arguments()?);
    expanded.extend_from_slice(&arguments[2..]);
    Ok(expanded)
}

/// A configuration file that sets nothing and documents every setting with its
/// default.
pub(crate) fn commented_settings(cli: &mut Command) -> String {
    cli.build();
    let guard = cli.find_subcommand("guard").expect("the guard's command");
    let mut text =
        "# Settings of `plimsoll guard IFACE --config FILE`; `systemctl reload` or SIGHUP\n\
        # reads them again. What is commented out has the default shown.\n"
            .to_owned();
    let options = guard
        .get_arguments()
        .filter(|argument| argument.get_long().is_some() && !argument.is_hide_set())
        .filter(|argument| !NOT_IN_FILE.contains(&argument.get_id().as_str()));
    for option in options {
        text.push('\n');
        let help = option.get_long_help().or_else(|| option.get_help());
        for line in help.map(ToString::to_string).unwrap_or_default().lines() {
            text += &format!("# {line}");
            text.truncate(text.trim_end().len());
            text.push('\n');
        }
        text += &format!(
            "#{} = {}\n",
            option.get_long().unwrap_or_default(),
            example(option)
        );
    }
    text
}

/// An option's default, or one of its values.
fn example(option: &clap::Arg) -> String {
    if matches!(option.get_action(), ArgAction::SetTrue) {
        return "false".to_owned();
    }
    let quoted = |text: &str| match text.parse::<f64>() {
        Ok(_) => text.to_owned(),
        Err(_) if ["true", "false"].contains(&text) => text.to_owned(),
        Err(_) => format!("\"{text}\""),
    };
    let default = option.get_default_values().first();
    match default.and_then(|value| value.to_str()) {
        Some(default) => quoted(default),
        None => {
            let name = option.get_value_names().and_then(|names| names.first());
            format!("\"{}\"   # not set", name.map_or("", |name| name.as_str()))
        }
    }
}

/// The file's place of a setting that turned out wrong in company of others.
pub(crate) fn place(setting: &str) -> Option<String> {
    let path = named_file(&std::env::args_os().collect::<Vec<_>>())?;
    let text = fs::read_to_string(&path).ok()?;
    let table = DeTable::parse(&text).ok()?;
    let name = option_name(setting);
    let (key, _) = table
        .get_ref()
        .iter()
        .find(|(key, _)| option_name(key.get_ref()) == name)?;
    Some(format!("{}:{}", path.display(), line(&text, &key.span())))
}

fn named_file(arguments: &[OsString]) -> Option<PathBuf> {
    if arguments.get(1)? != "guard" {
        return None;
    }
    let mut rest = arguments[2..]
        .iter()
        .take_while(|argument| *argument != "--");
    while let Some(argument) = rest.next() {
        if argument == "--config" {
            return rest.next().map(PathBuf::from);
        }
        if let Some(path) = argument.to_str().and_then(|a| a.strip_prefix("--config=")) {
            return Some(PathBuf::from(path));
        }
    }
    None
}

fn option_name(setting: &str) -> String {
    setting.replace('_', "-")
}

fn line(text: &str, span: &Range<usize>) -> usize {
    1 + text[..span.start.min(text.len())].matches('\n').count()
}

impl ConfigFile<'_> {
    fn arguments(&self) -> Result<Vec<OsString>, ConfigFileError> {
        let table = DeTable::parse(self.text).map_err(|error| {
            let span = error.span().unwrap_or_default();
            self.error(&span, format!("not TOML: {}", error.message()))
        })?;
        let mut arguments = Vec::new();
        for (key, value) in table.get_ref() {
            arguments.extend(self.setting(key, value)?);
        }
        Ok(arguments)
    }

    /// One setting as arguments, each of which clap has accepted.
    fn setting(
        &self,
        key: &Spanned<impl AsRef<str>>,
        value: &Spanned<DeValue<'_>>,
    ) -> Result<Vec<OsString>, ConfigFileError> {
        let name = option_name(key.get_ref().as_ref());
        let option = self
            .command
            .get_arguments()
            .filter(|argument| !NOT_IN_FILE.contains(&argument.get_id().as_str()))
            .find(|argument| argument.get_long() == Some(&name));
        let Some(option) = option else {
            return Err(self.unknown(&name, &key.span()));
        };
        if matches!(option.get_action(), ArgAction::SetTrue) {
            return match value.get_ref() {
                DeValue::Boolean(true) => Ok(vec![format!("--{name}").into()]),
                DeValue::Boolean(false) => Ok(Vec::new()),
                _ => Err(self.error(&value.span(), format!("{name} is true or false"))),
            };
        }
        let several = matches!(option.get_action(), ArgAction::Append)
            || option
                .get_num_args()
                .unwrap_or(ValueRange::SINGLE)
                .max_values()
                > 1;
        let mut arguments = Vec::new();
        for value in values(value) {
            let Some(text) = scalar(value.get_ref()) else {
                let problem = format!("{name} is a number, true or false, or a text in quotes");
                return Err(self.error(&value.span(), problem));
            };
            if !arguments.is_empty() && !several {
                return Err(self.error(&value.span(), format!("{name} has one value only")));
            }
            let argument = OsString::from(format!("--{name}={text}"));
            self.accept(&argument, &value.span())?;
            arguments.push(argument);
        }
        Ok(arguments)
    }

    /// Asks clap whether an option's value is one. What it misses besides is
    /// for the whole command line to have.
    fn accept(&self, argument: &OsStr, span: &Range<usize>) -> Result<(), ConfigFileError> {
        let line = [OsStr::new("guard"), OsStr::new("any"), argument];
        let Err(error) = self.command.clone().try_get_matches_from(line) else {
            return Ok(());
        };
        match error.kind() {
            ErrorKind::ValueValidation | ErrorKind::InvalidValue => {
                let text = error.to_string();
                let first = text.lines().next().unwrap_or_default();
                let problem = first.trim_start_matches("error: ").replace("--", "");
                Err(self.error(span, problem))
            }
            _ => Ok(()),
        }
    }

    fn unknown(&self, name: &str, span: &Range<usize>) -> ConfigFileError {
        let line = ["guard".to_owned(), "any".to_owned(), format!("--{name}")];
        let error = self.command.clone().try_get_matches_from(line).err();
        let similar = error.and_then(|error| match error.get(ContextKind::SuggestedArg) {
            Some(ContextValue::String(option)) => Some(option.replace("--", "")),
            _ => None,
        });
        let remedy = match similar {
            Some(similar) => format!("do you mean `{similar}`?"),
            None => "`plimsoll guard --help` lists them".to_owned(),
        };
        self.error(span, format!("no setting `{name}`: {remedy}"))
    }

    fn error(&self, span: &Range<usize>, problem: String) -> ConfigFileError {
        ConfigFileError {
            path: self.path.to_owned(),
            line: line(self.text, span),
            problem,
        }
    }
}

/// The elements of an array, or the value itself.
fn values<'a, 'i>(value: &'a Spanned<DeValue<'i>>) -> Vec<&'a Spanned<DeValue<'i>>> {
    match value.get_ref() {
        DeValue::Array(array) => array.iter().collect(),
        _ => vec![value],
    }
}

fn scalar(value: &DeValue<'_>) -> Option<String> {
    match value {
        DeValue::String(text) => Some(text.to_string()),
        DeValue::Integer(number) => Some(number.to_string()),
        DeValue::Float(number) => Some(number.to_string()),
        DeValue::Boolean(value) => Some(value.to_string()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let arguments = file.arguments().map_err(|error| error.to_string())?;
        Ok(arguments
            .into_iter()
            .map(|a| a.into_string().unwrap())
            .collect())
    }

    #[test]
    fn settings_become_options() {
        let text = "# comment\nhigh_watermark = 80\nthreaded = \"rt\"\nobserve = true\nprotect = [\"port 22\", 179]\n";
        let expected = [
            "--high-watermark=80",
            "--observe",
            "--protect=port 22",
            "--protect=179",
            "--threaded=rt",
        ];
        assert_eq!(arguments(text).unwrap(), expected);
        assert_eq!(arguments("poll = true").unwrap(), ["--poll=true"]);
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
            ("high-watermark = \"x\"", "guard.toml:1: invalid value 'x'"),
            (
                "high-watermark = [1, 2]",
                "guard.toml:1: high-watermark has one value only",
            ),
            (
                "high-watermark = {}",
                "high-watermark is a number, true or false, or a text in quotes",
            ),
            (
                "\n\nhigh-watermarks = 7",
                "guard.toml:3: no setting `high-watermarks`: do you mean `high-watermark`?",
            ),
            (
                "interface = \"eth0\"",
                "no setting `interface`: `plimsoll guard --help`",
            ),
            ("observe = 1", "observe is true or false"),
            (
                "[protect]\nport = 22",
                "guard.toml:1: protect is a number, true or false",
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
    fn the_commented_file_holds_every_setting_and_the_defaults_are_valid() {
        let mut cli = <crate::Cli as clap::CommandFactory>::command();
        let text = commented_settings(&mut cli);
        let guard = cli.find_subcommand("guard").unwrap();
        let settings = text
            .lines()
            .filter_map(|line| line.strip_prefix('#'))
            .filter(|line| !line.starts_with(' '));
        let (unset, set): (Vec<_>, Vec<_>) = settings.partition(|line| line.ends_with("# not set"));
        let file = ConfigFile {
            path: Path::new("guard.toml"),
            text: &set.join("\n"),
            command: guard.clone(),
        };
        file.arguments().unwrap();
        let options = guard.get_arguments().filter(|a| a.get_long().is_some());
        let options = options.filter(|a| !NOT_IN_FILE.contains(&a.get_id().as_str()));
        assert_eq!(set.len() + unset.len(), options.count(), "{text}");
        assert!(
            text.lines()
                .all(|line| line.is_empty() || line.starts_with('#'))
        );
    }

    #[test]
    fn every_command_and_option_in_the_guide_exists() {
        let guide = include_str!("../../../../docs/guard.md");
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
                // `--now` is systemctl's; `--protect-*` stands for several.
                assert!(
                    name == "now"
                        || name == "release"
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
        assert_eq!(find("plimsoll guard eth0"), None);
        assert_eq!(find("plimsoll guard eth0 -- --config f"), None);
        assert_eq!(find("plimsoll probe --config f"), None);
    }
}
