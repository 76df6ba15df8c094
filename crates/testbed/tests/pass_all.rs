//! The program that passes everything does, and goes when it is dropped.

mod common;

use common::{bound, create, drain};

#[test]
fn it_passes_frames_and_makes_room_when_dropped() {
    let testbed = create();
    let pass_all = testbed.load().pass_all().unwrap();
    let refused = testbed.load().pass_all().unwrap_err();
    assert!(refused.to_string().contains("XDP"), "{refused}");

    let receiver = bound(testbed.load(), testbed.load().ipv4());
    let sender = bound(testbed.test(), testbed.test().ipv4());
    for _ in 0..10 {
        sender
            .send_to(b"x", receiver.local_addr().unwrap())
            .unwrap();
    }
    assert_eq!(drain(&receiver), 10);

    drop(pass_all);
    testbed.load().pass_all().unwrap();
}
