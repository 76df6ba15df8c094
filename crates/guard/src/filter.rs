//! Whether this host's packet filter may refuse the end of a handshake whose SYN it never
//! saw, because the driver answered it.
//!
//! The rules are read at the start, and again when they changed, by a thread of ordinary
//! priority then: the guard's own is real-time. While a change is unread the stack answers
//! SYNs: it costs more than the driver's cookies, and loses nobody.

use std::fs;
use std::io;
use std::task::Poll;
use std::time::{Duration, Instant};

use plimsoll_kernel::errand::Errand;
use plimsoll_kernel::error::CallError;
use plimsoll_kernel::host::may_be_so;
use plimsoll_kernel::packet_filter;
use plimsoll_kernel::scheduling::thread_time;

/// More rules are not read: it would take tens of milliseconds.
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
    /// It is not known, and why. Handshakes would be lost before a refusal is noticed.
    NotKnown(&'static str),
}

/// The rules as they were last read.
#[derive(Debug)]
pub(crate) struct FilterWatch {
    /// The number of the rule set that was read.
    generation: Option<u32>,
    /// What it says; of one that is not read yet, what is taken for true.
    known: Filter,
    /// Not read again before this.
    next: Option<Instant>,
    reading: Option<Reading>,
}

/// A rule set that is being read.
#[derive(Debug)]
struct Reading {
    generation: u32,
    errand: Errand<Read>,
}

/// What it says, and how long reading it took.
type Read = (io::Result<Filter>, Duration);

impl FilterWatch {
    const fn new() -> Self {
        Self {
            generation: None,
            known: Filter::NotKnown(REFUSED),
            next: None,
            reading: None,
        }
    }

    /// Reads the rules as they are: for a thread that may wait.
    pub(crate) fn begin() -> Self {
        let mut watch = Self::new();
        if let Ok(Some(generation)) = packet_filter::generation() {
            watch.take(generation, read());
        }
        watch
    }

    /// Call it once a second: asks for one number, and has the rules read if it is another.
    pub(crate) fn on_interval(&mut self, now: Instant) -> Filter {
        if wants_whole_connections() {
            return Filter::MayWantSyn(
                "nf_conntrack_tcp_loose is 0: connection tracking refuses a connection whose SYN it never saw",
            );
        }
        self.look(&packet_filter::generation(), || Errand::start(read), now)
    }

    /// What is known of the rules, now that the kernel has named their number or refused
    /// to. `read` begins to read them.
    fn look(
        &mut self,
        generation: &io::Result<Option<u32>>,
        read: impl FnOnce() -> Result<Errand<Read>, CallError>,
        now: Instant,
    ) -> Filter {
        self.take_reading(now);
        match *generation {
            Ok(None) => {
                // The numbers may begin anew.
                *self = Self::new();
                return legacy();
            }
            Ok(Some(generation)) => self.on_generation(generation, read, now),
            // What was known before may still be so.
            Err(_) => {}
        }
        match self.known {
            _ if self.reading.is_some() => CHANGED,
            Filter::Harmless => legacy(),
            known => known,
        }
    }

    /// Takes what has been read by now.
    fn take_reading(&mut self, now: Instant) {
        let Some(reading) = &self.reading else {
            return;
        };
        let generation = reading.generation;
        if let Poll::Ready(read) = reading.errand.poll() {
            self.reading = None;
            // Without a result nothing was read.
            let read = read.unwrap_or_else(|error| (Err(io::Error::other(error)), Duration::ZERO));
            self.next = Some(now + read.1.max(Duration::from_millis(1)) * REST);
            self.take(generation, read);
        }
    }

    fn take(&mut self, generation: u32, (read, _): Read) {
        if let Ok(known) = read {
            self.generation = Some(generation);
            self.known = known;
        }
    }

    /// Has this rule set read, unless it was or one is being read. What fails is tried again
    /// after the rest.
    fn on_generation(
        &mut self,
        generation: u32,
        read: impl FnOnce() -> Result<Errand<Read>, CallError>,
        now: Instant,
    ) {
        if self.generation == Some(generation) || self.reading.is_some() {
            return;
        }
        if self.generation.is_some() {
            self.known = CHANGED;
        }
        if self.next.is_some_and(|next| now < next) {
            return;
        }
        let errand = read().ok();
        self.reading = errand.map(|errand| Reading { generation, errand });
    }
}

const REFUSED: &str = "the kernel does not tell the packet filter's rules";
/// While a rule set is unread.
pub(crate) const CHANGED: Filter =
    Filter::MayWantSyn("the packet filter's rules have just changed");

fn read() -> Read {
    let before = thread_time(0).unwrap_or_default();
    let rules = rules();
    let spent = thread_time(0).unwrap_or_default();
    (rules, spent.saturating_sub(before))
}

fn rules() -> io::Result<Filter> {
    Ok(match packet_filter::rules(RULES_MAX)? {
        Some(rules) if rules.synproxy => {
            Filter::MayWantSyn("the packet filter answers SYNs itself (synproxy)")
        }
        Some(rules) if rules.may_want_syn() => Filter::MayWantSyn(
            "the packet filter's rules look at connections and at TCP flags: they may refuse a connection whose SYN they never saw",
        ),
        Some(_) => Filter::Harmless,
        None => Filter::NotKnown("the packet filter has too many rules to read them"),
    })
}

/// Tables of iptables before it used `nf_tables`.
fn legacy() -> Filter {
    let tables = ["ip_tables_names", "ip6_tables_names"];
    let may_be_used = |table| {
        let names = fs::read_to_string(format!("/proc/thread-self/net/{table}"));
        may_be_so(names, |names| !names.is_empty())
    };
    if tables.into_iter().any(may_be_used) {
        Filter::NotKnown("legacy iptables has rules, which are not read")
    } else {
        Filter::Harmless
    }
}

/// Whether connection tracking refuses connections whose SYN it never saw
/// (`nf_conntrack_tcp_loose`, `nf_conntrack-sysctl.rst`).
fn wants_whole_connections() -> bool {
    let setting = fs::read_to_string("/proc/sys/net/netfilter/nf_conntrack_tcp_loose");
    may_be_so(setting, |setting| setting == "0")
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use plimsoll_kernel::namespace;
    use plimsoll_kernel::scheduling::thread_time;

    use super::*;

    fn nft(rules: &str) {
        let status = Command::new("nft").arg(rules).status();
        assert!(status.expect("nftables is installed").success(), "{rules}");
    }

    /// Needs root and nftables.
    #[test]
    fn a_change_is_read_and_the_stack_answers_until_it_is() {
        namespace::in_new(|| {
            let mut watch = FilterWatch::begin();
            let start = Instant::now();
            assert_eq!(watch.on_interval(start), Filter::Harmless);
            nft("add table t; add chain t c; add rule t c ct state new accept");
            assert_eq!(watch.on_interval(start), CHANGED);
            assert_eq!(once_read(&mut watch, start), Filter::Harmless);
            nft("add rule t c tcp flags & (syn|ack) != syn drop");
            // At the same moment as the last reading.
            assert_eq!(watch.on_interval(start), CHANGED);
            assert!(watch.reading.is_none());
            let later = start + Duration::from_secs(600);
            assert_eq!(watch.on_interval(later), CHANGED);
            let read = once_read(&mut watch, later);
            assert!(
                matches!(read, Filter::MayWantSyn(_)) && read != CHANGED,
                "{read:?}"
            );
            assert_eq!(watch.on_interval(later), read, "nothing has changed");
        })
        .unwrap();
    }

    /// What is known when all that is being read has been.
    fn once_read(watch: &mut FilterWatch, now: Instant) -> Filter {
        while watch.reading.is_some() {
            std::thread::sleep(Duration::from_millis(1));
            watch.take_reading(now);
        }
        watch.on_interval(now)
    }

    /// The guard's thread is real-time, and read them in one piece. Needs root and nftables.
    #[test]
    fn many_rules_are_read_by_another_thread() {
        namespace::in_new(|| {
            let mut watch = FilterWatch::begin();
            let many = "add rule t c ip saddr 192.0.2.1 tcp dport 80 accept\n".repeat(2000);
            nft(&format!("add table t; add chain t c;\n{many}"));
            let took = |work: &mut dyn FnMut()| {
                let before = thread_time(0).unwrap();
                work();
                thread_time(0).unwrap() - before
            };
            let now = Instant::now();
            let asked = took(&mut || assert_eq!(watch.on_interval(now), CHANGED));
            once_read(&mut watch, now);
            let read = took(&mut || assert_eq!(rules().unwrap(), Filter::Harmless));
            assert!(asked * 2 < read, "{asked:?} {read:?}");
        })
        .unwrap();
    }

    fn refused<T>() -> io::Result<T> {
        Err(io::Error::from_raw_os_error(libc::ENOBUFS))
    }

    const WANTS: Filter = Filter::MayWantSyn("a rule");
    const MANY: Filter = Filter::NotKnown("many rules");

    /// What is known after each of these looks, a second apart.
    fn looks<const N: usize>(looks: [(io::Result<u32>, io::Result<Filter>); N]) -> [Filter; N] {
        let mut watch = FilterWatch::new();
        let mut now = Instant::now();
        looks.map(|(generation, read)| {
            now += Duration::from_secs(1);
            let generation = generation.map(Some);
            let read = || Errand::start(move || (read, Duration::ZERO));
            let known = watch.look(&generation, read, now);
            let Some(reading) = watch.reading.take() else {
                return known;
            };
            assert_eq!(known, CHANGED, "it is being read");
            let read = reading.errand.wait().unwrap();
            watch.take(reading.generation, read);
            watch.look(&Err(io::ErrorKind::Other.into()), || unreachable!(), now)
        })
    }

    #[test]
    fn what_was_known_stays_while_the_kernel_refuses() {
        let known = looks([
            (refused(), refused()),
            (Ok(1), Ok(WANTS)),
            (refused(), refused()),
            (Ok(1), refused()),
        ]);
        assert_eq!(known, [Filter::NotKnown(REFUSED), WANTS, WANTS, WANTS]);
    }

    #[test]
    fn rules_that_could_not_be_read_are_read_at_the_next_look() {
        let known = looks([(Ok(1), refused()), (Ok(1), Ok(MANY))]);
        assert_eq!(known, [Filter::NotKnown(REFUSED), MANY]);
        // Of others than those before nothing is known: the stack answers.
        let [before, unread, still_unread, read] = looks([
            (Ok(1), Ok(MANY)),
            (Ok(2), refused()),
            (refused(), refused()),
            (Ok(2), Ok(MANY)),
        ]);
        assert_eq!((before, read), (MANY, MANY));
        for unread in [unread, still_unread] {
            assert!(matches!(unread, Filter::MayWantSyn(_)), "{unread:?}");
        }
    }

    /// Needs root and `iptables-legacy`.
    #[test]
    fn legacy_iptables_are_not_known() {
        namespace::in_new(|| {
            let words = ["-A", "INPUT", "-p", "tcp", "--syn", "-j", "ACCEPT"];
            let status = Command::new("iptables-legacy").args(words).status();
            assert!(status.expect("iptables is installed").success());
            let seen = FilterWatch::begin().on_interval(Instant::now());
            assert!(matches!(seen, Filter::NotKnown(_)), "{seen:?}");
        })
        .unwrap();
    }
}
