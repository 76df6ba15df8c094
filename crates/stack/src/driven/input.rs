//! The whole input path under any frames: for fuzzing, and for tests of what fuzzing begins with.
//!
//! The stack of [`Driven`] also forwards, and has more sockets: in groups, connected, and two that
//! share a port. Connections are accepted, and what comes by them is written back.
//!
//! **Limits.** Checksums of IP and ICMP are always looked at.

use std::collections::HashMap;
use std::io::{ErrorKind, Read, Write};
use std::time::Duration;

use smoltcp::wire::{IpProtocol, TcpPacket, TcpSeqNumber};

use super::Driven;
use crate::clock;
use crate::config::{ForwardConfig, ProxyConfig, ReceivePath, StackConfig};
use crate::device::simulated::{SimulatedConfig, SimulatedDevice};
use crate::device::vlan::Vlan;
use crate::device::{Batch, Device};
use crate::outcome::Counts;
use crate::socket::UdpSocket;
use crate::tcp::TcpStream;
use crate::wire::packet::{self, Part};
use crate::wire::reassembly::ReassemblyConfig;

/// In an input's first byte: the device counts as having checked checksums, so that a changed segment
/// or datagram gets further. What acknowledges counts from the stack's first number, which is drawn
/// at random: so frames from a file can be a connection.
pub const TRUSTING: u8 = 0x80;
/// In the same: the stack is in a VLAN. Frames without a tag get the right one.
pub const IN_VLAN: u8 = 0x40;

/// What a frame of one byte stands for: so often as its square this goes by.
const TIME: Duration = Duration::from_millis(10);
const VLAN: u16 = 5;
/// Where a tag is.
const TAG: std::ops::Range<usize> = 12..16;
const TAGGED: [u8; 2] = [0x81, 0];

/// What an input has led to.
#[derive(Clone, Copy, Debug, Default)]
pub struct Reached {
    /// Frames by what became of them.
    pub counts: Counts,
    /// Connections that came about.
    pub accepted: usize,
    /// Bytes that came by them.
    pub bytes: usize,
    /// Connections that ended, in whichever way.
    pub ended: usize,
    /// Datagrams that sockets received.
    pub datagrams: usize,
    /// Errors of the network's that a connected socket was told of.
    pub told: usize,
}

/// Whatever is sent, nothing panics, and every frame has one outcome.
///
/// `bytes`: the receive path and more in one byte, then frames, each behind its length in one byte. One
/// of a single byte is none, but time that goes by: 10 ms to 11 minutes.
///
/// # Panics
///
/// If the stack is wrong.
pub fn check(bytes: &[u8]) {
    let _ = run(bytes);
}

/// The same; returns what it has led to.
///
/// # Panics
///
/// If the stack is wrong.
#[must_use]
pub fn run(bytes: &[u8]) -> Reached {
    let Some((mode, mut rest)) = bytes.split_first() else {
        return Reached::default();
    };
    let mut all = All::new(*mode);
    while let Some((length, frames)) = rest.split_first() {
        let (frame, others) = frames.split_at(frames.len().min((*length).into()));
        rest = others;
        match *frame {
            [time] => all.let_pass(TIME * u32::from(time) * u32::from(time)),
            _ => all.bring_in(frame.to_vec()),
        }
    }
    all.drain();
    let counts = all.driven.counts();
    let accounted = counts.ended() + counts.queued + counts.incomplete;
    assert_eq!(counts.received, accounted, "{counts:?}");
    Reached {
        counts,
        ..all.reached
    }
}

/// All but `ni-lrp`: the simulated device has no demultiplexer of its own. That path's is the XDP program
/// ([`Steering`](super::Steering)), and what comes out of its rings goes through the code of `soft-lrp`.
fn path(mode: u8) -> &'static str {
    let names = ReceivePath::NAMES.into_iter();
    let paths: Vec<_> = names.filter(|&name| name != "ni-lrp").collect();
    paths[usize::from(mode & !(TRUSTING | IN_VLAN)) % paths.len()]
}

/// A stack that does all that stacks can.
struct All {
    mode: u8,
    driven: Driven,
    /// One that is connected, and two that share a port.
    others: [UdpSocket; 3],
    streams: Vec<TcpStream>,
    /// By the peer's port: where the stack's numbers begin.
    first: HashMap<u16, TcpSeqNumber>,
    sent: Batch,
    /// What has passed by the input's own word.
    ahead: Duration,
    reached: Reached,
}

impl All {
    fn new(mode: u8) -> Self {
        clock::set_ahead(Duration::ZERO);
        let link = SimulatedConfig {
            trust_checksums: mode & TRUSTING != 0,
            ..super::link()
        };
        let config = StackConfig {
            channels_max: 6,
            reassembly: ReassemblyConfig {
                datagrams: 4,
                ..ReassemblyConfig::default()
            },
            proxies: ProxyConfig {
                forward: Some(ForwardConfig::default()),
                ..ProxyConfig::default()
            },
            ..super::config(path(mode))
        };
        let (cable, device) = SimulatedDevice::pair(&link).expect("memory");
        let driven = match mode & IN_VLAN {
            0 => Driven::on(cable, device, &config),
            _ => Driven::on(cable, Vlan::new(device, VLAN).expect("a VLAN"), &config),
        };
        for (socket, group) in driven.sockets.iter().zip(["239.1.2.3", "ff02::4321"]) {
            let joined = socket.join_multicast(group.parse().expect("an address"));
            joined.expect("a free group");
        }
        let connected = UdpSocket::bind(&driven.stack, "10.0.0.2:8").expect("a free port");
        connected.connect("10.0.0.1:5").expect("a way there");
        let shared = || UdpSocket::bind_shared(&driven.stack, "10.0.0.2:6").expect("a free port");
        let others = [connected, shared(), shared()];
        for socket in &others {
            socket.set_nonblocking(true).expect("it always works");
        }
        Self {
            mode,
            driven,
            others,
            streams: Vec::new(),
            first: HashMap::new(),
            sent: Batch::with_capacity(256),
            ahead: Duration::ZERO,
            reached: Reached::default(),
        }
    }

    fn bring_in(&mut self, mut frame: Vec<u8>) {
        if self.mode & TRUSTING != 0 {
            self.count_from_first(&mut frame);
        }
        if self.mode & IN_VLAN != 0 && frame.len() >= TAG.start && !is_tagged(&frame) {
            let tag = [TAGGED, VLAN.to_be_bytes()].concat();
            frame.splice(TAG.start..TAG.start, tag);
        }
        self.driven.cable.send(&frame);
        self.driven.receive();
        self.work();
    }

    fn work(&mut self) {
        self.driven.work();
        if self.serve() {
            self.driven.work();
        }
        self.take_what_was_sent();
    }

    fn let_pass(&mut self, time: Duration) {
        self.ahead += time;
        clock::set_ahead(self.ahead);
        self.work();
    }

    /// A segment that acknowledges so many bytes acknowledges what the stack has sent.
    fn count_from_first(&self, frame: &mut [u8]) {
        let Some(mut segment) = segment_of(frame) else {
            return;
        };
        if let Some(first) = self.first.get(&segment.src_port())
            && segment.ack()
        {
            let bytes = segment.ack_number().0;
            segment.set_ack_number(TcpSeqNumber(first.0.wrapping_add(bytes)));
        }
    }

    /// What programs do: take connections, and give back what comes by them. Whether anything did.
    fn serve(&mut self) -> bool {
        let before = (self.reached.accepted, self.reached.bytes);
        while let Ok((stream, _)) = self.driven.listener.accept() {
            stream.set_nonblocking(true).expect("it always works");
            self.reached.accepted += 1;
            self.streams.push(stream);
        }
        let (reached, mut buffer) = (&mut self.reached, [0; 512]);
        let mut goes_on = |stream: &mut TcpStream| match stream.read(&mut buffer) {
            Ok(0) => false,
            Ok(length) => {
                reached.bytes += length;
                // There may be no room for it.
                let _ = stream.write(&buffer[..length]);
                true
            }
            Err(error) => error.kind() == ErrorKind::WouldBlock,
        };
        self.streams.retain_mut(&mut goes_on);
        reached.ended = reached.accepted - self.streams.len();
        before != (reached.accepted, reached.bytes)
    }

    fn take_what_was_sent(&mut self) {
        let received = self.driven.cable.receive(&mut self.sent, 256);
        received.expect("no device to fail");
        for frame in self.sent.drain(..) {
            let mut frame = frame.to_vec();
            if is_tagged(&frame) {
                frame.drain(TAG);
            }
            if let Some(segment) = segment_of(&mut frame)
                && segment.syn()
            {
                self.first.insert(segment.dst_port(), segment.seq_number());
            }
        }
    }

    fn drain(&mut self) {
        self.reached.datagrams = self.driven.drain();
        for socket in &self.others {
            loop {
                match socket.recv_datagram() {
                    Ok(_) => self.reached.datagrams += 1,
                    Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                    // Each once.
                    Err(_) => self.reached.told += 1,
                }
            }
        }
    }
}

fn is_tagged(frame: &[u8]) -> bool {
    frame.get(TAG).is_some_and(|tag| tag[..2] == TAGGED)
}

fn segment_of(frame: &mut [u8]) -> Option<TcpPacket<&mut [u8]>> {
    let packet = packet::parse(frame).ok()?;
    let is_segment = packet.protocol == IpProtocol::Tcp && packet.part == Part::Whole;
    let bytes = is_segment.then(|| &mut frame[packet.payload])?;
    TcpPacket::new_checked(bytes).ok()
}
