//! Who answers SYNs past a listener's SYN queue with cookies, and why, as operators are told.

use std::borrow::Cow;
use std::fmt;

use plimsoll_core::answering::Answerer;
use serde::{Deserialize, Serialize};

use crate::filter::{CHANGED, Filter};
use crate::program::types::answering;

/// Who answers, and why. Displays as `key=value` pairs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SynCookies {
    /// `driver` (the guard's program), `stack` or `nobody`.
    pub by: Cow<'static, str>,
    /// Why: `no_objection` to the driver; for the stack `switched_off`, `packet_filter`,
    /// `filter_not_known`, `filter_unread`, `trial`, `link_refused`, `not_taken` or `lost`; for nobody `sysctl`.
    pub reason: Cow<'static, str>,
}

impl SynCookies {
    /// Nothing speaks against the driver.
    pub(crate) const DRIVER: Self = Self {
        by: Cow::Borrowed("driver"),
        reason: Cow::Borrowed("no_objection"),
    };

    /// What follows from the host's setting, the user's, the packet filter, and what was seen of
    /// answers. `wanted`: what the user says. Where the filter cannot be read the driver answers
    /// only if he asks for it.
    pub(crate) fn decide(
        is_taken: bool,
        wanted: Option<bool>,
        filter: Filter,
        answerer: Answerer,
    ) -> Self {
        let stack = |reason| Self {
            by: "stack".into(),
            reason: Cow::Borrowed(reason),
        };
        match answerer {
            _ if !is_taken => Self {
                by: "nobody".into(),
                reason: "sysctl".into(),
            },
            _ if wanted == Some(false) => stack("switched_off"),
            Answerer::Trial => stack("trial"),
            Answerer::Refused => stack("link_refused"),
            Answerer::NotTaken => stack("not_taken"),
            Answerer::Lost => stack("lost"),
            Answerer::Driver => match filter {
                Filter::Harmless => Self::DRIVER,
                Filter::NotKnown(_) if wanted == Some(true) => Self::DRIVER,
                Filter::NotKnown(_) => stack("filter_not_known"),
                CHANGED => stack("filter_unread"),
                Filter::MayWantSyn(_) => stack("packet_filter"),
            },
        }
    }

    /// The same for the program.
    pub(crate) fn answering(&self) -> answering {
        match &*self.by {
            "driver" => answering::ANSWERING_DRIVER,
            "stack" => answering::ANSWERING_STACK,
            _ => answering::ANSWERING_NOBODY,
        }
    }

    /// Whether it is for a moment only, as a rule.
    pub(crate) fn is_passing(&self) -> bool {
        matches!(&*self.reason, "trial" | "filter_unread")
    }
}

impl fmt::Display for SynCookies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "by={} reason={}", self.by, self.reason)
    }
}
