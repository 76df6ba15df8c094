//! Protected traffic through the router's user-space path, beside a flood. Needs root.

use std::net::{Ipv4Addr, UdpSocket};
use std::sync::PoisonError;
use std::thread;
use std::time::Duration;

use nix::sys::socket::{setsockopt, sockopt};
use plimsoll_core::config::Fraction;
use plimsoll_programs::forward::{Config, DataPath, Router, Status};
use plimsoll_testbed::blast::{
    Blast, Bound, Flow, Priority, Report, Schedule, Spec, Stop, Transport,
};
use plimsoll_testbed::routed::{Routed, SINK_IPV4, Sink};
use plimsoll_testbed::{Config as TestbedConfig, Placement, Process};
use plimsoll_tries::repeated;

use crate::common::{ANSWERING, LIMIT, TURN, config, eventually_answered, nothing_is_left, of};

/// Above what a router takes that shares its CPU, also where the generator gets part of its own.
const FLOOD_PPS: u64 = 150_000;
const PORT: u16 = 7003;
/// Protected datagrams beside the flood, one every 200 µs and slower.
const PROTECTED: u32 = 1_000;

/// So low that the flood uses it up, where others want the CPU.
const CPU_LIMIT: u32 = 50;

struct Flooded {
    arrived: u32,
    report: Report,
    status: Status,
}

/// Sends protected datagrams through a router, on whose CPU processes compute, beside a flood.
fn flooded(protected: Option<&str>, computing: usize) -> Flooded {
    let hosts = Routed::create(TestbedConfig::default(), Sink::Answers).expect("three hosts");
    let holdoff = Duration::from_micros(50);
    hosts.place(Placement::Softirq { holdoff }).unwrap();
    let router = hosts.router();
    let config = Config {
        cpu: Some(router.cpu()),
        protected: protected.map(str::to_owned),
        cpu_limit: Some(Fraction::from_percent(CPU_LIMIT)),
        ..config(DataPath::User)
    };
    let start = || Router::start(&config, Vec::new()).expect("the router starts");
    let forwarding = router.run(start).expect("the router's host");
    eventually_answered(hosts.load(), ANSWERING);
    let socket = hosts.sink().run(|| UdpSocket::bind((ANSWERING, PORT)));
    let socket = socket.unwrap().unwrap();
    // It is read after everything was sent.
    setsockopt(&socket, sockopt::RcvBufForce, &(8 << 20)).unwrap();
    let computing: Vec<Process> = (0..computing)
        .map(|_| router.computing().spawn().unwrap())
        .collect();
    let stop = Stop::new();
    let report = thread::scope(|scope| {
        let flood = scope.spawn(|| flood(&hosts, &stop));
        thread::sleep(Duration::from_millis(300));
        hosts.load().run(send).unwrap();
        assert!(!flood.is_finished(), "it was done beside the flood");
        stop.stop();
        flood.join().unwrap()
    });
    drop(computing);
    hosts.settled().unwrap();
    let status = forwarding.status().unwrap();
    router.run(move || drop(forwarding)).unwrap();
    nothing_is_left(&hosts);
    Flooded {
        arrived: received(&socket),
        report,
        status,
    }
}

fn send() {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).unwrap();
    for number in 0..PROTECTED {
        socket
            .send_to(&number.to_be_bytes(), (ANSWERING, PORT))
            .unwrap();
        thread::sleep(Duration::from_micros(200));
    }
}

fn received(socket: &UdpSocket) -> u32 {
    socket.set_nonblocking(true).unwrap();
    let mut buffer = [0; 64];
    std::iter::from_fn(|| socket.recv(&mut buffer).ok()).count() as u32
}

fn flood(hosts: &Routed, stop: &Stop) -> Report {
    let flow = Flow {
        source: "198.18.7.0/24".parse().unwrap(),
        source_ports: 1024..=2047,
        destination: SINK_IPV4.into(),
        destination_ports: 9..=9,
        transport: Transport::Udp {
            payload: vec![0; 18],
        },
    };
    let rate_pps = FLOOD_PPS;
    let (load, router) = (hosts.load(), hosts.router());
    let mut spec = Spec::new(
        load.device(),
        router.mac(),
        flow,
        Schedule::Fixed { rate_pps },
    );
    // It stands for another machine.
    spec.priority = Priority::Nice(-20);
    spec.bound = Bound {
        time: LIMIT,
        frames: 4_000_000_000,
    };
    load.run_on_cpu(|| Blast::load(&spec)?.run(stop))
        .unwrap()
        .unwrap()
}

/// Two processes want the CPU, and the flood uses the limit up. Not protected, 579 of 1,000
/// arrived. Other processes may take the CPUs from all of this, the generator included: then it
/// is tried again.
#[test]
fn protected_traffic_passes_beside_a_flood_and_processes_that_compute() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let mut said = String::new();
    let passes = repeated(8, || {
        let (passes, why) = is_passed(&flooded(Some("udp dst port 7003"), 2));
        said += &why;
        passes
    });
    eprintln!("{said}");
    assert!(passes, "{said}");
}

fn is_passed(flooded: &Flooded) -> (bool, String) {
    let (arrived, sent, status) = (flooded.arrived, flooded.report.sent, &flooded.status);
    let interfaces = status.interfaces.iter();
    let protected = interfaces.filter_map(|interface| Some(interface.user?.protected));
    let protected: u64 = protected.sum();
    assert!(protected >= u64::from(arrived), "{arrived}: {status}");
    let others = of(status, "forwarded") - protected;
    assert!(others > 1_000, "the others go on: {status}");
    let is_overload = 10 * others < 8 * sent;
    let said = format!("{arrived} protected ones, and {others} of {sent} others\n");
    (is_overload && arrived * 100 >= PROTECTED * 90, said)
}
