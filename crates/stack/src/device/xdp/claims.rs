//! Endpoints without a socket of their own, while it is asked which of them is flooded.
//!
//! Their frames come by the main socket. The program counts how many come for each by a number
//! that it has as sockets have theirs, and who reads them says how many were taken.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;

use super::numbers::Number;
use crate::device::{Endpoint, Readers};

#[derive(Debug, Default)]
pub(super) struct Claims {
    numbers: Mutex<HashMap<Endpoint, Number>>,
    readers: OnceLock<Arc<dyn Readers>>,
}

impl Claims {
    pub(super) fn know_readers(&self, readers: Arc<dyn Readers>) {
        // A device is one stack's.
        let _ = self.readers.set(readers);
    }

    pub(super) fn add(&self, endpoint: Endpoint, number: Number) {
        self.numbers.lock().insert(endpoint, number);
    }

    /// The endpoint's number, which is free when it is dropped.
    pub(super) fn remove(&self, endpoint: Endpoint) -> Option<Number> {
        self.numbers.lock().remove(&endpoint)
    }

    /// Frames of the number's endpoint that were taken so far, if somebody says so.
    pub(super) fn taken(&self, number: u32) -> Option<u64> {
        let numbers = self.numbers.lock();
        let mut all = numbers.iter();
        let endpoint = all.find(|(_, claimed)| claimed.get() == number);
        let endpoint = *endpoint?.0;
        // Whoever binds a socket holds what the readers lock, and claims.
        drop(numbers);
        self.readers.get()?.taken(endpoint)
    }
}
