//! What a guard leaves to the next one under a service manager, and what it leaves to
//! nobody.

use std::fs;
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill, raise};
use nix::sys::wait::WaitStatus;
use nix::unistd::Pid;
use plimsoll_guard::session::Settings;
use plimsoll_kernel::knobs::path_of;
use plimsoll_kernel::scheduling::Priority;
use plimsoll_tries::repeated;

use crate::common::ip;
use crate::common::notes::{Notes, Seen, has_xdp};
use crate::common::service_manager::Manager;
use crate::threads::{polling_threads, switch_gro_on};
use crate::{run, settings, stop_after};

pub(crate) const TESTS: [(&str, fn()); 4] = [
    ("hands_its_link_to_the_next", hands_its_link_to_the_next),
    (
        "whatever_else_may_fail_comes_before_the_program",
        whatever_else_may_fail_comes_before_the_program,
    ),
    (
        "one_that_cannot_start_leaves_no_program_behind",
        one_that_cannot_start_leaves_no_program_behind,
    ),
    (
        "killed_after_a_hand_over_it_is_undone_at_once",
        killed_after_a_hand_over_it_is_undone_at_once,
    ),
];

/// The id of the XDP program on `v0`.
fn program() -> Option<String> {
    let output = Command::new("ip").args(["link", "show", "v0"]).output();
    let text = String::from_utf8(output.unwrap().stdout).unwrap();
    let (_, rest) = text.split_once("prog/xdp id ")?;
    rest.split(' ').next().map(str::to_owned)
}

/// As long as the manager has its copy, another link would be refused: so the second
/// guard must have put its program in the place of the first one's.
fn hands_its_link_to_the_next() {
    let mut manager = Manager::new();
    let first = manager.start(|| {
        run(settings(), &mut Notes::new(stop_after(2))).unwrap();
    });
    let ended = manager.wait(first);
    assert_eq!(ended, WaitStatus::Exited(first, 0));
    assert_eq!(manager.said[0], "READY=1");
    assert_eq!(manager.stored.len(), 1, "{:?}", manager.said);
    let before = program().expect("attached while no guard runs");

    let second = manager.start(|| {
        run(settings(), &mut Notes::new(stop_after(2))).unwrap();
    });
    let ended = manager.wait(second);
    assert_eq!(ended, WaitStatus::Exited(second, 0));
    let after = program().expect("attached still");
    assert_ne!(after, before, "the second one's program");
    assert_eq!(manager.stored.len(), 1, "taken out, and handed on again");

    // A crash is no end in order: nobody keeps the link.
    let third = manager.start(|| {
        let mut crashing = Notes::new(|seen: Seen<'_>| {
            if seen.reports == 3 {
                raise(Signal::SIGKILL).unwrap();
            }
            Ok(())
        });
        run(settings(), &mut crashing).unwrap();
    });
    let ended = manager.wait(third);
    assert!(matches!(ended, WaitStatus::Signaled(..)), "{ended:?}");
    assert_eq!(manager.stored.len(), 0, "{:?}", manager.said);
    assert_detached_soon();
}

/// Of settings that are refused before anything is touched, and of those that the kernel
/// refuses.
fn one_that_cannot_start_leaves_no_program_behind() {
    let starts: [fn(); 2] = [
        || start_wrongly(None),
        || start_wrongly(Some(Priority::Nice(3))),
    ];
    for start in starts {
        let mut manager = Manager::new();
        let first = manager.start(|| {
            run(settings(), &mut Notes::new(stop_after(1))).unwrap();
        });
        manager.wait(first);
        assert_eq!(manager.stored.len(), 1);
        let second = manager.start(start);
        assert_eq!(manager.wait(second), WaitStatus::Exited(second, 0));
        assert_eq!(manager.stored.len(), 0, "{:?}", manager.said);
        assert_detached_soon();
    }
}

/// The status socket and the console once came after the program. It came and went with each
/// start that failed there, and a service manager starts again and again. So it is seen what is
/// tried first: this driver refuses any program, since the other end has more queues.
fn whatever_else_may_fail_comes_before_the_program() {
    ip("link add w0 numrxqueues 1 type veth peer name w1 numtxqueues 2");
    let more = Command::new("ethtool")
        .args(["-L", "w1", "tx", "2"])
        .status();
    assert!(more.expect("ethtool is installed").success());
    ip("link set w0 up");
    let socket = path_of("w0", "sock").unwrap();
    let refused = "`w0` refuses an XDP program, since its other end sends by more queues";
    let starts = [
        (false, false, false, refused),
        // It was told to guard the interface below.
        (true, false, false, refused),
        (false, true, false, "cannot show what"),
        (false, false, true, "cannot listen for questions"),
    ];
    for (stands_by, has_no_console, is_socket_taken, expected) in starts {
        let mut manager = Manager::new();
        let failing = manager.start(|| {
            if is_socket_taken {
                fs::create_dir_all(&socket).unwrap();
            }
            let mut notes = Notes::new(stop_after(1));
            notes.has_no_console = has_no_console;
            let settings = Settings {
                interface: "w0".to_owned(),
                standby: Some(stands_by),
                ..settings()
            };
            let error = run(settings, &mut notes).unwrap_err().to_string();
            assert!(error.starts_with(expected), "{error}");
        });
        assert_eq!(manager.wait(failing), WaitStatus::Exited(failing, 0));
    }
    fs::remove_dir(socket).unwrap();
}

/// There is no such CPU, and none is needed without threads.
fn start_wrongly(threaded: Option<Priority>) {
    let wrong = Settings {
        poll_cpu: Some(4096),
        threaded,
        ..settings()
    };
    run(wrong, &mut Notes::new(stop_after(1))).unwrap_err();
}

/// The keeper once had a copy of the link that was taken over, and waited two seconds for
/// the program's end that it held back itself. Where others have the CPUs it may take as long,
/// and it is tried again.
fn killed_after_a_hand_over_it_is_undone_at_once() {
    switch_gro_on();
    let mut waited = Vec::new();
    let is_undone_at_once = repeated(3, || {
        waited.push(undone_after_a_hand_over_and_a_kill());
        waited.last() < Some(&Duration::from_millis(1200))
    });
    assert!(is_undone_at_once, "turned for {waited:?}");
}

/// How long that took.
fn undone_after_a_hand_over_and_a_kill() -> Duration {
    let mut manager = Manager::new();
    let first = manager.start(|| {
        run(settings(), &mut Notes::new(stop_after(1))).unwrap();
    });
    manager.wait(first);
    let second = manager.start(|| {
        let threaded = Settings {
            threaded: Some(Priority::Nice(3)),
            ..settings()
        };
        let mut killed = Notes::new(|seen: Seen<'_>| {
            if seen.reports == 2 {
                assert_eq!(polling_threads("v0").len(), 1);
                interrupt_keeper();
                raise(Signal::SIGKILL).unwrap();
            }
            Ok(())
        });
        run(threaded, &mut killed).unwrap();
    });
    let ended = manager.wait(second);
    let killed = Instant::now();
    assert!(matches!(ended, WaitStatus::Signaled(..)), "{ended:?}");
    while has_xdp() || !polling_threads("v0").is_empty() {
        assert!(killed.elapsed() < Duration::from_secs(20), "for good");
        sleep(Duration::from_millis(10));
    }
    killed.elapsed()
}

/// As Ctrl-C, a terminal that is closed, and a service manager do to all processes of a guard. The
/// keeper outlives it.
fn interrupt_keeper() {
    let own = format!("PPid:\t{}", std::process::id());
    let processes = fs::read_dir("/proc").unwrap().flatten();
    let numbers = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let is_child = |pid: &i32| {
        let status = fs::read_to_string(format!("/proc/{pid}/status"));
        status.is_ok_and(|status| status.lines().any(|line| line == own))
    };
    let keepers: Vec<i32> = numbers.filter(is_child).collect();
    let [keeper] = keepers[..] else {
        panic!("{keepers:?}");
    };
    for signal in [Signal::SIGINT, Signal::SIGHUP, Signal::SIGTERM] {
        kill(Pid::from_raw(keeper), signal).unwrap();
    }
}

/// The kernel detaches when the last descriptor is gone, a keeper's among them.
fn assert_detached_soon() {
    let deadline = Instant::now() + Duration::from_secs(10);
    while has_xdp() {
        assert!(Instant::now() < deadline, "the program stays");
        sleep(Duration::from_millis(10));
    }
}
