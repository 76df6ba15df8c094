//! `plimsoll bench screen`: how much passes four rules, decided by ours (with and without
//! a memory in the driver, and with protected traffic), by a process behind NFQUEUE, and by nftables in the kernel.
//!
//! How it is measured is told by [`crate::passing`]. Only the last rule accepts the
//! flood, so each packet is held against all four.

mod message;
mod nfqueue;

use std::fs;

use plimsoll_report::{Goal, Machine, SCHEMA, Side};
use serde::Serialize;

use crate::Error;
use crate::figures::conclusion;
use crate::passing::{self, Effort, Family, OVERLOAD, PassingCase, Running, Site, Way};
use crate::spoken::Spoken;
use nfqueue::NfqueueScreen;

/// What is accepted, in pcap's words; the flood is for UDP port 9.
const FILTERS: [&str; 4] = [
    "tcp dst port 443",
    "udp dst port 53",
    "icmp or icmp6",
    "udp dst port 9",
];
/// The same in nft's words.
const NFT_RULES: [&str; 4] = [
    "tcp dport 443",
    "udp dport 53",
    "meta l4proto { icmp, ipv6-icmp }",
    "udp dport 9",
];

/// All flows of the flood: 254 sources, or 256 with IPv6, with 1024 ports.
const REMEMBER: [&str; 2] = ["--remember", "524288"];

/// ssh.
const PROTECT: [&str; 2] = ["--protect", "tcp port 22"];

/// A screen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Screen {
    /// `plimsoll screen`.
    Ours,
    /// The same, whose verdicts are remembered in the driver.
    Remembering,
    /// The same as the first, with a filter of protected traffic, which no packet of the flood
    /// is: its price.
    Protecting,
    /// A process on NFQUEUE with batch verdicts.
    Nfqueue,
    /// nftables in the kernel.
    Nftables,
    /// The kernel forwards, and nobody screens.
    None,
}

impl Screen {
    /// All, in the order in which they take turns.
    pub const ALL: [Self; 6] = [
        Self::Ours,
        Self::Remembering,
        Self::Protecting,
        Self::Nfqueue,
        Self::Nftables,
        Self::None,
    ];

    /// Its name on the command line and in tables.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ours => "screen",
            Self::Remembering => "screen-remember",
            Self::Protecting => "screen-protect",
            Self::Nfqueue => "nfqueue",
            Self::Nftables => "nftables",
            Self::None => "none",
        }
    }
}

impl Way for Screen {
    fn name(self) -> &'static str {
        Self::name(self)
    }

    fn start(self, site: &Site<'_>) -> Result<Running, Error> {
        let host = site.hosts.router();
        Ok(match self {
            Self::Ours => Running::Program(start_ours(site, &[])?),
            Self::Remembering => Running::Program(start_ours(site, &REMEMBER)?),
            Self::Protecting => Running::Program(start_ours(site, &PROTECT)?),
            Self::Nfqueue => {
                let screen = NfqueueScreen::start(host, site.family, &FILTERS)?;
                Running::held(screen)
            }
            Self::Nftables => {
                let ruleset = nft_ruleset();
                let mut nft = host.command("nft");
                nft.package("nftables").arg(&ruleset);
                nft.output(std::time::Duration::from_secs(10))?;
                Running::Kernel
            }
            Self::None => Running::Kernel,
        })
    }
}

/// `plimsoll screen` with a quota of packets in a turn of polling.
pub(crate) fn start_with_quota(site: &Site<'_>, quota: u32) -> Result<Running, Error> {
    site.hosts.place(Screen::Ours.placement())?;
    let quota = quota.to_string();
    Ok(Running::Program(start_ours(site, &["--quota", &quota])?))
}

fn start_ours(site: &Site<'_>, arguments: &[&str]) -> Result<Spoken, Error> {
    let rules = site.file("rules.toml");
    fs::write(&rules, our_rules()).map_err(|source| Error::Traffic {
        action: "write a file of rules",
        source,
    })?;
    let mut command = site.hosts.router().command(site.program());
    command.arg("screen").args(site.devices());
    command.arg("--rules").arg(&rules).args(arguments);
    let log = site.file("screen");
    Spoken::start("plimsoll screen", &mut command, &log, "screening between")
}

fn our_rules() -> String {
    let rule = |filter| format!("[[rule]]\nfilter = \"{filter}\"\nverdict = \"accept\"\n");
    let rules: String = FILTERS.iter().map(rule).collect();
    format!("default = \"discard\"\n{rules}")
}

fn nft_ruleset() -> String {
    let rule = |rule| format!("add rule inet screen forward {rule} accept; ");
    let rules: String = NFT_RULES.iter().map(rule).collect();
    format!(
        "add table inet screen; add chain inet screen forward \
         {{ type filter hook forward priority 0; policy drop; }}; {rules}"
    )
}

/// What is measured.
#[derive(Clone, Debug)]
pub struct Plan {
    /// How long and how often.
    pub effort: Effort,
    /// Which screens.
    pub screens: Vec<Screen>,
}

/// Everything a run measured.
#[derive(Clone, Debug, Serialize)]
pub struct Document {
    /// Version of this form.
    pub schema: u32,
    /// Where it was measured.
    pub machine: Machine,
    /// How often all screens took their turns.
    pub runs: usize,
    /// How long each rate of a curve was offered, in milliseconds.
    pub window_ms: u128,
    /// All screens with both versions of IP.
    pub cases: Vec<PassingCase>,
    /// What is promised.
    pub goals: Vec<Goal>,
}

impl Document {
    /// The document as a table.
    #[must_use]
    pub fn table(&self) -> String {
        passing::curves("Screening, four rules", &self.cases)
            + conclusion(&self.machine, &self.goals).as_str()
    }
}

/// Measures all screens, in turns.
///
/// # Errors
///
/// The testbed cannot be made. What one screen alone lacks, its case says.
pub fn run(plan: &Plan, progress: impl FnMut(&str)) -> Result<Document, Error> {
    let cases = passing::measure(&plan.effort, &plan.screens, progress)?;
    let goals = Family::ALL.map(|family| goals(family, &cases));
    Ok(Document {
        schema: SCHEMA,
        machine: Machine::read(Some("veth")),
        runs: plan.effort.runs,
        window_ms: plan.effort.window.as_millis(),
        goals: goals.into_iter().flatten().collect(),
        cases,
    })
}

/// What is promised of one version of IP with one kind of lengths.
fn goals(family: Family, cases: &[PassingCase]) -> [Goal; 2] {
    let of = |screen: Screen| {
        let mut cases = cases.iter();
        cases.find(|case| (case.way, case.family) == (screen.name(), family))
    };
    let name = family.name();
    [
        passing::mlfrr_ratio(
            format!("screen.{name}.mlfrr.nfqueue"),
            format!("{name}: MLFRR of four rules, beside NFQUEUE"),
            5.0,
            of(Screen::Ours),
            of(Screen::Nfqueue),
        ),
        passing::at_overload(
            format!("screen.{name}.overload"),
            format!("{name}: passed four rules at {OVERLOAD} x MLFRR, of the peak"),
            (Side::AtLeast, 90.0),
            of(Screen::Ours),
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rules_are_the_same_for_all() {
        assert_eq!(our_rules().matches("[[rule]]").count(), FILTERS.len());
        assert_eq!(nft_ruleset().matches("accept").count(), FILTERS.len());
        let port = format!("udp dst port {}", passing::PORT);
        assert_eq!(FILTERS.last().copied(), Some(port.as_str()), "the flood's");
    }
}
