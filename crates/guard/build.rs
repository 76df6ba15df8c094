//! Compiles the BPF program, which has the numbers of its decisions from core.

use plimsoll_bpf_build::{Number, number};
use plimsoll_core::demux::{EXTENSIONS_MAX, FRAGMENT_LIFETIME_S, Kind, VLAN_TAGS_MAX};
use plimsoll_core::fairness::{FairnessConfig, Keys, numbers};
use plimsoll_core::feedback::SocketWatermarks;
use plimsoll_core::time::TICK_SHIFT;

/// Numbers of core's fairness by their names there, with a prefix.
macro_rules! of_fairness {
    ($prefix:literal: $($name:ident)*) => {
        [$(number(concat!($prefix, stringify!($name)), numbers::$name)),*]
    };
}

fn main() {
    plimsoll_bpf_build::write_header(
        "decisions.h",
        &[("channel_kind", kinds()), ("decision", decisions())],
    );
    plimsoll_bpf_build::compile("guard");
}

fn kinds() -> Vec<Number> {
    let kind = |kind: Kind| number(&format!("KIND_{}", kind.name()), kind as u8);
    let mut kinds: Vec<Number> = Kind::ALL.map(kind).into();
    kinds.push(number("KIND_COUNT", Kind::ALL.len()));
    kinds
}

fn decisions() -> Vec<Number> {
    let sets = FairnessConfig::DEFAULT;
    let mut all = vec![
        number("TICK_SHIFT", TICK_SHIFT),
        number("VLAN_TAGS_MAX", VLAN_TAGS_MAX),
        number("EXTENSIONS_MAX", EXTENSIONS_MAX),
        number("FRAGMENT_LIFETIME_S", FRAGMENT_LIFETIME_S),
        number(
            "DRAINED_BYTES_MAX",
            SocketWatermarks::DEFAULT.drained_bytes_max,
        ),
        number("FAIR_NETWORK_SETS", sets.network_sets),
        number("FAIR_SUBNET_SETS", sets.subnet_sets),
        number("FAIR_HOST_SETS", sets.host_sets),
        number("FAIR_KEY_FIRST", Keys::FIRST),
        number("FAIR_KEY_WORDS", Keys::WORDS),
        number("FAIR_KEY_CHANNEL", Keys::CHANNEL),
        number("FAIR_KEY_CLASS", Keys::CLASS),
        number("FAIR_KEYS", Keys::COUNT),
        // As C's `int`: the product with an unsigned number is the same.
        number(
            "FAIR_MIX_FIRST_FACTOR",
            numbers::MIX_FIRST_FACTOR.cast_signed(),
        ),
        number(
            "FAIR_MIX_SECOND_FACTOR",
            numbers::MIX_SECOND_FACTOR.cast_signed(),
        ),
    ];
    all.extend(of_fairness!("FAIR_":
        PACKET_SHIFT PACKET PART_SHIFT PART WHOLE_SHIFT WHOLE
        BURST_TICKS BURST_PACKETS
        EPOCH_TICKS EPOCH_TICKS_MAX EPOCH_CREDIT_PACKETS STALE_TICKS
        CHANNEL_EPOCH_PACKETS NODE_EPOCH_PACKETS
        CHANNEL_UNWANTED_PARTS NODE_UNWANTED_PARTS
        STEP_PARTS STEP_MAX SAVERS_PARTS
        CALM_TICKS EMPTY_CALM_TICKS WAIT_TICKS_MAX
        STRANGERS_MIN STRANGERS_MAX STRANGERS_LOOK STRANGERS_TICKS
        TURN_TICKS NEWCOMER_TURNS TURN_AGE_MAX TURNS_EPOCH_PACKETS
        NEWCOMER_LEVEL LEVEL_MIN LEVEL_MAX SILENT
        MIX_SHIFT MIX_MIDDLE_SHIFT WAYS NETWORK_BITS SUBNET_BITS
        KNOWN_PARTS OVERDRAWN_PARTS BUDGET_PARTS_SHIFT BUDGET_AHEAD
    ));
    all.extend(of_fairness!("":
        KNOWN_PERIOD_SHIFT KNOWN_PERIODS_MIN KNOWN_AGE_PERIODS
        BACKLOG_MIN BACKLOG_KEPT_PARTS BACKLOG_KNOWN_PARTS
        BACKLOG_BEHIND_PARTS BACKLOG_BURST_TICKS
    ));
    all
}
