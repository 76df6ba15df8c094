//! The recorder on this kernel (ST-62). Needs root.

use std::thread;
use std::time::Duration;

use nix::sched::{CpuSet, sched_setaffinity};
use nix::sys::resource::{UsageWho, getrusage};
use nix::unistd::{Pid, getppid};
use plimsoll_timers_bpf::{Analysis, ProbeCost, Recorder, Source, State};

/// Binds this thread to a CPU, so that its states are in that CPU's record.
fn bind_to_cpu_0() {
    let mut cpu = CpuSet::new();
    cpu.set(0).unwrap();
    sched_setaffinity(Pid::from_raw(0), &cpu).unwrap();
}

/// Page faults of this thread that the kernel has counted.
fn faults() -> usize {
    let usage = getrusage(UsageWho::RUSAGE_THREAD).unwrap();
    usize::try_from(usage.minor_page_faults() + usage.major_page_faults()).unwrap()
}

fn of(states: &[State], source: Source) -> usize {
    states.iter().filter(|state| state.source == source).count()
}

fn recorder(states: u32) -> Recorder {
    Recorder::attach(states).expect("attaching needs root and a kernel with BTF")
}

#[test]
fn system_calls_page_faults_and_packets_are_recorded_in_order() {
    bind_to_cpu_0();
    let mut recorder = recorder(1_000_000);
    recorder.start().unwrap();
    for _ in 0..1000 {
        std::hint::black_box(getppid());
    }
    // A fault per page, in memory that the allocator maps anew.
    let before = faults();
    std::hint::black_box(vec![1_u8; 4 << 20]);
    let faulted = faults() - before;
    let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    for _ in 0..100 {
        socket.send_to(&[0], socket.local_addr().unwrap()).unwrap();
    }
    // Idle, and the timer that ends the sleep.
    thread::sleep(Duration::from_millis(20));
    let record = recorder.stop().unwrap();
    let states = &record.cpus[0];
    assert_eq!(record.lost, 0);
    assert!(of(states, Source::SystemCall) >= 1100);
    // 4 MiB are 1024 pages, or 2 huge ones.
    assert!(faulted >= 2);
    let recorded = of(states, Source::PageFault);
    assert!(recorded >= faulted, "{recorded} of {faulted}");
    assert!(of(states, Source::IpOutput) >= 100);
    assert!(of(states, Source::NetworkSoftirq) >= 100);
    assert!(states.is_sorted_by_key(|state| state.at_ns));
    let analysis = Analysis::of(&[states]);
    assert!(analysis.all.unwrap().count > 1000);
}

#[test]
fn what_finds_no_room_is_counted_as_lost() {
    bind_to_cpu_0();
    let mut recorder = recorder(100);
    recorder.start().unwrap();
    for _ in 0..1000 {
        std::hint::black_box(getppid());
    }
    let record = recorder.stop().unwrap();
    assert_eq!(record.cpus[0].len(), 100);
    assert!(record.lost >= 900);
    // A new start begins anew.
    recorder.start().unwrap();
    let record = recorder.stop().unwrap();
    assert!(record.cpus[0].len() < 100);
}

/// The programs still cost what they cost, while the workload goes on.
#[test]
fn a_record_ends_where_it_was_told_to() {
    bind_to_cpu_0();
    let mut recorder = recorder(1_000_000);
    recorder.start().unwrap();
    for _ in 0..1000 {
        std::hint::black_box(getppid());
    }
    let reached = recorder.reached().unwrap();
    let short = recorder.read(&reached);
    for _ in 0..20_000 {
        std::hint::black_box(getppid());
    }
    assert_eq!(recorder.read(&reached).cpus, short.cpus);
    assert!(of(&short.cpus[0], Source::SystemCall) >= 1000);
    let whole = recorder.stop().unwrap();
    let later = whole.cpus[0].len() - short.cpus[0].len();
    assert!(later >= 20_000, "{later}");
}

#[test]
fn a_probe_costs_something() {
    let cost = ProbeCost::measure().expect("attaching needs root and a kernel with BTF");
    assert!(cost.per_state_ns() > 0.0, "{cost:?}");
    assert!(cost.without_ns > 0.0 && cost.per_state_ns().is_finite());
}
