//! Who answers SYNs past a listener's SYN queue: the program, the stack, or nobody.
//!
//! `core::answering` decides, by what is seen here: what the program sent back, what
//! the link refused of it, which handshakes came back, and which of them the stack
//! took (`TcpExt.SyncookiesRecv` in `snmp_counter.rst`). What the packet filter would
//! refuse is known beforehand where its rules can be read ([`crate::filter`]); where they
//! cannot, the stack answers, unless the program is asked for.

use std::time::Instant;

use plimsoll_core::answering::{Answering, Seen};
use plimsoll_core::demux::Kind;
use plimsoll_core::time;
use plimsoll_kernel::error::os;
use plimsoll_kernel::host::takes_syn_cookies;
use plimsoll_kernel::routing::PacketSizes;
use plimsoll_kernel::{counters, link};

use crate::counters::Outcome;
use crate::error::Error;
use crate::filter::FilterWatch;
use crate::looks::Looks;
use crate::program::Program;
use crate::syn_cookies::SynCookies;

/// Who answers, and the evidence so far.
#[derive(Debug)]
pub(crate) struct Cookies {
    ifindex: u32,
    started: Instant,
    answering: Answering,
    /// What holds since the last look.
    decided: Option<SynCookies>,
    filter: FilterWatch,
    routes: Looks<PacketSizes>,
    /// All that was seen up to the last look.
    before: Seen,
    /// The programs that watch what links refuse end with them.
    _watched: [libbpf_rs::Link; 4],
}

impl Cookies {
    /// Watches the interface; nothing is answered before the first [`Self::on_interval`]. Reads
    /// the packet filter's rules and the host's routes, and may take long.
    pub(crate) fn watch(ifindex: u32, program: &Program<'_>) -> Result<Self, Error> {
        Ok(Self {
            ifindex,
            started: Instant::now(),
            answering: Answering::new(),
            decided: None,
            filter: FilterWatch::begin(),
            routes: Looks::begin(move || PacketSizes::read(ifindex)),
            before: seen(program)?,
            _watched: program.watch_transmission()?,
        })
    }

    /// Call it once a second. `wanted`: whether the program shall answer where it may; unless
    /// that is said, not where nobody knows what the packet filter takes. What the stack takes of
    /// its own answers while the program is not attached is no evidence.
    pub(crate) fn on_interval(
        &mut self,
        program: &mut Program<'_>,
        wanted: Option<bool>,
        is_attached: bool,
    ) -> Result<(), Error> {
        let link = link::link(self.ifindex).map_err(os("ask for the interface's state"))?;
        let (mtu, mac) = (link.mtu.unwrap_or(0), link.mac.unwrap_or_default());
        let now = Instant::now();
        let mss = self.routes.on_interval(now).mss(mtu);
        program.set_interface(self.ifindex, mss, mac);
        program.set_enslaved(link.master.is_some());
        program.set_veth(link.kind.as_deref() == Some("veth"));
        let seen = seen(program)?;
        let news = Seen {
            answered: seen.answered.saturating_sub(self.before.answered),
            refused: seen.refused.saturating_sub(self.before.refused),
            returned: seen.returned.saturating_sub(self.before.returned),
            passed: seen.passed.saturating_sub(self.before.passed),
            taken: seen.taken.saturating_sub(self.before.taken),
        };
        self.before = seen;
        let news = if is_attached { news } else { Seen::default() };
        let elapsed = now.saturating_duration_since(self.started).as_nanos();
        let elapsed = u64::try_from(elapsed).unwrap_or(u64::MAX);
        let answerer = self
            .answering
            .on_interval(time::Instant::from_nanos(elapsed), &news);
        let filter = self.filter.on_interval(now);
        let decided = SynCookies::decide(takes_syn_cookies(), wanted, filter, answerer);
        program.set_answering(decided.answering());
        self.decided = Some(decided);
        Ok(())
    }

    /// Who answers, and why; `None` before the first look.
    pub(crate) fn decided(&self) -> Option<SynCookies> {
        self.decided.clone()
    }
}

/// All that was seen so far. Handshakes are counted where they pass before they are
/// counted where the stack takes them, so that no gap between the two looks like loss.
fn seen(program: &Program<'_>) -> Result<Seen, Error> {
    let answers = program.answers();
    let listeners = program.totals()?[Kind::TcpListener as usize];
    Ok(Seen {
        answered: listeners.count(Outcome::SynCookie),
        refused: answers.refused,
        returned: answers.returned,
        passed: answers.passed,
        taken: cookies_taken(),
    })
}

fn cookies_taken() -> u64 {
    counters::stack::read()
        .get("TcpExt.SyncookiesRecv")
        .copied()
        .unwrap_or(0)
}
