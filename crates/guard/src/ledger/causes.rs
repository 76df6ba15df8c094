//! The places that the stack's counters mean. What they count is in the kernel's
//! `Documentation/networking/snmp_counter.rst` and RFC 4293.

/// A place and the counters whose sum it is.
pub(super) type Causes = (&'static str, &'static [&'static str]);

/// What ends in IP, as a loss.
pub(super) const IP_LOSSES: [Causes; 8] = [
    ("ip_header", &["Ip.InHdrErrors", "Ip6InHdrErrors"]),
    ("ip_address", &["Ip.InAddrErrors", "Ip6InAddrErrors"]),
    ("ip_no_route", &["IpExt.InNoRoutes", "Ip6InNoRoutes"]),
    (
        "ip_truncated",
        &["IpExt.InTruncatedPkts", "Ip6InTruncatedPkts"],
    ),
    ("ip_too_big", &["Ip6InTooBigErrors"]),
    (
        "unknown_protocol",
        &["Ip.InUnknownProtos", "Ip6InUnknownProtos"],
    ),
    ("reverse_path", &["TcpExt.IPReversePathFilter"]),
    ("ip_no_memory", &["Ip.InDiscards", "Ip6InDiscards"]),
];

/// What ends in TCP, as a loss. Its peers send most of it again.
pub(super) const TCP_LOSSES: [Causes; 3] = [
    ("tcp_bad", &["Tcp.InErrs"]),
    ("listen_queue", &["TcpExt.ListenDrops"]),
    (
        "tcp_no_room",
        &[
            "TcpExt.PFMemallocDrop",
            "TcpExt.TCPBacklogDrop",
            "TcpExt.TCPMinTTLDrop",
            "TcpExt.TCPOFODrop",
            "TcpExt.TCPRcvQDrop",
            "TcpExt.TCPZeroWindowDrop",
        ],
    ),
];

/// What ends in UDP, as a loss. All but the first two are part of
/// [`UDP_ERRORS`] as well.
pub(super) const UDP_LOSSES: [Causes; 5] = [
    ("no_port", &["Udp.NoPorts", "Udp6NoPorts"]),
    (
        "no_multicast_member",
        &["Udp.IgnoredMulti", "Udp6IgnoredMulti"],
    ),
    ("socket_queue", &["Udp.RcvbufErrors", "Udp6RcvbufErrors"]),
    ("udp_checksum", &["Udp.InCsumErrors", "Udp6InCsumErrors"]),
    ("udp_no_memory", &["Udp.MemErrors", "Udp6MemErrors"]),
];

/// How many of [`UDP_LOSSES`] are no errors to UDP.
pub(super) const UDP_NOT_ERRORS: usize = 2;
pub(super) const UDP_ERRORS: [&str; 2] = ["Udp.InErrors", "Udp6InErrors"];
pub(super) const UDP_DELIVERED: [&str; 2] = ["Udp.InDatagrams", "Udp6InDatagrams"];

/// What ends in UDP-Lite (RFC 3828), as a loss.
pub(super) const UDP_LITE_LOSSES: [Causes; 1] = [(
    "udp_lite_lost",
    &[
        "UdpLite.NoPorts",
        "UdpLite.IgnoredMulti",
        "UdpLite.InErrors",
        "UdpLite6NoPorts",
        "UdpLite6InErrors",
    ],
)];
pub(super) const UDP_LITE_DELIVERED: [&str; 2] = ["UdpLite.InDatagrams", "UdpLite6InDatagrams"];

pub(super) const TCP_SEGMENTS: [&str; 1] = ["Tcp.InSegs"];
pub(super) const ICMP_MESSAGES: [&str; 2] = ["Icmp.InMsgs", "Icmp6InMsgs"];
pub(super) const ICMP_ERRORS: [&str; 2] = ["Icmp.InErrors", "Icmp6InErrors"];
pub(super) const IP_RECEIVED: [&str; 2] = ["Ip.InReceives", "Ip6InReceives"];
pub(super) const IP_DELIVERED: [&str; 2] = ["Ip.InDelivers", "Ip6InDelivers"];
pub(super) const IP_FORWARDED: [&str; 2] = ["Ip.ForwDatagrams", "Ip6OutForwDatagrams"];
pub(super) const FRAGMENTS: [&str; 2] = ["Ip.ReasmReqds", "Ip6ReasmReqds"];
pub(super) const REASSEMBLED: [&str; 2] = ["Ip.ReasmOKs", "Ip6ReasmOKs"];

/// IPv6 multicast, for groups with members here or not. IPv4 counts only the
/// former.
pub(super) const MULTICAST_V6: [&str; 1] = ["Ip6InMcastPkts"];

/// Packets as the wire had them: GRO's merged ones count each.
pub(super) const IP_SEGMENTS: [&str; 8] = [
    "IpExt.InNoECTPkts",
    "IpExt.InECT1Pkts",
    "IpExt.InECT0Pkts",
    "IpExt.InCEPkts",
    "Ip6InNoECTPkts",
    "Ip6InECT1Pkts",
    "Ip6InECT0Pkts",
    "Ip6InCEPkts",
];

#[cfg(test)]
mod tests {
    use plimsoll_kernel::counters::stack::read;

    use super::*;

    #[test]
    fn every_counter_that_is_asked_for_is_this_kernel_s() {
        let stack = read();
        let causes = IP_LOSSES.iter().chain(&TCP_LOSSES).chain(&UDP_LOSSES);
        let single = [
            &UDP_ERRORS[..],
            &UDP_DELIVERED,
            &TCP_SEGMENTS,
            &ICMP_MESSAGES,
            &ICMP_ERRORS,
            &IP_RECEIVED,
            &IP_DELIVERED,
            &IP_FORWARDED,
            &FRAGMENTS,
            &REASSEMBLED,
            &IP_SEGMENTS,
            &MULTICAST_V6,
        ];
        let names = causes.flat_map(|(_, names)| *names);
        for name in names.chain(single.into_iter().flatten()) {
            assert!(stack.contains_key(*name), "{name}");
        }
    }
}
