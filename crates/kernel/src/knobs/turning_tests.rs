//! What is turned, and what is written down of it first. Needs root.

use super::fake_driver::{Driver, open, with_interface};
use super::record::Setting;
use super::*;
use crate::iproute::ip;
use crate::link;
use std::sync::{Arc, Mutex};
use std::time::Duration;

const OWN: [(u32, u32); 2] = [(2, 20_000), (3, 30_000)];
const TURNED: Duration = Duration::from_micros(40);
/// As a guard that was killed leaves an instance.
const LEFT: (u32, u32) = (DEFER_MARK, 50_000);

/// A driver with these holdoffs that tells its queues.
fn driver(own: &[(u32, u32)]) -> Arc<Mutex<Driver>> {
    Arc::new(Mutex::new(Driver::new(own, true, false)))
}

/// Whoever tries again after a failure turned what was on no disk: it was taken for written down.
#[test]
fn what_could_not_be_written_down_is_not_turned_at_the_next_try_either() {
    with_interface(|| {
        let directory = tempfile::tempdir().unwrap();
        let records = directory.path().join("records");
        let driver = driver(&OWN);
        let mut knobs = open(&records, &driver);
        fs::remove_dir_all(&records).unwrap();
        for _ in 0..2 {
            let refused = knobs.set_holdoff(Queues::All, DEFER_MARK, TURNED);
            assert!(matches!(refused, Err(TurnError::Record(_))), "{refused:?}");
            assert_eq!(driver.lock().unwrap().holdoffs(), OWN);
            assert!(knobs.is_untouched());
        }
        fs::create_dir(&records).unwrap();
        knobs.set_holdoff(Queues::All, DEFER_MARK, TURNED).unwrap();
        knobs.restore().unwrap();
        assert_eq!(driver.lock().unwrap().holdoffs(), OWN);
    });
}

#[test]
fn a_queue_is_turned_without_the_others() {
    with_interface(|| {
        let directory = tempfile::tempdir().unwrap();
        let driver = driver(&OWN);
        let mut knobs = open(directory.path(), &driver);
        let second = Queues::Only(&[1]);
        knobs.set_holdoff(second, DEFER_MARK, TURNED).unwrap();
        let turned = (DEFER_MARK, 40_000);
        assert_eq!(driver.lock().unwrap().holdoffs(), [OWN[0], turned]);
        knobs.restore().unwrap();
        assert_eq!(driver.lock().unwrap().holdoffs(), OWN);
    });
}

/// An interface may be down while a guard starts, and come up with what a killed one turned. That was
/// put back for the host's own: interrupts stayed off for good.
#[test]
fn what_a_killed_guard_left_and_shows_up_later_is_not_put_back() {
    with_interface(|| {
        let directory = tempfile::tempdir().unwrap();
        let device = Device::open("lo", link::index("lo").unwrap()).unwrap();
        for (of_device, expected) in [((5, 60_000), (5, 60_000)), (LEFT, (0, 0))] {
            let driver = driver(&[LEFT]);
            let instances = std::mem::take(&mut driver.lock().unwrap().instances);
            let mut knobs = open(directory.path(), &driver);
            driver.lock().unwrap().instances = instances;
            let (defer, timeout) = of_device;
            for (attribute, value) in [
                (Attribute::NapiDeferHardIrqs, defer),
                (Attribute::GroFlushTimeout, timeout),
            ] {
                device.set_attribute(attribute, value.into()).unwrap();
            }
            knobs.set_holdoff(Queues::All, DEFER_MARK, TURNED).unwrap();
            // What a keeper goes by, also where the interface is moved.
            let written = Setting::Holdoff {
                napi: driver.lock().unwrap().instances[0].id,
                defer_hard_irqs: expected.0,
                gro_flush_timeout: expected.1,
            };
            assert_eq!(knobs.record.to_restore(), [written]);
            knobs.restore().unwrap();
            assert_eq!(driver.lock().unwrap().holdoffs(), [expected]);
            assert_eq!(knobs.device_holdoff(), expected);
        }
    });
}

/// The same of a device that has no instances yet.
#[test]
fn what_a_killed_guard_left_of_the_device_s_is_not_put_back() {
    with_interface(|| {
        ip("link add v0 type veth peer name v1");
        let directory = tempfile::tempdir().unwrap();
        let mut knobs = Knobs::open_in(directory.path(), "v0").unwrap();
        let settings = |(defer, timeout): (u32, u32)| {
            [
                (Attribute::NapiDeferHardIrqs, defer.into()),
                (Attribute::GroFlushTimeout, timeout.into()),
            ]
        };
        for (attribute, value) in settings(LEFT) {
            knobs.device.set_attribute(attribute, value).unwrap();
        }
        knobs.turn_device(&settings((DEFER_MARK, 40_000))).unwrap();
        for setting in knobs.record.to_restore() {
            assert!(
                matches!(setting, Setting::Device { value: 0, .. }),
                "{setting:?}"
            );
        }
        knobs.restore().unwrap();
        for (attribute, value) in settings((0, 0)) {
            assert_eq!(knobs.device.attribute(attribute).unwrap(), Some(value));
        }
    });
}
