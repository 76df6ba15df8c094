//! A tunnel whose ends are processes, as those of VPN programs in user space: Ethernet frames
//! of a TAP interface travel in datagrams of one socket.

use std::fs;
use std::io;
use std::net::{Ipv4Addr, UdpSocket};
use std::os::fd::AsFd;
use std::panic::resume_unwind;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{setsockopt, sockopt};
use plimsoll_stack::device::tap::TapDevice;
use plimsoll_stack::device::{Batch, Device, HEADROOM_BYTES};

use crate::{Error, Host};

const DEVICE: &str = "tunnel0";
/// An Ethernet, an IPv4 and a UDP header around each frame, within 1500 bytes.
const MTU: u16 = 1450;
const BATCH_FRAMES: usize = 64;
const PATIENCE_MS: u16 = 10;
/// Far more than arrives in a pause of this machine.
const RECEIVE_BUFFER_BYTES: usize = 32 << 20;

struct End<'a> {
    host: &'a Host,
    device: TapDevice,
    socket: UdpSocket,
}

/// Does `work` while a tunnel between two hosts carries what they send to each other's
/// address in it. Those addresses are of one /24; both ends have the UDP port `port`.
///
/// Each end knows the other's Ethernet address from the start. A question for it that is lost
/// is asked again a second later, and until then nothing is carried.
///
/// # Errors
///
/// [`Error::Stack`] without TAP interfaces, [`Error::Io`] if the port is taken or an end
/// breaks. Then `work` was done in vain.
pub fn through<T>(
    hosts: [(&Host, Ipv4Addr); 2],
    port: u16,
    work: impl FnOnce() -> T,
) -> Result<T, Error> {
    let [(first, _), (second, _)] = hosts;
    let ends = [
        open(hosts[0], second.ipv4(), port)?,
        open(hosts[1], first.ipv4(), port)?,
    ];
    know(first, hosts[1])?;
    know(second, hosts[0])?;
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let carriers = ends.each_ref().map(|end| {
            let done = &done;
            scope.spawn(move || end.host.run_on_cpu(|| carry(end, done)))
        });
        let worked = work();
        done.store(true, Ordering::Relaxed);
        for carrier in carriers {
            let carried = carrier
                .join()
                .unwrap_or_else(|panic| resume_unwind(panic))?;
            carried.map_err(Error::io("carry frames through the tunnel"))?;
        }
        Ok(worked)
    })
}

fn open((host, address): (&Host, Ipv4Addr), peer: Ipv4Addr, port: u16) -> Result<End<'_>, Error> {
    let device = host.run(|| TapDevice::open(DEVICE))??;
    host.ip(&format!("link set {DEVICE} mtu {MTU} up"))?;
    host.ip(&format!("address add {address}/24 dev {DEVICE}"))?;
    let connected = || -> io::Result<UdpSocket> {
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, port))?;
        setsockopt(&socket, sockopt::RcvBufForce, &RECEIVE_BUFFER_BYTES)?;
        socket.connect((peer, port))?;
        socket.set_nonblocking(true)?;
        Ok(socket)
    };
    let socket = host
        .run(connected)?
        .map_err(Error::io("open a tunnel's socket"))?;
    Ok(End {
        host,
        device,
        socket,
    })
}

/// Tells `host` the Ethernet address of the other end.
fn know(host: &Host, (other, address): (&Host, Ipv4Addr)) -> Result<(), Error> {
    let read = || fs::read_to_string(format!("/sys/class/net/{DEVICE}/address"));
    let mac = other.run(read)?;
    let mac = mac.map_err(Error::io("read a tunnel's Ethernet address"))?;
    let mac = mac.trim_end();
    host.ip(&format!(
        "neighbour replace {address} lladdr {mac} dev {DEVICE} nud permanent"
    ))
}

fn carry(end: &End<'_>, done: &AtomicBool) -> io::Result<()> {
    let mut batch = Batch::default();
    while !done.load(Ordering::Relaxed) {
        let mut waited_for = [end.device.readiness(), end.socket.as_fd()]
            .map(|descriptor| PollFd::new(descriptor, PollFlags::POLLIN));
        poll(&mut waited_for, PollTimeout::from(PATIENCE_MS))?;
        end.device.receive(&mut batch, BATCH_FRAMES)?;
        while let Some(frame) = batch.pop_front() {
            // A full queue loses it, as on any wire.
            let _ = end.socket.send(&frame);
        }
        take_in(end, &mut batch)?;
        end.device.transmit(&mut batch)?;
        batch.clear();
    }
    Ok(())
}

/// Frames from the other end.
fn take_in(end: &End<'_>, batch: &mut Batch) -> io::Result<()> {
    while batch.len() < BATCH_FRAMES {
        let Some(mut frame) = end.device.pool().take() else {
            break;
        };
        match end.socket.recv(&mut frame.chunk_mut()[HEADROOM_BYTES..]) {
            Ok(length) => frame.set_range(HEADROOM_BYTES..HEADROOM_BYTES + length),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
            // The other end is not there yet, or not any more.
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => continue,
            Err(error) => return Err(error),
        }
        batch.push_back(frame);
    }
    Ok(())
}
