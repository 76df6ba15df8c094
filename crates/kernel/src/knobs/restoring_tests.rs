//! Restoring where the kernel numbers instances anew, on a driver that does so
//! whenever it likes. Reproduced on vmxnet3: a guard was killed in overload, its XDP
//! program was detached, every instance had a new id and its old settings, and the
//! settings stayed turned for good. Needs root.

use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::*;

use super::fake_driver::{Driver, open, with_interface};
use super::*;
use crate::iproute::ip;
use crate::link;
use crate::namespace::Named;
use crate::scheduling::{Priority, Scheduling};
use crate::threaded::poll_in_threads;

/// Adds `v0`, which has an instance without XDP.
fn add_polled() {
    ip("link add v0 type veth peer name v1");
    let gro = Command::new("ethtool")
        .args(["-K", "v0", "gro", "on"])
        .status();
    assert!(gro.expect("ethtool is installed").success());
    ip("link set v0 up");
}

/// Adds `v0` as [`add_polled`] does; its operator has it polled by threads.
fn add_polled_by_threads() -> Device {
    add_polled();
    let device = Device::open("v0", link::index("v0").unwrap()).unwrap();
    device.set_attribute(Attribute::Threaded, 1).unwrap();
    device
}

const OWN: [(u32, u32); 2] = [(2, 20_000), (3, 30_000)];
pub(super) const TURNED: Duration = Duration::from_micros(40);

/// Of a driver that tells nothing of its instances, whose holdoffs are turned.
pub(super) fn turned(directory: &Path) -> (Arc<Mutex<Driver>>, Knobs) {
    let driver = Arc::new(Mutex::new(Driver::new(&OWN, false, false)));
    let mut knobs = open(directory, &driver);
    knobs.set_holdoff(Queues::All, DEFER_MARK, TURNED).unwrap();
    (driver, knobs)
}

pub(super) fn record_of(directory: &Path) -> Option<PathBuf> {
    let mut entries = fs::read_dir(directory).unwrap();
    let is_record = |path: &PathBuf| path.extension().is_some_and(|e| e == "json");
    entries.find_map(|entry| Some(entry.unwrap().path()).filter(is_record))
}

/// Ends as SIGKILL does: record and settings stay, the lock does not.
pub(super) fn kill(knobs: Knobs, directory: &Path, driver: &Mutex<Driver>) {
    let record = record_of(directory).map(|path| (fs::read(&path).unwrap(), path));
    let state = driver.lock().unwrap().clone();
    drop(knobs);
    *driver.lock().unwrap() = state;
    if let Some((text, path)) = record {
        fs::write(path, text).unwrap();
    }
}

#[derive(Clone, Debug)]
enum Event {
    Turn(u32),
    Renew(u32),
    RenewWhileSet(u32),
    KillAndStart,
    Restore,
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let event = prop_oneof![
        3 => (1u32..100_000).prop_map(Event::Turn),
        2 => any::<u32>().prop_map(Event::Renew),
        1 => (0u32..6).prop_map(Event::RenewWhileSet),
        2 => Just(Event::KillAndStart),
        1 => Just(Event::Restore),
    ];
    vec(event, 1..12)
}

#[test]
fn every_instance_gets_its_own_values_back_whatever_its_id() {
    with_interface(|| {
        let directory = tempfile::tempdir().unwrap();
        let directory = directory.path();
        let holdoffs = vec((0u32..4, 0u32..200_000), 1..6);
        // Each writes to the disk.
        let config = ProptestConfig::with_cases(64);
        proptest!(config, |(own in holdoffs, tells_queues: bool, tells_irqs: bool, events in events())| {
            let driver = Driver::new(&own, tells_queues, tells_irqs);
            let driver = Arc::new(Mutex::new(driver));
            let mut knobs = open(directory, &driver);
            for event in events {
                let at_home = || driver.lock().unwrap().holdoffs() == own;
                match event {
                    Event::Turn(timeout) => {
                        let timeout = Duration::from_nanos(timeout.into());
                        let turned = knobs.set_holdoff(Queues::All, DEFER_MARK, timeout);
                        turned.unwrap();
                    }
                    // Untold, only the driver's order tells them apart.
                    Event::Renew(set) => driver.lock().unwrap().renew(
                        if tells_queues || tells_irqs { set } else { u32::MAX }
                    ),
                    Event::RenewWhileSet(after) => {
                        driver.lock().unwrap().renews_after = Some(after);
                    }
                    Event::KillAndStart => {
                        kill(knobs, directory, &driver);
                        driver.lock().unwrap().renew(u32::MAX);
                        knobs = open(directory, &driver);
                        prop_assert!(at_home() && knobs.is_untouched(), "{driver:?}");
                    }
                    Event::Restore => {
                        knobs.restore().unwrap();
                        prop_assert!(at_home() && knobs.is_untouched(), "{driver:?}");
                    }
                }
            }
            drop(knobs);
            prop_assert_eq!(driver.lock().unwrap().holdoffs(), own);
            prop_assert_eq!(record_of(directory), None);
        });
    });
}

#[test]
fn what_only_a_guard_sets_is_never_the_hosts_own() {
    with_interface(|| {
        let directory = tempfile::tempdir().unwrap();
        let directory = directory.path();
        let driver = Driver::new(&[(2, 20_000), (3, 30_000)], false, false);
        let driver = Arc::new(Mutex::new(driver));
        let mut knobs = open(directory, &driver);
        let holdoff = Duration::from_micros(40);
        knobs.set_holdoff(Queues::All, DEFER_MARK, holdoff).unwrap();
        kill(knobs, directory, &driver);
        fs::remove_file(record_of(directory).unwrap()).unwrap();
        // What they had is lost; what the device gives to new instances is not.
        let mut knobs = open(directory, &driver);
        assert_eq!(driver.lock().unwrap().holdoffs(), [(0, 0); 2]);
        knobs.set_holdoff(Queues::All, DEFER_MARK, holdoff).unwrap();
        drop(knobs);
        assert_eq!(driver.lock().unwrap().holdoffs(), [(0, 0); 2]);
    });
}

/// An adapter that keeps settings for queues that are taken away (`ethtool -L`): they are forgotten
/// with their instance, and there again with it.
#[test]
fn an_instance_that_comes_back_turned_is_put_back() {
    with_interface(|| {
        let directory = tempfile::tempdir().unwrap();
        let driver = Driver::new(&[(0, 0); 2], true, false);
        let driver = Arc::new(Mutex::new(driver));
        let mut knobs = open(directory.path(), &driver);
        knobs.set_holdoff(Queues::All, DEFER_MARK, TURNED).unwrap();
        let taken = driver.lock().unwrap().instances.pop().unwrap();
        knobs.restore().unwrap();
        assert!(knobs.is_untouched());
        driver.lock().unwrap().instances.push(taken);
        knobs.restore().unwrap();
        let holdoffs = driver.lock().unwrap().holdoffs();
        assert_eq!(holdoffs, [(0, 0); 2]);
    });
}

#[test]
fn an_interface_that_is_down_keeps_its_record() {
    with_interface(|| {
        let directory = tempfile::tempdir().unwrap();
        let directory = directory.path();
        let (driver, mut knobs) = turned(directory);
        ip("link set lo down");
        let instances = std::mem::take(&mut driver.lock().unwrap().instances);
        let deferred = knobs.restore().unwrap_err();
        assert!(
            matches!(deferred, RestoreError::Deferred { .. }),
            "{deferred}"
        );
        drop(knobs);
        assert!(record_of(directory).is_some());

        ip("link set lo up");
        driver.lock().unwrap().instances = instances;
        driver.lock().unwrap().renew(u32::MAX);
        let knobs = open(directory, &driver);
        assert!(knobs.is_untouched());
        assert_eq!(driver.lock().unwrap().holdoffs(), OWN);
    });
}

/// On igb, whose link was set down and up on a busy CPU, threads polled on for good: after 20 ms
/// without its instances their settings were forgotten.
#[test]
fn instances_that_are_away_for_a_while_get_their_values_back() {
    with_interface(|| {
        let directory = tempfile::tempdir().unwrap();
        let directory = directory.path();
        let (driver, mut knobs) = turned(directory);
        driver.lock().unwrap().away = 20;
        knobs.restore().unwrap();
        assert_eq!(driver.lock().unwrap().holdoffs(), OWN);
        assert!(record_of(directory).is_none());
        // One that stays away is none any more.
        knobs.set_holdoff(Queues::All, DEFER_MARK, TURNED).unwrap();
        driver.lock().unwrap().instances.truncate(1);
        knobs.restore().unwrap();
        assert_eq!(driver.lock().unwrap().holdoffs(), OWN[..1]);
        assert!(record_of(directory).is_none());
    });
}

/// Instances whose new ids nobody told passed for gone. Their record went, and their settings were
/// turned for good.
#[test]
fn what_the_kernel_does_not_tell_of_stays_recorded() {
    with_interface(|| {
        let directory = tempfile::tempdir().unwrap();
        let directory = directory.path();
        let (driver, mut knobs) = turned(directory);
        driver.lock().unwrap().renew(u32::MAX);
        driver.lock().unwrap().is_silent = true;
        let untold = knobs.restore().unwrap_err();
        assert!(record_of(directory).is_some(), "{untold}");
        assert!(matches!(untold, RestoreError::Call(_)), "{untold}");
        driver.lock().unwrap().is_silent = false;
        knobs.restore().unwrap();
        assert_eq!(driver.lock().unwrap().holdoffs(), OWN);
        assert!(record_of(directory).is_none());
    });
}

/// An orderly end told what was refused, and tried all of it once more.
#[test]
fn what_is_refused_at_the_end_is_tried_once_and_stays_recorded() {
    with_interface(|| {
        let directory = tempfile::tempdir().unwrap();
        let directory = directory.path();
        let driver = Driver::new(&[(2, 20_000)], true, false);
        let driver = Arc::new(Mutex::new(driver));
        let mut knobs = open(directory, &driver);
        let holdoff = Duration::from_micros(40);
        knobs.set_holdoff(Queues::All, DEFER_MARK, holdoff).unwrap();
        driver.lock().unwrap().refused = Some(0);
        let refused = knobs.end().unwrap_err();
        assert!(matches!(refused, RestoreError::Refused { .. }), "{refused}");
        assert_eq!(driver.lock().unwrap().refused, Some(1));
        assert!(record_of(directory).is_some());
    });
}

/// One of two threads was real-time from then on, and nobody kept it to a limit. A process
/// stands for the one, and a number that nobody has for one that has just ended.
#[test]
fn where_not_all_threads_can_be_set_none_polls_and_the_holdoff_stays() {
    with_interface(|| {
        let directory = tempfile::tempdir().unwrap();
        let own = [(2, 20_000), (3, 30_000)];
        let mut driver = Driver::new(&own, true, false);
        let mut sleep = Command::new("sleep").arg("60").spawn().unwrap();
        let thread = i32::try_from(sleep.id()).unwrap();
        for (napi, thread) in driver.instances.iter_mut().zip([thread, i32::MAX]) {
            (napi.thread, napi.threaded) = (Some(thread), Some(0));
        }
        let driver = Arc::new(Mutex::new(driver));
        let mut knobs = open(directory.path(), &driver);
        knobs.allow_any_driver(true);
        let holdoff = Duration::from_micros(40);
        knobs.set_holdoff(Queues::All, DEFER_MARK, holdoff).unwrap();
        let before = Scheduling::of(thread).unwrap();
        let polled = poll_in_threads(&mut knobs, Queues::All, Priority::RealTime, None);
        let after = Scheduling::of(thread);
        sleep.kill().unwrap();
        sleep.wait().unwrap();
        polled.unwrap_err();
        assert_eq!(after.unwrap(), before);
        let threaded = |driver: &Driver| driver.instances.iter().all(|n| n.threaded == Some(0));
        assert!(threaded(&driver.lock().unwrap()));
        assert_eq!(driver.lock().unwrap().holdoffs(), [(DEFER_MARK, 40_000); 2]);
        knobs.end().unwrap();
        assert_eq!(driver.lock().unwrap().holdoffs(), own);
        assert_eq!(record_of(directory.path()), None);
    });
}

/// The kernel waits for a thread that it switches off, and one that a CPU limit has demoted may
/// hardly get to run. A process stands for the thread.
#[test]
fn a_thread_runs_as_before_when_it_is_switched_off() {
    with_interface(|| {
        let directory = tempfile::tempdir().unwrap();
        let mut driver = Driver::new(&[(2, 20_000)], true, false);
        let mut sleep = Command::new("sleep").arg("60").spawn().unwrap();
        let thread = i32::try_from(sleep.id()).unwrap();
        let before = Scheduling::of(thread).unwrap();
        let napi = &mut driver.instances[0];
        (napi.thread, napi.threaded) = (Some(thread), Some(0));
        let driver = Arc::new(Mutex::new(driver));
        let mut knobs = open(directory.path(), &driver);
        knobs.allow_any_driver(true);
        knobs.set_threaded(Queues::All, true).unwrap();
        let turned = knobs.set_thread_priority(thread, Priority::Nice(19));
        let restored = knobs.end();
        sleep.kill().unwrap();
        sleep.wait().unwrap();
        turned.unwrap();
        restored.unwrap();
        assert_eq!(driver.lock().unwrap().switched_off, [before]);
    });
}

/// A holdoff that a killed guard left says nothing of threads, which are the operator's.
#[test]
fn beside_a_guard_s_mark_threads_are_the_host_s_own() {
    with_interface(|| {
        let directory = tempfile::tempdir().unwrap();
        let device = add_polled_by_threads();
        let mut knobs = Knobs::open_in(directory.path(), "v0").unwrap();
        let mark = DEFER_MARK.into();
        let defer = Attribute::NapiDeferHardIrqs;
        device.set_attribute(defer, mark).unwrap();
        knobs
            .turn_device(&[(Attribute::Threaded, 0), (defer, mark)])
            .unwrap();
        knobs.restore().unwrap();
        assert_eq!(device.attribute(Attribute::Threaded).unwrap(), Some(1));
        assert_eq!(device.attribute(defer).unwrap(), Some(0));
    });
}

/// A keeper finds it so where an adapter is pulled out, or a container ends with its guard.
#[test]
fn of_an_interface_that_is_gone_nothing_is_left_turned() {
    with_interface(|| {
        let directory = tempfile::tempdir().unwrap();
        let directory = directory.path();
        ip("link add v0 type veth peer name v1");
        let identity = Identity::of("v0").unwrap();
        let device = Device::open("v0", identity.ifindex).unwrap();
        let mut knobs = Knobs::open_in(directory, "v0").unwrap();
        knobs
            .turn_device(&[(Attribute::NapiDeferHardIrqs, DEFER_MARK.into())])
            .unwrap();
        let record = record_of(directory).unwrap();
        let text = fs::read(&record).unwrap();
        ip("link del v0");
        knobs.restore().unwrap();
        assert!(knobs.is_untouched());
        drop(knobs);
        assert_eq!(record_of(directory), None);

        fs::write(record, text).unwrap();
        let netdev = Box::new(Netdev::new());
        let owner = Process::current().unwrap();
        let knobs = Knobs::take(directory, "v0", identity, device, netdev, owner).unwrap();
        assert!(knobs.is_untouched());
        drop(knobs);
        assert_eq!(record_of(directory), None);
    });
}

/// A namespace to move an interface to.
fn elsewhere(name: &str) -> Named {
    Named::create(&format!("plimsoll-{name}-{}", std::process::id())).unwrap()
}

pub(super) const HOLDOFF: [Attribute; 2] =
    [Attribute::NapiDeferHardIrqs, Attribute::GroFlushTimeout];

/// As the interface of this namespace has it, device-wide.
pub(super) fn device_holdoff() -> [u64; 2] {
    let ifindex = link::index("v0").unwrap();
    let device = Device::open("v0", ifindex).unwrap();
    HOLDOFF.map(|attribute| device.attribute(attribute).unwrap().unwrap())
}

/// It takes its settings along: a guard's holdoff once stayed for good.
#[test]
fn what_is_turned_of_an_interface_that_is_moved_goes_back_there() {
    with_interface(|| {
        let directory = tempfile::tempdir().unwrap();
        let directory = directory.path();
        ip("link add v0 type veth peer name v1");
        let mut operator = Knobs::open_in(&directory.join("operator"), "v0").unwrap();
        operator
            .turn_device(&HOLDOFF.map(|attribute| (attribute, 7)))
            .unwrap();
        std::mem::forget(operator);
        let mut knobs = Knobs::open_in(directory, "v0").unwrap();
        let mark = u64::from(DEFER_MARK);
        knobs
            .turn_device(&HOLDOFF.map(|attribute| (attribute, mark)))
            .unwrap();
        let elsewhere = elsewhere("moved");
        ip(&format!("link set v0 netns {}", elsewhere.name()));
        assert_eq!(elsewhere.run(device_holdoff).unwrap(), [mark; 2]);
        knobs.restore().unwrap();
        assert!(knobs.is_untouched());
        assert_eq!(elsewhere.run(device_holdoff).unwrap(), [7; 2]);
        drop(knobs);
        assert_eq!(record_of(directory), None);
    });
}

/// Threads that the operator had switched on poll on there, as the guard had set them.
#[test]
fn of_threads_that_polled_before_and_were_moved_it_is_told() {
    with_interface(|| {
        let directory = tempfile::tempdir().unwrap();
        add_polled_by_threads();
        let mut knobs = Knobs::open_in(directory.path(), "v0").unwrap();
        let thread = knobs.polling_threads().unwrap()[0].tid;
        let turned = knobs.set_thread_priority(thread, Priority::Nice(5));
        turned.unwrap();
        let elsewhere = elsewhere("threads");
        ip(&format!("link set v0 netns {}", elsewhere.name()));
        let told = knobs.restore().unwrap_err();
        assert!(matches!(told, RestoreError::Moved { .. }), "{told}");
        assert!(!knobs.is_untouched());
    });
}

/// A veth loses its instances on the way. Those of other drivers keep their settings, so the
/// test gives them to the new ones.
#[test]
fn instances_of_an_interface_that_is_moved_get_the_device_s_values() {
    with_interface(|| {
        let directory = tempfile::tempdir().unwrap();
        let directory = directory.path();
        add_polled();
        let turn = |directory: &Path| {
            let mut knobs = Knobs::open_in(directory, "v0").unwrap();
            let timeout = Duration::from_micros(40);
            knobs.set_holdoff(Queues::All, DEFER_MARK, timeout).unwrap();
            knobs.set_threaded(Queues::All, true).unwrap();
            knobs
        };
        let mut knobs = turn(directory);
        let elsewhere = elsewhere("instances");
        ip(&format!("link set v0 netns {}", elsewhere.name()));
        let present = || {
            let instances = Netdev::new().instances(link::index("v0").unwrap()).unwrap();
            let values = |napi: Napi| (napi.defer_hard_irqs, napi.gro_flush_timeout, napi.threaded);
            instances.into_iter().map(values).collect::<Vec<_>>()
        };
        let turned = elsewhere.run(|| {
            ip("link set v0 up");
            std::mem::forget(turn(&directory.join("there")));
            present()
        });
        assert_eq!(turned.unwrap(), [(Some(DEFER_MARK), Some(40_000), Some(1))]);
        knobs.restore().unwrap();
        assert!(knobs.is_untouched());
        let now = elsewhere.run(present).unwrap();
        assert_eq!(now, [(Some(0), Some(0), Some(0))]);
    });
}
