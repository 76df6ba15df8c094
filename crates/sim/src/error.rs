//! What can be wrong with a profile, a scenario or a run, and who erred.

use plimsoll_core::config::{ConfigError, TableFull};

/// Why nothing was simulated, or why its result cannot be trusted.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The text is not a profile.
    #[error("profile {name}: {source}")]
    ProfileSyntax {
        /// The profile's name, or the file it was read from.
        name: String,
        /// What the parser says, with line and key.
        #[source]
        source: Box<toml::de::Error>,
    },
    /// The text is not a scenario: what the parser says, with line and key.
    #[error("scenario: {0}")]
    ScenarioSyntax(#[source] Box<toml::de::Error>),
    /// A profile contradicts itself or the list of known costs.
    #[error("profile {name}: {problem}")]
    Profile {
        /// The profile's name.
        name: String,
        /// What is wrong and what would be right.
        problem: String,
    },
    /// No profile of this name is built in.
    #[error("no profile `{name}`: there are {known}")]
    UnknownProfile {
        /// What was asked for.
        name: String,
        /// All names, separated by commas.
        known: String,
    },
    /// The receive path, or a consumer, needs a cost that this machine's profile
    /// does not give.
    #[error("profile {profile} gives no cost `{cost}`, which {user} needs: add it with its source")]
    MissingCost {
        /// The profile's name.
        profile: String,
        /// The cost's name, see [`COSTS`](crate::profile::COSTS).
        cost: &'static str,
        /// What needs it.
        user: String,
    },
    /// A scenario's field has a value that makes no sense.
    #[error("scenario: {field} = {given}: must be {allowed}")]
    Scenario {
        /// The field, with the list index or the name it is under.
        field: String,
        /// The given value.
        given: String,
        /// The end of the sentence "must be …".
        allowed: String,
    },
    /// A decision of the core refuses its settings.
    #[error("scenario: {user}: {source}")]
    Core {
        /// What the settings are for.
        user: &'static str,
        /// Field, value and range.
        #[source]
        source: ConfigError,
    },
    /// The scenario has more of something than a decision of the core has places for.
    #[error("scenario: {user}: {source}")]
    TooMany {
        /// Whose places they are.
        user: &'static str,
        /// Of what there are too many.
        #[source]
        source: TableFull,
    },
    /// Packets or CPU time do not add up: a bug of the model, never of its input.
    #[error("{what} is not conserved: {counted} were counted, {expected} exist (seed {seed})")]
    Imbalance {
        /// `packets`, or `CPU time` in nanoseconds.
        what: &'static str,
        /// Sum over all outcomes, or accounts.
        counted: u64,
        /// What the sum should be.
        expected: u64,
        /// Seed of the run.
        seed: u64,
    },
}

impl Error {
    /// A scenario's field out of range.
    pub(crate) fn scenario(
        field: impl Into<String>,
        given: impl std::fmt::Display,
        allowed: impl Into<String>,
    ) -> Self {
        Self::Scenario {
            field: field.into(),
            given: given.to_string(),
            allowed: allowed.into(),
        }
    }

    /// For `map_err` on a config of the core.
    pub(crate) fn core(user: &'static str) -> impl FnOnce(ConfigError) -> Self {
        move |source| Self::Core { user, source }
    }
}
