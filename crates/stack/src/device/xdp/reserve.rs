//! What the driver keeps of a queue's chunks where nothing is copied.
//!
//! Without copies the driver receives into the very chunks that we lend, also what is the
//! kernel's: its other sockets, ssh among them. A frame that waits in one of our rings, or that
//! the program above holds, is a chunk less. So a program that is stopped, or slower than a
//! flood, would take all of the queue's traffic from the host. Therefore the XDP program gives
//! our sockets only as many frames as leave the driver its reserve, and drops the rest.
//!
//! Every chunk was lent, and each frame that was given used one up: the driver has
//! those that were lent less those that were given. The kernel may have refused a frame that
//! counts as given (and the driver has the chunk again), or may have taken one that was only
//! tried. Each socket sees that when it looks at its ring, and the difference is made up.
//!
//! A receive-buffer credit limits what waits in the rings here, not what is lent.

use parking_lot::Mutex;

use super::room::Room;

/// Frames that the driver always has to receive into, if so many were lent at first; else a
/// quarter of those. One poll of the kernel takes 64, and what it takes is in no ring yet.
const FRAMES: i64 = 512;

/// One queue's.
#[derive(Debug)]
pub(super) struct Reserve {
    room: Room,
    counts: Mutex<Counts>,
}

/// Of frames, since the queue was opened.
#[derive(Clone, Copy, Debug)]
struct Counts {
    reserve: i64,
    lent: i64,
    taken: i64,
    /// Given by the program's count, but in no ring.
    lost: i64,
    credit: i64,
}

impl Counts {
    const fn new(lent: i64) -> Self {
        let quarter = lent / 4;
        Self {
            reserve: if quarter < FRAMES { quarter } else { FRAMES },
            lent,
            taken: 0,
            lost: 0,
            credit: i64::MAX / 2,
        }
    }

    /// The count up to which the program may give.
    fn limit(&self) -> u64 {
        let waiting = self.taken + self.credit;
        let limit = (self.lent - self.reserve).min(waiting) + self.lost;
        u64::try_from(limit).unwrap_or(0)
    }
}

impl Reserve {
    /// Of a queue whose sockets the program does not know yet, with so many chunks lent.
    pub(super) fn new(room: Room, lent: i64) -> Self {
        let counts = Counts::new(lent);
        room.limit(counts.limit());
        Self {
            room,
            counts: Mutex::new(counts),
        }
    }

    fn change(&self, change: impl FnOnce(&mut Counts)) {
        let mut counts = self.counts.lock();
        change(&mut counts);
        // Before another thread's: limits must not come in the wrong order.
        self.room.limit(counts.limit());
    }

    /// So many more chunks were lent.
    pub(super) fn on_lent(&self, chunks: i64) {
        self.change(|counts| counts.lent += chunks);
    }

    /// A socket has taken frames from its ring, and found that so many more than it knew of
    /// did not get there.
    pub(super) fn on_taken(&self, frames: i64, lost: i64) {
        self.change(|counts| {
            counts.taken += frames;
            counts.lost += lost;
        });
    }

    pub(super) fn set_credit(&self, frames: u32) {
        self.change(|counts| counts.credit = frames.into());
    }

    /// Frames that were dropped so that the driver keeps its chunks.
    pub(super) fn refused(&self) -> u64 {
        self.room.refused()
    }
}

#[cfg(test)]
mod tests {
    use plimsoll_kernel::mapped::Mapped;

    use super::*;
    use crate::device::xdp::GIVEN_TO_QUEUES;
    use crate::device::xdp::room::Rooms;
    use crate::device::xdp::trial::{to, verdict, with_program};

    /// `XDP_DROP` and `XDP_PASS`.
    const DROP: u32 = 1;
    const PASS: u32 = 2;

    /// A queue as the program, the kernel and the stack see it.
    struct Queue {
        counts: Counts,
        given: i64,
        in_rings: i64,
    }

    impl Queue {
        fn new(lent: i64) -> Self {
            Self {
                counts: Counts::new(lent),
                given: 0,
                in_rings: 0,
            }
        }

        /// So many frames come; the kernel refuses the last of those that are given.
        fn flood(&mut self, frames: i64, refused: i64) {
            let limit = i64::try_from(self.counts.limit()).unwrap();
            let given = frames.min((limit - self.given).max(0));
            self.given += given;
            self.in_rings += given - refused.min(given);
        }

        /// The stack takes them and sees what did not come. It keeps some.
        fn take(&mut self, frames: i64, kept: i64) {
            let frames = frames.min(self.in_rings);
            self.in_rings -= frames;
            self.counts.taken += frames;
            self.counts.lost = self.given - self.counts.taken - self.in_rings;
            self.counts.lent += (frames - kept).max(0);
        }

        fn of_driver(&self) -> i64 {
            self.counts.lent - self.counts.taken - self.in_rings
        }
    }

    #[test]
    fn a_stopped_program_leaves_the_driver_its_reserve() {
        let mut queue = Queue::new(7168);
        queue.flood(1 << 20, 0);
        assert_eq!(queue.of_driver(), FRAMES);
        queue.take(64, 0);
        queue.flood(1 << 20, 0);
        assert_eq!(queue.of_driver(), FRAMES, "as many again as were taken");
        let small = Counts::new(1024);
        assert_eq!(small.limit(), 768, "a quarter of few");
    }

    #[test]
    fn frames_that_are_held_above_are_no_longer_the_drivers() {
        let mut queue = Queue::new(2048);
        for _ in 0..100 {
            queue.flood(256, 0);
            queue.take(256, 256);
        }
        assert_eq!(queue.of_driver(), FRAMES);
    }

    #[test]
    fn what_the_kernel_refused_is_given_again() {
        let mut queue = Queue::new(2048);
        for _ in 0..1000 {
            queue.flood(100, 90);
            queue.take(1 << 20, 0);
        }
        assert_eq!(queue.counts.lost, 90_000);
        assert_eq!(queue.of_driver(), 2048, "nothing waits");
        queue.flood(1 << 20, 0);
        assert_eq!(queue.of_driver(), FRAMES);
    }

    /// A socket's frames, as the program decides on them: those without a limit are given.
    #[test]
    fn the_program_gives_no_more_than_the_reserve_leaves() {
        with_program(false, |program| {
            let rooms = Rooms::of(&program.maps.given, &program.maps.given_up_to).unwrap();
            let limits = Mapped::<u64>::of(&program.maps.given_up_to).unwrap();
            let of = |port: u16, count: usize| {
                let verdicts = (0..count).map(|_| verdict(program, &to(port)));
                verdicts.filter(|verdict| *verdict == PASS).count()
            };
            assert_eq!(of(7, 100), 100, "nobody says anything");
            let reserve = Reserve::new(rooms.open(GIVEN_TO_QUEUES), 64);
            assert_eq!(of(7, 40) + of(8, 40), 48, "of all sockets together");
            assert_eq!(reserve.refused(), 32);
            assert_eq!(verdict(program, &to(8)), DROP);
            reserve.on_lent(10);
            assert_eq!(of(8, 40), 10);
            // A socket without room: what is only tried is not of the reserve.
            reserve.on_lent(1000);
            limits.store(1, 1);
            assert_eq!(of(7, 66), 4, "one has room, and three are tried");
            assert_eq!(rooms.given(GIVEN_TO_QUEUES as usize).frames, 59);
        });
    }

    /// A limit of 0 is none: a queue whose credit is used up would have been given everything. So would
    /// one whose sockets have another owner.
    #[test]
    fn the_program_hears_of_each_change_and_of_the_end() {
        with_program(false, |program| {
            let rooms = Rooms::of(&program.maps.given, &program.maps.given_up_to).unwrap();
            let limit = || rooms.taken(GIVEN_TO_QUEUES as usize);
            assert_eq!(limit(), 0);
            let reserve = Reserve::new(rooms.open(GIVEN_TO_QUEUES), 64);
            assert_eq!(limit(), 48);
            reserve.set_credit(0);
            assert_eq!(limit(), 1);
            reserve.set_credit(8);
            assert_eq!(limit(), 8);
            reserve.on_taken(10, 3);
            assert_eq!(limit(), 21, "10 taken, 8 may wait, 3 were lost");
            reserve.on_taken(5, -1);
            assert_eq!(limit(), 25);
            reserve.set_credit(1000);
            assert_eq!(limit(), 50);
            reserve.on_lent(15);
            assert_eq!(limit(), 65);
            drop(reserve);
            assert_eq!(limit(), 0);
        });
    }

    #[test]
    fn a_credit_limits_what_waits() {
        let mut queue = Queue::new(7168);
        queue.counts.credit = 100;
        queue.flood(1 << 20, 0);
        assert_eq!(queue.in_rings, 100);
        queue.take(60, 0);
        queue.flood(1 << 20, 0);
        assert_eq!(queue.in_rings, 100);
    }
}
