//! A device that loses, duplicates, reorders and corrupts frames, the same
//! ones for the same seed and the same frames.
//!
//! Every frame of both directions meets the faults in this order: lost, else
//! perhaps corrupted (one bit), perhaps duplicated as well, and perhaps held back until the next
//! frame of its direction has passed. A frame that is held when nothing follows
//! in the batch goes with the next call. Sockets that the device opens for single endpoints
//! (`ni-lrp`) have the same faults, drawn from seeds of their own.

use std::io;
use std::sync::Arc;

use parking_lot::Mutex;
use plimsoll_core::config::Fraction;

use super::wrapper::Wrapper;
use super::{Batch, Capabilities, Device, Frame};

/// How often which fault happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Faults {
    /// Lost altogether.
    pub loss: Fraction,
    /// One bit is flipped.
    pub corruption: Fraction,
    /// Comes twice.
    pub duplication: Fraction,
    /// Comes after the frame behind it.
    pub reordering: Fraction,
}

impl Faults {
    /// None at all.
    pub const NONE: Self = Self {
        loss: Fraction::NONE,
        corruption: Fraction::NONE,
        duplication: Fraction::NONE,
        reordering: Fraction::NONE,
    };

    /// Every fault equally often.
    #[must_use]
    pub const fn each(fraction: Fraction) -> Self {
        Self {
            loss: fraction,
            corruption: fraction,
            duplication: fraction,
            reordering: fraction,
        }
    }
}

/// What has been done to frames so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FaultCounts {
    /// Frames that came to the wrapper.
    pub offered: u64,
    /// Lost.
    pub lost: u64,
    /// Corrupted.
    pub corrupted: u64,
    /// Sent twice; without a free buffer a duplication does not happen.
    pub duplicated: u64,
    /// Held back.
    pub reordered: u64,
    /// Frames passed on, duplicates included.
    pub passed: u64,
}

/// A device with faults.
#[derive(Debug)]
pub struct Faulty<D> {
    inner: D,
    faults: Faults,
    /// For sockets that are opened.
    seeds: Mutex<fastrand::Rng>,
    /// What was received and sent, also by those.
    counts: [Counts; 2],
    receiving: Mutex<Injector>,
    sending: Mutex<Sending>,
}

type Counts = Arc<Mutex<FaultCounts>>;

#[derive(Debug)]
struct Sending {
    injector: Injector,
    /// Passed the faults and found no room yet.
    due: Batch,
}

#[derive(Debug)]
struct Injector {
    faults: Faults,
    random: fastrand::Rng,
    held: Option<Frame>,
    scratch: Batch,
    counts: Counts,
}

impl<D: Device> Faulty<D> {
    /// `inner` with faults in both directions, drawn from `seed`.
    pub fn new(inner: D, faults: Faults, seed: u64) -> Self {
        Self::counting(inner, faults, seed, Default::default())
    }

    fn counting(inner: D, faults: Faults, seed: u64, counts: [Counts; 2]) -> Self {
        let injector = |seed, counts: &Counts| Injector {
            faults,
            random: fastrand::Rng::with_seed(seed),
            held: None,
            scratch: Batch::new(),
            counts: Arc::clone(counts),
        };
        Self {
            inner,
            faults,
            seeds: Mutex::new(fastrand::Rng::with_seed(seed.rotate_left(32))),
            receiving: Mutex::new(injector(seed, &counts[0])),
            sending: Mutex::new(Sending {
                injector: injector(!seed, &counts[1]),
                due: Batch::new(),
            }),
            counts,
        }
    }

    /// What happened to frames received and to frames sent.
    #[must_use]
    pub fn counts(&self) -> (FaultCounts, FaultCounts) {
        let [received, sent] = &self.counts;
        (*received.lock(), *sent.lock())
    }
}

impl Injector {
    /// Moves all of `from` to `to`, with faults.
    fn pass(&mut self, from: &mut Batch, to: &mut Batch) {
        let before = to.len();
        let counts = Arc::clone(&self.counts);
        let mut counts = counts.lock();
        for frame in from.drain(..) {
            counts.offered += 1;
            if let Some(frame) = self.pass_one(frame, to, &mut counts) {
                to.extend(self.held.take());
                self.held = Some(frame);
                counts.reordered += 1;
            } else if to.len() > before {
                to.extend(self.held.take());
            }
        }
        counts.passed += (to.len() - before) as u64;
    }

    /// Nothing follows that could go before the frame that is held back.
    fn release(&mut self, to: &mut Batch) {
        if let Some(frame) = self.held.take() {
            to.push_back(frame);
            self.counts.lock().passed += 1;
        }
    }

    /// Returns the frame if it is to be held back.
    fn pass_one(
        &mut self,
        mut frame: Frame,
        to: &mut Batch,
        counts: &mut FaultCounts,
    ) -> Option<Frame> {
        if self.happens(self.faults.loss) {
            counts.lost += 1;
            return None;
        }
        if self.happens(self.faults.corruption) && !frame.is_empty() {
            let (byte, bit) = (self.random.usize(..frame.len()), self.random.u8(..8));
            frame[byte] ^= 1 << bit;
            counts.corrupted += 1;
        }
        if self.happens(self.faults.duplication)
            && let Some(mut copy) = frame.pool().take()
            && copy.copy_from(&frame)
        {
            to.push_back(copy);
            counts.duplicated += 1;
        }
        if self.happens(self.faults.reordering) {
            return Some(frame);
        }
        to.push_back(frame);
        None
    }

    fn happens(&mut self, fraction: Fraction) -> bool {
        fraction > Fraction::NONE && self.random.u32(..Fraction::WHOLE.as_ppm()) < fraction.as_ppm()
    }
}

impl<D: Device> Wrapper for Faulty<D> {
    type Inner = D;

    fn inner(&self) -> &D {
        &self.inner
    }

    /// Corruption is there to be found.
    fn narrow(&self, inner: Capabilities) -> Capabilities {
        Capabilities {
            checksums_verified: false,
            ..inner
        }
    }

    fn around(&self, opened: Arc<dyn Device>) -> io::Result<Arc<dyn Device>> {
        let (seed, counts) = (self.seeds.lock().u64(..), self.counts.clone());
        let opened = Faulty::counting(opened, self.faults, seed, counts);
        Ok(Arc::new(opened))
    }

    fn receive_through(&self, batch: &mut Batch, max: usize) -> io::Result<usize> {
        let mut injector = self.receiving.lock();
        let mut scratch = std::mem::take(&mut injector.scratch);
        let received = self.inner.receive(&mut scratch, max);
        let before = batch.len();
        if scratch.is_empty() {
            injector.release(batch);
        }
        injector.pass(&mut scratch, batch);
        injector.scratch = scratch;
        received?;
        Ok(batch.len() - before)
    }

    fn transmit_through(&self, batch: &mut Batch) -> io::Result<usize> {
        let mut sending = self.sending.lock();
        let Sending { injector, due } = &mut *sending;
        let taken = batch.len();
        injector.pass(batch, due);
        self.inner.transmit(due)?;
        Ok(taken)
    }
}

#[cfg(test)]
mod tests {
    use super::super::simulated::{SimulatedConfig, SimulatedDevice};
    use super::*;

    /// Numbered frames through faults: what arrives, and the counts.
    fn arrivals(faults: Faults, seed: u64) -> (Vec<Vec<u8>>, FaultCounts) {
        let (one, other) = SimulatedDevice::pair(&SimulatedConfig::default()).unwrap();
        let faulty = Faulty::new(other, faults, seed);
        let mut arrived = Batch::new();
        let mut seen = Vec::new();
        for k in 0..2000_u32 {
            let mut frame = [0; 60];
            frame[..4].copy_from_slice(&k.to_be_bytes());
            one.send(&frame);
            if k % 10 == 9 {
                while faulty.receive(&mut arrived, 64).unwrap() > 0 {}
                seen.extend(arrived.drain(..).map(|frame| frame.to_vec()));
            }
        }
        (seen, faulty.counts().0)
    }

    #[test]
    fn without_faults_nothing_changes() {
        let (seen, counts) = arrivals(Faults::NONE, 1);
        assert!(seen.is_sorted());
        assert_eq!((seen.len(), counts.passed), (2000, 2000));
    }

    #[test]
    fn every_fault_happens_about_as_often_as_asked_and_is_counted() {
        let (seen, counts) = arrivals(Faults::each(Fraction::from_percent(10)), 7);
        for count in [
            counts.lost,
            counts.corrupted,
            counts.duplicated,
            counts.reordered,
        ] {
            assert!((120..280).contains(&count), "{counts:?}");
        }
        assert_eq!(counts.offered, 2000);
        assert_eq!(
            counts.passed,
            counts.offered - counts.lost + counts.duplicated
        );
        assert_eq!(seen.len() as u64, counts.passed);
        assert!(!seen.is_sorted());
    }

    /// TCP sends so: each segment by itself, and then all that waits is to go on.
    #[test]
    fn frames_sent_singly_are_reordered_too() {
        let (one, other) = SimulatedDevice::pair(&SimulatedConfig::default()).unwrap();
        let reordering = Fraction::from_percent(30);
        let faults = Faults {
            reordering,
            ..Faults::NONE
        };
        let faulty = Faulty::new(other, faults, 1);
        let (mut batch, mut seen) = (Batch::new(), Vec::new());
        for k in 0..100_u32 {
            let mut frame = faulty.pool().take().unwrap();
            assert!(frame.copy_from(&[k.to_be_bytes(); 15].concat()));
            batch.push_back(frame);
            faulty.transmit(&mut batch).unwrap();
            faulty.transmit(&mut batch).unwrap();
            while one.receive(&mut batch, 64).unwrap() > 0 {}
            seen.extend(batch.drain(..).map(|frame| frame.to_vec()));
        }
        let swapped = seen.windows(2).filter(|two| two[0] > two[1]).count() as u64;
        let counts = faulty.counts().1;
        assert!(
            swapped > 5 && swapped <= counts.reordered,
            "{swapped}, {counts:?}"
        );
        assert_eq!(counts.passed, seen.len() as u64);
    }

    #[test]
    fn the_same_seed_gives_the_same_frames() {
        let faults = Faults::each(Fraction::from_percent(5));
        assert_eq!(arrivals(faults, 3), arrivals(faults, 3));
        assert_ne!(arrivals(faults, 3).0, arrivals(faults, 4).0);
    }
}
