//! Holdoffs that somebody else sets while a guard has them turned. Needs root.

use super::fake_driver::{open, with_interface};
use super::restoring_tests::{HOLDOFF, TURNED, device_holdoff, kill, record_of, turned};
use super::*;
use crate::iproute::ip;
use crate::link;

/// What somebody set while a guard had it turned got the value from before the guard: at the guard's
/// end, or at the next start if that was killed.
#[test]
fn what_somebody_else_sets_meanwhile_stays() {
    const THEIRS: [(u32, u32); 2] = [(7, 70_000), (8, 80_000)];
    with_interface(|| {
        for is_killed in [false, true] {
            let directory = tempfile::tempdir().unwrap();
            let directory = directory.path();
            let (driver, mut knobs) = turned(directory);
            let set = |instance: usize| {
                let napi = &mut driver.lock().unwrap().instances[instance];
                let (defer, timeout) = THEIRS[instance];
                (napi.defer_hard_irqs, napi.gro_flush_timeout) = (Some(defer), Some(timeout));
            };
            set(0);
            // The guard goes on to govern.
            knobs.set_holdoff(Queues::All, DEFER_MARK, TURNED).unwrap();
            set(1);
            match is_killed {
                false => drop(knobs),
                true => {
                    kill(knobs, directory, &driver);
                    drop(open(directory, &driver));
                }
            }
            assert_eq!(driver.lock().unwrap().holdoffs(), THEIRS, "{is_killed}");
            assert_eq!(record_of(directory), None);
        }
    });
}

/// The same of the device's own holdoff, where it has no instances.
#[test]
fn what_somebody_else_sets_of_the_device_meanwhile_stays() {
    with_interface(|| {
        let directory = tempfile::tempdir().unwrap();
        ip("link add v0 type veth peer name v1");
        let turn = |knobs: &mut Knobs| {
            let turned = knobs.set_holdoff(Queues::All, DEFER_MARK, TURNED);
            turned.unwrap();
            assert_eq!(device_holdoff(), [DEFER_MARK.into(), 40_000]);
        };
        let set = |value| {
            let device = Device::open("v0", link::index("v0").unwrap()).unwrap();
            for attribute in HOLDOFF {
                device.set_attribute(attribute, value).unwrap();
            }
        };
        let mut knobs = Knobs::open_in(directory.path(), "v0").unwrap();
        turn(&mut knobs);
        set(7);
        turn(&mut knobs);
        knobs.restore().unwrap();
        assert_eq!(device_holdoff(), [7; 2], "set while it governed");
        turn(&mut knobs);
        set(8);
        knobs.restore().unwrap();
        assert_eq!(device_holdoff(), [8; 2], "set at last");
        assert!(knobs.is_untouched());
    });
}
