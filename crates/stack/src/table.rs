//! Who gets which frame: `core::demux` joined with the channels it names.
//!
//! The receiving thread holds the table for a turn of some frames, sockets for
//! as long as it takes to bind or close. Whoever waits for it is let in between
//! turns, also under overload (see `receive`).

mod endpoints;
mod group;
mod slot;
mod taken;

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use plimsoll_core::channel::{self, Admission, ChannelPool, PooledConsumer};
use plimsoll_core::demux::{
    ChannelId, Channels, Classified, Demand, Demux, DemuxConfig, EndpointError, Kind, Seed,
};
use plimsoll_core::time::Instant;

use self::group::Groups;
use self::slot::Slot;
pub(crate) use self::slot::{Arrived, Bound, Pending, Ready};
use self::taken::Taken;
use crate::account::{Account, Charged, Owner};
use crate::config::StackConfig;
use crate::device::{Frame, Mac, Readers};
use crate::error::Error;
use crate::link::membership;
use crate::outcome::{Outcome, Tally};
use crate::random::secret;
use crate::receive::ahead::Notes;
use crate::tcp::Known;
use crate::wait::Waker;
use crate::wire::packet;

/// The special channels, in the order of their ids.
const FRAGMENT: ChannelId = ChannelId(0);
const NEIGHBOUR: ChannelId = ChannelId(1);
const ICMP: ChannelId = ChannelId(2);
const CLOSED_PORT: ChannelId = ChannelId(3);
pub(crate) const TIME_WAIT: ChannelId = ChannelId(4);
/// Where packets are forwarded.
const FORWARD: ChannelId = ChannelId(5);
/// Channels that the stack itself uses, at most.
pub(crate) const SPECIAL: usize = 6;
/// One of so many parts of a listener's channel is not for SYNs of strangers: what ends a handshake, and SYNs of
/// known sources, find room beside a flood.
const PLACES_OF_OTHERS: usize = 5;
/// Frames of these kinds end at the demultiplexer.
const NOBODY: ChannelId = ChannelId(u32::MAX);

/// What a channel is for.
#[derive(Clone, Copy, Debug)]
enum Place {
    Connection,
    /// A socket, a listener, or what is nobody's. The TCP thread works off what is `tcp`.
    Socket {
        tcp: bool,
    },
}

/// The proxies' channels, each with what wakes who works on it.
#[derive(Debug)]
pub(crate) struct ProxyChannels {
    pub(crate) neighbour: Bound,
    pub(crate) icmp: Bound,
    pub(crate) closed_port: Bound,
    pub(crate) forward: Option<Bound>,
}

/// The demultiplexer and the channels' producers.
#[derive(Debug)]
pub(crate) struct Table {
    demux: Demux,
    mac: Mac,
    pool: ChannelPool<Arrived>,
    tcp_pool: ChannelPool<Arrived>,
    slots: Vec<Option<Slot>>,
    free: Vec<u32>,
    groups: Groups,
    /// Where connected UDP sockets were bound, of which the demultiplexer knows nothing any more.
    held: HashMap<ChannelId, SocketAddr>,
    /// Whose SYNs may pass where others' are discarded.
    known: Option<Arc<Known>>,
    /// Channels that the TCP thread has to look at.
    ready: Arc<Ready>,
    /// What is taken of what UDP sockets get.
    taken: Arc<Taken>,
    /// Where it is noted what waits for no call.
    notes: Option<Arc<Notes>>,
    /// Channels that were pushed to in this turn.
    touched: Vec<ChannelId>,
    /// A channel's high watermark.
    high: usize,
    fragment: Option<PooledConsumer<Arrived>>,
    time_wait: Option<PooledConsumer<Arrived>>,
}

impl Table {
    pub(crate) fn new(config: &StackConfig, mac: Mac) -> Result<(Self, ProxyChannels), Error> {
        let forwards = config.proxies.forward.is_some();
        let channels = Channels {
            fragment: FRAGMENT,
            multicast: NOBODY,
            time_wait: TIME_WAIT,
            icmp: ICMP,
            neighbour: NEIGHBOUR,
            forward: if forwards { FORWARD } else { NOBODY },
            closed_port: CLOSED_PORT,
            other: NOBODY,
            malformed: NOBODY,
        };
        let tcp = &config.tcp;
        let demux = DemuxConfig::new(channels);
        let sockets_max = config.channels_max as usize;
        let demux = DemuxConfig {
            sockets_max,
            udp_connections_max: sockets_max,
            tcp_connections_max: tcp.connections_max as usize,
            // A socket may be in several.
            groups_max: demux.groups_max.max(sockets_max),
            ..demux
        };
        let demux = Demux::new(&demux, Seed([secret()?, secret()?]))?;
        let special = u32::try_from(SPECIAL).unwrap_or(u32::MAX);
        let count = config.channels_max.saturating_add(special);
        let all = (count + tcp.connections_max) as usize;
        let ready = Ready::new(all);
        let mut table = Self {
            demux,
            mac,
            pool: ChannelPool::new(&config.channel, count)?,
            tcp_pool: ChannelPool::new(&tcp.channel(), tcp.connections_max)?,
            slots: Vec::with_capacity(all),
            free: Vec::with_capacity(all),
            groups: Groups::default(),
            held: HashMap::new(),
            known: Known::new(tcp.syn_cookies_per_s)?.map(Arc::new),
            ready: Arc::new(ready.map_err(Error::io("make an event descriptor"))?),
            taken: Arc::default(),
            notes: None,
            touched: Vec::with_capacity(all),
            high: config.channel.high_watermark as usize,
            fragment: None,
            time_wait: None,
        };
        let proxies = table.make_special(forwards)?;
        Ok((table, proxies))
    }

    /// Takes the special channels, in the order of their ids.
    fn make_special(&mut self, forwards: bool) -> Result<ProxyChannels, Error> {
        let mut make = |tcp| {
            let waker = Waker::new().map_err(Error::io("make an event descriptor"))?;
            let bound = self.create(&Arc::new(waker), Place::Socket { tcp }, None);
            bound.map_err(Error::io("make a channel"))
        };
        let (fragment, neighbour) = (make(false)?, make(false)?);
        let (icmp, closed_port) = (make(false)?, make(false)?);
        let time_wait = make(true)?;
        let forward = forwards.then(|| make(false)).transpose()?;
        self.fragment = Some(fragment.consumer);
        self.time_wait = Some(time_wait.consumer);
        Ok(ProxyChannels {
            neighbour,
            icmp,
            closed_port,
            forward,
        })
    }

    /// The consumer of early fragments; once.
    pub(crate) fn take_fragment_channel(&mut self) -> PooledConsumer<Arrived> {
        let Some(consumer) = self.fragment.take() else {
            unreachable!("made with the table and taken once")
        };
        consumer
    }

    /// The consumer of late packets of connections in `TIME_WAIT`; once.
    pub(crate) fn take_time_wait_channel(&mut self) -> PooledConsumer<Arrived> {
        let Some(consumer) = self.time_wait.take() else {
            unreachable!("made with the table and taken once")
        };
        consumer
    }

    /// Arrivals that no receiving call waits for are to be noted there.
    pub(crate) fn note_for(&mut self, notes: &Arc<Notes>) {
        self.notes = Some(Arc::clone(notes));
    }

    /// The list of what the TCP thread has to look at.
    pub(crate) fn ready(&self) -> &Arc<Ready> {
        &self.ready
    }

    /// Who takes what UDP sockets get.
    pub(crate) fn readers(&self) -> Arc<dyn Readers> {
        Arc::clone(&self.taken) as Arc<dyn Readers>
    }

    /// What is taken off the channel is what is taken of its endpoint's.
    fn read_by(&self, channel: ChannelId, bound: SocketAddr) {
        if let Some(slot) = self.slot(channel) {
            self.taken.add(channel, bound, slot.monitor.clone());
        }
    }

    pub(crate) fn known(&self) -> Option<&Arc<Known>> {
        self.known.as_ref()
    }

    pub(crate) fn add_address(&mut self, address: IpAddr) -> Result<(), Error> {
        let added = self.demux.add_local_address(address);
        added.map_err(|error| unfit("addresses", address, &error))
    }

    pub(crate) fn add_broadcast(&mut self, address: Ipv4Addr) -> Result<(), Error> {
        let added = self.demux.add_broadcast_address(address);
        added.map_err(|error| unfit("addresses", address.into(), &error))
    }

    /// Makes a channel; nothing leads to it yet.
    fn create(
        &mut self,
        waker: &Arc<Waker>,
        place: Place,
        account: Option<&Arc<Account>>,
    ) -> io::Result<Bound> {
        let (pool, setting, tcp) = match place {
            Place::Connection => (&mut self.tcp_pool, "tcp.connections_max", true),
            Place::Socket { tcp } => (&mut self.pool, "channels_max", tcp),
        };
        let (producer, consumer) = pool.create().ok_or_else(|| {
            let why = format!("all channels are in use: raise `{setting}` of the stack's config");
            io::Error::new(io::ErrorKind::OutOfMemory, why)
        })?;
        let (inhibiting, trouble) = (Arc::default(), Arc::<Pending>::default());
        let monitor = producer.monitor();
        let slot = Slot {
            producer,
            waker: Arc::clone(waker),
            inhibiting: Arc::clone(&inhibiting),
            trouble: Arc::clone(&trouble),
            touched: false,
            takes_known: false,
            tcp,
            account: account.cloned(),
            before: monitor.counts(),
            monitor,
        };
        let place = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            (self.slots.len() - 1) as u32
        });
        self.slots[place as usize] = Some(slot);
        Ok(Bound {
            channel: ChannelId(place),
            consumer,
            waker: Arc::clone(waker),
            inhibiting,
            trouble,
        })
    }

    fn remove(&mut self, channel: ChannelId) {
        self.taken.remove(channel);
        let slot = self.slots.get_mut(channel.0 as usize);
        if let Some(slot) = slot.and_then(Option::take) {
            if let Some(account) = &slot.account {
                account.add_channel(slot.counts().closed());
            }
            self.free.push(channel.0);
        }
    }

    /// The receiving thread ends: every consumer learns it.
    pub(crate) fn close_all(&mut self) {
        for slot in self.slots.iter_mut().flatten() {
            let _ = slot.producer.close();
            slot.waker.wake();
        }
    }

    /// Early demultiplexing: whose is it? `None`: it ends here, counted.
    #[inline]
    pub(crate) fn classify(
        &mut self,
        frame: &Frame,
        tally: &Tally,
        now: Instant,
    ) -> Option<Classified> {
        if !packet::is_for(frame, self.mac) {
            let short = frame.len() < crate::wire::ETHERNET_BYTES;
            tally.count(if short {
                Outcome::Malformed
            } else {
                Outcome::OtherMac
            });
            return None;
        }
        let mut classified = self.demux.classify(frame, now);
        if let Some(outcome) = self.refusal(&classified, frame, now) {
            let account = self.account(classified.channel);
            let tally = account.map_or(tally, |account| &account.at_demultiplexer);
            tally.count(outcome);
            return None;
        }
        if matches!(classified.kind, Kind::Other | Kind::Icmp) && membership::is_query(frame) {
            // A flood of pings, say, must not cost the memberships.
            classified.channel = NEIGHBOUR;
        }
        if classified.channel == NOBODY {
            tally.count(outcome_of(classified.kind));
            return None;
        }
        classified.channel = self.groups.member(classified.channel, frame);
        Some(classified)
    }

    /// Why a SYN is not let to its listener, if it is not.
    fn refusal(&self, classified: &Classified, frame: &Frame, now: Instant) -> Option<Outcome> {
        let listener = || self.slot(classified.channel);
        let known = |pass: fn(&Known, IpAddr, Instant) -> bool| {
            let source = packet::parse(frame).map(|packet| packet.source);
            let known = self.known.as_ref().zip(source.ok());
            known.is_some_and(|(known, source)| pass(known, source, now))
        };
        match classified.demand {
            Demand::Known => None,
            Demand::New => {
                let most = (self.high * (PLACES_OF_OTHERS - 1)).div_ceil(PLACES_OF_OTHERS);
                let is_full = listener().is_some_and(|slot| slot.producer.occupancy() >= most);
                (is_full && !known(Known::has)).then_some(Outcome::Full)
            }
            Demand::Excess => {
                let passes =
                    listener().is_some_and(|slot| slot.takes_known) && known(Known::lets_pass);
                (!passes).then_some(Outcome::Backlog)
            }
        }
    }

    /// Whether the next push would be discarded; it may fit by then.
    #[inline]
    pub(crate) fn is_full(&self, channel: ChannelId) -> bool {
        self.slot(channel).is_some_and(|slot| {
            slot.producer.is_discarding() || slot.producer.occupancy() >= self.high
        })
    }

    fn slot(&self, channel: ChannelId) -> Option<&Slot> {
        self.slots.get(channel.0 as usize)?.as_ref()
    }

    /// Puts an item on its channel; what does not fit is counted there. Returns
    /// how many items the channel holds then.
    #[inline]
    pub(crate) fn push(
        &mut self,
        channel: ChannelId,
        item: Arrived,
        tally: &Tally,
        now: Instant,
    ) -> usize {
        let Some(Some(slot)) = self.slots.get_mut(channel.0 as usize) else {
            tally.count(Outcome::Closed);
            return 0;
        };
        if !slot.touched {
            slot.touched = true;
            self.touched.push(channel);
        }
        match slot.producer.push(item, now) {
            Admission::Queued | Admission::Discarded { .. } => slot.producer.occupancy(),
        }
    }

    /// The turn is over: wakes the receivers that asked for it.
    pub(crate) fn wake_receivers(&mut self) {
        for channel in self.touched.drain(..) {
            if let Some(Some(slot)) = self.slots.get_mut(channel.0 as usize) {
                slot.touched = false;
                match slot.producer.interrupt_due() {
                    true if slot.tcp => self.ready.push(channel),
                    true => slot.waker.wake(),
                    false if slot.tcp => {}
                    false => {
                        if let Some(notes) = &self.notes {
                            notes.add(channel);
                        }
                    }
                }
            }
        }
    }

    /// The channel's flag by which its consumer is asked to tell of room.
    pub(crate) fn set_inhibiting(&self, channel: ChannelId, inhibiting: bool) {
        if let Some(slot) = self.slot(channel) {
            slot.inhibiting.store(inhibiting, Ordering::SeqCst);
        }
    }

    /// Items on a channel; none if it is gone.
    pub(crate) fn occupancy(&self, channel: ChannelId) -> Option<usize> {
        self.slot(channel).map(|slot| slot.producer.occupancy())
    }

    /// Whose a channel is.
    pub(crate) fn account(&self, channel: ChannelId) -> Option<&Arc<Account>> {
        self.slot(channel)?.account.as_ref()
    }

    /// Adds what ended in channels that are in use.
    pub(crate) fn add_to(&self, charged: &mut BTreeMap<Owner, Charged>) {
        for (place, slot) in self.slots.iter().enumerate() {
            let Some(slot) = slot else { continue };
            let of_proxy = match place == FORWARD.0 as usize {
                true => Owner::Forwarding,
                false => Owner::Proxies,
            };
            let account = slot.account.as_ref();
            let owner = account.map_or(of_proxy, |account| account.owner);
            charged.entry(owner).or_default().counts += slot.counts();
        }
    }

    /// Frames that were dropped at full queues of UDP sockets and proxies so far.
    pub(crate) fn discarded(&self) -> u64 {
        let counts = self.pool.counts();
        let of = [channel::Outcome::Full, channel::Outcome::NoBuffer];
        of.into_iter().map(|outcome| counts[outcome]).sum()
    }

    pub(crate) fn channel_counts(&self) -> channel::Counts {
        self.pool.counts() + self.tcp_pool.counts()
    }
}

/// How a frame ends that no channel is for.
fn outcome_of(kind: Kind) -> Outcome {
    match kind {
        Kind::Multicast => Outcome::Group,
        Kind::Forward => Outcome::Forward,
        Kind::Malformed => Outcome::Malformed,
        Kind::UdpSocket
        | Kind::TcpListener
        | Kind::TcpConnection
        | Kind::Fragment
        | Kind::Icmp
        | Kind::Neighbour
        | Kind::ClosedPort
        | Kind::Other => Outcome::Other,
    }
}

fn unfit(field: &'static str, address: IpAddr, error: &EndpointError) -> Error {
    Error::Config {
        field,
        given: format!("{address} ({error})"),
        allowed: "unicast addresses, each once, at most 64 of a family",
    }
}
