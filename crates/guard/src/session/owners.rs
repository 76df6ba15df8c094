//! Whose sockets are, told to the guard: the groups that share, and who is protected.
//!
//! To list sockets and to look into processes and control groups takes long, and may wait for
//! others. The session's thread is real-time. So another one finds out whose those sockets are
//! that have counted packets; what it brings takes a moment to be told.
//!
//! Limits: where ordinary threads get little of the CPU, a new socket's owner is known late.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::mem::take;
use std::task::{Poll, ready};

use plimsoll_kernel::errand::Errand;

use super::protected_owners::ProtectedOwners;
use super::settings::{Settings, Shares};
use crate::error::Error;
use crate::guard::{Guard, Owned};
use crate::owner::{Owner, Owners};
use crate::program::Seated;

/// What is known of owners, and whoever finds out more.
#[derive(Debug, Default)]
pub(super) struct SocketOwners {
    /// With whoever finds out, meanwhile.
    owners: Owners,
    errand: Option<Errand<Found>>,
    /// The guard has been told.
    is_told: bool,
}

#[derive(Debug)]
struct Found {
    owners: Owners,
    owned: Result<Vec<(Seated, Owned)>, Error>,
}

impl SocketOwners {
    /// Has whose sockets are found out, or tells it the guard if it has been. Never waits.
    pub(super) fn poll(
        &mut self,
        settings: &Settings,
        guard: &mut Guard<'_>,
    ) -> Poll<Result<(), Error>> {
        let Some(errand) = &self.errand else {
            let (owners, settings) = (take(&mut self.owners), settings.clone());
            let sockets = guard.program.sockets();
            self.errand = Some(Errand::start(move || find_out(owners, &settings, sockets))?);
            return Poll::Pending;
        };
        let found = ready!(errand.poll());
        self.errand = None;
        let Found { owners, owned } = found?;
        self.owners = owners;
        guard.assign(owned?);
        self.is_told = true;
        Poll::Ready(Ok(()))
    }

    /// Settings are others now: nobody waits for what is found out by the former ones. It may never
    /// come, from a file system that does not answer.
    pub(super) fn begin_anew(&mut self) {
        if self.errand.take().is_some() {
            self.owners = Owners::default();
        }
    }

    /// It makes no difference any more whose sockets are: none has anything by its owner.
    pub(super) fn forget(&mut self, guard: &mut Guard<'_>) {
        if self.is_told || self.errand.is_some() {
            *self = Self::default();
            let sockets = guard.program.sockets().into_iter();
            guard.assign(sockets.map(|socket| (socket, Owned::default())));
        }
    }
}

fn find_out(mut owners: Owners, settings: &Settings, sockets: Vec<Seated>) -> Found {
    let places = sockets.iter();
    let places = places.map(|socket| (socket.kind, socket.address, socket.port));
    let refreshed = owners.refresh_channels(places);
    let owned = refreshed.map(|()| {
        let mut protected = ProtectedOwners::of(settings);
        let owned = sockets.into_iter().map(|socket| {
            let owner = owners.of_channel(socket.kind, socket.address, socket.port);
            let owned = owner.map(|owner| Owned {
                group: group(&owner, settings.shares),
                is_protected: protected.contain(&owner),
            });
            (socket, owned.unwrap_or_default())
        });
        owned.collect()
    });
    Found { owners, owned }
}

/// Of those who share, by a number.
fn group(owner: &Owner, shares: Shares) -> Option<u64> {
    match shares {
        Shares::Channel => None,
        Shares::Process => owner.process.as_ref().map(|process| process.pid.into()),
        Shares::ControlGroup => owner.control_group.as_deref().map(fingerprint),
    }
}

/// Tells control groups apart by their paths.
fn fingerprint(path: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    path.hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;
    use std::thread::sleep;
    use std::time::Duration;

    use super::*;
    use crate::program::test_host::{HOST, from, is_protected, with_guard};

    /// A reload that named no protected owner left those before protected.
    #[test]
    fn sockets_are_found_out_beside_this_thread_and_forgotten_when_nobody_asks() {
        with_guard(|guard| {
            let _server = UdpSocket::bind((HOST, 5000)).unwrap();
            let frame = from(HOST).udp(4000, 5000, &[]);
            guard.test_run(&frame, 1).unwrap();
            let settings = Settings {
                protect_processes: vec![std::env::current_exe().unwrap()],
                ..Settings::new("lo")
            };
            let mut owners = SocketOwners::default();
            assert!(owners.poll(&settings, guard).is_pending());
            // A process is looked for in parts.
            for _ in 0..5000 {
                let told = owners.poll(&settings, guard);
                assert!(!matches!(told, Poll::Ready(Err(_))), "{told:?}");
                if is_protected(guard, 5000) {
                    break;
                }
                sleep(Duration::from_millis(2));
            }
            assert!(is_protected(guard, 5000));
            owners.forget(guard);
            assert!(!is_protected(guard, 5000));
        });
    }
}
