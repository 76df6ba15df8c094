//! Receive queues that have no socket: who adds some while the screen works has it see nothing
//! of theirs.

use std::sync::atomic::{AtomicU64, Ordering};

use super::port::Port;
use super::{ScreenConfig, Side, Verdict};

/// Frames of such queues that are known of, by interface.
#[derive(Debug, Default)]
pub(super) struct Unserved([AtomicU64; 2]);

impl Unserved {
    /// Until now there were no sockets at all for a moment.
    pub(super) fn begin(&self, ports: &[Port; 2]) {
        for (known, port) in self.0.iter().zip(ports) {
            let frames = port
                .program
                .unserved()
                .map_or(0, |unserved| unserved.frames);
            known.store(frames, Ordering::Relaxed);
        }
    }

    /// What is wrong, told once of an interface.
    pub(super) fn look(&self, config: &ScreenConfig, ports: &[Port; 2]) -> Option<String> {
        let fate = match config.on_failure {
            Verdict::Discard => "discarded",
            Verdict::Accept => "left to the kernel",
        };
        Side::ALL.into_iter().find_map(|side| {
            let (known, name) = (&self.0[side.index()], &config.interfaces[side.index()]);
            let unserved = ports[side.index()].program.unserved().ok()?;
            if unserved.frames <= known.load(Ordering::Relaxed) {
                return None;
            }
            known.store(u64::MAX, Ordering::Relaxed);
            Some(format!(
                "queue {} of {name} has no socket, since it was added later: its frames are {fate}. Start the screen again",
                unserved.queue
            ))
        })
    }
}
