//! An authoritative DNS server for one zone (RFC 1034, RFC 1035): UDP and TCP, EDNS,
//! truncation. The smallest real server whose operators live with floods.

mod answer;
mod zone;

use std::io;
use std::thread;
use std::time::{Duration, Instant};

use self::answer::Transport;
use self::zone::Zone;
use super::counters::SharedCounters;
use super::network::{Network, everywhere};
use super::tcp::{self, Connection, Places};
use super::udp::{self, Reply};
use super::{Config, is_retry};
use crate::spin::Work;
use crate::{Error, interrupt};

/// The length in front of a message over TCP.
const LENGTH_BYTES: usize = 2;

/// What all queries share.
struct Server<'a> {
    zone: Zone,
    work: Work,
    counters: &'a SharedCounters,
}

pub(super) fn serve(
    config: &Config,
    network: &Network,
    work: Work,
    counters: &SharedCounters,
) -> Result<(), Error> {
    let file = config.zone.as_deref().ok_or(Error::Config {
        field: "zone",
        given: "nothing".to_owned(),
        allowed: "the path of a zone file",
    })?;
    let zone = Zone::read(file).map_err(Error::io(format!("serve {}", file.display())))?;
    let server = Server {
        zone,
        work,
        counters,
    };
    let at = everywhere(network, config);
    thread::scope(|scope| {
        let over_tcp = scope.spawn(|| {
            let served = tcp::serve_each(
                network,
                &at,
                config.pace,
                config.connections.into(),
                |connection, places| {
                    // The client went away: its loss.
                    let _ = server.converse(connection, places);
                },
            );
            // Without it the server would be half a server.
            interrupt::request();
            served
        });
        let over_udp = udp::serve(config, network, counters, |query, answer| {
            match server.answer(query, Transport::Udp, answer) {
                true => Reply::Written,
                false => Reply::Nothing,
            }
        });
        interrupt::request();
        let over_tcp = over_tcp
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        over_udp.and(over_tcp.map_err(Error::io("serve DNS over TCP")))
    })
}

impl Server<'_> {
    fn answer(&self, query: &[u8], transport: Transport, answer: &mut Vec<u8>) -> bool {
        self.work.run();
        self.zone.answer(query, transport, answer)
    }

    /// Answers one query after the other, until the client closes or is silent for long.
    fn converse(&self, connection: &mut dyn Connection, places: &Places) -> io::Result<()> {
        let (mut query, mut answer, mut message) = (Vec::new(), Vec::new(), Vec::new());
        let mut length = [0; LENGTH_BYTES];
        while read_whole(connection, places, &mut length)? {
            query.resize(usize::from(u16::from_be_bytes(length)), 0);
            if !read_whole(connection, places, &mut query)? {
                return Ok(());
            }
            let answered = self.answer(&query, Transport::Tcp, &mut answer);
            self.counters.count_received(query.len());
            if !answered {
                return Ok(());
            }
            // One write, so that it is one segment.
            message.clear();
            message.extend_from_slice(&(answer.len() as u16).to_be_bytes());
            message.extend_from_slice(&answer);
            let sent = write_whole(connection, places, &message);
            let is_sent = matches!(sent, Ok(true));
            self.counters.count_sent(is_sent);
            if !is_sent {
                return sent.map(drop);
            }
        }
        Ok(())
    }
}

/// Fills `bytes`. False: the client closed, or took too long.
fn read_whole(
    connection: &mut dyn Connection,
    places: &Places,
    bytes: &mut [u8],
) -> io::Result<bool> {
    let patience = || places.patience();
    move_all(bytes.len(), patience, |read| {
        connection.read(&mut bytes[read..])
    })
}

/// Writes `bytes`. False: the client took too long.
fn write_whole(connection: &mut dyn Connection, places: &Places, bytes: &[u8]) -> io::Result<bool> {
    let patience = || places.patience();
    move_all(bytes.len(), patience, |written| {
        connection.write(&bytes[written..])
    })
}

/// Moves so many bytes by a call that is told how many it has moved and moves some. False: there are no
/// more, or not all within `patience`: who moves a byte now and then would keep a thread for ever.
fn move_all(
    bytes: usize,
    patience: impl Fn() -> Duration,
    mut some: impl FnMut(usize) -> io::Result<usize>,
) -> io::Result<bool> {
    let (begun, mut moved) = (Instant::now(), 0);
    while moved < bytes {
        match some(moved) {
            Ok(0) => return Ok(false),
            Ok(more) => moved += more,
            Err(error) if is_retry(&error) => {}
            Err(error) => return Err(error),
        }
        if moved < bytes && (interrupt::requested() || begun.elapsed() >= patience()) {
            return Ok(false);
        }
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_byte_now_and_then_keeps_no_thread() {
        let patience = Duration::from_millis(50);
        let mut calls = 0;
        let slow = |_| {
            calls += 1;
            thread::sleep(patience / 5);
            Ok(1)
        };
        assert!(!move_all(1000, || patience, slow).unwrap());
        assert!((1..=5).contains(&calls), "{calls}");
        // What is there at once is taken, however long the thread did not run.
        let at_once = |moved| {
            thread::sleep(patience);
            Ok(10 - moved)
        };
        assert!(move_all(10, || patience, at_once).unwrap());
        assert!(!move_all(10, || patience, |_| Ok(0)).unwrap(), "it closed");
    }
}
