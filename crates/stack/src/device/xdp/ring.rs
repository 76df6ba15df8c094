//! The four rings of AF_XDP: indices and entries in memory shared with the kernel.
//!
//! Both sides count entries ever produced and consumed in 32 bits that wrap; a
//! place is the count modulo the ring's length, a power of two. Indices that
//! the kernel writes are believed only as far as the ring is long, and entries
//! are plain numbers: what they mean is checked by [`Pool`](super::super::Pool).

#![allow(unsafe_code, reason = "memory shared with the kernel")]

use std::io;
use std::marker::PhantomData;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU32, Ordering};

use memmap2::{MmapOptions, MmapRaw};

/// A ring's memory.
#[derive(Debug)]
struct Shared<T> {
    memory: MmapRaw,
    offsets: libc::xdp_ring_offset,
    length: u32,
    entries: PhantomData<T>,
}

impl<T: Copy> Shared<T> {
    /// Maps the ring of `length` entries that `socket` has at `page_offset`.
    fn map(
        socket: &OwnedFd,
        page_offset: u64,
        offsets: libc::xdp_ring_offset,
        length: u32,
    ) -> io::Result<Self> {
        assert!(length.is_power_of_two(), "asked of the kernel by us");
        let bytes = offsets.desc as usize + length as usize * size_of::<T>();
        let memory = MmapOptions::new()
            .offset(page_offset)
            .len(bytes)
            .populate()
            .map_raw(socket)?;
        let words = [offsets.producer, offsets.consumer, offsets.flags];
        let fits = |&word: &u64| word % 4 == 0 && word as usize + 4 <= bytes;
        if !words.iter().all(fits) || !(offsets.desc as usize).is_multiple_of(align_of::<T>()) {
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
        // SAFETY: `map` checked that the word is inside the mapping and
        // aligned. Both sides access it atomically.
        unsafe { &*self.at(offset as usize).cast() }
    }

    fn producer(&self) -> &AtomicU32 {
        self.word(self.offsets.producer)
    }

    fn consumer(&self) -> &AtomicU32 {
        self.word(self.offsets.consumer)
    }

    fn needs_wakeup(&self) -> bool {
        let flags = self.word(self.offsets.flags).load(Ordering::Relaxed);
        flags & libc::XDP_RING_NEED_WAKEUP != 0
    }

    #[inline]
    fn place(&self, count: u32) -> *mut T {
        let place = (count & (self.length - 1)) as usize;
        let offset = self.offsets.desc as usize + place * size_of::<T>();
        // `place` is below `length`, for which the mapping was made.
        self.at(offset).cast()
    }

    fn at(&self, offset: usize) -> *mut u8 {
        self.memory.as_mut_ptr().wrapping_add(offset)
    }
}

/// A ring that the kernel fills: receive, completion.
#[derive(Debug)]
pub(super) struct Incoming<T> {
    shared: Shared<T>,
    /// Entries taken so far, and those known to be there.
    taken: u32,
    seen: u32,
}

impl<T: Copy> Incoming<T> {
    pub(super) fn map(
        socket: &OwnedFd,
        page_offset: u64,
        offsets: libc::xdp_ring_offset,
        length: u32,
    ) -> io::Result<Self> {
        Ok(Self {
            shared: Shared::map(socket, page_offset, offsets, length)?,
            taken: 0,
            seen: 0,
        })
    }

    /// The next entry. [`release`](Self::release) after the last of a batch.
    #[inline]
    pub(super) fn take(&mut self) -> Option<T> {
        if self.taken == self.seen {
            let produced = self.shared.producer().load(Ordering::Acquire);
            let there = produced.wrapping_sub(self.taken);
            // More than the ring holds cannot be there: the index is wrong, and
            // so are the entries.
            if there == 0 || there > self.shared.length {
                return None;
            }
            self.seen = self.taken.wrapping_add(there);
        }
        // SAFETY: a place of the ring, which the kernel has handed over by the
        // index read with Acquire. If it writes there nevertheless the value is
        // wrong, which any number may be.
        let entry = unsafe { self.shared.place(self.taken).read_volatile() };
        self.taken = self.taken.wrapping_add(1);
        Some(entry)
    }

    /// Lets the kernel use the places of what was taken.
    #[inline]
    pub(super) fn release(&mut self) {
        self.shared.consumer().store(self.taken, Ordering::Release);
    }
}

/// A ring that the kernel empties: fill, transmit.
#[derive(Debug)]
pub(super) struct Outgoing<T> {
    shared: Shared<T>,
    put: u32,
}

impl<T: Copy> Outgoing<T> {
    pub(super) fn map(
        socket: &OwnedFd,
        page_offset: u64,
        offsets: libc::xdp_ring_offset,
        length: u32,
    ) -> io::Result<Self> {
        Ok(Self {
            shared: Shared::map(socket, page_offset, offsets, length)?,
            put: 0,
        })
    }

    /// Entries that can be put now.
    pub(super) fn room(&self) -> u32 {
        self.shared.length.saturating_sub(self.queued())
    }

    /// Entries that the kernel has not taken yet.
    pub(super) fn queued(&self) -> u32 {
        let taken = self.shared.consumer().load(Ordering::Acquire);
        self.put.wrapping_sub(taken)
    }

    /// Puts an entry; the caller has asked for [`room`](Self::room).
    #[inline]
    pub(super) fn put(&mut self, entry: T) {
        // SAFETY: a place of the ring, which the kernel does not read before
        // `publish`, nor after it has counted the entry as consumed.
        unsafe { self.shared.place(self.put).write_volatile(entry) };
        self.put = self.put.wrapping_add(1);
    }

    /// Shows the kernel what was put.
    #[inline]
    pub(super) fn publish(&mut self) {
        self.shared.producer().store(self.put, Ordering::Release);
    }

    /// The kernel sleeps until it is woken by a system call.
    pub(super) fn needs_wakeup(&self) -> bool {
        self.shared.needs_wakeup()
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    const LENGTH: u32 = 8;
    const OFFSETS: libc::xdp_ring_offset = libc::xdp_ring_offset {
        producer: 0,
        consumer: 64,
        flags: 128,
        desc: 192,
    };

    /// Memory in the place of the kernel's.
    fn memory() -> OwnedFd {
        let name = c"ring";
        let flags = nix::sys::memfd::MFdFlags::MFD_CLOEXEC;
        let file = File::from(nix::sys::memfd::memfd_create(name, flags).unwrap());
        file.set_len(4096).unwrap();
        file.into()
    }

    fn pair(memory: &OwnedFd) -> (Outgoing<u64>, Incoming<u64>) {
        (
            Outgoing::map(memory, 0, OFFSETS, LENGTH).unwrap(),
            Incoming::map(memory, 0, OFFSETS, LENGTH).unwrap(),
        )
    }

    #[test]
    fn entries_arrive_in_order_across_many_laps() {
        let memory = memory();
        let (mut kernel, mut ours) = pair(&memory);
        for lap in 0..100_u64 {
            assert_eq!(kernel.room(), LENGTH);
            for k in 0..5 {
                kernel.put(lap * 5 + k);
            }
            assert_eq!(ours.take(), None, "not published");
            kernel.publish();
            for k in 0..5 {
                assert_eq!(ours.take(), Some(lap * 5 + k));
            }
            assert_eq!((ours.take(), kernel.room()), (None, LENGTH - 5));
            ours.release();
        }
    }

    #[test]
    fn hostile_indices_yield_nothing() {
        let memory = memory();
        let (kernel, mut ours) = pair(&memory);
        for produced in [LENGTH + 1, u32::MAX, 1 << 31] {
            kernel.shared.producer().store(produced, Ordering::Release);
            assert_eq!(ours.take(), None, "{produced}");
        }
        kernel.shared.producer().store(LENGTH, Ordering::Release);
        assert_eq!(std::iter::from_fn(|| ours.take()).count(), LENGTH as usize);
        kernel.shared.consumer().store(12345, Ordering::Release);
        assert_eq!(kernel.room(), 0, "more consumed than was ever put");
    }

    #[test]
    fn offsets_outside_of_the_mapping_are_refused() {
        let memory = memory();
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
        ] {
            assert!(Incoming::<u64>::map(&memory, 0, offsets, LENGTH).is_err());
        }
    }
}
