//! A gateway, which may translate, or the end of a tunnel, that forwards all that its CPU can, beside a real guard: nothing of
//! it is shed while nobody else wants the CPU, and the CPU limit holds for those who do. Needs root.

use std::net::{Ipv4Addr, UdpSocket};
use std::ops::RangeInclusive;

use plimsoll_kernel::meter::CpuTime;
use plimsoll_testbed::blast::Spec;
use plimsoll_testbed::{Config, Host, INNER_DEVICE, Testbed};
use serde_json::Value;

use crate::common::overload::{await_report, flood, flooded, receive_on_test_cpu};
use crate::common::start_with;
use crate::turn;

/// The host behind the gateway.
const BEHIND: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 2);
/// The last byte of the addresses that floods come from.
const SENDERS: RangeInclusive<u8> = 16..=31;
/// Of a VXLAN that ends here.
const VXLAN: u16 = 4789;
/// What the host behind the gateway has its packets sent to, whatever it asked.
const CLIENT: u16 = 40_000;
/// More than a CPU forwards.
const RATE_PPS: u64 = 1_500_000;
/// Receiving takes more than this soon. A holdoff for its sake is another test's.
const LIMITED: [&str; 6] = [
    "--interval-ms",
    "100",
    "--cpu-limit",
    "10",
    "--strategy",
    "off",
];
/// Reports, ten a second, until shedding has begun, and then those that are compared.
const REPORTS: usize = 10;
/// Where others took the machine's CPUs, or some of the time only, nothing is shown.
const TRIES: u32 = 8;

/// Where the flood goes on to.
#[derive(Clone, Copy, Debug)]
enum Towards {
    OtherHost,
    Tunnel,
    /// The host behind the gateway, for which that translates.
    Masqueraded,
}

impl Towards {
    /// What the guard counts its packets as.
    const fn kind(self) -> &'static str {
        match self {
            Self::OtherHost => "forward",
            Self::Tunnel => "udp_socket",
            Self::Masqueraded => "closed_port",
        }
    }
}

/// What happened while the flood was to be forwarded.
#[derive(Debug)]
struct Forwarded {
    admitted: u64,
    shed: u64,
    /// Where the gateway's CPU time went.
    time: CpuTime,
}

impl Forwarded {
    /// Whether others waited for the CPU nearly all the time; `None`: in part of it, or receiving
    /// did not take more than its part. A burst of somebody else's makes the guard shed for a while.
    fn others_wait(&self) -> Option<bool> {
        let part = self.time.contended.as_secs_f64() / self.time.network.as_secs_f64();
        match part {
            _ if self.time.share(self.time.network) < 0.12 => None,
            0.8.. => Some(true),
            ..0.35 if self.shed == 0 => Some(false),
            _ => None,
        }
    }
}

fn gateway() -> (Testbed, Host) {
    let testbed = Testbed::create(Config::default()).unwrap();
    let behind = testbed.add_host_behind().unwrap();
    let test = testbed.test();
    test.ip(&format!("address add 10.77.0.1/24 dev {INNER_DEVICE}"))
        .unwrap();
    test.sysctl("net.ipv4.ip_forward", "1").unwrap();
    behind
        .ip(&format!("address add {BEHIND}/24 dev behind0"))
        .unwrap();
    let [own, other] = [test.ipv4(), testbed.load().ipv4()];
    let device = test.device();
    let vxlan = format!("vxlan id 7 local {own} remote {other} dstport {VXLAN} dev {device}");
    test.ip(&format!("link add vx0 type {vxlan}")).unwrap();
    test.ip("link set vx0 up").unwrap();
    // Nobody is answered.
    behind.ip("route add blackhole default").unwrap();
    (testbed, behind)
}

/// Has the gateway translate, and the host behind it ask all who will send. What it is sent
/// stays in its socket's queue, and is lost there.
fn masquerade(testbed: &Testbed, behind: &Host, spec: &Spec) -> UdpSocket {
    let rules = "add table ip n; \
        add chain ip n out { type nat hook postrouting priority 100; }; \
        add rule ip n out ip saddr 10.77.0.0/24 masquerade";
    testbed.test().configure("nft", [rules]).unwrap();
    behind.ip("route add 198.18.0.0/15 via 10.77.0.1").unwrap();
    let ask = || {
        let client = UdpSocket::bind((BEHIND, CLIENT)).unwrap();
        for sender in SENDERS {
            for port in spec.flow.source_ports.clone() {
                let to = (Ipv4Addr::new(198, 18, 7, sender), port);
                client.send_to(b"please", to).unwrap();
            }
        }
        client
    };
    behind.run(ask).unwrap()
}

fn forward(towards: Towards, is_computing: bool) -> Forwarded {
    let (testbed, behind) = gateway();
    let test = testbed.test();
    let (_guard, mut reports) = start_with(test, &LIMITED);
    receive_on_test_cpu(&testbed);
    let _process = is_computing.then(|| test.computing().own_session().spawn().unwrap());
    let meter = test.cpu_meter().unwrap();
    let mut spec = flood(&testbed, 9..=9, RATE_PPS);
    let mut _client = None;
    match towards {
        Towards::OtherHost => spec.flow.destination = BEHIND.into(),
        Towards::Tunnel => spec.flow.destination_ports = VXLAN..=VXLAN,
        Towards::Masqueraded => {
            spec.flow.destination_ports = CLIENT..=CLIENT;
            _client = Some(masquerade(&testbed, &behind, &spec));
        }
    }
    let (forwarded, _) = flooded(&testbed, &spec, || {
        let mut last = |reports_left: usize| {
            let mut next = || await_report(&mut reports, "anything", |_| true);
            (1..reports_left).for_each(|_| drop(next()));
            next()
        };
        let (first, before) = (last(REPORTS), meter.snapshot());
        let last = last(REPORTS);
        let of = |report: &Value, outcome| {
            let kind = &report["totals"][towards.kind()];
            kind[outcome].as_u64().unwrap()
        };
        let new = |outcome| of(&last, outcome) - of(&first, outcome);
        Forwarded {
            admitted: new("admitted"),
            shed: new("share") + new("source_share"),
            time: meter.snapshot().since(&before),
        }
    });
    forwarded
}

/// Where somebody else's process computes on the gateway's CPU, it counts as much.
fn is_shed_for_those_who_wait_alone(towards: Towards) {
    let _turn = turn();
    for is_computing in [false, true] {
        let judged = (0..TRIES).find_map(|_| {
            let forwarded = forward(towards, is_computing);
            eprintln!("beside a process {is_computing}: {forwarded:?}");
            Some((forwarded.others_wait()?, forwarded))
        });
        let (others_wait, forwarded) = judged.expect("the gateway has a CPU to itself, or has not");
        assert!(others_wait || !is_computing, "a computing process waits");
        assert_eq!(forwarded.shed > 0, others_wait, "{forwarded:?}");
        assert!(forwarded.admitted > 0);
    }
}

#[test]
fn what_is_forwarded_is_shed_for_those_who_wait_for_the_cpu_alone() {
    is_shed_for_those_who_wait_alone(Towards::OtherHost);
}

/// An overlay's traffic was shed, although nobody wanted the CPU, and transfers in it collapsed.
#[test]
fn what_a_tunnel_takes_is_shed_for_those_who_wait_for_the_cpu_alone() {
    is_shed_for_those_who_wait_alone(Towards::Tunnel);
}

/// They look like packets to the gateway itself. They were shed, although nobody wanted the CPU.
#[test]
fn what_is_masqueraded_is_shed_for_those_who_wait_for_the_cpu_alone() {
    is_shed_for_those_who_wait_alone(Towards::Masqueraded);
}
