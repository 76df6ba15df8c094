//! What a running guard tells those who ask: the operator's commands over a
//! Unix socket, Prometheus over HTTP.
//!
//! Nothing is read or kept for them until somebody asks, so an unwatched guard
//! pays nothing; and who asks often is answered from a reading that is up to
//! 100 ms old.

mod document;
mod error;
mod metrics;
mod reader;
mod server;

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use plimsoll_core::demux::Kind;

pub use document::{
    ChannelStatus, ClassStatus, Condition, KindStatus, Request, Sort, SourcesStatus, Status,
};
pub use error::StatusError;
pub use metrics::serve_metrics;
pub use reader::Snapshot;
pub use server::{Answers, StatusServer};

use crate::owner::Owners;
use plimsoll_kernel::error::{OpenError, os};
use plimsoll_kernel::knobs;
use plimsoll_kernel::link;

/// A guard under load may take a moment; one that takes longer is stuck.
const PATIENCE: Duration = Duration::from_secs(5);

/// Sockets change hands rarely, and looking takes some 10 ms for 10,000.
const OWNERS_INTERVAL: Duration = Duration::from_secs(5);

/// One who asks the guard of an interface, and finds out who owns the sockets
/// of its channels.
#[derive(Debug)]
pub struct Client {
    interface: String,
    owners: Owners,
    owners_read: Option<Instant>,
}

impl Client {
    /// For the guard of `interface` in the current network namespace.
    #[must_use]
    pub fn new(interface: &str) -> Self {
        Self {
            interface: interface.to_owned(),
            owners: Owners::new(),
            owners_read: None,
        }
    }

    /// Asks the guard.
    ///
    /// # Errors
    ///
    /// No such interface, no guard runs there, or it does not answer in time.
    pub fn status(&mut self, request: &Request) -> Result<Status, StatusError> {
        let path = match knobs::file_of_guard(&self.interface, "sock") {
            Err(error) if error.wants_root() => return Err(StatusError::NotRoot),
            path => path?,
        };
        let stream = UnixStream::connect(path).map_err(|error| {
            if error.kind() == std::io::ErrorKind::PermissionDenied {
                StatusError::NotRoot
            } else {
                // A guard does not start by another name (altname).
                let own = link::index(&self.interface).ok().and_then(link::name);
                let interface = own.unwrap_or_else(|| self.interface.clone());
                StatusError::NotRunning { interface }
            }
        })?;
        let mut status = ask(stream, request).map_err(|source| StatusError::NoAnswer {
            interface: self.interface.clone(),
            source,
        })?;
        if status.most_offered.is_some() || !status.channels.is_empty() {
            self.refresh_owners();
        }
        let channels = status.channels.iter_mut();
        for channel in channels.chain(&mut status.most_offered) {
            channel.owner = kind_of(&channel.kind)
                .and_then(|kind| self.owners.of_channel(kind, channel.address, channel.port));
        }
        Ok(status)
    }

    fn refresh_owners(&mut self) {
        let fresh = |read: Instant| read.elapsed() < OWNERS_INTERVAL;
        if !self.owners_read.is_some_and(fresh) {
            // Without the kernel's list, channels have no owner.
            let _ = self.owners.refresh();
            self.owners_read = Some(Instant::now());
        }
    }
}

fn kind_of(name: &str) -> Option<Kind> {
    Kind::ALL.into_iter().find(|kind| kind.name() == name)
}

fn ask(mut stream: UnixStream, request: &Request) -> std::io::Result<Status> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    stream.write_all(&serde_json::to_vec(request)?)?;
    stream.shutdown(std::net::Shutdown::Write)?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    if answer.is_empty() {
        return Err(std::io::ErrorKind::TimedOut.into());
    }
    Ok(serde_json::from_slice(&answer)?)
}

/// Interfaces of the current network namespace that have a guard.
///
/// # Errors
///
/// The kernel does not answer, or only root can see it.
pub fn guarded_interfaces() -> Result<Vec<String>, StatusError> {
    let interfaces = nix::net::if_::if_nameindex();
    let interfaces = interfaces.map_err(os("list interfaces"))?;
    let names = interfaces
        .iter()
        .map(|i| i.name().to_string_lossy().into_owned());
    let mut guarded = Vec::new();
    for name in names {
        match knobs::owner(&name) {
            Ok(Some(_)) => guarded.push(name),
            // One that has gone meanwhile is guarded by nobody.
            Ok(None) | Err(OpenError::Interface(_)) => {}
            Err(error) if error.wants_root() => return Err(StatusError::NotRoot),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(guarded)
}

/// Where the guard of `interface` listens.
fn socket_path(interface: &str) -> Result<PathBuf, OpenError> {
    knobs::path_of(interface, "sock")
}
