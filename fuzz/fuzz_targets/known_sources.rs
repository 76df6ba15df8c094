//! Any file as one of known sources, at any time.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    for now in [0, 1 << 31, u64::MAX] {
        plimsoll_guard::check_known_sources(bytes, now);
    }
});
