//! Frames that wait in the device for others, and who is not held up while it sends.

use std::io::{self, Read, Write};
use std::iter;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::{self, ThreadId};
use std::time::Duration;

use plimsoll_stack::device::packet::PacketDevice;
use plimsoll_stack::device::simulated::{SimulatedConfig, SimulatedDevice};
use plimsoll_stack::device::{Batch, Capabilities, Device, Drops, Pool};
use plimsoll_stack::{Stack, StackConfig, TcpListener, TcpStream};

use crate::lan::{Lan, SOON, owned, xdp};
use crate::tended::{arrived, frame};

/// As many make the kernel be told at once.
const TOLD_AT: usize = 32;

#[test]
fn frames_wait_for_the_next_call_until_there_are_many() {
    Lan::create(|| {
        let kernel = PacketDevice::open("kernel0").unwrap();
        let device = xdp(&owned());
        let frames = |count| iter::repeat_with(|| frame(&device, 60)).take(count);
        let mut batch: Batch = frames(TOLD_AT - 1).collect();
        assert_eq!(device.enqueue(&mut batch).unwrap(), TOLD_AT - 1);
        thread::sleep(Duration::from_millis(200));
        assert_eq!(kernel.receive(&mut Batch::new(), 64).unwrap(), 0);
        assert_eq!(device.transmit(&mut batch).unwrap(), 0);
        assert_eq!(arrived(&kernel, TOLD_AT - 1), TOLD_AT - 1);
        batch.extend(frames(TOLD_AT));
        assert_eq!(device.enqueue(&mut batch).unwrap(), TOLD_AT);
        assert_eq!(arrived(&kernel, TOLD_AT), TOLD_AT);
    });
}

/// A device in which the owner's thread stays, once, while it sends.
#[derive(Debug)]
struct Slow {
    inner: SimulatedDevice,
    owner: ThreadId,
    is_slow: Arc<AtomicBool>,
    entered: Sender<()>,
    leave: Mutex<Receiver<()>>,
}

impl Device for Slow {
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn pool(&self) -> &Arc<Pool> {
        self.inner.pool()
    }

    fn receive(&self, batch: &mut Batch, max: usize) -> io::Result<usize> {
        self.inner.receive(batch, max)
    }

    fn transmit(&self, batch: &mut Batch) -> io::Result<usize> {
        if thread::current().id() == self.owner && self.is_slow.swap(false, Ordering::Relaxed) {
            self.entered.send(()).unwrap();
            self.leave.lock().unwrap().recv().unwrap();
        }
        self.inner.transmit(batch)
    }

    fn enqueue(&self, batch: &mut Batch) -> io::Result<usize> {
        self.inner.enqueue(batch)
    }

    fn readiness(&self) -> BorrowedFd<'_> {
        self.inner.readiness()
    }

    fn drops(&self) -> Drops {
        self.inner.drops()
    }
}

fn start(device: impl Device + 'static, net: &str) -> Stack {
    Stack::start(device, &StackConfig::at(net.parse().unwrap())).unwrap()
}

/// The peer's answer comes while the device sends. Whoever works on it needs the connection.
#[test]
fn a_connection_is_free_while_the_device_sends_for_its_owner() {
    let (one, other) = SimulatedDevice::pair(&SimulatedConfig::default()).unwrap();
    let (entered, is_in) = channel();
    let (leave, may_leave) = channel();
    let is_slow = Arc::new(AtomicBool::new(false));
    let device = Slow {
        inner: one,
        owner: thread::current().id(),
        is_slow: Arc::clone(&is_slow),
        entered,
        leave: Mutex::new(may_leave),
    };
    let (stack, peer) = (start(device, "10.0.0.1/24"), start(other, "10.0.0.2/24"));
    let listener = TcpListener::bind(&peer, "10.0.0.2:80").unwrap();
    let stream = TcpStream::connect(&stack, "10.0.0.2:80").unwrap();
    let (accepted, _) = listener.accept().unwrap();
    thread::scope(|scope| {
        let (done, is_done) = channel();
        let stream = &stream;
        scope.spawn(move || {
            is_in.recv().unwrap();
            stream.set_nodelay(true).unwrap();
            done.send(()).unwrap();
        });
        scope.spawn(move || {
            let free = is_done.recv_timeout(SOON);
            leave.send(()).unwrap();
            free.expect("the connection's lock is free");
        });
        is_slow.store(true, Ordering::Relaxed);
        (&*stream).write_all(b"hello").unwrap();
    });
    assert!(!is_slow.load(Ordering::Relaxed));
    let mut read = [0; 5];
    (&accepted).read_exact(&mut read).unwrap();
    assert_eq!(&read, b"hello");
}
