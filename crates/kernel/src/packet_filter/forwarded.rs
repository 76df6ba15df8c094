//! Which chains the kernel asks about the packets that it forwards.
//!
//! **Limits.** Not those of legacy iptables, nor of a device or a bridge.

use std::ffi::CStr;
use std::fmt;
use std::io;

use netlink_bindings::nftables::{IterableChainAttrs, Nfgenmsg, Request};

use super::has_nf_tables;
use crate::netlink;

/// `NFPROTO_INET`, `NFPROTO_IPV4` and `NFPROTO_IPV6` of linux/netfilter.h, as nft(8) names them.
const FAMILIES: [(u8, &str); 3] = [(1, "inet"), (2, "ip"), (10, "ip6")];
/// `NF_INET_PRE_ROUTING`, `NF_INET_FORWARD` and `NF_INET_POST_ROUTING`.
const HOOKS: [u32; 3] = [0, 2, 4];
/// `NF_DROP`, as a chain's policy.
const DROP: u32 = 0;

/// A chain, by its names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chain {
    family: &'static str,
    table: String,
    name: String,
}

/// As nft(8) has it.
impl fmt::Display for Chain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {}", self.family, self.table, self.name)
    }
}

/// The chains of this network namespace that forwarded packets pass, and that may do something with
/// them: they have rules, or drop what no rule accepts.
///
/// # Errors
///
/// The kernel refuses to tell, or the answer is damaged.
pub fn chains() -> io::Result<Vec<Chain>> {
    let mut found = Vec::new();
    if !has_nf_tables() {
        return Ok(found);
    }
    let mut socket = netlink::Socket::new();
    let request = Request::new().op_getchain_dump(&Nfgenmsg::default());
    let mut replies = socket.request(&request)?;
    while let Some(reply) = replies.recv() {
        let (header, attributes) = reply?;
        found.extend(chain(header.nfgen_family, &attributes));
    }
    Ok(found)
}

fn chain(family: u8, attributes: &IterableChainAttrs<'_>) -> Option<Chain> {
    let (_, family) = FAMILIES.into_iter().find(|(number, _)| *number == family)?;
    // A chain without a hook is one that others jump to.
    let hook = attributes.get_hook().ok()?.get_num().ok()?;
    let has_rules = attributes.get_use().is_ok_and(|rules| rules > 0);
    let drops = attributes.get_policy().is_ok_and(|policy| policy == DROP);
    if !HOOKS.contains(&hook) || !(has_rules || drops) {
        return None;
    }
    let text = |name: &CStr| name.to_string_lossy().into_owned();
    Some(Chain {
        family,
        table: text(attributes.get_table().ok()?),
        name: text(attributes.get_name().ok()?),
    })
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;
    use crate::namespace;

    /// The chains after these commands of nft. Needs root and nftables.
    fn after(commands: &str) -> Vec<String> {
        let made = || {
            let status = Command::new("nft").arg(commands).status();
            assert!(status.expect("nftables is installed").success());
            chains().unwrap()
        };
        let chains = namespace::in_new(made).expect("root, to make a network namespace");
        chains.iter().map(ToString::to_string).collect()
    }

    fn with_chain(family: &str, hook: &str, rest: &str) -> Vec<String> {
        after(&format!(
            "add table {family} t; add chain {family} t c {{ type filter hook {hook} priority 0; {rest}"
        ))
    }

    #[test]
    fn chains_that_may_do_something_with_forwarded_packets_are_found() {
        assert_eq!(with_chain("inet", "forward", "}"), [""; 0]);
        let drops = "policy drop; }";
        assert_eq!(with_chain("ip6", "forward", drops), ["ip6 t c"]);
        assert_eq!(with_chain("inet", "input", drops), [""; 0]);
        assert_eq!(with_chain("bridge", "forward", drops), [""; 0]);
        let of_inet = "}; add rule inet t c counter";
        for hook in ["prerouting", "forward", "postrouting"] {
            assert_eq!(with_chain("inet", hook, of_inet), ["inet t c"], "{hook}");
        }
        let jump = "}; add chain ip t other; add rule ip t other drop; add rule ip t c jump other";
        assert_eq!(with_chain("ip", "forward", jump), ["ip t c"]);
    }

    #[test]
    fn translation_is_found() {
        let chain = "add chain ip t c { type nat hook postrouting priority srcnat; }";
        let rule = "add rule ip t c masquerade";
        assert_eq!(
            after(&format!("add table ip t; {chain}; {rule}")),
            ["ip t c"]
        );
    }
}
