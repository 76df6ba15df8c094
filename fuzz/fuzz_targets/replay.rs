//! Any file as a capture: nothing panics, and it has an error or times in order.
//!
//! No mutation of nothing becomes a capture. So what is too short for one is begun from a whole
//! one, of the older or the newer kind.

#![no_main]

use libfuzzer_sys::{fuzz_mutator, fuzz_target, fuzzer_mutate};
use plimsoll_programs::driven;

/// A pcap file's head; that of a pcapng file is longer.
const HEAD_BYTES: usize = 24;

fuzz_target!(|bytes: &[u8]| driven::check_replay(bytes));

fuzz_mutator!(|data: &mut [u8], size: usize, max_size: usize, seed: u32| {
    let whole = driven::capture(seed % 2 == 0);
    let begins_anew = size < HEAD_BYTES && whole.len() <= max_size;
    if begins_anew {
        data[..whole.len()].copy_from_slice(&whole);
    }
    let size = if begins_anew { whole.len() } else { size };
    fuzzer_mutate(data, size, max_size)
});
