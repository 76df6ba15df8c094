//! Optimistic interrupt protection: shared data guarded by a flag instead of by
//! a raised interrupt level.
//!
//! Intuition: raising the level costs on every entry and helps only in the rare
//! case that an interrupt comes meanwhile. So set a flag instead, and let the
//! interrupt routine look at it. If it finds the flag set it leaves a note,
//! masks its source and returns; whoever holds the flag finds the note on
//! leaving, does the deferred work and unmasks (Tracey & Banerji, sections 3.3
//! and 4.3; the idea is Stodolsky et al. 1993).
//!
//! ```text
//!             try_enter, on_interrupt
//!      free ------------------------> held --+
//!       ^                              |  ^  | on_interrupt: note, mask
//!       | leave: Left                  |  |  v
//!       +------------------------------+  held, noted
//!                                         (leave: Replay)
//! ```
//!
//! The four users in the paper differ only in what they do when they are denied:
//!
//! | user | denied |
//! | --- | --- |
//! | user's write or read | [`try_enter`](ProtectedSection::try_enter) again: spin, or sleep where system calls cannot be preempted (TB-25, TB-26, TB-29) |
//! | kernel's fast write | returns "retry", as for a full queue (TB-27) |
//! | transmit completion | [`on_interrupt`](ProtectedSection::on_interrupt): the holder drains the queue (TB-28) |
//! | receive interrupt | the same, with its data kept and its source masked (TB-30, TB-31) |
//!
//! Departures: the deferred data stays where the interrupt routine keeps it (a
//! ring, a register); only the note is shared, so nothing here needs `unsafe`.
//! The paper lets a denied transmit completion skip its work without a note,
//! since the holder "has or will" do it; a holder that had already looked for
//! the last time would leave the queue waiting for the next transmission.
//! Here it leaves a note like any other.
//!
//! Limits: one note, however many interrupts were denied; a source that is not
//! masked must keep its own count. Interrupts wait as long as the section lasts.
//!
//! When it loses: on a host where raising the level is cheap, or where sections
//! often do collide.

use crate::sync::{AtomicU8, Ordering};

const HELD: u8 = 1;
/// An interrupt was denied and its work is still to be done.
const NOTED: u8 = 2;

/// The flag over one set of shared data.
#[derive(Debug, Default)]
pub struct ProtectedSection(AtomicU8);

/// What an interrupt routine may do.
#[derive(Debug)]
#[must_use = "the section is left when this is dropped"]
pub enum Interrupt<'a> {
    /// Nobody is inside: do the work, then leave.
    Entered(Section<'a>),
    /// Somebody is inside and has been told. Keep the data, mask the source and
    /// return; the holder will replay and unmask.
    Deferred,
}

/// What is left to do for a holder that wants to leave.
#[derive(Debug)]
#[must_use = "a deferred interrupt may have to be replayed"]
pub enum Leave<'a> {
    /// Out, nothing was deferred.
    Left,
    /// Still inside: do the deferred work, unmask the source, leave again.
    Replay(Section<'a>),
}

impl ProtectedSection {
    /// Nobody is inside.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Enters, or is denied because somebody is inside.
    #[must_use]
    pub fn try_enter(&self) -> Option<Section<'_>> {
        let before = self.0.fetch_or(HELD, Ordering::Acquire);
        // Lazily: a section that is made is also dropped, which leaves it.
        (before & HELD == 0).then(|| Section(self))
    }

    /// Enters, or leaves a note for whoever is inside.
    pub fn on_interrupt(&self) -> Interrupt<'_> {
        let mut state = self.0.load(Ordering::Relaxed);
        loop {
            let (wanted, entered) = if state & HELD == 0 {
                (state | HELD, true)
            } else {
                (state | NOTED, false)
            };
            // Acquire for the work inside, Release so that the holder sees the
            // kept data together with the note.
            match self
                .0
                .compare_exchange_weak(state, wanted, Ordering::AcqRel, Ordering::Relaxed)
            {
                Ok(_) if entered => return Interrupt::Entered(Section(self)),
                Ok(_) => return Interrupt::Deferred,
                Err(now) => state = now,
            }
        }
    }
}

/// Being inside. Dropping it leaves without replaying: a note then stays for the
/// next holder.
#[derive(Debug)]
pub struct Section<'a>(&'a ProtectedSection);

impl<'a> Section<'a> {
    /// Leaves, unless an interrupt was deferred meanwhile.
    pub fn leave(self) -> Leave<'a> {
        let flag = &self.0.0;
        if flag
            .compare_exchange(HELD, 0, Ordering::Release, Ordering::Relaxed)
            .is_ok()
        {
            core::mem::forget(self);
            return Leave::Left;
        }
        flag.fetch_and(!NOTED, Ordering::Acquire);
        Leave::Replay(self)
    }
}

impl Drop for Section<'_> {
    fn drop(&mut self) {
        self.0.0.fetch_and(!HELD, Ordering::Release);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    extern crate std;
    use std::vec::Vec;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_uncontended_way_in_and_out() {
        let section = ProtectedSection::new();
        let inside = section.try_enter().unwrap();
        assert!(
            section.try_enter().is_none(),
            "a fast write is told to retry"
        );
        assert!(matches!(inside.leave(), Leave::Left));
        assert!(matches!(section.on_interrupt(), Interrupt::Entered(_)));
        assert!(section.try_enter().is_some(), "dropping left it");
    }

    #[test]
    fn an_interrupt_inside_is_replayed_by_the_holder() {
        let section = ProtectedSection::new();
        let inside = section.try_enter().unwrap();
        assert!(matches!(section.on_interrupt(), Interrupt::Deferred));
        let Leave::Replay(inside) = inside.leave() else {
            panic!("left without doing the deferred work");
        };
        assert!(
            section.try_enter().is_none(),
            "still inside while replaying"
        );
        assert!(matches!(inside.leave(), Leave::Left));
    }

    #[test]
    fn a_note_survives_a_holder_that_just_drops_out() {
        let section = ProtectedSection::new();
        let inside = section.try_enter().unwrap();
        assert!(matches!(section.on_interrupt(), Interrupt::Deferred));
        drop(inside);
        let inside = section.try_enter().unwrap();
        assert!(matches!(inside.leave(), Leave::Replay(_)));
    }

    proptest! {
        /// Any sequence of entries, interrupts and exits of one holder at a time:
        /// every deferred work is replayed exactly once.
        #[test]
        fn nothing_deferred_is_forgotten(ops in prop::collection::vec(0_u8..3, 1..200)) {
            let section = ProtectedSection::new();
            let mut inside: Vec<Section<'_>> = Vec::new();
            let mut noted = false;
            for op in ops {
                match op {
                    0 => match section.try_enter() {
                        Some(entered) => {
                            prop_assert!(inside.is_empty());
                            inside.push(entered);
                        }
                        None => prop_assert!(!inside.is_empty()),
                    },
                    1 => match section.on_interrupt() {
                        Interrupt::Entered(entered) => {
                            prop_assert!(inside.is_empty());
                            inside.push(entered);
                        }
                        Interrupt::Deferred => {
                            prop_assert!(!inside.is_empty());
                            noted = true;
                        }
                    },
                    _ => if let Some(holder) = inside.pop() {
                        match holder.leave() {
                            Leave::Left => prop_assert!(!noted),
                            Leave::Replay(holder) => {
                                prop_assert!(core::mem::take(&mut noted));
                                inside.push(holder);
                            }
                        }
                    },
                }
            }
        }
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use loom::sync::Arc;
    use loom::sync::atomic::AtomicU64;
    use loom::thread;

    use super::*;

    /// The shared data: a count without read-modify-writes, so that two at once
    /// inside, or a stale view on entry, lose an increment.
    #[derive(Default)]
    struct Driver {
        section: ProtectedSection,
        done: AtomicU64,
        kept: AtomicU64,
    }

    impl Driver {
        fn work(&self) {
            let done = self.done.load(Ordering::Relaxed);
            self.done.store(done + 1, Ordering::Relaxed);
        }

        /// Leaves, replaying what was deferred.
        fn leave(&self, mut inside: Section<'_>) {
            while let Leave::Replay(again) = inside.leave() {
                assert_eq!(
                    self.kept.load(Ordering::Relaxed),
                    1,
                    "the data kept is seen"
                );
                self.work();
                inside = again;
            }
        }
    }

    #[test]
    fn one_at_a_time_and_nothing_deferred_is_lost() {
        loom::model(|| {
            let driver = Arc::new(Driver::default());
            let interrupt = {
                let driver = driver.clone();
                thread::spawn(move || {
                    driver.kept.store(1, Ordering::Relaxed);
                    if let Interrupt::Entered(inside) = driver.section.on_interrupt() {
                        driver.work();
                        driver.leave(inside);
                    }
                })
            };
            // A user's write: once, or denied once and spinning.
            let inside = loop {
                if let Some(inside) = driver.section.try_enter() {
                    break inside;
                }
                thread::yield_now();
            };
            driver.work();
            driver.leave(inside);
            interrupt.join().unwrap();
            let inside = driver.section.try_enter().unwrap();
            assert_eq!(driver.done.load(Ordering::Relaxed), 2);
            driver.leave(inside);
        });
    }

    #[test]
    fn two_writers_exclude_each_other() {
        loom::model(|| {
            let driver = Arc::new(Driver::default());
            let other = {
                let driver = driver.clone();
                thread::spawn(move || match driver.section.try_enter() {
                    Some(inside) => {
                        driver.work();
                        driver.leave(inside);
                        1
                    }
                    None => 0,
                })
            };
            let mut entered = 0;
            if let Some(inside) = driver.section.try_enter() {
                driver.work();
                driver.leave(inside);
                entered += 1;
            }
            entered += other.join().unwrap();
            let _inside = driver.section.try_enter().unwrap();
            assert_eq!(driver.done.load(Ordering::Relaxed), entered);
        });
    }
}
