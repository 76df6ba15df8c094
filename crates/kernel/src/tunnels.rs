//! What ends in the kernel and carries packets of others: tunnels, and frames without an IP header
//! where an adapter's driver sees them, out of which something above takes packets. As a rule no
//! process waits for these.
//!
//! Limits: by which interface a tunnel's packets come is not known.

use std::fs;
use std::io;

use netlink_bindings::rt_link;

use crate::host::may_be_so;
use crate::{ipsec, netlink};

/// For frames that have no IP header where they come in, as those of `PPPoE`, MPLS and `MACsec`.
const NO_IP: u8 = 0;
/// ESP and AH.
const IPSEC: [u8; 2] = [50, 51];

/// The IP protocols that end in the kernel in the current network namespace: bit n of protocol n,
/// and bit 0 for frames without an IP header. ESP and AH are among them where a device (`vti`,
/// `xfrm`) takes them, or where IPsec has policies for what is forwarded, as in tunnel mode.
///
/// # Errors
///
/// The kernel does not answer. To know of policies takes `CAP_NET_ADMIN`.
pub fn protocols() -> io::Result<u64> {
    let mut protocols = of_devices()?;
    // Whoever may not ask for policies knows of devices all the same.
    if ipsec::policies().is_ok_and(|policies| policies.forwarded > 0) {
        protocols |= bits(&IPSEC);
    }
    if may_be_so(fs::read_to_string(LABELS), |labels| labels != "0") {
        protocols |= bits(&[NO_IP]);
    }
    Ok(protocols)
}

/// How many labels MPLS may switch; the file is there where the kernel has MPLS.
const LABELS: &str = "/proc/sys/net/mpls/platform_labels";

/// Those of devices that are up.
fn of_devices() -> io::Result<u64> {
    let request = rt_link::Request::new().op_getlink_dump(&rt_link::Ifinfomsg::default());
    let mut socket = netlink::Socket::new();
    let mut replies = socket.request(&request)?;
    let mut protocols = 0;
    while let Some(reply) = replies.recv() {
        let (header, attributes) = reply?;
        let kind = attributes.get_linkinfo().and_then(|link| link.get_kind());
        if header.ifi_flags & libc::IFF_UP.cast_unsigned() != 0
            && let Ok(kind) = kind
        {
            protocols |= of_kind(&kind.to_string_lossy());
        }
    }
    Ok(protocols)
}

/// Those of a kind of device, by its drivers' handlers (net/ipv4, net/ipv6 and drivers/net of
/// Linux). A device of PPP may be the end of `PPPoE`, or of PPTP, which comes in GRE.
fn of_kind(kind: &str) -> u64 {
    match kind {
        "ipip" => bits(&[4]),
        "sit" | "ip6tnl" => bits(&[4, 41]),
        "gre" | "gretap" | "erspan" | "ip6gre" | "ip6gretap" | "ip6erspan" => bits(&[47]),
        "vti" | "vti6" | "xfrm" => bits(&IPSEC),
        "ppp" => bits(&[NO_IP, 47]),
        "macsec" | "batadv" | "dsa" | "hsr" => bits(&[NO_IP]),
        _ => 0,
    }
}

fn bits(protocols: &[u8]) -> u64 {
    protocols.iter().map(|protocol| 1 << protocol).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::iproute::ip;
    use crate::namespace;

    /// Needs root. (The kernel of the tests has no tunnel device that takes a protocol.)
    #[test]
    fn tunnels_name_their_protocols_and_other_devices_none() {
        assert_eq!(of_kind("gretap"), 1 << 47);
        assert_eq!(of_kind("ip6tnl"), 1 << 4 | 1 << 41);
        assert_eq!(of_kind("vxlan"), 0);
        assert_eq!(of_kind("ppp"), 1 | 1 << 47);
        assert_eq!(of_kind("macsec"), 1);
        namespace::in_new(|| {
            ip("link add v0 type veth peer name v1");
            ip("link set v0 up");
            assert_eq!(protocols().unwrap(), 0);
        })
        .expect("this test makes a network namespace and needs root: run `sudo make test`");
    }

    /// What a gateway forwards by IPsec was shed, unless a device took it. Needs root, and a kernel
    /// with IPsec.
    #[test]
    fn ipsec_that_forwards_is_a_tunnel_and_that_of_the_host_alone_is_none() {
        namespace::in_new(|| {
            let any = "src 10.1.0.0/16 dst 10.2.0.0/16";
            let tunnel = "tmpl src 192.0.2.1 dst 192.0.2.2 proto esp mode tunnel";
            for direction in ["in", "out"] {
                ip(&format!("xfrm policy add {any} dir {direction} {tunnel}"));
            }
            assert_eq!(protocols().unwrap(), 0);
            ip(&format!("xfrm policy add {any} dir fwd {tunnel}"));
            assert_eq!(protocols().unwrap(), 1 << 50 | 1 << 51);
        })
        .expect("this test makes a network namespace and needs root: run `sudo make test`");
    }
}
