//! Programs and actions of tc, and rules beside them, take packets after the guard has seen them,
//! and before the stack looks for their sockets. How full a socket of this host is says nothing of them then. What some
//! senders send may be taken and what others send refused, so no port is closed for that.

#![allow(unsafe_code, reason = "libbpf-rs does not attach programs to tcx")]

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::process::Command;
use std::time::{Duration, Instant};

use libbpf_sys::bpf_insn;
use nix::sys::socket::{setsockopt, sockopt};
use plimsoll_guard::check::{Verdict, check};
use plimsoll_guard::{Config, Guard, Kind, Outcome, Storage};
use plimsoll_kernel::link;

use crate::common::assembled::{self, instruction as at};
use crate::common::closed_port::{FRAMES, frame, guarded};
use crate::common::patient::{patient, received};
use crate::common::twin::{full, twin};
use crate::common::{HOST_V4, Wire, in_namespace, ip, nft};

/// The host's own.
const TWIN_MAC: &str = "02:00:00:00:00:02";

fn tc(words: &str) {
    let output = Command::new("tc").args(words.split(' ')).output();
    let output = output.expect("iproute2 is installed");
    assert!(output.status.success(), "tc {words}: {output:?}");
}

/// Has this be done with packets of UDP from and to these ports.
fn act(ports: &str, action: &str) {
    tc("qdisc add dev v0 clsact");
    tc(&format!(
        "filter add dev v0 ingress protocol ip u32 match ip protocol 17 0xff {ports} action {action}"
    ));
}

/// What `received_there` counts of the frames of many clients to port 53, while this host's own
/// socket there is full. Of these protocols nothing is guarded.
fn all_arrive(received_there: impl FnOnce() -> u64, expected: &[&str]) {
    let _full = full(53);
    guarded(|guard, wire| {
        for client in 10_000..10_000 + FRAMES {
            wire.send(&frame(client, 53));
        }
        assert_eq!(received_there(), u64::from(FRAMES));
        assert_eq!(guard.counters().unwrap().all().discarded(), 0);
        let unguarded: Vec<_> = guard.unguarded().iter().map(ToString::to_string).collect();
        assert_eq!(unguarded, expected);
    });
}

const BOTH: [&str; 2] = ["protocol=udp taker=tc", "protocol=tcp taker=tc"];

#[test]
fn what_is_redirected_is_not_judged_by_a_full_socket_here() {
    in_namespace(|| {
        let (twin, server) = twin(TWIN_MAC, 53);
        act("match ip dport 53 0xffff", "mirred egress redirect dev g0");
        let check = check("v0").unwrap();
        let found = check.findings.iter().find(|finding| finding.id == "tc");
        let found = found.unwrap();
        assert_eq!(found.verdict, Verdict::Limited);
        assert!(found.found.ends_with("or hosts: mirred"), "{}", found.found);
        all_arrive(|| twin.run(move || received(&server)), &BOTH);
    });
}

/// By a rule of nftables, where tc has its actions.
#[test]
fn nor_is_what_a_rule_sends_out_by_another_interface() {
    in_namespace(|| {
        let (twin, server) = twin(TWIN_MAC, 53);
        nft("add table netdev n; \
             add chain netdev n in { type filter hook ingress device v0 priority 0; }; \
             add rule netdev n in udp dport 53 fwd to g0");
        all_arrive(|| twin.run(move || received(&server)), &[]);
    });
}

/// `if (the datagram is for port) sk_assign(the socket of HOST_V4 that has chosen)`, and all go on.
fn assigning(port: u16, chosen: u16) -> OwnedFd {
    const PORT: i32 = 14 + 20 + 2;
    const TUPLE: i16 = -16;
    let address = i32::from_ne_bytes(HOST_V4.octets());
    let [port, chosen] = [port, chosen].map(|port| i32::from(port.to_be()));
    let instructions: Vec<bpf_insn> = vec![
        at(0xbf, (6, 1), 0, 0),      // r6 = r1
        at(0xb7, (2, 0), 0, PORT),   // r2 = PORT
        at(0xbf, (3, 10), 0, 0),     // r3 = r10
        at(0x07, (3, 0), 0, -24),    // r3 -= 24
        at(0xb7, (4, 0), 0, 2),      // r4 = 2
        at(0x85, (0, 0), 0, 26),     // r0 = skb_load_bytes(r1, r2, r3, r4)
        at(0x55, (0, 0), 21, 0),     // if r0 != 0 goto the end
        at(0x69, (1, 10), -24, 0),   // r1 = *(u16 *)(r10 - 24)
        at(0x55, (1, 0), 19, port),  // if r1 != port goto the end
        at(0x62, (10, 0), TUPLE, 0), // the tuple: from anywhere
        at(0x62, (10, 0), TUPLE + 4, address),
        at(0x6a, (10, 0), TUPLE + 8, 0),
        at(0x6a, (10, 0), TUPLE + 10, chosen),
        at(0xbf, (1, 6), 0, 0),            // r1 = r6
        at(0xbf, (2, 10), 0, 0),           // r2 = r10
        at(0x07, (2, 0), 0, TUPLE.into()), // r2 += TUPLE
        at(0xb7, (3, 0), 0, 12),           // r3 = 12
        at(0xb7, (4, 0), 0, -1),           // r4 = this network namespace
        at(0xb7, (5, 0), 0, 0),            // r5 = 0
        at(0x85, (0, 0), 0, 85),           // r0 = sk_lookup_udp(r1, …, r5)
        at(0x15, (0, 0), 7, 0),            // if r0 == 0 goto the end
        at(0xbf, (7, 0), 0, 0),            // r7 = r0
        at(0xbf, (1, 6), 0, 0),            // r1 = r6
        at(0xbf, (2, 7), 0, 0),            // r2 = r7
        at(0xb7, (3, 0), 0, 0),            // r3 = 0
        at(0x85, (0, 0), 0, 124),          // sk_assign(r1, r2, r3)
        at(0xbf, (1, 7), 0, 0),            // r1 = r7
        at(0x85, (0, 0), 0, 86),           // sk_release(r1)
        at(0xb7, (0, 0), 0, 0),            // the end: r0 = TCX_PASS
        at(0x95, (0, 0), 0, 0),            // exit
    ];
    let kind = (
        libbpf_sys::BPF_PROG_TYPE_SCHED_CLS,
        libbpf_sys::BPF_TCX_INGRESS,
        0,
    );
    let program = assembled::load(kind, &instructions);
    let ifindex = link::index("v0").unwrap().cast_signed();
    // SAFETY: the program's descriptor is open, and there are no options.
    let attached = unsafe {
        libbpf_sys::bpf_link_create(
            program.as_raw_fd(),
            ifindex,
            libbpf_sys::BPF_TCX_INGRESS,
            std::ptr::null(),
        )
    };
    assert!(attached >= 0, "the interface takes the program: {attached}");
    // SAFETY: just opened, and nobody else has it.
    unsafe { OwnedFd::from_raw_fd(attached) }
}

#[test]
fn what_a_program_assigns_is_not_judged_by_a_full_socket_here() {
    in_namespace(|| {
        let proxy = patient((HOST_V4, 6000));
        let _assigning = assigning(53, 6000);
        all_arrive(|| received(&proxy), &BOTH);
    });
}

#[test]
fn who_says_that_tc_takes_nothing_has_his_sockets_guarded() {
    in_namespace(|| {
        let _assigning = assigning(9, 6000);
        let _full = full(53);
        let config = Config {
            trust_tc: true,
            ..Config::default()
        };
        let mut storage = Storage::default();
        let mut guard = Guard::attach(&mut storage, &config, "v0").unwrap();
        let wire = Wire::open();
        (0..FRAMES).for_each(|_| wire.send(&frame(4000, 53)));
        assert!(guard.unguarded().is_empty());
        let packets = *guard.counters().unwrap().of(Kind::UdpSocket);
        assert!(packets.discarded() > u64::from(FRAMES) / 2, "{packets:?}");
    });
}

/// What comes in is shaped by an `ifb`, which hands it back.
#[test]
fn a_shaper_of_what_comes_in_is_no_reason_to_guard_nothing() {
    in_namespace(|| {
        ip("link add ifb0 type ifb");
        ip("link set ifb0 up");
        act("match u32 0 0", "mirred egress redirect dev ifb0");
        let server = patient((HOST_V4, 54));
        let _full = full(53);
        guarded(|guard, wire| {
            for _ in 0..FRAMES {
                wire.send(&frame(4000, 53));
                wire.send(&frame(4000, 54));
            }
            assert_eq!(received(&server), u64::from(FRAMES));
            let packets = *guard.counters().unwrap().of(Kind::UdpSocket);
            assert!(packets.discarded() > u64::from(FRAMES) / 2, "{packets:?}");
        });
    });
}

/// Strangers flood a port where nobody listens here, and what one sender sends there is taken.
fn one_sender_loses_nothing(received_there: impl FnOnce() -> u64) {
    guarded(|guard, wire| {
        guard.regulate().unwrap();
        let start = Instant::now();
        while start.elapsed() < Duration::from_millis(200) {
            wire.send(&frame(4000, 40_000));
        }
        for _ in 0..FRAMES {
            wire.send(&frame(9000, 40_000));
            (0..10).for_each(|_| wire.send(&frame(4000, 40_000)));
        }
        assert_eq!(received_there(), u64::from(FRAMES));
        let packets = *guard.counters().unwrap().of(Kind::ClosedPort);
        assert_eq!(packets.count(Outcome::Share), 0, "{packets:?}");
    });
}

#[test]
fn a_port_of_which_some_packets_are_redirected_is_not_closed() {
    in_namespace(|| {
        let (twin, server) = twin(TWIN_MAC, 40_000);
        let ports = "match ip sport 9000 0xffff match ip dport 40000 0xffff";
        act(ports, "mirred egress redirect dev g0");
        one_sender_loses_nothing(|| twin.run(move || received(&server)));
    });
}

#[test]
fn nor_is_one_of_which_a_rule_diverts_some() {
    in_namespace(|| {
        let proxy = patient((HOST_V4, 6000));
        setsockopt(&proxy, sockopt::IpTransparent, &true).unwrap();
        nft("add table ip m; \
             add chain ip m in { type filter hook prerouting priority -150; }; \
             add rule ip m in udp sport 9000 udp dport 40000 tproxy to :6000");
        one_sender_loses_nothing(|| received(&proxy));
    });
}
