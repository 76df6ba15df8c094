//! A remote procedure call client: keeps a number of requests outstanding at a
//! UDP server that sends back what it gets.
//!
//! A call is its number (8 bytes) and the work that it asks for, in microseconds (4 bytes,
//! both big-endian). `plimsoll serve rpc` does that work; an echo takes no notice. The
//! answer is the call.
//!
//! The server always has work and is never overloaded (Druschel & Banga 1996,
//! section 4.2, table 2): what is measured is how the host's CPU is shared, not
//! what is lost.
//!
//! # Limits
//!
//! Closed loop: its latency understates what independent clients would see.

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::{Error, interrupt};

/// Whom to call, and how often at once.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// The server, which must send back what it gets.
    pub target: SocketAddr,
    /// Requests outstanding, 1 to 1024. Must fit the server's receive buffer.
    pub outstanding: usize,
    /// The work that each call asks for.
    pub work: Duration,
    /// How long to call.
    pub duration: Duration,
    /// Without an answer for so long, all that is outstanding counts as lost.
    pub timeout: Duration,
}

/// What came of the calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Report {
    /// Calls answered.
    pub completed: u64,
    /// Calls given up.
    pub lost: u64,
    /// Calls answered per second.
    pub rate_per_s: f64,
}

/// Calls from the calling thread, in its namespace.
///
/// # Errors
///
/// [`Error::Config`], [`Error::Io`] if there is no way to the server,
/// [`Error::Interrupted`].
pub fn run(config: &Config) -> Result<Report, Error> {
    if !(1..=1024).contains(&config.outstanding) {
        return Err(Error::Config {
            field: "outstanding",
            given: config.outstanding.to_string(),
            allowed: "1 to 1024",
        });
    }
    let open = || -> io::Result<UdpSocket> {
        let any: SocketAddr = match config.target {
            SocketAddr::V4(_) => ([0; 4], 0).into(),
            SocketAddr::V6(_) => ([0u16; 8], 0).into(),
        };
        let socket = UdpSocket::bind(any)?;
        socket.connect(config.target)?;
        socket.set_read_timeout(Some(config.timeout))?;
        Ok(socket)
    };
    let socket = open().map_err(Error::io(format!("reach {}", config.target)))?;
    let begun = Instant::now();
    let mut calls = Calls {
        socket,
        outstanding: config.outstanding,
        work_us: u32::try_from(config.work.as_micros()).unwrap_or(u32::MAX),
        batch: 0,
        report: Report::default(),
    };
    calls.begin()?;
    while begun.elapsed() < config.duration {
        interrupt::check()?;
        calls.step()?;
    }
    calls.report.rate_per_s = calls.report.completed as f64 / begun.elapsed().as_secs_f64();
    Ok(calls.report)
}

const CALL_BYTES: usize = 12;
/// The longest work that a server does for a call, in microseconds.
const WORK_US_MAX: u32 = 1_000_000;

fn encode(number: u64, work_us: u32) -> [u8; CALL_BYTES] {
    let mut call = [0; CALL_BYTES];
    call[..8].copy_from_slice(&number.to_be_bytes());
    call[8..].copy_from_slice(&work_us.to_be_bytes());
    call
}

/// The work that a call asks for, in microseconds; nothing if it is no call.
pub(crate) fn asked(call: &[u8]) -> Option<u32> {
    let micros = call.get(8..CALL_BYTES)?.try_into().ok()?;
    Some(u32::from_be_bytes(micros).min(WORK_US_MAX))
}

struct Calls {
    socket: UdpSocket,
    outstanding: usize,
    work_us: u32,
    /// Counts the times all was given up, so that a late answer is known.
    batch: u64,
    report: Report,
}

impl Calls {
    fn begin(&self) -> Result<(), Error> {
        (0..self.outstanding).try_for_each(|_| self.call())
    }

    fn call(&self) -> Result<(), Error> {
        match self.socket.send(&encode(self.batch, self.work_us)) {
            // "Port unreachable" about an earlier call: the timeout counts it.
            Err(error) if error.kind() != io::ErrorKind::ConnectionRefused => {
                Err(Error::io("send a request")(error))
            }
            _ => Ok(()),
        }
    }

    /// Takes one answer and calls again, or gives all up.
    fn step(&mut self) -> Result<(), Error> {
        let mut answer = [0; 8];
        match self.socket.recv(&mut answer) {
            Ok(_) if u64::from_be_bytes(answer) == self.batch => {
                self.report.completed += 1;
                self.call()
            }
            Ok(_) => Ok(()),
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::Interrupted | io::ErrorKind::ConnectionRefused
                ) =>
            {
                Ok(())
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                self.report.lost += self.outstanding as u64;
                self.batch += 1;
                self.begin()
            }
            Err(error) => Err(Error::io("receive an answer")(error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_says_how_much_work_it_is_and_no_server_works_for_ever() {
        assert_eq!(asked(&encode(7, 250)), Some(250));
        assert_eq!(asked(&encode(7, u32::MAX)), Some(WORK_US_MAX));
        assert_eq!(asked(&encode(7, 250)[..11]), None);
    }
}
