//! Whether this host's packet filter may refuse the end of a handshake whose SYN it never
//! saw, because the driver answered it.
//!
//! The rules are read at the start, and again when they changed. While a change is unread
//! the stack answers SYNs: it costs more than the driver's cookies, and loses nobody.

use std::fs;
use std::time::{Duration, Instant};

use plimsoll_kernel::packet_filter;

/// More rules are not read: it would take the guard's thread tens of milliseconds.
const RULES_MAX: usize = 20_000;
/// The part of a CPU that reading rules may take, as its inverse.
const REST: u32 = 50;

/// What the rules say of such a handshake's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Filter {
    /// Nothing was found that could refuse it.
    Harmless,
    /// It may be refused, and why.
    MayWantSyn(&'static str),
    /// It is not known, and why. What is refused is noticed.
    NotKnown(&'static str),
}

/// The rules as they were last read.
#[derive(Debug)]
pub(crate) struct FilterWatch {
    /// The number of the rule set that was read.
    generation: Option<u32>,
    read: Filter,
    /// Not read again before this.
    next: Option<Instant>,
}

impl FilterWatch {
    pub(crate) fn new() -> Self {
        Self {
            generation: None,
            read: Filter::Harmless,
            next: None,
        }
    }

    /// Call it once a second: asks for one number, and reads the rules if it is another.
    pub(crate) fn on_interval(&mut self, now: Instant) -> Filter {
        if wants_whole_connections() {
            return Filter::MayWantSyn(
                "nf_conntrack_tcp_loose is 0: connection tracking refuses a connection whose SYN it never saw",
            );
        }
        let generation = match packet_filter::generation() {
            Ok(Some(generation)) => generation,
            Ok(None) => return legacy(),
            Err(_) => return Filter::NotKnown(REFUSED),
        };
        if self.generation != Some(generation) {
            if self.next.is_some_and(|next| now < next) {
                return Filter::MayWantSyn("the packet filter's rules have just changed");
            }
            self.generation = Some(generation);
            self.read = read();
            self.next = Some(now + now.elapsed().max(Duration::from_millis(1)) * REST);
        }
        match self.read {
            Filter::Harmless => legacy(),
            read => read,
        }
    }
}

const REFUSED: &str = "the kernel does not tell the packet filter's rules";

fn read() -> Filter {
    match packet_filter::rules(RULES_MAX) {
        Ok(Some(rules)) if rules.synproxy => {
            Filter::MayWantSyn("the packet filter answers SYNs itself (synproxy)")
        }
        Ok(Some(rules)) if rules.may_want_syn() => Filter::MayWantSyn(
            "the packet filter's rules look at connections and at TCP flags: they may refuse a connection whose SYN they never saw",
        ),
        Ok(Some(_)) => Filter::Harmless,
        Ok(None) => Filter::NotKnown("the packet filter has too many rules to read them"),
        Err(_) => Filter::NotKnown(REFUSED),
    }
}

/// Tables of iptables before it used `nf_tables`.
fn legacy() -> Filter {
    let tables = ["ip_tables_names", "ip6_tables_names"];
    let is_used = |table| {
        let path = format!("/proc/thread-self/net/{table}");
        fs::read_to_string(path).is_ok_and(|names| !names.trim().is_empty())
    };
    if tables.into_iter().any(is_used) {
        Filter::NotKnown("legacy iptables has rules, which are not read")
    } else {
        Filter::Harmless
    }
}

/// Whether connection tracking refuses connections whose SYN it never saw
/// (`nf_conntrack_tcp_loose`, `nf_conntrack-sysctl.rst`).
fn wants_whole_connections() -> bool {
    fs::read_to_string("/proc/sys/net/netfilter/nf_conntrack_tcp_loose")
        .is_ok_and(|setting| setting.trim() == "0")
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use plimsoll_kernel::namespace;

    use super::*;

    fn nft(rules: &str) {
        let status = Command::new("nft").arg(rules).status();
        assert!(status.expect("nftables is installed").success(), "{rules}");
    }

    /// Needs root and nftables.
    #[test]
    fn a_change_is_read_and_the_stack_answers_until_it_is() {
        namespace::in_new(|| {
            let mut watch = FilterWatch::new();
            let start = Instant::now();
            assert_eq!(watch.on_interval(start), Filter::Harmless);
            nft("add table t; add chain t c; add rule t c ct state new accept");
            // At the same moment as the last reading.
            let unread = watch.on_interval(start);
            assert!(matches!(unread, Filter::MayWantSyn(_)), "{unread:?}");
            let mut later = start + Duration::from_secs(600);
            assert_eq!(watch.on_interval(later), Filter::Harmless);
            nft("add rule t c tcp flags & (syn|ack) != syn drop");
            later += Duration::from_secs(600);
            let read = watch.on_interval(later);
            assert!(matches!(read, Filter::MayWantSyn(_)), "{read:?}");
            assert_eq!(watch.on_interval(later), read, "nothing has changed");
        })
        .unwrap();
    }

    /// Needs root and `iptables-legacy`.
    #[test]
    fn legacy_iptables_are_not_known() {
        namespace::in_new(|| {
            let words = ["-A", "INPUT", "-p", "tcp", "--syn", "-j", "ACCEPT"];
            let status = Command::new("iptables-legacy").args(words).status();
            assert!(status.expect("iptables is installed").success());
            let seen = FilterWatch::new().on_interval(Instant::now());
            assert!(matches!(seen, Filter::NotKnown(_)), "{seen:?}");
        })
        .unwrap();
    }
}
