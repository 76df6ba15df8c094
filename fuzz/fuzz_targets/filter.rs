//! Any filter expression and any frame: nothing panics, and a rule decides as the filter
//! does.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| plimsoll_programs::driven::check_filter(bytes));
