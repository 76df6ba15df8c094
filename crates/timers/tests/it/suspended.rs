//! A process that is stopped and continued while events are pending: what was
//! due meanwhile fires once, and a series goes on from there without a burst.

use std::env;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use plimsoll_timers::{SoftTimerConfig, Timers};

use crate::examples::epoll_loop;

/// Tells the child of a test below from the test.
const CHILD: &str = "PLIMSOLL_TIMERS_TEST_CHILD";
const INTERVAL_TICKS: u64 = 1000;

/// In the child: a series of events, each printed when it fires, in µs.
fn series() {
    let mut timers = Timers::new(SoftTimerConfig::default()).unwrap();
    let start = timers.now();
    timers.schedule_soft_event(INTERVAL_TICKS, ()).unwrap();
    for _ in 0..600 {
        let now = loop {
            if let Some(now) = timers.check() {
                break now;
            }
        };
        timers.poll_event(now).unwrap();
        println!("fired {}", now.saturating_since(start).as_micros());
        timers.schedule_soft_event(INTERVAL_TICKS, ()).unwrap();
    }
}

/// Starts this test once more, as the child.
fn start_child(test: &str) -> Child {
    Command::new(env::current_exe().unwrap())
        .args(["--exact", "--nocapture", test])
        .env(CHILD, "1")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

fn stop_for(child: &Child, span: Duration) {
    let pid = Pid::from_raw(child.id().try_into().unwrap());
    kill(pid, Signal::SIGSTOP).unwrap();
    thread::sleep(span);
    kill(pid, Signal::SIGCONT).unwrap();
}

#[test]
fn a_stopped_process_fires_one_event_of_a_series_when_it_goes_on() {
    if env::var_os(CHILD).is_some() {
        return series();
    }
    let mut child =
        start_child("suspended::a_stopped_process_fires_one_event_of_a_series_when_it_goes_on");
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut fired = Vec::new();
    for line in lines {
        // The harness may print in front of it.
        let line = line.unwrap();
        let Some((_, micros)) = line.split_once("fired ") else {
            continue;
        };
        fired.push(micros.parse::<u64>().unwrap());
        if fired.len() == 100 {
            stop_for(&child, Duration::from_millis(300));
        }
    }
    assert!(child.wait().unwrap().success());
    assert_eq!(fired.len(), 600);
    let gaps: Vec<u64> = fired.windows(2).map(|pair| pair[1] - pair[0]).collect();
    // The child prints faster than it is read, so the gap is somewhere later.
    assert!(gaps.iter().any(|&gap| gap >= 250_000), "it was not stopped");
    let shortest = gaps.iter().min().unwrap();
    assert!(
        *shortest >= INTERVAL_TICKS,
        "two events {shortest} us apart"
    );
}

/// `epoll_wait(2)` fails with EINTR then, and the loop of the guide ended by it.
#[test]
fn a_stopped_epoll_loop_goes_on() {
    const ROUNDS: usize = 50;
    if env::var_os(CHILD).is_some() {
        return (0..ROUNDS).for_each(|_| epoll_loop::main().unwrap());
    }
    let mut child = start_child("suspended::a_stopped_epoll_loop_goes_on");
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let sent = |line: &String| line.contains("sent 100 packets");
    let mut rounds = 0;
    for _ in lines.map_while(Result::ok).filter(sent) {
        rounds += 1;
        if rounds < ROUNDS {
            stop_for(&child, Duration::from_millis(2));
        }
    }
    assert!(child.wait().unwrap().success());
    assert_eq!(rounds, ROUNDS);
}
