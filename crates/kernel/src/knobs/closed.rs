//! Interfaces that stay closed: their program is kept when its process has been killed, and
//! discards what it can give to nobody any more.
//!
//! A [`Keeper`] holds the attachment. A file says which program it is, and
//! whose, so that the next start can put its own in that one's place, without a packet
//! passing in between, and `plimsoll guard restore` can take it away.
//!
//! Limits: the file goes by the interface's name. Renamed, the interface is not taken over by the
//! next start; `plimsoll guard restore` finds it nevertheless.

use std::fs;
use std::io;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};

use super::device::netns_inode;
use super::{DIRECTORY, Keeper, OpenError, RecordError, make_private, path_of};
use crate::link;
use crate::private_file;
use crate::process::Process;
use crate::xdp_link::{HeldLink, XdpLink};

/// Of the files.
pub(super) const EXTENSION: &str = "closed";

/// The file of one interface.
#[derive(Debug)]
pub(super) struct Mark {
    path: PathBuf,
    netns_inode: u64,
}

/// What it says.
struct Left {
    owner: Process,
    program: u32,
}

impl Mark {
    pub(super) fn of(interface: &str) -> Result<Self, OpenError> {
        let path = path_of(interface, EXTENSION)?;
        let netns_inode = netns_inode()?;
        Ok(Self { path, netns_inode })
    }

    pub(super) fn write(&self, owner: Process, program: u32) -> Result<(), RecordError> {
        // The inode is last, as in a lock: `sweep` wants to know it.
        let text = format!("{owner} {program} {}", self.netns_inode);
        make_private(Path::new(DIRECTORY))
            .and_then(|()| private_file::replace(&self.path, text.as_bytes()))
            .map_err(|source| RecordError::NotWritten {
                path: self.path.clone(),
                source,
            })
    }

    fn read(&self) -> Option<Left> {
        let text = fs::read_to_string(&self.path).ok()?;
        let (text, _) = text.trim().rsplit_once(' ')?;
        let (owner, program) = text.rsplit_once(' ')?;
        Some(Left {
            owner: Process::parse(owner)?,
            program: program.parse().ok()?,
        })
    }

    /// Removes what this owner wrote. If it stays it is no harm: it names a program that is
    /// not attached.
    pub(super) fn remove(&self, owner: Process) {
        if self.read().is_some_and(|left| left.owner == owner) {
            let _ = private_file::remove(&self.path);
        }
    }

    /// The attachment that a killed owner left.
    fn left(&self, ifindex: u32) -> Option<HeldLink> {
        let left = self.read().filter(|left| !left.owner.is_alive())?;
        HeldLink::of(left.program, ifindex)
    }
}

/// Puts `program` in the place of the one that keeps the interface closed; `None` if none
/// does, or its owner lives. With a keeper of the interface, it stays closed however this
/// process ends, until [`Keeper::keep_all_closed`].
///
/// # Errors
///
/// No such interface; the keeper cannot hold the program.
pub fn take_over(
    interface: &str,
    program: BorrowedFd<'_>,
    keeper: Option<&mut Keeper>,
) -> Result<Option<XdpLink>, OpenError> {
    let ifindex = link::index(interface)?;
    let left = Mark::of(interface)?.left(ifindex);
    let link = left.and_then(|held| held.replace(program));
    if let (Some(link), Some(keeper)) = (&link, keeper) {
        keeper.leave_closed(link)?;
    }
    Ok(link)
}

/// The interface of such a file, by its name now, and what keeps it closed; `named`: its name
/// when it was. `None` if whoever closed it lives.
pub(super) fn left(
    path: &Path,
    named: &str,
) -> Result<Option<(String, Option<HeldLink>)>, OpenError> {
    let mark = Mark {
        path: path.to_owned(),
        netns_inode: netns_inode()?,
    };
    let Some(left) = mark.read().filter(|left| !left.owner.is_alive()) else {
        return Ok(None);
    };
    let held = HeldLink::of_program(left.program);
    let name = held.as_ref().and_then(HeldLink::interface);
    Ok(Some((name.unwrap_or_else(|| named.to_owned()), held)))
}

/// Opens the interface of such a file. Whether it was closed.
pub(super) fn open(path: &Path, held: Option<HeldLink>) -> Result<bool, RecordError> {
    let is_closed = held.is_some();
    if let Some(held) = held {
        held.detach();
    }
    match private_file::remove(path) {
        Err(source) if source.kind() != io::ErrorKind::NotFound => Err(RecordError::NotWritten {
            path: path.to_owned(),
            source,
        }),
        _ => Ok(is_closed),
    }
}

#[cfg(test)]
mod tests {
    use std::mem::MaybeUninit;
    use std::os::fd::AsFd;

    use super::super::restore_in;
    use super::*;
    use crate::iproute::ip;
    use crate::{namespace, pass_all};

    /// Leaves `v0` closed as a process that is no more would, then has it renamed to `w0`.
    fn left_and_renamed(directory: &Path) -> XdpLink {
        ip("link add v0 type veth peer name v1");
        let index = link::index("v0").unwrap();
        let mut place = MaybeUninit::uninit();
        let program = pass_all::load(&mut place).unwrap();
        let attached = XdpLink::attach(program.progs.pass_all.as_fd(), "v0", index).unwrap();
        let mark = Mark {
            path: directory.join(path_of("v0", EXTENSION).unwrap().file_name().unwrap()),
            netns_inode: netns_inode().unwrap(),
        };
        let number = link::link(index).unwrap().xdp.unwrap().id;
        mark.write(Process::parse("1 1").unwrap(), number).unwrap();
        ip("link set v0 name w0");
        attached
    }

    /// Its file was removed, and it stayed closed.
    #[test]
    fn a_closed_interface_that_was_renamed_is_opened() {
        let inside = || {
            for wanted in [None, Some("w0")] {
                let directory = tempfile::tempdir().unwrap();
                let directory = directory.path();
                let _attached = left_and_renamed(directory);
                assert_eq!(restore_in(directory, Some("v1")).0, [""; 0]);
                assert_eq!(restore_in(directory, wanted).0, ["w0"]);
                let state = link::link(link::index("w0").unwrap()).unwrap();
                assert_eq!(state.xdp, None);
                assert_eq!(fs::read_dir(directory).unwrap().count(), 0);
                ip("link del w0");
            }
        };
        namespace::in_new(inside).expect("this test makes a namespace: run `sudo make test`");
    }

    /// Nobody takes over what somebody living keeps closed, or removes what another has written.
    #[test]
    fn what_keeps_an_interface_closed_is_its_living_owner_s() {
        let inside = || {
            let directory = tempfile::tempdir().unwrap();
            let _attached = left_and_renamed(directory.path());
            let index = link::index("w0").unwrap();
            let file = fs::read_dir(directory.path()).unwrap().next().unwrap();
            let mark = Mark {
                path: file.unwrap().path(),
                netns_inode: netns_inode().unwrap(),
            };
            assert!(mark.left(index).is_some(), "of one that is no more");
            let number = link::link(index).unwrap().xdp.unwrap().id;
            let own = Process::current().unwrap();
            mark.write(own, number).unwrap();
            assert!(mark.left(index).is_none());
            assert!(left(&mark.path, "v0").unwrap().is_none());
            mark.remove(Process::parse("1 1").unwrap());
            assert!(mark.path.exists());
            mark.remove(own);
            assert!(!mark.path.exists());
        };
        namespace::in_new(inside).expect("this test makes a namespace: run `sudo make test`");
    }
}
