//! The printed timelines of Mogul & Ramakrishnan's figures 11 and 12 (MR-E26, MR-E27), beside
//! the model's, in `experiments/timelines.txt`.
//!
//! The paper's times hold about 1.5 µs for each traced call and return, several hundred µs
//! in all, which the model does not have. So not times are compared, but each event's
//! share of its timeline: its time divided by that of the last event. As in the paper the
//! timeline is one without a clock interrupt, and not the first.
//!
//! The model's costs are scaled from the same figures, so shares within one step are
//! inputs, and none of this counts in the score. What is tested is the order of events,
//! and that the steps together take their parts of the whole.
//!
//! Seven of fifteen shares are too far away. The file shows them; they are not repaired,
//! and which event stands for which was not changed after they were seen:
//!
//! - The model hands a packet to the transmitter when all of the driver's work is done.
//!   The paper calls `lnput` at 49 to 52 percent and is done at 68 to 70: one event of the
//!   model, at 60 to 63, stands for both. The interrupt that follows is late by 4 to 7.
//! - Polled, the paper's handler takes 53 µs with its tracing, and 44 more until the
//!   polling loop begins. The model's takes 8, and the loop begins at once; its change of
//!   thread, `poll_start`, is in the loop.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use plimsoll_lab::published::papers;
use plimsoll_lab::{Catalogue, TracePlan, trace};
use plimsoll_sim::trace::{Event, Trace, What};

/// How far, in percent of the timeline, an event of the model may be from the printed one.
///
/// Chosen before the model's timeline was looked at: calls are not spread evenly over the
/// printed timelines. Twenty of some four hundred, 30 µs, that lie elsewhere move an event
/// by 5 percent of 633 µs.
const WITHIN_PERCENT: f64 = 5.0;

/// Set to write the file instead of comparing with it: `make lab-snapshot`.
const RENEW: &str = "PLIMSOLL_RENEW_CLAIMS";

/// An event of the model: the next of its kind after the one before.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// An adapter's interrupt handler begins, for good or after a pause.
    HandlerBegins,
    HandlerEnds,
    /// The thread that polls or does protocol work.
    ThreadBegins,
    ThreadEnds,
    /// IP work on the packet is over, and the driver begins.
    ProtocolDone,
    /// The packet is with the transmitter.
    Transmit,
    /// The model has nothing that could be told apart from its neighbours.
    Nothing,
}

use Step::{HandlerBegins, HandlerEnds, Nothing, ProtocolDone, ThreadBegins, ThreadEnds, Transmit};

/// One figure: its entry, the curve that stands for its kernel, and for each printed event
/// in its order the model's.
struct Timeline {
    entry: &'static str,
    curve: &'static str,
    steps: &'static [Step],
}

const TIMELINES: [Timeline; 2] = [
    Timeline {
        entry: "MR-E26",
        curve: "queued",
        steps: &[
            HandlerBegins,
            Nothing,
            Nothing,
            Nothing,
            HandlerEnds,
            ThreadBegins,
            Nothing,
            ProtocolDone,
            Transmit,
            HandlerBegins,
            Nothing,
            HandlerEnds,
        ],
    },
    Timeline {
        entry: "MR-E27",
        curve: "polled",
        steps: &[
            HandlerBegins,
            Nothing,
            HandlerEnds,
            ThreadBegins,
            Nothing,
            Nothing,
            Nothing,
            Nothing,
            ProtocolDone,
            Transmit,
            Nothing,
            HandlerBegins,
            ThreadBegins,
            Nothing,
            Nothing,
            ThreadEnds,
        ],
    },
];

/// The printed events of an entry and their times in µs, in the paper's order.
fn printed(entry: &str) -> Vec<(String, f64)> {
    let papers = papers().unwrap();
    let mut entries = papers.iter().flat_map(|paper| &paper.entries);
    let entry = entries.find(|one| one.id == entry).unwrap();
    let numbers = entry.numbers().into_iter();
    numbers.map(|one| (one.address.row, one.value)).collect()
}

impl Step {
    fn is(self, trace: &Trace, event: &Event) -> bool {
        let named = |actor: u16| trace.actors[usize::from(actor)].as_str();
        let handler = |actor| named(actor).starts_with("adapter ");
        let other = ["idle", "context switch"];
        let thread = |actor| !handler(actor) && !other.contains(&named(actor));
        match (self, event.what) {
            (HandlerBegins, What::Begin { actor, .. }) | (HandlerEnds, What::End { actor, .. }) => {
                handler(actor)
            }
            (ThreadBegins, What::Begin { actor, .. }) | (ThreadEnds, What::End { actor, .. }) => {
                thread(actor)
            }
            (ProtocolDone, What::Protocol) | (Transmit, What::Transmit) => true,
            _ => false,
        }
    }
}

/// The model's times of these steps in µs, from the first on; none of what it has not.
fn modelled(timeline: &Timeline) -> Vec<Option<f64>> {
    let catalogue = Catalogue::built_in().unwrap();
    let plan = TracePlan {
        curve: Some(timeline.curve.to_owned()),
        x: Some(50.0),
        start_ms: 200.0,
        duration_ms: 2000.0,
        one_packet: false,
        seed: 1,
    };
    let trace = trace::record(catalogue.get("mr-fig13").unwrap(), &plan).unwrap();
    let span = quiet(&trace);
    let mut rest = span.iter();
    let mut start = None;
    let mut time = |step: Step| {
        if let Nothing = step {
            return None;
        }
        // What does not come after the one before leaves all that follow without a time.
        let at = rest.find(|event| step.is(&trace, event))?.at_ns;
        Some((at - *start.get_or_insert(at)) as f64 / 1e3)
    };
    timeline.steps.iter().map(|step| time(*step)).collect()
}

/// From a packet's arrival to the next one's, without a clock interrupt in the first
/// millisecond, and not the first.
fn quiet(trace: &Trace) -> &[Event] {
    let is_arrival = |(_, event): &(usize, &Event)| event.what == What::Arrived;
    let arrivals = trace.events.iter().enumerate().filter(is_arrival);
    let arrivals: Vec<usize> = arrivals.map(|(index, _)| index).collect();
    let spans = arrivals
        .windows(2)
        .map(|ends| &trace.events[ends[0]..ends[1]]);
    let is_quiet = |span: &&[Event]| {
        let start = span[0].at_ns;
        let is_clock = |event: &Event| match event.what {
            What::Begin { actor, .. } => trace.actors[usize::from(actor)].ends_with("clock"),
            _ => false,
        };
        let mut first = span
            .iter()
            .take_while(|event| event.at_ns < start + 700_000);
        !first.any(is_clock)
    };
    spans
        .skip(1)
        .find(is_quiet)
        .expect("clock interrupts are a millisecond apart")
}

/// The rows of a timeline, and those events to which the model does not get in this order.
fn compare(timeline: &Timeline) -> (String, Vec<String>) {
    let (printed, modelled) = (printed(timeline.entry), modelled(timeline));
    assert_eq!(printed.len(), modelled.len(), "an event without a step");
    let printed_end = printed.last().unwrap().1;
    let modelled_end = modelled.last().copied().flatten();
    let mut text = format!("{}, mr-fig13 {}\n", timeline.entry, timeline.curve);
    let mut out_of_order = Vec::new();
    for (((event, at), modelled), step) in printed.iter().zip(modelled).zip(timeline.steps) {
        let share = 100.0 * at / printed_end;
        let _ = write!(text, "  {event}: {at} µs, {share:.1} %");
        if let Nothing = step {
            text.push_str("; not in the model\n");
            continue;
        }
        let Some((at, end)) = modelled.zip(modelled_end) else {
            text.push_str("; ✗ never in this order\n");
            out_of_order.push(event.clone());
            continue;
        };
        let modelled_share = 100.0 * at / end;
        let holds = (modelled_share - share).abs() <= WITHIN_PERCENT;
        let mark = if holds { '✓' } else { '✗' };
        let _ = writeln!(text, "; {mark} {at:.1} µs, {modelled_share:.1} %");
    }
    (text, out_of_order)
}

/// Shows MR-64.
#[test]
fn the_models_timelines_are_those_of_the_reviewed_table() {
    let mut text = format!(
        "The timelines of MR figures 11 and 12, printed; modelled. Percent is of the whole timeline; \
         ✓ is within {WITHIN_PERCENT} percent of it.\n"
    );
    for timeline in &TIMELINES {
        let (rows, out_of_order) = compare(timeline);
        assert!(
            out_of_order.is_empty(),
            "not in the printed order: {out_of_order:#?}"
        );
        text += &rows;
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../experiments/timelines.txt");
    if std::env::var_os(RENEW).is_some() {
        fs::write(&path, &text).unwrap();
    }
    let reviewed = fs::read_to_string(&path).unwrap_or_default();
    assert!(
        reviewed == text,
        "review the change, then `make lab-snapshot`:\n{text}"
    );
}
