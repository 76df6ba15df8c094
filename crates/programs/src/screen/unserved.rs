//! Receive queues of the firewall's interfaces that have no socket ([`crate::unserved`]).

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::memory::Program;
use super::port::Port;
use super::{ScreenConfig, Side, Verdict};
use crate::unserved::{Unserved as OfInterface, problem};

/// How often the programs are asked.
const LOOK: Duration = Duration::from_secs(1);

/// What is known of such frames.
#[derive(Debug, Default)]
pub(super) struct Unserved(Mutex<Known>);

#[derive(Debug, Default)]
struct Known {
    looked_at: Option<Instant>,
    sides: [OfInterface; 2],
}

impl Unserved {
    /// Until now there were no sockets at all for a moment.
    pub(super) fn begin(&self, ports: &[Port; 2]) {
        let before = |port: &Port| port.program.unserved().unwrap_or_default();
        let sides = ports
            .each_ref()
            .map(|port| OfInterface::begin(before(port)));
        *self.known() = Known {
            looked_at: None,
            sides,
        };
    }

    /// Frames of an interface since the beginning.
    pub(super) fn frames(&self, side: Side, program: &Program) -> libbpf_rs::Result<u64> {
        let cpus = program.unserved()?;
        Ok(self.known().sides[side.index()].frames(&cpus))
    }

    /// What is wrong, told once of an interface.
    pub(super) fn look(&self, config: &ScreenConfig, ports: &[Port; 2]) -> Option<String> {
        let mut known = self.known();
        if known.looked_at.is_some_and(|at| at.elapsed() < LOOK) {
            return None;
        }
        let told = Side::ALL.into_iter().find_map(|side| {
            let known = &mut known.sides[side.index()];
            let cpus = ports[side.index()].program.unserved().ok()?;
            let queue = known.queue_to_tell(&cpus)?;
            let fate = match config.on_failure {
                Verdict::Discard => "discarded",
                Verdict::Accept => "left to the kernel",
            };
            let name = &config.interfaces[side.index()];
            Some(problem(queue, name, fate, "screen"))
        });
        // The other interface's may be told at once.
        if told.is_none() {
            known.looked_at = Some(Instant::now());
        }
        told
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
