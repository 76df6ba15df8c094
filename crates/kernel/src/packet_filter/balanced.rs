//! Load balancing in the kernel (IPVS), as `/proc/net/ip_vs` tells of it: which ports its services
//! have. It takes their packets although they are for an address of this host, and before a socket
//! that has the same port.
//!
//! **Limits.** Written after `net/netfilter/ipvs/ip_vs_ctl.c` of the kernel, and tried on none that
//! has it.

use std::fs;
use std::io;

use super::{EVERY, Ports};

/// The ports of the services of this network namespace. A service by a mark of the packet filter,
/// and one of any port (a persistent one), has every port.
///
/// # Errors
///
/// The kernel refuses to tell.
pub fn ports() -> io::Result<Vec<Ports>> {
    match fs::read_to_string("/proc/thread-self/net/ip_vs") {
        Ok(table) => Ok(table.lines().filter_map(service).collect()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

/// A line of a service; its servers have lines of their own, which begin with an arrow.
fn service(line: &str) -> Option<Ports> {
    let mut words = line.split_whitespace();
    let protocol = match words.next()? {
        "TCP" => 6,
        "UDP" => 17,
        "FWM" => return Some((None, EVERY)),
        _ => return None,
    };
    let (_, port) = words.next()?.rsplit_once(':')?;
    let ports = match u16::from_str_radix(port, 16).ok()? {
        0 => EVERY,
        port => port..=port,
    };
    Some((Some(protocol), ports))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn services_tell_their_ports_and_their_servers_none() {
        let table = "\
IP Virtual Server version 1.2.1 (size=4096)
Prot LocalAddress:Port Scheduler Flags
  -> RemoteAddress:Port Forward Weight ActiveConn InActConn
TCP  C6120001:0050 rr
  -> C6120064:1F90      Masq    1      0          0
UDP  [2001:0db8:0000:0000:0000:0000:0000:0001]:0035 wlc
UDP  C6120001:0000 rr persistent 360
SCTP C6120001:0051 rr
FWM  00000001 rr
";
        let ports: Vec<_> = table.lines().filter_map(service).collect();
        assert_eq!(
            ports,
            [
                (Some(6), 80..=80),
                (Some(17), 53..=53),
                (Some(17), EVERY),
                (None, EVERY),
            ]
        );
    }
}
