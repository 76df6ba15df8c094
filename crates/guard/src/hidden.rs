//! Sockets that the program's look-up does not find, although they get packets: those that are bound
//! to a device above the guarded interface, and those of proxies to which a rule diverts. It finds
//! another one in their place, if that has the packet's port. Load balancing in the kernel (IPVS),
//! programs and actions of tc, XDP programs above and flows of Open vSwitch take packets before sockets
//! in the same way. So does translation that the program cannot ask ([`crate::tracking`]).
//!
//! As long as the kernel has told nothing of them, any port may have such a socket.

use std::collections::BTreeSet;
use std::fmt;
use std::io;
use std::mem::take;
use std::ops::RangeInclusive;
use std::time::Instant;

use plimsoll_kernel::link::{self, Above};
use plimsoll_kernel::packet_filter::{balanced, diverted, generation};
use plimsoll_kernel::traffic_control;
use serde::{Deserialize, Serialize};

use crate::looks::Looks;
use crate::owner::diag::{self, Protocol};

/// Of more ports at once it is not told which they are.
const PORTS_MAX: usize = 2048;

/// Who may take the packets of every port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Taker {
    /// Rules of the packet filter.
    PacketFilter,
    /// Load balancing in the kernel.
    Ipvs,
    /// Programs and actions of tc.
    Tc,
    /// XDP programs of interfaces above.
    Xdp,
    /// Flows of Open vSwitch.
    OpenVswitch,
    /// Translation that the program cannot ask whether it does.
    Translation,
    /// Somebody, since the kernel does not tell; or one that a newer guard tells of.
    #[serde(other)]
    NotKnown,
}

impl Taker {
    /// As status and log name it.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::PacketFilter => "packet_filter",
            Self::Ipvs => "ipvs",
            Self::Tc => "tc",
            Self::Xdp => "xdp",
            Self::OpenVswitch => "open_vswitch",
            Self::Translation => "translation",
            Self::NotKnown => "not_known",
        }
    }

    /// Whether packets may go on to other hosts by it.
    pub(crate) const fn may_send_on(self) -> bool {
        match self {
            Self::PacketFilter | Self::Ipvs => false,
            Self::Tc | Self::Xdp | Self::OpenVswitch | Self::Translation | Self::NotKnown => true,
        }
    }

    /// Whether somebody has programmed which packets it takes, so that only he knows.
    pub(crate) const fn is_programmed(self) -> bool {
        matches!(self, Self::Tc | Self::Xdp | Self::OpenVswitch)
    }
}

/// That no socket of a protocol is guarded, since somebody may take the packets of every port.
/// Displays as `key=value` pairs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Unguarded {
    pub(crate) protocol: Protocol,
    pub(crate) taker: Taker,
}

impl Unguarded {
    /// `udp` or `tcp`.
    #[must_use]
    pub const fn protocol(&self) -> &'static str {
        self.protocol.name()
    }

    /// Who may take its packets: `packet_filter`, `ipvs`, `tc`, `xdp`, `open_vswitch`, `translation` or
    /// `not_known`.
    #[must_use]
    pub const fn taker(&self) -> &'static str {
        self.taker.name()
    }
}

impl Unguarded {
    /// What the operator can do, where a new start of the guard helps.
    #[must_use]
    pub fn remedy(&self) -> Option<&'static str> {
        (self.taker == Taker::Translation).then_some(
            "this guard could not ask connection tracking when it started: start it anew, after the module nf_conntrack (`plimsoll guard check` tells if something is missing for that)",
        )
    }
}

impl fmt::Display for Unguarded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "protocol={} taker={}", self.protocol(), self.taker())
    }
}

/// Ports at which such sockets get packets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Ports {
    pub(crate) some: BTreeSet<(Protocol, u16)>,
    /// All of a protocol's.
    pub(crate) every: BTreeSet<Unguarded>,
}

impl Ports {
    fn add(&mut self, taker: Taker, of: Option<u8>, ports: &RangeInclusive<u16>) {
        for (number, protocol) in [(6, Protocol::Tcp), (17, Protocol::Udp)] {
            if of.is_some_and(|of| of != number) {
                continue;
            }
            if ports.len().max(self.some.len()) > PORTS_MAX {
                self.every.insert(Unguarded { protocol, taker });
            } else {
                self.some.extend(ports.clone().map(|port| (protocol, port)));
            }
        }
    }

    /// Every port, for the sake of one who may take any packet.
    pub(crate) fn add_all(&mut self, taker: Taker) {
        self.add(taker, None, &(0..=u16::MAX));
    }

    fn extend(&mut self, others: Self) {
        self.some.extend(others.some);
        self.every.extend(others.every);
    }

    /// Nobody's programs take packets from sockets of this host: so it was said.
    pub(crate) fn trust_programs(&mut self) {
        self.every.retain(|one| !one.taker.is_programmed());
    }
}

/// What else than rules tells.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Others {
    ports: Ports,
    /// Interfaces by which this host receives what comes in by the guarded one.
    receiving: BTreeSet<u32>,
    /// As [`Above::ethernet`].
    ethernet: BTreeSet<[u8; 6]>,
}

/// What is known of them in the current network namespace, where an interface is guarded. Rules may
/// be many: what else there is does not wait for them to be read.
#[derive(Debug)]
pub(crate) struct Hidden {
    /// `None`: the kernel has not told yet.
    by_rules: Looks<Option<Ports>>,
    by_others: Looks<Option<Others>>,
    receiving: BTreeSet<u32>,
    ethernet: BTreeSet<[u8; 6]>,
}

impl Hidden {
    /// Reads all of it: for a thread that may wait.
    pub(crate) fn begin(ifindex: u32) -> Self {
        Self::by(move || by_rules(ifindex), move || by_others(ifindex))
    }

    fn by(
        by_rules: impl Fn() -> io::Result<Ports> + Send + Sync + 'static,
        by_others: impl Fn() -> io::Result<Others> + Send + Sync + 'static,
    ) -> Self {
        Self {
            by_rules: Looks::begin_with(generation, move || by_rules().map(Some)),
            by_others: Looks::begin(move || by_others().map(Some)),
            receiving: BTreeSet::new(),
            ethernet: BTreeSet::new(),
        }
    }

    /// Call it once a second: what is known.
    pub(crate) fn on_interval(&mut self, now: Instant) -> Ports {
        let mut ports = Ports::default();
        let others = self.by_others.on_interval(now).map(|others| {
            self.receiving = others.receiving;
            self.ethernet = others.ethernet;
            others.ports
        });
        for told in [self.by_rules.on_interval(now), others] {
            match told {
                Some(told) => ports.extend(told),
                None => ports.add_all(Taker::NotKnown),
            }
        }
        ports
    }

    /// The interfaces by which this host receives what comes in by the guarded one, as far as it is
    /// known.
    pub(crate) const fn receiving(&self) -> &BTreeSet<u32> {
        &self.receiving
    }

    /// The Ethernet addresses of this host where a bridge hands on what is for others, as far as they
    /// are known.
    pub(crate) const fn ethernet(&self) -> &BTreeSet<[u8; 6]> {
        &self.ethernet
    }
}

/// Those that are known now, where `ifindex` is guarded.
pub(crate) fn ports(ifindex: u32) -> io::Result<Ports> {
    let mut ports = by_rules(ifindex)?;
    ports.extend(by_others(ifindex)?.ports);
    Ok(ports)
}

fn by_rules(ifindex: u32) -> io::Result<Ports> {
    let mut ports = Ports::default();
    let named = receiving(ifindex, link::above(ifindex)?).into_iter();
    let named = named.filter_map(|index| Some((index, link::name(index)?)));
    for (protocol, range) in diverted::ports(&named.collect::<Vec<_>>())? {
        ports.add(Taker::PacketFilter, protocol, &range);
    }
    for (protocol, range) in balanced::ports()? {
        ports.add(Taker::Ipvs, protocol, &range);
    }
    Ok(ports)
}

fn by_others(ifindex: u32) -> io::Result<Others> {
    let mut above = link::above(ifindex)?;
    let ethernet = take(&mut above.ethernet);
    let mut ports = Ports::default();
    for (taker, are_there) in [
        (Taker::Tc, !tc_takers(ifindex)?.is_empty()),
        (Taker::Xdp, !above.with_xdp.is_empty()),
        (Taker::OpenVswitch, above.has_open_vswitch),
    ] {
        if are_there {
            ports.add_all(taker);
        }
    }
    if !above.interfaces.is_empty() {
        // However many sockets these are, they have no more ports than there are.
        diag::each(|socket| {
            if above.interfaces.contains(&socket.interface) {
                ports.some.insert((socket.protocol, socket.port));
            }
            true
        })?;
    }
    Ok(Others {
        ports,
        receiving: receiving(ifindex, above),
        ethernet,
    })
}

/// The interfaces through which packets are received that come in by this one.
fn receiving(ifindex: u32, above: Above) -> BTreeSet<u32> {
    let mut interfaces = above.interfaces;
    interfaces.insert(ifindex);
    interfaces
}

/// What of tc may take packets that come in by `ifindex`, there or at an interface above.
pub(crate) fn tc_takers(ifindex: u32) -> io::Result<BTreeSet<String>> {
    let mut takers = BTreeSet::new();
    for interface in receiving(ifindex, link::above(ifindex)?) {
        takers.extend(traffic_control::takers(interface)?);
    }
    Ok(takers)
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;
    use std::sync::Barrier;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::thread;
    use std::time::Duration;

    use nix::sched::{CloneFlags, unshare};
    use nix::sys::resource::{Resource, getrlimit, setrlimit};
    use nix::sys::socket::{
        AddressFamily, SockFlag, SockType, SockaddrIn, bind, setsockopt, socket, sockopt,
    };

    use plimsoll_kernel::namespace;

    use super::*;
    use crate::program::test_host::ip;

    /// Of 20,000 sockets above it was known, and those beyond were judged by others' queues. Needs root.
    #[test]
    fn however_many_sockets_are_bound_above_all_their_ports_are_known() {
        const FIRST: u16 = 20_000;
        const EACH: u16 = 10_050;
        let (_, most) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
        assert!(
            most > u64::from(EACH) + 100,
            "a process may open {most} files"
        );
        setrlimit(Resource::RLIMIT_NOFILE, most, most).unwrap();
        let bound = |port| {
            let datagrams = SockType::Datagram;
            let made = socket(AddressFamily::Inet, datagrams, SockFlag::empty(), None).unwrap();
            setsockopt(&made, sockopt::BindToDevice, &"br0".into()).unwrap();
            bind(made.as_raw_fd(), &SockaddrIn::new(127, 0, 0, 1, port)).unwrap();
            made
        };
        let step = Barrier::new(3);
        // A process may have fewer open files. So each of two threads has its own.
        let hold = |first: u16| {
            unshare(CloneFlags::CLONE_FILES).unwrap();
            let sockets: Vec<_> = (first..first + EACH).map(bound).collect();
            step.wait();
            step.wait();
            drop(sockets);
        };
        let inside = || {
            ip("link set lo up");
            ip("link add v0 type veth peer name v1");
            ip("link add br0 type bridge");
            ip("link set v0 master br0");
            thread::scope(|scope| {
                scope.spawn(|| hold(FIRST));
                scope.spawn(|| hold(FIRST + EACH));
                step.wait();
                let known = link::index("v0").map(by_others);
                step.wait();
                known.unwrap().unwrap().ports.some
            })
        };
        let known = namespace::in_new(inside)
            .expect("this test makes a network namespace and needs root: run `sudo make test`");
        let all = (FIRST..FIRST + 2 * EACH).map(|port| (Protocol::Udp, port));
        assert!(known.into_iter().eq(all));
    }

    /// A kernel that refused was taken for one that has no such sockets, and nobody was told.
    #[test]
    fn what_the_kernel_has_not_told_may_be_at_every_port() {
        static TELLS: AtomicBool = AtomicBool::new(false);
        fn told<T: Default>() -> io::Result<T> {
            match TELLS.load(Ordering::Relaxed) {
                true => Ok(T::default()),
                false => Err(io::ErrorKind::Unsupported.into()),
            }
        }
        let begun = Instant::now();
        let mut known = [
            Hidden::by(told, || Ok(Others::default())),
            Hidden::by(|| Ok(Ports::default()), told),
        ];
        for hidden in &mut known {
            let ports = hidden.on_interval(begun);
            assert!(ports.every.iter().all(|one| one.taker() == "not_known"));
            assert_eq!(ports.every.len(), 2, "of UDP and TCP");
        }
        TELLS.store(true, Ordering::Relaxed);
        for hidden in &mut known {
            let told = (1..10_000).any(|look| {
                thread::sleep(Duration::from_millis(1));
                let ports = hidden.on_interval(begun + look * Duration::from_secs(1));
                ports == Ports::default()
            });
            assert!(told, "it is asked again");
        }
    }
}
