//! What the adapter and its driver do around the program: what an attachment costs
//! them, what they do to packets before XDP sees them, and how long they wait.

use std::io;

use plimsoll_kernel::ethtool::{active_features, coalescing, receive_channels};

use super::{Finding, Verdict, finding};

/// Drivers that set up their rings anew when the first program comes and when the last
/// one goes: packets are lost for a moment, and with some the link goes down for
/// seconds. From what is known of the drivers; none of them was tried.
const RESETTING: [&str; 9] = [
    "bnxt_en",
    "i40e",
    "ice",
    "igb",
    "igc",
    "ixgbe",
    "ixgbevf",
    "mlx5_core",
    "vmxnet3",
];
/// Drivers that keep as many channels for XDP's own sending as there are for receiving:
/// they refuse while more than half are in use. Likewise, none was tried.
const HALVING: [&str; 2] = ["ena", "gve"];

/// What the driver does when the program is attached.
pub(super) fn attachment(interface: &str, ifindex: u32, driver: &str) -> io::Result<Finding> {
    if HALVING.contains(&driver) {
        let channels = receive_channels(ifindex)?;
        let (used, most) = channels.unwrap_or((0, 0));
        let half = most / 2;
        return Ok(if used > half {
            finding(
                "attachment",
                Verdict::Limited,
                format!(
                    "`{driver}` takes XDP on at most {half} of its {most} channels, and {used} are in use"
                ),
                format!("is refused by the driver until `ethtool -L {interface} combined {half}`"),
            )
        } else {
            finding(
                "attachment",
                Verdict::Ok,
                format!("`{driver}` has a free channel for each of the {used} in use"),
                "attaches",
            )
        });
    }
    Ok(if RESETTING.contains(&driver) {
        finding(
            "attachment",
            Verdict::Limited,
            format!(
                "`{driver}` sets up its rings anew when the first XDP program comes and the last one goes"
            ),
            "loses packets for a moment at its start and its stop; a restart by systemd hands the attachment on and loses none",
        )
    } else {
        finding(
            "attachment",
            Verdict::Ok,
            format!("`{driver}` is not known to set up its rings anew for XDP"),
            "attaches",
        )
    })
}

/// What the adapter does to packets before XDP sees them.
pub(super) fn offloads(interface: &str, ifindex: u32) -> io::Result<Finding> {
    let Some(active) = active_features(ifindex)? else {
        let found = "the kernel does not tell the adapter's offloads";
        return Ok(finding("offloads", Verdict::Ok, found, "tries"));
    };
    let is_on = |name: &str| active.contains(name);
    let (mut found, mut guard) = (Vec::new(), Vec::new());
    for (feature, name, option) in [
        ("rx-lro", "large receive offload (LRO)", "lro"),
        (
            "rx-gro-hw",
            "receive offload in hardware (GRO-HW)",
            "rx-gro-hw",
        ),
    ] {
        if is_on(feature) {
            found.push(format!("{name} is on"));
            guard.push(format!(
                "sees several packets as one, where the driver takes XDP beside it at all: `ethtool -K {interface} {option} off`"
            ));
        }
    }
    if is_on("rx-vlan-hw-parse") {
        found.push("VLAN tags are taken out of packets before XDP".to_owned());
        guard.push(
            "judges packets of VLANs by their addresses alone, as if they had no tag".to_owned(),
        );
    }
    Ok(if found.is_empty() {
        let found = "packets come as they are on the wire";
        finding("offloads", Verdict::Ok, found, "sees each packet")
    } else {
        finding(
            "offloads",
            Verdict::Limited,
            found.join("; "),
            guard.join("; "),
        )
    })
}

/// How long the adapter holds interrupts back by itself.
pub(super) fn interrupts(ifindex: u32) -> io::Result<Finding> {
    let found = match coalescing(ifindex)? {
        None => "the driver does not tell how it coalesces interrupts".to_owned(),
        Some(coalescing) => format!(
            "an interrupt waits up to {} µs{}",
            coalescing.receive_us,
            if coalescing.is_adaptive {
                ", adapted by the adapter"
            } else {
                ""
            }
        ),
    };
    let guard = "leaves it; a holdoff under overload comes on top";
    Ok(finding("coalescing", Verdict::Ok, found, guard))
}
