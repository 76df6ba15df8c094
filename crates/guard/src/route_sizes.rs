//! How large packets may be by the host's routes, as it was last read: the MSS in an answer to
//! a SYN goes by it, as in the stack's own answer.
//!
//! Routes are read at the start, and now and then by a thread of ordinary priority: the
//! guard's own is real-time, and a router may have a million of them.

use std::io;
use std::task::Poll;
use std::time::{Duration, Instant};

use plimsoll_kernel::errand::Errand;
use plimsoll_kernel::routing::PacketSizes;
use plimsoll_kernel::scheduling::thread_time;

/// The shortest time between two readings: such routes change seldom.
const LOOK: Duration = Duration::from_secs(10);
/// The part of a CPU that reading may take, as its inverse.
const REST: u32 = 1000;

/// The sizes as they were last read.
#[derive(Debug)]
pub(crate) struct RouteSizes {
    ifindex: u32,
    known: PacketSizes,
    /// Not read again before this.
    next: Instant,
    reading: Option<Errand<Read>>,
}

/// What the routes say, and how long reading them took.
type Read = (io::Result<PacketSizes>, Duration);

impl RouteSizes {
    /// Reads the routes through an interface as they are: for a thread that may wait.
    pub(crate) fn begin(ifindex: u32) -> Self {
        let mut sizes = Self {
            ifindex,
            known: PacketSizes::default(),
            next: Instant::now(),
            reading: None,
        };
        sizes.take(read(ifindex), Instant::now());
        sizes
    }

    /// Call it once a second: what is known of the sizes.
    pub(crate) fn on_interval(&mut self, now: Instant) -> PacketSizes {
        if let Some(reading) = &self.reading
            && let Poll::Ready(read) = reading.poll()
        {
            self.reading = None;
            let read = read.unwrap_or_else(|error| (Err(io::Error::other(error)), Duration::ZERO));
            self.take(read, now);
        }
        if self.reading.is_none() && self.next <= now {
            let ifindex = self.ifindex;
            // Without a thread it is tried again at the next look.
            self.reading = Errand::start(move || read(ifindex)).ok();
        }
        self.known
    }

    /// Where the kernel refuses, what was known before may still be so.
    fn take(&mut self, (read, took): Read, now: Instant) {
        self.known = read.unwrap_or(self.known);
        self.next = now + LOOK.max(took * REST);
    }
}

fn read(ifindex: u32) -> Read {
    let before = thread_time(0).unwrap_or_default();
    let sizes = PacketSizes::read(ifindex);
    let spent = thread_time(0).unwrap_or_default();
    (sizes, spent.saturating_sub(before))
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use plimsoll_kernel::namespace;

    use super::*;

    /// Needs root.
    #[test]
    fn a_route_that_comes_is_noticed_and_readings_rest() {
        namespace::in_new(|| {
            let ip = |words: &str| {
                let status = Command::new("ip").args(words.split(' ')).status();
                assert!(status.expect("iproute2 is installed").success(), "{words}");
            };
            ip("link set lo up");
            let mut sizes = RouteSizes::begin(1);
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
            assert_eq!(sizes.next, later + Duration::from_secs(1) * REST);
        })
        .expect("this test makes a network namespace and needs root: run `sudo make test`");
    }
}
