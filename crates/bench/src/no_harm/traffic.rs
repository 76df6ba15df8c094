//! What crosses a set-up: datagrams at a fixed rate, counted where they leave and
//! where they arrive, a connection that sends as fast as it can, connections one after
//! the other, or a flood that is forwarded.

use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::sockopt::{BindToDevice, RcvBufForce, ReuseAddr};
use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, SockaddrStorage, bind, recv,
    setsockopt, socket,
};
use plimsoll_testbed::{Host, connect};

use crate::Error;
use crate::traffic::{device_counter, join};

/// Far more than arrives in a pause of this machine: sockets are not what is tested.
const RECEIVE_BUFFER_BYTES: usize = 32 << 20;
/// Datagrams leave in bursts this far apart, as from a busy server.
const BURST_GAP: Duration = Duration::from_millis(1);
/// After the last datagram was sent, the receiver waits this long for more.
const SILENCE: Duration = Duration::from_millis(400);
/// How long a client tries to connect, and how long nothing may move.
const CONNECTING: Duration = Duration::from_secs(3);
/// Clients of a web server, per second.
const CLIENTS_PPS: u32 = 200;
const GREETING: &[u8] = b"send";

/// Datagrams at a fixed rate.
#[derive(Clone, Copy, Debug)]
pub(super) struct Flow {
    pub(super) packets: u64,
    pub(super) rate_pps: u64,
    pub(super) payload_bytes: usize,
}

/// What one run counted: datagrams, connections, or bytes of a connection.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counted {
    pub(super) sent: u64,
    pub(super) received: u64,
}

/// Who takes the datagrams of a set-up.
#[derive(Clone, Copy, Debug)]
pub(super) enum Receiver {
    /// A socket that asks first, so that the way back is known to translators.
    Asking,
    /// A new socket for every few datagrams, as TFTP and DNS clients have.
    Ephemeral,
    /// A socket bound to this port, which is sent to from outside.
    Bound(u16),
    /// The same, bound to an interface as well.
    BoundToDevice(u16, &'static str),
    /// Sockets on one port, each connected to one of as many peers (QUIC servers).
    Connected(u16),
    /// A member of a multicast group.
    Member(Ipv4Addr, u16),
    /// A packet socket that reads what nobody else takes (AF_PACKET, packet(7)).
    PacketReader(u16),
}

const PEERS: u16 = 64;
const EPHEMERAL_PACKETS: u64 = 50;

/// Sends `flow` from `sender` to `target`, or to whoever asks it at `target`, and
/// counts what `receiver` gets.
pub(super) fn udp(
    sender: &Host,
    host: &Host,
    receiver: Receiver,
    target: SocketAddr,
    flow: Flow,
) -> Result<Counted, Error> {
    if matches!(receiver, Receiver::Ephemeral) {
        return ephemeral(sender, host, target, flow);
    }
    let sockets = host
        .run(|| open(receiver, sender.ipv4(), any(target)))?
        .map_err(io_error("open the receiver"))?;
    let asks = matches!(receiver, Receiver::Asking);
    let server = sender
        .run(|| senders(receiver, if asks { target } else { any(target) }))?
        .map_err(io_error("open the sender"))?;
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let received = scope.spawn(|| host.run_on_cpu(|| take(&sockets, &done)));
        // Also where nothing could be asked for or sent, which the receiver does not see.
        let sending = Sending(&done);
        if asks && let Sockets::Udp(sockets) = &sockets {
            let greeted = host.run(|| sockets[0].send_to(GREETING, target))?;
            greeted.map_err(io_error("ask for datagrams"))?;
        }
        let sent = sender.run_on_cpu(|| send(&server, target, asks, flow))?;
        drop(sending);
        let received = join(received)?.map_err(io_error("receive datagrams"))?;
        let sent = sent.map_err(io_error("send datagrams"))?;
        Ok(Counted { sent, received })
    })
}

/// Tells the receiver at its end that nothing more is sent.
struct Sending<'a>(&'a AtomicBool);

impl Drop for Sending<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Any port of any address of the same family.
const fn any(of: SocketAddr) -> SocketAddr {
    let address = match of {
        SocketAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        SocketAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
    };
    SocketAddr::new(address, 0)
}

/// The receiver's sockets.
enum Sockets {
    Udp(Vec<UdpSocket>),
    Packet(OwnedFd, u16),
}

fn open(receiver: Receiver, peer: Ipv4Addr, any: SocketAddr) -> io::Result<Sockets> {
    let port = match receiver {
        Receiver::Asking | Receiver::Ephemeral => 0,
        Receiver::Bound(port)
        | Receiver::BoundToDevice(port, _)
        | Receiver::Connected(port)
        | Receiver::Member(_, port) => port,
        Receiver::PacketReader(port) => return open_packet(port),
    };
    let count = if matches!(receiver, Receiver::Connected(_)) {
        PEERS
    } else {
        1
    };
    let sockets = (0..count).map(|number| {
        let socket = bound(any.ip(), port)?;
        match receiver {
            Receiver::Connected(_) => socket.connect((peer, FIRST_PEER_PORT + number))?,
            Receiver::Member(group, _) => {
                socket.join_multicast_v4(&group, &Ipv4Addr::UNSPECIFIED)?;
            }
            Receiver::BoundToDevice(_, device) => {
                setsockopt(&socket, BindToDevice, &device.into())?;
            }
            _ => {}
        }
        Ok(socket)
    });
    Ok(Sockets::Udp(sockets.collect::<io::Result<_>>()?))
}

/// The peers of [`Receiver::Connected`] send from these ports on.
const FIRST_PEER_PORT: u16 = 20_000;

/// A socket of a port that several may share, as those of one QUIC server do.
fn bound(address: IpAddr, port: u16) -> io::Result<UdpSocket> {
    let family = match address {
        IpAddr::V4(_) => AddressFamily::Inet,
        IpAddr::V6(_) => AddressFamily::Inet6,
    };
    let descriptor = socket(family, SockType::Datagram, SockFlag::SOCK_CLOEXEC, None)?;
    setsockopt(&descriptor, ReuseAddr, &true)?;
    setsockopt(&descriptor, RcvBufForce, &RECEIVE_BUFFER_BYTES)?;
    let address = SockaddrStorage::from(SocketAddr::new(address, port));
    bind(std::os::fd::AsRawFd::as_raw_fd(&descriptor), &address)?;
    Ok(UdpSocket::from(descriptor))
}

fn open_packet(port: u16) -> io::Result<Sockets> {
    let descriptor = socket(
        AddressFamily::Packet,
        SockType::Datagram,
        SockFlag::SOCK_CLOEXEC,
        SockProtocol::EthAll,
    )?;
    setsockopt(&descriptor, RcvBufForce, &RECEIVE_BUFFER_BYTES)?;
    let patience = nix::sys::time::TimeVal::new(0, 100_000);
    setsockopt(
        &descriptor,
        nix::sys::socket::sockopt::ReceiveTimeout,
        &patience,
    )?;
    Ok(Sockets::Packet(descriptor, port))
}

/// Where datagrams leave: one socket, or one for each connected receiver.
fn senders(receiver: Receiver, from: SocketAddr) -> io::Result<Vec<UdpSocket>> {
    if !matches!(receiver, Receiver::Connected(_)) {
        return Ok(vec![UdpSocket::bind(from)?]);
    }
    let ports = FIRST_PEER_PORT..FIRST_PEER_PORT + PEERS;
    ports
        .map(|port| UdpSocket::bind((from.ip(), port)))
        .collect()
}

/// Sends the whole flow; to `target`, or to who asks. Returns what the kernel took.
fn send(sockets: &[UdpSocket], target: SocketAddr, asks: bool, flow: Flow) -> io::Result<u64> {
    let to = if asks {
        sockets[0].set_read_timeout(Some(Duration::from_secs(3)))?;
        sockets[0].recv_from(&mut [0; 16])?.1
    } else {
        target
    };
    let payload = vec![0; flow.payload_bytes];
    let began = Instant::now();
    let (mut sent, mut tried) = (0, 0);
    while tried < flow.packets {
        let due = began.elapsed().as_secs_f64() * flow.rate_pps as f64;
        while tried < flow.packets && (tried as f64) < due {
            let socket = &sockets[tried as usize % sockets.len()];
            sent += u64::from(socket.send_to(&payload, to).is_ok());
            tried += 1;
        }
        thread::sleep(BURST_GAP);
    }
    Ok(sent)
}

/// Counts datagrams until the sender is done and nothing comes any more.
fn take(sockets: &Sockets, done: &AtomicBool) -> io::Result<u64> {
    let (descriptor, port) = match sockets {
        Sockets::Udp(sockets) => return take_datagrams(sockets, done),
        Sockets::Packet(descriptor, port) => (descriptor, *port),
    };
    let mut packet = [0; 2048];
    let mut received = 0;
    let mut heard = Instant::now();
    while !done.load(Ordering::Relaxed) || heard.elapsed() < SILENCE {
        let raw = std::os::fd::AsRawFd::as_raw_fd(descriptor);
        // An IPv4 header without options, then the UDP ports (RFC 791, RFC 768).
        if let Ok(bytes @ 28..) = recv(raw, &mut packet, MsgFlags::empty())
            && packet[9] == 17
            && packet[22..24] == port.to_be_bytes()
            && bytes > 28
        {
            received += 1;
            heard = Instant::now();
        }
    }
    Ok(received)
}

fn take_datagrams(sockets: &[UdpSocket], done: &AtomicBool) -> io::Result<u64> {
    let mut payload = [0; 2048];
    let mut received = 0;
    let mut heard = Instant::now();
    for socket in sockets {
        socket.set_nonblocking(true)?;
    }
    while !done.load(Ordering::Relaxed) || heard.elapsed() < SILENCE {
        let before = received;
        for socket in sockets {
            while socket.recv(&mut payload).is_ok() {
                received += 1;
            }
        }
        if received > before {
            heard = Instant::now();
        } else {
            thread::sleep(Duration::from_micros(200));
        }
    }
    Ok(received)
}

/// New sockets one after the other, each of which asks and gets a few datagrams.
fn ephemeral(sender: &Host, host: &Host, target: SocketAddr, flow: Flow) -> Result<Counted, Error> {
    let mut all = Counted::default();
    let few = Flow {
        packets: EPHEMERAL_PACKETS,
        ..flow
    };
    // Each waits for silence, so there are fewer of them than the flow has room for.
    for _ in 0..4 {
        let counted = udp(sender, host, Receiver::Asking, target, few)?;
        all.sent += counted.sent;
        all.received += counted.received;
    }
    Ok(all)
}

fn listen(server: &Host, port: u16) -> Result<TcpListener, Error> {
    let listener = server.run(|| TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)))?;
    listener.map_err(io_error("listen"))
}

/// Sends bytes over one connection to `address` for a while, where the server's `port` is
/// found; both sides count them.
pub(super) fn tcp(
    (server, port): (&Host, u16),
    client: &Host,
    address: SocketAddr,
    to_server: bool,
    time: Duration,
) -> Result<Counted, Error> {
    let listener = listen(server, port)?;
    thread::scope(|scope| {
        let accepted =
            scope.spawn(|| server.run_on_cpu(|| transfer(accept(&listener)?, !to_server, time)));
        let connected = client.run_on_cpu(|| {
            let stream = TcpStream::connect_timeout(&address, CONNECTING)?;
            transfer(stream, to_server, time)
        })?;
        let accepted = join(accepted)?.map_err(io_error("serve a connection"))?;
        let connected = connected.map_err(io_error("connect"))?;
        let (sent, received) = if to_server {
            (connected, accepted)
        } else {
            (accepted, connected)
        };
        Ok(Counted { sent, received })
    })
}

/// Makes connections for a while, each for one byte and its answer; sent are those begun, received
/// those whose answer came.
pub(super) fn connections(
    server: &Host,
    client: &Host,
    port: u16,
    time: Duration,
) -> Result<Counted, Error> {
    let listener = listen(server, port)?;
    let address = SocketAddr::new(server.ipv4().into(), port);
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let served = scope.spawn(|| server.run_on_cpu(|| answer(&listener, &done)));
        let counted = client.run_on_cpu(|| {
            let (end, mut counted) = (Instant::now() + time, Counted::default());
            while Instant::now() < end {
                counted.sent += 1;
                counted.received += u64::from(ask(&address).is_ok());
            }
            counted
        });
        done.store(true, Ordering::Relaxed);
        join(served)?.map_err(io_error("serve connections"))?;
        Ok(counted?)
    })
}

/// Clients of a web server for a while, on a schedule of their own; sent are those that tried,
/// received those that were served.
pub(super) fn web(client: &Host, target: SocketAddr, time: Duration) -> Result<Counted, Error> {
    let config = connect::Config {
        target,
        rate_pps: CLIENTS_PPS,
        duration: time,
        timeout: CONNECTING,
        realtime: true,
    };
    let report = client.run_on_cpu(|| connect::run(&config))??;
    Ok(Counted {
        sent: report.attempts,
        received: report.succeeded,
    })
}

fn ask(address: &SocketAddr) -> io::Result<()> {
    let mut stream = TcpStream::connect_timeout(address, CONNECTING)?;
    stream.set_read_timeout(Some(CONNECTING))?;
    stream.write_all(&[1])?;
    stream.read_exact(&mut [0])
}

/// Answers each connection's first byte until told to end. Clients wait no longer than
/// [`CONNECTING`] for it.
fn answer(listener: &TcpListener, done: &AtomicBool) -> io::Result<()> {
    listener.set_nonblocking(true)?;
    while !done.load(Ordering::Relaxed) {
        let mut awaited = [PollFd::new(listener.as_fd(), PollFlags::POLLIN)];
        if poll(&mut awaited, 100_u16)? == 0 {
            continue;
        }
        let Ok((mut stream, _)) = listener.accept() else {
            continue;
        };
        stream.set_nonblocking(false)?;
        stream.set_read_timeout(Some(CONNECTING))?;
        // One that its client gave up costs that client its answer, and nobody else's.
        if stream.read_exact(&mut [0]).is_ok() {
            let _ = stream.write_all(&[1]);
        }
    }
    Ok(())
}

/// Counts for a while what comes to the host behind, and what the load host sends it.
pub(super) fn forwarded(load: &Host, behind: &Host, time: Duration) -> Result<Counted, Error> {
    let count = || -> Result<Counted, Error> {
        Ok(Counted {
            sent: device_counter(load, "tx_packets")? + device_counter(load, "tx_dropped")?,
            received: frames_come(behind)?,
        })
    };
    let before = count()?;
    plimsoll_testbed::interrupt::sleep(time)?;
    let after = count()?;
    Ok(Counted {
        sent: after.sent - before.sent,
        received: after.received - before.received,
    })
}

/// Has `client` ask at `target`, from this port of its own, so that translators between them know
/// the way back.
pub(super) fn ask_through(
    client: &Host,
    port: u16,
    server: &Host,
    target: SocketAddr,
) -> Result<(), Error> {
    let open = |host: &Host, port| {
        let socket = host.run(|| UdpSocket::bind((Ipv4Addr::UNSPECIFIED, port)))?;
        socket.map_err(io_error("open a socket"))
    };
    let (client, server) = (open(client, port)?, open(server, target.port())?);
    let asked = server.set_read_timeout(Some(CONNECTING)).and_then(|()| {
        client.send_to(GREETING, target)?;
        server.recv_from(&mut [0; 16])
    });
    let (_, asker) = asked.map_err(io_error("ask for datagrams"))?;
    if asker.port() == port {
        return Ok(());
    }
    let why = format!("{asker} asks instead of port {port}");
    Err(io_error("ask for datagrams")(io::Error::other(why)))
}

/// Frames that came to the host behind since there were `before`, once no more come.
pub(super) fn come_since(behind: &Host, before: u64) -> Result<u64, Error> {
    plimsoll_testbed::interrupt::sleep(SILENCE)?;
    Ok(frames_come(behind)? - before)
}

/// Frames that have come to a host.
pub(super) fn frames_come(host: &Host) -> Result<u64, Error> {
    device_counter(host, "rx_packets")
}

/// The next connection, unless its client has given up.
fn accept(listener: &TcpListener) -> io::Result<TcpStream> {
    let mut awaited = [PollFd::new(listener.as_fd(), PollFlags::POLLIN)];
    match poll(
        &mut awaited,
        PollTimeout::try_from(CONNECTING * 2).unwrap_or(PollTimeout::ZERO),
    )? {
        0 => Err(io::ErrorKind::TimedOut.into()),
        _ => Ok(listener.accept()?.0),
    }
}

fn transfer(mut stream: TcpStream, sends: bool, time: Duration) -> io::Result<u64> {
    const CHUNK_BYTES: usize = 64 << 10;
    let mut chunk = vec![0; CHUNK_BYTES];
    let end = Instant::now() + time;
    stream.set_read_timeout(Some(time + CONNECTING))?;
    stream.set_write_timeout(Some(time + CONNECTING))?;
    let mut bytes = 0;
    if sends {
        while Instant::now() < end {
            stream.write_all(&chunk)?;
            bytes += CHUNK_BYTES as u64;
        }
        return Ok(bytes);
    }
    loop {
        match stream.read(&mut chunk)? {
            0 => return Ok(bytes),
            read => bytes += read as u64,
        }
    }
}

fn io_error(action: &'static str) -> impl Fn(io::Error) -> Error {
    move |source| Error::Traffic { action, source }
}

#[cfg(test)]
mod tests;
