//! A connection whose segments leave by the clock.

use std::io;

use plimsoll_core::demux::ChannelId;
use plimsoll_core::pacing::FlowId;
use plimsoll_core::time::Instant;
use smoltcp::socket::tcp::{Socket, State};

use super::Inner;
use crate::host::Host;
use crate::tcp::pacing::{Pacing, Released};
use crate::tcp::reset::instant;
use crate::wire::ETHERNET_BYTES;

/// Of IPv4 and TCP, without options.
const HEADERS_BYTES: usize = 40;

impl Inner {
    pub(super) fn set_pacing(
        &mut self,
        host: &Host,
        channel: ChannelId,
        pacing: Pacing,
    ) -> io::Result<()> {
        if self.consumer.is_none() {
            // It has ended, and sends no more.
            return Ok(());
        }
        if self.pace.flow.is_none() && pacing != Pacing::Off {
            let flow = host.tcp.departures.open(channel);
            self.pace.flow = Some(flow.map_err(io::Error::other)?);
        }
        self.pace.set(pacing);
        if self.socket().send_queue() > 0 {
            let socket = self.sockets.get_mut(self.handle);
            let rates = self.pace.apply(socket, false);
            host.tcp.departures.set_rates(self.pace.gate(), rates);
        }
        Ok(())
    }

    /// Does something with the socket, and notices if a busy period begins by it.
    pub(super) fn act<R>(
        &mut self,
        host: &Host,
        now: Instant,
        act: impl FnOnce(&mut Socket<'static>) -> R,
    ) -> R {
        let socket = self.sockets.get_mut::<Socket<'_>>(self.handle);
        let before = socket.send_queue();
        let result = act(socket);
        if before == 0 && socket.send_queue() > 0 {
            let rates = self.pace.begin(socket, now);
            host.tcp.departures.set_rates(self.pace.gate(), rates);
        }
        result
    }

    /// A segment of the peer's came, before which so many bytes were not acknowledged: what it
    /// releases may have to leave by the clock.
    pub(super) fn release(&mut self, host: &Host, unacknowledged: usize, at: Instant) {
        let left = self.socket().send_queue();
        let acknowledged = unacknowledged.saturating_sub(left);
        let segment_bytes = host.capabilities.mtu.saturating_sub(HEADERS_BYTES);
        if acknowledged > 0 {
            self.pace.on_acknowledged(acknowledged, segment_bytes, at);
        }
        let released = Released {
            acknowledged,
            opened: self.window.take_opened(),
            segment_bytes,
            frame_bytes: ETHERNET_BYTES + host.capabilities.mtu,
        };
        let rates = self.pace.on_released(released, at);
        if rates.is_some() {
            host.tcp.departures.set_rates(self.pace.flow, rates);
        }
    }

    /// The flow whose departures release segments. A connection that is over waits for
    /// none: after its last segment nothing would remember it.
    pub(super) fn gate(&self) -> Option<FlowId> {
        let flow = self.pace.gate()?;
        let socket = self.sockets.get::<Socket<'_>>(self.handle);
        let over = matches!(socket.state(), State::Closed | State::TimeWait);
        (!over).then_some(flow)
    }

    /// Whether there is a segment to send now.
    pub(super) fn is_due(&mut self, now: Instant) -> bool {
        let due = self.interface.poll_at(instant(now), &self.sockets);
        due.is_some_and(|at| at <= instant(now))
    }

    /// Emits one segment, for which a departure was granted.
    pub(super) fn depart(&mut self, host: &Host, now: Instant) {
        let Some(flow) = self.gate() else { return };
        let bytes = match self.emit(now) {
            Some(bytes) => bytes,
            // There is no room for it now: the next departure tries again.
            None if self.is_due(now) => ETHERNET_BYTES + host.capabilities.mtu,
            None => return,
        };
        host.tcp.departures.on_sent(flow, bytes, now);
    }
}
