//! The screening thread: decides on frames that wait, and has verdicts remembered.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;
use std::thread;

use plimsoll_core::channel::{Consumer, InterruptRequest};
use plimsoll_stack::device::Frame;

use super::{QUOTA, Reload, Shared, WAIT, bytes, now};
use crate::screen::counts::add;
use crate::screen::memory::{Decided, Memory};
use crate::screen::{Screen, Side, Verdict};

/// The screening thread.
pub(super) struct Screening<'a> {
    pub(super) shared: &'a Shared<'a>,
    pub(super) screen: Box<dyn Screen>,
    pub(super) reload: &'a Reload,
}

impl Screening<'_> {
    pub(super) fn run(mut self, mut queues: [Consumer<Frame>; 2]) {
        while !self.shared.over.load(Ordering::Relaxed) {
            if let Some(screen) = self.reload.take() {
                self.forget();
                self.screen = screen;
                self.shared.died.store(false, Ordering::Relaxed);
                add(&self.shared.reloads, 1);
            }
            let mut taken = 0;
            for side in Side::ALL {
                taken += self.turn(side, &mut queues[side.index()]);
            }
            if taken == 0 {
                let mut requests = queues.iter_mut().map(Consumer::request_interrupt);
                if requests.all(|request| request == InterruptRequest::Pending) {
                    thread::park_timeout(WAIT);
                }
            }
        }
        self.give_up(&mut queues);
    }

    /// Nobody decides on what still waits.
    fn give_up(&self, queues: &mut [Consumer<Frame>; 2]) {
        let now = now();
        for side in Side::ALL {
            let queue = &mut queues[side.index()];
            let left = std::iter::from_fn(|| queue.pop(now)).count();
            add(&self.shared.counters(side).failed, left);
        }
    }

    /// Decides on a quota of frames.
    fn turn(&mut self, side: Side, queue: &mut Consumer<Frame>) -> usize {
        let now = now();
        let popped = std::iter::from_fn(|| queue.pop(now)).take(QUOTA);
        let frames: Vec<Frame> = popped.map(|arrival| arrival.item).collect();
        if frames.is_empty() {
            return 0;
        }
        let mut accepted = Vec::with_capacity(frames.len());
        for (index, frame) in frames.iter().enumerate() {
            match self.decide(frame, side) {
                Some(Verdict::Accept) => accepted.push(&frame[..]),
                Some(Verdict::Discard) => add(&self.shared.counters(side).discarded, 1),
                None => {
                    self.without_screen(side, &frames[index..]);
                    break;
                }
            }
        }
        self.note(self.shared.send(side, &accepted));
        let occupancy = queue.occupancy() as u32;
        self.shared
            .tell(|feedback, queues| feedback.on_dequeue(queues[side.index()], occupancy, now));
        frames.len()
    }

    /// `None`: the screen has died.
    fn decide(&mut self, frame: &[u8], side: Side) -> Option<Verdict> {
        if self.shared.died.load(Ordering::Relaxed) {
            return None;
        }
        let screen = &mut self.screen;
        let memory = self.shared.memory;
        let generation = memory.map(Memory::generation);
        let decided = catch_unwind(AssertUnwindSafe(|| {
            let verdict = screen.decide(frame, side);
            (
                verdict,
                memory.is_some() && screen.holds_for_flow(frame, side),
            )
        }));
        add(&self.shared.decided, 1);
        let Ok((verdict, holds)) = decided else {
            self.shared.died.store(true, Ordering::Relaxed);
            self.forget();
            return None;
        };
        if let (Some(memory), Some(generation), true) = (memory, generation, holds) {
            let program = &self.shared.ports[side.index()].program;
            let decided = Decided {
                frame,
                from: side,
                verdict,
                generation,
            };
            memory.learn(program, self.shared.protected, &decided, now());
        }
        Some(verdict)
    }

    /// A program that cannot be told forgets by itself within a verdict's lifetime.
    fn forget(&self) {
        let _ = self.shared.forget();
    }

    fn without_screen(&self, side: Side, frames: &[Frame]) {
        add(&self.shared.decided, frames.len());
        self.note(self.shared.without_screen(side, &bytes(frames)));
    }

    /// What an interface could not take is counted. One that fails ends the receiving thread,
    /// and with it this one.
    fn note<T>(&self, sent: io::Result<T>) {
        if let Err(error) = sent {
            // The first one counts.
            let _ = self.shared.failure.set(error);
        }
    }
}
