//! Rules of netfilter that are not asked about what is forwarded here.
//!
//! **Limits.** Asked at the start alone: rules may come later.

use plimsoll_kernel::packet_filter::forwarded::{self, Chain};

/// What is to be said of such rules of this network namespace, if there are any. None also where the
/// kernel does not tell.
#[must_use]
pub fn rules_passed_by() -> Option<String> {
    warning(&forwarded::chains().ok()?)
}

fn warning(chains: &[Chain]) -> Option<String> {
    let (first, others) = chains.split_first()?;
    let others = match others.len() {
        0 => String::new(),
        1 => " and another chain".to_owned(),
        number => format!(" and {number} other chains"),
    };
    Some(format!(
        "netfilter has rules for forwarded packets (`{first}`{others}): what is forwarded here passes without them"
    ))
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use plimsoll_kernel::namespace;

    use super::*;

    #[test]
    fn one_chain_is_named_and_others_are_counted() {
        let made = || {
            assert_eq!(rules_passed_by(), None);
            ["a", "b", "c"].map(|name| {
                let chain = "{ type filter hook forward priority 0; policy drop; }";
                let words = format!("add table ip t; add chain ip t {name} {chain}");
                let status = Command::new("nft").arg(words).status();
                assert!(status.expect("nftables is installed").success());
                rules_passed_by().unwrap()
            })
        };
        let said = namespace::in_new(made).expect("root, to make a network namespace");
        for (said, named) in said.iter().zip([
            "(`ip t a`)",
            "(`ip t a` and another chain)",
            "(`ip t a` and 2 other chains)",
        ]) {
            assert!(said.contains(named), "{said}");
        }
    }
}
