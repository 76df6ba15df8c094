//! Turned settings come back: by drop, after SIGKILL at any step, and never to
//! an interface they are not of.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use plimsoll_kernel::error::{OpenError, RecordError, TurnError};
use plimsoll_kernel::knobs::{self, DEFER_MARK, Knobs, Netdev, PollingThread, Queues};
use plimsoll_kernel::pass_all::PassAll;
use plimsoll_kernel::scheduling::Priority;
use plimsoll_kernel::threaded::poll_in_threads;
use tempfile::TempDir;

use crate::common::{in_namespace, ip};
use crate::turned::{
    DEFER, HOLDOFF, NONE, STEPS, files, killed_after, settings, start_child, start_child_with,
    turn, with_napi,
};

/// What was restored, if nothing was refused.
fn restore_in(directory: &Path, interface: Option<&str>) -> Result<Vec<String>, OpenError> {
    let (restored, done) = knobs::restore_in(directory, interface);
    done.map(|()| restored)
}

#[test]
fn every_setting_is_turned_and_back_after_a_drop() {
    with_napi(|directory| {
        let before = settings();
        assert_eq!(before.1, [""; 0], "no polling thread yet");
        let mut knobs = Knobs::open_in(directory.path(), "v0").unwrap();
        assert!(knobs.is_untouched());

        turn(&mut knobs, 0);
        let napi = knobs.instances().unwrap()[0];
        assert_eq!(napi.defer_hard_irqs, Some(DEFER));
        assert_eq!(napi.gro_flush_timeout, Some(50_000));
        turn(&mut knobs, 1);
        let threads = knobs.polling_threads().unwrap();
        let PollingThread { napi: id, .. } = threads[0];
        assert_eq!(id, napi.id);
        turn(&mut knobs, 2);
        turn(&mut knobs, 3);
        let turned = settings().1;
        assert!(
            turned[0].contains("policy 1 ") && turned[0].contains("\t0 "),
            "{turned:?}"
        );
        assert!(!knobs.is_untouched());

        drop(knobs);
        assert_eq!(settings(), before);
        assert_eq!(files(directory), NONE, "nothing is left");
    });
}

#[test]
fn an_operators_own_threads_get_their_scheduling_back() {
    with_napi(|directory| {
        let mut operator = Knobs::open_in(&directory.path().join("operator"), "v0").unwrap();
        poll_in_threads(&mut operator, Queues::All, Priority::Nice(-3), Some(&[0])).unwrap();
        let before = settings();
        assert!(before.1[0].starts_with("nice -3 policy 0"), "{before:?}");
        for steps in 3..=STEPS {
            killed_after(steps, directory);
            assert_eq!(restore_in(directory.path(), Some("v0")).unwrap(), ["v0"]);
            assert_eq!(settings(), before, "after {steps} steps");
        }
    });
}

#[test]
fn a_guard_killed_at_any_step_is_undone_by_the_next_start_and_by_restore() {
    with_napi(|directory| {
        let before = settings();
        for steps in 0..=STEPS {
            killed_after(steps, directory);
            drop(Knobs::open_in(directory.path(), "v0").unwrap());
            assert_eq!(settings(), before, "next start after {steps} steps");
            assert_eq!(files(directory), NONE);

            killed_after(steps, directory);
            let expected: &[&str] = if steps == 0 { &[] } else { &["v0"] };
            assert_eq!(restore_in(directory.path(), None).unwrap(), expected);
            assert_eq!(settings(), before, "restore after {steps} steps");
        }
    });
}

/// As an operator finds it whose `/run` was emptied, or after a guard that took turned
/// settings for the host's own.
#[test]
fn what_a_killed_guard_left_is_recognised_without_a_record() {
    with_napi(|directory| {
        let deferred = || {
            let ifindex = nix::net::if_::if_nametoindex("v0").unwrap();
            let instances = Netdev::new().instances(ifindex).unwrap();
            instances[0].defer_hard_irqs
        };
        let lose_record = || {
            let mut child = start_child_with(1, directory, DEFER_MARK);
            child.kill().unwrap();
            child.wait().unwrap();
            files(directory)
                .iter()
                .for_each(|path| fs::remove_file(path).unwrap());
            assert_eq!(deferred(), Some(DEFER_MARK));
        };
        lose_record();
        assert_eq!(restore_in(directory.path(), None).unwrap(), ["v0"]);
        assert_eq!(deferred(), Some(0));
        assert_eq!(restore_in(directory.path(), None).unwrap(), [""; 0]);
        lose_record();
        let mut knobs = Knobs::open_in(directory.path(), "v0").unwrap();
        assert_eq!(deferred(), Some(0));
        turn(&mut knobs, 0);
        drop(knobs);
        assert_eq!(deferred(), Some(0));
        assert_eq!(files(directory), NONE);
    });
}

#[test]
fn settings_survive_an_attachment_that_renews_all_instances() {
    with_napi(|directory| {
        let before = settings();
        let mut knobs = Knobs::open_in(directory.path(), "v0").unwrap();
        turn(&mut knobs, 1);
        let pass_all = PassAll::attach("v0").unwrap();
        turn(&mut knobs, 0);
        turn(&mut knobs, 2);
        drop(pass_all);
        drop(knobs);
        let mut after = settings();
        for (after, before) in after.0.iter_mut().zip(&before.0) {
            after.id = before.id;
        }
        assert_eq!(after, before);
    });
}

#[test]
fn threads_of_instances_that_are_gone_need_no_restoring() {
    in_namespace(|| {
        let directory = tempfile::tempdir().unwrap();
        let pass_all = PassAll::attach("v0").unwrap();
        let mut knobs = Knobs::open_in(directory.path(), "v0").unwrap();
        turn(&mut knobs, 1);
        assert_eq!(knobs.polling_threads().unwrap().len(), 1);
        // Without XDP, veth has no instances.
        drop(pass_all);
        knobs.restore().unwrap();
        assert!(knobs.is_untouched());
        let _pass_all = PassAll::attach("v0").unwrap();
        assert_eq!(knobs.polling_threads().unwrap(), []);
        drop(knobs);
        assert_eq!(files(&directory), NONE);
    });
}

#[test]
fn a_living_owner_is_named_and_keeps_its_settings() {
    with_napi(|directory| {
        let mut owner = start_child(1, directory);
        let second = Knobs::open_in(directory.path(), "v0").unwrap_err();
        assert!(
            matches!(second, OpenError::InUse { ref guarding, .. } if guarding.pid == owner.id()),
            "{second}"
        );
        let restore = restore_in(directory.path(), Some("v0")).unwrap_err();
        assert!(matches!(restore, OpenError::InUse { .. }), "{restore}");
        assert_eq!(settings().0[0].defer_hard_irqs, Some(DEFER));
        owner.kill().unwrap();
        owner.wait().unwrap();
    });
}

/// Changes the record's text, and returns whether the next start restored.
fn restored_with(directory: &TempDir, change: impl FnOnce(&str) -> String) -> bool {
    killed_after(1, directory);
    let record = files(directory)
        .into_iter()
        .find(|path| path.extension().is_some_and(|e| e == "json"))
        .unwrap();
    let text = fs::read_to_string(&record).unwrap();
    let changed = change(&text);
    assert!(!changed.is_empty());
    fs::write(&record, changed).unwrap();
    drop(Knobs::open_in(directory.path(), "v0").unwrap());
    assert_eq!(files(directory), NONE);
    let turned = settings().0[0].defer_hard_irqs == Some(DEFER);
    // As it was, for the next one.
    let mut knobs = Knobs::open_in(directory.path(), "v0").unwrap();
    let undo = knobs.set_holdoff(Queues::All, 0, Duration::ZERO);
    undo.unwrap();
    std::mem::forget(knobs);
    for file in files(directory) {
        fs::remove_file(file).unwrap();
    }
    !turned
}

/// The record with another value for one field.
fn with(text: &str, field: &str, value: serde_json::Value) -> String {
    let mut record: serde_json::Value = serde_json::from_str(text).unwrap();
    assert_ne!(record[field], value);
    record[field] = value;
    record.to_string()
}

#[test]
fn what_another_boot_namespace_or_interface_left_is_not_applied() {
    with_napi(|directory| {
        assert!(restored_with(directory, str::to_owned));
        assert!(!restored_with(directory, |t| with(
            t,
            "boot_id",
            "x".into()
        )));
        assert!(!restored_with(directory, |t| with(
            t,
            "netns_inode",
            1.into()
        )));
        assert!(!restored_with(directory, |t| with(
            t,
            "netns_cookie",
            1.into()
        )));
        assert!(!restored_with(directory, |t| with(t, "ifindex", 99.into())));
    });
}

#[test]
fn a_record_that_makes_no_sense_stops_the_start_with_its_name() {
    with_napi(|directory| {
        killed_after(1, directory);
        for file in files(directory) {
            fs::write(file, "{").unwrap();
        }
        for error in [
            Knobs::open_in(directory.path(), "v0").unwrap_err(),
            restore_in(directory.path(), None).unwrap_err(),
        ] {
            assert!(
                matches!(error, OpenError::Record(RecordError::Unusable { .. })),
                "{error}"
            );
            assert!(error.to_string().contains("v0."), "{error}");
        }
        assert_eq!(settings().0[0].defer_hard_irqs, Some(DEFER), "untouched");
    });
}

#[test]
fn without_a_place_for_the_record_nothing_is_turned() {
    with_napi(|directory| {
        let before = settings();
        let mut knobs = Knobs::open_in(&directory.path().join("records"), "v0").unwrap();
        fs::remove_dir_all(directory.path().join("records")).unwrap();
        let refused = knobs.set_holdoff(Queues::All, DEFER, HOLDOFF).unwrap_err();
        assert!(
            matches!(refused, TurnError::Record(RecordError::NotWritten { .. })),
            "{refused}"
        );
        let refused = knobs.set_threaded(Queues::All, true).unwrap_err();
        assert!(
            matches!(refused, TurnError::Record(RecordError::NotWritten { .. })),
            "{refused}"
        );
        assert_eq!(settings(), before);
    });
}

#[test]
fn a_device_without_instances_is_set_as_a_whole() {
    in_namespace(|| {
        let directory = tempfile::tempdir().unwrap();
        // Without GRO and XDP, veth does not use NAPI.
        let mut knobs = Knobs::open_in(directory.path(), "v0").unwrap();
        assert_eq!(knobs.instances().unwrap(), []);
        knobs.set_holdoff(Queues::All, DEFER, HOLDOFF).unwrap();
        // An instance made now takes the device's values over.
        let pass_all = PassAll::attach("v0").unwrap();
        assert_eq!(knobs.instances().unwrap()[0].defer_hard_irqs, Some(DEFER));
        knobs.restore().unwrap();
        assert_eq!(knobs.instances().unwrap()[0].defer_hard_irqs, Some(0));
        drop(pass_all);
    });
}

#[test]
fn every_queue_of_an_interface_is_set_and_a_missing_one_is_named() {
    in_namespace(|| {
        let directory = tempfile::tempdir().unwrap();
        ip(
            "link add m0 numrxqueues 4 numtxqueues 4 type veth peer name m1 numrxqueues 4 numtxqueues 4",
        );
        ip("link set m0 up");
        let _pass_all = PassAll::attach("m0").unwrap();
        let mut knobs = Knobs::open_in(directory.path(), "m0").unwrap();
        let before = knobs.instances().unwrap();
        assert_eq!(before.len(), 4);
        knobs.set_holdoff(Queues::All, DEFER, HOLDOFF).unwrap();
        let turned = knobs.instances().unwrap();
        assert!(
            turned
                .iter()
                .all(|napi| napi.defer_hard_irqs == Some(DEFER))
        );
        let error = knobs
            .set_holdoff(Queues::Only(&[99]), 0, Duration::ZERO)
            .unwrap_err();
        assert!(
            matches!(error, TurnError::NoSuchQueue { queue: 99, .. }),
            "{error}"
        );
        poll_in_threads(&mut knobs, Queues::All, Priority::Nice(1), None).unwrap();
        assert_eq!(knobs.polling_threads().unwrap().len(), 4);
        knobs.restore().unwrap();
        assert_eq!(knobs.instances().unwrap(), before);
    });
}

#[test]
fn each_instance_can_have_a_holdoff_of_its_own() {
    in_namespace(|| {
        let directory = tempfile::tempdir().unwrap();
        ip("link add m0 numrxqueues 4 numtxqueues 4 type veth peer name m1");
        ip("link set m0 up");
        let _pass_all = PassAll::attach("m0").unwrap();
        let mut knobs = Knobs::open_in(directory.path(), "m0").unwrap();
        let before = knobs.instances().unwrap();
        let own = [(before[0].id, HOLDOFF), (before[2].id, HOLDOFF * 2)];
        assert!(knobs.set_holdoffs(&own, DEFER, HOLDOFF * 3).unwrap());
        let turned = knobs.instances().unwrap();
        let nanos = |times| u32::try_from((HOLDOFF * times).as_nanos()).ok();
        assert_eq!(turned[0].gro_flush_timeout, nanos(1));
        assert_eq!(turned[2].gro_flush_timeout, nanos(2));
        assert_eq!(
            [turned[1], turned[3]],
            [before[1], before[3]],
            "left as they are"
        );
        // One again: its old setting is the host's still.
        knobs.set_holdoffs(&own[..1], DEFER, HOLDOFF).unwrap();
        let too_long = [(before[1].id, Duration::from_secs(5))];
        knobs.set_holdoffs(&too_long, DEFER, HOLDOFF).unwrap_err();
        knobs.restore().unwrap();
        assert_eq!(knobs.instances().unwrap(), before);
    });
}

#[test]
fn values_out_of_range_are_refused_before_anything_is_turned() {
    with_napi(|directory| {
        let mut knobs = Knobs::open_in(directory.path(), "v0").unwrap();
        let long = knobs.set_holdoff(Queues::All, 1, Duration::from_secs(5));
        assert!(long.unwrap_err().to_string().contains("4.29 s"));
        let often = knobs.set_holdoff(Queues::All, u32::MAX, HOLDOFF);
        assert!(often.unwrap_err().to_string().contains("2^31-1"));
        let strange = knobs.set_thread_priority(1, Priority::Nice(0)).unwrap_err();
        let cause = std::error::Error::source(&strange).unwrap().to_string();
        assert!(cause.contains("thread 1 does not poll"), "{cause}");
        assert!(knobs.is_untouched());
    });
}

#[test]
fn a_removed_interface_takes_its_settings_along() {
    with_napi(|directory| {
        killed_after(2, directory);
        let mut knobs = Knobs::open_in(directory.path(), "v0").unwrap();
        turn(&mut knobs, 0);
        ip("link del v0");
        knobs.restore().unwrap();
        drop(knobs);
        assert_eq!(restore_in(directory.path(), None).unwrap(), [""; 0]);
        assert_eq!(files(directory), NONE);
    });
}

/// The first interface that could not be put back kept all others from it.
#[test]
fn what_cannot_be_put_back_keeps_no_other_interface_from_it() {
    with_napi(|directory| {
        let before = settings();
        let turned = |directory: &TempDir| {
            killed_after(1, directory);
            assert_ne!(settings(), before);
        };
        // Guarded, and first by its name.
        ip("link add a0 type veth peer name a1");
        let mut living = Knobs::open_in(directory.path(), "a0").unwrap();
        turn(&mut living, 0);
        turned(directory);
        assert_eq!(restore_in(directory.path(), None).unwrap(), ["v0"]);
        assert_eq!(settings(), before);
        drop(living);

        // A record of it that makes no sense.
        turned(directory);
        let is_record = |path: &&PathBuf| path.extension().is_some_and(|e| e == "json");
        let record = files(directory);
        let record = record.iter().find(is_record).unwrap();
        let other = record.to_str().unwrap().replace("/v0.", "/a0.");
        fs::write(&other, "{").unwrap();
        assert_eq!(restore_in(directory.path(), Some("v0")).unwrap(), ["v0"]);
        assert_eq!(settings(), before);
        turned(directory);
        let (restored, refused) = knobs::restore_in(directory.path(), None);
        let refused = refused.unwrap_err();
        assert!(refused.to_string().contains("/a0."), "{refused}");
        assert_eq!(restored, ["v0"], "also told");
        assert_eq!(settings(), before);
    });
}

/// Its record was removed, and its settings stayed.
#[test]
fn an_interface_that_was_renamed_is_restored() {
    with_napi(|directory| {
        let before = settings();
        let rename = |from: &str, to: &str| ip(&format!("link set {from} name {to}"));
        for wanted in [None, Some("w0")] {
            killed_after(STEPS - 1, directory);
            rename("v0", "w0");
            assert_eq!(restore_in(directory.path(), wanted).unwrap(), ["w0"]);
            assert_eq!(files(directory), NONE);
            rename("w0", "v0");
            assert_eq!(settings(), before);
        }
        killed_after(STEPS - 1, directory);
        rename("v0", "w0");
        drop(Knobs::open_in(directory.path(), "w0").unwrap());
        assert_eq!(files(directory), NONE);
        rename("w0", "v0");
        assert_eq!(settings(), before);
    });
}

/// Its holdoff, which has the mark of guards, was taken from it.
#[test]
fn an_interface_that_was_renamed_stays_its_guard_s() {
    with_napi(|directory| {
        let mut owner = start_child_with(1, directory, DEFER_MARK);
        ip("link set v0 name w0");
        for wanted in [None, Some("w0")] {
            assert_eq!(restore_in(directory.path(), wanted).unwrap(), [""; 0]);
        }
        let ifindex = nix::net::if_::if_nametoindex("w0").unwrap();
        let instances = Netdev::new().instances(ifindex).unwrap();
        assert_eq!(instances[0].defer_hard_irqs, Some(DEFER_MARK));
        owner.kill().unwrap();
        owner.wait().unwrap();
    });
}

/// A record was in the way of another one, which was removed.
#[test]
fn interfaces_that_took_each_other_s_names_are_restored() {
    let defer = |name: &str| {
        let ifindex = nix::net::if_::if_nametoindex(name).unwrap();
        Netdev::new().instances(ifindex).unwrap()[0].defer_hard_irqs
    };
    let chain: &[_] = &[("v0", "w0"), ("t0", "v0")];
    let swap: &[_] = &[("v0", "x0"), ("t0", "v0"), ("x0", "t0")];
    for (renamed, names) in [(chain, ["v0", "w0"]), (swap, ["t0", "v0"])] {
        with_napi(|directory| {
            killed_after(1, directory);
            ip("link set v0 name t0");
            for words in ["add v0 type veth peer name u1", "set v0 up", "set u1 up"] {
                ip(&format!("link {words}"));
            }
            let _attached = PassAll::attach("v0").unwrap();
            killed_after(1, directory);
            for (from, to) in renamed {
                ip(&format!("link set {from} name {to}"));
            }
            assert_eq!(names.map(defer), [Some(DEFER); 2]);
            assert_eq!(restore_in(directory.path(), None).unwrap(), names);
            assert_eq!(names.map(defer), [Some(0); 2]);
            assert_eq!(files(directory), NONE);
        });
    }
}

/// In a container the number of a polling thread was another thread's, which became a
/// real-time one.
#[test]
fn a_pid_namespace_names_no_polling_threads() {
    const NAME: &str = "knobs::a_pid_namespace_names_no_polling_threads";
    if let Ok(directory) = std::env::var("PLIMSOLL_PID_NAMESPACE") {
        let directory = Path::new(&directory);
        let left = restore_in(directory, Some("v0")).unwrap_err();
        assert!(causes(&left).contains("--pid=host"), "{left:?}");
        let mut knobs = Knobs::open_in(&directory.join("own"), "v0").unwrap();
        knobs.set_threaded(Queues::All, true).unwrap();
        assert_eq!(knobs.polling_threads().unwrap(), []);
        knobs.restore().unwrap();
        let refused = poll_in_threads(&mut knobs, Queues::All, Priority::Nice(5), None);
        let refused = refused.unwrap_err();
        assert!(causes(&refused).contains("--pid=host"), "{refused:?}");
        assert!(knobs.is_untouched());
        return;
    }
    with_napi(|directory| {
        let before = settings();
        killed_after(3, directory);
        let mut inside = Command::new("unshare");
        inside.args(["--pid", "--fork", "--mount-proc"]);
        inside.arg(std::env::current_exe().unwrap());
        inside.args(["--exact", NAME, "--nocapture"]);
        let inside = inside.env("PLIMSOLL_PID_NAMESPACE", directory.path());
        assert!(inside.status().unwrap().success());
        assert_eq!(restore_in(directory.path(), None).unwrap(), ["v0"]);
        assert_eq!(settings(), before);
    });
}

/// What an error says, and why.
fn causes(error: &dyn std::error::Error) -> String {
    let cause = error.source().map_or_else(String::new, causes);
    format!("{error}: {cause}")
}
