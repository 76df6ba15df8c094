//! A thread of a stack that panics: nobody may wait for it for ever.

use std::io::{self, ErrorKind};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use plimsoll_stack::device::simulated::{SimulatedConfig, SimulatedDevice};
use plimsoll_stack::device::{Batch, Capabilities, Device, Drops, Pool};
use plimsoll_stack::{Stack, StackConfig, TcpListener, UdpSocket};

const SOON: Duration = Duration::from_secs(20);

/// A device that is wrong about the first frame.
#[derive(Debug)]
struct Wrong(SimulatedDevice);

impl Device for Wrong {
    fn capabilities(&self) -> Capabilities {
        self.0.capabilities()
    }

    fn pool(&self) -> &Arc<Pool> {
        self.0.pool()
    }

    fn receive(&self, batch: &mut Batch, max: usize) -> io::Result<usize> {
        let received = self.0.receive(batch, max)?;
        assert_eq!(received, 0, "on purpose");
        Ok(0)
    }

    fn transmit(&self, batch: &mut Batch) -> io::Result<usize> {
        self.0.transmit(batch)
    }

    fn readiness(&self) -> BorrowedFd<'_> {
        self.0.readiness()
    }

    fn drops(&self) -> Drops {
        self.0.drops()
    }
}

/// Its sockets waited for what would never come, and a server went on as if it served.
#[test]
fn a_thread_that_panics_ends_the_stack() {
    let (cable, device) = SimulatedDevice::pair(&SimulatedConfig::default()).unwrap();
    let config = StackConfig::at("10.0.0.2/24".parse().unwrap());
    let stack = Stack::start(Wrong(device), &config).unwrap();
    let socket = UdpSocket::bind(&stack, "10.0.0.2:7").unwrap();
    socket.set_read_timeout(Some(SOON)).unwrap();
    let listener = TcpListener::bind(&stack, "10.0.0.2:80").unwrap();
    assert!(stack.failure().is_none());
    assert!(cable.send(&[0xff; 60]));
    let error = socket.recv(&mut [0]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::BrokenPipe, "{error}");
    let error = listener.accept_timeout(SOON).map(|_| ()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::BrokenPipe, "{error}");
    let why = stack.failure().unwrap().to_string();
    assert!(why.contains("plimsoll-rx"), "{why}");
}
