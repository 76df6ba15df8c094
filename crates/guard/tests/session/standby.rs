//! A session that stands by: what is attached when, with which privileges, and what is left.

use std::fs;
use std::net::UdpSocket;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::thread::sleep;
use std::time::{Duration, Instant};

use nix::sys::wait::WaitStatus;
use plimsoll_guard::session::{SessionError, Settings};
use plimsoll_kernel::pass_all::PassAll;
use plimsoll_kernel::scheduling::Priority;

use crate::common::notes::{Notes, Seen, has_xdp};
use crate::common::service_manager::Manager;
use crate::{common, run, settings, stop_after};

pub(crate) const TESTS: [(&str, fn()); 6] = [
    (
        "stands_by_on_a_veth_unless_told_otherwise",
        stands_by_on_a_veth_unless_told_otherwise,
    ),
    (
        "stands_by_with_nothing_attached",
        stands_by_with_nothing_attached,
    ),
    (
        "attaches_for_losses_and_detaches_after_quiet",
        attaches_for_losses_and_detaches_after_quiet,
    ),
    (
        "takes_an_attached_program_over",
        takes_an_attached_program_over,
    ),
    (
        "refuses_a_place_that_is_taken",
        refuses_a_place_that_is_taken,
    ),
    (
        "goes_on_where_the_driver_refuses",
        goes_on_where_the_driver_refuses,
    ),
];

const QUIET: Duration = Duration::from_secs(1);
/// For what should happen within a second, where others have the CPUs.
const LIMIT: Duration = Duration::from_secs(20);

fn standing_by() -> Settings {
    Settings {
        standby: Some(true),
        standby_quiet: QUIET,
        ..settings()
    }
}

/// Sends more to a socket that nobody reads than a burst may lose. The kernel counts that for
/// the whole namespace.
fn overflow_a_socket() {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = socket.local_addr().unwrap();
    for _ in 0..5_000 {
        socket.send_to(b"?", address).unwrap();
    }
}

/// What this process has attached anywhere in the kernel.
fn bpf_links() -> usize {
    let descriptors = fs::read_dir("/proc/self/fd").unwrap().flatten();
    let named = descriptors.filter_map(|entry| fs::read_link(entry.path()).ok());
    named
        .filter(|name| name.to_string_lossy().contains("bpf_link"))
        .count()
}

fn stands_by_on_a_veth_unless_told_otherwise() {
    const SAID: &str = "interface=v0 stands by until the host loses packets: on a veth";
    for (standby, threaded, is_attached, is_said) in [
        (None, None, false, true),
        (Some(false), None, true, false),
        (Some(true), None, false, false),
        // It polls from start to exit.
        (None, Some(Priority::Nice(3)), true, false),
    ] {
        // A session gives up its capabilities, so each is a process.
        let mut others = Manager::new();
        let one = others.start(|| {
            let mut notes = Notes::new(|seen: Seen<'_>| {
                assert_eq!(has_xdp(), is_attached, "{standby:?}, {threaded:?}");
                seen.requests.stop();
                Ok(())
            });
            let settings = Settings {
                standby,
                threaded,
                ..settings()
            };
            run(settings, &mut notes).unwrap();
            let said = notes.lines.iter().any(|line| line.starts_with(SAID));
            assert_eq!(
                said, is_said,
                "{standby:?}, {threaded:?}: {:?}",
                notes.lines
            );
        });
        assert_eq!(others.wait(one), WaitStatus::Exited(one, 0));
    }
}

fn stands_by_with_nothing_attached() {
    let mut links = Vec::new();
    let mut notes = Notes::new(|seen: Seen<'_>| {
        links.push(bpf_links());
        stop_after(3)(seen)
    });
    run(standing_by(), &mut notes).unwrap();
    assert_eq!(
        notes.steps[..2],
        [
            "start: detached, in softirq, few capabilities, one thread, ordinary, silent",
            "show: detached, in softirq, few capabilities, threads, real-time, answers",
        ]
    );
    assert!(
        notes.steps[4].starts_with("finish: detached"),
        "{:?}",
        notes.steps
    );
    assert_eq!(notes.lines, [""; 0]);
    drop(notes);
    // What watches refusals and answers has no work where there are none.
    let is_met = links.iter().any(|count| *count > 6);
    assert!(!is_met, "the meter is attached: {links:?}");
}

/// Capabilities were given up long before.
fn attaches_for_losses_and_detaches_after_quiet() {
    let started = Instant::now();
    let mut attached = None;
    let mut is_flooded_again = false;
    let mut notes = Notes::new(|seen: Seen<'_>| {
        let snapshot = seen.report.snapshot;
        let attachments = snapshot.condition.attachments;
        assert_eq!(snapshot.condition.standing_by, !has_xdp());
        assert_eq!(snapshot.condition.syn_cookies.is_some(), has_xdp());
        if seen.reports == 5 {
            assert_eq!((has_xdp(), attachments), (false, 0));
            overflow_a_socket();
        }
        if !has_xdp() && attachments == 1 && !is_flooded_again {
            is_flooded_again = true;
            overflow_a_socket();
        }
        if has_xdp() {
            assert_eq!(attachments, 1 + u64::from(is_flooded_again));
            assert!(bpf_links() > 10, "the meter's");
            attached.get_or_insert_with(Instant::now);
        }
        let is_over = attachments == 2 && !has_xdp();
        if is_over || started.elapsed() > LIMIT {
            seen.requests.stop();
        }
        Ok(())
    });
    notes.notes_steps = false;
    run(standing_by(), &mut notes).unwrap();
    let lines = [
        "interface=v0 event=attached evidence=udp_socket",
        "interface=v0 event=detached",
    ];
    // What it has seen to be over does not keep it away.
    assert_eq!(notes.lines, [lines, lines].concat());
    assert!(attached.unwrap().elapsed() >= QUIET / 2);
}

fn takes_an_attached_program_over() {
    let mut manager = Manager::new();
    let first = manager.start(|| {
        run(settings(), &mut Notes::new(stop_after(1))).unwrap();
    });
    manager.wait(first);
    assert_eq!(manager.stored.len(), 1, "{:?}", manager.said);
    let second = manager.start(|| {
        let mut notes = Notes::new(|seen: Seen<'_>| {
            assert!(has_xdp() && !seen.report.snapshot.condition.standing_by);
            seen.requests.stop();
            Ok(())
        });
        run(standing_by(), &mut notes).unwrap();
    });
    assert_eq!(manager.wait(second), WaitStatus::Exited(second, 0));
    assert_eq!(manager.stored.len(), 1, "handed on again");
    let third = manager.start(|| {
        let started = Instant::now();
        let mut notes = Notes::new(|seen: Seen<'_>| {
            if !has_xdp() || started.elapsed() > LIMIT {
                seen.requests.stop();
            }
            Ok(())
        });
        notes.notes_steps = false;
        run(standing_by(), &mut notes).unwrap();
        assert_eq!(notes.lines, ["interface=v0 event=detached"]);
    });
    assert_eq!(manager.wait(third), WaitStatus::Exited(third, 0));
    assert_eq!(manager.stored.len(), 0, "there was nothing to hand on");
    assert!(!has_xdp());
}

fn refuses_a_place_that_is_taken() {
    let other = PassAll::attach("v0").unwrap();
    let error = run(standing_by(), &mut Notes::new(stop_after(1))).unwrap_err();
    assert!(matches!(error, SessionError::Guard(_)), "{error}");
    assert!(
        error.to_string().contains("already runs an XDP program"),
        "{error}"
    );
    drop(other);
    common::ip("link add br0 type bridge");
    common::ip("link set br0 up");
    let bridge = Settings {
        interface: "br0".to_owned(),
        ..standing_by()
    };
    let error = run(bridge, &mut Notes::new(stop_after(1))).unwrap_err();
    assert!(error.to_string().contains("no native XDP"), "{error}");
}

/// For as long as it is there, another process has a program on the interface.
static TAKEN: OnceLock<PathBuf> = OnceLock::new();

fn have_another_program() {
    let file = TAKEN.get().unwrap();
    while !file.exists() {
        sleep(Duration::from_millis(5));
    }
    let _other = PassAll::attach("v0").unwrap();
    while file.exists() {
        sleep(Duration::from_millis(5));
    }
}

/// It is told, and tried again.
fn goes_on_where_the_driver_refuses() {
    let directory = tempfile::tempdir().unwrap();
    let file = TAKEN.get_or_init(|| directory.path().join("taken"));
    let mut others = Manager::new();
    let other = others.start(have_another_program);
    let started = Instant::now();
    let mut is_refused = false;
    let mut notes = Notes::new(|seen: Seen<'_>| {
        let snapshot = seen.report.snapshot;
        if !is_refused && !seen.lines.is_empty() {
            assert_eq!(
                (
                    snapshot.condition.standing_by,
                    snapshot.condition.attachments
                ),
                (true, 0)
            );
            is_refused = true;
            fs::remove_file(file)?;
        } else if seen.reports == 3 {
            fs::write(file, "")?;
        }
        // While the other program is there, and until this one is.
        if is_refused || has_xdp() {
            overflow_a_socket();
        }
        if snapshot.condition.attachments > 0 || started.elapsed() > LIMIT {
            seen.requests.stop();
        }
        Ok(())
    });
    notes.notes_steps = false;
    run(standing_by(), &mut notes).unwrap();
    let [refused, .., last] = &notes.lines[..] else {
        panic!("{:?}", notes.lines);
    };
    let said = "interface=v0 cannot attach or detach the program that stands by: `v0` already runs";
    assert!(refused.starts_with(said), "{refused}");
    assert!(refused.contains("; all stays as it is, and this is tried again"));
    let attached = "interface=v0 event=attached evidence=udp_socket";
    assert!(notes.lines.iter().any(|line| line == attached), "{last}");
    assert_eq!(others.wait(other), WaitStatus::Exited(other, 0));
}
