//! The user data path: sockets on a receive path that cannot livelock.
//!
//! A [`Stack`] is a host of its own on a network device: it has addresses,
//! answers ARP and pings, and gives programs UDP and TCP sockets shaped like the
//! standard library's. What sets it apart is *when* a packet is worked on, and for whom.
//! By default a packet is only put on the bounded queue of its socket, and the
//! receiving call does the rest; what a full queue cannot take is discarded
//! before anything was spent on it (lazy receiver processing, Druschel & Banga
//! 1996). Other papers' orders can be chosen to compare: [`ReceivePath`].
//!
//! # A UDP server
//!
//! The device is a cable in memory here, so that this runs without privileges;
//! with [`device::tap::TapDevice::open`] or [`device::xdp::XdpInterface::open`]
//! in its place it serves a network.
//!
//! ```
//! use plimsoll_stack::device::simulated::{SimulatedConfig, SimulatedDevice};
//! use plimsoll_stack::{Stack, StackConfig, UdpSocket};
//!
//! fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     let (here, there) = SimulatedDevice::pair(&SimulatedConfig::default())?;
//!     let server = Stack::start(here, &StackConfig::at("10.0.0.1/24".parse()?))?;
//!     let socket = UdpSocket::bind(&server, "10.0.0.1:7")?;
//!     std::thread::spawn(move || -> std::io::Result<()> {
//!         let mut buffer = [0; 2048];
//!         loop {
//!             let (length, from) = socket.recv_from(&mut buffer)?;
//!             // Who cannot be answered, at port 0 say, does not end the server.
//!             let _ = socket.send_to(&buffer[..length], from);
//!         }
//!     });
//!
//!     let client = Stack::start(there, &StackConfig::at("10.0.0.2/24".parse()?))?;
//!     let socket = UdpSocket::bind(&client, "10.0.0.2:0")?;
//!     socket.send_to(b"hello", "10.0.0.1:7")?;
//!     let mut answer = [0; 16];
//!     assert_eq!(socket.recv_from(&mut answer)?.0, 5);
//!     Ok(())
//! }
//! ```
//!
//! # With an event loop of your own
//!
//! A socket is a descriptor ([`AsFd`](std::os::fd::AsFd)) that becomes readable.
//! Receive until `WouldBlock`, then wait for it:
//!
//! ```
//! # use plimsoll_stack::device::simulated::{SimulatedConfig, SimulatedDevice};
//! # use plimsoll_stack::{Stack, StackConfig, UdpSocket};
//! # use std::io::ErrorKind;
//! # use std::os::fd::AsFd;
//! # use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let (here, there) = SimulatedDevice::pair(&SimulatedConfig::default())?;
//! # let stack = Stack::start(here, &StackConfig::at("10.0.0.1/24".parse()?))?;
//! # let other = Stack::start(there, &StackConfig::at("10.0.0.2/24".parse()?))?;
//! let socket = UdpSocket::bind(&stack, "10.0.0.1:7")?;
//! socket.set_nonblocking(true)?;
//! # UdpSocket::bind(&other, "10.0.0.2:0")?.send_to(b"hello", "10.0.0.1:7")?;
//! let mut batch = Vec::new();
//! while batch.is_empty() {
//!     match socket.recv_batch(&mut batch, 64) {
//!         Err(error) if error.kind() == ErrorKind::WouldBlock => {
//!             let mut wanted = [PollFd::new(socket.as_fd(), PollFlags::POLLIN)];
//!             poll(&mut wanted, PollTimeout::NONE)?;
//!         }
//!         result => { result?; }
//!     }
//! }
//! assert_eq!(batch[0].payload(), b"hello");
//! # Ok(())
//! # }
//! ```
//!
//! So does tokio's `AsyncFd`:
//!
//! ```
//! # use plimsoll_stack::device::simulated::{SimulatedConfig, SimulatedDevice};
//! # use plimsoll_stack::{Stack, StackConfig, UdpSocket};
//! use tokio::io::Interest;
//! use tokio::io::unix::AsyncFd;
//!
//! async fn echo_one(socket: &AsyncFd<UdpSocket>) -> std::io::Result<usize> {
//!     let mut buffer = [0; 2048];
//!     loop {
//!         let mut ready = socket.readable().await?;
//!         // On `WouldBlock` it waits again.
//!         if let Ok(received) = ready.try_io(|socket| socket.get_ref().recv_from(&mut buffer)) {
//!             let (length, from) = received?;
//!             // Who cannot be answered, at port 0 say, does not end the server.
//!             return Ok(socket.get_ref().send_to(&buffer[..length], from).unwrap_or(0));
//!         }
//!     }
//! }
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let (here, there) = SimulatedDevice::pair(&SimulatedConfig::default())?;
//! # let stack = Stack::start(here, &StackConfig::at("10.0.0.1/24".parse()?))?;
//! # let other = Stack::start(there, &StackConfig::at("10.0.0.2/24".parse()?))?;
//! # let client = UdpSocket::bind(&other, "10.0.0.2:0")?;
//! # tokio::runtime::Builder::new_current_thread().enable_io().build()?.block_on(async {
//! let socket = UdpSocket::bind(&stack, "10.0.0.1:7")?;
//! socket.set_nonblocking(true)?;
//! // SAFETY: a socket has one descriptor, which is open as long as the socket is there.
//! let socket = unsafe { AsyncFd::register_with_interest(socket, Interest::READABLE)? };
//! # std::thread::spawn(move || {
//! #     for _ in 0..2 {
//! #         client.send_to(b"hello", "10.0.0.1:7").unwrap();
//! #         client.recv(&mut [0; 16]).unwrap();
//! #     }
//! # });
//! assert_eq!(echo_one(&socket).await?, 5);
//! # assert_eq!(echo_one(&socket).await?, 5);
//! # Ok(())
//! # })
//! # }
//! ```
//!
//! A stream's descriptor tells of data and of room to write in the same way: it becomes readable. Register it for
//! both nevertheless, so that tokio keeps a waker for who reads and one for who writes. With readability alone
//! the last of two tasks takes the other's, which then waits for ever. This is all that `tokio::io::split`,
//! `copy_bidirectional`, or an HTTP library need:
//!
//! ```
//! # use plimsoll_stack::device::simulated::{SimulatedConfig, SimulatedDevice};
//! # use plimsoll_stack::{Stack, StackConfig, TcpListener, TcpStream};
//! use std::io::{self, Read, Write};
//! use std::net::Shutdown;
//! use std::pin::Pin;
//! use std::task::{Context, Poll, ready};
//! use tokio::io::unix::AsyncFd;
//! use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
//!
//! struct AsyncStream(AsyncFd<TcpStream>);
//!
//! impl AsyncStream {
//!     fn new(stream: TcpStream) -> io::Result<Self> {
//!         stream.set_nonblocking(true)?;
//!         // SAFETY: a stream has one descriptor, which is open as long as the stream is there.
//!         Ok(Self(unsafe { AsyncFd::register(stream)? }))
//!     }
//! }
//!
//! impl AsyncRead for AsyncStream {
//!     fn poll_read(
//!         self: Pin<&mut Self>,
//!         context: &mut Context<'_>,
//!         buffer: &mut ReadBuf<'_>,
//!     ) -> Poll<io::Result<()>> {
//!         loop {
//!             let mut ready = ready!(self.0.poll_read_ready(context))?;
//!             let unfilled = buffer.initialize_unfilled();
//!             if let Ok(read) = ready.try_io(|stream| stream.get_ref().read(unfilled)) {
//!                 buffer.advance(read?);
//!                 return Poll::Ready(Ok(()));
//!             }
//!         }
//!     }
//! }
//!
//! impl AsyncWrite for AsyncStream {
//!     fn poll_write(
//!         self: Pin<&mut Self>,
//!         context: &mut Context<'_>,
//!         bytes: &[u8],
//!     ) -> Poll<io::Result<usize>> {
//!         loop {
//!             let mut ready = ready!(self.0.poll_write_ready(context))?;
//!             if let Ok(written) = ready.try_io(|stream| stream.get_ref().write(bytes)) {
//!                 return Poll::Ready(written);
//!             }
//!         }
//!     }
//!
//!     fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
//!         Poll::Ready(Ok(()))
//!     }
//!
//!     fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
//!         Poll::Ready(self.0.get_ref().shutdown(Shutdown::Write))
//!     }
//! }
//! # async fn exchange(stream: TcpStream, bytes: Vec<u8>) -> io::Result<Vec<u8>> {
//! #     use tokio::io::{AsyncReadExt, AsyncWriteExt};
//! #     let (mut reader, mut writer) = tokio::io::split(AsyncStream::new(stream)?);
//! #     let writing = tokio::spawn(async move {
//! #         writer.write_all(&bytes).await?;
//! #         writer.shutdown().await
//! #     });
//! #     let mut read = Vec::new();
//! #     reader.read_to_end(&mut read).await?;
//! #     writing.await??;
//! #     Ok(read)
//! # }
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let (here, there) = SimulatedDevice::pair(&SimulatedConfig::default())?;
//! # let stack = Stack::start(here, &StackConfig::at("10.0.0.1/24".parse()?))?;
//! # let other = Stack::start(there, &StackConfig::at("10.0.0.2/24".parse()?))?;
//! # let listener = TcpListener::bind(&stack, "10.0.0.1:80")?;
//! # let client = TcpStream::connect(&other, "10.0.0.1:80")?;
//! # let (server, _) = listener.accept()?;
//! # // More than the buffers hold, both ways at once.
//! # let (asked, told) = (vec![1; 1_000_000], vec![2; 1_000_000]);
//! # let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
//! # let (to_ask, to_tell) = (asked.clone(), told.clone());
//! # runtime.block_on(async move {
//! #     let asking = tokio::spawn(exchange(client, to_ask));
//! #     assert!(exchange(server, to_tell).await? == asked);
//! #     assert!(asking.await?? == told);
//! #     io::Result::Ok(())
//! # })?;
//! # Ok(())
//! # }
//! ```
//!
//! A UDP socket's descriptor tells of arrivals alone. [`UdpSocket::poll`] tells of room to send, too,
//! and needs no descriptor. Nor do [`TcpStream::poll`] and [`TcpListener::poll`]:
//!
//! ```
//! # use plimsoll_stack::device::simulated::{SimulatedConfig, SimulatedDevice};
//! # use plimsoll_stack::{Readiness, Stack, StackConfig, UdpSocket};
//! # use std::time::Duration;
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let (here, there) = SimulatedDevice::pair(&SimulatedConfig::default())?;
//! # let stack = Stack::start(here, &StackConfig::at("10.0.0.1/24".parse()?))?;
//! # let other = Stack::start(there, &StackConfig::at("10.0.0.2/24".parse()?))?;
//! # let client = UdpSocket::bind(&other, "10.0.0.2:0")?;
//! let socket = UdpSocket::bind(&stack, "10.0.0.1:7")?;
//! let idle = socket.poll(Readiness::READABLE, Some(Duration::ZERO))?;
//! assert_eq!(idle, Readiness::NONE);
//! client.send_to(b"hello", "10.0.0.1:7")?;
//! let ready = socket.poll(Readiness::READABLE | Readiness::WRITABLE, None)?;
//! assert!(ready.writable);
//! # socket.poll(Readiness::READABLE, None)?;
//! # let mut buffer = [0; 16];
//! # assert_eq!(socket.recv_from(&mut buffer)?.0, 5);
//! # Ok(())
//! # }
//! ```
//!
//! # A polling loop
//!
//! A thread with a CPU to itself never sleeps, and does other work when nothing came. With
//! AF_XDP and the path `ni-lrp` it takes frames straight from the socket's ring:
//!
//! ```
//! # use plimsoll_stack::device::simulated::{SimulatedConfig, SimulatedDevice};
//! # use plimsoll_stack::{Stack, StackConfig, UdpSocket};
//! # use std::io::ErrorKind;
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let (here, there) = SimulatedDevice::pair(&SimulatedConfig::default())?;
//! # let stack = Stack::start(here, &StackConfig::at("10.0.0.1/24".parse()?))?;
//! # let other = Stack::start(there, &StackConfig::at("10.0.0.2/24".parse()?))?;
//! # let (mut served, mut other_work) = (0, 0_u64);
//! # let client = UdpSocket::bind(&other, "10.0.0.2:0")?;
//! let socket = UdpSocket::bind(&stack, "10.0.0.1:7")?;
//! socket.set_nonblocking(true)?;
//! # client.send_to(b"hello", "10.0.0.1:7")?;
//! let mut batch = Vec::with_capacity(64);
//! while served < 1 {
//!     match socket.recv_batch(&mut batch, 64) {
//!         Ok(_) => served += socket.reply_batch(&mut batch).unwrap_or(0),
//!         Err(error) if error.kind() == ErrorKind::WouldBlock => other_work += 1,
//!         Err(error) => return Err(error.into()),
//!     }
//! }
//! # assert_eq!(client.recv(&mut [0; 16])?, 5);
//! # Ok(())
//! # }
//! ```
//!
//! A blocking socket does the same for a bounded time, if told so
//! ([`UdpSocket::set_busy_poll`]).
//!
//! # What is where
//!
//! * [`device`]: AF_XDP, AF_PACKET, TAP, TUN, simulated; VLAN, recording and faulty wrappers.
//! * [`forwarding`]: what a router looks at in a packet, and changes.
//! * `wire`: frames to packets and back, with smoltcp's formats; reassembly.
//! * `link`: neighbours, next hops, path MTUs, frames out (`Egress`).
//! * `table`: `core::demux` joined with `core::channel`: who gets which frame.
//! * `receive`: the receive paths, one file each, on one thread per stack.
//! * `proxy`: ARP and neighbour discovery, ICMP, closed ports, forwarding, each on a thread of
//!   its own.
//! * `socket`: UDP sockets; protocol processing in the receiving call.
//! * `tcp`: listeners and streams around smoltcp's state machine, on a thread
//!   of their own.
//! * `host`: what those share; `outcome`: what became of every frame; `account`: who caused it,
//!   and the CPU time it took.
//!
//! # Limits
//!
//! A multicast group has one socket per port. At most 16 receive queues of an interface.

pub mod device;
#[doc(hidden)]
pub mod driven;
pub mod forwarding;

mod account;
mod clock;
mod config;
mod error;
mod host;
mod interface;
mod link;
mod outcome;
mod proxy;
mod random;
mod receive;
mod socket;
mod stack;
mod table;
mod tcp;
mod wait;
mod wire;

/// Rates of paced TCP ([`Pacing`]) and of a [`PacedSender`]'s flows.
pub mod pacing {
    pub use plimsoll_core::pacing::{FlowId, FlowRates, Rate};
    pub use plimsoll_core::time::Instant;
}

pub use account::{Charged, Owner};
pub use config::{ForwardConfig, ProxyConfig, ReceivePath, StackConfig, TcpConfig};
pub use error::{Error, FlowFailed, TooLong};
pub use ipnet::IpNet;
pub use outcome::{Counts, Outcome};
pub use plimsoll_core::aggregation::AggregationConfig;
pub use plimsoll_core::channel::{ChannelConfig, DelayTarget};
pub use plimsoll_core::config::Fraction;
pub use plimsoll_core::holdoff::CreditConfig;
pub use receive::polled::PolledConfig;
pub use socket::{
    Filled, Message, PacedSender, PacedSenderConfig, Readiness, SendBuffer, UdpSocket,
};
pub use stack::Stack;
pub use tcp::{BACKLOG, Incoming, Pacing, TcpListener, TcpStream};
pub use wire::datagram::Datagram;
pub use wire::reassembly::ReassemblyConfig;
