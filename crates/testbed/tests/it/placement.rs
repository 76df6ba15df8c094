//! Receive work happens on the test host's CPU, and the proof of it can fail.

use std::time::Duration;

use plimsoll_testbed::Error;
use plimsoll_testbed::placement::{Placement, polling_thread};

use crate::common::create;

const SOFTIRQ: Placement = Placement::Softirq {
    holdoff: Duration::from_micros(50),
};
const THREADED: Placement = Placement::Threaded { nice: 10 };

#[test]
fn softirq_and_threaded_hold_and_replace_each_other() {
    let testbed = create();
    for placement in [
        SOFTIRQ,
        THREADED,
        Placement::Threaded { nice: -5 },
        SOFTIRQ,
        Placement::Softirq {
            holdoff: Duration::from_micros(500),
        },
        THREADED,
    ] {
        placement
            .apply(&testbed)
            .unwrap_or_else(|error| panic!("{placement:?}: {error}"));
        // Again, as after an XDP program was attached.
        placement.apply(&testbed).unwrap();
        placement.verify(&testbed).unwrap();
        let thread = polling_thread(testbed.test()).unwrap();
        assert_eq!(
            thread.is_some(),
            matches!(placement, Placement::Threaded { .. })
        );
    }
}

#[test]
fn veth_left_alone_fails_the_proof() {
    let testbed = create();
    // The settings agree, since softirq is what a fresh device does...
    let untouched = Placement::Softirq {
        holdoff: Duration::ZERO,
    };
    // ...but its frames are received on the sender's CPU.
    let error = untouched.verify(&testbed).unwrap_err();
    assert!(matches!(error, Error::Placement(_)), "{error}");
    assert!(
        error.to_string().contains("frames to the test host"),
        "{error}"
    );
}

#[test]
fn unsteered_answers_fail_the_proof() {
    let testbed = create();
    SOFTIRQ.apply(&testbed).unwrap();
    let steering = format!(
        "/sys/class/net/{}/queues/rx-0/rps_cpus",
        testbed.load().device()
    );
    testbed
        .load()
        .run(|| std::fs::write(steering, "0"))
        .unwrap()
        .unwrap();
    let error = SOFTIRQ.verify(&testbed).unwrap_err();
    assert!(
        error.to_string().contains("answers to the load host"),
        "{error}"
    );
    SOFTIRQ.apply(&testbed).unwrap();
}

#[test]
fn a_polling_thread_that_got_away_fails_the_proof() {
    let testbed = create();
    THREADED.apply(&testbed).unwrap();
    let error = Placement::Threaded { nice: 3 }
        .verify(&testbed)
        .unwrap_err();
    assert!(error.to_string().contains("nice level 10"), "{error}");
}
