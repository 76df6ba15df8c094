//! Any frames, in any order, at a host with open sockets: nothing panics, and
//! demultiplexer and model say the same. The third opinion is the place for
//! another implementation, such as the guard's BPF program.

#![no_main]

use libfuzzer_sys::fuzz_target;
use plimsoll_packets::agreement::{FrameStep, check_frames, steps};

fuzz_target!(|bytes: &[u8]| {
    check_frames(&steps::<FrameStep>(bytes), &mut |_, _| None);
});
