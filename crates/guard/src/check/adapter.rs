//! What the adapter and its driver do around the program: what an attachment costs
//! them, what they do to packets before XDP sees them, and how long they wait.

use std::collections::BTreeSet;
use std::io;

use plimsoll_kernel::ethtool::{active_features, coalescing, receive_channels};

use super::{Finding, Verdict, finding};

/// Drivers that set up their rings anew when the first program comes and when the last
/// one goes: packets are lost for a moment, and with some the link goes down for
/// seconds. From what is known of the drivers; igb and vmxnet3 were tried
/// (`make vm-test`).
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

/// Of virtio_net: the machine's host sends it large packets of TCP. It asks for none while it has a
/// program, whatever this says then (from the driver's source; not measured).
const GRO_IN_HARDWARE: &str = "rx-gro-hw";

/// What the driver does when the program is attached.
pub(super) fn attachment(interface: &str, ifindex: u32, driver: &str) -> io::Result<Finding> {
    if HALVING.contains(&driver) {
        return Ok(halving(interface, driver, receive_channels(ifindex)?));
    }
    let active = active_features(ifindex)?.unwrap_or_default();
    Ok(attachment_of(driver, active.contains(GRO_IN_HARDWARE)))
}

/// With so many channels in use, of so many.
fn halving(interface: &str, driver: &str, channels: Option<(u32, u32)>) -> Finding {
    let (verdict, found, guard) = match channels {
        Some((used, most)) if used > most / 2 => (
            Verdict::Missing,
            format!(
                "`{driver}` takes XDP on at most {} of its {most} channels, and {used} are in use",
                most / 2
            ),
            format!(
                "is refused by the driver until `ethtool -L {interface} combined {}`",
                most / 2
            ),
        ),
        Some((used, _)) => (
            Verdict::Ok,
            format!("`{driver}` has a free channel for each of the {used} in use"),
            "attaches".to_owned(),
        ),
        None => (
            Verdict::Limited,
            format!("`{driver}` takes XDP on at most half of its channels, and does not tell them"),
            "is refused by the driver while more are in use".to_owned(),
        ),
    };
    finding("attachment", verdict, found, guard)
}

/// Of a driver with GRO in hardware, or without.
fn attachment_of(driver: &str, gets_large: bool) -> Finding {
    let (verdict, found, guard) = if RESETTING.contains(&driver) {
        (
            Verdict::Limited,
            format!(
                "`{driver}` sets up its rings anew when the first XDP program comes and the last one goes"
            ),
            "loses packets for a moment at its start and its stop; a restart by systemd hands the attachment on and loses none; with --standby it loses them at each attachment, which is during a flood",
        )
    } else if driver == "veth" {
        (
            Verdict::Limited,
            "while a veth has an XDP program, its other end sends it no large packets of TCP"
                .to_owned(),
            "attaches only while the host loses packets, since any XDP program here makes bulk transfers take more CPU; with --standby=false from the start",
        )
    } else if driver == "virtio_net" && gets_large {
        (
            Verdict::Limited,
            "while a virtio_net has an XDP program, the machine's host sends it no large packets of TCP".to_owned(),
            "attaches, and bulk transfers to this host take more CPU then; with --standby only while this host loses packets",
        )
    } else {
        (
            Verdict::Ok,
            format!("`{driver}` is not known to set up its rings anew for XDP"),
            "attaches",
        )
    };
    finding("attachment", verdict, found, guard)
}

/// What the adapter does to packets before XDP sees them.
pub(super) fn offloads(interface: &str, ifindex: u32, driver: &str) -> io::Result<Finding> {
    let Some(active) = active_features(ifindex)? else {
        let found = "the kernel does not tell the adapter's offloads";
        return Ok(finding("offloads", Verdict::Ok, found, "tries"));
    };
    Ok(offloads_of(interface, driver, &active))
}

/// With these features active.
fn offloads_of(interface: &str, driver: &str, active: &BTreeSet<String>) -> Finding {
    let is_on = |name: &str| active.contains(name);
    let (mut found, mut guard) = (Vec::new(), Vec::new());
    for (feature, name, option) in [
        ("rx-lro", "large receive offload (LRO)", "lro"),
        (
            GRO_IN_HARDWARE,
            "receive offload in hardware (GRO-HW)",
            "rx-gro-hw",
        ),
    ] {
        // This driver ends it by itself while there is a program.
        if !is_on(feature) || (driver, feature) == ("virtio_net", GRO_IN_HARDWARE) {
            continue;
        }
        found.push(format!("{name} is on"));
        guard.push(match (driver, option) {
            ("vmxnet3", "lro") => {
                "has the driver switch it off for the program, and on again after it".to_owned()
            }
            _ => format!(
                "sees several packets as one, where the driver takes XDP beside it at all: `ethtool -K {interface} {option} off`"
            ),
        });
    }
    if is_on("rx-vlan-hw-parse") {
        found.push("VLAN tags are taken out of packets before XDP".to_owned());
        guard.push(
            "judges packets of VLANs by their addresses alone, as if they had no tag".to_owned(),
        );
    }
    if found.is_empty() {
        let found = "packets come as they are on the wire";
        finding("offloads", Verdict::Ok, found, "sees each packet")
    } else {
        finding(
            "offloads",
            Verdict::Limited,
            found.join("; "),
            guard.join("; "),
        )
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_driver_is_told_by_its_habit() {
        for driver in RESETTING {
            let told = attachment_of(driver, true);
            assert_eq!(told.verdict, Verdict::Limited);
            assert!(told.found.contains("sets up its rings anew"), "{told:?}");
            assert!(told.guard.contains("--standby it loses"), "{told:?}");
        }
        for driver in HALVING {
            let told = halving("eth0", driver, Some((5, 8)));
            assert_eq!(told.verdict, Verdict::Missing, "it would be refused");
            assert!(
                told.guard.contains("ethtool -L eth0 combined 4"),
                "{told:?}"
            );
            assert_eq!(halving("eth0", driver, Some((4, 8))).verdict, Verdict::Ok);
            assert_eq!(halving("eth0", driver, None).verdict, Verdict::Limited);
        }
        let told = attachment_of("virtio_net", false);
        assert_eq!(told.verdict, Verdict::Ok);
        let told = attachment_of("virtio_net", true);
        assert_eq!(told.verdict, Verdict::Limited);
        assert!(told.guard.contains("with --standby only"), "{told:?}");
        let told = attachment_of("veth", false);
        assert_eq!(told.verdict, Verdict::Limited);
        assert!(told.guard.contains("bulk transfers"), "{told:?}");
        assert!(
            told.guard.contains("--standby=false from the start"),
            "{told:?}"
        );
    }

    #[test]
    fn offloads_that_change_packets_are_told() {
        for (feature, remedy) in [
            ("rx-lro", "ethtool -K eth0 lro off"),
            ("rx-gro-hw", "ethtool -K eth0 rx-gro-hw off"),
            ("rx-vlan-hw-parse", "by their addresses alone"),
        ] {
            let told = offloads_of("eth0", "ixgbe", &BTreeSet::from([feature.to_owned()]));
            assert_eq!(told.verdict, Verdict::Limited);
            assert!(told.guard.contains(remedy), "{told:?}");
        }
        let lro = BTreeSet::from(["rx-lro".to_owned()]);
        let told = offloads_of("eth0", "vmxnet3", &lro);
        assert!(told.guard.contains("on again after it"), "{told:?}");
        // It was said that packets come as one, and to switch off for good what the driver ends
        // by itself.
        let large = BTreeSet::from([GRO_IN_HARDWARE.to_owned()]);
        let told = offloads_of("eth0", "virtio_net", &large);
        assert_eq!(told.verdict, Verdict::Ok);
        let harmless = BTreeSet::from(["rx-checksum".to_owned()]);
        assert_eq!(offloads_of("eth0", "igb", &harmless).verdict, Verdict::Ok);
    }
}
