//! A session whose interface is deleted or moved away: it ends by itself, and leaves nothing.

use std::time::Duration;

use nix::sys::wait::WaitStatus;
use plimsoll_guard::session::{SessionError, Settings};
use plimsoll_kernel::namespace::Named;
use plimsoll_kernel::scheduling::Priority;
use plimsoll_kernel::{knobs, link};

use crate::common::ip;
use crate::common::notes::{Notes, Seen};
use crate::common::service_manager::Manager;
use crate::threads::{polling_threads, switch_gro_on};
use crate::{run, settings, stop_after};

pub(crate) const TESTS: [(&str, fn()); 3] = [
    (
        "a_deleted_interface_ends_it_in_every_state",
        a_deleted_interface_ends_it_in_every_state,
    ),
    (
        "nor_is_another_one_of_its_name_and_number_taken_for_it",
        nor_is_another_one_of_its_name_and_number_taken_for_it,
    ),
    (
        "an_interface_that_is_moved_away_ends_it_and_is_put_back",
        an_interface_that_is_moved_away_ends_it_and_is_put_back,
    ),
];

/// Runs until its interface has gone, by `leave` after a moment. It has to end for that alone.
fn run_until_gone(settings: Settings, leave: impl Fn()) {
    let settings = Settings {
        duration: Some(Duration::from_secs(20)),
        ..settings
    };
    let mut notes = Notes::new(|seen: Seen<'_>| {
        if seen.reports == 5 {
            leave();
        }
        Ok(())
    });
    notes.notes_steps = false;
    let error = run(settings, &mut notes).expect_err("the interface has gone");
    assert_eq!(error.exit_code(), 1);
    let told = error.to_string();
    let said = "the interface `v0` has gone from this network namespace (it was deleted, or moved";
    assert!(told.starts_with(said), "{told}");
    let is_false = |line: &&String| line.contains("goes on") || line.contains("cannot");
    assert_eq!(notes.lines.iter().find(is_false), None);
    assert!(matches!(error, SessionError::InterfaceGone { .. }));
}

fn a_deleted_interface_ends_it_in_every_state() {
    for (standby, threaded) in [
        (false, None),
        (true, None),
        (false, Some(Priority::Nice(3))),
    ] {
        // A session gives up its capabilities, so each is a process.
        let mut manager = Manager::new();
        let wait = |manager: &mut Manager, child| {
            let ended = manager.wait(child);
            assert_eq!(
                ended,
                WaitStatus::Exited(child, 0),
                "{standby} {threaded:?}"
            );
        };
        let settings = || Settings {
            standby: Some(standby),
            threaded,
            ..settings()
        };
        let one = manager.start(|| run_until_gone(settings(), || ip("link del v0")));
        wait(&mut manager, one);
        assert_eq!(manager.stored.len(), 0, "there is nothing to hand on");
        ip("link add v0 type veth peer name v1");
        ip("link set v0 up");
        assert_eq!(knobs::owner("v0").unwrap(), None);
        let next = manager.start(|| run(settings(), &mut Notes::new(stop_after(1))).unwrap());
        wait(&mut manager, next);
        manager.stored.clear();
    }
}

/// The guard went on, with a program on nothing, and said that it protects.
fn nor_is_another_one_of_its_name_and_number_taken_for_it() {
    let number = link::index("v0").unwrap();
    for standby in [false, true] {
        let mut manager = Manager::new();
        let one = manager.start(|| {
            let settings = Settings {
                standby: Some(standby),
                ..settings()
            };
            run_until_gone(settings, || {
                ip("link del v0");
                ip(&format!(
                    "link add v0 index {number} type veth peer name v1"
                ));
                ip("link set v0 up");
            });
        });
        assert_eq!(manager.wait(one), WaitStatus::Exited(one, 0), "{standby}");
        assert_eq!(manager.stored.len(), 0, "there is nothing to hand on");
    }
}

fn an_interface_that_is_moved_away_ends_it_and_is_put_back() {
    switch_gro_on();
    let elsewhere = Named::create(&format!("plimsoll-away-{}", std::process::id())).unwrap();
    let mut manager = Manager::new();
    let moving = format!("link set v0 netns {}", elsewhere.name());
    let one = manager.start(|| {
        let settings = Settings {
            threaded: Some(Priority::Nice(3)),
            ..settings()
        };
        run_until_gone(settings, || ip(&moving));
    });
    assert_eq!(manager.wait(one), WaitStatus::Exited(one, 0));
    assert_eq!(manager.stored.len(), 0, "there is nothing to hand on");
    let left = elsewhere.run(|| {
        ip("link set v0 up");
        let link = link::link(link::index("v0").unwrap()).unwrap();
        (link.xdp, polling_threads("v0").len())
    });
    assert_eq!(left.unwrap(), (None, 0), "program, polling threads");
}
