//! Prints the length and addresses of what an interface receives, without a
//! stack: `cargo run --example packet_tap eth0` (as root).

use std::os::fd::AsFd;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use plimsoll_stack::device::packet::PacketDevice;
use plimsoll_stack::device::{Batch, Device};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let interface = std::env::args().nth(1).ok_or("which interface?")?;
    let device = PacketDevice::open(&interface)?;
    let mut frames = Batch::with_capacity(64);
    loop {
        while device.receive(&mut frames, 64)? > 0 {
            for frame in frames.drain(..).filter(|frame| frame.len() >= 12) {
                let (to, from) = (&frame[..6], &frame[6..12]);
                println!("{} bytes from {from:02x?} to {to:02x?}", frame.len());
            }
        }
        let next = device.tend()?;
        let readiness = device.readiness();
        poll(
            &mut [PollFd::new(readiness.as_fd(), PollFlags::POLLIN)],
            next.map_or(Ok(PollTimeout::NONE), PollTimeout::try_from)?,
        )?;
    }
}
