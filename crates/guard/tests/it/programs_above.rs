//! XDP programs on interfaces above the guarded one: they take packets after the guard has seen them,
//! or keep it from being attached.

#![allow(unsafe_code, reason = "libbpf-rs attaches no program in generic mode")]

use std::os::fd::AsRawFd;

use plimsoll_guard::check::{Verdict, check};
use plimsoll_guard::{Config, Guard, Storage};
use plimsoll_kernel::error::with_causes;
use plimsoll_kernel::link;
use plimsoll_packets::frame::Packet;

use crate::common::assembled::{self, instruction as at};
use crate::common::closed_port::{FRAMES, guarded};
use crate::common::patient::received;
use crate::common::twin::{full, twin};
use crate::common::{HOST_V4, PEER_MAC, PEER_V4, bridged, in_namespace, ip};

const MACVLAN_MAC: [u8; 6] = [2, 0, 0, 0, 0, 0x77];

/// Has this interface run, in generic mode, a program that sends all on to another one.
fn redirect(interface: &str, to: &str) {
    let to = link::index(to).unwrap().cast_signed();
    let instructions = [
        at(0xb7, (1, 0), 0, to), // r1 = the other one
        at(0xb7, (2, 0), 0, 0),  // r2 = 0
        at(0x85, (0, 0), 0, 23), // r0 = redirect(r1, r2)
        at(0x95, (0, 0), 0, 0),  // exit
    ];
    let kind = (libbpf_sys::BPF_PROG_TYPE_XDP, libbpf_sys::BPF_XDP, 0);
    let program = assembled::load(kind, &instructions);
    let ifindex = link::index(interface).unwrap().cast_signed();
    // SAFETY: the program's descriptor is open, and there are no options.
    let attached = unsafe {
        libbpf_sys::bpf_xdp_attach(
            ifindex,
            program.as_raw_fd(),
            libbpf_sys::XDP_FLAGS_SKB_MODE,
            std::ptr::null(),
        )
    };
    assert_eq!(attached, 0, "the interface takes the program");
}

/// On a bridge of a macvlan device: directly above the guard the kernel takes none.
#[test]
fn what_a_program_above_takes_is_not_judged_by_a_full_socket_here() {
    in_namespace(|| {
        let (twin, server) = twin("02:00:00:00:00:77", 53);
        ip("link add link v0 name m0 address 02:00:00:00:00:77 type macvlan mode passthru");
        ip("link add br0 address 02:00:00:00:00:77 type bridge");
        ip("link set m0 master br0");
        ip("link set m0 up");
        ip("link set br0 up");
        redirect("br0", "g0");
        let _full = full(53);
        guarded(|guard, wire| {
            let packet = Packet::new(PEER_V4.into(), HOST_V4.into()).macs(PEER_MAC, MACVLAN_MAC);
            for client in 10_000..10_000 + FRAMES {
                wire.send(&packet.udp(client, 53, &[0; 64]));
            }
            assert_eq!(twin.run(move || received(&server)), u64::from(FRAMES));
            assert_eq!(guard.counters().unwrap().all().discarded(), 0);
            let unguarded: Vec<_> = guard.unguarded().iter().map(ToString::to_string).collect();
            assert_eq!(
                unguarded,
                ["protocol=udp taker=xdp", "protocol=tcp taker=xdp"]
            );
            let check = check("v0").unwrap();
            let found = check.findings.iter().find(|finding| finding.id == "above");
            let found = found.unwrap();
            assert_eq!(found.verdict, Verdict::Limited);
            assert!(
                found.found.contains("an XDP program on br0"),
                "{}",
                found.found
            );
        });
    });
}

/// The kernel refuses a program below another one. It was said that the interface itself has one, and
/// `check` found no obstacle.
#[test]
fn a_program_directly_above_is_named_as_what_refuses_the_guard() {
    in_namespace(|| {
        bridged();
        redirect("br0", "lo");
        let mut storage = Storage::default();
        let refused = Guard::attach(&mut storage, &Config::default(), "v0").unwrap_err();
        let said = with_causes(&refused);
        assert!(
            said.contains("`br0`, which is above `v0`, runs an XDP program"),
            "{said}"
        );
        assert!(said.contains("`ip link set br0 xdpgeneric off`"), "{said}");
        let check = check("v0").unwrap();
        let found = check
            .findings
            .iter()
            .find(|finding| finding.id == "attached");
        let found = found.unwrap();
        assert_eq!(found.verdict, Verdict::Missing);
        assert!(found.found.contains("br0"), "{}", found.found);
    });
}
