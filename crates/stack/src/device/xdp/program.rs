//! The XDP program that steers frames, and its maps.

use std::fmt;
use std::io;
use std::mem::MaybeUninit;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::Arc;

use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use libbpf_rs::{MapCore, MapFlags, MapHandle};
use nix::errno::Errno;
use parking_lot::Mutex;
use plimsoll_core::demux::Protocol;
use plimsoll_kernel::error::{bpf, bpf_errno};
use plimsoll_kernel::host::may_load_programs;
use plimsoll_kernel::lasting_link::KeptLink;
use plimsoll_kernel::link;
use plimsoll_kernel::xdp_link::AttachError;

use super::answering::Answers;
use super::claims::Claims;
use super::company::{Entries, Watched};
use super::room::{Room, Rooms};
use super::{MAIN_SOCKET, PLACES_OF_SOCKETS, SOCKETS_MAX, Threaded, XdpConfig};
use crate::device::{CookieAnswers, Endpoint, Mac, Takes};
use crate::error::{Error, address_in_use};
use crate::random::secret;

include!(concat!(env!("OUT_DIR"), "/steer.rs")); // mod skeleton

pub(super) use skeleton::types::{self, cookie_segment, entry_count, possession, steer_limit};
use skeleton::{OpenSteerSkel, SteerMaps};
pub(super) use skeleton::{SteerSkel, SteerSkelBuilder};

/// The program in place. Dropping it detaches it.
pub(super) struct Program {
    sockets: MapHandle,
    everywhere: MapHandle,
    /// Held while it is looked whether somebody is there.
    adding: Mutex<()>,
    endpoints: MapHandle,
    connections: MapHandle,
    entry_counts: MapHandle,
    /// How many endpoints are at one address, and connections, as the program knows it.
    counted: Mutex<[u32; 2]>,
    addresses: MapHandle,
    group_map: MapHandle,
    groups: Mutex<Vec<Group>>,
    strays: MapHandle,
    known: MapHandle,
    late: MapHandle,
    answers_map: MapHandle,
    pub(super) answers: Answers,
    rooms: Arc<Rooms>,
    company: MapHandle,
    entries: Arc<Entries>,
    /// The program's only variable.
    told_map: MapHandle,
    told: Mutex<types::told>,
    /// Nothing in trials ([`steering`](super::steering)).
    _link: Option<KeptLink>,
}

impl fmt::Debug for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Program").finish_non_exhaustive()
    }
}

impl Program {
    /// Loads it for the queues of `config` and attaches it in native mode. With
    /// [`Threaded::Auto`] it can be [watched](Self::watched).
    pub(super) fn attach(interface: &str, ifindex: u32, config: &XdpConfig) -> Result<Self, Error> {
        let mut place = MaybeUninit::uninit();
        let builder = SteerSkelBuilder::default();
        let mut open = builder.open(&mut place).map_err(refused)?;
        configure(&mut open, config)?;
        if let Some(constants) = open.maps.rodata_data.as_deref_mut() {
            constants.answers_by = answers_by(ifindex);
        }
        let program = open.load().map_err(refused)?;
        let link = KeptLink::attach(program.progs.steer.as_fd(), interface, ifindex)
            .map_err(|error| not_attached(interface, error))?;
        Self::of(&program.maps, Some(link))
    }

    /// What is told by these maps.
    pub(super) fn of(maps: &SteerMaps<'_>, link: Option<KeptLink>) -> Result<Self, Error> {
        let handle = |map| MapHandle::try_from(map).map_err(refused);
        Ok(Self {
            sockets: handle(&maps.sockets)?,
            everywhere: handle(&maps.everywhere)?,
            adding: Mutex::default(),
            endpoints: handle(&maps.endpoints)?,
            connections: handle(&maps.connections)?,
            entry_counts: handle(&maps.entry_counts)?,
            counted: Mutex::default(),
            addresses: handle(&maps.addresses)?,
            group_map: handle(&maps.groups)?,
            groups: Mutex::default(),
            strays: handle(&maps.strays)?,
            known: handle(&maps.known)?,
            late: handle(&maps.late)?,
            answers_map: handle(&maps.answers)?,
            answers: Answers::of(&maps.answers)?,
            rooms: Rooms::of(&maps.given, &maps.given_up_to)?,
            company: handle(&maps.company)?,
            entries: Entries::new(),
            told_map: handle(&maps.bss)?,
            told: Mutex::default(),
            _link: link,
        })
    }

    /// Whose frames come, while one endpoint is flooded.
    pub(super) fn watched(&self, claims: &Arc<Claims>) -> Result<Watched, Error> {
        let claims = Arc::clone(claims);
        Ok(Watched::of(
            &self.company,
            &self.rooms,
            &self.entries,
            claims,
        )?)
    }

    /// For socket `number`, before [`add_socket`](Self::add_socket).
    pub(super) fn room(&self, number: u32) -> Room {
        self.rooms.open(number)
    }

    /// Frames for number `index` go to this socket from now on.
    pub(super) fn add_socket(&self, index: u32, socket: BorrowedFd<'_>) -> libbpf_rs::Result<()> {
        let socket = socket.as_raw_fd().to_ne_bytes();
        let key = index.to_ne_bytes();
        self.sockets.update(&key, &socket, MapFlags::ANY)
    }

    /// Its endpoint has no entry any more.
    pub(super) fn remove_entry(&self, index: u32) {
        self.entries.remove(index);
    }

    pub(super) fn remove_socket(&self, index: u32) {
        // Not there: the kernel removes a closed socket by itself.
        let _ = self.sockets.delete(&index.to_ne_bytes());
    }

    /// Frames for the endpoint go to number `index`. Refused where it has an entry.
    pub(super) fn add_endpoint(&self, endpoint: Endpoint, index: u32) -> libbpf_rs::Result<()> {
        if index & steer_limit::GROUP.0 == 0 {
            self.entries.add(index, index);
        }
        self.add_entry(endpoint, index)
    }

    /// Frames for the endpoint go to the main socket, and are counted by this number.
    pub(super) fn add_claimed(&self, endpoint: Endpoint, number: u32) -> libbpf_rs::Result<()> {
        let entry = number | steer_limit::ON_MAIN.0;
        self.add_entry(endpoint, entry)?;
        self.entries.add(number, entry);
        Ok(())
    }

    fn add_entry(&self, endpoint: Endpoint, entry: u32) -> libbpf_rs::Result<()> {
        if let Some(place) = place(endpoint) {
            // An array's element is always there, so the kernel refuses nothing.
            let _alone = self.adding.lock();
            let there = self.everywhere.lookup(&place, MapFlags::ANY)?;
            if there.is_some_and(|entry| entry != [0; 4]) {
                return Err(libbpf_rs::Error::from_raw_os_error(libc::EEXIST));
            }
            return self.set_everywhere(endpoint, place, entry);
        }
        let value = entry.to_ne_bytes();
        self.counting(entry_count::COUNT_ENDPOINTS, || {
            let key = key(endpoint);
            self.endpoints.update(&key, &value, MapFlags::NO_EXIST)
        })
    }

    fn set_everywhere(
        &self,
        endpoint: Endpoint,
        place: [u8; 4],
        entry: u32,
    ) -> libbpf_rs::Result<()> {
        let alone = u32::from(endpoint.local.is_ipv4()) * steer_limit::IPV4_ALONE.0;
        let value = ((entry + 1) | alone).to_ne_bytes();
        self.everywhere.update(&place, &value, MapFlags::ANY)
    }

    /// The endpoint is a listener's whose connections have channels.
    pub(super) fn add_listener(&self, endpoint: Endpoint) -> libbpf_rs::Result<()> {
        self.add_entry(endpoint, MAIN_SOCKET | steer_limit::LISTENER.0)
    }

    /// SYNs for the listener are dropped, but these.
    pub(super) fn set_takes(&self, endpoint: Endpoint, takes: Takes) -> libbpf_rs::Result<()> {
        let mark = match takes {
            Takes::All => 0,
            Takes::Known => steer_limit::BEYOND_BACKLOG.0 | steer_limit::TAKES_KNOWN.0,
            Takes::None => steer_limit::BEYOND_BACKLOG.0,
        };
        let entry = MAIN_SOCKET | steer_limit::LISTENER.0 | mark;
        if let Some(place) = place(endpoint) {
            return self.set_everywhere(endpoint, place, entry);
        }
        let (key, value) = (key(endpoint), entry.to_ne_bytes());
        self.endpoints.update(&key, &value, MapFlags::EXIST)
    }

    /// The connection has channel `number`.
    pub(super) fn add_connection(
        &self,
        ends: (SocketAddr, SocketAddr),
        number: u32,
    ) -> libbpf_rs::Result<()> {
        self.counting(entry_count::COUNT_CONNECTIONS, || {
            let (key, value) = (connection_key(ends), number.to_ne_bytes());
            self.connections.update(&key, &value, MapFlags::NO_EXIST)
        })
    }

    pub(super) fn remove_connection(&self, ends: (SocketAddr, SocketAddr)) {
        if self.connections.delete(&connection_key(ends)).is_ok() {
            let _ = self.count(entry_count::COUNT_CONNECTIONS, -1);
        }
    }

    /// Its last segments are no strays.
    pub(super) fn add_late(&self, ends: (SocketAddr, SocketAddr)) {
        // Without a place they are.
        let _ = self.late.update(&connection_key(ends), &[1], MapFlags::ANY);
    }

    /// Frames that were dropped as the channels of the first so many numbers had no room.
    pub(super) fn discarded(&self, channels: u32) -> u64 {
        let numbers = (0..channels).map(|number| (PLACES_OF_SOCKETS + number) as usize);
        numbers.map(|number| self.rooms.given(number).refused).sum()
    }

    pub(super) fn remove_endpoint(&self, endpoint: Endpoint) {
        if let Some(place) = place(endpoint) {
            // An array's element is always there.
            let _ = self.everywhere.update(&place, &[0; 4], MapFlags::ANY);
        } else if self.endpoints.delete(&key(endpoint)).is_ok() {
            let _ = self.count(entry_count::COUNT_ENDPOINTS, -1);
        }
    }

    /// Number `index` gets a part of the endpoint's flows.
    pub(super) fn add_member(&self, endpoint: Endpoint, index: u32) -> libbpf_rs::Result<()> {
        let mut groups = self.groups.lock();
        if let Some(number) = place_of_group(&groups, endpoint) {
            self.entries
                .add(index, steer_limit::GROUP.0 | number as u32);
            groups[number].members.push(index);
            return self.write_group(number, &groups[number]);
        }
        let free = groups.iter().position(|group| group.members.is_empty());
        let number = free.unwrap_or(groups.len());
        let group = Group {
            endpoint,
            members: vec![index],
        };
        // One more than there is room for is refused here.
        self.write_group(number, &group)?;
        let entry = steer_limit::GROUP.0 | number as u32;
        self.entries.add(index, entry);
        self.add_endpoint(endpoint, entry)?;
        match groups.get_mut(number) {
            Some(place) => *place = group,
            None => groups.push(group),
        }
        Ok(())
    }

    pub(super) fn remove_member(&self, endpoint: Endpoint, index: u32) {
        let mut groups = self.groups.lock();
        let Some(number) = place_of_group(&groups, endpoint) else {
            return;
        };
        groups[number].members.retain(|member| *member != index);
        if groups[number].members.is_empty() {
            self.remove_endpoint(endpoint);
        }
        // An array's element is always there.
        let _ = self.write_group(number, &groups[number]);
    }

    fn write_group(&self, number: usize, group: &Group) -> libbpf_rs::Result<()> {
        let mut bytes = vec![0; self.group_map.value_size() as usize];
        let count = group.members.len() as u32;
        let words = std::iter::once(&count).chain(&group.members);
        for (place, word) in bytes.chunks_exact_mut(4).zip(words) {
            place.copy_from_slice(&word.to_ne_bytes());
        }
        let number = (number as u32).to_ne_bytes();
        self.group_map.update(&number, &bytes, MapFlags::ANY)
    }

    /// The count before the entry, so that whoever finds a count looks in vain at worst.
    fn counting(
        &self,
        which: entry_count,
        add: impl FnOnce() -> libbpf_rs::Result<()>,
    ) -> libbpf_rs::Result<()> {
        self.count(which, 1)?;
        let added = add();
        if added.is_err() {
            self.count(which, -1)?;
        }
        added
    }

    fn count(&self, which: entry_count, change: i32) -> libbpf_rs::Result<()> {
        let mut counted = self.counted.lock();
        let count = &mut counted[which.0 as usize];
        let (place, changed) = (which.0.to_ne_bytes(), count.saturating_add_signed(change));
        let value = changed.to_ne_bytes();
        self.entry_counts.update(&place, &value, MapFlags::ANY)?;
        *count = changed;
        Ok(())
    }

    /// Frames that were dropped because there was nobody for them.
    pub(super) fn strays(&self) -> Strays {
        let strays = self.strays.lookup(&[0; 4], MapFlags::ANY).ok().flatten();
        let number = |at: usize| {
            let bytes = strays.as_ref()?.get(at..at + 8)?.try_into().ok()?;
            Some(u64::from_ne_bytes(bytes))
        };
        Strays {
            dropped: number(24).unwrap_or(0),
            beyond_backlog: number(32).unwrap_or(0),
        }
    }

    /// From now on only frames of this VLAN may be the stack's.
    pub(super) fn select_vlan(&self, id: u16) -> libbpf_rs::Result<()> {
        self.tell(|told| told.vlan = id.into())
    }

    /// From now on each TCP connection has a channel.
    pub(super) fn all_connections_have_channels(&self) -> libbpf_rs::Result<()> {
        self.tell(|told| told.all_channels = 1)
    }

    /// SYNs from there pass where a listener takes those of known sources.
    pub(super) fn know_source(&self, source: IpAddr) {
        // Without a place it has the chance of any other.
        let _ = self.known.update(&bytes(source), &[1], MapFlags::ANY);
    }

    /// From now on what brings a listener's cookie back is known, and how one is given from `mac`.
    pub(super) fn know_cookies(&self, answers: &CookieAnswers, mac: Mac) -> libbpf_rs::Result<()> {
        self.tell(|told| {
            (told.cookie_key, told.has_cookies) = (answers.key, 1);
            told.window = answers.window.into();
            told.segments = answers.segments.map(u32::from);
            told.mac = mac;
        })
    }

    /// SYNs that a listener has no answers left for are answered from now on, as long as that is
    /// seen to help. The program is that of this interface.
    pub(super) fn answer(&self, ifindex: u32) {
        self.answers.begin(&self.answers_map, ifindex);
    }

    fn tell(&self, change: impl FnOnce(&mut types::told)) -> libbpf_rs::Result<()> {
        let mut told = self.told.lock();
        change(&mut told);
        let mut bytes = bytes_of(&told);
        bytes.resize(self.told_map.value_size() as usize, 0);
        self.told_map.update(&[0; 4], &bytes, MapFlags::ANY)
    }

    /// Everything for this address is the stack's.
    pub(super) fn own(&self, address: IpAddr) -> libbpf_rs::Result<()> {
        let owned = [possession::OWNED.0 as u8];
        self.addresses
            .update(&bytes(address), &owned, MapFlags::ANY)
    }

    /// What is for an endpoint at this address is the stack's, if not everything is.
    pub(super) fn share(&self, address: IpAddr) -> libbpf_rs::Result<()> {
        self.add_unless_known(address, possession::SHARED)
    }

    /// Nobody sends from this address of all hosts, unless it is the stack's by another of its networks.
    pub(super) fn add_broadcast(&self, address: Ipv4Addr) -> libbpf_rs::Result<()> {
        self.add_unless_known(address.into(), possession::ALL_HOSTS)
    }

    fn add_unless_known(&self, address: IpAddr, as_what: possession) -> libbpf_rs::Result<()> {
        let value = [as_what.0 as u8];
        let update = self
            .addresses
            .update(&bytes(address), &value, MapFlags::NO_EXIST);
        match update {
            Err(error) if error.kind() == libbpf_rs::ErrorKind::AlreadyExists => Ok(()),
            updated => updated,
        }
    }
}

/// What the program knows from the start.
pub(super) fn configure(open: &mut OpenSteerSkel<'_>, config: &XdpConfig) -> Result<(), Error> {
    if let Some(constants) = open.maps.rodata_data.as_deref_mut() {
        constants.queue = config.queue;
        constants.all_queues = config.all_queues.into();
        constants.secret = secret()?;
        constants.counts_company = (config.threaded == Threaded::Auto).into();
    }
    Ok(())
}

/// `answers_by` of the program. Whose kind is not known is taken for a veth.
fn answers_by(ifindex: u32) -> u32 {
    let is_other = |link: link::Link| link.kind.as_deref() != Some("veth");
    match link::link(ifindex).is_ok_and(is_other) {
        true => 0,
        false => ifindex,
    }
}

/// Why an endpoint cannot be added.
pub(super) fn not_added(endpoint: Endpoint, error: libbpf_rs::Error) -> io::Error {
    match error.kind() {
        libbpf_rs::ErrorKind::AlreadyExists => address_in_use(endpoint.local),
        libbpf_rs::ErrorKind::TooBig => {
            let why = format!(
                "no room for {} in the XDP program, which knows {} sockets at single addresses: bind \
                 some at the wildcard address",
                endpoint.local,
                2 * SOCKETS_MAX
            );
            io::Error::new(io::ErrorKind::OutOfMemory, why)
        }
        _ => io::Error::other(error),
    }
}

/// What `struct strays` of steer.h counts.
pub(super) struct Strays {
    pub(super) dropped: u64,
    pub(super) beyond_backlog: u64,
}

/// `struct told` of steer.h.
fn bytes_of(told: &types::told) -> Vec<u8> {
    let [first, second] = told.cookie_key.map(u64::to_ne_bytes);
    let [ipv4, ipv6] = told.segments.map(u32::to_ne_bytes);
    let parts: [&[u8]; 9] = [
        &told.vlan.to_ne_bytes(),
        &told.all_channels.to_ne_bytes(),
        &first,
        &second,
        &told.has_cookies.to_ne_bytes(),
        &told.window.to_ne_bytes(),
        &ipv4,
        &ipv6,
        &told.mac,
    ];
    parts.concat()
}

/// Sockets that share an endpoint, as the program has them in `struct group`.
struct Group {
    endpoint: Endpoint,
    members: Vec<u32>,
}

fn place_of_group(groups: &[Group], endpoint: Endpoint) -> Option<usize> {
    let has = |group: &Group| group.endpoint == endpoint && !group.members.is_empty();
    groups.iter().position(has)
}

/// `place_of` of the program; nothing for an endpoint at one address.
fn place(endpoint: Endpoint) -> Option<[u8; 4]> {
    let first = match endpoint.protocol {
        Protocol::Udp => 0,
        Protocol::Tcp => steer_limit::PORTS.0,
    };
    let place = first + u32::from(endpoint.local.port());
    let everywhere = endpoint.local.ip().is_unspecified();
    everywhere.then(|| place.to_ne_bytes())
}

/// `struct endpoint` of steer.h.
fn key(endpoint: Endpoint) -> [u8; 20] {
    let protocol = match endpoint.protocol {
        Protocol::Udp => libc::IPPROTO_UDP,
        Protocol::Tcp => libc::IPPROTO_TCP,
    };
    let mut key = [0; 20];
    key[..16].copy_from_slice(&bytes(endpoint.local.ip()));
    key[16..18].copy_from_slice(&endpoint.local.port().to_be_bytes());
    key[18] = protocol as u8;
    key
}

/// `struct connection` of steer.h. `ends`: here and there.
fn connection_key((local, remote): (SocketAddr, SocketAddr)) -> [u8; 36] {
    let mut key = [0; 36];
    key[..16].copy_from_slice(&bytes(local.ip()));
    key[16..32].copy_from_slice(&bytes(remote.ip()));
    key[32..34].copy_from_slice(&local.port().to_be_bytes());
    key[34..].copy_from_slice(&remote.port().to_be_bytes());
    key
}

/// `struct address` of steer.h.
fn bytes(address: IpAddr) -> [u8; 16] {
    let address: Ipv6Addr = match address {
        IpAddr::V4(address) => address.to_ipv6_mapped(),
        IpAddr::V6(address) => address,
    };
    address.octets()
}

/// The verifier answers `EACCES` to a program that it refuses, and to a process without `CAP_PERFMON`.
pub(super) fn refused(error: libbpf_rs::Error) -> Error {
    let is_privilege = match bpf_errno(&error) {
        Some(Errno::EPERM) => true,
        Some(Errno::EACCES) => !may_load_programs(),
        _ => false,
    };
    match is_privilege {
        true => Error::NotPermitted {
            action: "load the XDP program",
            capability: "CAP_BPF, CAP_PERFMON and CAP_NET_ADMIN",
        },
        false => bpf("load the XDP program")(error).into(),
    }
}

pub(super) fn not_attached(interface: &str, error: AttachError) -> Error {
    match error {
        AttachError::Busy {
            program, remedy, ..
        } => Error::Busy {
            what: format!("{interface} (it runs an XDP program{program})"),
            remedy,
        },
        AttachError::NoNativeXdp { .. } => Error::Unsupported {
            what: format!("the driver of {interface}"),
            feature: "native XDP",
            remedy: "take the device packet:IFACE (AF_PACKET), which every driver has",
        },
        error => error.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_is_refused_says_the_remedy() {
        let forbidden = match may_load_programs() {
            true => "verifier",
            false => "CAP_PERFMON",
        };
        for (number, remedy) in [
            (libc::EACCES, forbidden),
            (libc::EINVAL, "verifier"),
            (libc::EMFILE, "`ulimit -n`"),
            (libc::ENOMEM, "`ulimit -l`"),
            (libc::EPERM, "run as root"),
        ] {
            let error = refused(io::Error::from_raw_os_error(number).into());
            assert!(error.to_string().contains(remedy), "{error}");
        }
    }

    #[test]
    fn keys_are_laid_out_as_in_the_program() {
        let endpoint = |local: &str| Endpoint {
            protocol: Protocol::Udp,
            local: local.parse().unwrap(),
        };
        let at = key(endpoint("1.2.3.4:258"));
        assert_eq!(at[..12], [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff]);
        assert_eq!(at[12..], [1, 2, 3, 4, 1, 2, 17, 0]);
        assert_eq!(place(endpoint("1.2.3.4:258")), None);
        for any in ["0.0.0.0:258", "[::]:258"] {
            assert_eq!(place(endpoint(any)), Some(258_u32.to_ne_bytes()));
            let tcp = Endpoint {
                protocol: Protocol::Tcp,
                ..endpoint(any)
            };
            assert_eq!(place(tcp), Some((65_536_u32 + 258).to_ne_bytes()));
        }
    }
}
