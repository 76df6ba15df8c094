//! Protected traffic: what must survive when input is shed, and so has a
//! guaranteed share.

use std::fmt;

use ipnet::IpNet;
use plimsoll_core::config::ConfigError;
use serde::{Deserialize, Serialize};

use crate::program::types::limit;

/// A transport protocol with ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Transport {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
}

/// A local port of a transport protocol. Written as `22/tcp`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProtectedPort {
    /// The protocol.
    pub transport: Transport,
    /// The port, not 0.
    pub port: u16,
}

impl ProtectedPort {
    /// A TCP port.
    #[must_use]
    pub const fn tcp(port: u16) -> Self {
        Self {
            transport: Transport::Tcp,
            port,
        }
    }

    /// A UDP port.
    #[must_use]
    pub const fn udp(port: u16) -> Self {
        Self {
            transport: Transport::Udp,
            port,
        }
    }
}

impl fmt::Display for ProtectedPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let transport = match self.transport {
            Transport::Tcp => "tcp",
            Transport::Udp => "udp",
        };
        write!(f, "{}/{transport}", self.port)
    }
}

/// What is protected. ARP and neighbour discovery always are: without them
/// nothing else arrives either.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Protection {
    /// Local ports. Default: 22/tcp (ssh) and 179/tcp (BGP).
    pub ports: Vec<ProtectedPort>,
    /// Where packets come from. Default: nowhere. At most 1024.
    pub sources: Vec<IpNet>,
    /// Where clients are known to come from, as if each had been served before. They are
    /// preferred at overloaded channels, and no more than that. Default: nowhere. At most
    /// 1024.
    pub known: Vec<IpNet>,
    /// Established TCP connections. Default: yes; somebody waits for each.
    pub connections: bool,
}

/// As many prefixes as the program's map takes.
const SOURCES_MAX: usize = limit::PROTECTED_PREFIXES_MAX.0 as usize;
const _: () = assert!(SOURCES_MAX == 1024, "the texts say so");

impl Protection {
    /// Checks that all of it fits into the program.
    ///
    /// # Errors
    ///
    /// There are more sources than [`Protection::sources`] or [`Protection::known`] may have.
    pub fn validate(&self) -> Result<(), ConfigError> {
        for (field, sources) in [
            ("protect_sources", &self.sources),
            ("known_sources", &self.known),
        ] {
            if sources.len() > SOURCES_MAX {
                return Err(ConfigError {
                    field,
                    given: sources.len() as u64,
                    allowed: "at most 1024",
                });
            }
        }
        Ok(())
    }
}

impl Default for Protection {
    fn default() -> Self {
        Self {
            ports: [22, 179].map(ProtectedPort::tcp).to_vec(),
            sources: Vec::new(),
            known: Vec::new(),
            connections: true,
        }
    }
}

/// Reads a protected port as `22/tcp`.
///
/// # Errors
///
/// What the text should be.
pub fn parse_port(text: &str) -> Result<ProtectedPort, String> {
    let wrong = || format!("{text:?} is no port such as 22/tcp or 53/udp");
    let (port, transport) = text.split_once('/').ok_or_else(wrong)?;
    let transport = match transport {
        "tcp" => Transport::Tcp,
        "udp" => Transport::Udp,
        _ => return Err(wrong()),
    };
    match port.parse() {
        Ok(port @ 1..) => Ok(ProtectedPort { transport, port }),
        _ => Err(wrong()),
    }
}

#[cfg(test)]
mod tests {
    use proptest::{prop_assert_eq, proptest};

    use super::*;

    proptest! {
        #[test]
        fn every_port_is_read_and_no_text_harms(port: u16, text in ".{0,20}") {
            for (name, transport) in [("tcp", Transport::Tcp), ("udp", Transport::Udp)] {
                let read = parse_port(&format!("{port}/{name}")).ok();
                prop_assert_eq!(&read, &(port > 0).then_some(ProtectedPort { transport, port }));
                let text = read.map(|read| read.to_string());
                prop_assert_eq!(text.is_none_or(|text| text == format!("{port}/{name}")), true);
            }
            if let Err(why) = parse_port(&text) {
                prop_assert_eq!(why, format!("{text:?} is no port such as 22/tcp or 53/udp"));
            }
        }
    }

    #[test]
    fn ports_are_read_and_others_refused() {
        assert_eq!(parse_port("22/tcp"), Ok(ProtectedPort::tcp(22)));
        assert_eq!(parse_port("53/udp"), Ok(ProtectedPort::udp(53)));
        for wrong in ["22", "0/tcp", "70000/tcp", "22/sctp", "/tcp", ""] {
            assert!(parse_port(wrong).is_err(), "{wrong:?}");
        }
    }
}
