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
