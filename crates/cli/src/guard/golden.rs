//! Golden tests: what the guard's commands print, whole, from fixed values.
//!
//! The expected texts are the files of `golden/`, to be read and reviewed like
//! code. `make golden` writes them anew: look at the difference.

mod samples;

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use plimsoll_guard::check::{Check, Finding, Verdict};
use plimsoll_guard::status::{Condition, Status};
use plimsoll_guard::{Kind, Outcome, governor};

use self::samples::{idle, observing, syn_cookies};
use super::top::{self, State};
use super::{check, status, words};

pub(super) use self::samples::{channel, overloaded};

/// Set to write the files instead of comparing with them.
const RENEW: &str = "PLIMSOLL_RENEW_GOLDEN";

/// The text is the file's.
pub(super) fn assert_golden(file: &str, text: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("golden")
        .join(file);
    if std::env::var_os(RENEW).is_some() {
        fs::write(&path, text).unwrap();
        return;
    }
    let expected = fs::read_to_string(&path).unwrap_or_default();
    assert!(
        text == expected,
        "differs from golden/{file}; if it should, `make golden` and review the difference.\n\
         now:\n{text}\nthen:\n{expected}"
    );
}

#[test]
fn the_samples_hold_all_there_is() {
    let status = overloaded();
    let kinds: Vec<_> = status.kinds.iter().map(|kind| kind.kind.as_str()).collect();
    assert_eq!(kinds, Kind::ALL.map(Kind::name));
    for outcome in Outcome::ALL {
        let some = status
            .kinds
            .iter()
            .any(|kind| kind.packets[outcome.name()] > 0);
        assert!(some, "{}", outcome.name());
    }
    let places = status.ledger.stages.iter().flat_map(|stage| &stage.places);
    let fates: BTreeSet<&str> = places.map(|place| place.fate.name()).collect();
    assert_eq!(fates.len(), 8, "every fate: {fates:?}");
    let ledgers = [status.ledger, observing().ledger];
    for stage in ledgers.iter().flat_map(|ledger| &ledger.stages) {
        let ended: u64 = stage.places.iter().map(|place| place.packets).sum();
        let rest = stage.in_motion + stage.unaccounted;
        let came = (stage.entered + stage.joined).cast_signed();
        assert_eq!(
            came,
            (ended + stage.went_on).cast_signed() + rest,
            "{}",
            stage.name
        );
    }
}

#[test]
fn status_as_a_table() {
    assert_golden("status-overload.txt", &status::table(&overloaded()));
    assert_golden("status-observe.txt", &status::table(&observing()));
    assert_golden("status-idle.txt", &status::table(&idle()));
}

#[test]
fn status_for_programs() {
    let mut line = Vec::new();
    status::write_document(&mut line, &overloaded()).unwrap();
    let line = String::from_utf8(line).unwrap();
    assert_eq!(line.matches('\n').count(), 1, "one line per interface");
    // Told to programs in one line, reviewed in many.
    let value: serde_json::Value = serde_json::from_str(&line).unwrap();
    let text = serde_json::to_string_pretty(&value).unwrap() + "\n";
    assert_golden("status-overload.json", &text);
    let read: Status = serde_json::from_str(&line).unwrap();
    assert_eq!(read, overloaded());
}

#[test]
fn every_mode_and_reason_in_words() {
    let mut text = String::new();
    for (mode, reason) in [
        ("interrupts", "calm"),
        ("overload", "discards"),
        ("overload", "network_share"),
        ("overload", "ring"),
        ("overload", "alone"),
    ] {
        for (observe, shedding) in [(false, false), (false, true), (true, false), (true, true)] {
            if observe && mode == "overload" {
                continue;
            }
            let governor = governor::Status {
                mode: mode.into(),
                reason: reason.into(),
                holdoff_us: if mode == "overload" { 120.0 } else { 0.0 },
                network_share: 0.05,
                switches: 0,
            };
            let mut condition = Condition {
                observe,
                shedding,
                governor,
                ..idle().condition
            };
            text += &words::doing(&condition);
            text.push('\n');
            if reason == "calm" && !shedding {
                condition.standing_by = true;
                text += &words::doing(&condition);
                text.push('\n');
            }
        }
    }
    assert_golden("modes.txt", &text);
}

#[test]
fn every_answerer_of_syns_in_words() {
    let mut text = String::new();
    for (by, reason) in [
        ("driver", "no_objection"),
        ("stack", "switched_off"),
        ("stack", "packet_filter"),
        ("stack", "filter_not_known"),
        ("stack", "filter_unread"),
        ("stack", "trial"),
        ("stack", "link_refused"),
        ("stack", "not_taken"),
        ("stack", "lost"),
        ("nobody", "sysctl"),
    ] {
        let mut status = idle();
        status.condition.syn_cookies = syn_cookies(by, reason);
        text += &words::syn_cookies(&status).unwrap_or_default();
        text.push('\n');
    }
    assert_golden("syn-cookies.txt", &text);
}

/// Between them 0.5 s and packets lost at two places.
fn watched() -> State {
    let mut before = overloaded();
    before.uptime_s -= 0.5;
    before.ledger.stages[0].places[0].packets -= 6_100;
    before.ledger.stages[4].places[0].packets -= 5;
    let mut state = State::default();
    state.on_answer(Ok(before));
    state.on_answer(Ok(overloaded()));
    state
}

#[test]
fn top_on_two_sizes_of_screen() {
    for (width, height) in [(80, 24), (140, 40)] {
        let screen = top::screen(&watched(), width, height);
        assert_golden(&format!("top-overload-{width}.txt"), &screen);
        let mut state = State::default();
        state.on_answer(Ok(observing()));
        let screen = top::screen(&state, width, height);
        assert_golden(&format!("top-observe-{width}.txt"), &screen);
    }
    let mut state = State::default();
    state.on_answer(Ok(idle()));
    state.on_answer(Err("no guard runs on `eth0`".to_owned()));
    assert_golden("top-gone-80.txt", &top::screen(&state, 80, 24));
}

#[test]
fn check_as_a_table() {
    let finding = |id, verdict, found: &str, guard: &str| Finding {
        id,
        verdict,
        found: found.to_owned(),
        guard: guard.to_owned(),
    };
    let mut check = Check {
        interface: "eth0".to_owned(),
        findings: vec![
            finding("owner", Verdict::Ok, "no guard is running here", "starts"),
            finding("xdp", Verdict::Ok, "native XDP", "runs in the driver"),
            finding(
                "mtu",
                Verdict::Limited,
                "9000 bytes, more than most drivers take for XDP",
                "tries, and says if the driver refuses",
            ),
            finding(
                "settings",
                Verdict::Unknown,
                "only root can see whether a killed guard left something turned",
                "restores that at its start",
            ),
            finding(
                "attached",
                Verdict::Missing,
                "XDP program `other` (id 7, native)",
                "refuses to replace it (`ip link set eth0 xdp off` detaches it)",
            ),
        ],
        napi: Vec::new(),
    };
    let mut text = check::table(&check);
    check.findings.pop();
    text += &format!(
        "\n--- without what is missing ---\n{}",
        check::table(&check)
    );
    check.findings.truncate(2);
    text += &format!("\n--- without limits ---\n{}", check::table(&check));
    assert_golden("check.txt", &text);
}
