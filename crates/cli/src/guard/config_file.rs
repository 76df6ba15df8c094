//! `plimsoll guard --config FILE`: any option of the command as a TOML setting.
//!
//! A setting is an option without its dashes (`high-watermark = 70`), with the
//! option's meaning, default and range; what the command line says outweighs
//! the file. So there is one definition of each setting, and one text about it
//! (`plimsoll guard --help`).
//!
//! A mistake is named with file, line and remedy, and nothing is started.

use std::any::TypeId;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use clap::builder::ValueRange;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{ArgAction, Command};
use plimsoll_kernel::error::read_remedy;
use plimsoll_kernel::scheduling::Priority;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::failure::{Fails, USED_WRONGLY};

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

impl Fails for ConfigFileError {
    fn exit_code(&self) -> u8 {
        USED_WRONGLY
    }
}

/// There is none, or it cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("cannot read {}, which --config names{}", path.display(), read_remedy(.source))]
pub(crate) struct Unreadable {
    path: PathBuf,
    source: io::Error,
}

impl Fails for Unreadable {
    fn exit_code(&self) -> u8 {
        USED_WRONGLY
    }
}

/// A configuration file's settings.
struct ConfigFile<'a> {
    path: &'a Path,
    text: &'a str,
    /// The guard's command.
    command: Command,
}

/// One setting as arguments, and its place.
struct Setting {
    name: String,
    arguments: Vec<OsString>,
    span: Range<usize>,
}

impl Setting {
    /// The command line says it as well, and outweighs the file.
    fn is_given(&self, arguments: &[OsString]) -> bool {
        let option = format!("--{}", self.name);
        let mut arguments = arguments.iter().filter_map(|argument| argument.to_str());
        arguments.any(|argument| {
            let rest = argument.strip_prefix(&option);
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('='))
        })
    }
}

/// How the value of a setting is written in TOML.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    WholeNumber,
    Boolean,
    Text,
    /// A nice level or `rt`.
    NumberOrText,
}

impl Form {
    fn of(option: &clap::Arg) -> Self {
        let parsed = option.get_value_parser().type_id();
        let numbers = [
            TypeId::of::<u32>(),
            TypeId::of::<u64>(),
            TypeId::of::<usize>(),
        ];
        if matches!(option.get_action(), ArgAction::SetTrue) || parsed == TypeId::of::<bool>() {
            Self::Boolean
        } else if numbers.iter().any(|number| parsed == *number) {
            Self::WholeNumber
        } else if parsed == TypeId::of::<Priority>() {
            Self::NumberOrText
        } else {
            Self::Text
        }
    }

    const fn description(self) -> &'static str {
        match self {
            Self::WholeNumber => "a whole number, without quotes",
            Self::Boolean => "true or false, without quotes",
            Self::Text => "a text in quotes",
            Self::NumberOrText => "a whole number, or a text in quotes",
        }
    }

    /// The value as the command line has it; `None` if it has another form.
    fn text(self, value: &DeValue<'_>) -> Option<String> {
        match (self, value) {
            (Self::WholeNumber | Self::NumberOrText, DeValue::Integer(number)) => {
                Some(number.to_string())
            }
            (Self::Boolean, DeValue::Boolean(value)) => Some(value.to_string()),
            (Self::Text | Self::NumberOrText, DeValue::String(text)) => Some(text.to_string()),
            _ => None,
        }
    }
}

/// Puts the settings of the file named by `--config` before the other
/// arguments, if `arguments` run the guard and name one.
pub(crate) fn expand(cli: &Command, arguments: Vec<OsString>) -> crate::Result<Vec<OsString>> {
    let Some(path) = named_file(&arguments) else {
        return Ok(arguments);
    };
    let text = fs::read_to_string(&path).map_err(|source| Unreadable {
        path: path.clone(),
        source,
    })?;
    Ok(expand_by(cli, &arguments, &path, &text)?)
}

/// The same with the `text` of the file.
fn expand_by(
    cli: &Command,
    arguments: &[OsString],
    path: &Path,
    text: &str,
) -> Result<Vec<OsString>, ConfigFileError> {
    let guard = cli.find_subcommand("guard").expect("the guard's command");
    let file = ConfigFile {
        path,
        text,
        command: guard.clone(),
    };
    let mut settings = file.settings()?;
    settings.retain(|setting| !setting.is_given(arguments));
    let with = |settings: &[Setting]| -> Vec<OsString> {
        let from_file = settings.iter().flat_map(|setting| &setting.arguments);
        let (first, rest) = arguments.split_at(2);
        first.iter().chain(from_file).chain(rest).cloned().collect()
    };
    let expanded = with(&settings);
    let Some(mistake) = contradiction(cli, &expanded) else {
        return Ok(expanded);
    };
    // The last setting without which all would be well is the one to name.
    for i in (0..settings.len()).rev() {
        let setting = settings.remove(i);
        if contradiction(cli, &with(&settings)).is_none() {
            let problem = mistake.told_of(&setting.name);
            return Err(file.error(&setting.span, problem));
        }
        settings.insert(i, setting);
    }
    // It is the command line's own: clap says so.
    Ok(expanded)
}

/// What is wrong with settings that are right each by itself.
struct Contradiction {
    /// The options, as clap names them.
    options: Vec<String>,
    is_conflict: bool,
}

impl Contradiction {
    fn told_of(&self, setting: &str) -> String {
        let others = self.options.iter();
        let others = others.filter(|option| option.split(' ').next() != Some(setting));
        let others = others.map(String::as_str).collect::<Vec<_>>().join(", ");
        if self.is_conflict {
            format!("{setting}: not together with {others}; remove one")
        } else {
            format!("{setting}: needs {others} as well")
        }
    }
}

fn contradiction(cli: &Command, arguments: &[OsString]) -> Option<Contradiction> {
    let error = cli.clone().try_get_matches_from(arguments).err()?;
    let is_conflict = match error.kind() {
        ErrorKind::ArgumentConflict => true,
        ErrorKind::MissingRequiredArgument => false,
        _ => return None,
    };
    let named = [ContextKind::InvalidArg, ContextKind::PriorArg];
    let named = named.iter().filter_map(|kind| error.get(*kind));
    let options = named.flat_map(|value| match value {
        ContextValue::String(option) => vec![option.replace("--", "")],
        ContextValue::Strings(options) => options
            .iter()
            .map(|option| option.replace("--", ""))
            .collect(),
        _ => Vec::new(),
    });
    Some(Contradiction {
        options: options.collect(),
        is_conflict,
    })
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
    for option in settings_of(guard) {
        text.push('\n');
        let help = option.get_long_help().or_else(|| option.get_help());
        for line in help.map(ToString::to_string).unwrap_or_default().lines() {
            text += &format!("# {line}");
            text.truncate(text.trim_end().len());
            text.push('\n');
        }
        let choices = option.get_possible_values();
        let choices = choices.iter().filter(|_| Form::of(option) == Form::Text);
        for choice in choices {
            let help = choice.get_help().map(ToString::to_string);
            let help = help.unwrap_or_default();
            text += &format!("#   \"{}\": {help}\n", choice.get_name());
        }
        let name = option.get_long().unwrap_or_default();
        text += &format!("#{name} = {}\n", example(option));
    }
    text
}

/// The options that a file may set.
pub(crate) fn settings_of(guard: &Command) -> impl Iterator<Item = &clap::Arg> {
    guard
        .get_arguments()
        .filter(|argument| argument.get_long().is_some() && !argument.is_hide_set())
        .filter(|argument| !NOT_IN_FILE.contains(&argument.get_id().as_str()))
}

/// An option's default, or one of its values.
fn example(option: &clap::Arg) -> String {
    if matches!(option.get_action(), ArgAction::SetTrue) {
        return "false".to_owned();
    }
    let quoted = |text: &str| match Form::of(option) {
        Form::WholeNumber | Form::Boolean => text.to_owned(),
        Form::Text | Form::NumberOrText => format!("\"{text}\""),
    };
    let defaults = option.get_default_values().iter();
    let defaults: Vec<String> = defaults
        .filter_map(|value| value.to_str())
        .map(quoted)
        .collect();
    match defaults.as_slice() {
        [] => {
            let name = option.get_value_names().and_then(|names| names.first());
            format!(
                "{}   # not set",
                quoted(name.map_or("", |name| name.as_str()))
            )
        }
        [one] => one.clone(),
        several => format!("[{}]", several.join(", ")),
    }
}

/// The file's place of a setting that turned out wrong in company of others.
pub(crate) fn place(arguments: &[OsString], setting: &str) -> Option<String> {
    let path = named_file(arguments)?;
    let text = fs::read_to_string(&path).ok()?;
    Some(format!("{}:{}", path.display(), place_in(&text, setting)?))
}

/// The setting's line.
fn place_in(text: &str, setting: &str) -> Option<usize> {
    let table = DeTable::parse(text).ok()?;
    let name = option_name(setting);
    let mut settings = table.get_ref().iter();
    let (key, _) = settings.find(|(key, _)| option_name(key.get_ref()) == name)?;
    Some(line(text, &key.span()))
}

/// The last one counts, as of every option.
fn named_file(arguments: &[OsString]) -> Option<PathBuf> {
    if arguments.get(1)? != "guard" {
        return None;
    }
    let mut rest = arguments[2..]
        .iter()
        .take_while(|argument| *argument != "--");
    let mut named = None;
    while let Some(argument) = rest.next() {
        let bytes = argument.as_bytes();
        if bytes == b"--config" {
            named = rest.next().map(PathBuf::from);
        } else if let Some(path) = bytes.strip_prefix(b"--config=") {
            named = Some(PathBuf::from(OsStr::from_bytes(path)));
        }
    }
    named
}

fn option_name(setting: &str) -> String {
    setting.replace('_', "-")
}

fn line(text: &str, span: &Range<usize>) -> usize {
    1 + text[..span.start.min(text.len())].matches('\n').count()
}

impl ConfigFile<'_> {
    fn settings(&self) -> Result<Vec<Setting>, ConfigFileError> {
        let table = DeTable::parse(self.text).map_err(|error| {
            let span = error.span().unwrap_or_default();
            self.error(&span, format!("not TOML: {}", error.message()))
        })?;
        let mut settings: Vec<Setting> = Vec::new();
        for (key, value) in table.get_ref() {
            let name = option_name(key.get_ref().as_ref());
            if let Some(first) = settings.iter().find(|setting| setting.name == name) {
                let second = key.span().start.max(first.span.start);
                let problem = format!("{name} stands above already: remove one");
                return Err(self.error(&(second..second), problem));
            }
            settings.push(Setting {
                name,
                arguments: self.setting(key, value)?,
                span: key.span(),
            });
        }
        // In the order of the file, which the table does not keep.
        settings.sort_by_key(|setting| setting.span.start);
        Ok(settings)
    }

    /// One setting as arguments, each of which clap has accepted.
    fn setting(
        &self,
        key: &Spanned<impl AsRef<str>>,
        value: &Spanned<DeValue<'_>>,
    ) -> Result<Vec<OsString>, ConfigFileError> {
        let name = option_name(key.get_ref().as_ref());
        let option = settings_of(&self.command).find(|argument| argument.get_long() == Some(&name));
        let Some(option) = option else {
            return Err(self.unknown(&name, &key.span()));
        };
        let form = Form::of(option);
        let several = matches!(option.get_action(), ArgAction::Append)
            || option
                .get_num_args()
                .unwrap_or(ValueRange::SINGLE)
                .max_values()
                > 1;
        let given = values(value);
        if given.is_empty() {
            let problem = format!("{name} has no value: leave it out for its default");
            return Err(self.error(&value.span(), problem));
        }
        let mut arguments = Vec::new();
        for value in given {
            let Some(text) = form.text(value.get_ref()) else {
                let problem = format!("{name} is {}", form.description());
                return Err(self.error(&value.span(), problem));
            };
            if !arguments.is_empty() && !several {
                return Err(self.error(&value.span(), format!("{name} has one value only")));
            }
            if matches!(option.get_action(), ArgAction::SetTrue) {
                let given = (text == "true").then(|| OsString::from(format!("--{name}")));
                return Ok(given.into_iter().collect());
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
                // The second line lists possible values, if they are few.
                let lines = text.lines().take(2).map(str::trim);
                let lines = lines.filter(|line| !line.is_empty()).collect::<Vec<_>>();
                let problem = lines.join(" ");
                let problem = problem.trim_start_matches("error: ").replace("--", "");
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

/// Any text as a configuration file: settings that the command line takes, or a mistake
/// with its line. What the command line takes is in range, or told by the name of a
/// setting that the file has.
///
/// # Panics
///
/// If that is not so: our own fault.
pub(super) fn check(text: &str) {
    let cli = <crate::Cli as clap::CommandFactory>::command();
    let arguments = ["plimsoll", "guard", "eth0", "--config=guard.toml"].map(OsString::from);
    let expanded = match expand_by(&cli, &arguments, Path::new("guard.toml"), text) {
        Ok(expanded) => expanded,
        Err(error) => {
            let lines = 1 + text.matches('\n').count();
            assert!(
                !error.problem.is_empty() && (1..=lines).contains(&error.line),
                "{error}"
            );
            return;
        }
    };
    let taken = <crate::Cli as clap::Parser>::try_parse_from(&expanded);
    let Ok(crate::Cli {
        command: Some(crate::Command::Guard(guard)),
    }) = taken
    else {
        panic!("{text:?} was taken for {expanded:?}: {taken:?}");
    };
    let settings = guard.run.expect("an interface is named").settings();
    if let Err(error) = settings.validate() {
        let named = error
            .settings()
            .iter()
            .any(|name| place_in(text, name).is_some());
        assert!(named, "{error}: of no setting in {text:?}");
    }
}

/// The elements of an array, or the value itself.
fn values<'a, 'i>(value: &'a Spanned<DeValue<'i>>) -> Vec<&'a Spanned<DeValue<'i>>> {
    match value.get_ref() {
        DeValue::Array(array) => array.iter().collect(),
        _ => vec![value],
    }
}

#[cfg(test)]
mod tests;
