//! The accounts of a CPU sum to the time passed, and hold what they should.

mod common;

use std::fs;
use std::net::UdpSocket;
use std::time::{Duration, Instant};

use common::create;
use nix::sys::signal::Signal;
use plimsoll_testbed::Testbed;
use plimsoll_testbed::cpu_meter::{CpuMeter, CpuTime};
use plimsoll_testbed::placement::{Placement, polling_thread};

fn start(testbed: &Testbed) -> CpuMeter {
    CpuMeter::start(testbed.test().cpu()).unwrap_or_else(|error| panic!("{error}"))
}

/// Meters `work` and checks what must hold of any work: no time is lost or
/// booked twice, against a clock of our own read on both sides of each snapshot.
fn meter(meter: &CpuMeter, work: impl FnOnce()) -> CpuTime {
    let outer = Instant::now();
    let before = meter.snapshot();
    let inner = Instant::now();
    work();
    let inner = inner.elapsed();
    let time = meter.snapshot().since(&before);
    let outer = outer.elapsed();
    assert_eq!(
        time.app + time.network + time.other + time.idle,
        time.elapsed
    );
    assert!(
        inner <= time.elapsed && time.elapsed <= outer,
        "{inner:?} <= {time:?} <= {outer:?}"
    );
    let watched: Duration = time.processes.iter().map(|process| process.cpu).sum();
    assert!(watched <= time.app);
    time
}

#[test]
fn a_spinning_process_is_booked_as_application_under_its_own_name() {
    let testbed = create();
    let mut cpu = start(&testbed);
    let spinner = testbed
        .test()
        .command("sh")
        .args(["-c", "while :; do :; done"])
        .nice(-20)
        .spawn()
        .unwrap();
    cpu.watch(spinner.pid()).unwrap();
    let before = runtime(spinner.pid());
    let time = meter(&cpu, || std::thread::sleep(Duration::from_millis(400)));
    // While it runs, the scheduler's account is as old as the last tick.
    spinner.signal(Signal::SIGSTOP).unwrap();
    while !is_stopped(spinner.pid()) {
        std::thread::sleep(Duration::from_millis(1));
    }
    let scheduler_says = runtime(spinner.pid()) - before;
    let meter_says = time.processes[0].cpu;
    assert_eq!(time.processes[0].pid, spinner.pid());
    assert!(meter_says > Duration::from_millis(100), "{time:?}");
    // The scheduler's clock includes softirqs on top, the meter's does not.
    // Beside other tests on this CPU it was seen up to 10 % behind the meter's all
    // the same; why has not been traced.
    assert!(
        meter_says <= scheduler_says + scheduler_says / 5 + Duration::from_millis(10),
        "{meter_says:?} by the meter, {scheduler_says:?} by the scheduler"
    );
    assert!(
        meter_says + time.network + time.other + Duration::from_millis(100) >= scheduler_says,
        "{scheduler_says:?} by the scheduler, {time:?}"
    );
    assert!(time.idle < Duration::from_millis(40), "{time:?}");
}

fn is_stopped(pid: u32) -> bool {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    text.lines().any(|line| line.starts_with("State:\tT"))
}

/// Time on any CPU by the scheduler's clock (the first field of schedstat).
fn runtime(pid: u32) -> Duration {
    let text = fs::read_to_string(format!("/proc/{pid}/schedstat")).unwrap();
    Duration::from_nanos(text.split_whitespace().next().unwrap().parse().unwrap())
}

/// Sends datagrams to a closed port of the test host for a while.
fn flood(testbed: &Testbed, span: Duration) {
    let target = (testbed.test().ipv4(), 9);
    let send = || {
        let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
        let end = Instant::now() + span;
        while Instant::now() < end {
            // The answer "port unreachable" comes back as an error at times.
            let _ = socket.send_to(&[0; 18], target);
        }
    };
    testbed.load().run_on_cpu(send).unwrap();
}

#[test]
fn softirq_receive_work_is_booked_as_network() {
    let testbed = create();
    let holdoff = Duration::from_micros(20);
    Placement::Softirq { holdoff }.apply(&testbed).unwrap();
    let cpu = start(&testbed);
    let time = meter(&cpu, || flood(&testbed, Duration::from_millis(400)));
    assert!(time.share(time.network) > 0.05, "{time:?}");
}

#[test]
fn a_polling_thread_is_booked_as_network() {
    let testbed = create();
    Placement::Threaded { nice: 0 }.apply(&testbed).unwrap();
    let thread = polling_thread(testbed.test()).unwrap().unwrap();
    let cpu = start(&testbed);
    let before = runtime(thread);
    let time = meter(&cpu, || flood(&testbed, Duration::from_millis(400)));
    let scheduler_says = runtime(thread) - before;
    assert!(scheduler_says > Duration::from_millis(5), "no receive work");
    assert!(
        time.network + Duration::from_millis(10) >= scheduler_says.mul_f64(0.9),
        "{scheduler_says:?} by the scheduler, {time:?}"
    );
}

#[test]
fn a_cpu_that_is_not_there_cannot_be_metered() {
    let error = CpuMeter::start(4000).unwrap_err();
    assert!(error.is_missing(), "{error}");
}
