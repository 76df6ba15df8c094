//! The loss ledger as text.

use plimsoll_guard::ledger::{Fate, Ledger, Stage};

/// All stages, with the places that hold packets.
pub(crate) fn table(ledger: &Ledger) -> String {
    let mut text = format!("loss ledger since the start: {}\n", summary(ledger));
    for stage in &ledger.stages {
        text += &stage_rows(stage);
    }
    for name in &ledger.began_anew {
        text += &format!("began anew, what it held before is missing: {name}\n");
    }
    for name in &ledger.not_visible {
        text += &format!("not visible here: {name}\n");
    }
    text
}

/// The sums that tell whether to look closer.
pub(crate) fn summary(ledger: &Ledger) -> String {
    let sum = |fate: Fate| format!("{} {}", fate.name(), ledger.packets(fate));
    let largest = ledger
        .stages
        .iter()
        .flat_map(|stage| &stage.places)
        .filter(|place| place.fate == Fate::Lost && place.packets > 0)
        .max_by_key(|place| place.packets);
    let most = largest.map_or_else(String::new, |place| {
        format!(" (most: {} {})", place.name, place.packets)
    });
    let merged = match ledger.packets(Fate::Merged) {
        0 => String::new(),
        merged => format!(" (and {merged} merged into others)"),
    };
    let undivided = match ledger.packets(Fate::Undivided) {
        0 => String::new(),
        undivided => {
            format!(", undivided {undivided}")
        }
    };
    format!(
        "{}{merged}, {}{most}, {}, unaccounted {}{undivided}",
        sum(Fate::Delivered),
        sum(Fate::Lost),
        sum(Fate::Discarded),
        ledger.unaccounted
    )
}

fn stage_rows(stage: &Stage) -> String {
    let mut text = format!("{:<28}{:>14}", stage.name, stage.entered);
    if stage.joined > 0 {
        let whence = if stage.name == "protocols" {
            "that waited before"
        } else {
            "of other interfaces"
        };
        text += &format!("  and {} {whence}", stage.joined);
    }
    text.push('\n');
    for place in stage.places.iter().filter(|place| place.packets > 0) {
        text += &format!(
            "  {:<26}{:>14}  {:<10} {}\n",
            place.name,
            place.packets,
            place.fate.name(),
            place.from
        );
    }
    if stage.in_motion != 0 {
        text += &format!("  {:<26}{:>14}\n", "in_motion", stage.in_motion);
    }
    if stage.unaccounted != 0 {
        text += &format!("  {:<26}{:>14}\n", "unaccounted", stage.unaccounted);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_place_with_packets_is_shown_and_what_does_not_add_up() {
        let ledger: Ledger = serde_json::from_value(serde_json::json!({
            "stages": [
                {"name": "adapter", "entered": 112, "joined": 0, "in_motion": 1, "unaccounted": 4, "went_on": 100,
                 "places": [
                    {"name": "receive_ring", "fate": "lost", "packets": 7, "from": "rx_missed_errors"},
                    {"name": "bad_frame", "fate": "lost", "packets": 0, "from": "rx_errors"}]},
                {"name": "protocols", "entered": 100, "joined": 3, "in_motion": 0, "unaccounted": 0, "went_on": 0,
                 "places": [
                    {"name": "udp", "fate": "delivered", "packets": 103, "from": "Udp InDatagrams"}]},
            ],
            "unaccounted": 4, "not_visible": ["Ip6InReceives"], "began_anew": ["rx_errors"],
        }))
        .unwrap();
        let expected = "\
loss ledger since the start: delivered 103, lost 7 (most: receive_ring 7), discarded 0, unaccounted 4
adapter                                112
  receive_ring                           7  lost       rx_missed_errors
  in_motion                              1
  unaccounted                            4
protocols                              100  and 3 that waited before
  udp                                  103  delivered  Udp InDatagrams
began anew, what it held before is missing: rx_errors
not visible here: Ip6InReceives
";
        assert_eq!(table(&ledger), expected);
    }
}
