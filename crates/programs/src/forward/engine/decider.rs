//! What becomes of a frame in user space, whoever took it from its ring.

use std::io;
use std::sync::Arc;
use std::time::Instant as StdInstant;

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use plimsoll_core::time::Instant;
use plimsoll_stack::device::{Batch, Frame};

use crate::forward::Config;
use crate::forward::error::Error;
use crate::forward::limits::Buckets;
use crate::forward::outcome::{Counts, Fate, Outcome};
use crate::forward::packet;
use crate::forward::table::Table;
use crate::forward::to_kernel::ToKernel;

/// Threads have one each. They share what the kernel may have to work on.
#[derive(Clone, Debug)]
pub(super) struct Decider {
    table: Arc<ArcSwap<Table>>,
    exceptions: Arc<Mutex<Exceptions>>,
    started: StdInstant,
}

/// The kernel's part.
#[derive(Debug)]
struct Exceptions {
    buckets: Buckets,
    to_kernel: ToKernel,
}

impl Decider {
    pub(super) fn new(
        config: &Config,
        table: Arc<ArcSwap<Table>>,
        mtu: u32,
    ) -> Result<Self, Error> {
        let exceptions = Exceptions {
            buckets: Buckets::new(config.limits, Instant::ZERO),
            to_kernel: ToKernel::open(mtu)?,
        };
        Ok(Self {
            table,
            exceptions: Arc::new(Mutex::new(exceptions)),
            started: StdInstant::now(),
        })
    }

    pub(super) fn now(&self) -> Instant {
        let nanos = self.started.elapsed().as_nanos();
        Instant::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }

    /// The frame as it leaves, and by which port; or what else becomes of it.
    fn decide(
        &self,
        table: &Table,
        mut frame: Frame,
        port: usize,
        now: Instant,
    ) -> Result<(usize, Frame), Outcome> {
        let plain = packet::examine(&frame, table.ports()[port].station);
        let decided = plain.and_then(|plain| Ok((plain, table.decide(&plain, port)?)));
        match decided {
            Ok((plain, next)) => {
                let from = table.ports()[next.port].station;
                packet::rewrite(&mut frame, plain.source.is_ipv4(), from, next.station);
                Ok((next.port, frame))
            }
            Err(outcome) if outcome.fate() != Fate::Kernel => Err(outcome),
            Err(outcome) => Err(self.exceptions.lock().take(outcome, frame, now)),
        }
    }

    /// Decides about all frames of a batch that came in by `port`. Those to be forwarded are
    /// put into `routed`, with the port that each leaves by, also if it fails.
    pub(super) fn decide_all(
        &self,
        batch: &mut Batch,
        port: usize,
        now: Instant,
        counts: &mut Counts,
        routed: &mut Vec<(usize, Frame)>,
    ) -> io::Result<()> {
        let table = self.table.load();
        let mut kernel_has_work = false;
        for frame in batch.drain(..) {
            let outcome = match self.decide(&table, frame, port, now) {
                Ok(forwarded) => {
                    routed.push(forwarded);
                    Outcome::Forwarded
                }
                Err(outcome) => outcome,
            };
            kernel_has_work |= outcome.fate() == Fate::Kernel;
            counts.count(outcome);
        }
        drop(table);
        match kernel_has_work {
            true => self.exceptions.lock().to_kernel.flush(),
            false => Ok(()),
        }
    }
}

impl Exceptions {
    fn take(&mut self, outcome: Outcome, frame: Frame, now: Instant) -> Outcome {
        match self.buckets.admits(outcome, &frame, now) && self.to_kernel.push(frame) {
            true => outcome,
            false => Outcome::Limited,
        }
    }
}
