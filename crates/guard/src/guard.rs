//! The guard of one interface, from attachment to detachment.

use std::collections::{BTreeSet, HashMap};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use libbpf_rs::Link;
use plimsoll_core::charge::shedding::SheddingConfig;
use plimsoll_core::config::ConfigError;
use plimsoll_core::demux::Kind;
use plimsoll_core::feedback::SocketWatermarks;

use crate::address::local_addresses;
use crate::charges::Charges;
use crate::company::Reading;
use crate::cookies::Cookies;
use crate::counters::{self, Channel, Counters, Packets};
use crate::error::Error;
use crate::hidden::{Hidden, Ports, Taker, Unguarded};
use crate::looks::Looks;
pub use crate::program::Storage;
use crate::program::types::{answering, limit};
use crate::program::{Program, Seated, SourcesReader};
use crate::protection::Protection;
use crate::regulator::Regulator;
use crate::syn_cookies::SynCookies;
use crate::tracking::Tracking;
pub use config::Config;
use plimsoll_kernel::counters::stack;
use plimsoll_kernel::error::bpf;
use plimsoll_kernel::host;
use plimsoll_kernel::meter::{CpuReading, InstanceReading};

use attachment::Attachment;

mod attachment;
mod config;

/// Sockets above which idle ones are forgotten: half of the map's limit.
const SLOTS_CROWDED: usize = limit::CHANNELS_MAX.0 as usize / 2;
/// A channel without a packet for this many seconds is idle.
const CHANNEL_IDLE_EPOCHS: u32 = 60;

/// What was seen while regulating. All counts are since the start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Regulated {
    /// When.
    pub at: Instant,
    /// What the CPUs did.
    pub readings: Vec<CpuReading>,
    /// Those that others want.
    pub wanted: Vec<u32>,
    /// Whether their time was metered since the regulating before. Frames and polling
    /// runs are counted always.
    pub is_metered: bool,
    /// Packets discarded early.
    pub discarded: u64,
    /// UDP and TCP packets for which no socket was found, whatever became of them.
    pub closed_ports: u64,
}

/// What a socket has by its owner.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Owned {
    /// Sockets of a group have a share together.
    pub(crate) group: Option<u64>,
    pub(crate) is_protected: bool,
}

impl Regulated {
    /// Where there is nothing to regulate.
    pub(crate) fn nothing() -> Self {
        Self {
            at: Instant::now(),
            readings: Vec::new(),
            wanted: Vec::new(),
            is_metered: false,
            discarded: 0,
            closed_ports: 0,
        }
    }
}

/// A loaded program; attached or, for tests and dry runs, not.
#[derive(Debug)]
pub struct Guard<'obj> {
    // Detached first, before the program's maps go.
    attachment: Attachment,
    /// Tells the program what the stack refuses.
    refusals: Option<Link>,
    pub(crate) program: Program<'obj>,
    /// Only with an interface: without traffic there is nothing to regulate.
    regulator: Option<Regulator>,
    /// Only with an interface: who answers SYNs past a listener's queue.
    cookies: Option<Cookies>,
    /// IP protocols that tunnels of this host take, a bit for each.
    tunnels: Option<Looks<u64>>,
    /// Whether threads of the kernel poll the interface all the time.
    busy_polling: Option<Looks<bool>>,
    /// Only with an interface: ports at which the program may find the wrong socket.
    hidden: Option<Hidden>,
    /// Of which protocols all ports may be such.
    unguarded: BTreeSet<Unguarded>,
    pub(crate) tracking: Tracking,
    charges: Charges,
    /// Packets without a socket when packet readers were last looked for.
    closed_ports: u64,
    pub(crate) config: Config,
    interface: Option<String>,
    /// Whose packets had come when this was last asked.
    pub(crate) company: Option<Reading>,
    /// What passed whatever its outcome, up to when observing was last left.
    observed: Packets,
    /// All packets when observing was last begun.
    observing_since: Packets,
    started: Instant,
}

impl<'obj> Guard<'obj> {
    /// Loads the program without attaching it.
    ///
    /// # Errors
    ///
    /// Names what this host lacks, the bad setting, or libbpf's answer.
    pub fn load(storage: &'obj mut Storage, config: &Config) -> Result<Self, Error> {
        let cpus = libbpf_rs::num_possible_cpus().map_err(bpf("count CPUs"))?;
        Self::load_for(storage, config, u32::try_from(cpus).unwrap_or(u32::MAX))
    }

    /// The same for a host that could have so many CPUs.
    pub(crate) fn load_for(
        storage: &'obj mut Storage,
        config: &Config,
        cpus: u32,
    ) -> Result<Self, Error> {
        config.validate()?;
        host::check()?;
        // libbpf would print to standard error; its answer is in our errors.
        libbpf_rs::set_print(None);
        let program = Program::load(storage, host::numa_nodes(), cpus)?;
        let tracking = Tracking::of(program.asks_tracking());
        let mut guard = Self {
            attachment: Attachment::default(),
            refusals: None,
            program,
            regulator: None,
            cookies: None,
            tunnels: None,
            busy_polling: None,
            hidden: None,
            unguarded: BTreeSet::new(),
            interface: None,
            company: None,
            tracking,
            charges: Charges::default(),
            closed_ports: 0,
            config: *config,
            observed: Packets::default(),
            observing_since: Packets::default(),
            started: Instant::now(),
        };
        guard.protect(&Protection::default())?;
        guard.configure(config)?;
        guard.refresh()?;
        guard.program.beat();
        Ok(guard)
    }

    /// Loads the program and attaches it to `interface` of the current network
    /// namespace, in native mode only.
    ///
    /// # Errors
    ///
    /// As [`Guard::load`]; no such interface; no native XDP; another program
    /// is attached.
    pub fn attach(
        storage: &'obj mut Storage,
        config: &Config,
        interface: &str,
    ) -> Result<Self, Error> {
        Self::attach_after(None, storage, config, interface)
    }

    /// As [`Guard::attach`], in the place of a guard that handed its link on: its
    /// program is replaced by this one without a gap. What is no such link is closed.
    ///
    /// # Errors
    ///
    /// As [`Guard::attach`].
    pub fn attach_after(
        before: Option<OwnedFd>,
        storage: &'obj mut Storage,
        config: &Config,
        interface: &str,
    ) -> Result<Self, Error> {
        let mut guard = Self::load(storage, config)?;
        guard.prepare(before, interface)?;
        guard.attach_now()?;
        Ok(guard)
    }

    /// Changes the settings of the running program.
    ///
    /// # Errors
    ///
    /// A setting is out of range, and the old ones stay; or the counters cannot be read.
    pub fn configure(&mut self, config: &Config) -> Result<(), Error> {
        config.validate()?;
        self.program.set_fairness(config.fairness);
        self.program.set_observing(config.observe);
        if config.observe != self.config.observe {
            let all = counters::sum(self.program.totals()?.iter());
            self.observed = self.observed(&all);
            self.observing_since = all;
        }
        self.config = *config;
        let marks = SocketWatermarks::new(config.high_watermark, config.low_watermark);
        self.program.set_watermarks(&marks);
        self.program
            .set_delay_targets(config.delay_target.is_some());
        self.begin_shedding_anew()?;
        // Done again once a second, where a failure is told.
        let _ = self.refresh_cookies();
        Ok(())
    }

    /// Nothing is shed until receiving has taken too much again.
    fn begin_shedding_anew(&mut self) -> Result<(), ConfigError> {
        if let Some(regulator) = &mut self.regulator {
            let shedding = SheddingConfig {
                limit: self.config.cpu_limit,
                guarantee: self.config.protected_share,
                ..SheddingConfig::DEFAULT
            };
            regulator.configure(shedding, self.config.delay_target)?;
            self.program.set_shares(None);
        }
        Ok(())
    }

    /// Unattached, there is no link that an answer could be sent back to.
    fn refresh_cookies(&mut self) -> Result<(), Error> {
        let is_attached = self.is_attached();
        if let Some(cookies) = &mut self.cookies {
            let wanted = self.config.syn_cookies;
            return cookies.on_interval(&mut self.program, wanted, is_attached);
        }
        let is_taken = host::takes_syn_cookies();
        self.program.set_answering(if is_taken {
            answering::ANSWERING_STACK
        } else {
            answering::ANSWERING_NOBODY
        });
        Ok(())
    }

    /// Who answers SYNs past a listener's SYN queue, and why; `None` unless attached.
    #[must_use]
    pub fn syn_cookies(&self) -> Option<SynCookies> {
        let cookies = self.cookies.as_ref().filter(|_| self.is_attached());
        cookies.and_then(Cookies::decided)
    }

    /// The protocols of which no socket is guarded, as the last [`Self::refresh`] found: UDP queues
    /// and listeners take what comes, as without the guard.
    #[must_use]
    pub fn unguarded(&self) -> &BTreeSet<Unguarded> {
        &self.unguarded
    }

    /// Call once a second: lets the program's clock tick and takes over
    /// changes of the host's addresses, of its SYN cookie setting and of who
    /// reads packets. Without [`Self::regulate`] the program answers no SYN after two seconds.
    ///
    /// # Errors
    ///
    /// The addresses cannot be read or stored.
    pub fn refresh(&mut self) -> Result<(), Error> {
        self.program.set_epoch(self.epoch());
        // What fails keeps nothing else from being taken over.
        let cookies = self.refresh_cookies();
        if let Some(tunnels) = &mut self.tunnels {
            self.program
                .set_tunnels(tunnels.on_interval(Instant::now()));
        }
        let hidden = self.refresh_hidden();
        let shedding = self.refresh_polling();
        self.program.set_tracking(host::tracks_connections());
        self.program.set_steered(stack::has_steered());
        self.spare_packet_readers();
        let addresses = local_addresses(self.interface.as_deref());
        let addresses = addresses.and_then(|known| self.program.set_local_addresses(&known));
        cookies.and(hidden).and(shedding).and(addresses)
    }

    fn refresh_polling(&mut self) -> Result<(), Error> {
        let looks = self.busy_polling.as_mut();
        let is_polled_busily = looks.is_some_and(|looks| looks.on_interval(Instant::now()));
        let regulator = self.regulator.as_mut();
        if regulator.is_some_and(|regulator| regulator.set_polled_busily(is_polled_busily)) {
            self.begin_shedding_anew()?;
        }
        Ok(())
    }

    /// Whether a thread of the kernel polls the interface all the time, as the last
    /// [`Self::refresh`] found: no CPU time is metered then.
    pub(crate) fn is_polled_busily(&self) -> bool {
        let regulator = self.regulator.as_ref();
        regulator.is_some_and(Regulator::is_polled_busily)
    }

    fn refresh_hidden(&mut self) -> Result<(), Error> {
        let mut ports = Ports::default();
        if let Some(hidden) = &mut self.hidden {
            ports = hidden.on_interval(Instant::now());
            self.program.set_receiving(hidden.receiving());
            self.program.set_ethernet(hidden.ethernet());
        }
        if self.config.trust_tc {
            ports.trust_programs();
        }
        if self.tracking.is_missed(host::translates) {
            ports.add_all(Taker::Translation);
        }
        let told = self.program.set_hidden(&ports);
        self.unguarded = ports.every;
        told
    }

    /// Call every 10 to 50 ms. Tells the program that it is governed; after two
    /// seconds without, it discards only what a socket's own queue cannot take.
    /// Sheds input by shares while receiving takes more of a CPU than it may, and
    /// keeps queues to the delay target. Returns what a
    /// [`Governor`](crate::governor::Governor) wants to know; nothing unless attached.
    ///
    /// # Errors
    ///
    /// The meter or the program's maps cannot be read; nothing is shed until they can.
    pub fn regulate(&mut self) -> Result<Regulated, Error> {
        self.program.beat();
        let is_attached = self.is_attached();
        let Some(regulator) = &mut self.regulator else {
            return Ok(Regulated::nothing());
        };
        if !is_attached {
            return Ok(regulator.stand_by());
        }
        let regulated = regulator.on_interval(&mut self.program);
        if let Ok(seen) = &regulated
            && seen.closed_ports != self.closed_ports
        {
            self.closed_ports = seen.closed_ports;
            self.spare_packet_readers();
        }
        if regulated.is_err() {
            // Shares that nobody adapts any more would hold a calm host back.
            self.begin_shedding_anew()?;
        }
        regulated
    }

    /// Call after [`Guard::regulate`], when the governor has decided, with whether it sees
    /// or suspects overload. From then on CPU time is metered only while it may matter,
    /// which costs a calm host less. Without this call it is always metered.
    pub fn attend(&mut self, is_strained: bool) {
        if let Some(regulator) = &mut self.regulator {
            regulator.attend(is_strained);
        }
    }

    /// The same while no program is attached. Unless CPU time needs to be metered, the meter is not
    /// attached, either.
    pub(crate) fn watch(&mut self, needs_meter: bool) -> Result<(), Error> {
        let regulator = self.regulator.as_mut();
        regulator.map_or(Ok(()), |regulator| regulator.watch(needs_meter))
    }

    /// Whether load has just risen: regulate again soon.
    #[must_use]
    pub fn is_alarmed(&self) -> bool {
        self.regulator.as_ref().is_some_and(Regulator::is_alarmed)
    }

    /// Closed ports are not capped while somebody reads packets beside the stack, and a few packets for
    /// full sockets pass. A capture that has just begun must not miss those of closed ports for long, so
    /// it is looked for whenever such packets came.
    fn spare_packet_readers(&mut self) {
        self.program.set_readers(host::has_packet_readers());
    }

    /// Takes over what the interface is called now. Whether that is another name than before.
    pub(crate) fn rename(&mut self, name: &str) -> bool {
        let name = Some(name.to_owned());
        self.interface.is_some() && self.interface != name && {
            self.interface = name;
            true
        }
    }

    /// What each NAPI instance has brought; none unless attached.
    pub(crate) fn instances(&self) -> Vec<InstanceReading> {
        let regulator = self.regulator.iter();
        regulator.flat_map(Regulator::instances).collect()
    }

    /// Whether input is being shed by shares.
    #[must_use]
    pub fn is_shedding(&self) -> bool {
        self.regulator.as_ref().is_some_and(Regulator::is_shedding)
    }

    /// Makes `protection` what is protected, instead of what was.
    ///
    /// # Errors
    ///
    /// There are more prefixes than fit, or the kernel refuses; what was protected stays.
    pub fn protect(&mut self, protection: &Protection) -> Result<(), Error> {
        protection.validate()?;
        self.program.set_protection(protection)
    }

    /// Takes whose sockets are: the group whose share each has (`None`: one of their own), and
    /// whether it is protected. That changes as sockets come and go: call it again after a
    /// while.
    pub(crate) fn assign(&mut self, owned: impl IntoIterator<Item = (Seated, Owned)>) {
        let mut groups = HashMap::new();
        for (socket, owned) in owned {
            if self.program.set_protected(&socket, owned.is_protected) {
                groups.extend(owned.group.map(|group| (socket.slot, group)));
            }
        }
        if let Some(regulator) = &mut self.regulator {
            regulator.set_groups(groups);
        }
    }

    /// Reads all counters. Forgets idle channels when there are too many. Of sources, only
    /// their packets: see [`Guard::sources`].
    ///
    /// # Errors
    ///
    /// The maps cannot be read.
    pub fn counters(&mut self) -> Result<Counters, Error> {
        let idle_before = self.epoch().saturating_sub(CHANNEL_IDLE_EPOCHS);
        let channels = self.channels(idle_before)?;
        // After the channels, so that no channel holds more than its total.
        let totals = self.program.totals()?;
        let mut counters = Counters {
            totals,
            channels,
            charged_ns: [0; Kind::ALL.len()],
            known_sources: 0,
            unseen: self.attachment.unseen(),
        };
        if let Some(regulator) = &self.regulator {
            let (network_ns, costs) = regulator.network_time()?;
            self.charges.on_reading(&mut counters, network_ns, costs);
        }
        Ok(counters)
    }

    /// Who sends to the channels of the last reading, for whoever has the time to look.
    pub fn sources(&mut self) -> SourcesReader {
        self.program.sources()
    }

    /// The live channels. Forgets sockets idle since before an epoch when there are
    /// too many; that these may share one address is no matter.
    pub(crate) fn channels(&mut self, idle_before: u32) -> Result<Vec<Channel>, Error> {
        let (channels, idle) = self.program.channels(idle_before);
        if self.program.used_slots() > SLOTS_CROWDED {
            self.program.forget(&idle)?;
        }
        Ok(channels)
    }

    /// Of `all` packets, those that passed whatever their outcome, because it
    /// was only observed then. Where settings change under traffic, a packet
    /// may be on the wrong side.
    #[must_use]
    pub fn observed(&self, all: &Packets) -> Packets {
        let mut observed = self.observed;
        if self.config.observe {
            observed.add_all(&all.saturating_sub(&self.observing_since));
        }
        observed
    }

    /// Runs the program on one frame `repeat` times (the kernel's test-run
    /// facility): whether it admits the frame, and the mean time of a run. The
    /// sockets are those of the current network namespace. Counts like real
    /// traffic.
    ///
    /// # Errors
    ///
    /// The kernel refuses the frame, for instance one shorter than an Ethernet
    /// header.
    pub fn test_run(&mut self, frame: &[u8], repeat: u32) -> Result<(bool, Duration), Error> {
        self.program.test_run(frame, repeat)
    }

    /// The program's descriptor, for other programs that call it.
    #[must_use]
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.program.fd()
    }

    /// Runs the program on one frame, as [`Guard::test_run`] does: the frame that it
    /// would send back, if any.
    ///
    /// # Errors
    ///
    /// As [`Guard::test_run`].
    pub fn answer_to(&mut self, frame: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        self.program.answer_to(frame)
    }

    /// The same once, for a frame of which only the first `linear` bytes, at least
    /// 14, are in one piece, as adapters with several buffers may deliver it.
    /// Whether the program admits it.
    ///
    /// # Errors
    ///
    /// The kernel refuses: before Linux 6.18 it cannot do this.
    pub fn test_run_in_parts(&mut self, frame: &[u8], linear: u32) -> Result<bool, Error> {
        self.program.test_run_in_parts(frame, linear)
    }

    /// Seconds since the start, counted from 1 so that 0 means never.
    fn epoch(&self) -> u32 {
        u32::try_from(self.started.elapsed().as_secs()).map_or(u32::MAX, |s| s.saturating_add(1))
    }
}
