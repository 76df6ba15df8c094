//! A session without the command: the order of its start and of its end, reload, and
//! failure of the governor. Needs root.
//!
//! A session forks its keeper and gives up capabilities for good, which takes a
//! process with one thread. So this is a program of its own that forks once per test.

#![allow(unsafe_code, reason = "one process per test")]

#[path = "it/common/mod.rs"]
mod common;
#[path = "session/control_groups.rs"]
mod control_groups;
#[path = "session/descriptors.rs"]
mod descriptors;
#[path = "session/gone.rs"]
mod gone;
#[path = "session/handover.rs"]
mod handover;
#[path = "session/next.rs"]
mod next;
#[path = "session/read_only.rs"]
mod read_only;
#[path = "session/refused.rs"]
mod refused;
#[path = "session/renamed.rs"]
mod renamed;
#[path = "session/standby.rs"]
mod standby;
#[path = "session/threads.rs"]
mod threads;

use std::fs;
use std::io::{self, Write};
use std::net::UdpSocket;
use std::os::unix::fs::PermissionsExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use common::notes::{Notes, Seen, attribute, has_xdp, is_polled_by_thread};
use common::service_manager::Manager;
use common::{HOST_V4, Wire, to_host, udp_socket};
use control_groups::groups_of;
use descriptors::{cpu_time, limit_descriptors};
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use nix::sys::wait::{WaitPidFlag, WaitStatus, wait, waitpid};
use nix::unistd::{ForkResult, Pid, Uid, fork};
use plimsoll_guard::Config;
use plimsoll_guard::session::{
    self, Console, Metrics, ServiceManager, SessionError, Settings, Shares,
};
use plimsoll_kernel::knobs::restore;
use plimsoll_kernel::pass_all::PassAll;
use plimsoll_kernel::scheduling::{Priority, thread_time};

const TESTS: [(&str, fn()); 10] = [
    ("starts_in_order", starts_in_order),
    ("restores_before_it_detaches", restores_before_it_detaches),
    (
        "a_mistake_at_the_start_touches_nothing",
        a_mistake_at_the_start_touches_nothing,
    ),
    (
        "says_which_interface_to_guard_instead",
        says_which_interface_to_guard_instead,
    ),
    ("reads_settings_again", reads_settings_again),
    (
        "keeps_known_clients_in_a_file",
        keeps_known_clients_in_a_file,
    ),
    ("goes_on_without_a_governor", goes_on_without_a_governor),
    (
        "has_another_thread_tell_owners_apart",
        has_another_thread_tell_owners_apart,
    ),
    ("ends_with_its_reader", ends_with_its_reader),
    ("a_second_one_is_refused", a_second_one_is_refused),
];

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let others = control_groups::TESTS.iter().chain(&handover::TESTS);
    let others = others.chain(&gone::TESTS).chain(&renamed::TESTS);
    let others = others.chain(&descriptors::TESTS).chain(&read_only::TESTS);
    let others = others.chain(&standby::TESTS).chain(&threads::TESTS);
    let others = others.chain(&refused::TESTS).chain(&next::TESTS);
    let tests = TESTS.iter().chain(others);
    if arguments.iter().any(|argument| argument == "--list") {
        for (name, _) in tests {
            println!("{name}: test");
        }
        return ExitCode::SUCCESS;
    }
    assert!(
        Uid::effective().is_root(),
        "these tests make network namespaces and need root: run `sudo make test`"
    );
    let wanted = arguments.iter().find(|argument| !argument.starts_with('-'));
    let is_wanted = |name: &str| wanted.is_none_or(|wanted| name.contains(wanted.as_str()));
    let tests: Vec<_> = tests.filter(|(name, _)| is_wanted(name)).collect();
    let count = tests.len();
    let failed = run_all(tests);
    let word = if failed == 0 { "ok" } else { "FAILED" };
    // As libtest says it, for those who count.
    let passed = count - failed as usize;
    println!("test result: {word}. {passed} passed; {failed} failed");
    if failed == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

/// Most of them wait.
const AT_ONCE: usize = 2;

/// Tests that poll in threads, or see that nobody does, run one after the other: a thread's name
/// does not tell its namespace.
const POLLED: [&str; 11] = [
    "a_deleted_interface_ends_it_in_every_state",
    "an_interface_that_is_moved_away_ends_it_and_is_put_back",
    "starts_in_order",
    "restores_before_it_detaches",
    "goes_on_without_a_governor",
    "ends_with_its_reader",
    "polls_in_a_control_group",
    "killed_after_a_hand_over_it_is_undone_at_once",
    "stands_by_with_nothing_attached",
    "threads_that_the_driver_makes_anew_are_as_those_before",
    "killed_after_its_interface_was_moved_it_is_undone_there",
];

/// Runs tests, some at once; how many failed.
fn run_all(mut waiting: Vec<&(&str, fn())>) -> u32 {
    let is_polled = |name: &str| POLLED.contains(&name);
    let mut running: Vec<(Pid, &str)> = Vec::new();
    let mut failed = 0;
    loop {
        while running.len() < AT_ONCE {
            let polls = running.iter().any(|(_, name)| is_polled(name));
            let can_start = |(name, _): &&(&str, _)| !(polls && is_polled(name));
            let Some(next) = waiting.iter().position(can_start) else {
                break;
            };
            let (name, test) = waiting.remove(next);
            running.push((start(*test), name));
        }
        if running.is_empty() {
            return failed;
        }
        let ended = wait().unwrap();
        let place = running
            .iter()
            .position(|(child, _)| Some(*child) == ended.pid());
        let (child, name) = running.remove(place.expect("a child of these"));
        let passed = ended == WaitStatus::Exited(child, 0);
        println!("test {name} ... {}", if passed { "ok" } else { "FAILED" });
        failed += u32::from(!passed);
        for group in groups_of(child.as_raw().cast_unsigned()) {
            // Most of them were not made.
            let _ = fs::remove_dir(group);
        }
    }
}

/// Starts `test` in a process with one thread and a network namespace of its own.
fn start(test: fn()) -> Pid {
    io::stdout().flush().unwrap();
    // SAFETY: this process has no other thread that could hold a lock.
    match unsafe { fork() }.unwrap() {
        ForkResult::Parent { child } => child,
        ForkResult::Child => {
            let ended = catch_unwind(AssertUnwindSafe(|| {
                unshare(CloneFlags::CLONE_NEWNET | CloneFlags::CLONE_NEWNS).unwrap();
                own_sysfs();
                common::set_up();
                test();
            }));
            std::process::exit(i32::from(ended.is_err()));
        }
    }
}

/// `/sys` shows the devices of the namespace that it was mounted in. What is mounted for
/// control groups below it is kept.
fn own_sysfs() {
    let none = None::<&str>;
    let private = MsFlags::MS_REC | MsFlags::MS_PRIVATE;
    mount(none, "/", none, private, none).unwrap();
    let bind = |from, to| {
        mount(
            Some(from),
            to,
            none,
            MsFlags::MS_BIND | MsFlags::MS_REC,
            none,
        )
    };
    bind("/sys/fs/cgroup", "/mnt").unwrap();
    mount(Some("sysfs"), "/sys", Some("sysfs"), MsFlags::empty(), none).unwrap();
    bind("/mnt", "/sys/fs/cgroup").unwrap();
}

fn settings() -> Settings {
    Settings {
        interval: Duration::from_millis(50),
        standby: Some(false),
        ..Settings::new("v0")
    }
}

/// A session beside the service manager of this process, if it has one.
fn run(settings: Settings, console: &mut dyn Console) -> Result<(), SessionError> {
    session::run(settings, ServiceManager::of_this_process(), console)
}

/// Ends the session after so many reports.
fn stop_after(last: u32) -> impl FnMut(Seen<'_>) -> io::Result<()> {
    move |seen| {
        if seen.reports >= last {
            seen.requests.stop();
        }
        Ok(())
    }
}

fn starts_in_order() {
    let mut notes = Notes::new(stop_after(1));
    let settings = Settings {
        metrics: Some(Metrics {
            address: "127.0.0.1:0".parse().unwrap(),
            channels_max: 1,
            public: false,
        }),
        ..settings()
    };
    run(settings, &mut notes).unwrap();
    assert_eq!(
        notes.steps,
        [
            "start: detached, in softirq, few capabilities, one thread, ordinary, silent",
            "show: attached, in softirq, few capabilities, threads, real-time, answers",
            "finish: detached, in softirq, few capabilities, threads, real-time, silent",
        ]
    );
    assert_eq!(notes.lines, [""; 0]);
}

/// Without XDP this veth has no NAPI instance, and then nothing can switch its
/// polling thread off: only a session that restores before it detaches can.
fn restores_before_it_detaches() {
    let mut notes = Notes::new(stop_after(2));
    let settings = Settings {
        threaded: Some(Priority::Nice(3)),
        ..settings()
    };
    run(settings, &mut notes).unwrap();
    let polling = ["in threads", "in threads", "in softirq"];
    for (step, polling) in notes.steps[1..].iter().zip(polling) {
        assert!(step.contains(polling), "{:?}", notes.steps);
    }
    assert!(matches!(restore(Some("v0")), (restored, Ok(())) if restored.is_empty()));
}

fn a_mistake_at_the_start_touches_nothing() {
    let mut notes = Notes::new(stop_after(1));
    let no_thread = Settings {
        poll_cpu: Some(0),
        ..settings()
    };
    let error = run(no_thread, &mut notes).unwrap_err();
    assert!(matches!(error, SessionError::Settings(_)), "{error}");
    // So it is seen what is looked at first: each program that comes and goes costs some adapters
    // their rings, and a service manager starts again.
    let other = PassAll::attach("v0").unwrap();
    let no_ring = Settings {
        ring_frames: Some(3),
        ..settings()
    };
    let error = run(no_ring, &mut notes).unwrap_err().to_string();
    assert!(error.starts_with("ring_frames = 3: "), "{error}");
    drop(other);
    let missing = Settings::new("nothing0");
    let error = run(missing, &mut notes).unwrap_err();
    assert!(
        error.to_string().contains("no interface `nothing0`"),
        "{error}"
    );
    assert_eq!(notes.steps, [""; 0]);
    assert!(!has_xdp());
}

/// This kernel has no bonds; a bridge stands on its ports as a bond on its members. A
/// guard of a bond once started without a word.
fn says_which_interface_to_guard_instead() {
    common::ip("link add br0 type bridge");
    common::ip("link set br0 up");
    common::ip("link set v0 master br0");
    let mut manager = Manager::new();
    let refused = manager.start(|| {
        let mut notes = Notes::new(stop_after(1));
        let error = run(Settings::new("br0"), &mut notes).unwrap_err();
        assert!(error.to_string().contains("no native XDP"), "{error}");
        assert_eq!(
            notes.lines,
            [
                "interface=br0 warning: br0 receives through v0. The guard cannot govern interrupts \
                 from here: guard the interface where packets come in (v0) instead of br0"
            ]
        );
    });
    assert_eq!(manager.wait(refused), WaitStatus::Exited(refused, 0));
    let mut notes = Notes::new(stop_after(1));
    run(settings(), &mut notes).unwrap();
    let [line] = &notes.lines[..] else {
        panic!("{:?}", notes.lines);
    };
    assert!(line.contains("warning: v0 belongs to the bridge br0. The guard judges"));
}

fn reads_settings_again() {
    let observed = Settings {
        guard: Config {
            observe: true,
            syn_cookies: Some(false),
            ..Config::default()
        },
        threaded: Some(Priority::RealTime),
        ..settings()
    };
    let wrong = Settings {
        poll_cpu: Some(0),
        ..settings()
    };
    let mut seen_observing = Vec::new();
    let mut notes = Notes::new(|seen: Seen<'_>| {
        seen_observing.push(seen.report.snapshot.condition.observe);
        match seen.reports {
            1 => *seen.new_settings = Some(wrong.clone()),
            2 => *seen.new_settings = Some(observed.clone()),
            3 => seen.requests.stop(),
            _ => {}
        }
        seen.requests.reload();
        Ok(())
    });
    run(settings(), &mut notes).unwrap();
    let lines = notes.lines;
    assert_eq!(
        lines[..4],
        [
            "interface=v0 the settings stay as they were: poll-cpu = 0: no thread polls without threaded, or strategy = \"thread\"",
            "interface=v0 settings read again",
            "interface=v0 threaded: a change takes a new start",
            "interface=v0 event=syn_cookies by=stack reason=switched_off",
        ]
    );
    assert_eq!(seen_observing, [false, false, true]);
}

/// A damaged file is told, and replaced at the end.
fn keeps_known_clients_in_a_file() {
    let directory = tempfile::tempdir().unwrap();
    fs::set_permissions(&directory, fs::Permissions::from_mode(0o700)).unwrap();
    let file = directory.path().join("known.json");
    fs::write(&file, "{}").unwrap();
    let mut notes = Notes::new(|seen: Seen<'_>| {
        seen.requests.stop();
        Ok(())
    });
    let settings = Settings {
        known_sources_file: Some(file.clone()),
        ..settings()
    };
    run(settings, &mut notes).unwrap();
    let told = notes
        .lines
        .iter()
        .filter(|line| line.contains("no known sources"));
    assert_eq!(told.count(), 1, "{:?}", notes.lines);
    let kept = fs::read_to_string(&file).unwrap();
    assert!(kept.contains("\"sources\":[]"), "{kept}");
    assert_eq!(
        fs::metadata(&file).unwrap().permissions().mode() & 0o777,
        0o600
    );
}

/// With no descriptor left, no netlink socket can be opened, no address be read.
fn goes_on_without_a_governor() {
    let mut notes = Notes::new(|seen: Seen<'_>| {
        let told = |text: &str| seen.lines.iter().any(|line| line.contains(text));
        let governs = seen.report.snapshot.condition.governor.mode == "overload";
        if seen.reports == 1 {
            flood();
            limit_descriptors(true);
        } else if told("can govern again") && told("addresses again") && governs
            || seen.reports > 400
        {
            seen.requests.stop();
        } else if told("cannot govern") && told("cannot take over") {
            limit_descriptors(false);
            if !told("can govern again") {
                let holdoff = attribute("napi_defer_hard_irqs");
                assert_eq!(holdoff, "0", "nothing stays turned");
            }
        }
        Ok(())
    });
    notes.notes_steps = false;
    // A full queue: overload, since each packet is discarded and a CPU is busy.
    let _server = udp_socket((HOST_V4, 5000), 64 << 10);
    WIRE.set(Wire::open()).unwrap();
    run(settings(), &mut notes).unwrap();
    let told = |text: &str| {
        let start = format!("interface=v0 {text}");
        notes.lines.iter().any(|line| line.starts_with(&start))
    };
    for action in ["govern", "take over the host's addresses"] {
        assert!(told(&format!("cannot {action}: ")), "{:?}", notes.lines);
        assert!(
            told(&format!("can {action} again after ")),
            "{:?}",
            notes.lines
        );
    }
    assert_eq!(attribute("napi_defer_hard_irqs"), "0");
    assert_eq!(attribute("gro_flush_timeout"), "0");
}

static WIRE: OnceLock<Wire> = OnceLock::new();

/// Frames for the server, from a thread of its own until the process ends.
fn flood() {
    let frame = to_host(HOST_V4).udp(4000, 5000, &[0; 18]);
    std::thread::spawn(move || {
        loop {
            // A full ring is no error here.
            let _ = WIRE.get().unwrap().try_send(&frame);
        }
    });
}

/// Its own thread is real-time, and listed all sockets of the host: 20,000 took it 10 to 15 ms
/// in one piece. Of the time that all its threads take, most is not its own now.
fn has_another_thread_tell_owners_apart() {
    let sockets = 20_000..25_000;
    let _sockets: Vec<_> = sockets
        .map(|port| UdpSocket::bind((HOST_V4, port)).unwrap())
        .collect();
    let times = || (thread_time(0).unwrap(), cpu_time());
    let mut before = None;
    let mut took = (Duration::ZERO, Duration::ZERO);
    let mut notes = Notes::new(|seen: Seen<'_>| {
        let now = times();
        let (own, all) = *before.get_or_insert(now);
        took = (now.0 - own, now.1 - all);
        if took.1 > took.0 * 2 || seen.reports > 50 {
            seen.requests.stop();
        }
        Ok(())
    });
    notes.notes_steps = false;
    let settings = Settings {
        shares: Shares::Process,
        interval: Duration::from_millis(200),
        ..settings()
    };
    run(settings, &mut notes).unwrap();
    assert!(took.1 > took.0 * 2, "{took:?}");
}

fn ends_with_its_reader() {
    let mut notes = Notes::new(|seen: Seen<'_>| match seen.reports {
        2 => Err(io::ErrorKind::BrokenPipe.into()),
        _ => Ok(()),
    });
    let settings = Settings {
        threaded: Some(Priority::Nice(3)),
        ..settings()
    };
    let error = run(settings, &mut notes).unwrap_err();
    assert!(matches!(error, SessionError::Console(_)), "{error}");
    assert!(!has_xdp());
    assert!(!is_polled_by_thread());
    assert!(matches!(restore(Some("v0")), (restored, Ok(())) if restored.is_empty()));
}

fn a_second_one_is_refused() {
    // SAFETY: this process has no other thread that could hold a lock.
    let ForkResult::Parent { child } = unsafe { fork() }.unwrap() else {
        let deadline = Instant::now() + Duration::from_secs(20);
        while !has_xdp() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(10));
        }
        let refused = run(settings(), &mut Notes::new(stop_after(1))).unwrap_err();
        let is_expected = refused.to_string().contains("`v0` is guarded by process");
        if !is_expected {
            eprintln!("{refused}");
        }
        std::process::exit(i32::from(!is_expected));
    };
    let mut notes = Notes::new(|seen: Seen<'_>| {
        let ended = waitpid(child, Some(WaitPidFlag::WNOHANG)).unwrap();
        if ended != WaitStatus::StillAlive {
            assert_eq!(ended, WaitStatus::Exited(child, 0));
            seen.requests.stop();
        }
        Ok(())
    });
    run(settings(), &mut notes).unwrap();
    assert!(!has_xdp());
}
