//! Any frames at the XDP program that steers them to a stack's sockets: it says the same as a
//! plain rule. Needs root.

#![no_main]

#[path = "../../crates/stack/tests/it/steered/mod.rs"]
mod steered;

use libfuzzer_sys::fuzz_target;
use plimsoll_packets::agreement::{FrameStep, check_frames, steps};
use plimsoll_stack::driven::Steering;

/// What drivers and the test-run facility ask of a frame.
const FRAME_BYTES_MIN: usize = 14;

thread_local! {
    static PROGRAMS: Vec<Steering<'static>> = steered::programs();
}

fuzz_target!(|bytes: &[u8]| {
    PROGRAMS.with(|programs| {
        check_frames(&steps::<FrameStep>(bytes), &mut |frame, _| {
            if frame.len() >= FRAME_BYTES_MIN {
                programs.iter().for_each(|program| drop(program.check(frame)));
            }
            None
        });
    });
});
