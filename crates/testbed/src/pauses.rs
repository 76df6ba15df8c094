//! How long a CPU stands still of itself: what a hypervisor, firmware or interrupts
//! take of it, whatever runs.
//!
//! A receive ring holds what arrives in so many microseconds; a CPU that stands
//! still for longer loses frames, and no protection can help it. So a loss below
//! what these pauses explain is not the receive path's.
//!
//! A thread above every process reads the clock on that CPU without end; two
//! readings far apart are a pause. Meanwhile the other CPU is kept busy, since a
//! virtual machine's CPUs may share one.
//!
//! Limits: what runs in the kernel on that CPU without being preemptible (kernel
//! threads, timers) counts as well; it delays receive work alike.

use std::thread;
use std::time::{Duration, Instant};

use plimsoll_kernel::namespace::pin;
use plimsoll_kernel::scheduling::set_fifo;

use crate::{Error, Testbed, interrupt};

/// Real-time threads leave the CPU to others after this, or the kernel takes it
/// from them (50 ms of each second), which would count as a pause.
const SPELL: Duration = Duration::from_millis(400);
const REST: Duration = Duration::from_millis(100);
/// Two readings of the clock are closer together than this.
const SHORTEST: Duration = Duration::from_micros(10);

/// The pauses seen.
#[derive(Clone, Debug, Default)]
pub struct Pauses {
    /// How long was looked.
    pub observed: Duration,
    /// Each pause of 10 µs or more.
    pub lengths: Vec<Duration>,
}

impl Pauses {
    /// Looks at the test host's CPU for about `span`, the load host's being busy.
    ///
    /// # Errors
    ///
    /// [`Error::Interrupted`], or the thread may not be pinned or real-time.
    pub fn of(testbed: &Testbed, span: Duration) -> Result<Self, Error> {
        let mut pauses = Self::default();
        let mut left = span;
        while !left.is_zero() {
            let spell = left.min(SPELL);
            pauses.look(testbed, spell)?;
            interrupt::sleep(REST)?;
            left -= spell;
        }
        Ok(pauses)
    }

    fn look(&mut self, testbed: &Testbed, spell: Duration) -> Result<(), Error> {
        let end = Instant::now() + spell;
        let (watched, busy) = (testbed.test().cpu(), testbed.load().cpu());
        let lengths = thread::scope(|scope| {
            scope.spawn(move || {
                // Where it may not be pinned, it is busy somewhere.
                let _ = pin(busy);
                while Instant::now() < end {}
            });
            scope.spawn(move || watch(watched, end)).join()
        });
        let lengths = lengths.unwrap_or_else(|payload| std::panic::resume_unwind(payload))?;
        self.lengths.extend(lengths);
        self.observed += spell;
        Ok(())
    }

    /// The part of the time, from 0 to 1, in which frames would not find room that
    /// holds what arrives in `room`, were it empty before each pause.
    #[must_use]
    pub fn lost_part(&self, room: Duration) -> f64 {
        let beyond = self
            .lengths
            .iter()
            .map(|length| length.saturating_sub(room));
        beyond.sum::<Duration>().as_secs_f64() / self.observed.as_secs_f64()
    }
}

fn watch(cpu: usize, end: Instant) -> Result<Vec<Duration>, Error> {
    pin(cpu).map_err(Error::io(format!("run on CPU {cpu}")))?;
    set_fifo(1).map_err(Error::io("become a real-time thread"))?;
    let mut lengths = Vec::with_capacity(1 << 16);
    let mut before = Instant::now();
    while before < end {
        let now = Instant::now();
        if now - before > SHORTEST {
            lengths.push(now - before);
        }
        before = now;
    }
    Ok(lengths)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_a_pause_has_beyond_the_room_is_lost() {
        let micros = Duration::from_micros;
        let pauses = Pauses {
            observed: micros(10_000),
            lengths: vec![micros(50), micros(100), micros(300)],
        };
        assert_eq!(pauses.lost_part(micros(300)), 0.0);
        assert_eq!(pauses.lost_part(micros(100)), 0.02);
        assert_eq!(pauses.lost_part(Duration::ZERO), 0.045);
    }
}
