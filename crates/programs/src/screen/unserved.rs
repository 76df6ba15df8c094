//! Receive queues that have no socket: who adds some while the screen works has it see nothing
//! of theirs.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::memory::{Program, UnservedFrames};
use super::port::Port;
use super::{ScreenConfig, Side, Verdict};

/// How often the programs are asked.
const LOOK: Duration = Duration::from_secs(1);

/// What is known of such frames.
#[derive(Debug, Default)]
pub(super) struct Unserved(Mutex<Known>);

#[derive(Debug, Default)]
struct Known {
    looked_at: Option<Instant>,
    sides: [OfSide; 2],
}

#[derive(Debug, Default)]
struct OfSide {
    /// Frames of each CPU until the beginning.
    before: Vec<UnservedFrames>,
    is_told: bool,
}

impl Unserved {
    /// Until now there were no sockets at all for a moment.
    pub(super) fn begin(&self, ports: &[Port; 2]) {
        let sides = ports.each_ref().map(|port| OfSide {
            before: port.program.unserved().unwrap_or_default(),
            is_told: false,
        });
        *self.known() = Known {
            looked_at: None,
            sides,
        };
    }

    /// Frames of an interface since the beginning.
    pub(super) fn frames(&self, side: Side, program: &Program) -> libbpf_rs::Result<u64> {
        let cpus = program.unserved()?;
        let known = self.known();
        let before = &known.sides[side.index()].before;
        Ok(since(before, &cpus).map(|cpu| cpu.frames).sum())
    }

    /// What is wrong, told once of an interface.
    pub(super) fn look(&self, config: &ScreenConfig, ports: &[Port; 2]) -> Option<String> {
        let mut known = self.known();
        if known.looked_at.is_some_and(|at| at.elapsed() < LOOK) {
            return None;
        }
        let told = Side::ALL.into_iter().find_map(|side| {
            let known = &mut known.sides[side.index()];
            if known.is_told {
                return None;
            }
            let cpus = ports[side.index()].program.unserved().ok()?;
            let queue = since(&known.before, &cpus).map(|cpu| cpu.queue).max()?;
            known.is_told = true;
            let name = &config.interfaces[side.index()];
            Some(problem(queue, name, config.on_failure))
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

fn problem(queue: u64, name: &str, on_failure: Verdict) -> String {
    let fate = match on_failure {
        Verdict::Discard => "discarded",
        Verdict::Accept => "left to the kernel",
    };
    format!(
        "queue {queue} of {name} has no socket, since it was added later: its frames are {fate}. Start the screen again"
    )
}

/// What CPUs have had since they had this.
fn since(
    before: &[UnservedFrames],
    cpus: &[UnservedFrames],
) -> impl Iterator<Item = UnservedFrames> {
    let before = before.iter().map(|cpu| cpu.frames);
    let pairs = cpus.iter().zip(before.chain(std::iter::repeat(0)));
    pairs.filter_map(|(cpu, before)| {
        let frames = cpu.frames.checked_sub(before).filter(|new| *new > 0)?;
        Some(UnservedFrames { frames, ..*cpu })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// It had named the highest queue that ever had none.
    #[test]
    fn what_was_before_neither_counts_nor_is_named() {
        let cpus =
            |all: [(u64, u64); 3]| all.map(|(frames, queue)| UnservedFrames { frames, queue });
        let before = cpus([(5, 7), (0, 0), (2, 1)]);
        assert_eq!(since(&before, &before).count(), 0);
        let now = cpus([(5, 7), (3, 4), (6, 2)]);
        let new: Vec<_> = since(&before, &now).collect();
        assert_eq!(new, cpus([(0, 0), (3, 4), (4, 2)])[1..]);
        // Nothing was known.
        assert_eq!(since(&[], &now).map(|cpu| cpu.frames).sum::<u64>(), 14);
    }
}
