//! What the kernel would ask or do about what is forwarded here, and what is left to it.
//!
//! **Limits.** Asked at the start alone: it may come later. Of an interface with several transmit
//! queues only the root of its queueing is seen, and no filter of traffic control.

use plimsoll_kernel::link;
use plimsoll_kernel::packet_filter::forwarded::{self, Chain};

use super::{Config, DataPath};

/// Disciplines that only queue and divide, as the kernel takes them by itself.
const PLAIN: [&str; 10] = [
    "noqueue",
    "noop",
    "pfifo_fast",
    "pfifo",
    "bfifo",
    "mq",
    "fq",
    "fq_codel",
    "codel",
    "sfq",
];

/// What is to be said about it, once a router with this config works. Nothing where the kernel does not
/// tell.
#[must_use]
pub fn warnings(config: &Config) -> Vec<String> {
    let interfaces = &config.interfaces;
    let rules = forwarded::chains().ok().and_then(|chains| rules(&chains));
    let queueing = interfaces.iter().filter_map(|name| queueing_of(name));
    let in_driver = config.path == DataPath::Xdp;
    let left = interfaces.iter().filter(|_| in_driver);
    let left = left.filter_map(|name| left_to_kernel(name));
    rules.into_iter().chain(queueing).chain(left).collect()
}

/// Whether an interface takes frames that a driver's program sends on by it. Where the kernel does not
/// tell it does.
pub(super) fn takes_redirected(index: u32) -> bool {
    !matches!(link::takes_redirected(index), Ok(Some(false)))
}

fn left_to_kernel(interface: &str) -> Option<String> {
    let takes = takes_redirected(link::index(interface).ok()?);
    (!takes).then(|| {
        format!("{interface} takes no frames from a driver, so the kernel forwards by it, up to --slow-pps: on a veth turn GRO on at its other end (`ethtool -K PEER gro on`), or take --path user")
    })
}

fn rules(chains: &[Chain]) -> Option<String> {
    let (first, others) = chains.split_first()?;
    let others = match others.len() {
        0 => String::new(),
        1 => " and another chain".to_owned(),
        number => format!(" and {number} other chains"),
    };
    Some(format!(
        "netfilter has rules for forwarded packets (`{first}`{others}): packets that are forwarded here pass without them"
    ))
}

fn queueing_of(interface: &str) -> Option<String> {
    let link = link::link(link::index(interface).ok()?).ok()?;
    queueing(interface, &link.queueing?)
}

fn queueing(interface: &str, discipline: &str) -> Option<String> {
    (!PLAIN.contains(&discipline)).then(|| {
        format!("{interface}: packets that are forwarded here pass by its queueing discipline `{discipline}` (`tc qdisc`), which may shape or divide a link")
    })
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use plimsoll_kernel::namespace;

    use super::*;

    fn warned(path: DataPath, interfaces: &[&str]) -> Vec<String> {
        warnings(&Config {
            interfaces: interfaces.iter().map(ToString::to_string).collect(),
            path,
            ..Config::default()
        })
    }

    fn run(words: &str) {
        let mut words = words.split(' ');
        let status = Command::new(words.next().unwrap()).args(words).status();
        assert!(status.is_ok_and(|status| status.success()));
    }

    #[test]
    fn one_chain_is_named_and_others_are_counted() {
        let made = || {
            assert_eq!(warned(DataPath::Xdp, &[]), [""; 0]);
            run("nft add table ip t");
            ["a", "b", "c"].map(|name| {
                let chain = "{ type filter hook forward priority 0; policy drop; }";
                run(&format!("nft add chain ip t {name} {chain}"));
                warned(DataPath::Xdp, &[]).concat()
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

    #[test]
    fn an_interface_that_takes_no_frames_from_a_driver_is_told() {
        let made = || {
            run("ip link add veth0 type veth peer name veth1");
            run("ip link set veth0 up");
            run("ip link set veth1 up");
            run("ethtool -K veth1 gro off");
            let both = ["veth0", "veth1"];
            let off = [DataPath::Xdp, DataPath::User].map(|path| warned(path, &both));
            run("ethtool -K veth1 gro on");
            (off, warned(DataPath::Xdp, &["veth0"]))
        };
        let (off, on) = namespace::in_new(made).expect("root, to make a network namespace");
        let [in_driver, in_user_space] = off;
        assert!(
            in_driver
                .iter()
                .any(|said| said.starts_with("veth0 takes no frames"))
        );
        assert!(
            in_user_space.is_empty() && on.is_empty(),
            "{in_user_space:?} {on:?}"
        );
    }

    #[test]
    fn a_shaper_is_told_and_the_kernels_own_queueing_is_not() {
        let made = || {
            run("ip link add veth0 type veth peer name veth1");
            run("ip link set veth0 up");
            run("tc qdisc add dev veth1 root tbf rate 1mbit burst 10k latency 50ms");
            warned(DataPath::User, &["veth0", "veth1", "nowhere"])
        };
        let said = namespace::in_new(made).expect("root, to make a network namespace");
        assert_eq!(said.len(), 1, "{said:?}");
        assert!(said[0].starts_with("veth1: ") && said[0].contains("`tbf`"));
        assert!(queueing("eth0", "cake").is_some());
    }
}
