//! What the host has that changes seldom and may take long to read, as it was last read: the
//! sizes that routes allow, which tunnels there are, and which sockets are hidden.
//!
//! It is read at the start, and now and then by a thread of ordinary priority: the guard's own
//! is real-time, and a router may have a million routes.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use plimsoll_kernel::errand::Errand;
use plimsoll_kernel::scheduling::thread_time;

/// The shortest time between two readings.
const LOOK: Duration = Duration::from_secs(10);
/// The part of a CPU that reading may take, as its inverse …
const REST: u32 = 1000;
/// … and while it changes.
const REST_AFTER_CHANGE: u32 = 50;

/// Something as it was last read.
pub(crate) struct Looks<T> {
    read: Arc<dyn Fn() -> io::Result<T> + Send + Sync>,
    known: T,
    /// Tells a number that is another after each change of a part of it, and what it told before
    /// the last reading.
    number: fn() -> io::Result<Option<u32>>,
    seen: Option<u32>,
    /// Not read again before this …
    next: Instant,
    /// … or, after such a change, before this.
    soon: Instant,
    reading: Option<Errand<Read<T>>>,
}

/// What was read, and how long that took.
type Read<T> = (io::Result<T>, Duration);

impl<T: Clone + Default + Send + 'static> Looks<T> {
    /// Reads it as it is: for a thread that may wait.
    pub(crate) fn begin(read: impl Fn() -> io::Result<T> + Send + Sync + 'static) -> Self {
        Self::begin_with(|| Ok(None), read)
    }

    /// The same of what has a `number` that is another after each change: it is read again soon
    /// then.
    pub(crate) fn begin_with(
        number: fn() -> io::Result<Option<u32>>,
        read: impl Fn() -> io::Result<T> + Send + Sync + 'static,
    ) -> Self {
        let mut looks = Self {
            read: Arc::new(read),
            known: T::default(),
            number,
            seen: number().ok().flatten(),
            next: Instant::now(),
            soon: Instant::now(),
            reading: None,
        };
        looks.take(timed(&*looks.read), Instant::now());
        looks
    }

    /// Call it once a second: what is known.
    pub(crate) fn on_interval(&mut self, now: Instant) -> T {
        if let Some(reading) = &self.reading
            && let Poll::Ready(read) = reading.poll()
        {
            self.reading = None;
            let read = read.unwrap_or_else(|error| (Err(io::Error::other(error)), Duration::ZERO));
            self.take(read, now);
        }
        // Where the kernel refuses, it may be the same.
        let number = (self.number)().unwrap_or(self.seen);
        let due = match number == self.seen {
            true => self.next,
            false => self.soon,
        };
        if self.reading.is_none() && due <= now {
            let read = Arc::clone(&self.read);
            // Without a thread it is tried again at the next look.
            self.reading = Errand::start(move || timed(&*read)).ok();
            if self.reading.is_some() {
                self.seen = number;
            }
        }
        self.known.clone()
    }

    /// Where the kernel refuses, what was known before may still be so.
    fn take(&mut self, (read, took): Read<T>, now: Instant) {
        self.next = now + LOOK.max(took * REST);
        self.soon = now + took * REST_AFTER_CHANGE;
        match read {
            Ok(read) => self.known = read,
            // What has changed is still to be read.
            Err(_) => self.next = self.soon,
        }
    }
}

impl<T: fmt::Debug> fmt::Debug for Looks<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Looks")
            .field("known", &self.known)
            .finish_non_exhaustive()
    }
}

fn timed<T>(read: &dyn Fn() -> io::Result<T>) -> Read<T> {
    let before = thread_time(0).unwrap_or_default();
    let read = read();
    let spent = thread_time(0).unwrap_or_default();
    (read, spent.saturating_sub(before))
}

#[cfg(test)]
mod tests {
    use plimsoll_kernel::namespace;
    use plimsoll_kernel::routing::PacketSizes;

    use super::*;
    use crate::program::test_host::ip;

    /// Needs root.
    #[test]
    fn a_route_that_comes_is_noticed_and_readings_rest() {
        namespace::in_new(|| {
            ip("link set lo up");
            let mut sizes = Looks::begin(|| PacketSizes::read(1));
            let none = PacketSizes::default();
            assert_eq!(sizes.known, none);
            ip("route add 10.1.0.0/16 dev lo mtu 1400");
            let now = Instant::now();
            assert_eq!(sizes.on_interval(now), none);
            assert!(sizes.reading.is_none(), "it rests");
            let later = now + 2 * LOOK;
            assert_eq!(sizes.on_interval(later), none);
            while sizes.reading.is_some() {
                std::thread::sleep(Duration::from_millis(1));
                sizes.on_interval(later);
            }
            assert_eq!(sizes.known.ipv4, Some(1400));
            let refused = Err(io::ErrorKind::Other.into());
            sizes.take((refused, Duration::from_secs(1)), later);
            assert_eq!(sizes.known.ipv4, Some(1400), "it may still be so");
            let rest = Duration::from_secs(1) * REST_AFTER_CHANGE;
            assert_eq!(sizes.next, later + rest, "it is tried again soon");
        })
        .expect("this test makes a network namespace and needs root: run `sudo make test`");
    }

    /// Beside many rules a look takes so long that the next one came after minutes.
    #[test]
    fn what_has_changed_is_read_soon_and_not_without_end() {
        use std::sync::atomic::{AtomicU32, Ordering};
        static NUMBER: AtomicU32 = AtomicU32::new(1);
        let number = || Ok(Some(NUMBER.load(Ordering::Relaxed)));
        let mut looks = Looks::begin_with(number, move || Ok(number()?.unwrap_or(0)));
        let now = Instant::now();
        looks.take((Ok(1), Duration::from_secs(1)), now);
        let after = |seconds| now + Duration::from_secs(seconds);
        looks.on_interval(after(100));
        assert!(looks.reading.is_none(), "nothing has changed");
        NUMBER.store(2, Ordering::Relaxed);
        looks.on_interval(after(49));
        assert!(looks.reading.is_none(), "it rests");
        looks.on_interval(after(50));
        assert!(looks.reading.is_some());
        while looks.reading.is_some() {
            std::thread::sleep(Duration::from_millis(1));
            looks.on_interval(after(50));
        }
        assert_eq!(looks.known, 2);
        looks.on_interval(after(51));
        assert!(looks.reading.is_none(), "it was read");
    }
}
