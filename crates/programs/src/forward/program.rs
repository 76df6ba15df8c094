//! The XDP programs: one instance per interface.
//!
//! Instances share the table of interfaces and that of own addresses; counters and
//! settings are each one's own.

use std::fmt;
use std::mem::MaybeUninit;
use std::net::{IpAddr, Ipv6Addr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use libbpf_rs::{MapCore, MapFlags, MapHandle};
use plimsoll_kernel::lasting_link::KeptLink;
use plimsoll_stack::device::Mac;
use plimsoll_stack::device::packet::Instruction;

use super::error::Error;
use super::outcome::Counts;
use super::table::ReversePath;
use super::{DataPath, Limits};
use crate::filter::in_driver;

include!(concat!(env!("OUT_DIR"), "/forward.rs")); // mod skeleton
pub(super) use skeleton::types;

/// Interfaces that a router may have.
pub const DEVICES_MAX: usize = types::forward_bounds::DEVICES_MAX.0 as usize;
/// Receive queues of an interface that are used in user space.
pub(super) const QUEUES_MAX: u32 = types::forward_bounds::QUEUES_MAX.0;
const OWN_MAX: usize = types::forward_bounds::OWN_MAX.0 as usize;

const ONLY: [u8; 4] = 0u32.to_ne_bytes();

/// What all instances share.
#[derive(Debug)]
pub(super) struct Shared {
    devices: MapHandle,
    own: MapHandle,
}

/// An instance, attached to its interface. Dropping it detaches it.
pub(super) struct Instance {
    counters: MapHandle,
    sockets: MapHandle,
    /// Of protected frames.
    chosen_sockets: MapHandle,
    settings: MapHandle,
    _link: KeptLink,
}

impl fmt::Debug for Instance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Instance").finish_non_exhaustive()
    }
}

/// An interface as the program needs it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Interface<'a> {
    pub(super) name: &'a str,
    pub(super) index: u32,
    pub(super) station: Mac,
    pub(super) reverse_path: ReversePath,
}

/// What all instances are told before they are loaded.
#[derive(Clone, Copy, Debug)]
pub(super) struct Constants<'a> {
    pub(super) path: DataPath,
    pub(super) limits: Limits,
    /// Which frames go to sockets of their own in user space: those that this accepts.
    pub(super) protected: Option<&'a [Instruction]>,
}

/// Loads an instance and attaches it in native mode. The first one makes what the
/// others share.
pub(super) fn attach(
    interface: &Interface<'_>,
    constants: &Constants<'_>,
    shared: Option<&Shared>,
) -> Result<(Instance, Option<Shared>), Error> {
    let bpf = Error::bpf("load the XDP program");
    let mut place = MaybeUninit::uninit();
    let builder = skeleton::ForwardSkelBuilder::default();
    let mut open = builder.open(&mut place).map_err(&bpf)?;
    let filter = constants.protected.unwrap_or_default();
    if let Some(told) = open.maps.rodata_data.as_deref_mut() {
        told.path = match constants.path {
            DataPath::Xdp => types::forward_path::PATH_XDP.0,
            DataPath::User => types::forward_path::PATH_USER.0,
        };
        told.limits_pps = constants.limits.by_kind();
        told.filter_length = filter.len() as u32;
    }
    let room = filter.len().max(1) as u32;
    open.maps.filter.set_max_entries(room).map_err(&bpf)?;
    if let Some(shared) = shared {
        let devices = open.maps.devices.reuse_fd(shared.devices.as_fd());
        let own = open.maps.own.reuse_fd(shared.own.as_fd());
        devices.and(own).map_err(&bpf)?;
    }
    let loaded = open.load().map_err(&bpf)?;
    let maps = &loaded.maps;
    in_driver::put(&maps.filter, filter).map_err(&bpf)?;
    let made = match shared {
        Some(_) => None,
        None => Some(Shared {
            devices: MapHandle::try_from(&maps.devices).map_err(&bpf)?,
            own: MapHandle::try_from(&maps.own).map_err(&bpf)?,
        }),
    };
    let counters = MapHandle::try_from(&maps.counters).map_err(&bpf)?;
    let sockets = MapHandle::try_from(&maps.sockets).map_err(&bpf)?;
    let chosen_sockets = MapHandle::try_from(&maps.chosen_sockets).map_err(&bpf)?;
    let settings = MapHandle::try_from(&maps.bss).map_err(&bpf)?;
    set(&settings, interface.station, interface.reverse_path)?;
    let program = loaded.progs.forward.as_fd();
    let link = KeptLink::attach(program, interface.name, interface.index)
        .map_err(|error| Error::not_attached(interface.name, error))?;
    let instance = Instance {
        counters,
        sockets,
        chosen_sockets,
        settings,
        _link: link,
    };
    Ok((instance, made))
}

/// Writes `struct port_settings`, which is all that the program has of variables.
fn set(settings: &MapHandle, station: Mac, reverse_path: ReversePath) -> Result<(), Error> {
    use types::reverse_path as C;
    let how = match reverse_path {
        ReversePath::Off => C::REVERSE_PATH_OFF,
        ReversePath::Strict => C::REVERSE_PATH_STRICT,
        ReversePath::Loose => C::REVERSE_PATH_LOOSE,
    };
    let mut bytes = [0; size_of::<types::port_settings>()];
    bytes[..6].copy_from_slice(&station);
    bytes[8..12].copy_from_slice(&how.0.to_ne_bytes());
    settings
        .update(&ONLY, &bytes, MapFlags::ANY)
        .map_err(Error::bpf("set up the XDP program"))
}

impl Instance {
    /// The interface has another Ethernet address from now on.
    pub(super) fn set(&self, station: Mac, reverse_path: ReversePath) -> Result<(), Error> {
        set(&self.settings, station, reverse_path)
    }

    /// What became of the frames so far.
    pub(super) fn counts(&self) -> Result<Counts, Error> {
        let cpus = self.counters.lookup_percpu(&ONLY, MapFlags::ANY);
        let mut counts = Counts::default();
        for cpu in cpus
            .map_err(Error::bpf("read counters"))?
            .unwrap_or_default()
        {
            counts.add_bytes(&cpu);
        }
        Ok(counts)
    }

    /// Plain packets of `queue` go to this AF_XDP socket from now on.
    pub(super) fn add_socket(&self, queue: u32, socket: BorrowedFd<'_>) -> Result<(), Error> {
        give(&self.sockets, queue, socket)
    }

    /// The same of protected ones.
    pub(super) fn protect(&self, queue: u32, socket: BorrowedFd<'_>) -> Result<(), Error> {
        give(&self.chosen_sockets, queue, socket)
    }

    /// No socket gets packets any more: the kernel forwards them.
    pub(super) fn release_sockets(&self) {
        for sockets in [&self.sockets, &self.chosen_sockets] {
            for queue in 0..QUEUES_MAX {
                // It fails for queues that had none.
                let _ = sockets.delete(&queue.to_ne_bytes());
            }
        }
    }
}

fn give(sockets: &MapHandle, queue: u32, socket: BorrowedFd<'_>) -> Result<(), Error> {
    let socket = socket.as_raw_fd().to_ne_bytes();
    sockets
        .update(&queue.to_ne_bytes(), &socket, MapFlags::ANY)
        .map_err(Error::bpf("give a socket to the XDP program"))
}

impl Shared {
    /// Packets may be sent on by this interface from now on.
    pub(super) fn add_device(&self, index: u32) -> Result<(), Error> {
        let index = index.to_ne_bytes();
        self.devices
            .update(&index, &index, MapFlags::ANY)
            .map_err(Error::bpf("add an interface to the XDP program"))
    }

    /// These are this host's addresses from now on.
    pub(super) fn set_own(&self, own: impl Iterator<Item = IpAddr>) -> Result<(), Error> {
        let error = Error::bpf("tell the XDP program this host's addresses");
        let wanted: std::collections::HashSet<[u8; 16]> = own.take(OWN_MAX).map(mapped).collect();
        let present: Vec<Vec<u8>> = self.own.keys().collect();
        for key in present
            .iter()
            .filter(|key| !wanted.contains(key.as_slice()))
        {
            self.own.delete(key).map_err(&error)?;
        }
        for key in &wanted {
            self.own.update(key, &[1], MapFlags::ANY).map_err(&error)?;
        }
        Ok(())
    }
}

/// `struct own_address` of forward.h.
fn mapped(address: IpAddr) -> [u8; 16] {
    let address: Ipv6Addr = match address {
        IpAddr::V4(address) => address.to_ipv6_mapped(),
        IpAddr::V6(address) => address,
    };
    address.octets()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use libbpf_rs::ProgramInput;
    use plimsoll_kernel::namespace;

    use super::super::frames::{self, STATION};
    use super::super::outcome::Outcome;
    use super::*;

    /// The program looks at every frame of the corpus as `packet::examine` does. In a
    /// namespace of its own it finds no sockets and no routes: what is plain ends there.
    #[test]
    fn the_program_agrees_on_every_frame() {
        let outcomes = namespace::in_new(outcomes).expect("root, to make a network namespace");
        for case in frames::corpus() {
            let short = case.frame.len() < super::super::packet::ETHERNET_BYTES;
            let expected = case.outcome.unwrap_or(Outcome::KernelRoute);
            if !short {
                assert_eq!(outcomes[case.name], expected, "{}", case.name);
            }
        }
    }

    fn outcomes() -> BTreeMap<&'static str, Outcome> {
        let mut place = MaybeUninit::uninit();
        let builder = skeleton::ForwardSkelBuilder::default();
        let mut open = builder.open(&mut place).unwrap();
        let constants = open.maps.rodata_data.as_deref_mut().unwrap();
        constants.path = types::forward_path::PATH_USER.0;
        let loaded = open.load().expect("root, to load BPF programs");
        let settings = MapHandle::try_from(&loaded.maps.bss).unwrap();
        set(&settings, STATION, ReversePath::Off).unwrap();
        let counts = || {
            let cpus = loaded.maps.counters.lookup_percpu(&ONLY, MapFlags::ANY);
            let mut counts = Counts::default();
            for cpu in cpus.unwrap().unwrap() {
                counts.add_bytes(&cpu);
            }
            counts
        };
        let mut outcomes = BTreeMap::new();
        // The test-run facility takes nothing below an Ethernet header.
        for case in frames::corpus()
            .into_iter()
            .filter(|case| case.frame.len() >= 14)
        {
            let before = counts();
            let input = ProgramInput {
                data_in: Some(&case.frame),
                repeat: 1,
                ..ProgramInput::default()
            };
            loaded.progs.forward.test_run(input).unwrap();
            let after = counts();
            let mut counted = Outcome::ALL.into_iter();
            let counted = counted.find(|outcome| after.of(*outcome) > before.of(*outcome));
            assert_eq!(after.total(), before.total() + 1, "{}", case.name);
            outcomes.insert(case.name, counted.unwrap());
        }
        outcomes
    }
}
