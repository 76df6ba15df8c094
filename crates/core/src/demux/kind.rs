//! What a frame is to the host: the eleven kinds, the same in the BPF program.

use core::fmt;

/// What a frame is to the host, as far as the choice of its channel goes.
///
/// The guard's build script writes the discriminants, by [`Kind::name`], into a header for its
/// BPF program, which counts by them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Kind {
    /// UDP for an open socket, connected or bound.
    UdpSocket = 0,
    /// TCP that belongs to no connection but to a listening socket.
    TcpListener = 1,
    /// TCP of a known connection, whatever its state.
    TcpConnection = 2,
    /// UDP to a multicast group or a broadcast address.
    Multicast = 3,
    /// A fragment that nothing says more about.
    Fragment = 4,
    /// ICMP, and ICMPv6 but for neighbour discovery.
    Icmp = 5,
    /// ARP and IPv6 neighbour discovery.
    Neighbour = 6,
    /// IP for another host.
    Forward = 7,
    /// UDP or TCP to a local address, and no socket is found: nobody listens, or
    /// something beside the sockets of this namespace takes it, such as translation.
    ClosedPort = 8,
    /// Well formed, but none of the above.
    Other = 9,
    /// Headers that contradict themselves or the frame's length.
    Malformed = 10,
}

impl Kind {
    /// All kinds in the order of their discriminants.
    pub const ALL: [Self; 11] = [
        Self::UdpSocket,
        Self::TcpListener,
        Self::TcpConnection,
        Self::Multicast,
        Self::Fragment,
        Self::Icmp,
        Self::Neighbour,
        Self::Forward,
        Self::ClosedPort,
        Self::Other,
        Self::Malformed,
    ];

    /// The word for this kind in C, reports and metrics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::UdpSocket => "udp_socket",
            Self::TcpListener => "tcp_listener",
            Self::TcpConnection => "tcp_connection",
            Self::Multicast => "multicast",
            Self::Fragment => "fragment",
            Self::Icmp => "icmp",
            Self::Neighbour => "neighbour",
            Self::Forward => "forward",
            Self::ClosedPort => "closed_port",
            Self::Other => "other",
            Self::Malformed => "malformed",
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_numbered_in_the_order_shared_with_the_bpf_program() {
        for (number, kind) in Kind::ALL.into_iter().enumerate() {
            assert_eq!(kind as usize, number, "{kind}");
        }
    }
}
