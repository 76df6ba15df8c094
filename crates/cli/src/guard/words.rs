//! What the guard's reports say alike: names of channels and their owners, what
//! the governor does, who is offered most.

use std::net::SocketAddr;

use plimsoll_guard::status::{ChannelStatus, GovernorStatus, Status};

/// A channel by kind and address.
pub(super) fn name(channel: &ChannelStatus) -> String {
    let address = SocketAddr::new(channel.address, channel.port);
    format!("{} {address}", channel.kind)
}

/// The process and control group of a channel, as far as they are known.
pub(super) fn owner(channel: &ChannelStatus) -> String {
    let Some(owner) = &channel.owner else {
        return String::new();
    };
    let process = owner.process.as_ref();
    let process = process.map(|process| format!("{} ({})", process.name, process.pid));
    // The root of all groups tells nothing.
    let group = owner.control_group.clone().filter(|group| group != "/");
    [process, group]
        .into_iter()
        .flatten()
        .collect::<Vec<_>>()
        .join(" ")
}

/// A text in at most so many cells, without its middle if need be: addresses tell
/// most by their ends.
pub(super) fn shortened(text: String, cells: usize) -> String {
    let length = text.chars().count();
    if length <= cells {
        return text;
    }
    let tail = cells.saturating_sub(1) * 2 / 5;
    let head = cells.saturating_sub(1) - tail;
    let start = text.chars().take(head);
    let end = text.chars().skip(length - tail);
    start.chain(['…']).chain(end).collect()
}

/// What is done about overload, and why.
pub(crate) fn doing(governor: &GovernorStatus, observe: bool, shedding: bool) -> String {
    let mut text = if observe {
        "OBSERVING: nothing is discarded, nothing is governed".to_owned()
    } else {
        let reason = match governor.reason.as_str() {
            "discards" => "discards: queues are full",
            "network_share" => "network_share: receiving takes much CPU",
            "ring" => "ring: it fills up",
            other => other,
        };
        format!("{} ({reason})", governor.mode)
    };
    if governor.holdoff_us > 0.0 {
        text += &format!(", holdoff {:.0} µs", governor.holdoff_us);
    }
    text += match (shedding, observe) {
        (true, false) => ", shedding by shares",
        (true, true) => ", would shed by shares",
        (false, _) => "",
    };
    let share = governor.network_share * 100.0;
    text += &format!("; receiving takes {share:.0}% of its busiest CPU");
    text
}

/// Whose packets are most of all that is offered: a channel, or a kind whose
/// packets are for no channel or for many. `None` while nothing is offered.
pub(super) fn most_offered(status: &Status) -> Option<String> {
    let all: f64 = status.kinds.iter().map(|kind| kind.offered_pps).sum();
    let kinds = status.kinds.iter();
    let kind = kinds.max_by(|a, b| a.offered_pps.total_cmp(&b.offered_pps))?;
    if kind.offered_pps <= 0.0 {
        return None;
    }
    let channel = status.most_offered.as_ref();
    let channel = channel.filter(|channel| channel.offered_pps * 2.0 > kind.offered_pps);
    let (name, offered, cpus) = match channel {
        Some(channel) => {
            let name = format!("{}  {}", name(channel), owner(channel));
            let name = name.trim_end().to_owned();
            (name, channel.offered_pps, channel.charged_cpus)
        }
        None => (kind.kind.clone(), kind.offered_pps, kind.charged_cpus),
    };
    Some(format!(
        "{name}: {:.0}% of packets, {:.0}% CPU",
        offered / all * 100.0,
        cpus * 100.0
    ))
}
