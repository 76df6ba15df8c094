//! Receive queues of an interface that have no socket: a program sees no frames of queues that
//! somebody adds while it works.

use plimsoll_stack::device::xdp::UnservedFrames;

/// What is known of such frames of one interface.
#[derive(Debug, Default)]
pub(crate) struct Unserved {
    /// Frames of each CPU until the beginning.
    before: Vec<UnservedFrames>,
    is_told: bool,
}

impl Unserved {
    /// What CPUs have had until now does not count.
    pub(crate) const fn begin(before: Vec<UnservedFrames>) -> Self {
        Self {
            before,
            is_told: false,
        }
    }

    /// Frames since the beginning, by what CPUs have had.
    pub(crate) fn frames(&self, cpus: &[UnservedFrames]) -> u64 {
        since(&self.before, cpus).map(|cpu| cpu.frames).sum()
    }

    /// A queue that has no socket, if there is one. Told once.
    pub(crate) fn queue_to_tell(&mut self, cpus: &[UnservedFrames]) -> Option<u64> {
        if self.is_told {
            return None;
        }
        let queue = since(&self.before, cpus).map(|cpu| cpu.queue).max()?;
        self.is_told = true;
        Some(queue)
    }
}

/// What is said of such a queue: what becomes of its frames, and whose remedy it is.
pub(crate) fn problem(queue: u64, interface: &str, fate: &str, program: &str) -> String {
    format!(
        "queue {queue} of {interface} has no socket, since it was added later: its frames are {fate}. Start the {program} again"
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

    fn cpus(all: [(u64, u64); 3]) -> [UnservedFrames; 3] {
        all.map(|(frames, queue)| UnservedFrames { frames, queue })
    }

    /// It had named the highest queue that ever had none.
    #[test]
    fn what_was_before_neither_counts_nor_is_named() {
        let before = cpus([(5, 7), (0, 0), (2, 1)]);
        let now = cpus([(5, 7), (3, 4), (6, 2)]);
        let mut unserved = Unserved::begin(before.to_vec());
        assert_eq!(unserved.frames(&before), 0);
        assert_eq!(unserved.queue_to_tell(&before), None);
        assert_eq!(unserved.frames(&now), 7);
        assert_eq!(unserved.queue_to_tell(&now), Some(4));
        // Nothing was known.
        assert_eq!(Unserved::default().frames(&now), 14);
    }

    #[test]
    fn a_queue_is_told_once() {
        let mut unserved = Unserved::default();
        assert_eq!(unserved.queue_to_tell(&cpus([(1, 2); 3])), Some(2));
        assert_eq!(unserved.queue_to_tell(&cpus([(9, 3); 3])), None);
    }
}
