//! Round trips of single messages, one after the other, as the 1994 paper measured them:
//! sorted, and the mean of the fastest 4,000 of 5,120.
//!
//! The client looks for the answer all the time, so that what is compared is the way and
//! the server. It is a kernel's socket for every server.
//!
//! # Limits
//!
//! What is slowest is left out on purpose (Tracey & Banerji 1994, section 4): it says what
//! the path costs, and nothing about how late an answer can be. [`crate::probe`] does.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::probe::become_realtime;
use crate::{Error, interrupt};

/// Messages that are measured.
pub const MESSAGES: usize = 5120;
/// Those of them that count.
pub const FASTEST: usize = 4000;
/// With Ethernet, IPv4 and UDP headers a message of 60 bytes, the shortest frame.
const PAYLOAD_BYTES: usize = 18;
/// Sent before, so that nothing is done for the first time.
const WARM_UP: usize = 256;
const PATIENCE: Duration = Duration::from_secs(1);
/// Messages in a row that may go unanswered.
const LOST_MAX: usize = 20;

/// What the round trips took.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Report {
    /// The mean of the fastest, in microseconds.
    pub mean_us: f64,
    /// Half of all took longer.
    pub median_us: f64,
}

/// Measures from the calling thread, in its namespace.
///
/// # Errors
///
/// [`Error::Io`] if there is no way to the server, [`Error::Timeout`] if it does not answer,
/// [`Error::Interrupted`].
pub fn run(target: SocketAddr) -> Result<Report, Error> {
    let open = || -> io::Result<UdpSocket> {
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
        socket.connect(target)?;
        socket.set_nonblocking(true)?;
        Ok(socket)
    };
    let socket = open().map_err(Error::io(format!("reach {target}")))?;
    become_realtime();
    let mut times = Vec::with_capacity(MESSAGES);
    let mut lost = 0;
    for number in 0..(WARM_UP + MESSAGES) as u64 {
        interrupt::check()?;
        match one(&socket, number).map_err(Error::io("send a message"))? {
            Some(time) if number >= WARM_UP as u64 => times.push(time),
            Some(_) => {}
            None => lost += 1,
        }
        if lost > LOST_MAX {
            return Err(Error::Timeout {
                what: "answers to single messages".to_owned(),
                after: PATIENCE,
            });
        }
    }
    Ok(Report::of(times))
}

fn one(socket: &UdpSocket, number: u64) -> io::Result<Option<Duration>> {
    let mut message = [0; PAYLOAD_BYTES];
    message[..8].copy_from_slice(&number.to_be_bytes());
    let begun = Instant::now();
    socket.send(&message)?;
    let mut answer = [0; PAYLOAD_BYTES];
    while begun.elapsed() < PATIENCE {
        match socket.recv(&mut answer) {
            Ok(PAYLOAD_BYTES) if answer == message => return Ok(Some(begun.elapsed())),
            // Late, or another's.
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => std::hint::spin_loop(),
            // The server is not there yet.
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {}
            Err(error) => return Err(error),
        }
    }
    Ok(None)
}

impl Report {
    fn of(mut times: Vec<Duration>) -> Self {
        times.sort_unstable();
        let micros = |time: Duration| time.as_nanos() as f64 / 1e3;
        let fastest = &times[..FASTEST.min(times.len())];
        let sum: Duration = fastest.iter().sum();
        Self {
            mean_us: micros(sum) / fastest.len().max(1) as f64,
            median_us: times.get(times.len() / 2).copied().map_or(0.0, micros),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slowest_fifth_does_not_count() {
        let mut times = vec![Duration::from_micros(10); FASTEST];
        times.splice(0..0, vec![Duration::from_secs(1); MESSAGES - FASTEST]);
        let report = Report::of(times);
        assert!((report.mean_us - 10.0).abs() < 1e-9, "{report:?}");
        assert!((report.median_us - 10.0).abs() < 1e-9, "{report:?}");
    }
}
