//! What the running program is set to: words in its `.bss` section, which it reads with
//! each packet.

use std::collections::BTreeSet;

use plimsoll_core::config::Fraction;
use plimsoll_core::feedback::SocketWatermarks;

use super::known::{Entries, period_of};
use super::{Program, now_tick, types};

impl Program<'_> {
    /// Tells the program that its loader is there. Without it for about two
    /// seconds, nothing is shed by shares, delay or closed ports.
    pub(crate) fn beat(&mut self) {
        self.settings().heartbeat = now_tick();
    }

    /// Tells the program whether somebody reads packets beside the stack's sockets.
    pub(crate) fn set_readers(&mut self, readers: bool) {
        self.settings().readers = readers.into();
    }

    /// Sets whether an overloaded channel's packets are judged by their sources, and
    /// whether it is learnt who they are.
    pub(crate) fn set_fairness(&mut self, fairness: bool) {
        let settings = self.settings();
        settings.fairness = fairness.into();
        settings.learning = fairness.into();
    }

    /// Sets how full a queue may be that was full a moment ago.
    pub(crate) fn set_watermarks(&mut self, marks: &SocketWatermarks) {
        let whole = 1 << types::limit::WATERMARK_WHOLE_SHIFT.0;
        let part = |mark: Fraction| u32::try_from(mark.of(whole)).unwrap_or(u32::MAX);
        let high = part(marks.high).max(1);
        let settings = self.settings();
        settings.full_watermark = part(marks.full) * whole as u32 / high;
        settings.high_watermark = high;
        settings.low_watermark = part(marks.low);
    }

    /// Sets who answers SYNs past a listener's SYN queue.
    pub(crate) fn set_answering(&mut self, answering: types::answering) {
        self.settings().answering = answering.0 as u8;
    }

    /// Tells the program of the interface that it runs on: its index, the largest segments
    /// of IPv4 and IPv6 that an answer may ask for, and its hardware address.
    pub(crate) fn set_interface(&mut self, index: u32, mss: [u16; 2], mac: [u8; 6]) {
        let settings = self.settings();
        settings.ifindex = index;
        [settings.mss_ipv4, settings.mss_ipv6] = mss;
        settings.mac = mac;
    }

    /// Tells the program whether its interface belongs to another.
    pub(crate) fn set_enslaved(&mut self, enslaved: bool) {
        self.settings().enslaved = enslaved.into();
    }

    /// Tells the program whether its interface is a veth: that takes answers by redirection.
    pub(crate) fn set_veth(&mut self, is_veth: bool) {
        self.settings().redirects_answers = is_veth.into();
    }

    /// Tells the program by which interfaces packets may come that its own one received, that one among
    /// them. Of more than a thousand, some others count as well.
    pub(crate) fn set_receiving(&mut self, interfaces: &BTreeSet<u32>) {
        let mut words = [0; types::limit::RECEIVING_WORDS.0 as usize];
        for index in interfaces {
            let word = *index as usize / 64 % words.len();
            words[word] |= 1 << (index % 64);
        }
        self.settings().receiving = words;
    }

    /// Tells the program this host's Ethernet addresses, where a bridge hands on what is for others; none:
    /// there is no bridge.
    pub(crate) fn set_ethernet(&mut self, addresses: &BTreeSet<[u8; 6]>) {
        const MIXER: u32 = types::limit::ETHERNET_MIXER.0;
        let mut words = [0; types::limit::ETHERNET_WORDS.0 as usize];
        for [a, b, c, d, e, f] in addresses {
            let first = u32::from_ne_bytes([*a, *b, *c, *d]);
            let last = u32::from(u16::from_ne_bytes([*e, *f]));
            let hash = (first ^ last.wrapping_mul(MIXER)).wrapping_mul(MIXER);
            let bit = (hash >> types::limit::ETHERNET_SHIFT.0) as usize;
            words[bit / 64 % words.len()] |= 1 << (bit % 64);
        }
        let settings = self.settings();
        settings.ethernet = words;
        settings.bridged = (!addresses.is_empty()).into();
    }

    /// Tells the program which IP protocols tunnels of this host take, a bit for each; 0 are frames
    /// without an IP header.
    pub(crate) fn set_tunnels(&mut self, protocols: u64) {
        self.settings().tunnels = protocols;
    }

    /// Tells the program whether connection tracking knows any connection.
    pub(crate) fn set_tracking(&mut self, tracking: bool) {
        self.settings().tracking = tracking.into();
    }

    /// Tells the program whether another CPU than its own may look up a packet's socket.
    pub(crate) fn set_steered(&mut self, steered: bool) {
        self.settings().steered = steered.into();
    }

    /// Sets whether any socket has a limit.
    pub(crate) fn set_delay_targets(&mut self, targets: bool) {
        self.settings().delay_targets = targets.into();
    }

    /// Sets whether verdicts are only counted.
    pub(crate) fn set_observing(&mut self, observing: bool) {
        self.settings().observing = observing.into();
    }

    /// Sets the time that marks packets from now on, in seconds. Every few minutes that
    /// is also the time to forget sources.
    pub(crate) fn set_epoch(&mut self, seconds: u32) {
        let before = std::mem::replace(&mut self.settings().epoch, seconds);
        if Entries::is_due(before, seconds) {
            self.sources.known.forget(period_of(seconds));
        }
    }

    pub(super) fn settings(&mut self) -> &mut types::settings {
        let bss = self.skeleton.maps.bss_data.as_deref_mut();
        &mut bss
            .expect("the program has a .bss section: `settings` is in it")
            .settings
    }
}
