//! What was lost by whom, and what could not be put back. Needs root.

use std::fs;

use plimsoll_kernel::namespace;

use super::*;

/// Needs root.
#[test]
fn what_could_not_be_put_back_is_tried_again_and_then_left() {
    namespace::in_new(|| {
        let records = tempfile::tempdir().unwrap();
        let mut knobs = Knobs::open_in(records.path(), "lo").unwrap();
        let mut governor = Governor::new("lo", Config::default()).unwrap();
        let overload = Setting {
            mode: Mode::Overload,
            holdoff: Duration::from_micros(100),
            reason: Reason::Discards,
            is_lazy: false,
        };
        governor.apply(overload, &[], &mut knobs).unwrap();
        let files = fs::read_dir(records.path()).unwrap();
        let mut files = files.map(|file| file.unwrap().path());
        let record = files.find(|path| path.extension().is_some_and(|end| end == "json"));
        let record = record.expect("what is turned is recorded");
        // No file can be removed there.
        fs::remove_file(&record).unwrap();
        fs::create_dir(&record).unwrap();
        governor.release(&mut knobs).unwrap_err();
        governor.release(&mut knobs).unwrap_err();
        fs::remove_dir(&record).unwrap();
        governor.release(&mut knobs).unwrap();
        fs::create_dir(&record).unwrap();
        governor.release(&mut knobs).unwrap();
    })
    .expect("this test makes a network namespace and needs root: run `sudo make test`");
}

#[test]
fn a_ring_counts_from_its_first_lost_frame_on() {
    let never = losses((5, 0), (9, 0));
    assert_eq!((never.discarded, never.ring), (4, 0));
    assert!(!never.is_ring_counted);
    let first = losses((9, 0), (9, 3));
    assert_eq!(first.ring, 3);
    assert!(first.is_ring_counted);
    let later = losses((9, 3), (9, 3));
    assert_eq!(later.ring, 0);
    assert!(later.is_ring_counted);
    // The driver's counters began anew.
    let anew = losses((9, 3), (9, 0));
    assert_eq!(anew.ring, 0);
    assert!(!anew.is_ring_counted);
}
