//! A stack: a device, addresses, and the threads that receive.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use parking_lot::Mutex;
use plimsoll_kernel::scheduling::Level;

use crate::account::{Charged, Owner};
use crate::config::{ReceivePath, StackConfig};
use crate::device::{Allocator, Capabilities, Device, Drops};
use crate::error::Error;
use crate::host::Host;
use crate::outcome::Counts;
use crate::proxy::Proxy;
use crate::receive::Receiver;
use crate::table::Table;
use crate::tcp;
use crate::wait::Waker;

/// How long the end of a stack waits for peers to take what was written.
const FINISH: Duration = Duration::from_secs(5);

/// A host of its own on a device. Clones are the same stack; it ends when the
/// last of them and the last of its sockets are dropped. That drop waits, 5 s at most, until peers
/// have acknowledged what dropped TCP streams have written, and resets the connections of the others.
#[derive(Clone)]
pub struct Stack(Arc<Inner>);

/// Its addresses. The rest is long, and holds keys that others must not know.
impl fmt::Debug for Stack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let addresses: Vec<IpAddr> = self.addresses().collect();
        f.debug_struct("Stack")
            .field("addresses", &addresses)
            .finish_non_exhaustive()
    }
}

struct Inner {
    host: Arc<Host>,
    proxies: Box<[Arc<Waker>]>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Stack {
    /// Starts on `device`, with a thread that receives, one that processes TCP, and one for each
    /// of what belongs to no socket ([`StackConfig::proxies`]). The path `soft-timer-polling` has
    /// another, which notices idle CPUs, and [`StackConfig::work_ahead`] one that uses them.
    ///
    /// # Errors
    ///
    /// [`Error::NotPermitted`]: working ahead takes `CAP_SYS_NICE`, and so does a proxy before other
    /// threads. [`Error::KernelsAddress`]: the device is a packet socket, TAP or TUN, and the kernel has
    /// one of the addresses. [`Error::Unsupported`]: the device cannot do what the path, the credit or
    /// forwarding needs. A setting cannot be worked with, or there are no more threads or descriptors.
    pub fn start(device: impl Device + 'static, config: &StackConfig) -> Result<Self, Error> {
        let parts = Parts::assemble(device, config)?;
        let (stack, receiver, proxies) = (parts.stack, parts.receiver, parts.proxies);
        let tcp = parts.tcp;
        stack.spawn("plimsoll-rx", move || receiver.run())?;
        for proxy in proxies {
            stack.spawn_at(proxy.nice(), proxy.name(), move || proxy.run())?;
        }
        stack.spawn("plimsoll-tcp", move || tcp.run())?;
        if stack.host().polling.is_some() {
            let host = Arc::clone(&stack.0.host);
            stack.spawn("plimsoll-idle", move || {
                if let Some(polling) = &host.polling {
                    polling.answer(&host);
                }
            })?;
        }
        if stack.host().ahead.is_some() {
            let host = Arc::clone(&stack.0.host);
            stack.spawn("plimsoll-ahead", move || {
                if let Some(ahead) = &host.ahead {
                    ahead.run(&host);
                }
            })?;
        }
        Ok(stack)
    }

    /// As [`spawn`](Self::spawn), at a nice level of its own. Returns once it has that.
    fn spawn_at(
        &self,
        nice: Option<i8>,
        name: &str,
        work: impl FnOnce() + Send + 'static,
    ) -> Result<(), Error> {
        let Some(nice) = nice else {
            return self.spawn(name, work);
        };
        let (told, placed) = mpsc::channel();
        self.spawn(name, move || {
            let given = Level::nice(nice).give_to(0);
            let works = given.is_ok();
            let _ = told.send(given);
            if works {
                work();
            }
        })?;
        let given = placed.recv().unwrap_or(Ok(None));
        let refused = Error::privileged("run a proxy before this thread", "CAP_SYS_NICE");
        given.map(|_| ()).map_err(refused)
    }

    fn spawn(&self, name: &str, work: impl FnOnce() + Send + 'static) -> Result<(), Error> {
        let watched = Watched {
            host: Arc::clone(&self.0.host),
            name: name.to_owned(),
        };
        let thread = thread::Builder::new().name(name.to_owned());
        let thread = thread.spawn(move || {
            let _watched = watched;
            work();
        });
        let thread = thread.map_err(Error::io(format!("start the thread {name}")))?;
        self.0.threads.lock().push(thread);
        Ok(())
    }

    /// Received frames by what became of them.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.0.host.counts()
    }

    /// Frames and CPU time by who caused them: sockets, listeners, and what belongs to none.
    #[must_use]
    pub fn charged(&self) -> BTreeMap<Owner, Charged> {
        self.0.host.charged()
    }

    /// The addresses that it was started with.
    pub fn addresses(&self) -> impl Iterator<Item = IpAddr> {
        self.0.host.egress.addresses()
    }

    /// What the device is and can do.
    #[must_use]
    pub fn device_capabilities(&self) -> Capabilities {
        self.0.host.device.capabilities()
    }

    /// Frames that the device dropped before they could be received.
    #[must_use]
    pub fn device_drops(&self) -> Drops {
        self.0.host.device.drops()
    }

    /// Frames that could not be sent: no room in the device, a neighbour that too many wait for or
    /// that did not answer, a link that was down or takes no frame of this length
    /// ([`Device::unsent`]). Forwarded frames are counted here as well as
    /// under [`Outcome::Forwarded`](crate::Outcome::Forwarded). What a call of a UDP socket has no
    /// room for is told by its result, and not counted here.
    #[must_use]
    pub fn unsent(&self) -> u64 {
        self.0.host.egress.unsent()
    }

    /// Frames that the device may have to receive into now, if [`StackConfig::credit`] limits
    /// them.
    #[must_use]
    pub fn receive_credit(&self) -> Option<u32> {
        let credit = self.0.host.credit.load(Ordering::Relaxed);
        (credit != u32::MAX).then_some(credit)
    }

    /// An allocator for one thread over the device's memory, that keeps at most `frames_max` frames
    /// at hand for it: for [`UdpSocket::message`](crate::UdpSocket::message) and
    /// [`UdpSocket::send_buffer_from`](crate::UdpSocket::send_buffer_from).
    #[must_use]
    pub fn allocator(&self, frames_max: usize) -> Allocator {
        Allocator::new(self.0.host.device.pool(), frames_max)
    }

    /// Why the stack has ended by itself, if it has.
    #[must_use]
    pub fn failure(&self) -> Option<io::Error> {
        self.0.host.has_failed().then(|| self.0.host.failure())
    }

    pub(crate) fn host(&self) -> &Host {
        &self.0.host
    }

    /// Sockets have rings of their own.
    pub(crate) fn device_demultiplexes(&self) -> bool {
        self.0.host.device_demultiplexes
    }
}

/// A thread of a stack. Where it ends by a panic, calls would wait for it for ever.
struct Watched {
    host: Arc<Host>,
    name: String,
}

impl Drop for Watched {
    fn drop(&mut self) {
        if thread::panicking() {
            let why = format!("the thread {} has panicked", self.name);
            self.host.fail(&io::Error::other(why));
        }
    }
}

/// A stack whose threads have not been started: they may be driven by hand.
pub(crate) struct Parts {
    pub(crate) stack: Stack,
    pub(crate) receiver: Receiver,
    pub(crate) proxies: Vec<Proxy>,
    pub(crate) tcp: tcp::Worker,
}

impl Parts {
    pub(crate) fn assemble(
        device: impl Device + 'static,
        config: &StackConfig,
    ) -> Result<Self, Error> {
        config.validate()?;
        let device: Arc<dyn Device> = Arc::new(device);
        let capabilities = device.capabilities();
        if config.path == ReceivePath::NiLrp && !capabilities.steers {
            return Err(Error::Unsupported {
                what: "this device".to_owned(),
                feature: "demultiplexing, which the receive path ni-lrp needs",
                remedy: "take AF_XDP, or the path soft-lrp",
            });
        }
        if config.proxies.forward.is_some() && capabilities.steers {
            return Err(Error::Unsupported {
                what: "AF_XDP".to_owned(),
                feature: "forwarding: the kernel gets what is for others",
                remedy: "take `plimsoll forward`, or another device",
            });
        }
        let (mut table, channels) = Table::new(config, capabilities.mac)?;
        device.know_readers(table.readers());
        let waker = Arc::clone(&channels.neighbour.waker);
        let time_wait = table.take_time_wait_channel();
        let host = Arc::new(Host::new(device, config, table, &waker)?);
        let proxies = Proxy::all(&host, channels, &config.proxies);
        let wakers = proxies.iter().map(|proxy| Arc::clone(proxy.waker()));
        let wakers = wakers.collect();
        Ok(Self {
            receiver: Receiver::new(&host, config)?,
            proxies,
            tcp: tcp::Worker::new(&host, time_wait)?,
            stack: Stack(Arc::new(Inner {
                host,
                proxies: wakers,
                threads: Mutex::default(),
            })),
        })
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // By hand nobody sends any more.
        if !self.threads.get_mut().is_empty() {
            self.host.tcp.finish(&self.host, FINISH);
        }
        self.host.stopping.store(true, Ordering::Relaxed);
        self.host.attention.wake();
        self.proxies.iter().for_each(|proxy| proxy.wake());
        if let Some(polling) = &self.host.polling {
            polling.stop();
        }
        if let Some(ahead) = &self.host.ahead {
            ahead.stop();
        }
        self.host.tcp.ready.urgency.raise_to_usual();
        self.host.tcp.ready.waker.wake();
        for thread in self.threads.get_mut().drain(..) {
            // It was reported if it panicked.
            let _ = thread.join();
        }
    }
}
