//! What a keeper does for a guard that hangs or was killed, on real interfaces. Needs root.

use std::fs;
use std::process::Command;
use std::thread;

use super::*;
use crate::iproute::ip;
use crate::knobs::DEFER_MARK;
use crate::knobs::device::{Attribute, netns_cookie};
use crate::knobs::fake_driver::Losing;
use crate::namespace;
use crate::pass_all::PassAll;

const TURNED: [(Attribute, u64); 2] = [
    (Attribute::NapiDeferHardIrqs, DEFER_MARK as u64),
    (Attribute::GroFlushTimeout, 200_000),
];

fn ended() -> Process {
    let mut child = Command::new("sleep").arg("60").spawn().unwrap();
    let ended = Process::of(child.id()).unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    ended
}

/// Of `v0`, in a namespace of its own.
fn with_ward(guard: fn() -> Process, test: impl FnOnce(Ward, Knobs) + Send) {
    namespace::in_new(|| {
        ip("link add v0 type veth peer name v1");
        let identity = Identity::of("v0").unwrap();
        let guard = guard();
        let device = || Device::open("v0", identity.ifindex).unwrap();
        let ward = Ward::of("v0", guard, false, &Families::of_kernel()).unwrap();
        let netdev = Box::new(Netdev::new());
        let directory = Path::new(DIRECTORY);
        let mut knobs =
            Knobs::take(directory, "v0", identity.clone(), device(), netdev, guard).unwrap();
        knobs.turn_device(&TURNED).unwrap();
        test(ward, knobs);
        let left = fs::read_dir(directory).unwrap();
        let left = left.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let cookie = format!(".{}.", netns_cookie().unwrap());
        let left: Vec<String> = left.filter(|name| name.contains(&cookie)).collect();
        assert!(left.is_empty(), "{left:?}");
    })
    .unwrap();
}

fn settings(name: &str) -> [u64; 2] {
    let device = Device::open(name, link::index(name).unwrap()).unwrap();
    TURNED.map(|(attribute, _)| device.attribute(attribute).unwrap().unwrap())
}

/// The record took the new name, and the next guard there gave the interface old values.
#[test]
fn an_interface_that_was_renamed_before_the_kill_leaves_no_record() {
    with_ward(ended, |ward, mut knobs| {
        // Its owner does nothing any more.
        knobs.is_over = true;
        drop(knobs);
        ip("link set v0 name w0");
        assert_eq!(settings("w0"), TURNED.map(|(_, value)| value));
        assert_eq!(ward.restore(false).unwrap(), Some(true));
        assert_eq!(settings("w0"), [0; 2]);
    });
}

#[test]
fn what_a_silent_guard_has_turned_is_put_back_and_stays_recorded() {
    with_ward(
        || Process::current().unwrap(),
        |ward, mut knobs| {
            let (keepers, mut line) = UnixStream::pair().unwrap();
            let keeper = thread::spawn(move || ward.wait(keepers));
            line.write_all(&[heartbeat::BEAT]).unwrap();
            let mut said = [0; 2];
            line.read_exact(&mut said).unwrap();
            assert_eq!(said, [heartbeat::RELIEVING, heartbeat::RELIEVED]);
            assert_eq!(settings("v0"), [0; 2]);
            assert!(knobs.file.read().unwrap().is_some(), "it is its owner's");
            // As it goes on.
            line.write_all(&[heartbeat::REST]).unwrap();
            knobs.restore().unwrap();
            drop(line);
            assert!(matches!(keeper.join().unwrap(), Ok(End::Killed(None))));
        },
    );
}

/// A build whose keeper put none of that back passed all tests but those on virtual machines.
#[test]
fn what_the_driver_loses_with_a_killed_guard_s_program_is_put_back() {
    namespace::in_new(|| {
        ip("link add v0 type veth peer name v1");
        let driver = Losing::of(link::index("v0").unwrap());
        let ward = Ward::of("v0", ended(), false, &driver.families()).unwrap();
        // The guard's program came, and went with it.
        let program = PassAll::attach("v0").unwrap();
        assert!(!driver.has_its_settings());
        drop(program);
        ward.restore_after_kill(None);
        assert!(driver.has_its_settings());
    })
    .unwrap();
}

/// Nothing was put back after that.
#[test]
fn a_guard_that_is_killed_while_it_hangs_has_not_told_of_its_end() {
    with_ward(ended, |ward, mut knobs| {
        let (keepers, line) = UnixStream::pair().unwrap();
        drop(line);
        assert!(ward.relieve(&keepers, &Owner::default()).is_err());
        knobs.restore().unwrap();
    });
}

/// Its settings would have been put back just as it had turned them anew.
#[test]
fn a_guard_that_has_just_gone_on_keeps_its_settings() {
    let alive = || Process::current().unwrap();
    with_ward(alive, |ward, mut knobs| {
        let (keepers, mut line) = UnixStream::pair().unwrap();
        line.write_all(&[heartbeat::BEAT]).unwrap();
        assert!(!ward.relieve(&keepers, &Owner::default()).unwrap());
        assert_eq!(settings("v0"), TURNED.map(|(_, value)| value));
        drop(line);
        knobs.restore().unwrap();
    });
}

/// What hangs right after it has turned something is put back as well. And who has nothing turned any
/// more, and sleeps until it tries again to govern, hangs not.
#[test]
fn the_keeper_hears_of_a_setting_as_it_is_turned_and_put_back() {
    let alive = || Process::current().unwrap();
    with_ward(alive, |_, mut knobs| {
        let (mut keepers, line) = UnixStream::pair().unwrap();
        knobs.set_heartbeat(Heartbeat::new(Arc::new(line)));
        knobs.turn_device(&TURNED).unwrap();
        keepers.set_nonblocking(true).unwrap();
        let mut said = [0];
        keepers.read_exact(&mut said).unwrap();
        assert_eq!(said, [heartbeat::BEAT]);
        knobs.restore().unwrap();
        keepers.read_exact(&mut said).unwrap();
        assert_eq!(said, [heartbeat::REST]);
    });
}
