//! Any text where the kernel writes `/proc`: nothing panics, and no number or path is made
//! up. Processes choose their names, and users their mount points.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    plimsoll_kernel::driven::check_proc(bytes);
    plimsoll_guard::driven::check_proc(bytes);
});
