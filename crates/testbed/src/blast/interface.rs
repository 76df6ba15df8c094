//! The interface that a blast leaves by, and whether it may.
//!
//! A generator of millions of frames per second must never face a real network
//! by mistake. So the rule is about where the calling thread is, not about what
//! it says: everything inside a network namespace that a testbed made leads to
//! that testbed's hosts and nowhere else.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;

use nix::ifaddrs::getifaddrs;
use nix::net::if_::InterfaceFlags;

use plimsoll_kernel::link;
use plimsoll_kernel::namespace::NETNS_DIR;

use super::spec::Spec;
use crate::{Error, namespace};

/// What a blast needs to know of its interface.
#[derive(Clone, Copy, Debug)]
pub(super) struct Interface {
    pub(super) index: u32,
    pub(super) mac: [u8; 6],
}

impl Interface {
    /// Looks up the interface `spec` names and makes sure that it may be sent
    /// on, is up, and takes redirected frames.
    pub(super) fn find(spec: &Spec) -> Result<Self, Error> {
        let name = &spec.interface;
        let unfit = |why| Error::UnfitInterface {
            interface: name.clone(),
            why,
        };
        if !spec.foreign_interface && !in_testbed()? {
            return Err(unfit(
                "no testbed made it; frames go into links of a testbed only, \
                 unless interface and destination are both named and foreign interfaces allowed",
            ));
        }
        let index = link::index(name)?;
        let (flags, mac) = look_up(name)?;
        if !flags.contains(InterfaceFlags::IFF_UP | InterfaceFlags::IFF_RUNNING) {
            return Err(unfit("it is down, or has no carrier"));
        }
        // A kernel before 6.3 cannot say; then the frames that fail are counted.
        if matches!(link::takes_redirected(index), Ok(Some(false))) {
            return Err(unfit(
                "it takes no redirected frames; for a veth pair, turn GRO on at the other end",
            ));
        }
        Ok(Self {
            index,
            mac: mac.ok_or_else(|| unfit("it has no Ethernet address"))?,
        })
    }
}

/// Flags and Ethernet address of an interface.
fn look_up(name: &str) -> Result<(InterfaceFlags, Option<[u8; 6]>), Error> {
    let action = format!("find interface {name}");
    getifaddrs()
        .map_err(Error::io(&action))?
        .filter(|entry| entry.interface_name == name)
        .find_map(|entry| {
            let address = entry.address?;
            Some((entry.flags, address.as_link_addr()?.addr()))
        })
        .ok_or_else(|| Error::io(action)(io::Error::from(io::ErrorKind::NotFound)))
}

/// Whether the calling thread is in a network namespace that a testbed made.
fn in_testbed() -> Result<bool, Error> {
    let identity = |file: fs::Metadata| (file.dev(), file.ino());
    let own = fs::metadata("/proc/thread-self/ns/net")
        .map(identity)
        .map_err(Error::io("look at the network namespace"))?;
    let Ok(named) = fs::read_dir(NETNS_DIR) else {
        return Ok(false);
    };
    Ok(named
        .flatten()
        .filter(|entry| {
            let name = entry.file_name();
            name.to_string_lossy().starts_with(namespace::PREFIX)
        })
        .filter_map(|entry| fs::metadata(entry.path()).ok())
        .any(|metadata| identity(metadata) == own))
}
