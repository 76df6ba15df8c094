//! The XDP programs: one instance per interface.
//!
//! Instances share the table of interfaces and that of prefixes; counters and
//! settings are each one's own.

use std::collections::HashMap;
use std::fmt;
use std::mem::MaybeUninit;
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use ipnet::IpNet;
use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use libbpf_rs::{MapCore, MapFlags, MapHandle};
use nix::sys::socket::AddressFamily;
use plimsoll_kernel::lasting_link::KeptLink;
use plimsoll_stack::device::Mac;
use plimsoll_stack::device::packet::Instruction;

use super::error::Error;
use super::outcome::Counts;
use super::table::{PrefixKind, ReversePath, Switches};
use super::{DataPath, Limits};
use crate::filter::in_driver;

include!(concat!(env!("OUT_DIR"), "/forward.rs")); // mod skeleton
pub(super) use skeleton::types;

/// Interfaces that a router may have.
pub const DEVICES_MAX: usize = types::forward_bounds::DEVICES_MAX.0 as usize;
/// Receive queues of an interface that are used in user space.
pub(super) const QUEUES_MAX: u32 = types::forward_bounds::QUEUES_MAX.0;
const PREFIXES_MAX: usize = types::forward_bounds::PREFIXES_MAX.0 as usize;

const ONLY: [u8; 4] = 0u32.to_ne_bytes();

/// What all instances share.
#[derive(Debug)]
pub(super) struct Shared {
    devices: MapHandle,
    prefixes: MapHandle,
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
    pub(super) switches: Switches,
}

/// What all instances are told before they are loaded.
#[derive(Clone, Copy, Debug)]
pub(super) struct Constants<'a> {
    pub(super) path: DataPath,
    pub(super) limits: Limits,
    /// How sources are looked at was asked for, and is not just what the kernel does.
    pub(super) reverse_path_is_asked: bool,
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
        told.reverse_path_is_asked = constants.reverse_path_is_asked.into();
        told.filter_length = filter.len() as u32;
    }
    let room = filter.len().max(1) as u32;
    open.maps.filter.set_max_entries(room).map_err(&bpf)?;
    if let Some(shared) = shared {
        let devices = open.maps.devices.reuse_fd(shared.devices.as_fd());
        let prefixes = open.maps.prefixes.reuse_fd(shared.prefixes.as_fd());
        devices.and(prefixes).map_err(&bpf)?;
    }
    let loaded = open.load().map_err(&bpf)?;
    let maps = &loaded.maps;
    in_driver::put(&maps.filter, filter).map_err(&bpf)?;
    let made = match shared {
        Some(_) => None,
        None => Some(Shared {
            devices: MapHandle::try_from(&maps.devices).map_err(&bpf)?,
            prefixes: MapHandle::try_from(&maps.prefixes).map_err(&bpf)?,
        }),
    };
    let counters = MapHandle::try_from(&maps.counters).map_err(&bpf)?;
    let sockets = MapHandle::try_from(&maps.sockets).map_err(&bpf)?;
    let chosen_sockets = MapHandle::try_from(&maps.chosen_sockets).map_err(&bpf)?;
    let settings = MapHandle::try_from(&maps.bss).map_err(&bpf)?;
    // The table comes later, before anything is forwarded.
    set(&settings, interface.station, &interface.switches, true)?;
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
fn set(
    settings: &MapHandle,
    station: Mac,
    switches: &Switches,
    asks_for_kernel: bool,
) -> Result<(), Error> {
    use types::reverse_path as C;
    let number = |how| match how {
        ReversePath::Off => C::REVERSE_PATH_OFF.0,
        ReversePath::Strict => C::REVERSE_PATH_STRICT.0,
        ReversePath::Loose => C::REVERSE_PATH_LOOSE.0,
    };
    let mut bytes = [0; size_of::<types::port_settings>()];
    bytes[..6].copy_from_slice(&station);
    bytes[6] = switches.forwards_v4.into();
    bytes[7] = switches.forwards_v6.into();
    bytes[8..12].copy_from_slice(&number(switches.reverse_path_v4).to_ne_bytes());
    bytes[12..16].copy_from_slice(&number(switches.reverse_path_v6).to_ne_bytes());
    bytes[16..20].copy_from_slice(&u32::from(asks_for_kernel).to_ne_bytes());
    settings
        .update(&ONLY, &bytes, MapFlags::ANY)
        .map_err(Error::bpf("set up the XDP program"))
}

impl Instance {
    /// The interface has this Ethernet address and these switches from now on, and destinations
    /// are asked for whether they are the kernel's, or not.
    pub(super) fn set(
        &self,
        station: Mac,
        switches: &Switches,
        asks_for_kernel: bool,
    ) -> Result<(), Error> {
        set(&self.settings, station, switches, asks_for_kernel)
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

    /// Nothing is forwarded to it any more: the kernel does that.
    pub(super) fn remove_device(&self, index: u32) {
        // It may be gone already.
        let _ = self.devices.delete(&index.to_ne_bytes());
    }

    /// The program knows these prefixes from now on. Of more than fit in, the last ones are left out.
    pub(super) fn set_prefixes(
        &self,
        prefixes: impl Iterator<Item = (IpNet, PrefixKind)>,
    ) -> Result<(), Error> {
        let error = Error::bpf("tell the XDP program prefixes");
        let wanted: HashMap<_, _> = prefixes
            .take(PREFIXES_MAX)
            .map(|(prefix, kind)| (key(prefix), number(kind)))
            .collect();
        let present: Vec<Vec<u8>> = self.prefixes.keys().collect();
        for key in present
            .iter()
            .filter(|key| !wanted.contains_key(key.as_slice()))
        {
            self.prefixes.delete(key).map_err(&error)?;
        }
        for (key, kind) in &wanted {
            self.prefixes
                .update(key, &[*kind], MapFlags::ANY)
                .map_err(&error)?;
        }
        Ok(())
    }
}

/// `enum prefix_kind` of forward.h.
fn number(kind: PrefixKind) -> u8 {
    use types::prefix_kind as C;
    let kind = match kind {
        PrefixKind::WithinOwn => C::PREFIX_WITHIN_OWN,
        PrefixKind::Own => C::PREFIX_OWN,
        PrefixKind::Kernel => C::PREFIX_KERNEL,
        PrefixKind::Other => C::PREFIX_OTHER,
    };
    kind.0 as u8
}

const KEY_BYTES: usize = size_of::<types::prefix>();

/// `struct prefix` of forward.h.
fn key(prefix: IpNet) -> [u8; KEY_BYTES] {
    let family = match prefix {
        IpNet::V4(_) => AddressFamily::Inet,
        IpNet::V6(_) => AddressFamily::Inet6,
    };
    let mut key = [0; KEY_BYTES];
    let bits = u32::BITS + u32::from(prefix.prefix_len());
    key[..4].copy_from_slice(&bits.to_ne_bytes());
    key[4..8].copy_from_slice(&(family as i32).to_ne_bytes());
    match prefix.network() {
        IpAddr::V4(address) => key[8..12].copy_from_slice(&address.octets()),
        IpAddr::V6(address) => key[8..].copy_from_slice(&address.octets()),
    }
    key
}

#[cfg(test)]
mod tests {
    use libbpf_rs::ProgramInput;
    use plimsoll_kernel::namespace;

    use super::super::frames::{self, STATION};
    use super::super::outcome::Outcome;
    use super::super::packet;
    use super::*;

    const UNLIMITED: Limits = Limits {
        answered_pps: 0,
        unresolved_pps: 0,
        slow_pps: 0,
    };

    /// What the program says of these frames, with such limits and prefixes. In a namespace
    /// of its own it finds no sockets and no routes: what is plain ends there.
    fn outcomes(
        limits: Limits,
        prefixes: &[(&str, PrefixKind)],
        frames: &[Vec<u8>],
    ) -> Vec<Outcome> {
        let prefixes = prefixes.iter().map(|(prefix, kind)| {
            let prefix: IpNet = prefix.parse().unwrap();
            (prefix, *kind)
        });
        let prefixes: Vec<_> = prefixes.collect();
        let inside = || outcomes_here(limits, prefixes, frames);
        namespace::in_new(inside).expect("root, to make a network namespace")
    }

    fn outcomes_here(
        limits: Limits,
        prefixes: Vec<(IpNet, PrefixKind)>,
        frames: &[Vec<u8>],
    ) -> Vec<Outcome> {
        let mut place = MaybeUninit::uninit();
        let builder = skeleton::ForwardSkelBuilder::default();
        let mut open = builder.open(&mut place).unwrap();
        let constants = open.maps.rodata_data.as_deref_mut().unwrap();
        constants.path = types::forward_path::PATH_USER.0;
        constants.limits_pps = limits.by_kind();
        let loaded = open.load().expect("root, to load BPF programs");
        let map = |map| MapHandle::try_from(map).unwrap();
        let switches = Switches {
            forwards_v4: true,
            ..Switches::default()
        };
        set(&map(&loaded.maps.bss), STATION, &switches, true).unwrap();
        let shared = Shared {
            devices: map(&loaded.maps.devices),
            prefixes: map(&loaded.maps.prefixes),
        };
        // What it knew before goes.
        shared
            .set_prefixes([("::/0".parse().unwrap(), PrefixKind::Own)].into_iter())
            .unwrap();
        shared.set_prefixes(prefixes.into_iter()).unwrap();
        let counts = || {
            let cpus = loaded.maps.counters.lookup_percpu(&ONLY, MapFlags::ANY);
            let mut counts = Counts::default();
            for cpu in cpus.unwrap().unwrap() {
                counts.add_bytes(&cpu);
            }
            counts
        };
        let outcome = |frame: &Vec<u8>| {
            let before = counts();
            let input = ProgramInput {
                data_in: Some(frame),
                repeat: 1,
                ..ProgramInput::default()
            };
            loaded.progs.forward.test_run(input).unwrap();
            let after = counts();
            assert_eq!(after.total(), before.total() + 1, "{frame:?}");
            let mut counted = Outcome::ALL.into_iter();
            let counted = counted.find(|outcome| after.of(*outcome) > before.of(*outcome));
            counted.unwrap()
        };
        frames.iter().map(outcome).collect()
    }

    /// It looks at every frame of the corpus as `packet::examine` does.
    #[test]
    fn the_program_agrees_on_every_frame() {
        // The test-run facility takes nothing below an Ethernet header.
        let is_whole = |case: &frames::Case| case.frame.len() >= packet::ETHERNET_BYTES;
        let cases: Vec<_> = frames::corpus().into_iter().filter(is_whole).collect();
        let frames: Vec<_> = cases.iter().map(|case| case.frame.clone()).collect();
        let outcomes = outcomes(UNLIMITED, &[], &frames);
        for (case, outcome) in cases.iter().zip(outcomes) {
            let is_v6 = case.frame[12..14] == [0x86, 0xdd];
            let plain = match is_v6 {
                true => Outcome::ForwardingOff,
                false => Outcome::KernelRoute,
            };
            let expected = case.outcome.unwrap_or(plain);
            assert_eq!(outcome, expected, "{}", case.name);
        }
    }

    /// Longest prefixes count, and those of the packet's family.
    #[test]
    fn packets_from_and_for_own_prefixes_are_told() {
        let own = [
            ("192.0.2.0/24", PrefixKind::Own),
            ("192.0.2.128/25", PrefixKind::WithinOwn),
            ("192.0.2.129/32", PrefixKind::Own),
            ("2001:db8::/32", PrefixKind::Own),
        ];
        let cases = [
            ("198.51.100.9", "192.0.2.7", Outcome::Local),
            ("198.51.100.9", "192.0.2.128", Outcome::KernelRoute),
            ("198.51.100.9", "192.0.2.129", Outcome::Local),
            ("198.51.100.9", "203.0.113.1", Outcome::KernelRoute),
            ("192.0.2.7", "203.0.113.1", Outcome::DoubtfulSource),
            ("192.0.2.128", "203.0.113.1", Outcome::KernelRoute),
            ("2001:db9::7", "2001:db8::7", Outcome::Local),
            ("2001:db8::7", "2001:db9::7", Outcome::ForwardingOff),
        ];
        let frames =
            cases.map(|(source, destination, _)| frames::udp(&frames::packet(source, destination)));
        let outcomes = outcomes(UNLIMITED, &own, &frames);
        for ((source, destination, expected), outcome) in cases.into_iter().zip(outcomes) {
            assert_eq!(outcome, expected, "{source} to {destination}");
        }
    }

    /// A packet took more time than was saved for any: none passed at all.
    #[test]
    fn a_limit_of_a_few_a_second_lets_one_pass() {
        let limits = Limits {
            slow_pps: 1,
            ..UNLIMITED
        };
        let options = frames::corpus().into_iter();
        let mut options = options.filter(|case| case.outcome == Some(Outcome::Options));
        let frame = options.next().unwrap().frame;
        assert_eq!(outcomes(limits, &[], &[frame]), [Outcome::Options]);
    }
}
