//! Whose an ICMP error is, and what it changes there. A neighbour who does not answer is the same
//! as a router's word that there is no such host.
//!
//! It must be about a packet that we may have sent: from a connected UDP socket to its peer, a
//! TCP segment on its way, or, where it is about lengths, the very UDP datagram.

use plimsoll_core::demux::Protocol;
use plimsoll_core::time::Instant;

use crate::host::Host;
use crate::wire::trouble::{self, Report, Trouble};
use crate::wire::{UDP_BYTES, emit};

/// Nobody answers where this frame of ours was to go.
pub(super) fn on_unanswered(host: &Host, frame: &[u8], now: Instant) {
    if let Some(report) = trouble::of_unanswered(frame) {
        settle(host, &report, now);
    }
}

/// Acts on an error.
pub(super) fn settle(host: &Host, report: &Report, now: Instant) {
    match report.protocol {
        Protocol::Udp => settle_udp(host, report, now),
        Protocol::Tcp => host.tcp.on_trouble(host, report, now),
    }
}

fn settle_udp(host: &Host, report: &Report, now: Instant) {
    let (paths, to) = (&host.egress.paths, report.remote.ip());
    if let Trouble::TooBig(mtu) = report.trouble {
        let ports = (u64::from(report.local.port()) << 16) | u64::from(report.remote.port());
        let header = (ports << 32) | u64::from(report.after_ports);
        if paths.has_sent(to, header) {
            // UDP's own length, which was checked with the header.
            let bytes = (report.after_ports >> 16) as usize;
            let headers = emit::network_bytes(to);
            paths.lower(to, mtu, headers + bytes.max(UDP_BYTES), now);
        }
    } else if let Some(errno) = report.trouble.errno() {
        let table = host.table.lock();
        if let Some(channel) = table.connection(Protocol::Udp, report.local, report.remote) {
            table.set_trouble(channel, errno);
        }
    }
}
