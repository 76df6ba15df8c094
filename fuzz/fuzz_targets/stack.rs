//! Any frames at a user-space stack, on every receive path: nothing panics, and
//! every frame has one outcome.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| plimsoll_stack::driven::check(bytes));
