//! The kernel's switches for forwarding, by interface: `/proc/sys/net` of the calling
//! thread's network namespace (`Documentation/networking/ip-sysctl.rst`).

use std::fs;
use std::io;

/// Whether the kernel forwards IPv4 and IPv6 packets that come in by `interface`. For IPv6 it asks
/// the switch of all interfaces, and since Linux 6.17 the interface's `force_forwarding`, but not
/// its `forwarding`.
#[must_use]
pub fn forwards(interface: &str) -> (bool, bool) {
    let is_on = |family, interface, switch| number(family, interface, switch) == Some(1);
    let v6 = is_on("ipv6", "all", "forwarding") || is_on("ipv6", interface, "force_forwarding");
    (is_on("ipv4", interface, "forwarding"), v6)
}

/// How sources of IPv4 packets that come in by `interface` are looked at: 0 not at
/// all, 1 strictly, 2 loosely. The larger of the interface's and everybody's counts.
/// IPv6 has no such switch.
#[must_use]
pub fn rp_filter(interface: &str) -> u32 {
    let of = |name: &str| number("ipv4", name, "rp_filter").unwrap_or(0);
    of(interface).max(of("all"))
}

fn number(family: &str, interface: &str, switch: &str) -> Option<u32> {
    let text = fs::read_to_string(path(family, interface, switch)).ok()?;
    text.trim().parse().ok()
}

/// Makes an interface one by which packets are put into the kernel's stack to be routed
/// as if they had come in elsewhere: forwarding on, sources not looked at (they lead back
/// elsewhere), no addresses and no redirects of its own. An interface without addresses
/// passes no look at sources at all, so `net.ipv4.conf.all.rp_filter` must be 0.
///
/// # Errors
///
/// The first switch that cannot be set. A kernel without IPv6 has none of its switches, an older
/// one not all.
pub fn make_entrance(interface: &str) -> io::Result<()> {
    let set =
        |family: &str, switch: &str, value: &str| fs::write(path(family, interface, switch), value);
    for (switch, value) in [
        ("rp_filter", "0"),
        ("forwarding", "1"),
        ("send_redirects", "0"),
    ] {
        set("ipv4", switch, value)?;
    }
    for (switch, value) in [
        ("addr_gen_mode", "1"),
        ("accept_ra", "0"),
        ("forwarding", "1"),
        // Since Linux 6.17, where that of all interfaces is off.
        ("force_forwarding", "1"),
    ] {
        match set("ipv6", switch, value) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

/// A dot in an interface's name is no separator here.
fn path(family: &str, interface: &str, switch: &str) -> String {
    format!("/proc/sys/net/{family}/conf/{interface}/{switch}")
}
