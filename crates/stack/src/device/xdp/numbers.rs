//! Numbers by which the XDP program knows sockets and channels.

use std::sync::Arc;

use parking_lot::Mutex;

#[derive(Debug)]
pub(super) struct Numbers {
    end: u32,
    inner: Mutex<Inner>,
}

#[derive(Debug)]
struct Inner {
    /// Of those below `unused`.
    free: Vec<u32>,
    unused: u32,
}

/// One that is in use. Dropping it gives it back.
#[derive(Debug)]
pub(super) struct Number {
    number: u32,
    numbers: Arc<Numbers>,
}

impl Numbers {
    pub(super) fn new(first: u32, end: u32) -> Arc<Self> {
        let (free, unused) = (Vec::new(), first);
        let inner = Mutex::new(Inner { free, unused });
        Arc::new(Self { end, inner })
    }

    /// `None`: all are in use.
    pub(super) fn take(self: &Arc<Self>) -> Option<Number> {
        let mut inner = self.inner.lock();
        let number = match inner.free.pop() {
            Some(number) => number,
            None if inner.unused == self.end => return None,
            None => {
                inner.unused += 1;
                inner.unused - 1
            }
        };
        let numbers = Arc::clone(self);
        Some(Number { number, numbers })
    }

    /// All that were ever in use are less.
    pub(super) fn used(&self) -> u32 {
        self.inner.lock().unused
    }
}

impl Number {
    pub(super) fn get(&self) -> u32 {
        self.number
    }
}

impl Drop for Number {
    fn drop(&mut self) {
        self.numbers.inner.lock().free.push(self.number);
    }
}
