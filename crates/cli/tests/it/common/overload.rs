//! What the tests of overload share: a flooded server, what the guard tells
//! meanwhile, and the interface's settings.

use std::fs;
use std::io::BufRead;
use std::ops::RangeInclusive;
use std::path::Path;
use std::thread;
use std::time::Duration;

use plimsoll_kernel::knobs::{Napi, Netdev};
use plimsoll_testbed::blast::{
    Blast, Bound, Flow, Priority, Report, Schedule, Spec, Stop, Transport,
};
use plimsoll_testbed::placement::Placement;
use plimsoll_testbed::server::{Config, Kind, Server};
use plimsoll_testbed::{Host, Testbed};
use serde_json::Value;

use super::PROGRAM;

/// Reports read before something that never comes is given up.
const REPORTS_MAX: usize = 300;
/// The longest flood, should a test not end it.
const FLOOD_MAX: Duration = Duration::from_secs(60);

/// Receives in interrupt context on the test host's CPU. Call it again after a
/// guard has attached, which renews the instances.
pub(crate) fn receive_on_test_cpu(testbed: &Testbed) {
    let holdoff = Duration::from_micros(200);
    Placement::Softirq { holdoff }.apply(testbed).unwrap();
}

/// A server that works on each packet.
pub(crate) fn busy_server(host: &Host, port: u16) -> Server {
    let config = Config {
        work: Duration::from_micros(2),
        rcvbuf_bytes: Some(1 << 20),
        ..Config::new(Kind::Sink, port)
    };
    Server::start_as_service(host, Path::new(PROGRAM), &config).unwrap()
}

/// UDP packets to the test host at a rate, from 14 sources.
pub(crate) fn flood(testbed: &Testbed, ports: RangeInclusive<u16>, rate_pps: u64) -> Spec {
    let flow = Flow {
        source: "198.18.7.16/28".parse().unwrap(),
        source_ports: 2000..=2003,
        destination: testbed.test().ipv4().into(),
        destination_ports: ports,
        transport: Transport::Udp {
            payload: vec![0; 18],
        },
    };
    let schedule = Schedule::Fixed { rate_pps };
    let load = testbed.load();
    let mut spec = Spec::new(load.device(), testbed.test().mac(), flow, schedule);
    spec.bound = Bound {
        time: FLOOD_MAX,
        ..Bound::default()
    };
    spec.cpu = Some(load.cpu());
    // It stands for another machine, so nothing that runs on this one may slow it: with
    // pauses of a second, overload would end and begin again. Servers have sessions of their
    // own: a session's weight is divided among CPUs by what runs on each (sched(7), autogroup).
    spec.priority = Priority::Nice(-20);
    spec
}

/// Ends a flood also when a test panics.
struct Ending(Stop);

impl Drop for Ending {
    fn drop(&mut self) {
        self.0.stop();
    }
}

/// Does `work` while the flood goes on.
pub(crate) fn flooded<T>(testbed: &Testbed, spec: &Spec, work: impl FnOnce() -> T) -> (T, Report) {
    let stop = Stop::new();
    thread::scope(|scope| {
        let sender = scope.spawn(|| {
            let blast = || Blast::load(spec)?.run(&stop);
            testbed.load().run(blast).unwrap().unwrap()
        });
        let ending = Ending(stop.clone());
        let result = work();
        drop(ending);
        (result, sender.join().unwrap())
    })
}

/// Reads the guard's reports until one is as wanted.
pub(crate) fn await_report(
    reports: &mut impl BufRead,
    what: &str,
    mut is_wanted: impl FnMut(&Value) -> bool,
) -> Value {
    let mut last = Value::Null;
    for _ in 0..REPORTS_MAX {
        let mut line = String::new();
        reports.read_line(&mut line).unwrap();
        last = serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line:?}"));
        if is_wanted(&last) {
            return last;
        }
    }
    panic!("no report says {what}: {}", last["governor"]);
}

/// As [`await_report`], until the governor is in a mode.
pub(crate) fn await_mode(reports: &mut impl BufRead, mode: &str) -> Value {
    await_report(reports, mode, |report| report["governor"]["mode"] == mode)
}

/// How an interface is set, device and instances.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Settings {
    /// `threaded`, `napi_defer_hard_irqs` and `gro_flush_timeout`.
    pub(crate) device: [String; 3],
    /// Without the numbers of instances and threads, which change by themselves.
    pub(crate) instances: Vec<Napi>,
}

/// The settings now, and the polling threads.
pub(crate) fn settings(host: &Host) -> (Settings, Vec<i32>) {
    let name = host.device();
    let read = || {
        let device = ["threaded", "napi_defer_hard_irqs", "gro_flush_timeout"].map(|setting| {
            let path = format!("/sys/class/net/{name}/{setting}");
            fs::read_to_string(path).unwrap().trim().to_owned()
        });
        (device, Netdev::new().instances(host.ifindex()).unwrap())
    };
    let (device, mut instances) = host.run(read).unwrap();
    let threads = instances.iter().filter_map(|napi| napi.thread).collect();
    for napi in &mut instances {
        (napi.id, napi.thread) = (0, None);
    }
    (Settings { device, instances }, threads)
}

/// A thread's scheduling class: 0 an ordinary one, 1 `SCHED_FIFO`, 5 `SCHED_IDLE`
/// (sched(7)); `None` if it is gone.
pub(crate) fn class_of(thread: i32) -> Option<u32> {
    let stat = fs::read_to_string(format!("/proc/{thread}/stat")).ok()?;
    // Field 41; the second one, in brackets, may hold spaces.
    stat.rsplit(')').next()?.split(' ').nth(39)?.parse().ok()
}
