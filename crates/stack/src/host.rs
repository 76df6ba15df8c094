//! What all threads of a stack share.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use parking_lot::Mutex;
use plimsoll_core::channel::PooledConsumer;
use plimsoll_core::demux::Protocol;
use plimsoll_core::time::Instant;

use crate::account::{Account, Book, Charged, Owner};
use crate::config::{ReceivePath, StackConfig};
use crate::device::{Capabilities, Channel, Device, Endpoint, Frame};
use crate::error::Error;
use crate::link::egress::Egress;
use crate::outcome::{Counts, Outcome, Tally};
use crate::receive::ahead::Ahead;
use crate::receive::soft_timers::SoftPolling;
use crate::table::{Arrived, Table};
use crate::tcp::{Cookies, Tcp};
use crate::wait::Waker;
use crate::wire::datagram::{self, Input};
use crate::wire::packet::Packet;
use crate::wire::reassembly::{Added, Reassembler};

/// The parts of a stack.
#[derive(Debug)]
pub(crate) struct Host {
    pub(crate) device: Arc<dyn Device>,
    pub(crate) capabilities: Capabilities,
    pub(crate) egress: Egress,
    pub(crate) table: Mutex<Table>,
    pub(crate) book: Book,
    pub(crate) tcp: Tcp,
    /// Wakes the receiving thread.
    pub(crate) attention: Waker,
    pub(crate) stopping: AtomicBool,
    /// Frames that the device may have to receive into, where that is limited.
    pub(crate) credit: AtomicU32,
    /// Who finds arrivals without being woken, on the path that does so.
    pub(crate) polling: Option<SoftPolling>,
    /// Who processes what waits while a CPU is idle, if that is wanted.
    pub(crate) ahead: Option<Ahead>,
    /// Sockets have rings of their own, and TCP's connections channels in the device.
    pub(crate) device_demultiplexes: bool,
    /// The device does not, but may answer SYNs. Whether it was told how.
    device_answers: Option<Mutex<bool>>,
    fragments: Mutex<Fragments>,
    /// Why the receiving thread has ended, if it has.
    failure: Mutex<Option<String>>,
}

/// Reassembly, and the channel of fragments whose first came late.
#[derive(Debug)]
struct Fragments {
    reassembler: Reassembler,
    early: PooledConsumer<Arrived>,
    tally: Arc<Account>,
}

impl Host {
    pub(crate) fn new(
        device: Arc<dyn Device>,
        config: &StackConfig,
        mut table: Table,
        proxies: &Arc<Waker>,
    ) -> Result<Self, Error> {
        let capabilities = device.capabilities();
        let egress = Egress::new(
            Arc::clone(&device),
            &config.addresses,
            &config.gateways,
            Arc::clone(proxies),
        )?;
        for net in &config.addresses {
            table.add_address(net.addr())?;
            device.add_address(net.addr())?;
        }
        for broadcast in egress.broadcasts() {
            table.add_broadcast(broadcast)?;
            device.add_broadcast(broadcast)?;
        }
        let book = Book::default();
        let polling = match &config.path {
            ReceivePath::SoftTimerPolling(wanted) => {
                let account = book.open(Owner::Demultiplexer);
                Some(SoftPolling::new(*wanted, account)?)
            }
            _ => None,
        };
        let ahead = config.work_ahead.then(Ahead::new).transpose()?;
        if let Some(ahead) = &ahead {
            table.note_for(ahead.notes());
        }
        let tcp = Tcp::new(
            config.tcp,
            (Cookies::new()?, egress.mtu),
            (table.ready(), table.known()),
            book.open(Owner::TcpOutgoing),
        );
        let device_demultiplexes = config.path == ReceivePath::NiLrp;
        if device_demultiplexes {
            let told = device.open_all_connections();
            told.and_then(|()| device.know_cookies(&tcp.answers))
                .map_err(Error::io("have the device know of connections"))?;
        }
        Ok(Self {
            polling,
            ahead,
            device_demultiplexes,
            device_answers: answers_beside(config, &capabilities),
            fragments: Mutex::new(Fragments {
                reassembler: Reassembler::new(config.reassembly),
                early: table.take_fragment_channel(),
                tally: book.open(Owner::Demultiplexer),
            }),
            tcp,
            device,
            capabilities,
            egress,
            table: Mutex::new(table),
            book,
            attention: Waker::new().map_err(Error::io("make an event descriptor"))?,
            stopping: AtomicBool::new(false),
            credit: AtomicU32::new(u32::MAX),
            failure: Mutex::new(None),
        })
    }

    /// IP and UDP input for a frame, on whatever thread this is.
    #[inline]
    pub(crate) fn udp_input(&self, frame: Frame, early: bool, now: Instant) -> Input {
        let reassemble =
            |packet: &Packet, bytes: &[u8], now| self.reassemble(packet, bytes, early, now);
        let verified = self.capabilities.checksums_verified;
        let input = datagram::input(frame, verified, reassemble, now);
        match &input {
            // An answer to ourselves would come back, and be answered, for ever.
            Input::Datagram(datagram) if !self.egress.is_anothers(datagram.source.ip()) => {
                Input::Ended(Outcome::Malformed)
            }
            _ => input,
        }
    }

    /// Adds a fragment. `early`: others of its datagram came before its first.
    fn reassemble(&self, packet: &Packet, bytes: &[u8], early: bool, now: Instant) -> Added {
        let mut fragments = self.fragments.lock();
        let Fragments {
            reassembler,
            early: channel,
            tally,
        } = &mut *fragments;
        if early {
            while let Some(arrival) = channel.pop(now) {
                let frame = arrival.item.into_frame();
                add_early(reassembler, frame, tally, now);
            }
        }
        let added = reassembler.add(packet, bytes, now);
        settle(reassembler, tally);
        added
    }

    /// Ends what waits for too long.
    pub(crate) fn expire_fragments(&self, now: Instant) {
        let mut fragments = self.fragments.lock();
        fragments.reassembler.expire(now);
        let Fragments {
            reassembler, tally, ..
        } = &mut *fragments;
        settle(reassembler, tally);
    }

    /// Frames by what became of them.
    pub(crate) fn counts(&self) -> Counts {
        let mut counts = self.book.counts();
        counts.add_answered(self.device.answered_syns());
        counts.add_channels(&self.table.lock().channel_counts());
        counts.incomplete = self.fragments.lock().reassembler.incomplete();
        counts
    }

    /// What each owner has caused.
    pub(crate) fn charged(&self) -> BTreeMap<Owner, Charged> {
        // Both at once: a channel that is given back in between would count twice.
        let table = self.table.lock();
        let mut charged = self.book.charged();
        table.add_to(&mut charged);
        drop(table);
        let demultiplexer = charged.entry(Owner::Demultiplexer).or_default();
        demultiplexer.counts.incomplete = self.fragments.lock().reassembler.incomplete();
        demultiplexer
            .counts
            .add_answered(self.device.answered_syns());
        charged
    }

    /// A thread passes a moment in which receiving costs no switch to another.
    #[inline]
    pub(crate) fn trigger_state(&self, now: Instant) {
        if let Some(polling) = &self.polling {
            // A device that failed is reported by the receiving thread, the next to poll.
            let _ = polling.trigger_state(self, now);
        }
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Relaxed)
    }

    /// The receiving thread ends: sockets learn why.
    pub(crate) fn fail(&self, error: &io::Error) {
        *self.failure.lock() = Some(error.to_string());
        self.table.lock().close_all();
        self.tcp.wake_all();
    }

    pub(crate) fn has_failed(&self) -> bool {
        self.failure.lock().is_some()
    }

    /// What a socket reports once its channel is closed.
    pub(crate) fn failure(&self) -> io::Error {
        let failure = self.failure.lock();
        let reason = failure.as_deref().unwrap_or("the stack has ended");
        io::Error::new(io::ErrorKind::BrokenPipe, reason)
    }

    /// Where a socket is that is to be bound to `at`: one of IPv4 may be written as one of IPv6, and the
    /// stack has one link, so a scope says nothing.
    pub(crate) fn bindable(&self, at: SocketAddr) -> io::Result<SocketAddr> {
        let address = at.ip().to_canonical();
        if address.is_unspecified() || self.egress.is_local(address) {
            return Ok(SocketAddr::new(address, at.port()));
        }
        Err(io::Error::new(
            io::ErrorKind::AddrNotAvailable,
            format!("{address} is not an address of this stack"),
        ))
    }

    /// The ends of a datagram to `destination` from a socket bound to `local`.
    pub(crate) fn ends(
        &self,
        local: SocketAddr,
        destination: SocketAddr,
    ) -> io::Result<(SocketAddr, SocketAddr)> {
        let destination = SocketAddr::new(destination.ip().to_canonical(), destination.port());
        let unsendable = destination.port() == 0 || destination.ip().is_unspecified();
        let of_other_family = match local.ip() {
            IpAddr::V4(_) => destination.is_ipv6(),
            // The IPv6 wildcard takes both.
            IpAddr::V6(address) => !address.is_unspecified() && destination.is_ipv4(),
        };
        if unsendable || of_other_family {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("cannot send from {local} to {destination}"),
            ));
        }
        let source = match local.ip() {
            address if address.is_unspecified() => self.egress.source_for(destination.ip()),
            address => Some(address.to_canonical()),
        };
        let source = source.ok_or_else(|| io::Error::from_raw_os_error(libc::ENETUNREACH))?;
        Ok((SocketAddr::new(source, local.port()), destination))
    }

    /// Registers an endpoint with the device, if that shares its interface.
    pub(crate) fn claim(&self, protocol: Protocol, local: SocketAddr) -> io::Result<()> {
        self.device.claim(Endpoint { protocol, local })
    }

    /// As [`claim`](Self::claim), for TCP; with a channel where the device demultiplexes, or answers SYNs.
    pub(crate) fn listen(&self, local: SocketAddr) -> io::Result<Option<Arc<dyn Channel>>> {
        let protocol = Protocol::Tcp;
        match &self.device_answers {
            Some(told) => {
                let mut told = told.lock();
                if !*told {
                    self.device.know_cookies(&self.tcp.answers)?;
                    *told = true;
                }
            }
            None if self.device_demultiplexes => {}
            None => return self.claim(protocol, local).map(|()| None),
        }
        let endpoint = Endpoint { protocol, local };
        self.device.open_listener(endpoint).map(Some)
    }

    /// A connection's channel in the device, where that demultiplexes.
    pub(crate) fn open_connection(
        &self,
        ends: (SocketAddr, SocketAddr),
    ) -> io::Result<Option<Arc<dyn Channel>>> {
        if !self.device_demultiplexes {
            return Ok(None);
        }
        let frames = self.tcp.channel_segments();
        self.device.open_connection(ends, frames).map(Some)
    }

    pub(crate) fn release(&self, protocol: Protocol, local: SocketAddr) {
        self.device.release(Endpoint { protocol, local });
    }
}

/// Whether a device that does not demultiplex may answer SYNs. It was not told how.
fn answers_beside(config: &StackConfig, capabilities: &Capabilities) -> Option<Mutex<bool>> {
    let beside = config.path != ReceivePath::NiLrp && config.path.lets_device_answer();
    let wanted = config.tcp.syn_cookies_per_s > 0;
    (beside && wanted && capabilities.steers).then(Mutex::default)
}

/// A later fragment that came before its datagram's first.
fn add_early(reassembler: &mut Reassembler, frame: Option<Frame>, tally: &Tally, now: Instant) {
    let Some(frame) = frame else { return };
    let add = datagram::in_reassembler(reassembler);
    // Verified: a complete datagram here is nobody's, since its first fragment
    // is always the last to be added.
    match datagram::input(frame, true, add, now) {
        Input::Kept => {}
        Input::Datagram(_) => tally.count(Outcome::FragmentLost),
        Input::Ended(outcome) => tally.count(outcome),
    }
}

/// Counts the fragments that ended inside of the reassembler.
fn settle(reassembler: &mut Reassembler, tally: &Tally) {
    let (reassembled, lost) = reassembler.take_ended();
    tally.add(Outcome::Reassembled, reassembled);
    tally.add(Outcome::FragmentLost, lost);
}
