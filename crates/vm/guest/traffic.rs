//! What comes in: floods of ready frames, and real connections.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use nix::ifaddrs::getifaddrs;
use nix::sys::socket::{
    AddressFamily, Backlog, MsgFlags, SockFlag, SockType, SockaddrIn, bind, listen, send, socket,
};
use plimsoll_packets::frame::{Packet, TcpFlags};

use super::Outcome;
use super::site::{HOST, LOAD, Site, TAGGED_HOST};

const MACS: ([u8; 6], [u8; 6]) = ([0x52, 0x54, 0, 0, 0, 1], [0x52, 0x54, 0, 0, 0, 2]);
const BURST_GAP: Duration = Duration::from_millis(4);
/// A listener with room for so few half-open connections is flooded soon.
pub(crate) const BACKLOG: i32 = 16;
const CONNECTIONS: u32 = 12;
const CONNECT_LIMIT: Duration = Duration::from_secs(4);
const SYN_FRAMES: u32 = 2048;

/// Frames that leave the loading host, until it is stopped.
pub(crate) struct Flood {
    stop: Arc<AtomicBool>,
    sent: Arc<AtomicU64>,
    thread: Option<JoinHandle<()>>,
    began: Instant,
}

impl Flood {
    /// Sends these again and again, `rate_pps` a second.
    pub(crate) fn start(site: &Site, frames: Vec<Vec<u8>>, rate_pps: u64) -> Outcome<Self> {
        let device = site.load_device.clone();
        let socket = site.in_load(|| packet_socket(&device))?;
        let stop = Arc::new(AtomicBool::new(false));
        let sent = Arc::new(AtomicU64::new(0));
        let (stopped, counted) = (Arc::clone(&stop), Arc::clone(&sent));
        let began = Instant::now();
        let thread = thread::spawn(move || {
            let mut tried = 0;
            let mut frames = frames.iter().cycle();
            while !stopped.load(Ordering::Relaxed) {
                let due = (began.elapsed().as_secs_f64() * rate_pps as f64) as u64;
                while tried < due && !stopped.load(Ordering::Relaxed) {
                    tried += 1;
                    let Some(frame) = frames.next() else { return };
                    let left = send(socket.as_raw_fd(), frame, MsgFlags::empty()).is_ok();
                    counted.fetch_add(u64::from(left), Ordering::Relaxed);
                }
                thread::sleep(BURST_GAP);
            }
        });
        Ok(Self {
            stop,
            sent,
            thread: Some(thread),
            began,
        })
    }

    /// Frames a second that have left so far.
    pub(crate) fn rate_pps(&self) -> u64 {
        let sent = self.sent.load(Ordering::Relaxed);
        (sent as f64 / self.began.elapsed().as_secs_f64()) as u64
    }

    /// Ends it; frames that have left.
    pub(crate) fn stop(mut self) -> u64 {
        self.end();
        self.sent.load(Ordering::Relaxed)
    }

    fn end(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // If it panicked, there is no flood either.
            let _ = thread.join();
        }
    }
}

impl Drop for Flood {
    fn drop(&mut self) {
        self.end();
    }
}

fn packet_socket(device: &str) -> Outcome<OwnedFd> {
    let own = |address: &nix::ifaddrs::InterfaceAddress| {
        let link = address.address.as_ref()?.as_link_addr()?;
        (address.interface_name == device).then_some(*link)
    };
    let address = getifaddrs()?.find_map(|address| own(&address));
    let address = address.ok_or("the loading interface has no Ethernet address")?;
    // Protocol 0: it receives nothing.
    let flags = SockFlag::SOCK_CLOEXEC;
    let socket = socket(AddressFamily::Packet, SockType::Raw, flags, None)?;
    bind(socket.as_raw_fd(), &address)?;
    Ok(socket)
}

/// Datagrams from one source to the guarded host's `port`.
pub(crate) fn datagrams(port: u16) -> Vec<Vec<u8>> {
    datagrams_to(MACS.1, HOST, port)
}

/// The same to other addresses of it.
pub(crate) fn datagrams_to(mac: [u8; 6], address: Ipv4Addr, port: u16) -> Vec<Vec<u8>> {
    let packet = Packet::new(LOAD.into(), address.into()).macs(MACS.0, mac);
    vec![packet.udp(40_000, port, &[0; 64])]
}

/// SYNs from many sources to the guarded host's `port`.
pub(crate) fn syns(port: u16) -> Vec<Vec<u8>> {
    syns_to(MACS.1, HOST, port)
}

/// The same to other addresses of it.
pub(crate) fn syns_to(mac: [u8; 6], address: Ipv4Addr, port: u16) -> Vec<Vec<u8>> {
    let syn = |number: u32| {
        let [_, _, third, fourth] = number.to_be_bytes();
        let source = IpAddr::V4(Ipv4Addr::new(198, 19, third, fourth));
        let packet = Packet::new(source, address.into()).macs(MACS.0, mac);
        let source_port = 1024 + u16::from(third) * 7 + u16::from(fourth);
        packet.tcp(source_port, port, TcpFlags::SYN, &[])
    };
    (1..=SYN_FRAMES).map(syn).collect()
}

/// A server that greets and hangs up.
pub(crate) struct Greeter {
    pub(crate) port: u16,
}

impl Greeter {
    /// On a thread that ends with the machine.
    pub(crate) fn start() -> Outcome<Self> {
        let flags = SockFlag::SOCK_CLOEXEC;
        let socket = socket(AddressFamily::Inet, SockType::Stream, flags, None)?;
        let any = SockaddrIn::new(0, 0, 0, 0, 0);
        bind(socket.as_raw_fd(), &any)?;
        listen(&socket, Backlog::new(BACKLOG)?)?;
        let listener = TcpListener::from(socket);
        let port = listener.local_addr()?.port();
        thread::spawn(move || {
            for mut stream in listener.incoming().flatten() {
                // A client that has gone needs no greeting.
                let _ = stream.write_all(b"hello");
            }
        });
        Ok(Self { port })
    }
}

/// Connections from the loading host that are greeted; each is given a few seconds.
pub(crate) fn connect(site: &Site, port: u16) -> Outcome<u32> {
    let address = SocketAddr::new(HOST.into(), port);
    let attempt = move || {
        let Ok(mut stream) = TcpStream::connect_timeout(&address, CONNECT_LIMIT) else {
            return false;
        };
        let mut greeting = [0; 5];
        let patient = stream.set_read_timeout(Some(CONNECT_LIMIT));
        patient.is_ok() && stream.read_exact(&mut greeting).is_ok()
    };
    site.in_load(|| {
        // Side by side, so that failures do not add up.
        let threads: Vec<_> = (0..CONNECTIONS)
            .map(|number| {
                thread::spawn(move || {
                    thread::sleep(Duration::from_millis(150) * number);
                    attempt()
                })
            })
            .collect();
        let greeted = threads.into_iter().map(JoinHandle::join);
        Ok(greeted.map(|one| u32::from(one.unwrap_or(false))).sum())
    })
}

/// More in a burst than the guard once let through of what it took for a closed port.
const BURST: u32 = 400;
const BURSTS: u32 = 8;

/// Datagrams of a download through the gateway that arrive, of so many sent.
pub(crate) fn download(site: &Site) -> Outcome<(u32, u32)> {
    let server = site.in_load(|| Ok(UdpSocket::bind((LOAD, 4433))?))?;
    let client = site.in_behind(|| Ok(UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?))?;
    server.set_read_timeout(Some(Duration::from_secs(5)))?;
    client.send_to(b"send", (LOAD, 4433))?;
    let (_, to) = server.recv_from(&mut [0; 16])?;
    bursts(&server, to, client)
}

/// The same of datagrams to the guarded host's VLAN device.
pub(crate) fn upload_tagged(site: &Site) -> Outcome<(u32, u32)> {
    let server = UdpSocket::bind((TAGGED_HOST, 0))?;
    let to = server.local_addr()?;
    let client = site.in_load(|| Ok(UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?))?;
    // The first has to wait until the neighbour is known.
    server.set_read_timeout(Some(Duration::from_secs(5)))?;
    client.send_to(b"there?", to)?;
    server.recv(&mut [0; 16])?;
    bursts(&client, to, server)
}

/// Sends datagrams in bursts: how many were sent, and how many arrived.
fn bursts(from: &UdpSocket, to: SocketAddr, receiver: UdpSocket) -> Outcome<(u32, u32)> {
    nix::sys::socket::setsockopt(
        &receiver,
        nix::sys::socket::sockopt::RcvBufForce,
        &(16 << 20),
    )?;
    let receiving = thread::spawn(move || {
        let mut received = 0;
        let silence = receiver.set_read_timeout(Some(Duration::from_secs(2)));
        while silence.is_ok() && receiver.recv(&mut [0; 2048]).is_ok() {
            received += 1;
        }
        received
    });
    let mut sent = 0;
    for _ in 0..BURSTS {
        for _ in 0..BURST {
            sent += u32::from(from.send_to(&[0; 200], to).is_ok());
        }
        thread::sleep(Duration::from_millis(100));
    }
    Ok((sent, receiving.join().map_err(|_| "the receiver panicked")?))
}
