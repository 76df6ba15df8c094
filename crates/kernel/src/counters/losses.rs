//! What the kernel counts by itself of packets that a host had no room for, read several times a
//! second: files stay open, and only the counters wanted are looked for.
//!
//! The stack's counters are of a network namespace, those of backlogs of the machine.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use super::interfaces::Interfaces;
use super::stack::softnet_rows;
use crate::knobs::{Device, Statistic};
use crate::netlink;

/// What adapters count as lost for want of a free descriptor: one of these, or several with the
/// same losses.
const RING_LOSSES: [&str; 3] = ["rx_missed_errors", "rx_fifo_errors", "rx_over_errors"];
/// Room for a file of counters. A larger one is read with more.
const FILE_BYTES: usize = 16 << 10;

/// What counts frames that the ring did not hold; none where sysfs shows another namespace's
/// devices.
#[must_use]
pub fn ring_statistics(interface: &str, ifindex: u32) -> Vec<Statistic> {
    let device = Device::open(interface, ifindex);
    let open = |device: &Device| {
        let statistics = RING_LOSSES.iter().map(|name| device.statistic(name));
        statistics.filter_map(Result::ok).collect()
    };
    device.as_ref().map(open).unwrap_or_default()
}

/// Sums since some time, or between two.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Losses {
    /// Frames that the receive ring did not hold. Of a veth: what its other end could not send,
    /// as far as it may be asked.
    pub ring: u64,
    /// Packets that all CPUs' backlogs did not hold.
    pub backlog: u32,
    /// Datagrams that a UDP socket's receive buffer did not hold.
    pub sockets: u64,
    /// SYNs that a listener's queues did not hold.
    pub listeners: u64,
    /// SYN cookies sent.
    pub cookies: u64,
    /// IP packets received.
    pub received: u64,
    /// TCP segments received.
    pub segments: u64,
    /// TCP segments sent with RST.
    pub resets: u64,
    /// IP packets that went on to other hosts.
    pub forwarded: u64,
}

impl Losses {
    /// What came since an earlier reading. A counter that began anew counted nothing.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        // 32 bits wide each, they wrap. A CPU that went offline takes its own away.
        let backlog = self.backlog.wrapping_sub(earlier.backlog);
        Self {
            ring: self.ring.saturating_sub(earlier.ring),
            backlog: if backlog > u32::MAX / 2 { 0 } else { backlog },
            sockets: self.sockets.saturating_sub(earlier.sockets),
            listeners: self.listeners.saturating_sub(earlier.listeners),
            cookies: self.cookies.saturating_sub(earlier.cookies),
            received: self.received.saturating_sub(earlier.received),
            segments: self.segments.saturating_sub(earlier.segments),
            resets: self.resets.saturating_sub(earlier.resets),
            forwarded: self.forwarded.saturating_sub(earlier.forwarded),
        }
    }
}

/// The open files.
#[derive(Debug)]
pub struct LossReader {
    snmp: File,
    netstat: File,
    /// A host without IPv6 has none.
    snmp6: Option<File>,
    softnet: File,
    ring: Vec<Statistic>,
    veth: Option<(Interfaces, netlink::Socket)>,
    bytes: Vec<u8>,
}

impl LossReader {
    /// Of an interface of the current network namespace.
    ///
    /// # Errors
    ///
    /// There is no `/proc`, or the kernel does not answer.
    pub fn open(interface: &str, ifindex: u32) -> io::Result<Self> {
        let open = |name: &str| File::open(format!("/proc/thread-self/net/{name}"));
        let interfaces = Interfaces::read(ifindex)?;
        Ok(Self {
            snmp: open("snmp")?,
            netstat: open("netstat")?,
            snmp6: open("snmp6").ok(),
            softnet: open("softnet_stat")?,
            ring: ring_statistics(interface, ifindex),
            veth: interfaces
                .is_veth()
                .then(|| (interfaces, netlink::Socket::new())),
            bytes: vec![0; FILE_BYTES],
        })
    }

    /// Reads all.
    ///
    /// # Errors
    ///
    /// The kernel refuses for a moment.
    pub fn read(&mut self) -> io::Result<Losses> {
        let mut losses = Losses {
            ring: self.ring(),
            ..Losses::default()
        };
        let text = text(&self.snmp, &mut self.bytes)?;
        let pairs = |group, name| pair(text, group, name);
        losses.sockets = pairs("Udp", "RcvbufErrors");
        losses.received = pairs("Ip", "InReceives");
        losses.forwarded = pairs("Ip", "ForwDatagrams");
        losses.segments = pairs("Tcp", "InSegs");
        losses.resets = pairs("Tcp", "OutRsts");
        let text = self::text(&self.netstat, &mut self.bytes)?;
        let tcp = |name| pair(text, "TcpExt", name);
        // One loss may be counted by two of them.
        let listeners = ["ListenDrops", "ListenOverflows", "TCPReqQFullDrop"].map(tcp);
        losses.listeners = listeners.into_iter().fold(0, u64::max);
        losses.cookies = tcp("SyncookiesSent");
        if let Some(snmp6) = &self.snmp6 {
            let text = self::text(snmp6, &mut self.bytes)?;
            losses.sockets += line(text, "Udp6RcvbufErrors");
            losses.received += line(text, "Ip6InReceives");
            losses.forwarded += line(text, "Ip6OutForwDatagrams");
        }
        let rows = softnet_rows(self::text(&self.softnet, &mut self.bytes)?);
        let dropped = rows.iter().map(|row| row.dropped);
        losses.backlog = dropped.fold(0, u32::wrapping_add);
        Ok(losses)
    }

    fn ring(&mut self) -> u64 {
        let counts = self.ring.iter().map(Statistic::read);
        let own = counts.filter_map(Result::ok).max().unwrap_or(0);
        let peer = self.veth.as_mut().and_then(|(interfaces, socket)| {
            let counted = interfaces.peer_not_sent(socket);
            if counted.is_none() {
                // What was wrong with this one may not be with the next.
                *socket = netlink::Socket::new();
            }
            counted
        });
        own.max(peer.unwrap_or(0))
    }
}

/// All of a file of `/proc`, which is made anew each time that it is read from its start.
fn text<'a>(file: &File, bytes: &'a mut Vec<u8>) -> io::Result<&'a str> {
    let mut length = 0;
    loop {
        if length == bytes.len() {
            bytes.resize(2 * length, 0);
        }
        match file.read_at(&mut bytes[length..], length as u64)? {
            0 => break,
            more => length += more,
        }
    }
    str::from_utf8(&bytes[..length]).map_err(io::Error::other)
}

/// A counter of a file of pairs of lines, names and values; 0 if there is none.
fn pair(text: &str, group: &str, name: &str) -> u64 {
    let mut lines = text.lines().filter_map(|line| {
        let rest = line.strip_prefix(group)?;
        rest.strip_prefix(": ")
    });
    let (Some(names), Some(values)) = (lines.next(), lines.next()) else {
        return 0;
    };
    let mut pairs = names.split(' ').zip(values.split(' '));
    let value = pairs.find(|(found, _)| *found == name);
    value.and_then(|(_, value)| value.parse().ok()).unwrap_or(0)
}

/// A counter of a file of lines with a name and a value each; 0 if there is none.
fn line(text: &str, name: &str) -> u64 {
    let mut lines = text.lines();
    let value = lines.find_map(|line| line.strip_prefix(name)?.trim().parse().ok());
    value.unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;

    use super::super::stack;
    use super::*;
    use crate::iproute::ip;
    use crate::{link, namespace};

    #[test]
    fn counters_are_found_by_their_names_alone() {
        let text = "Ip: Forwarding InReceives\nIp: 2 42\nTcp: MaxConn InSegs\nTcp: -1 7\n\
                    IpExt: InReceives\nIpExt: 9\n";
        let found = [("Ip", "InReceives"), ("Tcp", "InSegs"), ("Tcp", "MaxConn")];
        assert_eq!(
            found.map(|(group, name)| pair(text, group, name)),
            [42, 7, 0]
        );
        assert_eq!(pair(text, "Udp", "InReceives"), 0);
        let text = "Udp6RcvbufErrorsOfOthers  \t5\nUdp6RcvbufErrors \t3\n";
        assert_eq!((line(text, "Udp6RcvbufErrors"), line(text, "Udp6")), (3, 0));
    }

    #[test]
    fn what_began_anew_or_wrapped_is_no_flood() {
        let of = |backlog, ring| Losses {
            backlog,
            ring,
            ..Losses::default()
        };
        assert_eq!(of(4, 9).since(&of(u32::MAX, 2)), of(5, 7));
        assert_eq!(of(4, 1).since(&of(900, 2)), of(0, 0));
    }

    /// Datagrams to a socket that nobody reads. Needs root.
    #[test]
    fn what_the_kernel_counts_is_read_as_it_is() {
        namespace::in_new(|| {
            ip("link set lo up");
            let mut reader = LossReader::open("lo", link::index("lo").unwrap()).unwrap();
            let before = reader.read().unwrap();
            for address in ["127.0.0.1:0", "[::1]:0"] {
                let socket = UdpSocket::bind(address).unwrap();
                let at = socket.local_addr().unwrap();
                for _ in 0..2_000 {
                    socket.send_to(b"?", at).unwrap();
                }
            }
            let found = reader.read().unwrap().since(&before);
            let all = stack::read();
            let lost = all["Udp.RcvbufErrors"] + all["Udp6RcvbufErrors"];
            assert!(found.sockets > 2_000, "of both families: {found:?}");
            assert_eq!(found.sockets, lost);
            assert_eq!((found.received, found.segments), (4_000, 0));
        })
        .unwrap();
    }
}
