//! Where a source's packets say that they are from.

use serde::{Deserialize, Serialize};

use super::{Source, Traffic, within};
use crate::Error;

/// Host numbers of a network: those of a /24.
const HOSTS_OF_NETWORK_MAX: u32 = 254;
/// Networks: each is a /24 in a /16 of its own.
const NETWORKS_MAX: u32 = 2048;

/// The addresses of a source. Only a path that tells sources apart looks at them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Addresses {
    /// One host in a network of its own.
    #[default]
    One,
    /// So many hosts, dealt out evenly over so many networks. All sources of this kind have
    /// the same networks.
    Hosts {
        /// Hosts in all.
        hosts: u32,
        /// Networks, each a /24 in a /16 of its own.
        networks: u32,
        /// The first host number in each network. Default 1. Sources whose numbers differ
        /// live beside each other.
        #[serde(default = "one")]
        first: u32,
        /// Each packet is from the next of them, so that each sends regularly, and not from
        /// any. Default false.
        #[serde(default)]
        in_turn: bool,
    },
    /// Forged: each packet is from any address of an eighth of IPv4, which has 8192
    /// networks of /16.
    Forged,
}

fn one() -> u32 {
    1
}

impl Addresses {
    pub(super) fn validate(&self, source: &Source) -> Result<(), Error> {
        let field = |part: &str| format!("source.{}.from.{part}", source.name);
        let is_closed = matches!(
            source.traffic,
            Traffic::PingPong { .. } | Traffic::Http { .. }
        );
        if is_closed && *self != Self::One {
            let kind = "one, since this source hears answers";
            return Err(Error::scenario(field("kind"), "several", kind));
        }
        let Self::Hosts {
            hosts,
            networks,
            first,
            ..
        } = *self
        else {
            return Ok(());
        };
        within(
            field("networks"),
            f64::from(networks),
            1.0,
            f64::from(NETWORKS_MAX),
        )?;
        within(
            field("first"),
            f64::from(first),
            1.0,
            f64::from(HOSTS_OF_NETWORK_MAX),
        )?;
        let room = networks * (HOSTS_OF_NETWORK_MAX + 1 - first);
        within(
            field("hosts"),
            f64::from(hosts),
            f64::from(networks),
            f64::from(room),
        )
    }
}
