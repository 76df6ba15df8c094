//! A BPF array mapped into this process: read and written without system
//! calls, while the program writes to it on other CPUs.

#![allow(unsafe_code, reason = "memory that the kernel shares")]

use std::marker::PhantomData;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicU64, Ordering};

use libbpf_rs::MapCore;
use memmap2::{MmapOptions, MmapRaw};

use crate::error::{CallError, os};

/// A type that any bytes of its size are a value of.
///
/// # Safety
///
/// `repr(C)`, made of integers only.
pub unsafe trait Plain: Copy {}
// SAFETY: an integer.
unsafe impl Plain for u32 {}
// SAFETY: an integer.
unsafe impl Plain for u64 {}

/// Reads a value from bytes that the kernel returned for it.
///
/// # Panics
///
/// If they are too few: the program's C and `T` differ.
pub fn read_struct<T: Plain>(bytes: &[u8]) -> T {
    assert!(
        bytes.len() >= size_of::<T>(),
        "the kernel returns values of the map's own size"
    );
    // SAFETY: the length is checked, the read needs no alignment, and any
    // bytes are a T.
    unsafe { bytes.as_ptr().cast::<T>().read_unaligned() }
}

/// A mapped array of `T`.
#[derive(Debug)]
pub struct Mapped<T> {
    memory: MmapRaw,
    len: usize,
    _element: PhantomData<T>,
}

impl<T: Plain> Mapped<T> {
    /// Maps a `BPF_MAP_TYPE_ARRAY` made with `BPF_F_MMAPABLE`.
    ///
    /// # Errors
    ///
    /// The kernel refuses.
    ///
    /// # Panics
    ///
    /// If `T` is not the map's value, or not a multiple of eight bytes long.
    pub fn of(map: &impl MapCore) -> Result<Self, CallError> {
        // The kernel places elements at multiples of eight bytes.
        assert!(
            map.value_size() as usize == size_of::<T>() && size_of::<T>().is_multiple_of(8),
            "elements are as the program's C says"
        );
        let len = map.max_entries() as usize;
        let memory = MmapOptions::new()
            .len(len * size_of::<T>())
            .map_raw(map.as_fd().as_raw_fd())
            .map_err(os("map the program's counters"))?;
        Ok(Self {
            memory,
            len,
            _element: PhantomData,
        })
    }

    /// Number of elements: as many as the map has, never none.
    #[must_use]
    #[allow(clippy::len_without_is_empty, reason = "no map is without elements")]
    pub fn len(&self) -> usize {
        self.len
    }

    /// A copy of one element. The program may write to it meanwhile: each of
    /// its integers is one that was there.
    #[must_use]
    pub fn get(&self, index: usize) -> T {
        // SAFETY: `at` is in the mapping, which is page-aligned and lives as
        // long as `self`; any bytes are a T.
        unsafe { self.at(index).read_volatile() }
    }

    /// Replaces one element.
    pub fn set(&mut self, index: usize, value: T) {
        // SAFETY: as in `get`; the mapping is writable.
        unsafe { self.at(index).write_volatile(value) }
    }

    fn at(&self, index: usize) -> *mut T {
        assert!(index < self.len, "an element of the array");
        self.memory.as_mut_ptr().cast::<T>().wrapping_add(index)
    }
}

impl Mapped<u64> {
    /// Takes the value of one element and leaves 0, in one step.
    #[must_use]
    pub fn take(&self, index: usize) -> u64 {
        // SAFETY: `at` is in the mapping, which lives as long as `self`, is writable
        // and page-aligned, so that elements of eight bytes are aligned. Whoever else
        // writes to it (the program) does so by atomic operations.
        let value = unsafe { AtomicU64::from_ptr(self.at(index)) };
        match value.load(Ordering::Relaxed) {
            0 => 0,
            _ => value.swap(0, Ordering::AcqRel),
        }
    }

    /// Replaces the value of one element, in one step.
    pub fn store(&self, index: usize, value: u64) {
        // SAFETY: as in `take`; the program only reads it, or writes atomically too.
        unsafe { AtomicU64::from_ptr(self.at(index)) }.store(value, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    #[repr(C)]
    struct Pair {
        frames: u32,
        bytes: u32,
    }
    // SAFETY: repr(C), two integers.
    unsafe impl Plain for Pair {}

    /// Memory of this process in the place of a map's, which Miri can follow.
    fn mapped<T>(len: usize) -> Mapped<T> {
        let memory = MmapOptions::new().len(len * size_of::<T>()).map_anon();
        Mapped {
            memory: memory.unwrap().into(),
            len,
            _element: PhantomData,
        }
    }

    #[test]
    fn elements_are_read_and_replaced_one_by_one() {
        let mut mapped = mapped::<Pair>(3);
        let pair = |index: u32| Pair {
            frames: index,
            bytes: 60 * index,
        };
        for (index, number) in (0..mapped.len()).zip(1..) {
            mapped.set(index, pair(number));
        }
        mapped.set(1, pair(7));
        let found: Vec<_> = (0..mapped.len()).map(|index| mapped.get(index)).collect();
        assert_eq!(found, [pair(1), pair(7), pair(3)]);
    }

    #[test]
    #[should_panic(expected = "an element of the array")]
    fn there_is_nothing_behind_the_last_element() {
        let _ = mapped::<u64>(3).get(3);
    }

    #[test]
    fn all_that_is_counted_meanwhile_is_taken_once() {
        let mapped = mapped::<u64>(2);
        mapped.store(0, 7);
        let mut taken = 0;
        thread::scope(|scope| {
            scope.spawn(|| {
                // SAFETY: as in `take`. The program counts so.
                let counted = unsafe { AtomicU64::from_ptr(mapped.at(1)) };
                for _ in 0..100 {
                    counted.fetch_add(1, Ordering::Relaxed);
                }
            });
            for _ in 0..100 {
                taken += mapped.take(1);
            }
        });
        taken += mapped.take(1);
        assert_eq!((taken, mapped.take(1), mapped.take(0)), (100, 0, 7));
    }

    #[test]
    fn a_value_is_read_from_any_address() {
        let bytes: Vec<u8> = (0..17).collect();
        let expected = u64::from_ne_bytes([1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(read_struct::<u64>(&bytes[1..]), expected);
    }
}
