//! Any file as the record of turned settings that a killed guard left.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| plimsoll_kernel::driven::check_record(bytes));
