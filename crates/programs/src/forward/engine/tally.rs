//! What the threads tell of their work. None of them waits for whoever reads it, since that may
//! wait for the CPU itself.

use parking_lot::Mutex;

use crate::forward::outcome::Counts;
use crate::sent::Transmitted;

/// What became of a port's frames in user space.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::forward) struct Tally {
    pub(in crate::forward) outcomes: Counts,
    pub(in crate::forward) transmitted: Transmitted,
    pub(in crate::forward) lost: u64,
    /// Of all these outcomes, those of protected frames.
    pub(in crate::forward) protected: u64,
}

/// What a thread told last, by port.
#[derive(Debug, Default)]
pub(super) struct Told(Mutex<Vec<Tally>>);

impl Told {
    pub(super) fn of_ports(ports: usize) -> Self {
        Self(Mutex::new(vec![Tally::default(); ports]))
    }

    pub(super) fn ports(&self) -> usize {
        self.0.lock().len()
    }

    pub(super) fn read(&self, port: usize) -> Tally {
        self.0.lock()[port]
    }

    /// Tells these. False: somebody reads just now, and they are to be told again soon.
    #[must_use]
    pub(super) fn tell(&self, tallies: &[Tally]) -> bool {
        let told = self.0.try_lock();
        told.map(|mut told| told.copy_from_slice(tallies)).is_some()
    }

    /// Tells these, the thread's last. Waits for whoever reads.
    pub(super) fn tell_last(&self, tallies: &[Tally]) {
        self.0.lock().copy_from_slice(tallies);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A real-time thread waited for a reader that had the lock and waited for the CPU.
    #[test]
    fn who_tells_waits_for_no_reader() {
        let told = Told::of_ports(2);
        let mut tallies = [Tally::default(); 2];
        tallies[1].lost = 7;
        let reading = told.0.lock();
        assert!(!told.tell(&tallies));
        drop(reading);
        assert_eq!(told.read(1).lost, 0);
        assert!(told.tell(&tallies));
        assert_eq!(told.read(1).lost, 7);
    }
}
