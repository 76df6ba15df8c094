//! Any file as the guard's settings: nothing panics, and it has settings that the command
//! line takes, or a mistake with its line.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| plimsoll_cli::driven::check_settings(bytes));
