//! The peer: a screen as people write it on NFQUEUE (the kernel's
//! `include/uapi/linux/netfilter/nfnetlink_queue.h`). Packets come over a netlink
//! socket, up to a batch per system call, and one verdict answers for all that are
//! accepted together.
//!
//! It does what makes such a program fast: large buffers, headers only where rules need
//! no more, batch verdicts. The rules are the same pcap expressions as ours.
//!
//! The kernel side is one rule of iptables: this kernel may lack nft's `queue`.

use std::io::{self, IoSliceMut};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, MsgFlags, MultiHeaders, NetlinkAddr, SockFlag, SockProtocol, SockType, bind,
    recv, recvmmsg, send, setsockopt, socket, sockopt,
};
use nix::sys::time::TimeVal;
use pcap::{BpfProgram, Capture, Linktype};
use plimsoll_kernel::namespace::pin;
use plimsoll_testbed::Host;

use super::message::{self, Packet};
use crate::Error;
use crate::passing::Family;

const QUEUE: u16 = 7;
/// Packets that the kernel holds for the screen.
const QUEUE_PACKETS: u32 = 8192;
const BUFFER_BYTES: usize = 16 << 20;
/// Netlink messages of one system call.
const BATCH: usize = 64;
/// Headers are enough for the rules.
const COPIED_BYTES: u32 = 128;
const MESSAGE_BYTES: usize = 1024;
/// How soon the end is noticed.
const LOOK_US: i64 = 50_000;
/// `LINKTYPE_RAW`: packets begin with the IP header.
const RAW_IP: Linktype = Linktype(12);

/// The screen at work. Dropping it ends it.
#[derive(Debug)]
pub(super) struct NfqueueScreen {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl NfqueueScreen {
    /// Puts forwarded packets of the host through a screen that accepts what one of
    /// these filters accepts, on the host's CPU.
    pub(super) fn start(host: &Host, family: Family, filters: &[&str]) -> Result<Self, Error> {
        let failed = |source| Error::Traffic {
            action: "open an NFQUEUE",
            source,
        };
        let rules = Rules::compile(filters)?;
        let socket = host.run(open)?.map_err(failed)?;
        let tables = match family.is_ipv4() {
            true => "iptables",
            false => "ip6tables",
        };
        let rule = format!("-w -A FORWARD -j NFQUEUE --queue-num {QUEUE}");
        host.command(tables)
            .package("iptables")
            .args(rule.split(' '))
            .output(std::time::Duration::from_secs(10))?;
        let stop = Arc::new(AtomicBool::new(false));
        let (stopped, cpu) = (Arc::clone(&stop), host.cpu());
        let work = move || {
            // A measurement tells if it is elsewhere: nothing passes as fast as expected.
            let _ = pin(cpu);
            let _ = run(&socket, &rules, &stopped);
        };
        let thread = thread::Builder::new().name("nfqueue".to_owned());
        Ok(Self {
            stop,
            thread: Some(thread.spawn(work).map_err(failed)?),
        })
    }
}

impl Drop for NfqueueScreen {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

struct Rules(Vec<BpfProgram>);

impl Rules {
    fn compile(filters: &[&str]) -> Result<Self, Error> {
        let compile = |filter: &&str| Capture::dead(RAW_IP)?.compile(filter, true);
        let rules: Result<Vec<_>, pcap::Error> = filters.iter().map(compile).collect();
        rules.map(Self).map_err(|error| Error::Tool {
            tool: "libpcap",
            problem: format!("does not take a rule: {error}"),
        })
    }

    fn accept(&self, packet: &[u8]) -> bool {
        self.0.iter().any(|rule| rule.filter(packet))
    }
}

/// A socket of the calling thread's namespace, with the queue bound to it.
fn open() -> io::Result<OwnedFd> {
    let socket = socket(
        AddressFamily::Netlink,
        SockType::Raw,
        SockFlag::SOCK_CLOEXEC,
        SockProtocol::NetlinkNetFilter,
    )?;
    bind(socket.as_raw_fd(), &NetlinkAddr::new(0, 0))?;
    setsockopt(&socket, sockopt::RcvBufForce, &BUFFER_BYTES)?;
    for request in [
        message::bind(QUEUE),
        message::copy(QUEUE, COPIED_BYTES),
        message::queue_length(QUEUE, QUEUE_PACKETS),
    ] {
        send(socket.as_raw_fd(), &request, MsgFlags::empty())?;
        let mut answer = [0; MESSAGE_BYTES];
        let length = recv(socket.as_raw_fd(), &mut answer, MsgFlags::empty())?;
        message::acknowledged(&answer[..length])?;
    }
    setsockopt(&socket, sockopt::ReceiveTimeout, &TimeVal::new(0, LOOK_US))?;
    Ok(socket)
}

fn run(socket: &OwnedFd, rules: &Rules, stop: &AtomicBool) -> io::Result<()> {
    let mut buffers = vec![[0; MESSAGE_BYTES]; BATCH];
    let mut headers = MultiHeaders::<()>::preallocate(BATCH, None);
    let mut lengths = Vec::with_capacity(BATCH);
    while !stop.load(Ordering::Relaxed) {
        lengths.clear();
        let mut slices: Vec<_> = buffers
            .iter_mut()
            .map(|buffer| [IoSliceMut::new(&mut buffer[..])])
            .collect();
        let flags = MsgFlags::MSG_WAITFORONE;
        match recvmmsg(
            socket.as_raw_fd(),
            &mut headers,
            slices.iter_mut(),
            flags,
            None,
        ) {
            Ok(received) => lengths.extend(received.map(|one| one.bytes)),
            // Nothing came; or the buffer overflowed, which the kernel has counted.
            Err(Errno::EAGAIN | Errno::EINTR | Errno::ENOBUFS) => continue,
            Err(errno) => return Err(errno.into()),
        }
        let received = buffers.iter().zip(&lengths);
        let packets = received.filter_map(|(buffer, length)| Packet::parse(&buffer[..*length]));
        decide(socket, rules, packets)?;
    }
    Ok(())
}

/// Packets that are accepted in a row share a verdict.
fn decide<'a>(
    socket: &OwnedFd,
    rules: &Rules,
    packets: impl Iterator<Item = Packet<'a>>,
) -> io::Result<()> {
    let mut accepted = None;
    for packet in packets {
        if rules.accept(packet.bytes) {
            accepted = Some(packet.id);
            continue;
        }
        // First those before it: a batch verdict is about all up to a number.
        answer(socket, accepted.take())?;
        let verdict = message::drop_one(QUEUE, packet.id);
        send(socket.as_raw_fd(), &verdict, MsgFlags::empty())?;
    }
    answer(socket, accepted)
}

fn answer(socket: &OwnedFd, accepted: Option<u32>) -> io::Result<()> {
    let Some(id) = accepted else {
        return Ok(());
    };
    let verdict = message::accept_up_to(QUEUE, id);
    send(socket.as_raw_fd(), &verdict, MsgFlags::empty())?;
    Ok(())
}
