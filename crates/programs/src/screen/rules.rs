//! Rules from a file: filter expressions with verdicts, the first that matches decides.
//!
//! ```toml
//! default = "discard"
//!
//! [[rule]]
//! filter = "arp or icmp6"
//! verdict = "accept"
//! ```

use std::fs;
use std::path::Path;

use serde::Deserialize;

use super::flow::Flow;
use super::{Error, Screen, Side, Verdict, memory};
use crate::filter::Filter;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    default: Verdict,
    #[serde(default)]
    rule: Vec<Entry>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    filter: String,
    verdict: Verdict,
}

/// Compiled rules.
#[derive(Debug)]
pub struct Rules {
    rules: Vec<(Filter, Verdict)>,
    default: Verdict,
}

impl Rules {
    /// Reads and compiles a file.
    ///
    /// # Errors
    ///
    /// It cannot be read, is no such file, or a filter is none; the path is named.
    pub fn read(path: &Path) -> Result<Self, Error> {
        let text = fs::read_to_string(path).map_err(|source| Error::Read {
            path: path.to_owned(),
            source,
        })?;
        Self::parse(&text).map_err(|why| Error::Rules {
            path: path.to_owned(),
            why,
        })
    }

    /// Compiles the text of a file.
    ///
    /// # Errors
    ///
    /// What is wrong, in words.
    pub fn parse(text: &str) -> Result<Self, String> {
        let file: File = toml::from_str(text).map_err(|error| error.to_string())?;
        let mut rules = Vec::with_capacity(file.rule.len());
        for (index, Entry { filter, verdict }) in file.rule.into_iter().enumerate() {
            let filter = Filter::compile(&filter);
            let filter = filter.map_err(|error| format!("rule {}: {error}", index + 1))?;
            rules.push((filter, verdict));
        }
        Ok(Self {
            rules,
            default: file.default,
        })
    }
}

impl Screen for Rules {
    fn decide(&mut self, frame: &[u8], _: Side) -> Verdict {
        let first = self.rules.iter().find(|(filter, _)| filter.accepts(frame));
        first.map_or(self.default, |&(_, verdict)| verdict)
    }

    /// If no rule up to the one that decided read more than the flow's own bytes.
    fn holds_for_flow(&mut self, frame: &[u8], _: Side) -> bool {
        let Some(flow) = Flow::of(frame) else {
            return false;
        };
        for (filter, _) in &self.rules {
            match memory::holds(filter.instructions(), frame, &flow) {
                Some(true) => return true,
                Some(false) => {}
                None => return false,
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use plimsoll_packets::frame::{self, Extension, Fragment, Packet};

    use super::*;

    fn decide(rules: &str, to: &str) -> Verdict {
        let from = "10.0.0.1:1000".parse().unwrap();
        let frame = frame::udp(from, to.parse().unwrap(), b"hello");
        Rules::parse(rules).unwrap().decide(&frame, Side::Inside)
    }

    const RULES: &str = r#"
        default = "accept"
        [[rule]]
        filter = "udp dst port 53"
        verdict = "accept"
        [[rule]]
        filter = "udp dst portrange 1-1023"
        verdict = "discard"
    "#;

    #[test]
    fn the_first_rule_that_matches_decides() {
        assert_eq!(decide(RULES, "10.0.0.2:53"), Verdict::Accept);
        assert_eq!(decide(RULES, "10.0.0.2:54"), Verdict::Discard);
        assert_eq!(decide(RULES, "10.0.0.2:5400"), Verdict::Accept);
        assert_eq!(
            decide("default = 'discard'", "10.0.0.2:1"),
            Verdict::Discard
        );
    }

    /// As the guide warns: it names frames that a rule which discards lets pass.
    #[test]
    fn a_rule_about_ports_sees_them_behind_plain_headers_alone() {
        let plain = |from: &str, to: &str| Packet::new(from.parse().unwrap(), to.parse().unwrap());
        let (v4, v6) = (
            || plain("10.0.0.1", "10.0.0.2"),
            || plain("fd00::1", "fd00::2"),
        );
        let fragment = |offset| Fragment {
            id: 7,
            offset,
            more: true,
        };
        let options = Extension::Options {
            number: 60,
            units: 0,
        };
        let decided = |packet: Packet| {
            let frame = packet.udp(1000, 54, b"hello");
            Rules::parse(RULES).unwrap().decide(&frame, Side::Inside)
        };
        for packet in [v4(), v6(), v4().ipv4_options(1), v4().fragment(fragment(0))] {
            assert_eq!(decided(packet.clone()), Verdict::Discard, "{packet:?}");
        }
        for packet in [
            v4().tag(frame::VLAN),
            v6().tag(frame::VLAN),
            v6().extension(options),
            v6().fragment(fragment(0)),
            v4().fragment(fragment(8)),
        ] {
            assert_eq!(decided(packet.clone()), Verdict::Accept, "{packet:?}");
        }
    }

    #[test]
    fn a_verdict_holds_for_a_flow_if_rules_look_at_nothing_else() {
        let holds = |filter: &str, to: &str| {
            let rules = format!(
                "default = 'accept'\n[[rule]]\nfilter = 'udp dst port 53'\nverdict = 'accept'\n\
                 [[rule]]\nfilter = '{filter}'\nverdict = 'discard'\n"
            );
            let from = "10.0.0.1:1000".parse().unwrap();
            let frame = frame::udp(from, to.parse().unwrap(), b"hello");
            let mut rules = Rules::parse(&rules).unwrap();
            rules.decide(&frame, Side::Inside);
            rules.holds_for_flow(&frame, Side::Inside)
        };
        for filter in [
            "",
            "arp",
            "net 10.0.0.0/8",
            "tcp port 80 or udp src port 1000",
            "ip6",
        ] {
            assert!(holds(filter, "10.0.0.2:54"), "{filter}");
        }
        let of_one_packet = [
            "ip[8] < 5",
            "udp[8] = 7",
            "greater 100",
            "ether src 2:0:0:0:0:1",
        ];
        for filter in of_one_packet {
            assert!(!holds(filter, "10.0.0.2:54"), "{filter}");
            // The rule before has decided.
            assert!(holds(filter, "10.0.0.2:53"), "{filter}");
        }
    }

    #[test]
    fn what_is_wrong_is_said() {
        let why = |text: &str| Rules::parse(text).unwrap_err();
        assert!(why("").contains("default"));
        assert!(why("default = 'perhaps'").contains("perhaps"));
        let wrong = format!("{RULES}\n[[rule]]\nfilter = 'udp and'\nverdict = 'accept'");
        assert!(why(&wrong).starts_with("rule 3: the filter `udp and` is none"));
        assert!(why("default = 'accept'\nrules = 3").contains("rules"));
        let direction = "default = 'accept'\n[[rule]]\nfilter = 'inbound'\nverdict = 'discard'";
        assert!(why(direction).starts_with("rule 1: the filter `inbound` asks"));
    }
}
