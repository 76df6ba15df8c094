//! The memory of AF_XDP's four rings, shared with the kernel.
//!
//! How both sides go by its indices is [`plimsoll_core::driver`]'s, where loom tries every
//! interleaving. Entries are plain numbers: what they mean is checked by
//! [`Pool`](super::super::Pool).

#![allow(unsafe_code, reason = "memory shared with the kernel")]

use std::io;
use std::marker::PhantomData;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU32, Ordering};

use memmap2::{MmapOptions, MmapRaw};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::unistd::ftruncate;
use plimsoll_core::driver::{IncomingRing, OutgoingRing, RingMemory};

/// A ring's memory.
#[derive(Debug)]
pub(super) struct Shared<T> {
    memory: MmapRaw,
    offsets: libc::xdp_ring_offset,
    length: u32,
    entries: PhantomData<T>,
}

impl<T: Copy> Shared<T> {
    /// Maps the ring of `length` entries that `socket` has at `page_offset`.
    pub(super) fn map(
        socket: &OwnedFd,
        page_offset: u64,
        offsets: libc::xdp_ring_offset,
        length: u32,
    ) -> io::Result<Self> {
        let memory = MmapOptions::new()
            .offset(page_offset)
            .len(Self::bytes(&offsets, length))
            .populate()
            .map_raw(socket)?;
        Self::over(memory, offsets, length)
    }

    /// Both sides' views of a ring of `length` entries in this process's memory, without a kernel.
    pub(super) fn pair(length: u32) -> io::Result<(Self, Self)> {
        let offsets = libc::xdp_ring_offset {
            producer: 0,
            consumer: 64,
            flags: 128,
            desc: 192,
        };
        let memory = memfd_create(c"ring", MFdFlags::MFD_CLOEXEC)?;
        ftruncate(&memory, Self::bytes(&offsets, length) as i64)?;
        let map = || Self::map(&memory, 0, offsets, length);
        Ok((map()?, map()?))
    }

    /// Up to the end of the last entry.
    fn bytes(offsets: &libc::xdp_ring_offset, length: u32) -> usize {
        offsets.desc as usize + length as usize * size_of::<T>()
    }

    /// The ring of `length` entries that lies in `memory`.
    fn over(memory: MmapRaw, offsets: libc::xdp_ring_offset, length: u32) -> io::Result<Self> {
        assert!(length.is_power_of_two(), "asked of the kernel by us");
        let words = [offsets.producer, offsets.consumer, offsets.flags];
        let fits = |&word: &u64| word % 4 == 0 && word as usize + 4 <= memory.len();
        let entries_fit = Self::bytes(&offsets, length) <= memory.len()
            && (offsets.desc as usize).is_multiple_of(align_of::<T>());
        if !words.iter().all(fits) || !entries_fit {
            return Err(io::Error::other("the kernel's ring offsets make no sense"));
        }
        Ok(Self {
            memory,
            offsets,
            length,
            entries: PhantomData,
        })
    }

    fn word(&self, offset: u64) -> &AtomicU32 {
        // SAFETY: `over` checked that the word is inside the mapping and
        // aligned. Both sides access it atomically.
        unsafe { &*self.at(offset as usize).cast() }
    }

    /// The kernel sleeps until it is woken by a system call.
    pub(super) fn needs_wakeup(&self) -> bool {
        let flags = self.word(self.offsets.flags).load(Ordering::Relaxed);
        flags & libc::XDP_RING_NEED_WAKEUP != 0
    }

    #[inline]
    fn place(&self, place: u32) -> *mut T {
        assert!(place < self.length, "the mapping was made for so many");
        let offset = self.offsets.desc as usize + place as usize * size_of::<T>();
        self.at(offset).cast()
    }

    fn at(&self, offset: usize) -> *mut u8 {
        self.memory.as_mut_ptr().wrapping_add(offset)
    }
}

impl<T: Copy> RingMemory for Shared<T> {
    type Entry = T;

    #[inline]
    fn length(&self) -> u32 {
        self.length
    }

    #[inline]
    fn producer(&self) -> &AtomicU32 {
        self.word(self.offsets.producer)
    }

    #[inline]
    fn consumer(&self) -> &AtomicU32 {
        self.word(self.offsets.consumer)
    }

    #[inline]
    fn read(&self, place: u32) -> T {
        // SAFETY: a place of the ring. The caller has it from the kernel by an index read with
        // Acquire; if the kernel writes there nevertheless the value is wrong, which any number
        // may be.
        unsafe { self.place(place).read_volatile() }
    }

    #[inline]
    fn write(&self, place: u32, entry: T) {
        // SAFETY: a place of the ring, which the kernel does not read before the index says
        // so, nor after it has counted the entry as consumed.
        unsafe { self.place(place).write_volatile(entry) };
    }
}

/// A ring that the kernel fills: receive, completion.
pub(super) type Incoming<T> = IncomingRing<Shared<T>>;
/// A ring that the kernel empties: fill, transmit.
pub(super) type Outgoing<T> = OutgoingRing<Shared<T>>;

#[cfg(test)]
pub(super) mod tests {
    use std::fs::File;
    use std::thread;

    use super::*;

    const LENGTH: u32 = 8;
    const OFFSETS: libc::xdp_ring_offset = libc::xdp_ring_offset {
        producer: 0,
        consumer: 64,
        flags: 128,
        desc: 192,
    };

    /// Memory in the place of the kernel's.
    pub(crate) fn memory() -> OwnedFd {
        let name = c"ring";
        let flags = MFdFlags::MFD_CLOEXEC;
        let file = File::from(memfd_create(name, flags).unwrap());
        file.set_len(4096).unwrap();
        file.into()
    }

    /// A ring of eight entries in it.
    pub(crate) fn shared(memory: &OwnedFd) -> Shared<u64> {
        Shared::map(memory, 0, OFFSETS, LENGTH).unwrap()
    }

    /// A ring of eight entries in memory of this process, which Miri can follow.
    fn private(offsets: libc::xdp_ring_offset) -> io::Result<Shared<u64>> {
        let memory = MmapOptions::new().len(4096).map_anon()?;
        Shared::over(memory.into(), offsets, LENGTH)
    }

    /// Both ends of a ring in one process.
    impl RingMemory for &Shared<u64> {
        type Entry = u64;

        fn length(&self) -> u32 {
            (**self).length()
        }

        fn producer(&self) -> &AtomicU32 {
            (**self).producer()
        }

        fn consumer(&self) -> &AtomicU32 {
            (**self).consumer()
        }

        fn read(&self, place: u32) -> u64 {
            (**self).read(place)
        }

        fn write(&self, place: u32, entry: u64) {
            (**self).write(place, entry);
        }
    }

    #[test]
    fn entries_lie_where_the_kernel_looks_for_them() {
        let bytes = private(OFFSETS).unwrap();
        let (mut kernel, mut ours) = (OutgoingRing::new(&bytes), IncomingRing::new(&bytes));
        for lap in 0..5_u64 {
            for k in 0..5 {
                kernel.put(lap * 5 + k);
            }
            kernel.publish();
            assert_eq!(std::iter::from_fn(|| ours.take()).count(), 5);
            assert_eq!(
                ours.room(),
                LENGTH - 5,
                "not before the places are released"
            );
            ours.release();
            assert_eq!(ours.room(), LENGTH);
        }
        let at = |offset: usize| bytes.word(offset as u64).load(Ordering::Relaxed);
        assert_eq!([at(0), at(64)], [25, 25], "both counts");
        assert_eq!(at(192), 24, "the last entry began the fourth lap");
        assert_eq!(at(192 + 7 * 8), 23);
    }

    #[test]
    fn a_thread_sees_what_the_other_has_published() {
        let shared = private(OFFSETS).unwrap();
        let taken: Vec<u64> = thread::scope(|scope| {
            scope.spawn(|| {
                let mut kernel = OutgoingRing::new(&shared);
                for entry in 0..50 {
                    if look_for(|| (kernel.room() > 0).then_some(())).is_none() {
                        return;
                    }
                    kernel.put(entry);
                    kernel.publish();
                }
            });
            let mut ours = IncomingRing::new(&shared);
            let take = |_| {
                let entry = look_for(|| ours.take())?;
                ours.release();
                Some(entry)
            };
            (0..50).map_while(take).collect()
        });
        assert_eq!(taken, Vec::from_iter(0..50));
    }

    /// `None`: the other thread has not done it, although it ran.
    fn look_for<R>(mut look: impl FnMut() -> Option<R>) -> Option<R> {
        (0..1 << 22).find_map(|_| {
            let found = look();
            if found.is_none() {
                thread::yield_now();
            }
            found
        })
    }

    #[test]
    fn offsets_outside_of_the_mapping_are_refused() {
        for offsets in [
            libc::xdp_ring_offset {
                producer: 1 << 20,
                ..OFFSETS
            },
            libc::xdp_ring_offset {
                flags: 3,
                ..OFFSETS
            },
            libc::xdp_ring_offset {
                desc: 193,
                ..OFFSETS
            },
            libc::xdp_ring_offset {
                desc: 4096 - 7 * 8,
                ..OFFSETS
            },
        ] {
            assert!(private(offsets).is_err(), "{offsets:?}");
        }
    }
}
