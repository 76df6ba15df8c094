//! Any file as a capture: nothing panics, and it has an error or times in order.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| plimsoll_programs::driven::check_replay(bytes));
