//! Addresses, sockets, connections and groups come and go between packets:
//! demultiplexer and model answer every call alike.

#![no_main]

use libfuzzer_sys::fuzz_target;
use plimsoll_packets::agreement::{HostStep, check_host, steps};

fuzz_target!(|bytes: &[u8]| {
    check_host(&steps::<HostStep>(bytes));
});
