//! A server's counts in memory that its parent may map.
#![allow(unsafe_code)] // The shared counters are reached through a pointer.

use std::fs::{File, OpenOptions};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use memmap2::{MmapOptions, MmapRaw};

use super::Counts;
use crate::Error;

/// [`Counts`] and a flag in memory that two processes may share.
#[derive(Debug)]
pub(super) struct SharedCounters(MmapRaw);

/// The flag and the four counts.
const WORDS: usize = 5;
const BYTES: usize = WORDS * size_of::<AtomicU64>();

impl SharedCounters {
    pub(super) fn create(file: &File) -> Result<Self, Error> {
        file.set_len(BYTES as u64)
            .map_err(Error::io("size a server's counters"))?;
        let map = MmapOptions::new().len(BYTES).map_raw(file);
        map.map(Self).map_err(Error::io("map a server's counters"))
    }

    pub(super) fn open(path: &Path) -> Result<Self, Error> {
        let file = OpenOptions::new().read(true).write(true).open(path);
        Self::create(&file.map_err(Error::io(format!("open {}", path.display())))?)
    }

    pub(super) fn anonymous() -> Result<Self, Error> {
        let map = MmapOptions::new().len(BYTES).map_anon();
        map.map(|map| Self(map.into()))
            .map_err(Error::io("map a server's counters"))
    }

    fn words(&self) -> &[AtomicU64; WORDS] {
        let words = self.0.as_mut_ptr().cast::<[AtomicU64; WORDS]>();
        // SAFETY: the mapping is page-aligned, as long as the array, zeroed by
        // the kernel or written as this array, and lives as long as `self`.
        // Every access in every process is atomic.
        unsafe { &*words }
    }

    pub(super) fn set_listening(&self) {
        self.words()[0].store(1, Ordering::Release);
    }

    pub(super) fn is_listening(&self) -> bool {
        self.words()[0].load(Ordering::Acquire) != 0
    }

    pub(super) fn count_received(&self, length: usize) {
        self.add_received(1, length);
    }

    /// Counts a batch, which costs as much as counting one.
    pub(super) fn add_received(&self, count: usize, bytes: usize) {
        let words = self.words();
        words[2].fetch_add(bytes as u64, Ordering::Relaxed);
        words[1].fetch_add(count as u64, Ordering::Relaxed);
    }

    pub(super) fn count_sent(&self, sent: bool) {
        self.add_sent(1, usize::from(sent));
    }

    /// Counts answers, `sent` of which could be sent.
    pub(super) fn add_sent(&self, answers: usize, sent: usize) {
        self.words()[3].fetch_add(sent as u64, Ordering::Relaxed);
        self.words()[4].fetch_add((answers - sent) as u64, Ordering::Relaxed);
    }

    pub(super) fn read(&self) -> Counts {
        let word = |index: usize| self.words()[index].load(Ordering::Relaxed);
        Counts {
            received: word(1),
            received_bytes: word(2),
            sent: word(3),
            send_errors: word(4),
        }
    }
}
