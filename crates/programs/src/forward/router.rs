//! A router from its start to its end.
//!
//! **Start.** Keepers are forked before anything is opened, so that a killed router's
//! settings come back. The mirror subscribes before programs are attached, and
//! interfaces are added to the table of targets when all are. User space is handed frames
//! once its threads run with their priorities. **End.** First the kernel gets all frames again.
//! User space works off what it was handed, for a while. Then settings are put back, its threads
//! end, and the programs are detached. After SIGKILL the kernel detaches them, and the keepers put
//! the settings back.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use plimsoll_kernel::error::with_causes;
use plimsoll_kernel::knobs::Keeper;
use plimsoll_kernel::routing::{Mirror, switches};
use plimsoll_kernel::{host, ipsec, link};
use plimsoll_stack::device::xdp;

use super::engine::Engine;
use super::error::Error;
use super::follow::Follower;
use super::passed_by::takes_redirected;
use super::program::{self, Constants, Instance, Interface, Shared};
use super::status::{InterfaceStatus, Status, UserStatus};
use super::table::{Port, ReversePath, Switches, Table};
use super::tables::Tables;
use super::{Config, DataPath, to_kernel};
use crate::filter::Filter;
use crate::polling::{Polling, Wanted};
use crate::sent::Sent;

/// Version of the status document.
const SCHEMA: u32 = 1;
/// How long user space may work off what it was handed. Beyond the CPU limit, and beside other
/// work, full rings take that long.
const END: Duration = Duration::from_millis(500);
const END_LOOK: Duration = Duration::from_millis(2);

/// A running router. Dropping it ends it.
#[derive(Debug)]
pub struct Router {
    path: DataPath,
    started: Instant,
    follower: Follower,
    polling: Option<Polling>,
    /// Before the programs: what arrives without it goes to the kernel.
    engine: Option<Engine>,
    sent: Sent,
    attached: Arc<Attached>,
    has_left: bool,
    /// Told last that all is restored.
    _keepers: Vec<Keeper>,
}

/// The XDP programs and what they know of the kernel's state.
#[derive(Debug)]
pub(super) struct Attached {
    shared: Shared,
    ports: Vec<AttachedPort>,
    /// As in [`Config`].
    path: DataPath,
    reverse_path: Option<ReversePath>,
    /// Why the kernel forwards for good instead, by its switches or policies.
    failure: OnceLock<String>,
    /// Interfaces that have gone since anybody asked.
    gone: Mutex<Vec<String>>,
}

#[derive(Debug)]
struct AttachedPort {
    name: String,
    index: u32,
    instance: Instance,
    is_gone: AtomicBool,
    /// Frames are sent on by it.
    is_offered: AtomicBool,
}

impl Router {
    /// Forks the keepers that put the interfaces' settings back if this process is
    /// killed; none if the router turns no settings. To be called before all else.
    ///
    /// # Errors
    ///
    /// The settings make no sense, or this process has other threads already.
    pub fn keepers(config: &Config) -> Result<Vec<Keeper>, Error> {
        config.validate()?;
        match config.turns_settings() {
            true => Ok(Keeper::start_all(&config.interfaces)?),
            false => Ok(Vec::new()),
        }
    }

    /// Starts to forward between the interfaces. Without keepers, settings of a killed
    /// router stay turned until `plimsoll guard restore`.
    ///
    /// # Errors
    ///
    /// The settings make no sense, this host lacks something, or the kernel refuses.
    /// Nothing is left changed then.
    pub fn start(config: &Config, keepers: Vec<Keeper>) -> Result<Self, Error> {
        config.validate()?;
        host::check_capabilities()?;
        host::check_btf()?;
        check_ipsec()?;
        // It tells of switches that are turned after they were read.
        let mirror = Mirror::open().map_err(Error::os("read the kernel's routes"))?;
        let ports = ports(config)?;
        let table = Table::new(ports.clone(), mirror.state());
        let protected = config.protected.as_deref().map(Filter::compile);
        let protected = protected.transpose()?;
        let constants = Constants {
            path: config.path,
            limits: config.limits,
            reverse_path_is_asked: config.reverse_path.is_some(),
            protected: protected.as_ref().map(Filter::instructions),
        };
        let attached = Arc::new(Attached::attach(config, &constants, &ports, &table)?);
        let indices: Vec<u32> = ports.iter().map(|port| port.interface).collect();
        let sent = Sent::watch(&indices)?;
        let mut tables = Tables::new(table);
        let engine = match config.path {
            DataPath::Xdp => None,
            DataPath::User => Some(Engine::start(config, &ports, tables.share(), &attached)?),
        };
        let threads = engine.as_ref().map(Engine::takers_and_deciders);
        let [takers, deciders] = threads.unwrap_or_default();
        let polling = config.turns_settings().then(|| {
            Polling::start(&Wanted {
                interfaces: &config.interfaces,
                takers: &takers,
                deciders: &deciders,
                cpu_limit: config.cpu_limit,
                cpu: config.cpu,
                any_driver: config.any_driver,
            })
        });
        let polling = polling.transpose()?;
        let follower = Follower::start(mirror, tables, Arc::clone(&attached))?;
        if let Some(engine) = &engine {
            engine.take_over(&attached)?;
            attached.check_way_to_kernel();
        }
        Ok(Self {
            path: config.path,
            started: Instant::now(),
            follower,
            polling,
            engine,
            sent,
            attached,
            has_left: false,
            _keepers: keepers,
        })
    }

    /// What it does less well than asked for, and why: the kernel does not poll in threads,
    /// or no meter corrects the CPU limit.
    #[must_use]
    pub fn problem(&self) -> Option<&str> {
        self.polling.as_ref().and_then(Polling::problem)
    }

    /// Why forwarding ended by itself, if it did: the kernel forwards now.
    #[must_use]
    pub fn failure(&self) -> Option<String> {
        let of_engine = self.engine.as_ref().and_then(Engine::failure);
        of_engine.or_else(|| self.attached.failure.get().cloned())
    }

    /// An interface that has gone, told once. One that takes its name is the kernel's.
    #[must_use]
    pub fn take_gone(&self) -> Option<String> {
        self.attached.gone.lock().pop()
    }

    /// What it did so far.
    ///
    /// # Errors
    ///
    /// Counters cannot be read.
    pub fn status(&self) -> Result<Status, Error> {
        let interface = |(place, port): (usize, &AttachedPort)| {
            // What was sent first: a frame that is counted as sent was forwarded.
            let tally = self.engine.as_ref().map(|engine| engine.tally(place));
            let sent = self.sent.of(port.index)?;
            let outcomes = port.instance.counts()?;
            Ok(InterfaceStatus {
                name: port.name.clone(),
                received: outcomes.total(),
                outcomes,
                transmitted: tally.map_or(sent, |tally| tally.transmitted),
                user: tally.map(|tally| UserStatus {
                    outcomes: tally.outcomes,
                    lost: tally.lost,
                    protected: tally.protected,
                }),
            })
        };
        let interfaces = self.attached.ports.iter().enumerate().map(interface);
        Ok(Status {
            schema: SCHEMA,
            path: self.path,
            uptime_s: self.started.elapsed().as_secs_f64(),
            interfaces: interfaces.collect::<Result<_, Error>>()?,
            failure: self.failure(),
            mirror: self.follower.counters(),
        })
    }

    /// Ends it, and says what it did. From now on the kernel forwards. What user space was handed
    /// it works off first, for half a second at most; then the rest is dropped and counted.
    ///
    /// # Errors
    ///
    /// Counters cannot be read.
    pub fn end(mut self) -> Result<Status, Error> {
        self.leave();
        self.status()
    }

    /// Once: what did not leave in time is not waited for again.
    fn leave(&mut self) {
        if std::mem::replace(&mut self.has_left, true) {
            return;
        }
        let end = Instant::now() + END;
        if self.engine.as_ref().is_some_and(Engine::is_running) {
            self.attached.leave_to_kernel();
            xdp::wait_for_deliveries();
            let is_done = || self.status().map_or(true, |status| status.is_worked_off());
            wait_until(end, is_done);
        }
        self.polling = None;
        if let Some(engine) = &mut self.engine {
            engine.stop();
            wait_until(end, || !engine.is_sending());
        }
    }
}

impl Drop for Router {
    fn drop(&mut self) {
        self.leave();
    }
}

fn wait_until(end: Instant, is_done: impl Fn() -> bool) {
    while !is_done() && Instant::now() < end {
        thread::sleep(END_LOOK);
    }
}

/// The interfaces as the kernel has them now.
fn ports(config: &Config) -> Result<Vec<Port>, Error> {
    let mut ports = Vec::new();
    for name in &config.interfaces {
        let index = link::index(name)?;
        let state = link::link(index).map_err(Error::os("ask about an interface"))?;
        let station = state.mac.ok_or_else(|| Error::NoEthernet {
            interface: name.clone(),
        })?;
        ports.push(Port {
            interface: index,
            station,
            mtu: state.mtu.unwrap_or(0) as usize,
            is_running: state.up,
            switches: switches_of(name, config.reverse_path),
        });
    }
    let forwards = |port: &Port| port.switches.forwards_v4 || port.switches.forwards_v6;
    if ports.iter().any(forwards) {
        return Ok(ports);
    }
    Err(Error::NoRouter {
        interfaces: config.interfaces.join(", "),
    })
}

/// What the kernel's switches of an interface say now. Sources are looked at as asked, or as
/// the kernel does: it has a switch for those of IPv4 alone.
fn switches_of(interface: &str, asked: Option<ReversePath>) -> Switches {
    let (forwards_v4, forwards_v6) = switches::forwards(interface);
    let of_kernel = || match switches::rp_filter(interface) {
        0 => ReversePath::Off,
        1 => ReversePath::Strict,
        _ => ReversePath::Loose,
    };
    Switches {
        reverse_path_v4: asked.unwrap_or_else(of_kernel),
        reverse_path_v6: asked.unwrap_or_default(),
        forwards_v4,
        forwards_v6,
    }
}

/// Whether packets may be forwarded past the kernel's IPsec.
fn check_ipsec() -> Result<(), Error> {
    let policies = ipsec::policies().map_err(Error::os("look for IPsec policies"))?;
    match policies.is_empty() {
        true => Ok(()),
        false => Err(Error::Ipsec { policies }),
    }
}

impl Attached {
    fn attach(
        config: &Config,
        constants: &Constants<'_>,
        ports: &[Port],
        table: &Table,
    ) -> Result<Self, Error> {
        let mut attached: Vec<AttachedPort> = Vec::new();
        let mut shared: Option<Shared> = None;
        for (name, port) in config.interfaces.iter().zip(ports) {
            let interface = Interface {
                name,
                index: port.interface,
                station: port.station,
                switches: port.switches,
            };
            let (instance, made) = program::attach(&interface, constants, shared.as_ref())?;
            shared = shared.or(made);
            attached.push(AttachedPort {
                name: name.clone(),
                index: port.interface,
                instance,
                is_gone: AtomicBool::new(false),
                is_offered: AtomicBool::new(false),
            });
        }
        let shared = shared.ok_or_else(|| Error::usage("a router has interfaces"))?;
        let attached = Self {
            shared,
            ports: attached,
            path: config.path,
            reverse_path: config.reverse_path,
            failure: OnceLock::new(),
            gone: Mutex::default(),
        };
        attached.take(table)?;
        // Until now all frames went to the kernel.
        attached.offer_devices()?;
        Ok(attached)
    }

    /// The driver sends on by the interfaces that take its frames. By others, which would lose them
    /// without a word, the kernel forwards.
    pub(super) fn offer_devices(&self) -> Result<(), Error> {
        if self.path == DataPath::User || self.failure.get().is_some() {
            return Ok(());
        }
        for port in &self.ports {
            let takes = takes_redirected(port.index);
            if port.is_offered.swap(takes, Ordering::Relaxed) == takes {
                continue;
            }
            match takes {
                true => self.shared.add_device(port.index)?,
                false => self.shared.remove_device(port.index),
            }
        }
        Ok(())
    }

    /// Forwarding here is over, and the kernel forwards.
    pub(super) fn leave_to_kernel(&self) {
        for port in &self.ports {
            match self.path {
                DataPath::Xdp => self.shared.remove_device(port.index),
                DataPath::User => port.instance.release_sockets(),
            }
        }
    }

    /// Ends forwarding in user space if the kernel would drop what it hands over.
    pub(super) fn check_way_to_kernel(&self) {
        if self.path == DataPath::User {
            self.end_by(to_kernel::check());
        }
    }

    /// Ends forwarding if there are IPsec policies now. Whether there are may not be known for a
    /// moment.
    pub(super) fn check_ipsec(&self) {
        if let Err(error @ Error::Ipsec { .. }) = check_ipsec() {
            self.end_by(Err(error));
        }
    }

    fn end_by(&self, checked: Result<(), Error>) {
        if let Err(error) = checked {
            self.leave_to_kernel();
            self.failure.get_or_init(|| with_causes(&error));
        }
    }

    /// The program of the port in this place.
    pub(super) fn instance(&self, port: usize) -> &Instance {
        &self.ports[port].instance
    }

    /// What the kernel's switches of the ports say now, by the names that they have now; nothing
    /// comes in by one that is gone.
    pub(super) fn switches(&self) -> Vec<Switches> {
        let of_port = |port: &AttachedPort| {
            let name = link::name(port.index);
            if name.is_none() {
                self.note_gone(port);
            }
            Some(switches_of(&name?, self.reverse_path))
        };
        let ports = self.ports.iter().map(of_port);
        ports.map(Option::unwrap_or_default).collect()
    }

    fn note_gone(&self, port: &AttachedPort) {
        if !port.is_gone.swap(true, Ordering::Relaxed) {
            self.gone.lock().push(port.name.clone());
        }
    }

    /// Takes over prefixes, Ethernet addresses and switches.
    pub(super) fn take(&self, table: &Table) -> Result<(), Error> {
        self.shared.set_prefixes(table.prefixes())?;
        let asks_for_kernel = table.has_kernel_routes();
        for (attached, port) in self.ports.iter().zip(table.ports()) {
            attached
                .instance
                .set(port.station, &port.switches, asks_for_kernel)?;
        }
        Ok(())
    }
}
