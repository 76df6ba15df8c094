//! As `frames`, with the guard's BPF program as third opinion. Needs root: the
//! fuzzer's own thread gets a network namespace with the host's addresses and
//! sockets. A fresh program per input, so some tens of inputs per second.

#![no_main]

#[path = "../../crates/guard/tests/it/common/mod.rs"]
mod common;

use std::os::fd::OwnedFd;
use std::sync::OnceLock;

use libfuzzer_sys::fuzz_target;
use plimsoll_guard::{Config, Guard, Storage};
use plimsoll_packets::agreement::{FrameStep, check_frames, steps};
use plimsoll_packets::host::Host;

static SOCKETS: OnceLock<Vec<OwnedFd>> = OnceLock::new();
/// What drivers and the test-run facility ask of a frame.
const FRAME_BYTES_MIN: usize = 14;
/// As many frames as both sides remember without forgetting.
const STEPS_MAX: usize = 8;

fuzz_target!(
    init: {
        nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET).expect("run as root");
        common::set_up();
        common::packets_host::set_up_addresses(&Host::default());
        SOCKETS.get_or_init(|| common::packets_host::open_endpoints(&Host::default()));
    },
    |bytes: &[u8]| {
        let mut frames = steps::<FrameStep>(bytes);
        // The program has the kernel's clock.
        frames.retain(|step| !matches!(step, FrameStep::Wait(_)));
        frames.truncate(STEPS_MAX);
        let mut storage = Storage::default();
        let mut guard = Guard::load(&mut storage, &Config::default()).expect("the guard loads");
        check_frames(&frames, &mut |frame, _| {
            if frame.len() < FRAME_BYTES_MIN {
                return None;
            }
            let before = guard.counters().expect("counters");
            guard.test_run(frame, 1).expect("test-run");
            let after = guard.counters().expect("counters");
            Some(common::packets_host::counted(&before, &after))
        });
    }
);
