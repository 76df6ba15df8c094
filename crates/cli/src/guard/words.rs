//! What the guard's reports say alike: names of channels and their owners, what
//! the governor does, who is offered most.

use std::net::SocketAddr;

use plimsoll_guard::status::{ChannelStatus, ClassStatus, Condition, SourcesStatus, Status};
use plimsoll_guard::{Heaviest, Unguarded, culprit};

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
    let process = process.map(|process| format!("{} ({})", printable(&process.name), process.pid));
    // The root of all groups tells nothing.
    let group = owner.control_group.as_deref().filter(|group| *group != "/");
    let group = group.map(printable);
    [process, group]
        .into_iter()
        .flatten()
        .collect::<Vec<_>>()
        .join(" ")
}

/// A text of others, such as a process's name, without what would do something to a
/// terminal: control characters, and those that change the direction of writing.
pub(super) fn printable(text: &str) -> String {
    let acts = |c: char| {
        c.is_control()
            || matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    text.replace(acts, "\u{fffd}")
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
pub(crate) fn doing(condition: &Condition) -> String {
    let Condition {
        governor,
        observe,
        shedding,
        ..
    } = condition;
    let mut text = if condition.standing_by {
        "STANDING BY: no program is attached until the host loses packets".to_owned()
    } else if *observe {
        "OBSERVING: nothing is discarded, nothing is governed".to_owned()
    } else {
        let reason = match &*governor.reason {
            "discards" => "discards: queues are full",
            "network_share" => "network_share: receiving takes much CPU",
            "ring" => "ring: it fills up",
            "alone" => "alone: nobody but a flood is there, and the ring may overflow",
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

/// Who answers SYNs instead of the driver, and why; `None` while the driver does, as is usual.
pub(super) fn syn_cookies(status: &Status) -> Option<String> {
    let told = status.condition.syn_cookies.as_ref()?;
    let reason = match &*told.reason {
        "no_objection" => return None,
        "switched_off" => "switched_off: so the settings say",
        "packet_filter" => "packet_filter: it may refuse handshakes that the driver began",
        "filter_not_known" => "filter_not_known: the guard cannot read the packet filter's rules",
        "filter_unread" => "filter_unread: the packet filter's rules have just changed",
        "trial" => "trial: do clients come back to the stack's answers?",
        "link_refused" => "link_refused: the link drops what the driver sends back",
        "not_taken" => "not_taken: the stack refused handshakes that the driver began",
        "lost" => "lost: the driver's answers do not reach clients",
        "sysctl" => "sysctl: net.ipv4.tcp_syncookies is 0",
        other => other,
    };
    Some(format!("SYN cookies by: {} ({reason})", told.by))
}

/// The protocols of which no socket is guarded, and why; `None` if there is none.
pub(super) fn unguarded(status: &Status) -> Option<String> {
    let unguarded = &status.condition.unguarded;
    let all = unguarded.iter();
    let all = all.map(|one| format!("{} ({})", one.protocol().to_uppercase(), one.taker()));
    let all: Vec<_> = all.collect();
    let since = "NOT GUARDED, since others may take their packets: ";
    let remedy = unguarded.iter().find_map(Unguarded::remedy);
    let remedy = remedy.map_or_else(String::new, |remedy| format!("; {remedy}"));
    (!all.is_empty()).then(|| format!("{since}{}{remedy}", all.join(", ")))
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

/// From where most packets of a channel come; empty if no prefix stands out.
pub(super) fn heaviest(sources: &SourcesStatus) -> String {
    let prefix = culprit(&sources.heaviest);
    prefix.map_or_else(String::new, |Heaviest { prefix, part, .. }| {
        format!("most from {prefix} ({:.0}%)", part * 100.0)
    })
}

/// How many sources of a class were seen, as far as they can be told apart.
pub(super) fn seen(sources: &SourcesStatus, class: &ClassStatus) -> String {
    let more = if sources.at_least && class.seen > 0 {
        "≥"
    } else {
        ""
    };
    format!("{more}{}", class.seen)
}

#[cfg(test)]
mod tests {
    use plimsoll_guard::{Kind, Owner, OwnerProcess};

    use super::*;
    use crate::guard::golden::channel;

    /// A process chose a name that cleared root's screen.
    #[test]
    fn no_name_of_others_does_anything_to_a_terminal() {
        let hostile = Owner {
            process: Some(OwnerProcess {
                pid: 7,
                name: "\u{1b}[2Jn\r\u{9b}s\u{202e}d\u{7}".to_owned(),
            }),
            control_group: Some("/a\nb".to_owned()),
            user: 0,
            sockets: 1,
        };
        let place = ("198.18.0.2".parse().unwrap(), 53);
        let mut channel = channel(Kind::UdpSocket, place, (1, &[]), (0, 1), Some(hostile));
        let told = owner(&channel);
        assert!(
            !told.contains(|c: char| c.is_control() || c == '\u{202e}'),
            "{told:?}"
        );
        assert_eq!(
            told,
            "\u{fffd}[2Jn\u{fffd}\u{fffd}s\u{fffd}d\u{fffd} (7) /a\u{fffd}b"
        );
        channel.owner = None;
        assert_eq!(owner(&channel), "");
        assert_eq!(printable("nsd: żółw"), "nsd: żółw");
    }
}
