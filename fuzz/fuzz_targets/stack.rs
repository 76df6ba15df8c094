//! Any frames at a user-space stack, on every receive path but `ni-lrp`: nothing panics, and
//! every frame has one outcome. The stack forwards, may be in a VLAN, and has sockets of all kinds.
//! `ni-lrp` takes a device that demultiplexes, and the simulated one does not. The target `steer` runs
//! its XDP program; behind that stands the code of `soft-lrp`.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| plimsoll_stack::driven::check(bytes));
