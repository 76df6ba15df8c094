//! Connections of either network, a thread for each.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use super::network::Network;
use super::{LOOK, Pace, is_lack, is_retry};
use crate::interrupt;

/// A connection. Reading and writing give up after [`LOOK`], so that the interrupt flag is seen.
pub(super) trait Connection: Read + Write + Send {}
impl Connection for TcpStream {}
impl Connection for plimsoll_stack::TcpStream {}

/// A connection without a request for so long is closed.
const IDLE: Duration = Duration::from_secs(30);
/// The same while all places are taken, so that others get theirs (RFC 7766, 6.2.3).
const IDLE_CROWDED: Duration = Duration::from_secs(5);

/// How long a connection may go without a request.
pub(super) const fn patience(crowded: bool) -> Duration {
    if crowded { IDLE_CROWDED } else { IDLE }
}

/// Places of connections.
pub(super) struct Places {
    open: AtomicUsize,
    most: usize,
}

impl Places {
    fn are_taken(&self) -> bool {
        self.open.load(Ordering::Relaxed) >= self.most
    }

    /// How long a connection may go without a request by now.
    pub(super) fn patience(&self) -> Duration {
        patience(self.are_taken())
    }
}

const STACK_BYTES: usize = 128 << 10;
/// Between two looks at a listener that nobody knocks at.
const KNOCK: Duration = Duration::from_millis(1);

/// Serves connections to one of the addresses until interrupted, at most `most` at a time;
/// more wait in the backlog. The stack's connections have their pace already.
pub(super) fn serve_each(
    network: &Network,
    at: &[SocketAddr],
    pace: Option<Pace>,
    most: usize,
    serve: impl Fn(&mut dyn Connection, &Places) + Sync,
) -> io::Result<()> {
    match network {
        Network::Kernel => {
            let listener = TcpListener::bind(at)?;
            listener.set_nonblocking(true)?;
            accept_each(most, serve, || {
                let (stream, _) = listener.accept()?;
                stream.set_nonblocking(false)?;
                stream.set_read_timeout(Some(LOOK))?;
                stream.set_write_timeout(Some(LOOK))?;
                stream.set_nodelay(true)?;
                if let Some(pace) = pace {
                    pace.limit(&stream)?;
                }
                Ok(stream)
            })
        }
        Network::Stack(stack) => {
            let listener = plimsoll_stack::TcpListener::bind(stack, at)?;
            listener.set_nonblocking(true)?;
            accept_each(most, serve, || {
                let (stream, _) = listener.accept()?;
                stream.set_read_timeout(Some(LOOK))?;
                stream.set_write_timeout(Some(LOOK))?;
                stream.set_nodelay(true)?;
                Ok(stream)
            })
        }
    }
}

fn accept_each<C: Connection>(
    most: usize,
    serve: impl Fn(&mut dyn Connection, &Places) + Sync,
    mut accept: impl FnMut() -> io::Result<C>,
) -> io::Result<()> {
    let open = AtomicUsize::new(0);
    let (places, serve) = (&Places { open, most }, &serve);
    thread::scope(|scope| {
        while !interrupt::requested() {
            if places.are_taken() {
                thread::sleep(KNOCK);
                continue;
            }
            match accept() {
                Ok(mut connection) => {
                    places.open.fetch_add(1, Ordering::Relaxed);
                    let builder = thread::Builder::new().stack_size(STACK_BYTES);
                    let serve = move || {
                        serve(&mut connection, places);
                        places.open.fetch_sub(1, Ordering::Relaxed);
                    };
                    // Without a thread it is closed, with the closure that had it.
                    if builder.spawn_scoped(scope, serve).is_err() {
                        places.open.fetch_sub(1, Ordering::Relaxed);
                        thread::sleep(KNOCK);
                    }
                }
                Err(error) if is_retry(&error) || is_lack(&error) => thread::sleep(KNOCK),
                // The client was gone before it was accepted.
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_asks_nothing_is_waited_for_less_while_all_places_are_taken() {
        let open = AtomicUsize::new(1);
        let places = Places { open, most: 2 };
        let alone = places.patience();
        places.open.store(2, Ordering::Relaxed);
        assert_eq!([alone, places.patience()].map(|one| one.as_secs()), [30, 5]);
    }
}
