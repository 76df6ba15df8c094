//! Floods of every kind that come and go, for minutes: nothing may leak, no
//! packet may be counted wrongly, and the guard must find back to where it was.
//!
//! What comes when is drawn from a seed. The generator knows how many frames
//! the link took; the guard must have counted exactly these. Its `--json` lines
//! are checked one by one: totals never fall, and no kind's channels hold more
//! than its total. Before and after, the process is asked for memory,
//! descriptors and maps.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use fastrand::Rng;
use plimsoll_report::{Goal, Side};
use plimsoll_testbed::blast::{Schedule, Spec, Transport};
use plimsoll_testbed::http::Nginx;
use plimsoll_testbed::interrupt;
use serde::Serialize;

use super::{Bench, Measured};
use crate::Error;
use crate::figures::grouped;
use crate::guard_process::{GuardProcess, Holdings, Line};
use crate::protection::Stage;
use crate::traffic::{flood, send};
use crate::udp::{ECHO_PORT, SINK_PORT, Servers};
use crate::web::NGINX_PORT;

/// Each kind comes once for so long before holdings are first read, and then
/// one overload: what is done for the first time may take memory or open a file
/// for good.
const WARM_UP: Duration = Duration::from_millis(50);
const OVERLOAD_PPS: u64 = 2_000_000;
/// How often the guard reports, and so how exactly its return is seen.
const LINES: [&str; 2] = ["--interval-ms", "200"];
/// Rates are drawn evenly on a logarithmic scale.
const RATES_PPS: (f64, f64) = (10_000.0, 4_000_000.0);
const LONGEST: Duration = Duration::from_millis(1500);
const LONGEST_GAP: Duration = Duration::from_millis(300);
/// The guard may take so long to find back.
const RETURN_LIMIT: Duration = Duration::from_secs(10);
/// A kernel that shares pages among processes does not count to the byte.
const MEMORY_GROWTH_KIB: f64 = 1024.0;

/// Floods that come and go.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Chaos {
    /// Seed of what came when.
    pub seed: u64,
    /// How long, in seconds.
    pub seconds: f64,
    /// Floods.
    pub floods: u64,
    /// Frames that the link took.
    pub sent: u64,
    /// Frames that the guard counted.
    pub counted: u64,
    /// Lines that the guard wrote.
    pub lines: u64,
    /// Lines whose sums were wrong.
    pub wrong_lines: u64,
    /// Growth of the guard's resident memory, in KiB.
    pub memory_growth_kib: i64,
    /// Growth of its open descriptors.
    pub descriptor_growth: i64,
    /// Growth of its BPF maps.
    pub map_growth: i64,
    /// From the end of the last flood until it said that it was in the mode
    /// again that it began in, in seconds; absent if it did not.
    pub return_s: Option<f64>,
    /// Changes of its mode.
    pub mode_switches: u64,
}

/// Everything this part measured.
#[derive(Debug, Default)]
pub(super) struct Outcome(Option<Chaos>);

/// What comes.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Sink,
    SinkIpv6,
    Echo,
    ClosedPorts,
    Listener,
    ClosedListener,
    FirstFragment,
    LaterFragment,
    Forwarded,
    UnknownProtocol,
    UnknownEtherType,
}

impl Kind {
    const ALL: [Self; 11] = [
        Self::Sink,
        Self::SinkIpv6,
        Self::Echo,
        Self::ClosedPorts,
        Self::Listener,
        Self::ClosedListener,
        Self::FirstFragment,
        Self::LaterFragment,
        Self::Forwarded,
        Self::UnknownProtocol,
        Self::UnknownEtherType,
    ];

    fn spec(self, stage: &Stage<'_>, rate_pps: u64, time: Duration, seed: u64) -> Spec {
        let payload = vec![0; 18];
        let (port, transport) = match self {
            Self::Echo => (ECHO_PORT, Transport::Udp { payload }),
            Self::Listener => (NGINX_PORT, Transport::TcpSyn),
            Self::ClosedListener => (NGINX_PORT + 1, Transport::TcpSyn),
            Self::FirstFragment => (SINK_PORT, Transport::FirstFragment { payload }),
            Self::LaterFragment => (SINK_PORT, Transport::LaterFragment { payload }),
            Self::UnknownProtocol => (SINK_PORT, Transport::UnknownProtocol { payload }),
            Self::UnknownEtherType => (SINK_PORT, Transport::UnknownEtherType { payload }),
            _ => (SINK_PORT, Transport::Udp { payload }),
        };
        let mut spec = flood(stage, port, transport, Schedule::Fixed { rate_pps });
        match self {
            Self::ClosedPorts => spec.flow.destination_ports = 20_000..=60_000,
            // Neither host has it, and the test host forwards nothing.
            Self::Forwarded => spec.flow.destination = IpAddr::from([198, 19, 0, 1]),
            Self::SinkIpv6 => {
                let prefix = "2001:2:0:1::/64".parse();
                spec.flow.source = prefix.expect("a prefix of the testbed's range");
                spec.flow.destination = stage.host().ipv6().into();
            }
            _ => {}
        }
        spec.bound.time = time;
        spec.seed = seed;
        spec
    }
}

pub(super) fn run(bench: &mut Bench<'_>) -> Result<Outcome, Error> {
    let (stage, plan) = (bench.stage, bench.plan);
    let _servers = Servers::start(&stage)?;
    let _nginx = Nginx::start(stage.host(), NGINX_PORT)?;
    let guard = stage.guard(&LINES.map(str::to_owned))?;
    let mut watch = Watch::new(guard.next_line()?);
    for kind in Kind::ALL {
        watch.flood(&stage, &guard, &kind.spec(&stage, 10_000, WARM_UP, 1))?;
    }
    let overload = Kind::Sink.spec(&stage, OVERLOAD_PPS, LONGEST, 1);
    watch.flood(&stage, &guard, &overload)?;
    watch.return_time(&guard)?;
    let held = guard.holdings()?;
    let mut random = Rng::with_seed(plan.seed);
    let begun = Instant::now();
    while begun.elapsed() < plan.chaos {
        let spec = draw(&stage, &mut random);
        let left = plan.chaos.saturating_sub(begun.elapsed()).as_secs();
        (bench.progress)(&format!("chaos, {left} s left"));
        watch.flood(&stage, &guard, &spec)?;
        interrupt::sleep(LONGEST_GAP.mul_f64(random.f64()))?;
    }
    let seconds = begun.elapsed().as_secs_f64();
    let return_s = watch.return_time(&guard)?;
    let growth = watch.settled_growth(&guard, held)?;
    let last = guard.stop()?;
    watch.check(&last);
    Ok(Outcome(Some(Chaos {
        seed: plan.seed,
        seconds,
        floods: watch.floods,
        sent: watch.sent,
        counted: last.offered() - watch.first.offered(),
        lines: watch.lines,
        wrong_lines: watch.wrong_lines,
        return_s,
        mode_switches: last.governor.switches,
        ..growth
    })))
}

fn draw(stage: &Stage<'_>, random: &mut Rng) -> Spec {
    let kind = Kind::ALL[random.usize(..Kind::ALL.len())];
    let (low, high) = RATES_PPS;
    let rate = low * (high / low).powf(random.f64());
    // A flood is at least long enough to be noticed.
    let time = LONGEST.mul_f64(0.1 + 0.9 * random.f64());
    kind.spec(stage, rate as u64, time, random.u64(..))
}

/// What is kept of the guard's lines, and of what was sent.
struct Watch {
    first: Line,
    last: Line,
    lines: u64,
    wrong_lines: u64,
    floods: u64,
    sent: u64,
    ended: Instant,
}

impl Watch {
    fn new(first: Line) -> Self {
        Self {
            last: first.clone(),
            first,
            lines: 1,
            wrong_lines: 0,
            floods: 0,
            sent: 0,
            ended: Instant::now(),
        }
    }

    fn flood(&mut self, stage: &Stage<'_>, guard: &GuardProcess, spec: &Spec) -> Result<(), Error> {
        let report = send(stage, spec)?;
        self.ended = Instant::now();
        self.floods += 1;
        self.sent += report.sent;
        for line in guard.new_lines()? {
            self.check(&line);
        }
        Ok(())
    }

    fn check(&mut self, line: &Line) {
        self.lines += 1;
        self.wrong_lines += u64::from(!follows(&self.last, line) || !adds_up(line));
        self.last = line.clone();
    }

    /// Waits until it is in the mode again that it began in.
    fn return_time(&mut self, guard: &GuardProcess) -> Result<Option<f64>, Error> {
        for line in guard.new_lines()? {
            self.check(&line);
        }
        while self.ended.elapsed() < RETURN_LIMIT {
            let line = guard.next_line()?;
            self.check(&line);
            if line.governor.mode == self.first.governor.mode {
                return Ok(Some(self.ended.elapsed().as_secs_f64()));
            }
        }
        Ok(None)
    }

    /// What the guard holds more than at first, once it has written a line
    /// about the last packets.
    fn settled_growth(&mut self, guard: &GuardProcess, held: Holdings) -> Result<Chaos, Error> {
        for _ in 0..2 {
            let line = guard.next_line()?;
            self.check(&line);
        }
        let holds = guard.holdings()?;
        let growth = |now: u64, then: u64| now.cast_signed() - then.cast_signed();
        Ok(Chaos {
            memory_growth_kib: growth(holds.memory_kib, held.memory_kib),
            descriptor_growth: growth(holds.descriptors, held.descriptors),
            map_growth: growth(holds.maps, held.maps),
            ..Chaos::default()
        })
    }
}

/// No total has fallen.
fn follows(before: &Line, after: &Line) -> bool {
    before.totals.iter().all(|(kind, packets)| {
        packets.iter().all(|(outcome, count)| {
            let later = after.totals.get(kind).and_then(|kind| kind.get(outcome));
            later.is_some_and(|later| later >= count)
        })
    })
}

/// No kind's channels hold more than its total.
fn adds_up(line: &Line) -> bool {
    let mut held: BTreeMap<(&str, &str), u64> = BTreeMap::new();
    for channel in &line.channels {
        for (outcome, count) in &channel.packets {
            *held.entry((&channel.kind, outcome)).or_default() += count;
        }
    }
    held.iter().all(|((kind, outcome), held)| {
        let total = line.totals.get(*kind).and_then(|kind| kind.get(*outcome));
        total.is_some_and(|total| held <= total)
    })
}

impl Measured for Outcome {
    type Section = Chaos;

    fn section(&self) -> Chaos {
        self.0.clone().unwrap_or_default()
    }

    fn goals(&self) -> Vec<Goal> {
        let of = |value: &dyn Fn(&Chaos) -> f64| self.0.iter().map(value).collect::<Vec<_>>();
        let none =
            |id: &str, what: &str, unit, runs| Goal::new(id, what, Side::AtMost, 0.0, unit, runs);
        let mut back = Goal::new(
            "chaos/return",
            "time until the guard is in its first mode again",
            Side::AtMost,
            2.0,
            "s",
            self.0.iter().filter_map(|chaos| chaos.return_s).collect(),
        );
        if self
            .0
            .as_ref()
            .is_some_and(|chaos| chaos.return_s.is_none())
        {
            let why = format!("not within {} s", RETURN_LIMIT.as_secs());
            back = Goal {
                met: Some(false),
                ..back
            }
            .because(why);
        }
        vec![
            none(
                "chaos/accounting",
                "frames that the guard counted otherwise than the link took them",
                "frames",
                of(&|chaos| chaos.sent.abs_diff(chaos.counted) as f64),
            ),
            none(
                "chaos/lines",
                "lines of the guard whose sums are wrong",
                "lines",
                of(&|chaos| chaos.wrong_lines as f64),
            ),
            Goal::new(
                "chaos/memory",
                "growth of the guard's memory",
                Side::AtMost,
                MEMORY_GROWTH_KIB,
                "KiB",
                of(&|chaos| chaos.memory_growth_kib as f64),
            ),
            none(
                "chaos/descriptors",
                "growth of the guard's open descriptors",
                "descriptors",
                of(&|chaos| chaos.descriptor_growth as f64),
            ),
            none(
                "chaos/maps",
                "growth of the guard's BPF maps",
                "maps",
                of(&|chaos| chaos.map_growth as f64),
            ),
            back,
        ]
    }
}

impl Chaos {
    pub(super) fn table(&self) -> String {
        let mut text = format!(
            "{} floods in {:.0} s (seed {}): {} frames sent, {} counted; {} of {} lines wrong\n",
            self.floods,
            self.seconds,
            self.seed,
            grouped(self.sent as f64),
            grouped(self.counted as f64),
            self.wrong_lines,
            self.lines,
        );
        let _ = write!(
            text,
            "growth: {} KiB, {} descriptors, {} maps",
            self.memory_growth_kib, self.descriptor_growth, self.map_growth
        );
        match self.return_s {
            Some(seconds) => {
                let switches = self.mode_switches;
                format!(
                    "{text}; {switches} changes of mode, back in the first after {seconds:.1} s\n"
                )
            }
            None => text + "; not back in its first mode\n",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(totals: &str, channels: &str) -> Line {
        let text = format!(r#"{{"totals":{totals},"channels":{channels}}}"#);
        serde_json::from_str(&text).unwrap()
    }

    #[test]
    fn totals_may_not_fall() {
        let before = line(r#"{"icmp":{"admitted":5}}"#, "[]");
        let after = line(r#"{"icmp":{"admitted":5},"udp":{"admitted":1}}"#, "[]");
        assert!(follows(&before, &after));
        assert!(!follows(&after, &before), "a kind went missing");
        let fallen = line(r#"{"icmp":{"admitted":4}}"#, "[]");
        assert!(!follows(&before, &fallen));
    }

    #[test]
    fn channels_hold_no_more_than_their_total() {
        let channels = |count| {
            format!(
                r#"[{{"kind":"udp_socket","packets":{{"admitted":3}}}},
                    {{"kind":"udp_socket","packets":{{"admitted":{count}}}}}]"#
            )
        };
        let totals = r#"{"udp_socket":{"admitted":5}}"#;
        assert!(adds_up(&line(totals, &channels(2))));
        assert!(!adds_up(&line(totals, &channels(3))));
        assert!(!adds_up(&line("{}", &channels(0))));
    }
}
